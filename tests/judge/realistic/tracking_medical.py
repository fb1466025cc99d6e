"""Tracking, pose and medical imaging: filters, overlaps, registration, assignments."""

import numpy as np

from .build import model
from .parts import Body, mlp
from .named_parts import Part, ints, pixel_grid, relu_conv, smooth_image


# Boxes in pixels, velocities in pixels a frame, variances from 1e-5 to 1e2; measured by a head on the track's features.
@model("jde_kalman_xyah_diagonal_update_of_tracks", pins=["kf_*"], opset=17)
def jde(g):
    n = 32
    mean = np.concatenate([g.uniform(100, 1800, n, 2), g.uniform(0.3, 0.6, n, 1), g.uniform(60, 300, n, 1)], 1)
    pos = g.input("mean", [n, 4], mean)
    vel = g.input("velocity", [n, 4], g.normal(n, 4) * np.float32([4, 2, 1e-4, 0.5]))
    var = g.input("variance", [n, 4], np.abs(g.normal(n, 4)) * np.float32([30, 30, 1e-4, 30]) + np.float32([1, 1, 1e-5, 1]))
    feats = g.input("features", [n, 64], g.normal(n, 64))
    reg = mlp(g, feats, "reg", [64, 128, 4])
    conf = g.node("Sigmoid", [g.linear(feats, "conf", 64, 1)], name="conf")
    p = Part(g, "kf")
    height = p.cut(pos, 3, 4, 1)
    pred = p("Add", pos, vel)
    std_q = p("Mul", height, [[0.05, 0.05, 0, 0.05]])
    var = p("Add", p("Add", var, p.square(std_q)), [[0, 0, 1e-4, 0]])
    z = p("Add", pred, p("Mul", reg, [[2.0, 2.0, 0.01, 2.0]]))
    r = p("Add", p.square(p("Mul", height, [[0.05, 0.05, 0, 0.05]])), [[0, 0, 1e-2, 0]])
    r = p("Mul", p("Sub", 1.0, conf), r)
    gain = p("Div", var, p("Add", var, r))
    innov = p("Sub", z, pred)
    new = p("Add", pred, p("Mul", gain, innov))
    newvar = p("Mul", p("Sub", 1.0, gain), var)
    gate = p.red("ReduceSum", p("Div", p.square(innov), p("Add", var, r)), 1)
    g.output(new, newvar, gate)


# DARK: the log of a blurred heatmap, second differences of it, an offset by the inverse of a 2 by 2 Hessian.
@model("darkpose_taylor_offsets_of_log_heatmaps", pins=["dark_*"], opset=16)
def dark(g):
    k, h, w = 17, 64, 48
    yy, xx = np.mgrid[0:h, 0:w]
    c = np.stack([g.uniform(8, w - 8, k), g.uniform(8, h - 8, k)], -1)
    heat = 0.9 * np.exp(-((xx - c[:, :1, None]) ** 2 + (yy - c[:, 1:, None]) ** 2) / 8)
    x = g.input("heatmaps", [k, 1, h, w], (heat[:, None] + np.abs(g.normal(k, 1, h, w, scale=2e-3))).astype(np.float32))
    f = g.input("features", [1, 32, h, w], g.normal(1, 32, h, w))
    vis = g.conv(relu_conv(g, f, "vis_a", 32, 48), "vis", 48, k, 1)
    p = Part(g, "dark")
    t = np.exp(-((np.arange(7) - 3.0) ** 2) / 4)
    blur = p("Conv", x, np.outer(t, t)[None, None] / t.sum() ** 2, pads=[3] * 4)
    log = p("Log", p("Max", blur, 1e-10))
    flat = p.reshape(log, k, h * w)
    at = p("ArgMax", flat, axis=1, keepdims=1)
    pick = lambda d: p("GatherElements", flat, p("Add", at, np.int64(d)), axis=1)
    v = {d: pick(d) for d in (0, 1, -1, 2, -2, w, -w, 2 * w, -2 * w, w + 1, w - 1, 1 - w, -w - 1)}
    dx, dy = p("Mul", p("Sub", v[1], v[-1]), 0.5), p("Mul", p("Sub", v[w], v[-w]), 0.5)
    second = lambda a, b: p("Mul", p("Add", p("Sub", v[a], p("Mul", v[0], 2.0)), v[b]), 0.25)
    dxx, dyy = second(2, -2), second(2 * w, -2 * w)
    dxy = p("Mul", p("Add", p("Sub", p("Sub", v[w + 1], v[w - 1]), v[1 - w]), v[-w - 1]), 0.25)
    det = p("Sub", p("Mul", dxx, dyy), p.square(dxy))
    ox = p("Neg", p("Div", p("Sub", p("Mul", dyy, dx), p("Mul", dxy, dy)), det))
    oy = p("Neg", p("Div", p("Sub", p("Mul", dxx, dy), p("Mul", dxy, dx)), det))
    px = p("Add", p.cast(p("Mod", at, np.int64(w))), ox)
    py = p("Add", p.cast(p("Div", at, np.int64(w))), oy)
    g.output(p("Mul", p.cat(1, px, py), 4.0), vis)


# A velocity field over 128, squared seven times: displacements of 0.01 pixel at first, added to the pixels' grid.
@model("voxelmorph_scaling_and_squaring_seven_steps", pins=["field_*"], opset=16)
def voxelmorph(g):
    s = 64
    moving = g.input("moving", [1, 1, s, s], smooth_image(g, 1, 1, s, s, high=1.0))
    fixed = g.input("fixed", [1, 1, s, s], smooth_image(g, 1, 1, s, s, high=1.0))
    x = g.node("Concat", [moving, fixed], name="pair", axis=1)
    x = relu_conv(g, relu_conv(g, x, "enc", 2, 24, 3, 2), "mid", 24, 32)
    x = g.node("Resize", [x, "", g.const([1.0, 1.0, 2.0, 2.0])], name="up", mode="linear")
    flow = g.conv(x, "flow", 32, 2, 3, pads=[1] * 4)
    p = Part(g, "field")
    xs, ys = pixel_grid(p, s, s)
    base = p("Concat", p.unsq(ys, 0), p.unsq(xs, 0), axis=0)

    def warp(image, disp):
        loc = p("Add", base, disp)
        loc = p("Mul", 2.0, p("Sub", p("Div", loc, s - 1.0), 0.5))
        y, x = p.parts(p.perm(loc, 0, 2, 3, 1), 3, 1, 1)
        return p("GridSample", image, p.cat(3, x, y), align_corners=1, mode="bilinear")

    v = p("Mul", p("Mul", flow, 4.0), 1 / 128)
    for _ in range(7):
        v = p("Add", v, warp(v, v))
    g.output(warp(moving, v), v)


# Windowed sums of 81 pixels and of their squares, less products of means: variances by cancellation.
@model("voxelmorph_ncc_window_9_of_registered_pair", pins=["ncc_*"], opset=13)
def ncc(g):
    s = 64
    fixed = smooth_image(g, 1, 1, s, s, high=1.0)
    moving = g.input("moving", [1, 1, s, s], 0.8 * fixed + 0.1 + g.normal(1, 1, s, s, scale=0.03))
    fixed = g.input("fixed", [1, 1, s, s], fixed)
    x = relu_conv(g, g.node("Concat", [moving, fixed], name="pair", axis=1), "a", 2, 32)
    delta = g.conv(relu_conv(g, x, "b", 32, 32), "delta", 32, 1, 3, pads=[1] * 4)
    p = Part(g, "ncc", constants=True)
    a, b = p("Add", moving, p("Mul", delta, 0.02)), fixed
    ones = g.const(np.ones((1, 1, 9, 9)), "ones")
    total = lambda t: p("Conv", t, ones, pads=[4] * 4)
    sa, sb, saa, sbb, sab = total(a), total(b), total(p.square(a)), total(p.square(b)), total(p("Mul", a, b))
    ua, ub = p("Div", sa, 81.0), p("Div", sb, 81.0)
    crossed = p("Add", p("Sub", p("Sub", sab, p("Mul", ub, sa)), p("Mul", ua, sb)), p("Mul", p("Mul", ua, ub), 81.0))
    var = lambda sq, s1, u: p("Add", p("Sub", sq, p("Mul", p("Mul", u, s1), 2.0)), p("Mul", p.square(u), 81.0))
    cc = p("Div", p.square(crossed), p("Add", p("Mul", var(saa, sa, ua), var(sbb, sb, ub)), 1e-5))
    g.output(p("Neg", p.red("ReduceMean", cc, 0, 1, 2, 3, keep=0)), delta)


# Differences of pixels to 255, squared, over 2 * 20^2, into an exponential.
@model("bilateral_filter_5x5_of_ultrasound_then_unet", pins=["bil_*"], opset=17)
def bilateral(g):
    h, w = 64, 80
    img = g.input("frame", [1, 1, h, w], smooth_image(g, 1, 1, h, w))
    p = Part(g, "bil")
    pad = p("Pad", img, ints(0, 0, 2, 2, 0, 0, 2, 2), mode="reflect")
    taps = p.cat(1, *[p.cut(p.cut(pad, i, i + h, 2), j, j + w, 3) for i in range(5) for j in range(5)])
    yy, xx = np.mgrid[-2:3, -2:3]
    space = (-(yy**2 + xx**2) / 8.0).reshape(1, 25, 1, 1)
    rng = p("Div", p("Pow", p("Sub", taps, img), 2.0), -2.0 * 20**2)
    wt = p("Exp", p("Add", rng, space.astype(np.float32)))
    out = p("Div", p.red("ReduceSum", p("Mul", wt, taps), 1), p.red("ReduceSum", wt, 1))
    x = g.node("Div", [out, g.const(255.0)], name="unit")
    a = relu_conv(g, x, "enc", 1, 24)
    b = relu_conv(g, a, "down", 24, 32, 3, 2)
    b = g.node("Resize", [b, "", g.const([1.0, 1.0, 2.0, 2.0])], name="up", mode="nearest")
    y = relu_conv(g, g.node("Concat", [a, b], name="skip", axis=1), "dec", 56, 24)
    g.output(g.conv(y, "seg", 24, 3, 1), out)


# exp(S / 0.1) scaled by rows and columns in a Loop of 20 rounds, with u and v carried.
@model("tracklet_assignment_sinkhorn_loop_20_rounds", pins=["ot_*", "sinkhorn", "sinkhorn/*"], opset=17)
def sinkhorn(g):
    n, m, d = 24, 28, 64
    base = g.normal(m, d)
    a = g.input("tracks", [n, d], base[:n] + g.normal(n, d, scale=0.5))
    b = g.input("detections", [m, d], base)
    e = [mlp(g, t, f"emb_{s}", [d, 128, 64]) for s, t in (("a", a), ("b", b))]
    p = Part(g, "ot")
    na, nb = (p("Div", t, p.red("ReduceL2", t, 1)) for t in e)
    sim = p("MatMul", na, p.perm(nb, 1, 0))
    kernel = p("Exp", p("Div", p("Sub", sim, 1.0), 0.1))
    kernel_t = p.perm(kernel, 1, 0)
    body = Body(g, "sinkhorn_body")
    body.entry("i", [], 7), body.entry("go", [], 9), body.entry("u", [n, 1]), body.entry("v", [m, 1])
    q = Part(body, "round")
    u = q("Div", 1.0 / n, q("Add", q("MatMul", kernel, "v"), 1e-8))
    v = q("Div", 1.0 / m, q("Add", q("MatMul", kernel_t, u), 1e-8))
    go = body.node("Identity", ["go"], name="round_go")
    graph = body.graph((go, [], 9), (u, [n, 1]), (v, [m, 1]))
    u, v = g.node("Loop", [g.const(20, dtype=np.int64), g.const(True, dtype=bool), g.const(np.ones((n, 1))), g.const(np.ones((m, 1)))],
                  name="sinkhorn", outputs=2, body=graph)
    plan = p("Mul", p("Mul", p("Mul", u, kernel), p.perm(v, 1, 0)), float(n))
    g.output(p.reshape(plan, n, m))


# addmm's |q|^2 + |g|^2 - 2 q.g of embeddings with norms near 20, near matches among them.
@model("reid_strong_baseline_euclidean_gallery", pins=["dist_*"], opset=15)
def reid(g):
    b, d, n = 8, 128, 300
    gallery = g.normal(n, d, scale=1.8)
    x = g.input("query_maps", [b, 64, 8, 4], g.normal(b, 64, 8, 4))
    gal = g.input("gallery", ["n", d], gallery)
    near = g.input("query_prior", [b, d], gallery[:b])
    y = relu_conv(g, x, "res", 64, 64)
    y = g.node("Flatten", [g.node("GlobalAveragePool", [y], name="gap")], name="flat", axis=1)
    y = g.linear(y, "bnneck", 64, d)
    p = Part(g, "dist")
    q = p("Add", near, p("Mul", y, 0.3))
    sq, sg = p.red("ReduceSum", p("Pow", q, 2.0), 1), p.red("ReduceSum", p("Pow", gal, 2.0), 1)
    d2 = p("Add", p("Add", sq, p.perm(sg, 1, 0)), p("Mul", p("MatMul", q, p.perm(gal, 1, 0)), -2.0))
    g.output(p("Sqrt", p("Max", d2, 1e-12)), q)


# HU windowed and scaled before the network: whole numbers to 240 within the window are exact in fp16.
@model("ct_abdomen_window_level_then_segmentation", pins=["dice_softmax"], pins_bf16=["hu_*", "dice_softmax"], opset=18)
def ct(g):
    hu = np.round(smooth_image(g, 1, 1, 96, 96, low=-1000.0, high=1800.0))
    x = g.input("hounsfield", [1, 1, 96, 96], hu)
    p = Part(g, "hu")
    x = p("Div", p("Add", p("Clip", x, -160.0, 240.0), 160.0), 400.0)
    a = relu_conv(g, x, "enc", 1, 24)
    b = relu_conv(g, relu_conv(g, a, "down", 24, 48, 3, 2), "mid", 48, 48)
    b = g.node("ConvTranspose", [b, g.weight("up_w", 48, 24, 2, 2, scale=0.1)], name="up", strides=[2, 2])
    y = relu_conv(g, g.node("Concat", [a, b], name="skip", axis=1), "dec", 48, 24)
    g.output(g.node("Softmax", [g.conv(y, "seg", 24, 4, 1)], name="dice_softmax", axis=1))


# Becquerels a millilitre to SUV: grams over a decayed dose of 3.7e8.
@model("pet_suv_of_decayed_dose_with_ct_fusion", pins=["suv_*"], opset=17)
def pet(g):
    bq = np.exp(smooth_image(g, 1, 1, 64, 64, low=4.0, high=11.0))
    pet_in = g.input("bqml", [1, 1, 64, 64], bq)
    ct_in = g.input("ct", [1, 1, 64, 64], smooth_image(g, 1, 1, 64, 64, low=-1.0, high=1.0))
    meta = g.input("dose_weight_delay", [1, 3], np.array([[3.7e8, 72000.0, 3600.0]], np.float32))
    p = Part(g, "suv")
    dose, grams, delay = p.parts(meta, 1, 1, 1, 1)
    decayed = p("Mul", dose, p("Exp", p("Div", p("Mul", delay, -0.693147), 6586.2)))
    suv = p("Div", p("Mul", pet_in, p.reshape(grams, 1, 1, 1, 1)), p.reshape(decayed, 1, 1, 1, 1))
    x = p("Div", p("Clip", suv, 0.0, 20.0), 5.0)
    y = g.node("Concat", [relu_conv(g, x, "pet", 1, 24), relu_conv(g, ct_in, "ct_enc", 1, 24)], name="fuse", axis=1)
    y = relu_conv(g, relu_conv(g, y, "a", 48, 48), "b", 48, 32)
    g.output(g.node("Sigmoid", [g.conv(y, "lesion", 32, 1, 1)], name="lesion_prob"), suv)


# A biquad with poles at 0.995 runs over 512 samples of an ECG in millivolts with a large drift.
@model("ecg_high_pass_biquad_scan_then_cnn", pins=["biquad", "biquad/*", "ecg_*"], opset=16)
def ecg(g):
    n, leads = 512, 4
    t = np.arange(n) / 250
    x = 0.8 * np.sin(2 * np.pi * 0.1 * t)[:, None] + 3 + 0.7 * (np.sin(2 * np.pi * 1.2 * t) ** 40)[:, None] + g.normal(n, leads, scale=0.02)
    x = g.input("ecg", [n, leads], x.astype(np.float32))
    body = Body(g, "biquad_body")
    s1, s2, v = body.entry("s1", [leads]), body.entry("s2", [leads]), body.entry("v", [leads])
    q = Part(body, "step")
    y = q("Add", q("Mul", v, 0.99115), s1)
    n1 = q("Add", q("Sub", q("Mul", v, -1.98231), q("Mul", y, -1.98223)), s2)
    n2 = q("Sub", q("Mul", v, 0.99115), q("Mul", y, 0.98239))
    same = body.node("Identity", [y], name="step_y")
    graph = body.graph((n1, [leads]), (n2, [leads]), (same, [leads]))
    init = g.const(np.full(leads, -0.99115 * 3), "state1"), g.const(np.full(leads, 0.99115 * 3), "state2")
    _, _, y = g.node("Scan", [*init, x], name="biquad", outputs=3, body=graph, num_scan_inputs=1)
    p = Part(g, "ecg")
    y = p.unsq(p.perm(y, 1, 0), 0)
    y = g.node("Relu", [g.conv(y, "c1", leads, 32, 7, dims=1, pads=[3, 3], strides=[2])], name="c1_relu")
    y = g.node("Relu", [g.conv(y, "c2", 32, 64, 5, dims=1, pads=[2, 2], strides=[2])], name="c2_relu")
    g.output(g.conv(y, "beats", 64, 5, 1, dims=1))
