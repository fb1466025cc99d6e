"""Video and several modalities: differences of frames, shifts, gates, warps, sound with pictures."""

import numpy as np

from .build import model
from .parts import Body, attend, dot_scores, mlp, project_qkv
from .named_parts import FMIN, Part, ints, pixel_grid, relu_conv, smooth_image


def clip_of(g, t, c, h, w, low=0.0, high=255.0, step=2.0):
    """Frames of a slowly changing scene."""
    base = smooth_image(g, c, h, w, low=low, high=high)
    drift = smooth_image(g, c, h, w, low=-step, high=step)
    y = base[None] + drift[None] * np.arange(t).reshape(-1, 1, 1, 1) + g.normal(t, c, h, w, scale=step / 4)
    y = np.clip(y, low, high)
    return (np.round(y) if high == 255.0 else y).astype(np.float32)


# TSN's RGB differences: frames are normalised first, so that near numbers are subtracted.
@model("tsn_rgb_difference_of_normalised_frames", pins=["diff_*"], opset=17)
def tsn(g):
    t, s = 6, 64
    x = g.input("clip", [t, 3, s, s], clip_of(g, t, 3, s, s))
    p = Part(g, "diff")
    x = p("Div", p("Sub", x, np.array([104.0, 117.0, 128.0]).reshape(3, 1, 1)), np.array([58.4, 57.1, 57.4]).reshape(3, 1, 1))
    d = p("Sub", p.cut(x, 1, t, 0), p.cut(x, 0, t - 1, 0))
    y = p.reshape(d, 1, 3 * (t - 1), s, s)
    y = relu_conv(g, relu_conv(g, y, "conv1", 3 * (t - 1), 32, 7, 2), "conv2", 32, 64, 3, 2)
    y = g.node("Flatten", [g.node("GlobalAveragePool", [y], name="gap")], name="flat", axis=1)
    g.output(g.linear(y, "fc", 64, 20))


# Slices, pads and convolutions: nothing to keep.
@model("tsm_shift_eighth_of_channels_residual_blocks", pins=["segments_mean"], opset=18)
def tsm(g):
    t, c, s = 8, 32, 20
    x = g.input("frames", [t, 3, 2 * s, 2 * s], g.normal(t, 3, 2 * s, 2 * s))
    x = relu_conv(g, x, "stem", 3, c, 3, 2)
    p = Part(g, "shift")
    for i in range(2):
        y = p.reshape(x, 1, t, c, s, s)
        left, right, rest = p.parts(y, 2, c // 8, c // 8, c - c // 4)
        left = p("Pad", p.cut(left, 1, t, 1), ints(0, 0, 0, 0, 0, 0, 1, 0, 0, 0), 0.0)
        right = p("Pad", p.cut(right, 0, t - 1, 1), ints(0, 1, 0, 0, 0, 0, 0, 0, 0, 0), 0.0)
        y = p.reshape(p.cat(2, left, right, rest), t, c, s, s)
        y = g.conv(relu_conv(g, y, f"a{i}", c, c), f"b{i}", c, c, 3, pads=[1] * 4)
        x = g.node("Relu", [g.node("Add", [x, y], name=f"add{i}")], name=f"relu{i}")
    y = g.linear(g.node("Flatten", [g.node("GlobalAveragePool", [x], name="gap")], name="flat", axis=1), "fc", c, 12)
    g.output(g.node("ReduceMean", [y, g.ints(0)], name="segments_mean", keepdims=1))


# Frames' embeddings averaged, unit vectors, exp(4.6052) times cosines.
@model("clip4clip_mean_frames_logit_scale_exp", pins=["unit_*", "logit_*"], opset=16)
def clip4clip(g):
    b, f, d = 6, 12, 64
    text = g.normal(b, d)
    t = g.input("text_cls", [b, d], text)
    v = g.input("frame_cls", [b, f, d], (text[:, None] * 0.5 + g.normal(b, 1, d) + g.normal(b, f, d, scale=0.5)).astype(np.float32))
    m = g.input("video_mask", [b, f, 1], (np.arange(f) < g.rng.integers(6, 13, (b, 1))).astype(np.float32)[..., None])
    p = Part(g, "unit")
    w = (np.eye(d) + g.normal(d, d, scale=0.05)).astype(np.float32)
    t = g.node("MatMul", [t, g.const(w, "proj_t")], name="proj_t_mm")
    v = g.node("MatMul", [v, g.const(w.T.copy(), "proj_v")], name="proj_v_mm")
    v = p("Div", v, p.red("ReduceL2", v, 2))
    v = p("Div", p.red("ReduceSum", p("Mul", v, m), 1, keep=0), p("Max", p.red("ReduceSum", m, 1, keep=0), 1.0))
    v, t = p("Div", v, p.red("ReduceL2", v, 1)), p("Div", t, p.red("ReduceL2", t, 1))
    q = Part(g, "logit")
    sim = g.node("MatMul", [t, g.node("Transpose", [v], name="v_t", perm=[1, 0])], name="logit_sim_mm")
    logits = q("Mul", sim, q("Exp", np.float32(4.6052)))
    g.output(q("Softmax", logits, axis=-1), logits)


# tanh(alpha) of a gate that has just opened, and a mask by counted media tokens.
@model("flamingo_gated_cross_attention_media_time_mask", pins=["media_*", "softmax"], opset=17)
def flamingo(g):
    n, m, lat, d = 48, 3, 16, 64
    x = g.input("text", [1, n, d], g.normal(1, n, d))
    media = g.input("media", [1, m * lat, d], g.normal(1, m * lat, d))
    loc = np.zeros((1, n), bool)
    loc[0, [0, 17, 31]] = True
    loc = g.input("media_locations", [1, n], loc)
    q, k, v = project_qkv(g, g.layer_norm(x, "pre", d), 4, 16, media)
    p = Part(g, "media")
    text_time = p("CumSum", p.cast(loc, 7), np.int64(1))
    ok = p("Equal", p.unsq(text_time, 1, 3), np.repeat(np.arange(1, m + 1), lat).reshape(1, 1, 1, -1))
    scores = p("Where", ok, dot_scores(g, q, k, 16), FMIN)
    y = attend(g, scores, v, d)
    gate = g.node("Tanh", [g.const([0.08], "attn_gate")], name="gate_tanh")
    x = g.node("Add", [x, g.node("Mul", [y, gate], name="gated")], name="residual")
    f = mlp(g, g.layer_norm(x, "ff", d), "ff", [d, 4 * d, d], "Relu")
    gate = g.node("Tanh", [g.const([-0.11], "ff_gate")], name="ff_gate_tanh")
    g.output(g.node("Add", [x, g.node("Mul", [f, gate], name="ff_gated")], name="ff_residual"))


# Quiet 16 kHz sound: powers of 1e-8 under a logarithm; the frame goes beside it.
@model("audio_visual_log_mel_and_frame_fusion", pins=["spec_*"], opset=17)
def audio_visual(g):
    n, win, hop, mels = 6400, 256, 128, 32
    t = np.arange(n) / 16000
    wave = 0.02 * np.sin(2 * np.pi * 220 * t) + 0.006 * np.sin(2 * np.pi * 1730 * t) + g.normal(n, scale=8e-4)
    wave = g.input("waveform", [1, 1, n], wave.reshape(1, 1, n).astype(np.float32))
    img = g.input("frame", [1, 3, 64, 64], g.normal(1, 3, 64, 64))
    p = Part(g, "spec")
    k = np.arange(win // 2 + 1)[:, None] * np.arange(win)[None] * 2 * np.pi / win
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / win)
    re = p("Conv", wave, (np.cos(k) * hann)[:, None], strides=[hop])
    im = p("Conv", wave, (-np.sin(k) * hann)[:, None], strides=[hop])
    power = p("Add", p.square(re), p.square(im))
    edges = np.linspace(0, win // 2, mels + 2)
    f = np.arange(win // 2 + 1)
    bank = np.maximum(0, np.minimum((f - edges[:-2, None]) / 4, (edges[2:, None] - f) / 4))
    mel = p("MatMul", bank, power)
    log = p("Mul", p("Log", p("Max", mel, 1e-10)), 1 / np.log(10))
    log = p("Div", p("Add", p("Max", log, p("Sub", p.red("ReduceMax", log, 1, 2), 8.0)), 4.0), 4.0)
    a = g.node("Relu", [g.conv(log, "aud", mels, 64, 3, dims=1, pads=[1, 1], strides=[2])], name="aud_relu")
    a = g.node("ReduceMean", [a], name="aud_pool", axes=[2], keepdims=0)
    v = relu_conv(g, relu_conv(g, img, "vis_a", 3, 24, 5, 4), "vis_b", 24, 64, 3, 2)
    v = g.node("Flatten", [g.node("GlobalAveragePool", [v], name="gap")], name="flat", axis=1)
    gate = g.node("Sigmoid", [g.linear(a, "gate", 64, 64)], name="gate_sigmoid")
    y = g.node("Concat", [g.node("Mul", [v, gate], name="v_gated"), a], name="fused", axis=1)
    g.output(mlp(g, y, "head", [128, 128, 10]))


# The previous frame warped by a flow in pixels, and a mask exp(-50 |difference|^2) of near frames.
@model("video_consistency_flow_warp_occlusion_mask", pins=["warp_*", "occ_*"], opset=16)
def consistency(g):
    h, w = 72, 96
    clip = clip_of(g, 2, 3, h, w, high=1.0, step=0.02)
    prev = g.input("previous", [1, 3, h, w], clip[:1])
    cur = g.input("current", [1, 3, h, w], clip[1:])
    flow = g.input("flow", [1, 2, h, w], smooth_image(g, 1, 2, h, w, low=-6.0, high=5.0))
    p = Part(g, "warp")
    xs, ys = pixel_grid(p, h, w)
    grid = p("Add", p("Concat", p.unsq(xs, 0), p.unsq(ys, 0), axis=0), flow)
    gx, gy = p.parts(grid, 1, 1, 1)
    gx = p("Sub", p("Div", p("Mul", gx, 2.0), w - 1.0), 1.0)
    gy = p("Sub", p("Div", p("Mul", gy, 2.0), h - 1.0), 1.0)
    grid = p.perm(p.cat(1, gx, gy), 0, 2, 3, 1)
    warped = p("GridSample", prev, grid, align_corners=1, mode="bilinear", padding_mode="border")
    q = Part(g, "occ")
    d = q("Sub", cur, warped)
    mask = q("Exp", q("Mul", q.red("ReduceSum", q.square(d), 1), -50.0))
    x = g.node("Concat", [cur, g.node("Mul", [warped, mask], name="masked")], name="cat", axis=1)
    y = g.conv(relu_conv(g, relu_conv(g, x, "a", 6, 32), "b", 32, 32), "c", 32, 3, 3, pads=[1] * 4)
    g.output(g.node("Add", [cur, g.node("Mul", [y, g.const(0.2)], name="res_scale")], name="residual"), mask)


# background + 0.02 (frame - background) over 24 frames of 0..255, and what is left of the last ones.
@model("background_running_average_scan_foreground_net", pins=["background", "background/*", "fg_sub"], opset=17)
def background(g):
    t, h, w = 24, 48, 64
    x = g.input("frames", [t, h, w], clip_of(g, t, 1, h, w, step=0.6)[:, 0])
    first = g.input("background0", [h, w], np.round(smooth_image(g, h, w)))
    body = Body(g, "bg_body")
    b, f = body.entry("bg", [h, w]), body.entry("frame", [h, w])
    q = Part(body, "step")
    d = q("Sub", f, b)
    new = q("Add", b, q("Mul", 0.02, d))
    graph = body.graph((new, [h, w]), (d, [h, w]))
    bg, diffs = g.node("Scan", [first, x], name="background", outputs=2, body=graph, num_scan_inputs=1)
    p = Part(g, "fg")
    last = p.unsq(p.cut(diffs, t - 4, t, 0), 0)
    y = p("Mul", last, 1 / 32)
    y = relu_conv(g, relu_conv(g, y, "a", 4, 32), "b", 32, 32)
    sub = p("Sub", p.sq(p.cut(x, t - 1, t, 0), 0), bg, name="sub")
    g.output(g.node("Sigmoid", [g.conv(y, "mask", 32, 1, 1)], name="mask_prob"), sub)


# E[x^2] - E[x]^2 along time of frames of 0..255 that hardly change.
@model("temporal_variance_of_pixels_motion_saliency", pins=["tvar_*"], opset=18)
def saliency(g):
    t, h, w = 16, 56, 72
    x = g.input("grey", [1, t, h, w], clip_of(g, t, 1, h, w, step=0.5).transpose(1, 0, 2, 3).copy())
    p = Part(g, "tvar")
    mean = p.red("ReduceMean", x, 1)
    var = p("Sub", p.red("ReduceMean", p.square(x), 1), p.square(mean))
    std = p("Sqrt", p("Add", p("Relu", var), 1e-3))
    sal = p("Div", std, p.red("ReduceMax", std, 2, 3))
    unit = g.node("Div", [mean, g.const(255.0)], name="mean_unit")
    y = g.node("Concat", [unit, sal], name="cat", axis=1)
    y = relu_conv(g, relu_conv(g, y, "a", 2, 32), "b", 32, 32)
    g.output(g.node("Sigmoid", [g.conv(y, "head", 32, 1, 1)], name="saliency"), sal)


# Three clips positive to each caption: log-sum-exp of the positives less that of all.
@model("howto100m_mil_nce_of_video_and_text", pins=["mil_*"], opset=17)
def mil(g):
    b, k, d = 12, 3, 64
    v = g.normal(b, 96)
    video = g.input("video", [b, 96], v)
    text = g.input("captions", [b * k, 96], np.repeat(v, k, 0) * 0.5 + g.normal(b * k, 96))
    ev = mlp(g, video, "v", [96, 128, d])
    et = mlp(g, text, "t", [96, 128, d])
    x = g.node("MatMul", [ev, g.node("Transpose", [et], name="et_t", perm=[1, 0])], name="mil_scores_mm")
    p = Part(g, "mil")
    x = p.reshape(x, b, b, k)
    own = p.red("ReduceSum", p("Mul", x, np.eye(b)[:, :, None]), 1, keep=0)
    nom = p("ReduceLogSumExp", own, axes=[1], keepdims=0)
    both = p.cat(1, p.reshape(x, b, b * k), p.reshape(p.perm(x, 1, 0, 2), b, b * k))
    den = p("ReduceLogSumExp", both, axes=[1], keepdims=0)
    g.output(p("ReduceMean", p("Sub", den, nom), axes=[0], keepdims=0), ev)
