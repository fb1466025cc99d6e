"""Recurrent and state-space models."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, constant, mlp, op, reduce, reshape, silu, span, split, unsqueeze


@model("awd_lstm_language_model_tied_decoder", opset=14, pins=["log_softmax"])
def _(g):
    tokens = g.input("tokens", ["t", "b"], g.rng.integers(0, 1000, (24, 2)))
    table = g.const(g.normal(1000, 128, scale=0.3), "embedding")
    x = g.node("Gather", [table, tokens], name="embed")
    y = g.node("LSTM", [x, g.weight("lstm_w", 1, 512, 128, scale=0.09), g.weight("lstm_r", 1, 512, 128, scale=0.09),
                        g.const(g.normal(1, 1024, scale=0.1))], name="lstm", hidden_size=128)
    y = g.node("Squeeze", [y, g.ints(1)], name="lstm_flat")
    logits = g.node("MatMul", [y, g.node("Transpose", [table], name="tied", perm=[1, 0])], name="decoder")
    g.output(g.node("LogSoftmax", [op(g, "Mul", logits, 4.0, name="scaled")], name="log_softmax", axis=-1))


@model("mamba_selective_scan_body_with_softplus_dt", opset=16,
       pins=["dt_bias", "dt_softplus", "scan", "scan/*"])
def _(g):
    """Mamba-130m's mixer: Δ = softplus(..) of 1e-3 to 0.1, the state decays by exp(Δ·A) within a Scan."""
    d, n, t = 64, 16, 256
    x = g.input("x", [t, 64], g.normal(t, 64))
    xz = g.linear(x, "in_proj", 64, 128, bias=False)
    u, z = g.node("Split", [xz], name="xz", outputs=2, axis=-1)
    u = silu(g, u, "u")
    dbc = g.linear(u, "x_proj", d, 4 + 2 * n, bias=False)
    dt, b, c = g.node("Split", [dbc, g.ints(4, n, n)], name="dbc", outputs=3, axis=-1)
    dt = g.node("MatMul", [dt, g.weight("dt_w", 4, d, scale=0.3)], name="dt_proj")
    dt = op(g, "Add", dt, np.log(np.expm1(np.exp(g.uniform(np.log(1e-3), np.log(0.1), d)))), name="dt_bias")
    dt = g.node("Softplus", [dt], name="dt_softplus")
    body = Body(g, "scan_body")
    h, dti, ui = body.entry("h", [d, n]), body.entry("dti", [d]), body.entry("ui", [d])
    bi, ci = body.entry("bi", [n]), body.entry("ci", [n])
    a = -np.tile(np.arange(1, n + 1, dtype=np.float32), (d, 1))
    du = unsqueeze(body, dti, [1], "dt_col")
    decay = body.node("Exp", [op(body, "Mul", du, a, name="dta")], name="decay")
    dbu = op(body, "Mul", unsqueeze(body, op(body, "Mul", dti, ui, name="dtu"), [1], "dtu_col"), bi, name="dbu")
    nh = op(body, "Add", op(body, "Mul", decay, h, name="kept"), dbu, name="state")
    y = body.node("MatMul", [nh, ci], name="read")
    ny = body.node("Identity", [nh], name="state_again")
    s, y = g.node("Scan", [g.const(np.zeros((d, n))), dt, u, b, c], name="scan", outputs=2, num_scan_inputs=4,
                  body=body.graph((ny, [d, n]), (y, [d])))
    y = op(g, "Add", y, op(g, "Mul", u, np.ones(d), name="skip_d"), name="skip")
    y = g.node("Mul", [y, silu(g, z, "z")], name="gated")
    g.output(g.linear(y, "out_proj", d, 64, bias=False))


@model("retnet_parallel_decay_mask_and_group_norm", opset=17,
       pins=["pos*", "gap*", "log_decay", "decay*", "denom*", "retained", "gn_*", "ret_scores"])
def _(g):
    """Retention in parallel: qkᵀ times γ^(i-j), divided by max(|row sum|, 1), then a group norm by heads."""
    heads, size, n = 4, 32, "n"
    x = g.input("x", [1, n, 128], g.normal(1, 256, 128))
    qkv = [g.node("Transpose", [reshape(g, g.linear(x, s, 128, 128, bias=False), [0, 0, heads, size], f"{s}_r")],
                  name=f"{s}_t", perm=[0, 2, 1, 3]) for s in "qkv"]
    q, k, v = qkv
    k = op(g, "Mul", k, size**-0.5, name="k_scale")
    length = g.node("Gather", [g.node("Shape", [x], name="shape"), g.const(1, dtype=np.int64)], name="length")
    steps = g.node("Range", [g.const(0, dtype=np.int64), length, g.const(1, dtype=np.int64)], name="range")
    pos = g.node("Cast", [steps], name="pos", to=TensorProto.FLOAT)
    gap = op(g, "Sub", unsqueeze(g, pos, [1], "pos_col"), unsqueeze(g, pos, [0], "pos_row"), name="gap")
    log_gamma = np.log(1 - 2.0 ** (-5 - np.arange(heads)))[:, None, None]
    decay = g.node("Exp", [op(g, "Mul", op(g, "Max", gap, 0.0, name="gap_pos"), log_gamma, name="log_decay")],
                   name="decay_exp")
    decay = g.node("Where", [op(g, "GreaterOrEqual", gap, 0.0, name="causal"), decay, g.const(0.0)], name="decay")
    s = g.node("MatMul", [q, g.node("Transpose", [k], name="k_tt", perm=[0, 1, 3, 2])], name="ret_scores")
    s = op(g, "Mul", s, decay, name="retained")
    total = g.node("Abs", [reduce(g, "ReduceSum", s, [-1], "denom_sum")], name="denom_abs")
    s = op(g, "Div", s, op(g, "Max", total, 1.0, name="denom"), name="denom_div")
    y = g.node("MatMul", [s, v], name="ret_mm")
    mean = reduce(g, "ReduceMean", y, [-1], "gn_mean")
    d = op(g, "Sub", y, mean, name="gn_sub")
    var = reduce(g, "ReduceMean", op(g, "Mul", d, d, name="gn_sq"), [-1], "gn_var")
    y = op(g, "Div", d, g.node("Sqrt", [op(g, "Add", var, 1e-5, name="gn_eps")], name="gn_sqrt"), name="gn_div")
    y = reshape(g, g.node("Transpose", [y], name="merge", perm=[0, 2, 1, 3]), [0, 0, 128], "merged")
    y = g.node("Mul", [y, silu(g, g.linear(x, "gate", 128, 128, bias=False), "gate")], name="gated")
    g.output(g.linear(y, "out", 128, 128, bias=False))


@model("xlstm_mlstm_parallel_stabilised_log_gates", opset=21,
       pins=["f_*", "i_gate", "log_*", "d_*", "c_*", "n_*", "normaliser"])
def _(g):
    """mLSTM of xLSTM: sums of log forget gates over the sequence, a running maximum, exp of differences."""
    t, h, size = 256, 4, 32
    x = g.input("x", [1, t, 128], g.normal(1, t, 128))
    x1 = g.layer_norm(x, "pre", 128)
    q, k, v = [g.node("Transpose", [reshape(g, g.linear(x1, s, 128, 128), [0, 0, h, size], f"{s}_r")], name=f"{s}_t",
                      perm=[0, 2, 1, 3]) for s in "qkv"]
    i = op(g, "Sub", g.linear(x1, "ig", 128, h), 6.0, name="ig_bias")
    f = op(g, "Add", g.linear(x1, "fg", 128, h), np.linspace(3, 6, h), name="fg_bias")
    f = g.node("Transpose", [f], name="f_t", perm=[0, 2, 1])
    i = g.node("Transpose", [i], name="i_gate", perm=[0, 2, 1])
    log_f = g.node("Neg", [g.node("Softplus", [g.node("Neg", [f], name="f_neg")], name="f_softplus")], name="log_f")
    cum = g.node("CumSum", [log_f, g.const(2, dtype=np.int64)], name="log_cumsum")
    diff = op(g, "Sub", unsqueeze(g, cum, [3], "log_col"), unsqueeze(g, cum, [2], "log_row"), name="log_gap")
    d = op(g, "Add", diff, unsqueeze(g, i, [2], "d_i"), name="d_log")
    mask = np.tril(np.ones((t, t), bool))
    d = g.node("Where", [g.const(mask, "causal", dtype=bool), d, g.const(-np.inf)], name="d_masked")
    m = reduce(g, "ReduceMax", d, [-1], "d_max")
    e = g.node("Exp", [op(g, "Sub", d, m, name="d_shift")], name="d_exp")
    s = g.node("MatMul", [q, op(g, "Mul", g.node("Transpose", [k], name="k_tt", perm=[0, 1, 3, 2]), size**-0.5,
                                name="k_scale")], name="qk")
    c = op(g, "Mul", s, e, name="c_matrix")
    n = op(g, "Max", g.node("Abs", [reduce(g, "ReduceSum", c, [-1], "n_sum")], name="n_abs"),
           g.node("Exp", [g.node("Neg", [m], name="n_neg")], name="n_exp"), name="normaliser")
    c = op(g, "Div", c, op(g, "Add", n, 1e-6, name="n_eps"), name="c_normal")
    y = g.node("MatMul", [c, v], name="read")
    y = reshape(g, g.node("Transpose", [y], name="merge", perm=[0, 2, 1, 3]), [0, 0, 128], "merged")
    g.output(op(g, "Add", x, g.linear(y, "out", 128, 128), name="residual"))


@model("gated_linear_attention_chunk_log_decay", opset=20,
       pins=["g_*", "cum*", "decay_*", "q_decayed", "k_decayed", "k_t", "gla_scores", "gla_masked"])
def _(g):
    """GLA in chunks of 64: q·exp(b) times k·exp(-b) with b the running sum of log gates."""
    t, d = 64, 64
    x = g.input("x", ["chunks", t, 128], g.normal(4, t, 128))
    q, k, v = (g.linear(x, s, 128, d, bias=False) for s in "qkv")
    low = g.linear(x, "g_low", 128, 16, bias=False)
    gate = op(g, "Add", g.node("MatMul", [low, g.weight("g_up_w", 16, d)], name="g_up"), 1.0, name="g_bias")
    ls = g.node("Neg", [g.node("Softplus", [g.node("Neg", [gate], name="g_neg")], name="g_softplus")], name="g_log")
    ls = op(g, "Div", ls, 16.0, name="g_div")
    cum = g.node("CumSum", [ls, g.const(1, dtype=np.int64)], name="cum")
    qd = op(g, "Mul", q, g.node("Exp", [cum], name="decay_exp"), name="q_decayed")
    kd = op(g, "Mul", k, g.node("Exp", [g.node("Neg", [cum], name="cum_neg")], name="decay_inv"), name="k_decayed")
    s = g.node("MatMul", [qd, g.node("Transpose", [kd], name="k_t", perm=[0, 2, 1])], name="gla_scores")
    s = g.node("Trilu", [s], name="gla_masked", upper=0)
    y = op(g, "Mul", g.node("MatMul", [s, v], name="gla_mm"), d**-0.5, name="gla_scale")
    y = g.layer_norm(y, "o", d)
    y = g.node("Mul", [y, silu(g, g.linear(x, "og", 128, d), "og")], name="gated")
    g.output(g.linear(y, "out", d, 128, bias=False))


@model("s4d_vandermonde_kernel_long_convolution", opset=17,
       pins=["kernel_*", "dft_*", "prod_*", "idft*", "conv_out"])
def _(g):
    """S4D: a kernel of 1024 taps by exp(ΔA·l) summed over modes, applied in the Fourier domain."""
    c, n, length = 16, 16, 1024
    x = g.input("x", [1, length, 64], g.normal(1, length, 64))
    u = g.linear(x, "in", 64, c)
    u = g.node("Transpose", [u], name="channels_first", perm=[0, 2, 1])
    dt = np.exp(g.uniform(np.log(1e-3), np.log(0.1), c, 1, 1)).astype(np.float32)
    steps = g.node("Range", [g.const(0, dtype=np.int64), g.const(length, dtype=np.int64), g.const(1, dtype=np.int64)],
                   name="kernel_range")
    l = g.node("Cast", [steps], name="kernel_l", to=TensorProto.FLOAT)
    freq = (np.pi * np.arange(n, dtype=np.float32))[None, :, None]
    imag = op(g, "Mul", l, op(g, "Mul", g.const(dt, "dt"), freq, name="kernel_dtai"), name="kernel_angle")
    real = g.node("Exp", [op(g, "Mul", l, dt * -0.5, name="kernel_damp")], name="kernel_exp")
    amp = g.const(g.normal(c, n, 1), "c_re")
    k = op(g, "Mul", op(g, "Mul", real, g.node("Cos", [imag], name="kernel_cos"), name="kernel_mode"), amp,
           name="kernel_amp")
    k = op(g, "Mul", reduce(g, "ReduceSum", k, [1], "kernel_sum", keepdims=0), 2 * dt[:, :, 0], name="kernel_taps")
    def spectrum(a, tag, batch):
        a = reshape(g, a, [1, c, length], f"dft_{tag}_r")
        a = g.node("Pad", [a, g.ints(0, 0, 0, 0, 0, length)], name=f"dft_{tag}_pad")
        a = unsqueeze(g, a, [3], f"dft_{tag}_u")
        s = g.node("DFT", [a], name=f"dft_{tag}", axis=2, onesided=1)
        return [g.node("Gather", [s, g.const(i, dtype=np.int64)], name=f"dft_{tag}_{p}", axis=3)
                for i, p in enumerate(("re", "im"))]
    ur, ui = spectrum(u, "u", 1)
    kr, ki = spectrum(k, "k", 1)
    yr = op(g, "Sub", op(g, "Mul", ur, kr, name="prod_rr"), op(g, "Mul", ui, ki, name="prod_ii"), name="prod_re")
    yi = op(g, "Add", op(g, "Mul", ur, ki, name="prod_ri"), op(g, "Mul", ui, kr, name="prod_ir"), name="prod_im")
    # inverse by the conjugate symmetry: mirrored bins appended
    tail = list(range(length - 1, 0, -1))
    mr = g.node("Concat", [yr, g.node("Gather", [yr, g.ints(*tail)], name="prod_mr", axis=2)], name="prod_full_r", axis=2)
    mi = g.node("Concat", [yi, g.node("Neg", [g.node("Gather", [yi, g.ints(*tail)], name="prod_mi", axis=2)],
                                      name="prod_mi_neg")], name="prod_full_i", axis=2)
    full = g.node("Concat", [unsqueeze(g, mr, [3], "prod_ru"), unsqueeze(g, mi, [3], "prod_iu")], name="prod_cat",
                  axis=3)
    y = g.node("DFT", [full], name="idft", axis=2, inverse=1)
    y = reshape(g, span(g, y, 0, 1, 3, "idft_re"), [1, c, 2 * length], "idft_flat")
    y = span(g, y, 0, length, 2, "conv_out")
    y = op(g, "Add", y, op(g, "Mul", u, np.ones((c, 1)), name="skip_d"), name="skip")
    y = g.node("Transpose", [y], name="channels_last", perm=[0, 2, 1])
    g.output(g.linear(y, "out", c, 64))


@model("exponential_moving_average_mega_by_matmul", opset=13,
       pins=["ema_log", "ema_exp", "ema_power", "ema_kernel", "ema_gap*"],
       pins_bf16=["ema_log", "ema_exp", "ema_power", "ema_kernel", "ema_gap*"])
def _(g):
    """Mega's damped EMA as a Toeplitz matrix α(1-α)^(i-j) per channel, α of 0.005 to 0.5, times the sequence."""
    t, c = 128, 32
    x = g.input("x", [1, t, 64], g.normal(1, t, 64))
    u = g.linear(x, "in", 64, c)
    q = g.uniform(0.005, 0.5, c, 1, 1)
    log_keep = g.node("Log", [g.const(1 - q, "keep")], name="ema_log")
    gap = np.maximum(np.arange(t)[:, None] - np.arange(t)[None], 0)
    steps = constant(g, gap.astype(np.float32), "ema_gap")
    power = g.node("Exp", [op(g, "Mul", log_keep, steps, name="ema_power")], name="ema_exp")
    kernel = op(g, "Mul", power, q * np.tril(np.ones((t, t), np.float32)), name="ema_kernel")
    u = g.node("Transpose", [u], name="c_first", perm=[2, 1, 0])
    y = g.node("MatMul", [kernel, u], name="ema_mm")
    y = g.node("Transpose", [y], name="c_last", perm=[2, 1, 0])
    y = silu(g, op(g, "Add", y, 0.1, name="shift"), "act")
    g.output(g.linear(y, "out", c, 64))


@model("mingru_log_space_cumulative_logsumexp", opset=15,
       pins=["log_*", "a_star", "h_*"])
def _(g):
    """minGRU trained in log space (Were RNNs All We Needed): log h = a* + cumlogsumexp(log b - a*)."""
    t, d = 96, 64
    x = g.input("x", [1, t, 96], g.normal(1, t, 96))
    k = op(g, "Sub", g.linear(x, "z", 96, d), 1.5, name="z_bias")
    tilde = g.linear(x, "h_tilde_in", 96, d)
    log_z = g.node("Neg", [g.node("Softplus", [g.node("Neg", [k], name="log_nk")], name="log_sp_z")], name="log_z")
    log_c = g.node("Neg", [g.node("Softplus", [k], name="log_sp_c")], name="log_keep")
    pos = op(g, "GreaterOrEqual", tilde, 0.0, name="is_pos")
    lp = g.node("Log", [op(g, "Add", g.node("Relu", [tilde], name="log_relu"), 0.5, name="log_half")], name="log_pos")
    ln = g.node("Neg", [g.node("Softplus", [g.node("Neg", [tilde], name="log_nt")], name="log_sp_t")], name="log_negside")
    log_h = g.node("Where", [pos, lp, ln], name="log_h_tilde")
    a = g.node("CumSum", [log_c, g.const(1, dtype=np.int64)], name="a_star")
    b = op(g, "Sub", op(g, "Add", log_z, log_h, name="log_b"), a, name="log_values")
    m = reduce(g, "ReduceMax", b, [1], "log_max")
    e = g.node("Exp", [op(g, "Sub", b, m, name="log_shift")], name="log_exp")
    s = g.node("CumSum", [e, g.const(1, dtype=np.int64)], name="log_cum")
    ls = op(g, "Add", g.node("Log", [op(g, "Max", s, 1e-38, name="log_floor")], name="log_lse"), m, name="log_total")
    h = g.node("Exp", [op(g, "Add", a, ls, name="h_log")], name="h_exp")
    g.output(g.linear(h, "out", d, 96))


@model("keras_gru_reverse_stack_on_scaled_power", opset=13, pins=[], pins_bf16=["minmax_sub", "minmax_div"])
def _(g):
    """keras2onnx: a bidirectional GRU on household power in kW, scaled by min and max, and scaled back."""
    x = g.input("kw", ["n", 48, 7], np.abs(g.normal(4, 48, 7, scale=1.5)) + 0.2)
    h = op(g, "Div", op(g, "Sub", x, 0.076, name="minmax_sub"), 11.046, name="minmax_div")
    h = g.node("Transpose", [h], name="time_first", perm=[1, 0, 2])
    y = g.node("GRU", [h, g.weight("w", 2, 192, 7, scale=0.3), g.weight("r", 2, 192, 64, scale=0.12),
                       g.const(g.normal(2, 384, scale=0.05))], name="bigru", hidden_size=64, direction="bidirectional")
    y = g.node("Transpose", [y], name="batch_first", perm=[2, 0, 1, 3])
    y = reshape(g, span(g, y, -1, 2**31, 1, "last"), [-1, 128], "flat")
    y = mlp(g, y, "head", [128, 64, 12])
    g.output(op(g, "Add", op(g, "Mul", y, 11.046, name="unscale"), 0.076, name="unshift"))


@model("streaming_ring_buffer_attention_state", opset=18,
       pins=["age*", "mask_bias", "scores_masked", "softmax"])
def _(g):
    """A stream's step: the new frame is scattered into a ring of 128 keys, whose ages bias the attention."""
    ring = g.input("keys", [128, 64], g.normal(128, 64))
    values = g.input("values", [128, 64], g.normal(128, 64))
    step = g.input("step", [1], np.array([100_037], np.int64))
    frame = g.input("frame", [1, 64], g.normal(1, 64))
    slot = g.node("Mod", [step, g.ints(128)], name="slot")
    row = unsqueeze(g, slot, [1], "slot_u")
    ring = g.node("ScatterND", [ring, row, g.linear(frame, "k", 64, 64)], name="ring_k")
    values = g.node("ScatterND", [values, row, g.linear(frame, "v", 64, 64)], name="ring_v")
    q = g.linear(frame, "q", 64, 64)
    s = g.node("MatMul", [q, g.node("Transpose", [ring], name="ring_t", perm=[1, 0])], name="scores_mm")
    s = op(g, "Mul", s, 0.125, name="scores_scale")
    slots = g.const(np.arange(128), "slots", dtype=np.int64)
    age = g.node("Mod", [g.node("Sub", [step, slots], name="behind"), g.ints(128)], name="age_mod")
    age = g.node("Cast", [age], name="age", to=TensorProto.FLOAT)
    bias = op(g, "Mul", age, -0.05, name="mask_bias")
    p = g.node("Softmax", [op(g, "Add", s, bias, name="scores_masked")], name="softmax", axis=-1)
    y = g.node("MatMul", [p, values], name="attend")
    y = op(g, "Add", frame, mlp(g, y, "ffn", [64, 256, 64], "Tanh"), name="residual")
    g.output(y, ring, values)


@model("lru_linear_recurrent_unit_complex_scan", opset=19, pins=["scan", "scan/*"])
def _(g):
    """LRU: complex modes with |λ| of 0.98 to 0.9995, whose state is carried by a Scan as two real parts."""
    t, n = 512, 48
    x = g.input("x", [t, 64], g.normal(t, 64))
    radius, theta = np.sqrt(g.uniform(0.96, 0.999, n)), g.uniform(0, 0.6, n)
    lr, li = radius * np.cos(theta), radius * np.sin(theta)
    gain = np.sqrt(1 - radius**2)
    br = g.node("Mul", [g.linear(x, "b_re", 64, n, bias=False), g.const(gain, "gain")], name="u_re")
    bi = g.node("Mul", [g.linear(x, "b_im", 64, n, bias=False), "gain"], name="u_im")
    body = Body(g, "lru")
    hr, hi, ur, ui = (body.entry(s, [n]) for s in ("hr", "hi", "ur", "ui"))
    nr = op(body, "Sub", op(body, "Mul", hr, lr, name="rr"), op(body, "Mul", hi, li, name="ii"), name="rot_re")
    ni = op(body, "Add", op(body, "Mul", hr, li, name="ri"), op(body, "Mul", hi, lr, name="ir"), name="rot_im")
    nr, ni = op(body, "Add", nr, ur, name="state_re"), op(body, "Add", ni, ui, name="state_im")
    yr, yi = body.node("Identity", [nr], name="emit_re"), body.node("Identity", [ni], name="emit_im")
    zero = g.const(np.zeros(n))
    _, _, yr, yi = g.node("Scan", [zero, zero, br, bi], name="scan", outputs=4, num_scan_inputs=2,
                          body=body.graph((nr, [n]), (ni, [n]), (yr, [n]), (yi, [n])))
    y = op(g, "Sub", g.linear(yr, "c_re", n, 64, bias=False), g.linear(yi, "c_im", n, 64, bias=False), name="real")
    g.output(op(g, "Add", x, g.node("Gelu", [y], name="gelu") if g.opset >= 20 else silu(g, y, "act"), name="residual"))
