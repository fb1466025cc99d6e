"""Vision, point, video and graph networks whose products are all safe to lower."""

import numpy as np

from .build import model
from .named_parts import Part, ints, relu_conv, smooth_image


def bn(g, x, stem, n, mean=0.0, var=1.0, spread=0.2):
    """A batch norm whose running mean and variance are about these, with gains near one."""
    return g.node("BatchNormalization", [
        x, g.const(g.uniform(0.6, 1.4, n), f"{stem}_gamma"), g.const(g.normal(n, scale=0.1), f"{stem}_beta"),
        g.const(mean + g.normal(n, scale=spread), f"{stem}_mean"),
        g.const(var * g.uniform(0.4, 2.5, n), f"{stem}_var")], name=f"{stem}_bn", epsilon=1e-5)


@model("dgcnn_edge_convolution_neighbour_minus_centre_part_labels", pins=[], opset=17)
def _(g):
    """Two EdgeConvs over given neighbours: [x_j - x_i, x_i], a shared layer, a max over 16; then a global max."""
    n, k = 128, 16
    x = g.input("points", ["n", 32], g.normal(n, 32))
    knn = g.input("neighbours", ["n", k], g.rng.integers(0, n, (n, k)))
    p = Part(g, "edge")
    feats = []
    for i, (a, b) in enumerate(((32, 64), (64, 64))):
        near = p("Gather", x, knn, axis=0)
        centre = p("Expand", p.unsq(x, 1), ints(1, k, 1))
        e = p.cat(2, p("Sub", near, centre), centre)
        e = p("LeakyRelu", g.linear(e, f"edge{i}", 2 * a, b), alpha=0.2)
        x = p.red("ReduceMax", e, 1, keep=0)
        feats.append(x)
    x = p.cat(1, *feats)
    top = p.red("ReduceMax", p("LeakyRelu", g.linear(x, "emb", 128, 128), alpha=0.2), 0)
    top = p("Mul", top, np.ones((1, 128)))
    h = p("Add", g.linear(x, "local", 128, 96), g.linear(top, "global", 128, 96, bias=False))
    h = g.linear(p("Relu", h), "seg", 96, 24)
    m = p("Sub", h, p.red("ReduceMax", h, 1))
    g.output(p("Sub", m, p("Log", p.red("ReduceSum", p("Exp", m), 1))))


@model("point_transformer_vector_attention_query_minus_key", pins=[], opset=16)
def _(g):
    """softmax over neighbours of MLP(q_i - k_j + d_ij), per channel, times v_j + d_ij."""
    n, k, c = 96, 12, 48
    x = g.input("features", [n, c], g.normal(n, c))
    rel = g.input("relative_xyz", [n, k, 3], g.normal(n, k, 3, scale=0.3))
    knn = g.input("neighbours", [n, k], g.rng.integers(0, n, (n, k)))
    p = Part(g, "pt")
    q, ke, v = (g.linear(x, s, c, c) for s in ("q", "k", "v"))
    d = g.linear(p("Relu", g.linear(rel, "pos1", 3, c, scale=0.8)), "pos2", c, c)
    r = p("Sub", p.unsq(q, 1), p("Gather", ke, knn, axis=0))
    r = p("Add", r, d)
    w = g.linear(p("Relu", g.linear(r, "w1", c, c)), "w2", c, c)
    w = p.perm(p("Softmax", p.perm(w, 0, 2, 1), axis=-1), 0, 2, 1)
    y = p.red("ReduceSum", p("Mul", w, p("Add", p("Gather", v, knn, axis=0), d)), 1, keep=0)
    g.output(p("Add", x, g.linear(y, "out", c, c)))


@model("tea_motion_excitation_differences_of_neighbouring_frames", pins=[], opset=15)
def _(g):
    """Motion excitation: conv(x[t+1]) - x[t] over 8 frames' features, pooled, 2 sigmoid(.) - 1 as a gate."""
    t, c, r = 8, 64, 16
    x = g.input("frames", [t, c, 14, 14], smooth_image(g, t, c, 14, 14, low=-1.5, high=2.5))
    p = Part(g, "me")
    z = bn(g, g.conv(x, "squeeze", c, r, 1, bias=False), "squeeze", r, mean=0.3)
    nxt = g.conv(z, "shifted", 1, r, 3, bias=False, pads=[1] * 4, group=r)
    d = p("Sub", p.cut(nxt, 1, t, 0), p.cut(z, 0, t - 1, 0))
    d = p("Pad", d, ints(0, 0, 0, 0, 1, 0, 0, 0))
    y = g.node("GlobalAveragePool", [d], name="gap")
    y = bn(g, g.conv(y, "expand", r, c, 1, bias=False), "expand", c, var=0.5)
    gate = p("Sub", p("Mul", p("Sigmoid", y), 2.0), 1.0)
    x = p("Add", x, p("Mul", x, gate))
    x = g.node("Relu", [bn(g, g.conv(x, "c2", c, 64, 3, pads=[1] * 4), "c2", 64)], name="relu")
    y = p.red("ReduceMean", x, 2, 3, keep=0)
    y = p.red("ReduceMean", g.linear(y, "head", 64, 48), 0)
    g.output(y)


@model("temporal_shift_module_resnet_block_pads_and_slices", pins=[], opset=13)
def _(g):
    """TSM: an eighth of the channels forward, an eighth back, the rest in place; then a bottleneck."""
    t, c = 8, 64
    x = g.input("clip", ["frames", c, 14, 14], np.maximum(g.normal(t, c, 14, 14), 0))
    p = Part(g, "tsm")
    y = p.reshape(x, -1, t, c, 14, 14)
    a, b, rest = p.parts(y, 2, 8, 8, 48)
    a = p("Pad", p.cut(a, 1, t, 1), ints(0, 0, 0, 0, 0, 0, 1, 0, 0, 0))
    b = p("Pad", p.cut(b, 0, t - 1, 1), ints(0, 1, 0, 0, 0, 0, 0, 0, 0, 0))
    y = p.reshape(p.cat(2, a, b, rest), -1, c, 14, 14)
    y = p("Relu", bn(g, g.conv(y, "c1", c, 32, 1, bias=False), "c1", 32))
    y = p("Relu", bn(g, g.conv(y, "c2", 32, 32, 3, bias=False, pads=[1] * 4), "c2", 32, mean=-0.4, var=0.2))
    y = bn(g, g.conv(y, "c3", 32, c, 1, bias=False), "c3", c)
    x = p("Relu", p("Add", x, y))
    x = p("Flatten", p("GlobalAveragePool", x))
    x = g.node("Gemm", [x, g.weight("fc", c, 40), g.const(g.normal(40, scale=0.02))], name="fc_gemm")
    g.output(p.red("ReduceMean", x, 0))


@model("laplacian_pyramid_of_features_fusion", pins=[], opset=19)
def _(g):
    """Three levels of features less their blurred selves, a conv on each band, added back up."""
    x = g.input("image", [1, 3, 64, 64], smooth_image(g, 1, 3, 64, 64, low=-2.0, high=2.0))
    p = Part(g, "lap")
    x = relu_conv(g, relu_conv(g, x, "stem1", 3, 32), "stem2", 32, 32)
    up = np.array([1, 1, 2, 2], np.float32)
    bands = []
    for i in range(2):
        low = p("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        band = p("Sub", x, p("Resize", low, None, up, mode="linear"))
        bands.append(relu_conv(g, band, f"band{i}", 32, 32))
        x = low
    y = relu_conv(g, x, "base", 32, 32)
    for i, band in reversed(list(enumerate(bands))):
        y = p("Add", p("Resize", y, None, up, mode="linear"), band)
        y = relu_conv(g, y, f"fuse{i}", 32, 32)
    g.output(g.conv(y, "out", 32, 8, 1))


@model("mobilenet_v3_hard_swish_of_x_plus_three_over_six", pins=[], opset=13)
def _(g):
    """Inverted residuals with hard-swish and hard-sigmoid spelt by Add 3, Clip 0..6, Div 6, and squeeze-excite."""
    x = g.input("features", ["b", 40, 14, 14], g.normal(2, 40, 14, 14))
    p = Part(g, "hs")
    gate = lambda v: p("Div", p("Clip", p("Add", v, 3.0), 0.0, 6.0), 6.0)
    for i in range(2):
        y = bn(g, g.conv(x, f"exp{i}", 40, 120, 1, bias=False), f"exp{i}", 120)
        y = p("Mul", y, gate(y))
        y = bn(g, g.conv(y, f"dw{i}", 1, 120, 5, bias=False, pads=[2] * 4, group=120), f"dw{i}", 120, mean=0.2, var=0.3)
        s = g.conv(p("GlobalAveragePool", y), f"se{i}a", 120, 32, 1)
        s = gate(g.conv(p("Relu", s), f"se{i}b", 32, 120, 1))
        y = p("Mul", y, s)
        y = p("Mul", y, gate(y))
        x = p("Add", x, bn(g, g.conv(y, f"pw{i}", 120, 40, 1, bias=False), f"pw{i}", 40, var=0.2))
    g.output(x)


@model("efficientnet_mbconv_tiny_and_huge_running_variances", pins=[], opset=14)
def _(g):
    """MBConv with SiLU, and batch norms whose running variances are 3e-3 or 40, matched by their weights."""
    x = g.input("features", [1, 32, 20, 20], g.normal(1, 32, 20, 20))
    p = Part(g, "mb")
    w = g.const(g.normal(128, 32, 1, 1, scale=0.01), "exp_w")
    y = bn(g, g.node("Conv", [x, w], name="exp_conv"), "exp", 128, var=3e-3, spread=0.02)
    y = p("Mul", y, p("Sigmoid", y))
    w = g.const(g.normal(128, 1, 3, 3, scale=2.5), "dw_w")
    y = bn(g, g.node("Conv", [y, w], name="dw_conv", pads=[1] * 4, group=128), "dw", 128, mean=3.0, var=40.0, spread=1.5)
    y = p("Mul", y, p("Sigmoid", y))
    s = p.red("ReduceMean", y, 2, 3)
    s = g.conv(s, "se_reduce", 128, 8, 1)
    s = g.conv(p("Mul", s, p("Sigmoid", s)), "se_expand", 8, 128, 1)
    y = p("Mul", y, p("Sigmoid", s))
    y = bn(g, g.conv(y, "pw", 128, 32, 1, bias=False), "pw", 32, mean=-0.1, var=0.1)
    x = p("Add", y, x)
    x = bn(g, g.conv(x, "head", 32, 128, 1, bias=False), "head", 128)
    x = p("Flatten", p("GlobalAveragePool", p("Mul", x, p("Sigmoid", x))))
    g.output(g.linear(x, "fc", 128, 100))


@model("group_norm_spelt_by_reshape_and_means_standardised_weights", pins=[], opset=17)
def _(g):
    """A residual block of GN written out over 8 groups and weights standardised from constants in the graph."""
    x = g.input("features", ["b", 64, 16, 16], g.normal(1, 64, 16, 16))
    p = Part(g, "gn")
    y = x
    for i in range(2):
        w = g.const(g.normal(64, 64, 3, 3, scale=0.05), f"w{i}")
        d = p("Sub", w, p.red("ReduceMean", w, 1, 2, 3))
        std = p("Sqrt", p("Add", p.red("ReduceMean", p.square(d), 1, 2, 3), 1e-5))
        w = p("Div", d, p("Mul", std, 24.0))
        y = g.node("Conv", [y, w], name=f"conv{i}", pads=[1] * 4)
        r = p.reshape(y, 0, 8, -1)
        d = p("Sub", r, p.red("ReduceMean", r, 2))
        v = p.red("ReduceMean", p.square(d), 2)
        r = p("Div", d, p("Sqrt", p("Add", v, 1e-5)))
        y = p("Add", p("Mul", p.reshape(r, -1, 64, 16, 16), g.uniform(0.7, 1.3, 64, 1, 1)), g.normal(64, 1, 1, scale=0.1))
        if i == 0:
            y = p("Relu", y)
    y = p("Relu", p("Add", x, y))
    g.output(g.conv(y, "out", 64, 32, 1))


@model("shufflenet_v2_units_channel_split_and_shuffle", pins=[], opset=21)
def _(g):
    x = g.input("features", ["b", 64, 14, 14], np.maximum(g.normal(2, 64, 14, 14), 0))
    p = Part(g, "sh")
    for i in range(3):
        a, b = p.parts(x, 1, 32, 32)
        b = p("Relu", bn(g, g.conv(b, f"u{i}a", 32, 32, 1, bias=False), f"u{i}a", 32, var=0.6))
        b = bn(g, g.conv(b, f"u{i}dw", 1, 32, 3, bias=False, pads=[1] * 4, group=32), f"u{i}dw", 32, mean=0.1, var=0.4)
        b = p("Relu", bn(g, g.conv(b, f"u{i}b", 32, 32, 1, bias=False), f"u{i}b", 32))
        x = p.cat(1, a, b)
        x = p.perm(p.reshape(x, -1, 2, 32, 14, 14), 0, 2, 1, 3, 4)
        x = p.reshape(x, -1, 64, 14, 14)
    x = p.red("ReduceMean", p("Relu", g.conv(x, "conv5", 64, 128, 1)), 2, 3, keep=0)
    g.output(g.node("Gemm", [x, g.weight("fc", 128, 50, scale=0.1), g.const(np.zeros(50))], name="fc_gemm"))


@model("feature_alignment_flow_warp_by_predicted_offsets", pins=[], opset=20)
def _(g):
    """Semantic flow: a coarse map warped onto a fine one by small offsets that a conv predicts."""
    s = 32
    fine = g.input("fine", [1, 32, s, s], smooth_image(g, 1, 32, s, s, low=-1.0, high=2.0))
    coarse = g.input("coarse", [1, 64, 16, 16], smooth_image(g, 1, 64, 16, 16, low=-1.0, high=2.0))
    p = Part(g, "flow")
    c = g.conv(coarse, "lateral_c", 64, 32, 1)
    f = g.conv(fine, "lateral_f", 32, 32, 1)
    up = p("Resize", c, None, np.array([1, 1, 2, 2], np.float32), mode="linear")
    off = g.conv(p.cat(1, up, f), "offset", 64, 2, 3, pads=[1] * 4, bias=False)
    off = p.perm(p("Mul", off, 0.03), 0, 2, 3, 1)
    lin = np.linspace(-1, 1, s, dtype=np.float32)
    base = np.stack(np.meshgrid(lin, lin), -1)[None]
    warped = p("GridSample", c, p("Add", base, off), align_corners=1, mode="linear", padding_mode="border")
    y = relu_conv(g, p("Add", f, warped), "fuse", 32, 48)
    g.output(g.conv(y, "classes", 48, 19, 1))


@model("faster_rcnn_roi_align_two_layer_box_head", pins=[], opset=16)
def _(g):
    x = g.input("pyramid_level", [1, 32, 40, 40], smooth_image(g, 1, 32, 40, 40, low=-1.0, high=3.0))
    n = 24
    c, wh = g.uniform(60, 260, n, 2), g.uniform(20, 55, n, 2)
    boxes = g.input("proposals", ["rois", 4], np.concatenate([c - wh, c + wh], 1))
    which = g.input("batch_index", ["rois"], np.zeros(n, np.int64))
    p = Part(g, "roi")
    x = relu_conv(g, x, "fpn_out", 32, 32)
    r = p("RoiAlign", x, boxes, which, output_height=7, output_width=7, sampling_ratio=2, spatial_scale=0.125,
          coordinate_transformation_mode="half_pixel")
    r = p("Relu", g.linear(p("Flatten", r), "fc6", 32 * 49, 256))
    r = p("Relu", g.linear(r, "fc7", 256, 128))
    cls = p("Softmax", g.linear(r, "cls", 128, 21), axis=-1)
    g.output(cls, g.linear(r, "deltas", 128, 84))


@model("attention_unet_gates_and_transposed_convolutions", pins=[], opset=15)
def _(g):
    """An additive attention gate on the skip, and 1 - gate of it passed on beside."""
    x = g.input("slice", [1, 1, 64, 64], smooth_image(g, 1, 1, 64, 64, low=-1.0, high=1.0))
    p = Part(g, "un")
    e1 = relu_conv(g, relu_conv(g, x, "e1a", 1, 24), "e1b", 24, 24)
    e2 = relu_conv(g, p("MaxPool", e1, kernel_shape=[2, 2], strides=[2, 2]), "e2", 24, 48)
    mid = relu_conv(g, p("MaxPool", e2, kernel_shape=[2, 2], strides=[2, 2]), "mid", 48, 64)
    y = mid
    for i, (skip, a, b) in enumerate(((e2, 64, 48), (e1, 48, 24))):
        w = g.const(g.normal(a, b, 2, 2, scale=a**-0.5), f"up{i}_w")
        y = g.node("ConvTranspose", [y, w], name=f"up{i}", strides=[2, 2])
        s = p("Relu", p("Add", g.conv(skip, f"gx{i}", b, 16, 1), g.conv(y, f"gg{i}", b, 16, 1)))
        s = p("Sigmoid", g.conv(s, f"psi{i}", 16, 1, 1))
        mixed = p("Add", p("Mul", skip, s), p("Mul", y, p("Sub", 1.0, s)))
        y = relu_conv(g, p.cat(1, mixed, y), f"d{i}", 2 * b, b)
    g.output(g.conv(y, "mask", 24, 2, 1))


@model("swin_v2_scaled_cosine_window_attention_cyclic_shift", pins=[], opset=17)
def _(g):
    """A cyclic shift by slices, 8x8 windows, cosine attention over temperature with a bias table, post-norm."""
    s, w, h, d = 16, 8, 4, 16
    c = h * d
    x = g.input("tokens", [1, s, s, c], g.normal(1, s, s, c))
    p = Part(g, "sw")
    y = p.cat(1, p.cut(x, 4, s, 1), p.cut(x, 0, 4, 1))
    y = p.cat(2, p.cut(y, 4, s, 2), p.cut(y, 0, 4, 2))
    y = p.reshape(p.perm(p.reshape(y, 1, 2, w, 2, w, c), 0, 1, 3, 2, 4, 5), 4, 64, c)
    qkv = p.perm(p.reshape(g.linear(y, "qkv", c, 3 * c), 4, 64, 3, h, d), 2, 0, 3, 1, 4)
    q, k, v = (p.sq(part, 0) for part in p.parts(qkv, 0, 1, 1, 1))
    unit = lambda t: p("Div", t, p("Max", p("ReduceL2", t, axes=[-1], keepdims=1), 1e-6))
    a = p("MatMul", unit(q), p.perm(unit(k), 0, 1, 3, 2))
    a = p("Add", p("Mul", a, np.full((h, 1, 1), 8.0)), g.normal(1, h, 64, 64, scale=0.5))
    y = p("MatMul", p("Softmax", a, axis=-1), v)
    y = g.linear(p.reshape(p.perm(y, 0, 2, 1, 3), 4, 64, c), "proj", c, c)
    y = p.reshape(p.perm(p.reshape(y, 1, 2, 2, w, w, c), 0, 1, 3, 2, 4, 5), 1, s, s, c)
    y = p.cat(1, p.cut(y, s - 4, s, 1), p.cut(y, 0, s - 4, 1))
    y = p.cat(2, p.cut(y, s - 4, s, 2), p.cut(y, 0, s - 4, 2))
    g.output(p("Add", x, g.layer_norm(y, "post", c)))


@model("gcn_dense_adjacency_input_renormalised_appnp", pins=[], opset=22)
def _(g):
    """D^-1/2 (A + I) D^-1/2 from an adjacency input; a two-layer MLP; three steps with a teleport of 0.1."""
    n = 100
    adj = np.triu((g.rng.random((n, n)) < 0.06).astype(np.float32), 1)
    a = g.input("adjacency", ["n", "n"], adj + adj.T)
    x = g.input("x", ["n", 64], g.normal(n, 64))
    p = Part(g, "gcn")
    a = p("Add", a, p("EyeLike", a, dtype=1))
    inv = p("Pow", p.red("ReduceSum", a, 1), -0.5)
    a = p("Mul", p("Mul", a, inv), p.perm(inv, 1, 0))
    h = g.linear(p("Relu", p("MatMul", a, g.linear(x, "l1", 64, 64, scale=0.4))), "l2", 64, 32, scale=0.4)
    z = h
    for _ in range(3):
        z = p("Add", p("Mul", p("MatMul", a, z), 0.9), p("Mul", h, 0.1))
    g.output(p("LogSoftmax", z, axis=-1))


@model("gat_dense_additive_scores_masked_by_adjacency", pins=[], opset=15)
def _(g):
    n, h, f = 80, 4, 16
    adj = (g.rng.random((n, n)) < 0.1) | np.eye(n, dtype=bool)
    a = g.input("adjacency", ["n", "n"], adj)
    x = g.input("x", ["n", 48], g.normal(n, 48))
    p = Part(g, "gat")
    z = p.perm(p.reshape(g.linear(x, "w", 48, h * f, bias=False), -1, h, f), 1, 0, 2)
    src = p("MatMul", z, g.const(g.normal(h, f, 1, scale=0.4), "a_src"))
    dst = p("MatMul", z, g.const(g.normal(h, f, 1, scale=0.4), "a_dst"))
    e = p("LeakyRelu", p("Add", src, p.perm(dst, 0, 2, 1)), alpha=0.2)
    e = p("Where", a, e, -9e15)
    y = p("MatMul", p("Softmax", e, axis=-1), z)
    y = p("Elu", p.reshape(p.perm(y, 1, 0, 2), -1, h * f))
    g.output(g.linear(y, "cls", h * f, 7))


@model("chebnet_two_l_t1_minus_t0_order_three_filters", pins=[], opset=16)
def _(g):
    """Chebyshev polynomials of a scaled Laplacian given as input: T2 = 2 L T1 - T0, T3 = 2 L T2 - T1."""
    n = 120
    adj = np.triu((g.rng.random((n, n)) < 0.08).astype(np.float32), 1)
    adj = adj + adj.T + 1e-6
    d = adj.sum(1) ** -0.5
    lap = g.input("scaled_laplacian", ["n", "n"], (-d[:, None] * adj * d).astype(np.float32))
    x = g.input("signal", ["n", 32], g.normal(n, 32))
    p = Part(g, "cheb")
    for i, (a, b) in enumerate(((32, 64), (64, 32))):
        t0, t1 = x, p("MatMul", lap, x)
        y = p("Add", g.linear(t0, f"t0_{i}", a, b), g.linear(t1, f"t1_{i}", a, b, bias=False))
        for k in (2, 3):
            t0, t1 = t1, p("Sub", p("Mul", p("MatMul", lap, t1), 2.0), t0)
            y = p("Add", y, g.linear(t1, f"t{k}_{i}", a, b, bias=False))
        x = p("Relu", y)
    g.output(g.linear(p.red("ReduceMean", x, 0), "head", 32, 10))


@model("ocrnet_soft_object_regions_pooled_by_softmax_over_pixels", pins=[], opset=22)
def _(g):
    """Object-contextual representations: softmax over 256 pixels pools each region; pixels attend to regions."""
    x = g.input("features", [1, 64, 16, 16], smooth_image(g, 1, 64, 16, 16, low=-2.0, high=2.0))
    p = Part(g, "ocr")
    x = relu_conv(g, x, "stem", 64, 64)
    aux = g.conv(x, "aux", 64, 12, 1)
    regions = p("Softmax", p.reshape(aux, 0, 12, -1), axis=-1)
    pix = p.perm(p.reshape(x, 0, 64, -1), 0, 2, 1)
    ctx = p("MatMul", regions, pix)
    q, k, v = g.linear(pix, "q", 64, 32), g.linear(ctx, "k", 64, 32), g.linear(ctx, "v", 64, 32)
    s = p("Mul", p("MatMul", q, p.perm(k, 0, 2, 1)), 32**-0.5)
    y = p("MatMul", p("Softmax", s, axis=-1), v)
    y = p.reshape(p.perm(y, 0, 2, 1), 0, 32, 16, 16)
    y = relu_conv(g, p.cat(1, y, x), "bottleneck", 96, 64, 1)
    g.output(g.conv(y, "cls", 64, 12, 1), aux)


@model("netvlad_soft_assigned_residuals_to_centres", pins=[], opset=17)
def _(g):
    """Sums of a_k(x) (x - c_k) as a product less the masses times the centres; both L2 norms; a projection."""
    n, d, k = 196, 64, 16
    x = g.input("descriptors", ["b", n, d], g.normal(2, n, d))
    p = Part(g, "vlad")
    unit = lambda t, ax: p("Div", t, p("Max", p("ReduceL2", t, axes=[ax], keepdims=1), 1e-12))
    x = unit(g.linear(x, "pre", d, d), -1)
    a = p("Softmax", g.linear(x, "assign", d, k, scale=2.0), axis=-1)
    at = p.perm(a, 0, 2, 1)
    v = p("MatMul", at, x)
    mass = p.red("ReduceSum", at, 2)
    v = p("Sub", v, p("Mul", mass, g.normal(1, k, d, scale=0.1)))
    v = p.reshape(unit(v, -1), 0, k * d)
    g.output(g.linear(unit(v, -1), "whiten", k * d, 128, scale=0.1))


@model("squeeze_excite_by_einsum_bct_resnet_1d", pins=[], opset=13)
def _(g):
    """A 1-D residual net whose squeeze, both layers of the gate and the scaling are Einsums."""
    x = g.input("signal", ["b", 48, 128], g.normal(2, 48, 128))
    p = Part(g, "se")
    for i in range(2):
        y = g.conv(x, f"c{i}a", 48, 48, 5, dims=1, pads=[2, 2])
        y = g.conv(p("Relu", y), f"c{i}b", 48, 48, 5, dims=1, pads=[2, 2])
        s = p("Einsum", y, g.const(np.full(128, 1 / 128), f"mean{i}"), equation="bct,t->bc")
        s = p("Relu", p("Einsum", s, g.weight(f"se{i}a", 48, 12), equation="bc,cr->br"))
        s = p("Sigmoid", p("Einsum", s, g.weight(f"se{i}b", 12, 48), equation="br,rc->bc"))
        x = p("Relu", p("Add", x, p("Einsum", y, s, equation="bct,bc->bct")))
    g.output(g.linear(p.red("ReduceMean", x, 2, keep=0), "fc", 48, 27))


@model("convnext_v2_global_response_norm_written_out", pins=[], opset=20)
def _(g):
    x = g.input("features", ["b", 14, 14, 48], g.normal(1, 14, 14, 48))
    p = Part(g, "cn")
    for i in range(2):
        y = g.conv(p.perm(x, 0, 3, 1, 2), f"dw{i}", 1, 48, 7, pads=[3] * 4, group=48)
        y = g.layer_norm(p.perm(y, 0, 2, 3, 1), f"b{i}", 48)
        y = p("Gelu", g.linear(y, f"up{i}", 48, 192))
        gx = p("Sqrt", p.red("ReduceSum", p.square(y), 1, 2))
        nx = p("Div", gx, p("Add", p.red("ReduceMean", gx, -1), 1e-6))
        y = p("Add", p("Add", p("Mul", p("Mul", y, nx), g.uniform(0.2, 0.8, 192)), g.normal(192, scale=0.1)), y)
        x = p("Add", x, g.linear(y, f"down{i}", 192, 48))
    g.output(x)


@model("qat_fake_quantised_convolution_zero_points_spelt_out", pins=[], opset=13)
def _(g):
    """Weights and the first activation faked to 8 bits: x/s + z, Round, Clip 0..255, - z, times s."""
    x = g.input("features", [1, 32, 20, 20], np.clip(g.normal(1, 32, 20, 20, scale=0.8), -2, 3))
    p = Part(g, "fq")
    fake = lambda v, s, z: p("Mul", p("Sub", p("Clip", p("Round", p("Add", p("Div", v, s), z)), 0.0, 255.0), z), s)
    x = fake(x, 5 / 255, 102.0)
    for i in range(2):
        w = fake(g.weight(f"w{i}", 32, 32, 3, 3), 0.0025, 128.0)
        x = g.node("Conv", [x, w, g.const(g.normal(32, scale=0.05), f"b{i}")], name=f"conv{i}", pads=[1] * 4)
        x = p("Relu", x)
    w = fake(g.weight("wo", 32, 24), 0.006, 128.0)
    y = p("MatMul", p.perm(x, 0, 2, 3, 1), w)
    g.output(y)


@model("edsr_residual_scaling_tenth_pixel_shuffle", pins=[], opset=13)
def _(g):
    x = g.input("rgb", [1, 3, "h", "w"], smooth_image(g, 1, 3, 40, 48, low=0.0, high=1.0))
    p = Part(g, "ed")
    x = p("Sub", x, np.array([0.4488, 0.4371, 0.4040]).reshape(1, 3, 1, 1))
    f = head = g.conv(x, "head", 3, 32, 3, pads=[1] * 4)
    for i in range(4):
        y = g.conv(relu_conv(g, f, f"r{i}a", 32, 32), f"r{i}b", 32, 32, 3, pads=[1] * 4)
        f = p("Add", f, p("Mul", y, 0.1))
    f = p("Add", g.conv(f, "body", 32, 32, 3, pads=[1] * 4), head)
    f = p("DepthToSpace", g.conv(f, "up", 32, 128, 3, pads=[1] * 4), blocksize=2, mode="CRD")
    y = g.conv(f, "tail", 32, 3, 3, pads=[1] * 4)
    g.output(p("Add", y, np.array([0.4488, 0.4371, 0.4040]).reshape(1, 3, 1, 1)))
