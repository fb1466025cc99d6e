"""Networks exported with their losses or their scores against targets."""

import numpy as np

from .build import model
from .parts import mlp
from .named_parts import FMIN, Part, ints, relu_conv, smooth_image


def unit(p, x, axis=-1, eps=1e-12):
    return p("Div", x, p("Max", p.red("ReduceL2", x, axis), eps))


# Cosines over 0.07, one positive before a queue of 1024.
@model("moco_infonce_queue_temperature_007", pins=["nce_*"], opset=17)
def moco(g):
    d, k, b = 64, 1024, 16
    base = g.normal(b, 128)
    q = g.input("query_features", [b, 128], base)
    key = g.input("key_embeddings", [b, d], g.normal(b, d))
    queue = g.normal(d, k)
    p = Part(g, "nce")
    q = unit(p, mlp(g, q, "proj", [128, 128, d]))
    key = unit(p, key)
    neg = g.node("MatMul", [q, g.const(queue / np.linalg.norm(queue, axis=0), "queue")], name="queue_mm")
    pos = p.red("ReduceSum", p("Mul", q, key), 1)
    logits = p("Div", p.cat(1, pos, neg), 0.07)
    logp = p("LogSoftmax", logits, axis=1)
    g.output(p("Neg", p.red("ReduceMean", p.cut(logp, 0, 1, 1), 0)), logits)


# Distances as the root of |a|^2 + |b|^2 - 2 a.b, and a log-sum-exp of margin less distance.
@model("lifted_structure_logsumexp_of_pairwise_distances", pins=["lift_*"], opset=18)
def lifted(g):
    b, d = 48, 64
    centres = np.repeat(g.normal(12, 96), 4, 0)
    x = g.input("features", [b, 96], centres + g.normal(b, 96, scale=0.25))
    labels = g.input("labels", [b], np.repeat(np.arange(12), 4))
    e = mlp(g, x, "embed", [96, 128, d])
    p = Part(g, "lift")
    sq = p.red("ReduceSum", p.square(e), 1)
    gram = p("MatMul", e, p.perm(e, 1, 0))
    d2 = p("Sub", p("Add", sq, p.perm(sq, 1, 0)), p("Mul", 2.0, gram))
    dist = p("Sqrt", p("Max", d2, 1e-12))
    same = p("Equal", p.unsq(labels, 0), p.unsq(labels, 1))
    neg = p("Where", same, FMIN, p("Sub", 1.0, dist))
    lse = p.red("ReduceLogSumExp", neg, 1)
    pair = p("Add", p("Log", p("Add", p("Exp", lse), p("Exp", p.perm(lse, 1, 0)))), dist)
    loss = p("Mul", p.square(p("Relu", pair)), p.cast(same))
    g.output(p("Div", p.red("ReduceSum", loss, 0, 1, keep=0), 2.0 * b * 4), e)


# torchvision's: ce * (1 - p_t)^2, summed over thousands of easy anchors with losses of 1e-5 each.
@model("torchvision_sigmoid_focal_loss_sum_over_anchors", pins=["focal_*"], opset=16)
def focal(g):
    h, w, k = 32, 40, 12
    x = g.input("features", [1, 32, h, w], g.normal(1, 32, h, w))
    t = g.input("targets", [1, k, h, w], (g.rng.random((1, k, h, w)) < 0.003).astype(np.float32))
    y = relu_conv(g, x, "tower", 32, 48)
    bias = g.const(np.full(k, -4.59), "prior_bias")
    y = g.node("Conv", [y, g.weight("cls_w", k, 48, 3, 3)], name="cls_conv", pads=[1] * 4)
    p = Part(g, "focal")
    y = p("Add", y, p("Reshape", bias, ints(1, k, 1, 1)))
    prob = p("Sigmoid", y)
    ce = p("Add", p("Sub", p("Relu", y), p("Mul", y, t)), p("Log", p("Add", 1.0, p("Exp", p("Neg", p("Abs", y))))))
    pt = p("Add", p("Mul", prob, t), p("Mul", p("Sub", 1.0, prob), p("Sub", 1.0, t)))
    loss = p("Mul", ce, p("Pow", p("Sub", 1.0, pt), 2.0))
    at = p("Add", p("Mul", 0.25, t), p("Mul", 0.75, p("Sub", 1.0, t)))
    total = p.red("ReduceSum", p("Mul", at, loss), 0, 1, 2, 3, keep=0)
    g.output(p("Div", total, p("Max", p.red("ReduceSum", t, 0, 1, 2, 3, keep=0), 1.0)))


@model("knowledge_distillation_temperature_4_kl_batchmean", pins=["kd_*"], opset=15)
def distill(g):
    b, n = 16, 100
    x = g.input("x", [b, 128], g.normal(b, 128))
    teacher = g.input("teacher_logits", [b, n], g.normal(b, n, scale=3.0))
    labels = g.input("labels", [b], g.rng.integers(0, n, b))
    logits = mlp(g, x, "student", [128, 256, n])
    p = Part(g, "kd", constants=True)
    logp = p("LogSoftmax", p("Div", logits, 4.0), axis=1)
    logq = p("LogSoftmax", p("Div", teacher, 4.0), axis=1)
    kl = p("Mul", p("Exp", logq), p("Sub", logq, logp))
    kl = p("Mul", p("Div", p.red("ReduceSum", kl, 0, 1, keep=0), float(b)), 16.0)
    ce = p("SoftmaxCrossEntropyLoss", logits, labels, reduction="mean")
    g.output(p("Add", p("Mul", kl, 0.9), p("Mul", ce, 0.1)), logits)


# Three nearly equal distributions: each KL is a sum of tiny differences.
@model("augmix_jensen_shannon_of_three_views", pins=["js_*"], opset=18)
def augmix(g):
    b, n = 8, 50
    clean = smooth_image(g, b, 3, 32, 32, low=-2.0, high=2.0)
    views = np.concatenate([clean, clean + g.normal(b, 3, 32, 32, scale=0.1), clean + g.normal(b, 3, 32, 32, scale=0.1)])
    x = g.input("views", [3 * b, 3, 32, 32], views)
    y = relu_conv(g, relu_conv(g, x, "a", 3, 24, 3, 2), "b", 24, 48, 3, 2)
    y = g.node("Flatten", [g.node("GlobalAveragePool", [y], name="gap")], name="flat", axis=1)
    logits = g.linear(y, "fc", 48, n, scale=1.5)
    p = Part(g, "js")
    probs = p.parts(p("Softmax", logits, axis=1), 0, b, b, b)
    mix = p("Log", p("Clip", p("Div", p("Add", p("Add", probs[0], probs[1]), probs[2]), 3.0), 1e-7, 1.0))
    kls = [p("Div", p.red("ReduceSum", p("Mul", q, p("Sub", p("Log", q), mix)), 0, 1, keep=0), float(b)) for q in probs]
    g.output(p("Mul", p("Div", p("Add", p("Add", kls[0], kls[1]), kls[2]), 3.0), 12.0), logits)


# Landmarks in pixels of a 112-pixel crop: their differences are fractions of a pixel.
@model("pfld_wing_loss_of_landmark_pixels", pins=["pix_*", "wing_*"], opset=13)
def wing(g):
    n = 68
    img = g.input("crop", [2, 3, 112, 112], smooth_image(g, 2, 3, 112, 112, high=1.0))
    mean = g.uniform(15, 97, n * 2)
    target = g.input("landmarks", [2, n * 2], mean + g.normal(2, n * 2, scale=2.0))
    x = relu_conv(g, relu_conv(g, img, "a", 3, 24, 3, 4), "b", 24, 48, 3, 4)
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], name="gap")], name="flat", axis=1)
    p = Part(g, "pix")
    pred = p("Add", g.linear(x, "fc", 48, n * 2, scale=0.5), mean)
    d = p("Abs", p("Sub", pred, target))
    q = Part(g, "wing")
    w, eps = 10.0, 2.0
    near = q("Mul", w, q("Log", q("Add", 1.0, q("Div", d, eps))))
    loss = q("Where", q("Less", d, w), near, q("Sub", d, w - w * np.log(1 + w / eps)))
    g.output(q.red("ReduceMean", loss, 0, 1, keep=0), pred)


# E[x^2] - E[x]^2 under an 11-pixel Gaussian at three scales; powers of their means multiply.
@model("ms_ssim_three_scales_of_restored_image", pins=["ssim_*"], opset=17)
def ms_ssim(g):
    clean = smooth_image(g, 1, 1, 96, 96, high=1.0)
    x = g.input("noisy", [1, 1, 96, 96], clean + g.normal(1, 1, 96, 96, scale=0.05))
    y = g.input("clean", [1, 1, 96, 96], clean)
    r = g.conv(relu_conv(g, relu_conv(g, x, "a", 1, 24), "b", 24, 24), "c", 24, 1, 3, pads=[1] * 4)
    p = Part(g, "ssim")
    x = p("Sub", x, p("Mul", r, 0.03))
    t = np.exp(-((np.arange(11) - 5.0) ** 2) / 4.5)
    win = g.const(np.outer(t, t)[None, None] / t.sum() ** 2, "window")
    blur = lambda v: p("Conv", v, win)
    result = None
    for i, power in enumerate((0.2, 0.4, 0.4)):
        mx, my = blur(x), blur(y)
        mxx, myy, mxy = p.square(mx), p.square(my), p("Mul", mx, my)
        vx, vy, cov = p("Sub", blur(p.square(x)), mxx), p("Sub", blur(p.square(y)), myy), p("Sub", blur(p("Mul", x, y)), mxy)
        s = p("Div", p("Add", p("Mul", cov, 2.0), 9e-4), p("Add", p("Add", vx, vy), 9e-4))
        if i == 2:
            s = p("Mul", s, p("Div", p("Add", p("Mul", mxy, 2.0), 1e-4), p("Add", p("Add", mxx, myy), 1e-4)))
        s = p("Pow", p("Relu", p.red("ReduceMean", s, 1, 2, 3, keep=0)), power)
        result = s if result is None else p("Mul", result, s)
        if i < 2:
            x, y = (p("AveragePool", v, kernel_shape=[2, 2], strides=[2, 2]) for v in (x, y))
    g.output(p("Sub", 1.0, result), r)


# Unit features of two near images subtracted and squared.
@model("lpips_unit_feature_differences_of_near_images", pins=["lp_*"], opset=21)
def lpips(g):
    clean = smooth_image(g, 1, 3, 64, 64, low=-1.0, high=1.0)
    a = g.input("in0", [1, 3, 64, 64], clean)
    b = g.input("in1", [1, 3, 64, 64], clean + g.normal(1, 3, 64, 64, scale=0.15))
    x = g.node("Concat", [a, b], name="both", axis=0)
    x = g.node("Div", [g.node("Sub", [x, g.const(np.array([-0.03, -0.088, -0.188]).reshape(3, 1, 1))], name="shift"),
                       g.const(np.array([0.458, 0.448, 0.45]).reshape(3, 1, 1))], name="scale")
    p = Part(g, "lp")
    total = None
    for i, (c_in, c_out, stride) in enumerate(((3, 24, 1), (24, 48, 2), (48, 64, 2))):
        x = relu_conv(g, x, f"vgg{i}", c_in, c_out, 3, stride)
        n = p("Div", x, p("Add", p("Sqrt", p.red("ReduceSum", p("Pow", x, 2.0), 1)), 1e-10))
        f0, f1 = p.parts(n, 0, 1, 1)
        d = p("Pow", p("Sub", f0, f1), 2.0)
        lin = p("Conv", d, np.abs(g.normal(1, c_out, 1, 1)))
        s = p.red("ReduceMean", lin, 2, 3)
        total = s if total is None else p("Add", total, s)
    g.output(total)


# Risk sets: log of cumulative sums of exponentials over 512 patients.
@model("deepsurv_cox_partial_likelihood_cumsum", pins=["cox_*"], opset=14)
def cox(g):
    n = 512
    x = g.input("covariates", ["n", 24], g.normal(n, 24))
    event = g.input("event", ["n", 1], (g.rng.random((n, 1)) < 0.4).astype(np.float32))
    time = g.input("time", ["n"], g.rng.exponential(700, n).astype(np.float32))
    risk = mlp(g, x, "net", [24, 64, 64, 1], "Selu")
    p = Part(g, "cox")
    _, order = p("TopK", time, p("Shape", time), outputs=2, axis=0)
    r, e = p("Gather", risk, order, axis=0), p("Gather", event, order, axis=0)
    top = p.red("ReduceMax", r, 0)
    log = p("Add", p("Log", p("Add", p("CumSum", p("Exp", p("Sub", r, top)), np.int64(0)), 1e-7)), top)
    num = p.red("ReduceSum", p("Mul", p("Sub", r, log), e), 0, 1, keep=0)
    g.output(p("Neg", p("Div", num, p.red("ReduceSum", e, 0, 1, keep=0))), risk)


# Log-likelihoods of 784 pixels are hundreds of nats; the log-sum-exp over samples is of their differences.
@model("iwae_bound_of_binarised_digits_8_samples", pins=["elbo_*"], opset=17)
def iwae(g):
    b, k, z = 4, 8, 16
    x = g.input("pixels", [b, 784], (g.rng.random((b, 784)) < 0.15).astype(np.float32))
    eps = g.input("eps", [k, b, z], g.normal(k, b, z))
    h = mlp(g, x, "enc", [784, 128, 2 * z], "Tanh")
    p = Part(g, "elbo")
    mu, logvar = p.parts(h, 1, z, z)
    sample = p("Add", mu, p("Mul", p("Exp", p("Mul", logvar, 0.5)), eps))
    logits = mlp(g, sample, "dec", [z, 128, 784], "Tanh")
    logits = p("Sub", logits, 2.0)
    ll = p.red("ReduceSum", p("Sub", p("Mul", x, logits), p("Softplus", logits)), 2, keep=0)
    prior = p("Mul", p.red("ReduceSum", p.square(sample), 2, keep=0), -0.5)
    post = p("Mul", p.red("ReduceSum", p("Add", p.square(eps), logvar), 2, keep=0), -0.5)
    w = p("Sub", p("Add", ll, prior), post)
    bound = p("Sub", p.red("ReduceLogSumExp", w, 0, keep=0), float(np.log(k)))
    g.output(bound, w)


# Gains 2^rel - 1, discounts 1 / log2(rank + 2) and their differences, on pairs.
@model("lambdarank_ndcg_pair_weights_of_query", pins=["rank_*"], opset=19)
def lambdarank(g):
    n = 64
    x = g.input("features", [n, 46], g.normal(n, 46))
    rel = g.input("relevance", [n, 1], g.rng.choice(5, (n, 1), p=[0.6, 0.2, 0.1, 0.06, 0.04]).astype(np.float32))
    rank = g.input("rank", [n, 1], g.rng.permutation(n)[:, None].astype(np.float32))
    s = mlp(g, x, "scorer", [46, 128, 64, 1])
    p = Part(g, "rank")
    gain = p("Sub", p("Pow", 2.0, rel), 1.0)
    disc = p("Div", float(np.log(2)), p("Log", p("Add", rank, 2.0)))
    pair = lambda t: p("Sub", t, p.perm(t, 1, 0))
    weight = p("Abs", p("Mul", pair(gain), pair(disc)))
    weight = p("Div", weight, p.red("ReduceSum", p("Mul", gain, disc), 0, 1))
    better = p.cast(p("Greater", pair(rel), 0.0))
    loss = p("Mul", p("Softplus", p("Neg", pair(s))), p("Mul", weight, better))
    g.output(p.red("ReduceSum", loss, 0, 1, keep=0), s)


# Volumes squared under the bar: 1e8 voxels^2 for the background, and 1e-8 as a weight.
@model("generalised_dice_inverse_squared_volume", pins=["gdl_*"], opset=22)
def gdl(g):
    x = g.input("mri", [1, 2, 16, 32, 32], g.normal(1, 2, 16, 32, 32))
    cls = (g.rng.random((1, 1, 16, 32, 32)) < 0.06).astype(int) + (g.rng.random((1, 1, 16, 32, 32)) < 0.01)
    onehot = g.input("onehot", [1, 3, 16, 32, 32], (cls == np.arange(3).reshape(1, 3, 1, 1, 1)).astype(np.float32))
    y = g.node("Relu", [g.conv(x, "a", 2, 16, 3, dims=3, pads=[1] * 6)], name="a_relu")
    y = g.conv(y, "b", 16, 3, 3, dims=3, pads=[1] * 6)
    p = Part(g, "gdl")
    prob = p("Softmax", y, axis=1)
    vol = p.red("ReduceSum", onehot, 2, 3, 4)
    w = p("Div", 1.0, p("Add", p.square(vol), 1e-5))
    inter = p("Mul", w, p.red("ReduceSum", p("Mul", prob, onehot), 2, 3, 4))
    both = p("Mul", w, p.red("ReduceSum", p("Add", prob, onehot), 2, 3, 4))
    ratio = p("Div", p.red("ReduceSum", inter, 1, keep=0), p("Add", p.red("ReduceSum", both, 1, keep=0), 1e-9))
    g.output(p("Sub", 1.0, p("Mul", ratio, 2.0)), g.node("Identity", [prob], name="prob"))
