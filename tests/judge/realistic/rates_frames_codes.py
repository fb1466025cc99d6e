"""Logarithms, recurrences, iterated matrices, geometry and integer codes around learned layers, in many domains."""

import numpy as np
from onnx import TensorProto as T

from .build import model
from .named_parts import Part, ints
from .parts import Body, mlp


@model("term_life_reserve_of_monthly_hazards", pins=["q_*", "live_*"], opset=17)
def term_life_reserve_of_monthly_hazards(g):
    """Actuarial: a net scales Gompertz monthly mortality, q = 1 - exp(-mu), survivors by cumulated log(1 - q), reserve."""
    x = g.input("policy", [64, 20], g.normal(64, 20))
    z = g.node("Mul", [mlp(g, x, "risk", [20, 64, 1]), g.const(.4)], name="risk_small")
    age = np.linspace(0, 10, 120)
    mu = g.node("Mul", [g.node("Exp", [z], name="frailty"), g.const(np.exp(-8.0 + .09 * age), "gompertz")], name="hazard")
    q = Part(g, "q")
    die = q("Sub", 1.0, q("Exp", q("Neg", mu)))
    s = Part(g, "live")
    alive = g.node("Exp", [s("CumSum", s("Log", s("Sub", 1.0, die)), np.int64(1), exclusive=1)], name="alive")
    claims = g.node("Mul", [alive, die], name="claims")
    value = g.node("Gemm", [claims, g.const((1.02 ** -age)[:, None] * 100, "discount")], name="reserve")
    g.output(claims, value)


@model("realised_volatility_of_minute_quotes_harq", pins=["ret_*"], opset=18)
def realised_volatility_of_minute_quotes_harq(g):
    """Market risk: log of ratios of successive minute mid prices, realised variance by half hours, volatility net."""
    p = g.uniform(60, 190, 8, 1, 4) * np.exp(np.cumsum(g.normal(8, 241, 4, scale=5e-4), 1))
    bid = g.input("bid", [8, 241, 4], (p - .005).astype(np.float32))
    ask = g.input("ask", [8, 241, 4], (p + .005).astype(np.float32))
    r = Part(g, "ret")
    mid = r("Mul", r("Add", bid, ask), .5)
    now, was = r("Slice", mid, ints(1), ints(241), ints(1)), r("Slice", mid, ints(0), ints(240), ints(1))
    lr = g.node("Mul", [r("Log", r("Div", now, was)), g.const(1000.0)], name="per_mille")
    h = g.node("Reshape", [lr, g.ints(8, 8, 30, 4)], name="half_hours")
    rv = g.node("ReduceSumSquare", [h, g.ints(2)], name="rv", keepdims=0)
    g.output(rv)
    y = g.node("Reshape", [g.node("Sqrt", [rv], name="vol"), g.ints(8, 32)], name="flat")
    g.output(mlp(g, y, "har", [32, 48, 4]))


@model("hospital_infection_noisy_or_of_contacts", pins=["escape_*", "risk"], opset=18)
def hospital_infection_noisy_or_of_contacts(g):
    """Epidemiology: 150 contacts of each patient, a net's small transmission probabilities, risk = 1 - prod(1 - p)."""
    x = g.input("contacts", [16, 150, 12], g.normal(16, 150, 12))
    hours = g.input("hours", [16, 150, 1], g.uniform(.2, 4, 16, 150, 1))
    z = mlp(g, x, "contact", [12, 48, 1])
    p = g.node("Sigmoid", [g.node("Sub", [z, g.const(9.0)], name="rare")], name="per_hour")
    p = g.node("Mul", [p, hours], name="per_contact")
    e = Part(g, "escape")
    none = e("ReduceProd", e("Sub", 1.0, p), ints(1), keepdims=0)
    risk = g.node("Sub", [g.const(1.0), none], name="risk")
    g.output(risk)
    g.output(mlp(g, g.node("Mul", [risk, g.const(20.0)], name="per_twentieth"), "ward", [1, 16, 3]))


@model("antecedent_precipitation_index_hourly_scan",
       pins=["scan", "scan/body/store_*", "anomaly"], opset=19)
def antecedent_precipitation_index_hourly_scan(g):
    """Landslide warning: net rain from a radar net, wetness s = 0.9995 s + r (mm) in a Scan of 480 hours, change since start."""
    x = g.input("radar", [480, 24, 10], g.normal(480, 24, 10))
    s0 = g.input("wetness", [24, 1], g.uniform(110, 240, 24, 1))
    r = g.node("Sigmoid", [mlp(g, x, "rain", [10, 32, 1])], name="rain_sigmoid")
    r = g.node("Mul", [r, g.const(.3)], name="rain_mm")
    b = Body(g, "store")
    s, rt = b.entry("s", [24, 1]), b.entry("rt", [24, 1])
    q = Part(b, "store")
    new = q("Add", q("Mul", s, .9995), rt)
    _, trace = g.node("Scan", [s0, r], name="scan", outputs=2, num_scan_inputs=1,
                      body=b.graph((new, [24, 1]), (b.node("Identity", [new], name="store_emit"), [24, 1])))
    d = g.node("Sub", [trace, s0], name="anomaly")
    g.output(d)
    g.output(mlp(g, g.node("Mul", [d, g.const(.1)], name="anomaly_scaled"), "warn", [1, 16, 2]))


@model("storage_ring_tracking_300_turns_learned_sextupole", pins=["loop", "loop/body/turn_*"], opset=16)
def storage_ring_tracking_300_turns_learned_sextupole(g):
    """Accelerator physics: a net sets the sextupole, a Loop of 300 one-turn maps of 256 particles, then an emittance head."""
    knobs = g.input("knobs", [1, 16], g.normal(1, 16))
    part = g.input("particles", [256, 2], g.normal(256, 2, scale=.7))
    k = g.node("Mul", [g.node("Tanh", [mlp(g, knobs, "magnet", [16, 32, 1])], name="magnet_tanh"), g.const(.002)], name="strength")
    a = 2 * np.pi * .0213
    m = np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]])
    b = Body(g, "turn")
    b.entry("trip", [], T.INT64)
    keep = b.node("Identity", [b.entry("keep", [], T.BOOL)], name="keep_on")
    q = Part(b, "turn")
    z = q("MatMul", b.entry("z", [256, 2]), m.T)
    x = q("Gather", z, ints(0), axis=1)
    kick = q("Mul", q("Mul", x, x), k)
    z = q("Add", z, q("MatMul", kick, np.array([[0., 1.]])))
    end = g.node("Loop", [g.const(300, dtype=np.int64), g.const(True, dtype=bool), part], name="loop",
                 body=b.graph((keep, [], T.BOOL), (z, [256, 2])))
    end = g.node("Reshape", [end, g.ints(256, 2)], name="end")
    g.output(end)
    h = g.node("ReduceMean", [g.node("Relu", [g.linear(end, "beam1", 2, 32)], name="beam_relu")], name="beam_pool", axes=[0])
    g.output(g.linear(h, "beam2", 32, 3))


@model("traction_battery_thermal_chain_twelve_steps", pins=["t*_chain", "t*_rise", "t*_temp", "warming"], opset=22)
def traction_battery_thermal_chain_twelve_steps(g):
    """Electric car: heat of cells from a loss net, core/case/plate temperatures (K) by an unrolled near-identity chain."""
    x = g.input("drive", [8, 12, 6], g.normal(8, 12, 6))
    start = g.input("kelvin", [8, 1, 3], (np.array([306., 303, 298]) + g.normal(8, 1, 3, scale=2)).astype(np.float32))
    heat = g.node("Softplus", [mlp(g, x, "loss", [6, 32, 1])], name="loss_positive")
    steps = g.node("Split", [heat], name="seconds", outputs=12, axis=1, num_outputs=12)
    a = np.array([[.9985, .0012, 0], [.0015, .9979, .0006], [0, .0009, .9994]])       # columns sum to one: rows mix
    a = g.const(a / a.sum(0), "chain")
    into = g.const([[[.05, .004, 0]]], "heating")
    t = start
    for i, q in enumerate(steps):
        mixed = g.node("MatMul", [t, a], name=f"t{i}_chain")
        rise = g.node("Mul", [q, into], name=f"t{i}_rise")
        t = g.node("Add", [mixed, rise], name=f"t{i}_temp")
    g.output(g.node("Sub", [t, start], name="warming"))


@model("rating_migration_generator_squared_to_64_months", pins=["month_*", "power*"], opset=21)
def rating_migration_generator_squared_to_64_months(g):
    """Credit: a macro net scales the monthly migration generator of 8 ratings, I + Q, six squarings, default column."""
    q = np.abs(g.normal(8, 8)) * .0016 * np.exp(-1.2 * np.abs(np.subtract.outer(np.arange(8), np.arange(8))))
    q[7] = 0
    np.fill_diagonal(q, 0)
    q -= np.diag(q.sum(1))
    x = g.input("macro", [4, 10], g.normal(4, 10))
    s = g.node("Exp", [g.node("Mul", [mlp(g, x, "cycle", [10, 32, 1], act="Tanh"), g.const(.5)], name="cycle_half")], name="cycle")
    scaled = g.node("Mul", [g.node("Unsqueeze", [s, g.ints(2)], name="cycle_u"), g.const(q, "generator")], name="intensity")
    m = Part(g, "month")
    p = m("Add", scaled, np.eye(8))
    for i in range(6):
        p = g.node("MatMul", [p, p], name=f"power{i}")
    pd = g.node("Slice", [p, g.ints(0, 7), g.ints(7, 8), g.ints(1, 2)], name="default_column")
    g.output(g.node("Mul", [g.node("Squeeze", [pd, g.ints(2)], name="default"), g.const(100.0)], name="percent"))


@model("gtr_phylogeny_branch_expm_scaling_squaring", pins=["taylor_*", "square*"], opset=20)
def gtr_phylogeny_branch_expm_scaling_squaring(g):
    """Phylogenetics: branch lengths from a net, exp(Qt) of a GTR model by a Taylor step of Qt/256 squared eight times, site likelihoods."""
    pi = np.array([.3, .2, .22, .28])
    r = np.array([[0, 1, 4, .8], [1, 0, .9, 4.5], [4, .9, 0, 1], [.8, 4.5, 1, 0]]) * pi
    q = r - np.diag(r.sum(1)); q /= -(pi * np.diag(q)).sum()
    x = g.input("embedding", [16, 48], g.normal(16, 48))
    sites = g.input("pairs", [16, 200, 2], g.rng.integers(0, 4, (16, 200, 2)))
    t = g.node("Softplus", [mlp(g, x, "branch", [48, 64, 1])], name="branch_length")
    t = g.node("Mul", [g.node("Unsqueeze", [t, g.ints(2)], name="branch_u"), g.const(.25)], name="branch_scaled")
    a = g.node("Mul", [t, g.const(q / 256, "gtr")], name="rate_step")
    y = Part(g, "taylor")
    e = y("Add", y("Add", a, np.eye(4)), y("Mul", y("MatMul", a, a), .5))
    for i in range(8):
        e = g.node("MatMul", [e, e], name=f"square{i}")
    g.output(e)
    joint = g.node("Mul", [e, g.const(pi[:, None], "frequencies")], name="joint")
    lik = g.node("GatherND", [joint, sites], name="site", batch_dims=1)
    g.output(g.node("ReduceMean", [g.node("Log", [lik], name="site_log"), g.ints(1)], name="log_likelihood", keepdims=0))


@model("ocean_box_inventory_factored_neumann_series", pins=["stay_*", "neumann_*", "inventory"], opset=15)
def ocean_box_inventory_factored_neumann_series(g):
    """Ocean tracers: 24 boxes exchange monthly, (I-T)^-1 as (I+T)(I+T²)(I+T⁴)..., inventory of sources that a net predicts."""
    flow = np.abs(g.normal(24, 24, scale=.012)) * (g.rng.random((24, 24)) < .15)
    np.fill_diagonal(flow, 0)
    x = g.input("drivers", [12, 30], g.normal(12, 30))
    f = g.input("exchange", [24, 24], flow.astype(np.float32))
    src = g.node("Softplus", [mlp(g, x, "source", [30, 64, 24])], name="source_positive")
    s = Part(g, "stay")
    out = s("ReduceSum", f, ints(1), keepdims=1)
    t = s("Add", f, s("Mul", np.eye(24), s("Sub", .995, out)))
    n = Part(g, "neumann")
    total, power = n("Add", t, np.eye(24)), t
    for i in range(9):
        power = n("MatMul", power, power)
        total = n("Add", total, n("MatMul", total, power))
    y = g.node("MatMul", [src, total], name="inventory")
    g.output(y)
    g.output(mlp(g, g.node("Mul", [y, g.const(.005)], name="inventory_scaled"), "flux", [24, 32, 4]))


@model("protein_residue_frames_of_refined_backbone", pins=["pos_*", "edge_*", "next_*"], opset=20)
def protein_residue_frames_of_refined_backbone(g):
    """Structure refinement: backbone N, CA, C in cell coordinates (Å) plus a net's shifts, Gram-Schmidt frames, next CA in each frame."""
    ca = np.array([122., -87, 154]) + np.cumsum(2.2 * g.normal(1, 128, 3), 1)
    unit = lambda v: v / np.linalg.norm(v, axis=-1, keepdims=True)
    u = unit(g.normal(1, 128, 3))
    side = unit(np.cross(u, g.normal(1, 128, 3)))
    n, c = ca + 1.46 * (-.36 * u + .93 * side), ca + 1.52 * u
    x = g.input("backbone", [1, 128, 3, 3], np.stack([n, ca, c], 2).astype(np.float32))
    h = g.input("single", [1, 128, 64], g.normal(1, 128, 64))
    sh = g.node("Mul", [mlp(g, h, "shift", [64, 64, 9], act="Tanh"), g.const(.05)], name="shift_small")
    p = Part(g, "pos")
    y = p("Add", x, g.node("Reshape", [sh, g.ints(1, 128, 3, 3)], name="shift_atoms"))
    e = Part(g, "edge")
    mid = e("Gather", y, ints(1), axis=2)
    arms = e("Sub", e("Gather", y, ints(2, 0), axis=2), mid)
    nx = Part(g, "next")
    flat = nx("Squeeze", mid, ints(2))
    step = nx("Sub", nx("Slice", flat, ints(1), ints(128), ints(1)), nx("Slice", flat, ints(0), ints(127), ints(1)))
    f = Part(g, "frame")
    arms = f("Slice", arms, ints(0), ints(127), ints(1))
    v1, v2 = f("Gather", arms, np.int64(0), axis=2), f("Gather", arms, np.int64(1), axis=2)
    e1 = f("LpNormalization", v1, axis=2, p=2)
    u = f("Sub", v2, f("Mul", e1, f.red("ReduceSum", f("Mul", e1, v2), 2)))
    e2 = f("LpNormalization", u, axis=2, p=2)
    roll = lambda v, *i: f("Gather", v, ints(*i), axis=2)
    e3 = f("Sub", f("Mul", roll(e1, 1, 2, 0), roll(e2, 2, 0, 1)), f("Mul", roll(e1, 2, 0, 1), roll(e2, 1, 2, 0)))
    r = f("Concat", f.unsq(e1, 2), f.unsq(e2, 2), f.unsq(e3, 2), axis=2)
    local = g.node("Einsum", [r, step], name="local", equation="bnij,bnj->bni")
    g.output(local)
    g.output(mlp(g, local, "torsion", [3, 32, 7]))


@model("rendezvous_lvlh_relative_state_guidance", pins=["rel_*", "hat_*", "spin_*"], opset=18)
def rendezvous_lvlh_relative_state_guidance(g):
    """Spacecraft docking: chaser less target in inertial km, orbital frame by cross products, transport term, guidance MLP."""
    ang = g.uniform(0, 6, 64, 1)
    inc = .9
    p, q = np.array([[1., 0, 0]]), np.array([[0, np.cos(inc), np.sin(inc)]])
    r = 6790 * (np.cos(ang) * p + np.sin(ang) * q)
    v = 7.66 * (-np.sin(ang) * p + np.cos(ang) * q)
    d = g.normal(64, 3, scale=.4)
    rt, vt = g.input("target_r", [64, 3], r.astype(np.float32)), g.input("target_v", [64, 3], v.astype(np.float32))
    rc = g.input("chaser_r", [64, 3], (r + d).astype(np.float32))
    w = np.cross(r, v) / 6790**2
    vc = g.input("chaser_v", [64, 3], (v + np.cross(w, d) + g.normal(64, 3, scale=3e-4)).astype(np.float32))
    s = Part(g, "spin")
    roll = lambda f, x, *i: f("Gather", x, ints(*i), axis=1)
    def cross(f, a, b):
        return f("Sub", f("Mul", roll(f, a, 1, 2, 0), roll(f, b, 2, 0, 1)), f("Mul", roll(f, a, 2, 0, 1), roll(f, b, 1, 2, 0)))
    h = cross(s, rt, vt)
    omega = s("Div", h, s.red("ReduceSumSquare", rt, 1))
    b = Part(g, "rel")
    rho = b("Sub", rc, rt)
    vel = b("Sub", b("Sub", vc, vt), cross(b, omega, rho))
    t = Part(g, "hat")
    radial = t("Div", rt, t("ReduceL2", rt, ints(1), keepdims=1))
    normal = t("Div", h, t("ReduceL2", h, ints(1), keepdims=1))
    f = Part(g, "frame")
    m = f("Concat", f.unsq(radial, 1), f.unsq(cross(f, normal, radial), 1), f.unsq(normal, 1), axis=1)
    pair = f("Concat", f.unsq(f("Mul", rho, 2.0), 2), f.unsq(f("Mul", vel, 2000.0), 2), axis=2)
    state = f.reshape(f("MatMul", m, pair), 64, 6)
    g.output(state)
    g.output(mlp(g, state, "guide", [6, 64, 3], act="Tanh"))


@model("functional_hip_centre_weighted_sphere_fit", pins=["mean_*", "cov_*", "rhs_*", "solve_*"], opset=18)
def functional_hip_centre_weighted_sphere_fit(g):
    """Gait laboratory: thigh markers in room metres, a net's confidences, weighted raw moments, 3×3 sphere fit, joint offset."""
    u = g.normal(4, 120, 3) + np.array([0, 0, -1.0]); u /= np.linalg.norm(u, axis=2, keepdims=True)
    x = g.input("markers", [4, 120, 3], (np.array([2.4, 3.1, .95]) + g.normal(4, 1, 3, scale=.2) + .42 * u + g.normal(4, 120, 3, scale=.001)).astype(np.float32))
    f = g.input("residuals", [4, 120, 6], g.normal(4, 120, 6))
    w = g.node("Softmax", [mlp(g, f, "trust", [6, 24, 1])], name="trust_softmax", axis=1)
    m = Part(g, "mean")
    w = m("Div", w, m.red("ReduceSum", w, 1))
    wt = m("Transpose", w, perm=[0, 2, 1])
    centre = m("MatMul", wt, x)
    r2 = m.red("ReduceSumSquare", x, 2)
    mr2 = m("MatMul", wt, r2)
    c = Part(g, "cov")
    wx = c("Transpose", c("Mul", w, x), perm=[0, 2, 1])
    ct = c("Transpose", centre, perm=[0, 2, 1])
    cov = c("Sub", c("MatMul", wx, x), c("MatMul", ct, centre))
    q = Part(g, "rhs")
    b = q("Mul", q("Sub", q("MatMul", wx, r2), q("MatMul", ct, mr2)), .5)
    s = Part(g, "solve")
    rows = lambda *i: s("Gather", cov, ints(*i), axis=1)
    a1, a2 = rows(1, 2, 0), rows(2, 0, 1)
    roll = lambda v, *i: s("Gather", v, ints(*i), axis=2)
    cof = s("Sub", s("Mul", roll(a1, 1, 2, 0), roll(a2, 2, 0, 1)), s("Mul", roll(a1, 2, 0, 1), roll(a2, 1, 2, 0)))
    det = s.red("ReduceSum", s("Mul", rows(0), s("Gather", cof, ints(0), axis=1)), 2)
    joint = s("Div", s("MatMul", cof, b), det)
    off = s("Sub", joint, ct)
    off = g.node("Squeeze", [off, g.ints(2)], name="offset")
    g.output(off)
    g.output(mlp(g, off, "gait", [3, 32, 6]))


@model("aerosol_lookup_table_flat_bin_code", pins=["bin_*", "code*"], opset=16)
def aerosol_lookup_table_flat_bin_code(g):
    """Satellite aerosols: four angles and reflectances binned, a flat table code by strides, learned entries corrected by an MLP."""
    lo, hi = np.array([0., 0, 0, .02]), np.array([75., 65, 180, .42])
    x = g.input("geometry", [512, 4], g.uniform(0, 1, 512, 4) * (hi - lo).astype(np.float32) + lo.astype(np.float32))
    size = np.array([10, 10, 13, 16])
    b = Part(g, "bin")
    u = b("Mul", b("Sub", x, lo), size / (hi - lo))
    i = b("Clip", b("Floor", u), 0.0, 15.0)
    strides = np.array([10 * 13 * 16, 13 * 16, 16, 1.0])
    code = g.node("MatMul", [i, g.const(strides[:, None], "strides")], name="code")
    k = g.node("Squeeze", [g.node("Cast", [code], name="code_int", to=T.INT64), g.ints(1)], name="flat_code")
    k = g.node("Min", [k, g.const(20799, dtype=np.int64)], name="inside")
    e = g.node("Gather", [g.const(g.normal(20800, 8), "table"), k], name="entry")
    g.output(mlp(g, e, "aod", [8, 48, 3]))


@model("dna_seven_mer_codes_by_convolution_embedding_cnn", pins=["kmer", "kmer_*"], opset=13)
def dna_seven_mer_codes_by_convolution_embedding_cnn(g):
    """Genomics: one-hot bases, a Conv with powers of four numbers every 7-mer, embeddings gathered, promoter CNN."""
    seq = np.eye(4, dtype=np.float32)[g.rng.integers(0, 4, (2, 300))].transpose(0, 2, 1)
    x = g.input("onehot", [2, 4, 300], seq)
    k = np.arange(4)[None, :, None] * 4.0 ** np.arange(6, -1, -1)[None, None]
    c = g.node("Conv", [x, g.const(k, "base_four")], name="kmer")
    i = g.node("Squeeze", [g.node("Cast", [c], name="kmer_int", to=T.INT64), g.ints(1)], name="codes")
    e = g.node("Gather", [g.const(g.normal(4**7, 24), "embedding"), i], name="embed")
    h = g.node("Transpose", [e], name="channels", perm=[0, 2, 1])
    h = g.node("Relu", [g.conv(h, "motif1", 24, 48, 9, dims=1)], name="motif_relu")
    h = g.node("MaxPool", [h], name="motif_pool", kernel_shape=[8], strides=[8])
    g.output(g.conv(h, "motif2", 48, 8, 3, dims=1))


@model("tanimoto_distances_of_folded_count_keys_kernel_head", pins=["common", "size_*", "either", "far_*"], opset=22)
def tanimoto_distances_of_folded_count_keys_kernel_head(g):
    """Drug screening: matches of 8192 binary keys by MatMul, union by counts, 1 - Tanimoto of close analogues, kernel regression."""
    base = g.rng.random((1, 8192)) < .55
    flip = lambda n, p: (base ^ (g.rng.random((n, 8192)) < p)).astype(np.float32)
    x = g.input("query", [16, 8192], flip(16, .004))
    lib = flip(64, .004)
    c = g.node("MatMul", [x, g.const(lib.T.copy(), "library")], name="common")
    s = Part(g, "size")
    n = s.red("ReduceSum", x, 1)
    both = s("Add", n, lib.sum(1)[None])
    u = g.node("Sub", [both, c], name="either")
    f = Part(g, "far")
    d = f("Sub", 1.0, f("Div", c, u))
    g.output(d)
    k = g.node("Exp", [g.node("Mul", [d, g.const(-60.0)], name="kernel_width")], name="kernel")
    g.output(mlp(g, k, "affinity", [64, 32, 2]))
