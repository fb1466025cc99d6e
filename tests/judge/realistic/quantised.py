"""Quantised networks: QDQ, weight-only, fake quantisation, integers in floats, binary and ternary."""

import numpy as np

from .build import model
from .parts import cast, mlp, op, reduce, reshape


def qdq(g, x, stem, scale, zero=0, dtype=np.uint8):
    """x quantised and dequantised with one scale."""
    s, z = g.const(scale, f"{stem}_scale"), g.const(zero, f"{stem}_zero", dtype=dtype)
    q = g.node("QuantizeLinear", [x, s, z], name=f"{stem}_q")
    return g.node("DequantizeLinear", [q, s, z], name=f"{stem}_dq")


def stored(g, w, stem, axis, bits=8):
    """A weight stored as i8 with a scale for each place of `axis`, dequantised."""
    other = tuple(i for i in range(w.ndim) if i != axis)
    scale = np.abs(w).max(axis=other) / (2 ** (bits - 1) - 1)
    shape = [-1 if i == axis else 1 for i in range(w.ndim)]
    q = g.const(np.round(w / scale.reshape(shape)), f"{stem}_int", dtype=np.int8)
    zero = g.const(np.zeros(len(scale)), f"{stem}_wzero", dtype=np.int8)
    return g.node(
        "DequantizeLinear", [q, g.const(scale, f"{stem}_wscale"), zero], name=f"{stem}_wdq", axis=axis
    )


@model("qdq_resnet_block_uint8_per_channel", pins=[], opset=19)
def qdq_resnet_block_uint8_per_channel(g):
    """ResNet block in QDQ: uint8 activations, int8 weights by channel, int32 biases, residual sum."""
    x = g.input("features", ["batch", 64, 14, 14], np.abs(g.normal(1, 64, 14, 14)))
    x = qdq(g, x, "in", 0.016)
    y = x
    for i in range(2):
        w = stored(g, g.normal(64, 64, 3, 3, scale=1 / 24), f"c{i}", 0)
        bias = g.const(g.rng.integers(-2000, 2000, 64), f"c{i}_bias", dtype=np.int32)
        bias = g.node("DequantizeLinear", [bias, g.const(1.4e-5)], name=f"c{i}_bias_dq")
        y = g.node("Conv", [y, w, bias], name=f"c{i}_conv", pads=[1, 1, 1, 1])
        y = qdq(g, g.node("Relu", [y], name="relu"), "mid", 0.012) if i == 0 else qdq(g, y, "last", 0.02, 128)
    y = g.node("Relu", [g.node("Add", [x, y], name="residual")], name="out_relu")
    g.output(qdq(g, y, "out", 0.02))


@model("qdq_matmul_int8_transformer_ffn", pins=[])
def qdq_matmul_int8_transformer_ffn(g):
    """BERT feed-forward with QDQ around both MatMuls, int8 activations, float Gelu and LayerNorm."""
    x = g.input("hidden", ["n", 96], g.normal(48, 96))
    h = g.node(
        "MatMul",
        [qdq(g, x, "x", 0.03, 0, np.int8), stored(g, g.normal(96, 192, scale=0.1), "up", 1)],
        name="up_mm",
    )
    h = g.node("Gelu", [h], name="gelu")
    h = g.node(
        "MatMul",
        [qdq(g, h, "h", 0.02, -110, np.int8), stored(g, g.normal(192, 96, scale=0.07), "down", 1)],
        name="down_mm",
    )
    g.output(g.layer_norm(g.node("Add", [h, x], name="residual"), "post", 96))


@model("weight_only_int8_blocks_of_32", pins=[], opset=21)
def weight_only_int8_blocks_of_32(g):
    """Weight-only decoder MLP: DequantizeLinear with blocks of 32 along the inner dim, SwiGLU."""
    x = g.input("hidden", ["n", 128], g.normal(16, 128))

    def weight(stem, n_in, n_out):
        w = g.normal(n_in, n_out, scale=n_in**-0.5)
        scale = np.abs(w.reshape(-1, 32, n_out)).max(1) / 127
        q = np.round(w / np.repeat(scale, 32, 0))
        return g.node(
            "DequantizeLinear",
            [g.const(q, f"{stem}_int", dtype=np.int8), g.const(scale, f"{stem}_scale")],
            name=f"{stem}_dq",
            axis=0,
            block_size=32,
        )

    gate = g.node("MatMul", [x, weight("gate", 128, 256)], name="gate_mm")
    up = g.node("MatMul", [x, weight("up", 128, 256)], name="up_mm")
    h = g.node("Mul", [gate, g.node("Sigmoid", [gate], name="sigmoid")], name="silu")
    h = g.node("Mul", [h, up], name="swiglu")
    g.output(g.node("MatMul", [h, weight("down", 256, 128)], name="down_mm"))


@model("gptq_groups_dequantised_by_hand", pins=[], opset=17)
def gptq_groups_dequantised_by_hand(g):
    """GPTQ: (q - zero[g_idx]) * scale[g_idx] of 4-bit codes held in uint8, then MatMul."""
    x = g.input("hidden", ["n", 128], g.normal(24, 128))
    order = g.rng.permutation(128) // 32
    codes = cast(g, g.const(g.rng.integers(0, 16, (128, 96)), "codes", dtype=np.uint8), "codes_cast")
    index = g.const(order, "g_idx", dtype=np.int64)
    zeros = g.const(g.rng.integers(6, 10, (4, 96)), "zeros")
    scales = g.const(g.uniform(0.008, 0.03, 4, 96), "scales")
    zero = g.node("Gather", [zeros, index], name="zero_gather", axis=0)
    scale = g.node("Gather", [scales, index], name="scale_gather", axis=0)
    w = g.node("Mul", [g.node("Sub", [codes, zero], name="zero_sub"), scale], name="scale_mul")
    y = g.node("Gelu" if g.opset >= 20 else "Tanh", [g.node("MatMul", [x, w], name="q_mm")], name="act")
    g.output(g.linear(y, "head", 96, 64))


@model("nf4_codes_by_gather_times_absmax", pins=[])
def nf4_codes_by_gather_times_absmax(g):
    """QLoRA: NF4 codes looked up by Gather, times absmax of blocks of 64, and the low-rank path."""
    x = g.input("hidden", ["n", 128], g.normal(24, 128))
    table = np.array(
        [
            -1,
            -0.696,
            -0.525,
            -0.395,
            -0.284,
            -0.185,
            -0.091,
            0,
            0.08,
            0.161,
            0.246,
            0.338,
            0.441,
            0.563,
            0.723,
            1,
        ]
    )
    w = g.node(
        "Gather",
        [g.const(table, "nf4"), g.const(g.rng.integers(0, 16, (192, 64)), "codes", dtype=np.int64)],
        name="lookup",
    )
    w = reshape(
        g,
        g.node("Mul", [w, g.const(g.uniform(0.15, 0.25, 192, 1), "absmax")], name="absmax_mul"),
        [128, 96],
        "weight",
    )
    y = g.node("MatMul", [x, w], name="base_mm")
    low = g.node("MatMul", [x, g.weight("lora_a", 128, 32)], name="lora_a_mm")
    low = g.node("MatMul", [low, g.weight("lora_b", 32, 96)], name="lora_b_mm")
    g.output(g.node("Add", [y, op(g, "Mul", low, 0.5, name="lora_scale")], name="both"))


@model("fake_quant_16_bit_scale_2e_minus_5", pins=["fake_*"])
def fake_quant_16_bit_scale_2e_minus_5(g):
    """16-bit fake quantisation between layers: x / 2e-5 + rounding, clamp to ±32767, times the scale."""
    x = g.input("signal", ["n", 96], g.normal(40, 96, scale=0.3))
    h = g.node("Tanh", [g.linear(x, "a", 96, 128)], name="tanh")
    h = op(g, "Mul", h, 0.6, name="level")
    q = op(g, "Div", h, 2e-5, name="fake_div")
    q = g.node("Round", [q], name="fake_round")
    q = op(g, "Min", op(g, "Max", q, -32768.0, name="fake_low"), 32767.0, name="fake_high")
    h = op(g, "Mul", q, 2e-5, name="fake_mul")
    g.output(g.linear(h, "b", 128, 64))


@model("lsq_fake_quant_8_bit_with_zero_point", pins=["fake_*"])
def lsq_fake_quant_8_bit_with_zero_point(g):
    """Learned step size: x / s + zero point, Floor of that plus a half, Clip 0..255, back; both Convs."""
    x = g.input("features", ["batch", 48, 12, 12], g.normal(1, 48, 12, 12))
    h = g.conv(x, "a", 48, 64, 3, pads=[1, 1, 1, 1])
    q = op(g, "Add", op(g, "Div", h, 0.0313, name="fake_div"), 117.0, name="fake_zero")
    q = g.node("Floor", [op(g, "Add", q, 0.5, name="fake_half")], name="fake_floor")
    q = g.node("Clip", [q, g.const(0.0), g.const(255.0)], name="fake_clip")
    h = op(g, "Mul", op(g, "Sub", q, 117.0, name="fake_unzero"), 0.0313, name="fake_mul")
    g.output(g.conv(h, "b", 64, 48, 3, pads=[1, 1, 1, 1]))


@model("integer_conv_in_floats_requantised", pins=["acc_conv", "requant_*"])
def integer_conv_in_floats_requantised(g):
    """Integer-only network simulated in floats: uint8 codes, int8 weights, accumulators in millions."""
    codes = g.rng.integers(0, 256, (1, 64, 10, 10)).astype(np.float32)
    x = g.input("codes", ["batch", 64, 10, 10], codes)
    w = g.rng.integers(-127, 128, (48, 64, 3, 3))
    acc = g.node("Conv", [x, g.const(w, "w_int")], name="acc_conv")
    fix = g.const(w.sum((1, 2, 3)).reshape(1, 48, 1, 1) * 128.0, "zero_point_sums")
    acc = g.node("Sub", [acc, fix], name="requant_zero")
    acc = op(g, "Add", acc, np.round(g.normal(1, 48, 1, 1, scale=3000)), name="requant_bias")
    y = op(g, "Mul", acc, g.uniform(2e-6, 4e-6, 1, 48, 1, 1), name="requant_scale")
    g.output(g.conv(g.node("Relu", [y], name="relu"), "head", 48, 32, 1))


@model("four_bit_codes_bounded_accumulator", pins=[], opset=19)
def four_bit_codes_bounded_accumulator(g):
    """Low-bit layer in floats: codes 0..15 less 8 times codes ±7 over 128 inputs stay below 7168."""
    x = g.input("codes", ["n", 128], g.rng.integers(0, 16, (40, 128)).astype(np.float32))
    x = op(g, "Sub", x, 8.0, name="zero_sub")
    acc = g.node("MatMul", [x, g.const(g.rng.integers(-7, 8, (128, 96)), "w_int")], name="acc_mm")
    y = op(g, "Mul", acc, g.uniform(0.003, 0.006, 96), name="scale_mul")
    g.output(mlp(g, g.node("Relu", [y], name="relu"), "head", [96, 64, 32]))


@model("dynamic_per_token_int8_in_floats", pins=["token_*", "acc_mm", "back_*"], opset=20)
def dynamic_per_token_int8_in_floats(g):
    """SmoothQuant's per-token dynamic quantisation: x over absmax / 127, rounded, two scales."""
    x = g.input(
        "hidden",
        ["n", 128],
        g.normal(40, 128, scale=0.5) * np.where(np.arange(128) == 7, 20, 1).astype(np.float32),
    )
    x = g.layer_norm(x, "pre", 128)
    top = reduce(g, "ReduceMax", g.node("Abs", [x], name="abs"), [1], "absmax")
    scale = op(g, "Div", op(g, "Max", top, 1e-5, name="token_floor"), 127.0, name="token_scale")
    q = g.node("Round", [g.node("Div", [x, scale], name="token_div")], name="token_round")
    w = g.rng.integers(-127, 128, (128, 96))
    acc = g.node("MatMul", [q, g.const(w, "w_int")], name="acc_mm")
    scales = op(g, "Mul", scale, g.uniform(0.0004, 0.0012, 96), name="back_scales")
    y = g.node("Mul", [acc, scales], name="back_mul")
    g.output(g.linear(g.node("Gelu", [y], name="gelu"), "out", 96, 64))


@model("dynamic_quantize_matmul_integer_head", pins=["acc_*", "scale_*"], pins_bf16=["acc_*"])
def dynamic_quantize_matmul_integer_head(g):
    """Dynamic quantisation of onnxruntime: MatMulInteger, Cast, scales; float head."""
    x = g.input("hidden", ["n", 128], g.normal(40, 128) + 1.0)
    x = g.node("Relu", [g.linear(x, "float", 128, 128)], name="relu")
    q, s, z = g.node("DynamicQuantizeLinear", [x], name="quantise", outputs=3)
    w = g.const(g.rng.integers(-127, 128, (128, 96)), "w_int", dtype=np.int8)
    acc = g.node("MatMulInteger", [q, w, z, g.const(0, dtype=np.int8)], name="integer_mm")
    acc = cast(g, acc, "acc_cast")
    s = op(g, "Mul", s, 0.0009, name="scale_mul")
    y = op(g, "Add", g.node("Mul", [acc, s], name="acc_mul"), g.normal(96, scale=0.1), name="bias")
    g.output(g.linear(g.node("Relu", [y], name="relu2"), "head", 96, 32))


@model("xnor_alpha_1e_minus_6_batchnorm_after", pins=["alpha_mul", "bn_*"], pins_bf16=[], opset=17)
def xnor_alpha_1e_minus_6_batchnorm_after(g):
    """Binary Conv: signs of both, scaled by alpha of 1e-6, and the batch norm that divides by it again."""
    x = g.input("features", ["batch", 64, 12, 12], g.normal(1, 64, 12, 12))
    h = g.node("Sign", [x], name="sign")
    acc = g.node("Conv", [h, g.const(np.sign(g.normal(64, 64, 3, 3)), "w_sign")], name="binary_conv")
    alpha = g.uniform(0.5e-6, 2e-6, 1, 64, 1, 1)
    y = op(g, "Mul", acc, alpha, name="alpha_mul")
    y = op(g, "Sub", y, g.normal(1, 64, 1, 1, scale=3e-6), name="bn_mean")
    y = op(g, "Div", y, alpha * 24, name="bn_std")
    y = op(
        g,
        "Add",
        op(g, "Mul", y, g.uniform(0.5, 1.5, 1, 64, 1, 1), name="bn_gamma"),
        g.normal(1, 64, 1, 1),
        name="bn_beta",
    )
    g.output(g.conv(g.node("HardSwish", [y], name="act"), "head", 64, 32, 1))


@model("bitnet_ternary_absmean_scale", pins=["act_div", "act_round", "act_scale"])
def bitnet_ternary_absmean_scale(g):
    """BitNet b1.58: ternary weights with one scale, activations rounded at 127 / absmax after an RMS norm."""
    x = g.input("hidden", ["n", 128], g.normal(40, 128))
    rms = g.node(
        "Sqrt",
        [
            op(
                g,
                "Add",
                reduce(g, "ReduceMean", op(g, "Pow", x, 2.0, name="pow"), [1], "mean"),
                1e-5,
                name="eps",
            )
        ],
        name="rms",
    )
    h = g.node("Div", [x, rms], name="normed")
    top = reduce(g, "ReduceMax", g.node("Abs", [h], name="abs"), [1], "absmax")
    scale = op(g, "Div", top, 127.0, name="act_scale")
    q = g.node("Round", [g.node("Div", [h, scale], name="act_div")], name="act_round")
    y = g.node("MatMul", [q, g.const(g.rng.integers(-1, 2, (128, 96)), "ternary")], name="ternary_mm")
    y = g.node("Mul", [op(g, "Mul", y, 0.09, name="w_scale"), scale], name="unscale")
    g.output(g.linear(g.node("Relu", [y], name="relu"), "head", 96, 48))


@model("qdq_backbone_float_box_head", pins=["box_*"])
def qdq_backbone_float_box_head(g):
    """Detector with a QDQ backbone and a float head: exp times anchors, grid times stride."""
    x = g.input("features", [1, 48, 20, 20], np.abs(g.normal(1, 48, 20, 20)))
    w = stored(g, g.normal(64, 48, 3, 3, scale=0.05), "back", 0)
    h = g.node("Conv", [qdq(g, x, "x", 0.016), w], name="back_conv", pads=[1, 1, 1, 1])
    h = qdq(g, g.node("Relu", [h], name="relu"), "h", 0.015)
    y = g.node("Conv", [h, g.weight("box_w", 4, 64, 1, 1)], name="pred_conv")
    xy, wh = g.node("Split", [y], name="parts", outputs=2, axis=1, num_outputs=2)
    grid = np.stack(np.meshgrid(np.arange(20), np.arange(20))).astype(np.float32)[None]
    xy = g.node("Add", [g.node("Sigmoid", [xy], name="box_sigmoid"), g.const(grid, "grid")], name="box_grid")
    xy = op(g, "Mul", xy, 64.0, name="box_stride")
    anchors = np.array([116.0, 90.0]).reshape(1, 2, 1, 1)
    half = op(g, "Mul", g.node("Exp", [wh], name="exp"), anchors / 2, name="box_half")
    corners = [g.node("Sub", [xy, half], name="box_low"), g.node("Add", [xy, half], name="box_high")]
    g.output(g.node("Concat", corners, name="box_cat", axis=1))


@model("qdq_uint16_activations_attention_values", pins=[], opset=21)
def qdq_uint16_activations_attention_values(g):
    """Mobile NPU export: uint16 QDQ around a MatMul with softmax weights, uint8 values."""
    x = g.input("hidden", [1, 64, 96], g.normal(1, 64, 96))
    h = qdq(g, x, "x", 1.5e-4, 32768, np.uint16)
    k = g.node("Transpose", [g.linear(h, "k", 96, 64)], name="k_t", perm=[0, 2, 1])
    scores = op(
        g, "Mul", g.node("MatMul", [g.linear(h, "q", 96, 64), k], name="scores_mm"), 0.125, name="scale"
    )
    probs = qdq(g, g.node("Softmax", [scores], name="softmax", axis=-1), "p", 1 / 65535, 0, np.uint16)
    v = qdq(g, g.linear(h, "v", 96, 64), "v", 0.03, 128)
    g.output(g.linear(g.node("MatMul", [probs, v], name="attend_mm"), "out", 64, 96))
