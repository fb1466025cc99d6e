"""Science: physics-informed nets, atoms, weather fields, radiation, graphs, equations in time."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import Body, mlp, op, reduce, reshape, silu, span, unsqueeze


def atoms(g, n, size):
    """Positions of n atoms in a box of that size in ångström, none nearer than about 1.2."""
    side = int(np.ceil(n ** (1 / 3)))
    cells = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3)[:n]
    return ((cells + 0.5) * size / side + g.uniform(-0.3, 0.3, n, 3)).astype(np.float32)


def pairwise(g, x, stem):
    """Differences x_i - x_j of positions [N, 3], [N, N, 3]."""
    return g.node(
        "Sub", [unsqueeze(g, x, [1], f"{stem}_i"), unsqueeze(g, x, [0], f"{stem}_j")], name=f"{stem}_sub"
    )


@model("pinn_burgers_tanh_forward_derivatives", pins=[])
def pinn_burgers_tanh_forward_derivatives(g):
    """Physics-informed net for Burgers: u, u_t, u_x, u_xx by chain rule through tanh, the residual."""
    tx = g.input("tx", ["n", 2], np.stack([g.uniform(0, 1, 200), g.uniform(-1, 1, 200)], 1))
    w0 = g.normal(2, 64)
    h = g.node(
        "Tanh",
        [op(g, "Add", g.node("MatMul", [tx, g.const(w0, "w0")], name="mm0"), g.normal(64), name="b0")],
        name="h",
    )
    slope = op(g, "Sub", 1.0, g.node("Mul", [h, h], name="h2"), name="slope")
    bend = g.node("Mul", [op(g, "Mul", h, -2.0, name="minus_two"), slope], name="bend")
    w1 = g.weight("w1", 64, 1)
    u = g.node("MatMul", [h, w1], name="u_mm")
    ut = g.node("MatMul", [op(g, "Mul", slope, w0[0], name="ht"), w1], name="ut_mm")
    ux = g.node("MatMul", [op(g, "Mul", slope, w0[1], name="hx"), w1], name="ux_mm")
    uxx = g.node("MatMul", [op(g, "Mul", bend, w0[1] ** 2, name="hxx"), w1], name="uxx_mm")
    left = g.node("Add", [ut, g.node("Mul", [u, ux], name="advect")], name="left")
    g.output(u, g.node("Sub", [left, op(g, "Mul", uxx, 0.01 / np.pi, name="viscous")], name="residual"))


@model("siren_first_layer_omega_30", pins=["first_*"], opset=17)
def siren_first_layer_omega_30(g):
    """SIREN of an image: sin(30(Wx + b)) of pixel coordinates scaled to ±1, two hidden sine layers."""
    xy = g.input("pixels", ["n", 2], g.rng.integers(0, 1024, (300, 2)).astype(np.float32))
    xy = op(g, "Sub", op(g, "Div", xy, 511.5, name="first_div"), 1.0, name="first_sub")
    w = g.const(g.uniform(-0.5, 0.5, 2, 96), "first_w")
    h = g.node("Gemm", [xy, w, g.const(g.uniform(-0.7, 0.7, 96))], name="first_gemm")
    h = g.node("Sin", [op(g, "Mul", h, 30.0, name="first_omega")], name="sin0")
    for i in (1, 2):
        bound = (6 / 96) ** 0.5 / 30
        h = g.node("MatMul", [h, g.const(g.uniform(-bound, bound, 96, 96), f"w{i}")], name=f"mm{i}")
        h = g.node("Sin", [op(g, "Mul", h, 30.0, name=f"omega{i}")], name=f"sin{i}")
    g.output(g.linear(h, "rgb", 96, 3))


@model("schnet_gaussian_smearing_of_positions", pins=["pos_*", "rbf_*"])
def schnet_gaussian_smearing_of_positions(g):
    """SchNet: distances of atoms in ångström, Gaussians exp(-10 (d - mu)²), filters, messages."""
    r = g.input("positions", [40, 3], atoms(g, 40, 9.0) + np.float32(35.0))
    x = g.input("features", [40, 64], g.normal(40, 64))
    diff = pairwise(g, r, "pos")
    square = reduce(g, "ReduceSum", g.node("Mul", [diff, diff], name="pos_square"), [2], "d2")
    d = g.node("Sqrt", [op(g, "Add", square, 1e-12, name="pos_eps")], name="pos_sqrt")
    gap = op(g, "Sub", d, np.linspace(0, 8, 48), name="rbf_sub")
    rbf = g.node(
        "Exp", [op(g, "Mul", op(g, "Pow", gap, 2.0, name="rbf_pow"), -10.0, name="rbf_mul")], name="rbf"
    )
    w = mlp(g, rbf, "filter", [48, 64, 64], "Softplus")
    message = g.node("Mul", [w, unsqueeze(g, g.linear(x, "in", 64, 64), [0], "x_dims")], name="message")
    agg = op(g, "Div", reduce(g, "ReduceSum", message, [1], "agg", keepdims=0), 6.0, name="agg_div")
    g.output(g.node("Add", [x, mlp(g, agg, "out", [64, 64, 64], "Softplus")], name="residual"))


@model(
    "lennard_jones_mixed_parameters", pins=["pos_*", "eye_*", "inverse_*", "six", "twelve", "lj_*"], opset=17
)
def lennard_jones_mixed_parameters(g):
    """Molecular mechanics: 4ε((σ/r)¹² - (σ/r)⁶) of pairs, σ and ε from a product of types and tables."""
    r = g.input("positions", [48, 3], atoms(g, 48, 14.0))
    types = g.input("types", [48, 32], np.eye(32, dtype=np.float32)[g.rng.integers(0, 32, 48)])
    table = g.const(np.stack([g.uniform(2.2, 3.2, 32), g.uniform(0.05, 0.4, 32)], 1), "tables")
    both = g.node("MatMul", [types, table], name="tables_mm")
    sigma = reshape(g, span(g, both, 0, 1, 1, "sigma"), [1, 48], "sigma_row")
    eps = span(g, both, 1, 2, 1, "epsilon")
    diff = pairwise(g, r, "pos")
    d2 = reduce(g, "ReduceSumSquare", diff, [2], "d2", keepdims=0)
    d2 = op(g, "Add", d2, np.eye(48) * 1e6, name="eye_add")
    s2 = g.node("Mul", [sigma, sigma], name="inverse_sigma")
    inv = g.node("Mul", [s2, g.node("Reciprocal", [d2], name="inverse_r2")], name="inverse_mul")
    six = g.node("Mul", [g.node("Mul", [inv, inv], name="inverse_square"), inv], name="six")
    twelve = g.node("Mul", [six, six], name="twelve")
    lj = g.node(
        "Mul",
        [g.node("Sub", [twelve, six], name="lj_sub"), op(g, "Mul", eps, 4.0, name="lj_eps")],
        name="lj_mul",
    )
    energy = reduce(g, "ReduceSum", lj, [1], "energy")
    features = g.node("Concat", [energy, types], name="cat", axis=1)
    g.output(energy, g.linear(features, "head", 33, 8))


@model("ewald_reciprocal_structure_factors", pins=["k_*", "decay_*", "s_*", "power_*", "energy_*"], opset=18)
def ewald_reciprocal_structure_factors(g):
    """Ewald sum: phases k·r, structure factors by products with charges, exp(-k²/4α²)/k², energy."""
    r = g.input("positions", ["n", 3], atoms(g, 64, 20.0))
    q = g.input("charges", [1, "n"], g.normal(1, 64, scale=0.5) - np.float32(0.02))
    box = np.stack(np.meshgrid(*[np.arange(-4, 5)] * 3), -1).reshape(-1, 3)
    k = box[(box**2).sum(1) > 0] * 2 * np.pi / 20
    phase = g.node("MatMul", [r, g.const(k.T, "waves")], name="k_mm")
    re = g.node("MatMul", [q, g.node("Cos", [phase], name="cos")], name="s_re_mm")
    im = g.node("MatMul", [q, g.node("Sin", [phase], name="sin")], name="s_im_mm")
    power = g.node(
        "Add",
        [g.node("Mul", [re, re], name="power_re"), g.node("Mul", [im, im], name="power_im")],
        name="power_add",
    )
    k2 = g.const((k**2).sum(1)[None], "k2")
    decay = g.node("Exp", [op(g, "Mul", k2, -1 / (4 * 0.35**2), name="decay_mul")], name="decay")
    decay = g.node("Div", [decay, k2], name="decay_div")
    terms = g.node("Mul", [power, decay], name="energy_mul")
    energy = op(
        g, "Mul", reduce(g, "ReduceSum", terms, [1], "sum"), 2 * np.pi / 20**3 * 332.06, name="energy_scale"
    )
    g.output(energy, op(g, "Mul", terms, 100.0, name="energy_terms"))


@model("hybrid_levels_pressure_in_pascal", pins=["p_*", "thick_*", "column_*"])
def hybrid_levels_pressure_in_pascal(g):
    """Weather model: half-level pressures a + b·ps in Pa, thickness, column water, an MLP."""
    ps = g.input("surface_pa", ["columns", 1], g.uniform(60000, 104000, 64, 1))
    q = g.input("humidity", ["columns", 48], np.exp(g.uniform(-12, -4.3, 64, 48)))
    sigma = np.linspace(0, 1, 49) ** 1.5
    a, b = 20000 * (sigma - sigma**2), sigma**2
    p = op(g, "Add", op(g, "Mul", ps, b[None], name="p_mul"), a[None], name="p_add")
    thick = g.node(
        "Sub", [span(g, p, 1, 49, 1, "thick_low"), span(g, p, 0, 48, 1, "thick_high")], name="thick_sub"
    )
    water = op(g, "Div", g.node("Mul", [q, thick], name="column_mul"), 9.80665, name="column_div")
    summed = g.node("MatMul", [water, g.const(np.triu(np.ones((48, 48))), "running")], name="column_mm")
    scaled = op(g, "Div", summed, 10.0, name="level")
    g.output(summed, mlp(g, scaled, "head", [48, 96, 24], "Tanh"))


@model("longwave_flux_sigma_t_fourth", pins=["t_*", "flux_*", "net_*"])
def longwave_flux_sigma_t_fourth(g):
    """Radiation emulator: 5.67e-8·T⁴ of layer temperatures by squares, emissivities of a net, net flux."""
    t = g.input("kelvin", ["columns", 64], g.uniform(200, 315, 48, 64))
    x = op(g, "Div", op(g, "Sub", t, 260.0, name="x_sub"), 30.0, name="x_div")
    eps = g.node("Sigmoid", [mlp(g, x, "gas", [64, 96, 64])], name="emissivity")
    t2 = g.node("Mul", [t, t], name="t_square")
    t4 = g.node("Mul", [t2, t2], name="t_fourth")
    flux = g.node("Mul", [eps, op(g, "Mul", t4, 5.670374e-8, name="flux_sigma")], name="flux_mul")
    w = np.abs(g.normal(64, 64)) / 64
    down = g.node("MatMul", [flux, g.const(w, "transmission")], name="flux_mm")
    g.output(g.node("Sub", [down, flux], name="net_sub"))


@model("forecast_state_plus_scaled_tendency", pins=["norm_*", "state_*", "delta_scale"])
def forecast_state_plus_scaled_tendency(g):
    """GraphCast step: geopotential (2e5), kelvin and Pa normalised, scaled tendency added to the state."""
    mean = np.concatenate([np.linspace(2e3, 2e5, 24), np.linspace(210, 290, 24), np.full(16, 98000.0)])
    std = np.concatenate([np.linspace(900, 5000, 24), np.full(24, 12.0), np.full(16, 1100.0)])
    x = g.input("state", ["nodes", 64], (mean + std * g.normal(100, 64)).astype(np.float32))
    z = op(g, "Div", op(g, "Sub", x, mean, name="norm_sub"), std, name="norm_div")
    h = g.linear(z, "enc", 64, 128)
    h = g.layer_norm(silu(g, h, "swish"), "norm1", 128)
    delta = op(g, "Mul", g.linear(h, "dec", 128, 64), std * 0.05, name="delta_scale")
    g.output(g.node("Add", [x, delta], name="state_add"))


@model("gcn_symmetric_degree_normalised", pins=[], opset=17)
def gcn_symmetric_degree_normalised(g):
    """GCN: degrees by ReduceSum, their power of -1/2 on both sides of the adjacency, two layers."""
    a = np.triu(g.rng.random((120, 120)) < 0.06, 1)
    a = (a | a.T).astype(np.float32)
    a = op(g, "Add", g.input("adjacency", [120, 120], a), np.eye(120), name="self_loops")
    x = g.input("features", [120, 64], g.normal(120, 64))
    root = op(g, "Pow", reduce(g, "ReduceSum", a, [1], "degree"), -0.5, name="root")
    a = g.node(
        "Mul",
        [g.node("Mul", [a, root], name="rows"), g.node("Transpose", [root], name="root_t", perm=[1, 0])],
        name="columns",
    )
    h = g.node("Relu", [g.node("MatMul", [a, g.linear(x, "l0", 64, 96)], name="spread0")], name="relu")
    g.output(g.node("MatMul", [a, g.linear(h, "l1", 96, 32)], name="spread1"))


@model("gin_scatter_add_into_hubs", pins=["messages", "scatter", "agg_*"], pins_bf16=["scatter", "agg_*"])
def gin_scatter_add_into_hubs(g):
    """GIN with sums: 6000 edges, most into four hubs, ScatterElements add, log of 1 + sums, MLP."""
    to = np.where(g.rng.random(6000) < 0.8, g.rng.integers(0, 4, 6000), g.rng.integers(4, 60, 6000))
    source = g.rng.integers(0, 60, 6000)
    x = g.input("features", [60, 32], np.abs(g.normal(60, 32, scale=60.0)))
    h = g.node("Relu", [g.linear(x, "embed", 32, 32)], name="relu")
    m = g.node("Gather", [h, g.input("source", [6000], source)], name="messages", axis=0)
    index = g.node(
        "Expand",
        [unsqueeze(g, g.input("target", [6000], to), [1], "index_dims"), g.ints(6000, 32)],
        name="index",
    )
    agg = g.node(
        "ScatterElements", [g.const(np.zeros((60, 32))), index, m], name="scatter", axis=0, reduction="add"
    )
    agg = g.node("Add", [agg, op(g, "Mul", h, 1.1, name="agg_self")], name="agg_add")
    z = g.node("Log", [op(g, "Add", agg, 1.0, name="agg_one")], name="log")
    g.output(mlp(g, z, "mlp", [32, 96, 32]))


@model("spherical_harmonics_to_degree_four", pins=["unit_*", "sh_*"], opset=19)
def spherical_harmonics_to_degree_four(g):
    """Equivariant net (e3nn): polynomials of unit vectors up to 35z⁴ - 30z² + 3, times radial weights."""
    r = g.input("edge_vec", ["edges", 3], g.normal(150, 3, scale=4.0))
    length = reduce(g, "ReduceL2", r, [1], "length")
    u = g.node("Div", [r, op(g, "Max", length, 1e-6, name="unit_floor")], name="unit_div")
    x, y, z = g.node("Split", [u], name="unit_parts", outputs=3, axis=1, num_outputs=3)
    z2 = g.node("Mul", [z, z], name="sh_z2")
    z4 = g.node("Mul", [z2, z2], name="sh_z4")
    y20 = op(g, "Sub", op(g, "Mul", z2, 3.0, name="sh_3z2"), 1.0, name="sh_y20")
    y30 = g.node(
        "Mul", [z, op(g, "Sub", op(g, "Mul", z2, 5.0, name="sh_5z2"), 3.0, name="sh_y30_sub")], name="sh_y30"
    )
    y40 = g.node(
        "Sub",
        [op(g, "Mul", z4, 35.0, name="sh_35z4"), op(g, "Mul", z2, 30.0, name="sh_30z2")],
        name="sh_y40_sub",
    )
    y40 = op(g, "Add", y40, 3.0, name="sh_y40")
    y22 = g.node(
        "Mul",
        [g.node("Sub", [x, y], name="sh_x_minus_y"), g.node("Add", [x, y], name="sh_x_plus_y")],
        name="sh_y22",
    )
    sh = g.node(
        "Concat", [x, y, z, y20, y22, y30, y40, g.node("Mul", [x, y], name="sh_xy")], name="sh_cat", axis=1
    )
    radial = g.input("radial", ["edges", 32], g.normal(150, 32))
    w = mlp(g, radial, "radial", [32, 64, 8])
    mixed = g.node("Mul", [sh, w], name="weigh")
    g.output(g.node("MatMul", [mixed, g.weight("out_w", 8, 64)], name="out_mm"))


@model("egnn_coordinate_update_in_angstrom", pins=["rel_*", "unit_*", "move_*", "coord_*"])
def egnn_coordinate_update_in_angstrom(g):
    """EGNN layer: squared distances of protein coordinates around 120 Å, edge MLP, small moves added."""
    r = g.input("coords", [32, 3], atoms(g, 32, 12.0) + np.float32(120.0))
    h = g.input("features", [32, 48], g.normal(32, 48))
    diff = pairwise(g, r, "rel")
    d2 = reduce(g, "ReduceSum", g.node("Mul", [diff, diff], name="rel_square"), [2], "d2")
    hi = g.node("Expand", [unsqueeze(g, h, [1], "hi"), g.ints(32, 32, 48)], name="hi_wide")
    hj = g.node("Expand", [unsqueeze(g, h, [0], "hj"), g.ints(32, 32, 48)], name="hj_wide")
    near = op(g, "Div", d2, 100.0, name="rel_scale")
    e = g.node("Concat", [hi, hj, near], name="edge_cat", axis=2)
    m = silu(g, g.linear(e, "edge", 97, 64), "edge")
    phi = g.node("Tanh", [g.linear(m, "phi", 64, 1)], name="phi")
    norm = op(
        g,
        "Add",
        g.node("Sqrt", [op(g, "Add", d2, 1e-8, name="unit_eps")], name="unit_sqrt"),
        1.0,
        name="unit_plus_one",
    )
    move = g.node("Mul", [g.node("Div", [diff, norm], name="unit_div"), phi], name="move_mul")
    move = op(g, "Div", reduce(g, "ReduceSum", move, [1], "sum", keepdims=0), 31.0, name="move_div")
    g.output(g.node("Add", [r, move], name="coord_add"))
    agg = reduce(g, "ReduceSum", m, [1], "agg", keepdims=0)
    g.output(g.linear(op(g, "Div", agg, 31.0, name="agg_div"), "node", 64, 48))


@model(
    "neural_ode_euler_loop_small_steps",
    pins=["ode/body/step", "ode/body/state", "settled", "moved"],
    opset=20,
)
def neural_ode_euler_loop_small_steps(g):
    """Neural ODE: 60 Euler steps of 0.002 by a Loop, the field an MLP, the state kept around 10."""
    y0 = g.input("y0", [32, 64], g.normal(32, 64) + 10.0)
    body = Body(g, "euler")
    body.entry("i", [], TensorProto.INT64)
    body.entry("go", [], TensorProto.BOOL)
    y = body.entry("y", [32, 64])
    h = op(body, "Mul", y, 0.1, name="level")
    h = body.node("Tanh", [body.node("MatMul", [h, body.weight("w0", 64, 64)], name="mm0")], name="tanh")
    h = body.node("MatMul", [h, body.weight("w1", 64, 64, scale=0.5)], name="mm1")
    after = body.node("Add", [y, op(body, "Mul", h, 0.002, name="step")], name="state")
    keep = body.node("Identity", ["go"], name="keep")
    y = g.node(
        "Loop",
        [g.const(60, dtype=np.int64), "", y0],
        name="ode",
        body=body.graph((keep, [], TensorProto.BOOL), (after, [32, 64])),
    )
    moved = g.node("Sub", [reshape(g, y, [32, 64], "settled"), y0], name="moved")
    g.output(moved, g.linear(moved, "head", 64, 16))


@model("arrhenius_rates_of_combustion", pins=["inverse_*", "rate_*", "source_*"])
def arrhenius_rates_of_combustion(g):
    """Combustion surrogate: A exp(-Ea / RT) with A of 1e13 and R of 8.314, rates times mole fractions."""
    t = g.input("kelvin", ["cells", 1], g.uniform(900, 2400, 64, 1))
    y = g.input("fractions", ["cells", 48], np.exp(g.uniform(-14, -1, 64, 48)))
    act = g.uniform(8e4, 3e5, 1, 48)
    inv = op(g, "Div", -1.0, op(g, "Mul", t, 8.314, name="inverse_rt"), name="inverse_div")
    k = g.node("Exp", [op(g, "Mul", inv, act, name="inverse_ea")], name="exp")
    k = op(g, "Mul", k, 10.0 ** g.uniform(10, 13, 1, 48), name="rate_a")
    rate = g.node("Mul", [k, y], name="rate_mul")
    source = g.node(
        "MatMul", [rate, g.const(g.rng.integers(-2, 3, (48, 32)), "stoichiometry")], name="source_mm"
    )
    log = g.node("Log", [op(g, "Add", rate, 1e-6, name="rate_eps")], name="log")
    g.output(source, mlp(g, op(g, "Div", log, 10.0, name="level"), "net", [48, 64, 32], "Tanh"))


@model("poisson_residual_by_laplacian_stencil", pins=["u_conv", "lap_*", "residual*"])
def poisson_residual_by_laplacian_stencil(g):
    """Physics-informed U-Net: potential with an offset of 20, five-point stencil over h² of 1e-4."""
    x = g.input("source", [1, 32, 32, 32], g.normal(1, 32, 32, 32))
    h = g.node("Tanh", [g.conv(x, "c0", 32, 48, 3, pads=[1, 1, 1, 1])], name="tanh")
    w = g.weight("u_w", 1, 48, 3, 3, scale=0.002)
    u = g.node("Conv", [h, w, g.const([20.0], "u_b")], name="u_conv", pads=[1, 1, 1, 1])
    stencil = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)[None, None]
    lap = op(
        g, "Div", g.node("Conv", [u, g.const(stencil, "stencil")], name="lap_conv"), 1e-4, name="lap_div"
    )
    f = g.node("ReduceMean", [x, g.ints(1)], name="f")
    f = g.node("Slice", [f, g.ints(1, 1), g.ints(31, 31), g.ints(2, 3)], name="inside")
    g.output(g.node("Sub", [lap, f], name="residual"), u)


@model("fourier_neural_operator_low_modes", pins=[])
def fourier_neural_operator_low_modes(g):
    """Fourier neural operator: 16 modes by stored DFT products, mixing by Einsum, inverse, skip Conv."""
    x = g.input("field", ["batch", 32, 128], g.normal(2, 32, 128))
    angle = 2 * np.pi * np.outer(np.arange(128), np.arange(16)) / 128
    cos, sin = g.const(np.cos(angle) / 11.3, "cos"), g.const(np.sin(angle) / 11.3, "sin")
    re, im = g.node("MatMul", [x, cos], name="re_mm"), g.node("MatMul", [x, sin], name="im_mm")
    wr, wi = g.weight("wr", 32, 32, 16, scale=0.15), g.weight("wi", 32, 32, 16, scale=0.15)
    eq = "bim,iom->bom"
    rr, ii = (g.node("Einsum", [a, w], name=n, equation=eq) for a, w, n in ((re, wr, "rr"), (im, wi, "ii")))
    ri, ir = (g.node("Einsum", [a, w], name=n, equation=eq) for a, w, n in ((re, wi, "ri"), (im, wr, "ir")))
    re, im = g.node("Sub", [rr, ii], name="re_mix"), g.node("Add", [ri, ir], name="im_mix")
    back = [
        g.node("MatMul", [part, g.node("Transpose", [basis], name=f"{s}_t", perm=[1, 0])], name=f"{s}_back")
        for s, part, basis in (("cos", re, cos), ("sin", im, sin))
    ]
    y = g.node("Add", [g.node("Add", back, name="inverse"), g.conv(x, "skip", 32, 32, 1, dims=1)], name="sum")
    g.output(g.node("Gelu", [y], name="gelu"))


@model("deeponet_branch_times_trunk", pins=[])
def deeponet_branch_times_trunk(g):
    """DeepONet: branch net of sensor values, trunk net of scaled coordinates, their product and a bias."""
    sensors = g.input("sensors", ["fields", 64], np.cumsum(g.normal(24, 64), 1) / 8)
    points = g.input("points", ["n", 2], g.uniform(0, 1, 150, 2))
    b = mlp(g, sensors, "branch", [64, 96, 64], "Tanh")
    t = g.node("Tanh", [mlp(g, points, "trunk", [2, 96, 64], "Tanh")], name="trunk_out")
    y = g.node("MatMul", [b, g.node("Transpose", [t], name="trunk_t", perm=[1, 0])], name="product_mm")
    g.output(op(g, "Add", y, 0.13, name="bias"))


@model("gat_attention_masked_by_where", pins=[])
def gat_attention_masked_by_where(g):
    """GAT: sums of source and target scores, LeakyRelu, Where of a boolean adjacency with -1e4, softmax."""
    adjacency = (g.rng.random((90, 90)) < 0.08) | np.eye(90, dtype=bool)
    a = g.input("adjacency", [90, 90], adjacency)
    x = g.input("features", [90, 64], g.normal(90, 64))
    h = g.node("MatMul", [x, g.weight("w", 64, 64)], name="project_mm")
    left = g.node("MatMul", [h, g.weight("a_left", 64, 1)], name="left_mm")
    right = g.node("MatMul", [h, g.weight("a_right", 64, 1)], name="right_mm")
    e = g.node("Add", [left, g.node("Transpose", [right], name="right_t", perm=[1, 0])], name="pairs")
    e = g.node("LeakyRelu", [e], name="leaky", alpha=0.2)
    e = g.node("Where", [a, e, g.const(-1e4)], name="masked")
    p = g.node("Softmax", [e], name="softmax", axis=1)
    g.output(
        g.linear(g.node("Elu", [g.node("MatMul", [p, h], name="spread_mm")], name="elu"), "head", 64, 32)
    )
