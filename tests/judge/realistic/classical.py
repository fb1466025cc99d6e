"""Embedded, quantised and classical models."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, cast, mlp, op, reduce, reshape, silu, span, unsqueeze


@model("sklearn_scaler_svc_rbf_by_matmul_wine", opset=15, pins=["scale_*", "sq_*", "cross*", "d2*", "k_*", "decision*"])
def _(g):
    """StandardScaler on wine chemistry (proline to 1600), squared distances to 120 vectors expanded, exp(-γd²)·α."""
    mean = np.array([13, 2.3, 2.4, 19.5, 99.7, 2.3, 2, 0.36, 1.6, 5, 0.96, 2.6, 747], np.float32)
    std = np.array([0.8, 1.1, 0.27, 3.3, 14, 0.63, 1, 0.12, 0.57, 2.3, 0.23, 0.7, 315], np.float32)
    x = g.input("wine", ["n", 13], (mean + std * g.normal(16, 13)).astype(np.float32))
    z = op(g, "Div", op(g, "Sub", x, mean, name="scale_sub"), std, name="scale_div")
    sv = g.normal(120, 13)
    z2 = g.node("ReduceSumSquare", [z], name="sq_z", axes=[1], keepdims=1)
    c = op(g, "Mul", g.node("MatMul", [z, g.const(sv.T, "sv")], name="cross_mm"), -2.0, name="cross2")
    d = op(g, "Add", op(g, "Add", z2, c, name="d2_a"), (sv**2).sum(1), name="d2")
    k = g.node("Exp", [op(g, "Mul", d, -1 / 13, name="k_gamma")], name="k_exp")
    alpha = np.clip(g.normal(120, 3, scale=0.8), -1, 1)
    g.output(op(g, "Add", g.node("MatMul", [k, g.const(alpha, "dual")], name="decision_mm"), g.normal(3, scale=0.2),
                name="decision"))


@model("sklearn_logistic_pipeline_credit_raw_dollars", opset=13, pins=["gemm", "softmax"],
       pins_bf16=["gemm", "softmax"])
def _(g):
    """LogisticRegression straight on incomes and balances of 1e3 to 5e5 dollars: coefficients of 1e-6 to 1e-1."""
    scale = np.array([6e4, 2e5, 1.5e3, 45, 700, 8, 3, 0.3], np.float32)
    x = g.input("raw", ["n", 8], (scale * np.exp(g.normal(32, 8, scale=0.5))).astype(np.float32))
    w = g.normal(8, 2, scale=0.8) / scale[:, None]
    l = g.node("Gemm", [x, g.const(w, "coef"), g.const([0.4, -0.4], "intercept")], name="gemm")
    h = mlp(g, g.node("Softmax", [l], name="softmax", axis=1), "stack", [2, 64, 64, 1])
    g.output(g.node("Sigmoid", [h], name="stacked"))


@model("sklearn_kneighbors_imputed_sensor_distances_topk", opset=16, pins=["imp*", "diff*", "dist*", "top*", "targets", "w_*"],
       pins_bf16=["imp*", "emb2_*", "diff*", "dist*", "top*", "targets", "w_*"])
def _(g):
    """KNeighborsRegressor with weights='distance' of a learned embedding: NaN replaced, cdist by differences, 1/d."""
    x = g.normal(8, 24) * 3 + 20
    x[g.rng.random((8, 24)) < 0.1] = np.nan
    a = g.input("sensors", ["n", 24], x.astype(np.float32))
    a = g.node("Where", [g.node("IsNaN", [a], name="nan"), g.const(np.full(24, 20.0)), a], name="imputed")
    h = g.node("Tanh", [g.linear(op(g, "Mul", op(g, "Sub", a, 20.0, name="imp_sub"), 1 / 3, name="imp_scale"), "emb", 24,
                                 64)], name="tanh")
    h = g.linear(h, "emb2", 64, 16)
    train = g.normal(200, 16)
    d = op(g, "Sub", unsqueeze(g, h, [1], "h_u"), train[None], name="diff")
    d = g.node("Sqrt", [g.node("ReduceSumSquare", [d], name="dist_sq", axes=[2], keepdims=0)], name="dist_root")
    v, i = g.node("TopK", [d, g.ints(5)], name="topk", outputs=2, axis=1, largest=0)
    w = op(g, "Div", 1.0, op(g, "Add", v, 1e-10, name="w_eps"), name="w_inv")
    y = g.node("Gather", [g.const(120 + 30 * train[:, 0] + 10 * train[:, 1] ** 2, "train_y"), i], name="targets")
    num = reduce(g, "ReduceSum", op(g, "Mul", w, y, name="w_y"), [1], "w_ysum")
    g.output(op(g, "Div", num, reduce(g, "ReduceSum", w, [1], "w_sum"), name="w_mean"))


@model("sklearn_gaussian_mixture_full_precisions_cholesky", opset=14,
       pins=["y_*", "maha*", "lp*", "lse*", "post*"])
def _(g):
    """GaussianMixture(full): (x·L - μ·L)² summed for every component, log-determinants, log-sum-exp of 8."""
    x = g.input("x", ["n", 12], g.normal(32, 12, scale=2) + 10)
    mu = g.normal(8, 12, scale=2.0) + 10
    chol = np.stack([np.triu(g.normal(12, 12, scale=0.3)) + np.diag(g.uniform(0.5, 4, 12)) for _ in range(8)])
    terms = []
    for k in range(8):
        y = g.node("MatMul", [x, g.const(chol[k], f"chol{k}")], name=f"y_mm{k}")
        y = op(g, "Sub", y, mu[k] @ chol[k], name=f"y_sub{k}")
        terms.append(g.node("ReduceSumSquare", [y], name=f"maha{k}", axes=[1], keepdims=1))
    m = g.node("Concat", terms, name="maha_cat", axis=1)
    det = np.log(np.stack([np.diag(c) for c in chol])).sum(1)
    lp = op(g, "Add", op(g, "Mul", op(g, "Add", m, 12 * np.log(2 * np.pi), name="lp_2pi"), -0.5, name="lp_half"),
            det + np.log(1 / 8), name="lp")
    lse = g.node("ReduceLogSumExp", [lp], name="lse", axes=[1], keepdims=1)
    post = g.node("Exp", [op(g, "Sub", lp, lse, name="post_log")], name="post")
    h = g.node("Concat", [x, post], name="with_posterior", axis=1)
    g.output(lse, mlp(g, op(g, "Mul", h, 0.1, name="h_scale"), "head", [20, 128, 3]))


@model("mobilenetv3_hard_swish_fake_quant_stem", opset=14, pins=["fq*_div", "fq*_round", "fq*_add", "fq*_clip", "fq*_sub",
                                                              "fq*_mul"])
def _(g):
    """QAT: fake quantisation written out as Round(x/s)+z clipped to 0..255, around convolutions and hard activations."""
    x = g.input("image", ["n", 3, 64, 64], g.normal(1, 3, 64, 64))

    def fq(a, s, z, tag):
        q = g.node("Round", [op(g, "Div", a, s, name=f"{tag}_div")], name=f"{tag}_round")
        q = op(g, "Clip", op(g, "Add", q, z, name=f"{tag}_add"), 0.0, 255.0, name=f"{tag}_clip")
        return op(g, "Mul", op(g, "Sub", q, z, name=f"{tag}_sub"), s, name=f"{tag}_mul")
    h = g.conv(fq(x, 0.0374, 114.0, "fq0"), "c1", 3, 64, 3, strides=[2, 2], pads=[1] * 4)
    h = g.node("HardSwish", [h], name="hswish1")
    h = fq(h, 0.0211, 16.0, "fq1")
    d = g.node("Conv", [h, g.weight("dw", 64, 1, 3, 3)], name="depthwise", group=64, pads=[1] * 4)
    s = g.node("GlobalAveragePool", [d], name="gap")
    s = g.node("Relu", [g.conv(s, "se1", 64, 16, 1)], name="se_relu")
    s = g.node("HardSigmoid", [g.conv(s, "se2", 16, 64, 1)], name="hsig", alpha=1 / 6, beta=0.5)
    d = op(g, "Mul", d, s, name="excite")
    g.output(op(g, "Add", h, g.conv(d, "pw", 64, 64, 1), name="residual"))


@model("bitnet_b158_activation_absmax_int8_rounding", opset=23,
       pins=["rms_*", "act_*", "wq_*", "rescale*"])
def _(g):
    """BitNet b1.58 in training form: weights rounded by their mean magnitude, activations by 127/absmax per token."""
    x = g.input("x", ["b", "s", 128], g.normal(1, 16, 128))
    for l in range(2):
        sq = g.node("ReduceMean", [op(g, "Mul", x, x, name=f"rms_sq{l}"), g.ints(-1)], name=f"rms_mean{l}")
        h = op(g, "Div", x, g.node("Sqrt", [op(g, "Add", sq, 1e-6, name=f"rms_eps{l}")], name=f"rms_root{l}"),
               name=f"rms_div{l}")
        top = g.node("ReduceMax", [g.node("Abs", [h], name=f"act_abs{l}"), g.ints(-1)], name=f"act_max{l}")
        s = op(g, "Div", 127.0, op(g, "Max", top, 1e-5, name=f"act_floor{l}"), name=f"act_scale{l}")
        q = op(g, "Clip", g.node("Round", [op(g, "Mul", h, s, name=f"act_mul{l}")], name=f"act_round{l}"), -128.0, 127.0,
               name=f"act_clip{l}")
        w = g.weight(f"w{l}", 128, 128, scale=0.02)
        m = g.node("ReduceMean", [g.node("Abs", [w], name=f"wq_abs{l}")], name=f"wq_mean{l}", keepdims=0)
        m = op(g, "Max", m, 1e-5, name=f"wq_floor{l}")
        t = op(g, "Clip", g.node("Round", [op(g, "Div", w, m, name=f"wq_div{l}")], name=f"wq_round{l}"), -1.0, 1.0,
               name=f"wq_ternary{l}")
        y = g.node("MatMul", [q, t], name=f"ternary_mm{l}")
        y = op(g, "Mul", op(g, "Div", y, s, name=f"rescale_s{l}"), m, name=f"rescale_w{l}")
        x = op(g, "Add", x, y, name=f"residual{l}")
    g.output(x)


@model("anomaly_autoencoder_vibration_reconstruction_error", opset=13, pins=["z_*", "err*", "score*", "dec_out_mm", "dec_out_add"])
def _(g):
    """A dense autoencoder of 5 frames of log-mel features (ToyADMOS); the mean squared error, its z-score, a threshold."""
    mean = np.tile(np.linspace(-30, -60, 64), 5).astype(np.float32)
    base = g.normal(16, 8, scale=0.5) @ g.normal(8, 320)
    x = g.input("logmel_db", ["n", 320], (mean + 6 * (base + 0.05 * g.normal(16, 320))).astype(np.float32))
    z = op(g, "Div", op(g, "Sub", x, mean, name="z_sub"), 8.0, name="z_div")
    h = mlp(g, z, "enc", [320, 128, 128, 8])
    h = g.node("Relu", [mlp(g, h, "dec", [8, 128, 128])], name="dec_relu")
    y = g.linear(h, "dec_out", 128, 320)
    e = op(g, "Sub", z, y, name="err_sub")
    mse = g.node("ReduceMean", [op(g, "Mul", e, e, name="err_sq")], name="err_mean", axes=[1], keepdims=0)
    g.output(op(g, "Div", op(g, "Sub", mse, 0.9, name="score_mean"), 0.2, name="score"))


@model("tflite_micro_keyword_spotting_mfcc_int16_to_unit", opset=13, pins=["pcm_*", "softmax"],
       pins_bf16=["pcm_*", "softmax"])
def _(g):
    """A raw-audio M5-like keyword spotter: int16 samples over 32768, strided convolutions, batch norms folded."""
    t = np.arange(8000) / 8000
    x = (3000 * np.sin(2 * np.pi * 440 * t) * np.exp(-3 * t) + 200 * g.rng.standard_normal(8000)).astype(np.int16)
    a = g.input("pcm", ["n", 1, 8000], x[None, None])
    f = op(g, "Div", cast(g, a, "pcm_cast"), 32768.0, name="pcm_unit")
    h = g.conv(f, "c1", 1, 64, 80, dims=1, strides=[16])
    h = g.node("MaxPool", [g.node("Relu", [op(g, "Mul", h, 12.0, name="bn1")], name="r1")], name="p1", kernel_shape=[4],
               strides=[4])
    h = g.node("MaxPool", [g.node("Relu", [g.conv(h, "c2", 64, 64, 3, dims=1)], name="r2")], name="p2", kernel_shape=[4],
               strides=[4])
    h = g.node("Relu", [g.conv(h, "c3", 64, 128, 3, dims=1)], name="r3")
    h = g.node("Flatten", [g.node("GlobalAveragePool", [h], name="gap")], name="flat")
    g.output(g.node("Softmax", [g.linear(h, "fc", 128, 12)], name="softmax", axis=1))


@model("madgwick_gyro_quaternion_scan_then_gait_net", opset=16, pins=["scan", "scan/*", "acc_*"])
def _(g):
    """IMU at 100 Hz: quaternions integrated from gyros (rad/s) in a Scan, gravity removed from accelerations, a CNN."""
    t = np.arange(128) / 100
    gyro = np.stack([np.sin(6 * t), 0.5 * np.cos(4 * t), 0.2 * np.sin(2 * t)], 1) + g.normal(128, 3, scale=0.02)
    acc = np.array([0, 0, 9.81]) + g.normal(128, 3, scale=0.8)
    w, a = g.input("gyro", ["t", 3], gyro.astype(np.float32)), g.input("acc", ["t", 3], acc.astype(np.float32))
    body = Body(g, "imu")
    q, wi, ai = body.entry("q", [4]), body.entry("wi", [3]), body.entry("ai", [3])
    omega = np.zeros((4, 4, 3), np.float32)
    for r, c, k, s in ((0, 1, 0, -1), (0, 2, 1, -1), (0, 3, 2, -1), (1, 0, 0, 1), (1, 2, 2, 1), (1, 3, 1, -1),
                       (2, 0, 1, 1), (2, 1, 2, -1), (2, 3, 0, 1), (3, 0, 2, 1), (3, 1, 1, 1), (3, 2, 0, -1)):
        omega[r, c, k] = s
    m = body.node("MatMul", [body.const(omega, "omega"), wi], name="omega_mm")
    dq = op(body, "Mul", body.node("MatMul", [m, q], name="dq_mm"), 0.005, name="dq")
    n = op(body, "Add", q, dq, name="q_add")
    nn = op(body, "Div", n, body.node("ReduceL2", [n], name="q_norm", axes=[0], keepdims=1), name="q_unit")
    s, x, y, z = body.node("Split", [nn], name="q_split", outputs=4, axis=0)
    def dbl(a_, b_, nm):
        return op(body, "Mul", op(body, "Mul", a_, b_, name=f"g_{nm}p"), 2.0, name=f"g_{nm}")
    gx = op(body, "Sub", dbl(x, z, "xz"), dbl(s, y, "sy"), name="g_x")
    gy = op(body, "Add", dbl(s, x, "sx"), dbl(y, z, "yz"), name="g_y")
    gz = op(body, "Sub", 1.0, op(body, "Add", dbl(x, x, "xx"), dbl(y, y, "yy"), name="g_xy"), name="g_z")
    grav = op(body, "Mul", body.node("Concat", [gx, gy, gz], name="g_cat", axis=0), 9.81, name="g_ms2")
    lin = op(body, "Sub", ai, grav, name="linear_acc")
    _, la = g.node("Scan", [g.const([1.0, 0, 0, 0]), w, a], name="scan", outputs=2, num_scan_inputs=2,
                   body=body.graph((nn, [4]), (lin, [3])))
    f = g.node("Concat", [op(g, "Mul", la, 0.2, name="acc_scale"), w], name="six", axis=1)
    f = unsqueeze(g, g.node("Transpose", [f], name="channels", perm=[1, 0]), [0], "batch")
    h = g.node("Relu", [g.conv(f, "c1", 6, 64, 5, dims=1)], name="r1")
    h = g.node("Relu", [g.conv(h, "c2", 64, 64, 5, dims=1)], name="r2")
    g.output(g.linear(g.node("Flatten", [g.node("GlobalAveragePool", [h], name="gap")], name="flat"), "fc", 64, 6))


@model("battery_soc_coulomb_counting_with_lstm_correction", opset=14, pins=["cc_*", "v_*", "i_*", "soc*"])
def _(g):
    """BMS: the state of charge by CumSum of amperes over 3600·Ah, voltages near 3.7 V z-scored, an LSTM's correction."""
    n = 600
    amps = (2 * np.sin(np.arange(n) / 40) - 1.5 + 0.3 * g.rng.standard_normal(n)).astype(np.float32)
    volts = (3.7 + 0.02 * amps + g.normal(n, scale=0.003)).astype(np.float32)
    i, v = g.input("amps", [n, 1], amps[:, None]), g.input("volts", [n, 1], volts[:, None])
    s0 = g.input("soc0", [1], np.array([0.83], np.float32))
    q = g.node("CumSum", [op(g, "Mul", i, 1.0, name="cc_dt"), g.const(0, dtype=np.int64)], name="cc_cumsum")
    soc = op(g, "Add", s0, op(g, "Div", q, 3600 * 2.9, name="cc_capacity"), name="soc_counted")
    vz = op(g, "Div", op(g, "Sub", v, 3.7, name="v_sub"), 0.15, name="v_z")
    iz = op(g, "Div", i, 3.0, name="i_z")
    f = g.node("Concat", [vz, iz], name="features", axis=1)
    f = g.node("Tanh", [g.linear(f, "in", 2, 64, scale=0.7)], name="tanh")
    y = g.node("LSTM", [unsqueeze(g, f, [1], "seq"), g.weight("w", 1, 256, 64, scale=0.12),
                        g.weight("r", 1, 256, 64, scale=0.12)], name="lstm", hidden_size=64)
    y = g.linear(reshape(g, y, [-1, 64], "flat"), "out", 64, 1)
    g.output(op(g, "Add", soc, op(g, "Mul", y, 0.02, name="soc_correction"), name="soc"))


@model("keras_lane_normalised_uint8_batchnorm_unfolded_relu6", opset=13, pins=["pix_cast", "bn1"],
       pins_bf16=["pix_cast", "bn1"])
def _(g):
    """keras2onnx: 0..255 pixels straight into a batch norm with variances of thousands, separable convs, relu6."""
    x = g.input("image", ["n", 48, 48, 3], g.rng.integers(0, 256, (1, 48, 48, 3)).astype(np.uint8))
    h = g.node("Transpose", [cast(g, x, "pix_cast")], name="nchw", perm=[0, 3, 1, 2])
    h = g.node("BatchNormalization", [h, g.const(np.ones(3)), g.const(np.zeros(3)), g.const([123.7, 116.3, 103.5]),
                                      g.const([3409.0, 3260.0, 3292.0])], name="bn1", epsilon=1e-3)
    h = op(g, "Clip", g.conv(h, "c1", 3, 64, 3, strides=[2, 2], pads=[1] * 4), 0.0, 6.0, name="relu6_1")
    h = g.node("Conv", [h, g.weight("dw", 64, 1, 3, 3)], name="depthwise", group=64, pads=[1] * 4)
    h = op(g, "Clip", g.conv(h, "pw", 64, 128, 1), 0.0, 6.0, name="relu6_2")
    h = g.node("Squeeze", [g.node("GlobalAveragePool", [h], name="gap"), g.ints(2, 3)], name="flat")
    g.output(g.linear(h, "steer", 128, 4))
