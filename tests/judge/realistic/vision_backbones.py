"""Vision backbones and image networks whose inputs, norms or gates are delicate."""

import numpy as np

from .build import model
from .parts import mlp
from .named_parts import Part, ints, pixel_grid, relu_conv, smooth_image


# Activations of a Caffe net on 0..255 pixels are in the hundreds; LRN squares them.
@model("googlenet_caffe_pixels_lrn_stem", pins=["*_lrn"], opset=13)
def googlenet(g):
    img = g.input("data", [1, 3, 112, 112], smooth_image(g, 1, 3, 112, 112, low=-110.0, high=145.0))
    x = relu_conv(g, img, "conv1", 3, 32, 7, 2)
    x = g.node("MaxPool", [x], name="pool1", kernel_shape=[3, 3], strides=[2, 2])
    x = g.node("LRN", [x], name="norm1_lrn", size=5, alpha=1e-4, beta=0.75, bias=1.0)
    x = relu_conv(g, relu_conv(g, x, "conv2_reduce", 32, 32, 1), "conv2", 32, 64)
    x = g.node("LRN", [x], name="norm2_lrn", size=5, alpha=1e-4, beta=0.75, bias=1.0)
    x = g.node("MaxPool", [x], name="pool2", kernel_shape=[3, 3], strides=[2, 2])
    branches = [relu_conv(g, x, "b1", 64, 16, 1), relu_conv(g, relu_conv(g, x, "b3r", 64, 24, 1), "b3", 24, 32)]
    g.output(g.node("Concat", branches, name="inception", axis=1))


# Whole pixels are exact in both formats; what is left of them after the mean is not exact in bf16's 8 bits.
@model("keras_caffe_preprocess_bgr_less_mean_resnet", pins=[], pins_bf16=["prep_*"], opset=13)
def caffe(g):
    img = g.input("input_1", ["N", 96, 96, 3], smooth_image(g, 2, 3, 96, 96).transpose(0, 2, 3, 1).copy())
    p = Part(g, "prep", constants=True)
    bgr = p.cut(img, -1, -5, 3, -1)
    x = p("Add", bgr, np.array([-103.939, -116.779, -123.68], np.float32))
    x = g.node("Transpose", [x], name="nchw", perm=[0, 3, 1, 2])
    x = relu_conv(g, x, "conv1", 3, 32, 7, 2)
    y = g.node("Mul", [x, g.const(0.02)], name="bn_folded")
    y = g.conv(relu_conv(g, y, "res_a", 32, 32), "res_b", 32, 32, 3, pads=[1] * 4)
    y = g.node("Relu", [g.node("Add", [x, y], name="res_add")], name="res_relu")
    y = g.node("GlobalAveragePool", [y], name="pool")
    g.output(g.linear(g.node("Flatten", [y], name="flat"), "fc", 32, 10))


# BiT: the weights' own statistics, eps of 1e-10, in the graph.
@model("bit_resnetv2_weight_standardisation_eps_1e_minus_10", pins=["ws_*"], opset=18)
def bit(g):
    x = g.input("features", [1, 32, 28, 28], g.normal(1, 32, 28, 28))
    p = Part(g, "ws")
    for i, (n_in, n_out) in enumerate(((32, 64), (64, 64))):
        w = g.const(g.normal(n_out, n_in, 3, 3, scale=0.02) + 0.004, f"w{i}")
        d = p("Sub", w, p.red("ReduceMean", w, 1, 2, 3))
        var = p.red("ReduceMean", p.square(d), 1, 2, 3)
        x = g.node("GroupNormalization" if g.opset > 20 else "InstanceNormalization",
                   [x, g.const(np.ones(n_in)), g.const(np.zeros(n_in))], name=f"gn{i}")
        x = g.node("Relu", [x], name=f"relu{i}")
        x = g.node("Conv", [x, p("Div", d, p("Sqrt", p("Add", var, 1e-10)))], name=f"conv{i}", pads=[1] * 4)
    g.output(x)


# RGB to HSV, a saturation and hue that a network predicts, and back: differences over differences, sextants.
@model("hsv_enhancer_network_colour_round_trip", pins=["hsv_*"], opset=18)
def hsv(g):
    img = g.input("image", [1, 3, 64, 80], smooth_image(g, 1, 3, 64, 80, high=1.0))
    x = relu_conv(g, relu_conv(g, img, "a", 3, 24), "b", 24, 24)
    knobs = g.conv(x, "knobs", 24, 2, 3, pads=[1] * 4)
    knobs = g.node("Mul", [g.node("Tanh", [knobs], name="knobs_tanh"), g.const(0.15)], name="knobs_small")
    p = Part(g, "hsv")
    r, gr, b = p.parts(img, 1, 1, 1, 1)
    v, low = p.red("ReduceMax", img, 1), p.red("ReduceMin", img, 1)
    delta = p("Sub", v, low)
    s = p("Div", delta, p("Add", v, 1e-8))
    safe = p("Add", delta, 1e-8)
    hr = p("Mod", p("Div", p("Sub", gr, b), safe), 6.0, fmod=1)
    hg = p("Add", p("Div", p("Sub", b, r), safe), 2.0)
    hb = p("Add", p("Div", p("Sub", r, gr), safe), 4.0)
    h = p("Where", p("Equal", v, r), hr, p("Where", p("Equal", v, gr), hg, hb))
    dh, ds = p.parts(knobs, 1, 1, 1)
    h = p("Add", h, dh)
    s = p("Clip", p("Mul", s, p("Add", 1.0, ds)), 0.0, 1.0)
    out = []
    for n in (5.0, 3.0, 1.0):
        k = p("Mod", p("Add", p("Add", h, n), 6.0), 6.0, fmod=1)
        t = p("Clip", p("Min", k, p("Sub", 4.0, k)), 0.0, 1.0)
        out.append(p("Sub", v, p("Mul", p("Mul", v, s), t)))
    g.output(p.cat(1, *out))


# A camera's NV12 planes to RGB: fp16 holds video levels well, bf16 does not.
@model("camera_nv12_planes_to_rgb_then_mobilenet", pins=[], pins_bf16=["yuv_*"], opset=17)
def nv12(g):
    y = g.input("luma", [1, 1, 96, 128], np.round(smooth_image(g, 1, 1, 96, 128, low=16.0, high=235.0)))
    uv = g.input("chroma", [1, 2, 48, 64], np.round(smooth_image(g, 1, 2, 48, 64, low=90.0, high=166.0)))
    p = Part(g, "yuv", constants=True)
    uv = p("Resize", uv, None, np.array([1, 1, 2, 2], np.float32), mode="nearest")
    yuv = p("Sub", p.cat(1, y, uv), np.array([16, 128, 128], np.float32).reshape(3, 1, 1))
    m = np.array([[1.164, 0, 1.596], [1.164, -0.392, -0.813], [1.164, 2.017, 0]], np.float32)
    rgb = p("Clip", p("Conv", yuv, m.reshape(3, 3, 1, 1)), 0.0, 255.0)
    x = p("Div", p("Sub", rgb, 127.5), 127.5)
    x = g.conv(x, "stem", 3, 16, 3, pads=[1] * 4, strides=[2, 2])
    x = g.node("Clip", [x, g.const(0.0), g.const(6.0)], name="relu6_a")
    x = g.conv(x, "dw", 1, 16, 3, pads=[1] * 4, group=16)
    x = g.node("Clip", [x, g.const(0.0), g.const(6.0)], name="relu6_b")
    g.output(g.conv(x, "pw", 16, 24, 1))


# Eight curves x + a (x^2 - x), one after the other on the image itself: bf16's errors would add up and show as bands.
@model("zero_dce_eight_curve_iterations", pins=[], pins_bf16=["curve_*"], opset=16)
def zero_dce(g):
    img = g.input("image", [1, 3, 64, 96], smooth_image(g, 1, 3, 64, 96, low=0.01, high=0.35))
    a = relu_conv(g, img, "c1", 3, 32)
    b = relu_conv(g, a, "c2", 32, 32)
    c = relu_conv(g, b, "c3", 32, 32)
    y = relu_conv(g, g.node("Concat", [b, c], name="cat5", axis=1), "c5", 64, 32)
    y = g.conv(g.node("Concat", [a, y], name="cat7", axis=1), "c7", 64, 24, 3, pads=[1] * 4)
    r = g.node("Tanh", [y], name="c7_tanh")
    p = Part(g, "curve")
    x = img
    for alpha in p.parts(r, 1, *[3] * 8):
        x = p("Add", x, p("Mul", alpha, p("Sub", p("Pow", x, 2.0), x)))
    g.output(x)


@model("ecanet_channel_attention_conv1d_gate", pins=["*_gap"], opset=22)
def eca(g):
    x = g.input("features", ["batch", 32, 40, 40], g.normal(2, 32, 40, 40))
    for i in range(2):
        y = relu_conv(g, x, f"in{i}", 32, 32)
        y = g.conv(y, f"out{i}", 32, 32, 3, pads=[1] * 4)
        s = g.node("ReduceMean", [y, g.ints(2, 3)], name=f"eca{i}_gap", keepdims=1)
        s = g.node("Transpose", [g.node("Squeeze", [s, g.ints(3)], name=f"eca{i}_sq")], name=f"eca{i}_t", perm=[0, 2, 1])
        s = g.node("Conv", [s, g.weight(f"eca{i}_w", 1, 1, 5, scale=0.5)], name=f"eca{i}_conv", pads=[2, 2])
        s = g.node("Unsqueeze", [g.node("Transpose", [s], name=f"eca{i}_tb", perm=[0, 2, 1]), g.ints(3)], name=f"eca{i}_un")
        y = g.node("Mul", [y, g.node("Sigmoid", [s], name=f"eca{i}_gate")], name=f"eca{i}_mul")
        x = g.node("Relu", [g.node("Add", [x, y], name=f"add{i}")], name=f"relu{i}")
    g.output(x)


# SimAM's energies: squares, their sum over 48 * 48 pixels, over 4 (sum / n + 1e-4).
@model("simam_parameter_free_attention", pins=["simam_*"], opset=15)
def simam(g):
    x = g.input("features", [1, 32, 48, 48], g.normal(1, 32, 48, 48))
    y = relu_conv(g, x, "a", 32, 32)
    y = g.conv(y, "b", 32, 32, 3, pads=[1] * 4)
    p = Part(g, "simam", constants=True)
    n = 48 * 48 - 1
    d = p("Pow", p("Sub", y, p.red("ReduceMean", y, 2, 3)), 2.0)
    e = p("Div", p.red("ReduceSum", d, 2, 3), float(n))
    e = p("Add", p("Div", d, p("Mul", 4.0, p("Add", e, 1e-4))), 0.5)
    y = g.node("Mul", [y, p("Sigmoid", e)], name="gated")
    g.output(g.node("Relu", [g.node("Add", [x, y], name="residual")], name="relu"))


# Deformable convolution, exported as one GridSample per tap: pixels plus predicted offsets, scaled to -1..1.
@model("dcnv2_exported_as_grid_sample_taps", pins=["grid_*"], opset=20)
def dcn(g):
    s = 56
    x = g.input("features", [1, 24, s, s], smooth_image(g, 1, 24, s, s, low=-2.0, high=2.0))
    off = g.node("Mul", [g.conv(x, "offset", 24, 18, 3, pads=[1] * 4), g.const(0.7)], name="offset_scale")
    mod = g.node("Sigmoid", [g.conv(x, "mod", 24, 9, 3, pads=[1] * 4)], name="mod_sigmoid")
    p = Part(g, "grid")
    xs, ys = pixel_grid(p, s, s)
    total = None
    for t in (0, 2, 4, 6, 8):
        dy, dx = t // 3 - 1.0, t % 3 - 1.0
        oy, ox = p.parts(p.cut(off, 2 * t, 2 * t + 2, 1), 1, 1, 1)
        gx = p("Sub", p("Div", p("Mul", p("Add", p("Add", xs, dx), p.sq(ox, 1)), 2.0), s - 1.0), 1.0)
        gy = p("Sub", p("Div", p("Mul", p("Add", p("Add", ys, dy), p.sq(oy, 1)), 2.0), s - 1.0), 1.0)
        grid = p.cat(3, p.unsq(gx, 3), p.unsq(gy, 3))
        tap = p("GridSample", x, grid, align_corners=1, mode="linear", padding_mode="zeros")
        tap = g.node("Mul", [tap, g.node("Slice", [mod, g.ints(t), g.ints(t + 1), g.ints(1)], name=f"mod{t}")], name=f"tap{t}")
        y = g.node("Conv", [tap, g.weight(f"tap{t}_w", 32, 24, 1, 1, scale=120**-0.5)], name=f"tap{t}_conv")
        total = y if total is None else g.node("Add", [total, y], name=f"sum{t}")
    g.output(g.node("Relu", [total], name="relu"))


# Only luma goes through the network; colour comes from the input, which bf16 would visibly quantise.
@model("espcn_luma_pixel_shuffle_with_bicubic_chroma", pins=[], pins_bf16=["ycc_*", "back_*"], opset=19)
def espcn(g):
    img = g.input("rgb", [1, 3, "h", "w"], smooth_image(g, 1, 3, 40, 56))
    p = Part(g, "ycc")
    m = np.array([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]], np.float32)
    ycc = p("Conv", p("Div", img, 255.0), m.reshape(3, 3, 1, 1))
    y, c = p.parts(ycc, 1, 1, 2)
    x = g.node("Tanh", [g.conv(y, "c1", 1, 32, 5, pads=[2] * 4)], name="c1_tanh")
    x = g.node("Tanh", [g.conv(x, "c2", 32, 32, 3, pads=[1] * 4)], name="c2_tanh")
    x = g.node("DepthToSpace", [g.conv(x, "c3", 32, 9, 3, pads=[1] * 4)], name="shuffle", blocksize=3, mode="CRD")
    b = Part(g, "back")
    up = np.array([1, 1, 3, 3], np.float32)
    y = b("Add", b("Resize", y, None, up, mode="cubic"), b("Mul", x, 0.1))
    c = b("Resize", c, None, up, mode="cubic")
    inv = np.array([[1, 0, 1.4], [1, -0.343, -0.711], [1, 1.765, 0]], np.float32)
    rgb = b("Conv", b.cat(1, y, c), inv.reshape(3, 3, 1, 1))
    g.output(b("Mul", b("Clip", rgb, 0.0, 1.0), 255.0))


# Means written as sums of 36864 pixels to 255: 4 million. The gains are ratios of them.
@model("grey_world_white_balance_sum_over_count_then_cnn", pins=["wb_*"], opset=17)
def grey_world(g):
    img = g.input("image", [1, 3, 192, 192], smooth_image(g, 1, 3, 192, 192))
    p = Part(g, "wb")
    size = p.cast(p("ReduceProd", p.cut(p("Shape", img), 2, 4, 0), keepdims=1))
    mean = p("Div", p.red("ReduceSum", img, 2, 3), size)
    grey = p.red("ReduceMean", mean, 1)
    x = p("Clip", p("Mul", img, p("Div", grey, p("Add", mean, 1e-6))), 0.0, 255.0)
    x = g.node("Mul", [x, g.const(1 / 255)], name="unit")
    x = relu_conv(g, relu_conv(g, x, "a", 3, 24, 3, 2), "b", 24, 32, 3, 2)
    g.output(g.conv(x, "out", 32, 8, 3, pads=[1] * 4))


# Radiances from 1e-4 to 1e4: the log-mean, Reinhard's curve, gamma.
@model("hdr_log_average_reinhard_tone_map_residual_net", pins=["tm_*"], opset=23)
def tone(g):
    hdr = np.exp(smooth_image(g, 1, 3, 72, 96, low=-9.0, high=9.0))
    img = g.input("radiance", [1, 3, 72, 96], hdr)
    p = Part(g, "tm")
    lum = p("Conv", img, np.array([0.2126, 0.7152, 0.0722], np.float32).reshape(1, 3, 1, 1))
    avg = p("Exp", p.red("ReduceMean", p("Log", p("Add", lum, 1e-6)), 2, 3))
    scaled = p("Div", p("Mul", lum, 0.18), avg)
    disp = p("Div", scaled, p("Add", scaled, 1.0))
    rgb = p("Mul", p("Div", img, p("Add", lum, 1e-6)), disp)
    ldr = p("Pow", p("Clip", rgb, 0.0, 1.0), 1 / 2.2)
    x = g.conv(relu_conv(g, relu_conv(g, ldr, "a", 3, 24), "b", 24, 24), "c", 24, 3, 3, pads=[1] * 4)
    g.output(g.node("Add", [ldr, g.node("Mul", [x, g.const(0.1)], name="res_small")], name="residual"))
