"""Losses and scores: contrastive, focal, overlap, likelihoods, margins, log-sums, transport."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, cast, mlp, op, reduce, reshape, unsqueeze


def unit(g, x, stem, eps=1e-12):
    """x over its norm along the last axis, as F.normalize is exported."""
    norm = reduce(g, "ReduceL2", x, [-1], f"{stem}_norm")
    norm = g.node("Clip", [norm, g.const(eps)], name=f"{stem}_clip")
    return g.node("Div", [x, norm], name=f"{stem}_div")


def picked(g, logp, labels, name):
    """-log p of the label of each row."""
    index = unsqueeze(g, labels, [1], f"{name}_index")
    return g.node(
        "Neg", [g.node("GatherElements", [logp, index], name=f"{name}_gather", axis=1)], name=f"{name}_neg"
    )


@model("nt_xent_temperature_half", pins=[])
def nt_xent_temperature_half(g):
    """SimCLR: projected, normalised views, similarities over a temperature of 0.5, cross entropy."""
    a = g.input("view_a", ["batch", 128], g.normal(48, 128))
    b = g.input("view_b", ["batch", 128], g.values["view_a"] + g.normal(48, 128, scale=0.5))
    w = g.weight("proj_w", 128, 64)
    za = unit(g, g.node("MatMul", [a, w], name="proj_a"), "za")
    zb = unit(g, g.node("MatMul", [b, w], name="proj_b"), "zb")
    sim = g.node("MatMul", [za, g.node("Transpose", [zb], name="zb_t", perm=[1, 0])], name="sim_mm")
    logp = g.node("LogSoftmax", [op(g, "Div", sim, 0.5, name="temperature")], name="logp", axis=1)
    g.output(picked(g, logp, g.const(np.arange(48), dtype=np.int64), "own"))


@model("clip_logit_scale_100_symmetric", pins=["sim_mm", "logits_*", "text_*", "image_*"])
def clip_logit_scale_100_symmetric(g):
    """CLIP loss: exp(4.6052) times cosines of image and text embeddings, both cross entropies."""
    x = g.normal(40, 192)
    image = g.input("image_features", ["batch", 192], x)
    text = g.input("text_features", ["batch", 192], x + g.normal(40, 192, scale=3.2))
    w = np.eye(192, 128, dtype=np.float32) + g.normal(192, 128, scale=0.02)
    za = unit(g, g.node("MatMul", [image, g.const(w, "w_image")], name="project_image"), "image")
    zb = unit(g, g.node("MatMul", [text, g.const(w, "w_text")], name="project_text"), "text")
    scale = g.node("Exp", [g.const(4.6052, "logit_scale")], name="scale_exp")
    sim = g.node("MatMul", [za, g.node("Transpose", [zb], name="text_t", perm=[1, 0])], name="sim_mm")
    logits = g.node("Mul", [sim, scale], name="logits_mul")
    turned = g.node("Transpose", [logits], name="logits_t", perm=[1, 0])
    labels = g.const(np.arange(40), dtype=np.int64)
    rows = picked(g, g.node("LogSoftmax", [logits], name="logp_rows", axis=1), labels, "rows")
    cols = picked(g, g.node("LogSoftmax", [turned], name="logp_cols", axis=1), labels, "cols")
    g.output(g.node("Mean", [rows, cols], name="both"))


@model("supcon_masked_self_minus_1e9", pins=["sim_mask", "sim_add", "shift_*", "logp_*"])
def supcon_masked_self_minus_1e9(g):
    """Supervised contrastive: the own sample masked by eye * -1e9, positives averaged by their count."""
    labels = np.arange(64) % 8
    x = g.input("features", [64, 128], g.normal(8, 128)[labels] + g.normal(64, 128))
    y = g.input("labels", [64, 1], labels[:, None])
    z = unit(g, mlp(g, x, "head", [128, 128, 64]), "z")
    sim = g.node("MatMul", [z, g.node("Transpose", [z], name="z_t", perm=[1, 0])], name="sim_mm")
    sim = op(g, "Div", sim, 0.1, name="temperature")
    eye = g.const(np.eye(64), "eye")
    sim = g.node("Add", [sim, op(g, "Mul", eye, -1e9, name="sim_mask")], name="sim_add")
    sim = g.node("Sub", [sim, reduce(g, "ReduceMax", sim, [1], "row_max")], name="shift_sub")
    total = reduce(g, "ReduceSum", g.node("Exp", [sim], name="exp"), [1], "total")
    logp = g.node("Sub", [sim, g.node("Log", [total], name="logsum")], name="logp_sub")
    same = cast(
        g, g.node("Equal", [y, g.node("Transpose", [y], name="y_t", perm=[1, 0])], name="same"), "same_f"
    )
    same = g.node("Sub", [same, eye], name="positives")
    chosen = g.node("Mul", [logp, same], name="logp_chosen")
    mean = g.node(
        "Div",
        [reduce(g, "ReduceSum", chosen, [1], "sum_chosen"), reduce(g, "ReduceSum", same, [1], "count")],
        name="logp_mean",
    )
    g.output(g.node("Neg", [mean], name="logp_neg"))


@model("retina_focal_clip_one_minus_p", pins=["p_*", "q_*", "focal_*"], opset=18)
def retina_focal_clip_one_minus_p(g):
    """RetinaNet in Keras: sigmoid clipped to 1e-7 .. 1 - 1e-7, logs of p and 1 - p, squared modulation."""
    x = g.input("features", ["batch", 128, 12, 12], g.normal(1, 128, 12, 12))
    t = g.input("targets", ["batch", 32, 12, 12], (g.rng.random((1, 32, 12, 12)) < 0.02).astype(np.float32))
    h = g.node("Relu", [g.conv(x, "tower", 128, 64, 3, pads=[1, 1, 1, 1])], name="tower_act")
    w = g.weight("class_w", 32, 64, 1, 1, scale=0.5)
    logits = g.node("Conv", [h, w, g.const(np.full(32, -4.6), "prior_bias")], name="class_conv")
    p = g.node("Sigmoid", [logits], name="p_sigmoid")
    p = g.node("Clip", [p, g.const(1e-7), g.const(1 - 1e-7)], name="p_clip")
    q = op(g, "Sub", 1.0, p, name="q_sub")
    positive = g.node(
        "Mul", [op(g, "Pow", q, 2.0, name="q_pow"), g.node("Log", [p], name="log_p")], name="focal_pos"
    )
    negative = g.node(
        "Mul", [g.node("Mul", [p, p], name="p_square"), g.node("Log", [q], name="log_q")], name="focal_neg"
    )
    loss = g.node(
        "Where",
        [
            g.node("Cast", [t], name="is_object", to=TensorProto.BOOL),
            op(g, "Mul", positive, -0.25, name="focal_alpha"),
            op(g, "Mul", negative, -0.75, name="focal_rest"),
        ],
        name="focal_where",
    )
    g.output(reduce(g, "ReduceSum", loss, [2, 3], "per_class", keepdims=0))


@model("bce_with_logits_softplus", pins=[], opset=17)
def bce_with_logits_softplus(g):
    """Binary cross entropy with logits, its stable form: max(x, 0) - x·t + log(1 + exp(-|x|)) by Softplus."""
    x = g.input("features", ["batch", 128], g.normal(64, 128))
    t = g.input("targets", ["batch", 40], (g.rng.random((64, 40)) < 0.2).astype(np.float32))
    logits = mlp(g, x, "head", [128, 128, 40])
    soft = g.node(
        "Softplus", [g.node("Neg", [g.node("Abs", [logits], name="abs")], name="neg")], name="softplus"
    )
    loss = g.node(
        "Sub", [g.node("Relu", [logits], name="relu"), g.node("Mul", [logits, t], name="mul")], name="sub"
    )
    loss = g.node("Add", [loss, soft], name="add")
    g.output(reduce(g, "ReduceMean", loss, [1], "mean", keepdims=0))


@model("dice_score_of_65536_pixels", pins=["dice_*"])
def dice_score_of_65536_pixels(g):
    """U-Net head with soft Dice: sums of 256x256 probabilities, twice the overlap over both sizes."""
    x = g.input("features", [1, 32, 256, 256], g.normal(1, 32, 256, 256))
    t = np.zeros((1, 4, 256, 256), np.float32)
    t[:, 0], t[:, 1, 40:90, 30:200], t[:, 2, 100:250, 100:250] = 1, 1, 1
    t = g.input("target", [1, 4, 256, 256], t)
    w = g.weight("head_w", 4, 32, 1, 1, scale=0.3)
    p = g.node("Conv", [x, w, g.const([3.0, -2.0, 0.5, -4.0], "head_b")], name="head_conv")
    p = g.node("Sigmoid", [p], name="p")
    both = reduce(g, "ReduceSum", g.node("Mul", [p, t], name="overlap"), [2, 3], "sum_both", keepdims=0)
    size = reduce(g, "ReduceSum", p, [2, 3], "sum_p", keepdims=0)
    target = reduce(g, "ReduceSum", t, [2, 3], "sum_t", keepdims=0)
    up = op(g, "Add", op(g, "Mul", both, 2.0, name="dice_twice"), 1e-5, name="dice_smooth_up")
    down = op(g, "Add", g.node("Add", [size, target], name="dice_sizes"), 1e-5, name="dice_smooth_down")
    g.output(op(g, "Sub", 1.0, g.node("Div", [up, down], name="dice_div"), name="dice_loss"), p)


@model("tversky_overlaps_by_matmul", pins=["overlap_mm", "false_*", "index_*"])
def tversky_overlaps_by_matmul(g):
    """Tversky index: true and false positives of 147456 pixels counted by a MatMul of flat masks."""
    x = g.input("features", ["pixels", 32], g.normal(147456, 32))
    t = g.input("target", ["pixels", 2], (g.rng.random((147456, 2)) < [0.9, 0.5]).astype(np.float32))
    p = g.node("Sigmoid", [g.linear(x, "head", 32, 2, scale=0.3)], name="p")
    p = op(g, "Add", op(g, "Mul", p, 0.1, name="soften"), 0.85, name="confident")
    both = g.node("Gemm", [p, t], name="overlap_mm", transA=1)
    sum_p = unsqueeze(g, reduce(g, "ReduceSum", p, [0], "sum_p", keepdims=0), [1], "sum_p_dims")
    sum_t = reduce(g, "ReduceSum", t, [0], "sum_t")
    fp = op(g, "Mul", g.node("Sub", [sum_p, both], name="false_positive"), 0.3, name="false_alpha")
    fn = op(g, "Mul", g.node("Sub", [sum_t, both], name="false_negative"), 0.7, name="false_beta")
    down = g.node("Add", [both, g.node("Add", [fp, fn], name="false_both")], name="index_down")
    g.output(g.node("Div", [both, op(g, "Add", down, 1.0, name="index_smooth")], name="index_div"))


@model("vae_kl_near_posterior_collapse", pins=["kl_*"])
def vae_kl_near_posterior_collapse(g):
    """VAE: KL of nearly standard posteriors, mu² + exp(logvar) - 1 - logvar, and the decoder."""
    x = g.input("h", ["batch", 128], g.normal(32, 128))
    noise = g.input("noise", ["batch", 64], g.normal(32, 64))
    h = g.node("Gelu", [g.linear(x, "enc", 128, 128)], name="gelu")
    mu = g.linear(h, "stats_mu", 128, 64, scale=0.004)
    logvar = g.linear(h, "stats_logvar", 128, 64, scale=0.004)
    logvar = g.node("Clip", [logvar, g.const(-30.0), g.const(20.0)], name="stats_clip")
    kl = g.node(
        "Add", [g.node("Mul", [mu, mu], name="kl_square"), g.node("Exp", [logvar], name="exp")], name="kl_add"
    )
    kl = g.node("Sub", [op(g, "Sub", kl, 1.0, name="kl_sub_one"), logvar], name="kl_sub_logvar")
    kl = op(g, "Mul", reduce(g, "ReduceSum", kl, [1], "sum", keepdims=0), 0.5, name="kl_half")
    std = g.node("Exp", [op(g, "Mul", logvar, 0.5, name="half_logvar")], name="std")
    z = g.node("Add", [mu, g.node("Mul", [std, noise], name="spread")], name="sample")
    g.output(kl, mlp(g, z, "dec", [64, 128, 128]))


@model("heteroscedastic_nll_of_load_kwh", pins=["mean_*", "residual_*", "var_eps", "nll_*"], opset=17)
def heteroscedastic_nll_of_load_kwh(g):
    """Gaussian NLL of loads of hundreds of kWh: squared residuals over a softplus variance plus 1e-6."""
    x = g.input("features", ["batch", 96], g.normal(64, 96))
    y = g.input("load", ["batch", 24], g.uniform(200, 1500, 64, 24))
    h = g.node("Relu", [g.linear(x, "trunk", 96, 128)], name="relu")
    mean = op(
        g, "Add", op(g, "Mul", g.linear(h, "mu", 128, 24), 310.0, name="mean_scale"), 720.0, name="mean_shift"
    )
    var = g.node("Softplus", [g.linear(h, "raw", 128, 24)], name="softplus")
    var = op(g, "Add", var, 1e-6, name="var_eps")
    residual = g.node("Sub", [y, mean], name="residual_sub")
    square = g.node("Mul", [residual, residual], name="residual_square")
    nll = g.node(
        "Add",
        [g.node("Div", [square, var], name="nll_div"), g.node("Log", [var], name="log")],
        name="nll_add",
    )
    g.output(op(g, "Mul", nll, 0.5, name="nll_half"))


@model("triplet_distances_from_gram", pins=["gram_*", "square_*", "yy_t", "dist_*"], opset=17)
def triplet_distances_from_gram(g):
    """Batch triplet loss: |a|² + |b|² - 2ab of raw embeddings, floored, square root, soft margin."""
    a = g.normal(48, 128, scale=2.0) + 3.0
    x = g.input("anchors", ["n", 128], a)
    y = g.input("others", ["m", 128], a[::-1] + g.normal(48, 128, scale=0.06))
    w = np.eye(128, dtype=np.float32) + g.normal(128, 128, scale=0.02)
    x = g.node("MatMul", [x, g.const(w, "w_a")], name="gram_embed_a")
    y = g.node("MatMul", [y, g.const(w, "w_b")], name="gram_embed_b")
    gram = g.node("MatMul", [x, g.node("Transpose", [y], name="gram_t", perm=[1, 0])], name="gram_mm")
    xx = reduce(g, "ReduceSumSquare", x, [1], "xx")
    yy = g.node("Transpose", [reduce(g, "ReduceSumSquare", y, [1], "yy")], name="yy_t", perm=[1, 0])
    d = g.node("Add", [xx, yy], name="square_add")
    d = g.node("Sub", [d, op(g, "Mul", gram, 2.0, name="square_twice")], name="square_sub")
    d = g.node("Sqrt", [op(g, "Max", d, 1e-12, name="dist_floor")], name="dist_sqrt")
    far = reduce(g, "ReduceMean", d, [1], "far")
    near = reduce(g, "ReduceMin", d, [1], "near")
    g.output(
        g.node(
            "Softplus",
            [op(g, "Mul", g.node("Sub", [near, far], name="dist_gap"), 0.1, name="dist_mul")],
            name="soft_margin",
        ),
        d,
    )


@model("ctc_alpha_recursion_scan", pins=["alpha/body/*", "emit_*"])
def ctc_alpha_recursion_scan(g):
    """CTC: forward variables in log space by a Scan over 60 frames, impossible states at -1e30."""
    x = g.input("encoder", ["frames", 128], g.normal(60, 128))
    target = g.input(
        "extended", [17], np.ravel(np.stack([np.zeros(9), 1 + np.arange(9) * 3], 1)).astype(np.int64)[:17]
    )
    logp = g.node("LogSoftmax", [g.linear(x, "vocab", 128, 40, scale=0.3)], name="logp", axis=1)
    emit = g.node("Gather", [logp, target], name="emit_gather", axis=1)
    start = np.full(17, -1e30, np.float32)
    start[:1] = 0
    body = Body(g, "step")
    before, now = body.entry("before", [17]), body.entry("now", [17])
    low = body.const(np.full(2, -1e30), "low")
    one = body.node(
        "Concat",
        [
            body.node("Slice", [low, body.ints(0), body.ints(1)], name="low1"),
            body.node("Slice", [before, body.ints(0), body.ints(16)], name="prev1"),
        ],
        name="shift1",
        axis=0,
    )
    two = body.node(
        "Concat",
        [low, body.node("Slice", [before, body.ints(0), body.ints(15)], name="prev2")],
        name="shift2",
        axis=0,
    )
    skip = op(body, "Mul", (np.arange(17) % 2 == 0).astype(np.float32), -1e30, name="no_skip")
    two = body.node("Max", [body.node("Add", [two, skip], name="masked"), body.const(-1e30)], name="floor")
    top = body.node("Max", [before, one, two], name="top")
    parts = [
        body.node("Exp", [body.node("Sub", [p, top], name=f"sub{i}")], name=f"exp{i}")
        for i, p in enumerate([before, one, two])
    ]
    total = body.node("Log", [body.node("Sum", parts, name="sum")], name="log")
    after = body.node("Add", [body.node("Add", [top, total], name="add_top"), now], name="alpha")
    each = body.node("Identity", [after], name="each")
    last, _ = g.node(
        "Scan",
        [g.const(start, "alpha_start"), emit],
        name="alpha",
        outputs=2,
        num_scan_inputs=1,
        body=body.graph((after, [17]), (each, [17])),
    )
    ends = g.node("Gather", [last, g.ints(15, 16)], name="ends")
    g.output(g.node("Neg", [g.node("ReduceLogSumExp", [ends, g.ints(0)], name="loglik")], name="loss"))


@model("arcface_sine_of_cosine_margin", pins=["cos_mm", "sine_*", "phi_*", "logits_*"])
def arcface_sine_of_cosine_margin(g):
    """ArcFace: cos(θ + 0.5) by sqrt(1 - cos²) for the label, else cosines, all times 64."""
    w = g.normal(100, 128)
    y = g.rng.integers(0, 100, 32)
    x = g.input("features", ["batch", 128], w[y] * 3 + g.normal(32, 128, scale=4.0))
    hot = g.input("one_hot", ["batch", 100], np.eye(100, dtype=np.float32)[y])
    x = unit(
        g,
        g.node("MatMul", [x, g.const(np.eye(128) + g.normal(128, 128, scale=0.01), "fc_w")], name="fc_mm"),
        "x",
    )
    centres = g.const(w / np.linalg.norm(w, axis=1, keepdims=True), "centres")
    cos = g.node("Gemm", [x, centres], name="cos_mm", transB=1)
    square = op(g, "Sub", 1.0, g.node("Mul", [cos, cos], name="sine_square"), name="sine_sub")
    sine = g.node(
        "Sqrt", [g.node("Clip", [square, g.const(0.0), g.const(1.0)], name="sine_clip")], name="sine_sqrt"
    )
    phi = g.node(
        "Sub",
        [op(g, "Mul", cos, np.cos(0.5), name="phi_cos"), op(g, "Mul", sine, np.sin(0.5), name="phi_sin")],
        name="phi_sub",
    )
    chosen = g.node("Mul", [hot, phi], name="phi_chosen")
    rest = g.node("Mul", [op(g, "Sub", 1.0, hot, name="not_hot"), cos], name="phi_rest")
    logits = op(g, "Mul", g.node("Add", [chosen, rest], name="phi_add"), 64.0, name="logits_scale")
    g.output(g.node("LogSoftmax", [logits], name="logp", axis=1))


@model("cosface_margin_scale_16", pins=[], opset=19)
def cosface_margin_scale_16(g):
    """CosFace for speakers: cosine less a margin of 0.2 at the label, a small scale of 16, softmax."""
    w = g.normal(80, 128)
    y = g.rng.integers(0, 80, 32)
    x = g.input("embedding", ["batch", 128], w[y] * 0.5 + g.normal(32, 128))
    hot = g.input("one_hot", ["batch", 80], np.eye(80, dtype=np.float32)[y])
    x = g.node("LpNormalization", [mlp(g, x, "fc", [128, 128, 128])], name="x_norm", axis=-1, p=2)
    centres = g.const((w / np.linalg.norm(w, axis=1, keepdims=True)).T, "centres")
    cos = g.node("MatMul", [x, centres], name="cos_mm")
    cos = g.node("Sub", [cos, op(g, "Mul", hot, 0.2, name="margin")], name="margin_sub")
    g.output(g.node("Softmax", [op(g, "Mul", cos, 16.0, name="scale")], name="softmax", axis=-1))


@model("sinkhorn_log_domain_loop", pins=["cost_*", "sinkhorn/body/*", "plan_*"])
def sinkhorn_log_domain_loop(g):
    """Sinkhorn in log space: 15 rounds of log-sum-exp over squared distances by a Loop, then the plan."""
    x = g.input("points", ["n", 64], g.normal(32, 64))
    y = g.input("others", ["m", 64], g.normal(40, 64))
    w = g.weight("embed_w", 64, 64)
    x, y = g.node("MatMul", [x, w], name="embed_x"), g.node("MatMul", [y, w], name="embed_y")
    diff = g.node("Sub", [unsqueeze(g, x, [1], "x_dims"), unsqueeze(g, y, [0], "y_dims")], name="cost_diff")
    cost = reduce(g, "ReduceMean", g.node("Mul", [diff, diff], name="cost_square"), [2], "cost", keepdims=0)
    cost = op(g, "Div", cost, -0.05, name="cost_div")
    body = Body(g, "round")
    body.entry("i", [], TensorProto.INT64)
    body.entry("go", [], TensorProto.BOOL)
    f, h = body.entry("f", [32, 1]), body.entry("h", [1, 40])
    rows = body.node(
        "ReduceLogSumExp", [body.node("Add", [cost, h], name="add_h"), body.ints(1)], name="rows"
    )
    new_f = op(body, "Sub", -np.log(32), rows, name="sub_rows")
    cols = body.node(
        "ReduceLogSumExp", [body.node("Add", [cost, new_f], name="add_f"), body.ints(0)], name="cols"
    )
    new_h = op(body, "Sub", -np.log(40), cols, name="sub_cols")
    keep = body.node("Identity", ["go"], name="keep")
    graph = body.graph((keep, [], TensorProto.BOOL), (new_f, [32, 1]), (new_h, [1, 40]))
    f, h = g.node(
        "Loop",
        [g.const(15, dtype=np.int64), "", g.const(np.zeros((32, 1))), g.const(np.zeros((1, 40)))],
        name="sinkhorn",
        outputs=2,
        body=graph,
    )
    f, h = reshape(g, f, [32, 1], "plan_rows"), reshape(g, h, [1, 40], "plan_cols")
    total = g.node("Add", [g.node("Add", [cost, f], name="plan_f"), h], name="plan_h")
    plan = g.node("Exp", [op(g, "Add", total, np.log(32), name="plan_scale")], name="plan_exp")
    g.output(g.node("MatMul", [plan, y], name="barycentre_mm"))


@model("barlow_twins_cross_correlation", pins=[])
def barlow_twins_cross_correlation(g):
    """Barlow Twins: correlation of standardised views over the batch, its squared gap to identity."""
    x = g.normal(96, 128)
    a = g.input("view_a", [96, 128], x)
    b = g.input("view_b", [96, 128], x + g.normal(96, 128, scale=0.7))
    w = g.weight("proj_w", 128, 64)
    z = []
    for s, view in (("a", a), ("b", b)):
        y = g.node("MatMul", [view, w], name=f"proj_{s}")
        mean = reduce(g, "ReduceMean", y, [0], f"mean_{s}")
        y = g.node("Sub", [y, mean], name=f"centre_{s}")
        std = g.node(
            "Sqrt",
            [reduce(g, "ReduceMean", op(g, "Pow", y, 2.0, name=f"pow_{s}"), [0], f"var_{s}")],
            name=f"std_{s}",
        )
        z.append(g.node("Div", [y, std], name=f"z_{s}"))
    c = op(g, "Div", g.node("Gemm", z, name="correlation", transA=1), 96.0, name="batch_div")
    gap = op(g, "Sub", c, np.eye(64), name="gap")
    loss = op(g, "Mul", op(g, "Pow", gap, 2.0, name="gap_pow"), np.eye(64) * 0.98 + 0.02, name="weigh")
    g.output(reduce(g, "ReduceSum", loss, [1], "rows", keepdims=0))


@model(
    "charbonnier_eps_1e_minus_3_restored",
    pins=["out_conv", "diff_*", "charbonnier_*"],
    pins_bf16=["out_conv", "restored", "diff_*"],
)
def charbonnier_eps_1e_minus_3_restored(g):
    """Image restoration: residual prediction and sqrt((y - t)² + 1e-6), mean per channel."""
    t = g.uniform(0, 1, 1, 32, 24, 24)
    x = g.input("degraded", [1, 32, "h", "w"], t + g.normal(1, 32, 24, 24, scale=0.004))
    t = g.input("target", [1, 32, "h", "w"], t)
    h = g.node("Relu", [g.conv(x, "in", 32, 64, 3, pads=[1, 1, 1, 1])], name="relu")
    w = g.weight("out_w", 32, 64, 3, 3, scale=2e-4)
    y = g.node("Add", [g.node("Conv", [h, w], name="out_conv", pads=[1, 1, 1, 1]), x], name="restored")
    diff = g.node("Sub", [y, t], name="diff_sub")
    square = op(
        g, "Add", g.node("Mul", [diff, diff], name="charbonnier_square"), 1e-6, name="charbonnier_eps"
    )
    root = g.node("Sqrt", [square], name="charbonnier_sqrt")
    g.output(reduce(g, "ReduceMean", root, [2, 3], "mean", keepdims=0), y)


@model("vicreg_variance_hinge_and_invariance", pins=[], opset=17)
def vicreg_variance_hinge_and_invariance(g):
    """VICReg: relu(1 - sqrt(variance + 1e-2)) of each dimension and the mean squared gap of both views."""
    x = g.normal(96, 128)
    a = g.input("view_a", ["batch", 128], x)
    b = g.input("view_b", ["batch", 128], x + g.normal(96, 128, scale=0.6))
    w = g.weight("expand_w", 128, 96, scale=0.07)
    za, zb = g.node("MatMul", [a, w], name="expand_a"), g.node("MatMul", [b, w], name="expand_b")
    d = g.node("Sub", [za, reduce(g, "ReduceMean", za, [0], "mean")], name="centre")
    var = reduce(g, "ReduceMean", g.node("Mul", [d, d], name="square"), [0], "var", keepdims=0)
    std = g.node("Sqrt", [op(g, "Add", var, 1e-2, name="eps")], name="std")
    hinge = g.node("Relu", [op(g, "Sub", 1.0, std, name="one_minus")], name="hinge")
    gap = g.node("Sub", [za, zb], name="gap")
    gap = reduce(g, "ReduceMean", g.node("Mul", [gap, gap], name="gap_square"), [1], "invariance", keepdims=0)
    g.output(hinge, gap)
