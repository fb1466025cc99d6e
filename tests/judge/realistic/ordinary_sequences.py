"""Language, recurrent, contrastive and expert networks whose products are all safe to lower."""

import numpy as np

from .build import model
from .named_parts import FMIN, Part, ints, norm_written_out


def rms(p, x, n, gain, eps=1e-6):
    """x / sqrt(mean x^2 + eps) times a gain."""
    m = p("Add", p.red("ReduceMean", p("Pow", x, 2.0), -1), eps)
    return p("Mul", p("Mul", x, p("Reciprocal", p("Sqrt", m))), gain)


def by_heads(p, x, h, d):
    return p.perm(p.reshape(x, 0, -1, h, d), 0, 2, 1, 3)


def joined(p, x, width):
    return p.reshape(p.perm(x, 0, 2, 1, 3), 0, -1, width)


@model("opt_decoder_layer_positions_offset_by_two_with_lora", pins=[], opset=14)
def _(g):
    """Positions cumsum(mask) * mask - 1 + 2 into a learned table; causal and padding mask; LoRA of rank 8 on q and v."""
    n, h, d = 32, 4, 24
    c = h * d
    x = g.input("embedded", ["b", n, c], g.normal(2, n, c))
    valid = np.ones((2, n), np.int64)
    valid[1, :7] = 0
    mask = g.input("attention_mask", ["b", n], valid)
    p = Part(g, "opt")
    pos = p("Sub", p("Mul", p("CumSum", mask, np.int64(1)), mask), np.int64(1))
    pos = p("Gather", g.const(g.normal(n + 2, c, scale=0.3), "positions"), p("Add", pos, np.int64(2)))
    x = p("Add", x, pos)
    y = norm_written_out(g, x, "ln1", c)
    def lora(stem):
        low = p("MatMul", y, g.weight(f"{stem}_a", c, 8))
        low = p("MatMul", low, g.weight(f"{stem}_bb", 8, c, scale=0.1))
        return p("Add", g.linear(y, stem, c, c), p("Mul", low, 2.0))
    q, k, v = (by_heads(p, t, h, d) for t in (lora("q"), g.linear(y, "k", c, c), lora("v")))
    s = p("MatMul", p("Mul", q, d**-0.5), p.perm(k, 0, 1, 3, 2))
    causal = np.triu(np.full((1, 1, n, n), FMIN, np.float32), 1)
    pad = p("Mul", p("Sub", 1.0, p.cast(p.unsq(mask, 1, 2))), FMIN)
    s = p("Max", p("Add", p("Add", s, causal), pad), FMIN)
    y = joined(p, p("MatMul", p("Softmax", s, axis=-1), v), c)
    x = p("Add", x, g.linear(y, "out", c, c))
    g.output(p("Add", x, g.linear(p("Relu", g.linear(norm_written_out(g, x, "ln2", c), "fc1", c, 192)), "fc2", 192, c)))


@model("llama_layer_rms_written_out_rope_tables_swiglu", pins=[], opset=17)
def _(g):
    n, h, d = 48, 4, 32
    c = h * d
    x = g.input("hidden", ["b", n, c], g.normal(1, n, c))
    ang = np.arange(n)[:, None] * 1e4 ** (-np.arange(0, d, 2) / d)
    ang = np.concatenate([ang, ang], 1)
    cos, sin = g.const(np.cos(ang), "cos"), g.const(np.sin(ang), "sin")
    p = Part(g, "ll")
    y = rms(p, x, c, g.uniform(0.6, 1.4, c))
    q, k, v = (by_heads(p, g.linear(y, s, c, c, bias=False), h, d) for s in "qkv")
    def turn(t):
        half = p.cat(3, p("Neg", p.cut(t, d // 2, d, 3)), p.cut(t, 0, d // 2, 3))
        return p("Add", p("Mul", t, cos), p("Mul", half, sin))
    s = p("Div", p("MatMul", turn(q), p.perm(turn(k), 0, 1, 3, 2)), d**0.5)
    s = p("Where", np.tril(np.ones((1, 1, n, n), bool)), s, FMIN)
    y = joined(p, p("MatMul", p("Softmax", s, axis=-1), v), c)
    x = p("Add", x, g.linear(y, "o", c, c, bias=False))
    y = rms(p, x, c, g.uniform(0.6, 1.4, c))
    a = g.linear(y, "gate", c, 256, bias=False)
    y = p("Mul", p("Mul", a, p("Sigmoid", a)), g.linear(y, "up", c, 256, bias=False))
    g.output(p("Add", x, g.linear(y, "down", 256, c, bias=False)))


@model("alibi_causal_block_with_squared_relu", pins=[], opset=19)
def _(g):
    """ALiBi slopes of 1/4 .. 1/256 times distances, computed from Ranges; the row max taken off before Exp; relu^2."""
    h, d = 4, 16
    c = h * d
    x = g.input("hidden", ["b", "n", c], g.normal(2, 64, c))
    p = Part(g, "al")
    y = g.layer_norm(x, "ln1", c)
    q, k, v = (by_heads(p, g.linear(y, s, c, c), h, d) for s in "qkv")
    s = p("Mul", p("MatMul", q, p.perm(k, 0, 1, 3, 2)), d**-0.5)
    r = p.count(p.dim(x, 1))
    dist = p("Sub", p.unsq(r, 0), p.unsq(r, 1))
    bias = p("Mul", dist, np.array([0.25, 1 / 16, 1 / 64, 1 / 256]).reshape(4, 1, 1))
    s = p("Where", p("Greater", dist, 0.0), -1e9, p("Add", s, bias))
    e = p("Exp", p("Sub", s, p.red("ReduceMax", s, -1)))
    y = p("MatMul", p("Div", e, p.red("ReduceSum", e, -1)), v)
    x = p("Add", x, g.linear(joined(p, y, c), "o", c, c))
    y = p("Relu", g.linear(g.layer_norm(x, "ln2", c), "up", c, 256))
    g.output(p("Add", x, g.linear(p.square(y), "down", 256, c)))


@model("differential_attention_split_heads_lambda_subtract", pins=[], opset=22)
def _(g):
    """softmax(q1 k1) - lambda softmax(q2 k2), times v; a per-head RMS norm; times 1 - lambda_init."""
    h, d = 4, 16
    c = 2 * h * d
    x = g.input("hidden", ["b", 40, c], g.normal(1, 40, c))
    p = Part(g, "df")
    qkv = g.linear(g.layer_norm(x, "ln", c), "qkv", c, 3 * c, bias=False)
    q, k, v = p.parts(qkv, 2, c, c, c)
    v = by_heads(p, v, h, 2 * d)
    q, k = by_heads(p, p("Mul", q, d**-0.5), 2 * h, d), by_heads(p, k, 2 * h, d)
    s = p("Softmax", p("MatMul", q, p.perm(k, 0, 1, 3, 2)), axis=-1)
    s = p.reshape(s, 0, h, 2, 40, 40)
    a, b = p.parts(s, 2, 1, 1)
    s = p("Sub", p.sq(a, 2), p("Mul", p.sq(b, 2), 0.35))
    y = rms(p, p("MatMul", s, v), 2 * d, g.uniform(0.7, 1.3, 2 * d), eps=1e-5)
    y = joined(p, p("Mul", y, 0.8), c)
    g.output(p("Add", x, g.linear(y, "o", c, c, bias=False)))


@model("linear_attention_elu_plus_one_features_non_causal", pins=[], opset=13)
def _(g):
    """phi = elu + 1; phi(q) (phi(k)^T v) over phi(q) sum phi(k), of 128 tokens."""
    h, d = 4, 24
    c = h * d
    x = g.input("tokens", ["b", "n", c], g.normal(1, 128, c))
    p = Part(g, "la")
    y = norm_written_out(g, x, "ln", c)
    q, k, v = (by_heads(p, g.linear(y, s, c, c), h, d) for s in "qkv")
    q, k = (p("Add", p("Elu", t), 1.0) for t in (q, k))
    n = p.cast(p.dim(x, 1))
    v = p("Div", v, n)
    kv = p("MatMul", p.perm(k, 0, 1, 3, 2), v)
    z = p("Add", p.red("ReduceSum", p("Mul", q, p.red("ReduceSum", k, 2)), -1), 1e-6)
    y = p("Mul", p("Div", p("MatMul", q, kv), z), n)
    x = p("Add", x, g.linear(joined(p, y, c), "o", c, c))
    g.output(p("Add", x, g.linear(p("Relu", g.linear(x, "up", c, 192)), "down", 192, c)))


@model("efficient_attention_keys_softmaxed_over_tokens_glu", pins=[], opset=18)
def _(g):
    """Keys softmaxed over 256 tokens, queries over channels; then a GLU feed-forward with a depthwise conv."""
    n, h, d = 256, 4, 16
    c = h * d
    x = g.input("tokens", [1, n, c], g.normal(1, n, c))
    p = Part(g, "ea")
    q, k, v = p.parts(g.linear(g.layer_norm(x, "ln1", c), "qkv", c, 3 * c), 2, c, c, c)
    q, k, v = (by_heads(p, t, h, d) for t in (q, k, v))
    ctx = p("MatMul", p.perm(p("Softmax", k, axis=2), 0, 1, 3, 2), v)
    y = p("MatMul", p("Softmax", q, axis=-1), ctx)
    x = p("Add", x, g.linear(joined(p, y, c), "o", c, c))
    y = p.perm(g.linear(g.layer_norm(x, "ln2", c), "in", c, 2 * c), 0, 2, 1)
    y = p.reshape(y, 1, 2 * c, 16, 16)
    y = g.conv(y, "dw", 1, 2 * c, 3, pads=[1] * 4, group=2 * c)
    a, b = p.parts(y, 1, c, c)
    y = p.perm(p.reshape(p("Mul", a, p("Sigmoid", b)), 1, c, -1), 0, 2, 1)
    g.output(p("Add", x, g.linear(y, "out", c, c)))


@model("fnet_fourier_mixing_by_constant_dft_matrices", pins=[], opset=17)
def _(g):
    """Two FNet blocks: real(F_n x F_c) as C x C - S x S, with orthonormal cosines and sines."""
    n, c = 64, 96
    x = g.input("embedded", ["b", n, c], g.normal(1, n, c))
    def dft(size):
        a = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
        return np.cos(a) / size**0.5, np.sin(a) / size**0.5
    (cn, sn), (cc, sc) = dft(n), dft(c)
    cn, sn, cc, sc = g.const(cn, "cos_n"), g.const(sn, "sin_n"), g.const(cc, "cos_c"), g.const(sc, "sin_c")
    p = Part(g, "fn")
    for i in range(2):
        y = p("Sub", p("MatMul", cn, p("MatMul", x, cc)), p("MatMul", sn, p("MatMul", x, sc)))
        x = g.layer_norm(p("Add", x, y), f"a{i}", c)
        y = g.linear(x, f"up{i}", c, 192)
        y = p("Mul", p("Mul", y, 0.5), p("Add", p("Erf", p("Div", y, 2**0.5)), 1.0))
        x = g.layer_norm(p("Add", x, g.linear(y, f"down{i}", 192, c)), f"b{i}", c)
    g.output(x)


@model("gru_cells_unrolled_four_steps_one_minus_update_gate", pins=[], opset=13)
def _(g):
    """A traced GRUCell loop: h = (1 - z) n + z h, with fused input and hidden weights, then a classifier."""
    n_in, n = 48, 64
    x = g.input("sequence", ["b", 4, n_in], g.normal(4, 4, n_in))
    h = g.input("h0", ["b", n], np.tanh(g.normal(4, n)))
    p = Part(g, "gru")
    wi, wh = g.weight("w_ih", n_in, 3 * n), g.weight("w_hh", n, 3 * n)
    bi, bh = g.const(g.normal(3 * n, scale=0.1), "b_ih"), g.const(g.normal(3 * n, scale=0.1), "b_hh")
    for t in range(4):
        xt = p("Gather", x, np.int64(t), axis=1)
        ri, zi, ni = p.parts(p("Gemm", xt, wi, bi), 1, n, n, n)
        rh, zh, nh = p.parts(p("Gemm", h, wh, bh), 1, n, n, n)
        r, z = p("Sigmoid", p("Add", ri, rh)), p("Sigmoid", p("Add", zi, zh))
        c = p("Tanh", p("Add", ni, p("Mul", r, nh)))
        h = p("Add", p("Mul", p("Sub", 1.0, z), c), p("Mul", z, h))
    g.output(g.linear(h, "head", n, 20), h)


@model("lstm_cells_unrolled_forget_bias_one_projection", pins=[], opset=18)
def _(g):
    """LSTMCell over five steps with a forget bias of 1 as an Add, and a projected output per step."""
    n_in, n = 32, 48
    x = g.input("sequence", ["b", 5, n_in], g.normal(3, 5, n_in))
    h = g.input("h0", ["b", n], np.tanh(g.normal(3, n)))
    c = g.input("c0", ["b", n], g.normal(3, n, scale=0.7))
    p = Part(g, "lstm")
    w, b = g.weight("kernel", n_in + n, 4 * n), g.const(g.normal(4 * n, scale=0.1), "bias")
    steps = [p.sq(s, 1) for s in p.parts(x, 1, *[1] * 5)]
    for xt in steps:
        z = p("Add", p("MatMul", p.cat(1, xt, h), w), b)
        i, j, f, o = p.parts(z, 1, n, n, n, n)
        f = p("Sigmoid", p("Add", f, 1.0))
        c = p("Add", p("Mul", f, c), p("Mul", p("Sigmoid", i), p("Tanh", j)))
        h = p("Mul", p("Sigmoid", o), p("Tanh", c))
    g.output(g.linear(h, "proj", n, 32), c)


@model("char_cnn_highway_layers_carry_one_minus_t", pins=[], opset=15)
def _(g):
    """ELMo's encoder: convs of widths 1..5 over 50 characters, max over them, two highways with carry 1 - t."""
    ids = g.input("characters", ["words", 50], g.rng.integers(0, 262, (24, 50)))
    p = Part(g, "hw")
    x = p.perm(p("Gather", g.const(g.normal(262, 16), "chars"), ids), 0, 2, 1)
    feats = []
    for k, c in ((1, 16), (2, 16), (3, 32), (4, 32), (5, 32)):
        y = g.conv(x, f"conv{k}", 16, c, k, dims=1)
        feats.append(p.red("ReduceMax", p("Relu", y), 2, keep=0))
    x = p.cat(1, *feats)
    for i in range(2):
        t = p("Sigmoid", p("Sub", g.linear(x, f"t{i}", 128, 128), 2.0))
        y = p("Relu", g.linear(x, f"h{i}", 128, 128))
        x = p("Add", p("Mul", t, y), p("Mul", p("Sub", 1.0, t), x))
    g.output(g.linear(x, "proj", 128, 64))


@model("soft_moe_dispatch_and_combine_four_experts", pins=[], opset=21)
def _(g):
    """Soft MoE: softmax over tokens dispatches to 4 x 8 slots, softmax over slots combines; experts batched."""
    e, s, c = 4, 8, 64
    x = g.input("tokens", ["b", "n", c], g.normal(2, 96, c))
    p = Part(g, "moe")
    y = g.layer_norm(x, "ln", c)
    unit = lambda t, ax: p("Div", t, p("Add", p.red("ReduceL2", t, ax), 1e-6))
    phi = p("Mul", unit(g.weight("phi", c, e * s), 0), 20.0)
    l = p("MatMul", unit(y, -1), phi)
    slots = p("MatMul", p.perm(p("Softmax", l, axis=1), 0, 2, 1), y)
    slots = p.reshape(slots, -1, e, s, c)
    hid = p("Add", p("MatMul", slots, g.const(g.normal(e, c, 128, scale=c**-0.5), "w1")), g.normal(e, 1, 128, scale=0.05))
    out = p("MatMul", p("Gelu", hid), g.const(g.normal(e, 128, c, scale=128**-0.5), "w2"))
    out = p("MatMul", p("Softmax", l, axis=2), p.reshape(out, 0, e * s, c))
    g.output(p("Add", x, out))


@model("muon_newton_schulz_three_steps_of_a_momentum", pins=[], opset=18)
def _(g):
    """Muon's update, as it is run in half precision: Nesterov's mix, the Frobenius norm, a X + (b A + c A A) X."""
    n, m = 48, 96
    grad = g.input("gradient", [n, m], g.normal(n, m))
    buf = g.input("momentum", [n, m], g.normal(n, m))
    w = g.input("weight", [n, m], g.normal(n, m, scale=0.1))
    p = Part(g, "ns")
    x = p("Add", p("Mul", grad, 0.05), p("Mul", p("Add", p("Mul", buf, 0.95), p("Mul", grad, 0.05)), 0.95))
    x = p("Div", x, p("Add", p.red("ReduceL2", x, 0, 1), 1e-7))
    for _ in range(3):
        a = p("MatMul", x, p.perm(x, 1, 0))
        b = p("Add", p("Mul", a, -4.775), p("Mul", p("MatMul", a, a), 2.0315))
        x = p("Add", p("Mul", x, 3.4445), p("MatMul", b, x))
    g.output(p("Sub", w, p("Mul", x, 0.02)), x)


@model("clip_projection_heads_contrastive_log_softmax_written_out", pins=[], opset=17)
def _(g):
    """Two towers' heads, unit embeddings, logits times exp(log-temperature) = 14.3, both log-softmaxes spelt out."""
    n = 24
    img = g.input("image_features", ["n", 128], g.normal(n, 128))
    txt = g.input("text_features", ["n", 96], g.normal(n, 96))
    t = g.const(np.log(1 / 0.07), "log_temperature")
    p = Part(g, "clip")
    def head(x, stem, n_in):
        y = g.linear(g.layer_norm(x, stem, n_in), f"{stem}1", n_in, 64)
        y = p("Add", y, g.linear(p("Mul", y, p("Sigmoid", p("Mul", y, 1.702))), f"{stem}2", 64, 64))
        return p("Div", y, p("ReduceL2", y, axes=[-1], keepdims=1))
    a, b = head(img, "img", 128), head(txt, "txt", 96)
    l = p("Mul", p("MatMul", a, p.perm(b, 1, 0)), p("Exp", t))
    out = []
    for m in (l, p.perm(l, 1, 0)):
        d = p("Sub", m, p.red("ReduceMax", m, 1))
        out.append(p("Sub", d, p("Log", p.red("ReduceSum", p("Exp", d), 1))))
    g.output(*out)


@model("mixup_of_two_inputs_cosine_classifier_scale_sixteen", pins=[], opset=16)
def _(g):
    """lam x1 + (1 - lam) x2 with lam an input, a residual MLP on features less their mean, cosines over a temperature."""
    a = g.input("x1", ["b", 128], g.normal(16, 128))
    b = g.input("x2", ["b", 128], g.normal(16, 128))
    lam = g.input("lam", ["b", 1], g.uniform(0.2, 0.8, 16, 1))
    p = Part(g, "mix")
    x = p("Add", p("Mul", a, lam), p("Mul", b, p("Sub", 1.0, lam)))
    for i in range(2):
        y = p("Sub", x, p.red("ReduceMean", x, -1))
        y = p("Softplus", g.linear(y, f"up{i}", 128, 192))
        x = p("Add", x, p("Mul", g.linear(y, f"down{i}", 192, 128), 0.5))
    f = g.linear(x, "embed", 128, 64)
    f = p("Div", f, p("Max", p("ReduceL2", f, axes=[1], keepdims=1), 1e-8))
    w = g.weight("prototypes", 64, 100)
    w = p("Div", w, p("Max", p("ReduceL2", w, axes=[0], keepdims=1), 1e-8))
    g.output(p("Softmax", p("Div", p("MatMul", f, w), 1 / 16), axis=-1), f)


@model("byol_target_mixed_from_two_networks_features_once", pins=[], opset=14)
def _(g):
    """Online and target heads with batch norms; 0.9 target + 0.1 online once; similarities to a bank, over 0.2."""
    x = g.input("view", ["b", 128], g.normal(16, 128))
    bank = g.input("bank", [256, 64], (lambda v: v / np.linalg.norm(v, axis=1, keepdims=True))(g.normal(256, 64)))
    p = Part(g, "ema")
    def head(stem):
        y = g.linear(x, f"{stem}1", 128, 192)
        y = g.node("BatchNormalization", [y, g.const(np.ones(192)), g.const(np.zeros(192)), g.const(g.normal(192, scale=0.2)),
                                          g.const(g.uniform(0.3, 3.0, 192))], name=f"{stem}_bn")
        return g.linear(p("Relu", y), f"{stem}2", 192, 64)
    online, target = head("online"), head("target")
    z = p("Add", p("Mul", target, 0.9), p("Mul", online, 0.1))
    z = p("Div", z, p("Add", p("ReduceL2", z, axes=[-1], keepdims=1), 1e-6))
    pred = g.linear(p("Relu", g.linear(online, "pred1", 64, 128)), "pred2", 128, 64)
    pred = p("Div", pred, p("Add", p("ReduceL2", pred, axes=[-1], keepdims=1), 1e-6))
    bt = p.perm(bank, 1, 0)
    out = [p("Softmax", p("Div", p("MatMul", t, bt), 0.2), axis=-1) for t in (z, pred)]
    g.output(*out)


@model("mask_pooled_sentence_encoder_of_512_tokens_geglu", pins=[], opset=21)
def _(g):
    """One post-norm encoder layer; (x * mask) summed over 512 tokens, over the clipped count; a dense tanh head."""
    n, h, d = 512, 2, 32
    c = h * d
    x = g.input("embedded", ["b", n, c], g.normal(1, n, c))
    valid = (np.arange(n)[None] < 387).astype(np.int64)
    mask = g.input("attention_mask", ["b", n], valid)
    p = Part(g, "mp")
    q, k, v = (by_heads(p, g.linear(x, s, c, c), h, d) for s in "qkv")
    s = p("Div", p("MatMul", q, p.perm(k, 0, 1, 3, 2)), d**0.5)
    keep = p.cast(mask)
    s = p("Add", s, p("Mul", p("Sub", 1.0, p.unsq(keep, 1, 2)), -10000.0))
    y = joined(p, p("MatMul", p("Softmax", s, axis=-1), v), c)
    x = g.layer_norm(p("Add", x, g.linear(y, "o", c, c)), "ln1", c)
    y = p("Mul", p("Gelu", g.linear(x, "gate", c, 128)), g.linear(x, "up", c, 128))
    x = g.layer_norm(p("Add", x, g.linear(y, "down", 128, c)), "ln2", c)
    m = p.unsq(keep, 2)
    y = p("Div", p.red("ReduceSum", p("Mul", x, m), 1, keep=0), p("Clip", p.red("ReduceSum", m, 1, keep=0), 1e-9))
    g.output(p("Tanh", g.linear(y, "dense", c, 128, scale=0.5)))


@model("gated_delta_rule_rank_one_updates_three_tokens", pins=[], opset=22)
def _(g):
    """S = exp(-softplus) S + k (beta (v - S^T k))^T for three tokens from a state given, read by q."""
    d = 48
    x = g.input("tokens", ["b", 3, 64], g.normal(2, 3, 64))
    s = g.input("state", ["b", d, d], g.normal(2, d, d, scale=0.4))
    p = Part(g, "gd")
    def proj(stem):
        y = g.linear(x, stem, 64, d)
        return p("Mul", y, p("Sigmoid", y))
    unit = lambda t: p("Div", t, p("Sqrt", p("Add", p.red("ReduceSum", p.square(t), -1), 1e-6)))
    q, k, v = unit(proj("q")), unit(proj("k")), proj("v")
    beta = p("Sigmoid", g.linear(x, "beta", 64, 1))
    decay = p("Exp", p("Neg", p("Softplus", p("Sub", g.linear(x, "a", 64, 1), 2.0))))
    cut = lambda t: p.parts(t, 1, 1, 1, 1)
    outs = []
    for qt, kt, vt, bt, at in zip(*(cut(t) for t in (q, k, v, beta, decay))):
        s = p("Mul", s, at)
        u = p("Mul", p("Sub", vt, p("MatMul", kt, s)), bt)
        s = p("Add", s, p("MatMul", p.perm(kt, 0, 2, 1), u))
        outs.append(p("MatMul", qt, s))
    g.output(g.linear(p.cat(1, *outs), "out", d, 64), s)


@model("token_merging_even_into_odd_soft_parallel_reglu_block", pins=[], opset=18)
def _(g):
    """A parallel block of attention and ReGLU; then even tokens merged into odd ones by softmaxed cosines and counts."""
    n, h, d = 64, 4, 16
    c = h * d
    x = g.input("tokens", ["b", n, c], g.normal(2, n, c))
    p = Part(g, "tm")
    y = g.layer_norm(x, "ln", c)
    q, k, v, a, b = p.parts(g.linear(y, "fused", c, 3 * c + 256, bias=False), 2, c, c, c, 128, 128)
    qh, kh, vh = (by_heads(p, t, h, d) for t in (q, k, v))
    s = p("Mul", p("MatMul", qh, p.perm(kh, 0, 1, 3, 2)), d**-0.5)
    att = joined(p, p("MatMul", p("Softmax", s, axis=-1), vh), c)
    y = p.cat(2, att, p("Mul", p("Relu", a), b))
    x = p("Add", x, g.linear(y, "out", c + 128, c, bias=False))
    m = p("Div", k, p.red("ReduceL2", k, -1))
    even, odd = p.cut(m, 0, n, 1, 2), p.cut(m, 1, n, 1, 2)
    w = p("Softmax", p("Div", p("MatMul", even, p.perm(odd, 0, 2, 1)), 0.1), axis=-1)
    wt = p.perm(w, 0, 2, 1)
    merged = p("Add", p.cut(x, 1, n, 1, 2), p("MatMul", wt, p.cut(x, 0, n, 1, 2)))
    merged = p("Div", merged, p("Add", p.red("ReduceSum", wt, -1), 1.0))
    g.output(g.linear(g.layer_norm(merged, "ln2", c), "next", c, 96))
