"""Text and retrieval: features of counts, pooling, late interaction, spans, sequences' scores."""

import numpy as np

from .build import model
from .parts import Body, mlp
from .named_parts import FMIN, INT64, Part, ints


# N = 8.8 million passages, document frequencies to 3e6: idf is a log of their ratio.
@model("bm25_features_into_neural_reranker", pins=["bm25_*"], opset=17)
def bm25(g):
    b, t = 32, 8
    tf = g.input("tf", [b, t], g.rng.poisson(1.5, (b, t)).astype(np.float32))
    df = g.input("df", [1, t], np.round(np.exp(g.uniform(3, 15, 1, t))))
    length = g.input("doc_len", [b, 1], np.round(g.uniform(20, 900, b, 1)))
    emb = g.input("pair_embedding", [b, 64], g.normal(b, 64))
    p = Part(g, "bm25")
    total = 8841823.0
    idf = p("Log", p("Add", p("Div", p("Add", p("Sub", total, df), 0.5), p("Add", df, 0.5)), 1.0))
    norm = p("Mul", 0.9, p("Add", 0.6, p("Mul", 0.4, p("Div", length, 56.3))))
    terms = p("Mul", idf, p("Div", p("Mul", tf, 1.9), p("Add", tf, norm)))
    score = p.red("ReduceSum", terms, 1)
    x = g.node("Concat", [emb, terms, score], name="features", axis=1)
    g.output(mlp(g, x, "rank", [64 + t + 1, 128, 64, 1]), score)


# Ragged bags: rows of embeddings add into their bag's row, over counts.
@model("fasttext_bags_scatter_add_over_counts", pins=["bag_*"], opset=18)
def fasttext(g):
    n, b, d = 700, 16, 64
    ids = g.input("ngrams", ["n"], g.rng.integers(0, 2000, n))
    seg = g.input("segments", ["n"], np.sort(g.rng.integers(0, b, n)))
    p = Part(g, "bag")
    rows = p("Gather", g.weight("table", 2000, d, scale=0.3), ids, axis=0)
    at = p("Expand", p.unsq(seg, 1), p("Shape", rows))
    total = p("ScatterElements", np.zeros((b, d)), at, rows, axis=0, reduction="add")
    ones = p("Expand", 1.0, p("Shape", seg))
    size = p("ScatterElements", np.zeros(b), seg, ones, axis=0, reduction="add")
    mean = p("Div", total, p.unsq(p("Max", size, 1.0), 1))
    g.output(mlp(g, mean, "clf", [d, 128, 10]))


@model("sbert_mean_pooling_clamp_1e_minus_9_then_unit", pins=["pool_*"], opset=14)
def sbert(g):
    n, d = 96, 64
    x = g.input("token_embeddings", ["batch", "seq", d], g.normal(3, n, d))
    keep = g.input("attention_mask", ["batch", "seq"], (np.arange(n) < np.array([[96], [41], [7]])).astype(np.int64))
    x = g.node("Add", [x, mlp(g, x, "ffn", [d, 256, d])], name="residual")
    p = Part(g, "pool", constants=True)
    m = p.cast(p("Expand", p.unsq(keep, 2), p("Shape", x)))
    mean = p("Div", p.red("ReduceSum", p("Mul", x, m), 1, keep=0), p("Clip", p.red("ReduceSum", m, 1, keep=0), 1e-9))
    norm = p("Clip", p.red("ReduceL2", mean, 1), 1e-12)
    g.output(p("Div", mean, p("Expand", norm, p("Shape", mean))))


# Cosines of all pairs of tokens, -9999 at padding, a maximum and a sum of 32. The product may be lowered.
@model("colbert_maxsim_padding_minus_9999", pins=["unit_*", "maxsim_*"], opset=17)
def colbert(g):
    b, nq, nd, d = 6, 32, 120, 64
    q = g.input("query", [1, nq, d], g.normal(1, nq, d))
    doc = g.input("docs", [b, nd, d], g.normal(b, nd, d))
    mask = g.input("doc_mask", [b, nd], np.arange(nd)[None] < g.rng.integers(40, nd, (b, 1)))
    p = Part(g, "unit")
    unit = lambda t: p("Div", t, p("Max", p.red("ReduceL2", t, 2), 1e-12))
    q, doc = unit(g.linear(q, "proj_q", d, d, bias=False)), unit(g.linear(doc, "proj_d", d, d, bias=False))
    sim = g.node("MatMul", [doc, g.node("Transpose", [q], name="q_t", perm=[0, 2, 1])], name="sim_mm")
    m = Part(g, "maxsim")
    sim = m("Where", m.unsq(mask, 2), sim, -9999.0)
    g.output(m.red("ReduceSum", m.red("ReduceMax", sim, 1, keep=0), 1, keep=0))


# Hashes are products of integers: nothing in them is a float.
@model("canine_multi_hash_codepoint_embeddings", pins=["*_ln"], opset=17)
def canine(g):
    n, buckets, shard = 128, 512, 8
    ids = g.input("codepoints", ["batch", "seq"], g.rng.integers(32, 20000, (1, n)))
    p = Part(g, "hash")
    shards = []
    for i, prime in enumerate((31, 43, 59, 61, 73, 97, 103, 113)):
        h = p("Mod", p("Mul", p("Add", ids, np.int64(1)), np.int64(prime)), np.int64(buckets))
        shards.append(p("Gather", g.weight(f"shard{i}", buckets, shard, scale=1.0), h))
    x = g.layer_norm(p.cat(-1, *shards), "embed", 64)
    x = g.node("Transpose", [x], name="chars", perm=[0, 2, 1])
    x = g.conv(x, "downsample", 64, 64, 4, dims=1, strides=[4])
    x = g.node("Transpose", [g.node("Relu", [x], name="act")], name="molecules", perm=[0, 2, 1])
    g.output(g.layer_norm(mlp(g, x, "ffn", [64, 128, 64]), "out", 64))


# XLNet: x (1 - p) - 1e30 p, and a matrix of start plus end log-probabilities.
@model("xlnet_span_head_masked_by_1e30", pins=["span_*"], opset=18)
def xlnet(g):
    n, d = 160, 64
    x = g.input("hidden", [2, n, d], g.normal(2, n, d))
    pm = np.zeros((2, n), np.float32)
    pm[:, :12] = 1
    pm[1, 120:] = 1
    pm = g.input("p_mask", [2, n], pm)
    h = g.node("Add", [x, mlp(g, x, "ffn", [d, 256, d], "Gelu" if g.opset > 19 else "Tanh")], name="residual")
    h = g.layer_norm(h, "post", d)
    p = Part(g, "span")
    logits = g.linear(h, "qa", d, 2, scale=0.4)
    start, end = (p.sq(t, 2) for t in p.parts(logits, 2, 1, 1))
    mask = lambda t: p("Sub", p("Mul", t, p("Sub", 1.0, pm)), p("Mul", 1e30, pm))
    ls, le = p("LogSoftmax", mask(start), axis=-1), p("LogSoftmax", mask(end), axis=-1)
    both = p("Add", p.unsq(ls, 2), p.unsq(le, 1))
    ok = np.triu(np.ones((n, n), bool)) & ~np.triu(np.ones((n, n), bool), 30)
    best = p.red("ReduceMax", p("Where", ok, both, -1e30), 1, 2, keep=0)
    g.output(best, p("Exp", ls))


# alpha = logsumexp(alpha + transitions) + emission over 60 tokens.
@model("ner_crf_forward_scan_log_partition", pins=["crf", "crf/*", "emit_*"], opset=15)
def crf(g):
    n, d, k = 60, 64, 9
    x = g.input("hidden", [n, d], g.normal(n, d))
    mask = g.input("mask", [n, 1], (np.arange(n) < 48).astype(np.float32)[:, None])
    h = g.node("Add", [x, mlp(g, x, "ffn", [d, 128, d])], name="residual")
    p = Part(g, "emit")
    emit = p("Mul", g.linear(h, "tags", d, k), 2.0)
    body = Body(g, "crf_body")
    a, e, m = body.entry("alpha", [k]), body.entry("e", [k]), body.entry("m", [1])
    q = Part(body, "fwd")
    s = q("Add", q.unsq(a, 1), g.const(g.normal(k, k, scale=1.5), "transitions"))
    top = q("ReduceMax", s, axes=[0], keepdims=1)
    lse = q("Add", q("Log", q("ReduceSum", q("Exp", q("Sub", s, top)), ints(0), keepdims=0)), q.sq(top, 0))
    new = q("Add", lse, e)
    new = q("Add", q("Mul", m, new), q("Mul", q("Sub", 1.0, m), a))
    keep = body.node("Identity", [new], name="fwd_keep")
    graph = body.graph((new, [k]), (keep, [k]))
    last, path = g.node("Scan", [g.const(np.zeros(k)), emit, mask], name="crf", outputs=2, body=graph, num_scan_inputs=2)
    g.output(p("ReduceLogSumExp", last, axes=[0], keepdims=0), emit, path)


# Log-probabilities of the step plus sums so far (-20..-60), a repetition penalty, a length penalty.
@model("beam_search_step_scores_with_length_penalty", pins=["beam_*"], opset=17)
def beam(g):
    b, d, v, step = 4, 64, 800, 35
    x = g.input("last_hidden", [b, d], g.normal(b, d))
    sums = g.input("beam_scores", [b, 1], np.array([[-24.31], [-25.87], [-27.4], [-31.02]], np.float32))
    seen = g.input("generated", [b, step], g.rng.integers(0, v, (b, step)))
    h = g.node("Add", [x, mlp(g, g.layer_norm(x, "pre", d), "ffn", [d, 256, d])], name="residual")
    logits = g.linear(h, "lm_head", d, v, bias=False, scale=0.35)
    p = Part(g, "beam")
    old = p("GatherElements", logits, seen, axis=1)
    old = p("Where", p("Less", old, 0.0), p("Mul", old, 1.2), p("Div", old, 1.2))
    logits = p("ScatterElements", logits, seen, old, axis=1)
    total = p("Add", p("LogSoftmax", logits, axis=-1), sums)
    top, at = p("TopK", p.reshape(total, 1, b * v), ints(2 * b), outputs=2, axis=1)
    norm = p("Div", top, float((step + 1) ** 0.8))
    g.output(norm, total, p("Div", at, np.int64(v)))


# Sorted by TopK over the vocabulary, a cumulative sum of probabilities to 0.9, -inf past it, at temperature 0.7.
@model("nucleus_top_p_filter_after_temperature", pins=["topp_*"], opset=16)
def nucleus(g):
    b, d, v = 2, 64, 512
    x = g.input("hidden", [b, d], g.normal(b, d))
    logits = g.linear(mlp(g, x, "ffn", [d, 256, d]), "lm_head", d, v, bias=False, scale=0.8)
    p = Part(g, "topp")
    s = p("Div", logits, 0.7)
    vals, at = p("TopK", s, ints(v), outputs=2, axis=1)
    cum = p("CumSum", p("Softmax", vals, axis=-1), np.int64(1), exclusive=1)
    kept = p("Where", p("Greater", cum, 0.9), -np.inf, vals)
    back = p("ScatterElements", s, at, kept, axis=1)
    g.output(p("Softmax", back, axis=-1))


# Sums of 200 log-probabilities, over counts, exponentiated; labels of -100 are left out.
@model("token_log_prob_sum_and_perplexity_ignore_100", pins=["ppl_*"], opset=18)
def perplexity(g):
    n, d, v = 200, 64, 600
    x = g.input("hidden", [2, n, d], g.normal(2, n, d))
    y = g.rng.integers(0, v, (2, n))
    y[1, 140:] = -100
    labels = g.input("labels", [2, n], y)
    h = g.layer_norm(g.node("Add", [x, mlp(g, x, "ffn", [d, 128, d])], name="residual"), "final", d)
    logits = g.linear(h, "lm_head", d, v, bias=False, scale=0.3)
    p = Part(g, "ppl")
    logp = p("LogSoftmax", logits, axis=-1)
    keep = p("Not", p("Equal", labels, np.int64(-100)))
    safe = p("Where", keep, labels, np.int64(0))
    token = p.sq(p("GatherElements", logp, p.unsq(safe, 2), axis=2), 2)
    m = p.cast(keep)
    total = p.red("ReduceSum", p("Mul", token, m), 1, keep=0)
    g.output(total, p("Exp", p("Neg", p("Div", total, p.red("ReduceSum", m, 1, keep=0)))))


# Inner products near 80 whose softmax tells passages apart: fp16 would round them to sixteenths.
@model("dpr_inner_products_near_80_over_passages", pins=["dot_mm", "dot_softmax"], opset=17)
def dpr(g):
    b, n, d = 6, 50, 256
    shared = g.normal(1, d)
    q = g.input("question_cls", [b, d], g.normal(b, d))
    passages = g.input("passages", [n, d], (shared * 0.55 + g.normal(n, d, scale=0.2)).astype(np.float32))
    h = g.linear(g.node("Tanh", [g.linear(q, "dense", d, d)], name="pool_tanh"), "proj", d, d, scale=0.02)
    h = g.node("Add", [h, g.const(shared[0] * 0.55, "common")], name="question")
    pt = g.node("Transpose", [passages], name="passages_t", perm=[1, 0])
    scores = g.node("MatMul", [h, pt], name="dot_mm")
    g.output(g.node("Softmax", [scores], name="dot_softmax", axis=-1))
