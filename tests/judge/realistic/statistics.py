"""Normalisation and statistics."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import constant, mlp, op, reduce, reshape, span, unsqueeze


@model("group_norm_of_stable_diffusion_decomposed_variance", opset=17, pins=["gn_*"])
def _(g):
    """GroupNorm as old exporters wrote it: mean of 32 groups, x - mean, squares, over activations of the VAE (±40)."""
    x = g.input("latent", [1, 4, 32, 32], g.normal(1, 4, 32, 32))
    h = g.conv(x, "conv_in", 4, 128, 3, pads=[1] * 4)
    h = op(g, "Add", op(g, "Mul", h, 12.0, name="gain"), g.normal(1, 128, 1, 1, scale=25.0), name="offset")
    r = reshape(g, h, [0, 32, -1], "gn_groups")
    d = op(g, "Sub", r, reduce(g, "ReduceMean", r, [2], "gn_mean"), name="gn_sub")
    var = reduce(g, "ReduceMean", op(g, "Mul", d, d, name="gn_sq"), [2], "gn_var")
    n = op(g, "Div", d, g.node("Sqrt", [op(g, "Add", var, 1e-6, name="gn_eps")], name="gn_std"), name="gn_div")
    n = g.node("Reshape", [n, g.node("Shape", [h], name="shape")], name="ungroup")
    n = op(g, "Add", op(g, "Mul", n, g.uniform(0.5, 1.5, 1, 128, 1, 1), name="gamma"),
           g.normal(1, 128, 1, 1, scale=0.1), name="beta")
    n = g.node("Mul", [n, g.node("Sigmoid", [n], name="sig")], name="silu")
    g.output(g.conv(n, "conv_out", 128, 64, 3, pads=[1] * 4))


@model("layer_norm_tf_moments_fused_scale_then_offset", opset=13,
       pins=["ln_mean", "ln_dev", "ln_sq", "ln_var", "ln_eps", "ln_rsqrt", "ln_recip", "ln_scale", "ln_x", "ln_m",
             "ln_offset", "ln_y"])
def _(g):
    """tf2onnx's tf.nn.batch_normalization: x·s + (β - mean·s), which cancels where the mean is large."""
    ids = g.input("ids", ["b", "s"], g.rng.integers(0, 800, (2, 48)))
    table = g.normal(800, 192)
    table[:, 7] += 18
    table[:, 100] -= 9
    x = g.node("Gather", [g.const(table, "word"), ids], name="embed")
    for i in range(2):
        s = "ln" if i == 0 else "ln2"
        if i:
            x = op(g, "Add", x, g.linear(g.node("Relu", [g.linear(x, "fc1", 192, 384)], name="relu"), "fc2", 384, 192),
                   name="residual")
            break
        mean = reduce(g, "ReduceMean", x, [-1], f"{s}_mean")
        d = op(g, "Sub", x, mean, name=f"{s}_dev")
        var = reduce(g, "ReduceMean", op(g, "Mul", d, d, name=f"{s}_sq"), [-1], f"{s}_var")
        inv = g.node("Reciprocal", [g.node("Sqrt", [op(g, "Add", var, 1e-12, name=f"{s}_eps")], name=f"{s}_rsqrt")],
                     name=f"{s}_recip")
        scale = op(g, "Mul", inv, g.uniform(0.6, 1.2, 192), name=f"{s}_scale")
        off = op(g, "Sub", g.normal(192, scale=0.1), op(g, "Mul", mean, scale, name=f"{s}_m"), name=f"{s}_offset")
        x = op(g, "Add", op(g, "Mul", x, scale, name=f"{s}_x"), off, name=f"{s}_y")
    g.output(g.linear(x, "pooler", 192, 192))


@model("decorrelated_batch_whitening_newton_coupled", opset=18,
       pins=["cov_*", "trace*", "ns_*", "white_*"])
def _(g):
    """IterNorm (Huang 2019): Σ/tr, five coupled Newton steps, the root scaled back, times the centred features."""
    x = g.input("x", ["n", 64], g.normal(512, 64) @ (g.normal(64, 64) * 0.2))
    h = g.linear(x, "fc", 64, 32)
    d = op(g, "Sub", h, reduce(g, "ReduceMean", h, [0], "cov_mean"), name="cov_centre")
    dt = g.node("Transpose", [d], name="cov_t", perm=[1, 0])
    cov = op(g, "Add", op(g, "Mul", g.node("MatMul", [dt, d], name="cov_mm"), 1 / 512, name="cov_scale"),
             1e-3 * np.eye(32), name="cov_eps")
    tr = g.node("ReduceSum", [op(g, "Mul", cov, np.eye(32), name="trace_diag"), g.ints(0, 1)], name="trace", keepdims=1)
    s = op(g, "Div", cov, tr, name="ns_scaled")
    p = g.const(np.eye(32), "ns_p0")
    for i in range(5):
        p2 = g.node("MatMul", [p, p], name=f"ns_sq{i}")
        p3 = g.node("MatMul", [g.node("MatMul", [p2, p], name=f"ns_cube{i}"), s], name=f"ns_cs{i}")
        p = op(g, "Sub", op(g, "Mul", p, 1.5, name=f"ns_a{i}"), op(g, "Mul", p3, 0.5, name=f"ns_b{i}"), name=f"ns_p{i}")
    w = op(g, "Div", p, g.node("Sqrt", [tr], name="trace_root"), name="white_w")
    y = g.node("MatMul", [d, w], name="white_mm")
    g.output(mlp(g, y, "head", [32, 128, 10]))


@model("spectral_norm_three_power_iterations_conv", opset=13,
       pins=["sn_*"])
def _(g):
    """SNGAN's discriminator in training mode: u and v by power iterations, the kernel divided by σ."""
    x = g.input("image", ["n", 3, 32, 32], g.uniform(-1, 1, 2, 3, 32, 32))
    h = g.node("LeakyRelu", [g.conv(x, "c1", 3, 64, 3, pads=[1] * 4)], name="lrelu1", alpha=0.1)
    w = g.weight("w", 64, 64, 4, 4, scale=0.08)
    flat = reshape(g, w, [64, 1024], "sn_flat")
    flat_t = g.node("Transpose", [flat], name="sn_t", perm=[1, 0])
    u = g.const(g.normal(64, 1) / 8, "u")
    for i in range(3):
        v = g.node("MatMul", [flat_t, u], name=f"sn_v{i}")
        v = op(g, "Div", v, op(g, "Add", g.node("ReduceL2", [v], name=f"sn_vn{i}", keepdims=1), 1e-12,
                               name=f"sn_ve{i}"), name=f"sn_vd{i}")
        u = g.node("MatMul", [flat, v], name=f"sn_u{i}")
        n = op(g, "Add", g.node("ReduceL2", [u], name=f"sn_un{i}", keepdims=1), 1e-12, name=f"sn_ue{i}")
        u = op(g, "Div", u, n, name=f"sn_ud{i}")
    sigma = g.node("MatMul", [g.node("Transpose", [u], name="sn_ut", perm=[1, 0]),
                              g.node("MatMul", [flat, v], name="sn_wv")], name="sn_sigma")
    sigma = reshape(g, sigma, [1], "sn_scalar")
    w = op(g, "Div", w, sigma, name="sn_w")
    h = g.node("Conv", [h, w], name="c2_conv", strides=[2, 2], pads=[1] * 4)
    g.output(g.node("LeakyRelu", [h], name="lrelu2", alpha=0.1))


@model("histogram_quantile_tail_features_of_latency_ms", opset=22,
       pins=["sort", "low_*", "high_*", "rank*", "quantiles", "log_*", "z_*"])
def _(g):
    """Latencies in ms (1 to 30,000) sorted by TopK, quantiles interpolated between ranks, log1p, z-scored, an MLP."""
    ms = np.exp(g.normal(4, 1000, scale=1.3) + 4).clip(1, 3e4)
    x = g.input("latency_ms", ["hosts", 1000], ms.astype(np.float32))
    s, _ = g.node("TopK", [x, g.ints(1000)], name="sort", outputs=2, largest=0)
    q = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]) * 999
    lo = g.node("Gather", [s, g.ints(*np.floor(q).astype(int).tolist())], name="low_gather", axis=1)
    hi = g.node("Gather", [s, g.ints(*np.ceil(q).astype(int).tolist())], name="high_gather", axis=1)
    y = op(g, "Add", lo, op(g, "Mul", op(g, "Sub", hi, lo, name="rank_gap"), (q - np.floor(q)), name="rank_frac"),
           name="quantiles")
    y = g.node("Log", [op(g, "Add", y, 1.0, name="log_1p")], name="log_q")
    y = op(g, "Div", op(g, "Sub", y, np.linspace(2, 8, 10), name="z_mean"), np.linspace(0.1, 0.8, 10), name="z_std")
    g.output(g.node("Sigmoid", [mlp(g, y, "m", [10, 128, 128, 4])], name="anomaly"))


@model("sklearn_pca_of_spectra_then_dense", opset=15, pins=["centre"], pins_bf16=["centre"])
def _(g):
    """Absorbances near 1.0 with small differences: the mean is subtracted, and the components multiplied."""
    mean = 1.0 + 0.3 * np.sin(np.linspace(0, 6, 600))
    basis = np.linalg.qr(g.normal(600, 32))[0].astype(np.float32)
    x = mean + (g.normal(8, 32) * np.linspace(0.3, 0.02, 32)) @ basis.T + g.normal(8, 600, scale=0.001)
    x = g.input("spectra", ["n", 600], x.astype(np.float32))
    d = op(g, "Sub", x, mean, name="centre")
    p = g.node("MatMul", [d, g.const(basis, "components")], name="project")
    p = op(g, "Div", p, np.linspace(0.3, 0.02, 32), name="whiten")
    g.output(mlp(g, p, "m", [32, 128, 64, 3], "Tanh"))


@model("padim_mahalanobis_map_of_patch_embeddings", opset=17, pins=["delta*", "maha*"])
def _(g):
    """PaDiM: at each position (x-μ)ᵀ Σ⁻¹ (x-μ), with an ill-conditioned precision, then sqrt."""
    x = g.input("image", [1, 3, 64, 64], g.normal(1, 3, 64, 64))
    h = g.node("Relu", [g.conv(x, "c1", 3, 64, 7, strides=[4, 4], pads=[3] * 4)], name="relu1")
    h = g.conv(h, "c2", 64, 50, 3, strides=[2, 2], pads=[1] * 4)
    h = g.node("Transpose", [reshape(g, h, [1, 50, 64], "flat")], name="positions", perm=[0, 2, 1])
    d = op(g, "Sub", h, g.normal(64, 50, scale=0.5), name="delta")
    q = np.linalg.qr(g.rng.standard_normal((50, 50)))[0]
    precision = np.stack([(q * np.exp(g.rng.uniform(-2, 5, 50))) @ q.T for _ in range(64)])
    left = g.node("MatMul", [unsqueeze(g, d, [2], "delta_row"), g.const(precision, "cov_inv")], name="maha_left")
    m = g.node("MatMul", [left, unsqueeze(g, d, [3], "delta_col")], name="maha_mm")
    m = g.node("Sqrt", [reshape(g, m, [1, 1, 8, 8], "maha_map")], name="maha_sqrt")
    g.output(g.node("Resize", [m, "", g.const([1, 1, 8, 8])], name="resize", mode="linear"))


@model("gaussian_mixture_diagonal_log_likelihood_by_matmul", opset=23,
       pins=["proj_*", "sq", "ll_*", "lse_*"])
def _(g):
    """A GMM head as sklearn writes it: x²·P - 2x·(μP) + Σμ²P, which cancels, log-sum-exp over 16 components."""
    x = g.input("mfcc", ["n", 40], g.normal(32, 40, scale=3.0) + 5)
    h = g.linear(x, "proj", 40, 24)
    mu, prec = g.normal(16, 24, scale=4.0) + 3, np.exp(g.uniform(-1, 3, 16, 24))
    sq = op(g, "Mul", h, h, name="sq")
    a = g.node("MatMul", [sq, g.const(prec.T, "prec")], name="ll_sq_mm")
    b = op(g, "Mul", g.node("MatMul", [h, g.const((mu * prec).T, "mu_prec")], name="ll_cross_mm"), 2.0, name="ll_twice")
    c = (mu**2 * prec).sum(1)
    m = op(g, "Add", op(g, "Sub", a, b, name="ll_sub"), c, name="ll_maha")
    log_det = 0.5 * np.log(prec).sum(1) - 12 * np.log(2 * np.pi) + np.log(1 / 16)
    ll = op(g, "Add", op(g, "Mul", m, -0.5, name="ll_half"), log_det, name="ll_components")
    top = reduce(g, "ReduceMax", ll, [1], "lse_max")
    e = g.node("Exp", [op(g, "Sub", ll, top, name="lse_shift")], name="lse_exp")
    s = reduce(g, "ReduceSum", e, [1], "lse_sum")
    total = op(g, "Add", g.node("Log", [s], name="lse_log"), top, name="lse_total")
    post = op(g, "Div", e, s, name="lse_posterior")
    g.output(total, mlp(g, g.node("Concat", [post, g.node("Tanh", [op(g, "Mul", x, 0.1, name="x_scale")], name="tanh")],
                                         name="with_x", axis=1), "head", [56, 128, 10]))


@model("mpn_cov_matrix_power_normalised_pooling", opset=13,
       pins=["centre*", "cov*", "trace*", "ns_*", "post*"])
def _(g):
    """iSQRT-COV: the covariance of 196 positions, its root by Newton-Schulz, the triangle into a classifier."""
    x = g.input("features", ["n", 64, 14, 14], np.maximum(g.normal(2, 64, 14, 14), 0))
    h = g.node("Relu", [g.conv(x, "reduce", 64, 32, 1)], name="relu")
    h = reshape(g, h, [0, 32, 196], "flat")
    i_bar = (np.eye(196) - 1 / 196) / 196
    t = g.node("MatMul", [h, g.const(i_bar, "i_bar")], name="centre_mm")
    cov = g.node("MatMul", [t, g.node("Transpose", [h], name="cov_t", perm=[0, 2, 1])], name="cov_mm")
    tr = g.node("ReduceSum", [op(g, "Mul", cov, np.eye(32), name="trace_diag"), g.ints(1, 2)], name="trace", keepdims=1)
    a = op(g, "Div", cov, tr, name="ns_a")
    eye3 = 3 * np.eye(32)
    zy = op(g, "Mul", op(g, "Sub", eye3, a, name="ns_d0"), 0.5, name="ns_z0")
    y, z = g.node("MatMul", [a, zy], name="ns_y0"), zy
    for i in range(1, 4):
        k = op(g, "Mul", op(g, "Sub", eye3, g.node("MatMul", [z, y], name=f"ns_zy{i}"), name=f"ns_d{i}"), 0.5,
               name=f"ns_h{i}")
        y, z = g.node("MatMul", [y, k], name=f"ns_y{i}"), g.node("MatMul", [k, z], name=f"ns_z{i}")
    y = op(g, "Mul", y, g.node("Sqrt", [tr], name="trace_sqrt"), name="post_scale")
    idx = np.flatnonzero(np.triu(np.ones((32, 32))))
    v = g.node("Gather", [reshape(g, y, [0, 1024], "square"), g.ints(*idx.tolist())], name="triu", axis=1)
    g.output(g.linear(v, "fc", 528, 100))


@model("batch_renorm_running_moments_updated_in_graph", opset=17,
       pins=["bn_*"])
def _(g):
    """Adaptive batch norm at test time: the running moments move by 0.001 towards the batch's, and are returned."""
    x = g.input("x", ["n", 64, "t"], g.normal(4, 64, 50, scale=2.0))
    mean0 = g.input("running_mean", [64], g.normal(64, scale=3.0))
    var0 = g.input("running_var", [64], g.uniform(0.5, 6, 64))
    h = g.conv(x, "c1", 64, 64, 3, dims=1, pads=[1, 1])
    h = op(g, "Add", op(g, "Mul", h, 1.0, name="id_gain"), g.normal(1, 64, 1, scale=3.0), name="shift")
    mean = g.node("ReduceMean", [h], name="bn_mean", axes=[0, 2], keepdims=0)
    d = op(g, "Sub", h, reshape(g, mean, [1, 64, 1], "bn_mean_r"), name="bn_dev")
    var = g.node("ReduceMean", [op(g, "Mul", d, d, name="bn_sq")], name="bn_var", axes=[0, 2], keepdims=0)
    mean1 = op(g, "Add", op(g, "Mul", mean0, 0.999, name="bn_keep_mean"), op(g, "Mul", mean, 0.001, name="bn_new_mean"),
               name="bn_running_mean")
    var1 = op(g, "Add", op(g, "Mul", var0, 0.999, name="bn_keep_var"), op(g, "Mul", var, 0.001, name="bn_new_var"),
              name="bn_running_var")
    std = g.node("Sqrt", [op(g, "Add", reshape(g, var1, [1, 64, 1], "bn_var_r"), 1e-5, name="bn_eps")], name="bn_std")
    n = op(g, "Div", op(g, "Sub", h, reshape(g, mean1, [1, 64, 1], "bn_rm_r"), name="bn_sub"), std, name="bn_out")
    g.output(g.conv(g.node("Relu", [n], name="relu"), "c2", 64, 64, 3, dims=1, pads=[1, 1]), mean1, var1)


@model("instance_norm_unbiased_std_cyclegan_style", opset=16, pins=["in_*"])
def _(g):
    """torch's std (Bessel-corrected) over 4096 positions with eps added to it, as in AdaIN of style transfer."""
    content = g.input("content", [1, 3, 64, 64], g.uniform(0, 1, 1, 3, 64, 64))
    style = g.input("style", [1, 3, 64, 64], g.uniform(0, 0.4, 1, 3, 64, 64))
    w, b = g.weight("vgg_w", 64, 3, 3, 3), g.const(g.normal(64, scale=0.1), "vgg_b")
    stats, feats = [], []
    for tag, x in (("c", content), ("s", style)):
        f = g.node("Relu", [g.node("Conv", [x, w, b], name=f"vgg_{tag}", pads=[1] * 4)], name=f"relu_{tag}")
        f = op(g, "Mul", f, 8.0, name=f"gain_{tag}")
        mean = g.node("ReduceMean", [f], name=f"in_{tag}_mean", axes=[2, 3])
        d = op(g, "Sub", f, mean, name=f"in_{tag}_dev")
        ss = g.node("ReduceSum", [op(g, "Mul", d, d, name=f"in_{tag}_sq"), g.ints(2, 3)], name=f"in_{tag}_ss")
        std = g.node("Sqrt", [op(g, "Add", op(g, "Div", ss, 4095.0, name=f"in_{tag}_var"), 1e-5, name=f"in_{tag}_eps")],
                     name=f"in_{tag}_std")
        stats.append((mean, std))
        feats.append(d)
    n = op(g, "Div", feats[0], stats[0][1], name="in_norm")
    y = op(g, "Add", op(g, "Mul", n, stats[1][1], name="restyle"), stats[1][0], name="recentre")
    y = g.node("Relu", [g.conv(y, "d1", 64, 64, 3, pads=[1] * 4)], name="relu_d1")
    g.output(g.conv(y, "d2", 64, 3, 3, pads=[1] * 4))
