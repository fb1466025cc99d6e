"""Geometry: warps by GridSample, cameras, bird's-eye views, epipolar lines, rotations, point clouds."""

import numpy as np

from .build import model
from .parts import constant, count, mlp, op, reduce, reshape, span, split, unsqueeze


def pixel_grid(height, width):
    """x and y of every pixel, [height, width, 2]."""
    return np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).astype(np.float32)


def unit_range(g, xy, stem, width, height):
    """Pixels as the [-1, 1] of GridSample with align_corners."""
    xy = op(g, "Div", xy, [(width - 1) / 2, (height - 1) / 2], name=f"{stem}_div")
    return op(g, "Sub", xy, 1.0, name=f"{stem}_minus")


@model("pwcnet_flow_warp_features", pins=["flow_*", "grid_*", "warp"], opset=20)
def pwcnet_flow_warp_features(g):
    """PWC-Net: the second frame's features warped by the upsampled flow, then a convolution."""
    feats = g.input("feats", [1, 64, 48, 128], g.normal(1, 64, 48, 128))
    flow = g.input("flow", [1, 2, 24, 64], g.uniform(-12, 12, 1, 2, 24, 64))
    flow = g.node("Resize", [flow, "", g.const([1.0, 1, 2, 2])], name="flow_resize", mode="linear")
    flow = op(g, "Mul", flow, 2.0, name="flow_scale")
    flow = g.node("Transpose", [flow], name="flow_t", perm=[0, 2, 3, 1])
    xy = g.node("Add", [g.const(pixel_grid(48, 128)[None], "pixels"), flow], name="grid_add")
    xy = unit_range(g, xy, "grid", 128, 48)
    warped = g.node("GridSample", [feats, xy], name="warp", mode="linear", align_corners=1)
    g.output(g.conv(warped, "refine", 64, 32, 3, pads=[1, 1, 1, 1]))


@model("stn_affine_grid_localisation", pins=["theta_*", "affine_grid", "sample"])
def stn_affine_grid_localisation(g):
    """Spatial transformer: a localisation head predicts an affine matrix, AffineGrid, GridSample, convs."""
    x = g.input("x", [2, 32, 40, 96], g.normal(2, 32, 40, 96))
    z = g.node("Relu", [g.conv(x, "loc", 32, 32, 5, strides=[4, 4])], name="loc_relu")
    z = g.node("Flatten", [g.node("GlobalAveragePool", [z], name="loc_pool")], name="loc_flat")
    w = g.weight("theta_w", 32, 6, scale=0.3)
    theta = g.node("Gemm", [z, w, g.const([1.0, 0, 0, 0, 1, 0], "theta_b")], name="theta_gemm")
    theta = reshape(g, theta, [-1, 2, 3], "theta_shape")
    grid = g.node("AffineGrid", [theta, g.ints(2, 32, 40, 96)], name="affine_grid", align_corners=0)
    y = g.node("GridSample", [x, grid], name="sample", mode="linear", padding_mode="border")
    g.output(g.conv(g.node("Relu", [y], name="relu"), "head", 32, 32, 3, pads=[1, 1, 1, 1]))


def camera_matrix():
    """4x4 from lidar metres to pixels of a 1600 x 900 camera looking ahead (x forward, y left, z up)."""
    k = np.array([[1260.0, 0, 800, 0], [0, 1260, 450, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    turn = np.array([[0.0, -1, 0, 0.02], [0, 0, -1, 1.6], [1, 0, 0, -0.4], [0, 0, 0, 1]])
    return (k @ turn).astype(np.float32)


@model("bevformer_points_to_camera_sampling", pins=["ref_*", "cam_*", "uv_*", "sample"], opset=20)
def bevformer_points_to_camera_sampling(g):
    """BEVFormer: bird's-eye pillars in metres projected by lidar2img, divided by depth, features sampled."""
    feats = g.input("feats", [1, 64, 29, 50], g.normal(1, 64, 29, 50))
    lidar2img = g.input("lidar2img", [1, 4, 4], camera_matrix()[None])
    x, y = np.meshgrid((np.arange(24) + 0.5) / 24, (np.arange(24) + 0.5) / 24)
    ref = g.const(np.stack([x, y, np.full_like(x, 0.4)], -1).reshape(1, 576, 3), "reference")
    ref = op(g, "Mul", ref, [48.0, 40.0, 6.0], name="ref_scale")
    ref = op(g, "Add", ref, [3.0, -20.0, -3.0], name="ref_origin")
    ref = g.node("Concat", [ref, g.const(np.ones((1, 576, 1)))], name="ref_homogeneous", axis=2)
    turned = g.node("Transpose", [lidar2img], name="cam_t", perm=[0, 2, 1])
    p = g.node("MatMul", [ref, turned], name="cam_mm")
    depth = op(g, "Max", span(g, p, 2, 3, 2, "cam_z"), 1e-5, name="cam_depth")
    uv = g.node("Div", [span(g, p, 0, 2, 2, "cam_xy"), depth], name="uv_div")
    uv = op(g, "Mul", uv, [2 / 1600, 2 / 900], name="uv_norm")
    uv = unsqueeze(g, op(g, "Sub", uv, 1.0, name="uv_minus"), [1], "uv_dims")
    s = g.node("GridSample", [feats, uv], name="sample", mode="linear", padding_mode="border")
    s = g.node("Squeeze", [s, g.ints(2)], name="squeeze")
    s = g.node("Transpose", [s], name="tokens", perm=[0, 2, 1])
    g.output(mlp(g, s, "net", [64, 128, 64]))


@model("depth_unprojection_to_centred_cloud", pins=["rays_*", "points_*", "centre_*"], opset=21)
def depth_unprojection_to_centred_cloud(g):
    """Pixels by inverse intrinsics, times depth up to 60 m, minus the cloud's centre, into a PointNet."""
    depth = g.input("depth", [1, 400, 1], g.uniform(30, 60, 1, 400, 1))
    pixels = pixel_grid(20, 20).reshape(1, 400, 2) * 4 + np.float32([900, 300])
    pixels = np.concatenate([pixels, np.ones((1, 400, 1))], 2)
    k = np.array([[1100.0, 0, 620], [0, 1100, 180], [0, 0, 1]])
    inverse = g.input("k_inverse", [3, 3], np.linalg.inv(k).T.astype(np.float32))
    rays = g.node("MatMul", [constant(g, pixels, "rays_pixels"), inverse], name="rays_mm")
    p = g.node("Mul", [rays, depth], name="points_mul")
    centre = reduce(g, "ReduceMean", p, [1], "centre_mean")
    p = g.node("Sub", [p, centre], name="centre_sub")
    y = mlp(g, p, "net", [3, 64, 128])
    g.output(reduce(g, "ReduceMax", y, [1], "pool", keepdims=0))


@model("epipolar_sampson_inlier_weights", pins=["match_*", "line*", "res_*", "den_*", "err_*"], opset=20)
def epipolar_sampson_inlier_weights(g):
    """Sampson error x'ᵀFx of matches in pixels, with F of entries down to 1e-7, weighting descriptors."""
    n, k = 200, np.array([[800.0, 0, 640], [0, 800, 480], [0, 0, 1]])
    t = np.array([[0, -0.1, 0.05], [0.1, 0, -1.0], [-0.05, 1.0, 0]])
    f = np.linalg.inv(k).T @ t @ np.linalg.inv(k)
    world = np.concatenate([g.rng.uniform(-4, 4, (n, 2)), g.rng.uniform(8, 20, (n, 1))], 1)
    a, b = world @ k.T, (world + [1.0, 0.05, 0.1]) @ k.T
    a, b = (p / p[:, 2:] + np.concatenate([g.normal(n, 2), np.zeros((n, 1))], 1) for p in (a, b))
    a = g.input("points0", [n, 3], a.astype(np.float32))
    b = g.input("points1", [n, 3], b.astype(np.float32))
    fund = g.input("fundamental", [3, 3], f.astype(np.float32))
    x = g.input("descriptors", [n, 64], g.normal(n, 64))
    ft = g.node("Transpose", [fund], name="match_ft", perm=[1, 0])
    line1 = g.node("MatMul", [a, ft], name="line1_mm")
    line0 = g.node("MatMul", [b, fund], name="line0_mm")
    res = reduce(g, "ReduceSum", g.node("Mul", [b, line1], name="res_mul"), [1], "res_sum")
    res = g.node("Mul", [res, res], name="res_sq")
    ab = g.node("Concat", [span(g, line0, 0, 2, 1, "line0_ab"), span(g, line1, 0, 2, 1, "line1_ab")],
                name="den_cat", axis=1)
    den = reduce(g, "ReduceSum", g.node("Mul", [ab, ab], name="den_sq"), [1], "den_sum")
    err = g.node("Div", [res, op(g, "Add", den, 1e-12, name="den_eps")], name="err_div")
    w = g.node("Exp", [op(g, "Mul", err, -0.5, name="err_scale")], name="inlier_exp")
    y = g.node("Mul", [mlp(g, x, "net", [64, 128, 64]), w], name="weighted")
    g.output(g.linear(y, "head", 64, 32), w)


@model("quaternion_head_to_rotation", pins=[], opset=21)
def quaternion_head_to_rotation(g):
    """Pose head: a quaternion by ReduceL2, its rotation matrix by 1 - 2(yy + zz) and so on."""
    x = g.input("x", ["n", 128], g.normal(16, 128))
    q = mlp(g, x, "head", [128, 128, 4])
    q = g.node("Div", [q, reduce(g, "ReduceL2", q, [1], "l2")], name="unit")
    parts = dict(zip("wxyz", split(g, q, 4, 1, "parts")))

    def product(ab):
        return op(g, "Mul", g.node("Mul", [parts[ab[0]], parts[ab[1]]], name=ab), 2.0, name=f"two_{ab}")

    two = {ab: product(ab) for ab in ("xx", "yy", "zz", "xy", "xz", "yz", "wx", "wy", "wz")}
    rows = []
    for i, (a, b) in enumerate((("yy", "zz"), ("xx", "zz"), ("xx", "yy"))):
        rows.append(op(g, "Sub", 1.0, g.node("Add", [two[a], two[b]], name=f"d{i}_add"), name=f"d{i}"))
    for kind, a, b in (("Sub", "xy", "wz"), ("Add", "xz", "wy"), ("Add", "xy", "wz"), ("Sub", "yz", "wx"),
                       ("Sub", "xz", "wy"), ("Add", "yz", "wx")):
        rows.append(g.node(kind, [two[a], two[b]], name=f"{kind.lower()}_{a}_{b}"))
    g.output(g.node("Concat", rows, name="matrix", axis=1))


@model("rotation_6d_gram_schmidt", pins=[], opset=19)
def rotation_6d_gram_schmidt(g):
    """Continuous 6-D rotations: Gram-Schmidt of two predicted vectors, the third by a cross product."""
    x = g.input("x", [24, 128], g.normal(24, 128))
    a, b = split(g, mlp(g, x, "head", [128, 128, 6]), 2, 1, "halves")
    norm = op(g, "Max", reduce(g, "ReduceL2", a, [1], "a_l2"), 1e-6, name="a_max")
    a = g.node("Div", [a, norm], name="a_unit")
    dot = reduce(g, "ReduceSum", g.node("Mul", [a, b], name="dot_mul"), [1], "dot_sum")
    b = g.node("Sub", [b, g.node("Mul", [dot, a], name="along")], name="b_orthogonal")
    norm = op(g, "Max", reduce(g, "ReduceL2", b, [1], "b_l2"), 1e-6, name="b_max")
    b = g.node("Div", [b, norm], name="b_unit")
    left = [g.node("Gather", [v, g.ints(1, 2, 0)], name=f"{s}_yzx", axis=1) for s, v in (("a", a), ("b", b))]
    right = [g.node("Gather", [v, g.ints(2, 0, 1)], name=f"{s}_zxy", axis=1) for s, v in (("a", a), ("b", b))]
    c = g.node("Sub", [g.node("Mul", [left[0], right[1]], name="cross_left"),
                       g.node("Mul", [right[0], left[1]], name="cross_right")], name="cross")
    g.output(g.node("Concat", [a, b, c], name="rotation", axis=1))


@model("icp_weighted_covariance_lidar", pins=["centroid_*", "p_*", "q_*", "cov_*"])
def icp_weighted_covariance_lidar(g):
    """Registration: centroids and the weighted covariance of matched lidar points in metres, scaled by n."""
    n = 256
    p = g.uniform(-80, 80, 1, n, 3) + np.float32([420.0, -310.0, 12.0])
    q = (p + np.float32([1.5, -0.7, 0.1]) + g.normal(1, n, 3, scale=0.05)).astype(np.float32)
    p, q = g.input("source", [1, n, 3], p.astype(np.float32)), g.input("target", [1, n, 3], q)
    feats = g.input("feats", [1, n, 64], g.normal(1, n, 64))
    w = g.node("Sigmoid", [mlp(g, feats, "weight", [64, 64, 1])], name="weight_sig")
    total = op(g, "Add", reduce(g, "ReduceSum", w, [1], "weight_sum"), 1e-8, name="centroid_eps")
    means = {}
    for s, x in (("p", p), ("q", q)):
        m = reduce(g, "ReduceSum", g.node("Mul", [x, w], name=f"{s}_weighted"), [1], f"{s}_sum")
        means[s] = g.node("Div", [m, total], name=f"centroid_{s}")
    p = g.node("Sub", [p, means["p"]], name="p_centre")
    q = g.node("Sub", [q, means["q"]], name="q_centre")
    p = g.node("Transpose", [g.node("Mul", [p, w], name="p_again")], name="p_t", perm=[0, 2, 1])
    cov = g.node("MatMul", [p, q], name="cov_mm")
    shift = g.node("Sub", [means["q"], means["p"]], name="centroid_shift")
    g.output(g.node("Div", [cov, total], name="cov_div"), shift)


@model("raft_correlation_lookup", pins=["coords_*", "window_*", "lookup"])
def raft_correlation_lookup(g):
    """RAFT: all-pairs correlation, sampled in a 7x7 window around the coordinates of the current flow."""
    a = g.input("feats0", [1, 64, 256], g.normal(1, 64, 256))
    b = g.input("feats1", [1, 64, 1024], g.normal(1, 64, 1024))
    flow = g.input("flow", [256, 1, 1, 2], g.uniform(-4, 4, 256, 1, 1, 2))
    at = g.node("Transpose", [a], name="a_t", perm=[0, 2, 1])
    corr = op(g, "Mul", g.node("MatMul", [at, b], name="corr_mm"), 1 / 8, name="corr_scale")
    corr = reshape(g, corr, [256, 1, 32, 32], "corr_maps")
    start = pixel_grid(16, 16).reshape(256, 1, 1, 2) * 2
    xy = g.node("Add", [g.const(start, "pixels"), flow], name="coords_add")
    window = pixel_grid(7, 7)[None] - 3
    xy = g.node("Add", [xy, g.const(window, "offsets")], name="window_add")
    xy = unit_range(g, xy, "window", 32, 32)
    s = g.node("GridSample", [corr, xy], name="lookup", mode="linear", align_corners=1)
    s = reshape(g, s, [1, 256, 49], "flat")
    g.output(mlp(g, s, "motion", [49, 96, 64]))


@model("pointnet2_group_minus_centre", pins=["group_*"], opset=21)
def pointnet2_group_minus_centre(g):
    """PointNet++ grouping: neighbours minus their centre (decimetres at 100 metres), over a radius."""
    centre = g.uniform(-100, 100, 48, 1, 3)
    near = centre + g.uniform(-0.2, 0.2, 48, 16, 3)
    centre = g.input("centres", [48, 1, 3], centre)
    near = g.input("neighbours", [48, 16, 3], near.astype(np.float32))
    rel = op(g, "Div", g.node("Sub", [near, centre], name="group_sub"), 0.2, name="group_div")
    x = g.input("feats", [48, 16, 61], g.normal(48, 16, 61))
    y = g.node("Concat", [rel, x], name="cat", axis=2)
    g.output(reduce(g, "ReduceMax", mlp(g, y, "net", [64, 96, 128]), [1], "pool", keepdims=0))


@model("feature_interpolation_expanded_distances", pins=["dist_*", "sq_*", "inv_*"], opset=17)
def feature_interpolation_expanded_distances(g):
    """Feature propagation: |a|² - 2a·b + |b|² of metres, inverse distances + 1e-8 as weights of features."""
    a = g.uniform(-30, 30, 1, 128, 3)
    b = a[:, ::4] + g.uniform(-0.5, 0.5, 1, 32, 3)
    a, b = g.input("fine", [1, 128, 3], a), g.input("coarse", [1, 32, 3], b.astype(np.float32))
    x = g.input("feats", [1, 32, 64], g.normal(1, 32, 64))
    aa = reduce(g, "ReduceSum", g.node("Mul", [a, a], name="sq_a"), [2], "sq_a_sum")
    bb = reduce(g, "ReduceSum", g.node("Mul", [b, b], name="sq_b"), [2], "sq_b_sum")
    bt = g.node("Transpose", [b], name="dist_bt", perm=[0, 2, 1])
    ab = op(g, "Mul", g.node("MatMul", [a, bt], name="dist_mm"), -2.0, name="dist_twice")
    bb = g.node("Transpose", [bb], name="dist_bb_t", perm=[0, 2, 1])
    d = g.node("Add", [g.node("Add", [ab, aa], name="dist_add_a"), bb], name="dist_add_b")
    d = op(g, "Add", op(g, "Max", d, 0.0, name="dist_max"), 1e-2, name="dist_eps")
    w = g.node("Reciprocal", [d], name="inv_reciprocal")
    w = g.node("Div", [w, reduce(g, "ReduceSum", w, [2], "inv_sum")], name="inv_norm")
    y = g.node("MatMul", [w, g.linear(x, "embed", 64, 64)], name="interpolate_mm")
    g.output(mlp(g, y, "net", [64, 128, 64]))


@model("mvsnet_homography_variance_cost", pins=["homo_*", "grid_*", "warp", "var_*"], opset=20)
def mvsnet_homography_variance_cost(g):
    """MVSNet: pixels through a homography per depth plane, features warped, variance as E[f²] - E[f]²."""
    ref = g.input("ref_feats", [1, 32, 24, 32], g.normal(1, 32, 24, 32) + 2.0)
    src = g.input("src_feats", [1, 32, 24, 32], g.normal(1, 32, 24, 32) + 2.0)
    h = np.stack([np.eye(3) + np.array([[0.02, 0.01, 3 + d], [-0.01, 0.03, -1], [1e-4, 2e-4, 0.01]])
                  for d in range(4)])
    h = g.input("homographies", [4, 3, 3], h.astype(np.float32))
    xy1 = np.concatenate([pixel_grid(24, 32).reshape(-1, 2), np.ones((768, 1))], 1).T
    p = g.node("MatMul", [h, g.const(xy1, "pixels")], name="homo_mm")
    uv = g.node("Div", [span(g, p, 0, 2, 1, "homo_xy"), span(g, p, 2, 3, 1, "homo_z")], name="homo_div")
    uv = g.node("Transpose", [uv], name="grid_t", perm=[0, 2, 1])
    uv = unit_range(g, reshape(g, uv, [1, 96, 32, 2], "grid_shape"), "grid", 32, 24)
    warped = g.node("GridSample", [src, uv], name="warp", align_corners=1, padding_mode="border")
    warped = reshape(g, warped, [1, 32, 4, 24, 32], "var_warped")
    ref = unsqueeze(g, ref, [2], "var_ref")
    total = g.node("Add", [warped, ref], name="var_total")
    squares = g.node("Add", [op(g, "Pow", warped, 2.0, name="var_sq_warped"),
                             op(g, "Pow", ref, 2.0, name="var_sq_ref")], name="var_squares")
    mean = op(g, "Div", total, 2.0, name="var_mean")
    cost = g.node("Sub", [op(g, "Div", squares, 2.0, name="var_mean_sq"),
                          g.node("Mul", [mean, mean], name="var_sq_mean")], name="var_sub")
    g.output(g.conv(cost, "regularise", 32, 16, 3, dims=3, pads=[1] * 6))


@model("spherical_harmonics_of_directions", pins=[], opset=20)
def spherical_harmonics_of_directions(g):
    """Instant-NGP colours: spherical harmonics to degree 3 of unit directions, joined to features, an MLP."""
    d = g.normal(200, 3)
    d = g.input("directions", [200, 3], d / np.linalg.norm(d, axis=1, keepdims=True))
    x, y, z = split(g, d, 3, 1, "parts")
    xy, yz, xz = (g.node("Mul", ab, name=n) for n, ab in (("xy", [x, y]), ("yz", [y, z]), ("xz", [x, z])))
    xx, yy, zz = (g.node("Mul", [a, a], name=n) for n, a in (("xx", x), ("yy", y), ("zz", z)))
    scaled = ((y, -0.488), (z, 0.488), (x, -0.488), (xy, 1.092), (yz, -1.092), (xz, -1.092))
    terms = [op(g, "Mul", a, c, name=f"term{i}") for i, (a, c) in enumerate(scaled)]
    terms.append(op(g, "Sub", op(g, "Mul", zz, 0.946, name="zz_scale"), 0.315, name="term6"))
    terms.append(op(g, "Mul", g.node("Sub", [xx, yy], name="xx_yy"), 0.546, name="term7"))
    feats = g.input("feats", [200, 56], g.normal(200, 56))
    y = mlp(g, g.node("Concat", [*terms, feats], name="cat", axis=1), "net", [64, 128, 64, 3])
    g.output(g.node("Sigmoid", [y], name="rgb"))


@model("smpl_linear_blend_skinning", pins=[], opset=21)
def smpl_linear_blend_skinning(g):
    """SMPL skinning: blend shapes in metres, transforms mixed by weights that sum to one."""
    betas = g.input("betas", [1, 64], g.normal(1, 64))
    shapes = g.linear(betas, "shape", 64, 900, scale=0.004)
    template = g.const(g.uniform(-0.9, 0.9, 1, 300, 3), "template")
    v = g.node("Add", [reshape(g, shapes, [1, 300, 3], "offsets"), template], name="rest_pose")
    v = g.node("Concat", [v, g.const(np.ones((1, 300, 1)))], name="homogeneous", axis=2)
    angle = g.rng.uniform(-0.5, 0.5, 24)
    joints = np.tile(np.eye(4), (1, 24, 1, 1))
    joints[0, :, 0, 0], joints[0, :, 0, 1] = np.cos(angle), -np.sin(angle)
    joints[0, :, 1, 0], joints[0, :, 1, 1] = np.sin(angle), np.cos(angle)
    joints[0, :, :3, 3] = g.rng.uniform(-0.3, 0.3, (24, 3))
    joints = g.input("joints", [1, 24, 4, 4], joints.astype(np.float32))
    w = g.rng.random((300, 24)) ** 8
    w = g.const(w / w.sum(1, keepdims=True), "skin_weights")
    t = g.node("MatMul", [w, reshape(g, joints, [1, 24, 16], "joints_flat")], name="blend_mm")
    t = reshape(g, t, [1, 300, 4, 4], "transforms")
    v = g.node("MatMul", [t, unsqueeze(g, v, [3], "v_dims")], name="skin_mm")
    g.output(g.node("Squeeze", [span(g, v, 0, 3, 2, "xyz"), g.ints(3)], name="vertices"))


@model("pose_soft_argmax_of_heatmaps", pins=[], opset=21)
def pose_soft_argmax_of_heatmaps(g):
    """Integral pose: softmax of heat maps of 32x32, expected coordinates in heat-map cells by products."""
    x = g.input("x", [1, 64, 32, 32], g.normal(1, 64, 32, 32))
    heat = op(g, "Mul", g.conv(x, "heat", 64, 17, 1), 4.0, name="sharpen")
    p = g.node("Softmax", [reshape(g, heat, [1, 17, 1024], "flat")], name="softmax", axis=-1)
    cells = g.const(pixel_grid(32, 32).reshape(1024, 2) / 31, "cells")
    g.output(g.node("MatMul", [p, cells], name="expect_mm"))


@model("gcnet_soft_argmin_disparity", pins=[], opset=17)
def gcnet_soft_argmin_disparity(g):
    """Stereo: a 3-D convolution over a cost volume, softmax of the negated cost, expected disparity of 48."""
    cost = g.input("cost", [1, 32, 12, 16, 20], g.normal(1, 32, 12, 16, 20))
    c = g.node("Relu", [g.conv(cost, "agg", 32, 32, 3, dims=3, pads=[1] * 6)], name="relu")
    c = g.node("Squeeze", [g.conv(c, "out", 32, 1, 1, dims=3), g.ints(1)], name="squeeze")
    c = g.node("Unsqueeze", [c, g.ints(1)], name="maps")
    c = g.node("Resize", [c, "", g.const([1.0, 1, 4, 1, 1])], name="resize", mode="linear")
    p = g.node("Softmax", [g.node("Neg", [c], name="negate")], name="softmax", axis=2)
    levels = constant(g, np.arange(48).reshape(1, 1, 48, 1, 1), "levels")
    g.output(reduce(g, "ReduceSum", g.node("Mul", [p, levels], name="expect_mul"), [2], "disparity"))


@model("utm_polyline_to_agent_frame", pins=["agent_*"])
def utm_polyline_to_agent_frame(g):
    """Motion forecasting: polylines in city metres moved and turned into the agent's frame, embedded."""
    line = np.cumsum(g.uniform(-1, 3, 32, 20, 2), 1) + np.float32([3480.0, 1275.0])
    line = g.input("polylines", [32, 20, 2], line.astype(np.float32))
    origin = g.input("origin", [1, 1, 2], np.float32([[[3490.0, 1290.0]]]))
    heading = g.input("heading", [1], np.float32([0.83]))
    cos, sin = g.node("Cos", [heading], name="cos"), g.node("Sin", [heading], name="sin")
    turn = g.node("Concat", [cos, g.node("Neg", [sin], name="agent_neg"), sin, cos], name="agent_cat", axis=0)
    turn = reshape(g, turn, [2, 2], "agent_turn")
    xy = g.node("MatMul", [g.node("Sub", [line, origin], name="agent_sub"), turn], name="agent_mm")
    y = mlp(g, op(g, "Mul", xy, 0.05, name="agent_scale"), "net", [2, 64, 128, 64])
    g.output(reduce(g, "ReduceMax", y, [1], "pool", keepdims=0))


@model("bev_rotate_features_by_ego_yaw", pins=["steps*", "xy_*", "turned_*", "sample"])
def bev_rotate_features_by_ego_yaw(g):
    """Temporal BEV fusion: last features turned by the ego yaw and shifted by its motion in metres."""
    now = g.input("now", [1, 32, 64, 64], g.normal(1, 32, 64, 64))
    last = g.input("last", [1, 32, 64, 64], g.normal(1, 32, 64, 64))
    motion = g.input("motion", [1, 1, 1, 2], np.float32([4.7, -1.3]).reshape(1, 1, 1, 2))
    turn = g.input("turn", [2, 2], np.float32([[np.cos(0.1), np.sin(0.1)], [-np.sin(0.1), np.cos(0.1)]]))
    steps = op(g, "Sub", count(g, 64, "steps"), 31.5, name="steps_sub")
    steps = op(g, "Mul", steps, 0.8, name="steps_metres")
    x = g.node("Expand", [unsqueeze(g, steps, [0], "steps_x"), g.ints(64, 64)], name="xy_x")
    y = g.node("Expand", [unsqueeze(g, steps, [1], "steps_y"), g.ints(64, 64)], name="xy_y")
    xy = g.node("Concat", [unsqueeze(g, x, [0, 3], "xy_x_dims"), unsqueeze(g, y, [0, 3], "xy_y_dims")],
                name="xy_cat", axis=3)
    xy = g.node("Add", [g.node("MatMul", [xy, turn], name="turned_mm"), motion], name="turned_add")
    xy = op(g, "Div", xy, 25.6, name="turned_norm")
    past = g.node("GridSample", [last, xy], name="sample", mode="linear", align_corners=0)
    y = g.node("Concat", [now, past], name="cat", axis=1)
    g.output(g.conv(y, "fuse", 64, 32, 3, pads=[1, 1, 1, 1]))
