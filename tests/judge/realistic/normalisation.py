"""Normalisation written out: instance, group, RMS, weight, spectral, batch statistics, L2, whitening."""

import numpy as np

from .build import model
from .parts import (Body, attend, constant, dot_scores, mlp, op, project_qkv, reduce, reshape, silu, split)

SAME = [1, 1, 1, 1]


def massive(g, *shape, peak=900.0):
    """Activations of a late residual stream: ordinary ones, and two channels of hundreds."""
    x = g.normal(*shape, scale=2.0)
    x[..., 7] += np.float32(peak)
    x[..., 41] -= np.float32(peak / 3)
    return x


@model("instance_norm_written_out_large_scale", pins=["in_*"], opset=18)
def instance_norm_written_out_large_scale(g):
    """Style transfer on raw pixels: mean, x·x and root written out over maps of hundreds, eps 1e-5."""
    x = g.input("image", [1, 3, 48, 48], np.round(g.uniform(0, 255, 1, 3, 48, 48)))
    w = g.weight("stem_w", 48, 3, 5, 5, scale=0.35)
    y = g.node("Conv", [x, w], name="stem_conv", pads=[2] * 4)
    mean = reduce(g, "ReduceMean", y, [2, 3], "in_mean")
    d = g.node("Sub", [y, mean], name="in_sub")
    var = reduce(g, "ReduceMean", g.node("Mul", [d, d], name="in_sq"), [2, 3], "in_var")
    std = g.node("Sqrt", [op(g, "Add", var, 1e-5, name="in_eps")], name="in_std")
    y = g.node("Relu", [g.node("Div", [d, std], name="in_div")], name="relu")
    g.output(g.conv(y, "second", 48, 48, 3, pads=SAME))


@model("group_norm_by_reshapes_of_instance_norm", pins=[])
def group_norm_by_reshapes_of_instance_norm(g):
    """PyTorch's export of GroupNorm: reshape, InstanceNormalization, reshape, gain and bias."""
    x = g.input("x", ["batch", 64, 24, 24], g.normal(1, 64, 24, 24))
    y = reshape(g, g.conv(x, "a", 64, 64, 3, pads=SAME), [0, 16, -1], "groups")
    y = op(g, "InstanceNormalization", y, np.ones(16), np.zeros(16), name="norm")
    y = reshape(g, y, [-1, 64, 24, 24], "ungroup")
    y = op(g, "Mul", y, 1 + g.normal(64, 1, 1, scale=0.1), name="gain")
    y = op(g, "Add", y, g.normal(64, 1, 1, scale=0.1), name="shift")
    g.output(g.conv(silu(g, y, "act"), "b", 64, 32, 3, pads=SAME))


@model("rms_norm_mul_of_massive_channels", pins=["rms_*"], opset=21)
def rms_norm_mul_of_massive_channels(g):
    """Llama block on a stream with channels of 900: RMS norm by Mul(x, x), Sqrt, Reciprocal, then the MLP."""
    x = g.input("x", ["batch", "seq", 128], massive(g, 1, 32, 128))
    ms = reduce(g, "ReduceMean", g.node("Mul", [x, x], name="rms_sq"), [-1], "rms_mean")
    r = g.node("Reciprocal", [g.node("Sqrt", [op(g, "Add", ms, 1e-6, name="rms_eps")], name="rms_sqrt")],
               name="rms_recip")
    gain = np.full(128, 1.0)
    gain[[7, 41]] = 0.05
    y = op(g, "Mul", g.node("Mul", [x, r], name="rms_mul"), gain * 30, name="rms_gain")
    up = g.linear(y, "up", 128, 192, bias=False)
    y = g.node("Mul", [silu(g, g.linear(y, "gate", 128, 192, bias=False), "gate"), up], name="gated")
    g.output(g.linear(y, "down", 192, 128, bias=False))


@model("rms_norm_pow_before_attention", pins=[], opset=17)
def rms_norm_pow_before_attention(g):
    """RMS norm as Pow, ReduceMean, Add, Sqrt, Div of an ordinary stream, then attention, residual."""
    x = g.input("x", [1, 48, 128], g.normal(1, 48, 128, scale=1.5))
    h = g.linear(x, "embed", 128, 128)
    ms = reduce(g, "ReduceMean", op(g, "Pow", h, 2.0, name="square"), [-1], "mean")
    y = g.node("Div", [h, g.node("Sqrt", [op(g, "Add", ms, 1e-6, name="eps")], name="root")], name="norm")
    y = op(g, "Mul", y, 1 + g.normal(128, scale=0.1), name="gain")
    q, k, v = project_qkv(g, y, 4, 32)
    g.output(g.node("Add", [h, attend(g, dot_scores(g, q, k, 32), v, 128)], name="residual"))


@model("layer_norm_written_out_ordinary", pins=[], opset=17)
def layer_norm_written_out_ordinary(g):
    """Layer norm as ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, as older exporters do."""
    x = g.input("x", ["batch", "seq", 128], g.normal(2, 32, 128))
    h = g.node("Add", [g.linear(x, "first", 128, 128), x], name="residual")
    d = g.node("Sub", [h, reduce(g, "ReduceMean", h, [-1], "mean")], name="centre")
    var = reduce(g, "ReduceMean", op(g, "Pow", d, 2.0, name="square"), [-1], "var")
    y = g.node("Div", [d, g.node("Sqrt", [op(g, "Add", var, 1e-5, name="eps")], name="root")], name="norm")
    y = op(g, "Add", op(g, "Mul", y, 1 + g.normal(128, scale=0.1), name="gain"), 0.01, name="shift")
    g.output(mlp(g, y, "ffn", [128, 256, 128], "Relu"))


@model("layer_norm_of_large_offset", pins=["lift_add", "ln_*"], opset=19)
def layer_norm_of_large_offset(g):
    """Regression trunk whose features sit near 300 with a spread of one: mean subtracted, then normalised."""
    x = g.input("x", [64, 96], g.normal(64, 96))
    h = op(g, "Add", g.linear(x, "first", 96, 128), 300.0, name="lift_add")
    d = g.node("Sub", [h, reduce(g, "ReduceMean", h, [1], "ln_mean")], name="ln_centre")
    var = reduce(g, "ReduceSumSquare", d, [1], "ln_sum_sq")
    var = op(g, "Add", op(g, "Mul", var, 1 / 128, name="ln_var"), 1e-5, name="ln_eps")
    y = g.node("Div", [d, g.node("Sqrt", [var], name="ln_root")], name="ln_div")
    g.output(mlp(g, y, "net", [128, 128, 32]))


@model("weight_norm_computed_in_graph", pins=[], opset=19)
def weight_norm_computed_in_graph(g):
    """WaveNet convolution with weight norm in the graph: g·v / ReduceL2(v), v of ordinary size."""
    x = g.input("x", [1, 64, 200], g.normal(1, 64, 200))
    for i in range(2):
        v = g.weight(f"v{i}", 64, 64, 3)
        norm = reduce(g, "ReduceL2", v, [1, 2], f"norm{i}")
        w = g.node("Div", [v, norm], name=f"unit{i}")
        w = op(g, "Mul", w, g.uniform(0.8, 1.2, 64, 1, 1), name=f"gain{i}")
        y = g.node("Conv", [x, w], name=f"conv{i}", pads=[2 ** i] * 2, dilations=[2 ** i])
        x = g.node("Add", [x, g.node("Tanh", [y], name=f"tanh{i}")], name=f"residual{i}")
    g.output(x)


@model("weight_norm_square_of_tiny_weights", pins=["wn_*"], pins_bf16=[])
def weight_norm_square_of_tiny_weights(g):
    """Weight norm as Mul(v, v), ReduceSum, Sqrt, with v around 2e-4 (squares of 4e-8)."""
    scale = g.input("style", [1, 96], g.uniform(0.7, 1.3, 1, 96))
    x = g.input("x", [48, 96], g.normal(48, 96))
    v = g.node("Mul", [g.weight("v", 64, 96, scale=2e-4), scale], name="wn_style")
    sq = reduce(g, "ReduceSum", g.node("Mul", [v, v], name="wn_sq"), [1], "wn_sum")
    norm = g.node("Sqrt", [op(g, "Add", sq, 1e-12, name="wn_eps")], name="wn_sqrt")
    v = g.node("Transpose", [g.node("Div", [v, norm], name="wn_div")], name="v_t", perm=[1, 0])
    y = g.node("MatMul", [x, v], name="first_mm")
    g.output(mlp(g, y, "net", [64, 96, 32]))


@model("stylegan_demodulated_convolution", pins=[], opset=17)
def stylegan_demodulated_convolution(g):
    """StyleGAN2: weights times styles near one, over the root of their sums of squares + 1e-8, a Conv."""
    x = g.input("x", [1, 64, 24, 24], g.normal(1, 64, 24, 24))
    latent = g.input("latent", [1, 96], g.normal(1, 96))
    style = op(g, "Add", g.linear(latent, "affine", 96, 64, scale=0.03), 1.0, name="style")
    style = reshape(g, style, [1, 64, 1, 1], "style_dims")
    w = g.node("Mul", [g.weight("conv_w", 64, 64, 3, 3), style], name="modulate")
    norm = reduce(g, "ReduceSumSquare", w, [1, 2, 3], "sum_sq")
    norm = g.node("Sqrt", [op(g, "Add", norm, 1e-8, name="eps")], name="root")
    y = g.node("Conv", [x, g.node("Div", [w, norm], name="demodulate")], name="conv", pads=SAME)
    g.output(g.conv(g.node("LeakyRelu", [y], name="act", alpha=0.2), "rgb", 64, 3, 1))


@model("spectral_norm_power_iteration", pins=[], opset=21)
def spectral_norm_power_iteration(g):
    """Spectral norm in the graph: one power iteration with eps 1e-12, the weight over ‖Wv‖, a layer."""
    x = g.input("x", [32, 96], g.normal(32, 96))
    w = g.weight("w", 64, 96, scale=0.15)
    u = g.normal(1, 64)
    u = g.input("u", [1, 64], u / np.linalg.norm(u))
    v = g.node("MatMul", [u, w], name="v_mm")
    norm = op(g, "Max", reduce(g, "ReduceL2", v, [1], "v_l2"), 1e-12, name="v_max")
    v = g.node("Div", [v, norm], name="v_unit")
    vt = g.node("Transpose", [v], name="v_t", perm=[1, 0])
    u = g.node("MatMul", [w, vt], name="u_mm")
    sigma = reduce(g, "ReduceL2", u, [0, 1], "sigma")
    y = g.node("Transpose", [g.node("Div", [w, sigma], name="normalise")], name="w_t", perm=[1, 0])
    y = g.node("LeakyRelu", [g.node("MatMul", [x, y], name="first_mm")], name="act", alpha=0.1)
    g.output(g.linear(y, "head", 64, 16))


@model("batch_statistics_mean_of_squares", pins=["bs_*", "bias_add"], opset=20)
def batch_statistics_mean_of_squares(g):
    """Batch norm by batch statistics: E[x²] - E[x]² of features with means of ten deviations."""
    x = g.input("x", [64, 96], g.normal(64, 96))
    h = op(g, "Add", g.linear(x, "first", 96, 128, bias=False), g.uniform(5, 15, 128), name="bias_add")
    mean = reduce(g, "ReduceMean", h, [0], "bs_mean")
    sq = reduce(g, "ReduceMean", g.node("Mul", [h, h], name="bs_sq"), [0], "bs_mean_sq")
    var = g.node("Sub", [sq, g.node("Mul", [mean, mean], name="bs_sq_mean")], name="bs_sub")
    std = g.node("Sqrt", [op(g, "Add", var, 1e-3, name="bs_eps")], name="bs_sqrt")
    y = g.node("Div", [g.node("Sub", [h, mean], name="bs_centre"), std], name="bs_div")
    g.output(mlp(g, g.node("Relu", [y], name="relu"), "net", [128, 96, 32]))


@model("frozen_batch_norm_small_variances", pins=["fbn_*"], pins_bf16=[], opset=20)
def frozen_batch_norm_small_variances(g):
    """Detectron's frozen batch norm: weight · rsqrt(variance + 1e-5) with variances of 1e-6 to 1e-4."""
    x = g.input("x", [1, 64, 24, 24], g.normal(1, 64, 24, 24))
    var = g.input("running_var", [48], (10 ** g.uniform(-6, -4, 48)).astype(np.float32))
    w = g.weight("conv_w", 48, 64, 3, 3, scale=3e-4)
    y = g.node("Conv", [x, w], name="conv", pads=SAME)
    scale = g.node("Reciprocal", [g.node("Sqrt", [op(g, "Add", var, 1e-5, name="fbn_eps")], name="fbn_sqrt")],
                   name="fbn_recip")
    scale = op(g, "Mul", scale, g.uniform(0.5, 1.5, 48), name="fbn_weight")
    y = g.node("Mul", [y, reshape(g, scale, [1, 48, 1, 1], "fbn_dims")], name="fbn_mul")
    g.output(g.conv(g.node("Relu", [y], name="relu"), "next", 48, 32, 3, pads=SAME))


@model("clip_cosine_logits_of_embeddings", pins=[], opset=17)
def clip_cosine_logits_of_embeddings(g):
    """CLIP: image and text embeddings over their L2 norms, cosines times a scale of exp(2.6)."""
    sides = []
    for stem, n in (("image", 24), ("text", 16)):
        x = g.linear(g.input(stem, [n, 128], g.normal(n, 128)), f"{stem}_proj", 128, 128)
        sides.append(g.node("Div", [x, reduce(g, "ReduceL2", x, [1], f"{stem}_l2")], name=f"{stem}_unit"))
    text = g.node("Transpose", [sides[1]], name="text_t", perm=[1, 0])
    scale = g.node("Exp", [constant(g, 2.6, "logit_scale")], name="exp")
    g.output(g.node("Mul", [g.node("MatMul", [sides[0], text], name="cosine_mm"), scale], name="logits"))


@model("l2_normalise_zero_rows_eps", pins=["unit_*"], pins_bf16=[])
def l2_normalise_zero_rows_eps(g):
    """F.normalize of padded sequences: rows that a mask zeroed, over max(norm, 1e-12), must stay zero."""
    x = g.input("x", [2, 24, 96], g.normal(2, 24, 96))
    mask = g.input("mask", [2, 24, 1], (np.arange(24) < [[24], [15]]).astype(np.float32)[..., None])
    y = g.node("Mul", [g.linear(x, "proj", 96, 96), mask], name="masked")
    norm = op(g, "Clip", reduce(g, "ReduceL2", y, [-1], "unit_l2"), 1e-12, name="unit_clip")
    y = g.node("Div", [y, g.node("Expand", [norm, g.ints(2, 24, 96)], name="unit_expand")], name="unit_div")
    yt = g.node("Transpose", [y], name="sim_t", perm=[0, 2, 1])
    sim = g.node("MatMul", [y, yt], name="sim_mm")
    g.output(g.node("MatMul", [sim, x], name="mix_mm"))


@model("zca_whitening_newton_schulz", pins=["wh_*", "cov_*", "p*_*"], opset=21)
def zca_whitening_newton_schulz(g):
    """IterNorm: covariance of centred features, normalised by its trace, inverse root by Newton-Schulz."""
    n, c = 512, 48
    x = g.input("x", [n, 64], g.normal(n, 64))
    h = op(g, "Add", g.linear(x, "first", 64, c), 2.0, name="wh_lift")
    h = g.node("Sub", [h, reduce(g, "ReduceMean", h, [0], "wh_mean")], name="wh_centre")
    cov = g.node("MatMul", [g.node("Transpose", [h], name="cov_t", perm=[1, 0]), h], name="cov_mm")
    cov = op(g, "Add", op(g, "Div", cov, float(n), name="cov_div"), 1e-5 * np.eye(c), name="cov_eps")
    eye = g.const(np.eye(c), "eye")
    trace = reduce(g, "ReduceSum", g.node("Mul", [cov, eye], name="cov_diag"), [0, 1], "cov_trace")
    cov = g.node("Div", [cov, trace], name="cov_norm")
    p = eye
    for i in range(5):
        p3 = g.node("MatMul", [g.node("MatMul", [p, p], name=f"p{i}_sq"), p], name=f"p{i}_cube")
        p3 = op(g, "Mul", g.node("MatMul", [p3, cov], name=f"p{i}_cov"), 0.5, name=f"p{i}_half")
        p = g.node("Sub", [op(g, "Mul", p, 1.5, name=f"p{i}_scale"), p3], name=f"p{i}_sub")
    p = g.node("Div", [p, g.node("Sqrt", [trace], name="wh_root")], name="wh_div")
    y = g.node("MatMul", [h, p], name="apply_mm")
    g.output(g.linear(y, "head", c, 32))


@model("convnext_global_response_norm", pins=[], opset=21)
def convnext_global_response_norm(g):
    """ConvNeXt V2: spatial L2 norms over their mean across channels + 1e-6, a gain, a bias, the residual."""
    x = g.input("x", ["batch", 24, 24, 64], g.normal(1, 24, 24, 64))
    h = g.node("Relu", [g.linear(x, "up", 64, 128)], name="relu")
    gx = reduce(g, "ReduceL2", h, [1, 2], "spatial_l2")
    mean = op(g, "Add", reduce(g, "ReduceMean", gx, [-1], "mean"), 1e-6, name="eps")
    nx = g.node("Div", [gx, mean], name="ratio")
    y = op(g, "Mul", g.node("Mul", [h, nx], name="respond"), g.normal(128, scale=0.5), name="gain")
    y = g.node("Add", [op(g, "Add", y, g.normal(128, scale=0.1), name="shift"), h], name="inner_residual")
    g.output(g.node("Add", [x, g.linear(y, "down", 128, 64)], name="residual"))


@model("qk_norm_attention_learned_gain", pins=[], opset=21)
def qk_norm_attention_learned_gain(g):
    """ViT-22B: queries and keys layer-normalised per head with gains, then ordinary attention."""
    x = g.input("x", [1, 64, 128], g.normal(1, 64, 128))
    q, k, v = project_qkv(g, x, 4, 32)
    q, k = (op(g, "LayerNormalization", y, np.full(32, 1.1), name=f"{s}_norm")
            for s, y in (("q", q), ("k", k)))
    y = attend(g, dot_scores(g, q, k, 32), v, 128)
    g.output(g.node("Add", [x, y], name="residual"))


@model("pixel_norm_mapping_network", pins=[], opset=21)
def pixel_norm_mapping_network(g):
    """StyleGAN mapping: latents over the root of their mean square + 1e-8 by Pow and Reciprocal, an MLP."""
    z = g.input("z", ["batch", 128], g.normal(8, 128))
    h = g.linear(z, "pre", 128, 128)
    ms = reduce(g, "ReduceMean", op(g, "Pow", h, 2.0, name="square"), [1], "mean")
    ms = op(g, "Add", ms, 1e-8, name="eps")
    r = g.node("Reciprocal", [g.node("Sqrt", [ms], name="root")], name="reciprocal")
    g.output(mlp(g, g.node("Mul", [h, r], name="norm"), "map", [128, 128, 128], "LeakyRelu"))


@model("running_mean_of_features_scan",
       pins=["cum_*"] + [f"scan/body/{n}" for n in ("sum_add", "sq_add", "sum_emit", "sq_emit")], opset=21)
def running_mean_of_features_scan(g):
    """Cumulative layer norm of a speech separator: a Scan of running sums and sums of squares, 240 frames."""
    x = g.input("x", [240, 2, 64], g.normal(240, 2, 64))
    h = op(g, "Add", g.linear(x, "first", 64, 96), 3.0, name="cum_lift")
    frame = reduce(g, "ReduceSum", h, [2], "cum_frame")
    frame_sq = reduce(g, "ReduceSum", g.node("Mul", [h, h], name="cum_sq"), [2], "cum_frame_sq")
    b = Body(g, "running_step")
    s, q = b.entry("s", [2, 1]), b.entry("q", [2, 1])
    s = b.node("Add", [s, b.entry("ft", [2, 1])], name="sum_add")
    q = b.node("Add", [q, b.entry("ft_sq", [2, 1])], name="sq_add")
    outs = [b.node("Identity", [v], name=f"{n}_emit") for n, v in (("sum", s), ("sq", q))]
    zero = g.const(np.zeros((2, 1)))
    total, total_sq = g.node("Scan", [zero, zero, frame, frame_sq], name="scan", outputs=4, num_scan_inputs=2,
                             body=b.graph(*((v, [2, 1]) for v in (s, q, *outs))))[2:]
    n = (np.arange(1, 241) * 96).reshape(240, 1, 1)
    mean, mean_sq = op(g, "Div", total, n, name="cum_mean"), op(g, "Div", total_sq, n, name="cum_mean_sq")
    var = g.node("Sub", [mean_sq, g.node("Mul", [mean, mean], name="cum_sq_mean")], name="cum_var")
    std = g.node("Sqrt", [op(g, "Add", var, 1e-5, name="cum_eps")], name="cum_std")
    y = g.node("Div", [g.node("Sub", [h, mean], name="cum_centre"), std], name="cum_div")
    g.output(g.linear(y, "head", 96, 48))


@model("per_channel_zscore_of_sensor_units", pins=["raw_*"])
def per_channel_zscore_of_sensor_units(g):
    """Weather inputs in raw units (pascals near 101325, kelvins), standardised, to a network."""
    mean = np.tile([101325.0, 288.0, 54000.0, 0.006], 8)
    std = np.tile([700.0, 12.0, 900.0, 0.003], 8)
    x = g.input("fields", ["n", 32], (mean + std * g.normal(128, 32)).astype(np.float32))
    x = op(g, "Div", op(g, "Sub", x, mean, name="raw_sub"), std, name="raw_div")
    g.output(mlp(g, x, "net", [32, 128, 96, 32], "Tanh"))


@model("scale_norm_with_split_gate", pins=[], opset=21)
def scale_norm_with_split_gate(g):
    """ScaleNorm (g·x / max(‖x‖, 1e-5)) and a gated linear unit by Split, with the residual."""
    x = g.input("x", ["batch", "seq", 96], g.normal(1, 40, 96))
    norm = op(g, "Max", reduce(g, "ReduceL2", x, [-1], "l2"), 1e-5, name="floor")
    y = op(g, "Mul", g.node("Div", [x, norm], name="unit"), 96**0.5, name="gain")
    a, b = split(g, g.linear(y, "glu", 96, 192), 2, 2, "glu_parts")
    y = g.node("Mul", [a, g.node("Sigmoid", [b], name="gate")], name="gated")
    g.output(g.node("Add", [x, g.linear(y, "out", 96, 96)], name="residual"))
