"""Images: pixel statistics, gradients, colour spaces, feature correlations, convolutional blocks."""

import numpy as np

from .build import model
from .parts import constant, mlp, op, reduce, reshape, split

SAME = [1, 1, 1, 1]


def pixels(g, *shape):
    """Smooth pictures of 0..255 with a little noise, rounded as pixels are."""
    rows, cols = np.linspace(0, 5, shape[-2])[:, None], np.linspace(0, 7, shape[-1])[None, :]
    phase = g.rng.uniform(0, 6, (*shape[:-2], 1, 1))
    picture = 128 + 90 * np.sin(rows + phase) * np.cos(cols + 2 * phase) + g.normal(*shape, scale=6)
    return np.clip(np.round(picture), 0, 255).astype(np.float32)


def box_blur(g, x, k, name):
    return g.node("AveragePool", [x], name=name, kernel_shape=[k, k], pads=[k // 2] * 4, count_include_pad=0)


@model("alexnet_lrn_of_large_activations", pins=["lrn"], opset=20)
def alexnet_lrn_of_large_activations(g):
    """AlexNet on raw pixels: a strided convolution, ReLU, LRN over five channels, pooling, a convolution."""
    x = g.input("image", ["batch", 3, 96, 96], pixels(g, 1, 3, 96, 96))
    x = op(g, "Sub", x, 118.0, name="mean_sub")
    w = g.weight("stem_w", 48, 3, 7, 7, scale=0.15)
    x = g.node("Relu", [g.node("Conv", [x, w], name="stem_conv", strides=[2, 2])], name="relu")
    x = g.node("LRN", [x], name="lrn", size=5, alpha=1e-4, beta=0.75, bias=2.0)
    x = g.node("MaxPool", [x], name="pool", kernel_shape=[3, 3], strides=[2, 2])
    g.output(g.conv(x, "second", 48, 64, 3, pads=SAME))


@model("imagenet_normalised_pixels_stem", pins=[], opset=20)
def imagenet_normalised_pixels_stem(g):
    """ResNet stem in the graph: pixels / 255, minus mean, over deviation, then convolutions."""
    x = g.input("image", ["batch", 3, 64, 64], pixels(g, 1, 3, 64, 64))
    x = op(g, "Div", x, 255.0, name="unit")
    x = op(g, "Sub", x, np.reshape([0.485, 0.456, 0.406], (1, 3, 1, 1)), name="mean_sub")
    x = op(g, "Div", x, np.reshape([0.229, 0.224, 0.225], (1, 3, 1, 1)), name="std_div")
    x = g.node("Relu", [g.conv(x, "stem", 3, 64, 7, strides=[2, 2], pads=[3] * 4)], name="relu")
    y = g.node("Relu", [g.conv(x, "a", 64, 64, 3, pads=SAME)], name="relu_a")
    y = g.node("Add", [g.conv(y, "b", 64, 64, 3, pads=SAME), x], name="skip")
    g.output(g.node("Relu", [y], name="last"))


@model("sobel_magnitude_of_pixels", pins=["mag_*"], pins_bf16=[], opset=20)
def sobel_magnitude_of_pixels(g):
    """Edge branch: Sobel filters over grey pixels, sqrt(gx² + gy² + 1e-6) with squares up to a million."""
    x = g.input("image", [1, 1, 64, 64], pixels(g, 1, 1, 64, 64))
    step = np.tile(np.where(np.arange(64) > 30, 120, 0), (64, 1)).astype(np.float32)
    step = g.input("step", [1, 1, 64, 64], step[None, None])
    x = op(g, "Clip", g.node("Add", [x, step], name="scene"), 0.0, 255.0, name="clip")
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    grads = op(g, "Conv", x, np.stack([sobel, sobel.T])[:, None], name="sobel_conv", pads=SAME)
    gx, gy = split(g, grads, 2, 1, "parts")
    m = g.node("Add", [g.node("Mul", [gx, gx], name="mag_gx"), g.node("Mul", [gy, gy], name="mag_gy")],
               name="mag_add")
    m = g.node("Sqrt", [op(g, "Add", m, 1e-6, name="mag_eps")], name="mag_sqrt")
    m = op(g, "Div", m, 255.0, name="scale")
    y = g.node("Relu", [g.conv(m, "embed", 1, 64, 3, pads=SAME)], name="relu")
    g.output(g.conv(y, "edges", 64, 16, 3, pads=SAME))


@model("variance_map_mean_of_squares", pins=["var_*", "mean_sq"], opset=21)
def variance_map_mean_of_squares(g):
    """Texture map: E[x²] - E[x]² of pixels in 5x5 windows, its root as a weight of features."""
    x = g.input("image", [1, 1, 48, 48], pixels(g, 1, 1, 48, 48))
    feats = g.input("feats", [1, 64, 48, 48], g.normal(1, 64, 48, 48))
    mean = box_blur(g, x, 5, "var_mean")
    mean_sq = g.node("Mul", [mean, mean], name="mean_sq")
    square = box_blur(g, g.node("Mul", [x, x], name="var_sq"), 5, "var_blur")
    var = op(g, "Max", g.node("Sub", [square, mean_sq], name="var_sub"), 0.0, name="var_max")
    std = g.node("Sqrt", [op(g, "Add", var, 1e-3, name="var_eps")], name="std")
    w = op(g, "Div", std, 16.0, name="weight")
    y = g.node("Mul", [g.conv(feats, "a", 64, 64, 1), w], name="weighted")
    g.output(g.conv(y, "b", 64, 32, 3, pads=SAME))


@model("gram_matrix_divided_afterwards", pins=["gram_*"], pins_bf16=[], opset=21)
def gram_matrix_divided_afterwards(g):
    """Style transfer: Gram matrix of VGG-like activations over 2304 positions, divided by them after."""
    x = g.input("image", [1, 32, 48, 48], g.uniform(0, 12, 1, 32, 48, 48))
    y = g.node("Relu", [g.conv(x, "vgg", 32, 64, 3, pads=SAME)], name="relu")
    f = reshape(g, y, [1, 64, 2304], "flat")
    ft = g.node("Transpose", [f], name="flat_t", perm=[0, 2, 1])
    gram = op(g, "Div", g.node("MatMul", [f, ft], name="gram_mm"), 2304.0, name="gram_div")
    g.output(g.linear(gram, "style", 64, 32))


@model("gram_matrix_prescaled_features", pins=[])
def gram_matrix_prescaled_features(g):
    """Second-order pooling: features divided by the root of the number of positions before their product."""
    x = g.input("feats", [1, 64, 32, 32], g.normal(1, 64, 32, 32))
    y = g.node("Relu", [g.conv(x, "reduce", 64, 48, 1)], name="relu")
    f = op(g, "Mul", reshape(g, y, [1, 48, 1024], "flat"), 1 / 32, name="prescale")
    cov = g.node("MatMul", [f, g.node("Transpose", [f], name="flat_t", perm=[0, 2, 1])], name="cov_mm")
    g.output(g.linear(reshape(g, cov, [1, 2304], "cov_flat"), "head", 2304, 32))


@model("ssim_map_of_reconstruction", pins=["mu_*", "sigma_*", "ssim_*"])
def ssim_map_of_reconstruction(g):
    """Monodepth's SSIM term in 3x3 windows of images in [0, 1], between a target and a decoder's output."""
    target = g.input("target", [1, 3, 48, 48], pixels(g, 1, 3, 48, 48) / np.float32(255))
    feats = g.input("feats", [1, 64, 48, 48], g.normal(1, 64, 48, 48))
    y = g.node("Sigmoid", [g.conv(feats, "decode", 64, 3, 3, pads=SAME)], name="decode_sig")
    mean = {}
    for name, a, b in (("xx", target, target), ("yy", y, y), ("xy", target, y)):
        mean[name] = box_blur(g, g.node("Mul", [a, b], name=f"sigma_{name}_mul"), 3, f"sigma_{name}_blur")
    mx, my = box_blur(g, target, 3, "mu_x"), box_blur(g, y, 3, "mu_y")
    mu = {name: g.node("Mul", [a, b], name=f"mu_{name}")
          for name, a, b in (("xx", mx, mx), ("yy", my, my), ("xy", mx, my))}
    s = {name: g.node("Sub", [mean[name], mu[name]], name=f"sigma_{name}") for name in mu}
    top = [op(g, "Add", op(g, "Mul", v, 2.0, name=f"ssim_{n}_twice"), c, name=f"ssim_{n}_top")
           for n, v, c in (("mu", mu["xy"], 1e-4), ("sigma", s["xy"], 9e-4))]
    low = [op(g, "Add", g.node("Add", [v["xx"], v["yy"]], name=f"ssim_{n}_sum"), c, name=f"ssim_{n}_low")
           for n, v, c in (("mu", mu, 1e-4), ("sigma", s, 9e-4))]
    top, low = g.node("Mul", top, name="ssim_top"), g.node("Mul", low, name="ssim_low")
    ssim = op(g, "Sub", 1.0, g.node("Div", [top, low], name="ssim_div"), name="ssim_one_minus")
    g.output(op(g, "Clip", op(g, "Mul", ssim, 0.5, name="ssim_half"), 0.0, 1.0, name="loss"))


@model("nonlocal_block_embedded_gaussian", pins=[], opset=19)
def nonlocal_block_embedded_gaussian(g):
    """Non-local block: softmax of θ·φ over 576 positions, a product with g, a convolution, a residual."""
    x = g.input("x", ["batch", 64, 24, 24], g.normal(1, 64, 24, 24))
    theta, phi, value = (reshape(g, g.conv(x, s, 64, 32, 1), [0, 32, -1], f"{s}_flat")
                         for s in ("theta", "phi", "g"))
    theta = g.node("Transpose", [theta], name="theta_t", perm=[0, 2, 1])
    p = g.node("Softmax", [g.node("MatMul", [theta, phi], name="sim_mm")], name="softmax", axis=-1)
    value = g.node("Transpose", [value], name="g_t", perm=[0, 2, 1])
    y = g.node("Transpose", [g.node("MatMul", [p, value], name="gather_mm")], name="y_t", perm=[0, 2, 1])
    y = reshape(g, y, [0, 32, 24, 24], "y_map")
    g.output(g.node("Add", [x, g.conv(y, "out", 32, 64, 1)], name="residual"))


@model("srgb_to_linear_then_network", pins=[], opset=21)
def srgb_to_linear_then_network(g):
    """sRGB pixels in [0, 1] made linear (a Where of two branches, Pow 2.4), exposed, then a small network."""
    x = g.input("image", [1, 3, 48, 48], pixels(g, 1, 3, 48, 48) / np.float32(255))
    low = op(g, "Div", x, 12.92, name="low")
    high = op(g, "Div", op(g, "Add", x, 0.055, name="high_add"), 1.055, name="high_div")
    high = op(g, "Pow", high, 2.4, name="high_pow")
    dark = op(g, "LessOrEqual", x, 0.04045, name="dark")
    x = op(g, "Mul", g.node("Where", [dark, low, high], name="linear"), 1.8, name="exposure")
    y = g.node("Relu", [g.conv(x, "a", 3, 64, 3, pads=SAME)], name="relu")
    g.output(g.conv(y, "b", 64, 32, 3, pads=SAME))


@model("lab_colour_of_predicted_rgb", pins=["lin_*", "xyz_*", "lab_*"])
def lab_colour_of_predicted_rgb(g):
    """Colour loss: nearly grey RGB to XYZ to Lab, a = 500 (f(X) - f(Y)), b = 200 (f(Y) - f(Z))."""
    x = g.input("feats", [1, 64, 32, 32], g.normal(1, 64, 32, 32))
    grey = g.input("grey", [1, 1, 32, 32], g.uniform(0.3, 0.9, 1, 1, 32, 32))
    chroma = g.node("Tanh", [g.conv(x, "chroma", 64, 3, 1)], name="tanh")
    rgb = g.node("Add", [grey, op(g, "Mul", chroma, 0.03, name="chroma_scale")], name="lin_add")
    m = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    m = m / np.array([[0.9505], [1.0], [1.089]])
    xyz = op(g, "Conv", rgb, m.reshape(3, 3, 1, 1), name="xyz_conv")
    f = op(g, "Pow", op(g, "Max", xyz, 0.01, name="xyz_max"), 1 / 3, name="xyz_cbrt")
    fx, fy, fz = split(g, f, 3, 1, "lab_parts")
    light = op(g, "Sub", op(g, "Mul", fy, 116.0, name="lab_116"), 16.0, name="lab_l")
    a = op(g, "Mul", g.node("Sub", [fx, fy], name="lab_a_sub"), 500.0, name="lab_a")
    b = op(g, "Mul", g.node("Sub", [fy, fz], name="lab_b_sub"), 200.0, name="lab_b")
    g.output(light, a, b)


@model("laplacian_detail_enhancement", pins=["blur*", "detail_*"])
def laplacian_detail_enhancement(g):
    """Detail branch: pixels minus their Gaussian blur (a convolution), a few grey levels, then a network."""
    x = g.input("image", [1, 1, 64, 64], pixels(g, 1, 1, 64, 64) * np.float32(0.3) + np.float32(150))
    k = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256
    padded = g.node("Pad", [x, g.ints(0, 0, 2, 2, 0, 0, 2, 2)], name="blur_pad", mode="reflect")
    detail = g.node("Sub", [x, op(g, "Conv", padded, k[None, None], name="blur_conv")], name="detail_sub")
    detail = op(g, "Mul", detail, 0.5, name="detail_scale")
    y = g.node("Relu", [g.conv(detail, "a", 1, 64, 3, pads=SAME)], name="relu")
    g.output(g.conv(y, "b", 64, 16, 3, pads=SAME))


@model("guided_filter_refined_mask", pins=["mean_*", "var_*", "cov_*", "gf_*"], opset=19)
def guided_filter_refined_mask(g):
    """Guided filter: a = cov(I, p) / (var(I) + 1e-4), b = p̄ - a·Ī, by 7x7 boxes, of a network's mask."""
    guide = g.input("guide", [1, 1, 48, 48], pixels(g, 1, 1, 48, 48) / np.float32(255))
    feats = g.input("feats", [1, 64, 48, 48], g.normal(1, 64, 48, 48))
    p = g.node("Sigmoid", [g.conv(feats, "mask", 64, 1, 3, pads=SAME)], name="mask_sig")
    mi, mp = box_blur(g, guide, 7, "mean_i"), box_blur(g, p, 7, "mean_p")
    ii = box_blur(g, g.node("Mul", [guide, guide], name="var_sq"), 7, "var_blur")
    ip = box_blur(g, g.node("Mul", [guide, p], name="cov_mul"), 7, "cov_blur")
    var = g.node("Sub", [ii, g.node("Mul", [mi, mi], name="var_mean_sq")], name="var_sub")
    cov = g.node("Sub", [ip, g.node("Mul", [mi, mp], name="cov_means")], name="cov_sub")
    a = g.node("Div", [cov, op(g, "Add", var, 1e-4, name="var_eps")], name="gf_a")
    b = g.node("Sub", [mp, g.node("Mul", [a, mi], name="gf_ai")], name="gf_b")
    a, b = box_blur(g, a, 7, "gf_mean_a"), box_blur(g, b, 7, "gf_mean_b")
    g.output(g.node("Add", [g.node("Mul", [a, guide], name="gf_scale"), b], name="gf_out"))


@model("superresolution_global_residual", pins=[], opset=21)
def superresolution_global_residual(g):
    """VDSR-like: upsampled image in [0, 1] plus the output of a small convolutional network."""
    x = g.input("image", ["batch", 1, 24, 32], pixels(g, 1, 1, 24, 32) / np.float32(255))
    up = g.node("Resize", [x, "", g.const([1.0, 1, 2, 2])], name="resize", mode="cubic")
    y = g.node("Relu", [g.conv(up, "first", 1, 64, 3, pads=SAME)], name="relu1")
    y = g.node("Relu", [g.conv(y, "second", 64, 64, 3, pads=SAME)], name="relu2")
    g.output(g.node("Add", [up, g.conv(y, "last", 64, 1, 3, pads=SAME)], name="residual"))


@model("harris_response_weighted_features", pins=["ix*", "iy*", "m*", "det_*", "trace*", "response*"],
       opset=19)
def harris_response_weighted_features(g):
    """Harris corners of pixels: products of gradients, smoothed, det - 0.04 trace² up to 1e10."""
    x = g.input("image", [1, 1, 48, 48], pixels(g, 1, 1, 48, 48))
    feats = g.input("feats", [1, 64, 48, 48], g.normal(1, 64, 48, 48))
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    ix = op(g, "Conv", x, sobel[None, None], name="ix_conv", pads=SAME)
    iy = op(g, "Conv", x, sobel.T[None, None], name="iy_conv", pads=SAME)
    xx, yy, xy = (box_blur(g, g.node("Mul", ab, name=f"m{n}_mul"), 5, f"m{n}_blur")
                  for n, ab in (("xx", [ix, ix]), ("yy", [iy, iy]), ("xy", [ix, iy])))
    det = g.node("Sub", [g.node("Mul", [xx, yy], name="det_left"), g.node("Mul", [xy, xy], name="det_right")],
                 name="det_sub")
    trace = g.node("Add", [xx, yy], name="trace_add")
    trace = op(g, "Mul", g.node("Mul", [trace, trace], name="trace_sq"), 0.04, name="trace_scale")
    r = g.node("Sub", [det, trace], name="response_sub")
    r = g.node("Div", [r, reduce(g, "ReduceMax", r, [2, 3], "response_max")], name="response_norm")
    w = g.node("Sigmoid", [op(g, "Mul", r, 4.0, name="response_gain")], name="weight_sig")
    g.output(g.conv(g.node("Mul", [feats, w], name="weighted"), "head", 64, 32, 3, pads=SAME))


@model("squeeze_excitation_residual_block", pins=[], opset=21)
def squeeze_excitation_residual_block(g):
    """Squeeze and excitation: pooled channels through two convolutions and a sigmoid, a scale, a residual."""
    x = g.input("x", ["batch", 64, 24, 24], g.normal(2, 64, 24, 24))
    y = g.node("Relu", [g.conv(x, "a", 64, 64, 3, pads=SAME)], name="relu_a")
    y = g.conv(y, "b", 64, 64, 3, pads=SAME)
    s = g.node("GlobalAveragePool", [y], name="squeeze")
    s = g.node("Relu", [g.conv(s, "down", 64, 16, 1)], name="relu_s")
    s = g.node("Sigmoid", [g.conv(s, "up", 16, 64, 1)], name="excite")
    y = g.node("Add", [g.node("Mul", [y, s], name="scale"), x], name="skip")
    g.output(g.node("Relu", [y], name="relu"))


@model("soft_histogram_of_pixels", pins=["bin_*"], opset=20)
def soft_histogram_of_pixels(g):
    """Differentiable histogram: exp(-(x - c)² / 2σ²) of pixels for 64 bins of deviation 3, then an MLP."""
    x = g.input("image", [1, 1, 1024], pixels(g, 1, 1, 32, 32).reshape(1, 1, 1024))
    d = op(g, "Sub", x, (np.arange(64) * 4 + 2).reshape(1, 64, 1), name="bin_sub")
    d = op(g, "Div", g.node("Mul", [d, d], name="bin_sq"), -18.0, name="bin_div")
    h = reduce(g, "ReduceMean", g.node("Exp", [d], name="exp"), [2], "mean", keepdims=0)
    h = op(g, "Mul", h, 16.0, name="density")
    g.output(mlp(g, h, "net", [64, 128, 32]))


@model("channel_statistics_colour_transfer", pins=["c_*", "s_*"])
def channel_statistics_colour_transfer(g):
    """Photo-realistic transfer: pixels of content scaled to the style's statistics, then refined."""
    content, style = (g.input(n, [1, 3, 40, 40], pixels(g, 1, 3, 40, 40)) for n in ("content", "style"))
    stats = {}
    for n, x in (("c", content), ("s", style)):
        mean = reduce(g, "ReduceMean", x, [2, 3], f"{n}_mean")
        d = g.node("Sub", [x, mean], name=f"{n}_sub")
        var = reduce(g, "ReduceMean", g.node("Mul", [d, d], name=f"{n}_sq"), [2, 3], f"{n}_var")
        stats[n] = mean, d, g.node("Sqrt", [op(g, "Add", var, 1e-5, name=f"{n}_eps")], name=f"{n}_std")
    gain = g.node("Div", [stats["s"][2], stats["c"][2]], name="c_gain")
    y = g.node("Add", [g.node("Mul", [stats["c"][1], gain], name="c_scaled"), stats["s"][0]], name="c_moved")
    y = op(g, "Sub", op(g, "Div", y, 127.5, name="unit"), 1.0, name="centre")
    y = g.node("Relu", [g.conv(y, "a", 3, 64, 3, pads=SAME)], name="relu")
    g.output(g.conv(y, "b", 64, 3, 3, pads=SAME))


@model("vgg_squared_activation_features", pins=[], opset=17)
def vgg_squared_activation_features(g):
    """A block with x·x as its nonlinearity: squares of activations of ordinary size are features."""
    x = g.input("x", ["batch", 48, 28, 28], g.normal(1, 48, 28, 28))
    y = g.conv(x, "a", 48, 64, 3, pads=SAME)
    y = g.node("Mul", [y, y], name="square")
    y = g.node("Add", [y, constant(g, g.normal(1, 64, 1, 1, scale=0.1), "shift")], name="shift_add")
    y = g.conv(y, "b", 64, 48, 3, pads=SAME)
    y = reduce(g, "ReduceMean", g.node("Relu", [y], name="relu"), [2, 3], "pool", keepdims=0)
    g.output(g.linear(y, "head", 48, 20))
