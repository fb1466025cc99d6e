"""Recommenders, tabular models and time series."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import cast, constant, mlp, op, reduce, reshape, span, unsqueeze


def norm(g, x, stem, n):
    return g.layer_norm(x, stem, n)


@model("fm_second_order_of_raw_multi_hot_counts", opset=14, pins=["sum_v", "sum_sq", "sq_v", "sq_sum", "fm_*"])
def _(g):
    """FM: ½((XV)² - X²V²) over 300 features with counts up to some hundreds, plus the deep part."""
    x = g.rng.poisson(0.6, (16, 300)) * (g.rng.random((16, 300)) < 0.2)
    x[:, :6] = np.exp(g.rng.normal(3, 1.5, (16, 6))).astype(int).clip(0, 900)
    x = g.input("counts", ["n", 300], x.astype(np.float32))
    v = g.normal(300, 16, scale=0.05)
    s = g.node("MatMul", [x, g.const(v, "v")], name="sum_v")
    s2 = op(g, "Mul", s, s, name="sum_sq")
    q = g.node("MatMul", [op(g, "Pow", x, 2.0, name="sq_v"), g.const(v**2, "v_sq")], name="sq_sum")
    fm = op(g, "Mul", g.node("ReduceSum", [op(g, "Sub", s2, q, name="fm_sub"), g.ints(1)], name="fm_sum"), 0.5,
            name="fm_half")
    log = g.node("Log", [op(g, "Add", x, 1.0, name="fm_1p")], name="fm_log1p")
    deep = mlp(g, log, "deep", [300, 128, 64, 1])
    logit = op(g, "Add", op(g, "Mul", fm, 0.01, name="fm_weight"), deep, name="logit")
    g.output(g.node("Sigmoid", [logit], name="ctr"))


@model("dlrm_criteo_log_dense_and_hashed_embeddings", opset=17, pins=["plus", "log1p"])
def _(g):
    """DLRM: log(x+1) of Criteo's 13 integer features, 8 hashed ids by Mod, dot interactions, a top MLP."""
    dense = np.floor(np.exp(g.rng.normal(3, 2.5, (16, 13)))).clip(0, 5e5).astype(np.float32)
    x = g.input("dense", ["n", 13], dense)
    ids = g.input("ids", ["n", 8], g.rng.integers(0, 2**40, (16, 8)))
    h = g.node("Log", [op(g, "Add", x, 1.0, name="plus")], name="log1p")
    h = g.node("Relu", [mlp(g, h, "bot", [13, 128, 32])], name="bot_relu")
    slot = g.node("Add", [g.node("Mod", [ids, g.ints(500)], name="hash"), g.const(np.arange(8) * 500, dtype=np.int64)],
                  name="slot")
    e = g.node("Gather", [g.const(g.normal(4000, 32, scale=0.1), "tables"), slot], name="lookup")
    all_ = g.node("Concat", [unsqueeze(g, h, [1], "h_u"), e], name="vectors", axis=1)
    z = g.node("MatMul", [all_, g.node("Transpose", [all_], name="vt", perm=[0, 2, 1])], name="dots")
    idx = np.flatnonzero(np.tril(np.ones((9, 9)), -1))
    z = g.node("Gather", [reshape(g, z, [0, 81], "dots_flat"), g.ints(*idx.tolist())], name="tril", axis=1)
    t = g.node("Concat", [h, z], name="top_in", axis=1)
    g.output(g.node("Sigmoid", [mlp(g, t, "top", [68, 128, 64, 1])], name="ctr"))


@model("esmm_mmoe_gates_ctcvr_with_prior_correction", opset=16,
       pins=["logit_*", "gate_*", "pctr", "pcvr", "ctcvr", "neg*", "corr*", "value"],
       pins_bf16=["logit_*", "gate_*", "pctr", "pcvr", "ctcvr", "neg*", "corr*", "value"])
def _(g):
    """MMoE towers; p(click)·p(conversion|click) of 1e-6, corrected for negative sampling, times the price."""
    x = g.input("features", ["n", 96], g.normal(16, 96))
    price = g.input("price", ["n", 1], np.exp(g.rng.normal(4, 1.2, (16, 1))).astype(np.float32))
    experts = [unsqueeze(g, mlp(g, x, f"ex{i}_", [96, 64, 32]), [1], f"ex{i}_u") for i in range(3)]
    stack = g.node("Concat", experts, name="experts", axis=1)
    probs = []
    for name, shift in (("ctr", -3.0), ("cvr", -7.0)):
        gate = g.node("Softmax", [g.linear(x, f"g_{name}", 96, 3)], name=f"gate_{name}", axis=-1)
        h = g.node("MatMul", [unsqueeze(g, gate, [1], f"gr_{name}"), stack], name=f"mix_{name}")
        h = g.node("Squeeze", [h, g.ints(1)], name=f"sq_{name}")
        logit = op(g, "Add", mlp(g, h, f"t_{name}", [32, 64, 1]), shift, name=f"logit_{name}")
        probs.append(g.node("Sigmoid", [logit], name=f"p{name}"))
    p = probs[0]
    den = op(g, "Add", p, op(g, "Div", op(g, "Sub", 1.0, p, name="neg_p"), 0.05, name="neg_rate"), name="corr_den")
    p = op(g, "Div", p, den, name="corr_ctr")
    both = op(g, "Mul", p, probs[1], name="ctcvr")
    g.output(both, op(g, "Mul", both, price, name="value"))


@model("nbeats_generic_stack_on_m4_yearly_levels", opset=13,
       pins=["last", "res*_sub", "fc_sum*", "level*", "scale_in", "unscale", "*_back_mm", "*_back_add"],
       pins_bf16=["last", "res*_sub", "fc_sum*", "level*", "scale_in", "unscale", "*_back_mm", "*_back_add"])
def _(g):
    """N-BEATS: levels of thousands divided by the window's maximum, doubly residual blocks, and scaled back."""
    y = np.cumsum(g.rng.normal(40, 120, (8, 60)), 1) + g.rng.uniform(3000, 30000, (8, 1))
    x = g.input("series", ["n", 60], y.astype(np.float32))
    level = g.node("ReduceMax", [g.node("Abs", [x], name="level_abs")], name="level", axes=[1], keepdims=1)
    r = op(g, "Div", x, level, name="scale_in")
    total = None
    for i in range(3):
        h = g.node("Relu", [mlp(g, r, f"b{i}_", [60, 128, 128])], name=f"b{i}_relu")
        theta_b, theta_f = g.linear(h, f"b{i}_tb", 128, 16, bias=False), g.linear(h, f"b{i}_tf", 128, 16, bias=False)
        back = g.linear(theta_b, f"b{i}_back", 16, 60, scale=0.05)
        fore = g.linear(theta_f, f"b{i}_fore", 16, 12, scale=0.05)
        r = op(g, "Sub", r, back, name=f"res{i}_sub")
        total = fore if total is None else op(g, "Add", total, fore, name=f"fc_sum{i}")
    last = span(g, x, -1, 2**31 - 1, 1, "last")
    g.output(op(g, "Add", op(g, "Mul", total, level, name="unscale"), last, name="fc_sum_last"))


@model("tft_variable_selection_with_quantiles_of_traffic", opset=17, pins=["vs_softmax", "zs_*", "un_*"],
       pins_bf16=["vs_softmax", "zs_*", "un_*"])
def _(g):
    """TFT's variable selection: gated residual networks per variable, softmax weights, quantiles back in vehicles/h."""
    mean, std = np.array([1200, 15, 0.2, 180], np.float32), np.array([700, 9, 0.4, 110], np.float32)
    x = g.input("covariates", ["n", 48, 4], (mean + std * g.normal(2, 48, 4)).astype(np.float32))
    z = op(g, "Div", op(g, "Sub", x, mean, name="zs_sub"), std, name="zs_div")
    parts = g.node("Split", [z], name="vars", outputs=4, axis=2)
    embs = [g.linear(p, f"emb{i}", 1, 32, scale=1.0) for i, p in enumerate(parts)]

    def grn(h, tag, n_in, n_out):
        u = g.node("Elu", [g.linear(h, f"{tag}_1", n_in, 64)], name=f"{tag}_elu")
        u = g.linear(g.linear(u, f"{tag}_2", 64, 64), f"{tag}_glu", 64, 2 * n_out)
        a, b = g.node("Split", [u], name=f"{tag}_ab", outputs=2, axis=-1)
        u = op(g, "Mul", a, g.node("Sigmoid", [b], name=f"{tag}_sig"), name=f"{tag}_gated")
        skip = h if n_in == n_out else g.linear(h, f"{tag}_skip", n_in, n_out)
        return g.layer_norm(op(g, "Add", u, skip, name=f"{tag}_res"), tag, n_out)

    flat = g.node("Concat", embs, name="flat", axis=2)
    w = g.node("Softmax", [grn(flat, "sel", 128, 4)], name="vs_softmax", axis=-1)
    w = unsqueeze(g, w, [2], "w_u")
    v = g.node("Concat", [unsqueeze(g, grn(e, f"v{i}", 32, 32), [3], f"v{i}_u") for i, e in enumerate(embs)],
               name="v_cat", axis=3)
    h = reduce(g, "ReduceSum", op(g, "Mul", v, w, name="vw"), [3], "mix", keepdims=0)
    q = g.linear(grn(h, "out", 32, 32), "quant", 32, 3)
    g.output(op(g, "Add", op(g, "Mul", q, 700.0, name="un_scale"), 1200.0, name="un_shift"))


@model("patchtst_revin_of_exchange_rates", opset=17, pins=["rev_*", "softmax"])
def _(g):
    """RevIN of exchange rates (0.7 with changes of 1e-3), patches of 16, attention, de-normalised forecasts."""
    base = np.array([0.75, 1.6, 0.55, 0.0089], np.float32)
    walk = np.cumsum(g.rng.normal(0, 1, (1, 96, 4)), 1) * base * 0.0015 + base
    x = g.input("rates", ["n", 96, 4], walk.astype(np.float32))
    mean = g.node("ReduceMean", [x], name="rev_mean", axes=[1])
    d = op(g, "Sub", x, mean, name="rev_sub")
    var = g.node("ReduceMean", [op(g, "Mul", d, d, name="rev_sq")], name="rev_var", axes=[1])
    std = g.node("Sqrt", [op(g, "Add", var, 1e-10, name="rev_eps")], name="rev_std")
    z = op(g, "Div", d, std, name="rev_div")
    p = reshape(g, g.node("Transpose", [z], name="chan", perm=[0, 2, 1]), [-1, 6, 16], "patches")
    h = op(g, "Add", g.linear(p, "embed", 16, 64), g.normal(6, 64, scale=0.02), name="pos")
    q, k, v = (g.linear(h, s, 64, 64) for s in "qkv")
    s = op(g, "Mul", g.node("MatMul", [q, g.node("Transpose", [k], name="kt", perm=[0, 2, 1])], name="qk"), 0.125,
           name="qk_scale")
    h = op(g, "Add", h, g.node("MatMul", [g.node("Softmax", [s], name="softmax", axis=-1), v], name="attend"), name="res")
    h = op(g, "Add", h, mlp(g, h, "ffn", [64, 128, 64]), name="res2")
    f = g.linear(reshape(g, h, [-1, 4, 384], "flat"), "head", 384, 24)
    f = g.node("Transpose", [f], name="time", perm=[0, 2, 1])
    g.output(op(g, "Add", op(g, "Mul", f, std, name="rev_back"), mean, name="rev_mean_back"))


@model("autoformer_autocorrelation_by_dft_top_lags", opset=17,
       pins=["ac_*", "lag_softmax", "delay*"])
def _(g):
    """Autoformer: correlation in the Fourier domain, the mean over channels, the best 4 lags roll the values."""
    n, c = 96, 32
    t = np.arange(n)
    x = g.input("x", [1, n, 7], (np.sin(2 * np.pi * t / 24)[None, :, None] * g.uniform(0.5, 2, 7) +
                                 g.normal(1, n, 7, scale=0.3)).astype(np.float32))
    h = g.linear(x, "embed", 7, c)
    q, k, v = (g.linear(h, s, c, c) for s in "qkv")

    def spec(a, tag):
        a = unsqueeze(g, g.node("Transpose", [a], name=f"{tag}_t", perm=[0, 2, 1]), [3], f"{tag}_u")
        f = g.node("DFT", [a], name=f"ac_{tag}_dft", axis=2)
        return [span(g, f, i, i + 1, 3, f"ac_{tag}_{p}") for i, p in enumerate(("re", "im"))]
    qr, qi = spec(q, "q")
    kr, ki = spec(k, "k")
    re = op(g, "Add", op(g, "Mul", qr, kr, name="ac_rr"), op(g, "Mul", qi, ki, name="ac_ii"), name="ac_re")
    im = op(g, "Sub", op(g, "Mul", qi, kr, name="ac_ir"), op(g, "Mul", qr, ki, name="ac_ri"), name="ac_im")
    r = g.node("DFT", [g.node("Concat", [re, im], name="ac_cat", axis=3)], name="ac_idft", axis=2, inverse=1)
    r = reshape(g, span(g, r, 0, 1, 3, "ac_real"), [1, c, n], "ac_lags")
    mean = g.node("ReduceMean", [r], name="ac_mean", axes=[0, 1], keepdims=0)
    w, lags = g.node("TopK", [mean, g.ints(4)], name="ac_top", outputs=2)
    w = g.node("Softmax", [w], name="lag_softmax", axis=-1)
    idx = g.node("Mod", [g.node("Add", [g.const(np.arange(n), dtype=np.int64), unsqueeze(g, lags, [1], "lag_u")],
                                name="delay_add"), g.ints(n)], name="delay_mod")
    rolled = g.node("Gather", [v, idx], name="values_rolled", axis=1)
    y = op(g, "Mul", rolled, reshape(g, w, [1, 4, 1, 1], "w_r"), name="weighted")
    y = reduce(g, "ReduceSum", y, [1], "aggregate", keepdims=0)
    g.output(op(g, "Add", h, g.linear(y, "out", c, c), name="res"))


@model("timestamp_time_features_informer_embedding", opset=17,
       pins=["unix_f", "day_*", "week_*", "year_*", "days*", "cyc_*"])
def _(g):
    """Informer's data embedding from raw unix seconds in f32 minutes: phases of the day, week and year, and a linear."""
    minutes = (28_400_000 + 15 * np.arange(96)).astype(np.int64)[None]
    t = g.input("minutes", [1, 96], minutes)
    x = g.input("values", [1, 96, 7], g.normal(1, 96, 7))
    f = cast(g, t, "unix_f")
    feats = []
    for tag, period in (("day", 1440.0), ("week", 10080.0), ("year", 525960.0)):
        u = op(g, "Div", f, period, name=f"{tag}_div")
        u = op(g, "Sub", u, g.node("Floor", [u], name=f"{tag}_floor"), name=f"{tag}_frac")
        a = op(g, "Mul", u, 2 * np.pi, name=f"{tag}_angle")
        feats += [g.node("Sin", [a], name=f"{tag}_sin"), g.node("Cos", [a], name=f"{tag}_cos")]
        feats.append(op(g, "Sub", u, 0.5, name=f"cyc_{tag}"))
    days = op(g, "Div", op(g, "Sub", f, 28_400_000.0, name="days_since"), 1440.0, name="days_local")
    feats.append(days)
    m = g.node("Concat", [unsqueeze(g, v, [2], f"u{i}") for i, v in enumerate(feats)], name="marks", axis=2)
    h = op(g, "Add", g.linear(x, "value", 7, 64), g.linear(m, "temporal", 10, 64, bias=False), name="embed")
    h = norm(g, h, "norm", 64)
    g.output(mlp(g, h, "ffn", [64, 256, 64]))


@model("deepsurv_cox_breslow_cumulative_hazard", opset=22,
       pins=["z_*", "risk_exp", "cum*", "haz*", "surv*"])
def _(g):
    """DeepSurv: standardised ages, pressures and labs, exp of the risk, survival exp(-H0(t)·risk) on a grid of days."""
    mean = np.array([62, 135, 82, 0.98, 138, 4.2, 250, 31, 7.4, 110], np.float32)
    std = np.array([14, 22, 13, 0.4, 4, 0.6, 90, 6, 0.08, 45], np.float32)
    x = g.input("labs", ["n", 10], (mean + std * g.normal(16, 10)).astype(np.float32))
    z = op(g, "Div", op(g, "Sub", x, mean, name="z_sub"), std, name="z_div")
    h = mlp(g, z, "net", [10, 128, 128, 1], "Selu")
    risk = g.node("Exp", [h], name="risk_exp")
    h0 = np.full(60, 0.004) * g.uniform(0.5, 1.5, 60)
    cum = g.node("CumSum", [g.const(h0, "h0"), g.const(0, dtype=np.int64)], name="cum_hazard")
    haz = g.node("MatMul", [risk, unsqueeze(g, cum, [0], "cum_row")], name="haz_mm")
    s = g.node("Exp", [g.node("Neg", [haz], name="haz_neg")], name="surv_exp")
    g.output(s, op(g, "Mul", g.node("ReduceSum", [s, g.ints(1)], name="surv_sum"), 30.0, name="surv_days"))


@model("taxi_trip_duration_from_degrees_and_fares", opset=22,
       pins=["log_seconds", "rad*", "d_*", "hav_*", "km*", "feat_*", "cat_raw"],
       pins_bf16=["log_seconds", "rad*", "d_*", "hav_*", "km*", "feat_*", "cat_raw"])
def _(g):
    """Pickup and dropoff in degrees: a haversine over a few km, log1p of fares, one-hot hours, expm1 of the output."""
    p = np.array([40.75, -73.98], np.float32) + g.normal(16, 2, scale=0.03)
    x = g.input("pickup", ["n", 2], p)
    y = g.input("dropoff", ["n", 2], p + g.normal(16, 2, scale=0.02))
    fare = g.input("fare", ["n", 1], np.exp(g.rng.normal(2.5, 0.6, (16, 1))).astype(np.float32))
    hour = g.input("hour", ["n"], g.rng.integers(0, 24, 16))
    a, b = op(g, "Mul", x, np.pi / 180, name="rad_x"), op(g, "Mul", y, np.pi / 180, name="rad_y")
    half = op(g, "Mul", op(g, "Sub", b, a, name="d_rad"), 0.5, name="d_half")
    s = op(g, "Pow", g.node("Sin", [half], name="hav_sin"), 2.0, name="hav_sq")
    lat = op(g, "Mul", g.node("Cos", [span(g, a, 0, 1, 1, "rad_lat_x")], name="hav_cos_x"),
             g.node("Cos", [span(g, b, 0, 1, 1, "rad_lat_y")], name="hav_cos_y"), name="hav_cos")
    h = op(g, "Add", span(g, s, 0, 1, 1, "hav_lat"), op(g, "Mul", lat, span(g, s, 1, 2, 1, "hav_lon"), name="hav_prod"),
           name="hav_sum")
    km = op(g, "Mul", g.node("Asin", [g.node("Sqrt", [h], name="hav_root")], name="hav_asin"), 12742.0, name="km")
    lk = g.node("Log", [op(g, "Add", km, 1.0, name="feat_km1")], name="feat_log_km")
    lf = g.node("Log", [op(g, "Add", fare, 1.0, name="feat_fare1")], name="feat_log_fare")
    hot = g.node("OneHot", [hour, g.const(24, dtype=np.int64), g.const([0.0, 1.0])], name="one_hot", axis=-1)
    rel = op(g, "Mul", op(g, "Sub", x, np.array([40.75, -73.98]), name="feat_rel"), 20.0, name="feat_rel_scale")
    f = g.node("Concat", [lk, lf, rel, hot], name="cat_raw", axis=1)
    out = op(g, "Add", mlp(g, f, "m", [28, 128, 64, 1]), 6.2, name="log_seconds")
    g.output(op(g, "Sub", g.node("Exp", [out], name="feat_exp"), 1.0, name="feat_expm1"))


@model("two_tower_retrieval_logq_corrected_logits", opset=13, pins=["u_*", "i_*", "temp", "logq*", "softmax"],
       pins_bf16=["u_*", "i_*", "temp", "logq*", "softmax", "scores"])
def _(g):
    """A two-tower retriever: normalised embeddings over τ = 0.05, minus log Q of item frequencies (1e-7 to 1e-2)."""
    q = g.input("user", ["n", 64], g.normal(16, 64))
    ids = g.input("items", ["m"], g.rng.integers(0, 2000, 64))
    freq = g.input("frequency", ["m"], np.exp(g.rng.uniform(-16, -4.6, 64)).astype(np.float32))
    bags = g.node("Gather", [g.const(g.normal(2000, 64), "item_table"), ids], name="item_emb")
    u, i = mlp(g, q, "user", [64, 128, 64]), mlp(g, bags, "item", [64, 128, 64])
    def unit(a, tag):
        n = g.node("ReduceL2", [a], name=f"{tag}_l2", axes=[1], keepdims=1)
        return op(g, "Div", a, op(g, "Max", n, 1e-12, name=f"{tag}_floor"), name=f"{tag}_unit")
    s = g.node("Gemm", [unit(u, "u"), unit(i, "i")], name="scores", transB=1)
    s = op(g, "Div", s, 0.05, name="temp")
    lq = g.node("Log", [op(g, "Add", freq, 1e-9, name="logq_eps")], name="logq")
    g.output(g.node("Softmax", [op(g, "Sub", s, lq, name="logq_sub")], name="softmax", axis=-1))
