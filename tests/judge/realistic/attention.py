"""Attention: masks of many forms, position biases, capped logits, kernels instead of softmax, windows."""

import numpy as np

from .build import model
from .parts import (attend, cast, constant, count, dot_scores, heads_of, merge_heads, mlp, op, project_qkv,
                    reduce, reshape, split, unsqueeze)

LOWEST = float(np.finfo(np.float32).min)


def tokens_mask(batch, seq, *lengths, left=False):
    """i64 mask of ones for real tokens, padded on the right or the left."""
    mask = np.zeros((batch, seq), np.int64)
    for row, length in zip(mask, lengths):
        row[seq - length:] = 1 if left else row[seq - length:]
        row[:length] = row[:length] if left else 1
    return mask


@model("bert_extended_mask_minus_10000", pins=[], opset=17)
def bert_extended_mask_minus_10000(g):
    """BERT self-attention with its extended mask (1 - mask) * -10000."""
    x = g.input("x", ["batch", "seq", 128], g.normal(2, 64, 128))
    mask = g.input("attention_mask", ["batch", "seq"], tokens_mask(2, 64, 64, 41))
    m = cast(g, unsqueeze(g, mask, [1, 2], "mask_dims"), "mask_cast")
    m = op(g, "Mul", op(g, "Sub", 1.0, m, name="mask_invert"), -10000.0, name="mask_mul")
    q, k, v = project_qkv(g, x, 4, 32)
    scores = g.node("Add", [dot_scores(g, q, k, 32), m], name="mask_add")
    y = g.node("Add", [attend(g, scores, v, 128), x], name="residual")
    g.output(g.layer_norm(y, "post", 128))


@model("t5_bucket_bias_finfo_min_mask", pins=["mask_*", "bias_mask_add", "scores_add"], opset=20)
def t5_bucket_bias_finfo_min_mask(g):
    """T5 encoder attention: bias of log-spaced buckets plus (1 - mask) * finfo.min, scores unscaled."""
    x = g.input("x", [2, 48, 128], g.normal(2, 48, 128))
    mask = g.input("attention_mask", [2, 48], tokens_mask(2, 48, 48, 30).astype(np.float32))
    m = op(g, "Sub", 1.0, unsqueeze(g, mask, [1, 2], "mask_dims"), name="mask_invert")
    m = op(g, "Mul", m, LOWEST, name="mask_mul")
    distance = np.arange(48)[None, :] - np.arange(48)[:, None]
    far = 8 + (np.log(np.maximum(abs(distance), 1) / 8) / np.log(16) * 8).astype(np.int64)
    buckets = np.where(abs(distance) < 8, abs(distance), np.minimum(far, 15)) + 16 * (distance > 0)
    table = g.weight("bias_table", 32, 4, scale=1.5)
    bias = g.node("Gather", [table, g.const(buckets, dtype=np.int64)], name="bias_gather", axis=0)
    bias = g.node("Transpose", [bias], name="bias_t", perm=[2, 0, 1])
    bias = g.node("Add", [unsqueeze(g, bias, [0], "bias_dims"), m], name="bias_mask_add")
    q, k, v = project_qkv(g, x, 4, 32)
    kt = g.node("Transpose", [k], name="k_t", perm=[0, 1, 3, 2])
    scores = g.node("Add", [g.node("MatMul", [q, kt], name="scores_mm"), bias], name="scores_add")
    g.output(attend(g, scores, v, 128))


@model("bloom_alibi_cached_decode", pins=["pos_*", "alibi_*"], opset=17)
def bloom_alibi_cached_decode(g):
    """BLOOM decoding over a cache of 1500 keys: slopes times absolute key positions, added to the scores."""
    x = g.input("x", [1, 4, 128], g.normal(1, 4, 128))
    k = g.input("past_k", [1, 4, "past", 32], g.normal(1, 4, 1500, 32))
    v = g.input("past_v", [1, 4, "past", 32], g.normal(1, 4, 1500, 32))
    mask = g.input("attention_mask", [1, "past"], tokens_mask(1, 1500, 1480, left=True))
    m = cast(g, mask, "pos_mask")
    pos = g.node("CumSum", [m, g.const(1, dtype=np.int64)], name="pos_cumsum")
    pos = op(g, "Sub", pos, 1.0, name="pos_sub")
    pos = unsqueeze(g, g.node("Mul", [pos, m], name="pos_mul"), [1, 2], "pos_dims")
    slopes = g.const((2.0 ** -np.arange(0.5, 2.1, 0.5)).reshape(1, 4, 1, 1), "slopes")
    bias = g.node("Mul", [slopes, pos], name="alibi_mul")
    q = heads_of(g, g.linear(x, "q", 128, 128), "q", 4, 32)
    scores = g.node("Add", [dot_scores(g, q, k, 32), bias], name="alibi_add")
    g.output(attend(g, scores, v, 128))


@model("mpt_alibi_relative_distance", pins=[], opset=21)
def mpt_alibi_relative_distance(g):
    """MPT attention: ALiBi by distance to the query, 0 on the diagonal, and a causal Where."""
    x = g.input("x", [1, 128, 128], g.normal(1, 128, 128))
    i = count(g, 128, "steps")
    distance = g.node("Sub", [unsqueeze(g, i, [0], "cols"), unsqueeze(g, i, [1], "rows")], name="dist_sub")
    slopes = g.const((2.0 ** -np.arange(2.0, 9.0, 2)).reshape(1, 4, 1, 1), "slopes")
    bias = g.node("Mul", [distance, slopes], name="alibi_mul")
    q, k, v = project_qkv(g, x, 4, 32)
    scores = g.node("Add", [dot_scores(g, q, k, 32), bias], name="alibi_add")
    future = op(g, "Greater", distance, 0.0, name="future")
    scores = op(g, "Where", future, LOWEST, scores, name="causal_where")
    g.output(attend(g, scores, v, 128))


@model("gemma2_logit_softcap_moderate", pins=[])
def gemma2_logit_softcap_moderate(g):
    """Gemma 2 attention: tanh(s / 50) * 50 of ordinary logits, then a boolean causal mask."""
    x = g.input("x", [1, 64, 128], g.normal(1, 64, 128))
    q, k, v = project_qkv(g, x, 2, 64)
    s = op(g, "Div", dot_scores(g, q, k, 64), 50.0, name="cap_div")
    s = op(g, "Mul", g.node("Tanh", [s], name="cap_tanh"), 50.0, name="cap_mul")
    keep = g.const(np.tril(np.ones((64, 64), bool)), "causal", dtype=bool)
    g.output(attend(g, op(g, "Where", keep, s, -1e9, name="causal_where"), v, 128))


@model("grok_logit_cap_saturated", pins=["cap_*"])
def grok_logit_cap_saturated(g):
    """Grok-style cap of 30 over logits of hundreds: the order of the largest is in the last bits of tanh."""
    x = g.input("x", [1, 64, 128], g.normal(1, 64, 128, scale=1.0))
    q = heads_of(g, g.linear(x, "q", 128, 128, scale=0.4), "q", 2, 64)
    k = heads_of(g, g.linear(x, "k", 128, 128, scale=0.4), "k", 2, 64)
    v = heads_of(g, g.linear(x, "v", 128, 128), "v", 2, 64)
    s = op(g, "Mul", dot_scores(g, q, k, 64), 1 / 30, name="cap_in")
    s = op(g, "Mul", 30.0, g.node("Tanh", [s], name="cap_tanh"), name="cap_out")
    g.output(attend(g, s, v, 128))


@model("performer_favor_positive_features", pins=["?_half_sq", "?_sq", "?_sub*", "?_eps", "?_kernel_scale"])
def performer_favor_positive_features(g):
    """Performer FAVOR+: exp(w·x - |x|²/2 - max) + eps for queries and keys, then a normalised product."""
    x = g.input("x", [1, 256, 128], g.normal(1, 256, 128, scale=1.5))
    q, k, v = project_qkv(g, x, 2, 64)
    w = g.weight("features", 64, 128, scale=1.0)
    maps = {}
    for stem, of, axes in (("q", q, [-1]), ("k", k, [-1, -2])):
        of = op(g, "Mul", of, 64**-0.25, name=f"{stem}_norm")
        dash = g.node("MatMul", [of, w], name=f"{stem}_features_mm")
        square = reduce(g, "ReduceSum", g.node("Mul", [of, of], name=f"{stem}_sq"), [-1], f"{stem}_sum")
        dash_less = op(g, "Sub", dash, op(g, "Mul", square, 0.5, name=f"{stem}_half_sq"), name=f"{stem}_sub")
        top = reduce(g, "ReduceMax", dash, axes, f"{stem}_max")
        e = g.node("Exp", [g.node("Sub", [dash_less, top], name=f"{stem}_sub_max")], name=f"{stem}_exp")
        maps[stem] = op(g, "Mul", op(g, "Add", e, 1e-4, name=f"{stem}_eps"), 128**-0.5,
                        name=f"{stem}_kernel_scale")
    kt = g.node("Transpose", [maps["k"]], name="kernel_k_t", perm=[0, 1, 3, 2])
    num = g.node("MatMul", [maps["q"], g.node("MatMul", [kt, v], name="kv_mm")], name="num_mm")
    total = g.node("Transpose", [reduce(g, "ReduceSum", maps["k"], [2], "k_total")], name="k_total_t",
                   perm=[0, 1, 3, 2])
    den = g.node("MatMul", [maps["q"], total], name="den_mm")
    g.output(merge_heads(g, g.node("Div", [num, den], name="normalise"), 128))


@model("linear_attention_elu_long_sums", pins=["num_mm", "den_mm", "den_eps", "normalise"], pins_bf16=[],
       opset=20)
def linear_attention_elu_long_sums(g):
    """Linear transformer, elu(x) + 1 kernels: sums over 2048 keys grow past 65504 before they are divided."""
    x = g.input("x", [1, "seq", 128], g.normal(1, 2048, 128))
    q, k, v = project_qkv(g, x, 2, 64)
    q = op(g, "Add", g.node("Elu", [q], name="q_elu"), 1.0, name="q_plus")
    k = op(g, "Add", g.node("Elu", [k], name="k_elu"), 1.0, name="k_plus")
    v = op(g, "Add", v, 0.9, name="v_offset")
    kt = g.node("Transpose", [k], name="kernel_k_t", perm=[0, 1, 3, 2])
    num = g.node("MatMul", [q, g.node("MatMul", [kt, v], name="kv_mm")], name="num_mm")
    den = g.node("MatMul", [q, reduce(g, "ReduceSum", kt, [-1], "k_total")], name="den_mm")
    y = g.node("Div", [num, op(g, "Add", den, 1e-6, name="den_eps")], name="normalise")
    g.output(merge_heads(g, y, 128))


@model("efficient_attention_two_softmaxes", pins=[])
def efficient_attention_two_softmaxes(g):
    """Efficient attention: softmax of queries over features and of keys over 1024 positions."""
    x = g.input("x", [1, 1024, 96], g.normal(1, 1024, 96))
    q, k, v = project_qkv(g, x, 2, 48)
    q = g.node("Softmax", [q], name="q_softmax", axis=-1)
    k = g.node("Softmax", [k], name="k_softmax", axis=2)
    kt = g.node("Transpose", [k], name="kernel_k_t", perm=[0, 1, 3, 2])
    y = g.node("MatMul", [q, g.node("MatMul", [kt, v], name="kv_mm")], name="context_mm")
    g.output(g.node("Add", [merge_heads(g, y, 96), x], name="residual"))


@model("llama_left_padded_fully_masked_rows", pins=["mask_*", "causal_*"], opset=18)
def llama_left_padded_fully_masked_rows(g):
    """Left-padded causal batch: rows of padding see finfo.min alone, and must come out uniform, not NaN."""
    x = g.input("x", ["batch", "seq", 128], g.normal(2, 40, 128))
    mask = g.input("attention_mask", ["batch", "seq"], tokens_mask(2, 40, 40, 28, left=True))
    seq = g.node("Gather", [g.node("Shape", [x], name="shape"), g.const(1, dtype=np.int64)], name="seq_len")
    i = count(g, seq, "steps")
    later = g.node("Greater", [unsqueeze(g, i, [0], "cols"), unsqueeze(g, i, [1], "rows")], name="later")
    causal = op(g, "Where", later, LOWEST, 0.0, name="causal_where")
    padding = g.node("Cast", [unsqueeze(g, mask, [1, 2], "pad_dims")], name="pad_bool", to=9)
    m = op(g, "Where", padding, unsqueeze(g, causal, [0, 1], "causal_dims"), LOWEST, name="mask_where")
    q, k, v = project_qkv(g, x, 4, 32)
    scores = g.node("Add", [dot_scores(g, q, k, 32), m], name="mask_add")
    g.output(attend(g, op(g, "Max", scores, LOWEST, name="mask_max"), v, 128))


@model("detr_cross_attention_padding_neg_inf", pins=[])
def detr_cross_attention_padding_neg_inf(g):
    """DETR decoder: object queries attend to image tokens, padded ones at -inf; no row is all masked."""
    x = g.input("queries", [1, 50, 128], g.normal(1, 50, 128))
    memory = g.input("memory", [1, 300, 128], g.normal(1, 300, 128))
    padded = g.input("padding", [1, 300], np.arange(300)[None, :] >= 220)
    m = op(g, "Where", unsqueeze(g, padded, [1, 2], "mask_dims"), -np.inf, 0.0, name="mask_where")
    q, k, v = project_qkv(g, x, 4, 32, context=memory)
    scores = g.node("Add", [dot_scores(g, q, k, 32), m], name="mask_add")
    y = g.node("Add", [attend(g, scores, v, 128), x], name="residual")
    g.output(mlp(g, g.layer_norm(y, "norm", 128), "ffn", [128, 256, 128]))


@model("swin_shifted_window_mask_minus_100", pins=[])
def swin_shifted_window_mask_minus_100(g):
    """Swin block of shifted 7x7 windows: table of relative biases and a constant mask of 0 and -100."""
    x = g.input("x", [4, 49, 96], g.normal(4, 49, 96))
    q, k, v = project_qkv(g, x, 3, 32)
    bias = g.const(g.normal(1, 3, 49, 49, scale=0.5), "relative_bias")
    w, i = np.arange(4)[:, None], np.arange(49)[None, :]
    region = (w % 2) * (i % 7 > 3) + 2 * (w // 2) * (i // 7 > 3)
    mask = np.where(region[:, None, :, None] == region[:, None, None, :], 0.0, -100.0)
    scores = g.node("Add", [dot_scores(g, q, k, 32), bias], name="bias_add")
    scores = g.node("Add", [scores, constant(g, mask, "window_mask")], name="mask_add")
    g.output(attend(g, scores, v, 96))


@model("superglue_log_sinkhorn_matching", pins=["u*_sub", "v*_sub", "plus_*", "final_*"], opset=21)
def superglue_log_sinkhorn_matching(g):
    """SuperGlue matching: log-space Sinkhorn over descriptors' scores, exp of the sum of potentials."""
    a = g.input("desc0", [1, 64, 128], g.normal(1, 64, 128))
    b = g.input("desc1", [1, 64, 128], g.normal(1, 64, 128))
    a, b = g.linear(a, "proj0", 128, 128), g.linear(b, "proj1", 128, 128)
    bt = g.node("Transpose", [b], name="b_t", perm=[0, 2, 1])
    z = op(g, "Mul", g.node("MatMul", [a, bt], name="sim_mm"), 0.25, name="sim_scale")
    mu = -float(np.log(128))
    v = g.const(np.zeros((1, 1, 64)))
    for i in range(6):
        lse = reduce(g, "ReduceLogSumExp", g.node("Add", [z, v], name=f"plus_v{i}"), [2], f"rows{i}")
        u = op(g, "Sub", mu, lse, name=f"u{i}_sub")
        lse = reduce(g, "ReduceLogSumExp", g.node("Add", [z, u], name=f"plus_u{i}"), [1], f"cols{i}")
        v = op(g, "Sub", mu, lse, name=f"v{i}_sub")
    z = g.node("Add", [g.node("Add", [z, u], name="final_u"), v], name="final_v")
    p = g.node("Exp", [op(g, "Add", z, -mu, name="final_norm")], name="exp")
    g.output(g.node("MatMul", [p, b], name="gather_mm"))


@model("gau_squared_relu_divided_by_length",
       pins=["scores_div", "scores_relu", "scores_sq", "attend_mm"], pins_bf16=[], opset=21)
def gau_squared_relu_divided_by_length(g):
    """Gated attention unit: relu(q·k / n)² of about 1e-6, which sums with v to something of ordinary size."""
    x = g.input("x", [1, 1024, 96], g.normal(1, 1024, 96))
    base = g.linear(x, "base", 96, 64)
    base = g.node("Mul", [base, g.node("Sigmoid", [base], name="base_sig")], name="base_silu")
    gammas = [g.const(g.normal(64, scale=0.3) + 0.6, f"gamma_{s}") for s in "qk"]
    q, k = (g.node("Mul", [base, gamma], name=f"{s}_gamma") for s, gamma in zip("qk", gammas))
    kt = g.node("Transpose", [k], name="k_t", perm=[0, 2, 1])
    s = op(g, "Div", g.node("MatMul", [q, kt], name="scores_mm"), 1024.0, name="scores_div")
    s = g.node("Relu", [s], name="scores_relu")
    s = g.node("Mul", [s, s], name="scores_sq")
    y = g.node("MatMul", [s, g.linear(x, "v", 96, 96)], name="attend_mm")
    y = op(g, "Mul", y, 1e3, name="rescale")
    y = op(g, "LayerNormalization", y, np.ones(96), name="norm")
    gate = g.linear(x, "gate", 96, 96)
    g.output(g.linear(g.node("Mul", [y, gate], name="gated"), "out", 96, 96))


@model("local_gaussian_bias_squared_distance", pins=["dist_*", "gauss_*"])
def local_gaussian_bias_squared_distance(g):
    """Localness attention: -(i - centre_i)² / (2 σ²) over 600 frames, squares past 65504."""
    x = g.input("x", [1, "frames", 96], g.normal(1, 600, 96))
    shape = g.node("Shape", [x], name="shape")
    i = count(g, g.node("Gather", [shape, g.const(1, dtype=np.int64)], name="frames_n"), "frame")
    centre = g.node("Sigmoid", [g.linear(x, "centre", 96, 1, scale=0.1)], name="centre_sig")
    offset = op(g, "Mul", op(g, "Sub", centre, 0.5, name="dist_half"), 20.0, name="dist_offset")
    centre = g.node("Add", [unsqueeze(g, i, [0, 2], "dist_rows"), offset], name="dist_centre")
    d = g.node("Sub", [unsqueeze(g, i, [0, 1], "dist_cols"), centre], name="dist_sub")
    d = g.node("Mul", [d, d], name="dist_sq")
    bias = op(g, "Div", g.node("Neg", [d], name="dist_neg"), 2 * 90.0**2, name="gauss_div")
    q, k, v = project_qkv(g, x, 2, 48)
    scores = g.node("Add", [dot_scores(g, q, k, 48), unsqueeze(g, bias, [1], "gauss_dims")], name="gauss_add")
    g.output(attend(g, scores, v, 96))


@model("tts_aligner_distance_log_prior", pins=["diff_*", "logit_scale", "prior_add", "posterior_add"],
       opset=18)
def tts_aligner_distance_log_prior(g):
    """RAD-TTS aligner: squared distances of mel and text features, log_softmax plus log(prior + 1e-8)."""
    mel = g.input("mel", [1, 80, 120], g.uniform(-11.5, 2.0, 1, 80, 120))
    text = g.input("text", [1, 128, 40], g.normal(1, 128, 40))
    t, s = np.arange(120)[:, None] / 120, np.arange(40)[None, :] / 40
    prior = np.exp(-((t - s) ** 2) / 0.02)
    prior = g.input("prior", [1, 120, 40], np.where(prior < 1e-6, 0, prior)[None].astype(np.float32))
    q = g.conv(mel, "query", 80, 80, 3, dims=1, pads=[1, 1])
    k = g.conv(text, "key", 128, 80, 3, dims=1, pads=[1, 1])
    d = g.node("Sub", [unsqueeze(g, q, [3], "diff_q"), unsqueeze(g, k, [2], "diff_k")], name="diff_sub")
    d = reduce(g, "ReduceSum", g.node("Mul", [d, d], name="diff_sq"), [1], "diff_sum", keepdims=0)
    logits = g.node("LogSoftmax", [op(g, "Mul", d, -0.005, name="logit_scale")], name="log_softmax", axis=2)
    lp = g.node("Log", [op(g, "Add", prior, 1e-8, name="prior_add")], name="prior_log")
    p = g.node("Softmax", [g.node("Add", [logits, lp], name="posterior_add")], name="softmax", axis=2)
    text = g.node("Transpose", [text], name="text_t", perm=[0, 2, 1])
    g.output(g.node("MatMul", [p, text], name="align_mm"))


@model("talking_heads_mixed_logits", pins=[], opset=18)
def talking_heads_mixed_logits(g):
    """Talking heads: logits and weights mixed across heads by small products, as Einsum."""
    x = g.input("x", [1, 64, 128], g.normal(1, 64, 128))
    qkv = reshape(g, g.linear(x, "qkv", 128, 384), [1, 64, 3, 4, 32], "qkv_split")
    qkv = g.node("Transpose", [qkv], name="qkv_t", perm=[2, 0, 3, 1, 4])
    q, k, v = (g.node("Squeeze", [part, g.ints(0)], name=f"{s}_squeeze")
               for s, part in zip("qkv", split(g, qkv, 3, 0, "qkv_parts")))
    s = g.node("Einsum", [q, k], name="scores_einsum", equation="bhid,bhjd->bhij")
    s = op(g, "Mul", s, 32**-0.5, name="scores_scale")
    s = g.node("Einsum", [s, g.weight("mix_pre", 4, 4)], name="pre_mix", equation="bhij,hk->bkij")
    p = g.node("Softmax", [s], name="softmax", axis=-1)
    p = g.node("Einsum", [p, g.weight("mix_post", 4, 4)], name="post_mix", equation="bhij,hk->bkij")
    g.output(merge_heads(g, g.node("Einsum", [p, v], name="attend", equation="bhij,bhjd->bhid"), 128))
