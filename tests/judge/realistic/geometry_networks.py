"""Geometry in networks: cameras, warps, rays, points and poses."""

import numpy as np
from onnx import helper

from .build import model
from .parts import mlp
from .named_parts import INT64, Part, ints, pixel_grid, relu_conv, smooth_image


def cross(p, a, b, axis=-1):
    """a x b of split components."""
    ax, ay, az = p.parts(a, axis, 1, 1, 1)
    bx, by, bz = p.parts(b, axis, 1, 1, 1)
    sub = lambda s, t, u, v: p("Sub", p("Mul", s, t), p("Mul", u, v))
    return p.cat(axis, sub(ay, bz, az, by), sub(az, bx, ax, bz), sub(ax, by, ay, bx))


def dot(p, a, b, axis=-1):
    return p.red("ReduceSum", p("Mul", a, b), axis)


# A predicted homography (small in its last row) applied to pixels to 160, divided, scaled to -1..1, sampled.
@model("deep_homography_warp_of_pixel_grid", pins=["warp_*"], opset=16)
def homography(g):
    h, w = 96, 128
    a = g.input("image_a", [1, 1, h, w], smooth_image(g, 1, 1, h, w))
    b = g.input("image_b", [1, 1, h, w], smooth_image(g, 1, 1, h, w))
    x = g.node("Div", [g.node("Concat", [a, b], name="pair", axis=1), g.const(127.5)], name="unit")
    x = relu_conv(g, relu_conv(g, x, "c1", 2, 24, 5, 4), "c2", 24, 32, 3, 4)
    y = g.node("Flatten", [g.node("GlobalAveragePool", [x], name="gap")], name="flat", axis=1)
    p = Part(g, "warp")
    d = p("Mul", g.linear(y, "params", 32, 8), [0.1, 0.1, 8, 0.1, 0.1, 8, 1e-3, 1e-3])
    m = p("Add", p.cat(1, d, np.zeros((1, 1))), np.eye(3).reshape(1, 9))
    m = p.reshape(m, 1, 3, 3)
    xs, ys = pixel_grid(p, h, w)
    pts = p("Concat", p.reshape(xs, 1, -1), p.reshape(ys, 1, -1), np.ones((1, h * w)), axis=0)
    u, v, z = p.parts(p("MatMul", m, p.unsq(pts, 0)), 1, 1, 1, 1)
    z = p("Add", z, 1e-8)
    gx = p("Sub", p("Div", p("Mul", p("Div", u, z), 2.0), w - 1.0), 1.0)
    gy = p("Sub", p("Div", p("Mul", p("Div", v, z), 2.0), h - 1.0), 1.0)
    grid = p.reshape(p.perm(p.cat(1, gx, gy), 0, 2, 1), 1, h, w, 2)
    feats = g.conv(g.node("Div", [b, g.const(255.0)], name="b_unit"), "feat", 1, 16, 3, pads=[1] * 4)
    warped = p("GridSample", feats, grid, mode="bilinear", align_corners=1)
    g.output(warped, m)


# KITTI: metres, a focal length of 721 pixels, a division by the depth; features are picked at the pixels.
@model("pointpainting_kitti_projection_gathers_scores", pins=["proj_*"], opset=23)
def painting(g):
    n, h, w = 2048, 47, 156
    pts = np.stack([g.uniform(4, 70, n), g.uniform(-20, 20, n), g.uniform(-2, 1.5, n)], -1)
    pts = g.input("points", ["points", 3], pts)
    img = g.input("image", [1, 3, h, w], g.normal(1, 3, h, w))
    rt = np.array([[0.0075, -0.9999, 0.0007, -0.004], [0.0148, 0.0007, -0.9999, -0.076], [0.9998, 0.0075, 0.0148, -0.272]], np.float32)
    k = np.array([[721.54, 0, 609.56], [0, 721.54, 172.85], [0, 0, 1]], np.float32)
    p = Part(g, "proj")
    hom = p("Concat", pts, p("ConstantOfShape", p("Concat", p.cut(p("Shape", pts), 0, 1, 0), ints(1), axis=0),
                             value=helper.make_tensor("one", 1, [1], [1.0])), axis=1)
    cam = p("MatMul", hom, (k @ rt).T.copy())
    u, v, z = p.parts(cam, 1, 1, 1, 1)
    z = p("Max", z, 1e-3)
    gx = p("Sub", p("Mul", p("Div", p("Div", u, z), 1242.0), 2.0), 1.0)
    gy = p("Sub", p("Mul", p("Div", p("Div", v, z), 375.0), 2.0), 1.0)
    grid = p.unsq(p.cat(1, gx, gy), 0, 1)
    sem = g.conv(relu_conv(g, img, "enc", 3, 24), "sem", 24, 8, 1)
    picked = p("GridSample", sem, grid, mode="linear", align_corners=0)
    picked = g.node("Transpose", [g.node("Reshape", [picked, g.ints(8, -1)], name="scores")], name="scores_t", perm=[1, 0])
    near = g.node("Mul", [pts, g.const([1 / 70, 1 / 20, 0.5])], name="points_unit")
    g.output(mlp(g, g.node("Concat", [near, picked], name="painted", axis=1), "pfn", [11, 64, 64]))


# The midpoint of two rays: 1 - (d1.d2)^2 of nearly parallel rays.
@model("stereo_keypoint_midpoint_triangulation", pins=["tri_*"], opset=17)
def triangulate(g):
    n = 133
    world = np.stack([g.uniform(-2, 2, n), g.uniform(-1, 1, n), g.uniform(3, 9, n)], -1)
    f, base = 1100.0, 0.6
    left = np.stack([f * world[:, 0] / world[:, 2] + 960, f * world[:, 1] / world[:, 2] + 540], -1)
    right = np.stack([f * (world[:, 0] - base) / world[:, 2] + 960, f * world[:, 1] / world[:, 2] + 540], -1)
    kp = g.input("keypoints", [2, n, 2], np.stack([left, right]).astype(np.float32))
    desc = g.input("descriptors", [2, n, 32], g.normal(2, n, 32))
    refine = mlp(g, desc, "refine", [32, 64, 2])
    p = Part(g, "tri")
    kp = p("Add", kp, p("Mul", refine, 0.05))
    rays = p("Div", p("Sub", kp, [960.0, 540.0]), f)
    rays = p.cat(2, rays, np.ones((2, n, 1)))
    rays = p("Div", rays, p.red("ReduceL2", rays, 2))
    d1, d2 = (p.sq(t, 0) for t in p.parts(rays, 0, 1, 1))
    t = np.tile(np.array([base, 0, 0], np.float32), (n, 1))
    c, a, b = dot(p, d1, d2), dot(p, d1, t), dot(p, d2, t)
    det = p("Sub", 1.0, p.square(c))
    s1 = p("Div", p("Sub", a, p("Mul", c, b)), det)
    s2 = p("Div", p("Sub", p("Mul", c, a), b), det)
    mid = p("Mul", p("Add", p("Mul", s1, d1), p("Add", p("Mul", s2, d2), t)), 0.5)
    g.output(mid, g.linear(desc, "score", 32, 1))


# Rodrigues of predicted axis angles; pose blend shapes are of R - I. Angles near 0.1: 1 - cos is small.
@model("smpl_axis_angle_rodrigues_pose_blendshapes", pins=["rod_*", "verts_add*"], opset=17)
def rodrigues(g):
    j, nv = 23, 500
    x = g.input("image_feature", ["batch", 128], g.normal(2, 128))
    theta = mlp(g, x, "regressor", [128, 128, j * 3])
    p = Part(g, "rod")
    theta = p("Mul", p.reshape(theta, -1, j, 3), 0.3)
    angle = p.red("ReduceL2", p("Add", theta, 1e-8), 2)
    axis = p("Div", theta, angle)
    cos, sin = p.unsq(p("Cos", angle), 3), p.unsq(p("Sin", angle), 3)
    rx, ry, rz = p.parts(axis, 2, 1, 1, 1)
    zero = p("Mul", rx, 0.0)
    k = p.reshape(p.cat(2, zero, p("Neg", rz), ry, rz, zero, p("Neg", rx), p("Neg", ry), rx, zero), -1, j, 3, 3)
    less = p("Add", p("Mul", sin, k), p("Mul", p("Sub", 1.0, cos), p("MatMul", k, k)))
    rot = p("Add", less, np.eye(3))
    feature = p.reshape(p("Sub", rot, np.eye(3)), -1, j * 9)
    offsets = g.node("MatMul", [feature, g.weight("posedirs", j * 9, nv * 3, scale=3e-3)], name="posedirs_mm")
    offsets = g.node("Reshape", [offsets, g.ints(-1, nv, 3)], name="offsets")
    verts = g.node("Add", [offsets, g.const(g.normal(nv, 3, scale=0.4), "template")], name="verts_add")
    g.output(verts, rot)


# Neighbours by |x|^2 - 2 x.y + |y|^2 of coordinates in a unit sphere; the second layer's by features.
@model("dgcnn_edge_conv_knn_by_expanded_distances", pins=["knn_*"], opset=15)
def dgcnn(g):
    n, k = 256, 8
    pts = g.normal(1, n, 3)
    pts = g.input("points", [1, n, 3], pts / np.linalg.norm(pts, axis=-1).max())
    p = Part(g, "knn", constants=True)
    x, outs = pts, []
    for i, (c_in, c_out) in enumerate(((3, 32), (32, 48))):
        if not i:
            inner = p("Mul", p("MatMul", x, p.perm(x, 0, 2, 1)), -2.0)
            xx = p.red("ReduceSum", p("Pow", x, 2.0), 2)
            dist = p("Sub", p("Sub", p("Neg", xx), inner), p.perm(xx, 0, 2, 1))
            _, index = p("TopK", dist, ints(k), outputs=2, axis=-1)
            index = p.reshape(index, n * k)
        e = Part(g, f"edge{i}")
        near = e.reshape(e("Gather", x, index, axis=1), 1, n, k, c_in)
        mid = e("Expand", e.unsq(x, 2), ints(1, n, k, c_in))
        both = e.cat(3, p("Sub", near, mid) if not i else e("Sub", near, mid), mid)
        y = g.node("LeakyRelu", [g.linear(both, f"edge_fc{i}", 2 * c_in, c_out)], name=f"edge_act{i}", alpha=0.2)
        x = e.red("ReduceMax", y, 2, keep=0)
        outs.append(x)
    y = g.linear(g.node("Concat", outs, name="cat", axis=2), "global", 80, 128)
    g.output(g.node("ReduceMax", [y], name="pool", axes=[1], keepdims=0))


# Neighbours less centre in a scan to 50 m, at a 0.3 m radius; their distances to kernel points over sigma.
@model("kpconv_rigid_influence_of_lidar_neighbours", pins=["kp_*"], opset=21)
def kpconv(g):
    n, k, m, c = 300, 12, 15, 24
    centre = np.concatenate([g.uniform(-50, 50, n, 2), g.uniform(-2, 2, n, 1)], -1)
    near = centre[:, None] + g.normal(n, k, 3, scale=0.12)
    pts = g.input("points", ["n", 3], np.concatenate([centre, near.reshape(-1, 3)]).astype(np.float32))
    index = g.input("neighbours", ["q", k], (n + np.arange(n * k)).reshape(n, k))
    feats = g.input("features", ["n", c], g.normal(n * (k + 1), c))
    p = Part(g, "kp")
    at = p("Gather", pts, index, axis=0)
    rel = p("Sub", at, p.unsq(p.cut(pts, 0, n, 0), 1))
    kernel = g.normal(m, 3, scale=0.12)
    d2 = p.red("ReduceSum", p.square(p("Sub", p.unsq(rel, 2), kernel)), 3, keep=0)
    infl = p("Relu", p("Sub", 1.0, p("Div", p("Sqrt", p("Add", d2, 1e-10)), 0.15)))
    x = g.node("Gather", [g.linear(feats, "unary", c, c), index], name="feat_gather", axis=0)
    w = g.node("MatMul", [g.node("Transpose", [infl], name="infl_t", perm=[0, 2, 1]), x], name="weighted_mm")
    y = g.node("MatMul", [g.node("Reshape", [w, g.ints(-1, m * c)], name="flat"), g.weight("kernel_w", m * c, 48)], name="kernel_mm")
    g.output(g.node("LeakyRelu", [y], name="act", alpha=0.1))


# Densities times steps, transmittance by an exclusive cumulative sum, colours and depth from 2 to 6.
@model("nerf_volume_rendering_64_samples_six_octaves", pins=["ray_*", "pe_*", "vol_*"], opset=17)
def nerf(g):
    r, s = 48, 64
    o = g.input("rays_o", ["rays", 3], np.tile(np.array([0.5, -0.7, 3.9], np.float32), (r, 1)))
    d = g.input("rays_d", ["rays", 3], (np.array([-0.1, 0.15, -1]) + g.normal(r, 3, scale=0.1)).astype(np.float32))
    p = Part(g, "ray")
    z = np.linspace(2, 6, s, dtype=np.float32)
    pts = p("Add", p.unsq(o, 1), p("Mul", p.unsq(d, 1), z.reshape(1, s, 1)))
    e = Part(g, "pe")
    ang = e("Mul", e.unsq(pts, 3), 2.0 ** np.arange(6))
    ang = e.reshape(ang, -1, s, 18)
    enc = e.cat(-1, pts, e("Sin", ang), e("Cos", ang))
    h = mlp(g, enc, "trunk", [39, 128, 128, 64])
    v = Part(g, "vol")
    sigma = v("Mul", v("Relu", g.linear(h, "sigma", 64, 1)), 6.0)
    rgb = g.node("Sigmoid", [g.linear(h, "rgb", 64, 3)], name="rgb_sigmoid")
    delta = v("Mul", np.append(np.diff(z), 1e10).reshape(1, s, 1), v.unsq(v.red("ReduceL2", d, 1), 1))
    tau = v("Mul", sigma, delta)
    alpha = v("Sub", 1.0, v("Exp", v("Neg", tau)))
    free = v("Add", v("Sub", 1.0, alpha), 1e-10)
    trans = v("Exp", v("CumSum", v("Log", free), np.int64(1), exclusive=1))
    w = v("Mul", alpha, trans)
    colour = v.red("ReduceSum", v("Mul", w, rgb), 1, keep=0)
    depth = v.red("ReduceSum", v("Mul", w, z.reshape(1, s, 1)), 1, keep=0)
    g.output(colour, depth)


# Normal equations of a scan registration: sums over 1500 points of products with lever arms to 50 m.
@model("loam_scan_to_map_hessian_with_learned_weights", pins=["gn_*"], opset=18)
def loam(g):
    n = 1500
    pts = np.concatenate([g.uniform(-50, 50, n, 2), g.uniform(-2, 4, n, 1)], -1)
    nrm = g.normal(n, 3)
    nrm /= np.linalg.norm(nrm, axis=-1, keepdims=True)
    pts_in = g.input("points", ["n", 3], pts)
    normals = g.input("normals", ["n", 3], nrm)
    plane = g.input("plane_points", ["n", 3], (pts + g.normal(n, 3, scale=0.05)).astype(np.float32))
    feats = g.input("features", ["n", 32], g.normal(n, 32))
    weight = g.node("Sigmoid", [mlp(g, feats, "conf", [32, 64, 64, 1])], name="conf_sigmoid")
    p = Part(g, "gn")
    res = dot(p, p("Sub", pts_in, plane), normals, 1)
    jac = p.cat(1, cross(p, pts_in, normals, 1), normals)
    wj = p.perm(p("Mul", jac, weight), 1, 0)
    g.output(p("MatMul", wj, jac), p("MatMul", wj, res))


# Monodepth2: sigmoid to disparity, its reciprocal to depth 0.1..100, rays, a pose, pixels, the other image.
@model("monodepth2_disparity_backproject_and_resample", pins=["geo_*"], opset=16)
def monodepth(g):
    h, w = 64, 208
    src = g.input("source", [1, 3, h, w], smooth_image(g, 1, 3, h, w, high=1.0))
    tgt = g.input("target", [1, 3, h, w], smooth_image(g, 1, 3, h, w, high=1.0))
    pose = g.input("T", [1, 4, 4], np.array([[[0.9999, 0.002, 0.01, 0.02], [-0.002, 1, 0.001, -0.01], [-0.01, -0.001, 0.9999, -0.54], [0, 0, 0, 1]]], np.float32))
    x = relu_conv(g, relu_conv(g, tgt, "enc", 3, 24, 3, 2), "mid", 24, 24)
    x = g.node("Resize", [x, "", g.const([1.0, 1.0, 2.0, 2.0])], name="up", mode="nearest")
    p = Part(g, "geo")
    disp = p("Sigmoid", g.conv(x, "disp", 24, 1, 3, pads=[1] * 4))
    depth = p("Div", 1.0, p("Add", 0.01, p("Mul", disp, 9.99)))
    k = np.array([[0.58 * w, 0, 0.5 * w], [0, 1.92 * h, 0.5 * h], [0, 0, 1]], np.float32)
    xs, ys = pixel_grid(p, h, w)
    pix = p("Concat", p.reshape(xs, 1, -1), p.reshape(ys, 1, -1), np.ones((1, h * w)), axis=0)
    cam = p("Mul", p.reshape(depth, 1, 1, -1), p("MatMul", np.linalg.inv(k), pix))
    cam = p.cat(1, cam, np.ones((1, 1, h * w)))
    proj = p("MatMul", p("MatMul", np.concatenate([k, np.zeros((3, 1))], 1), pose), cam)
    z = p("Add", p.cut(proj, 2, 3, 1), 1e-7)
    uv = p("Div", p.cut(proj, 0, 2, 1), z)
    uv = p.reshape(p.perm(uv, 0, 2, 1), 1, h, w, 2)
    grid = p("Mul", p("Sub", p("Div", uv, [w - 1.0, h - 1.0]), 0.5), 2.0)
    warped = p("GridSample", src, grid, padding_mode="border", mode="bilinear", align_corners=1)
    g.output(warped, depth)


# softmax(-cost) times disparities to 47: a sum whose rounding would be sixteenths of a pixel.
@model("psmnet_concat_volume_soft_argmin_48", pins=["disp_*"], opset=13)
def psmnet(g):
    h, w, c, n = 20, 40, 12, 12
    left = g.input("left", [1, 3, h, w], g.normal(1, 3, h, w))
    right = g.input("right", [1, 3, h, w], g.normal(1, 3, h, w))
    wt = g.weight("feat_w", c, 3, 3, 3)
    fl, fr = (g.node("Conv", [t, wt], name=f"feat_{s}", pads=[1] * 4) for s, t in (("l", left), ("r", right)))
    v = Part(g, "vol")
    slices = []
    for d in range(n):
        both = v.cat(1, v.cut(fl, d, w, 3), v.cut(fr, 0, w - d, 3))
        slices.append(v.unsq(v("Pad", both, ints(0, 0, 0, d, 0, 0, 0, 0), 0.0), 2))
    x = v.cat(2, *slices)
    x = g.conv(x, "c3d_a", 2 * c, 16, 3, dims=3, pads=[1] * 6)
    x = g.node("Relu", [x], name="c3d_relu")
    cost = g.conv(x, "c3d_b", 16, 1, 3, dims=3, pads=[1] * 6)
    cost = g.node("Mul", [cost, g.const(6.0)], name="cost_scale")
    p = Part(g, "disp")
    up = p("Resize", cost, None, np.array([1, 1, 4, 1, 1], np.float32), mode="linear")
    prob = p("Softmax", p("Neg", p.sq(up, 1)), axis=1)
    g.output(p.red("ReduceSum", p("Mul", prob, np.arange(48.0).reshape(1, 48, 1, 1)), 1, keep=0))


# Lift-splat: frustum points in metres become cells by a floor; hundreds of features add into one cell.
@model("lift_splat_depth_outer_product_into_bev_cells", pins=["geom_*", "splat_*", "depth_softmax"], opset=18)
def lss(g):
    d, h, w, c, s = 16, 8, 16, 24, 32
    img = g.input("features", [1, 48, h, w], g.normal(1, 48, h, w))
    k = g.input("cam_to_ego", [3, 3], np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]], np.float32))
    x = g.conv(relu_conv(g, img, "neck", 48, 48), "depthnet", 48, d + c, 1)
    dl, ctx = g.node("Split", [x, g.ints(d, c)], name="split", outputs=2, axis=1)
    prob = g.node("Softmax", [dl], name="depth_softmax", axis=1)
    lift = g.node("Mul", [g.node("Unsqueeze", [prob, g.ints(1)], name="p1"), g.node("Unsqueeze", [ctx, g.ints(2)], name="c2")], name="lift")
    rows = g.node("Transpose", [g.node("Reshape", [lift, g.ints(c, d * h * w)], name="lift_flat")], name="lift_rows", perm=[1, 0])
    p = Part(g, "geom")
    us, vs = pixel_grid(p, h, w)
    us = p("Div", p("Sub", p("Mul", us, 22.0), 176.0), 280.0)
    vs = p("Div", p("Sub", p("Mul", vs, 16.0), 64.0), 280.0)
    z = p("Add", p("Mul", p.count(d), 2.75), 4.0)
    ray = p("Concat", p.unsq(us, 2), p.unsq(vs, 2), np.ones((h, w, 1)), axis=2)
    pts = p("Mul", p.unsq(ray, 0), p.reshape(z, d, 1, 1, 1))
    ego = p("MatMul", p.reshape(pts, -1, 3), p.perm(k, 1, 0))
    cell = p("Floor", p("Div", p("Sub", p.cut(ego, 0, 2, 1), [0.0, -25.6]), 1.6))
    cell = p.cast(p("Clip", cell, 0.0, s - 1.0), INT64)
    cx, cy = p.parts(cell, 1, 1, 1)
    index = p("Add", p("Mul", cx, np.int64(s)), cy)
    q = Part(g, "splat")
    bev = q("ScatterElements", np.zeros((s * s, c)), q("Expand", index, ints(d * h * w, c)), rows, axis=0, reduction="add")
    bev = q.reshape(q.perm(bev, 1, 0), 1, c, s, s)
    g.output(g.conv(relu_conv(g, bev, "bev", c, 32), "out", 32, 8, 1))


# r^2 log r^2 of a thin-plate spline, whose weights sum to nil: terms cancel.
@model("tps_spatial_transformer_text_rectification", pins=["tps_*"], opset=16)
def tps(g):
    h, w, f = 32, 100, 20
    img = g.input("image", [1, 1, h, w], smooth_image(g, 1, 1, h, w, low=-1.0, high=1.0))
    x = relu_conv(g, relu_conv(g, img, "a", 1, 24, 3, 2), "b", 24, 32, 3, 2)
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], name="gap")], name="flat", axis=1)
    cx = np.linspace(-1, 1, f // 2)
    c = np.concatenate([np.stack([cx, -np.ones(f // 2)], 1), np.stack([cx, np.ones(f // 2)], 1)])
    r = np.linalg.norm(c[:, None] - c[None], axis=2) + np.eye(f)
    k = r**2 * np.log(r)
    one = np.ones((f, 1))
    zero = np.zeros((1, 3))
    rows = [[one, c, k], [np.zeros((2, 3)), c.T], [zero, one.T]]
    delta = np.concatenate([np.concatenate(row, 1) for row in rows], 0)
    p = Part(g, "tps")
    off = p("Mul", p("Tanh", g.linear(x, "fc", 32, 2 * f)), 0.15)
    ctrl = p("Add", p.reshape(off, 1, f, 2), c)
    t = p("MatMul", np.linalg.inv(delta), p.cat(1, ctrl, np.zeros((1, 3, 2))))
    xs, ys = pixel_grid(p, h, w)
    norm = lambda v, n: p.reshape(p("Div", p("Add", p("Mul", v, 2.0), 1.0 - n), float(n)), -1, 1)
    pts = p.cat(1, norm(xs, w), norm(ys, h))
    rr = p.red("ReduceL2", p("Sub", p.unsq(pts, 1), c), 2, keep=0)
    rbf = p("Mul", p("Pow", rr, 2.0), p("Log", p("Add", rr, 1e-6)))
    hat = p.cat(1, np.ones((h * w, 1)), pts, rbf)
    grid = p.reshape(p("MatMul", hat, t), 1, h, w, 2)
    out = p("GridSample", img, grid, mode="bilinear", padding_mode="border", align_corners=1)
    g.output(relu_conv(g, out, "rec", 1, 32))


# Convex combinations of nine neighbours of a flow that is in pixels, times 8.
@model("raft_convex_upsampling_of_pixel_flow", pins=["up_*"], opset=14)
def raft_up(g):
    h, w = 24, 32
    net = g.input("net", [1, 48, h, w], np.tanh(g.normal(1, 48, h, w)))
    coarse = g.input("flow", [1, 2, h, w], smooth_image(g, 1, 2, h, w, low=-14.0, high=9.0))
    delta = g.conv(relu_conv(g, net, "fh", 48, 48), "flow_head", 48, 2, 3, pads=[1] * 4)
    mask = g.conv(relu_conv(g, net, "mh", 48, 48), "mask_head", 48, 9 * 16, 1)
    p = Part(g, "up")
    flow = p("Add", coarse, delta)
    prob = p("Softmax", p.reshape(p("Mul", mask, 0.25), 1, 1, 9, 4, 4, h, w), axis=2)
    pad = p("Pad", p("Mul", flow, 4.0), ints(0, 0, 1, 1, 0, 0, 1, 1), 0.0)
    taps = [p.cut(p.cut(pad, i, i + h, 2), j, j + w, 3) for i in range(3) for j in range(3)]
    nine = p.reshape(p("Concat", *[p.unsq(t, 2) for t in taps], axis=2), 1, 2, 9, 1, 1, h, w)
    y = p.red("ReduceSum", p("Mul", prob, nine), 2, keep=0)
    g.output(p.reshape(p.perm(y, 0, 1, 4, 2, 5, 3), 1, 2, 4 * h, 4 * w))
