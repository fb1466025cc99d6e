"""Differences within predicted tensors, physical units between networks, and sums of many terms of one sign."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, mlp, op, reduce, reshape, silu, span, split, unsqueeze


def smooth(g, *shape, waves=2.0):
    """A smooth field of order 1 over the last two dims, other for every leading index."""
    h, w = shape[-2:]
    yy, xx = np.linspace(0, waves, h)[:, None], np.linspace(0, waves, w)[None]
    rows = []
    for _ in range(int(np.prod(shape[:-2]))):
        a, b, c, d = g.uniform(0, 2 * np.pi, 4)
        e, f = g.uniform(0.4, 1.0, 2)
        rows.append(np.sin(2 * np.pi * e * xx + a + np.cos(yy + b)) + 0.6 * np.cos(2 * np.pi * f * yy + c + np.sin(xx + d)))
    return np.stack(rows).reshape(shape).astype(np.float32)


# 1. Small differences between the elements of one predicted tensor.


@model("monocular_depth_to_surface_normals", pins=["up", "bounded", "room", "depth_*", "gx_*", "gy_*"], opset=17)
def monocular_depth_to_surface_normals(g):
    """Indoor depth decoder (upsampled features, depth about 6 m) whose normals come from neighbours' differences."""
    x = g.input("features", [1, 32, 12, 16], smooth(g, 1, 32, 12, 16))
    h = g.node("Relu", [g.conv(x, "dec", 32, 32, 3, pads=[1, 1, 1, 1])], name="dec_act")
    z = g.conv(h, "head", 32, 1, 1)
    z = g.node("Resize", [z, "", g.const([1.0, 1.0, 8.0, 8.0])], name="up", mode="linear")
    z = g.node("Tanh", [z], name="bounded")
    d = op(g, "Add", op(g, "Mul", z, 0.5, name="room"), 6.0, name="depth_add")
    gx = g.node("Sub", [span(g, d, 1, 128, 3, "gx_right"), span(g, d, 0, 127, 3, "gx_left")], name="gx_sub")
    gy = g.node("Sub", [span(g, d, 1, 96, 2, "gy_low"), span(g, d, 0, 95, 2, "gy_high")], name="gy_sub")
    gx = op(g, "Mul", span(g, gx, 0, 95, 2, "crop_x"), -60.0, name="focal_x")
    gy = op(g, "Mul", span(g, gy, 0, 127, 3, "crop_y"), -60.0, name="focal_y")
    one = g.const(np.ones((1, 1, 95, 127)))
    n = g.node("Concat", [gx, gy, one], name="normal", axis=1)
    g.output(g.node("LpNormalization", [n], name="unit", axis=1, p=2))


@model("nelson_siegel_net_forward_rates", pins=["curve_gemm", "fwd_mm"], opset=13)
def nelson_siegel_net_forward_rates(g):
    """Yield-curve network: -log discount factors at 120 quarters by a Gemm, forwards by a matrix of differences."""
    x = g.input("macro", ["days", 24], g.normal(32, 24))
    h = g.node("Tanh", [g.linear(x, "enc", 24, 64)], name="enc_act")
    h = g.node("Tanh", [g.linear(h, "mid", 64, 6)], name="factors")
    t = np.arange(1, 121) / 4
    load = np.stack([t, 4 * (1 - np.exp(-t / 4)), 2 * (1 - np.exp(-t / 2)), t * np.exp(-t / 5), t * np.exp(-t / 9), np.sin(t / 4)])
    w = load * np.array([0.006, 0.012, 0.01, 0.008, 0.006, 0.004])[:, None]
    curve = g.node("Gemm", [h, g.const(w, "loadings"), g.const(0.035 * t + 0.02 * (1 - np.exp(-t / 3)), "level")], name="curve_gemm")
    diff = np.zeros((120, 119))
    diff[np.arange(119), np.arange(119)], diff[np.arange(1, 120), np.arange(119)] = -4, 4
    fwd = g.node("MatMul", [curve, g.const(diff, "difference")], name="fwd_mm")
    g.output(op(g, "Mul", fwd, 100.0, name="percent"))


@model("calpha_trace_bond_violations", pins=["refine", "refine/body/pos_add", "bond_*"], opset=18)
def calpha_trace_bond_violations(g):
    """C-alpha coordinates in a cryo-EM map (box 180 Å) refined in a Loop; bonds by index pairs, deviation from 3.8 Å."""
    steps = g.normal(200, 3)
    steps = 3.8 * steps / np.linalg.norm(steps, axis=1, keepdims=True)
    trace = np.cumsum(steps, 0)
    trace = trace - trace.mean(0) + np.array([110.0, 95.0, 130.0])
    x = g.input("trace", [200, 3], trace.astype(np.float32))
    f = g.input("single", ["residues", 64], g.normal(200, 64))
    i = g.input("i", ["bonds"], np.arange(0, 199))
    j = g.input("j", ["bonds"], np.arange(1, 200))
    h = g.linear(g.layer_norm(f, "in", 64), "single", 64, 64)
    body = Body(g, "recycle")
    body.entry("turn", [], TensorProto.INT64)
    go, before = body.entry("go", [], TensorProto.BOOL), body.entry("pos_before", [200, 3])
    where = op(body, "Mul", op(body, "Sub", before, 90.0, name="box_sub"), 0.02, name="box_mul")
    near = body.node("Relu", [body.node("Add", [body.linear(where, "place", 3, 64), h], name="mix")], name="mix_act")
    move = op(body, "Mul", body.linear(near, "move", 64, 3), 0.04, name="move_scale")
    after = body.node("Add", [before, move], name="pos_add")
    again = body.node("Identity", [go], name="again")
    inner = body.graph((again, [], TensorProto.BOOL), (after, [200, 3]))
    pos = g.node("Loop", [g.const(3, dtype=np.int64), "", x], name="refine", body=inner)
    pos = reshape(g, pos, [200, 3], "bond_pos")
    a, b = g.node("Gather", [pos, i], name="bond_i", axis=0), g.node("Gather", [pos, j], name="bond_j", axis=0)
    v = g.node("Sub", [b, a], name="bond_sub")
    length = reduce(g, "ReduceL2", v, [1], "bond_length")
    g.output(op(g, "Sub", length, 3.8, name="bond_dev"))


@model("text_line_polygon_height", pins=["pts_*", "top", "bottom", "height"], opset=20)
def text_line_polygon_height(g):
    """OCR: 8 polygon points of each text line in pixels of a 300 dpi page; height by ReduceMax less ReduceMin."""
    x = g.input("queries", ["lines", 96], g.normal(48, 96))
    ref = g.input("anchor_px", ["lines", 1, 2], np.stack([g.uniform(200, 2300, 48), g.uniform(1500, 3300, 48)], 1)[:, None])
    h = g.node("Gelu", [g.linear(x, "fc1", 96, 128)], name="gelu")
    off = reshape(g, g.linear(h, "fc2", 128, 16, scale=0.05), [0, 8, 2], "points")
    off = op(g, "Mul", g.node("Tanh", [off], name="bound"), np.array([40.0, 9.0]), name="offset")
    pts = g.node("Add", [off, ref], name="pts_add")
    y = g.node("Gather", [pts, g.const(1, dtype=np.int64)], name="pts_y", axis=2)
    hi, lo = reduce(g, "ReduceMax", y, [1], "bottom"), reduce(g, "ReduceMin", y, [1], "top")
    height = g.node("Sub", [hi, lo], name="height")
    g.output(height)
    g.output(mlp(g, op(g, "Div", height, 20.0, name="relative"), "size", [1, 32, 4]))


@model("geostrophic_currents_of_predicted_ssh", pins=["ssh_*", "geo_conv"], opset=19)
def geostrophic_currents_of_predicted_ssh(g):
    """Ocean emulator: anomaly by ConvTranspose plus mean topography (1.6 m), currents by a constant Conv times g/f."""
    z = g.input("latent", [1, 32, 16, 16], smooth(g, 1, 32, 16, 16, waves=1.5))
    mdt = g.input("mdt", [1, 1, 64, 64], 1.6 + 0.3 * smooth(g, 1, 1, 64, 64, waves=0.7))
    h = g.node("Relu", [g.conv(z, "enc", 32, 48, 3, pads=[1, 1, 1, 1])], name="enc_act")
    h = g.node("Relu", [g.conv(h, "mid", 48, 16, 1)], name="mid_act")
    bump = np.bartlett(9)[1:-1][:, None] * np.bartlett(9)[1:-1][None] / 1.0
    kernel = g.normal(16, 1, 1, 1, scale=0.25) * bump[None, None]
    a = g.node("ConvTranspose", [h, g.const(kernel, "up_w")], name="up", strides=[4, 4], pads=[2, 2, 1, 1])
    a = op(g, "Mul", a, 0.05, name="metres")
    a = g.node("AveragePool", [a], name="smooth", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1], count_include_pad=0)
    ssh = g.node("Add", [mdt, a], name="ssh_add")
    k = np.zeros((2, 1, 3, 3))
    k[0, 0, :, 1], k[1, 0, 1, :] = [0.5, 0, -0.5], [-0.5, 0, 0.5]
    v = g.node("Conv", [ssh, g.const(k * 9.81 / (1e-4 * 25000), "gradient")], name="geo_conv")
    speed = reduce(g, "ReduceL2", v, [1], "speed")
    g.output(v, speed)


@model("grid_load_forecast_ramps", pins=["load_*", "ramp_einsum"], opset=16)
def grid_load_forecast_ramps(g):
    """Day-ahead load in MW (about 31000) of 8 zones; hourly and 3-hourly ramps by an Einsum with ±1 rows."""
    x = g.input("weather", [8, 24, 20], g.normal(8, 24, 20))
    h = g.node("Transpose", [x], name="time_last", perm=[0, 2, 1])
    h = g.node("Relu", [g.conv(h, "tcn1", 20, 48, 3, dims=1, pads=[1, 1])], name="tcn1_act")
    h = g.node("Sigmoid", [g.conv(h, "tcn2", 48, 1, 5, dims=1, pads=[2, 2])], name="shape")
    h = g.node("Squeeze", [h, g.ints(1)], name="hours")
    swing = op(g, "Mul", h, 1200.0, name="swing")
    load = op(g, "Add", swing, 30000 + 1500 * np.sin(2 * np.pi * (np.arange(24) - 9) / 24), name="load_add")
    rows = np.concatenate([np.eye(24, k=1)[:23] - np.eye(24)[:23], np.eye(24, k=3)[:21] - np.eye(24)[:21]])
    ramp = g.node("Einsum", [load, g.const(rows, "ramp_rows")], equation="bh,rh->br", name="ramp_einsum")
    unit = op(g, "Mul", ramp, 1 / 500, name="per_500mw")
    g.output(unit)
    g.output(mlp(g, unit, "reserve", [44, 64, 6], "Tanh"))


@model("temporal_motion_excitation_tea", pins=[], opset=17)
def temporal_motion_excitation_tea(g):
    """TEA motion excitation: differences of neighbouring frames' reduced features, gates and a residual."""
    x = g.input("clip", [4, 32, 14, 14], g.normal(4, 32, 14, 14))
    r = g.conv(x, "reduce", 32, 8, 1)
    nxt = g.conv(span(g, r, 1, 4, 0, "later"), "shift", 8, 8, 3, pads=[1, 1, 1, 1])
    d = g.node("Sub", [nxt, span(g, r, 0, 3, 0, "earlier")], name="motion_sub")
    d = g.node("Pad", [d, g.ints(0, 0, 0, 0, 1, 0, 0, 0)], name="motion_pad")
    p = g.node("GlobalAveragePool", [d], name="gap")
    gate = g.node("Sigmoid", [g.conv(p, "expand", 8, 32, 1)], name="gate")
    y = g.node("Add", [x, g.node("Mul", [x, gate], name="excite")], name="residual")
    g.output(g.conv(g.node("Relu", [y], name="act"), "out", 32, 16, 3))


@model("haar_detail_of_feature_pyramid", pins=[], opset=15)
def haar_detail_of_feature_pyramid(g):
    """Wavelet pooling: constant Haar kernels (sums and differences) by a grouped Conv on learned features, a Conv."""
    x = g.input("image", [1, 3, 32, 32], g.normal(1, 3, 32, 32))
    h = g.node("LeakyRelu", [g.conv(x, "c1", 3, 24, 3, pads=[1, 1, 1, 1])], name="act1", alpha=0.2)
    haar = np.array([[[1, 1], [1, 1]], [[1, -1], [1, -1]], [[1, 1], [-1, -1]], [[1, -1], [-1, 1]]]) / 2
    w = g.node("Conv", [h, g.const(np.tile(haar[:, None], (24, 1, 1, 1)), "haar")], name="haar_conv", strides=[2, 2], group=24)
    low, rest = g.node("Split", [reshape(g, w, [0, 24, 4, 16, 16], "bands"), g.ints(1, 3)], name="band_split", outputs=2, axis=2)
    rest = g.node("Tanh", [rest], name="soft")
    both = reshape(g, g.node("Concat", [low, rest], name="join", axis=2), [0, 96, 16, 16], "flat_bands")
    g.output(g.conv(both, "c2", 96, 32, 3))


# 2. Physical units between two networks.


@model("downscaling_kelvin_between_networks", pins=["coarse_k", "fine_sub"], opset=17)
def downscaling_kelvin_between_networks(g):
    """Weather downscaling: coarse net's 2 m temperature in kelvin, re-normalised by the fine net's 289.3 and 1.7."""
    x = g.input("fields", [1, 8, 24, 24], g.normal(1, 8, 24, 24))
    h = g.node("Relu", [g.conv(x, "c1", 8, 32, 3, pads=[1, 1, 1, 1])], name="c1_act")
    z = g.conv(h, "c2", 32, 1, 1)
    k = op(g, "Add", op(g, "Mul", z, 2.0, name="coarse_std"), 288.6, name="coarse_k")
    n = op(g, "Mul", op(g, "Sub", k, 289.3, name="fine_sub"), 1 / 1.7, name="fine_mul")
    y = g.node("Relu", [g.conv(n, "f1", 1, 32, 3, pads=[1, 1, 1, 1])], name="f1_act")
    y = g.conv(y, "f2", 32, 16, 3, pads=[1, 1, 1, 1])
    g.output(g.node("DepthToSpace", [y], name="shuffle", blocksize=4))


@model("surface_pressure_pa_into_batchnorm", pins=["pa_mean", "bn"], opset=15)
def surface_pressure_pa_into_batchnorm(g):
    """Storm-track net reads a predicted surface pressure in Pa through BatchNormalization with running statistics."""
    x = g.input("latent", [2, 24, 20, 20], g.normal(2, 24, 20, 20))
    z = g.node("Tanh", [g.conv(x, "dec", 24, 2, 3, pads=[1, 1, 1, 1])], name="dec_act")
    std, mean = np.array([900.0, 250.0])[:, None, None], np.array([100900.0, 54500.0])[:, None, None]
    p = op(g, "Add", op(g, "Mul", z, std, name="pa_std"), mean, name="pa_mean")
    stats = [g.const(v, f"bn_{n}") for n, v in
             (("scale", [1.1, 0.9]), ("bias", [0.05, -0.1]), ("mean", [100850.0, 54530.0]), ("var", [640.0**2, 180.0**2]))]
    n = g.node("BatchNormalization", [p, *stats], name="bn", epsilon=1e-3)
    y = g.node("Relu", [g.conv(n, "t1", 2, 32, 3)], name="t1_act")
    y = g.node("MaxPool", [y], name="pool", kernel_shape=[2, 2], strides=[2, 2])
    g.output(g.conv(y, "t2", 32, 5, 3))


@model("manuscript_dating_year_encoder", pins=["year_*", "age_gemm"], opset=21)
def manuscript_dating_year_encoder(g):
    """Manuscript dating: a year (1200 to 1600) regressed from patches, read by a language net's folded first Gemm."""
    x = g.input("patches", ["pages", 192], g.normal(40, 192))
    h = g.node("Gelu", [g.linear(g.layer_norm(x, "pre", 192), "fc1", 192, 96)], name="gelu")
    z = g.node("Tanh", [g.linear(h, "fc2", 96, 1)], name="century")
    year = op(g, "Add", op(g, "Mul", z, 40.0, name="span"), 1480.0, name="year_add")
    w = g.normal(1, 48)
    age = g.node("Gemm", [year, g.const(w / 30.0, "age_w"), g.const(-1475.0 / 30.0 * w[0], "age_b")], name="age_gemm")
    e = g.node("Tanh", [age], name="age_act")
    both = g.node("Concat", [e, h], name="join", axis=1)
    g.output(g.linear(both, "script", 144, 20))


@model("face_landmarks_4k_centred_shape_net", pins=["px_*", "centre_*"], opset=22)
def face_landmarks_4k_centred_shape_net(g):
    """Landmarks of small faces in pixels of a 4K frame; the expression net removes their mean and divides by 15."""
    x = g.input("roi_features", ["faces", 128], g.normal(12, 128))
    corner = g.input("corner_px", ["faces", 1, 2], np.stack([g.uniform(1100, 3700, 12), g.uniform(1030, 2000, 12)], 1)[:, None])
    h = silu(g, g.linear(x, "fc1", 128, 128), "swish")
    uv = g.node("Sigmoid", [reshape(g, g.linear(h, "fc2", 128, 136), [0, 68, 2], "uv")], name="uv_unit")
    px = g.node("Add", [op(g, "Mul", uv, 36.0, name="box"), corner], name="px_add")
    mean = reduce(g, "ReduceMean", px, [1], "centre_mean")
    shape = op(g, "Div", g.node("Sub", [px, mean], name="centre_sub"), 15.0, name="face_size")
    flat = g.node("Flatten", [shape], name="flat", axis=1)
    g.output(mlp(g, flat, "expr", [136, 64, 12], "Relu"))


@model("index_price_path_into_instance_norm", pins=["price_*", "path", "path/body/*", "inorm"], opset=17)
def index_price_path_into_instance_norm(g):
    """Finance: price paths (index of 4200) summed from steps by a Scan, for a hedging net with InstanceNormalization first."""
    x = g.input("noise", [8, 16, 64], g.normal(8, 16, 64))
    h = g.node("Tanh", [g.conv(x, "gen1", 16, 32, 5, dims=1, pads=[2, 2])], name="gen1_act")
    r = op(g, "Mul", g.conv(h, "gen2", 32, 4, 1, dims=1), 6.0, name="points")
    steps = g.node("Transpose", [r], name="steps_first", perm=[2, 0, 1])
    last = g.input("last_price", [8, 4], g.uniform(4100, 4300, 8, 4))
    body = Body(g, "walk")
    before, step = body.entry("price_before", [8, 4]), body.entry("step_now", [8, 4])
    now = body.node("Add", [before, step], name="walk_add")
    kept = body.node("Identity", [now], name="walk_kept")
    _, path = g.node("Scan", [last, steps], name="path", outputs=2, num_scan_inputs=1, body=body.graph((now, [8, 4]), (kept, [8, 4])))
    p = g.node("Transpose", [path], name="price_t", perm=[1, 2, 0])
    n = g.node("InstanceNormalization", [p, g.const(np.ones(4)), g.const(np.zeros(4))], name="inorm", epsilon=1e-5)
    y = g.node("Relu", [g.conv(n, "h1", 4, 48, 3, dims=1)], name="h1_act")
    g.output(g.node("Tanh", [g.conv(y, "h2", 48, 4, 1, dims=1)], name="position"))


@model("drone_barometer_altitude_if_qnh",
       pins=["hpa_add", "ratio", "ratio/then_branch/*", "ratio/else_branch/*", "alt_pow", "alt_sub"], opset=18)
def drone_barometer_altitude_if_qnh(g):
    """Drone: corrected barometer in hPa, divided (If) by the airport's or the standard pressure, altitude, control net."""
    raw = g.input("baro_hpa", ["batch", 4], (1003 + g.normal(64, 4, scale=1.2)).astype(np.float32))
    imu = g.input("imu", ["batch", 24], g.normal(64, 24))
    qnh = g.input("qnh", [1], np.array([1009.7], np.float32))
    known = g.input("qnh_known", [], np.array(True))
    fix = op(g, "Mul", mlp(g, imu, "bias", [24, 48, 4], "Tanh"), 0.4, name="bias_hpa")
    p = g.node("Add", [raw, fix], name="hpa_add")
    then, other = Body(g, "with_qnh"), Body(g, "standard")
    a = then.node("Div", [p, qnh], name="by_qnh")
    b = op(other, "Div", p, 1013.25, name="by_standard")
    ratio = g.node("If", [known], name="ratio", then_branch=then.graph((a, ["batch", 4])), else_branch=other.graph((b, ["batch", 4])))
    alt = op(g, "Sub", 1.0, op(g, "Pow", ratio, 0.190263, name="alt_pow"), name="alt_sub")
    alt = op(g, "Mul", alt, 44330.8 / 30, name="alt_metres")
    both = g.node("Concat", [alt, imu], name="join", axis=1)
    g.output(alt)
    g.output(mlp(g, both, "ctrl", [28, 64, 4], "Tanh"))


@model("super_resolution_into_imagenet_statistics", pins=[], opset=17)
def super_resolution_into_imagenet_statistics(g):
    """Pixels 0..1 out of a super-resolution net, re-normalised by ImageNet means and deviations for a classifier."""
    x = g.input("image", [1, 3, 24, 24], g.normal(1, 3, 24, 24))
    h = g.node("Relu", [g.conv(x, "sr1", 3, 32, 3, pads=[1, 1, 1, 1])], name="sr1_act")
    z = g.node("DepthToSpace", [g.conv(h, "sr2", 32, 12, 3, pads=[1, 1, 1, 1])], name="shuffle", blocksize=2)
    rgb = op(g, "Add", op(g, "Mul", z, 0.25, name="to_unit"), 0.5, name="unit_add")
    rgb = g.node("Clip", [rgb, g.const(0.0), g.const(1.0)], name="unit_clip")
    n = op(g, "Sub", rgb, np.array([0.485, 0.456, 0.406])[:, None, None], name="stat_sub")
    n = op(g, "Div", n, np.array([0.229, 0.224, 0.225])[:, None, None], name="stat_div")
    y = g.node("Relu", [g.conv(n, "cl1", 3, 32, 5, strides=[2, 2])], name="cl1_act")
    g.output(g.conv(y, "cl2", 32, 10, 3, strides=[2, 2]))


@model("battery_celsius_into_batchnorm", pins=[], opset=14)
def battery_celsius_into_batchnorm(g):
    """Battery pack: cell temperatures in Celsius (12 ± 14) and volts predicted, then BatchNormalization, ageing net."""
    x = g.input("telemetry", ["packs", 40], g.normal(96, 40))
    z = mlp(g, x, "thermal", [40, 64, 12], "Tanh")
    unit = np.array([14.0] * 8 + [0.9] * 4)
    off = np.array([12.0] * 8 + [1.2] * 4)
    c = op(g, "Add", op(g, "Mul", z, unit, name="unit_mul"), off, name="unit_add")
    stats = [g.const(v) for v in (np.ones(12), np.zeros(12), off * 0.9, (unit * 1.1) ** 2)]
    n = g.node("BatchNormalization", [c, *stats], name="bn")
    g.output(mlp(g, n, "ageing", [12, 64, 6], "Relu"))


# 3. Sums of many terms of one sign (the others are in sums_and_spectra.py).


@model("exp_weight_pooling_of_slide_tiles", pins=["num_mm", "den_sum", "pool_div"], pins_bf16=[], opset=18)
def exp_weight_pooling_of_slide_tiles(g):
    """Pathology: 3000 tiles pooled by exp(score) without a maximum taken off, weighted sum over the sum of weights."""
    x = g.input("tiles", ["tiles", 64], g.normal(3000, 64))
    h = g.node("Relu", [g.linear(x, "embed", 64, 64)], name="embed_act")
    s = g.linear(g.node("Tanh", [g.linear(h, "att1", 64, 32)], name="att_act"), "att2", 32, 1)
    s = op(g, "Add", op(g, "Mul", s, 1.5, name="sharpen"), 5.0, name="logit_shift")
    w = g.node("Exp", [s], name="w_exp")
    num = g.node("Gemm", [w, h], name="num_mm", transA=1)
    den = reduce(g, "ReduceSum", w, [0], "den_sum")
    pooled = g.node("Div", [num, den], name="pool_div")
    g.output(mlp(g, pooled, "grade", [64, 48, 5]))


@model("co2_transport_mass_drift", pins=["ppm_*", "mass_mm", "drift_sub"], opset=17)
def co2_transport_mass_drift(g):
    """Carbon transport: CO2 of 410 ppm plus a learned tendency; area-weighted masses before and after, their drift."""
    lat = np.deg2rad(np.linspace(-87.5, 87.5, 36))
    area = np.repeat(np.cos(lat)[:, None], 72, 1)
    area = (area / area.sum()).reshape(-1, 1)
    c = g.input("ppm", [6, 1, 36, 72], (410 + 4 * smooth(g, 6, 1, 36, 72)).astype(np.float32))
    wind = g.input("wind", [6, 4, 36, 72], smooth(g, 6, 4, 36, 72))
    h = g.node("Relu", [g.conv(wind, "w1", 4, 16, 3, pads=[1, 1, 1, 1])], name="w1_act")
    tend = op(g, "Mul", g.conv(h, "w2", 16, 1, 3, pads=[1, 1, 1, 1]), 1.5, name="tendency")
    after = g.node("Add", [c, tend], name="ppm_add")
    both = g.node("Concat", [c, after], name="ppm_pair", axis=1)
    flat = reshape(g, both, [0, 2, 2592], "ppm_flat")
    mass = g.node("MatMul", [flat, g.const(area, "area")], name="mass_mm")
    old, new = g.node("Split", [mass], name="ppm_parts", outputs=2, axis=1)
    drift = g.node("Sub", [new, old], name="drift_sub")
    g.output(drift)
    fixed = g.node("Sub", [tend, unsqueeze(g, drift, [3], "drift_dims")], name="fixed")
    g.output(fixed)


@model("colour_histogram_earth_mover_loss", pins=["count_sum", "gap_sub"], opset=20)
def colour_histogram_earth_mover_loss(g):
    """Colour transfer: soft counts of 4096 pixels in 32 bins, difference from the reference's counts, cumulative."""
    x = g.input("image", [1, 3, 64, 64], smooth(g, 1, 3, 64, 64))
    h = g.node("Relu", [g.conv(x, "n1", 3, 16, 3, pads=[1, 1, 1, 1])], name="n1_act")
    res = op(g, "Mul", g.conv(h, "n2", 16, 1, 1), 0.35, name="delta")
    lum = g.node("Sigmoid", [res], name="luminance")
    flat = reshape(g, lum, [1, 4096, 1], "pixels")
    d = op(g, "Sub", flat, (0.25 + np.arange(32) / 64)[None, None], name="bin_sub")
    soft = g.node("Softmax", [op(g, "Mul", g.node("Mul", [d, d], name="bin_sq"), -20.0, name="bin_scale")], name="assign", axis=2)
    count = reduce(g, "ReduceSum", soft, [1], "count_sum", keepdims=0)
    base = np.exp(-20 * ((0.25 + np.arange(32) / 64)[None] - (0.5 + 0.03 * g.normal(4096, 1))) ** 2)
    ref = g.input("reference_counts", [1, 32], (base / base.sum(1, keepdims=True)).sum(0, keepdims=True).astype(np.float32))
    gap = g.node("Sub", [count, ref], name="gap_sub")
    cum = g.node("CumSum", [gap, g.const(1, dtype=np.int64)], name="emd_cum")
    g.output(reduce(g, "ReduceMean", g.node("Abs", [cum], name="emd_abs"), [1], "emd"), op(g, "Mul", gap, 0.05, name="gap_unit"))


@model("atomisation_energy_by_segment_matrix", pins=["atom_*", "mol_mm", "ref_gemm", "form_sub"], opset=19)
def atomisation_energy_by_segment_matrix(g):
    """Interatomic potential: atomic energies of -1030 eV and such, summed by a 0/1 matrix, less composition references."""
    kinds = g.rng.integers(0, 4, 240)
    base = np.array([-13.6, -1029.8, -1485.3, -2041.9])
    feats = g.normal(240, 64) + 0.5 * g.normal(4, 64)[kinds]
    x = g.input("atoms", ["atoms", 64], feats.astype(np.float32))
    hot = g.input("species", ["atoms", 4], np.eye(4, dtype=np.float32)[kinds])
    seg = np.zeros((10, 240), np.float32)
    seg[np.arange(240) % 10, np.arange(240)] = 1
    s = g.input("membership", ["molecules", "atoms"], seg)
    e = mlp(g, x, "readout", [64, 64, 1], "Softplus")
    e = op(g, "Mul", e, 1.5, name="energy_scale")
    shift = g.node("MatMul", [hot, g.const(base[:, None], "shift")], name="atom_shift")
    total = g.node("MatMul", [s, g.node("Add", [e, shift], name="atom_add")], name="mol_mm")
    comp = g.node("MatMul", [s, hot], name="composition")
    ref = g.node("Gemm", [comp, g.const(base[:, None] - 1.1, "references")], name="ref_gemm")
    g.output(g.node("Sub", [total, ref], name="form_sub"))
