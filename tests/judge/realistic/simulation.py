"""Science and simulation."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, cast, constant, mlp, op, reduce, reshape, silu, span, split, unsqueeze


@model("heat_equation_scan_of_learned_conductivity_kelvin", opset=16, pins=["scan", "scan/*", "field"],
       pins_bf16=["scan", "scan/*", "field", "k_scale"])
def _(g):
    """A conductivity from a small CNN; explicit diffusion of temperatures near 300 K in a Scan of 40 steps."""
    yy, xx = np.mgrid[:32, :32]
    t0 = 293 + 40 * np.exp(-((yy - 12) ** 2 + (xx - 18) ** 2) / 40)
    t = g.input("temperature", [1, 1, 32, 32], t0[None, None].astype(np.float32))
    mat = g.input("material", [1, 4, 32, 32], (g.rng.random((1, 4, 32, 32)) < 0.3).astype(np.float32))
    h = g.node("Relu", [g.conv(mat, "m1", 4, 64, 3, pads=[1] * 4)], name="relu1")
    h = g.node("Relu", [g.conv(h, "m2", 64, 64, 3, pads=[1] * 4)], name="relu2")
    k = op(g, "Mul", g.node("Sigmoid", [g.conv(h, "m3", 64, 1, 1)], name="k_sig"), 0.2, name="k_scale")
    body = Body(g, "heat")
    s, q = body.entry("s", [1, 1, 32, 32]), body.entry("q", [1])
    pad = body.node("Pad", [s, body.ints(0, 0, 1, 1, 0, 0, 1, 1)], name="edge", mode="edge")
    lap = body.node("Conv", [pad, body.const([[[[0, 1, 0], [1, -4, 1], [0, 1, 0]]]])], name="laplacian")
    n = op(body, "Add", op(body, "Add", s, body.node("Mul", [k, lap], name="flux"), name="step"), q, name="heated")
    e = body.node("ReduceMean", [n], name="mean_t", keepdims=0)
    src = g.const(np.full((40, 1), 0.01), "sources")
    final, trace = g.node("Scan", [t, src], name="scan", outputs=2, num_scan_inputs=1,
                          body=body.graph((n, [1, 1, 32, 32]), (e, [])))
    g.output(reshape(g, final, [1, 1, 32, 32], "field"), trace)


@model("fourier_neural_operator_darcy_with_grid_channels", opset=17, pins=["dft_*", "spec_*", "idft_*"],
       pins_bf16=["dft_*", "spec_*", "idft_*", "unnorm*"])
def _(g):
    """FNO 1-D (Burgers): grid channel, DFT, 12 modes multiplied by complex weights, inverse, two layers."""
    n, c, k = 128, 32, 12
    x = np.linspace(0, 1, n, endpoint=False)
    u = sum(np.sin(2 * np.pi * i * x + g.rng.random()) / i for i in range(1, 6))[None, None]
    a = g.input("u", [1, 1, n], u.astype(np.float32))
    h = g.node("Concat", [a, g.const(x[None, None], "grid")], name="with_grid", axis=1)
    h = g.conv(h, "lift", 2, c, 1, dims=1)
    for l in range(2):
        f = g.node("DFT", [unsqueeze(g, h, [3], f"dft_u{l}")], name=f"dft_{l}", axis=2)
        re, im = [reshape(g, g.node("Slice", [f, g.ints(0, p), g.ints(k, p + 1), g.ints(2, 3)], name=f"dft_{l}_{s}"),
                          [1, c, k], f"dft_{l}_{s}_r") for p, s in ((0, "re"), (1, "im"))]
        wr, wi = (g.const(g.normal(c, c, k, scale=0.15), f"w{s}{l}") for s in "ri")
        def ein(p, w, name):
            return g.node("Einsum", [p, w], name=f"spec_{name}{l}", equation="bix,iox->box")
        rr = op(g, "Sub", ein(re, wr, "rr"), ein(im, wi, "ii"), name=f"spec_re{l}")
        ii = op(g, "Add", ein(re, wi, "ri"), ein(im, wr, "ir"), name=f"spec_im{l}")
        s = g.node("Concat", [unsqueeze(g, rr, [3], f"spec_ru{l}"), unsqueeze(g, ii, [3], f"spec_iu{l}")],
                   name=f"spec_cat{l}", axis=3)
        s = g.node("Pad", [s, g.ints(0, 0, 0, 0, 0, 0, n - k, 0)], name=f"spec_pad{l}")
        y = g.node("DFT", [s], name=f"idft_{l}", axis=2, inverse=1)
        y = op(g, "Mul", reshape(g, span(g, y, 0, 1, 3, f"idft_re{l}"), [1, c, n], f"idft_r{l}"), 2.0, name=f"idft_x2{l}")
        h = silu(g, op(g, "Add", y, g.conv(h, f"w{l}", c, c, 1, dims=1), name=f"sum{l}"), f"act{l}")
    y = g.conv(silu(g, g.conv(h, "q1", c, 64, 1, dims=1), "q1"), "q2", 64, 1, 1, dims=1)
    g.output(op(g, "Add", op(g, "Mul", y, 0.8, name="unnorm_std"), 0.02, name="unnorm_mean"))


@model("deeponet_pod_basis_pressure_field_in_pascal", opset=13, pins=["branch_in*", "pod*", "mean_field"],
       pins_bf16=["branch_in*", "pod*", "mean_field", "combine"])
def _(g):
    """POD-DeepONet: coefficients by the branch, POD modes of 1024 points, an output of 101325 Pa ± some hundreds."""
    u = g.input("inflow_ms", ["n", 50], np.abs(10 + np.cumsum(g.normal(4, 50, scale=0.5), 1)))
    b = op(g, "Div", op(g, "Sub", u, 10.0, name="branch_in_sub"), 3.0, name="branch_in_div")
    b = mlp(g, b, "branch", [50, 128, 128, 24], "Tanh")
    y = mlp(g, g.input("xy", [256, 2], g.uniform(0, 1, 256, 2)), "trunk", [2, 128, 128, 24], "Tanh")
    c = g.node("MatMul", [b, g.node("Transpose", [y], name="trunk_t", perm=[1, 0])], name="combine")
    p = op(g, "Mul", c, 180.0, name="pod_scale")
    g.output(op(g, "Add", p, 101325 + 120 * np.sin(np.linspace(0, 6, 256)), name="mean_field"))


@model("pinn_fourier_features_wave_residual_stencil", opset=17,
       pins=["coords*", "ff_*", "d2*", "residual*", "u_*"])
def _(g):
    """A PINN evaluated at x±h: second differences of its output over h² with h = 0.01 as the residual."""
    n, h = 64, 0.01
    x = g.input("xt", [n, 2], g.uniform(0, 1, n, 2))
    off = np.array([[0, 0], [h, 0], [-h, 0], [0, h], [0, -h]], np.float32)
    p = op(g, "Add", unsqueeze(g, x, [1], "coords_u"), off, name="coords_stencil")
    a = op(g, "Mul", g.node("MatMul", [p, g.weight("bmat", 2, 64, scale=1.0)], name="ff_mm"), 2 * np.pi, name="ff_angle")
    f = g.node("Concat", [g.node("Sin", [a], name="ff_sin"), g.node("Cos", [a], name="ff_cos")], name="ff_cat", axis=-1)
    for i, (a_, b_) in enumerate(((128, 64), (64, 64))):
        f = g.node("Tanh", [g.linear(f, f"u_fc{i}", a_, b_)], name=f"u_tanh{i}")
    u = g.linear(f, "u_out", 64, 1)
    w = np.array([[-2, 1, 1, 0, 0], [-2, 0, 0, 1, 1]], np.float32) / h**2
    u = g.node("Squeeze", [u, g.ints(2)], name="u_flat")
    d = g.node("Gemm", [u, g.const(w, "fd_weights")], name="d2_gemm", transB=1)
    dx, dt = g.node("Split", [d], name="d2_split", outputs=2, axis=1)
    g.output(op(g, "Sub", dt, op(g, "Mul", dx, 1.0, name="residual_c2"), name="residual"), u)


@model("learned_subgrid_navier_stokes_projection_step", opset=16,
       pins=["adv_*", "visc*", "u_new", "div*", "p_*", "grad*", "project*", "closure_scale"])
def _(g):
    """u* = u + dt(-u·∇u + νΔu + a CNN's closure), 30 Jacobi sweeps of the pressure, and the projection, on 32²."""
    n, dt, dx = 32, 0.01, 1 / 32
    yy, xx = np.mgrid[:n, :n] * 2 * np.pi / n
    vel = np.stack([np.sin(xx) * np.cos(yy), -np.cos(xx) * np.sin(yy)])[None].astype(np.float32)
    u = g.input("velocity", [1, 2, n, n], vel + g.normal(1, 2, n, n, scale=0.02))
    h = g.node("Relu", [g.conv(u, "c1", 2, 64, 3, pads=[1] * 4)], name="relu1")
    h = g.node("Relu", [g.conv(h, "c2", 64, 64, 3, pads=[1] * 4)], name="relu2")
    closure = op(g, "Mul", g.conv(h, "c3", 64, 2, 3, pads=[1] * 4), 0.1, name="closure_scale")

    def wrap(a, tag):
        a = g.node("Concat", [span(g, a, -1, 2**31 - 1, 3, f"{tag}_w0"), a, span(g, a, 0, 1, 3, f"{tag}_w1")],
                   name=f"{tag}_wx", axis=3)
        return g.node("Concat", [span(g, a, -1, 2**31 - 1, 2, f"{tag}_h0"), a, span(g, a, 0, 1, 2, f"{tag}_h1")],
                      name=f"{tag}_wy", axis=2)
    gx = np.array([[0, 0, 0], [-1, 0, 1], [0, 0, 0]], np.float32) / (2 * dx)
    lap = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32) / dx**2
    k = np.stack([gx, gx.T, lap])
    k = np.concatenate([k, k])[:, None]
    d = g.node("Conv", [wrap(u, "adv"), g.const(k, "stencils")], name="adv_conv", group=2)
    ux, uy, ul, vx, vy, vl = g.node("Split", [d], name="adv_split", outputs=6, axis=1)
    a, b = g.node("Split", [u], name="adv_uv", outputs=2, axis=1)
    def adv(fx, fy, tag):
        return op(g, "Add", op(g, "Mul", a, fx, name=f"adv_{tag}x"), op(g, "Mul", b, fy, name=f"adv_{tag}y"),
                  name=f"adv_{tag}")
    ad = g.node("Concat", [adv(ux, uy, "u"), adv(vx, vy, "v")], name="adv_cat", axis=1)
    visc = op(g, "Mul", g.node("Concat", [ul, vl], name="visc_cat", axis=1), 1e-3, name="visc")
    rhs = op(g, "Add", op(g, "Sub", visc, ad, name="adv_rhs"), closure, name="adv_closure")
    us = op(g, "Add", u, op(g, "Mul", rhs, dt, name="adv_dt"), name="u_new")
    kd = np.stack([gx, gx.T])[None]
    div = g.node("Conv", [wrap(us, "div"), g.const(kd, "k_div")], name="div_conv")
    rhs_p = op(g, "Mul", div, -dx * dx / 4, name="div_scaled")
    p = op(g, "Mul", rhs_p, 1.0, name="p_0")
    kn = g.const(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32)[None, None] / 4, "k_jacobi")
    for i in range(10):
        p = op(g, "Add", g.node("Conv", [wrap(p, f"p_{i}"), kn], name=f"p_sweep{i}"), rhs_p, name=f"p_add{i}")
    gp = g.node("Conv", [wrap(p, "grad"), g.const(np.stack([gx, gx.T])[:, None], "k_grad")], name="grad_conv")
    g.output(op(g, "Sub", us, gp, name="project"))


@model("lorenz_rk4_loop_with_neural_correction", opset=23, pins=["loop/*rk_*", "loop/*corr_scale", "track"])
def _(g):
    """Lorenz-63 by RK4 with dt = 0.01 in a Loop, with a small learned tendency correction (an MLP of 128)."""
    x = g.input("state", ["n", 3], np.array([[1.5, -3.2, 22.0], [-8.1, -9.0, 25.5], [5, 4, 30]], np.float32))
    body = Body(g, "lorenz")
    body.entry("i", [], TensorProto.INT64)
    body.entry("go", [], TensorProto.BOOL)
    s = body.entry("s", ["n", 3])

    def f(v, tag):
        a, b, c = body.node("Split", [v], name=f"rk_{tag}_xyz", outputs=3, axis=1, num_outputs=3)
        dx = op(body, "Mul", op(body, "Sub", b, a, name=f"rk_{tag}_yx"), 10.0, name=f"rk_{tag}_dx")
        dy = op(body, "Sub", op(body, "Mul", a, op(body, "Sub", 28.0, c, name=f"rk_{tag}_rho"), name=f"rk_{tag}_ar"), b,
                name=f"rk_{tag}_dy")
        dz = op(body, "Sub", op(body, "Mul", a, b, name=f"rk_{tag}_ab"), op(body, "Mul", c, 8 / 3, name=f"rk_{tag}_bc"),
                name=f"rk_{tag}_dz")
        return body.node("Concat", [dx, dy, dz], name=f"rk_{tag}_d", axis=1)

    h = body.node("Tanh", [body.linear(op(body, "Mul", s, 0.04, name="corr_in"), "c1", 3, 128)], name="corr_t1")
    h = body.node("Tanh", [body.linear(h, "c2", 128, 128)], name="corr_t2")
    corr = op(body, "Mul", body.linear(h, "c3", 128, 3), 0.05, name="corr_scale")
    k1 = body.node("Add", [f(s, "k1"), corr], name="rk_k1")
    k2 = f(op(body, "Add", s, op(body, "Mul", k1, 0.005, name="rk_h1"), name="rk_s1"), "k2")
    k3 = f(op(body, "Add", s, op(body, "Mul", k2, 0.005, name="rk_h2"), name="rk_s2"), "k3")
    k4 = f(op(body, "Add", s, op(body, "Mul", k3, 0.01, name="rk_h3"), name="rk_s3"), "k4")
    mid = op(body, "Mul", body.node("Add", [k2, k3], name="rk_23"), 2.0, name="rk_2x")
    total = body.node("Sum", [k1, mid, k4], name="rk_sum")
    n = op(body, "Add", s, op(body, "Mul", total, 0.01 / 6, name="rk_dt"), name="rk_next")
    go, out = body.node("Identity", ["go"], name="go_on"), body.node("Identity", [n], name="rk_emit")
    _, track = g.node("Loop", [g.const(30, dtype=np.int64), g.const(True, dtype=bool), x], name="loop", outputs=2,
                      body=body.graph((go, [], TensorProto.BOOL), (n, ["n", 3]), (out, ["n", 3])))
    g.output(reshape(g, track, [30, -1, 3], "track"))


@model("kepler_solver_newton_then_drag_network", opset=15,
       pins=["t_*", "mean_*", "kep*", "pos*", "r_*", "alt*", "phase*"])
def _(g):
    """Two-line elements: mean anomaly n·t over days in seconds, Newton for Kepler, km positions, a density network."""
    el = np.array([[6878, 0.0012, 0.4], [7178, 0.01, 2.1], [26560, 0.02, 5.5], [24400, 0.71, 1.0]], np.float32)
    e = g.input("elements", ["n", 3], el)
    t = g.input("t_seconds", ["n", 1], np.array([[3600.0], [86400], [172_800], [40_000]], np.float32))
    a, ecc, m0 = g.node("Split", [e], name="kep_split", outputs=3, axis=1)
    n = g.node("Sqrt", [op(g, "Div", 398600.44, op(g, "Pow", a, 3.0, name="mean_a3"), name="mean_mu")], name="mean_motion")
    m = op(g, "Add", m0, op(g, "Mul", n, t, name="t_phase"), name="mean_anomaly")
    turns = g.node("Floor", [op(g, "Div", m, 2 * np.pi, name="phase_turns")], name="phase_floor")
    m = op(g, "Sub", m, op(g, "Mul", turns, 2 * np.pi, name="phase_whole"), name="phase_wrapped")
    x = g.node("Identity", [m], name="kep_0")
    for i in range(5):
        f = op(g, "Sub", op(g, "Sub", x, op(g, "Mul", ecc, g.node("Sin", [x], name=f"kep_sin{i}"), name=f"kep_es{i}"),
                            name=f"kep_a{i}"), m, name=f"kep_f{i}")
        d = op(g, "Sub", 1.0, op(g, "Mul", ecc, g.node("Cos", [x], name=f"kep_cos{i}"), name=f"kep_ec{i}"),
               name=f"kep_d{i}")
        x = op(g, "Sub", x, op(g, "Div", f, d, name=f"kep_q{i}"), name=f"kep_x{i}")
    c, s = g.node("Cos", [x], name="pos_cos"), g.node("Sin", [x], name="pos_sin")
    px = op(g, "Mul", a, op(g, "Sub", c, ecc, name="pos_ce"), name="pos_x")
    root = g.node("Sqrt", [op(g, "Sub", 1.0, op(g, "Mul", ecc, ecc, name="pos_e2"), name="pos_1e2")], name="pos_b")
    py = op(g, "Mul", op(g, "Mul", a, root, name="pos_ab"), s, name="pos_y")
    r = op(g, "Mul", a, op(g, "Sub", 1.0, op(g, "Mul", ecc, c, name="r_ec"), name="r_1"), name="r_km")
    alt = op(g, "Div", op(g, "Sub", r, 6378.137, name="alt_km"), 1000.0, name="alt_scaled")
    la = g.node("Log", [op(g, "Max", alt, 0.1, name="alt_floor")], name="alt_log")
    f = g.node("Concat", [la, c, s], name="features", axis=1)
    g.output(mlp(g, f, "rho", [3, 128, 128, 1], "Tanh"), g.node("Concat", [px, py], name="pos_xy", axis=1))


@model("robertson_stiff_rates_by_log_concentrations", opset=17, pins=["log_*", "k_*", "rate*", "dc*", "c_*", "arr_*"])
def _(g):
    """Reaction network: rate constants of 1e-13 to 1e9 by log10 Arrhenius, concentrations in mol/cm³, an MLP in logs."""
    c = np.exp(g.rng.uniform(np.log(1e-9), np.log(1e-4), (16, 8))).astype(np.float32)
    x = g.input("conc", ["n", 8], c)
    t = g.input("T_kelvin", ["n", 1], g.uniform(900, 2400, 16, 1))
    lx = g.node("Log", [op(g, "Max", x, 1e-20, name="log_floor")], name="log_c")
    arr = op(g, "Div", 1.0, op(g, "Mul", t, 8.314, name="arr_rt"), name="arr_inv")
    ea, ln_a, b = g.uniform(2e4, 1.6e5, 1, 12), g.uniform(5, 25, 1, 12), g.uniform(-0.5, 1, 1, 12)
    lk = op(g, "Sub", op(g, "Add", op(g, "Mul", g.node("Log", [t], name="log_t"), b, name="k_tb"), ln_a, name="k_a"),
            op(g, "Mul", arr, ea, name="arr_exponent"), name="k_log")
    nu = (g.rng.random((8, 12)) < 0.25).astype(np.float32)
    lr = op(g, "Add", g.node("MatMul", [lx, g.const(nu, "orders")], name="rate_orders"), lk, name="rate_log")
    r = g.node("Exp", [lr], name="rate")
    st = g.rng.choice([-1.0, 0, 0, 1], (12, 8)).astype(np.float32)
    dc = g.node("MatMul", [r, g.const(st, "stoichiometry")], name="dc_dt")
    z = op(g, "Div", op(g, "Add", lx, 15.0, name="c_centre"), 3.5, name="c_unit")
    tz = op(g, "Div", op(g, "Sub", t, 1650.0, name="arr_t_centre"), 430.0, name="arr_t_unit")
    h = mlp(g, g.node("Concat", [z, tz], name="c_features", axis=1), "net", [9, 128, 128, 8], "Tanh")
    g.output(dc, g.node("Exp", [op(g, "Add", lx, op(g, "Mul", h, 0.1, name="log_step"), name="log_next")],
                        name="c_next"))


@model("gaussian_process_rbf_conjugate_gradient_posterior", opset=16,
       pins=["sq_*", "d2*", "k_*", "cg_*", "post*", "cross*"],
       pins_bf16=["fc1_*", "sq_*", "d2*", "k_*", "cg_*", "post*", "cross*"])
def _(g):
    """Deep-kernel GP: an MLP's features, the RBF kernel by the expanded square, 12 CG steps for α, the mean."""
    n, m = 96, 16
    xt, xq = g.normal(n, 12), g.normal(m, 12)
    tr, q = g.input("train", [n, 12], xt), g.input("query", ["q", 12], xq)
    y = g.input("targets", [n, 1], np.sin(xt[:, :1] * 2) + g.normal(n, 1, scale=0.05))
    w = [g.weight("w0", 12, 128), g.weight("w1", 128, 8)]
    def feat(x, tag):
        h = g.node("Tanh", [g.node("MatMul", [x, w[0]], name=f"fc0_{tag}")], name=f"tanh_{tag}")
        return g.node("MatMul", [h, w[1]], name=f"fc1_{tag}")
    a, b = feat(tr, "t"), feat(q, "q")
    def rbf(u, v, tag):
        u2 = g.node("ReduceSum", [op(g, "Mul", u, u, name=f"sq_u_{tag}"), g.ints(1)], name=f"sq_su_{tag}")
        v2 = g.node("ReduceSum", [op(g, "Mul", v, v, name=f"sq_v_{tag}"), g.ints(1)], name=f"sq_sv_{tag}")
        cross = g.node("MatMul", [u, g.node("Transpose", [v], name=f"cross_t_{tag}", perm=[1, 0])], name=f"cross_{tag}")
        d = op(g, "Sub", op(g, "Add", u2, g.node("Transpose", [v2], name=f"sq_t_{tag}", perm=[1, 0]), name=f"d2_s_{tag}"),
               op(g, "Mul", cross, 2.0, name=f"cross2_{tag}"), name=f"d2_{tag}")
        d = g.node("Relu", [d], name=f"d2_relu_{tag}")
        return g.node("Exp", [op(g, "Mul", d, -0.5, name=f"k_half_{tag}")], name=f"k_exp_{tag}")
    k = op(g, "Add", rbf(a, a, "tt"), 0.01 * np.eye(n), name="k_noise")
    x, r, p = g.const(np.zeros((n, 1))), y, y
    rs = g.node("ReduceSum", [op(g, "Mul", r, r, name="cg_rr"), g.ints(0)], name="cg_rs")
    for i in range(12):
        ap = g.node("MatMul", [k, p], name=f"cg_kp{i}")
        den = g.node("ReduceSum", [op(g, "Mul", p, ap, name=f"cg_pap{i}"), g.ints(0)], name=f"cg_den{i}")
        al = op(g, "Div", rs, den, name=f"cg_alpha{i}")
        x = op(g, "Add", x, op(g, "Mul", al, p, name=f"cg_ap{i}"), name=f"cg_x{i}")
        r = op(g, "Sub", r, op(g, "Mul", al, ap, name=f"cg_aap{i}"), name=f"cg_r{i}")
        new = g.node("ReduceSum", [op(g, "Mul", r, r, name=f"cg_rr{i}"), g.ints(0)], name=f"cg_rs{i}")
        p = op(g, "Add", r, op(g, "Mul", op(g, "Div", new, rs, name=f"cg_beta{i}"), p, name=f"cg_bp{i}"), name=f"cg_p{i}")
        rs = new
    g.output(g.node("MatMul", [rbf(b, a, "qt"), x], name="post_mean"))


@model("pangu_like_weather_patch_embed_of_geopotential", opset=17,
       pins=["z_*", "out_*", "resid"], pins_bf16=["z_*", "out_*", "resid"])
def _(g):
    """Geopotential (5e4 m²/s²), mean pressure (1e5 Pa), temperature, humidity (1e-3): standardised, patched, restored."""
    mean = np.array([54000, 101000, 274, 0.003, 3.0], np.float32)[None, :, None, None]
    std = np.array([3300, 1300, 21, 0.0025, 8.0], np.float32)[None, :, None, None]
    yy, xx = np.mgrid[:32, :64] / 8
    base = np.stack([np.sin(xx + i) * np.cos(yy * (1 + 0.2 * i)) for i in range(5)])[None]
    f = (mean + std * (base + 0.05 * g.normal(1, 5, 32, 64))).astype(np.float32)
    x = g.input("fields", [1, 5, 32, 64], np.maximum(f, np.array([0, 0, 0, 1e-6, -99])[None, :, None, None]).astype(np.float32))
    z = op(g, "Div", op(g, "Sub", x, mean, name="z_sub"), std, name="z_div")
    h = g.conv(z, "patch", 5, 96, 4, strides=[4, 4])
    t = g.node("Transpose", [reshape(g, h, [1, 96, 128], "tok")], name="tokens", perm=[0, 2, 1])
    u = g.layer_norm(t, "n1", 96)
    u = g.linear(silu(g, g.linear(u, "f1", 96, 256), "f"), "f2", 256, 96)
    t = op(g, "Add", t, u, name="res")
    h = reshape(g, g.node("Transpose", [t], name="back", perm=[0, 2, 1]), [1, 96, 8, 16], "map")
    y = g.node("ConvTranspose", [h, g.weight("up_w", 96, 5, 4, 4, scale=0.03)], name="recover", strides=[4, 4])
    g.output(op(g, "Add", x, op(g, "Mul", y, std * 0.1, name="out_tendency"), name="resid"))


@model("photometric_redshift_asinh_magnitudes_of_fluxes", opset=14, pins=["lup_*", "colour*", "z_*", "ext*"])
def _(g):
    """SDSS luptitudes: -2.5/ln10·(asinh(f/2b)+ln b) of fluxes of 1e-12 to 1e-8, colours, and a mixture of redshifts."""
    flux = np.exp(g.rng.uniform(np.log(2e-11), np.log(1e-8), (16, 1)) + g.rng.normal(0, 0.6, (16, 5)).cumsum(1) * 0.5)
    f = g.input("flux_maggies", ["n", 5], flux.astype(np.float32))
    ebv = g.input("ebv", ["n", 1], g.uniform(0.01, 0.2, 16, 1))
    b = np.array([1.4e-10, 0.9e-10, 1.2e-10, 1.8e-10, 7.4e-10])
    a = g.node("Asinh", [op(g, "Div", f, 2 * b, name="lup_ratio")], name="lup_asinh")
    m = op(g, "Mul", op(g, "Add", a, np.log(b), name="lup_logb"), -2.5 / np.log(10), name="lup_mag")
    m = op(g, "Sub", m, op(g, "Mul", ebv, np.array([4.24, 3.3, 2.3, 1.7, 1.26]), name="ext_coeff"), name="ext_mag")
    c = op(g, "Sub", span(g, m, 0, 4, 1, "colour_a"), span(g, m, 1, 5, 1, "colour_b"), name="colour")
    r = op(g, "Div", op(g, "Sub", span(g, m, 2, 3, 1, "lup_r"), 20.0, name="lup_r_centre"), 2.0, name="lup_r_unit")
    h = mlp(g, g.node("Concat", [c, r], name="feat", axis=1), "net", [5, 128, 128, 30])
    p = g.node("Softmax", [h], name="z_pdf", axis=-1)
    g.output(g.node("MatMul", [p, g.const(np.linspace(0.02, 3.0, 30)[:, None], "z_grid")], name="z_mean"), p)


@model("natural_cubic_spline_interpolation_of_tables", opset=16,
       pins=["u_*", "bin*", "dx*", "poly*", "coef_*"])
def _(g):
    """EAM-like tabulated functions: radius to a bin of 1000 by Floor, cubic coefficients gathered, Horner, a network."""
    r = g.input("r_angstrom", ["n", 24], g.uniform(1.8, 6.2, 16, 24))
    u = op(g, "Div", op(g, "Sub", r, 1.5, name="u_sub"), 0.005, name="u_div")
    lo = op(g, "Clip", g.node("Floor", [u], name="u_floor"), 0.0, 998.0, name="u_clip")
    idx = cast(g, lo, "bin", TensorProto.INT64)
    dx = op(g, "Sub", u, lo, name="dx")
    x = 1.5 + 0.005 * np.arange(1000)
    f = 4 * ((2.3 / x) ** 12 - (2.3 / x) ** 6)
    d1, d2 = np.gradient(f), np.gradient(np.gradient(f))
    tab = np.stack([f, d1, d2 / 2, np.gradient(d2) / 6], 1)
    c = g.node("Gather", [g.const(tab, "table"), idx], name="coef_take", axis=0)
    c0, c1, c2, c3 = [g.node("Squeeze", [p, g.ints(2)], name=f"coef_{i}")
                      for i, p in enumerate(g.node("Split", [c], name="coef_split", outputs=4, axis=2))]
    y = op(g, "Add", op(g, "Mul", c3, dx, name="poly_3"), c2, name="poly_3a")
    y = op(g, "Add", op(g, "Mul", y, dx, name="poly_2"), c1, name="poly_2a")
    y = op(g, "Add", op(g, "Mul", y, dx, name="poly_1"), c0, name="poly_1a")
    pair = g.node("ReduceSum", [y, g.ints(1)], name="poly_energy")
    z = op(g, "Div", op(g, "Sub", r, 4.0, name="u_centre"), 1.27, name="u_std")
    g.output(op(g, "Add", op(g, "Mul", mlp(g, z, "net", [24, 128, 128, 1], "Tanh"), 0.2, name="net_scale"), pair,
                name="poly_total"))
