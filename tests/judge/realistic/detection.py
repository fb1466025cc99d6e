"""Detection: decoding of boxes from heads, anchors, overlaps, RoiAlign, deformable sampling, pillars."""

import numpy as np

from .build import model
from .parts import mlp, op, reduce, reshape, span, split, unsqueeze

SAME = [1, 1, 1, 1]


def cell_centres(side, stride, offset=0.5):
    """Centres of the cells of a square map, in pixels, [side * side, 2]."""
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    return ((np.stack([x, y], -1).reshape(-1, 2) + offset) * stride).astype(np.float32)


def random_boxes(g, *shape, size=640.0, least=8.0, most=120.0):
    """Boxes x1, y1, x2, y2 in pixels."""
    centre = g.rng.uniform(most, size - most, (*shape, 2))
    half = g.rng.uniform(least, most, (*shape, 2)) / 2
    return np.concatenate([centre - half, centre + half], -1).astype(np.float32)


@model("yolov8_dfl_boxes_in_pixels", pins=["dist_*", "box_*"], opset=21)
def yolov8_dfl_boxes_in_pixels(g):
    """YOLOv8 head: softmax over 16 bins, expectation by a 1x1 convolution, boxes in pixels."""
    x = g.input("p4", ["batch", 64, 20, 20], g.normal(1, 64, 20, 20))
    y = g.conv(x, "bins", 64, 64, 3, pads=SAME)
    y = reshape(g, y, [0, 4, 16, 400], "bins")
    y = g.node("Transpose", [y], name="bins_t", perm=[0, 2, 1, 3])
    p = g.node("Softmax", [y], name="softmax", axis=1)
    d = op(g, "Conv", p, np.arange(16).reshape(1, 16, 1, 1), name="dist_conv")
    d = reshape(g, d, [0, 4, 400], "dist_flat")
    lt, rb = split(g, d, 2, 1, "dist_parts")
    anchors = g.const(cell_centres(20, 1.0).T[None], "anchors")
    a = g.node("Sub", [anchors, lt], name="box_lt")
    b = g.node("Add", [anchors, rb], name="box_rb")
    centre = op(g, "Div", g.node("Add", [a, b], name="box_sum"), 2.0, name="box_centre")
    box = g.node("Concat", [centre, g.node("Sub", [b, a], name="box_size")], name="box_cat", axis=1)
    scores = reshape(g, g.conv(x, "cls", 64, 20, 1), [0, 20, 400], "cls_flat")
    scores = g.node("Sigmoid", [scores], name="cls_sig")
    g.output(op(g, "Mul", box, 32.0, name="box_stride"), scores)


@model("yolov5_sigmoid_grid_decode", pins=["xy_*", "wh_*"], opset=20)
def yolov5_sigmoid_grid_decode(g):
    """YOLOv5 head: (2σ - 0.5 + cell)·stride for centres up to 1280 pixels, (2σ)²·anchor for sizes."""
    x = g.input("p5", [1, 64, 40, 40], g.normal(1, 64, 40, 40))
    y = g.conv(x, "head", 64, 24, 1)
    y = g.node("Transpose", [reshape(g, y, [1, 3, 8, 1600], "split")], name="split_t", perm=[0, 1, 3, 2])
    y = g.node("Sigmoid", [y], name="sigmoid")
    xy = op(g, "Mul", span(g, y, 0, 2, 3, "xy_part"), 2.0, name="xy_twice")
    xy = op(g, "Add", xy, cell_centres(40, 1.0, -0.5)[None, None], name="xy_grid")
    xy = op(g, "Mul", xy, 32.0, name="xy_stride")
    wh = op(g, "Mul", span(g, y, 2, 4, 3, "wh_part"), 2.0, name="wh_twice")
    wh = op(g, "Pow", wh, 2.0, name="wh_pow")
    anchors = np.array([[116, 90], [156, 198], [373, 326]]).reshape(1, 3, 1, 2)
    g.output(xy, op(g, "Mul", wh, anchors, name="wh_anchor"), span(g, y, 4, 8, 3, "scores"))


@model("faster_rcnn_decode_clamped_exp", pins=["anchor_*", "ctr_*", "size_*", "corner_*", "clip_*"], opset=20)
def faster_rcnn_decode_clamped_exp(g):
    """torchvision BoxCoder: deltas / weights, sizes clamped at log(1000/16), exp, clipped corners."""
    x = g.input("rois", ["n", 128], g.normal(80, 128))
    boxes = g.input("proposals", ["n", 4], random_boxes(g, 80, size=1333.0, most=300))
    d = op(g, "Div", mlp(g, x, "head", [128, 128, 4]), [10.0, 10, 5, 5], name="unweigh")
    lt, rb = split(g, boxes, 2, 1, "anchor_parts")
    size = g.node("Sub", [rb, lt], name="anchor_size")
    ctr = g.node("Add", [lt, op(g, "Mul", size, 0.5, name="anchor_half")], name="anchor_centre")
    dxy, dwh = split(g, d, 2, 1, "deltas")
    ctr = g.node("Add", [g.node("Mul", [dxy, size], name="ctr_mul"), ctr], name="ctr_add")
    dwh = op(g, "Min", dwh, np.log(1000 / 16), name="delta_min")
    size = g.node("Mul", [g.node("Exp", [dwh], name="exp"), size], name="size_mul")
    half = op(g, "Mul", size, 0.5, name="size_half")
    corners = [g.node("Sub", [ctr, half], name="corner_lt"), g.node("Add", [ctr, half], name="corner_rb")]
    corners = [op(g, "Clip", c, 0.0, 1333.0, name=f"clip_{i}") for i, c in enumerate(corners)]
    g.output(g.node("Concat", corners, name="corner_cat", axis=1))


@model("rpn_deltas_into_roi_align", pins=["rois_*", "roi_align"], opset=21)
def rpn_deltas_into_roi_align(g):
    """Region head: anchors moved by predicted deltas, RoiAlign at those pixels, two linear layers."""
    x = g.input("feats", [1, 64, 32, 32], g.normal(1, 64, 32, 32))
    anchors = g.input("anchors", [24, 4], random_boxes(g, 24, size=512.0, least=48, most=160))
    y = g.node("Relu", [g.conv(x, "rpn", 64, 64, 3, pads=SAME)], name="relu")
    y = g.node("GlobalAveragePool", [y], name="pool")
    d = reshape(g, g.conv(y, "deltas", 64, 96, 1), [24, 4], "rois_deltas")
    rois = g.node("Add", [anchors, op(g, "Mul", d, 16.0, name="rois_scale")], name="rois_add")
    rois = op(g, "Clip", rois, 0.0, 512.0, name="rois_clip")
    index = g.const(np.zeros(24), dtype=np.int64)
    y = g.node("RoiAlign", [x, rois, index], name="roi_align", output_height=4, output_width=4,
               spatial_scale=1 / 16, sampling_ratio=2)
    y = reshape(g, y, [24, 1024], "flat")
    g.output(mlp(g, y, "box_head", [1024, 96, 32]))


@model("deta_box_refine_sigmoid", pins=["inv_*", "ref_*"])
def deta_box_refine_sigmoid(g):
    """DETA / Deformable DETR: sigmoid(delta + inverse_sigmoid(reference)), clamped at 1e-5 from 0 and 1."""
    x = g.input("queries", [1, 100, 128], g.normal(1, 100, 128))
    ref = g.uniform(0.02, 0.98, 1, 100, 4)
    ref[0, :10] = np.round(ref[0, :10])
    ref = g.input("reference", [1, 100, 4], ref)
    r = op(g, "Clip", ref, 0.0, 1.0, name="inv_clip")
    top = op(g, "Max", r, 1e-5, name="inv_max")
    low = op(g, "Max", op(g, "Sub", 1.0, r, name="inv_one_minus"), 1e-5, name="inv_max_rest")
    logit = g.node("Log", [g.node("Div", [top, low], name="inv_div")], name="inv_log")
    delta = mlp(g, x, "bbox", [128, 128, 4])
    g.output(g.node("Sigmoid", [g.node("Add", [delta, logit], name="ref_add")], name="ref_sigmoid"))


@model("fcos_centreness_weighted_scores", pins=[], opset=21)
def fcos_centreness_weighted_scores(g):
    """FCOS: class scores times sqrt of min/max ratios of predicted distances, on a feature map."""
    x = g.input("feats", ["batch", 64, 16, 16], g.normal(1, 64, 16, 16))
    t = g.node("Relu", [g.conv(x, "tower", 64, 64, 3, pads=SAME)], name="relu")
    d = g.node("Softplus", [g.conv(t, "reg", 64, 4, 1)], name="softplus")
    left, up, right, down = split(g, op(g, "Add", d, 0.5, name="dist_floor"), 4, 1, "sides")
    ratios = []
    for s, ends in (("x", [left, right]), ("y", [up, down])):
        ends = [g.node(kind, ends, name=f"{s}_{kind.lower()}") for kind in ("Min", "Max")]
        ratios.append(g.node("Div", ends, name=f"{s}_ratio"))
    c = g.node("Sqrt", [g.node("Mul", ratios, name="ratio")], name="centreness")
    scores = g.node("Sigmoid", [g.conv(t, "cls", 64, 20, 1)], name="cls_sig")
    g.output(g.node("Mul", [scores, c], name="weighted"))


@model("matcher_giou_cost_pixels", pins=["box_*", "area_*", "iou_*", "hull_*", "cost_giou"])
def matcher_giou_cost_pixels(g):
    """Matching cost: class scores minus generalised IoU of boxes in pixels, areas of 1e5 pixels."""
    x = g.input("queries", [60, 128], g.normal(60, 128))
    gt = g.input("targets", [20, 4], random_boxes(g, 20, size=1333.0, least=200, most=600))
    box = g.node("Sigmoid", [mlp(g, x, "bbox", [128, 128, 4])], name="bbox_sig")
    box = op(g, "Mul", box, [1333.0, 1333, 600, 600], name="box_scale")
    c, s = split(g, box, 2, 1, "box_parts")
    s = op(g, "Mul", s, 0.5, name="box_half")
    a0 = unsqueeze(g, g.node("Sub", [c, s], name="box_lt"), [1], "box_lt_dims")
    a1 = unsqueeze(g, g.node("Add", [c, s], name="box_rb"), [1], "box_rb_dims")
    b0, b1 = split(g, unsqueeze(g, gt, [0], "box_gt_dims"), 2, 2, "box_gt_parts")

    def area(low, high, name):
        size = op(g, "Max", g.node("Sub", [high, low], name=f"{name}_size"), 0.0, name=f"{name}_clamp")
        w, h = split(g, size, 2, 2, f"{name}_wh")
        return g.node("Mul", [w, h], name=f"{name}_mul")

    inter = area(g.node("Max", [a0, b0], name="iou_lt"), g.node("Min", [a1, b1], name="iou_rb"), "iou_inter")
    hull = area(g.node("Min", [a0, b0], name="hull_lt"), g.node("Max", [a1, b1], name="hull_rb"), "hull")
    both = g.node("Add", [area(a0, a1, "area_a"), area(b0, b1, "area_b")], name="area_sum")
    union = g.node("Sub", [both, inter], name="iou_union")
    iou = g.node("Div", [inter, union], name="iou_div")
    rest = g.node("Div", [g.node("Sub", [hull, union], name="hull_sub"), hull], name="hull_div")
    giou = g.node("Squeeze", [g.node("Sub", [iou, rest], name="cost_giou"), g.ints(2)], name="hull_squeeze")
    cls = g.node("Softmax", [g.linear(x, "cls", 128, 20)], name="softmax", axis=-1)
    g.output(g.node("Sub", [g.node("Neg", [giou], name="hull_neg"), cls], name="cost_sum"))


@model("soft_nms_decay_of_tiny_boxes", pins=["wh*", "area*", "inter_*", "union*", "iou_*"], opset=18)
def soft_nms_decay_of_tiny_boxes(g):
    """Aerial images: IoU of boxes with normalised sides near 0.005 (areas of 2e-5) as decays."""
    n = 48
    x = g.input("feats", [n, 64], g.normal(n, 64))
    centre = np.repeat(g.rng.uniform(0.3, 0.9, (n // 4, 1, 2)), 4, 1)
    centre = centre + g.rng.uniform(-0.002, 0.002, (n // 4, 4, 2))
    half = g.rng.uniform(0.002, 0.003, (n, 2))
    boxes = np.concatenate([centre.reshape(n, 2) - half, centre.reshape(n, 2) + half], 1)
    boxes = g.input("boxes", [n, 4], boxes.astype(np.float32))
    lt, rb = split(g, boxes, 2, 1, "whole")
    w, h = split(g, g.node("Sub", [rb, lt], name="wh_sub"), 2, 1, "wh_parts")
    areas = g.node("Mul", [w, h], name="area_mul")
    low = [unsqueeze(g, lt, [1], "inter_a0"), unsqueeze(g, lt, [0], "inter_b0")]
    high = [unsqueeze(g, rb, [1], "inter_a1"), unsqueeze(g, rb, [0], "inter_b1")]
    low, high = g.node("Max", low, name="inter_lt"), g.node("Min", high, name="inter_rb")
    side = g.node("Relu", [g.node("Sub", [high, low], name="inter_sub")], name="inter_relu")
    inter = g.node("ReduceProd", [side, g.ints(2)], name="inter_prod", keepdims=0)
    both = g.node("Add", [areas, g.node("Transpose", [areas], name="area_t", perm=[1, 0])], name="area_sum")
    union = op(g, "Add", g.node("Sub", [both, inter], name="union_sub"), 1e-9, name="union_eps")
    iou = op(g, "Mul", g.node("Div", [inter, union], name="iou_div"), 1 - np.eye(n), name="iou_mask")
    decay = g.node("Exp", [op(g, "Mul", g.node("Mul", [iou, iou], name="iou_sq"), -2.0, name="iou_scale")],
                   name="decay")
    y = g.node("MatMul", [decay, mlp(g, x, "embed", [64, 128, 64])], name="suppress_mm")
    g.output(g.linear(y, "head", 64, 16))


@model("deformable_detr_sampling_locations", pins=["loc_*", "grid_*", "sample"], opset=20)
def deformable_detr_sampling_locations(g):
    """Deformable attention on one level: reference + offset / (W, H), 2x - 1, GridSample, weighted sum."""
    x = g.input("queries", [1, 100, 128], g.normal(1, 100, 128))
    feats = g.input("feats", [1, 4096, 128], g.normal(1, 4096, 128))
    ref = g.input("reference", [1, 100, 1, 1, 2], g.uniform(0.1, 0.9, 1, 100, 1, 1, 2))
    v = g.node("Transpose", [g.linear(feats, "value", 128, 128)], name="value_t", perm=[0, 2, 1])
    v = reshape(g, v, [4, 32, 64, 64], "value_maps")
    off = reshape(g, g.linear(x, "offset", 128, 32, scale=0.2), [1, 100, 4, 4, 2], "loc_offset")
    loc = g.node("Add", [ref, op(g, "Div", off, [64.0, 64.0], name="loc_div")], name="loc_add")
    grid = op(g, "Sub", op(g, "Mul", loc, 2.0, name="grid_twice"), 1.0, name="grid_minus")
    grid = g.node("Transpose", [grid], name="grid_t", perm=[0, 2, 1, 3, 4])
    grid = reshape(g, grid, [4, 100, 4, 2], "grid_flat")
    s = g.node("GridSample", [v, grid], name="sample", mode="linear", padding_mode="zeros", align_corners=0)
    w = reshape(g, g.linear(x, "weights", 128, 16), [1, 100, 4, 4], "weights_split")
    w = g.node("Softmax", [w], name="weights_softmax", axis=-1)
    w = g.node("Transpose", [w], name="weights_t", perm=[0, 2, 1, 3])
    y = g.node("Mul", [s, reshape(g, w, [4, 1, 100, 4], "weights_maps")], name="weighted")
    y = reshape(g, reduce(g, "ReduceSum", y, [3], "total", keepdims=0), [1, 128, 100], "heads")
    g.output(g.linear(g.node("Transpose", [y], name="tokens", perm=[0, 2, 1]), "out", 128, 128))


@model("ssd_priors_with_variances", pins=["ctr_*", "size_*", "corner_*"], opset=17)
def ssd_priors_with_variances(g):
    """SSD: prior + loc·0.1·size and size·exp(0.2·loc), as corners of the unit image, then 300 pixels."""
    x = g.input("feats", [1, 64, 12, 12], g.normal(1, 64, 12, 12))
    y = g.node("Transpose", [g.conv(x, "loc", 64, 4, 3, pads=SAME)], name="loc_t", perm=[0, 2, 3, 1])
    loc = reshape(g, y, [1, -1, 4], "loc_flat")
    dxy, dwh = g.node("Split", [loc], name="loc_parts", outputs=2, axis=2)
    ctr, size = cell_centres(12, 1 / 12), g.rng.uniform(0.1, 0.4, (144, 2))
    dxy = op(g, "Mul", op(g, "Mul", dxy, 0.1, name="ctr_var"), size, name="ctr_mul")
    ctr = op(g, "Add", ctr, dxy, name="ctr_add")
    dwh = g.node("Exp", [op(g, "Mul", dwh, 0.2, name="size_var")], name="size_exp")
    half = op(g, "Mul", dwh, size / 2, name="size_mul")
    corners = [g.node("Sub", [ctr, half], name="corner_lt"), g.node("Add", [ctr, half], name="corner_rb")]
    g.output(op(g, "Mul", g.node("Concat", corners, name="corner_cat", axis=2), 300.0, name="corner_pixels"))


@model("objectness_times_class_scores", pins=[], opset=17)
def objectness_times_class_scores(g):
    """One-stage head: sigmoid objectness times sigmoid class scores, nothing decoded."""
    x = g.input("feats", ["batch", 64, 24, 24], g.normal(1, 64, 24, 24))
    t = g.conv(x, "stem", 64, 64, 3, pads=SAME)
    t = g.node("Mul", [t, g.node("HardSigmoid", [t], name="hard_sig")], name="hard_swish")
    obj = g.node("Sigmoid", [g.conv(t, "obj", 64, 1, 1)], name="obj_sig")
    cls = g.node("Sigmoid", [g.conv(t, "cls", 64, 40, 1)], name="cls_sig")
    scores = g.node("Mul", [obj, cls], name="scores")
    g.output(g.node("Transpose", [reshape(g, scores, [0, 40, 576], "flat")], name="scores_t", perm=[0, 2, 1]))


@model("mask_rcnn_mask_head", pins=[], opset=18)
def mask_rcnn_mask_head(g):
    """Mask head: convolutions over pooled regions, a transposed convolution, a sigmoid per class."""
    x = g.input("rois", ["n", 64, 14, 14], g.normal(4, 64, 14, 14))
    for i in range(2):
        x = g.node("Relu", [g.conv(x, f"conv{i}", 64, 64, 3, pads=SAME)], name=f"relu{i}")
    w = g.const(g.normal(64, 32, 2, 2, scale=0.06), "deconv_w")
    x = g.node("Relu", [g.node("ConvTranspose", [x, w], name="deconv", strides=[2, 2])], name="relu_up")
    g.output(g.node("Sigmoid", [g.conv(x, "logits", 32, 20, 1)], name="sigmoid"))


@model("rotated_boxes_to_corners", pins=["ctr_*", "turn_*", "corner_*", "size_*"], opset=21)
def rotated_boxes_to_corners(g):
    """Oriented boxes: predicted centre offset, size and angle to four corners in pixels up to 1024."""
    x = g.input("feats", [1, 256, 64], g.normal(1, 256, 64))
    y = mlp(g, x, "head", [64, 128, 5])
    dxy, dwh, angle = span(g, y, 0, 2, 2, "dxy"), span(g, y, 2, 4, 2, "dwh"), span(g, y, 4, 5, 2, "angle")
    ctr = op(g, "Add", op(g, "Mul", dxy, 64.0, name="ctr_mul"), cell_centres(16, 64.0)[None], name="ctr_add")
    size = op(g, "Mul", g.node("Exp", [dwh], name="exp"), 40.0, name="size_mul")
    signs = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    corner = op(g, "Mul", unsqueeze(g, size, [2], "size_dims"), signs, name="corner_mul")
    cx, cy = split(g, corner, 2, 3, "corner_parts")
    angle = unsqueeze(g, angle, [2], "angle_dims")
    cos, sin = g.node("Cos", [angle], name="cos"), g.node("Sin", [angle], name="sin")
    px = g.node("Sub", [g.node("Mul", [cx, cos], name="turn_xc"), g.node("Mul", [cy, sin], name="turn_ys")],
                name="turn_x")
    py = g.node("Add", [g.node("Mul", [cx, sin], name="turn_xs"), g.node("Mul", [cy, cos], name="turn_yc")],
                name="turn_y")
    p = g.node("Concat", [px, py], name="corner_cat", axis=3)
    g.output(g.node("Add", [p, unsqueeze(g, ctr, [2], "ctr_dims")], name="corner_add"))


@model("pointpillars_offsets_from_mean_and_cell", pins=["mean_*", "cell_*", "off_*"], opset=21)
def pointpillars_offsets_from_mean_and_cell(g):
    """PointPillars: lidar points minus their pillar's mean and its cell's centre, up to 70 metres."""
    n, k = 96, 16
    cells = g.rng.integers(0, 400, (n, 1, 2)).astype(np.float32)
    xy = (cells + g.rng.uniform(0, 1, (n, k, 2))) * 0.16 + [0.0, -32.0]
    points = np.concatenate([xy, g.rng.uniform(-2.5, 0.5, (n, k, 1)), g.rng.random((n, k, 1))], 2)
    points = g.input("points", ["pillars", k, 4], points.astype(np.float32))
    cells = g.input("cells", ["pillars", 1, 2], cells)
    xyz, xy = span(g, points, 0, 3, 2, "off_xyz"), span(g, points, 0, 2, 2, "off_xy")
    mean = reduce(g, "ReduceMean", xyz, [1], "mean_points")
    off = g.node("Sub", [xyz, mean], name="off_mean")
    centre = op(g, "Add", op(g, "Mul", cells, 0.16, name="cell_size"), [0.08, -31.92], name="cell_centre")
    off_cell = g.node("Sub", [xy, centre], name="off_cell")
    y = g.node("Concat", [points, off, off_cell], name="cat", axis=2)
    y = g.node("Relu", [g.linear(y, "pfn", 9, 64)], name="relu")
    y = reduce(g, "ReduceMax", y, [1], "pool", keepdims=0)
    g.output(mlp(g, y, "head", [64, 96, 32]))


@model("matrix_nms_mask_overlaps", pins=["inter_*", "area*", "union*", "iou*"], pins_bf16=["union*", "iou*"],
       opset=21)
def matrix_nms_mask_overlaps(g):
    """SOLO matrix NMS: overlaps of binary masks of 400x256 pixels by a product, sums past 65504, decays."""
    at = g.rng.uniform(0.1, 0.5, (12, 2))
    rows, cols = np.meshgrid(np.arange(256) / 256, np.arange(400) / 400, indexing="ij")
    masks = np.stack([(rows > a * 0.3) & (cols > b * 0.3) & (rows + cols < 1.5 + a) for a, b in at])
    masks = g.input("masks", [12, 102400], masks.reshape(12, -1).astype(np.float32))
    x = g.input("feats", [12, 64], g.normal(12, 64))
    inter = g.node("MatMul", [masks, g.node("Transpose", [masks], name="inter_t")], name="inter_mm")
    area = reduce(g, "ReduceSum", masks, [1], "area")
    both = g.node("Add", [area, g.node("Transpose", [area], name="area_t")], name="area_add")
    iou = g.node("Div", [inter, g.node("Sub", [both, inter], name="union_sub")], name="iou_div")
    iou = op(g, "Mul", iou, np.triu(np.ones((12, 12)), 1), name="iou_triu")
    iou = op(g, "Pow", iou, 2.0, name="iou_pow")
    decay = g.node("Exp", [op(g, "Mul", iou, -2.0, name="iou_scale")], name="exp")
    decay = reduce(g, "ReduceMin", decay, [0], "decay_min", keepdims=0)
    y = g.node("Sigmoid", [mlp(g, x, "scores", [64, 64, 20])], name="scores_sig")
    g.output(g.node("Mul", [y, unsqueeze(g, decay, [1], "decay_dims")], name="decayed"))


@model("fpn_lateral_sums", pins=[])
def fpn_lateral_sums(g):
    """Feature pyramid: 1x1 laterals, the coarser level upsampled and added, a convolution, a class head."""
    fine = g.input("c3", [1, 48, 32, 32], g.normal(1, 48, 32, 32))
    coarse = g.input("c4", [1, 96, 16, 16], g.normal(1, 96, 16, 16))
    top = g.conv(coarse, "lateral4", 96, 64, 1)
    up = g.node("Resize", [top, "", g.const([1.0, 1, 2, 2])], name="resize", mode="nearest")
    p3 = g.node("Add", [g.conv(fine, "lateral3", 48, 64, 1), up], name="merge")
    p3 = g.node("Relu", [g.conv(p3, "smooth", 64, 64, 3, pads=SAME)], name="relu")
    g.output(g.node("Sigmoid", [g.conv(p3, "cls", 64, 20, 1)], name="cls_sig"))
