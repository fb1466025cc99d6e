"""Distances and kernels: RBF, codebooks, Mahalanobis, cosines, Gram, regression, hyperbolic spaces."""

import numpy as np

from .build import model
from .parts import constant, mlp, op, reduce, reshape, unsqueeze


def turned(g, x, name):
    return g.node("Transpose", [x], name=name, perm=[1, 0])


def near_identity(g, name, n, scale=0.02):
    return g.const(np.eye(n, dtype=np.float32) + g.normal(n, n, scale=scale), name)


def cdist_square(g, x, y, stem):
    """|x|² + |y|² - 2xy of rows, by Pow and ReduceSum."""
    xx = reduce(g, "ReduceSum", op(g, "Pow", x, 2.0, name=f"{stem}_xpow"), [1], f"{stem}_xx")
    yy = reduce(g, "ReduceSum", op(g, "Pow", y, 2.0, name=f"{stem}_ypow"), [1], f"{stem}_yy")
    xy = g.node("MatMul", [x, turned(g, y, f"{stem}_yt")], name=f"{stem}_xy")
    both = g.node("Add", [xx, turned(g, yy, f"{stem}_yyt")], name=f"{stem}_sum")
    return g.node("Sub", [both, op(g, "Mul", xy, 2.0, name=f"{stem}_twice")], name=f"{stem}_sub")


@model("rbf_svm_decision_expanded", pins=["scaled_*", "d2_*", "kernel_gamma"])
def rbf_svm_decision_expanded(g):
    """RBF SVM: standardised features, expanded distances to support vectors, dual weights."""
    support = g.normal(128, 64) * 1.5
    raw = support[:48] + g.normal(48, 64, scale=0.25)
    mean, std = g.uniform(50, 400, 64), g.uniform(5, 80, 64)
    x = g.input("measurements", ["batch", 64], raw * std + mean)
    x = op(g, "Div", op(g, "Sub", x, mean, name="scaled_sub"), std, name="scaled_div")
    d2 = cdist_square(g, x, g.const(support, "support"), "d2")
    kernel = g.node("Exp", [op(g, "Mul", d2, -0.05, name="kernel_gamma")], name="kernel_exp")
    g.output(g.linear(kernel, "dual", 128, 3, scale=1.0))


@model("rbf_layer_by_differences_reduced", pins=[], opset=17)
def rbf_layer_by_differences_reduced(g):
    """RBF network: differences to centres, ReduceSumSquare, exp(-beta d²), linear head; bounded features."""
    x = g.input("features", ["batch", 48], g.normal(40, 48))
    x = g.node("Tanh", [g.linear(x, "embed", 48, 32)], name="tanh")
    centres = g.const(g.uniform(-1, 1, 1, 64, 32), "centres")
    diff = g.node("Sub", [unsqueeze(g, x, [1], "x_dims"), centres], name="diff")
    d2 = reduce(g, "ReduceSumSquare", diff, [2], "d2", keepdims=0)
    phi = g.node("Exp", [op(g, "Mul", d2, -0.1, name="beta")], name="phi")
    g.output(g.linear(phi, "head", 64, 10, scale=0.5))


@model(
    "vqvae_soft_codes_large_latents",
    pins=["latent_conv", "latent_rows", "latent_flat", "d2_*", "temperature"],
)
def vqvae_soft_codes_large_latents(g):
    """VQ-VAE: latents around 30 against a codebook, expanded distances, sharp softmax, decoder."""
    x = g.input("image", ["batch", 32, 12, 12], g.normal(1, 32, 12, 12))
    w = g.weight("enc_w", 64, 32, 3, 3, scale=0.15)
    z = g.node("Conv", [x, w, g.const(np.full(64, 30.0), "enc_b")], name="latent_conv", strides=[1, 1])
    rows = g.node("Transpose", [z], name="latent_rows", perm=[0, 2, 3, 1])
    rows = reshape(g, rows, [-1, 64], "latent_flat")
    book = g.const(30 + g.normal(128, 64, scale=2.0), "codebook")
    d2 = cdist_square(g, rows, book, "d2")
    soft = g.node("Softmax", [op(g, "Mul", d2, -0.05, name="temperature")], name="softmax", axis=1)
    q = g.node("MatMul", [soft, book], name="quantised_mm")
    g.output(mlp(g, g.node("Sub", [q, g.const(30.0)], name="recentre"), "dec", [64, 96, 32]))


@model("residual_vq_argmin_clear_margins", pins=[], opset=19)
def residual_vq_argmin_clear_margins(g):
    """Codebook look-up with far apart unit codes: largest product by ArgMax, Gather, straight decoder."""
    book = g.normal(64, 64)
    book /= np.linalg.norm(book, axis=1, keepdims=True)
    codes = book[g.rng.integers(0, 64, 50)] + g.normal(50, 64, scale=0.03)
    x = g.input("latents", ["n", 64], codes)
    z = g.node("MatMul", [x, near_identity(g, "in_w", 64, 0.01)], name="in_mm")
    sim = g.node("MatMul", [z, g.const(book.T, "codes_t")], name="sim_mm")
    index = g.node("ArgMax", [sim], name="argmax", axis=1, keepdims=0)
    q = g.node("Gather", [g.const(book, "codes"), index], name="gather", axis=0)
    residual = g.node("Sub", [z, q], name="residual")
    g.output(
        mlp(
            g,
            g.node("Concat", [q, op(g, "Mul", residual, 4.0, name="gain")], name="cat", axis=1),
            "dec",
            [128, 96, 32],
        )
    )


@model(
    "mahalanobis_ood_precision_product", pins=["centred_*", "precision_*", "form_mul", "score_*"], opset=17
)
def mahalanobis_ood_precision_product(g):
    """Out-of-distribution score: (x - mean)ᵀ P (x - mean) with a precision of entries up to 1e4."""
    q, _ = np.linalg.qr(g.normal(64, 64))
    precision = (q * np.geomspace(0.5, 2e4, 64)) @ q.T
    x = g.input("features", ["batch", 64], g.uniform(0, 6, 40, 64))
    f = g.node("Relu", [g.linear(x, "penultimate", 64, 64)], name="relu")
    d = op(g, "Sub", f, np.abs(g.normal(64)), name="centred_sub")
    pd = g.node("MatMul", [d, g.const(precision, "precision")], name="precision_mm")
    form = reduce(g, "ReduceSum", g.node("Mul", [pd, d], name="form_mul"), [1], "form_sum")
    score = op(g, "Mul", form, -0.5, name="score_half")
    g.output(score, g.linear(f, "logits", 64, 10))


@model("whitened_mahalanobis_by_cholesky", pins=["centred_*"])
def whitened_mahalanobis_by_cholesky(g):
    """PaDiM anomaly map: embeddings less the mean of their patch, whitened, ReduceL2, sigmoid."""
    mean = g.uniform(150, 220, 100, 64)
    x = g.input("patches", ["batch", 100, 64], mean + g.normal(1, 100, 64, scale=0.8))
    d = op(g, "Sub", x, mean, name="centred_sub")
    white = g.node(
        "MatMul", [d, g.const(np.tril(g.normal(64, 64, scale=0.2)) + np.eye(64), "inv_chol")], name="white_mm"
    )
    dist = reduce(g, "ReduceL2", white, [2], "dist")
    z = op(g, "Div", op(g, "Sub", dist, 9.0, name="margin"), 3.0, name="scale")
    g.output(g.node("Sigmoid", [z], name="map"))


@model("cosine_eps_1e_minus_8_of_small_vectors", pins=["cos_mm", "norm_*", "ratio_*"], opset=18)
def cosine_eps_1e_minus_8_of_small_vectors(g):
    """Cosine similarity of gradients of about 1e-4: product, norms by square roots, eps of 1e-8, division."""
    x = g.input("gradients", ["tasks", 128], g.normal(24, 128, scale=2e-4))
    y = g.node("MatMul", [x, near_identity(g, "precond", 128, 0.05)], name="precond_mm")
    dot = g.node("MatMul", [y, turned(g, y, "norm_t")], name="cos_mm")
    norm = reduce(g, "ReduceSum", g.node("Mul", [y, y], name="norm_square"), [1], "sum")
    norm = g.node("Sqrt", [norm], name="norm_sqrt")
    norms = g.node("MatMul", [norm, turned(g, norm, "norm_turn")], name="norm_outer")
    cos = g.node("Div", [dot, op(g, "Max", norms, 1e-8, name="ratio_eps")], name="ratio_div")
    g.output(g.node("Softmax", [op(g, "Div", cos, 0.2, name="temperature")], name="weights", axis=1))


@model("cosine_of_feature_maps_reduce_l2", pins=[])
def cosine_of_feature_maps_reduce_l2(g):
    """Feature matching: Conv features over ReduceL2 plus 1e-6 along channels, correlation product."""
    w = g.weight("w", 64, 32, 3, 3)
    maps = []
    for s in "ab":
        x = g.input(f"image_{s}", [1, 32, 10, 10], g.normal(1, 32, 10, 10))
        f = g.node("Conv", [x, w], name=f"feat_{s}", pads=[1, 1, 1, 1])
        norm = op(g, "Add", reduce(g, "ReduceL2", f, [1], f"l2_{s}"), 1e-6, name=f"eps_{s}")
        maps.append(reshape(g, g.node("Div", [f, norm], name=f"unit_{s}"), [64, 100], f"flat_{s}"))
    corr = g.node("MatMul", [turned(g, maps[0], "turn"), maps[1]], name="corr_mm")
    g.output(g.node("Relu", [corr], name="relu"))


@model("style_gram_of_vgg_features", pins=["gram_*"], pins_bf16=[])
def style_gram_of_vgg_features(g):
    """Style: pixels 0..255 less their mean, Conv, Gram matrix of 576 positions, over its count."""
    pixels = g.rng.integers(0, 256, (1, 3, 26, 26)).astype(np.float32)
    x = g.input("image", [1, 3, 26, 26], pixels)
    x = op(g, "Sub", x, np.array([123.68, 116.779, 103.939]).reshape(1, 3, 1, 1), name="mean_sub")
    h = g.node(
        "Conv",
        [x, g.weight("vgg_w", 64, 3, 3, 3, scale=0.3), g.const(np.zeros(64), "vgg_b")],
        name="feat_conv",
    )
    h = g.node("Relu", [h], name="feat_relu")
    f = reshape(g, h, [64, -1], "flat")
    gram = g.node("MatMul", [f, turned(g, f, "flat_t")], name="gram_mm")
    gram = op(g, "Div", gram, 64.0 * 576, name="gram_div")
    g.output(g.node("Gemm", [gram, g.weight("embed", 64, 32)], name="embed_gemm"))


@model("second_order_pooling_signed_sqrt", pins=[])
def second_order_pooling_signed_sqrt(g):
    """Bilinear pooling: outer product by Einsum, signed square root, L2 norm, classifier."""
    x = g.input("features", ["batch", 49, 64], g.normal(2, 49, 64))
    h = g.node("Relu", [g.linear(x, "reduce", 64, 32)], name="relu")
    pooled = g.node(
        "Einsum",
        [op(g, "Div", h, 7.0, name="by_7a"), op(g, "Div", h, 7.0, name="by_7b")],
        name="outer",
        equation="bnc,bnd->bcd",
    )
    root = g.node("Sqrt", [op(g, "Add", g.node("Abs", [pooled], name="abs"), 1e-2, name="eps")], name="sqrt")
    signed = g.node("Mul", [g.node("Sign", [pooled], name="sign"), root], name="signed")
    flat = g.node("Flatten", [signed], name="flat")
    g.output(g.linear(g.node("LpNormalization", [flat], name="l2", axis=1, p=2), "head", 1024, 20, scale=0.5))


@model(
    "nadaraya_watson_small_bandwidth",
    pins=["diff_*", "weigh_*", "smooth_mm", "ratio_*"],
    pins_bf16=["diff_*", "weigh_*"],
)
def nadaraya_watson_small_bandwidth(g):
    """Kernel regression over time in seconds: exp(-((t - s) / h)² / 2) times values over its sum."""
    s = np.sort(g.uniform(0, 3600, 96))
    t = g.input("query_s", ["n", 1], np.sort(g.uniform(0, 3600, 64))[:, None])
    v = g.input("values", [96, 64], g.normal(96, 64))
    diff = op(g, "Div", op(g, "Sub", t, s[None], name="diff_sub"), 18.0, name="diff_div")
    half = op(g, "Mul", g.node("Mul", [diff, diff], name="weigh_square"), -0.5, name="weigh_half")
    kernel = g.node("Exp", [half], name="kernel")
    up = g.node(
        "MatMul",
        [kernel, g.node("MatMul", [v, g.weight("value_w", 64, 64)], name="value_mm")],
        name="smooth_mm",
    )
    down = op(g, "Add", reduce(g, "ReduceSum", kernel, [1], "down"), 1e-8, name="ratio_eps")
    g.output(g.node("Div", [up, down], name="ratio_div"))


@model("prototype_net_squared_euclidean", pins=["embed1_*", "d2_*", "neg"], opset=20)
def prototype_net_squared_euclidean(g):
    """Prototypical network: class means of wide embeddings, expanded distances in the hundreds, softmax."""
    proto = g.normal(8, 128)
    support = np.repeat(proto, 5, 0) + g.normal(40, 128, scale=0.5)
    a = g.input("support", [40, 128], support)
    b = g.input("query", ["n", 128], proto[g.rng.integers(0, 8, 30)] + g.normal(30, 128, scale=1.5))
    w0, w1 = g.weight("w0", 128, 128), g.weight("w1", 128, 64, scale=0.3)
    rows = []
    for s, x in (("a", a), ("b", b)):
        h = g.node("Relu", [g.node("MatMul", [x, w0], name=f"embed0_{s}")], name=f"act_{s}")
        rows.append(g.node("Gemm", [h, w1, g.const(np.full(64, 6.0))], name=f"embed1_{s}"))
    protos = reduce(g, "ReduceMean", reshape(g, rows[0], [8, 5, 64], "shots"), [1], "protos", keepdims=0)
    d2 = cdist_square(g, rows[1], protos, "d2")
    g.output(g.node("LogSoftmax", [g.node("Neg", [d2], name="neg")], name="logp", axis=1))


@model("poincare_distance_near_the_rim", pins=["ball_*", "gap_*", "rim_*", "arg_*", "root_*"])
def poincare_distance_near_the_rim(g):
    """Hyperbolic embeddings: arcosh(1 + 2|u - v|² / ((1 - |u|²)(1 - |v|²))) of points near the rim."""

    def points(n):
        p = g.normal(n, 64)
        return p / np.linalg.norm(p, axis=1, keepdims=True) * g.uniform(2, 5, n, 1)

    u = g.input("tangent_u", ["n", 64], points(40))
    v = g.input("tangent_v", ["n", 64], points(40))
    w = near_identity(g, "w", 64, 0.01)
    ball = []
    for s, x in (("u", u), ("v", v)):
        y = g.node("MatMul", [x, w], name=f"ball_mm_{s}")
        norm = reduce(g, "ReduceL2", y, [1], f"norm_{s}")
        y = g.node(
            "Mul",
            [y, g.node("Div", [g.node("Tanh", [norm], name=f"ball_tanh_{s}"), norm], name=f"ball_div_{s}")],
            name=f"ball_{s}",
        )
        rim = op(g, "Sub", 1.0, reduce(g, "ReduceSumSquare", y, [1], f"sq_{s}"), name=f"rim_{s}")
        ball.append((y, op(g, "Max", rim, 1e-5, name=f"rim_floor_{s}")))
    gap = reduce(g, "ReduceSumSquare", g.node("Sub", [ball[0][0], ball[1][0]], name="gap_sub"), [1], "gap")
    gap = g.node("Div", [gap, g.node("Mul", [ball[0][1], ball[1][1]], name="rim_mul")], name="gap_div")
    arg = op(g, "Add", op(g, "Mul", gap, 2.0, name="arg_twice"), 1.0, name="arg_add")
    root = g.node(
        "Sqrt",
        [op(g, "Sub", g.node("Mul", [arg, arg], name="root_square"), 1.0, name="root_sub")],
        name="root_sqrt",
    )
    g.output(g.node("Log", [g.node("Add", [arg, root], name="root_add")], name="distance"))


@model("lorentz_inner_product_acosh", pins=["time_*", "inner_*", "space_mm"], opset=18)
def lorentz_inner_product_acosh(g):
    """Lorentz model (MERU): times sqrt(1 + |x|²), inner product by a difference of products, Acosh."""
    x = g.input("image", ["n", 64], g.normal(32, 64, scale=0.6))
    y = g.input("text", ["n", 64], g.values["image"] + g.normal(32, 64, scale=0.05))
    w = near_identity(g, "w", 64, 0.02)
    xs, ys = g.node("MatMul", [x, w], name="space_x"), g.node("MatMul", [y, w], name="space_y")
    times = []
    for s, p in (("x", xs), ("y", ys)):
        square = reduce(g, "ReduceSumSquare", p, [1], f"square_{s}")
        times.append(g.node("Sqrt", [op(g, "Add", square, 1.0, name=f"time_add_{s}")], name=f"time_sqrt_{s}"))
    space = g.node("MatMul", [xs, turned(g, ys, "space_t")], name="space_mm")
    time = g.node("MatMul", [times[0], turned(g, times[1], "time_t")], name="time_mm")
    inner = g.node("Sub", [time, space], name="inner_sub")
    inner = op(g, "Max", inner, 1.0 + 1e-6, name="inner_floor")
    g.output(g.node("Acosh", [inner], name="distance"))


@model("mmd_multi_kernel_of_domains", pins=["d2_*", "width_*"])
def mmd_multi_kernel_of_domains(g):
    """Domain adaptation: squared distances of both batches, five RBF widths by the mean distance, MMD."""
    a = g.input("source", [32, 96], g.normal(32, 96))
    b = g.input("target", [32, 96], g.normal(32, 96) + 0.4)
    x = g.node("Concat", [a, b], name="both", axis=0)
    x = g.node("Relu", [g.linear(x, "bottleneck", 96, 64)], name="relu")
    d2 = cdist_square(g, x, x, "d2")
    mean = reduce(g, "ReduceMean", d2, [0, 1], "mean")
    scaled = g.node("Div", [d2, mean], name="width_div")
    kernels = [
        g.node("Exp", [op(g, "Mul", scaled, -(2.0**k), name=f"width_{k + 2}")], name=f"kernel{k + 2}")
        for k in range(-2, 3)
    ]
    kernel = g.node("Sum", kernels, name="kernels")
    side = constant(g, np.r_[np.full(32, 1 / 32), np.full(32, -1 / 32)][:, None], "side")
    witness = g.node("MatMul", [kernel, side], name="witness_mm")
    g.output(witness)
