"""Graph neural networks and molecules."""

import numpy as np
from onnx import TensorProto

from .build import model
from .parts import cast, mlp, op, reduce, reshape, silu, span, unsqueeze


def edges(g, n, m, hub=0):
    src, dst = g.rng.integers(0, n, m), g.rng.integers(0, n, m)
    dst[:hub] = 0
    return g.input("src", ["edges"], src), g.input("dst", ["edges"], dst), src, dst


def scatter(g, zero, dst, values, width, name, reduction="add"):
    """index_add as torch exports it: ScatterElements with the index expanded over the features."""
    idx = g.node("Expand", [unsqueeze(g, dst, [1], f"{name}_u"), g.ints(1, width)], name=f"{name}_index")
    return g.node("ScatterElements", [zero, idx, values], name=name, axis=0, reduction=reduction)


def molecule(g, n=24, spread=1.2):
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)[:n].astype(np.float32)
    return (grid * spread + g.normal(n, 3, scale=0.12)).astype(np.float32)


@model("gcn_degree_by_scatter_rsqrt_two_layers_cora", opset=16, pins=["deg*", "isolated*", "norm*"])
def _(g):
    """PyG's GCNConv: degrees by scatter-add of ones, deg^-0.5 with inf masked, weighted messages."""
    n, m = 200, 900
    src, dst, *_ = edges(g, n, m, hub=60)
    x = g.input("bag_of_words", [n, 256], (g.rng.random((n, 256)) < 0.03).astype(np.float32))
    deg = g.node("ScatterElements", [g.const(np.ones(n)), dst, g.const(np.ones(m))], name="deg", axis=0, reduction="add")
    inv = op(g, "Pow", deg, -0.5, name="deg_pow")
    bad = g.node("IsInf", [inv], name="isolated")
    inv = g.node("Where", [bad, g.const(0.0), inv], name="isolated_zero")
    w = op(g, "Mul", g.node("Gather", [inv, src], name="norm_src"), g.node("Gather", [inv, dst], name="norm_dst"),
           name="norm")
    for i, (a, b) in enumerate(((256, 64), (64, 7))):
        h = g.linear(x, f"l{i}", a, b, bias=False)
        msg = op(g, "Mul", g.node("Gather", [h, src], name=f"take{i}"), unsqueeze(g, w, [1], f"norm_u{i}"),
                 name=f"message{i}")
        x = scatter(g, g.const(np.zeros((n, b))), dst, msg, b, f"aggregate{i}")
        self_w = op(g, "Mul", inv, inv, name=f"norm_self{i}")
        x = op(g, "Add", x, op(g, "Mul", h, unsqueeze(g, self_w, [1], f"norm_self_u{i}"), name=f"loop{i}"), name=f"add{i}")
        if i == 0:
            x = g.node("Relu", [x], name="relu")
    g.output(g.node("LogSoftmax", [x], name="log_softmax", axis=-1))


@model("gat_edge_softmax_by_scatter_max_and_add", opset=18, pins=["alpha_*"])
def _(g):
    """PyG's softmax over incoming edges: scatter-max, exp of differences, scatter-add, plus 1e-16, a division."""
    n, m, heads, f = 120, 700, 4, 16
    src, dst, *_ = edges(g, n, m, hub=150)
    x = g.input("x", [n, 64], g.normal(n, 64))
    h = g.linear(x, "lin", 64, heads * f, bias=False)
    hh = reshape(g, h, [n, heads, f], "heads")
    sides = []
    for tag, index in (("s", src), ("d", dst)):
        a = reduce(g, "ReduceSum", op(g, "Mul", hh, g.normal(1, heads, f, scale=0.3), name=f"att_{tag}"), [2],
                   f"att_{tag}_sum", keepdims=0)
        sides.append(g.node("Gather", [a, index], name=f"att_{tag}_take"))
    e = g.node("LeakyRelu", [op(g, "Add", *sides, name="att_logit")], name="att_lrelu", alpha=0.2)
    top = scatter(g, g.const(np.full((n, heads), -1e30)), dst, e, heads, "alpha_max", "max")
    e = g.node("Exp", [op(g, "Sub", e, g.node("Gather", [top, dst], name="alpha_max_take"), name="alpha_shift")],
               name="alpha_exp")
    total = scatter(g, g.const(np.zeros((n, heads))), dst, e, heads, "alpha_sum")
    total = op(g, "Add", g.node("Gather", [total, dst], name="alpha_sum_take"), 1e-16, name="alpha_eps")
    a = op(g, "Div", e, total, name="alpha_div")
    msg = op(g, "Mul", g.node("Gather", [hh, src], name="take"), unsqueeze(g, a, [2], "a_u"), name="message")
    msg = reshape(g, msg, [-1, heads * f], "message_flat")
    y = scatter(g, g.const(np.zeros((n, heads * f))), dst, msg, heads * f, "aggregate")
    g.output(g.linear(g.node("Elu", [y], name="elu"), "out", 64, 16))


@model("schnet_cosine_cutoff_energy_in_hartree", opset=17,
       pins=["vec", "pos_*", "d_*", "rbf_*", "cut_*", "atom_ref*", "energy*", "e_*"])
def _(g):
    """SchNet: Gaussians of distances to 5 Å, a cosine cutoff, atomwise energies plus references of -38 to -75 hartree."""
    n = 20
    pos = molecule(g, n)
    z = g.rng.choice([1, 6, 7, 8], n)
    i, j = np.nonzero((np.linalg.norm(pos[:, None] - pos[None], axis=-1) < 5) & ~np.eye(n, dtype=bool))
    p, zi = g.input("pos", ["atoms", 3], pos), g.input("z", ["atoms"], z)
    src, dst = g.input("src", ["edges"], j), g.input("dst", ["edges"], i)
    d = op(g, "Sub", g.node("Gather", [p, src], name="pos_src"), g.node("Gather", [p, dst], name="pos_dst"), name="vec")
    d = g.node("Sqrt", [g.node("ReduceSum", [op(g, "Mul", d, d, name="d_sq"), g.ints(1)], name="d_sum")], name="d_root")
    c = np.linspace(0, 5, 50)
    r = g.node("Exp", [op(g, "Mul", op(g, "Pow", op(g, "Sub", d, c, name="rbf_diff"), 2.0, name="rbf_sq"),
                          -0.5 / (c[1] ** 2), name="rbf_coeff")], name="rbf_exp")
    cut = op(g, "Mul", op(g, "Add", g.node("Cos", [op(g, "Mul", d, np.pi / 5, name="cut_angle")], name="cut_cos"), 1.0,
                          name="cut_1p"), 0.5, name="cut_half")
    def ssp(h, tag):
        return op(g, "Sub", g.node("Softplus", [h], name=f"{tag}_sp"), np.log(2), name=f"{tag}_ssp")
    h = g.node("Gather", [g.const(g.normal(20, 64), "species"), zi], name="embed")
    for b in range(2):
        f = op(g, "Mul", g.linear(ssp(g.linear(r, f"f{b}a", 50, 64), f"f{b}"), f"f{b}b", 64, 64), cut, name=f"filter{b}")
        m = op(g, "Mul", g.node("Gather", [g.linear(h, f"in{b}", 64, 64, bias=False), src], name=f"take{b}"), f,
               name=f"message{b}")
        idx = g.node("Expand", [unsqueeze(g, dst, [1], f"idx_u{b}"), g.node("Shape", [m], name=f"m_shape{b}")],
                     name=f"idx{b}")
        a = g.node("ScatterElements", [op(g, "Mul", h, 0.0, name=f"zeros{b}"), idx, m], name=f"agg{b}", axis=0,
                   reduction="add")
        a = op(g, "Mul", a, 0.25, name=f"agg_scale{b}")
        h = op(g, "Add", h, g.linear(ssp(g.linear(a, f"o{b}a", 64, 64), f"o{b}"), f"o{b}b", 64, 64), name=f"res{b}")
    e = g.linear(ssp(g.linear(h, "e1", 64, 32), "e1"), "e2", 32, 1)
    e = op(g, "Mul", e, 0.05, name="e_std")
    ref = np.zeros(20)
    ref[[1, 6, 7, 8]] = -0.6, -38.07, -54.75, -75.22
    e = op(g, "Add", e, g.node("Gather", [g.const(ref[:, None], "refs"), zi], name="atom_ref"), name="e_atom")
    g.output(g.node("ReduceSum", [e, g.ints(0)], name="energy_sum"))


@model("dimenet_bessel_basis_with_polynomial_envelope", opset=17,
       pins=["pos_*", "vec*", "d_*", "x_*", "env_*", "bes_*", "ang_*", "cbf*"])
def _(g):
    """DimeNet: sin(nπx)/x times the envelope 1/x + a·x⁵ + b·x⁶ + c·x⁷ that cancels near the cutoff, angles by atan2."""
    n = 16
    pos = molecule(g, n)
    dist = np.linalg.norm(pos[:, None] - pos[None], axis=-1)
    i, j = np.nonzero((dist < 4.9) & (dist > 0))
    k = (j + 1 + (j + 1 == i)) % n
    k = np.where(k == i, (k + 1) % n, k)
    p = g.input("pos", [n, 3], pos)
    ii, jj, kk = (g.input(s, ["edges"], a.astype(np.int64)) for s, a in (("i", i), ("j", j), ("k", k)))
    pi, pj, pk = (g.node("Gather", [p, a], name=f"pos_{a}") for a in (ii, jj, kk))
    v, u = op(g, "Sub", pj, pi, name="vec_ji"), op(g, "Sub", pk, pi, name="vec_ki")
    d = g.node("Sqrt", [reduce(g, "ReduceSum", op(g, "Mul", v, v, name="d_sq"), [1], "d_sum")], name="d_root")
    x = op(g, "Div", d, 5.0, name="x_scaled")
    x5 = op(g, "Pow", x, 5.0, name="env_x5")
    x6 = op(g, "Mul", x5, x, name="env_x6")
    x7 = op(g, "Mul", x6, x, name="env_x7")
    env = op(g, "Add", op(g, "Div", 1.0, x, name="env_inv"), op(g, "Mul", x5, -28.0, name="env_a"), name="env_1")
    env = op(g, "Add", op(g, "Add", env, op(g, "Mul", x6, 48.0, name="env_b"), name="env_2"),
             op(g, "Mul", x7, -21.0, name="env_c"), name="env_3")
    bes = op(g, "Mul", g.node("Sin", [op(g, "Mul", x, np.pi * np.arange(1, 7), name="bes_angle")], name="bes_sin"), env,
             name="bes_env")
    dot = reduce(g, "ReduceSum", op(g, "Mul", v, u, name="ang_prod"), [1], "ang_dot")
    un = g.node("Sqrt", [reduce(g, "ReduceSum", op(g, "Mul", u, u, name="ang_usq"), [1], "ang_un")], name="ang_un_root")
    cos = op(g, "Div", dot, op(g, "Add", op(g, "Mul", d, un, name="ang_norms"), 1e-8, name="ang_eps"), name="ang_cos")
    ang = g.node("Acos", [op(g, "Clip", cos, -0.99999, 0.99999, name="ang_clip")], name="ang_acos")
    cbf = g.node("Cos", [op(g, "Mul", ang, np.arange(7.0), name="ang_multiple")], name="cbf_cos")
    e = silu(g, g.linear(bes, "rbf1", 6, 64), "rbf")
    t = op(g, "Mul", e, g.linear(cbf, "cbf_lin", 7, 64, bias=False), name="interact")
    g.output(mlp(g, silu(g, g.linear(t, "t1", 64, 64), "t1"), "t2", [64, 64, 1], "Elu"))


@model("egnn_squared_distances_of_protein_calphas", opset=16,
       pins=["pos_*", "rel*", "d2*", "coord_*", "radial_log*"],
       pins_bf16=["pos_*", "rel*", "d2*", "coord_*", "radial_log*"])
def _(g):
    """EGNN on Cα coordinates of a PDB frame (100 Å from the origin): squared distances over 100, updated coordinates."""
    n = 60
    pos = np.cumsum(g.normal(n, 3, scale=2.2), 0) + np.array([112.0, -45, 88])
    nb = np.argsort(np.linalg.norm(pos[:, None] - pos[None], axis=-1), 1)[:, 1:11]
    p = g.input("coords", [n, 3], pos.astype(np.float32))
    h0 = g.input("residues", [n], g.rng.integers(0, 20, n))
    idx = g.input("neighbours", [n, 10], nb)
    h = g.node("Gather", [g.const(g.normal(20, 64), "aa"), h0], name="embed")
    rel = op(g, "Sub", unsqueeze(g, p, [1], "pos_u"), g.node("Gather", [p, idx], name="pos_nb"), name="rel")
    d2 = g.node("ReduceSum", [op(g, "Mul", rel, rel, name="d2_sq"), g.ints(2)], name="d2")
    d2s = g.node("Log", [op(g, "Add", d2, 1.0, name="radial_log1p")], name="radial_log")
    hi = g.node("Expand", [unsqueeze(g, h, [1], "h_u"), g.ints(n, 10, 64)], name="h_i")
    hj = g.node("Gather", [h, idx], name="h_j")
    e = g.node("Concat", [hi, hj, d2s], name="edge_in", axis=2)
    e = silu(g, g.linear(silu(g, g.linear(e, "e1", 129, 64), "e1"), "e2", 64, 64), "e2")
    w = g.node("Tanh", [g.linear(silu(g, g.linear(e, "x1", 64, 64), "x1"), "x2", 64, 1, scale=0.02)], name="weight")
    unit = op(g, "Div", rel, op(g, "Add", g.node("Sqrt", [d2], name="rel_norm"), 1.0, name="rel_norm1"), name="rel_unit")
    shift = g.node("ReduceMean", [op(g, "Mul", unit, w, name="coord_w")], name="coord_mean", axes=[1], keepdims=0)
    m = g.node("ReduceSum", [e, g.ints(1)], name="messages", keepdims=0)
    hh = op(g, "Add", h, g.linear(silu(g, g.linear(g.node("Concat", [h, m], name="node_in", axis=1), "n1", 128, 64),
                                       "n1"), "n2", 64, 64), name="res")
    g.output(op(g, "Add", p, shift, name="coord_new"), hh)


@model("pna_mean_std_degree_scalers_scatter", opset=22,
       pins=["agg_*", "deg*", "scale_*"])
def _(g):
    """PNA: mean, max and std = sqrt(relu(E[m²]-E[m]²)+1e-5) by scatter, scaled by log(deg+1)/δ."""
    n, m, f = 100, 800, 32
    src, dst, *_ = edges(g, n, m, hub=100)
    x = g.input("x", [n, 64], g.normal(n, 64))
    h = op(g, "Add", g.linear(x, "pre", 64, f), 1.5, name="shift")
    msg = g.node("Gather", [h, src], name="message")
    deg = g.node("ScatterElements", [g.const(np.zeros(n)), dst, g.const(np.ones(m))], name="deg", axis=0, reduction="add")
    d1 = unsqueeze(g, op(g, "Max", deg, 1.0, name="deg_clamp"), [1], "deg_u")
    zero = g.const(np.zeros((n, f)))
    mean = op(g, "Div", scatter(g, zero, dst, msg, f, "agg_sum"), d1, name="agg_mean")
    sq = op(g, "Div", scatter(g, zero, dst, op(g, "Mul", msg, msg, name="agg_sq"), f, "agg_sq_sum"), d1, name="agg_sq_mean")
    var = g.node("Relu", [op(g, "Sub", sq, op(g, "Mul", mean, mean, name="agg_mean_sq"), name="agg_var")],
                 name="agg_relu")
    std = g.node("Sqrt", [op(g, "Add", var, 1e-5, name="agg_eps")], name="agg_std")
    top = scatter(g, zero, dst, msg, f, "agg_max", "max")
    a = g.node("Concat", [mean, std, top], name="aggregators", axis=1)
    ld = op(g, "Div", g.node("Log", [op(g, "Add", d1, 1.0, name="deg_1p")], name="deg_log"), 2.1, name="scale_amp")
    a = g.node("Concat", [a, op(g, "Mul", a, ld, name="amplified"), op(g, "Div", a, ld, name="attenuated")],
               name="scalers", axis=1)
    g.output(mlp(g, a, "post", [9 * f, 128, 32]))


@model("graphgps_laplacian_eigenvectors_and_edge_gates", opset=20, pins=["pe_*", "gate_sum*", "gate_div", "gate_eps"])
def _(g):
    """GatedGCN with Laplacian PEs: eigenvectors of unit norm over 500 nodes (0.04), sigmoid gates, their sums divided."""
    n, m, f = 500, 1500, 32
    src, dst, *_ = edges(g, n, m)
    ev = np.linalg.qr(g.rng.standard_normal((n, 8)))[0].astype(np.float32)
    vals = np.linspace(0.001, 0.3, 8, dtype=np.float32)
    pe, lam = g.input("eigvecs", [n, 8], ev), g.input("eigvals", [8], vals)
    atom = g.input("atom", [n], g.rng.integers(0, 28, n))
    pair = g.node("Concat", [unsqueeze(g, pe, [2], "pe_u"),
                             g.node("Expand", [reshape(g, lam, [1, 8, 1], "pe_lam"), g.ints(n, 8, 1)], name="pe_lam_e")],
                  name="pe_pair", axis=2)
    q = g.node("Relu", [g.linear(pair, "pe1", 2, 32, scale=1.0)], name="phi_relu")
    q = reduce(g, "ReduceSum", q, [1], "phi_sum", keepdims=0)
    h = op(g, "Add", g.node("Gather", [g.const(g.normal(28, 64), "atoms"), atom], name="embed"),
           g.linear(q, "pe2", 32, 64), name="h0")
    e = op(g, "Add", g.node("Gather", [g.linear(h, "A", 64, f), src], name="a_take"),
           g.node("Gather", [g.linear(h, "B", 64, f), dst], name="b_take"), name="edge")
    s = g.node("Sigmoid", [e], name="gate")
    zero = g.const(np.zeros((n, f)))
    num = scatter(g, zero, dst, op(g, "Mul", s, g.node("Gather", [g.linear(h, "V", 64, f), src], name="v_take"),
                                   name="gated"), f, "gate_sum_v")
    den = op(g, "Add", scatter(g, zero, dst, s, f, "gate_sum"), 1e-6, name="gate_eps")
    y = op(g, "Add", g.linear(h, "U", 64, f), op(g, "Div", num, den, name="gate_div"), name="update")
    g.output(g.linear(g.node("Relu", [y], name="relu"), "out", f, 16))


@model("deepmd_smooth_environment_matrix_descriptor", opset=15,
       pins=["rij", "r_*", "sw_*", "env*", "desc_*", "e_sum", "e_bias"])
def _(g):
    """DeePMD-kit: s(r)(1, x/r, y/r, z/r) with a switched 1/r, the product of embeddings, energies of 100 atoms in eV."""
    n, k = 64, 24
    r = g.normal(n, k, 3)
    r = r / np.linalg.norm(r, axis=-1, keepdims=True) * g.uniform(0.9, 6.5, n, k, 1)
    x = g.input("rij", [n, k, 3], r.astype(np.float32))
    x = g.node("Identity", [x], name="rij")
    d2 = g.node("ReduceSum", [op(g, "Mul", x, x, name="r_sq"), g.ints(2)], name="r_sum", keepdims=1)
    d = g.node("Sqrt", [d2], name="r_root")
    u = op(g, "Clip", op(g, "Div", op(g, "Sub", d, 0.5, name="sw_sub"), 5.5, name="sw_u"), 0.0, 1.0, name="sw_clip")
    u2 = op(g, "Mul", u, u, name="sw_u2")
    u3 = op(g, "Mul", u2, u, name="sw_u3")
    poly = op(g, "Add", op(g, "Add", op(g, "Mul", u2, -6.0, name="sw_a"), op(g, "Mul", u, 15.0, name="sw_b"), name="sw_ab"),
              -10.0, name="sw_c")
    sw = op(g, "Add", op(g, "Mul", u3, poly, name="sw_poly"), 1.0, name="sw_1")
    s = op(g, "Div", sw, d, name="env_s")
    vec = op(g, "Div", op(g, "Mul", x, s, name="env_xs"), d, name="env_unit")
    env = g.node("Concat", [s, vec], name="env", axis=2)
    gmat = g.node("Tanh", [g.linear(g.node("Tanh", [g.linear(s, "emb1", 1, 32, scale=2.0)], name="emb1_tanh"), "emb2", 32,
                                    32)], name="emb2_tanh")
    t = g.node("MatMul", [g.node("Transpose", [gmat], name="g_t", perm=[0, 2, 1]), env], name="desc_gr")
    t = op(g, "Div", t, float(k), name="desc_mean")
    sub = span(g, t, 0, 8, 1, "desc_axis")
    desc = g.node("MatMul", [t, g.node("Transpose", [sub], name="desc_t", perm=[0, 2, 1])], name="desc_mm")
    desc = reshape(g, desc, [n, 256], "desc_flat")
    desc = op(g, "Div", op(g, "Sub", desc, 0.02, name="desc_shift"), 0.05, name="desc_std")
    e = mlp(g, desc, "fit", [256, 120, 120, 1], "Tanh")
    e = op(g, "Add", e, -187.61, name="e_bias")
    g.output(g.node("ReduceSum", [e, g.ints(0)], name="e_sum", keepdims=0))


@model("graph_sage_mean_by_scatternd_power_law_degree", opset=16, pins=["count*", "sum_nd", "mean_div", "norm_*"])
def _(g):
    """GraphSAGE: sums and counts by ScatterND add into nodes of up to 3000 neighbours, L2-normalised outputs."""
    n, m, f = 64, 4000, 32
    src, dst, *_ = edges(g, n, m, hub=3000)
    x = g.input("x", [n, 64], np.abs(g.normal(n, 64)))
    h = g.node("Relu", [op(g, "Add", g.linear(x, "pool", 64, f), 2.0, name="pool_shift")], name="pool_relu")
    idx = unsqueeze(g, dst, [1], "dst_u")
    s = g.node("ScatterND", [g.const(np.zeros((n, f))), idx, g.node("Gather", [h, src], name="take")], name="sum_nd",
               reduction="add")
    c = g.node("ScatterND", [g.const(np.zeros((n, 1))), idx, g.const(np.ones((m, 1)))], name="count_nd", reduction="add")
    mean = op(g, "Div", s, op(g, "Max", c, 1.0, name="count_max"), name="mean_div")
    y = op(g, "Add", g.linear(x, "self", 64, 64), g.linear(mean, "neigh", f, 64, bias=False), name="update")
    nrm = g.node("ReduceL2", [y], name="norm_l2", axes=[1], keepdims=1)
    g.output(op(g, "Div", y, op(g, "Max", nrm, 1e-12, name="norm_floor"), name="norm_div"))


@model("set_transformer_pma_pooling_of_jets_pt_gev", opset=17, pins=["pt", "ang", "log_*", "rel_*", "mask_*", "softmax"],
       pins_bf16=["pt", "ang", "log_*", "rel_*", "mask_*", "softmax"])
def _(g):
    """Particle clouds of jets: log pT in GeV, ΔR by sqrt, padded with -1e9, attention pooling from one seed."""
    n = 48
    pt = np.exp(g.rng.normal(1.2, 1.3, (2, n, 1))).astype(np.float32)
    eta, phi = g.normal(2, n, 2, scale=0.3).transpose(2, 0, 1)[..., None]
    mask = (np.arange(n) < np.array([[40], [17]])).astype(np.float32)
    x = g.input("particles", ["jets", n, 3], np.concatenate([pt, eta, phi], 2).astype(np.float32))
    m = g.input("mask", ["jets", n], mask)
    p, ang = span(g, x, 0, 1, 2, "pt"), span(g, x, 1, 3, 2, "ang")
    lp = g.node("Log", [op(g, "Add", p, 1e-8, name="log_eps")], name="log_pt")
    tot = g.node("ReduceSum", [op(g, "Mul", p, unsqueeze(g, m, [2], "mask_u"), name="rel_pm"), g.ints(1)], name="rel_sum")
    lr = g.node("Log", [op(g, "Add", op(g, "Div", p, tot, name="rel_div"), 1e-8, name="log_rel_eps")], name="log_rel")
    dr = g.node("Sqrt", [g.node("ReduceSum", [op(g, "Mul", ang, ang, name="rel_sq"), g.ints(2)], name="rel_dr2")],
                name="rel_dr")
    f = g.node("Concat", [lp, lr, dr, ang], name="features", axis=2)
    h = mlp(g, f, "phi", [5, 128, 64])
    k, v = g.linear(h, "k", 64, 64), g.linear(h, "v", 64, 64)
    s = g.node("MatMul", [g.const(g.normal(1, 1, 64), "seed"), g.node("Transpose", [k], name="kt", perm=[0, 2, 1])],
               name="scores")
    s = op(g, "Mul", s, 0.125, name="scaled")
    bias = op(g, "Mul", op(g, "Sub", 1.0, unsqueeze(g, m, [1], "mask_row"), name="mask_inv"), -1e9, name="mask_bias")
    a = g.node("Softmax", [op(g, "Add", s, bias, name="mask_add")], name="softmax", axis=-1)
    y = reshape(g, g.node("MatMul", [a, v], name="pool"), [-1, 64], "flat")
    g.output(mlp(g, y, "rho", [64, 64, 5]))
