"""Recommenders: ids, counts and prices, factorisation machines, crosses, towers, calibration."""

import numpy as np

from .build import model
from .parts import cast, mlp, op, reduce, reshape, unsqueeze


def fields(g, n, sizes):
    """Ids of n rows, one column for each table size."""
    return np.stack([g.rng.integers(0, size, n) for size in sizes], 1)


def embed(g, ids, rows, width, name, scale=0.1):
    return g.node("Gather", [g.weight(f"{name}_table", rows, width, scale=scale), ids], name=f"{name}_gather")


@model("deepfm_square_of_sum_minus_sum_of_squares", pins=["fm_*"])
def deepfm_square_of_sum_minus_sum_of_squares(g):
    """DeepFM: half of (Σv)² - Σv² of field embeddings sharing an offset, the deep MLP, their sum."""
    ids = g.input("ids", ["batch", 12], g.rng.integers(0, 300, (64, 12)))
    table = g.const(1.2 + g.normal(300, 32, scale=0.15), "v_table")
    v = g.node("Gather", [table, ids], name="v_gather")
    v = g.node(
        "MatMul", [v, g.const(np.eye(32) + g.normal(32, 32, scale=0.02), "adapt_w")], name="fm_adapt_mm"
    )
    total = reduce(g, "ReduceSum", v, [1], "sum", keepdims=0)
    square_of_sum = g.node("Mul", [total, total], name="fm_square_of_sum")
    sum_of_squares = reduce(
        g, "ReduceSum", g.node("Mul", [v, v], name="fm_square"), [1], "sum_of_squares", keepdims=0
    )
    cross = op(g, "Mul", g.node("Sub", [square_of_sum, sum_of_squares], name="fm_sub"), 0.5, name="fm_half")
    cross = op(g, "Sub", cross, 95.0, name="fm_centre")
    deep = mlp(g, g.node("Flatten", [v], name="flat"), "deep", [384, 64, 16])
    both = g.node("Concat", [op(g, "Div", cross, 10.0, name="fm_level"), deep], name="cat", axis=1)
    g.output(g.node("Sigmoid", [g.linear(both, "logit", 48, 1)], name="ctr"), cross)


@model("nfm_bi_interaction_small_embeddings", pins=[], opset=17)
def nfm_bi_interaction_small_embeddings(g):
    """Neural FM: bi-interaction pooling of centred embeddings by Pow and ReduceSumSquare, batch norm, MLP."""
    ids = g.input("ids", ["batch", 10], g.rng.integers(0, 400, (64, 10)))
    v = embed(g, ids, 400, 64, "v", scale=0.5)
    total = reduce(g, "ReduceSum", v, [1], "sum", keepdims=0)
    squares = reduce(g, "ReduceSumSquare", v, [1], "squares", keepdims=0)
    cross = g.node("Sub", [op(g, "Pow", total, 2.0, name="pow"), squares], name="sub")
    cross = op(g, "Mul", cross, 0.5, name="half")
    params = [g.const(p) for p in (np.ones(64), np.zeros(64), g.normal(64, scale=0.1), np.full(64, 2.0))]
    cross = g.node("BatchNormalization", [cross, *params], name="bn")
    g.output(g.node("Sigmoid", [mlp(g, cross, "deep", [64, 96, 1])], name="ctr"))


@model("dcn_cross_layers_of_raw_counts", pins=["cross*", "wide_*"], opset=17)
def dcn_cross_layers_of_raw_counts(g):
    """DCN v1: x0·(xᵀw) + b + x on prices, ages, views and watch seconds that nobody normalised."""
    raw = np.concatenate(
        [g.uniform(1, 900, 64, 16), g.uniform(18, 80, 64, 16), np.exp(g.uniform(0, 10, 64, 32))], 1
    ).astype(np.float32)
    x0 = g.input("dense", ["batch", 64], np.round(raw, 2))
    x = x0
    for i in range(2):
        w = g.const(g.normal(64, 1) * 1e-4, f"cross{i}_w")
        s = g.node("MatMul", [x, w], name=f"cross{i}_mm")
        x = g.node("Add", [g.node("Mul", [x0, s], name=f"cross{i}_mul"), x], name=f"cross{i}_add")
        x = op(g, "Add", x, g.normal(64), name=f"cross{i}_bias")
    scale = 1 / np.abs(raw).max(0)
    h = op(g, "Mul", x, scale, name="wide_scale")
    g.output(g.node("Sigmoid", [mlp(g, h, "deep", [64, 96, 1])], name="ctr"))


@model("dcn_v2_low_rank_cross_normalised", pins=[])
def dcn_v2_low_rank_cross_normalised(g):
    """DCN v2: x0 ⊙ (U Vᵀ x + b) + x over embeddings and standardised dense features."""
    dense = g.input("dense", ["batch", 32], g.normal(64, 32))
    ids = g.input("ids", ["batch", 3], fields(g, 64, [200, 200, 200]))
    e = g.node("Flatten", [embed(g, ids, 200, 32, "e", scale=0.5)], name="flat")
    x0 = x = g.node("Concat", [dense, e], name="cat", axis=1)
    for i in range(3):
        h = g.node("MatMul", [x, g.weight(f"v{i}", 128, 32)], name=f"v{i}_mm")
        h = g.node("Gemm", [h, g.weight(f"u{i}", 32, 128), g.const(np.zeros(128))], name=f"u{i}_gemm")
        x = g.node("Add", [g.node("Mul", [x0, h], name=f"cross{i}"), x], name=f"keep{i}")
    g.output(mlp(g, x, "head", [128, 64, 1]))


@model(
    "two_tower_temperature_0_01_sampled_bias", pins=["user_*", "item_*", "sim_mm", "temperature", "logq_sub"]
)
def two_tower_temperature_0_01_sampled_bias(g):
    """Two towers: cosines of users and items over 0.01, less the log of sampling odds, log softmax."""
    z = g.normal(48, 96)
    users = g.input("user", ["batch", 96], z + g.normal(48, 96, scale=2))
    items = g.input("item", ["batch", 96], z + g.normal(48, 96, scale=2))
    logq = g.input("log_q", ["batch"], np.log(g.uniform(1e-6, 1e-2, 48)))
    w = np.eye(96, 64)
    towers = []
    for s, x in (("user", users), ("item", items)):
        h = g.node("MatMul", [x, g.const(w + g.normal(96, 64, scale=0.03), f"{s}_w")], name=f"tower_{s}")
        norm = reduce(g, "ReduceL2", h, [1], f"l2_{s}")
        towers.append(g.node("Div", [h, op(g, "Max", norm, 1e-12, name=f"{s}_floor")], name=f"{s}_div"))
    sim = g.node(
        "MatMul", [towers[0], g.node("Transpose", [towers[1]], name="item_t", perm=[1, 0])], name="sim_mm"
    )
    logits = g.node("Sub", [op(g, "Div", sim, 0.01, name="temperature"), logq], name="logq_sub")
    g.output(g.node("LogSoftmax", [logits], name="logp", axis=1))


@model("wide_hashed_ids_divided_by_buckets", pins=["id_*"])
def wide_hashed_ids_divided_by_buckets(g):
    """Hash features: ids up to 2**20 as floats, turned into phases of many rates, sines, MLP."""
    ids = g.input("ids", ["batch", 1], g.rng.integers(0, 1 << 20, (80, 1)))
    x = cast(g, ids, "id_cast")
    x = op(g, "Div", x, float(1 << 20), name="id_div")
    freq = 2.0 ** g.rng.integers(0, 14, 64) * np.pi
    phase = op(g, "Mul", x, freq, name="id_phase")
    y = g.node(
        "Concat", [g.node("Sin", [phase], name="sin"), g.node("Cos", [phase], name="cos")], name="cat", axis=1
    )
    g.output(mlp(g, y, "net", [128, 96, 32], "Gelu"))


@model("dlrm_dot_interaction_log_counts", pins=["log_shift"], pins_bf16=[])
def dlrm_dot_interaction_log_counts(g):
    """DLRM: log(1 + count) of click counts up to 1e6, bottom MLP, dot products of all fields, top MLP."""
    counts = g.input("counts", ["batch", 32], np.floor(np.exp(g.uniform(0, 13.8, 48, 32))))
    ids = g.input("ids", ["batch", 7], g.rng.integers(0, 200, (48, 7)))
    x = g.node("Log", [op(g, "Add", counts, 1.0, name="log_shift")], name="log")
    x = op(g, "Div", x, 14.0, name="level")
    x = unsqueeze(g, g.node("Relu", [mlp(g, x, "bottom", [32, 64, 32])], name="bottom_relu"), [1], "dims")
    v = g.node("Concat", [x, embed(g, ids, 200, 32, "e", scale=0.4)], name="fields", axis=1)
    dots = g.node("MatMul", [v, g.node("Transpose", [v], name="v_t", perm=[0, 2, 1])], name="dots_mm")
    flat = reshape(g, dots, [-1, 64], "flat")
    g.output(g.node("Sigmoid", [mlp(g, flat, "top", [64, 64, 1])], name="ctr"))


@model("isotonic_platt_calibration_of_rare_clicks", pins=["logit_add", "p_*", "odds_*", "back_*"])
def isotonic_platt_calibration_of_rare_clicks(g):
    """Calibration after downsampling at 1/1000: p / (p + (1 - p) / w) of sigmoids near 1."""
    x = g.input("features", ["batch", 96], g.normal(64, 96))
    h = g.node("Relu", [g.linear(x, "trunk", 96, 128)], name="relu")
    logit = g.node("MatMul", [h, g.weight("logit_w", 128, 32)], name="logit_mm")
    p = g.node("Sigmoid", [op(g, "Add", logit, 4.0, name="logit_add")], name="p_sigmoid")
    rest = op(g, "Div", op(g, "Sub", 1.0, p, name="odds_sub"), 1e-3, name="odds_div")
    q = g.node("Div", [p, g.node("Add", [p, rest], name="back_add")], name="back_div")
    g.output(q)


@model("pcoc_bid_times_ctr_times_1000", pins=["ctr_shift", "ctr_sigmoid", "cvr_shift", "ecpm_*"])
def pcoc_bid_times_ctr_times_1000(g):
    """Ad ranking: click rates of 1e-5, times conversion rates, times bids in micros; eCPM over its sum."""
    x = g.input("features", ["batch", 96], g.normal(64, 96))
    bids = g.input("bid_micros", ["batch", 16], np.round(np.exp(g.uniform(11, 16, 64, 16))))
    h = g.node("Relu", [g.linear(x, "trunk", 96, 96)], name="relu")
    ctr = g.node(
        "Sigmoid", [op(g, "Sub", g.linear(h, "ctr_head", 96, 16), 10.0, name="ctr_shift")], name="ctr_sigmoid"
    )
    cvr = g.node(
        "Sigmoid", [op(g, "Sub", g.linear(h, "cvr_head", 96, 16), 5.0, name="cvr_shift")], name="cvr_sigmoid"
    )
    rate = g.node("Mul", [ctr, cvr], name="ecpm_rate")
    ecpm = op(g, "Div", g.node("Mul", [rate, bids], name="ecpm_mul"), 1e6, name="ecpm_micros")
    total = op(g, "Add", reduce(g, "ReduceSum", ecpm, [1], "total"), 1e-12, name="ecpm_eps")
    share = g.node("Div", [ecpm, total], name="ecpm_share")
    g.output(g.linear(share, "allocate", 16, 32))


@model("din_attention_pooling_without_softmax", pins=[], opset=18)
def din_attention_pooling_without_softmax(g):
    """DIN: attention over 50 clicks by an MLP of differences and products, mask by Where."""
    clicks = g.input("clicks", ["batch", 50], g.rng.integers(1, 300, (8, 50)))
    target = g.input("target", ["batch", 1], g.rng.integers(1, 300, (8, 1)))
    valid = g.input("valid", ["batch", 50], np.arange(50)[None] < g.rng.integers(20, 50, (8, 1)))
    table = g.weight("table", 300, 32, scale=0.4)
    e = g.node("Gather", [table, clicks], name="click_gather")
    t = g.node("Gather", [table, target], name="target_gather")
    t = g.node("Expand", [t, g.node("Shape", [e], name="shape")], name="expand")
    parts = [e, t, g.node("Sub", [e, t], name="diff"), g.node("Mul", [e, t], name="product")]
    s = mlp(g, g.node("Concat", parts, name="cat", axis=2), "att", [128, 64, 1], "Sigmoid")
    s = g.node("Where", [unsqueeze(g, valid, [2], "valid_dims"), s, g.const(0.0)], name="masked")
    pooled = reduce(g, "ReduceSum", g.node("Mul", [s, e], name="weigh"), [1], "pooled", keepdims=0)
    g.output(mlp(g, pooled, "head", [32, 64, 1]))


@model("sasrec_recency_of_unix_seconds", pins=["time_*"])
def sasrec_recency_of_unix_seconds(g):
    """Sequential recommender with time decay: unix seconds, gaps in days, additive log bias."""
    last = 1_700_000_000
    stamps = last - np.sort(g.rng.integers(0, 90 * 86400, 40))[::-1]
    t = g.input("stamps", [40], stamps.astype(np.int64))
    x = g.input("items", [40, 64], g.normal(40, 64))
    now = g.node("Gather", [t, g.ints(39)], name="newest")
    gap = cast(g, g.node("Sub", [now, t], name="gap_ints"), "time_cast")
    days = op(g, "Div", gap, 86400.0, name="time_days")
    decay = g.node(
        "Neg", [g.node("Log", [op(g, "Add", days, 1.0, name="time_plus_one")], name="log")], name="decay"
    )
    q, k = g.linear(x, "q", 64, 64), g.linear(x, "k", 64, 64)
    scores = g.node("MatMul", [q, g.node("Transpose", [k], name="k_t", perm=[1, 0])], name="scores_mm")
    scores = g.node("Add", [op(g, "Div", scores, 8.0, name="scale"), decay], name="bias_add")
    probs = g.node("Softmax", [scores], name="softmax", axis=-1)
    g.output(g.linear(g.node("MatMul", [probs, x], name="attend_mm"), "out", 64, 64))


@model("matrix_factorisation_biases_of_ratings", pins=[], opset=19)
def matrix_factorisation_biases_of_ratings(g):
    """Explicit ratings: user and item factors, biases and the mean of 3.5, clipped to 1..5."""
    users = g.input("users", ["n"], g.rng.integers(0, 200, 80))
    items = g.input("items", ["m"], g.rng.integers(0, 300, 60))
    u, v = embed(g, users, 200, 64, "u", scale=0.3), embed(g, items, 300, 64, "v", scale=0.3)
    h = g.node("MatMul", [u, g.weight("mix", 64, 64)], name="mix_mm")
    y = g.node("MatMul", [h, g.node("Transpose", [v], name="v_t", perm=[1, 0])], name="ratings_mm")
    y = g.node("Add", [y, embed(g, users, 200, 1, "user_bias", scale=0.3)], name="user_add")
    bias = embed(g, items, 300, 1, "item_bias", scale=0.3)
    y = g.node("Add", [y, g.node("Transpose", [bias], name="bias_t", perm=[1, 0])], name="item_add")
    y = op(g, "Add", y, 3.5, name="mean_add")
    g.output(g.node("Clip", [y, g.const(1.0), g.const(5.0)], name="clip"))
