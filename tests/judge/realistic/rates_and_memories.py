"""Logarithms and exponentials near 1 and 0, long recurrences, and iterations of matrices."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, mlp, op, reduce, reshape, span, split, unsqueeze


# Logarithms and exponentials.

@model("equity_log_returns_tcn", pins=["price_*", "price_ratio", "log_ret"], opset=18)
def equity_log_returns_tcn(g):
    """Equity forecaster: log of today's over yesterday's prices (moves of 0.4 %), standardised, a temporal CNN."""
    p = g.uniform(40, 400, 4, 1, 24) * np.exp(np.cumsum(g.normal(4, 65, 24, scale=0.004), 1))
    p = g.input("prices", [4, 65, 24], p.astype(np.float32))
    new, old = span(g, p, 1, 65, 1, "price_new"), span(g, p, 0, 64, 1, "price_old")
    r = g.node("Log", [g.node("Div", [new, old], name="price_ratio")], name="log_ret")
    z = op(g, "Mul", r, 1 / 0.004, name="standardise")
    z = g.node("Transpose", [z], name="to_channels", perm=[0, 2, 1])
    z = g.node("Relu", [g.conv(z, "tcn1", 24, 48, 3, dims=1, pads=[2, 0])], name="relu1")
    z = g.node("Relu", [g.conv(z, "tcn2", 48, 48, 3, dims=1, pads=[4, 0], dilations=[2])], name="relu2")
    last = g.node("Gather", [z, g.const(63, dtype=np.int64)], name="last", axis=2)
    g.output(g.linear(last, "head", 48, 24))


@model("loan_default_monthly_hazard_curve", pins=["stay", "stay_log", "stay_cum", "survival", "pd_curve"],
       pins_bf16=["base_rate", "stay", "stay_log", "stay_cum", "survival", "pd_curve"], opset=17)
def loan_default_monthly_hazard_curve(g):
    """Lifetime default curve: monthly hazards of 0.2 % by a sigmoid, survival by CumSum of logs, 1 - S, expected loss."""
    x = g.input("loan_months", ["loans", 24, 40], g.normal(32, 24, 40))
    z = op(g, "Add", mlp(g, x, "hazard", [40, 64, 1]), -6.2, name="base_rate")
    h = g.node("Sigmoid", [z], name="hazard_sig")
    q = g.node("Log", [op(g, "Sub", 1.0, h, name="stay")], name="stay_log")
    s = g.node("CumSum", [q, g.const(1, dtype=np.int64)], name="stay_cum")
    pd = op(g, "Sub", 1.0, g.node("Exp", [s], name="survival"), name="pd_curve")
    ead = g.input("exposure_k", ["loans", 1, 1], g.uniform(5, 300, 32, 1, 1))
    loss = g.node("Mul", [reduce(g, "ReduceMean", pd, [1], "pd_mean"), ead], name="loss")
    g.output(pd, op(g, "Mul", loss, 0.45, name="lgd"))


@model("mortgage_annuity_from_monthly_rate", pins=["growth*", "annuity_den"], opset=15)
def mortgage_annuity_from_monthly_rate(g):
    """Mortgage pricing: an MLP's annual rate, monthly payment by r / (1 - (1 + r)^-n) for 120 to 360 months."""
    x = g.input("applicant", [64, 32], g.normal(64, 32))
    n = g.input("months", [64, 1], g.rng.choice([120, 180, 240, 300, 360], (64, 1)).astype(np.float32))
    loan = g.input("principal_k", [64, 1], g.uniform(60, 900, 64, 1))
    spread = op(g, "Mul", g.node("Sigmoid", [mlp(g, x, "spread", [32, 64, 1])], name="spread_sig"), 0.03, name="spread_mul")
    r = op(g, "Div", op(g, "Add", spread, 0.021, name="annual"), 12.0, name="monthly")
    lg = g.node("Log", [op(g, "Add", r, 1.0, name="growth")], name="growth_log")
    back = g.node("Exp", [g.node("Neg", [g.node("Mul", [lg, n], name="growth_n")], name="growth_neg")], name="growth_pow")
    factor = g.node("Div", [r, op(g, "Sub", 1.0, back, name="annuity_den")], name="factor")
    g.output(g.node("Mul", [factor, loan], name="payment"))


@model("event_camera_zoh_discretisation", pins=["zoh_exp", "zoh_minus_one"], pins_bf16=["dt_bias", "zoh_exp", "zoh_minus_one"],
       opset=21)
def event_camera_zoh_discretisation(g):
    """Event-camera state space: zero-order hold (exp(dt·A) - 1)/A·B·x with dt of a millisecond from Softplus."""
    x = g.input("events", [2, 50, 32], g.normal(2, 50, 32))
    dt = g.node("Softplus", [op(g, "Add", g.linear(x, "dt", 32, 32), -6.8, name="dt_bias")], name="dt_softplus")
    a = g.const(-np.arange(1, 17) / 4, "a_diag")
    da = g.node("Mul", [unsqueeze(g, dt, [3], "dt_dims"), a], name="dt_a")
    e = op(g, "Sub", g.node("Exp", [da], name="zoh_exp"), 1.0, name="zoh_minus_one")
    bbar = g.node("Div", [e, a], name="b_bar")
    b = unsqueeze(g, g.linear(x, "b_proj", 32, 16), [2], "b_dims")
    c = unsqueeze(g, g.linear(x, "c_proj", 32, 16), [2], "c_dims")
    bx = g.node("Mul", [g.node("Mul", [bbar, b], name="b_in"), unsqueeze(g, x, [3], "x_dims")], name="b_x")
    y = reduce(g, "ReduceSum", g.node("Mul", [bx, c], name="read"), [3], "read_sum", 0)
    g.output(g.linear(op(g, "Mul", y, 200.0, name="gain"), "out", 32, 32))


@model("noisy_or_diagnosis_small_links", pins=["fail*", "all_fail*", "disease_prob"], opset=13)
def noisy_or_diagnosis_small_links(g):
    """QMR-like diagnosis: noisy-or 1 - exp(findings · log(1 - p)) with link probabilities of 0.0003, a triage head."""
    f = g.input("findings", [48, 200], (g.rng.random((48, 200)) < 0.25).astype(np.float32))
    p = g.node("Sigmoid", [g.const(g.normal(200, 40) - 8.0, "link_logits")], name="link_prob")
    q = g.node("Log", [op(g, "Sub", 1.0, p, name="fail")], name="fail_log")
    s = op(g, "Sub", g.node("MatMul", [f, q], name="all_fail_mm"), 0.004, name="all_fail_leak")
    prob = op(g, "Sub", 1.0, g.node("Exp", [s], name="all_fail_exp"), name="disease_prob")
    g.output(prob)
    g.output(mlp(g, op(g, "Mul", prob, 20.0, name="to_unit"), "triage", [40, 64, 6]))


@model("trace_gas_absorbance_retrieval", pins=["band_*", "valid_ref/then_branch/*", "valid_ref/else_branch/*"], opset=13)
def trace_gas_absorbance_retrieval(g):
    """Laser spectrometer: log I0 - log I of detector counts (0.3 % of light lost), a line filter, concentrations by Gemm."""
    i0 = 3000 + 400 * np.sin(np.linspace(0, 3, 512)) + g.normal(16, 1, 512, scale=20)
    a = 0.003 * np.abs(g.normal(16, 5)) @ np.exp(-(np.arange(512) - g.uniform(50, 460, 5, 1)) ** 2 / 200)
    i0 = g.input("reference", [16, 1, 512], i0.astype(np.float32))
    i = g.input("measured", [16, 1, 512], (g.values["reference"] * np.exp(-a[:, None])).astype(np.float32))
    i0, i = span(g, i0, 16, 496, 2, "band_ref"), span(g, i, 16, 496, 2, "band_meas")
    good = op(g, "Greater", g.node("ReduceMean", [i0], name="ref_level", keepdims=0), 100.0, name="ref_lit")
    live, kept = Body(g, "live_reference"), Body(g, "stored_reference")
    d1 = live.node("Sub", [live.node("Log", [i0], name="ref_log"), live.node("Log", [i], name="meas_log")], name="absorb")
    d2 = kept.node("Sub", [kept.const(np.full((1, 1, 480), 8.0), "stored_log"), kept.node("Log", [i], name="kept_log")], name="kept_absorb")
    d = g.node("If", [good], name="valid_ref", then_branch=live.graph((d1, [16, 1, 480])), else_branch=kept.graph((d2, [16, 1, 480])))
    z = g.conv(op(g, "Mul", d, 300.0, name="gain"), "lines", 1, 16, 9, dims=1, strides=[4])
    z = g.node("Flatten", [g.node("Relu", [z], name="relu")], name="flat", axis=1)
    g.output(g.node("Gemm", [z, g.weight("gemm_w", 1888, 5), g.const(np.zeros(5), "gemm_b")], name="gases"))


@model("single_cell_log1p_counts_encoder", pins=[], opset=20)
def single_cell_log1p_counts_encoder(g):
    """Single-cell encoder: log(1 + c) of integer gene counts from 0 to 300, written with Add and Log, a small encoder."""
    c = g.input("counts", ["cells", 200], np.minimum(g.rng.negative_binomial(1, 0.05, (24, 200)), 300).astype(np.float32))
    z = g.node("Log", [op(g, "Add", c, 1.0, name="plus_one")], name="log_counts")
    z = op(g, "Mul", op(g, "Sub", z, 2.3, name="shift"), 0.8, name="scale")
    z = g.node("Gelu", [g.linear(z, "enc1", 200, 64)], name="gelu")
    g.output(g.linear(z, "latent", 64, 16))


@model("canopy_light_response_saturation", pins=[], opset=20)
def canopy_light_response_saturation(g):
    """Crop model: 1 - exp(-a·I) at light of order one (0.4 to 3), times a capacity that an MLP predicts, leaf layers summed."""
    x = g.input("weather", [40, 24], g.normal(40, 24))
    light = g.input("light", [40, 12], g.uniform(0.6, 2.5, 40, 12))
    a = op(g, "Add", g.node("Sigmoid", [g.linear(x, "slope", 24, 1)], name="slope_sig"), 0.6, name="slope_min")
    dark = g.node("Exp", [g.node("Neg", [g.node("Mul", [light, a], name="dose")], name="dose_neg")], name="dark")
    sat = op(g, "Sub", 1.0, dark, name="saturation")
    cap = g.node("Softplus", [g.linear(x, "capacity", 24, 12)], name="capacity_sp")
    g.output(reduce(g, "ReduceSum", g.node("Mul", [sat, cap], name="leaf"), [1], "canopy", 0))


# Recurrences.

@model("gesture_leaky_membrane_unrolled", pins=["start", "leak_*", "membrane_*"], opset=17)
def gesture_leaky_membrane_unrolled(g):
    """EMG gesture readout: 48 unrolled steps of a leaky membrane, v = 0.9985·v + 0.0015·drive, read out linearly."""
    x = g.input("emg", [48, 4, 32], g.normal(48, 4, 32) + 0.4)
    drive = g.node("Relu", [g.linear(x, "synapse", 32, 48)], name="spikes")
    v = g.input("membrane0", [4, 48], g.uniform(0.5, 2.5, 4, 48))
    v = g.node("Identity", [v], name="start")
    for t in range(48):
        i = g.node("Gather", [drive, g.const(t, dtype=np.int64)], name=f"drive_{t}", axis=0)
        i = op(g, "Mul", i, 0.0015, name=f"current_{t}")
        v = g.node("Add", [op(g, "Mul", v, 0.9985, name=f"leak_{t}"), i], name=f"membrane_{t}")
    g.output(g.linear(v, "readout", 48, 12))


@model("ppo_reward_to_go_reverse_scan", pins=["returns/body/discount", "returns/body/return_add", "advantage"])
def ppo_reward_to_go_reverse_scan(g):
    """PPO targets: learned rewards of 500 steps discounted by 0.997 in a reverse Scan, minus the critic's values."""
    x = g.input("obs", [500, 8, 32], g.normal(500, 8, 32))
    r = op(g, "Mul", mlp(g, x, "reward", [32, 64, 1]), 0.3, name="reward_scale")
    r = op(g, "Add", r, 1.0, name="alive_bonus")
    v = (1 - 0.997 ** (500 - np.arange(500.0)))[:, None, None] / 0.003 + g.normal(500, 8, 1, scale=12)
    v = g.input("critic", [500, 8, 1], v.astype(np.float32))
    b = Body(g, "discount_step")
    ret, rt = b.entry("ret", [8, 1]), b.entry("rt", [8, 1])
    new = b.node("Add", [op(b, "Mul", ret, 0.997, name="discount"), rt], name="return_add")
    graph = b.graph((new, [8, 1]), (b.node("Identity", [new], name="emit"), [8, 1]))
    _, rets = g.node("Scan", [g.const(np.zeros((8, 1))), r], name="returns", outputs=2, body=graph, num_scan_inputs=1,
                     scan_input_directions=[1], scan_output_directions=[1])
    adv = g.node("Sub", [rets, v], name="advantage")
    g.output(op(g, "Div", adv, 10.0, name="advantage_scale"))


@model("lru_complex_rotation_scan_ecg",
       pins=["lambda_*", "scan/body/*_by_*", "scan/body/re_new", "scan/body/im_new", "scan/body/re_rot",
             "scan/body/im_rot"], opset=20)
def lru_complex_rotation_scan_ecg(g):
    """ECG classifier: linear recurrent unit with complex poles of modulus 0.995 to 0.9998, exp(-exp(nu)) in the graph."""
    x = g.input("ecg", [300, 2, 16], g.normal(300, 2, 16) + 0.5)
    mod = g.node("Exp", [g.node("Neg", [g.const(np.geomspace(2e-4, 5e-3, 48), "nu")], name="lambda_neg")], name="lambda_mod")
    th = g.const(np.geomspace(0.001, 0.3, 48), "theta")
    lr = g.node("Mul", [mod, g.node("Cos", [th], name="lambda_cos")], name="lambda_re")
    li = g.node("Mul", [mod, g.node("Sin", [th], name="lambda_sin")], name="lambda_im")
    u = split(g, g.linear(x, "b_in", 16, 96, bias=False), 2, 2, "b_parts")
    b = Body(g, "lru_step")
    hr, hi, ur, ui = (b.entry(n, [2, 48]) for n in ("hr", "hi", "ur", "ui"))
    re = b.node("Sub", [b.node("Mul", [hr, lr], name="re_by_re"), b.node("Mul", [hi, li], name="im_by_im")], name="re_rot")
    im = b.node("Add", [b.node("Mul", [hr, li], name="re_by_im"), b.node("Mul", [hi, lr], name="im_by_re")], name="im_rot")
    re, im = b.node("Add", [re, ur], name="re_new"), b.node("Add", [im, ui], name="im_new")
    graph = b.graph((re, [2, 48]), (im, [2, 48]), (b.node("Identity", [re], name="emit"), [2, 48]))
    zero = g.const(np.zeros((2, 48)))
    y = g.node("Scan", [zero, zero, *u], name="scan", outputs=3, body=graph, num_scan_inputs=2)[2]
    y = op(g, "Mul", y, 0.05, name="gain")
    g.output(g.linear(y, "classes", 48, 9))


@model("radar_alpha_beta_range_loop",
       pins=["corrected", "start*", "track/body/scan_z", "track/body/ab_*", "r_shape", "v_shape"], opset=18)
def radar_alpha_beta_range_loop(g):
    """Radar tracker: alpha-beta filter in a Loop over 150 scans of ranges up to 18 km, bias of the echo by an MLP."""
    t = np.arange(150)[:, None, None] * 0.1
    z = g.uniform(2000, 16000, 1, 24, 1) + t * g.uniform(-120, 120, 1, 24, 1) + g.normal(150, 24, 1, scale=3)
    z = g.input("ranges_m", [150, 24, 1], z.astype(np.float32))
    x = g.input("echo", [150, 24, 20], g.normal(150, 24, 20))
    z = g.node("Sub", [z, mlp(g, x, "bias", [20, 32, 1])], name="corrected")
    b = Body(g, "alpha_beta")
    trip = b.entry("trip", [], TensorProto.INT64)
    keep = b.node("Identity", [b.entry("keep", [], TensorProto.BOOL)], name="keep_on")
    r, v = b.entry("r", [24, 1]), b.entry("v", [24, 1])
    zt = b.node("Gather", [z, trip], name="scan_z", axis=0)
    pred = b.node("Add", [r, op(b, "Mul", v, 0.1, name="ab_dt")], name="ab_pred")
    res = b.node("Sub", [zt, pred], name="ab_res")
    r = b.node("Add", [pred, op(b, "Mul", res, 0.12, name="ab_alpha")], name="ab_r")
    v = b.node("Add", [v, op(b, "Mul", res, 0.08, name="ab_beta")], name="ab_v")
    graph = b.graph((keep, [], TensorProto.BOOL), (r, [24, 1]), (v, [24, 1]))
    r0 = g.node("Gather", [z, g.const(0, dtype=np.int64)], name="start", axis=0)
    r, v = g.node("Loop", [g.const(150, dtype=np.int64), g.const(True, dtype=bool), r0, g.const(np.zeros((24, 1)))],
                  name="track", outputs=2, body=graph)
    g.output(reshape(g, r, [24, 1], "r_shape"), reshape(g, v, [24, 1], "v_shape"))


@model("macd_two_averages_unrolled", pins=["bars", "fast_*", "slow_*", "macd"], opset=22)
def macd_two_averages_unrolled(g):
    """Trading signal: fast and slow exponential averages of prices unrolled over 36 bars, their difference, an MLP."""
    p = g.uniform(80, 300, 1, 32) * np.exp(np.cumsum(g.normal(36, 32, scale=0.003), 0))
    p = g.input("closes", [36, 32], p.astype(np.float32))
    bars = split(g, p, 36, 0, "bars")
    fast = slow = bars[0]
    for t in range(1, 36):
        d = g.node("Sub", [bars[t], fast], name=f"fast_d{t}")
        fast = g.node("Add", [fast, op(g, "Mul", d, 2 / 13, name=f"fast_m{t}")], name=f"fast_{t}")
        d = g.node("Sub", [bars[t], slow], name=f"slow_d{t}")
        slow = g.node("Add", [slow, op(g, "Mul", d, 2 / 27, name=f"slow_m{t}")], name=f"slow_{t}")
    m = g.node("Div", [g.node("Sub", [fast, slow], name="macd"), slow], name="relative")
    m = op(g, "Mul", m, 150.0, name="gain")
    g.output(mlp(g, m, "signal", [32, 64, 8], act="Tanh"))


@model("gated_retention_log_decay_parallel", pins=["log_cum", "cum_*", "decay_sub"], opset=21)
def gated_retention_log_decay_parallel(g):
    """Gated retention, parallel form: cumulated log-sigmoid gates over 256 tokens, exp of their differences, masked."""
    x = g.input("tokens", [1, 256, 64], g.normal(1, 256, 64))
    z = op(g, "Add", g.linear(x, "gate", 64, 1), 1.8, name="gate_bias")
    lg = g.node("Neg", [g.node("Softplus", [g.node("Neg", [z], name="gate_neg")], name="gate_sp")], name="log_gate")
    c = g.node("CumSum", [lg, g.const(1, dtype=np.int64)], name="log_cum")
    ct = g.node("Transpose", [c], name="cum_t", perm=[0, 2, 1])
    d = g.node("Sub", [c, ct], name="decay_sub")
    tri = g.const(np.tril(np.ones((256, 256), bool)), "causal", dtype=bool)
    d = g.node("Exp", [g.node("Where", [tri, d, g.const(-1e4)], name="decay_where")], name="decay")
    q, k, v = (g.linear(x, s, 64, 32) for s in ("query", "key", "value"))
    s = g.node("MatMul", [q, g.node("Transpose", [k], name="k_t", perm=[0, 2, 1])], name="scores")
    s = g.node("Mul", [op(g, "Mul", s, 32**-0.5, name="scores_scale"), d], name="scores_decay")
    g.output(g.linear(g.node("MatMul", [s, v], name="retain"), "out", 32, 64))


@model("minimal_gated_unit_keyword_scan", pins=[], opset=21)
def minimal_gated_unit_keyword_scan(g):
    """Keyword spotting: minimal gated unit in a Scan of 24 frames, forget gates of about a half."""
    x = g.input("mfcc", [24, 2, 40], g.normal(24, 2, 40))
    xs = g.linear(x, "input", 40, 96)
    b = Body(g, "mgu_step")
    h, xt = b.entry("h", [2, 48]), b.entry("xt", [2, 96])
    xf, xc = split(b, xt, 2, 1, "parts")
    f = b.node("Sigmoid", [b.node("Add", [xf, b.linear(h, "forget", 48, 48, bias=False, scale=0.06)], name="f_pre")], name="f")
    c = b.node("Tanh", [b.node("Add", [xc, b.linear(h, "cand", 48, 48, bias=False, scale=0.06)], name="c_pre")], name="c")
    new = b.node("Add", [b.node("Mul", [f, h], name="hold"), b.node("Mul", [op(b, "Sub", 1.0, f, name="one_minus_f"), c], name="take")], name="h_new")
    graph = b.graph((new, [2, 48]), (b.node("Identity", [new], name="emit"), [2, 48]))
    _, y = g.node("Scan", [g.const(np.zeros((2, 48))), xs], name="scan", outputs=2, body=graph, num_scan_inputs=1)
    g.output(g.linear(y, "words", 48, 12))


@model("vibration_envelope_short_memory_loop", pins=[], opset=16)
def vibration_envelope_short_memory_loop(g):
    """Bearing monitor: smoothed feature s = 0.7·s + 0.3·x in a Loop of 100 frames, a memory of three frames, a head."""
    x = g.input("bands", [100, 4, 24], g.normal(100, 4, 24))
    feats = g.node("Relu", [g.linear(x, "embed", 24, 32)], name="relu")
    b = Body(g, "smooth")
    trip = b.entry("trip", [], TensorProto.INT64)
    keep = b.node("Identity", [b.entry("keep", [], TensorProto.BOOL)], name="keep_on")
    s = b.entry("s", [4, 32])
    xt = b.node("Gather", [feats, trip], name="frame", axis=0)
    s = b.node("Add", [op(b, "Mul", s, 0.7, name="old"), op(b, "Mul", xt, 0.3, name="new")], name="s_add")
    graph = b.graph((keep, [], TensorProto.BOOL), (s, [4, 32]))
    s = g.node("Loop", [g.const(100, dtype=np.int64), g.const(True, dtype=bool), g.const(np.zeros((4, 32)))],
               name="smooth_loop", body=graph)
    g.output(g.linear(reshape(g, s, [4, 32], "s_shape"), "health", 32, 6))


# Matrix iterations.

@model("rating_migration_expm_by_squaring", pins=["step_one", "square_*"], opset=18)
def rating_migration_expm_by_squaring(g):
    """Rating migration: a generator from macro features, (I + Q·t/1024) squared ten times, default column."""
    x = g.input("macro", [16, 12], g.normal(16, 12))
    z = op(g, "Add", mlp(g, x, "rates", [12, 48, 64]), -3.0, name="rate_bias")
    q = reshape(g, g.node("Softplus", [z], name="rate_sp"), [16, 8, 8], "rate_matrix")
    off = 1 - np.eye(8); off[7] = 0
    q = op(g, "Mul", q, off, name="off_diagonal")
    out = op(g, "Mul", reduce(g, "ReduceSum", q, [2], "leaving"), np.eye(8), name="diagonal")
    q = op(g, "Mul", g.node("Sub", [q, out], name="generator"), 3 / 1024, name="small")
    p = op(g, "Add", q, np.eye(8), name="step_one")
    for i in range(10):
        p = g.node("MatMul", [p, p], name=f"square_{i}")
    g.output(p)
    g.output(g.node("Squeeze", [span(g, p, 7, 8, 2, "default"), g.ints(2)], name="default_squeeze"))


@model("appnp_neumann_product_propagation", pins=["hop_*", "plus_*", "prod_*"], opset=17)
def appnp_neumann_product_propagation(g):
    """Personalised PageRank: (I - 0.98·A)^-1 as (I + M)(I + M²)(I + M⁴)..., on learned features, 48 nodes."""
    x = g.input("nodes", [48, 32], g.normal(48, 32) + 0.3)
    adj = g.input("adjacency", [48, 48], ((g.rng.random((48, 48)) < 0.1) + np.eye(48)).astype(np.float32))
    deg = reduce(g, "ReduceSum", adj, [1], "degree")
    m = op(g, "Mul", g.node("Div", [adj, deg], name="hop_norm"), 0.98, name="hop_0")
    s = op(g, "Add", m, np.eye(48), name="plus_0")
    for i in range(1, 8):
        m = g.node("MatMul", [m, m], name=f"hop_{i}")
        s = g.node("MatMul", [s, op(g, "Add", m, np.eye(48), name=f"plus_{i}")], name=f"prod_{i}")
    h = g.node("Relu", [g.linear(x, "embed", 32, 48)], name="relu")
    y = op(g, "Mul", g.node("MatMul", [s, h], name="propagate"), 0.02, name="teleport")
    g.output(g.linear(y, "classes", 48, 7))


@model("gp_posterior_newton_inverse", pins=["x0", "kx_*", "two_*", "newton_*"], opset=19)
def gp_posterior_newton_inverse(g):
    """Gaussian process layer: the inverse of a 32x32 RBF kernel + 0.03·I by 20 Newton steps X(2I - KX), a readout."""
    t = np.sort(g.uniform(0, 4, 32))
    k = np.exp(-(t[:, None] - t) ** 2 / 0.18) + 0.03 * np.eye(32)
    k = g.input("kernel", [32, 32], k.astype(np.float32))
    x = g.input("targets", [32, 24], g.normal(32, 24))
    y = g.linear(x, "embed", 24, 24)
    n = reduce(g, "ReduceMax", reduce(g, "ReduceSum", g.node("Abs", [k], name="norm_abs"), [1], "norm_rows"), [0], "norm_max")
    X = g.node("Div", [k, g.node("Mul", [n, n], name="norm_sq")], name="x0")
    for i in range(20):
        kx = g.node("MatMul", [k, X], name=f"kx_{i}")
        X = g.node("MatMul", [X, op(g, "Sub", 2 * np.eye(32), kx, name=f"two_{i}")], name=f"newton_{i}")
    a = g.node("MatMul", [X, y], name="alpha")
    g.output(g.linear(a, "readout", 24, 8))


@model("customer_churn_transition_power", pins=["diag_bias", "stay_softmax", "days_*"], opset=14)
def customer_churn_transition_power(g):
    """Customer lifetime: daily transitions by Softmax with a strong diagonal, their 64th power by six Gemms, revenue."""
    x = g.input("segments", [12, 20], g.normal(12, 20))
    z = op(g, "Add", g.node("Gemm", [x, g.weight("trans_w", 20, 12), g.const(np.zeros(12), "trans_b")], name="trans"), np.eye(12) * 9.0, name="diag_bias")
    p = g.node("Softmax", [z], name="stay_softmax", axis=1)
    for i in range(6):
        p = g.node("Gemm", [p, p], name=f"days_{2 ** (i + 1)}")
    rev = g.node("Softplus", [g.linear(x, "revenue", 20, 8)], name="revenue_sp")
    gone = op(g, "Sub", p, np.eye(12), name="days_moved")
    g.output(g.node("MatMul", [gone, rev], name="change"), p)
