"""Recurrences: LSTM and GRU written out, Scan and Loop bodies, state spaces, running sums and statistics."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, mlp, op, reduce, reshape, span, split


def scan(g, states, sequences, graph, outputs):
    """A Scan named `scan` over the first dim of `sequences`."""
    return g.node("Scan", [*states, *sequences], name="scan", outputs=outputs, body=graph,
                  num_scan_inputs=len(sequences))


def loop(g, trips, states, graph, outputs):
    """A Loop named `loop` of a fixed number of trips."""
    trips, keep = g.const(trips, dtype=np.int64), g.const(True, dtype=bool)
    return g.node("Loop", [trips, keep, *states], name="loop", outputs=outputs, body=graph)


def loop_body(g, name):
    """The body of a Loop, its trip number, and its condition passed on."""
    b = Body(g, name)
    trip = b.entry("trip", [], TensorProto.INT64)
    keep = b.node("Identity", [b.entry("keep", [], TensorProto.BOOL)], name="keep_on")
    return b, trip, (keep, [], TensorProto.BOOL)


@model("lstm_cells_unrolled_four_steps", pins=[], opset=20)
def lstm_cells_unrolled_four_steps(g):
    """An LSTM of PyTorch cells, unrolled: one product for four gates, c = f·c + i·g, h = o·tanh(c)."""
    x = g.input("x", [4, 4, 64], g.normal(4, 4, 64))
    steps = split(g, g.linear(x, "input", 64, 256), 4, 0, "steps")
    w = g.weight("recurrent_w", 64, 256)
    h = c = None
    for i, step in enumerate(steps):
        z = g.node("Squeeze", [step, g.ints(0)], name=f"t{i}_squeeze")
        if i:
            z = g.node("Add", [z, g.node("MatMul", [h, w], name=f"t{i}_mm")], name=f"t{i}_add")
        gates = split(g, z, 4, 1, f"t{i}_gates")
        i_gate, f_gate, o_gate = (g.node("Sigmoid", [gates[j]], name=f"t{i}_sig{j}") for j in (0, 1, 3))
        new = g.node("Mul", [i_gate, g.node("Tanh", [gates[2]], name=f"t{i}_tanh")], name=f"t{i}_new")
        if i:
            new = g.node("Add", [g.node("Mul", [f_gate, c], name=f"t{i}_keep"), new], name=f"t{i}_c")
        c = new
        h = g.node("Mul", [o_gate, g.node("Tanh", [c], name=f"t{i}_tanh_c")], name=f"t{i}_h")
    g.output(g.linear(h, "head", 64, 32))


@model("gru_scan_one_minus_z", pins=[])
def gru_scan_one_minus_z(g):
    """A GRU written as a Scan: h = (1 - z)·n + z·h, reset applied after the product."""
    x = g.input("x", ["time", 2, 64], g.normal(40, 2, 64))
    xs = g.linear(x, "input", 64, 192)
    b = Body(g, "gru_step")
    h, xt = b.entry("h", [2, 64]), b.entry("xt", [2, 192])
    xr, xz, xn = split(b, xt, 3, 1, "x_gates")
    hr, hz, hn = split(b, b.linear(h, "hidden", 64, 192), 3, 1, "h_gates")
    r = b.node("Sigmoid", [b.node("Add", [xr, hr], name="r_add")], name="r")
    z = b.node("Sigmoid", [b.node("Add", [xz, hz], name="z_add")], name="z")
    n = b.node("Tanh", [b.node("Add", [xn, b.node("Mul", [r, hn], name="n_reset")], name="n_add")], name="n")
    new = b.node("Mul", [op(b, "Sub", 1.0, z, name="one_minus_z"), n], name="take")
    new = b.node("Add", [new, b.node("Mul", [z, h], name="keep")], name="h_next")
    graph = b.graph((new, [2, 64]), (b.node("Identity", [new], name="emit"), [2, 64]))
    _, y = scan(g, [g.const(np.zeros((2, 64)))], [xs], graph, 2)
    g.output(g.linear(y, "head", 64, 48))


@model("diagonal_ssm_scan_decay_near_one", pins=["decay_*", "scan/body/state_decay", "scan/body/state_add"],
       opset=18)
def diagonal_ssm_scan_decay_near_one(g):
    """S4D-like diagonal state space: h = exp(Δ·A)·h + B·x over 300 steps, decays from 0.9999 to 0.97."""
    x = g.input("x", [300, 1, 64], g.normal(300, 1, 64) + 0.3)
    dt = op(g, "Mul", g.const(-np.geomspace(0.1, 30, 128), "log_a"), 0.001, name="decay_dt")
    decay = g.node("Exp", [dt], name="decay_exp")
    xs = g.linear(x, "b_matrix", 64, 128, bias=False)
    b = Body(g, "ssm_step")
    h, xt = b.entry("h", [1, 128]), b.entry("xt", [1, 128])
    new = b.node("Add", [b.node("Mul", [decay, h], name="state_decay"), xt], name="state_add")
    graph = b.graph((new, [1, 128]), (b.node("Identity", [new], name="emit"), [1, 128]))
    _, hs = scan(g, [g.const(np.zeros((1, 128)))], [xs], graph, 2)
    g.output(g.linear(hs, "c_matrix", 128, 64))


@model("ema_teacher_loop_momentum_0_999",
       pins=["loop/body/ema_old", "loop/body/ema_new", "loop/body/ema_add", "m_shape"], opset=20)
def ema_teacher_loop_momentum_0_999(g):
    """Running mean of features, m = 0.999·m + 0.001·x, in a Loop of 200 steps from a warm start."""
    x = g.input("frames", [200, 1, 64], g.normal(200, 1, 64) + 1.0)
    start = g.input("running", [1, 128], g.normal(1, 128, scale=0.5))
    feats = g.node("Relu", [g.linear(x, "embed", 64, 128)], name="embed_relu")
    b, trip, keep = loop_body(g, "ema_step")
    m = b.entry("m", [1, 128])
    xt = b.node("Gather", [feats, trip], name="frame", axis=0)
    old = op(b, "Mul", m, 0.999, name="ema_old")
    new = b.node("Add", [old, op(b, "Mul", xt, 0.001, name="ema_new")], name="ema_add")
    m = loop(g, 200, [start], b.graph(keep, (new, [1, 128])), 1)
    m = reshape(g, m, [1, 128], "m_shape")
    centred = g.node("Sub", [span(g, feats, 199, 200, 0, "last"), m], name="centre")
    g.output(m, g.linear(centred, "head", 128, 64))


KALMAN = ["predict_x", "predict_fp", "predict_p", "noise_add", "x0", "innovation", "p_col", "p_row", "p00",
          "s_add", "gain", "gain_mm", "correct_x", "gain_p", "correct_p", "emit"]


@model("kalman_tracker_scan_pixels",
       pins=["box_*", "first", "start*", "parts"] + [f"scan/body/{node}" for node in KALMAN])
def kalman_tracker_scan_pixels(g):
    """Constant-velocity Kalman filter over detections in pixels that a head refines, 40 frames, 32 tracks."""
    feats = g.input("feats", [40, 32, 64], g.normal(40, 32, 64))
    track = np.linspace(0, 1, 40)[:, None, None] * g.uniform(-300, 300, 1, 32, 1)
    track = track + g.uniform(300, 900, 1, 32, 1)
    boxes = g.input("centres", [40, 32, 1], track.astype(np.float32))
    delta = mlp(g, feats, "refine", [64, 64, 1])
    z = g.node("Add", [boxes, delta], name="box_add")
    z = g.node("Transpose", [z], name="box_t", perm=[0, 2, 1])
    b = Body(g, "kalman_step")
    x, p, zt = b.entry("x", [2, 32]), b.entry("p", [2, 2]), b.entry("zt", [1, 32])
    f = b.const([[1.0, 1.0], [0.0, 1.0]], "transition")
    x = b.node("MatMul", [f, x], name="predict_x")
    p = b.node("MatMul", [f, p], name="predict_fp")
    p = b.node("MatMul", [p, b.const([[1.0, 0.0], [1.0, 1.0]], "transition_t")], name="predict_p")
    p = op(b, "Add", p, np.diag([0.25, 0.01]), name="noise_add")
    inn = b.node("Sub", [zt, span(b, x, 0, 1, 0, "x0")], name="innovation")
    col, row = span(b, p, 0, 1, 1, "p_col"), span(b, p, 0, 1, 0, "p_row")
    s = op(b, "Add", span(b, col, 0, 1, 0, "p00"), 4.0, name="s_add")
    gain = b.node("Div", [col, s], name="gain")
    x = b.node("Add", [x, b.node("MatMul", [gain, inn], name="gain_mm")], name="correct_x")
    p = b.node("Sub", [p, b.node("MatMul", [gain, row], name="gain_p")], name="correct_p")
    graph = b.graph((x, [2, 32]), (p, [2, 2]), (b.node("Identity", [x], name="emit"), [2, 32]))
    x0 = g.node("Concat", [span(g, z, 0, 1, 0, "first"), g.const(np.zeros((1, 1, 32)))], name="start", axis=1)
    x0 = g.node("Squeeze", [x0, g.ints(0)], name="start_squeeze")
    _, _, y = scan(g, [x0, g.const(np.diag([10.0, 100.0]))], [z], graph, 3)
    position, speed = split(g, y, 2, 1, "parts")
    g.output(position, speed)


@model("residual_rnn_loop_running_sum", pins=["loop/body/state_add", "h_shape", "moved"])
def residual_rnn_loop_running_sum(g):
    """A residual recurrent cell, h += 0.1·f(norm(h), x): small steps onto a state of some size, 150 trips."""
    x = g.input("x", [150, 2, 64], g.normal(150, 2, 64) + 0.5)
    xs = g.linear(x, "input", 64, 64)
    b, trip, keep = loop_body(g, "cell")
    h = b.entry("h", [2, 64])
    z = b.layer_norm(h, "state", 64)
    xt = b.node("Gather", [xs, trip], name="xt")
    z = b.node("Add", [b.linear(z, "hidden", 64, 64), xt], name="pre_add")
    step = op(b, "Mul", b.linear(b.node("Gelu", [z], name="gelu"), "step", 64, 64), 0.1, name="step_scale")
    new = b.node("Add", [h, step], name="state_add")
    start = g.input("state", [2, 64], g.normal(2, 64, scale=8.0))
    h = loop(g, 150, [start], b.graph(keep, (new, [2, 64])), 1)
    h = reshape(g, h, [2, 64], "h_shape")
    g.output(g.node("Sub", [h, start], name="moved"))


@model("bilstm_operator_tagger", pins=[])
def bilstm_operator_tagger(g):
    """A tagger: embedding, the LSTM operator in both directions, a linear head and LogSoftmax."""
    ids = g.input("ids", [24, "batch"], g.rng.integers(0, 300, (24, 2)))
    x = g.node("Gather", [g.weight("embedding", 300, 64, scale=1.0), ids], name="embed")
    w, r = g.weight("lstm_w", 2, 192, 64, scale=0.125), g.weight("lstm_r", 2, 192, 48, scale=0.14)
    y = g.node("LSTM", [x, w, r], name="lstm", outputs=3, hidden_size=48, direction="bidirectional")[0]
    y = reshape(g, g.node("Transpose", [y], name="lstm_t", perm=[0, 2, 1, 3]), [0, 0, 96], "flat")
    g.output(g.node("LogSoftmax", [g.linear(y, "head", 96, 20)], name="log_softmax", axis=-1))


@model("ddsp_harmonic_phase_cumsum", pins=["phase_*"], opset=18)
def ddsp_harmonic_phase_cumsum(g):
    """DDSP harmonic oscillator: cumulated f0 / rate, times harmonic numbers and 2π; amplitudes of a head."""
    f0 = 220 + 60 * np.sin(np.linspace(0, 6, 2000))
    f0 = g.input("f0_hz", [1, "samples", 1], f0[None, :, None].astype(np.float32))
    feats = g.input("feats", [1, "samples", 64], g.normal(1, 2000, 64))
    cycles = op(g, "Div", f0, 16000.0, name="phase_step")
    cycles = g.node("CumSum", [cycles, g.const(1, dtype=np.int64)], name="phase_cumsum")
    cycles = op(g, "Mul", cycles, np.arange(1, 33), name="phase_harmonics")
    waves = g.node("Sin", [op(g, "Mul", cycles, 2 * np.pi, name="phase_two_pi")], name="sin")
    amps = g.node("Softmax", [mlp(g, feats, "amps", [64, 64, 32])], name="amps_softmax", axis=-1)
    waves = g.node("Mul", [waves, amps], name="waves")
    g.output(reduce(g, "ReduceSum", waves, [2], "audio"))


RWKV = ["u_add", "now_max", "now_a", "now_b", "now_keep", "now_new", "num", "den_keep", "den", "ratio",
        "w_add", "next_max", "next_a", "next_b", "a_keep", "a_new", "a_add", "b_keep", "b_add"]


@model("rwkv_time_mix_scan", pins=[f"scan/body/{node}" for node in RWKV], opset=21)
def rwkv_time_mix_scan(g):
    """RWKV time mixing: weighted sums kept with a running maximum exponent, slow decays, 200 tokens."""
    x = g.input("x", [200, 1, 64], g.normal(200, 1, 64))
    k = op(g, "Mul", g.linear(x, "key", 64, 64), 3.0, name="key_scale")
    v = g.linear(x, "value", 64, 64)
    decay, bonus = g.const(-np.geomspace(0.002, 1.0, 64), "decay"), g.const(g.normal(64), "bonus")
    b = Body(g, "wkv_step")
    aa, bb, pp = (b.entry(n, [1, 64]) for n in ("aa", "bb", "pp"))
    kt, vt = b.entry("kt", [1, 64]), b.entry("vt", [1, 64])
    uk = b.node("Add", [kt, bonus], name="u_add")
    top = b.node("Max", [pp, uk], name="now_max")
    e1 = b.node("Exp", [b.node("Sub", [pp, top], name="now_a")], name="now_e1")
    e2 = b.node("Exp", [b.node("Sub", [uk, top], name="now_b")], name="now_e2")
    num = b.node("Add", [b.node("Mul", [e1, aa], name="now_keep"), b.node("Mul", [e2, vt], name="now_new")],
                 name="num")
    den = b.node("Add", [b.node("Mul", [e1, bb], name="den_keep"), e2], name="den")
    y = b.node("Div", [num, den], name="ratio")
    pw = b.node("Add", [pp, decay], name="w_add")
    top = b.node("Max", [pw, kt], name="next_max")
    e1 = b.node("Exp", [b.node("Sub", [pw, top], name="next_a")], name="next_e1")
    e2 = b.node("Exp", [b.node("Sub", [kt, top], name="next_b")], name="next_e2")
    aa = b.node("Add", [b.node("Mul", [e1, aa], name="a_keep"), b.node("Mul", [e2, vt], name="a_new")],
                name="a_add")
    bb = b.node("Add", [b.node("Mul", [e1, bb], name="b_keep"), e2], name="b_add")
    graph = b.graph(*((value, [1, 64]) for value in (aa, bb, top, y)))
    zero = g.const(np.zeros((1, 64)))
    y = scan(g, [zero, zero, g.const(np.full((1, 64), -1e30))], [k, v], graph, 4)[3]
    r = g.node("Sigmoid", [g.linear(x, "gate", 64, 64)], name="gate_sig")
    g.output(g.linear(g.node("Mul", [r, y], name="gated"), "out", 64, 64))


@model("sequence_score_log_prob_loop",
       pins=["pick", "loop/body/step_lp", "loop/body/score_add", "score_shape", "mean_div", "centred"],
       opset=21)
def sequence_score_log_prob_loop(g):
    """Rescoring of a hypothesis: log-probabilities of its tokens summed in a Loop over 120 steps."""
    x = g.input("states", [120, 4, 64], g.normal(120, 4, 64))
    ids = g.input("tokens", [120, 4, 1], g.rng.integers(0, 100, (120, 4, 1)))
    lp = g.node("LogSoftmax", [g.linear(x, "vocab", 64, 100)], name="log_softmax", axis=-1)
    picked = g.node("GatherElements", [lp, ids], name="pick", axis=2)
    b, trip, keep = loop_body(g, "score_step")
    score = b.entry("score", [4, 1])
    new = b.node("Add", [score, b.node("Gather", [picked, trip], name="step_lp")], name="score_add")
    graph = b.graph(keep, (new, [4, 1]))
    score = loop(g, 120, [g.const(np.zeros((4, 1)))], graph, 1)
    score = reshape(g, score, [4, 1], "score_shape")
    mean = op(g, "Div", score, 120.0, name="mean_div")
    best = g.node("Sub", [mean, reduce(g, "ReduceMean", mean, [0], "mean_all")], name="centred")
    g.output(score, best)


@model("highway_rnn_scan_carry_gate", pins=[], opset=20)
def highway_rnn_scan_carry_gate(g):
    """Recurrent highway cell: s = h·t + s·(1 - t), gates by one product, 30 steps."""
    x = g.input("x", [30, 2, 64], g.normal(30, 2, 64))
    xs = g.linear(x, "input", 64, 128)
    b = Body(g, "highway_step")
    s, xt = b.entry("s", [2, 64]), b.entry("xt", [2, 128])
    z = b.node("Add", [xt, b.linear(s, "hidden", 64, 128, bias=False)], name="pre_add")
    h, t = split(b, z, 2, 1, "parts")
    h, t = b.node("Tanh", [h], name="h"), b.node("Sigmoid", [t], name="t")
    carry = op(b, "Sub", 1.0, t, name="carry")
    take, hold = b.node("Mul", [h, t], name="take"), b.node("Mul", [s, carry], name="hold")
    new = b.node("Add", [take, hold], name="s_next")
    graph = b.graph((new, [2, 64]), (b.node("Identity", [new], name="emit"), [2, 64]))
    _, y = scan(g, [g.const(np.zeros((2, 64)))], [xs], graph, 2)
    g.output(g.linear(y, "head", 64, 32))


@model("delta_rule_fast_weights_scan",
       pins=["scan/body/error_sub", "scan/body/write_mul", "scan/body/state_add"], opset=21)
def delta_rule_fast_weights_scan(g):
    """DeltaNet: a matrix state corrected by β·(v - S·k)·kᵀ at each of 160 tokens, read by S·q."""
    x = g.input("x", [160, 1, 64], g.normal(160, 1, 64))
    k, q, v = (g.linear(x, stem, 64, 64) for stem in ("key", "query", "value"))
    k = g.node("Div", [k, reduce(g, "ReduceL2", k, [-1], "key_norm")], name="key_unit")
    beta = g.node("Sigmoid", [g.linear(x, "beta", 64, 1)], name="beta_sig")
    beta = op(g, "Mul", beta, 0.1, name="beta_scale")
    b = Body(g, "delta_step")
    s, kt, qt = b.entry("s", [64, 64]), b.entry("kt", [1, 64]), b.entry("qt", [1, 64])
    vt, bt = b.entry("vt", [1, 64]), b.entry("bt", [1, 1])
    error = b.node("Sub", [vt, b.node("MatMul", [kt, s], name="recall_mm")], name="error_sub")
    write = b.node("MatMul", [b.node("Transpose", [kt], name="k_col"), error], name="write_mm")
    new = b.node("Add", [s, b.node("Mul", [write, bt], name="write_mul")], name="state_add")
    graph = b.graph((new, [64, 64]), (b.node("MatMul", [qt, new], name="read_mm"), [1, 64]))
    _, y = scan(g, [g.const(np.zeros((64, 64)))], [k, q, v, beta], graph, 2)
    g.output(g.linear(y, "out", 64, 64))


@model("mamba_unrolled_strong_decay", pins=[], opset=21)
def mamba_unrolled_strong_decay(g):
    """Selective scan of eight steps, unrolled: exp(-softplus(Δ)·A) forgets within a few tokens."""
    x = g.input("x", [1, 8, 64], g.normal(1, 8, 64))
    u = g.linear(x, "in", 64, 64)
    dt = g.node("Softplus", [g.linear(x, "dt", 64, 64)], name="dt_softplus")
    a = g.const(-np.linspace(0.5, 4.0, 64), "a")
    decay = g.node("Exp", [g.node("Mul", [dt, a], name="dt_a")], name="decay")
    drive = g.node("Mul", [dt, u], name="dt_u")
    decays, drives = split(g, decay, 8, 1, "decays"), split(g, drive, 8, 1, "drives")
    h, hs = drives[0], [drives[0]]
    for i in range(1, 8):
        kept = g.node("Mul", [decays[i], h], name=f"t{i}_decay")
        h = g.node("Add", [kept, drives[i]], name=f"t{i}_add")
        hs.append(h)
    y = g.node("Concat", hs, name="states", axis=1)
    gate = g.linear(x, "gate", 64, 64)
    gate = g.node("Mul", [gate, g.node("Sigmoid", [gate], name="gate_sig")], name="gate_silu")
    g.output(g.linear(g.node("Mul", [y, gate], name="gated"), "out", 64, 64))


@model("tanh_rnn_loop_overwritten_state", pins=[], opset=20)
def tanh_rnn_loop_overwritten_state(g):
    """An Elman cell in a Loop: the state is overwritten by tanh(x + W·h), nothing is summed up over time."""
    x = g.input("x", [50, 2, 64], g.normal(50, 2, 64))
    xs = g.linear(x, "input", 64, 96)
    b, trip, keep = loop_body(g, "elman_step")
    h = b.entry("h", [2, 96])
    z = b.linear(h, "hidden", 96, 96, scale=0.06)
    z = b.node("Add", [z, b.node("Gather", [xs, trip], name="xt")], name="pre_add")
    new = b.node("Tanh", [z], name="tanh")
    graph = b.graph(keep, (new, [2, 96]), (b.node("Identity", [new], name="emit"), [2, 96]))
    last, hs = loop(g, 50, [g.const(np.zeros((2, 96)))], graph, 2)
    g.output(g.linear(hs, "head", 96, 32), reshape(g, last, [2, 96], "last_shape"))


WELFORD = ["n_add", "delta", "mean_step", "mean_add", "delta_after", "m2_step", "m2_add"]


@model("welford_statistics_pooling_scan",
       pins=[f"scan/body/{node}" for node in WELFORD] + ["offset", "var_div"], opset=19)
def welford_statistics_pooling_scan(g):
    """Streaming statistics pooling: Welford's mean and M2 over 300 frames of features far from zero."""
    x = g.input("frames", [300, 1, 64], g.normal(300, 1, 64))
    x = op(g, "Add", g.linear(x, "embed", 64, 64), 12.0, name="offset")
    b = Body(g, "welford_step")
    n, mean, m2 = b.entry("n", [1]), b.entry("mean", [1, 64]), b.entry("m2", [1, 64])
    xt = b.entry("xt", [1, 64])
    n = op(b, "Add", n, [1.0], name="n_add")
    delta = b.node("Sub", [xt, mean], name="delta")
    mean = b.node("Add", [mean, b.node("Div", [delta, n], name="mean_step")], name="mean_add")
    after = b.node("Sub", [xt, mean], name="delta_after")
    m2 = b.node("Add", [m2, b.node("Mul", [delta, after], name="m2_step")], name="m2_add")
    zero = g.const(np.zeros((1, 64)))
    graph = b.graph((n, [1]), (mean, [1, 64]), (m2, [1, 64]))
    n, mean, m2 = scan(g, [g.const([0.0]), zero, zero], [x], graph, 3)
    std = g.node("Sqrt", [g.node("Div", [m2, n], name="var_div")], name="std")
    g.output(mean, std, g.linear(g.node("Concat", [mean, std], name="cat", axis=1), "head", 128, 64))


@model("imu_dead_reckoning_double_integral", pins=["acc_*", "vel_*", "pos_*"], opset=18)
def imu_dead_reckoning_double_integral(g):
    """Inertial odometry: accelerations corrected by a convolutional head, integrated twice at 100 Hz."""
    acc = g.normal(1, 500, 3) + np.float32([0.4, -0.2, 9.81])
    acc = g.input("acc", [1, 500, 3], acc.astype(np.float32))
    feats = g.input("feats", [1, 64, 500], g.normal(1, 64, 500))
    y = g.node("Relu", [g.conv(feats, "net1", 64, 64, 3, dims=1, pads=[1, 1])], name="relu")
    bias = op(g, "Mul", g.conv(y, "net2", 64, 3, 1, dims=1), 0.05, name="acc_bias_scale")
    bias = g.node("Transpose", [bias], name="acc_bias_t", perm=[0, 2, 1])
    a = g.node("Sub", [g.node("Sub", [acc, bias], name="acc_sub"), g.const([0, 0, 9.81])], name="acc_gravity")
    axis = g.const(1, dtype=np.int64)
    v = g.node("CumSum", [op(g, "Mul", a, 0.01, name="vel_dt"), axis], name="vel_cumsum")
    p = g.node("CumSum", [op(g, "Mul", v, 0.01, name="pos_dt"), axis], name="pos_cumsum")
    g.output(v, p)


@model("mingru_parallel_log_space_cumsum", pins=["log_*", "drive_*", "sum_*"], opset=17)
def mingru_parallel_log_space_cumsum(g):
    """minGRU without a loop: exp(A)·cumsum(exp(log(z·h) - A)), A the cumulated log of 1 - z, 64 tokens."""
    x = g.input("x", [2, 64, 64], g.normal(2, 64, 64))
    gate = g.linear(x, "gate", 64, 96)
    h = g.linear(x, "hidden", 64, 96)
    h = op(g, "Add", g.node("Softplus", [h], name="h_softplus"), 0.1, name="h_floor")
    gate = op(g, "Sub", gate, 1.5, name="log_gate_bias")
    keep = g.node("Neg", [g.node("Softplus", [gate], name="log_keep_sp")], name="log_keep")
    take = g.node("Neg", [g.node("Softplus", [g.node("Neg", [gate], name="log_neg")], name="log_take_sp")],
                  name="log_take")
    total = g.node("CumSum", [keep, g.const(1, dtype=np.int64)], name="log_cumsum")
    drive = g.node("Add", [take, g.node("Log", [h], name="log_h")], name="drive_add")
    drive = g.node("Exp", [g.node("Sub", [drive, total], name="drive_sub")], name="drive_exp")
    summed = g.node("CumSum", [drive, g.const(1, dtype=np.int64)], name="sum_cumsum")
    y = g.node("Mul", [g.node("Exp", [total], name="sum_decay"), summed], name="sum_mul")
    g.output(g.linear(y, "out", 96, 64))
