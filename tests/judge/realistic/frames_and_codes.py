"""Iterations of matrices, frames of far points, and integers that products compute."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import cast, mlp, op, reduce, reshape, span, split, unsqueeze


# Matrix iterations.

@model("orthogonal_rnn_delay_cayley_power", pins=["skew*", "plus_a", "minus_a", "inv_*", "cayley", "turn_*"], opset=18)
def orthogonal_rnn_delay_cayley_power(g):
    """Orthogonal recurrent net: learned skew matrices, Cayley transform with Newton's inverse, 64 idle steps by squaring, readout."""
    x = g.input("cue", [4, 24], g.normal(4, 24))
    w = g.weight("recurrent", 4, 16, 16, scale=0.25)
    a = op(g, "Mul", g.node("Sub", [w, g.node("Transpose", [w], name="skew_t", perm=[0, 2, 1])], name="skew"), 0.5, name="skew_half")
    p, m = op(g, "Add", a, np.eye(16), name="plus_a"), op(g, "Sub", np.eye(16), a, name="minus_a")
    X = op(g, "Mul", m, 0.5, name="first_guess")
    for i in range(8):
        r = op(g, "Sub", 2 * np.eye(16), g.node("MatMul", [p, X], name=f"inv_px{i}"), name=f"inv_r{i}")
        X = g.node("MatMul", [X, r], name=f"inv_{i}")
    q = g.node("MatMul", [X, m], name="cayley")
    for i in range(6):
        q = g.node("MatMul", [q, q], name=f"turn_{i}")
    h = reshape(g, g.node("Tanh", [g.linear(x, "encode", 24, 64)], name="tanh"), [4, 4, 16, 1], "heads")
    h = g.node("MatMul", [q, h], name="recall")
    g.output(g.linear(reshape(g, h, [4, 64], "flat"), "readout", 64, 10))


@model("shampoo_inverse_root_preconditioner", pins=["unit_cov", "ns_*"], opset=17)
def shampoo_inverse_root_preconditioner(g):
    """Learned optimiser: Shampoo's L^-1/2 by 14 coupled Newton-Schulz steps (condition 500) times a direction from an MLP."""
    q = np.linalg.qr(g.normal(24, 24))[0]
    cov = (q * np.geomspace(0.02, 10, 24)) @ q.T
    cov = g.input("statistics", [24, 24], cov.astype(np.float32))
    x = g.input("grad_feats", [24, 20], g.normal(24, 20))
    d = mlp(g, x, "direction", [20, 48, 16])
    tr = g.node("ReduceSum", [g.node("Mul", [cov, g.const(np.eye(24), "eye")], name="trace_mul")], name="trace", keepdims=0)
    y, z = g.node("Div", [cov, tr], name="unit_cov"), None
    for i in range(14):
        zy = g.node("MatMul", [z, y], name=f"ns_zy{i}") if i else y
        t = op(g, "Sub", 1.5 * np.eye(24), op(g, "Mul", zy, 0.5, name=f"ns_half{i}"), name=f"ns_t{i}")
        if i < 13:
            y = g.node("MatMul", [y, t], name=f"ns_y{i}")
        z = g.node("MatMul", [t, z], name=f"ns_z{i}") if i else t
    u = g.node("Div", [g.node("MatMul", [z, d], name="precondition"), g.node("Sqrt", [tr], name="trace_root")], name="update")
    g.output(g.linear(u, "step", 16, 16))


@model("two_hop_sgc_citation_classes", pins=[], opset=21)
def two_hop_sgc_citation_classes(g):
    """Simplified graph convolution: normalised adjacency squared, applied once to features, a linear classifier."""
    a = (g.rng.random((64, 64)) < 0.06) | np.eye(64, dtype=bool)
    a = g.input("adjacency", [64, 64], (a | a.T).astype(np.float32))
    x = g.input("papers", [64, 48], g.normal(64, 48))
    d = g.node("Sqrt", [reduce(g, "ReduceSum", a, [1], "degree")], name="degree_root")
    n = g.node("Div", [g.node("Div", [a, d], name="left"), g.node("Transpose", [d], name="degree_t", perm=[1, 0])], name="right")
    n = g.node("MatMul", [n, n], name="two_hops")
    h = g.node("MatMul", [n, g.linear(x, "embed", 48, 32)], name="spread")
    g.output(g.linear(g.node("Relu", [h], name="relu"), "classes", 32, 6))


@model("learned_preconditioner_two_terms", pins=[], opset=16)
def learned_preconditioner_two_terms(g):
    """Learned preconditioner: I + N + N² of a small off-diagonal part (norm about 0.3), applied once to a residual."""
    x = g.input("stencils", [8, 24], g.normal(8, 24))
    n = reshape(g, g.linear(x, "coupling", 24, 256), [8, 16, 16], "coupling_matrix")
    n = op(g, "Mul", op(g, "Mul", n, 1 - np.eye(16), name="off_diag"), 0.04, name="small")
    s = op(g, "Add", g.node("Add", [n, g.node("MatMul", [n, n], name="n_squared")], name="two_terms"), np.eye(16), name="plus_one")
    r = g.input("residual", [8, 16, 1], g.normal(8, 16, 1))
    z = g.node("Squeeze", [g.node("MatMul", [s, r], name="apply"), g.ints(2)], name="squeeze")
    g.output(g.linear(z, "smooth", 16, 16))


# Geometry.

@model("dcp_soft_correspondence_minus_centroid", pins=["match_softmax", "virtual_mm", "centroid", "virtual_centred"], opset=20)
def dcp_soft_correspondence_minus_centroid(g):
    """Deep closest point: virtual points by softmax weights of survey points (600 m from the origin), less their centroid."""
    src = g.input("source_feats", [1, 96, 48], g.normal(1, 96, 48))
    dst = g.input("target_feats", [1, 40, 48], g.normal(1, 40, 48))
    q, k = g.linear(src, "query", 48, 48), g.linear(dst, "key", 48, 48)
    s = op(g, "Mul", g.node("MatMul", [q, g.node("Transpose", [k], name="k_t", perm=[0, 2, 1])], name="scores"), 48**-0.5, name="scores_scale")
    p = g.node("Softmax", [s], name="match_softmax", axis=-1)
    pts = g.uniform(-12, 12, 1, 40, 3) + np.float32([620.0, -410.0, 85.0])
    pts = g.input("target_xyz", [1, 40, 3], pts)
    v = g.node("MatMul", [p, pts], name="virtual_mm")
    c = reduce(g, "ReduceMean", pts, [1], "centroid")
    v = g.node("Sub", [v, c], name="virtual_centred")
    g.output(v)
    g.output(g.linear(g.node("Relu", [g.linear(v, "lift", 3, 48)], name="relu"), "flow", 48, 3))


@model("cryo_em_residue_local_frames", pins=["near", "near_rel", "origin"], opset=19)
def cryo_em_residue_local_frames(g):
    """Model building in a cryo-EM box: neighbours (150 to 400 angstroms) moved into each residue's frame by an Einsum, an MLP."""
    n = 96
    ca = (np.cumsum(g.normal(n, 3, scale=2.2), 0) + [260, 210, 330]).astype(np.float32)
    d = ((ca[:, None] - ca) ** 2).sum(-1)
    xyz = g.input("ca_xyz", [n, 3], ca)
    idx = g.input("neighbours", [n, 12], np.argsort(d, 1)[:, 1:13].astype(np.int64))
    r = g.input("frames", [n, 3, 3], np.linalg.qr(g.normal(n, 3, 3))[0].astype(np.float32))
    near = g.node("Gather", [xyz, idx], name="near", axis=0)
    rel = g.node("Sub", [near, unsqueeze(g, xyz, [1], "origin")], name="near_rel")
    loc = g.node("Einsum", [r, rel], name="to_frame", equation="nji,nkj->nki")
    loc = op(g, "Div", loc, 10.0, name="tenths")
    x = g.input("residues", [n, 12, 29], g.normal(n, 12, 29))
    y = g.node("Concat", [op(g, "Mul", loc, 3.0, name="weighty"), x], name="cat", axis=2)
    g.output(loc)
    g.output(reduce(g, "ReduceMax", mlp(g, y, "msg", [32, 64, 32]), [1], "pool", 0))


@model("motion_capture_skinning_camera_mm", pins=["skin_softmax", "blend_*", "vertices*", "relative"], opset=18)
def motion_capture_skinning_camera_mm(g):
    """Capture stage: blended joint transforms with translations of 6 m in mm, vertices less the camera's place, pinhole."""
    w = g.node("Softmax", [op(g, "Mul", g.linear(g.input("vertex_feats", [200, 16], g.normal(200, 16)), "skin_head", 16, 12), 2.0, name="sharpen")], name="skin_softmax", axis=1)
    base = np.linalg.qr(g.normal(3, 3))[0]
    t = np.zeros((12, 3, 4))
    for j in range(12):
        t[j, :, :3] = base @ np.linalg.qr(np.eye(3) + g.normal(3, 3, scale=0.03))[0]
        t[j, :, 3] = [5200, -6400, 1100] + g.normal(3, scale=15)
    t = g.input("joints", [12, 12], t.reshape(12, 12).astype(np.float32))
    v = g.input("rest_mm", [200, 4, 1], np.concatenate([g.uniform(-300, 300, 200, 3, 1), np.ones((200, 1, 1))], 1).astype(np.float32))
    T = reshape(g, g.node("MatMul", [w, t], name="blend_mm"), [200, 3, 4], "blend_shape")
    p = g.node("Squeeze", [g.node("MatMul", [T, v], name="vertices_mm"), g.ints(2)], name="vertices")
    cam = g.input("camera_mm", [1, 3], np.float32([[5150.0, -6500.0, 150.0]]))
    rel = g.node("Sub", [p, cam], name="relative")
    g.output(op(g, "Mul", rel, 0.001, name="metres"))
    g.output(mlp(g, op(g, "Mul", rel, 0.004, name="scaled"), "correct", [3, 48, 3]))


@model("city_nerf_tile_local_samples", pins=["ray_*", "tile_local"], opset=16)
def city_nerf_tile_local_samples(g):
    """City radiance field: origin + depth · direction (kilometres), into a tile of 25 m, sines of its coordinates, a colour MLP."""
    n = 160
    tile = np.float32([2475.0, -1350.0, 40.0])
    d = g.normal(n, 3); d /= np.linalg.norm(d, axis=1, keepdims=True)
    depth = g.uniform(200, 900, n, 1)
    o = tile + g.uniform(-10, 10, n, 3) - depth * d
    o, d = g.input("origins", [n, 3], o.astype(np.float32)), g.input("directions", [n, 3], d)
    far = g.input("depth_prior", [n, 1], depth)
    x = g.input("ray_feats", [n, 24], g.normal(n, 24))
    off = g.node("Tanh", [g.linear(x, "proposal", 24, 1)], name="proposal_tanh")
    t = g.node("Add", [far, off], name="ray_depth")
    p = g.node("Add", [o, g.node("Mul", [d, t], name="ray_step")], name="ray_point")
    loc = op(g, "Div", g.node("Sub", [p, g.const(tile, "tile_centre")], name="tile_local"), 25.0, name="unit")
    enc = [loc]
    for k in range(2):
        s = op(g, "Mul", loc, np.pi * 2**k, name=f"freq_{k}")
        enc += [g.node("Sin", [s], name=f"sin_{k}"), g.node("Cos", [s], name=f"cos_{k}")]
    y = g.node("Concat", enc, name="encode", axis=1)
    g.output(loc)
    g.output(g.node("Sigmoid", [mlp(g, y, "colour", [15, 48, 3])], name="rgb"))


@model("texture_barycentric_expanded_areas", pins=["px", "py", "corner*", "cross_*", "area_*"], opset=14)
def texture_barycentric_expanded_areas(g):
    """Mesh texturing: barycentric weights by expanded cross products of texel coordinates up to 250, vertex features blended."""
    n = 128
    c = g.uniform(25, 230, n, 1, 2)
    ang = g.uniform(0, 6, n, 1) + np.array([0, 2.1, 4.2])
    tri = c + 14 * np.stack([np.cos(ang), np.sin(ang)], -1)
    b = g.rng.dirichlet([2, 2, 2], n)
    tri_in = g.input("corners", [n, 3, 2], tri.astype(np.float32))
    pt = g.input("pixels", [n, 2], np.einsum("nk,nkd->nd", b, tri).astype(np.float32))
    px, py = (g.node("Gather", [pt, g.const(i, dtype=np.int64)], name=s, axis=1) for i, s in enumerate(("px", "py")))
    cs = g.node("Split", [reshape(g, tri_in, [n, 6], "corners_flat"), g.ints(1, 1, 1, 1, 1, 1)], name="corner_split", outputs=6, axis=1)
    cs = [g.node("Squeeze", [v, g.ints(1)], name=f"corner_{i}") for i, v in enumerate(cs)]
    xy = [(cs[2 * i], cs[2 * i + 1]) for i in range(3)]

    def cross(a, b, n_):
        return g.node("Sub", [g.node("Mul", [a[0], b[1]], name=f"cross_l{n_}"), g.node("Mul", [a[1], b[0]], name=f"cross_r{n_}")], name=f"cross_{n_}")

    areas, p = [], (px, py)
    for i in range(3):
        a, b_ = xy[(i + 1) % 3], xy[(i + 2) % 3]
        s = g.node("Add", [cross(a, b_, f"ab{i}"), cross(b_, p, f"bp{i}")], name=f"area_two{i}")
        areas.append(unsqueeze(g, g.node("Add", [s, cross(p, a, f"pa{i}")], name=f"area_{i}"), [1], f"area_dim{i}"))
    a = g.node("Concat", areas, name="stack", axis=1)
    w = g.node("Div", [a, reduce(g, "ReduceSum", a, [1], "total")], name="weights")
    f = g.input("vertex_feats", [n, 3, 24], g.normal(n, 3, 24))
    y = g.node("Squeeze", [g.node("MatMul", [unsqueeze(g, w, [1], "row"), f], name="blend"), g.ints(1)], name="blend_sq")
    g.output(g.linear(y, "shade", 24, 4))


@model("keypoint_heatmap_second_moments", pins=["heat_prior", "maps", "heat_softmax", "m1_*", "m2_*", "var_*"], opset=22)
def keypoint_heatmap_second_moments(g):
    """Pose uncertainty: means and E[x²] - E[x]² under heat maps, grid in pixels of a 640x480 frame, a confidence head."""
    x = g.input("crop_feats", [1, 32, 32, 32], g.normal(1, 32, 32, 32, scale=0.5))
    yy, xx = np.mgrid[0:32, 0:32]
    c = g.uniform(12, 20, 9, 2, 1, 1)
    prior = -((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2) / 14
    prior = g.input("prior", [1, 9, 32, 32], prior[None].astype(np.float32))
    h = g.node("Add", [g.conv(x, "heat", 32, 9, 3, pads=[1] * 4), prior], name="heat_prior")
    p = g.node("Softmax", [reshape(g, h, [9, 1024], "maps")], name="heat_softmax", axis=1)
    grid = np.stack([420 + 3.0 * xx, 260 + 3.0 * yy], -1).reshape(1024, 2)
    m = g.node("MatMul", [p, g.const(grid, "grid")], name="m1_mm")
    m2 = g.node("MatMul", [p, g.const(grid**2, "grid_sq")], name="m2_mm")
    v = g.node("Sub", [m2, g.node("Mul", [m, m], name="m1_sq")], name="var_sub")
    sd = g.node("Sqrt", [op(g, "Max", v, 1e-3, name="sd_floor")], name="sd")
    g.output(m, sd)
    g.output(mlp(g, op(g, "Mul", sd, 0.1, name="sd_scale"), "confidence", [2, 32, 1]))


@model("shape_part_groups_unit_ball", pins=[], opset=18)
def shape_part_groups_unit_ball(g):
    """Part segmentation of unit-ball shapes: neighbours within 0.5 less their centre, joined to features, an MLP and a max."""
    c = g.uniform(-0.6, 0.6, 32, 1, 3)
    near = g.input("neighbours", [32, 12, 3], (c + g.uniform(-0.5, 0.5, 32, 12, 3)).astype(np.float32))
    c = g.input("centres", [32, 1, 3], c)
    rel = op(g, "Mul", g.node("Sub", [near, c], name="group_sub"), 2.0, name="group_mul")
    x = g.input("feats", [32, 12, 29], g.normal(32, 12, 29))
    y = g.node("Relu", [g.linear(g.node("Concat", [rel, x], name="cat", axis=2), "net1", 32, 64)], name="relu")
    g.output(reduce(g, "ReduceMax", g.linear(y, "net2", 64, 32), [1], "pool", 0))


@model("hand_forward_kinematics_chain", pins=[], opset=15)
def hand_forward_kinematics_chain(g):
    """Hand tracking: joint angles by an MLP, planar bones chained by turns, finger tips in decimetres from the wrist."""
    x = g.input("latent", [20, 32], g.normal(20, 32))
    a = op(g, "Mul", g.node("Sigmoid", [mlp(g, x, "angles", [32, 48, 15])], name="angles_sig"), 0.8, name="angles_rad")
    a = reshape(g, a, [20, 5, 3], "fingers")
    bones = np.stack([g.uniform(0.6, 1.0, 5), g.uniform(0.3, 0.5, 5), g.uniform(0.2, 0.3, 5)], 1)
    turn, tips = None, None
    for j in range(3):
        aj = g.node("Gather", [a, g.const(j, dtype=np.int64)], name=f"joint_{j}", axis=2)
        turn = aj if turn is None else g.node("Add", [turn, aj], name=f"turn_{j}")
        xy = [unsqueeze(g, op(g, "Mul", g.node(k, [turn], name=f"{k.lower()}_{j}"), bones[:, j], name=f"bone_{k.lower()}{j}"), [2], f"dim_{k.lower()}{j}") for k in ("Cos", "Sin")]
        step = g.node("Concat", xy, name=f"step_{j}", axis=2)
        tips = step if tips is None else g.node("Add", [tips, step], name=f"tip_{j}")
    g.output(tips)


# Integers by products.

@model("ad_click_crossed_one_hot_index", pins=["key_mm", "key_int"], opset=17)
def ad_click_crossed_one_hot_index(g):
    """Ad click model: one-hots of three fields times mixed-radix steps give one crossed index below 6144, embedded, an MLP."""
    n = 64
    hot = np.zeros((n, 56), np.float32)
    for lo, size in ((0, 16), (16, 16), (32, 24)):
        hot[np.arange(n), lo + g.rng.integers(0, size, n)] = 1
    x = g.input("fields", [n, 56], hot)
    steps = np.concatenate([np.arange(16) * 384, np.arange(16) * 24, np.arange(24)])[:, None]
    i = g.node("MatMul", [x, g.const(steps, "radix")], name="key_mm")
    i = g.node("Squeeze", [g.node("Cast", [i], name="key_int", to=TensorProto.INT64), g.ints(1)], name="key_sq")
    e = g.node("Gather", [g.const(g.normal(6208, 24), "cross_table"), i], name="embed", axis=0)
    u = g.linear(g.input("user", [n, 20], g.normal(n, 20)), "user", 20, 24)
    y = g.node("Concat", [e, u], name="cat", axis=1)
    g.output(mlp(g, y, "deep", [48, 64, 1]))


@model("sparse_voxel_linear_key_hash", pins=["voxel_key", "bucket_*"], opset=13)
def sparse_voxel_linear_key_hash(g):
    """Sparse 3-D detector: halved voxel coordinates times strides by Gemm, the key modulo 2048, hashed features, a head."""
    n = 300
    xyz = g.input("coords", [n, 3], g.rng.integers(0, [120, 128, 32], (n, 3)).astype(np.float32))
    c = g.node("Floor", [op(g, "Mul", xyz, 0.5, name="coarse")], name="coarse_floor")
    k = g.node("Gemm", [c, g.const([[1024.0], [16.0], [1.0]], "strides"), g.const([7.0], "salt")], name="voxel_key")
    q = g.node("Floor", [op(g, "Mul", k, 1 / 2048, name="bucket_div")], name="bucket_floor")
    r = g.node("Sub", [k, op(g, "Mul", q, 2048.0, name="bucket_back")], name="bucket_mod")
    r = g.node("Squeeze", [g.node("Cast", [r], name="bucket_int", to=TensorProto.INT64), g.ints(1)], name="bucket_sq")
    e = g.node("Gather", [g.const(g.normal(2048, 16), "hash_table"), r], name="lookup", axis=0)
    x = g.input("intensity", [n, 16], g.normal(n, 16))
    y = g.node("Relu", [g.linear(g.node("Concat", [e, x], name="cat", axis=1), "net", 32, 48)], name="relu")
    g.output(g.linear(y, "head", 48, 7))


@model("segmentation_confusion_bins_miou", pins=["pair_*", "bins", "hit"], opset=21)
def segmentation_confusion_bins_miou(g):
    """Segmentation evaluated in the graph: 21·label + prediction compared with 441 bins, counts, intersection over union."""
    y = g.rng.integers(0, 21, (1, 48, 48)); y = np.repeat(np.repeat(y[:, ::6, ::6], 6, 1), 6, 2)
    code = g.normal(21, 32)
    w = code / 6
    noisy = np.where(g.rng.random(y.shape) < 0.2, g.rng.integers(0, 21, y.shape), y)
    f = np.moveaxis(code[noisy], 3, 1) + g.normal(1, 32, 48, 48, scale=0.3)
    f = g.input("features", [1, 32, 48, 48], f.astype(np.float32))
    lab = g.input("labels", [1, 48, 48], y.astype(np.int64))
    z = g.node("Conv", [f, g.const(w[:, :, None, None], "classifier_w"), g.const(-(w**2).sum(1) * 3, "classifier_b")], name="classifier")
    pred = g.node("Cast", [g.node("ArgMax", [z], name="pred", axis=1, keepdims=0)], name="pred_float", to=1)
    lf = g.node("Cast", [lab], name="label_float", to=1)
    k = g.node("Add", [op(g, "Mul", lf, 21.0, name="pair_row"), pred], name="pair_add")
    k = reshape(g, k, [2304, 1], "pair_column")
    bins = g.node("Cast", [g.node("Range", [g.const(0, dtype=np.int64), g.const(441, dtype=np.int64), g.const(1, dtype=np.int64)], name="bins_range")], name="bins", to=1)
    hit = g.node("Cast", [g.node("Equal", [k, bins], name="hit")], name="hit_float", to=1)
    m = reshape(g, reduce(g, "ReduceSum", hit, [0], "counts", 0), [21, 21], "confusion")
    tp = reduce(g, "ReduceSum", op(g, "Mul", m, np.eye(21), name="diag_mul"), [1], "tp", 0)
    both = g.node("Add", [reduce(g, "ReduceSum", m, [0], "cols", 0), reduce(g, "ReduceSum", m, [1], "rows", 0)], name="both")
    union = op(g, "Max", g.node("Sub", [both, tp], name="union"), 1.0, name="union_min")
    g.output(g.node("Div", [tp, union], name="iou"))


@model("molecule_fingerprint_hamming_kernel", pins=["bits_*", "shared", "hamming*"], opset=20)
def molecule_fingerprint_hamming_kernel(g):
    """Molecule property kernel: Hamming distances |a| + |b| - 2 a·b of near-duplicate 4096-bit fingerprints, exp, values."""
    base = g.rng.random(4096) < 0.45
    a = base ^ (g.rng.random((24, 4096)) < 0.003)
    b = base ^ (g.rng.random((64, 4096)) < 0.003)
    a = g.input("query_bits", [24, 4096], a.astype(np.float32))
    b = g.const(b, "library_bits")
    na = reduce(g, "ReduceSum", a, [1], "bits_a")
    nb = g.node("Transpose", [reduce(g, "ReduceSum", b, [1], "bits_b")], name="bits_bt", perm=[1, 0])
    ab = op(g, "Mul", g.node("MatMul", [a, g.node("Transpose", [b], name="library_t", perm=[1, 0])], name="shared"), 2.0, name="hamming_twice")
    d = g.node("Sub", [g.node("Add", [na, nb], name="hamming_sum"), ab], name="hamming")
    k = g.node("Exp", [op(g, "Mul", d, -0.08, name="kernel_scale")], name="kernel")
    k = g.node("Div", [k, reduce(g, "ReduceSum", k, [1], "kernel_sum")], name="kernel_norm")
    y = g.node("MatMul", [k, g.const(g.normal(64, 32) + g.normal(32), "values")], name="mix")
    g.output(g.linear(y, "property", 32, 5))


@model("packed_document_positions_by_triangle", pins=["pos_*"], opset=18)
def packed_document_positions_by_triangle(g):
    """Packed text encoder: positions as mask times a triangle of ones, less one, then a position table and a layer."""
    m = g.input("mask", [2, 700], (g.rng.random((2, 700)) < 0.97).astype(np.int64))
    f = cast(g, m, "ones")
    p = op(g, "Sub", g.node("MatMul", [f, g.const(np.triu(np.ones((700, 700))), "triangle")], name="pos_mm"), 1.0, name="pos_minus")
    p = g.node("Cast", [op(g, "Max", p, 0.0, name="pos_floor")], name="pos_int", to=TensorProto.INT64)
    e = g.node("Gather", [g.const(g.normal(700, 32), "position_table"), p], name="positions", axis=0)
    t = g.node("Gather", [g.const(g.normal(200, 32), "token_table"), g.input("ids", [2, 700], g.rng.integers(0, 200, (2, 700)))], name="tokens", axis=0)
    x = g.node("Add", [e, t], name="sum")
    g.output(g.linear(x, "layer", 32, 16))


@model("retail_holiday_date_key_lookup", pins=["key", "holiday_eq"], opset=19)
def retail_holiday_date_key_lookup(g):
    """Sales forecast: (year, month, day) times (10000, 100, 1) compared with a table of holidays, their effects, an MLP."""
    table = np.stack([g.rng.integers(20, 26, 40), g.rng.integers(1, 13, 40), g.rng.integers(1, 29, 40)], 1)
    days = np.stack([g.rng.integers(20, 26, 80), g.rng.integers(1, 13, 80), g.rng.integers(1, 29, 80)], 1)
    days[::3] = table[g.rng.integers(0, 40, 27)]
    d = g.input("ymd", [80, 3], days.astype(np.float32))
    k = g.node("MatMul", [d, g.const([[10000.0], [100.0], [1.0]], "digits")], name="key")
    keys = (table * [10000, 100, 1]).sum(1)
    hit = g.node("Equal", [k, g.const(keys[None], "holiday_keys")], name="holiday_eq")
    e = g.node("MatMul", [cast(g, hit, "holiday_float"), g.const(g.normal(40, 16), "effects")], name="effect")
    x = g.linear(g.input("store", [80, 24], g.normal(80, 24)), "store", 24, 16)
    y = g.node("Concat", [e, x], name="cat", axis=1)
    g.output(mlp(g, y, "sales", [32, 48, 1]))


@model("forest_votes_then_class_embedding", pins=[], opset=17)
def forest_votes_then_class_embedding(g):
    """Forest in front of a network: labels of 50 trees compared with 8 classes, votes counted by a product, ArgMax, embedded."""
    votes = np.where(g.rng.random((40, 50)) < 0.5, g.rng.integers(0, 8, (40, 1)), g.rng.integers(0, 8, (40, 50)))
    v = g.input("tree_labels", [40, 1, 50], votes[:, None].astype(np.float32))
    eq = cast(g, g.node("Equal", [v, g.const(np.arange(8)[:, None], "classes")], name="vote_eq"), "vote")
    n = g.node("Squeeze", [g.node("MatMul", [eq, g.const(np.ones((50, 1)), "each")], name="votes"), g.ints(2)], name="votes_sq")
    c = g.node("ArgMax", [n], name="winner", axis=1, keepdims=0)
    e = g.node("Gather", [g.const(g.normal(8, 16), "class_table"), c], name="embed", axis=0)
    x = g.linear(g.input("row", [40, 24], g.normal(40, 24)), "row", 24, 16)
    y = g.node("Concat", [e, x, op(g, "Mul", n, 0.02, name="share")], name="cat", axis=1)
    g.output(g.linear(y, "head", 40, 4))


@model("texture_local_binary_pattern_codes", pins=[], opset=15)
def texture_local_binary_pattern_codes(g):
    """Local binary patterns: six comparisons with the centre times 1, 2, 4 ... 32, codes below 64 embedded, a convolution."""
    x = g.input("image", [1, 1, 24, 24], g.rng.integers(0, 256, (1, 1, 24, 24)).astype(np.float32))
    k = np.zeros((6, 1, 3, 3))
    for i, (r, c) in enumerate(((0, 0), (0, 2), (1, 2), (2, 2), (2, 0), (1, 0))):
        k[i, 0, r, c], k[i, 0, 1, 1] = 1, -1
    d = g.node("Conv", [x, g.const(k, "pattern")], name="differences")
    b = cast(g, op(g, "Greater", d, 0.0, name="brighter"), "bits")
    b = g.node("Transpose", [b], name="bits_last", perm=[0, 2, 3, 1])
    code = g.node("MatMul", [b, g.const(2.0 ** np.arange(6)[:, None], "powers")], name="code")
    code = g.node("Squeeze", [g.node("Cast", [code], name="code_int", to=TensorProto.INT64), g.ints(3)], name="code_sq")
    e = g.node("Gather", [g.const(g.normal(64, 16), "code_table"), code], name="embed", axis=0)
    e = g.node("Transpose", [e], name="channels_first", perm=[0, 3, 1, 2])
    g.output(g.conv(e, "mix", 16, 16, 3))
