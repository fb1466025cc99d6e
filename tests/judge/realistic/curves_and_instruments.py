"""Differences, offsets, sums, squares and spectra around learned layers, in many domains."""

import numpy as np

from .build import model
from .named_parts import Part, ints
from .parts import Body, mlp


@model("nelson_siegel_zero_curve_to_monthly_forwards", pins=["zero_*", "fwd_*"], opset=17)
def nelson_siegel_zero_curve_to_monthly_forwards(g):
    """Yield curve net: macro features to four factors, zero rates of 120 months, forward rates by differences of r·t."""
    x = g.input("macro", [32, 24], g.normal(32, 24))
    f = g.node("Tanh", [mlp(g, x, "factor", [24, 64, 4])], name="factor_tanh")
    t = np.arange(1, 121) / 12
    h = lambda lam: (1 - np.exp(-lam * t)) / (lam * t)
    basis = np.stack([np.ones(120), h(.7), h(.7) - np.exp(-.7 * t), h(.2) - np.exp(-.2 * t)]) * .008
    z = Part(g, "zero")
    r = z("Add", z("MatMul", f, basis), .045 - .015 * np.exp(-t / 3))
    rt = z("Mul", r, t[None])
    d = Part(g, "fwd")
    late = d("Slice", rt, ints(1), ints(120), ints(1))
    early = d("Slice", rt, ints(0), ints(-1), ints(1))
    g.output(g.node("Mul", [d("Sub", late, early), g.const(12.0)], name="per_year"))


@model("nir_norris_gap_second_derivative_then_pls", pins=["scatter_curve", "clean*", "gap"], opset=13)
def nir_norris_gap_second_derivative_then_pls(g):
    """Near-infrared grain analyser: a CNN takes off a scatter polynomial, gap second derivative by a Gemm, latent scores, protein."""
    w = np.arange(256)
    bands = sum(g.uniform(.05, .3, 32, 1) * np.exp(-((w - c) / 11.0) ** 2 / 2) for c in (40, 90, 150, 210))
    x = g.input("absorbance", [32, 1, 256], (1.1 + .0015 * w + bands)[:, None].astype(np.float32))
    h = g.node("Relu", [g.conv(x, "scatter1", 1, 8, 32, dims=1, strides=[32])], name="scatter_relu")
    h = g.linear(g.node("Reshape", [h, g.ints(32, 1, 64)], name="scatter_flat"), "scatter2", 64, 3)
    poly = np.stack([np.ones(256), w / 256, (w / 256) ** 2]) * .05
    h = g.node("MatMul", [h, g.const(poly, "polynomials")], name="scatter_curve")
    y = g.node("Reshape", [g.node("Sub", [x, h], name="clean"), g.ints(32, 256)], name="clean_rows")
    d2 = np.zeros((246, 256))
    for i in range(246):
        d2[i, i:i + 11:5] = [1, -2, 1]
    d = g.node("Gemm", [y, g.const(d2, "second_difference")], name="gap", transB=1)
    g.output(mlp(g, d, "pls", [246, 12, 3]))


@model("bridge_bending_moment_of_predicted_deflection", pins=["sag_*", "curv_*"], opset=20)
def bridge_bending_moment_of_predicted_deflection(g):
    """Bridge monitoring: strain gauges to six modal amplitudes (mm) over the dead-load sag, curvature at 99 nodes, moments."""
    x = g.input("gauges", [16, 40], g.normal(16, 40))
    a = mlp(g, x, "modal", [40, 96, 6], act="Tanh")
    s = np.linspace(0, 1, 101)
    modes = np.stack([6.0 / k**2 * np.sin(np.pi * k * s) for k in range(1, 7)])
    q = Part(g, "sag")
    w = q("Add", q("MatMul", a, modes), 320 * s * (1 - s))
    c = Part(g, "curv")
    i = np.arange(99)
    left, mid, right = (c("Gather", w, (i + k).astype(np.int64), axis=1) for k in range(3))
    k = c("Sub", c("Add", left, right), c("Add", mid, mid))
    m = g.node("Mul", [k, g.const(-2.1e2)], name="stiffness")
    g.output(m)
    g.output(mlp(g, m, "fatigue", [99, 32, 4]))


@model("microwave_sounder_background_departures", pins=["back_add*", "dep_*"], opset=21)
def microwave_sounder_background_departures(g):
    """Satellite sounder: a net emulates brightness temperatures (K), less observed ones and the scan bias, retrieval net."""
    clim = np.linspace(212, 286, 22).astype(np.float32)
    prof = g.input("profile", [48, 60], g.normal(48, 60))
    scan = g.input("scan_angle", [48, 3], g.uniform(-1, 1, 48, 3))
    obs = g.input("observed", [48, 22], clim + g.normal(48, 22, scale=.6))
    sim = mlp(g, prof, "rttov", [60, 128, 22], act="Softplus")
    b = Part(g, "back")
    sim = b("Add", b("Mul", g.node("Tanh", [sim], name="rttov_tanh"), .4), clim)
    bias = mlp(g, scan, "bias", [3, 22])
    d = Part(g, "dep")
    dep = d("Sum", obs, d("Neg", sim), d("Neg", bias))
    z = g.node("Mul", [dep, g.const(1 / .3)], name="whiten")
    g.output(z)
    g.output(mlp(g, z, "retrieval", [22, 64, 30]))


@model("tess_transit_light_curve_folded_and_binned", pins=["fold_*", "flux_*"], opset=18)
def tess_transit_light_curve_folded_and_binned(g):
    """Exoplanet vetting: BTJD times folded at the period, kernel bins of the relative flux in ppt, a 1-D CNN."""
    t = np.sort(g.uniform(2285, 2312, 1, 600)).astype(np.float32)
    ph = (t - 1683.351) / 3.2137
    ph = ph - np.round(ph)
    flux = 1.002 - .009 * (np.abs(ph) < .03) + g.normal(1, 600, scale=.0005)
    tt, fl = g.input("btjd", [1, 600], t), g.input("flux", [1, 600], flux.astype(np.float32))
    f = Part(g, "fold")
    cycles = f("Div", f("Sub", tt, 1683.351), 3.2137)
    phase = f("Sub", cycles, f("Round", cycles))
    b = Part(g, "bin")
    dist = b("Mul", b("Sub", b.unsq(phase, 2), np.linspace(-.45, .45, 61)), 70.0)
    k = b("Exp", b("Neg", b("Mul", dist, dist)))
    q = Part(g, "flux")
    rel = g.node("Mul", [q("Sub", fl, 1.002), g.const(1000.0)], name="ppt")
    num = g.node("MatMul", [g.node("Unsqueeze", [rel, g.ints(1)], name="row"), k], name="kernel_sum")
    den = g.node("ReduceSum", [k, g.ints(1)], name="kernel_mass", keepdims=1)
    y = g.node("Div", [num, g.node("Add", [den, g.const(.05)], name="kernel_floor")], name="binned")
    h = g.node("Relu", [g.conv(y, "vet1", 1, 16, 5, dims=1)], name="vet_relu")
    g.output(g.conv(h, "vet2", 16, 4, 5, dims=1, strides=[2]))


@model("weighbridge_adc_counts_tare_with_thermal_net",
       pins=["avg", "comp_*", "gain_one", "tare", "tare/*"], opset=19)
def weighbridge_adc_counts_tare_with_thermal_net(g):
    """Check-weigher: 24 averaged ADC readings of four load cells, learned thermal gain and drift, stored or predicted tare."""
    zero = np.array([21400, 22950, 20810, 23720], np.float32)
    x = g.input("counts", [64, 24, 4], np.round(zero + g.uniform(60, 400, 64, 1, 4) + g.normal(64, 24, 4, scale=6)).astype(np.float32))
    env = g.input("thermal", [64, 5], g.normal(64, 5))
    stored = g.input("use_stored", [], np.array(True))
    avg = g.node("ReduceMean", [x, g.ints(1)], name="avg", keepdims=0)
    gain = g.node("Mul", [mlp(g, env, "gain", [5, 32, 4], act="Tanh"), g.const(4e-4)], name="gain_small")
    gain = g.node("Add", [gain, g.const(1.0)], name="gain_one")
    drift = g.node("Mul", [mlp(g, env, "drift", [5, 16, 4]), g.const(9.0)], name="drift_counts")
    c = Part(g, "comp")
    y = c("Add", c("Mul", avg, gain), drift)
    then, other = Body(g, "stored_tare"), Body(g, "median_tare")
    a = then.node("Sub", [y, then.const(zero)], name="less_stored")
    m = other.node("ReduceMin", [y, other.ints(0)], name="lightest", keepdims=1)
    e = other.node("Sub", [y, m], name="less_lightest")
    net = g.node("If", [stored], name="tare", then_branch=then.graph((a, [64, 4])), else_branch=other.graph((e, [64, 4])))
    p = Part(g, "grams")
    total = p("Gemm", net, [[.052], [.0497], [.0511], [.0505]])
    g.output(total)
    g.output(mlp(g, g.node("Mul", [net, g.const(.01)], name="scaled"), "reject", [4, 16, 2]))


@model("boosted_jet_mass_of_puppi_weighted_constituents", pins=["four_sum", "mass_*"], opset=16)
def boosted_jet_mass_of_puppi_weighted_constituents(g):
    """Collider jet tagger: learned pile-up weights, summed four-momenta of 60 massless constituents (GeV), E² - p², mass."""
    axis = g.normal(32, 1, 3); axis /= np.linalg.norm(axis, axis=2, keepdims=True)
    d = axis + .06 * g.normal(32, 60, 3); d /= np.linalg.norm(d, axis=2, keepdims=True)
    e = (g.uniform(0, 1, 32, 60, 1) ** 3 * 12).astype(np.float32)
    p4 = np.concatenate([e, e * d], 2).astype(np.float32)
    x = g.input("p4", [32, 60, 4], p4)
    f = g.input("features", [32, 60, 8], g.normal(32, 60, 8))
    w = g.node("Sigmoid", [mlp(g, f, "puppi", [8, 32, 1])], name="puppi_weight")
    s = g.node("Einsum", [w, x], name="four_sum", equation="bnk,bnc->bkc")
    m = Part(g, "mass")
    sq = m("Squeeze", m("Mul", s, s), ints(1))
    m2 = m("MatMul", sq, [[1], [-1], [-1], [-1]])
    mass = g.node("Sqrt", [g.node("Max", [m2, g.const(1e-3)], name="floor")], name="root")
    g.output(mass)
    h = g.node("Mul", [mass, g.const(.2)], name="scaled")
    g.output(mlp(g, h, "tag", [1, 16, 2]))


@model("cell_segmentation_ellipse_from_raw_moments", pins=["mom_*", "cen_*"], opset=22)
def cell_segmentation_ellipse_from_raw_moments(g):
    """Microscopy: a small U-shaped net gives a mask; its raw moments (pixels) pooled, central moments, axes and tilt."""
    yy, xx = np.mgrid[:64, :64]
    img = np.stack([np.exp(-((xx - a) / s) ** 2 - ((yy - b) / r) ** 2 - (xx - a) * (yy - b) / (s * r))
                    for a, b, s, r in ((44, 50, 8, 6), (38, 47, 7, 9), (50, 40, 6, 7), (47, 52, 5, 8))])
    x = g.input("image", [4, 1, 64, 64], (img[:, None] + g.normal(4, 1, 64, 64, scale=.02)).astype(np.float32))
    h = g.node("Relu", [g.conv(x, "down", 1, 16, 3, pads=[1] * 4)], name="relu")
    h = g.node("Mul", [g.conv(h, "up", 16, 1, 3, pads=[1] * 4), g.const(.3)], name="detail")
    logit = g.node("Add", [g.node("Mul", [x, g.const(16.0)], name="seed"), h], name="logit_add")
    mask = g.node("Sigmoid", [g.node("Sub", [logit, g.const(8.0)], name="logit")], name="mask")
    q = Part(g, "mom")
    p = q("Reshape", mask, ints(4, 64, 64))
    total = q.red("ReduceSum", p, 1, 2)
    p = q("Div", p, total)
    c = np.arange(64.0)
    basis = np.stack([np.ones(64), c, c * c], 1)
    r = q("MatMul", q("Einsum", p, basis, equation="bhw,hi->biw"), basis)          # [4, 3, 3], powers of y, of x
    flat = q.reshape(r, 4, 9)
    mean = q("Gather", flat, ints(1, 3), axis=1)
    raw = q("Gather", flat, ints(2, 6), axis=1)
    xy = q("Gather", flat, ints(4), axis=1)
    z = Part(g, "cen")
    var = z("Sub", raw, z("Mul", mean, mean))
    cov = z("Sub", xy, z("ReduceProd", mean, ints(1), keepdims=1))
    shape = g.node("Concat", [var, cov], name="ellipse", axis=1)
    g.output(shape)
    g.output(mlp(g, g.node("Mul", [shape, g.const(.02)], name="shape_scale"), "kind", [3, 16, 5]))


@model("reservoir_mass_curve_of_learned_inflow", pins=["volume_*", "mass_*", "storage"], opset=15)
def reservoir_mass_curve_of_learned_inflow(g):
    """Hydrology: 720 hourly inflows of baseflow plus a runoff net, cumulated in and out volumes, storage change, level net."""
    x = g.input("forcing", [2, 720, 8], g.normal(2, 720, 8))
    out = g.input("release", [2, 720, 1], (52 + 4 * np.sin(np.arange(720) / 40)[None, :, None] + g.normal(2, 720, 1)).astype(np.float32))
    base = g.input("baseflow", [2, 1, 1], np.array([51.7, 52.4], np.float32).reshape(2, 1, 1))
    q = g.node("Mul", [mlp(g, x, "runoff", [8, 48, 1]), g.const(2.0)], name="runoff_m3s")
    v = Part(g, "volume")
    both = v("Mul", v("Concat", v("Add", base, q), out, axis=2), .0036)
    m = Part(g, "mass")
    curve = m("CumSum", both, np.int64(1))
    cin = m("Slice", curve, ints(0), ints(1), ints(2))
    cout = m("Slice", curve, ints(1), ints(2), ints(2))
    s = g.node("Sub", [cin, cout], name="storage")
    g.output(s)
    g.output(mlp(g, s, "level", [1, 24, 1], act="Tanh"))


@model("radiomics_glcm_correlation_of_soft_grey_levels", pins=["pair_*", "glcm_*"], opset=18)
def radiomics_glcm_correlation_of_soft_grey_levels(g):
    """Radiomics: a denoised patch softly binned into 16 grey levels 48..63, co-occurrence by MatMul, covariance, correlation."""
    yy, xx = np.mgrid[:32, :32]
    img = 55 + 2.5 * np.sin(xx / 5 + yy / 9) + g.normal(4, 32, 32, scale=.8)
    x = g.input("patch", [4, 1, 32, 32], img[:, None].astype(np.float32) - 55)
    h = g.node("Relu", [g.conv(x, "den1", 1, 16, 3, pads=[1] * 4)], name="den_relu")
    y = g.node("Add", [x, g.node("Mul", [g.conv(h, "den2", 16, 1, 3, pads=[1] * 4), g.const(.2)], name="den_small")], name="den")
    d = g.node("Sub", [g.node("Unsqueeze", [y, g.ints(4)], name="den_u"), g.const(np.arange(48., 64) - 55)], name="bin_sub")
    a = g.node("Softmax", [g.node("Neg", [g.node("Mul", [d, d], name="bin_sq")], name="bin_neg")], name="bin_soft", axis=4)
    p = Part(g, "pair")
    left = p("Reshape", p("Slice", a, ints(0), ints(31), ints(3)), ints(4, 992, 16))
    right = p("Reshape", p("Slice", a, ints(1), ints(32), ints(3)), ints(4, 992, 16))
    c = p("MatMul", p("Transpose", left, perm=[0, 2, 1]), right)
    c = p("Div", c, p.red("ReduceSum", c, 1, 2))
    q = Part(g, "glcm")
    lev = np.arange(48., 64)
    row = np.stack([np.ones(16), lev, lev * lev])
    m = q("MatMul", q("MatMul", row, c), row.T)                                     # [4, 3, 3]
    m = q.reshape(m, 4, 9)
    at = lambda *i: q("Gather", m, ints(*i), axis=1)
    cov = q("Sub", at(4), q("Mul", at(1), at(3)))
    var = q("Sub", at(2, 6), q("Mul", at(1, 3), at(1, 3)))
    k = Part(g, "corr")
    corr = k("Div", cov, k("Sqrt", k("ReduceProd", var, ints(1), keepdims=1)))
    g.output(cov, corr)


@model("index_fund_tracking_error_by_three_quadratic_forms", pins=["w_*", "risk_*", "te_*"], opset=14)
def index_fund_tracking_error_by_three_quadratic_forms(g):
    """Fund construction: a net tilts benchmark weights of 200 stocks; tracking variance as w'Sw - 2 w'Sb + b'Sb."""
    b = g.uniform(.2, 2, 200); b /= b.sum()
    load = np.concatenate([1 + g.normal(200, 1, scale=.2), g.normal(200, 5, scale=.3)], 1)
    cov = (.03 * load @ load.T + np.diag(g.uniform(.02, .08, 200))).astype(np.float32)
    x = g.input("signals", [8, 30], g.normal(8, 30))
    s = g.input("covariance", [200, 200], cov)
    tilt = g.node("Mul", [mlp(g, x, "alpha", [30, 64, 200]), g.const(.12)], name="alpha_small")
    k = Part(g, "w")
    w = k("Softmax", k("Add", tilt, np.log(b)), axis=1)
    bench = g.const(b[None], "benchmark")
    r = Part(g, "risk")
    sw, sb = r("MatMul", w, s), r("MatMul", bench, s)
    own = r("ReduceSum", r("Mul", sw, w), ints(1), keepdims=1)
    cross = r("MatMul", w, r("Transpose", sb, perm=[1, 0]))
    index = r("Gemm", sb, bench, transB=1)
    t = Part(g, "te")
    te = t("Add", t("Sub", own, t("Mul", cross, 2.0)), index)
    g.output(g.node("Mul", [t("Sqrt", t("Max", te, 1e-12)), g.const(100.0)], name="percent"))


@model("pulse_oximeter_ratio_of_ratios_by_window_variance", pins=["win_*", "ac_*"], opset=20)
def pulse_oximeter_ratio_of_ratios_by_window_variance(g):
    """Wearable: red and infrared photoplethysmograms in volts, windowed mean of squares less squared mean, ratio, SpO2 net."""
    t = np.arange(600) / 100
    beat = np.sin(2 * np.pi * 1.3 * t) + .4 * np.sin(2 * np.pi * 2.6 * t + .7)
    dc, amp = g.uniform(1.6, 2.6, 8, 2, 1), g.uniform(.03, .08, 8, 2, 1)
    x = g.input("ppg", [8, 2, 600], (dc + amp * beat + g.normal(8, 2, 600, scale=.002)).astype(np.float32))
    w = Part(g, "win")
    mean = w("AveragePool", x, kernel_shape=[150], strides=[50])
    sq = w("AveragePool", w("Mul", x, x), kernel_shape=[150], strides=[50])
    a = Part(g, "ac")
    var = a("Sub", sq, a("Pow", mean, 2.0))
    sd = g.node("Sqrt", [g.node("Max", [var, g.const(1e-8)], name="var_floor")], name="sd")
    per = g.node("Div", [sd, mean], name="perfusion")
    red, ir = g.node("Split", [per], name="wavelengths", outputs=2, axis=1, num_outputs=2)
    r = g.node("Div", [red, ir], name="ratio")
    g.output(r)
    feats = g.node("Transpose", [g.node("Concat", [r, per], name="feats", axis=1)], name="feats_t", perm=[0, 2, 1])
    g.output(mlp(g, feats, "spo2", [3, 32, 1]))


@model("sar_backprojection_of_denoised_echoes", pins=["range_*", "phase_*"], opset=19)
def sar_backprojection_of_denoised_echoes(g):
    """Drone radar at 10 GHz: echoes from 96 antenna positions cleaned by a 1-D CNN, matched by exp(4πiR/λ), image CNN."""
    ant = np.stack([np.linspace(-3, 3, 96), np.zeros(96), np.full(96, 30.0)], 1)
    px, py = np.meshgrid(np.linspace(-2, 2, 16), np.linspace(25, 29, 16))
    pix = np.stack([px.ravel(), py.ravel(), np.zeros(256)], 1)
    k = 4 * np.pi / .03
    echo = sum(s * np.exp(-1j * k * np.linalg.norm(ant - pix[i], axis=1)) for i, s in ((40, 1.), (150, .7), (201, .9)))
    e = g.input("echo", [1, 2, 96], np.stack([echo.real, echo.imag])[None].astype(np.float32))
    a = g.input("antenna", [96, 3], ant.astype(np.float32))
    h = g.node("Tanh", [g.conv(e, "clean1", 2, 16, 5, dims=1, pads=[2, 2])], name="clean_tanh")
    h = g.node("Mul", [g.conv(h, "clean2", 16, 2, 1, dims=1), g.const(.1)], name="clean_small")
    e = g.node("Add", [e, h], name="clean")
    r = Part(g, "range")
    d = r("Sub", pix[:, None], a)
    dist = r("Squeeze", r("Sqrt", r.red("ReduceSumSquare", d, 2)), ints(2))
    p = Part(g, "phase")
    ph = p("Mul", dist, k)
    c, s = p("Cos", ph), p("Sin", ph)
    re, im = g.node("Split", [e], name="parts", outputs=2, axis=1, num_outputs=2)
    ein = lambda u, v, n: g.node("Einsum", [u, v], name=n, equation="bca,pa->bcp")
    i_re = g.node("Sub", [ein(re, c, "rc"), ein(im, s, "is")], name="focus_re")
    i_im = g.node("Add", [ein(re, s, "rs"), ein(im, c, "ic")], name="focus_im")
    mag = g.node("Sqrt", [g.node("Add", [g.node("Mul", [i_re, i_re], name="sq_re"), g.node("Mul", [i_im, i_im], name="sq_im")], name="power")], name="mag")
    img = g.node("Mul", [g.node("Reshape", [mag, g.ints(1, 1, 16, 16)], name="image"), g.const(.02)], name="image_scaled")
    g.output(img)
    g.output(g.conv(g.node("Relu", [g.conv(img, "see1", 1, 16, 3)], name="see_relu"), "see2", 16, 2, 3))


@model("eeg_band_log_ratios_under_electrode_offset", pins=["dft"], opset=13)
def eeg_band_log_ratios_under_electrode_offset(g):
    """Sleep staging: EEG (µV) on electrode offsets of 3 mV, DFT by a constant matrix, band powers, log ratios, MLP."""
    t = np.arange(256) / 128
    f = lambda hz, a: a * np.sin(2 * np.pi * hz * t + g.uniform(0, 6, 4, 8, 1))
    x = g.uniform(2000, 3800, 4, 8, 1) + f(10, 18) + f(9, 7) + f(5.5, 9) + f(2, 14) + f(21, 1.2) + f(26, .8)
    x = g.input("eeg", [4, 8, 256], x.astype(np.float32))
    k = np.arange(1, 65)
    ang = 2 * np.pi * np.outer(np.arange(256), k) / 256
    y = g.node("MatMul", [x, g.const(np.concatenate([np.cos(ang), -np.sin(ang)], 1) / 128, "dft_matrix")], name="dft")
    y = g.node("Reshape", [y, g.ints(4, 8, 2, 64)], name="parts")
    pw = g.node("ReduceSumSquare", [y], name="power", axes=[2], keepdims=0)
    bands = np.zeros((64, 4))
    for j, (lo, hi) in enumerate(((1, 4), (4, 8), (8, 13), (13, 30))):
        bands[(k / 2 >= lo) & (k / 2 < hi), j] = 1
    b = g.node("MatMul", [pw, g.const(bands, "bands")], name="band_sums")
    b = g.node("Log", [g.node("Add", [b, g.const(.05)], name="band_floor")], name="band_log")
    alpha = g.node("Gather", [b, g.ints(2)], name="alpha", axis=2)
    r = g.node("Sub", [b, alpha], name="log_ratio")
    g.output(r)
    g.output(mlp(g, g.node("Reshape", [r, g.ints(4, 32)], name="flat"), "stage", [32, 64, 5]))


@model("ftir_absorbance_of_trace_gas_interferograms", pins=["ac_*", "spec_*", "absorb_*"], opset=17)
def ftir_absorbance_of_trace_gas_interferograms(g):
    """Gas analyser: sample and reference interferograms, DFT, single-beam ratio, absorbances of 0.001-0.03, CNN."""
    k = np.arange(512)
    beam = np.exp(-((np.minimum(k, 512 - k) - 110) / 60.) ** 2)
    line = lambda c, w: np.exp(-((np.minimum(k, 512 - k) - c) / w) ** 2)
    a = sum(g.uniform(.003, .03, 4, 1) * line(c, w) for c, w in ((70, 4), (98, 6), (131, 3), (155, 5)))
    inter = lambda s: np.fft.fftshift(np.fft.ifft(s, axis=-1).real, axes=-1) * 6 + 2.5
    ref = g.input("reference", [1, 512], inter(beam)[None].astype(np.float32))
    smp = g.input("sample", [4, 512], inter(beam * 10 ** -a).astype(np.float32))
    c = Part(g, "ac")
    x = c("Concat", smp, ref, axis=0)
    x = c("Sub", x, c("ReduceMean", x, axes=[1], keepdims=1))
    x = c("Unsqueeze", c("Mul", x, (.6 + .4 * np.cos(np.pi * (k - 256) / 300))[None]), ints(2))
    s = Part(g, "spec")
    f = s("Slice", s("DFT", x, axis=1, onesided=1), ints(50), ints(178), ints(1))
    mag = s("ReduceL2", f, axes=[2], keepdims=0)
    one, back = s("Slice", mag, ints(0), ints(4), ints(0)), s("Slice", mag, ints(4), ints(5), ints(0))
    b = Part(g, "absorb")
    ab = b("Mul", b("Log", b("Div", one, back)), -1 / np.log(10))
    ab = g.node("Unsqueeze", [ab, g.ints(1)], name="channel")
    h = g.node("Relu", [g.conv(ab, "quant1", 1, 16, 9, dims=1)], name="quant_relu")
    g.output(g.conv(h, "quant2", 16, 4, 9, dims=1, bias=False))
