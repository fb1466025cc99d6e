"""Moments and integrals, sums of squares written as products, spectra by constant matrices and Convs."""

import numpy as np

from .build import model
from .parts import Body, mlp, op, reduce, reshape, silu, span, split, unsqueeze


def dft(n, bins=None, window=True):
    """Cosine and sine columns of the DFT of n samples, [n, 2 * bins], under a Hann window."""
    bins = bins or n // 2 + 1
    angle = 2 * np.pi * np.outer(np.arange(n), np.arange(bins)) / n
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n) if window else np.ones(n)
    return np.concatenate([np.cos(angle), -np.sin(angle)], 1) * hann[:, None]


def speech(g, batch, frames, n, level):
    """Frames of a few decaying harmonics with a little noise, [batch, frames, n]."""
    t = np.arange(frames * n // 2 + n) / 16000
    rows = []
    for _ in range(batch):
        f = g.rng.uniform(120, 240)
        y = sum(np.sin(2 * np.pi * f * k * t + g.rng.uniform(0, 6)) / k**1.8 for k in range(1, 16))
        y = level * (y + 2e-4 * g.rng.standard_normal(len(t)))
        rows.append(np.lib.stride_tricks.sliding_window_view(y, n)[:: n // 2][:frames])
    return np.stack(rows).astype(np.float32)


# 3. Sums of many terms of one sign (the others are in units_between_networks.py).


@model("bead_heatmap_moments_localisation", pins=["mom_*", "centroid", "centroid_sq", "second", "var_sub"], opset=18)
def bead_heatmap_moments_localisation(g):
    """Particle tracking: heatmap's moments by a product with [1, x, x²] in pixels, variance as E[x²] - E[x]²."""
    xx = np.arange(256)
    at = g.uniform(120, 220, 24, 1)
    prof = np.exp(-0.5 * ((xx - at) / 5) ** 2)
    x = g.input("profiles", ["beads", 1, 256], (prof + 0.01 * g.normal(24, 256))[:, None].astype(np.float32))
    h = g.node("Relu", [g.conv(x, "c1", 1, 16, 7, dims=1, pads=[3, 3])], name="c1_act")
    z = g.node("Tanh", [g.conv(h, "c2", 16, 1, 5, dims=1, pads=[2, 2])], name="c2_act")
    logit = op(g, "Add", op(g, "Mul", x, 12.0, name="sharp"), op(g, "Mul", z, 0.5, name="correction"), name="logit")
    w = g.node("Exp", [op(g, "Sub", logit, 8.0, name="logit_shift")], name="weight")
    mom = g.node("MatMul", [w, g.const(np.stack([np.ones(256), xx, xx**2], 1), "powers")], name="mom_mm")
    m0, m1, m2 = split(g, mom, 3, 2, "mom_parts")
    mean = g.node("Div", [m1, m0], name="centroid")
    second = g.node("Div", [m2, m0], name="second")
    var = g.node("Sub", [second, g.node("Mul", [mean, mean], name="centroid_sq")], name="var_sub")
    g.output(g.node("Sqrt", [op(g, "Max", var, 1e-3, name="var_floor")], name="width"))


@model("option_time_value_by_quadrature", pins=["density", "price_einsum", "time_value"], opset=16)
def option_time_value_by_quadrature(g):
    """Options: predicted risk-neutral density on 128 nodes, calls by quadrature (spot 4000), less the intrinsic value."""
    x = g.input("surface", ["days", 20], g.normal(32, 20))
    h = g.node("Tanh", [g.linear(x, "enc", 20, 64)], name="enc_act")
    spot = np.linspace(3400, 4600, 128)
    bell = -0.5 * ((spot - 4000) / 90) ** 2
    basis = np.stack([np.sin((spot - 4000) / 200 * k) for k in (1, 2, 3)] + [((spot - 4000) / 200) ** 2]) * 0.1
    coef = g.linear(h, "coef", 64, 4)
    logit = g.node("Gemm", [coef, g.const(basis, "basis"), g.const(bell, "bell")], name="logit_gemm")
    density = g.node("Softmax", [logit], name="density", axis=1)
    strikes = np.linspace(2500, 3900, 15)
    payoff = np.maximum(spot[None] - strikes[:, None], 0)
    price = g.node("Einsum", [density, g.const(payoff, "payoff")], equation="bs,ks->bk", name="price_einsum")
    value = op(g, "Sub", price, 4000 - strikes, name="time_value")
    unit = op(g, "Mul", value, 0.02, name="per_50")
    g.output(unit)
    g.output(mlp(g, unit, "greeks", [15, 48, 5], "Tanh"))


@model("squeeze_excitation_global_pool", pins=[], opset=17)
def squeeze_excitation_global_pool(g):
    """Squeeze and excitation: 784 positive activations averaged, two 1x1 Convs, sigmoid gates on the channels."""
    x = g.input("image", [1, 8, 28, 28], g.normal(1, 8, 28, 28))
    h = g.node("Relu", [g.conv(x, "c1", 8, 48, 3, pads=[1, 1, 1, 1])], name="c1_act")
    s = reduce(g, "ReduceMean", h, [2, 3], "squeeze")
    s = g.node("Relu", [g.conv(s, "se1", 48, 12, 1)], name="se1_act")
    s = g.node("HardSigmoid", [g.conv(s, "se2", 12, 48, 1)], name="gate")
    y = g.node("Mul", [h, s], name="excite")
    g.output(g.conv(y, "c2", 48, 24, 1))


@model("superpixel_mean_by_membership_matrix", pins=[], opset=21)
def superpixel_mean_by_membership_matrix(g):
    """Superpixel graph: features summed by a 0/1 matrix (20 to 40 pixels each), divided by counts, graph layer."""
    who = g.rng.integers(0, 32, 1024)
    x = g.input("pixels", [1024, 16], (1.5 * g.normal(32, 16)[who] + 0.5 * g.normal(1024, 16)).astype(np.float32))
    m = g.input("membership", [32, 1024], (who[None] == np.arange(32)[:, None]).astype(np.float32))
    h = g.node("Softplus", [g.linear(x, "px", 16, 48)], name="px_act")
    total = g.node("MatMul", [m, h], name="segment_mm")
    n = reduce(g, "ReduceSum", m, [1], "segment_count")
    mean = g.node("Div", [total, op(g, "Max", n, 1.0, name="count_floor")], name="segment_mean")
    g.output(mlp(g, g.layer_norm(mean, "norm", 48), "node", [48, 64, 12], "Relu"))


# 4. Sums of squares, norms and variances by products.


@model("near_duplicate_faces_einsum_distance", pins=["both", "embed_mm", "embed_add", "sq_*", "cross", "twice", "d2_add", "d2_sub"], opset=17)
def near_duplicate_faces_einsum_distance(g):
    """Face verification: |a|² + |b|² - 2ab of paired frames' embeddings, norms by Einsum nd,nd->n, a distance."""
    a = g.normal(48, 128)
    b = a + 0.03 * g.normal(48, 128)
    w = g.weight("embed_w", 128, 96)
    both = g.node("Concat", [g.input("frame_a", [48, 128], a), g.input("frame_b", [48, 128], b.astype(np.float32))], name="both", axis=0)
    e = op(g, "Add", g.node("MatMul", [both, w], name="embed_mm"), g.normal(96, scale=0.02), name="embed_add")
    p, q = g.node("Split", [e], name="sq_split", outputs=2, axis=0)
    pp = g.node("Einsum", [p, p], equation="nd,nd->n", name="sq_a")
    qq = g.node("Einsum", [q, q], equation="nd,nd->n", name="sq_b")
    pq = op(g, "Mul", g.node("Einsum", [p, q], equation="nd,nd->n", name="cross"), 2.0, name="twice")
    d2 = g.node("Sub", [g.node("Add", [pp, qq], name="d2_add"), pq], name="d2_sub")
    dist = g.node("Sqrt", [op(g, "Max", d2, 0.0, name="d2_floor")], name="dist")
    g.output(dist)
    g.output(mlp(g, unsqueeze(g, dist, [1], "column"), "calib", [1, 16, 2], "Tanh"))


@model("rmsnorm_einsum_massive_activations", pins=["ms_einsum", "ms_mean"], pins_bf16=[], opset=20)
def rmsnorm_einsum_massive_activations(g):
    """Language model: RMSNorm whose mean square is Einsum btd,btd->bt, on a residual stream with massive activations."""
    x0 = g.normal(2, 24, 192)
    x0[:, :, [7, 100]] *= 500
    x = g.input("hidden", ["batch", "tokens", 192], x0)
    h = g.linear(silu(g, g.linear(x, "up", 192, 96, scale=0.002), "act"), "down", 96, 192)
    x = g.node("Add", [x, h], name="residual")
    ss = g.node("Einsum", [x, x], equation="btd,btd->bt", name="ms_einsum")
    ms = op(g, "Add", op(g, "Mul", ss, 1 / 192, name="ms_mean"), 1e-6, name="ms_eps")
    inv = g.node("Reciprocal", [g.node("Sqrt", [ms], name="rms_sqrt")], name="rms_inv")
    y = g.node("Mul", [x, unsqueeze(g, inv, [2], "rms_dims")], name="normed")
    y = op(g, "Mul", y, 1 + g.normal(192, scale=0.1), name="gain")
    g.output(g.linear(y, "logits", 192, 64, bias=False))


@model("eeg_csp_log_variance_in_volts", pins=["csp_mm", "csp_t", "cov_*", "diag_*", "logvar", "rel_*"],
       pins_bf16=["logvar", "rel_*"], opset=15)
def eeg_csp_log_variance_in_volts(g):
    """Brain-computer interface: CSP filters on EEG in volts (15 µV), X Xᵀ/N, its diagonal, log, mean removed, LDA net."""
    s = g.normal(16, 22, 250) * g.uniform(0.4, 1.6, 16, 22, 1)
    x = g.input("eeg_volts", ["trials", 22, 250], (1.5e-5 * s).astype(np.float32))
    y = g.node("MatMul", [g.const(g.normal(12, 22, scale=22**-0.5), "csp_w"), x], name="csp_mm")
    yt = g.node("Transpose", [y], name="csp_t", perm=[0, 2, 1])
    cov = op(g, "Mul", g.node("MatMul", [y, yt], name="cov_mm"), 1 / 250, name="cov_scale")
    var = reduce(g, "ReduceSum", op(g, "Mul", cov, np.eye(12), name="diag_mask"), [2], "diag_sum", keepdims=0)
    log = g.node("Log", [var], name="logvar")
    rel = g.node("Sub", [log, reduce(g, "ReduceMean", log, [1], "rel_mean")], name="rel_sub")
    g.output(rel)
    g.output(mlp(g, rel, "lda", [12, 32, 4], "Tanh"))


@model("strain_gauge_covariance_by_gemm", pins=["cov_*", "outer"], opset=19)
def strain_gauge_covariance_by_gemm(g):
    """Bridge monitoring: readings of 12 mV ± 0.3, XᵀX/N by Gemm less the outer product of means, diagonal, damage net."""
    mode = np.sin(np.arange(256)[:, None] / 9) * g.normal(1, 24, scale=0.2)
    off = 12 + g.normal(1, 24)
    x = g.input("millivolts", [256, 24], (off + mode + 0.25 * g.normal(256, 24)).astype(np.float32))
    mean = reduce(g, "ReduceMean", x, [0], "cov_mean")
    outer = g.node("Gemm", [mean, mean], name="outer", transA=1)
    cov = g.node("Gemm", [x, x, outer], name="cov_gemm", transA=1, alpha=1 / 256, beta=-1.0)
    diag = g.node("Einsum", [cov], equation="ii->i", name="diag_var")
    sd = g.node("Sqrt", [op(g, "Max", diag, 1e-6, name="diag_floor")], name="sd")
    row = reshape(g, sd, [1, 24], "row")
    g.output(sd)
    g.output(mlp(g, op(g, "Mul", row, 3.0, name="sd_unit"), "damage", [24, 48, 6], "Relu"))


@model("meta_optimizer_global_norm_clip", pins=["sq_*", "norm_*", "clip_*"], pins_bf16=[], opset=18)
def meta_optimizer_global_norm_clip(g):
    """Learned optimizer: gradients of 2e-6 clipped by their global norm, written as Einsum ij,ij-> of two layers."""
    a = g.input("grad_w1", [96, 64], g.normal(96, 64, scale=2e-6))
    b = g.input("grad_w2", [1, 4096], g.normal(1, 4096, scale=1.5e-6))
    sa = g.node("Einsum", [a, a], equation="ij,ij->", name="sq_w1")
    bt = g.node("Transpose", [b], name="sq_w2_t", perm=[1, 0])
    sb = g.node("Squeeze", [g.node("MatMul", [b, bt], name="sq_w2_mm")], name="sq_w2")
    norm = g.node("Sqrt", [g.node("Add", [sa, sb], name="sq_add")], name="norm_sqrt")
    scale = g.node("Div", [g.const(48.0), op(g, "Add", norm, 1e-8, name="norm_eps")], name="clip_div")
    unit = g.node("Mul", [a, scale], name="clip_mul")
    h = g.node("Tanh", [g.linear(unit, "opt1", 64, 64)], name="opt1_act")
    g.output(g.linear(h, "opt2", 64, 64))


@model("satellite_vis_viva_energy_drag_net", pins=["vel_*", "kin_*", "pot_*", "r_*", "energy_sub"], opset=13)
def satellite_vis_viva_energy_drag_net(g):
    """Orbits in km and km/s: specific energy v·v/2 - µ/r by row times column, after a learned velocity correction."""
    mu = 398600.4418
    r = g.uniform(6800, 7400, 64, 1)
    u = g.normal(64, 3); u /= np.linalg.norm(u, axis=1, keepdims=True)
    w = np.cross(u, g.normal(64, 3)); w /= np.linalg.norm(w, axis=1, keepdims=True)
    pos = g.input("km", ["objects", 3], (r * u).astype(np.float32))
    vel = g.input("km_s", ["objects", 3], (np.sqrt(mu / r) * w * (1 + 0.004 * g.normal(64, 1))).astype(np.float32))
    x = g.input("atmosphere", ["objects", 16], g.normal(64, 16))
    dv = op(g, "Mul", mlp(g, x, "drag", [16, 64, 3], "Tanh"), 0.01, name="drag_km_s")
    v = g.node("Add", [vel, dv], name="vel_add")
    v2 = g.node("MatMul", [reshape(g, v, [-1, 1, 3], "vel_row"), reshape(g, v, [-1, 3, 1], "vel_column")], name="kin_mm")
    kin = op(g, "Mul", v2, 0.5, name="kin_half")
    r2 = g.node("MatMul", [reshape(g, pos, [-1, 1, 3], "r_row"), reshape(g, pos, [-1, 3, 1], "r_column")], name="r_mm")
    pot = g.node("Div", [g.const(mu), g.node("Sqrt", [r2], name="r_sqrt")], name="pot_div")
    circ = op(g, "Mul", pot, 0.5, name="pot_half")
    energy = g.node("Sub", [kin, circ], name="energy_sub")
    g.output(op(g, "Mul", energy, 4.0, name="energy_unit"))


@model("retrieval_embedding_l2_by_einsum", pins=[], opset=17)
def retrieval_embedding_l2_by_einsum(g):
    """Retrieval: embeddings of order 1 normalised by an Einsum of 64 squares, then scores against unit documents."""
    x = g.input("query", ["queries", 128], g.normal(16, 128))
    e = mlp(g, g.layer_norm(x, "pre", 128), "tower", [128, 96, 64], "Relu")
    ss = g.node("Einsum", [e, e], equation="qd,qd->q", name="ss_einsum")
    norm = g.node("Sqrt", [op(g, "Add", ss, 1e-4, name="ss_eps")], name="norm")
    e = g.node("Div", [e, unsqueeze(g, norm, [1], "norm_dims")], name="unit")
    docs = g.normal(64, 80)
    docs /= np.linalg.norm(docs, axis=0, keepdims=True)
    g.output(op(g, "Mul", g.node("MatMul", [e, g.const(docs, "documents")], name="score_mm"), 14.0, name="temperature"))


@model("centred_group_variance_row_by_column", pins=[], opset=14)
def centred_group_variance_row_by_column(g):
    """Group normalisation by hand: activations of order 1 centred first, variance as row times column over 256, gain."""
    x = g.input("image", [2, 16, 8, 8], g.normal(2, 16, 8, 8))
    h = g.conv(x, "c1", 16, 32, 3, pads=[1, 1, 1, 1])
    r = reshape(g, h, [2, 8, 1, 256], "groups")
    c = g.node("Sub", [r, reduce(g, "ReduceMean", r, [3], "group_mean")], name="centre")
    ct = g.node("Transpose", [c], name="centre_t", perm=[0, 1, 3, 2])
    var = op(g, "Mul", g.node("MatMul", [c, ct], name="var_mm"), 1 / 256, name="var_scale")
    sd = g.node("Sqrt", [op(g, "Add", var, 1e-3, name="var_eps")], name="sd")
    y = reshape(g, g.node("Div", [c, sd], name="normed"), [2, 32, 8, 8], "image_again")
    g.output(g.conv(g.node("Relu", [y], name="act"), "c2", 32, 24, 3))


# 5. Spectra and transforms.


@model("speech_enhancer_compressed_power", pins=["dft_*", "power_*", "root"], opset=17)
def speech_enhancer_compressed_power(g):
    """Speech enhancement: DFT product of quiet frames, power to the 0.15 (compressed magnitudes), a mask net."""
    x = g.input("frames", ["frames", 256], speech(g, 1, 40, 256, 0.01)[0])
    both = g.node("MatMul", [x, g.const(dft(256), "basis")], name="dft_mm")
    re, im = span(g, both, 0, 129, 1, "dft_re"), span(g, both, 129, 258, 1, "dft_im")
    p = g.node("Add", [g.node("Mul", [re, re], name="power_re"), g.node("Mul", [im, im], name="power_im")], name="power_add")
    p = op(g, "Add", p, 1e-10, name="power_eps")
    y = op(g, "Pow", p, 0.15, name="root")
    h = g.node("Relu", [g.linear(y, "net1", 129, 96)], name="net1_act")
    mask = g.node("Sigmoid", [g.linear(h, "net2", 96, 129)], name="mask")
    g.output(g.node("Mul", [y, mask], name="masked"))


@model("gcc_phat_two_microphones", pins=["stft_*", "left_*", "right_*", "cross_*", "phat_*"], opset=19)
def gcc_phat_two_microphones(g):
    """Sound-source localisation: STFT by a Conv, cross-spectrum of two microphones over its magnitude, lags, a net."""
    a = speech(g, 1, 33, 256, 0.2)[0].reshape(-1)[:4352]
    b = np.roll(a, 5) + 4e-5 * g.normal(4352)
    x = g.input("stereo", [2, 1, 4352], np.stack([a, b])[:, None].astype(np.float32))
    s = g.node("Conv", [x, g.const(dft(256, 128).T[:, None], "kernel")], name="stft_conv", strides=[128])
    left, right = split(g, s, 2, 0, "stft_mics")
    (lr, li), (rr, ri) = split(g, left, 2, 1, "left_parts"), split(g, right, 2, 1, "right_parts")
    m = lambda p, q, n: g.node("Mul", [p, q], name=n)
    re = g.node("Add", [m(lr, rr, "cross_rr"), m(li, ri, "cross_ii")], name="cross_re")
    im = g.node("Sub", [m(li, rr, "cross_ir"), m(lr, ri, "cross_ri")], name="cross_im")
    mag = g.node("Sqrt", [op(g, "Add", g.node("Add", [m(re, re, "phat_re2"), m(im, im, "phat_im2")], name="phat_add"), 1e-16, name="phat_eps")], name="phat_sqrt")
    cat = g.node("Concat", [g.node("Div", [re, mag], name="phat_re"), g.node("Div", [im, mag], name="phat_im")], name="unit_phase", axis=1)
    lags = np.concatenate([np.cos(2 * np.pi * np.outer(np.arange(-16, 17), np.arange(128)) / 256), np.sin(2 * np.pi * np.outer(np.arange(-16, 17), np.arange(128)) / 256)], 1) / 128
    gcc = g.node("MatMul", [g.const(lags, "lags"), cat], name="lag_mm")
    y = g.node("Relu", [g.conv(gcc, "doa1", 33, 48, 3, dims=1)], name="doa1_act")
    g.output(gcc, g.conv(y, "doa2", 48, 12, 1, dims=1))


@model("bearing_vibration_band_ratios", pins=["dft_*", "power_*", "band_mm"], pins_bf16=["dft_*"], opset=21)
def bearing_vibration_band_ratios(g):
    """Bearing faults: raw accelerometer with 1 g of 9.81 and 0.02 of vibration, DFT, band energies, ratios, a net."""
    t = np.arange(512) / 512
    f = g.uniform(30, 200, 32, 1)
    y = 9.81 + 0.02 * np.sin(2 * np.pi * f * t) + 0.012 * np.sin(2 * np.pi * 1.7 * f * t / 2 + 1) + 0.003 * g.normal(32, 512)
    x = g.input("accel", ["windows", 512], y.astype(np.float32))
    cos, sin = np.split(dft(512), 2, 1)
    bank = np.zeros((257, 8))
    for i in range(8):
        bank[4 + 31 * i : 4 + 31 * (i + 1), i] = 1
    re = g.node("MatMul", [x, g.const(cos, "cos")], name="dft_re")
    im = g.node("MatMul", [x, g.const(sin, "sin")], name="dft_im")
    p = g.node("Add", [op(g, "Pow", re, 2.0, name="power_re"), op(g, "Pow", im, 2.0, name="power_im")], name="power_add")
    band = g.node("MatMul", [p, g.const(bank, "bands")], name="band_mm")
    total = op(g, "Add", reduce(g, "ReduceSum", band, [1], "ratio_total"), 1e-6, name="ratio_eps")
    ratio = g.node("Div", [band, total], name="ratio_div")
    g.output(ratio)
    g.output(mlp(g, g.node("Sqrt", [ratio], name="amplitude"), "fault", [8, 48, 6], "Tanh"))


@model("kpi_spectral_residual_anomaly", pins=["dft_*", "amp_*", "log_amp", "local_mean", "residual_sub", "saliency"],
       pins_bf16=["dft_*", "amp_channel", "log_amp", "local_mean", "residual_sub", "saliency"], opset=18)
def kpi_spectral_residual_anomaly(g):
    """SR-CNN: KPI of 640 requests per second, log amplitudes less their local mean, exp, inverse DFT, a Conv scorer."""
    t = np.arange(128)
    y = 640 + 6 * np.sin(2 * np.pi * t / 24 + g.uniform(0, 6, 8, 1)) + g.normal(8, 128, scale=0.8)
    y[:, 77] += 9
    x = g.input("kpi", ["series", 128], y.astype(np.float32))
    c, s = np.cos(2 * np.pi * np.outer(t, t) / 128), np.sin(2 * np.pi * np.outer(t, t) / 128)
    re = g.node("MatMul", [x, g.const(c / 11.3137, "cos")], name="dft_re")
    im = g.node("MatMul", [x, g.const(-s / 11.3137, "sin")], name="dft_im")
    p = g.node("Add", [g.node("Mul", [re, re], name="amp_re2"), g.node("Mul", [im, im], name="amp_im2")], name="amp_power")
    amp = g.node("Sqrt", [op(g, "Add", p, 1e-4, name="amp_eps")], name="amp_sqrt")
    log = unsqueeze(g, g.node("Log", [amp], name="log_amp"), [1], "amp_channel")
    avg = g.node("Conv", [log, g.const(np.full((1, 1, 3), 1 / 3), "box")], name="local_mean", pads=[1, 1])
    res = g.node("Exp", [g.node("Sub", [log, avg], name="residual_sub")], name="saliency")
    gain = g.node("Div", [g.node("Squeeze", [res, g.ints(1)], name="squeeze"), amp], name="gain_div")
    a, b = g.node("Mul", [re, gain], name="gain_re"), g.node("Mul", [im, gain], name="gain_im")
    back = g.node("Sub", [g.node("MatMul", [a, g.const(c / 11.3137, "icos")], name="inverse_re"), g.node("MatMul", [b, g.const(s / 11.3137, "isin")], name="inverse_im")], name="inverse_sub")
    z = unsqueeze(g, back, [1], "map_channel")
    h = g.node("Relu", [g.conv(z, "sc1", 1, 24, 5, dims=1, pads=[2, 2])], name="sc1_act")
    g.output(g.conv(h, "sc2", 24, 1, 1, dims=1))


@model("xray_block_dct_signed_root", pins=["dct_conv"], opset=22)
def xray_block_dct_signed_root(g):
    """X-ray texture: 8x8 DCT by a strided Conv on 12-bit values (2900 ± 12), signed roots of the AC terms, a Conv net."""
    k, n = np.arange(8)[:, None], np.arange(8)[None]
    d = np.cos(np.pi * k * (n + 0.5) / 8) * np.where(k == 0, 8**-0.5, 0.5)
    basis = np.einsum("ai,bj->abij", d, d).reshape(64, 1, 8, 8)[1:33]
    yy, xx = np.mgrid[0:64, 0:64] / 64
    x = g.input("xray", ["batch", 1, 64, 64], (2900 + 10 * np.sin(5 * xx + 3 * yy) + g.normal(2, 1, 64, 64, scale=3)).astype(np.float32))
    c = g.node("Conv", [x, g.const(basis, "dct")], name="dct_conv", strides=[8, 8])
    size = g.node("Abs", [c], name="size")
    root = op(g, "Pow", op(g, "Add", size, 0.01, name="size_eps"), 0.5, name="size_root")
    y = g.node("Mul", [root, g.node("Sign", [c], name="sign")], name="signed")
    h = g.node("Relu", [g.conv(y, "t1", 32, 32, 3, pads=[1, 1, 1, 1])], name="t1_act")
    g.output(g.conv(h, "t2", 32, 4, 1))


@model("seismic_wavelet_sta_lta_ratio", pins=["cwt_conv", "energy_*", "lta", "sta", "lta_eps", "ratio"], pins_bf16=[], opset=20)
def seismic_wavelet_sta_lta_ratio(g):
    """Seismic picker: ground velocity of 1e-6 m/s, wavelets by Conv, energies, short over long local mean, a picker."""
    t = np.arange(1200)
    y = g.normal(3, 1, 1200) + 8 * np.exp(-np.clip(t - 700, 0, None) / 90) * (t > 700) * g.normal(3, 1, 1200)
    x = g.input("velocity", [3, 1, 1200], (1e-6 * y).astype(np.float32))
    tau = np.arange(-16, 17)
    waves = []
    for f in np.geomspace(0.06, 0.4, 8):
        bell = np.exp(-0.5 * (tau * f / 1.2) ** 2) * f
        waves += [bell * np.cos(2 * np.pi * f * tau), bell * np.sin(2 * np.pi * f * tau)]
    w = g.node("Conv", [x, g.const(np.stack(waves)[:, None], "wavelets")], name="cwt_conv", strides=[4])
    pairs = reshape(g, w, [3, 8, 2, -1], "energy_pairs")
    e = reduce(g, "ReduceSum", g.node("Mul", [pairs, pairs], name="energy_sq"), [2], "energy_sum", keepdims=0)
    sta = g.node("AveragePool", [e], name="sta", kernel_shape=[5], strides=[1], pads=[2, 2])
    lta = g.node("AveragePool", [e], name="lta", kernel_shape=[61], strides=[1], pads=[30, 30])
    r = g.node("Div", [sta, op(g, "Add", lta, 1e-18, name="lta_eps")], name="ratio")
    h = g.node("Relu", [g.conv(r, "p1", 8, 32, 7, dims=1)], name="p1_act")
    g.output(g.node("Sigmoid", [g.conv(h, "p2", 32, 2, 1, dims=1)], name="pick"))


@model("music_mask_from_linear_magnitudes", pins=[], opset=17)
def music_mask_from_linear_magnitudes(g):
    """Loud music: DFT product scaled to order 1, magnitudes with an eps of 1e-2, no logarithm, a mask net."""
    x = g.input("frames", ["frames", 128], g.normal(40, 128, scale=0.5))
    both = g.node("MatMul", [x, g.const(dft(128) / 6, "basis")], name="dft_mm")
    re, im = g.node("Split", [both], name="parts", outputs=2, axis=1)
    p = g.node("Add", [g.node("Mul", [re, re], name="re2"), g.node("Mul", [im, im], name="im2")], name="power")
    mag = g.node("Sqrt", [op(g, "Add", p, 1e-2, name="eps")], name="magnitude")
    h = g.node("Elu", [g.linear(mag, "m1", 65, 96)], name="m1_act")
    mask = g.node("Sigmoid", [g.linear(h, "m2", 96, 65)], name="mask")
    g.output(g.node("Mul", [mag, mask], name="masked"))


@model("fnet_fourier_mixing_by_matrices", pins=[], opset=16)
def fnet_fourier_mixing_by_matrices(g):
    """FNet: real part of the 2D DFT of token embeddings by constant cosine and sine matrices, residual, norm, MLP."""
    x = g.input("tokens", ["batch", 32, 64], g.normal(2, 32, 64))
    n, d = np.arange(32), np.arange(64)
    an, ad = 2 * np.pi * np.outer(n, n) / 32, 2 * np.pi * np.outer(d, d) / 64
    cc = g.node("MatMul", [g.const(np.cos(an) / 32**0.5, "cos_n"), g.node("MatMul", [x, g.const(np.cos(ad) / 8, "cos_d")], name="cos_feat")], name="cos_tok")
    ss = g.node("MatMul", [g.const(np.sin(an) / 32**0.5, "sin_n"), g.node("MatMul", [x, g.const(np.sin(ad) / 8, "sin_d")], name="sin_feat")], name="sin_tok")
    y = g.node("Add", [x, g.node("Sub", [cc, ss], name="real")], name="residual")
    mean = reduce(g, "ReduceMean", y, [2], "mean")
    c = g.node("Sub", [y, mean], name="centre")
    var = reduce(g, "ReduceMean", g.node("Mul", [c, c], name="sq"), [2], "var")
    y = g.node("Div", [c, g.node("Sqrt", [op(g, "Add", var, 1e-5, name="eps")], name="sd")], name="normed")
    g.output(mlp(g, y, "ff", [64, 128, 64], "Relu"))
