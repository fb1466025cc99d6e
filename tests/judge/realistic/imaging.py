"""Restoration and imaging."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, cast, mlp, op, reduce, reshape, silu, span, unsqueeze


def picture(g, c, n, top=1.0):
    yy, xx = np.mgrid[:n, :n] / n
    p = np.stack([0.5 + 0.3 * np.sin(7 * xx + i) * np.cos(5 * yy - i) + 0.2 * (xx + yy > 1) for i in range(c)])
    return ((p + 0.01 * g.rng.standard_normal(p.shape)).clip(0, 1) * top).astype(np.float32)[None]


def trunk(g, x, stem, c_in, c_out, width=64, k=3):
    h = g.node("Relu", [g.conv(x, f"{stem}1", c_in, width, k, pads=[k // 2] * 4)], name=f"{stem}1_relu")
    h = g.node("Relu", [g.conv(h, f"{stem}2", width, width, k, pads=[k // 2] * 4)], name=f"{stem}2_relu")
    return g.conv(h, f"{stem}3", width, c_out, k, pads=[k // 2] * 4)


@model("ffdnet_denoiser_noise_level_map_pixel_unshuffle", opset=13, pins=["level_*", "restored"],
       pins_bf16=["level_*", "restored"])
def _(g):
    """FFDNet: pixels unshuffled, a map of σ/255, the network's output shuffled back and subtracted from the picture."""
    x = g.input("noisy", ["n", 3, 48, 48], picture(g, 3, 48))
    s = g.input("sigma_255", ["n", 1, 1, 1], np.full((1, 1, 1, 1), 25.0, np.float32))
    m = g.node("Expand", [op(g, "Div", s, 255.0, name="level_unit"), g.ints(1, 1, 24, 24)], name="level_map")
    u = g.node("SpaceToDepth", [x], name="unshuffle", blocksize=2)
    h = trunk(g, g.node("Concat", [u, m], name="cat", axis=1), "net", 13, 12)
    r = g.node("DepthToSpace", [op(g, "Mul", h, 0.1, name="res_scale")], name="shuffle", blocksize=2, mode="CRD")
    g.output(op(g, "Sub", x, r, name="restored"))


@model("varnet_mri_data_consistency_by_centred_dft", opset=17,
       pins=["dft_*", "idft_*", "dc_*", "shift*", "norm_*", "rss*"])
def _(g):
    """VarNet cascade: k-space of 1e-5 (raw scanner units), inverse DFT, a normalised CNN, DFT, soft data consistency."""
    n = 32
    img = picture(g, 1, n)[0, 0] * np.exp(1j * np.linspace(0, 1, n))
    k = np.fft.fft2(img, norm="ortho") * 1e-5
    mask = np.zeros((1, 1, 1, n, 1), np.float32)
    mask[..., ::3, :] = 1
    mask[..., :3, :] = mask[..., -3:, :] = 1
    kk = np.stack([k.real, k.imag], -1)[None, None].astype(np.float32) * mask
    x = g.input("kspace", [1, 1, n, n, 2], kk)
    m = g.input("mask", [1, 1, 1, n, 1], mask)

    def dft2(a, tag, inverse, scale):
        for ax in (2, 3):
            a = g.node("DFT", [a], name=f"{tag}_{ax}", axis=ax, inverse=inverse)
        return op(g, "Mul", a, scale, name=f"{tag}_ortho")
    for it in range(2):
        img = dft2(x if it == 0 else cur, f"idft_{it}", 1, float(n))
        v = reshape(g, g.node("Transpose", [reshape(g, img, [1, n, n, 2], f"shift_r{it}")], name=f"shift_t{it}",
                              perm=[0, 3, 1, 2]), [1, 2, n * n], f"norm_flat{it}")
        mean = g.node("ReduceMean", [v], name=f"norm_mean{it}", axes=[2])
        d = op(g, "Sub", v, mean, name=f"norm_sub{it}")
        std = g.node("Sqrt", [g.node("ReduceMean", [op(g, "Mul", d, d, name=f"norm_sq{it}")], name=f"norm_var{it}",
                                     axes=[2])], name=f"norm_std{it}")
        z = reshape(g, op(g, "Div", d, std, name=f"norm_div{it}"), [1, 2, n, n], f"norm_map{it}")
        y = op(g, "Mul", trunk(g, z, f"u{it}", 2, 2), 0.3, name=f"reg_gain{it}")
        y = op(g, "Mul", reshape(g, y, [1, 2, n * n], f"norm_out{it}"), std, name=f"norm_back{it}")
        y = g.node("Transpose", [reshape(g, y, [1, 2, n, n], f"norm_back_map{it}")], name=f"norm_last{it}",
                   perm=[0, 2, 3, 1])
        reg = dft2(unsqueeze(g, y, [1], f"norm_coil{it}"), f"dft_{it}", 0, 1 / n)
        cur = x if it == 0 else cur
        dc = op(g, "Mul", op(g, "Mul", op(g, "Sub", cur, x, name=f"dc_sub{it}"), m, name=f"dc_mask{it}"), 0.9,
                name=f"dc_weight{it}")
        cur = op(g, "Sub", op(g, "Sub", cur, dc, name=f"dc_step{it}"), reg, name=f"dc_reg{it}")
    out = dft2(cur, "idft_out", 1, float(n))
    g.output(op(g, "Mul", g.node("ReduceL2", [out], name="rss", axes=[4], keepdims=0), 1e5, name="rss_scaled"))


@model("ct_parallel_beam_backprojection_ramp_filtered_counts", opset=16,
       pins=["count*", "log_*", "ramp*", "sample*", "bp_*"])
def _(g):
    """CT from photon counts: -log(I/I0) with I0 = 1e5, a ramp filter by Conv, GridSample back-projection, a CNN."""
    det, views, n = 64, 48, 48
    s = np.linspace(-1, 1, det)
    proj = np.stack([1.6 * np.sqrt(np.maximum(0, 0.49 - s**2)) + 0.8 * np.sqrt(np.maximum(0, 0.04 - (s - 0.3 * np.cos(t)) ** 2))
                     for t in np.linspace(0, np.pi, views, endpoint=False)])
    counts = g.rng.poisson(1e5 * np.exp(-proj)).astype(np.float32)
    x = g.input("counts", [1, 1, views, det], counts[None, None])
    p = g.node("Neg", [g.node("Log", [op(g, "Div", op(g, "Max", x, 1.0, name="count_floor"), 1e5, name="count_ratio")],
                              name="log_ratio")], name="log_neg")
    k = np.arange(-31, 32)
    ramp = np.where(k == 0, 0.25, np.where(k % 2 == 1, -1 / (np.pi * np.where(k == 0, 1, k)) ** 2, 0)) * det / 2
    f = g.node("Conv", [p, g.const(ramp[None, None, None], "ramp")], name="ramp_conv", pads=[0, 31, 0, 31])
    th = np.linspace(0, np.pi, views, endpoint=False)
    yy, xx = np.mgrid[:n, :n] / (n - 1) * 2 - 1
    u = xx[None] * np.cos(th)[:, None, None] + yy[None] * np.sin(th)[:, None, None]
    rows = reshape(g, f, [views, 1, 1, det], "bp_rows")
    grid = np.stack([u, np.zeros_like(u)], -1)
    smp = g.node("GridSample", [rows, g.const(grid, "grid")], name="sample_bp", align_corners=1)
    img = g.node("ReduceSum", [smp, g.ints(0)], name="bp_sum", keepdims=1)
    img = op(g, "Mul", img, np.pi / views, name="bp_scale")
    g.output(op(g, "Add", img, op(g, "Mul", trunk(g, img, "net", 1, 1), 0.05, name="res_scale"), name="bp_refined"))


@model("lista_csc_convolutional_ista_soft_threshold", opset=14, pins=[], pins_bf16=["residual*", "update*"])
def _(g):
    """Unrolled convolutional ISTA: z = soft(z + Wᵀ(y - Dz)), thresholds of 0.02 learned, 4 steps."""
    y = g.input("y", ["n", 1, 32, 32], picture(g, 1, 32) - 0.5)
    w = g.weight("analysis", 64, 1, 5, 5, scale=0.06)
    d = g.weight("synthesis", 1, 64, 5, 5, scale=0.03)
    lam = g.uniform(0.005, 0.03, 1, 64, 1, 1)
    z = None
    for i in range(4):
        r = y if z is None else op(g, "Sub", y, g.node("Conv", [z, d], name=f"synth{i}", pads=[2] * 4), name=f"residual{i}")
        a = g.node("Conv", [r, w], name=f"analyse{i}", pads=[2] * 4)
        u = a if z is None else op(g, "Add", z, a, name=f"update{i}")
        m = g.node("Relu", [op(g, "Sub", g.node("Abs", [u], name=f"abs{i}"), lam, name=f"shrink{i}")], name=f"relu{i}")
        z = op(g, "Mul", g.node("Sign", [u], name=f"sign{i}"), m, name=f"soft{i}")
    g.output(g.node("Conv", [z, d], name="decode", pads=[2] * 4))


@model("wiener_deconvolution_in_feature_space_dwdn", opset=17, pins=["feat_conv", "fft_*", "wien_*", "ifft_*", "snr_*"])
def _(g):
    """DWDN: features deconvolved by conj(K)·X/(|K|²+n/s), with a blur whose spectrum reaches 1e-4, then refined."""
    n, c = 32, 8
    yy, xx = np.mgrid[:n, :n]
    k = np.exp(-(np.minimum(yy, n - yy) ** 2 + np.minimum(xx, n - xx) ** 2) / (2 * 1.6**2))
    k = np.fft.fft2(k / k.sum())
    b = np.real(np.fft.ifft2(np.fft.fft2(picture(g, 3, n)[0]) * k))[None]
    x = g.input("blurred", [1, 3, n, n], b.astype(np.float32))
    f = g.conv(x, "feat", 3, c, 3, pads=[1] * 4)
    s = g.node("ReduceMean", [op(g, "Mul", f, f, name="snr_sq")], name="snr_power", axes=[2, 3])
    nsr = op(g, "Div", 1e-4, op(g, "Add", s, 1e-6, name="snr_eps"), name="snr_inv")
    v = unsqueeze(g, f, [4], "fft_u")
    for ax in (2, 3):
        v = g.node("DFT", [v], name=f"fft_{ax}", axis=ax)
    re, im = span(g, v, 0, 1, 4, "fft_re"), span(g, v, 1, 2, 4, "fft_im")
    kr = g.const(np.real(k)[None, None, :, :, None], "k_re")
    ki = g.const(np.imag(k)[None, None, :, :, None], "k_im")
    den = op(g, "Add", g.const(np.abs(k)[None, None, :, :, None] ** 2, "k_power"), unsqueeze(g, nsr, [4], "snr_u"),
             name="wien_den")
    a = op(g, "Add", op(g, "Mul", kr, re, name="wien_rr"), op(g, "Mul", ki, im, name="wien_ii"), name="wien_re")
    bb = op(g, "Sub", op(g, "Mul", kr, im, name="wien_ri"), op(g, "Mul", ki, re, name="wien_ir"), name="wien_im")
    y = g.node("Concat", [op(g, "Div", a, den, name="wien_dr"), op(g, "Div", bb, den, name="wien_di")], name="wien_cat",
               axis=4)
    for ax in (2, 3):
        y = g.node("DFT", [y], name=f"ifft_{ax}", axis=ax, inverse=1)
    y = reshape(g, span(g, y, 0, 1, 4, "ifft_re"), [1, c, n, n], "ifft_map")
    g.output(trunk(g, y, "net", c, 3))


@model("hdrnet_like_log_encoding_and_reinhard_tone_map", opset=17,
       pins=["log_*", "lum*", "tone_*", "key*", "gamma*", "ratio*"])
def _(g):
    """Scene-linear radiance of 1e-3 to 3e4 nits: log encoding, the log-average key, Reinhard's curve, gains by a CNN."""
    rad = np.exp(g.rng.uniform(-1, 1, (1, 3, 32, 32)) * 0.3 + picture(g, 1, 32) * 14 - 5).clip(1e-3, 3e4)
    x = g.input("radiance", ["n", 3, 32, 32], rad.astype(np.float32))
    l = g.node("Log", [op(g, "Add", x, 1e-4, name="log_eps")], name="log_x")
    z = op(g, "Mul", op(g, "Sub", l, 2.0, name="log_centre"), 0.25, name="log_scale")
    gain = g.node("Sigmoid", [trunk(g, z, "net", 3, 3)], name="gain")
    w = np.array([0.2126, 0.7152, 0.0722])[None, :, None, None]
    lum = g.node("Conv", [x, g.const(w, "luma")], name="lum_conv")
    mean = g.node("ReduceMean", [g.node("Log", [op(g, "Add", lum, 1e-6, name="lum_eps")], name="lum_log")],
                  name="key_mean", axes=[1, 2, 3])
    key = g.node("Exp", [mean], name="key_exp")
    ls = op(g, "Mul", op(g, "Div", lum, key, name="key_div"), 0.18, name="tone_scaled")
    num = op(g, "Mul", ls, op(g, "Add", op(g, "Div", ls, 16.0, name="tone_white"), 1.0, name="tone_w1"), name="tone_num")
    ld = op(g, "Div", num, op(g, "Add", ls, 1.0, name="tone_1p"), name="tone_ld")
    y = op(g, "Mul", op(g, "Div", x, op(g, "Add", lum, 1e-6, name="ratio_eps"), name="ratio"), ld, name="ratio_ld")
    y = op(g, "Clip", op(g, "Mul", y, op(g, "Add", gain, 0.5, name="gain_half"), name="tone_gain"), 0.0, 1.0,
           name="tone_clip")
    g.output(op(g, "Pow", y, 1 / 2.2, name="gamma"))


@model("raw_sensor_black_level_demosaic_colour_matrix", opset=15, pins=["raw_*", "pack", "wb*", "ccm*", "gamma*"],
       pins_bf16=["raw_*", "pack", "wb*", "ccm*", "gamma*"])
def _(g):
    """14-bit Bayer values (black 512, white 16383), packed, white-balanced, a demosaic net, a colour matrix, gamma."""
    p = 512 + picture(g, 1, 64) * 9000 + g.normal(1, 1, 64, 64, scale=30)
    x = g.input("bayer_u16", ["n", 1, 64, 64], p.clip(0, 16383).astype(np.uint16))
    f = op(g, "Max", op(g, "Sub", cast(g, x, "raw_cast"), 512.0, name="raw_black"), 0.0, name="raw_floor")
    f = op(g, "Div", f, 16383.0 - 512, name="raw_unit")
    f = g.node("SpaceToDepth", [f], name="pack", blocksize=2)
    f = op(g, "Mul", f, np.array([2.1, 1, 1, 1.6])[None, :, None, None], name="wb")
    y = g.node("DepthToSpace", [trunk(g, f, "net", 4, 12)], name="shuffle", blocksize=2)
    base = g.node("Resize", [span(g, f, 0, 3, 1, "rgb_base"), "", g.const([1.0, 1, 2, 2])], name="base", mode="linear")
    y = op(g, "Add", base, op(g, "Mul", y, 0.05, name="detail_scale"), name="wb_sum")
    m = np.array([[1.8, -0.6, -0.2], [-0.3, 1.6, -0.3], [0.0, -0.7, 1.7]])
    y = g.node("Conv", [y, g.const(m[:, :, None, None], "ccm")], name="ccm_conv")
    g.output(op(g, "Pow", op(g, "Clip", y, 1e-6, 1.0, name="gamma_clip"), 1 / 2.2, name="gamma"))


@model("haar_wavelet_mwcnn_thresholded_subbands", opset=13, pins=[], pins_bf16=["dwt*", "soft_*", "idwt", "restored"])
def _(g):
    """MWCNN: a Haar transform by a strided convolution of fixed ±½ filters, a CNN on bands, soft thresholds, inverse."""
    x = g.input("image", ["n", 1, 64, 64], picture(g, 1, 64))
    h = np.array([[[1, 1], [1, 1]], [[-1, -1], [1, 1]], [[-1, 1], [-1, 1]], [[1, -1], [-1, 1]]], np.float32)[:, None] / 2
    w = g.const(h, "haar")
    b = g.node("Conv", [x, w], name="dwt", strides=[2, 2])
    r = op(g, "Mul", trunk(g, b, "net", 4, 4), 0.05, name="res_scale")
    b = op(g, "Add", b, r, name="soft_in")
    lo, hi = span(g, b, 0, 1, 1, "soft_lo"), span(g, b, 1, 4, 1, "soft_hi")
    m = g.node("Relu", [op(g, "Sub", g.node("Abs", [hi], name="soft_abs"), 0.008, name="soft_sub")], name="soft_relu")
    hi = op(g, "Mul", g.node("Sign", [hi], name="soft_sign"), m, name="soft_mul")
    b = g.node("Concat", [lo, hi], name="soft_cat", axis=1)
    y = g.node("ConvTranspose", [b, w], name="idwt", strides=[2, 2])
    g.output(op(g, "Clip", y, 0.0, 1.0, name="restored"))


@model("chambolle_pock_total_variation_loop_primal_dual", opset=21, pins=["loop", "loop/*", "smoothed"])
def _(g):
    """A CNN's estimate smoothed by 25 primal-dual TV steps in a Loop: gradients, projection by max(1, |p|/λ)."""
    n = 32
    x = g.input("noisy", [1, 1, n, n], picture(g, 1, n) + g.normal(1, 1, n, n, scale=0.05))
    f = op(g, "Add", x, op(g, "Mul", trunk(g, x, "net", 1, 1), 0.05, name="res_scale"), name="estimate")
    body = Body(g, "tv")
    body.entry("i", [], TensorProto.INT64)
    body.entry("go", [], TensorProto.BOOL)
    u, p, ub = body.entry("u", [1, 1, n, n]), body.entry("p", [1, 2, n, n]), body.entry("ub", [1, 1, n, n])
    k = np.zeros((2, 1, 3, 3), np.float32)
    k[0, 0, 1, 1], k[0, 0, 1, 2], k[1, 0, 1, 1], k[1, 0, 2, 1] = -1, 1, -1, 1
    kk = body.const(k, "grad_k")
    pad = body.node("Pad", [ub, body.ints(0, 0, 1, 1, 0, 0, 1, 1)], name="edge", mode="edge")
    gr = body.node("Conv", [pad, kk], name="gradient")
    q = op(body, "Add", p, op(body, "Mul", gr, 0.35, name="sigma_grad"), name="dual")
    mag = body.node("Sqrt", [op(body, "Add", reduce(body, "ReduceSum", op(body, "Mul", q, q, name="dual_sq"), [1],
                                                    "dual_sum"), 1e-12, name="dual_eps")], name="dual_norm")
    np_ = op(body, "Div", q, op(body, "Max", op(body, "Div", mag, 0.06, name="dual_lam"), 1.0, name="dual_max"), name="dual_new")
    div = body.node("ConvTranspose", [np_, kk], name="divergence", pads=[1] * 4)
    t = op(body, "Sub", u, op(body, "Mul", div, 0.35, name="tau_div"), name="primal")
    nu = op(body, "Div", op(body, "Add", t, op(body, "Mul", f, 0.35, name="tau_f"), name="prox_sum"), 1.35, name="prox")
    nub = op(body, "Sub", op(body, "Mul", nu, 2.0, name="over_2"), u, name="over")
    go = body.node("Identity", ["go"], name="go_on")
    outs = g.node("Loop", [g.const(25, dtype=np.int64), g.const(True, dtype=bool), f, g.const(np.zeros((1, 2, n, n))), f],
                  name="loop", outputs=3, body=body.graph((go, [], TensorProto.BOOL), (nu, [1, 1, n, n]),
                                                          (np_, [1, 2, n, n]), (nub, [1, 1, n, n])))
    g.output(reshape(g, outs[0], [1, 1, n, n], "smoothed"))


@model("phase_retrieval_hybrid_input_output_coded_diffraction", opset=17,
       pins=["fft_*", "mag_*", "proj_*", "ifft_*", "amp*"])
def _(g):
    """Diffraction counts (to 1e6): amplitudes by sqrt, 3 Fourier-modulus projections from a network's start."""
    n = 32
    img = picture(g, 1, n)
    spec = np.abs(np.fft.fft2(img[0, 0])) ** 2
    x = g.input("intensity", [1, 1, n, n], g.rng.poisson(spec * 3).astype(np.float32)[None, None])
    amp = g.node("Sqrt", [op(g, "Div", x, 3.0, name="amp_dose")], name="amp_root")
    feat = op(g, "Mul", g.node("Log", [op(g, "Add", amp, 1.0, name="amp_1p")], name="amp_log"), 0.3, name="amp_scaled")
    r = g.node("Sigmoid", [trunk(g, feat, "net", 1, 1)], name="start")
    for i in range(3):
        v = unsqueeze(g, r, [4], f"fft_u{i}")
        for ax in (2, 3):
            v = g.node("DFT", [v], name=f"fft_{ax}_{i}", axis=ax)
        m = g.node("Sqrt", [op(g, "Add", reduce(g, "ReduceSum", op(g, "Mul", v, v, name=f"mag_sq{i}"), [4], f"mag_sum{i}"),
                               1e-12, name=f"mag_eps{i}")], name=f"mag_root{i}")
        v = op(g, "Mul", op(g, "Div", v, m, name=f"proj_phase{i}"), unsqueeze(g, amp, [4], f"proj_amp_u{i}"),
               name=f"proj_{i}")
        for ax in (2, 3):
            v = g.node("DFT", [v], name=f"ifft_{ax}_{i}", axis=ax, inverse=1)
        v = reshape(g, span(g, v, 0, 1, 4, f"ifft_re{i}"), [1, 1, n, n], f"ifft_map{i}")
        r = op(g, "Clip", v, 0.0, 1.0, name=f"proj_support{i}")
    g.output(r)


@model("sentinel2_dn_to_reflectance_ndvi_radiometric_net", opset=16, pins=["dn_*", "ndvi_*", "evi_*", "z_*"],
       pins_bf16=["dn_*", "ndvi_*", "evi_*", "z_*"])
def _(g):
    """Digital numbers (0..10000, offset -1000) to reflectance, NDVI and EVI by divisions, bands z-scored, a CNN."""
    p = picture(g, 4, 48, 3000) + np.array([1200, 1300, 1250, 2600])[None, :, None, None]
    x = g.input("dn", ["n", 4, 48, 48], p.astype(np.uint16))
    r = op(g, "Mul", op(g, "Add", cast(g, x, "dn_cast"), -1000.0, name="dn_offset"), 1e-4, name="dn_reflectance")
    b, gr, red, nir = g.node("Split", [r], name="dn_split", outputs=4, axis=1)
    nd = op(g, "Div", op(g, "Sub", nir, red, name="ndvi_num"), op(g, "Add", op(g, "Add", nir, red, name="ndvi_sum"), 1e-8,
                                                             name="ndvi_eps"), name="ndvi_div")
    den = op(g, "Sub", op(g, "Add", nir, op(g, "Mul", red, 6.0, name="evi_red"), name="evi_a"),
             op(g, "Mul", b, 7.5, name="evi_blue"), name="evi_b")
    den = op(g, "Max", op(g, "Add", den, 1.0, name="evi_c"), 0.1, name="evi_den")
    evi = op(g, "Div", op(g, "Mul", op(g, "Sub", nir, red, name="evi_num"), 2.5, name="evi_gain"), den, name="evi_div")
    m, s = (np.array(v)[None, :, None, None] for v in ([0.15, 0.16, 0.17, 0.3], [0.08, 0.08, 0.09, 0.1]))
    z = op(g, "Div", op(g, "Sub", r, m, name="z_sub"), s, name="z_div")
    f = g.node("Concat", [z, nd, evi], name="features", axis=1)
    h = g.node("Relu", [g.conv(f, "c1", 6, 64, 3, pads=[1] * 4)], name="relu1")
    h = g.node("Relu", [g.conv(h, "c2", 64, 64, 3, pads=[1] * 4)], name="relu2")
    g.output(g.node("Softmax", [g.conv(h, "head", 64, 8, 1)], name="z_classes", axis=1))


@model("exposure_fusion_weights_of_three_brackets_normalised", opset=17, pins=["sat_*", "well_*", "con_*", "w_*"])
def _(g):
    """Mertens: contrast, saturation and well-exposedness multiplied, plus 1e-12, normalised; a CNN refines the blend."""
    p = np.concatenate([(picture(g, 3, 32) * s).clip(0, 1) for s in (0.25, 1.0, 3.5)])
    x = g.input("brackets", [3, 3, 32, 32], p)
    grey = g.node("ReduceMean", [x], name="con_grey", axes=[1])
    lap = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    c = g.node("Abs", [g.node("Conv", [grey, g.const(lap, "lap")], name="con_lap", pads=[1] * 4)], name="con_abs")
    d = op(g, "Sub", x, grey, name="sat_dev")
    s = g.node("Sqrt", [g.node("ReduceMean", [op(g, "Mul", d, d, name="sat_sq")], name="sat_var", axes=[1])], name="sat_std")
    e = g.node("Exp", [op(g, "Div", op(g, "Pow", op(g, "Sub", x, 0.5, name="well_dev"), 2.0, name="well_sq"), -0.08,
                          name="well_sigma")], name="well_exp")
    r, gg, b = g.node("Split", [e], name="well_split", outputs=3, axis=1)
    e = op(g, "Mul", op(g, "Mul", r, gg, name="well_rg"), b, name="well_rgb")
    w = op(g, "Add", op(g, "Mul", op(g, "Mul", c, s, name="w_cs"), e, name="w_cse"), 1e-12, name="w_eps")
    w = op(g, "Div", w, reduce(g, "ReduceSum", w, [0], "w_sum"), name="w_norm")
    y = reduce(g, "ReduceSum", op(g, "Mul", x, w, name="w_x"), [0], "w_blend")
    g.output(op(g, "Add", y, op(g, "Mul", trunk(g, y, "net", 3, 3), 0.1, name="res_scale"), name="refined"))
