"""Large language models and mixtures of experts."""

import numpy as np
from onnx import TensorProto, helper

from .build import model
from .parts import attend, cast, constant, dot_scores, heads_of, merge_heads, mlp, op, project_qkv, reduce, reshape, \
    silu, span, unsqueeze


def massive(g, *shape, channels=((11, 900.0), (77, -350.0))):
    """Hidden states with the massive activations of Sun et al. 2024 in a few channels of the first token."""
    x = g.normal(*shape, scale=0.8)
    for c, v in channels:
        x[:, 0, c] = v
    return x


def rms(g, x, stem, n, eps=1e-5, spell="rsqrt", gain=None):
    sq = op(g, "Pow", x, 2.0, name=f"{stem}_pow") if spell != "mul" else op(g, "Mul", x, x, name=f"{stem}_pow")
    ms = op(g, "Add", reduce(g, "ReduceMean", sq, [-1], f"{stem}_mean"), eps, name=f"{stem}_eps")
    if spell == "pow":
        inv = op(g, "Pow", ms, -0.5, name=f"{stem}_inv")
    else:
        inv = g.node("Reciprocal", [g.node("Sqrt", [ms], name=f"{stem}_sqrt")], name=f"{stem}_inv")
    y = op(g, "Mul", x, inv, name=f"{stem}_norm")
    return op(g, "Mul", y, g.uniform(0.5, 1.5, n) if gain is None else gain, name=f"{stem}_gain")


@model("llama_swiglu_block_with_massive_activations", opset=17, pins=["rms_*", "down_mm", "residual", "mlp_gated"],
       pins_bf16=["rms_*"])
def _(g):
    """A SwiGLU layer whose down projection makes activations of some thousands in two channels."""
    x = g.input("hidden", ["b", "s", 128], massive(g, 1, 24, 128))
    n = rms(g, x, "rms", 128)
    a = silu(g, op(g, "Mul", g.linear(n, "gate", 128, 352, bias=False), 6.0, name="gate_scale"), "gate")
    h = op(g, "Mul", a, op(g, "Mul", g.linear(n, "up", 128, 352, bias=False), 6.0, name="up_scale"), name="mlp_gated")
    w = g.normal(352, 128, scale=0.05)
    w[:, 11] *= 12
    y = g.node("MatMul", [h, g.const(w, "down_w")], name="down_mm")
    x = op(g, "Add", x, y, name="residual")
    n = rms(g, x, "rms_f", 128)
    g.output(g.linear(n, "lm_head", 128, 512, bias=False))


@model("gemma2_geglu_softcapped_attention_and_logits", opset=20,
       pins=["rms*", "cap_*", "final_*", "softmax", "mask_add"])
def _(g):
    """Gemma 2: embeddings times √d, (1+w) norms, attention capped at 50 by tanh, logits at 30, tied embeddings."""
    ids = g.input("ids", ["b", "s"], g.rng.integers(0, 700, (1, 20)))
    table = g.const(g.normal(700, 96, scale=0.09), "embed_table")
    x = op(g, "Mul", g.node("Gather", [table, ids], name="embed"), 96**0.5, name="embed_scale")
    n = rms(g, x, "rms1", 96, eps=1e-6, gain=1 + g.normal(96, scale=0.3))
    q, k, v = project_qkv(g, n, 4, 24)
    s = dot_scores(g, q, k, 24)
    s = op(g, "Mul", g.node("Tanh", [op(g, "Div", s, 50.0, name="cap_div")], name="cap_tanh"), 50.0, name="cap_mul")
    mask = np.triu(np.full((20, 20), -2.3819763e38, np.float32), 1)
    s = op(g, "Add", s, mask[None, None], name="mask_add")
    a = rms(g, attend(g, s, v, 96), "rms2", 96, eps=1e-6, gain=1 + g.normal(96, scale=0.3))
    x = op(g, "Add", x, a, name="res1")
    n = rms(g, x, "rms3", 96, eps=1e-6)
    h = op(g, "Mul", g.node("Gelu", [g.linear(n, "gate", 96, 256, bias=False)], name="gelu", approximate="tanh"),
           g.linear(n, "up", 96, 256, bias=False), name="geglu")
    x = op(g, "Add", x, g.linear(h, "down", 256, 96, bias=False), name="res2")
    n = rms(g, x, "rms4", 96, eps=1e-6)
    l = g.node("MatMul", [n, g.node("Transpose", [table], name="tied", perm=[1, 0])], name="lm_head")
    g.output(op(g, "Mul", g.node("Tanh", [op(g, "Div", l, 30.0, name="final_div")], name="final_tanh"), 30.0,
                name="final_cap"))


@model("switch_transformer_top1_load_balance_and_z_loss", opset=13,
       pins=["router_*", "lse*", "z_*", "frac*", "aux*", "pos_*", "cap*"])
def _(g):
    """Switch: an fp32 router, capacity by cumulative counts, one-hot dispatch, the load-balancing loss and the z-loss."""
    n, e, cap = 96, 4, 36
    x = g.input("tokens", [n, 64], g.normal(n, 64))
    l = g.node("MatMul", [x, g.weight("router_w", 64, e, scale=0.3)], name="router_logits")
    p = g.node("Softmax", [l], name="router_probs", axis=-1)
    top = g.node("ArgMax", [p], name="top1", axis=-1, keepdims=0)
    hot = g.node("OneHot", [top, g.const(e, dtype=np.int64), g.const([0.0, 1.0])], name="router_onehot", axis=-1)
    pos = op(g, "Mul", g.node("CumSum", [hot, g.const(0, dtype=np.int64)], name="pos_cumsum"), hot, name="pos_in_expert")
    keep = cast(g, op(g, "LessOrEqual", pos, float(cap), name="cap_cmp"), "cap_keep")
    hot2 = op(g, "Mul", hot, keep, name="cap_hot")
    gate = g.node("ReduceSum", [op(g, "Mul", p, hot2, name="router_gate_p"), g.ints(1)], name="router_gate")
    outs = []
    for i in range(e):
        h = g.linear(g.node("Relu", [g.linear(x, f"e{i}_in", 64, 128, bias=False)], name=f"e{i}_relu"), f"e{i}_out",
                     128, 64, bias=False)
        outs.append(op(g, "Mul", h, span(g, hot2, i, i + 1, 1, f"sel{i}"), name=f"mask{i}"))
    y = op(g, "Mul", g.node("Sum", outs, name="combine"), gate, name="gated")
    frac = g.node("ReduceMean", [hot], name="frac_tokens", axes=[0], keepdims=0)
    fp = g.node("ReduceMean", [p], name="frac_probs", axes=[0], keepdims=0)
    aux = op(g, "Mul", g.node("ReduceSum", [op(g, "Mul", frac, fp, name="aux_prod")], name="aux_sum", keepdims=0),
             float(e) * 0.01, name="aux_loss")
    lse = g.node("ReduceLogSumExp", [l], name="lse", axes=[1], keepdims=0)
    z = op(g, "Mul", g.node("ReduceMean", [op(g, "Mul", lse, lse, name="z_sq")], name="z_mean", keepdims=0), 0.001,
           name="z_loss")
    g.output(op(g, "Add", x, y, name="residual"), aux, z)


@model("qwen3_qk_norm_gqa_with_kv_cache_positions", opset=17,
       pins=["rms_*", "q_rms_*", "k_rms_*", "pos*", "rope_angle", "cos", "sin", "mask_*", "softmax"])
def _(g):
    """A decode step at position 4017: per-head RMS norms of q and k, rotary at base 1e6, a cache, grouped heads."""
    hq, hk, size, past = 4, 2, 32, 96
    x = g.input("hidden", ["b", 1, 128], g.normal(1, 1, 128))
    kc = g.input("past_k", ["b", hk, "past", size], g.normal(1, hk, past, size))
    vc = g.input("past_v", ["b", hk, "past", size], g.normal(1, hk, past, size))
    pos = g.input("position", ["b", 1], np.array([[4017]], np.int64))
    valid = g.input("attention_mask", ["b", "all"], (np.arange(past + 1)[None] > 5).astype(np.int64))
    n = rms(g, x, "rms", 128, eps=1e-6)
    q = heads_of(g, g.linear(n, "q", 128, hq * size, bias=False), "q", hq, size)
    k = heads_of(g, g.linear(n, "k", 128, hk * size, bias=False), "k", hk, size)
    v = heads_of(g, g.linear(n, "v", 128, hk * size, bias=False), "v", hk, size)
    q, k = rms(g, q, "q_rms", size, eps=1e-6, spell="pow"), rms(g, k, "k_rms", size, eps=1e-6, spell="pow")
    p = unsqueeze(g, cast(g, pos, "pos_f"), [2], "pos_u")
    inv = (1e6 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    ang = g.node("MatMul", [p, g.const(inv[None, None], "inv_freq")], name="rope_angle")
    ang = g.node("Concat", [ang, ang], name="pos_twice", axis=-1)
    c, s = (unsqueeze(g, g.node(f, [ang], name=f.lower()), [1], f"{f}_u") for f in ("Cos", "Sin"))
    def rot(a, tag):
        lo, hi = span(g, a, 0, size // 2, 3, f"{tag}_lo"), span(g, a, size // 2, size, 3, f"{tag}_hi")
        r = g.node("Concat", [g.node("Neg", [hi], name=f"{tag}_neg"), lo], name=f"{tag}_half", axis=3)
        return op(g, "Add", op(g, "Mul", a, c, name=f"{tag}_cos"), op(g, "Mul", r, s, name=f"{tag}_sin"), name=f"{tag}_rot")
    q, k = rot(q, "q"), rot(k, "k")
    kk = g.node("Concat", [kc, k], name="cache_k", axis=2)
    vv = g.node("Concat", [vc, v], name="cache_v", axis=2)
    def rep(a, tag):
        a = g.node("Expand", [unsqueeze(g, a, [2], f"{tag}_u"), g.ints(1, 1, 2, 1, 1)], name=f"{tag}_expand")
        return reshape(g, a, [0, hq, -1, size], f"{tag}_rep")
    sc = dot_scores(g, q, rep(kk, "kr"), size)
    m = op(g, "Mul", op(g, "Sub", 1.0, cast(g, valid, "mask_f"), name="mask_inv"), float(np.finfo(np.float32).min),
           name="mask_min")
    sc = op(g, "Add", sc, unsqueeze(g, m, [1, 2], "mask_u"), name="mask_add")
    y = attend(g, sc, rep(vv, "vr"), 128)
    g.output(op(g, "Add", x, y, name="residual"), kk, vv)


@model("lora_adapter_alpha_over_rank_merged_late", opset=14, pins=["softmax", "rms_*"])
def _(g):
    """LoRA kept apart from the frozen weight: A of 0.02, B of 1e-4 early in training, times α/r = 2."""
    x = g.input("hidden", ["b", "s", 128], g.normal(2, 16, 128))
    n = rms(g, x, "rms", 128, spell="mul")
    q = g.linear(n, "q", 128, 128, bias=False)
    d = g.node("MatMul", [g.node("MatMul", [n, g.weight("lora_a", 128, 8, scale=0.05)], name="lora_a_mm"),
                          g.weight("lora_b", 8, 128, scale=2e-4)], name="lora_b_mm")
    q = op(g, "Add", q, op(g, "Mul", d, 2.0, name="lora_scale"), name="lora_add")
    q = heads_of(g, q, "qh", 4, 32)
    k, v = (heads_of(g, g.linear(n, s, 128, 128, bias=False), s, 4, 32) for s in "kv")
    g.output(op(g, "Add", x, attend(g, dot_scores(g, q, k, 32), v, 128), name="residual"))


@model("generation_logits_processors_penalty_bias_temperature", opset=16,
       pins=["temp", "penal*", "bias_add", "topk*", "cum*", "softmax", "prob*", "count*", "freq*",
             "logits_scatter", "seen*"])
def _(g):
    """A decoder's head: repetition penalty 1.2, frequency penalties by counts, a logit bias, temperature 0.7, top-p."""
    h = g.input("hidden", ["b", 128], g.normal(2, 128))
    ids = g.input("generated", ["b", "s"], g.rng.integers(0, 600, (2, 40)))
    l = g.node("Gemm", [h, g.weight("head_w", 128, 600, scale=0.35)], name="lm_head")
    seen = g.node("GatherElements", [l, ids], name="seen", axis=1)
    neg = op(g, "Less", seen, 0.0, name="seen_neg")
    pen = g.node("Where", [neg, op(g, "Mul", seen, 1.2, name="penal_mul"), op(g, "Div", seen, 1.2, name="penal_div")],
                 name="penalised")
    l = g.node("ScatterElements", [l, ids, pen], name="logits_scatter", axis=1)
    ones = op(g, "Add", op(g, "Mul", pen, 0.0, name="count_zero"), 1.0, name="count_ones")
    counts = g.node("ScatterElements", [op(g, "Mul", l, 0.0, name="count_base"), ids, ones], name="counts", axis=1,
                    reduction="add")
    l = op(g, "Sub", l, op(g, "Mul", counts, 0.4, name="freq_penalty"), name="freq_sub")
    bias = np.zeros(600, np.float32)
    bias[[5, 17]] = -100
    bias[3] = 4
    l = op(g, "Div", op(g, "Add", l, bias, name="bias_add"), 0.7, name="temp")
    v, i = g.node("TopK", [l, g.ints(600)], name="topk", outputs=2, axis=1)
    p = g.node("Softmax", [v], name="softmax", axis=-1)
    cum = op(g, "Sub", g.node("CumSum", [p, g.const(1, dtype=np.int64)], name="cumsum"), p, name="cum_before")
    keep = op(g, "Less", cum, 0.9, name="cum_keep")
    p = g.node("Where", [keep, p, g.const(0.0)], name="prob_kept")
    g.output(op(g, "Div", p, reduce(g, "ReduceSum", p, [1], "prob_sum"), name="prob_out"), i)


@model("speculative_decoding_acceptance_ratios_rescored", opset=22,
       pins=["p_*", "q_*", "lp*", "accept*", "ratio*", "resid*", "cum*"])
def _(g):
    """Draft and target logits of 5 tokens: min(1, p/q), cumulative acceptance, the residual distribution max(p-q, 0)."""
    h = g.input("target_hidden", [5, 128], g.normal(5, 128))
    d = g.input("draft_hidden", [5, 64], g.normal(5, 64))
    ids = g.input("draft_ids", [5, 1], g.rng.integers(0, 400, (5, 1)))
    p = g.node("Softmax", [g.linear(h, "target", 128, 400, scale=0.25)], name="p_softmax", axis=-1)
    q = g.node("Softmax", [g.linear(d, "draft", 64, 400, scale=0.3)], name="q_softmax", axis=-1)
    pi, qi = (g.node("GatherElements", [a, ids], name=f"{t}_take", axis=1) for a, t in ((p, "p"), (q, "q")))
    r = op(g, "Min", op(g, "Div", pi, qi, name="ratio_pq"), 1.0, name="accept_min")
    lp = g.node("Log", [op(g, "Max", r, 1e-9, name="lp_floor")], name="lp")
    cum = g.node("Exp", [g.node("CumSum", [lp, g.const(0, dtype=np.int64)], name="cum_log")], name="cum_accept")
    res = g.node("Relu", [op(g, "Sub", p, q, name="resid_sub")], name="resid_relu")
    res = op(g, "Div", res, op(g, "Add", reduce(g, "ReduceSum", res, [1], "resid_sum"), 1e-9, name="resid_eps"),
             name="resid_norm")
    g.output(cum, res)


@model("int4_blockwise_dequantize_linear_decoder_mlp", opset=21, pins=["rms_*"])
def _(g):
    """Olive's int4: DequantizeLinear of blocks of 32 with fp32 scales around 0.004, zero points of 8, a SwiGLU."""
    x = g.input("hidden", ["b", "s", 128], g.normal(1, 8, 128))
    n = rms(g, x, "rms", 128)
    def q4(tag, n_in, n_out):
        codes = g.rng.integers(0, 16, (n_in, n_out)).astype(np.uint8)
        packed = (codes.reshape(-1, 2)[:, 0] | (codes.reshape(-1, 2)[:, 1] << 4)).astype(np.uint8)
        t = helper.make_tensor(f"{tag}_q", TensorProto.UINT4, [n_in, n_out], packed.tobytes(), raw=True)
        g.initializers.append(t)
        z = helper.make_tensor(f"{tag}_z", TensorProto.UINT4, [n_in // 32, n_out],
                               np.full(n_in // 32 * n_out // 2, 0x88, np.uint8).tobytes(), raw=True)
        g.initializers.append(z)
        s = g.const(g.uniform(0.01, 0.03, n_in // 32, n_out), f"{tag}_s")
        return g.node("DequantizeLinear", [f"{tag}_q", s, f"{tag}_z"], name=f"{tag}_dq", axis=0, block_size=32)
    a = silu(g, g.node("MatMul", [n, q4("gate", 128, 256)], name="gate_mm"), "gate")
    h = op(g, "Mul", a, g.node("MatMul", [n, q4("up", 128, 256)], name="up_mm"), name="mul")
    g.output(op(g, "Add", x, g.node("MatMul", [h, q4("down", 256, 128)], name="down_mm"), name="residual"))


@model("smoothquant_qdq_mlp_with_outlier_channels", opset=19, pins=["ln_ln"])
def _(g):
    """Per-tensor activations and per-channel weights in int8 QDQ around two matmuls, after a LayerNorm with outliers."""
    x = g.normal(1, 32, 128)
    x[..., 40] *= 30
    x = g.input("hidden", ["b", 32, 128], x)
    h = g.layer_norm(x, "ln", 128)
    def qdq(a, scale, zp, tag):
        s, z = g.const(np.float32(scale), f"{tag}_s"), g.const(zp, f"{tag}_z", dtype=np.uint8)
        return g.node("DequantizeLinear", [g.node("QuantizeLinear", [a, s, z], name=f"{tag}_q"), s, z], name=f"{tag}_dq")
    def weight(tag, n_in, n_out):
        w = g.rng.integers(-127, 128, (n_in, n_out)).astype(np.int8)
        g.const(w, f"{tag}_w8", dtype=np.int8)
        s = g.const(g.uniform(0.5, 2, n_out) * 0.0012, f"{tag}_ws")
        return g.node("DequantizeLinear", [f"{tag}_w8", s, g.const(np.zeros(n_out), dtype=np.int8)], name=f"{tag}_wdq",
                      axis=1)
    h = g.node("MatMul", [qdq(h, 0.09, 128, "in"), weight("fc1", 128, 256)], name="fc1_mm")
    h = g.node("Relu", [h], name="relu")
    h = g.node("MatMul", [qdq(h, 0.02, 0, "mid"), weight("fc2", 256, 128)], name="fc2_mm")
    g.output(op(g, "Add", x, h, name="residual"))


@model("deberta_disentangled_scores_scaled_by_sqrt_3d", opset=15,
       pins=["softmax", "mask*"])
def _(g):
    """DeBERTa: content-to-content plus content-to-position scores gathered at log-bucketed offsets, all over √(3d)."""
    n, size = 24, 32
    x = g.input("x", ["b", n, 64], g.normal(1, n, 64))
    m = g.input("mask", ["b", n], (np.arange(n)[None] < 20).astype(np.int64))
    q, k, v = project_qkv(g, x, 2, size)
    k = op(g, "Div", k, (3 * size) ** 0.5, name="k_scaled")
    cc = g.node("MatMul", [q, g.node("Transpose", [k], name="kt", perm=[0, 1, 3, 2])], name="c2c")
    rel = g.const(g.normal(48, 64, scale=0.5), "rel_embed")
    pk = g.node("Transpose", [reshape(g, g.linear(rel, "pos_k", 64, 64), [48, 2, size], "pk")], name="pk_t", perm=[1, 2, 0])
    cp = g.node("MatMul", [q, op(g, "Div", pk, (3 * size) ** 0.5, name="pk_scaled")], name="c2p")
    off = np.clip(np.arange(n)[:, None] - np.arange(n)[None] + 24, 0, 47)
    idx = g.const(np.broadcast_to(off, (1, 2, n, n)), "offsets", dtype=np.int64)
    cp = g.node("GatherElements", [cp, idx], name="c2p_take", axis=3)
    s = op(g, "Add", cc, cp, name="scores")
    keep = g.node("Cast", [unsqueeze(g, m, [1, 2], "mask_u")], name="mask_bool", to=TensorProto.BOOL)
    s = g.node("Where", [keep, s, g.const(float(np.finfo(np.float32).min))], name="mask_where")
    g.output(op(g, "Add", x, attend(g, s, v, 64), name="residual"))


@model("olmo_z_loss_cross_entropy_of_tied_logits", opset=17, pins=["ln_ln", "ls_*", "lse*", "nll*", "z*", "loss*"])
def _(g):
    """A non-parametric LayerNorm, tied logits over 2000 tokens, cross entropy by gathered log-softmax, z-loss 1e-4·lse²."""
    x = g.input("hidden", ["n", 96], g.normal(24, 96, scale=3.0))
    t = g.input("labels", ["n", 1], g.rng.integers(0, 2000, (24, 1)))
    h = g.node("LayerNormalization", [x, g.const(np.ones(96))], name="ln_ln")
    h = op(g, "Add", h, mlp(g, h, "ffn", [96, 256, 96]), name="res")
    l = g.node("Gemm", [h, g.weight("wte", 2000, 96, scale=0.25)], name="logits", transB=1)
    ls = g.node("LogSoftmax", [l], name="ls_softmax", axis=-1)
    nll = g.node("Neg", [g.node("GatherElements", [ls, t], name="nll_take", axis=1)], name="nll")
    lse = g.node("ReduceLogSumExp", [l], name="lse", axes=[1], keepdims=1)
    z = op(g, "Mul", op(g, "Pow", lse, 2.0, name="z_sq"), 1e-4, name="z_loss")
    tot = op(g, "Add", nll, z, name="loss_tokens")
    g.output(g.node("ReduceMean", [tot], name="loss_mean", keepdims=0), tot)
