"""Time series: instance normalisation, decomposition, long attention, counts, cumulative sums, smoothing."""

import numpy as np

from .build import model
from .parts import Body, cast, mlp, op, reduce, reshape, span, unsqueeze


def seasonal(g, rows, n, mean, scale, noise=0.1):
    """Rows of n steps with a daily season and noise."""
    t = np.arange(n) / 24
    phase = g.uniform(0, 6, rows, 1)
    season = np.sin(2 * np.pi * t + phase) + 0.3 * np.sin(2 * np.pi * t / 7 + 2 * phase)
    return (mean + scale * (season + noise * g.normal(rows, n))).astype(np.float32)


@model("revin_forecast_of_barometer", pins=["norm_*", "denorm_*"])
def revin_forecast_of_barometer(g):
    """RevIN: instance mean and deviation of pressures of 1013 ± 0.3 hPa, forecast, put back."""
    x = g.input("series", ["batch", 16, 96], seasonal(g, 32, 96, 1013, 0.2).reshape(2, 16, 96))
    mean = reduce(g, "ReduceMean", x, [2], "mean")
    d = g.node("Sub", [x, mean], name="norm_sub")
    var = reduce(g, "ReduceMean", g.node("Mul", [d, d], name="norm_square"), [2], "var")
    std = g.node("Sqrt", [op(g, "Add", var, 1e-5, name="norm_eps")], name="norm_sqrt")
    z = g.node("Div", [d, std], name="norm_div")
    y = mlp(g, z, "net", [96, 128, 48], "Gelu")
    y = g.node("Add", [g.node("Mul", [y, std], name="denorm_mul"), mean], name="denorm_add")
    g.output(y)


@model("standardise_by_mean_of_squares", pins=["stat_*", "z_*", "back_*"], opset=18)
def standardise_by_mean_of_squares(g):
    """Streaming standardisation by E[x²] - E[x]² of motor temperatures in kelvin, then a Conv forecaster."""
    x = g.input("kelvin", ["batch", 32, 128], seasonal(g, 32, 128, 330, 4.0)[None])
    m = reduce(g, "ReduceMean", x, [2], "mean")
    m2 = reduce(g, "ReduceMean", g.node("Mul", [x, x], name="stat_square"), [2], "mean_square")
    var = g.node("Sub", [m2, g.node("Mul", [m, m], name="stat_mean_square")], name="stat_var")
    std = g.node("Sqrt", [op(g, "Max", var, 1e-6, name="stat_floor")], name="stat_std")
    z = g.node("Div", [g.node("Sub", [x, m], name="z_sub"), std], name="z_div")
    h = g.node("Relu", [g.conv(z, "c0", 32, 64, 5, dims=1, pads=[2, 2])], name="relu")
    h = g.conv(h, "c1", 64, 32, 3, dims=1, pads=[1, 1])
    g.output(g.node("Add", [g.node("Mul", [h, std], name="back_mul"), m], name="back_add"))


@model("dlinear_decomposition_standardised", pins=[], opset=17)
def dlinear_decomposition_standardised(g):
    """DLinear: moving average by AveragePool, remainder, a linear layer for each; standardised input."""
    x = g.input("series", ["batch", 8, 120], seasonal(g, 8, 120, 0.0, 1.0)[None])
    trend = g.node("AveragePool", [x], name="trend", kernel_shape=[25], pads=[12, 12], count_include_pad=0)
    rest = g.node("Sub", [x, trend], name="remainder")
    y = g.node("Add", [g.linear(trend, "trend_fc", 120, 64), g.linear(rest, "rest_fc", 120, 64)], name="both")
    g.output(y)


@model("grid_load_decomposed_in_megawatts", pins=["trend*", "remainder", "both", "level"])
def grid_load_decomposed_in_megawatts(g):
    """Autoformer decomposition of a load of 30000..70000 MW: average by Conv, remainder, linear layers."""
    x = g.input("mw", ["batch", 8, 120], seasonal(g, 8, 120, 52000, 7000.0)[:, None].reshape(1, 8, 120))
    rows = reshape(g, x, [-1, 1, 120], "rows")
    pad = g.node("Pad", [rows, g.ints(0, 0, 12, 0, 0, 12)], name="edges", mode="edge")
    trend = g.node("Conv", [pad, g.const(np.full((1, 1, 25), 0.04), "box")], name="trend_conv")
    rest = g.node("Sub", [rows, trend], name="remainder")
    w = np.full((120, 48), 1 / 120) + g.normal(120, 48, scale=2e-4)
    future = g.node("MatMul", [trend, g.const(w, "trend_w")], name="trend_mm")
    season = g.node("MatMul", [rest, g.weight("rest_w", 120, 48)], name="rest_mm")
    y = g.node("Add", [future, season], name="both")
    g.output(op(g, "Div", y, 1000.0, name="level"))


@model("informer_attention_over_4096_steps", pins=[])
def informer_attention_over_4096_steps(g):
    """Long history: 32 learned queries attend over 4096 standardised steps, softmax · V, forecast head."""
    x = g.input("history", ["batch", 4096, 32], g.normal(1, 4096, 32))
    k, v = g.linear(x, "k", 32, 64), g.linear(x, "v", 32, 64)
    q = g.const(g.normal(1, 32, 64), "queries")
    scores = g.node("MatMul", [q, g.node("Transpose", [k], name="k_t", perm=[0, 2, 1])], name="scores_mm")
    probs = g.node("Softmax", [op(g, "Mul", scores, 0.125, name="scale")], name="softmax", axis=-1)
    g.output(g.linear(g.node("MatMul", [probs, v], name="attend_mm"), "head", 64, 24))


@model("linear_attention_cumsum_4096_steps", pins=["keys_*", "state_*", "den_*", "ratio_div"])
def linear_attention_cumsum_4096_steps(g):
    """Causal linear attention over 4096 steps: running sums of elu(k) + 1 and of its products with v."""
    x = g.input("history", [1, 4096, 32], g.normal(1, 4096, 32))
    q = op(g, "Add", g.node("Elu", [g.linear(x, "q", 32, 16)], name="q_elu"), 1.0, name="queries_plus")
    k = op(g, "Add", g.node("Elu", [g.linear(x, "k", 32, 16)], name="k_elu"), 1.0, name="keys_plus")
    v = g.linear(x, "v", 32, 16)
    outer = g.node(
        "Mul", [unsqueeze(g, k, [3], "k_dims"), unsqueeze(g, v, [2], "v_dims")], name="state_outer"
    )
    axis = g.const(1, dtype=np.int64)
    state = g.node("CumSum", [outer, axis], name="state_cumsum")
    keys = g.node("CumSum", [k, axis], name="keys_cumsum")
    up = g.node("Einsum", [q, state], name="read", equation="bnk,bnkv->bnv")
    den = reduce(g, "ReduceSum", g.node("Mul", [q, keys], name="den_mul"), [2], "den_sum")
    y = g.node("Div", [up, op(g, "Add", den, 1e-6, name="den_eps")], name="ratio_div")
    g.output(g.linear(y, "out", 16, 32, scale=4.0))


@model(
    "holt_smoothing_scan_of_sales",
    pins=["ets/body/*", "start*", "rest_*", "fc_*"],
    pins_bf16=["ets/body/*", "start*", "rest_*"],
)
def holt_smoothing_scan_of_sales(g):
    """ES-RNN: Holt's level and trend kept by a Scan over 150 weeks of sales, remainder to an MLP."""
    sales = seasonal(g, 32, 150, 900, 60.0) + 2 * np.arange(150, dtype=np.float32)
    x = g.input("sales", [150, 32], sales.T.copy())
    body = Body(g, "holt")
    level, trend, now = body.entry("level", [32]), body.entry("trend", [32]), body.entry("now", [32])
    guess = body.node("Add", [level, trend], name="guess")
    error = body.node("Sub", [now, guess], name="error")
    new_level = body.node("Add", [guess, op(body, "Mul", error, 0.03, name="level_gain")], name="new_level")
    new_trend = body.node("Add", [trend, op(body, "Mul", error, 0.01, name="trend_gain")], name="new_trend")
    each = body.node("Identity", [new_level], name="each")
    start = reshape(g, span(g, x, 0, 1, 0, "start_row"), [32], "start")
    graph = body.graph((new_level, [32]), (new_trend, [32]), (each, [32]))
    level, trend, levels = g.node(
        "Scan", [start, g.const(np.full(32, 2.0)), x], name="ets", outputs=3, num_scan_inputs=1, body=graph
    )
    rest = op(g, "Div", g.node("Sub", [x, levels], name="rest_sub"), 60.0, name="rest_div")
    recent = g.node("Transpose", [span(g, rest, 54, 150, 0, "recent")], name="recent_t", perm=[1, 0])
    y = mlp(g, recent, "net", [96, 128, 24], "Tanh")
    ahead = g.node(
        "Mul", [unsqueeze(g, trend, [1], "trend_dims"), g.const(np.arange(1, 25)[None])], name="fc_trend"
    )
    y = op(g, "Mul", y, 60.0, name="fc_scale")
    y = g.node(
        "Add",
        [g.node("Add", [unsqueeze(g, level, [1], "level_dims"), ahead], name="fc_level"), y],
        name="fc_add",
    )
    g.output(y)


@model("minimal_gated_scan_bounded_state", pins=[])
def minimal_gated_scan_bounded_state(g):
    """Minimal gated unit by a Scan over 40 standardised steps; the state is mixed anew, between -1 and 1."""
    x = g.input(
        "series", [40, 8, 32], seasonal(g, 256, 40, 0, 1).reshape(8, 32, 40).transpose(2, 0, 1).copy()
    )
    zx = g.linear(x, "in", 32, 128)
    body = Body(g, "cell")
    h, now = body.entry("h", [8, 64]), body.entry("now", [8, 128])
    hh = body.node("MatMul", [h, body.weight("u_w", 64, 128)], name="u_mm")
    both = body.node("Add", [hh, now], name="pre")
    f, c = body.node("Split", [both], name="parts", outputs=2, axis=1, num_outputs=2)
    f, c = body.node("Sigmoid", [f], name="forget"), body.node("Tanh", [c], name="candidate")
    keep = body.node("Mul", [op(body, "Sub", 1.0, f, name="one_minus"), h], name="keep")
    after = body.node("Add", [keep, body.node("Mul", [f, c], name="take")], name="mixed")
    last, _ = g.node(
        "Scan",
        [g.const(np.zeros((8, 64))), zx],
        name="unit",
        outputs=2,
        num_scan_inputs=1,
        body=body.graph((after, [8, 64]), (body.node("Identity", [after], name="each"), [8, 64])),
    )
    g.output(g.linear(last, "head", 64, 24))


@model("deepar_count_scale_of_page_views", pins=["scale_*", "rate_*", "nll_*"], opset=20)
def deepar_count_scale_of_page_views(g):
    """DeepAR: page views up to 300000 over 1 + their mean, rate by softplus times it, Poisson likelihood."""
    level = np.exp(g.uniform(2, 12, 48, 1))
    views = np.round(level * np.exp(seasonal(g, 48, 96, 0, 0.3)))
    x = g.input("views", ["batch", 96], views.astype(np.float32))
    y = g.input("next", ["batch", 24], np.round(level * g.uniform(0.6, 1.6, 48, 24)).astype(np.float32))
    scale = op(g, "Add", reduce(g, "ReduceMean", x, [1], "mean"), 1.0, name="scale_add")
    z = g.node("Div", [x, scale], name="scale_div")
    raw = mlp(g, z, "net", [96, 128, 24])
    rate = g.node("Mul", [g.node("Softplus", [raw], name="softplus"), scale], name="rate_mul")
    rate = op(g, "Add", rate, 1e-4, name="rate_eps")
    gain = g.node("Mul", [y, g.node("Log", [rate], name="log")], name="nll_gain")
    nll = g.node("Div", [g.node("Sub", [rate, gain], name="nll_sub"), scale], name="nll_div")
    g.output(rate, nll)


@model("nbeats_trend_polynomial_of_hours", pins=["theta_scale", "trend_*"], pins_bf16=[])
def nbeats_trend_polynomial_of_hours(g):
    """N-BEATS trend block on raw hours: cubic basis up to 168³ times small coefficients from an MLP."""
    x = g.input("window", ["batch", 96], seasonal(g, 40, 96, 0, 1))
    h = g.node("Relu", [mlp(g, x, "fc", [96, 128, 96])], name="relu")
    theta = g.linear(h, "theta", 96, 32)
    powers = np.tile(np.arange(4), 8)
    theta = op(g, "Mul", theta, 168.0**-powers, name="theta_scale")
    hours = np.arange(1, 169, dtype=np.float64)
    trend = g.node("MatMul", [theta, g.const(hours[None] ** powers[:, None], "basis")], name="trend_mm")
    g.output(trend)


@model("nbeats_seasonality_fourier_basis", pins=[])
def nbeats_seasonality_fourier_basis(g):
    """N-BEATS seasonality block: coefficients times a stored cos and sin basis, backcast residual."""
    x = g.input("window", ["batch", 96], seasonal(g, 40, 96, 0, 1))
    h = g.node("Relu", [mlp(g, x, "fc", [96, 128, 96])], name="relu")
    angle = 2 * np.pi * np.outer(np.arange(32), np.arange(96)) / 96
    theta = g.linear(h, "theta", 96, 64)
    back = g.node(
        "MatMul",
        [theta, g.const(np.concatenate([np.cos(angle), np.sin(angle)]) / 8, "basis")],
        name="back_mm",
    )
    rest = g.node("Sub", [x, back], name="residual")
    g.output(mlp(g, rest, "next", [96, 96, 24]))


@model("odometry_cumsum_of_predicted_speed", pins=["speed_*", "step_*", "path_*"], opset=17)
def odometry_cumsum_of_predicted_speed(g):
    """Inertial odometry (RoNIN): speeds per 5 ms step from a Conv net, summed over 3000 steps to metres."""
    x = g.input("imu", [1, 32, 3000], g.normal(1, 32, 3000))
    h = g.node("Relu", [g.conv(x, "c0", 32, 48, 7, dims=1, pads=[3, 3])], name="relu0")
    w = g.const(g.normal(2, 48, 5, scale=0.06), "speed_w")
    v = g.node("Conv", [h, w, g.const([1.3, 0.4], "speed_b")], name="speed_conv", pads=[2, 2])
    step = op(g, "Mul", v, 0.005, name="step_dt")
    path = g.node("CumSum", [step, g.const(2, dtype=np.int64)], name="path_cumsum")
    g.output(op(g, "Add", path, np.array([412.0, -75.0]).reshape(1, 2, 1), name="path_start"))


@model("calendar_phases_of_epoch_minutes", pins=["time_*"])
def calendar_phases_of_epoch_minutes(g):
    """Calendar features of minutes since 2000: phases of day, week and year by Div, sines, MLP."""
    minutes = 13_000_000 + np.arange(80) * 37
    t = g.input("minutes", ["n", 1], minutes[:, None].astype(np.int64))
    t = cast(g, t, "time_cast")
    day = op(g, "Div", t, np.repeat([1440.0, 10080.0, 525960.0, 720.0], 8)[None], name="time_div")
    part = g.node("Sub", [day, g.node("Floor", [day], name="time_floor")], name="time_part")
    turn = op(g, "Mul", part, 2 * np.pi * np.tile(np.arange(1, 9), 4), name="time_turn")
    y = g.node(
        "Concat", [g.node("Sin", [turn], name="sin"), g.node("Cos", [turn], name="cos")], name="cat", axis=1
    )
    g.output(mlp(g, y, "net", [64, 128, 24], "Gelu"))
