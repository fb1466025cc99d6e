"""Attention of encoders and decoders, with the masks and biases of their conventions."""

import numpy as np

from .build import model
from .parts import attend, dot_scores, heads_of, merge_heads, mlp, project_qkv
from .named_parts import BOOL, FMIN, INT64, Part, ints, norm_written_out


# Sums of two finfo.min are -inf, as in old BART: in fp32 that still leaves every row a finite score.
# finfo.min is above bf16's largest number too, and 0 * -inf is NaN, so bf16 wants the same pins.
@model("bart_decoder_causal_plus_padding_finfo_min", pins=["mask_*", "softmax"], opset=14)
def bart_decoder(g):
    n, d = 24, 64
    ids = g.input("input_ids", ["batch", "seq"], g.rng.integers(3, 500, (2, n)))
    keep = g.input("attention_mask", ["batch", "seq"], (np.arange(n) < np.array([[24], [17]])).astype(np.int64))
    x = g.node("Gather", [g.weight("embed", 500, d, scale=1.0), ids], name="embed_gather")
    x = norm_written_out(g, x, "embed", d)
    m = Part(g, "mask", constants=True)
    size = m.dim(ids, 1)
    steps = m.count(size)
    causal = m("Where", m("Less", m.unsq(steps, 0), m.unsq(m("Add", steps, 1.0), 1)), 0.0, FMIN)
    pad = m("Mul", m("Sub", 1.0, m.cast(m.unsq(keep, 1, 2))), FMIN)
    pad = m("Where", m.cast(m("Sub", 1.0, m.cast(m.unsq(keep, 1, 2))), BOOL), FMIN, pad)
    mask = m("Add", m.unsq(causal, 0, 1), pad)
    q, k, v = project_qkv(g, x, 4, 16)
    scores = m("Add", dot_scores(g, q, k, 16), mask, name="add_to_scores")
    y = g.node("Add", [x, attend(g, scores, v, d)], name="residual")
    y = mlp(g, norm_written_out(g, y, "ffn", d), "ffn", [d, 4 * d, d], "Relu")
    g.output(y)


# -10000 fits fp16 and kills the weights in either format; distances to 511 are exact in fp16, not in bf16.
@model("longformer_band_mask_minus_10000_by_distance", pins=["softmax"], pins_bf16=["band_*", "softmax"], opset=17)
def longformer(g):
    n, d = 512, 64
    x = g.input("hidden", [1, "seq", d], g.normal(1, n, d))
    b = Part(g, "band")
    steps = b.count(b.dim(x, 1))
    far = b("Greater", b("Abs", b("Sub", b.unsq(steps, 0), b.unsq(steps, 1))), 32.0)
    glob = b("Less", b("Min", b.unsq(steps, 0), b.unsq(steps, 1)), 1.0)
    mask = b("Where", b("And", far, b("Not", glob)), -10000.0, 0.0)
    q, k, v = project_qkv(g, g.layer_norm(x, "pre", d), 4, 16)
    scores = g.node("Add", [dot_scores(g, q, k, 16), mask], name="masked_scores")
    g.output(g.node("Add", [x, attend(g, scores, v, d)], name="residual"))


# Only its range is delicate: -2.38e38 is within bf16's.
@model("paligemma_prefix_lm_cumsum_of_block_starts", pins=["mask_where", "mask_fill", "mask_add", "softmax"],
       pins_bf16=["softmax"], opset=23)
def paligemma(g):
    n, d = 40, 64
    x = g.input("tokens", [2, n, d], g.normal(2, n, d))
    starts = (np.arange(n) >= np.array([[20], [28]])).astype(np.int64)
    ar = g.input("mask_ar", [2, n], starts)
    valid = g.input("input_mask", [2, n], np.arange(n)[None] < np.array([[40], [33]]))
    m = Part(g, "mask")
    block = m("CumSum", ar, np.int64(1))
    seen = m("LessOrEqual", m.unsq(block, 1), m.unsq(block, 2))
    both = m("And", seen, m.unsq(valid, 1))
    mask = m("Where", m.unsq(both, 1), 0.0, m("Mul", 1.0, -2.3819763e38, name="fill"), name="where")
    q, k, v = project_qkv(g, x, 4, 16)
    g.output(attend(g, m("Add", dot_scores(g, q, k, 16), mask, name="add"), v, d))


# Slopes times distances: precise where weights are not nil. In bf16 distances above 256 are not whole any more, and
# a score of 8 is off by 0.03.
@model("mosaicbert_symmetric_alibi_512", pins=["scores_plus_alibi", "softmax"],
       pins_bf16=["alibi_*", "scores_plus_alibi", "softmax"], opset=16)
def mosaicbert(g):
    n, d, h = 512, 64, 8
    x = g.input("hidden", [1, "seq", d], g.normal(1, n, d))
    a = Part(g, "alibi", constants=True)
    steps = a.count(a.dim(x, 1))
    dist = a("Neg", a("Abs", a("Sub", a.unsq(steps, 0), a.unsq(steps, 1))))
    slopes = a("Pow", 2.0, np.arange(-1, -h - 1, -1.0).reshape(1, h, 1, 1))
    bias = a("Mul", slopes, a.unsq(dist, 0, 1))
    q, k, v = project_qkv(g, x, h, 8)
    scores = g.node("Add", [dot_scores(g, q, k, 8), bias], name="scores_plus_alibi")
    y = attend(g, scores, v, d)
    y = g.node("Add", [y, x], name="residual")
    g.output(mlp(g, norm_written_out(g, y, "out", d), "glu", [d, 256, d], "Relu"))


# TensorFlow's mask * -1e9: in fp16 that is 0 * -inf.
@model("music_transformer_skewed_relative_logits_mask_1e9", pins=["tfmask_*", "softmax"], pins_bf16=["softmax"], opset=13)
def music_transformer(g):
    n, h, c = 64, 4, 16
    x = g.input("events", ["batch", n, 64], g.normal(2, n, 64))
    q, k, v = project_qkv(g, x, h, c)
    e = g.weight("rel_embed", h, n, c, scale=0.25)
    qe = g.node("MatMul", [q, g.node("Transpose", [e], name="e_t", perm=[0, 2, 1])], name="qe_mm")
    s = Part(g, "skew")
    padded = s("Pad", qe, ints(0, 0, 0, 1, 0, 0, 0, 0), 0.0)
    rel = s.cut(s.reshape(padded, 0, h, n + 1, n), 1, n + 1, 2)
    kt = g.node("Transpose", [k], name="k_t", perm=[0, 1, 3, 2])
    logits = g.node("Add", [g.node("MatMul", [q, kt], name="qk_mm"), rel], name="logits")
    m = Part(g, "tfmask")
    scaled = g.node("Div", [logits, g.const(4.0)], name="logits_scaled")
    ahead = np.triu(np.ones((n, n)), 1)
    scores = m("Add", scaled, m("Mul", ahead, -1e9, name="times_1e9"), name="add")
    g.output(attend(g, scores, v, 64))


# The Fourier features of the pixels are angles to 48 * pi: fp32. Everything else is ordinary.
@model("perceiver_latents_read_fourier_pixels", pins=["fourier_*", "softmax"], opset=23)
def perceiver(g):
    s, d, bands = 48, 64, 8
    img = g.input("image", [1, 3, s, s], g.normal(1, 3, s, s))
    f = Part(g, "fourier")
    line = f("Sub", f("Mul", f.count(s), 2 / (s - 1)), 1.0)
    ys = f("Expand", f.reshape(line, s, 1, 1), ints(s, s, 1))
    xs = f("Expand", f.reshape(line, 1, s, 1), ints(s, s, 1))
    pos = f.unsq(f.cat(-1, ys, xs), -1)
    ang = f.reshape(f("Mul", f("Mul", pos, np.linspace(1, s / 2, bands)), np.pi), s * s, 2 * bands)
    enc = f.unsq(f.cat(-1, f("Sin", ang), f("Cos", ang), f.reshape(pos, s * s, 2)), 0)
    rows = g.node("Reshape", [g.node("Transpose", [img], name="nhwc", perm=[0, 2, 3, 1]), g.ints(1, s * s, 3)], name="rows")
    data = g.node("Concat", [rows, enc], name="data", axis=-1)
    data = g.linear(data, "embed", 3 + 4 * bands + 2, d)
    latents = g.const(g.normal(1, 32, d), "latents")
    data = g.layer_norm(data, "data", d)
    q, k, v = project_qkv(g, g.layer_norm(latents, "lat", d), 1, d, data)
    y = g.node("Add", [latents, attend(g, dot_scores(g, q, k, d), v, d)], name="residual")
    g.output(mlp(g, y, "mlp", [d, 128, d], "Gelu"))


# A cache of 256 slots written at the step's position; slots after it hold whatever and are masked by finfo.min.
@model("static_kv_cache_scatter_then_position_mask", pins=["mask_*", "softmax"], opset=22)
def static_cache(g):
    n, h, c = 256, 4, 16
    x = g.input("hidden", [1, 1, 64], g.normal(1, 1, 64))
    at = g.input("cache_position", [1], np.array([130]))
    past = [g.input(f"past_{s}", [1, h, n, c], g.normal(1, h, n, c)) for s in "kv"]
    q, k, v = project_qkv(g, g.layer_norm(x, "pre", 64), h, c)
    index = g.node("Expand", [g.node("Reshape", [at, g.ints(1, 1, 1, 1)], name="at"), g.ints(1, h, 1, c)], name="index")
    k, v = [g.node("ScatterElements", [p, index, new], name=f"write_{s}", axis=2)
            for s, p, new in (("k", past[0], k), ("v", past[1], v))]
    m = Part(g, "mask")
    slots = m("Range", np.int64(0), m.dim(past[0], 2), np.int64(1))
    mask = m("Where", m("Greater", slots, at), FMIN, 0.0)
    scores = m("Add", dot_scores(g, q, k, c), m.unsq(mask, 0, 1, 2), name="add_to_scores")
    y = g.node("Add", [x, attend(g, scores, v, 64)], name="residual")
    g.output(y, k, v)


# cos(pi/2 * i/M) of the positions; sums of 512 keys below the bar.
@model("cosformer_reweighted_relu_attention", pins=["pos_*", "z_*"], opset=15)
def cosformer(g):
    n, h, c = 512, 4, 16
    x = g.input("hidden", [1, "seq", 64], g.normal(1, n, 64))
    q, k, v = project_qkv(g, x, h, c)
    q, k = g.node("Relu", [q], name="q_relu"), g.node("Relu", [k], name="k_relu")
    p = Part(g, "pos")
    size = p.dim(x, 1)
    ang = p.unsq(p("Div", p("Mul", p("Add", p.count(size), 1.0), np.pi / 2), p.cast(size)), 1)
    sin, cos = p("Sin", ang), p("Cos", ang)
    cat = lambda t, s: g.node("Concat", [g.node("Mul", [t, sin], name=f"{s}_sin"), g.node("Mul", [t, cos], name=f"{s}_cos")], name=f"{s}_both", axis=-1)
    q2, k2 = cat(q, "q"), cat(k, "k")
    kv = g.node("MatMul", [g.node("Transpose", [k2], name="k_t", perm=[0, 1, 3, 2]), v], name="kv_mm")
    top = g.node("MatMul", [q2, kv], name="qkv_mm")
    z = Part(g, "z")
    ksum = z.red("ReduceSum", k2, 2)
    below = z("Max", z.red("ReduceSum", z("Mul", q2, ksum), -1), 1e-6)
    g.output(merge_heads(g, z("Div", top, below), 64))


# The logarithm's buckets become indices; finfo.min under the softmax, zeros after it (XSoftmax).
@model("deberta_v2_log_buckets_c2p_with_xsoftmax", pins=["bucket_*", "xsoft_*", "softmax"], opset=17)
def deberta(g):
    n, h, c, mid, top = 192, 4, 16, 32, 256
    x = g.input("hidden", [1, n, 64], g.normal(1, n, 64))
    keep = g.input("mask", [1, n], np.arange(n)[None] < 150)
    q, k, v = project_qkv(g, x, h, c)
    b = Part(g, "bucket", constants=True)
    steps = b.count(n)
    rel = b("Sub", b.unsq(steps, 1), b.unsq(steps, 0))
    near = b("And", b("Less", rel, float(mid)), b("Greater", rel, -float(mid)))
    mag = b("Where", near, mid - 1.0, b("Abs", rel))
    log = b("Div", b("Log", b("Div", mag, float(mid))), float(np.log((top - 1) / mid)))
    log = b("Add", b("Ceil", b("Mul", log, mid - 1.0)), float(mid))
    where = b("Where", b("LessOrEqual", mag, float(mid)), rel, b("Mul", log, b("Sign", rel)))
    index = b.cast(b("Clip", b("Add", where, 64.0), 0.0, 127.0), INT64)
    table = g.linear(g.const(g.normal(128, 64), "rel_embeddings"), "pos_key", 64, 64)
    table = g.node("Transpose", [g.node("Reshape", [table, g.ints(128, h, c)], name="pk_r")], name="pk_t", perm=[1, 2, 0])
    c2p = g.node("MatMul", [q, table], name="c2p_mm")
    full = b("Expand", b.unsq(index, 0, 1), ints(1, h, n, n))
    c2p = g.node("GatherElements", [c2p, full], name="c2p_gather", axis=3)
    kt = g.node("Transpose", [k], name="k_t", perm=[0, 1, 3, 2])
    scores = g.node("Add", [g.node("MatMul", [q, kt], name="c2c_mm"), c2p], name="scores")
    scores = g.node("Div", [scores, g.const((2 * c) ** 0.5)], name="scores_scaled")
    s = Part(g, "xsoft")
    pair = s.unsq(s("And", s.unsq(keep, 1), s.unsq(keep, 2)), 1)
    probs = g.node("Softmax", [s("Where", pair, scores, FMIN)], name="softmax", axis=-1)
    probs = s("Where", pair, probs, 0.0)
    g.output(merge_heads(g, g.node("MatMul", [probs, v], name="attend_mm"), 64))


# Nothing that the op list does not know: a mean over the pixels, a softmax.
@model("clip_resnet_attention_pool_mean_token", pins=["pool_mean", "softmax"], opset=23)
def clip_pool(g):
    img = g.input("image", ["batch", 3, 56, 56], g.normal(2, 3, 56, 56))
    x = g.conv(img, "stem", 3, 32, 4, strides=[4, 4])
    x = g.node("Relu", [x], name="stem_relu")
    x = g.node("Relu", [g.conv(x, "body", 32, 64, 2, strides=[2, 2])], name="body_relu")
    x = g.node("Transpose", [g.node("Reshape", [x, g.ints(0, 64, 49)], name="flat")], name="tokens", perm=[0, 2, 1])
    mean = g.node("ReduceMean", [x, g.ints(1)], name="pool_mean", keepdims=1)
    x = g.node("Concat", [mean, x], name="cat", axis=1)
    x = g.node("Add", [x, g.const(g.normal(50, 64, scale=0.1), "positions")], name="add_pos")
    first = g.node("Slice", [x, g.ints(0), g.ints(1), g.ints(1)], name="first")
    k, v = heads_of(g, g.linear(x, "k", 64, 64), "k", 4, 16), heads_of(g, g.linear(x, "v", 64, 64), "v", 4, 16)
    q = heads_of(g, g.linear(first, "q", 64, 64), "q", 4, 16)
    g.output(attend(g, dot_scores(g, q, k, 16), v, 64))


# F.normalize over 784 tokens with its clamp at 1e-12.
@model("xcit_cross_covariance_over_784_tokens", pins=["l2_*", "softmax"], opset=17)
def xcit(g):
    n, h, c = 784, 4, 16
    x = g.input("tokens", [1, n, 64], g.normal(1, n, 64))
    y = g.layer_norm(x, "pre", 64)
    q, k, v = [g.node("Transpose", [t], name=f"{s}_ct", perm=[0, 1, 3, 2]) for s, t in zip("qkv", project_qkv(g, y, h, c))]
    l2 = Part(g, "l2", constants=True)
    unit = lambda t: l2("Div", t, l2("Expand", l2("Clip", l2.red("ReduceL2", t, -1), 1e-12), l2("Shape", t)))
    kt = g.node("Transpose", [unit(k)], name="k_back", perm=[0, 1, 3, 2])
    cov = g.node("MatMul", [unit(q), kt], name="cov_mm")
    cov = g.node("Mul", [cov, g.const(g.uniform(1, 8, h, 1, 1), "temperature")], name="cov_temp")
    probs = g.node("Softmax", [cov], name="softmax", axis=-1)
    out = g.node("MatMul", [probs, v], name="attend_mm")
    out = g.node("Transpose", [out], name="back", perm=[0, 3, 1, 2])
    out = g.linear(g.node("Reshape", [out, g.ints(0, 0, 64)], name="flat"), "proj", 64, 64)
    g.output(g.node("Add", [x, out], name="residual"))


# The fused operators of opset 23, as torch.onnx's dynamo exporter emits them, with tables of cos and sin made in the
# graph from positions near 4000, and a float mask of finfo.min.
@model("opset23_fused_attention_grouped_queries_float_mask", pins=["cache_*", "mask_*", "attention"], opset=23)
def fused(g):
    n, h, kvh, c = 40, 4, 2, 32
    x = g.input("hidden", [1, "seq", 128], g.normal(1, n, 128))
    ids = g.input("position_ids", [1, "seq"], np.arange(4000, 4000 + n)[None])
    keep = g.input("attention_mask", [1, "seq"], np.arange(n)[None] >= 5)
    y = g.node("RMSNormalization", [x, g.const(np.ones(128), "rms_w")], name="rms", axis=-1, epsilon=1e-6)
    r = Part(g, "cache")
    ang = r("Mul", r.unsq(r.cast(ids), 2), 10000.0 ** (-np.arange(0, c, 2) / c))
    cos, sin = r("Cos", ang), r("Sin", ang)
    q, k, v = (heads_of(g, g.linear(y, s, 128, m * c, bias=False), s, m, c) for s, m in (("q", h), ("k", kvh), ("v", kvh)))
    q, k = (g.node("RotaryEmbedding", [t, cos, sin], name=f"turn_{s}") for s, t in (("q", q), ("k", k)))
    m = Part(g, "mask")
    steps = m("Range", np.int64(0), m.dim(x, 1), np.int64(1))
    ok = m("And", m("LessOrEqual", m.unsq(steps, 0), m.unsq(steps, 1)), m.unsq(keep, 1, 2))
    mask = m("Where", ok, 0.0, FMIN)
    out = g.node("Attention", [q, k, v, mask], name="attention", scale=c**-0.5)
    out = g.node("Transpose", [out], name="merge", perm=[0, 2, 1, 3])
    out = g.linear(g.node("Reshape", [out, g.ints(0, 0, h * c)], name="flat"), "o", h * c, 128, bias=False)
    x = g.node("Add", [x, out], name="residual")
    y = g.node("RMSNormalization", [x, g.const(np.ones(128), "rms2_w")], name="rms2", axis=-1, epsilon=1e-6)
    gate = g.linear(y, "gate", 128, 256, bias=False)
    act = g.node("Mul", [gate, g.node("Sigmoid", [gate], name="gate_sig")], name="gate_silu")
    y = g.node("Mul", [act, g.linear(y, "up", 128, 256, bias=False)], name="glu")
    g.output(g.node("Add", [x, g.linear(y, "down", 256, 128, bias=False)], name="residual2"))
