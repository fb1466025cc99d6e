"""Heads of detectors and segmenters, with what follows them in the graph: decoding, overlaps, masks."""

import numpy as np

from .build import model
from .parts import mlp
from .named_parts import BOOL, INT64, Part, ints, pixel_grid, relu_conv, smooth_image


def corners(p, cx, cy, w, h):
    hw, hh = p("Mul", w, 0.5), p("Mul", h, 0.5)
    return p("Sub", cx, hw), p("Sub", cy, hh), p("Add", cx, hw), p("Add", cy, hh)


# The heatmap comes from the backbone's engine; its peaks become indices, rows and columns, pixels.
@model("centernet_topk_peaks_with_offsets", pins=["peak_*", "decode_*"], opset=17)
def centernet(g):
    s, k = 96, 12
    yy, xx = np.mgrid[0:s, 0:s]
    heat = np.full((2, s, s), -6.0)
    for i in range(k + 4):
        cy, cx = g.rng.integers(4, s - 4, 2)
        heat[i % 2] = np.maximum(heat[i % 2], 3.2 - 0.37 * i - ((yy - cy) ** 2 + (xx - cx) ** 2) / 6)
    hm = g.input("heatmap", [1, 2, s, s], heat[None].astype(np.float32))
    feats = g.input("features", [1, 32, s, s], g.normal(1, 32, s, s))
    wh = g.conv(relu_conv(g, feats, "wh_in", 32, 32), "wh", 32, 2, 1)
    reg = g.conv(relu_conv(g, feats, "reg_in", 32, 32), "reg", 32, 2, 1)
    p = Part(g, "peak")
    prob = p("Sigmoid", hm)
    best = p("MaxPool", prob, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
    prob = p("Mul", prob, p.cast(p("Equal", best, prob)))
    score, index = p("TopK", p.reshape(prob, 1, -1), ints(k), outputs=2, axis=1)
    d = Part(g, "decode")
    cell = d("Mod", index, np.int64(s * s))
    ys, xs = d.cast(d("Div", cell, np.int64(s))), d.cast(d("Mod", cell, np.int64(s)))
    at = d("Expand", d.unsq(cell, 1), ints(1, 2, k))
    w, h = d.parts(d("GatherElements", d.reshape(wh, 1, 2, -1), at, axis=2), 1, 1, 1)
    ox, oy = d.parts(d("GatherElements", d.reshape(reg, 1, 2, -1), at, axis=2), 1, 1, 1)
    box = corners(d, d("Add", xs, d.sq(ox, 1)), d("Add", ys, d.sq(oy, 1)), d("Exp", d.sq(w, 1)), d("Exp", d.sq(h, 1)))
    g.output(d("Mul", d("Concat", *[d.unsq(b, 2) for b in box], axis=2), 4.0), score)


# YOLOX's decode at export: grids and strides concatenated over levels, pixels to 320.
@model("yolox_decode_in_inference_grid_stride_exp", pins=["decode_*"], opset=13)
def yolox(g):
    img = g.input("images", ["batch", 3, 320, 320], smooth_image(g, 1, 3, 320, 320))
    x = relu_conv(g, g.node("Div", [img, g.const(255.0)], name="scale"), "stem", 3, 16, 7, 8)
    levels, grids, strides = [], [], []
    for i, stride in enumerate((8, 16, 32)):
        n = 320 // stride
        if i:
            x = relu_conv(g, x, f"down{i}", 16, 16, 3, 2)
        reg, obj = g.conv(x, f"reg{i}", 16, 4, 1), g.conv(x, f"cls{i}", 16, 6, 1)
        obj = g.node("Sigmoid", [obj], name=f"prob{i}")
        y = g.node("Concat", [reg, obj], name=f"cat{i}", axis=1)
        levels.append(g.node("Reshape", [y, g.ints(0, 10, n * n)], name=f"flat{i}"))
        yy, xx = np.mgrid[0:n, 0:n]
        grids.append(np.stack([xx.ravel(), yy.ravel()], -1))
        strides.append(np.full((n * n, 1), stride))
    y = g.node("Transpose", [g.node("Concat", levels, name="levels", axis=2)], name="rows", perm=[0, 2, 1])
    d = Part(g, "decode", constants=True)
    step = np.concatenate(strides)[None].astype(np.float32)
    xy = d("Mul", d("Add", d.cut(y, 0, 2, 2), np.concatenate(grids)[None].astype(np.float32)), step)
    wh = d("Mul", d("Exp", d.cut(y, 2, 4, 2)), step)
    g.output(d.cat(-1, xy, wh), g.node("Slice", [y, g.ints(4), g.ints(10), g.ints(2)], name="scores"))


@model("torchvision_retinanet_decode_clamp_and_clip", pins=["anchor_*", "decode_*"], opset=16)
def retinanet(g):
    img = g.input("image", [1, 3, 256, 320], g.normal(1, 3, 256, 320))
    x = relu_conv(g, relu_conv(g, img, "stem", 3, 16, 7, 4), "body", 16, 32, 3, 4)
    h, w = 16, 20
    y = relu_conv(g, x, "tower", 32, 32)
    reg, cls = g.conv(y, "bbox", 32, 12, 3, pads=[1] * 4), g.conv(y, "cls", 32, 12, 3, pads=[1] * 4)
    a = Part(g, "anchor")
    xs, ys = pixel_grid(a, h, w)
    xs, ys = a.reshape(a("Mul", xs, 16.0), -1), a.reshape(a("Mul", ys, 16.0), -1)
    shift = a("Concat", *[a.unsq(t, 1) for t in (xs, ys, xs, ys)], axis=1)
    base = np.array([[-23, -11, 23, 11], [-16, -16, 16, 16], [-11, -23, 11, 23]])
    boxes = a.reshape(a("Add", a.unsq(shift, 1), base[None].astype(np.float32)), -1, 4)
    d = Part(g, "decode")
    rel = d.reshape(d.perm(d.reshape(reg, 3, 4, h, w), 2, 3, 0, 1), -1, 4)
    x1, y1, x2, y2 = d.parts(boxes, 1, 1, 1, 1, 1)
    bw, bh = d("Sub", x2, x1), d("Sub", y2, y1)
    cx, cy = d("Add", x1, d("Mul", bw, 0.5)), d("Add", y1, d("Mul", bh, 0.5))
    dx, dy, dw, dh = d.parts(rel, 1, 1, 1, 1, 1)
    limit = float(np.log(1000 / 16))
    pw = d("Mul", d("Exp", d("Clip", dw, None, limit)), bw)
    ph = d("Mul", d("Exp", d("Clip", dh, None, limit)), bh)
    box = corners(d, d("Add", d("Mul", dx, bw), cx), d("Add", d("Mul", dy, bh), cy), pw, ph)
    box = [d("Clip", b, 0.0, top) for b, top in zip(box, (320.0, 256.0, 320.0, 256.0))]
    g.output(d("Concat", *box, axis=1), g.node("Sigmoid", [cls], name="scores"))


# Locations of an 800-pixel image less distances that a learned scale and the stride multiply.
@model("fcos_locations_less_ltrb_of_800_pixels", pins=["loc_*", "box_*"], opset=15)
def fcos(g):
    x = g.input("p3", [1, 48, 50, 64], g.normal(1, 48, 50, 64))
    y = x
    for i in range(2):
        y = g.conv(y, f"tower{i}", 48, 48, 3, pads=[1] * 4)
        y = g.node("InstanceNormalization", [y, g.const(np.ones(48)), g.const(np.zeros(48))], name=f"gn{i}")
        y = g.node("Relu", [y], name=f"act{i}")
    cls, ctr = g.conv(y, "cls", 48, 20, 3, pads=[1] * 4), g.conv(y, "ctr", 48, 1, 3, pads=[1] * 4)
    score = g.node("Sqrt", [g.node("Mul", [g.node("Sigmoid", [cls], name="p_cls"), g.node("Sigmoid", [ctr], name="p_ctr")], name="p_mul")], name="p_sqrt")
    b = Part(g, "box")
    ltrb = b("Mul", b("Relu", b("Mul", g.conv(y, "reg", 48, 4, 3, pads=[1] * 4), 3.7)), 16.0)
    l = Part(g, "loc", constants=True)
    xs, ys = pixel_grid(l, 50, 64)
    xs, ys = (l("Add", l("Mul", t, 16.0), 8.0) for t in (xs, ys))
    left, top, right, bottom = (b.sq(t, 1) for t in b.parts(ltrb, 1, 1, 1, 1, 1))
    box = b("Sub", xs, left), b("Sub", ys, top), b("Add", xs, right), b("Add", ys, bottom)
    g.output(b("Concat", *[b.unsq(t, 3) for t in box], axis=3), score)


# Boxes of widths from 0.005 in units of the image: areas of 1e-5, and differences of near areas.
@model("detr_decoder_layers_giou_of_normalised_boxes", pins=["giou_*", "box_sigmoid"], opset=18)
def detr_giou(g):
    n = 100
    h = g.input("queries", [2, n, 64], g.normal(2, n, 64))
    c = g.uniform(0.2, 0.8, 2, n, 2)
    s = np.exp(g.uniform(np.log(0.005), np.log(0.3), 2, n, 2)).astype(np.float32)
    ref = np.concatenate([c, s], -1)
    logit = np.log(ref / (1 - ref))
    prior = g.input("reference_logits", [2, n, 4], (logit + g.normal(2, n, 4, scale=0.1)).astype(np.float32))
    target = g.input("target_boxes", [2, n, 4], ref)
    delta = mlp(g, h, "bbox_mlp", [64, 64, 64, 4])
    delta = g.node("Mul", [delta, g.const(0.05)], name="delta_small")
    pred = g.node("Sigmoid", [g.node("Add", [delta, prior], name="giou_add_prior")], name="box_sigmoid")
    p = Part(g, "giou")
    a, b = (corners(p, *p.parts(t, 2, 1, 1, 1, 1)) for t in (pred, target))
    area = lambda x1, y1, x2, y2: p("Mul", p("Sub", x2, x1), p("Sub", y2, y1))
    inter = p("Mul", p("Relu", p("Sub", p("Min", a[2], b[2]), p("Max", a[0], b[0]))),
              p("Relu", p("Sub", p("Min", a[3], b[3]), p("Max", a[1], b[1]))))
    union = p("Sub", p("Add", area(*a), area(*b)), inter)
    hull = area(p("Min", a[0], b[0]), p("Min", a[1], b[1]), p("Max", a[2], b[2]), p("Max", a[3], b[3]))
    giou = p("Sub", p("Div", inter, p("Add", union, 1e-7)), p("Div", p("Sub", hull, union), p("Add", hull, 1e-7)))
    g.output(giou, g.linear(h, "cls", 64, 20))


# A soft argmax over 384 bins: a mean of coordinates to 383 should not be rounded to quarters of a pixel.
@model("rtmpose_simcc_expected_coordinate", pins=["simcc_*"], opset=17)
def simcc(g):
    x = g.input("keypoint_tokens", [1, 17, 64], g.normal(1, 17, 64))
    y = g.node("Add", [x, mlp(g, g.layer_norm(x, "pre", 64), "gau", [64, 128, 64])], name="residual")
    p = Part(g, "simcc")
    outs = []
    for axis, bins in (("x", 384), ("y", 512)):
        logits = g.linear(y, f"head_{axis}", 64, bins, bias=False, scale=0.5)
        prob = p("Softmax", logits, axis=-1)
        coord = p("MatMul", prob, p.unsq(p.count(bins), 1))
        outs.append(p("Div", coord, 2.0))
    g.output(p.cat(-1, *outs))


# Boxes in pixels of a 640 by 512 image are cut out, refined by small deltas and decoded (a cascade's second stage).
@model("cascade_rcnn_second_stage_roi_refine", pins=["refine_*"], opset=16)
def cascade(g):
    n = 24
    feats = g.input("fpn_p3", [1, 32, 64, 80], g.normal(1, 32, 64, 80))
    xy, wh = g.uniform(0, 380, n, 2), g.uniform(24, 120, n, 2)
    rois = g.input("rois", [n, 4], np.concatenate([xy, xy + wh], 1))
    lateral = relu_conv(g, feats, "lateral", 32, 32)
    cut = g.node("RoiAlign", [lateral, rois, g.const(np.zeros(n), dtype=np.int64)], name="refine_roi_align",
                 output_height=7, output_width=7, sampling_ratio=2, spatial_scale=0.125)
    y = g.node("Flatten", [cut], name="flat", axis=1)
    y = g.node("Relu", [g.linear(y, "fc6", 32 * 49, 128)], name="fc6_relu")
    y = g.node("Relu", [g.linear(y, "fc7", 128, 128)], name="fc7_relu")
    p = Part(g, "refine")
    dx, dy, dw, dh = p.parts(p("Mul", g.linear(y, "bbox", 128, 4), [0.05, 0.05, 0.1, 0.1]), 1, 1, 1, 1, 1)
    x1, y1, x2, y2 = p.parts(rois, 1, 1, 1, 1, 1)
    w, h = p("Sub", x2, x1), p("Sub", y2, y1)
    cx, cy = p("Mul", p("Add", x1, x2), 0.5), p("Mul", p("Add", y1, y2), 0.5)
    box = corners(p, p("Add", cx, p("Mul", w, dx)), p("Add", cy, p("Mul", h, dy)), p("Mul", w, p("Exp", dw)), p("Mul", h, p("Exp", dh)))
    g.output(p("Concat", *box, axis=1), g.node("Softmax", [g.linear(y, "cls", 128, 21)], name="cls_softmax", axis=-1))


# Mask scores are means over the mask, 19200 pixels at most. The coordinate channels are within -1..1.
@model("solov2_dynamic_kernels_and_maskness", pins=["maskness_*"], opset=13)
def solo(g):
    h, w, n = 120, 160, 20
    x = g.input("features", [1, 32, h, w], g.normal(1, 32, h, w))
    cx = np.broadcast_to(np.linspace(-1, 1, w), (1, 1, h, w))
    cy = np.broadcast_to(np.linspace(-1, 1, h)[:, None], (1, 1, h, w))
    y = g.node("Concat", [x, g.const(np.concatenate([cx, cy], 1), "coords")], name="with_coords", axis=1)
    y = relu_conv(g, y, "mask_feat", 34, 32)
    emb = g.input("kernel_tokens", [n, 64], g.normal(n, 64))
    kernels = mlp(g, emb, "kernel", [64, 64, 32])
    rows = g.node("Reshape", [y, g.ints(32, h * w)], name="rows")
    mask = g.node("Sigmoid", [g.node("MatMul", [kernels, rows], name="dynamic_mm")], name="mask_sigmoid")
    p = Part(g, "maskness")
    hard = p.cast(p("Greater", mask, 0.5))
    total = p.red("ReduceSum", hard, 1, keep=0)
    score = p("Div", p.red("ReduceSum", p("Mul", mask, hard), 1, keep=0), p("Add", total, 1e-6))
    cls = g.node("Sigmoid", [g.linear(emb, "cls", 64, 10)], name="cls_prob")
    g.output(p("Mul", cls, p.unsq(score, 1)), g.node("Reshape", [mask, g.ints(n, h, w)], name="masks"))


# 1 / (1 + exp(-50 (P - T))): the difference of two near probabilities times 50.
@model("dbnet_differentiable_binarisation_k50", pins=["db_*"], opset=14)
def dbnet(g):
    img = g.input("image", ["batch", 3, 96, 160], smooth_image(g, 1, 3, 96, 160))
    x = g.node("Div", [g.node("Sub", [img, g.const(np.array([123.7, 116.3, 103.5]).reshape(3, 1, 1))], name="less_mean"), g.const(58.0)], name="over_std")
    x = relu_conv(g, relu_conv(g, x, "stem", 3, 24, 3, 2), "neck", 24, 24, 3, 2)
    p = Part(g, "db")
    maps = []
    for s in ("prob", "thresh"):
        y = relu_conv(g, x, f"{s}_in", 24, 16)
        y = g.node("ConvTranspose", [y, g.weight(f"{s}_up_w", 16, 16, 2, 2, scale=0.2)], name=f"{s}_up", strides=[2, 2])
        y = g.node("Relu", [y], name=f"{s}_up_relu")
        y = g.node("ConvTranspose", [y, g.weight(f"{s}_out_w", 16, 1, 2, 2, scale=0.2)], name=f"{s}_out", strides=[2, 2])
        maps.append(p("Sigmoid", y))
    step = p("Reciprocal", p("Add", 1.0, p("Exp", p("Mul", -50.0, p("Sub", *maps)))))
    g.output(step, maps[0])


# Probabilities and masks within 0..1: products that may be lowered.
@model("maskformer_semantic_inference_einsum", pins=["cls_softmax"], opset=17)
def maskformer(g):
    q, h, w = 50, 40, 48
    x = g.input("queries", [1, q, 64], g.normal(1, q, 64))
    feats = g.input("mask_features", [1, 64, h, w], g.normal(1, 64, h, w))
    cls = g.node("Softmax", [g.linear(x, "cls", 64, 20, scale=0.4)], name="cls_softmax", axis=-1)
    cls = g.node("Slice", [cls, g.ints(0), g.ints(19), g.ints(2)], name="no_void")
    emb = mlp(g, x, "mask_mlp", [64, 64, 64, 64])
    masks = g.node("Einsum", [emb, feats], name="mask_einsum", equation="bqc,bchw->bqhw")
    masks = g.node("Sigmoid", [masks], name="mask_sigmoid")
    masks = g.node("Resize", [masks, "", g.const([1.0, 1.0, 2.0, 2.0])], name="upsample", mode="linear")
    g.output(g.node("Einsum", [cls, masks], name="semseg_einsum", equation="bqc,bqhw->bchw"))


# Each pixel votes for a centre in pixels; squared distances to the centres reach 50000.
@model("panoptic_deeplab_votes_to_centre_distances", pins=["vote_*", "dist_*"], opset=20)
def panoptic(g):
    h, w, n = 96, 128, 16
    feats = g.input("features", [1, 32, h, w], g.normal(1, 32, h, w))
    centres = g.input("centres", [n, 2], np.stack([g.uniform(0, h, n), g.uniform(0, w, n)], -1))
    y = relu_conv(g, feats, "off_in", 32, 32, 5)
    off = g.node("Mul", [g.conv(y, "off", 32, 2, 1), g.const(20.0)], name="off_pixels")
    v = Part(g, "vote")
    xs, ys = pixel_grid(v, h, w)
    loc = v("Add", v("Concat", v.unsq(ys, 0), v.unsq(xs, 0), axis=0), v.sq(off, 0))
    loc = v.unsq(v.perm(v.reshape(loc, 2, -1), 1, 0), 0)
    d = Part(g, "dist")
    dist = d.red("ReduceL2", d("Sub", d.unsq(centres, 1), loc), 2, keep=0)
    nearest = d("ArgMin", dist, axis=0, keepdims=0)
    g.output(d.red("ReduceMin", dist, 0, keep=0), d.reshape(nearest, h, w), g.conv(feats, "semantic", 32, 19, 1))
