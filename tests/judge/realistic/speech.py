"""Audio and speech: front ends, masks, beamformers, pitch, vocoders, transducers."""

import numpy as np

from .build import model
from .parts import mlp, op, reduce, reshape, span, split, unsqueeze


def speech(g, batch, n, rate=16000, level=0.1):
    """A voiced sound with a falling spectrum and a loud and a quiet half."""
    t = np.arange(n) / rate
    f0 = 120 + 20 * np.sin(2 * np.pi * 3 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    wave = sum(np.sin(k * phase + k) / k for k in range(1, 20))
    wave = wave * (0.05 + np.abs(np.sin(2 * np.pi * 2 * t))) + 0.02 * g.rng.standard_normal((batch, n))
    return (wave * level).astype(np.float32)


def fourier_filters(n_fft, bins):
    window = np.hanning(n_fft + 1)[:-1]
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(n_fft)) / n_fft
    return np.concatenate([np.cos(angle) * window, -np.sin(angle) * window])[:, None]


def mel_matrix(bins, mels, rate=16000):
    hz = np.linspace(0, rate / 2, bins)
    to_mel = lambda f: 2595 * np.log10(1 + f / 700)
    edges = 700 * (10 ** (np.linspace(to_mel(20), to_mel(rate / 2), mels + 2) / 2595) - 1)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    fb = np.maximum(0, np.minimum((hz - low) / (mid - low), (high - hz) / (high - mid)))
    return (fb * 2 / (high - low)).T


@model("openunmix_stft_op_magnitude_filter", opset=17,
       pins=["stft", "re", "im", "re_sq", "im_sq", "power", "power_eps", "magnitude", "re_mask", "im_mask"],
       pins_bf16=["stft", "re", "im", "re_sq", "im_sq", "power", "power_eps", "magnitude"])
def _(g):
    x = g.input("audio", ["batch", 8192], speech(g, 2, 8192, 44100))
    window = g.const(np.hanning(513)[:-1], "window")
    spec = g.node("STFT", [x, g.const(256, dtype=np.int64), window], name="stft", onesided=1)
    re = g.node("Gather", [spec, g.const(0, dtype=np.int64)], name="re", axis=3)
    im = g.node("Gather", [spec, g.const(1, dtype=np.int64)], name="im", axis=3)
    power = op(g, "Add", op(g, "Mul", re, re, name="re_sq"), op(g, "Mul", im, im, name="im_sq"), name="power")
    mag = g.node("Sqrt", [op(g, "Add", power, 1e-10, name="power_eps")], name="magnitude")
    h = op(g, "Mul", op(g, "Sub", mag, np.linspace(3, 0.1, 257), name="input_mean"), np.linspace(0.3, 4, 257),
           name="input_scale")
    h = g.linear(h, "fc1", 257, 256, bias=False)
    h = g.node("Tanh", [h], name="tanh")
    h = g.node("Relu", [g.linear(h, "fc2", 256, 256)], name="relu")
    mask = g.node("Relu", [g.linear(h, "fc3", 256, 257)], name="mask")
    g.output(op(g, "Mul", re, mask, name="re_mask"), op(g, "Mul", im, mask, name="im_mask"))


@model("nemo_preemphasis_mel_per_feature_normalised", opset=16,
       pins=["head", "tail", "previous", "scaled", "emphasised", "joined", "framed", "stft_conv", "parts", "*_sq",
             "power", "mel_mm", "guard", "log", "mean", "centred", "var", "sq_dev", "std", "std_eps", "normalised"])
def _(g):
    """NeMo's AudioToMelSpectrogramPreprocessor in front of a strided convolution."""
    x = g.input("audio", ["batch", "samples"], speech(g, 2, 16000, level=0.03))
    head = span(g, x, 0, 1, 1, "head")
    tail = span(g, x, 1, 2**31, 1, "tail")
    prev = op(g, "Mul", span(g, x, 0, -1, 1, "previous"), 0.97, name="scaled")
    y = g.node("Concat", [head, op(g, "Sub", tail, prev, name="emphasised")], name="joined", axis=1)
    y = unsqueeze(g, y, [1], "framed")
    spec = g.node("Conv", [y, g.const(fourier_filters(400, 201), "stft_w")], name="stft_conv", strides=[160])
    re, im = g.node("Split", [spec], name="parts", outputs=2, axis=1)
    power = op(g, "Add", op(g, "Pow", re, 2.0, name="re_sq"), op(g, "Pow", im, 2.0, name="im_sq"), name="power")
    mel = g.node("MatMul", [g.const(mel_matrix(201, 80).T, "mel_fb"), power], name="mel_mm")
    log = g.node("Log", [op(g, "Add", mel, 2.0**-24, name="guard")], name="log")
    d = op(g, "Sub", log, reduce(g, "ReduceMean", log, [2], "mean"), name="centred")
    var = reduce(g, "ReduceMean", op(g, "Mul", d, d, name="sq_dev"), [2], "var")
    std = op(g, "Add", g.node("Sqrt", [var], name="std"), 1e-5, name="std_eps")
    f = op(g, "Div", d, std, name="normalised")
    h = g.node("Relu", [g.conv(f, "sub1", 80, 128, 3, dims=1, strides=[2], pads=[1, 1])], name="relu1")
    g.output(g.conv(h, "sub2", 128, 128, 3, dims=1, strides=[2], pads=[1, 1]))


@model("convtasnet_separator_global_layer_norm", opset=15,
       pins=["gln_*"])
def _(g):
    x = g.input("mixture", [1, 1, 8000], speech(g, 1, 8000, 8000, 0.02)[:, None])
    w = g.conv(x, "encoder", 1, 128, 16, dims=1, strides=[8], bias=False)
    w = g.node("Relu", [w], name="encoder_relu")
    mean = reduce(g, "ReduceMean", w, [1, 2], "gln_mean")
    d = op(g, "Sub", w, mean, name="gln_sub")
    var = reduce(g, "ReduceMean", op(g, "Pow", d, 2.0, name="gln_pow"), [1, 2], "gln_var")
    n = op(g, "Div", d, op(g, "Pow", op(g, "Add", var, 1e-8, name="gln_eps"), 0.5, name="gln_root"), name="gln_div")
    n = op(g, "Add", op(g, "Mul", n, 1 + g.normal(1, 128, 1, scale=0.1), name="gamma"), g.normal(1, 128, 1, scale=0.1),
           name="beta")
    h = g.conv(n, "bottleneck", 128, 64, 1, dims=1)
    u = g.node("PRelu", [g.conv(h, "in", 64, 128, 1, dims=1), g.const(np.full((1, 1), 0.25), "slope")], name="prelu")
    u = g.node("Conv", [u, g.weight("dw", 128, 1, 3)], name="depthwise", group=128, dilations=[2], pads=[2, 2])
    h = op(g, "Add", h, g.conv(u, "res", 128, 64, 1, dims=1), name="residual")
    masks = g.node("Sigmoid", [g.conv(h, "mask", 64, 256, 1, dims=1)], name="masks")
    masks = reshape(g, masks, [0, 2, 128, -1], "speakers")
    y = op(g, "Mul", unsqueeze(g, w, [1], "w_u"), masks, name="masked")
    y = reshape(g, y, [-1, 128, 999], "flat")
    g.output(g.node("ConvTranspose", [y, g.weight("decoder_w", 128, 1, 16, scale=0.1)], name="decoder", strides=[8]))


@model("mvdr_souden_beamformer_neural_masks", opset=18,
       pins=["log_*", "sq_*", "cov_*", "det*", "inv_*", "g*_*", "trace*", "w*_*", "beam_*"])
def _(g):
    """Two microphones: covariances weighted by masks, their closed inverse, and the filter of Souden."""
    f, t = 129, 120
    tilt = (6 / (1 + np.arange(f) / 4)).astype(np.float32)[:, None]
    s = [g.normal(f, t) * tilt for _ in range(2)]
    re = np.stack([s[0], 0.8 * s[0] + 0.5 * s[1] + 0.05 * g.normal(f, t)])
    im = np.stack([s[1], 0.8 * s[1] - 0.5 * s[0] + 0.05 * g.normal(f, t)])
    re, im = g.input("re", [2, f, "frames"], re), g.input("im", [2, f, "frames"], im)
    r = [reshape(g, span(g, re, i, i + 1, 0, f"re{i}"), [f, -1], f"re{i}_flat") for i in range(2)]
    m = [reshape(g, span(g, im, i, i + 1, 0, f"im{i}"), [f, -1], f"im{i}_flat") for i in range(2)]
    pw = op(g, "Add", op(g, "Mul", r[0], r[0], name="sq_re"), op(g, "Mul", m[0], m[0], name="sq_im"), name="sq_sum")
    feat = g.node("Log", [op(g, "Add", pw, 1e-6, name="log_eps")], name="log_power")
    h = mlp(g, g.node("Transpose", [feat], name="frames_first", perm=[1, 0]), "mask", [f, 256, 256, f])
    speech_mask = g.node("Transpose", [g.node("Sigmoid", [h], name="mask_sig")], name="mask_s", perm=[1, 0])
    noise_mask = op(g, "Sub", 1.0, speech_mask, name="mask_n")

    def cov(mask, tag):
        def term(a, b, name):
            p = op(g, "Mul", op(g, "Mul", a, b, name=f"cov_{tag}_{name}_p"), mask, name=f"cov_{tag}_{name}_m")
            return p
        def total(p, name):
            return reduce(g, "ReduceSum", p, [1], f"cov_{tag}_{name}")
        a = total(op(g, "Add", term(r[0], r[0], "rr0"), term(m[0], m[0], "ii0"), name=f"cov_{tag}_p0"), "a")
        d = total(op(g, "Add", term(r[1], r[1], "rr1"), term(m[1], m[1], "ii1"), name=f"cov_{tag}_p1"), "d")
        br = total(op(g, "Add", term(r[0], r[1], "rr"), term(m[0], m[1], "ii"), name=f"cov_{tag}_pr"), "br")
        bi = total(op(g, "Sub", term(m[0], r[1], "ir"), term(r[0], m[1], "ri"), name=f"cov_{tag}_pi"), "bi")
        return a, d, br, bi

    sa, sd, sr, si = cov(speech_mask, "s")
    na, nd, nr, ni = cov(noise_mask, "n")
    na, nd = op(g, "Add", na, 1e-3, name="cov_load_a"), op(g, "Add", nd, 1e-3, name="cov_load_d")
    b2 = op(g, "Add", op(g, "Mul", nr, nr, name="det_r"), op(g, "Mul", ni, ni, name="det_i"), name="det_b")
    det = op(g, "Sub", op(g, "Mul", na, nd, name="det_ad"), b2, name="det")
    # first column of inv(N)·S, unscaled, and the trace
    def mul(a, b, name):
        return op(g, "Mul", a, b, name=name)
    g0r = op(g, "Sub", mul(nd, sa, "g0_da"), op(g, "Add", mul(nr, sr, "g0_rr"), mul(ni, si, "g0_ii"), name="g0_bb"),
             name="g0_re")
    g0i = op(g, "Sub", mul(nr, si, "g0_ri"), mul(ni, sr, "g0_ir"), name="g0_im")
    g1r = op(g, "Sub", mul(na, sr, "g1_ar"), mul(nr, sa, "g1_ra"), name="g1_re")
    g1i = op(g, "Sub", mul(ni, sa, "g1_ia"), mul(na, si, "g1_ai"), name="g1_im")
    g11 = op(g, "Sub", mul(na, sd, "g2_ad"), op(g, "Add", mul(nr, sr, "g2_rr"), mul(ni, si, "g2_ii"), name="g2_bb"),
             name="g2_re")
    scale = g.node("Reciprocal", [op(g, "Add", det, 1e-8, name="det_eps")], name="inv_det")
    tr = op(g, "Mul", op(g, "Add", g0r, g11, name="trace_sum"), scale, name="trace")
    w = [op(g, "Div", mul(x, scale, f"w{i}_scaled"), op(g, "Add", tr, 1e-6, name=f"w{i}_trace"), name=f"w{i}_out")
         for i, x in enumerate((g0r, g0i, g1r, g1i))]
    out_r = op(g, "Add", op(g, "Add", mul(w[0], r[0], "beam_a"), mul(w[1], m[0], "beam_b"), name="beam_ab"),
               op(g, "Add", mul(w[2], r[1], "beam_c"), mul(w[3], m[1], "beam_d"), name="beam_cd"), name="beam_re")
    g.output(out_r)


@model("bigvgan_snake_upsampling_block", opset=17, pins=["*_angle", "*_sin", "*_sin2", "*_amount"])
def _(g):
    """x + sin²(αx)/α, with α per channel, from 1 to 12, as trained vocoders have it."""
    mel = g.input("mel", [1, 80, "frames"], g.normal(1, 80, 40, scale=2.0) - 4)
    h = g.conv(mel, "pre", 80, 128, 7, dims=1, pads=[3, 3])

    def snake(h, c, tag):
        alpha = np.exp(g.uniform(0, 2.5, 1, c, 1))
        a = op(g, "Mul", h, alpha, name=f"{tag}_angle")
        s = op(g, "Pow", g.node("Sin", [a], name=f"{tag}_sin"), 2.0, name=f"{tag}_sin2")
        return op(g, "Add", h, op(g, "Mul", s, 1 / (alpha + 1e-9), name=f"{tag}_amount"), name=f"{tag}_add")

    h = snake(h, 128, "s0")
    h = g.node("ConvTranspose", [h, g.weight("up_w", 128, 64, 8, scale=0.06)], name="up", strides=[4], pads=[2, 2])
    r = g.conv(snake(h, 64, "s1"), "r1", 64, 64, 3, dims=1, pads=[1, 1])
    r = g.conv(snake(r, 64, "s2"), "r2", 64, 64, 3, dims=1, dilations=[3], pads=[3, 3])
    h = op(g, "Add", h, r, name="residual")
    g.output(g.node("Tanh", [g.conv(h, "post", 64, 1, 7, dims=1, pads=[3, 3])], name="wave"))


@model("rnnt_joint_broadcast_add_log_softmax", opset=13, pins=["log_softmax"])
def _(g):
    enc = g.input("encoder", ["batch", "t", 256], g.normal(2, 30, 256))
    tokens = g.input("tokens", ["batch", "u"], g.rng.integers(0, 512, (2, 8)))
    pred = g.node("Gather", [g.const(g.normal(512, 256), "embedding"), tokens], name="embed")
    e = g.node("Unsqueeze", [g.linear(enc, "enc", 256, 320), g.ints(2)], name="enc_u")
    p = g.node("Unsqueeze", [g.linear(pred, "pred", 256, 320), g.ints(1)], name="pred_u")
    h = g.node("Tanh", [op(g, "Add", e, p, name="join")], name="tanh")
    logits = g.linear(h, "vocab", 320, 513, scale=0.2)
    g.output(g.node("LogSoftmax", [logits], name="log_softmax", axis=-1))


@model("crepe_pitch_weighted_cents_to_hz", opset=22,
       pins=["frame_*", "cents_*", "weight_*", "hz*", "local_*"])
def _(g):
    """CREPE: frames of 1024 samples, z-scored; the bins of 20 cents around the best are averaged, and made Hz."""
    frames = speech(g, 1, 1024 * 8).reshape(8, 1024)
    x = g.input("frames", ["n", 1024], frames)
    d = op(g, "Sub", x, reduce(g, "ReduceMean", x, [1], "frame_mean"), name="frame_sub")
    std = g.node("Sqrt", [reduce(g, "ReduceMean", op(g, "Mul", d, d, name="frame_sq"), [1], "frame_var")],
                 name="frame_std")
    d = op(g, "Div", d, op(g, "Max", std, 1e-10, name="frame_floor"), name="frame_norm")
    h = unsqueeze(g, d, [1], "as_conv")
    h = g.node("Relu", [g.conv(h, "c1", 1, 64, 64, dims=1, strides=[4])], name="r1")
    h = g.node("MaxPool", [h], name="p1", kernel_shape=[4], strides=[4])
    h = g.node("Relu", [g.conv(h, "c2", 64, 64, 16, dims=1, strides=[2])], name="r2")
    h = g.node("Flatten", [h], name="flat", axis=1)
    bump = 7 * np.exp(-(((np.arange(360) - 141) / 6) ** 2)) - 5
    l = op(g, "Add", g.linear(h, "dense", 64 * 23, 360), bump, name="prior")
    p = g.node("Sigmoid", [l], name="salience")
    best = g.node("ArgMax", [p], name="best", axis=1, keepdims=1)
    bins = np.arange(360)
    off = g.node("Sub", [g.const(bins, dtype=np.int64), best], name="offset")
    near = g.node("LessOrEqual", [g.node("Abs", [off], name="distance"), g.ints(4)], name="near")
    p = g.node("Where", [near, p, g.const(0.0)], name="local_salience")
    cents = op(g, "Mul", p, 20.0 * bins + 1997.3794084376191, name="cents_weighted")
    total = reduce(g, "ReduceSum", cents, [1], "cents_sum")
    c = op(g, "Div", total, reduce(g, "ReduceSum", p, [1], "weight_sum"), name="cents_mean")
    hz = op(g, "Mul", op(g, "Pow", 2.0, op(g, "Div", c, 1200.0, name="hz_octaves"), name="hz_pow"), 10.0, name="hz")
    g.output(hz)


@model("yin_cumulative_mean_difference_pitch_features", opset=19, pins=["yin_*"])
def _(g):
    """d(τ) = e(0) + e(τ) - 2·r(τ), divided by its running mean: most of d cancels at the period."""
    n, lags = 512, 256
    x = speech(g, 1, n * 12).reshape(12, n)
    x = g.input("frames", ["frames", n], x)
    index = (np.arange(lags)[:, None] + np.arange(n - lags)[None]).astype(np.int64)
    shifted = g.node("Gather", [x, g.const(index, dtype=np.int64)], name="yin_unfold", axis=1)
    base = unsqueeze(g, span(g, x, 0, n - lags, 1, "yin_base"), [2], "yin_column")
    r = g.node("Squeeze", [g.node("MatMul", [shifted, base], name="yin_acf"), g.ints(2)], name="yin_flat")
    e = reduce(g, "ReduceSum", op(g, "Mul", shifted, shifted, name="yin_sq"), [2], "yin_energy", keepdims=0)
    e0 = span(g, e, 0, 1, 1, "yin_e0")
    d = op(g, "Sub", op(g, "Add", e, e0, name="yin_sum"), op(g, "Mul", r, 2.0, name="yin_twice"), name="yin_diff")
    run = g.node("CumSum", [d, g.const(1, dtype=np.int64)], name="yin_cumsum")
    cm = op(g, "Div", op(g, "Mul", d, np.arange(lags, dtype=np.float32), name="yin_lag"),
            op(g, "Add", run, 1e-7, name="yin_eps"), name="yin_cmnd")
    h = g.node("Relu", [g.linear(cm, "fc1", lags, 256)], name="relu1")
    h = g.node("Relu", [g.linear(h, "fc2", 256, 256)], name="relu2")
    g.output(g.node("Sigmoid", [g.linear(h, "fc3", 256, 64)], name="voiced"))


@model("lpcnet_mulaw_expansion_and_linear_prediction", opset=14,
       pins=["u_*", "linear_*", "lpc_*", "mu_*"])
def _(g):
    """Past samples in mu-law are expanded to ±32768 and predicted by 16 LPC coefficients, then coded again."""
    u = np.clip(128 + np.cumsum(g.normal(1, 176, scale=6.0), axis=1), 10, 245).round()
    x = g.input("mulaw", [1, "samples"], u.astype(np.float32))
    feat = g.input("features", [1, 160, 20], g.normal(1, 160, 20))
    lpc = np.array([-2.2, 1.9, -0.8, 0.2, -.15, .1, 0, .05, -.03, .02, 0, 0, .01, 0, 0, 0], np.float32)
    lpc = g.input("lpc", [1, 160, 16], lpc + g.normal(1, 160, 16, scale=0.01))
    s = op(g, "Sub", x, 128.0, name="u_centre")
    mag = g.node("Exp", [op(g, "Mul", g.node("Abs", [s], name="u_abs"), np.log(256) / 128, name="u_log")], name="u_exp")
    lin = op(g, "Mul", g.node("Sign", [s], name="u_sign"),
             op(g, "Mul", op(g, "Sub", mag, 1.0, name="linear_m1"), 32768 / 255, name="linear_mag"), name="linear_pcm")
    index = np.arange(160)[:, None] + 15 - np.arange(16)[None]
    past = g.node("Gather", [lin, g.const(index, dtype=np.int64)], name="lpc_past", axis=1)
    pred = g.node("Neg", [g.node("ReduceSum", [op(g, "Mul", past, lpc, name="lpc_mul"), g.ints(2)], name="lpc_sum",
                                keepdims=0)], name="lpc_pred")
    pred = op(g, "Clip", pred, -32767.0, 32767.0, name="lpc_clip")
    a = op(g, "Add", op(g, "Mul", g.node("Abs", [pred], name="mu_abs"), 255 / 32768, name="mu_scale"), 1.0,
           name="mu_plus1")
    mu = op(g, "Mul", op(g, "Mul", g.node("Log", [a], name="mu_log"), 128 / np.log(256), name="mu_128"),
            g.node("Sign", [pred], name="mu_sign"), name="mu_code")
    mu = op(g, "Mul", mu, 1 / 128, name="code_unit")
    h = g.node("Concat", [feat, g.node("Unsqueeze", [mu, g.ints(2)], name="code_u")], name="cat", axis=2)
    h = g.node("Tanh", [g.linear(h, "dense1", 21, 256)], name="tanh1")
    h = g.node("Transpose", [h], name="time_first", perm=[1, 0, 2])
    h = g.node("GRU", [h, g.weight("gru_w", 1, 384, 256, scale=0.06), g.weight("gru_r", 1, 384, 128, scale=0.08)],
               name="gru", outputs=1, hidden_size=128, linear_before_reset=1)
    h = reshape(g, h, [160, 128], "gru_flat")
    g.output(g.node("Softmax", [g.linear(h, "dual", 128, 256, scale=0.2)], name="pdf", axis=-1))


@model("ecapa_attentive_statistics_pooling", opset=17,
       pins=["attention", "weighted", "asp_mean", "asp_sq", "asp_sq_w", "asp_sq_mean", "asp_mean_sq", "asp_var",
             "asp_floor", "asp_std"])
def _(g):
    """std = sqrt(clamp(E[x²] - mean², 1e-9)): channels of large mean and small deviation cancel."""
    x = g.input("fbank", ["b", 80, "t"], g.normal(2, 80, 200))
    h = g.node("Relu", [g.conv(x, "c1", 80, 192, 5, dims=1, pads=[2, 2])], name="relu1")
    h = g.conv(h, "c2", 192, 256, 1, dims=1)
    h = op(g, "Add", h, g.uniform(0, 6, 1, 256, 1), name="bn_shift")
    a = g.node("Tanh", [g.conv(h, "att1", 256, 128, 1, dims=1)], name="att_tanh")
    a = g.node("Softmax", [g.conv(a, "att2", 128, 256, 1, dims=1)], name="attention", axis=2)
    mean = reduce(g, "ReduceSum", op(g, "Mul", a, h, name="weighted"), [2], "asp_mean", keepdims=0)
    sq = op(g, "Mul", a, op(g, "Mul", h, h, name="asp_sq"), name="asp_sq_w")
    var = op(g, "Sub", reduce(g, "ReduceSum", sq, [2], "asp_sq_mean", keepdims=0),
             op(g, "Mul", mean, mean, name="asp_mean_sq"), name="asp_var")
    std = g.node("Sqrt", [op(g, "Clip", var, 1e-9, name="asp_floor")], name="asp_std")
    pooled = g.node("Concat", [mean, std], name="pooled", axis=1)
    e = g.linear(pooled, "fc", 512, 192)
    g.output(op(g, "Div", e, g.node("ReduceL2", [e], name="norm", axes=[1], keepdims=1), name="embedding"))


@model("conformer_ctc_kaldi_cmvn_front_end", opset=13, pins=["log_probs"], pins_bf16=["cmvn_shift", "log_probs"])
def _(g):
    """Log-mel energies of int16 samples (5 to 20), shifted and scaled by the global CMVN, then a convolution module."""
    mean = np.linspace(10, 15, 80, dtype=np.float32)
    x = g.input("feats", ["b", "t", 80], mean + g.normal(1, 160, 80, scale=3.0))
    h = op(g, "Mul", op(g, "Add", x, -mean, name="cmvn_shift"), np.full(80, 1 / 3.0), name="cmvn_rescale")
    h = g.linear(h, "in", 80, 144)
    r = g.node("Transpose", [h], name="channels_first", perm=[0, 2, 1])
    r = g.conv(r, "pw1", 144, 288, 1, dims=1)
    a, b = g.node("Split", [r], name="glu", outputs=2, axis=1)
    r = g.node("Mul", [a, g.node("Sigmoid", [b], name="gate")], name="gated")
    r = g.node("Conv", [r, g.weight("dw", 144, 1, 31)], name="depthwise", group=144, pads=[15, 15])
    r = g.node("BatchNormalization", [r, g.const(np.ones(144)), g.const(np.zeros(144)),
                                      g.const(g.normal(144, scale=0.1)), g.const(g.uniform(0.02, 0.3, 144))], name="bn")
    r = g.node("Mul", [r, g.node("Sigmoid", [r], name="swish_s")], name="swish")
    r = g.conv(r, "pw2", 144, 144, 1, dims=1)
    h = op(g, "Add", h, g.node("Transpose", [r], name="back", perm=[0, 2, 1]), name="residual")
    g.output(g.node("LogSoftmax", [g.linear(h, "ctc", 144, 500, scale=0.15)], name="log_probs", axis=-1))
