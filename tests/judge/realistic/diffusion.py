"""Diffusion: timestep embeddings, FiLM, preconditioning over noise levels, sampler steps, VAEs, guidance."""

import numpy as np

from .build import model
from .parts import attend, dot_scores, mlp, op, project_qkv, reduce, reshape, silu, span, split, unsqueeze

SAME = [1, 1, 1, 1]


def frequencies(n, top=10000.0):
    return np.exp(-np.log(top) * np.arange(n) / n)


def denoiser(g, x, stem, channels=4, width=48, scale=None):
    """Two convolutions with a SiLU: stands for the network of a sampler's step."""
    y = silu(g, g.conv(x, f"{stem}_in", channels, width, 3, pads=SAME), stem)
    return g.conv(y, f"{stem}_out", width, channels, 3, pads=SAME)


def ddpm_alphas(n=1000, low=1e-4, high=0.02):
    """Cumulated alphas of the linear schedule."""
    return np.cumprod(1 - np.linspace(low, high, n))


@model("ddpm_timestep_embedding_film", pins=["t_*"], opset=20)
def ddpm_timestep_embedding_film(g):
    """DDPM block: sin and cos of t·frequencies for t to 999, an MLP, then x·(1 + scale) + shift."""
    x = g.input("x", [2, 64, 16, 16], g.normal(2, 64, 16, 16))
    t = g.input("timestep", [2], np.int64([999, 437]))
    t = unsqueeze(g, g.node("Cast", [t], name="t_cast", to=1), [1], "t_dims")
    t = op(g, "Mul", t, frequencies(32)[None], name="t_mul")
    emb = [g.node("Cos", [t], name="cos"), g.node("Sin", [t], name="sin")]
    emb = mlp(g, g.node("Concat", emb, name="cat", axis=1), "time", [64, 128, 128], "Gelu")
    scale, shift = split(g, unsqueeze(g, emb, [2, 3], "emb_dims"), 2, 1, "film_parts")
    y = reshape(g, g.conv(x, "a", 64, 64, 3, pads=SAME), [0, 8, -1], "groups")
    y = op(g, "InstanceNormalization", y, np.ones(8), np.zeros(8), name="norm")
    y = reshape(g, y, [2, 64, 16, 16], "ungroup")
    y = g.node("Mul", [y, op(g, "Add", scale, 1.0, name="film_one")], name="film_mul")
    y = silu(g, g.node("Add", [y, shift], name="film_add"), "act")
    g.output(g.node("Add", [g.conv(y, "b", 64, 64, 3, pads=SAME), x], name="residual"))


@model("timesteps_by_einsum_fractional", pins=["t_*"], opset=20)
def timesteps_by_einsum_fractional(g):
    """Flow transformer: t in [0, 1] times 1000, an Einsum with frequencies, sin and cos, gates of a block."""
    x = g.input("x", [2, 64, 96], g.normal(2, 64, 96))
    t = g.input("t", [2], np.float32([0.9431, 0.1277]))
    t = op(g, "Mul", t, 1000.0, name="t_thousand")
    t = g.node("Einsum", [t, g.const(frequencies(48), "freqs")], name="t_einsum", equation="b,f->bf")
    emb = [g.node("Sin", [t], name="sin"), g.node("Cos", [t], name="cos")]
    emb = g.node("Concat", emb, name="cat", axis=-1)
    gate = unsqueeze(g, mlp(g, emb, "time", [96, 128, 96], "Gelu"), [1], "gate_dims")
    y = g.node("Mul", [mlp(g, x, "ffn", [96, 192, 96], "Gelu"), gate], name="gated")
    g.output(g.node("Add", [x, y], name="residual"))


@model("edm_preconditioned_denoiser", pins=["sigma_*", "skip_*", "out_*", "in_*"], opset=21)
def edm_preconditioned_denoiser(g):
    """EDM (Karras): c_skip·x + c_out·F(c_in·x; log σ / 4) for noise levels from 0.002 to 80."""
    levels = np.float32([0.002, 0.05, 1.2, 80.0]).reshape(4, 1, 1, 1)
    clean = g.normal(4, 4, 16, 16, scale=0.5)
    sigma = g.input("sigma", [4, 1, 1, 1], levels)
    x = g.input("x", [4, 4, 16, 16], clean + levels * g.normal(4, 4, 16, 16))
    sq = g.node("Mul", [sigma, sigma], name="sigma_sq")
    total = op(g, "Add", sq, 0.25, name="sigma_total")
    root = g.node("Sqrt", [total], name="sigma_root")
    c_skip = op(g, "Div", 0.25, total, name="skip_div")
    c_out = g.node("Div", [op(g, "Mul", sigma, 0.5, name="out_mul"), root], name="out_div")
    c_in = g.node("Reciprocal", [root], name="in_reciprocal")
    noise = op(g, "Div", g.node("Log", [sigma], name="sigma_log"), 4.0, name="sigma_noise")
    noise = reshape(g, noise, [4, 1], "sigma_flat")
    noise = op(g, "Mul", noise, 2 * np.pi * g.normal(1, 32), name="sigma_fourier")
    emb = [g.node("Cos", [noise], name="cos"), g.node("Sin", [noise], name="sin")]
    emb = g.linear(g.node("Concat", emb, name="cat", axis=1), "emb", 64, 48)
    y = g.conv(g.node("Mul", [x, c_in], name="in_mul"), "first", 4, 48, 3, pads=SAME)
    y = silu(g, g.node("Add", [y, unsqueeze(g, emb, [2, 3], "emb_dims")], name="emb_to"), "act")
    y = g.conv(y, "last", 48, 4, 3, pads=SAME)
    y = g.node("Mul", [y, c_out], name="out_scaled")
    g.output(g.node("Add", [g.node("Mul", [x, c_skip], name="skip_mul"), y], name="skip_add"))


@model("ddim_step_at_high_noise", pins=["a_*", "x0_*", "step_*"], opset=21)
def ddim_step_at_high_noise(g):
    """DDIM at t = 981: x0 = (x - √(1-ᾱ)·ε) / √ᾱ with √ᾱ near 0.07, then the earlier, less noisy sample."""
    alphas = g.const(ddpm_alphas(), "alphas_cumprod")
    x = g.input("x", [1, 4, 24, 24], g.normal(1, 4, 24, 24))
    t = g.input("t", [1], np.int64([981]))
    before = g.node("Sub", [t, g.ints(20)], name="t_before")
    a = g.node("Gather", [alphas, t], name="a_t", axis=0)
    b = g.node("Gather", [alphas, before], name="a_prev", axis=0)
    eps = g.node("Add", [op(g, "Mul", denoiser(g, x, "net"), 0.2, name="eps_scale"), x], name="x0_eps")
    root = g.node("Sqrt", [op(g, "Sub", 1.0, a, name="a_rest")], name="a_rest_root")
    x0 = g.node("Sub", [x, g.node("Mul", [root, eps], name="x0_noise")], name="x0_sub")
    x0 = g.node("Div", [x0, g.node("Sqrt", [a], name="a_root")], name="x0_div")
    direction = g.node("Sqrt", [op(g, "Sub", 1.0, b, name="a_prev_rest")], name="a_prev_rest_root")
    direction = g.node("Mul", [direction, eps], name="step_direction")
    step = g.node("Mul", [x0, g.node("Sqrt", [b], name="a_prev_root")], name="step_x0")
    g.output(g.node("Add", [step, direction], name="step_add"), x0)


@model("ddpm_posterior_variance_log_clamped", pins=["var_*", "noise_*"], pins_bf16=["noise_*"], opset=19)
def ddpm_posterior_variance_log_clamped(g):
    """Ancestral step: learned range between log(max(variance, 1e-20)) and log β, exp of its half, noise."""
    betas = np.linspace(1e-4, 0.02, 1000)
    abar = np.cumprod(1 - betas)
    variance = betas * (1 - np.append(1.0, abar[:-1])) / (1 - abar)
    x = g.input("x", [2, 4, 16, 16], g.normal(2, 4, 16, 16))
    noise = g.input("noise", [2, 4, 16, 16], g.normal(2, 4, 16, 16))
    t = g.input("t", [2], np.int64([0, 30]))
    var = g.node("Gather", [g.const(variance, "posterior_variance"), t], name="var_gather")
    beta = g.node("Gather", [g.const(betas, "betas"), t], name="var_beta")
    low = g.node("Log", [op(g, "Max", var, 1e-20, name="var_max")], name="var_log")
    low = unsqueeze(g, low, [1, 2, 3], "noise_low")
    high = unsqueeze(g, g.node("Log", [beta], name="var_beta_log"), [1, 2, 3], "noise_high")
    y = silu(g, g.conv(x, "in", 4, 48, 3, pads=SAME), "act")
    mean, v = split(g, g.conv(y, "out", 48, 8, 3, pads=SAME), 2, 1, "parts")
    frac = g.node("Sigmoid", [v], name="noise_frac")
    rest = op(g, "Sub", 1.0, frac, name="noise_rest")
    ends = [g.node("Mul", [frac, high], name="noise_up"), g.node("Mul", [rest, low], name="noise_down")]
    lv = g.node("Add", ends, name="noise_logvar")
    std = g.node("Exp", [op(g, "Mul", lv, 0.5, name="noise_half")], name="noise_std")
    g.output(g.node("Add", [mean, g.node("Mul", [std, noise], name="noise_mul")], name="noise_add"), lv)


@model("vae_sample_with_clamped_logvar", pins=[], opset=20)
def vae_sample_with_clamped_logvar(g):
    """Latent diffusion encoder head: mean + exp(logvar / 2)·noise, logvar clamped to [-30, 20]."""
    x = g.input("x", ["batch", 64, 16, 16], g.normal(1, 64, 16, 16))
    noise = g.input("noise", ["batch", 4, 16, 16], g.normal(1, 4, 16, 16))
    h = silu(g, g.conv(x, "in", 64, 64, 3, pads=SAME), "act")
    mean, lv = split(g, g.conv(h, "moments", 64, 8, 3, pads=SAME), 2, 1, "parts")
    lv = op(g, "Clip", lv, -30.0, 20.0, name="clip")
    std = g.node("Exp", [op(g, "Mul", lv, 0.5, name="half")], name="std")
    z = g.node("Add", [mean, g.node("Mul", [std, noise], name="noise_mul")], name="sample")
    g.output(op(g, "Mul", z, 0.18215, name="latent_scale"))


@model("vae_kl_per_dimension", pins=["kl_*"], opset=21)
def vae_kl_per_dimension(g):
    """KL of posteriors near the prior: 0.5·(μ² + exp(logvar) - 1 - logvar), logvar of a few hundredths."""
    x = g.input("x", [32, 128], g.normal(32, 128))
    mean, lv = split(g, mlp(g, x, "enc", [128, 128, 64]), 2, 1, "parts")
    mean, lv = op(g, "Mul", mean, 0.05, name="kl_mean"), op(g, "Mul", lv, 0.08, name="kl_logvar")
    square = g.node("Mul", [mean, mean], name="kl_sq")
    v = g.node("Add", [square, g.node("Exp", [lv], name="kl_exp")], name="kl_add")
    v = g.node("Sub", [op(g, "Sub", v, 1.0, name="kl_minus_one"), lv], name="kl_minus_logvar")
    g.output(op(g, "Mul", v, 0.5, name="kl_half"))


@model("rectified_flow_euler_step", pins=[], opset=19)
def rectified_flow_euler_step(g):
    """Rectified flow: x + dt·v(x) with dt of 1/8, one step, the velocity by a small network."""
    x = g.input("x", ["batch", 4, 24, 24], g.normal(1, 4, 24, 24))
    dt = g.input("dt", [1], np.float32([0.125]))
    v = denoiser(g, x, "net")
    g.output(g.node("Add", [x, g.node("Mul", [v, dt], name="step_mul")], name="step_add"))


@model("dit_block_adaln_zero", pins=[], opset=21)
def dit_block_adaln_zero(g):
    """DiT block: adaptive layer norm, attention and MLP, each gated and added to the residual."""
    x = g.input("x", [1, 64, 96], g.normal(1, 64, 96))
    c = g.input("c", [1, 96], g.normal(1, 96))
    ada = unsqueeze(g, g.linear(silu(g, c, "c"), "ada", 96, 576), [1], "ada_dims")
    parts = split(g, ada, 6, 2, "ada_parts")
    for i, stem in enumerate(("attn", "ffn")):
        shift, scale, gate = parts[3 * i:3 * i + 3]
        y = op(g, "LayerNormalization", x, np.ones(96), name=f"{stem}_ln", epsilon=1e-6)
        y = g.node("Mul", [y, op(g, "Add", scale, 1.0, name=f"{stem}_one")], name=f"{stem}_scale")
        y = g.node("Add", [y, shift], name=f"{stem}_shift")
        if stem == "attn":
            q, k, v = project_qkv(g, y, 3, 32)
            y = attend(g, dot_scores(g, q, k, 32), v, 96)
        else:
            y = mlp(g, y, "mlp", [96, 192, 96], "Gelu")
        x = g.node("Add", [x, g.node("Mul", [gate, y], name=f"{stem}_gate")], name=f"{stem}_residual")
    g.output(x)


@model("classifier_free_guidance_scale_12", pins=["pred_*", "cfg_*"], opset=20)
def classifier_free_guidance_scale_12(g):
    """Guidance: u + 12·(c - u) of two predictions that are nearly the same, from one batch of two."""
    x = g.input("x", [1, 4, 24, 24], g.normal(1, 4, 24, 24))
    ctx = g.input("context", [2, 64], g.normal(2, 64))
    both = g.node("Concat", [x, x], name="twice", axis=0)
    bias = op(g, "Mul", g.linear(ctx, "ctx", 64, 48), 0.05, name="ctx_scale")
    y = g.conv(both, "in", 4, 48, 3, pads=SAME)
    y = silu(g, g.node("Add", [y, unsqueeze(g, bias, [2, 3], "ctx_dims")], name="ctx_to"), "act")
    pred = g.conv(y, "pred", 48, 4, 3, pads=SAME)
    u, c = split(g, pred, 2, 0, "cfg_parts")
    d = op(g, "Mul", g.node("Sub", [c, u], name="cfg_sub"), 12.0, name="cfg_mul")
    g.output(g.node("Add", [u, d], name="cfg_add"))


@model("score_sde_fourier_of_log_sigma", pins=["emb_*"], opset=21)
def score_sde_fourier_of_log_sigma(g):
    """NCSN++: 2π·W·log σ with W of deviation 16, sin and cos, and a score divided by σ as small as 0.01."""
    sigma = g.input("sigma", [3], np.float32([0.01, 0.7, 50.0]))
    x = g.input("x", [3, 4, 16, 16], g.normal(3, 4, 16, 16))
    z = unsqueeze(g, g.node("Log", [sigma], name="log"), [1], "emb_dims")
    z = g.node("MatMul", [z, g.weight("fourier_w", 1, 32, scale=16.0)], name="emb_mm")
    z = op(g, "Mul", z, 2 * np.pi, name="emb_two_pi")
    emb = [g.node("Sin", [z], name="sin"), g.node("Cos", [z], name="cos")]
    emb = g.node("Concat", emb, name="cat", axis=-1)
    emb = unsqueeze(g, mlp(g, emb, "time", [64, 128, 48], "Gelu"), [2, 3], "time_dims")
    y = silu(g, g.node("Add", [g.conv(x, "in", 4, 48, 3, pads=SAME), emb], name="time_add"), "act")
    y = g.conv(y, "out", 48, 4, 3, pads=SAME)
    g.output(g.node("Div", [y, unsqueeze(g, sigma, [1, 2, 3], "sigma_dims")], name="score_div"))


@model("logsnr_cosine_alpha_sigma", pins=["snr_*", "alpha_*", "sigma_*", "x0_*"], opset=18)
def logsnr_cosine_alpha_sigma(g):
    """Progressive distillation: log SNR = -2 log tan(a·t + b) to 18, α² and σ² by sigmoids, x0 = αz - σv."""
    t = g.input("t", [3, 1, 1, 1], np.float32([0.004, 0.4, 0.98]).reshape(3, 1, 1, 1))
    z = g.input("z", [3, 4, 16, 16], g.normal(3, 4, 16, 16))
    low, high = np.arctan(np.exp(-9.0)), np.arctan(np.exp(9.0))
    angle = op(g, "Add", op(g, "Mul", t, high - low, name="snr_mul"), low, name="snr_add")
    snr = g.node("Log", [g.node("Tan", [angle], name="snr_tan")], name="snr_log")
    snr = op(g, "Mul", snr, -2.0, name="snr_twice")
    alpha = g.node("Sqrt", [g.node("Sigmoid", [snr], name="alpha_sq")], name="alpha_root")
    minus = g.node("Neg", [snr], name="sigma_neg")
    sigma = g.node("Sqrt", [g.node("Sigmoid", [minus], name="sigma_sq")], name="sigma_root")
    v = denoiser(g, z, "net")
    parts = [g.node("Mul", [alpha, z], name="x0_z"), g.node("Mul", [sigma, v], name="x0_v")]
    x0 = g.node("Sub", parts, name="x0_sub")
    g.output(x0, sigma)


@model("lcm_boundary_scalings", pins=["scaled_*", "bound_*"], pins_bf16=[], opset=17)
def lcm_boundary_scalings(g):
    """Latent consistency: t·10 squared (1e8) in c_skip = 0.25 / (t² + 0.25) and c_out = t / √(t² + 0.25)."""
    t = g.input("timestep", [2, 1, 1, 1], np.float32([999, 259]).reshape(2, 1, 1, 1))
    x = g.input("x", [2, 4, 16, 16], g.normal(2, 4, 16, 16))
    s = op(g, "Mul", t, 10.0, name="scaled_mul")
    total = op(g, "Add", g.node("Mul", [s, s], name="scaled_sq"), 0.25, name="scaled_add")
    skip = op(g, "Div", 0.25, total, name="bound_skip")
    out = g.node("Div", [s, g.node("Sqrt", [total], name="bound_root")], name="bound_out")
    y = denoiser(g, x, "net")
    parts = [g.node("Mul", [skip, x], name="bound_x"), g.node("Mul", [out, y], name="bound_y")]
    g.output(g.node("Add", parts, name="bound_add"))


@model("dpm_solver_half_logsnr_step", pins=["lam_*", "h_*", "step_*"])
def dpm_solver_half_logsnr_step(g):
    """DPM-Solver++: h = λ_t - λ_s of 0.02, (exp(-h) - 1)·α·x0 as a small step; λ from log α - log σ."""
    alphas = np.float32(np.sqrt(ddpm_alphas()[[400, 396]])).reshape(2, 1, 1, 1)
    alpha = g.input("alpha", [2, 1, 1, 1], alphas)
    x = g.input("x", [1, 4, 24, 24], g.normal(1, 4, 24, 24))
    sigma = g.node("Sqrt", [op(g, "Sub", 1.0, g.node("Mul", [alpha, alpha], name="lam_sq"), name="lam_rest")],
                   name="lam_sigma")
    lam = g.node("Sub", [g.node("Log", [alpha], name="lam_log_a"), g.node("Log", [sigma], name="lam_log_s")],
                 name="lam_sub")
    lam_s, lam_t = split(g, lam, 2, 0, "lam_parts")
    alpha_t, (s_s, s_t) = span(g, alpha, 1, 2, 0, "step_alpha"), split(g, sigma, 2, 0, "step_sigmas")
    h = g.node("Sub", [lam_t, lam_s], name="h_sub")
    phi = op(g, "Sub", g.node("Exp", [g.node("Neg", [h], name="h_neg")], name="h_exp"), 1.0, name="h_phi")
    x0 = denoiser(g, x, "net")
    move = g.node("Mul", [g.node("Mul", [alpha_t, phi], name="step_factor"), x0], name="step_x0")
    kept = g.node("Mul", [g.node("Div", [s_t, s_s], name="step_ratio"), x], name="step_keep")
    new = g.node("Sub", [kept, move], name="step_sub")
    g.output(g.node("Sub", [new, x], name="step_change"))


@model("langevin_corrector_small_step", pins=["alpha_*", "move_*", "noise_*"], opset=17)
def langevin_corrector_small_step(g):
    """Annealed Langevin: α = 2e-5·(σ/σ_L)², x + α·score + √(2α)·noise, at the smallest noise levels."""
    sigma = g.input("sigma", [2, 1, 1, 1], np.float32([0.012, 0.01]).reshape(2, 1, 1, 1))
    x = g.input("x", [2, 4, 16, 16], g.normal(2, 4, 16, 16, scale=0.5))
    noise = g.input("noise", [2, 4, 16, 16], g.normal(2, 4, 16, 16))
    ratio = op(g, "Div", sigma, 0.01, name="alpha_ratio")
    alpha = op(g, "Mul", g.node("Mul", [ratio, ratio], name="alpha_sq"), 2e-5, name="alpha_mul")
    score = g.node("Div", [denoiser(g, x, "net"), sigma], name="move_score")
    std = g.node("Sqrt", [op(g, "Mul", alpha, 2.0, name="alpha_twice")], name="alpha_root")
    parts = [g.node("Mul", [alpha, score], name="move_mul"), g.node("Mul", [std, noise], name="noise_mul")]
    move = g.node("Add", parts, name="move_add")
    g.output(g.node("Add", [x, move], name="move_x"), move)


@model("unet_resblock_with_skip", pins=[], opset=17)
def unet_resblock_with_skip(g):
    """U-Net up block: concatenated skip, group norm by reshapes, SiLU, convolutions, 1x1 shortcut."""
    x = g.input("x", [1, 64, 12, 12], g.normal(1, 64, 12, 12))
    skip = g.input("skip", [1, 32, 24, 24], g.normal(1, 32, 24, 24))
    up = g.node("Resize", [x, "", g.const([1.0, 1, 2, 2])], name="resize", mode="nearest")
    x = g.node("Concat", [g.conv(up, "up", 64, 64, 3, pads=SAME), skip], name="cat", axis=1)
    y = reshape(g, x, [0, 8, -1], "groups")
    y = op(g, "InstanceNormalization", y, np.ones(8), np.zeros(8), name="norm")
    y = reshape(g, y, [1, 96, 24, 24], "ungroup")
    y = op(g, "Mul", y, 1 + g.normal(96, 1, 1, scale=0.1), name="norm_gain")
    y = g.conv(silu(g, y, "act"), "body", 96, 48, 3, pads=SAME)
    g.output(g.node("Add", [y, g.conv(x, "shortcut", 96, 48, 1)], name="residual"))


@model("min_snr_weighted_loss_map", pins=["snr_*"], opset=18)
def min_snr_weighted_loss_map(g):
    """Min-SNR weights: min(ᾱ / (1 - ᾱ), 5) / SNR, SNR from 5e-5 to 1e4, times the squared error per pixel."""
    abar = ddpm_alphas()[[0, 120, 500, 999]]
    abar = g.input("alphas_cumprod", [4, 1, 1, 1], abar.astype(np.float32).reshape(4, 1, 1, 1))
    x = g.input("x", [4, 4, 16, 16], g.normal(4, 4, 16, 16))
    noise = g.input("noise", [4, 4, 16, 16], g.normal(4, 4, 16, 16))
    snr = g.node("Div", [abar, op(g, "Sub", 1.0, abar, name="snr_rest")], name="snr_div")
    w = g.node("Div", [op(g, "Min", snr, 5.0, name="snr_min"), snr], name="snr_weight")
    err = g.node("Sub", [denoiser(g, x, "net"), noise], name="err_sub")
    err = reduce(g, "ReduceMean", g.node("Mul", [err, err], name="err_sq"), [1], "err_mean")
    g.output(g.node("Mul", [err, w], name="loss_mul"))
