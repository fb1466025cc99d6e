"""Diffusion, flows and VAEs."""

import numpy as np
from onnx import TensorProto, helper

from .build import model
from .parts import Body, constant, mlp, op, reduce, reshape, silu, span, unsqueeze


def sinusoid(g, t, half, top=10000.0, stem="t", scale=1.0):
    """[B] as [B, 2·half]: exp(-log(top)·i/half)·t, its cos and sin."""
    freq = g.node("Exp", [op(g, "Mul", np.arange(half, dtype=np.float32), -np.log(top) / half, name=f"{stem}_logf")],
                  name=f"{stem}_freq")
    col = unsqueeze(g, t, [1], f"{stem}_col")
    if scale != 1.0:
        col = op(g, "Mul", col, scale, name=f"{stem}_scale")
    a = op(g, "Mul", col, freq, name=f"{stem}_angle")
    return g.node("Concat", [g.node("Cos", [a], name=f"{stem}_cos"), g.node("Sin", [a], name=f"{stem}_sin")],
                  name=f"{stem}_emb", axis=-1)


def unet_stub(g, x, emb, c, width=64, tag="u"):
    """A residual block with the embedding added to its channels."""
    h = g.conv(x, f"{tag}_in", c, width, 3, pads=[1] * 4)
    r = g.conv(silu(g, h, f"{tag}_a"), f"{tag}_1", width, width, 3, pads=[1] * 4)
    e = g.node("Unsqueeze", [g.linear(emb, f"{tag}_emb", 128, width), g.ints(2, 3)], name=f"{tag}_emb_u")
    r = g.conv(silu(g, op(g, "Add", r, e, name=f"{tag}_cond"), f"{tag}_b"), f"{tag}_2", width, width, 3, pads=[1] * 4)
    h = op(g, "Add", h, r, name=f"{tag}_res")
    return g.conv(silu(g, h, f"{tag}_c"), f"{tag}_out", width, c, 3, pads=[1] * 4)


@model("ddim_loop_of_steps_with_gathered_alphas", opset=18,
       pins=["loop/*/abar_*", "loop/*/t_*", "loop/*/x0*", "loop/*/dir", "loop/*/next*"])
def _(g):
    """DDIM inside a Loop: ᾱ of Stable Diffusion's schedule (down to 0.0047) gathered by step, x0 and direction."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    abar = np.cumprod(1 - betas)
    steps = np.arange(981, 0, -245)
    x = g.input("latent", [1, 4, 16, 16], g.normal(1, 4, 16, 16))
    body = Body(g, "ddim")
    body.entry("i", [], TensorProto.INT64)
    body.entry("go", [], TensorProto.BOOL)
    z = body.entry("z", [1, 4, 16, 16])
    t = body.node("Gather", [body.const(steps, dtype=np.int64), unsqueeze(body, "i", [0], "t_index")], name="t_step")
    prev = body.node("Max", [body.node("Sub", [t, body.ints(245)], name="t_prev"), body.ints(0)], name="t_prev_pos")
    table = body.const(abar, "alphas_cumprod")
    a, ap = body.node("Gather", [table, t], name="abar_t"), body.node("Gather", [table, prev], name="abar_prev")
    tf = body.node("Cast", [t], name="t_float", to=TensorProto.FLOAT)
    emb = silu(body, body.linear(sinusoid(body, tf, 32), "time1", 64, 128), "time")
    eps = unet_stub(body, z, emb, 4)
    noise = op(body, "Mul", body.node("Sqrt", [op(body, "Sub", 1.0, a, name="abar_1m")], name="abar_noise"), eps,
               name="x0_noise")
    x0 = op(body, "Div", op(body, "Sub", z, noise, name="x0_diff"), body.node("Sqrt", [a], name="abar_root"), name="x0")
    d = op(body, "Mul", body.node("Sqrt", [op(body, "Sub", 1.0, ap, name="abar_p1m")], name="abar_pnoise"), eps,
           name="dir")
    nz = op(body, "Add", op(body, "Mul", x0, body.node("Sqrt", [ap], name="abar_proot"), name="next_x0"), d, name="next")
    go = body.node("Identity", ["go"], name="go_on")
    graph = body.graph((go, [], TensorProto.BOOL), (nz, [1, 4, 16, 16]))
    z = g.node("Loop", [g.const(4, dtype=np.int64), g.const(True, dtype=bool), x], name="loop", body=graph)
    g.output(reshape(g, z, [1, 4, 16, 16], "latent_out"))


@model("k_diffusion_euler_ancestral_step_sigma_14", opset=17,
       pins=["t_*", "sig*", "den*", "d_*", "up_*", "step*", "anc*", "c_in*"])
def _(g):
    """k-diffusion's CompVis wrapper: x of σ=14.6 is scaled by 1/√(σ²+1); d=(x-denoised)/σ; an ancestral step."""
    sigma = g.input("sigma", ["n"], np.array([14.6146], np.float32))
    nxt = g.input("sigma_next", ["n"], np.array([12.9354], np.float32))
    t = g.input("t", ["n"], np.array([999.0], np.float32))
    x = g.input("x", ["n", 4, 16, 16], g.normal(1, 4, 16, 16, scale=14.6))
    noise = g.input("noise", ["n", 4, 16, 16], g.normal(1, 4, 16, 16))
    emb = silu(g, g.linear(sinusoid(g, t, 32), "time1", 64, 128), "time")
    s = reshape(g, sigma, [-1, 1, 1, 1], "sig_r")
    n = reshape(g, nxt, [-1, 1, 1, 1], "sig_next_r")
    s2 = op(g, "Mul", s, s, name="sig_sq")
    n2 = op(g, "Mul", n, n, name="sig_next_sq")
    c_in = g.node("Reciprocal", [g.node("Sqrt", [op(g, "Add", s2, 1.0, name="sig_sq1")], name="sig_hyp")], name="c_in")
    eps = unet_stub(g, op(g, "Mul", x, c_in, name="c_in_x"), emb, 4)
    den = op(g, "Sub", x, op(g, "Mul", eps, s, name="den_noise"), name="denoised")
    d = op(g, "Div", op(g, "Sub", x, den, name="d_diff"), s, name="d_over")
    up2 = op(g, "Div", op(g, "Mul", n2, op(g, "Sub", s2, n2, name="up_gap"), name="up_prod"), s2, name="up_sq")
    up = g.node("Sqrt", [up2], name="up_sigma")
    down = g.node("Sqrt", [op(g, "Sub", n2, up2, name="sig_down_sq")], name="sig_down")
    y = op(g, "Add", x, op(g, "Mul", d, op(g, "Sub", down, s, name="step_dt"), name="step_d"), name="step")
    g.output(op(g, "Add", y, op(g, "Mul", noise, up, name="anc_noise"), name="anc"))


@model("real_nvp_coupling_with_log_det_sum", opset=16, pins=["split*", "swap*", "*_logdet", "*_exp", "*_affine", "*_y", "base_*",
                                                           "logdet*", "log_prob"])
def _(g):
    """RealNVP on 64 standardised features: six coupling layers, log|det| summed, and the base's log density."""
    x = g.input("x", ["n", 64], g.normal(8, 64))
    dets = []
    for i in range(4):
        a, b = g.node("Split", [x], name=f"split{i}", outputs=2, axis=1)
        h = mlp(g, a, f"net{i}_", [32, 128, 64])
        s, t = g.node("Split", [h], name=f"st{i}", outputs=2, axis=1)
        s = op(g, "Mul", g.node("Tanh", [s], name=f"s{i}_tanh"), g.uniform(0.3, 1.2, 32), name=f"s{i}_scale")
        y = op(g, "Add", op(g, "Mul", b, g.node("Exp", [s], name=f"c{i}_exp"), name=f"c{i}_affine"), t, name=f"c{i}_y")
        dets.append(g.node("ReduceSum", [s, g.ints(1)], name=f"c{i}_logdet", keepdims=0))
        x = g.node("Concat", [y, a], name=f"swap{i}", axis=1)
    total = g.node("Sum", dets, name="logdet_sum")
    sq = g.node("ReduceSum", [op(g, "Mul", x, x, name="base_sq"), g.ints(1)], name="base_sum", keepdims=0)
    base = op(g, "Sub", op(g, "Mul", sq, -0.5, name="base_half"), 32 * np.log(2 * np.pi), name="base_const")
    g.output(op(g, "Add", base, total, name="log_prob"))


@model("glow_actnorm_invertible_conv_logdet_times_pixels", opset=14,
       pins=["act_shift", "act_scale", "inv_conv", "squeeze", "halves", "z", "pix_*", "ld_*", "bpd*", "cpl_*", "prior_*"])
def _(g):
    """Glow's flow step on 5-bit images: actnorm, 1×1 conv, affine coupling with sigmoid(s+2), bits per dimension."""
    x = g.input("image_u8", ["n", 3, 32, 32], g.rng.integers(0, 256, (2, 3, 32, 32)).astype(np.uint8))
    f = g.node("Cast", [x], name="pix_cast", to=TensorProto.FLOAT)
    f = g.node("Floor", [op(g, "Div", f, 8.0, name="pix_div")], name="pix_floor")
    f = op(g, "Sub", op(g, "Div", f, 32.0, name="pix_unit"), 0.5, name="pix_centre")
    f = g.node("SpaceToDepth", [f], name="squeeze", blocksize=2)
    log_scale = g.uniform(0.5, 1.5, 1, 12, 1, 1)
    f = op(g, "Mul", op(g, "Add", f, g.normal(1, 12, 1, 1, scale=0.1), name="act_shift"), np.exp(log_scale),
           name="act_scale")
    q = np.linalg.qr(g.rng.standard_normal((12, 12)))[0]
    f = g.node("Conv", [f, g.const(q[:, :, None, None], "w_inv")], name="inv_conv")
    a, b = g.node("Split", [f], name="halves", outputs=2, axis=1)
    h = g.node("Relu", [g.conv(a, "n1", 6, 128, 3, pads=[1] * 4)], name="n1_relu")
    h = g.node("Relu", [g.conv(h, "n2", 128, 128, 1)], name="n2_relu")
    h = g.conv(h, "n3", 128, 12, 3, pads=[1] * 4)
    t, s = g.node("Split", [h], name="ts", outputs=2, axis=1)
    s = g.node("Sigmoid", [op(g, "Add", s, 2.0, name="cpl_s2")], name="cpl_s")
    y = op(g, "Mul", op(g, "Add", b, t, name="cpl_add"), s, name="cpl_mul")
    ld = g.node("ReduceSum", [g.node("Log", [s], name="ld_log"), g.ints(1, 2, 3)], name="ld_coupling", keepdims=0)
    ld = op(g, "Add", ld, float(log_scale.sum()) * 256, name="ld_actnorm")
    z = g.node("Concat", [a, y], name="z", axis=1)
    sq = g.node("ReduceSum", [op(g, "Pow", z, 2.0, name="prior_sq"), g.ints(1, 2, 3)], name="prior_sum", keepdims=0)
    lp = op(g, "Sub", op(g, "Mul", sq, -0.5, name="prior_half"), 3072 * 0.5 * np.log(2 * np.pi), name="prior_const")
    total = op(g, "Sub", op(g, "Add", lp, ld, name="bpd_ll"), 3072 * np.log(32), name="bpd_quantised")
    g.output(op(g, "Div", total, -3072 * np.log(2), name="bpd"), z)


@model("vqgan_encoder_codebook_expanded_distances", opset=13, pins=["vq_*"])
def _(g):
    """taming-transformers: z² + e² - 2·z·e to 128 codes, argmin, the code gathered, then the decoder."""
    x = g.input("image", ["n", 3, 32, 32], g.uniform(-1, 1, 1, 3, 32, 32))
    h = g.conv(x, "e1", 3, 64, 4, strides=[2, 2], pads=[1] * 4)
    h = g.conv(silu(g, h, "e1"), "e2", 64, 32, 3, pads=[1] * 4)
    h = op(g, "Mul", h, 3.0, name="z_gain")
    z = reshape(g, g.node("Transpose", [h], name="nhwc", perm=[0, 2, 3, 1]), [-1, 32], "z_flat")
    book = g.normal(128, 32, scale=0.6)
    z2 = g.node("ReduceSum", [op(g, "Pow", z, 2.0, name="vq_z_sq"), g.ints(1)], name="vq_z2", keepdims=1)
    e2 = (book**2).sum(1)
    zn = g.node("Einsum", [z, g.const(book, "book")], name="vq_einsum", equation="bd,nd->bn")
    d = op(g, "Sub", op(g, "Add", z2, e2, name="vq_sum"), op(g, "Mul", zn, 2.0, name="vq_twice"), name="vq_distance")
    ids = g.node("ArgMin", [d], name="vq_argmin", axis=1, keepdims=0)
    zq = g.node("Gather", ["book", ids], name="codes")
    zq = g.node("Transpose", [reshape(g, zq, [-1, 16, 16, 32], "codes_map")], name="nchw", perm=[0, 3, 1, 2])
    y = silu(g, g.conv(zq, "d1", 32, 64, 3, pads=[1] * 4), "d1")
    y = g.node("ConvTranspose", [y, g.weight("d2_w", 64, 3, 4, 4, scale=0.05)], name="d2", strides=[2, 2], pads=[1] * 4)
    g.output(y)


@model("vae_elbo_of_binarised_digits_summed", opset=15, pins=["std_*", "z_*", "kl_*", "bce_*", "elbo*"])
def _(g):
    """The classical VAE: exp(½ logvar), BCE with logits summed over 784 pixels, the KL summed over 20 latents."""
    x = g.input("x", ["n", 784], (g.rng.random((16, 784)) < 0.2).astype(np.float32))
    noise = g.input("noise", ["n", 20], g.normal(16, 20))
    h = g.node("Relu", [g.linear(x, "enc", 784, 256)], name="enc_relu")
    mu, lv = g.linear(h, "mu", 256, 20), op(g, "Sub", g.linear(h, "logvar", 256, 20), 2.0, name="logvar_shift")
    std = g.node("Exp", [op(g, "Mul", lv, 0.5, name="std_half")], name="std_exp")
    z = op(g, "Add", mu, op(g, "Mul", std, noise, name="z_noise"), name="z_add")
    l = g.linear(g.node("Relu", [g.linear(z, "dec", 20, 256)], name="dec_relu"), "logits", 256, 784)
    sp = g.node("Log", [op(g, "Add", g.node("Exp", [g.node("Neg", [g.node("Abs", [l], name="bce_abs")], name="bce_neg")],
                                           name="bce_exp"), 1.0, name="bce_1p")], name="bce_log")
    bce = op(g, "Add", op(g, "Sub", g.node("Relu", [l], name="bce_relu"), op(g, "Mul", l, x, name="bce_xl"),
                          name="bce_lin"), sp, name="bce_pixel")
    bce = g.node("ReduceSum", [bce, g.ints(1)], name="bce_sum", keepdims=0)
    k = op(g, "Sub", op(g, "Sub", op(g, "Add", lv, 1.0, name="kl_1"), op(g, "Mul", mu, mu, name="kl_mu2"), name="kl_a"),
           g.node("Exp", [lv], name="kl_exp"), name="kl_b")
    kl = op(g, "Mul", g.node("ReduceSum", [k, g.ints(1)], name="kl_sum", keepdims=0), -0.5, name="kl_half")
    g.output(g.node("Neg", [op(g, "Add", bce, kl, name="elbo_sum")], name="elbo"))


@model("flux_rectified_flow_shifted_timestep_guidance", opset=20,
       pins=["shift_*", "t_*", "guid_*", "dt_*", "step_*", "softmax"])
def _(g):
    """Flux: t·1000 and the guidance·1000 by sinusoids, shifted sigmas, a modulated block, x += (σ'-σ)·v."""
    t = g.input("t", ["n"], np.array([0.73], np.float32))
    guidance = g.input("guidance", ["n"], np.array([3.5], np.float32))
    x = g.input("img", ["n", 64, 64], g.normal(1, 64, 64))
    vec = op(g, "Add", mlp(g, sinusoid(g, t, 32, scale=1000.0, stem="t"), "tin", [64, 128, 128], "Tanh"),
             mlp(g, sinusoid(g, guidance, 32, scale=1000.0, stem="guid"), "gin", [64, 128, 128], "Tanh"), name="vec")
    mod = unsqueeze(g, g.linear(silu(g, vec, "vec"), "mod", 128, 192), [1], "mod_u")
    sh, sc, gate = g.node("Split", [mod], name="mods", outputs=3, axis=2, num_outputs=3)
    n = g.node("LayerNormalization", [x, g.const(np.ones(64))], name="norm", epsilon=1e-6)
    n = op(g, "Add", op(g, "Mul", n, op(g, "Add", sc, 1.0, name="sc1"), name="modulate"), sh, name="shifted_in")
    q, k, v = (g.linear(n, s, 64, 64) for s in "qkv")
    s = op(g, "Mul", g.node("MatMul", [q, g.node("Transpose", [k], name="k_t", perm=[0, 2, 1])], name="qk"), 0.125,
           name="qk_scale")
    a = g.node("MatMul", [g.node("Softmax", [s], name="softmax", axis=-1), v], name="attend")
    h = op(g, "Add", x, op(g, "Mul", gate, g.linear(a, "proj", 64, 64), name="gated"), name="res")
    vel = g.linear(g.node("Gelu", [g.linear(h, "f1", 64, 256)], name="gelu", approximate="tanh"), "f2", 256, 64)
    def shifted(u, tag):
        e = np.exp(1.15).item()
        inv = op(g, "Sub", g.node("Reciprocal", [u], name=f"shift_{tag}_inv"), 1.0, name=f"shift_{tag}_m1")
        return op(g, "Div", e, op(g, "Add", inv, e, name=f"shift_{tag}_den"), name=f"shift_{tag}_sigma")
    dt = op(g, "Sub", shifted(op(g, "Sub", t, 1 / 28, name="dt_next"), "next"), shifted(t, "now"), name="dt_sigma")
    y = op(g, "Mul", reshape(g, dt, [-1, 1, 1], "dt_r"), vel, name="step_v")
    g.output(op(g, "Add", x, y, name="step_x"))


@model("progressive_distillation_v_prediction_cfg_rescale", opset=17,
       pins=["ls_*", "al_*", "si_*", "x0_*", "cfg_*", "std_*", "resc_*"])
def _(g):
    """v-prediction with guidance 7.5 and the rescaling of its standard deviation (Lin 2023), log-SNR in [-15, 15]."""
    ls = g.input("logsnr", ["n"], np.array([-5.2], np.float32))
    z = g.input("z", ["n", 4, 16, 16], g.normal(1, 4, 16, 16))
    null = g.input("cond", ["two", 128], g.normal(2, 128))
    emb = op(g, "Add", silu(g, g.linear(sinusoid(g, ls, 32, stem="ls", scale=100.0), "time1", 64, 128), "time"), null,
             name="emb")
    zz = g.node("Concat", [z, z], name="double", axis=0)
    v = unet_stub(g, zz, emb, 4)
    vu, vc = g.node("Split", [v], name="uncond_cond", outputs=2, axis=0)
    out = op(g, "Add", vu, op(g, "Mul", op(g, "Sub", vc, vu, name="cfg_diff"), 7.5, name="cfg_scale"), name="cfg_out")
    def std(a, tag):
        d = op(g, "Sub", a, g.node("ReduceMean", [a], name=f"std_{tag}_mean", axes=[1, 2, 3]), name=f"std_{tag}_dev")
        return g.node("Sqrt", [g.node("ReduceMean", [op(g, "Mul", d, d, name=f"std_{tag}_sq")], name=f"std_{tag}_var",
                                      axes=[1, 2, 3])], name=f"std_{tag}")
    r = op(g, "Mul", out, op(g, "Div", std(vc, "c"), std(out, "g"), name="resc_ratio"), name="resc_full")
    out = op(g, "Add", op(g, "Mul", r, 0.7, name="resc_a"), op(g, "Mul", out, 0.3, name="resc_b"), name="resc_out")
    l = reshape(g, ls, [-1, 1, 1, 1], "ls_r")
    alpha = g.node("Sqrt", [g.node("Sigmoid", [l], name="al_sig")], name="al_root")
    sigma = g.node("Sqrt", [g.node("Sigmoid", [g.node("Neg", [l], name="si_neg")], name="si_sig")], name="si_root")
    x0 = op(g, "Sub", op(g, "Mul", z, alpha, name="x0_z"), op(g, "Mul", out, sigma, name="x0_v"), name="x0_diff")
    g.output(op(g, "Clip", x0, -1.0, 1.0, name="x0_clip"))


@model("ncsn_score_matching_loss_sigma_0_01_to_50", opset=18,
       pins=["sig_*", "log_sig*", "fourier_*", "perturb_*", "score_*", "loss*", "target*"])
def _(g):
    """NCSN++ with σ = 0.01·(5000)^t, the score -out/σ, the loss (σ·score + z)² summed over pixels."""
    x = g.input("x", ["n", 3, 16, 16], g.uniform(0, 1, 4, 3, 16, 16))
    t = g.input("t", ["n"], np.array([0.02, 0.3, 0.6, 0.97], np.float32))
    z = g.input("z", ["n", 3, 16, 16], g.normal(4, 3, 16, 16))
    sigma = op(g, "Mul", op(g, "Pow", 5000.0, t, name="sig_pow"), 0.01, name="sig_scale")
    ls = g.node("Log", [sigma], name="log_sigma")
    p = op(g, "Mul", op(g, "Mul", unsqueeze(g, ls, [1], "log_sig_u"), g.normal(32, scale=16.0), name="fourier_w"),
           2 * np.pi, name="fourier_angle")
    emb = g.node("Concat", [g.node("Sin", [p], name="fourier_sin"), g.node("Cos", [p], name="fourier_cos")],
                 name="fourier_cat", axis=1)
    emb = silu(g, g.linear(emb, "time1", 64, 128), "time")
    s = reshape(g, sigma, [-1, 1, 1, 1], "sig_r")
    px = op(g, "Add", x, op(g, "Mul", z, s, name="perturb_noise"), name="perturb_x")
    cin = g.node("Reciprocal", [g.node("Sqrt", [op(g, "Add", op(g, "Mul", s, s, name="sig_sq"), 0.25, name="sig_sq_d")],
                                       name="sig_hyp")], name="sig_cin")
    out = unet_stub(g, op(g, "Mul", px, cin, name="perturb_in"), emb, 3)
    score = op(g, "Div", g.node("Neg", [out], name="score_neg"), s, name="score_div")
    r = op(g, "Add", op(g, "Mul", score, s, name="target_back"), z, name="loss_residual")
    g.output(g.node("ReduceSum", [op(g, "Mul", r, r, name="loss_sq"), g.ints(1, 2, 3)], name="loss", keepdims=0), score)


@model("consistency_model_karras_sigma_boundary", opset=16,
       pins=["c_*", "den_*", "t_*"])
def _(g):
    """c_skip and c_out with σ_min 0.002, the time as 1000·log(σ)/4 in the embedding, σ from 0.002 to 80."""
    s1 = g.input("sigma", ["n"], np.array([0.4, 2.5, 70.0], np.float32))
    x = g.input("x", ["n", 3, 16, 16], g.normal(3, 3, 16, 16) * np.array([0.6, 2.6, 70], np.float32)[:, None, None, None])
    tt = op(g, "Mul", g.node("Log", [op(g, "Add", s1, 1e-44, name="t_tiny")], name="t_log"), 250.0, name="t_rescaled")
    emb = silu(g, g.linear(sinusoid(g, tt, 32), "time1", 64, 128), "time")
    s = reshape(g, s1, [-1, 1, 1, 1], "c_sigma")
    d = op(g, "Sub", s, 0.002, name="c_gap")
    d2 = op(g, "Add", op(g, "Pow", d, 2.0, name="c_gap_sq"), 0.25, name="c_skip_den")
    root = op(g, "Pow", op(g, "Add", op(g, "Pow", s, 2.0, name="c_sq"), 0.25, name="c_sq_d"), 0.5, name="c_root")
    skip = op(g, "Div", 0.25, d2, name="c_skip")
    out = op(g, "Div", op(g, "Mul", d, 0.5, name="c_half"), root, name="c_out")
    f = unet_stub(g, op(g, "Div", x, root, name="c_in"), emb, 3)
    y = op(g, "Add", op(g, "Mul", f, out, name="den_f"), op(g, "Mul", x, skip, name="den_skip"), name="den_sum")
    g.output(op(g, "Clip", y, -1.0, 1.0, name="den_clip"))
