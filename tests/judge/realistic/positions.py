"""Positions: rotary embeddings, sinusoids, Fourier features, tables, resized grids, distances."""

import numpy as np

from .build import model
from .parts import (Body, attend, cast, constant, count, dot_scores, heads_of, merge_heads, mlp, op,
                    project_qkv, reduce, reshape, span, unsqueeze)


def rotate_half(g, x, stem, cos, sin, size):
    """x·cos + rotate_half(x)·sin, as Llama writes it."""
    half = size // 2
    low, high = span(g, x, 0, half, 3, f"{stem}_low"), span(g, x, half, size, 3, f"{stem}_high")
    high = g.node("Neg", [high], name=f"{stem}_neg")
    turned = g.node("Concat", [high, low], name=f"{stem}_turned", axis=-1)
    left = g.node("Mul", [x, cos], name=f"{stem}_mul_cos")
    return g.node("Add", [left, g.node("Mul", [turned, sin], name=f"{stem}_mul_sin")], name=f"{stem}_rotated")


def inverse_frequencies(n, base=10000.0):
    return base ** (-np.arange(n) / n)


@model("llama_rope_positions_to_30000", pins=["freqs_*"])
def llama_rope_positions_to_30000(g):
    """Llama rotary embedding: position ids times inverse frequencies as a MatMul, then cos and sin."""
    x = g.input("x", ["batch", "seq", 128], g.normal(1, 48, 128))
    ids = g.input("position_ids", ["batch", "seq"], np.arange(29952, 30000)[None])
    ids = cast(g, unsqueeze(g, ids, [1], "freqs_dims"), "freqs_cast")
    inv = g.const(inverse_frequencies(32).reshape(1, 32, 1), "inv_freq")
    freqs = g.node("MatMul", [inv, ids], name="freqs_mm")
    freqs = g.node("Transpose", [freqs], name="freqs_t", perm=[0, 2, 1])
    freqs = unsqueeze(g, g.node("Concat", [freqs, freqs], name="freqs_cat", axis=-1), [1], "freqs_heads")
    cos, sin = g.node("Cos", [freqs], name="cos"), g.node("Sin", [freqs], name="sin")
    q, k, v = project_qkv(g, x, 2, 64)
    q, k = rotate_half(g, q, "q", cos, sin, 64), rotate_half(g, k, "k", cos, sin, 64)
    g.output(attend(g, dot_scores(g, q, k, 64), v, 128))


@model("gptj_rope_gathered_tables", pins=[], opset=21)
def gptj_rope_gathered_tables(g):
    """GPT-J rotary embedding with interleaved pairs, its sin and cos gathered from stored tables."""
    x = g.input("x", [1, 48, 128], g.normal(1, 48, 128))
    ids = g.input("position_ids", [48], np.arange(500, 548))
    angles = np.repeat(np.arange(600)[:, None] * inverse_frequencies(16), 2, axis=1)
    cos = g.node("Gather", [g.const(np.cos(angles), "cos_table"), ids], name="cos_gather")
    sin = g.node("Gather", [g.const(np.sin(angles), "sin_table"), ids], name="sin_gather")
    q, k, v = project_qkv(g, x, 4, 32)
    turned = []
    for s, y in (("q", q), ("k", k)):
        pairs = reshape(g, y, [1, 4, 48, 16, 2], f"{s}_pairs")
        even, odd = span(g, pairs, 0, 1, 4, f"{s}_even"), span(g, pairs, 1, 2, 4, f"{s}_odd")
        swap = g.node("Concat", [g.node("Neg", [odd], name=f"{s}_neg"), even], name=f"{s}_swap", axis=4)
        swap = reshape(g, swap, [1, 4, 48, 32], f"{s}_flat")
        y = g.node("Mul", [y, cos], name=f"{s}_mul_cos")
        swap = g.node("Mul", [swap, sin], name=f"{s}_mul_sin")
        turned.append(g.node("Add", [y, swap], name=f"{s}_rotated"))
    g.output(attend(g, dot_scores(g, *turned, 32), v, 128))


@model("qwen2vl_vision_rope_einsum_grid", pins=["angles_*"])
def qwen2vl_vision_rope_einsum_grid(g):
    """2-D rotary embedding of a vision tower: Einsum of patch rows and columns with frequencies."""
    x = g.input("patches", [1, 96, 128], g.normal(1, 96, 128))
    rows, cols = np.divmod(np.arange(96), 8)
    grid = g.input("grid", [96, 2], np.stack([rows + 40, cols * 8 + 5], 1).astype(np.float32))
    inv = g.const(inverse_frequencies(16), "inv_freq")
    angles = g.node("Einsum", [grid, inv], name="angles_einsum", equation="np,f->npf")
    angles = reshape(g, angles, [96, 32], "angles_flat")
    angles = g.node("Concat", [angles, angles], name="angles_cat", axis=1)
    cos, sin = g.node("Cos", [angles], name="cos"), g.node("Sin", [angles], name="sin")
    q, k, v = project_qkv(g, x, 2, 64)
    q, k = rotate_half(g, q, "q", cos, sin, 64), rotate_half(g, k, "k", cos, sin, 64)
    g.output(attend(g, dot_scores(g, q, k, 64), v, 128))


@model("decoder_sinusoid_from_range_offset", pins=["pos_*"])
def decoder_sinusoid_from_range_offset(g):
    """Transformer decoder step: sinusoids of the positions after the cached ones, added to the embedding."""
    ids = g.input("ids", [1, "seq"], g.rng.integers(0, 500, (1, 32)))
    past = g.input("past_length", [], np.asarray(1900, dtype=np.int64))
    x = g.node("Gather", [g.weight("embedding", 500, 128, scale=0.088), ids], name="embed")
    x = op(g, "Mul", x, 128**0.5, name="embed_scale")
    seq = g.node("Gather", [g.node("Shape", [ids], name="shape"), g.const(1, dtype=np.int64)], name="seq_len")
    last = g.node("Add", [past, seq], name="pos_last")
    pos = g.node("Range", [past, last, g.const(1, dtype=np.int64)], name="pos_range")
    pos = unsqueeze(g, cast(g, pos, "pos_cast"), [1], "pos_dims")
    args = g.node("Mul", [pos, g.const(inverse_frequencies(64), "inv_freq")], name="pos_mul")
    table = [g.node("Sin", [args], name="sin"), g.node("Cos", [args], name="cos")]
    x = g.node("Add", [x, g.node("Concat", table, name="table", axis=1)], name="embed_add")
    g.output(mlp(g, g.layer_norm(x, "norm", 128), "ffn", [128, 256, 128], "Gelu"))


@model("gaussian_fourier_features_2d_image", pins=["coords_*", "proj_*"], opset=18)
def gaussian_fourier_features_2d_image(g):
    """Coordinate network of an image: sin and cos of 2π x·B with B of deviation 10, then an MLP."""
    xy = g.input("pixels", ["n", 2], g.rng.integers(0, 512, (300, 2)).astype(np.float32))
    xy = op(g, "Div", xy, 512.0, name="coords_div")
    z = g.node("MatMul", [xy, g.weight("b_matrix", 2, 64, scale=10.0)], name="proj_mm")
    z = op(g, "Mul", z, 2 * np.pi, name="proj_two_pi")
    parts = [g.node("Sin", [z], name="sin"), g.node("Cos", [z], name="cos")]
    y = g.node("Concat", parts, name="cat", axis=-1)
    g.output(g.node("Sigmoid", [mlp(g, y, "net", [128, 128, 128, 3])], name="colour"))


@model("nerf_ten_octaves_of_points", pins=["points_*", "octave_*"])
def nerf_ten_octaves_of_points(g):
    """NeRF: points along rays, o + t·d, encoded by sin and cos of 2^l π x for ten octaves."""
    o = g.input("origins", ["rays", 1, 3], g.uniform(-2, 2, 24, 1, 3))
    d = g.normal(24, 1, 3)
    d = g.input("directions", ["rays", 1, 3], d / np.linalg.norm(d, axis=-1, keepdims=True))
    t = g.const(np.linspace(2.0, 6.0, 16).reshape(1, 16, 1), "depths")
    x = g.node("Add", [o, g.node("Mul", [d, t], name="points_mul")], name="points_add")
    octaves = constant(g, 2.0 ** np.arange(10) * np.pi, "octaves")
    z = g.node("Mul", [unsqueeze(g, x, [3], "octave_dims"), octaves], name="octave_mul")
    z = reshape(g, z, [0, 16, 30], "octave_flat")
    parts = [x, g.node("Sin", [z], name="sin"), g.node("Cos", [z], name="cos")]
    y = mlp(g, g.node("Concat", parts, name="encoding", axis=-1), "net", [63, 128, 128, 4])
    density = g.node("Softplus", [span(g, y, 3, 4, 2, "density_raw")], name="density")
    g.output(g.node("Sigmoid", [span(g, y, 0, 3, 2, "rgb_raw")], name="rgb"), density)


@model("mipnerf_integrated_encoding_damped", pins=["octave_*", "var_*"], opset=21)
def mipnerf_integrated_encoding_damped(g):
    """mip-NeRF: sin(2^l x) damped by exp(-4^l σ² / 2), σ² of 1e-5 times 4^l up to 2.6e5."""
    x = g.input("means", [200, 3], g.uniform(-3, 3, 200, 3))
    var = g.input("variances", [200, 3], (10 ** g.uniform(-6, -4, 200, 3)).astype(np.float32))
    z = op(g, "Mul", unsqueeze(g, x, [2], "octave_dims"), 2.0 ** np.arange(10), name="octave_mul")
    v = op(g, "Mul", unsqueeze(g, var, [2], "var_dims"), 4.0 ** np.arange(10), name="var_mul")
    damp = g.node("Exp", [op(g, "Mul", v, -0.5, name="var_half")], name="damp")
    parts = [g.node("Mul", [g.node(kind, [z], name=kind.lower()), damp], name=f"{kind.lower()}_damped")
             for kind in ("Sin", "Cos")]
    y = reshape(g, g.node("Concat", parts, name="cat", axis=-1), [200, 60], "flat")
    g.output(mlp(g, y, "net", [60, 128, 128, 4]))


@model("gpt2_learned_positions_added", pins=[])
def gpt2_learned_positions_added(g):
    """GPT-2 input: token and position rows gathered and added, then a layer norm and an MLP."""
    ids = g.input("ids", ["batch", "seq"], g.rng.integers(0, 400, (2, 64)))
    x = g.node("Gather", [g.weight("wte", 400, 128, scale=0.1), ids], name="wte_gather")
    seq = g.node("Gather", [g.node("Shape", [ids], name="shape"), g.const(1, dtype=np.int64)], name="seq_len")
    pos = g.node("Range", [g.const(0, dtype=np.int64), seq, g.const(1, dtype=np.int64)], name="pos_range")
    p = g.node("Gather", [g.weight("wpe", 128, 128, scale=0.05), pos], name="wpe_gather")
    x = g.node("Add", [x, p], name="embed_add")
    y = mlp(g, g.layer_norm(x, "ln", 128), "ffn", [128, 256, 128], "Gelu")
    g.output(g.node("Add", [x, y], name="residual"))


@model("vit_positions_resized_bicubic", pins=[], opset=18)
def vit_positions_resized_bicubic(g):
    """ViT stem at another resolution: the table of positions resized (cubic) and added to patches."""
    image = g.input("image", [1, 3, 96, 128], g.normal(1, 3, 96, 128))
    x = g.conv(image, "patch", 3, 96, 8, strides=[8, 8])
    table = g.const(g.normal(1, 96, 8, 8, scale=0.1), "positions")
    sizes = g.ints(1, 96, 12, 16)
    table = g.node("Resize", [table, "", "", sizes], name="resize", mode="cubic", cubic_coeff_a=-0.75)
    x = reshape(g, g.node("Add", [x, table], name="pos_add"), [1, 96, 192], "flat")
    x = g.node("Transpose", [x], name="tokens", perm=[0, 2, 1])
    q, k, v = project_qkv(g, g.layer_norm(x, "ln", 96), 3, 32)
    g.output(g.node("Add", [attend(g, dot_scores(g, q, k, 32), v, 96), x], name="residual"))


@model("opt_float_position_ids_from_mask", pins=[], pins_bf16=["ids_*"])
def opt_float_position_ids_from_mask(g):
    """OPT positions counted in f32 from the mask, plus an offset, cast to ids: whole numbers up to 700."""
    x = g.input("x", [1, "seq", 96], g.normal(1, 700, 96))
    mask = g.input("mask", [1, "seq"], np.ones((1, 700), np.float32) * (np.arange(700) >= 5))
    n = g.node("CumSum", [mask, g.const(1, dtype=np.int64)], name="ids_cumsum")
    n = op(g, "Add", g.node("Mul", [n, mask], name="ids_mul"), 1.0, name="ids_offset")
    ids = g.node("Cast", [n], name="ids_cast", to=7)
    p = g.node("Gather", [g.weight("wpe", 704, 96, scale=0.3), ids], name="wpe_gather")
    x = g.node("Add", [g.linear(x, "embed", 96, 96), p], name="pos_add")
    g.output(mlp(g, x, "ffn", [96, 192, 96], "Relu"))


@model("time2vec_unix_seconds_of_day", pins=["time_*"], opset=17)
def time2vec_unix_seconds_of_day(g):
    """Time2Vec of events: seconds of the day up to 86400 by a Gemm, one linear and 63 periodic features."""
    t = g.input("seconds", ["events", 1], np.sort(g.uniform(0, 86400, 128, 1), axis=0))
    w = np.concatenate([[1 / 86400], 2 * np.pi / np.geomspace(60, 86400, 63)]).reshape(1, 64)
    z = g.node("Gemm", [t, g.const(w, "time_w"), g.const(g.normal(64), "time_b")], name="time_gemm")
    linear, periodic = span(g, z, 0, 1, 1, "time_linear"), span(g, z, 1, 64, 1, "time_periodic")
    parts = [linear, g.node("Sin", [periodic], name="sin")]
    y = g.node("Concat", parts, name="cat", axis=1)
    x = g.input("events", ["events", 64], g.normal(128, 64))
    y = g.node("Concat", [x, y], name="join", axis=1)
    g.output(mlp(g, y, "net", [128, 128, 64], "Relu"))


@model("detr_sine_embedding_of_mask", pins=["y_*", "x_*"], opset=19)
def detr_sine_embedding_of_mask(g):
    """DETR sine positions: cumulated mask, divided by its last value + 1e-6, times 2π, by powers of 10000."""
    feats = g.input("features", [1, 64, 24, 32], g.normal(1, 64, 24, 32))
    mask = g.input("valid", [1, 24, 32], (np.arange(32) < 27)[None, None] * np.ones((1, 24, 1), np.float32))
    halves = []
    for stem, axis, n in (("y", 1, 24), ("x", 2, 32)):
        c = g.node("CumSum", [mask, g.const(axis, dtype=np.int64)], name=f"{stem}_cumsum")
        last = op(g, "Add", span(g, c, n - 1, n, axis, f"{stem}_last"), 1e-6, name=f"{stem}_eps")
        c = op(g, "Mul", g.node("Div", [c, last], name=f"{stem}_norm"), 2 * np.pi, name=f"{stem}_scale")
        c = unsqueeze(g, c, [3], f"{stem}_dims")
        z = op(g, "Div", c, 10000.0 ** (np.arange(16) / 16), name=f"{stem}_div")
        halves += [g.node("Sin", [z], name=f"sin_{stem}"), g.node("Cos", [z], name=f"cos_{stem}")]
    pos = g.node("Transpose", [g.node("Concat", halves, name="cat", axis=3)], name="pos_t", perm=[0, 3, 1, 2])
    x = g.node("Add", [g.conv(feats, "input_proj", 64, 64, 1), pos], name="pos_add")
    g.output(g.conv(g.node("Relu", [x], name="relu"), "mix", 64, 64, 3, pads=[1, 1, 1, 1]))


@model("transformer_xl_relative_shift", pins=["pos_*"], opset=21)
def transformer_xl_relative_shift(g):
    """Transformer-XL: sinusoids of descending distances, projected, and the shift by pad and reshape."""
    n = 400
    x = g.input("x", [1, n, 128], g.normal(1, n, 128))
    pos = g.node("Range", [g.const(float(n - 1)), g.const(-1.0), g.const(-1.0)], name="pos_range")
    pos = g.node("Einsum", [pos, g.const(inverse_frequencies(64), "inv_freq")], name="pos_outer",
                 equation="i,j->ij")
    r = [g.node("Sin", [pos], name="sin"), g.node("Cos", [pos], name="cos")]
    r = unsqueeze(g, g.node("Concat", r, name="r_cat", axis=1), [0], "r_dims")
    q, k, v = project_qkv(g, x, 4, 32)
    r = heads_of(g, g.linear(r, "r", 128, 128, bias=False), "r", 4, 32)
    bd = g.node("MatMul", [q, g.node("Transpose", [r], name="r_t", perm=[0, 1, 3, 2])], name="bd_mm")
    bd = g.node("Pad", [bd, g.ints(0, 0, 0, 1, 0, 0, 0, 0)], name="shift_pad")
    bd = span(g, reshape(g, bd, [1, 4, n + 1, n], "shift_view"), 1, n + 1, 2, "shift_drop")
    bd = reshape(g, bd, [1, 4, n, n], "shift_back")
    kt = g.node("Transpose", [k], name="k_t", perm=[0, 1, 3, 2])
    s = g.node("Add", [g.node("MatMul", [q, kt], name="ac_mm"), bd], name="scores_add")
    s = op(g, "Mul", s, 32**-0.5, name="scores_scale")
    keep = g.const(np.tril(np.ones((n, n), bool)), "causal", dtype=bool)
    g.output(attend(g, op(g, "Where", keep, s, -1e30, name="causal_where"), v, 128))


@model("fire_bias_of_log_distance", pins=[], pins_bf16=["dist_*"], opset=17)
def fire_bias_of_log_distance(g):
    """FIRE: an MLP of log(1 + c·distance) / log(1 + c·row) as bias; distances are whole numbers up to 400."""
    x = g.input("x", [1, 400, 96], g.normal(1, 400, 96))
    i = count(g, 400, "dist_steps")
    rows = op(g, "Max", unsqueeze(g, i, [1], "dist_rows"), 1.0, name="dist_floor")
    d = g.node("Sub", [unsqueeze(g, i, [1], "dist_i"), unsqueeze(g, i, [0], "dist_j")], name="dist_sub")
    d = op(g, "Max", d, 0.0, name="dist_causal")
    logs = []
    for stem, y in (("num", d), ("den", rows)):
        y = op(g, "Add", op(g, "Mul", y, 0.3, name=f"{stem}_scale"), 1.0, name=f"{stem}_plus")
        logs.append(g.node("Log", [y], name=f"{stem}_log"))
    y = unsqueeze(g, g.node("Div", logs, name="ratio"), [2], "ratio_dims")
    y = mlp(g, y, "fire", [1, 32, 2])
    bias = unsqueeze(g, g.node("Transpose", [y], name="bias_t", perm=[2, 0, 1]), [0], "bias_dims")
    q, k, v = project_qkv(g, x, 2, 48)
    s = g.node("Add", [dot_scores(g, q, k, 48), bias], name="bias_add")
    keep = g.const(np.tril(np.ones((400, 400), bool)), "causal", dtype=bool)
    g.output(attend(g, op(g, "Where", keep, s, -1e4, name="causal_where"), v, 96))


@model("coordconv_unit_range_channels", pins=[], opset=17)
def coordconv_unit_range_channels(g):
    """CoordConv: channels of coordinates in [-1, 1], computed by Range, joined to the features."""
    x = g.input("x", [1, 62, 32, 40], g.normal(1, 62, 32, 40))
    channels = []
    for stem, n, axes in (("rows", 32, [0, 1, 3]), ("cols", 40, [0, 1, 2])):
        c = op(g, "Mul", count(g, n, stem), 2 / (n - 1), name=f"{stem}_mul")
        c = op(g, "Sub", c, 1.0, name=f"{stem}_sub")
        c = unsqueeze(g, c, axes, f"{stem}_dims")
        channels.append(g.node("Expand", [c, g.ints(1, 1, 32, 40)], name=f"{stem}_expand"))
    x = g.node("Concat", [x, *channels], name="cat", axis=1)
    x = g.node("Relu", [g.conv(x, "first", 64, 64, 3, pads=[1, 1, 1, 1])], name="relu")
    g.output(g.conv(x, "second", 64, 32, 1))


@model("swinv2_continuous_bias_log_table", pins=[],
       pins_bf16=["cpb_sig", "cpb_scale", "cpb_t", "scores_scale", "bias_add"])
def swinv2_continuous_bias_log_table(g):
    """Swin V2: a continuous bias, 16·sigmoid(MLP(log-spaced offsets)), over cosine attention with a scale."""
    x = g.input("x", [4, 64, 96], g.normal(4, 64, 96))
    offset = np.stack(np.meshgrid(np.arange(-7, 8), np.arange(-7, 8), indexing="ij"), -1) * 8 / 7
    table = np.sign(offset) * np.log2(1 + abs(offset)) / 3
    y = mlp(g, g.const(table.reshape(225, 2), "offsets"), "cpb", [2, 64, 3])
    r, c = np.divmod(np.arange(64), 8)
    index = (r[:, None] - r[None] + 7) * 15 + c[:, None] - c[None] + 7
    y = g.node("Gather", [y, g.const(index, dtype=np.int64)], name="cpb_gather")
    y = op(g, "Mul", g.node("Sigmoid", [y], name="cpb_sig"), 16.0, name="cpb_scale")
    bias = g.node("Transpose", [y], name="cpb_t", perm=[2, 0, 1])
    q, k, v = project_qkv(g, x, 3, 32)
    q, k = (g.node("Div", [y, reduce(g, "ReduceL2", y, [-1], f"{s}_l2")], name=f"{s}_unit")
            for s, y in (("q", q), ("k", k)))
    kt = g.node("Transpose", [k], name="k_t", perm=[0, 1, 3, 2])
    s = op(g, "Mul", g.node("MatMul", [q, kt], name="scores_mm"), 10.0, name="scores_scale")
    p = g.node("Softmax", [g.node("Add", [s, bias], name="bias_add")], name="softmax", axis=-1)
    g.output(merge_heads(g, g.node("MatMul", [p, v], name="attend_mm"), 96))


NTK = ["ratio_mul", "ratio_sub", "base_mul", "inv_reciprocal"]


@model("dynamic_ntk_rope_if_long", pins=["freqs_*"] + [f"ntk/then_branch/{n}" for n in NTK], opset=19)
def dynamic_ntk_rope_if_long(g):
    """Dynamic NTK: an If takes rescaled rotary frequencies past a trained length of 2048."""
    x = g.input("x", ["batch", "seq", 128], g.normal(1, 40, 128))
    ids = g.input("position_ids", ["seq"], np.arange(6000, 6040))
    ids = cast(g, ids, "freqs_cast")
    last = reduce(g, "ReduceMax", ids, [0], "seq_last", keepdims=0)
    then, other = Body(g, "rescaled"), Body(g, "stored")
    ratio = op(then, "Sub", op(then, "Mul", last, 2 / 2048, name="ratio_mul"), 1.0, name="ratio_sub")
    base = op(then, "Pow", ratio, 64 / 62, name="ratio_pow")
    base = op(then, "Mul", base, 10000.0, name="base_mul")
    powers = op(then, "Pow", base, np.arange(32) / 32, name="base_pow")
    inv = then.node("Reciprocal", [powers], name="inv_reciprocal")
    stored = constant(other, inverse_frequencies(32), "inv_stored")
    inv = g.node("If", [op(g, "Greater", last, 2048.0, name="long")], name="ntk",
                 then_branch=then.graph((inv, [32])), else_branch=other.graph((stored, [32])))
    freqs = g.node("Einsum", [ids, inv], name="freqs_einsum", equation="i,j->ij")
    freqs = g.node("Concat", [freqs, freqs], name="freqs_cat", axis=-1)
    cos, sin = g.node("Cos", [freqs], name="cos"), g.node("Sin", [freqs], name="sin")
    q, k, v = project_qkv(g, x, 2, 64)
    q, k = rotate_half(g, q, "q", cos, sin, 64), rotate_half(g, k, "k", cos, sin, 64)
    g.output(attend(g, dot_scores(g, q, k, 64), v, 128))
