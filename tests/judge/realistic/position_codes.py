"""Positions: sinusoids, rotary embeddings and Fourier features that the graph computes itself."""

import numpy as np

from .build import model
from .parts import attend, dot_scores, mlp, project_qkv, silu
from .named_parts import INT64, Part, ints


def apply_half(g, t, cos, sin, stem, size):
    """x*cos + rotate_half(x)*sin, as Hugging Face writes it."""
    r = Part(g, stem)
    a, b = r.cut(t, 0, size // 2, -1), r.cut(t, size // 2, size, -1)
    return r("Add", r("Mul", t, cos), r("Mul", r.cat(-1, r("Neg", b), a), sin))


# Positions to 400 times frequencies to 1: angles. Counted by a CumSum of the mask.
@model("fairseq_sinusoid_of_cumsum_positions", pins=["pos_*"], opset=14)
def fairseq(g):
    n, d = 400, 64
    ids = g.input("tokens", ["batch", "seq"], np.where(np.arange(n) < np.array([[400], [310]]), g.rng.integers(4, 300, (2, n)), 1))
    x = g.node("Gather", [g.weight("embed", 300, d, scale=d**-0.5), ids], name="embed_gather")
    x = g.node("Mul", [x, g.const(d**0.5)], name="embed_scale")
    p = Part(g, "pos")
    keep = p.cast(p("Not", p("Equal", ids, np.int64(1))), to=6)
    pos = p.cast(p("Add", p("Mul", p("CumSum", keep, np.int64(1)), keep), np.int32(1)))
    freq = p("Exp", p("Mul", p.count(d // 2), -np.log(10000) / (d // 2 - 1)))
    ang = p("Mul", p.unsq(pos, 2), freq)
    enc = p.cat(2, p("Sin", ang), p("Cos", ang))
    x = g.node("Add", [x, enc], name="add_positions")
    g.output(mlp(g, x, "ffn", [d, 256, d], "Relu"))


# Angles to 18000 radians. What the ramp mixes is at most 1, but it multiplies positions.
@model("yarn_rope_ramp_and_attention_factor", pins=["rope_*", "softmax"], opset=22)
def yarn(g):
    n, h, c = 48, 4, 32
    x = g.input("hidden", [1, "seq", 128], g.normal(1, n, 128))
    ids = g.input("position_ids", [1, "seq"], np.arange(18000, 18000 + n)[None])
    r = Part(g, "rope")
    base = r("Pow", 10000.0, r("Div", r("Mul", r.count(c // 2), 2.0), float(c)))
    extra, inter = r("Div", 1.0, base), r("Div", 1.0, r("Mul", base, 16.0))
    ramp = r("Clip", r("Div", r("Sub", r.count(c // 2), 3.0), 6.0), 0.0, 1.0)
    keep = r("Sub", 1.0, ramp)
    freq = r("Add", r("Mul", inter, r("Sub", 1.0, keep)), r("Mul", extra, keep))
    ang = r("Mul", r.unsq(r.cast(ids), 2), freq)
    ang = r.unsq(r.cat(-1, ang, ang), 1)
    factor = 0.1 * np.log(16) + 1
    cos, sin = r("Mul", r("Cos", ang), factor), r("Mul", r("Sin", ang), factor)
    q, k, v = project_qkv(g, x, h, c)
    q, k = apply_half(g, q, cos, sin, "turn_q", c), apply_half(g, k, cos, sin, "turn_k", c)
    g.output(attend(g, dot_scores(g, q, k, c), v, 128))


@model("neox_partial_rotary_quarter_of_head", pins=["rope_*", "softmax"], opset=17)
def neox(g):
    n, h, c, part = 256, 2, 64, 16
    x = g.input("hidden", [1, "seq", 128], g.normal(1, n, 128))
    r = Part(g, "rope", constants=True)
    ang = r("Einsum", r.count(r.dim(x, 1)), 10000.0 ** (-np.arange(0, part, 2) / part), equation="i,j->ij")
    ang = r.cat(-1, ang, ang)
    cos, sin = r("Cos", ang), r("Sin", ang)
    q, k, v = project_qkv(g, g.layer_norm(x, "pre", 128), h, c)
    p = Part(g, "pass")
    turned = []
    for s, t in (("q", q), ("k", k)):
        rot, rest = p.parts(t, 3, part, c - part)
        turned.append(p.cat(-1, apply_half(g, rot, cos, sin, f"turn_{s}", part), rest))
    y = attend(g, dot_scores(g, *turned, c), v, 128)
    g.output(g.node("Add", [x, y], name="residual"))


# A 2-D axial rotary of patches; positions are rescaled from the fine-tuned grid to the pretrained one.
@model("eva02_axial_rope_rescaled_grid", pins=["rope_*", "softmax"], opset=20)
def eva(g):
    s, h, c = 14, 2, 32
    img = g.input("image", [1, 3, s * 8, s * 8], g.normal(1, 3, s * 8, s * 8))
    x = g.conv(img, "patch", 3, 64, 8, strides=[8, 8])
    x = g.node("Transpose", [g.node("Reshape", [x, g.ints(1, 64, s * s)], name="flat")], name="tokens", perm=[0, 2, 1])
    r = Part(g, "rope")
    t = r("Mul", r("Div", r.count(s), float(s)), 16.0)
    ang = r("Einsum", t, 10000.0 ** (-np.arange(0, c // 2, 2) / (c // 2)), equation="..., f -> ... f")
    ang = r.reshape(r("Expand", r.unsq(ang, -1), ints(s, c // 4, 2)), s, c // 2)
    y = r("Expand", r.unsq(ang, 1), ints(s, s, c // 2))
    z = r("Expand", r.unsq(ang, 0), ints(s, s, c // 2))
    ang = r.reshape(r.cat(-1, y, z), s * s, c)
    cos, sin = r("Cos", ang), r("Sin", ang)
    q, k, v = project_qkv(g, g.layer_norm(x, "pre", 64), h, c)
    w = Part(g, "turn")

    def turn(t):
        pairs = w.reshape(t, 0, 0, 0, c // 2, 2)
        a, b = w.parts(pairs, -1, 1, 1)
        half = w.reshape(w.cat(-1, w("Neg", b), a), 0, 0, 0, c)
        return w("Add", w("Mul", t, cos), w("Mul", half, sin))

    g.output(g.node("Add", [x, attend(g, dot_scores(g, turn(q), turn(k), c), v, 64)], name="residual"))


# Sizes of 1024 pixels and a timestep of 981, times frequencies from 1 down.
@model("sdxl_time_and_size_conditioning_embeds", pins=["time_*", "size_*"], opset=17)
def sdxl(g):
    x = g.input("sample", [2, 4, 16, 16], g.normal(2, 4, 16, 16))
    t = g.input("timestep", [], np.array(981, np.int64))
    ids = g.input("time_ids", [2, 6], np.tile(np.array([1024, 768, 0, 128, 1024, 1024], np.float32), (2, 1)))
    freq = lambda p, half: p("Exp", p("Div", p("Mul", p.count(half), -np.log(10000)), float(half)))

    def embed(p, values, half):
        ang = p("Mul", p.unsq(values, 1), freq(p, half))
        sincos = p.cat(-1, p("Sin", ang), p("Cos", ang))
        return p.cat(-1, p.cut(sincos, half, 2 * half, 1), p.cut(sincos, 0, half, 1))

    a, b = Part(g, "time"), Part(g, "size")
    te = embed(a, a.cast(a("Expand", t, ints(2))), 32)
    se = b.reshape(embed(b, b.reshape(ids, -1), 16), 2, 192)
    te = g.linear(silu(g, g.linear(te, "t1", 64, 128), "t"), "t2", 128, 128)
    se = g.linear(silu(g, g.linear(se, "s1", 192, 128), "s"), "s2", 128, 128)
    emb = silu(g, g.node("Add", [te, se], name="emb_sum"), "emb")
    y = g.conv(x, "conv_in", 4, 32, 3, pads=[1, 1, 1, 1])
    shift = g.node("Unsqueeze", [g.linear(emb, "shift", 128, 32), g.ints(2, 3)], name="shift_hw")
    y = silu(g, g.node("Add", [y, shift], name="add_shift"), "body")
    g.output(g.conv(y, "conv_out", 32, 4, 3, pads=[1, 1, 1, 1]))


# A depthwise convolution makes the positions: nothing to pin but the softmax.
@model("cpvt_peg_depthwise_position_encoding", pins=["softmax"], opset=21)
def cpvt(g):
    s = 14
    x = g.input("tokens", ["batch", s * s, 64], g.normal(2, s * s, 64))
    grid = g.node("Transpose", [x], name="to_ch", perm=[0, 2, 1])
    grid = g.node("Reshape", [grid, g.ints(0, 64, s, s)], name="to_grid")
    peg = g.conv(grid, "peg", 1, 64, 3, pads=[1, 1, 1, 1], group=64)
    grid = g.node("Add", [grid, peg], name="peg_add")
    y = g.node("Transpose", [g.node("Reshape", [grid, g.ints(0, 64, s * s)], name="flat")], name="to_tokens", perm=[0, 2, 1])
    q, k, v = project_qkv(g, g.layer_norm(y, "pre", 64), 4, 16)
    y = g.node("Add", [y, attend(g, dot_scores(g, q, k, 16), v, 64)], name="residual")
    g.output(mlp(g, y, "mlp", [64, 256, 64], "Gelu"))


# Meta's complex spelling, real and imaginary halves of pairs, with start_pos as an input (Llama-3 base 500000).
@model("llama3_complex_pairs_rope_start_pos", pins=["freqs_*", "softmax"], opset=19)
def llama_complex(g):
    n, h, c = 32, 4, 32
    x = g.input("hidden", [1, n, 128], g.normal(1, n, 128))
    start = g.input("start_pos", [], np.array(3000, np.int64))
    f = Part(g, "freqs")
    pos = f.cast(f("Range", start, f("Add", start, np.int64(n)), np.int64(1)))
    ang = f("Mul", f.unsq(pos, 1), 500000.0 ** (-np.arange(0, c, 2) / c))
    cos, sin = f("Cos", ang), f("Sin", ang)
    q, k, v = project_qkv(g, x, h, c)
    w = Part(g, "cplx")

    def turn(t):
        re, im = (w.sq(s, 4) for s in w.parts(w.reshape(t, 0, 0, 0, c // 2, 2), 4, 1, 1))
        a = w("Sub", w("Mul", re, cos), w("Mul", im, sin))
        b = w("Add", w("Mul", re, sin), w("Mul", im, cos))
        return w.reshape(w.cat(-1, w.unsq(a, 4), w.unsq(b, 4)), 0, 0, 0, c)

    g.output(attend(g, dot_scores(g, turn(q), turn(k), c), v, 128))


# Masked autoencoders: tokens unshuffled by indices, sincos table made in the graph.
@model("mae_decoder_unshuffle_with_sincos_2d", pins=["table_*", "softmax"], opset=16)
def mae(g):
    s, keep, d = 14, 49, 64
    lat = g.input("latent", [2, keep, d], g.normal(2, keep, d))
    restore = g.input("ids_restore", [2, s * s], np.stack([g.rng.permutation(s * s) for _ in range(2)]))
    x = g.linear(lat, "embed", d, d)
    mask = g.node("Expand", [g.const(g.normal(1, 1, d, scale=0.02), "mask_token"), g.ints(2, s * s - keep, d)], name="mask_tokens")
    x = g.node("Concat", [x, mask], name="with_mask", axis=1)
    index = g.node("Expand", [g.node("Unsqueeze", [restore, g.ints(2)], name="ids"), g.ints(2, s * s, d)], name="index")
    x = g.node("GatherElements", [x, index], name="unshuffle", axis=1)
    t = Part(g, "table", constants=True)
    omega = t("Div", 1.0, t("Pow", 10000.0, t("Div", t.count(d // 4), d / 4)))
    row = t("MatMul", t.unsq(t.count(s), 1), t.unsq(omega, 0))
    sc = t.cat(1, t("Sin", row), t("Cos", row))
    ey = t("Expand", t.unsq(sc, 1), ints(s, s, d // 2))
    ex = t("Expand", t.unsq(sc, 0), ints(s, s, d // 2))
    x = g.node("Add", [x, t.reshape(t.cat(2, ex, ey), s * s, d)], name="add_pos")
    q, k, v = project_qkv(g, x, 4, 16)
    y = g.node("Add", [x, attend(g, dot_scores(g, q, k, 16), v, d)], name="residual")
    g.output(g.linear(y, "pred", d, 48))


# Relative positions 299..-299 of a Conformer, shifted by pad and reshape; a chunk mask of -inf, zeros afterwards.
@model("wenet_conformer_relative_chunk_mask", pins=["pe_*", "chunk_*", "softmax"], pins_bf16=["pe_*", "chunk_ids_*", "softmax"], opset=17)
def conformer(g):
    n, h, c = 300, 4, 16
    x = g.input("frames", [1, n, 64], g.normal(1, n, 64))
    p = Part(g, "pe")
    pos = p("Sub", float(n - 1), p.count(2 * n - 1))
    ang = p("Mul", p.unsq(pos, 1), p("Exp", p("Mul", np.arange(0, 64, 2.0), -np.log(10000) / 64)))
    pe = p.reshape(p.cat(-1, p.unsq(p("Sin", ang), 2), p.unsq(p("Cos", ang), 2)), 1, 2 * n - 1, 64)
    q, k, v = project_qkv(g, g.layer_norm(x, "pre", 64), h, c)
    r = Part(g, "rel")
    pk = r.perm(r.reshape(g.linear(pe, "pos", 64, 64, bias=False), 0, 0, h, c), 0, 2, 3, 1)
    bd = r("MatMul", r("Add", q, g.normal(h, 1, c, scale=0.1)), pk)
    bd = r("Pad", bd, ints(0, 0, 0, 1, 0, 0, 0, 0), 0.0)
    bd = r.cut(r.reshape(bd, 0, 0, 2 * n, n), 1, 2 * n, 2)
    bd = r.cut(r.reshape(bd, 0, 0, n, 2 * n - 1), 0, n, 3)
    ac = r("MatMul", r("Add", q, g.normal(h, 1, c, scale=0.1)), r.perm(k, 0, 1, 3, 2))
    scores = r("Mul", r("Add", ac, bd), c**-0.5)
    i = Part(g, "chunk_ids")
    ids = i("Floor", i("Div", i.count(n), 16.0))
    late = i("Greater", i.unsq(ids, 0), i.unsq(ids, 1))
    m = Part(g, "chunk")
    scores = m("Where", late, -np.inf, scores)
    probs = m("Where", late, 0.0, g.node("Softmax", [scores], name="softmax", axis=-1))
    y = r.reshape(r.perm(r("MatMul", probs, v), 0, 2, 1, 3), 1, n, 64)
    g.output(g.node("Add", [x, g.linear(y, "out", 64, 64)], name="residual"))


# gen_sineembed_for_position: metres of a map times 2 pi over powers of 10000.
@model("mtr_query_sine_embedding_of_metres", pins=["sine_*", "softmax"], opset=18)
def mtr(g):
    n = 64
    centres = g.input("query_centres", [1, n, 2], g.uniform(-90, 90, 1, n, 2))
    feats = g.input("map_features", [1, 128, 64], g.normal(1, 128, 64))
    p = Part(g, "sine")
    i = p.count(32)
    power = p("Div", p("Mul", 2.0, p("Floor", p("Div", i, 2.0))), 32.0)
    dim_t = p("Pow", 10000.0, power)
    halves = []
    for axis in (1, 0):
        ang = p("Div", p("Mul", p.cut(centres, axis, axis + 1, 2), 2 * np.pi), dim_t)
        sin, cos = p("Sin", p.cut(ang, 0, 32, 2, 2)), p("Cos", p.cut(ang, 1, 32, 2, 2))
        halves.append(p.reshape(p.cat(-1, p.unsq(sin, 3), p.unsq(cos, 3)), 1, n, 32))
    query = mlp(g, p.cat(2, *halves), "q_mlp", [64, 64, 64])
    q, k, v = project_qkv(g, query, 4, 16, feats)
    y = attend(g, dot_scores(g, q, k, 16), v, 64)
    g.output(mlp(g, y, "traj", [64, 128, 24]))


# xPos: powers of numbers near 0.5 to (pos - mid)/512, and angles to 1023.
@model("torchscale_xpos_decay_of_queries_and_keys", pins=["xpos_*", "softmax"], opset=15)
def xpos(g):
    n, h, c = 512, 2, 32
    x = g.input("hidden", [1, n, 64], g.normal(1, n, 64))
    p = Part(g, "xpos")
    pos = p.count(n)
    ang = p("Einsum", pos, 10000.0 ** (-np.arange(0, c, 2) / c), equation="i,j->ij")
    scale = p("Pow", (np.arange(0, c, 2) + 0.4 * c) / (1.4 * c), p.unsq(p("Div", p("Sub", pos, n / 2), 512.0), 1))
    twice = lambda t: p.reshape(p("Expand", p.unsq(t, 2), ints(n, c // 2, 2)), n, c)
    q, k, v = project_qkv(g, x, h, c)
    cos, sin, up, down = twice(p("Cos", ang)), twice(p("Sin", ang)), twice(scale), twice(p("Reciprocal", scale))
    w = Part(g, "turn")

    def turn(t, s):
        pairs = w.reshape(t, 0, 0, 0, c // 2, 2)
        a, b = w.parts(pairs, 4, 1, 1)
        half = w.reshape(w.cat(-1, w("Neg", b), a), 0, 0, 0, c)
        return w("Add", w("Mul", t, p("Mul", cos, s)), w("Mul", half, p("Mul", sin, s)))

    scores = dot_scores(g, turn(q, up), turn(k, down), c)
    scores = w("Add", scores, np.triu(np.full((n, n), -1e4), 1))
    g.output(attend(g, scores, v, 64))
