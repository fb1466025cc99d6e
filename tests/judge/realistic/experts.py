"""Mixtures of experts, routers, gates: softmax, sigmoid, noisy and top-k routing, gated units, mixtures."""

import numpy as np

from .build import model
from .parts import Body, cast, mlp, op, reduce, silu, span, unsqueeze


def experts_by_matmul(g, x, n, width, hidden, stem="expert"):
    """Every expert on every token: [E, N, width] of x [N, width] by batched MatMuls."""
    w1 = g.weight(f"{stem}_w1", n, width, hidden, scale=width**-0.5)
    w2 = g.weight(f"{stem}_w2", n, hidden, width, scale=hidden**-0.5)
    h = g.node("MatMul", [unsqueeze(g, x, [0], f"{stem}_dims"), w1], name=f"{stem}_up")
    return g.node("MatMul", [g.node("Gelu", [h], name=f"{stem}_act"), w2], name=f"{stem}_down")


def mix(g, outputs, gates, name):
    """Sum over experts of gates [N, E] times outputs [E, N, width]."""
    gates = unsqueeze(g, g.node("Transpose", [gates], name=f"{name}_t", perm=[1, 0]), [2], f"{name}_dims")
    return reduce(
        g, "ReduceSum", g.node("Mul", [outputs, gates], name=f"{name}_mul"), [0], f"{name}_sum", keepdims=0
    )


@model("dense_moe_softmax_gate", pins=[])
def dense_moe_softmax_gate(g):
    """MMoE: every expert weighted by a softmax gate; smooth, so nothing jumps."""
    x = g.input("tokens", ["n", 64], g.normal(48, 64))
    gates = g.node("Softmax", [g.linear(x, "gate", 64, 6)], name="gates", axis=-1)
    g.output(mix(g, experts_by_matmul(g, x, 6, 64, 128), gates, "mix"))


@model("mixtral_top2_router_renormalised", pins=["router_mm"])
def mixtral_top2_router_renormalised(g):
    """Mixtral: top 2 of a softmax over 8 experts, renormalised, scattered; SwiGLU experts."""
    kinds = g.normal(8, 64)
    x = g.input(
        "hidden",
        ["n", 64],
        2 * kinds[g.rng.integers(0, 8, 40)] + kinds[g.rng.integers(0, 8, 40)] + g.normal(40, 64, scale=0.4),
    )
    w = g.const(kinds.T / 16, "router_w")
    probs = g.node("Softmax", [g.node("MatMul", [x, w], name="router_mm")], name="probs", axis=-1)
    top, at = g.node("TopK", [probs, g.ints(2)], name="topk", outputs=2, axis=-1)
    top = g.node("Div", [top, reduce(g, "ReduceSum", top, [1], "top_sum")], name="router_div")
    zeros = op(g, "Mul", probs, 0.0, name="router_zeros")
    gates = g.node("ScatterElements", [zeros, at, top], name="scatter", axis=1)
    h = unsqueeze(g, x, [0], "dims")
    up = g.node("MatMul", [h, g.weight("w3", 8, 64, 96, scale=0.125)], name="up_mm")
    h = g.node("MatMul", [h, g.weight("w1", 8, 64, 96, scale=0.125)], name="gate_mm")
    h = g.node("Mul", [silu(g, h, "expert"), up], name="swiglu")
    g.output(
        mix(g, g.node("MatMul", [h, g.weight("w2", 8, 96, 64, scale=0.1)], name="down_mm"), gates, "mix")
    )


@model("deepseek_sigmoid_router_bias_1e_minus_20", pins=["router_*", "biased", "norm_*"], opset=21)
def deepseek_sigmoid_router_bias_1e_minus_20(g):
    """DeepSeek-V3: sigmoid scores, choice by scores plus a bias, normalised with 1e-20, times 2.5."""
    kinds = g.normal(16, 96)
    x = g.input("hidden", ["n", 96], 1.5 * kinds[g.rng.integers(0, 16, 40)] + g.normal(40, 96, scale=0.5))
    logits = g.node("MatMul", [x, g.const(kinds.T / 8 - 0.03, "router_w")], name="router_mm")
    logits = op(g, "Sub", logits, 9.0, name="router_shift")
    scores = g.node("Sigmoid", [logits], name="router_sigmoid")
    biased = op(g, "Add", scores, g.uniform(-0.01, 0.01, 16), name="biased")
    _, at = g.node("TopK", [biased, g.ints(4)], name="topk", outputs=2, axis=-1)
    kept = g.node(
        "ScatterElements",
        [
            g.node("Mul", [scores, g.const(0.0)], name="norm_zeros"),
            at,
            g.node("GatherElements", [scores, at], name="norm_gather", axis=1),
        ],
        name="norm_scatter",
        axis=1,
    )
    total = op(g, "Add", reduce(g, "ReduceSum", kept, [1], "total"), 1e-20, name="norm_eps")
    gates = op(g, "Mul", g.node("Div", [kept, total], name="norm_div"), 2.5, name="norm_factor")
    # The shared expert is added to what the routed ones give.
    routed = mix(g, experts_by_matmul(g, x, 16, 96, 32), gates, "mix")
    g.output(g.node("Add", [routed, mlp(g, x, "shared", [96, 64, 96], "Gelu")], name="both"))


@model("noisy_topk_softplus_gate_masked_inf", pins=["clean_mm", "noise_*", "noisy_*"])
def noisy_topk_softplus_gate_masked_inf(g):
    """Sparsely gated experts: clean logits plus noise times softplus + 0.01, below the k-th become -inf."""
    x = g.input("tokens", ["n", 64], g.normal(40, 64, scale=2.0))
    noise = g.input("noise", ["n", 8], g.normal(40, 8))
    clean = g.node("MatMul", [x, g.weight("w_gate", 64, 8, scale=0.5)], name="clean_mm")
    raw = g.node("MatMul", [x, g.weight("w_noise", 64, 8, scale=0.05)], name="noise_mm")
    std = op(g, "Add", g.node("Softplus", [raw], name="softplus"), 0.01, name="noise_eps")
    noisy = g.node("Add", [clean, g.node("Mul", [noise, std], name="noise_mul")], name="noisy_add")
    top, _ = g.node("TopK", [noisy, g.ints(3)], name="topk", outputs=2, axis=-1)
    least = span(g, top, 2, 3, 1, "least")
    below = g.node("Less", [noisy, least], name="below")
    masked = g.node("Where", [below, g.const(-np.inf), noisy], name="noisy_where")
    gates = g.node("Softmax", [masked], name="gates", axis=-1)
    g.output(mix(g, experts_by_matmul(g, x, 8, 64, 64), gates, "mix"))


@model(
    "switch_load_balance_loss_of_counts", pins=["router_mm", "count_*", "importance_*", "balance_*", "z_*"]
)
def switch_load_balance_loss_of_counts(g):
    """Switch Transformer: balance loss n² · fraction · probability of 16 experts and the router's z-loss."""
    x = g.input("tokens", ["n", 64], g.normal(512, 64))
    logits = g.node("MatMul", [x, g.weight("router_w", 64, 16, scale=0.6)], name="router_mm")
    probs = g.node("Softmax", [logits], name="probs", axis=-1)
    importance = reduce(g, "ReduceSum", probs, [0], "importance", keepdims=0)
    hard = reduce(g, "ReduceMax", probs, [1], "best")
    chosen = cast(g, g.node("Equal", [probs, hard], name="chosen"), "count_cast")
    count = reduce(g, "ReduceSum", chosen, [0], "count", keepdims=0)
    share = g.node(
        "Mul",
        [
            op(g, "Div", count, 512.0, name="count_div"),
            op(g, "Div", importance, 512.0, name="importance_div"),
        ],
        name="balance_mul",
    )
    balance = op(g, "Mul", reduce(g, "ReduceSum", share, [0], "balance"), 16.0, name="balance_scale")
    z = g.node("ReduceLogSumExp", [logits, g.ints(1)], name="logz", keepdims=0)
    z = reduce(g, "ReduceMean", g.node("Mul", [z, z], name="z_square"), [0], "z_mean")
    y = g.node("Mul", [mlp(g, x, "expert", [64, 128, 64], "Gelu"), hard], name="scaled")
    g.output(y, g.node("Add", [balance, op(g, "Mul", z, 1e-3, name="z_mul")], name="balance_total"))


@model("expert_choice_einsum_dispatch", pins=[])
def expert_choice_einsum_dispatch(g):
    """Expert choice: experts take their 12 best tokens; one-hot dispatch and combine by Einsum."""
    n = 48
    kinds = g.normal(4, 64)
    x = g.input("tokens", [n, 64], np.repeat(kinds, 12, 0) + g.normal(n, 64, scale=0.5))
    logits = g.node("MatMul", [x, g.const(kinds.T / 16, "router_w")], name="router_mm")
    scores = g.node("Softmax", [logits], name="scores", axis=-1)
    top, at = g.node(
        "TopK",
        [g.node("Transpose", [scores], name="scores_t", perm=[1, 0]), g.ints(12)],
        name="topk",
        outputs=2,
        axis=-1,
    )
    hot = g.node("OneHot", [at, g.const(n, dtype=np.int64), g.const([0.0, 1.0])], name="one_hot", axis=-1)
    taken = g.node("Einsum", [hot, x], name="dispatch", equation="ecn,nd->ecd")
    h = g.node("Einsum", [taken, g.weight("w1", 4, 64, 96, scale=0.125)], name="up", equation="ecd,edh->ech")
    h = g.node(
        "Einsum",
        [g.node("Relu", [h], name="act"), g.weight("w2", 4, 96, 64, scale=0.1)],
        name="down",
        equation="ech,ehd->ecd",
    )
    g.output(g.node("Einsum", [hot, top, h], name="combine", equation="ecn,ec,ecd->nd"))


@model("highway_layers_one_minus_gate", pins=[], opset=17)
def highway_layers_one_minus_gate(g):
    """Highway network: t·h + (1 - t)·x, three times."""
    x = g.input("chars", ["n", 96], g.normal(40, 96))
    for i in range(3):
        t = g.node(
            "Sigmoid", [op(g, "Sub", g.linear(x, f"t{i}", 96, 96), 2.0, name=f"bias{i}")], name=f"t{i}"
        )
        h = g.node("Relu", [g.linear(x, f"h{i}", 96, 96)], name=f"h{i}")
        carry = g.node("Mul", [op(g, "Sub", 1.0, t, name=f"carry{i}"), x], name=f"carried{i}")
        x = g.node("Add", [g.node("Mul", [t, h], name=f"transform{i}"), carry], name=f"highway{i}")
    g.output(x)


@model("geglu_split_erf_block", pins=[], opset=17)
def geglu_split_erf_block(g):
    """Diffusion transformer's feed-forward: GEGLU with the Gelu spelt out by Erf, a residual sum."""
    x = g.input("x", ["n", 96], g.normal(60, 96))
    h = g.linear(g.layer_norm(x, "norm", 96), "proj", 96, 384)
    value, gate = g.node("Split", [h, g.ints(192, 192)], name="parts", outputs=2, axis=-1)
    erf = g.node("Erf", [op(g, "Div", gate, 2**0.5, name="root2")], name="erf")
    gelu = g.node("Mul", [gate, op(g, "Add", erf, 1.0, name="plus_one")], name="gelu_mul")
    h = g.node("Mul", [value, op(g, "Mul", gelu, 0.5, name="half")], name="gated")
    g.output(g.node("Add", [g.linear(h, "out", 192, 96), x], name="residual"))


@model(
    "swiglu_massive_activations_down_proj", pins=["massive_*", "down_mm", "norm_*"], pins_bf16=[], opset=18
)
def swiglu_massive_activations_down_proj(g):
    """Late LLM block with massive activations: gate times up reaches 1e5 in a few channels, then RMS norm."""
    x = g.input("hidden", ["n", 64], g.normal(40, 64))
    up = g.normal(64, 128, scale=0.125)
    gate = g.normal(64, 128, scale=0.125)
    up[:, 5] *= 400
    gate[:, 5] *= 400
    a = g.node("MatMul", [x, g.const(gate, "gate_w")], name="gate_mm")
    b = g.node("MatMul", [x, g.const(up, "up_w")], name="up_mm")
    a = g.node("Mul", [a, g.node("Sigmoid", [a], name="sigmoid")], name="silu")
    h = g.node("Mul", [a, b], name="massive_mul")
    h = g.node("MatMul", [h, g.weight("down_w", 128, 64)], name="down_mm")
    mean = reduce(g, "ReduceMean", g.node("Mul", [h, h], name="norm_square"), [-1], "mean")
    h = g.node(
        "Mul",
        [
            h,
            g.node(
                "Reciprocal",
                [g.node("Sqrt", [op(g, "Add", mean, 1e-6, name="norm_eps")], name="norm_sqrt")],
                name="norm_recip",
            ),
        ],
        name="norm_mul",
    )
    g.output(g.linear(h, "head", 64, 32))


@model("squeeze_excite_conv_blocks", pins=[])
def squeeze_excite_conv_blocks(g):
    """MobileNetV3: squeeze and excite by GlobalAveragePool, 1x1 Convs, HardSigmoid."""
    x = g.input("image_features", ["batch", 64, 14, 14], g.normal(1, 64, 14, 14))
    for i in range(2):
        h = g.node("HardSwish", [g.conv(x, f"expand{i}", 64, 96, 1)], name=f"swish{i}")
        s = g.node("GlobalAveragePool", [h], name=f"squeeze{i}")
        s = g.node("Relu", [g.conv(s, f"se{i}a", 96, 32, 1)], name=f"se_relu{i}")
        s = g.node("HardSigmoid", [g.conv(s, f"se{i}b", 32, 96, 1)], name=f"excite{i}", alpha=1 / 6, beta=0.5)
        h = g.conv(g.node("Mul", [h, s], name=f"channel_mul{i}"), f"project{i}", 96, 64, 1)
        x = g.node("Add", [x, h], name=f"residual{i}")
    g.output(x)


@model("squeeze_sum_of_62500_pixels", pins=["pool_*", "response_*"], pins_bf16=[])
def squeeze_sum_of_62500_pixels(g):
    """ConvNeXt V2's response norm on a 250x250 map with large features: L2 over pixels over its mean."""
    x = g.input("features", [1, 32, 250, 250], np.abs(g.normal(1, 32, 250, 250, scale=40.0)))
    h = g.node("Relu", [g.conv(x, "expand", 32, 48, 1)], name="relu")
    square = g.node("Mul", [h, h], name="pool_square")
    norm = g.node("Sqrt", [reduce(g, "ReduceSum", square, [2, 3], "pixels")], name="pool_sqrt")
    mean = op(g, "Add", reduce(g, "ReduceMean", norm, [1], "mean"), 1e-6, name="response_eps")
    scale = g.node("Div", [norm, mean], name="response_div")
    y = g.node("Mul", [h, scale], name="scaled")
    y = g.node("AveragePool", [y], name="average", kernel_shape=[10, 10], strides=[10, 10])
    g.output(g.conv(op(g, "Div", y, 40.0, name="rescale"), "project", 48, 32, 1))


@model("mdn_sketch_log_likelihood", pins=["target_*", "nll_*"])
def mdn_sketch_log_likelihood(g):
    """Mixture density network: log-sum-exp of log weights and Gaussian terms, offsets in pixels."""
    x = g.input("state", ["n", 128], g.normal(40, 128))
    t = g.input("offset_px", ["n", 1], g.normal(40, 1, scale=30.0))
    h = g.node("Tanh", [g.linear(x, "trunk", 128, 96)], name="tanh")
    pi = g.node("LogSoftmax", [g.linear(h, "pi", 96, 32)], name="log_pi", axis=-1)
    mu = op(g, "Mul", g.linear(h, "mu", 96, 32), 30.0, name="target_mu")
    log_sigma = op(g, "Sub", g.linear(h, "sigma", 96, 32), 1.5, name="nll_sigma_shift")
    z = g.node(
        "Div",
        [g.node("Sub", [t, mu], name="target_sub"), g.node("Exp", [log_sigma], name="sigma")],
        name="nll_div",
    )
    part = op(g, "Mul", g.node("Mul", [z, z], name="nll_square"), -0.5, name="nll_half")
    part = g.node("Sub", [part, log_sigma], name="nll_sub")
    part = g.node("Add", [op(g, "Sub", part, 0.9189385, name="nll_const"), pi], name="nll_add")
    g.output(g.node("Neg", [g.node("ReduceLogSumExp", [part, g.ints(1)], name="log_sum")], name="nll_neg"))


@model("mdn_means_weighted_by_softmax", pins=[], opset=17)
def mdn_means_weighted_by_softmax(g):
    """Mixture density head used for its mean: softmax weights, and the mean and variance of the mix."""
    x = g.input("state", ["n", 128], g.normal(40, 128))
    h = g.node("Relu", [g.linear(x, "trunk", 128, 128)], name="relu")
    pi = g.node("Softmax", [g.linear(h, "pi", 128, 16)], name="pi", axis=-1)
    mu = g.linear(h, "mu", 128, 16)
    sigma = g.node("Softplus", [g.linear(h, "sigma", 128, 16)], name="sigma")
    mean = reduce(g, "ReduceSum", g.node("Mul", [pi, mu], name="weigh"), [1], "mean")
    gap = g.node("Sub", [mu, mean], name="gap")
    spread = g.node(
        "Add",
        [g.node("Mul", [gap, gap], name="gap2"), g.node("Mul", [sigma, sigma], name="sigma2")],
        name="spread",
    )
    g.output(mean, reduce(g, "ReduceSum", g.node("Mul", [pi, spread], name="weigh2"), [1], "variance"))


@model("early_exit_if_of_expert_branches", pins=["which/then_branch/big_*"], pins_bf16=[])
def early_exit_if_of_expert_branches(g):
    """Experts behind an If: the wide one scales by 4096 and squares; the narrow one is plain."""
    x = g.input("hidden", [40, 64], g.normal(40, 64))
    wide = g.input("wide", [], np.asarray(True))
    h = g.linear(x, "stem", 64, 96)
    then = Body(g, "wide_expert")
    a = then.node("MatMul", [h, then.weight("wide_w", 96, 128)], name="wide_mm")
    a = op(then, "Mul", a, 4096.0, name="big_scale")
    a = then.node("Mul", [a, a], name="big_square")
    total = then.node("ReduceSum", [a, then.ints(1)], name="sum", keepdims=1)
    a = then.node("Div", [a, op(then, "Add", total, 1.0, name="big_eps")], name="big_div")
    a = then.node(
        "MatMul", [op(then, "Mul", a, 128.0, name="level"), then.weight("wide_out", 128, 32)], name="out_mm"
    )
    other = Body(g, "narrow_expert")
    b = other.node("MatMul", [h, other.weight("narrow_w", 96, 32)], name="narrow_mm")
    y = g.node(
        "If",
        [wide],
        name="which",
        then_branch=then.graph((a, [40, 32])),
        else_branch=other.graph((b, [40, 32])),
    )
    g.output(g.linear(y, "head", 32, 16))
