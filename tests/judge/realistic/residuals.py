"""Residuals, covariances, stencils and indices: small numbers that products of large ones leave."""

import numpy as np
from onnx import TensorProto as T

from .build import model
from .parts import cast, mlp, op, reduce, reshape, span, unsqueeze


@model("kalman_gain_position_tracking", pins=["pred_*", "cov_*", "s_*", "gain*", "innov*", "upd_*"])
def kalman_gain_position_tracking(g):
    """Kalman step of 64 tracks: positions in metres up to 2 km, covariance of 0.01, measurement noise 0.04; then an MLP."""
    x = g.input("x", [64, 4, 1], np.concatenate([g.uniform(-2000, 2000, 64, 2, 1), g.normal(64, 2, 1, scale=15)], 1))
    a = g.normal(64, 4, 4, scale=.1)
    P = g.input("P", [64, 4, 4], (a @ a.transpose(0, 2, 1) + .01 * np.eye(4)).astype(np.float32))
    z = g.input("z", [64, 2, 1], g.values["x"][:, :2] + g.normal(64, 2, 1, scale=.3))
    F = np.eye(4, dtype=np.float32); F[0, 2] = F[1, 3] = .1
    H = np.eye(2, 4, dtype=np.float32)
    Fc, Ft, Hc, Ht = g.const(F, "F"), g.const(F.T, "Ft"), g.const(H, "H"), g.const(H.T, "Ht")
    xp = g.node("MatMul", [Fc, x], name="pred_x")
    Pp = g.node("MatMul", [g.node("MatMul", [Fc, P], name="cov_fp"), Ft], name="cov_fpf")
    Pp = op(g, "Add", Pp, np.eye(4) * 1e-3, name="cov_q")
    pht = g.node("MatMul", [Pp, Ht], name="cov_pht")
    S = op(g, "Add", g.node("MatMul", [Hc, pht], name="s_mm"), np.eye(2) * .04, name="s_add")
    a_, b_, c_, d_ = [span(g, span(g, S, i, i + 1, 1, f"s_r{i}{j}"), j, j + 1, 2, f"s_c{i}{j}") for i in (0, 1) for j in (0, 1)]
    det = g.node("Sub", [g.node("Mul", [a_, d_], name="s_ad"), g.node("Mul", [b_, c_], name="s_bc")], name="s_det")
    top = g.node("Concat", [d_, g.node("Neg", [b_], name="s_nb")], axis=2, name="s_top")
    bot = g.node("Concat", [g.node("Neg", [c_], name="s_nc"), a_], axis=2, name="s_bot")
    inv = g.node("Div", [g.node("Concat", [top, bot], axis=1, name="s_adj"), det], name="s_inv")
    K = g.node("MatMul", [pht, inv], name="gain")
    y = g.node("Sub", [z, g.node("MatMul", [Hc, xp], name="innov_h")], name="innov")
    dx = g.node("MatMul", [K, y], name="upd_ky")
    g.output(g.node("Add", [xp, dx], name="upd_x"))
    nis = g.node("MatMul", [inv, y], name="innov_w")
    g.output(reduce(g, "ReduceSum", g.node("Mul", [y, nis], name="innov_q"), [1, 2], "innov_nis", 0))


@model("embedding_bag_weighted_counts", pins=["bag*", "cnt*", "div"])
def embedding_bag_weighted_counts(g):
    """A bag of 600 ids with float counts up to 5000, sum of weighted rows divided by total"""
    ids = g.input("ids", [8, 600], g.rng.integers(0, 2000, (8, 600)))
    w = g.input("counts", [8, 600], g.rng.integers(1, 5000, (8, 600)).astype(np.float32))
    e = g.node("Gather", [g.const(g.normal(2000, 64), "table"), ids], name="rows")
    s = g.node("MatMul", [unsqueeze(g, w, [1], "bag_u"), e], name="bag_mm")
    n = unsqueeze(g, reduce(g, "ReduceSum", w, [1], "cnt"), [2], "cnt_u")
    z = g.node("Div", [s, n], name="div")
    g.output(mlp(g, g.node("Squeeze", [z, g.ints(1)], name="sq"), "net", [64, 128, 8]))


@model("plane_fit_point_distances", pins=["pl*", "dist*"])
def plane_fit_point_distances(g):
    """Signed distances of lidar points (up to 80 m) to plane: X·n + d, inlier mask at 0.02, RANSAC score"""
    n = g.normal(8, 3); n /= np.linalg.norm(n, axis=1, keepdims=True)
    X = g.input("X", [1000, 3], g.uniform(-80, 80, 1000, 3)); N = g.input("N", [3, 8], n.T.copy()); D = g.input("D", [8], g.uniform(-50, 50, 8))
    d = g.node("Add", [g.node("MatMul", [X, N], name="pl_mm"), D], name="dist")
    w = g.node("Exp", [op(g, "Mul", g.node("Mul", [d, d], name="dist_sq"), -.5, name="dist_w")], name="dist_e")
    g.output(w)
    g.output(reduce(g, "ReduceSum", w, [0], "dist_score", 0))


@model("lfq_bits_to_ids_gather", pins=["bit*", "id*", "proj*"])
def lfq_bits_to_ids_gather(g):
    """MAGVIT-2 / LSH: 13 sign bits times powers of two, codes gathered, decoder"""
    x = g.input("x", [1, 64, 128], g.normal(1, 64, 128))
    z = g.linear(x, "proj", 128, 13)
    b = cast(g, op(g, "Greater", z, 0.0, name="bit_g"), "bit_c")
    ids = g.node("MatMul", [b, g.const(2.0 ** np.arange(13)[:, None], "basis")], name="id_mm")
    i = g.node("Squeeze", [g.node("Cast", [ids], to=T.INT64, name="id_c"), g.ints(2)], name="id_sq")
    y = g.node("Gather", [g.const(g.normal(8192, 32), "table"), i], name="look")
    g.output(mlp(g, y, "dec", [32, 128, 64]))


@model("pca_reconstruction_q_statistic", pins=["c_*", "rec*", "res*", "q_*"])
def pca_reconstruction_q_statistic(g):
    """Anomaly: residual of 10 principal components which explain 99.99 %, SPE"""
    V = np.linalg.qr(g.normal(64, 10))[0].astype(np.float32)
    z = g.normal(128, 10, scale=10)
    x = g.input("x", [128, 64], z @ V.T + g.normal(128, 64, scale=.05))
    c = g.node("MatMul", [x, g.const(V, "V")], name="c_mm")
    r = g.node("Sub", [x, g.node("MatMul", [c, g.const(V.T, "Vt")], name="rec_mm")], name="res")
    q = reduce(g, "ReduceSumSquare", r, [1], "q_spe", 0)
    g.output(q)


@model("lista_unrolled_sparse_code", pins=["r_*", "up*", "th*", "A*"])
def lista_unrolled_sparse_code(g):
    """ISTA, 10 steps: x <- soft(x + s A^T (b - A x)); residual ||b - Ax||"""
    A = (g.normal(64, 128) / 8).astype(np.float32)
    x0 = np.zeros((128, 16), np.float32); 
    for j in range(16): x0[g.rng.choice(128, 6, replace=False), j] = g.normal(6, scale=3)
    b = g.input("b", [64, 16], (A @ x0).astype(np.float32))
    Ac, At = g.const(A, "A"), g.const(A.T, "At")
    x = g.const(np.zeros((128, 16)), "x0")
    for i in range(10):
        r = g.node("Sub", [b, g.node("MatMul", [Ac, x], name=f"Ax{i}")], name=f"r_{i}")
        x = g.node("Add", [x, op(g, "Mul", g.node("MatMul", [At, r], name=f"Atr{i}"), .15, name=f"up_m{i}")], name=f"up_{i}")
        x = g.node("Shrink", [x], lambd=.01, bias=.01, name=f"th{i}")
    g.output(x)
    r = g.node("Sub", [b, g.node("MatMul", [Ac, x], name="Axe")], name="r_e")
    g.output(reduce(g, "ReduceSumSquare", r, [0], "r_n", 0))


@model("weather_gradient_stencil_kelvin", pins=["gr*"])
def weather_gradient_stencil_kelvin(g):
    """Central differences by Conv with constant [-1 0 1]/2 of a temperature field of 290 K, then a network"""
    yy, xx = np.mgrid[0:64, 0:64] / 10
    x = g.input("t2m", [1, 1, 64, 64], (288 + 3 * np.sin(xx) + 2 * np.cos(yy) + .1 * g.normal(64, 64))[None, None].astype(np.float32))
    k = np.zeros((2, 1, 3, 3)); k[0, 0, 1] = [-.5, 0, .5]; k[1, 0, :, 1] = [-.5, 0, .5]
    d = g.node("Conv", [x, g.const(k, "stencil")], name="grad", pads=[0, 0, 0, 0])
    g.output(d)
    g.output(g.conv(g.node("Relu", [g.conv(d, "c1", 2, 32, 3)], name="r"), "c2", 32, 4, 3))


@model("folded_standardisation_first_gemm", pins=["fc0*"])
def folded_standardisation_first_gemm(g):
    """Standardisation of raw features (year, pressure in hPa, temperature in K) folded into the first Gemm"""
    mu = np.array([2010., 1013, 288, 1500, 45, 7]); sd = np.array([5., 8, 6, 20, 2, 1])
    x = g.input("x", [64, 6], (mu + sd * g.normal(64, 6)).astype(np.float32))
    W = g.normal(6, 64, scale=.4)
    h = g.node("Gemm", [x, g.const(W / sd[:, None], "w0"), g.const(-(mu / sd) @ W, "b0")], name="fc0")
    g.output(mlp(g, g.node("Tanh", [h], name="t"), "net", [64, 64, 3]))


@model("icp_point_to_plane_residual", pins=["*"])
def icp_point_to_plane_residual(g):
    """Scan points (up to 60 m) by current pose R, minus matched map points, dot normals; Huber weights"""
    P = g.input("P", [500, 3], g.uniform(-60, 60, 500, 3)); a = .02
    R = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]], np.float32)
    Rt = g.input("Rt", [3, 3], R.T.copy()); t = g.input("t", [3], np.array([.4, -.1, .02], np.float32))
    Q = g.input("Q", [500, 3], g.values["P"] @ R.T + g.values["t"] + g.normal(500, 3, scale=.02))
    n = g.normal(500, 3); n /= np.linalg.norm(n, axis=1, keepdims=True); N = g.input("N", [500, 3], n)
    d = g.node("Sub", [g.node("Add", [g.node("MatMul", [P, Rt], name="rot"), t], name="tr"), Q], name="diff")
    g.output(reduce(g, "ReduceSum", g.node("Mul", [d, N], name="dot"), [1], "e", 0))


@model("einsum_rotation_then_residual", pins=["*"])
def einsum_rotation_then_residual(g):
    """Frames (Einsum bij,bnj->bni) on nanometre atoms of ±30 A minus targets: FAPE clamp 10 A"""
    P = g.input("P", [8, 64, 3], g.uniform(-30, 30, 8, 64, 3)); R = np.linalg.qr(g.normal(8, 3, 3))[0].astype(np.float32)
    Ri = g.input("R", [8, 3, 3], R); t = g.input("t", [8, 1, 3], g.uniform(-20, 20, 8, 1, 3))
    tgt = np.einsum("bij,bnj->bni", R, g.values["P"]) + g.values["t"] + .3 * g.normal(8, 64, 3)
    Y = g.input("Y", [8, 64, 3], tgt.astype(np.float32))
    e = g.node("Add", [g.node("Einsum", [Ri, P], equation="bij,bnj->bni", name="rot"), t], name="tr")
    d = g.node("Sub", [e, Y], name="diff")
    n = g.node("Sqrt", [op(g, "Add", reduce(g, "ReduceSumSquare", d, [2], "ss", 0), 1e-4, name="eps")], name="norm")
    g.output(reduce(g, "ReduceMean", op(g, "Clip", n, 0., 10., name="clamp"), [1], "fape", 0))


@model("convtranspose_overlap_add_normalised", pins=["ola*", "win*", "div"])
def convtranspose_overlap_add_normalised(g):
    """OLA by ConvTranspose and division by the window's squared sum (small at edges)"""
    f = g.input("frames", [1, 64, 40], g.normal(1, 64, 40))
    m = g.node("Sigmoid", [g.conv(f, "net", 64, 64, 3, dims=1, pads=[1, 1])], name="mask")
    y = g.node("Mul", [f, m], name="masked")
    w = np.hanning(64).astype(np.float32)
    k = g.const(np.diag(w)[:, None, :], "ola_k")
    s = g.node("ConvTranspose", [y, k], strides=[16], name="ola")
    n = g.node("ConvTranspose", [g.const(np.ones((1, 64, 40))), g.const(np.diag(w**2)[:, None, :], "win_k")], strides=[16], name="win")
    g.output(g.node("Div", [s, op(g, "Max", n, 1e-8, name="win_max")], name="div"))


@model("frame_difference_conv3d_0_255", pins=["diff*"])
def frame_difference_conv3d_0_255(g):
    """Motion: temporal difference by a constant [-1, 1] Conv3D on 0..255 frames, abs, threshold, conv"""
    a = g.uniform(0, 255, 1, 1, 1, 48, 48); f = np.clip(a + g.normal(1, 1, 6, 48, 48, scale=2), 0, 255).astype(np.float32)
    x = g.input("x", [1, 1, 6, 48, 48], f)
    d = g.node("Conv", [x, g.const(np.array([-1., 1.]).reshape(1, 1, 2, 1, 1), "tdiff")], name="diff")
    s = op(g, "Mul", g.node("Abs", [d], name="diff_abs"), .1, name="diff_s")
    s = reshape(g, s, [1, 5, 48, 48], "shp")
    g.output(g.conv(g.node("Relu", [g.conv(s, "c1", 5, 32, 3)], name="r"), "c2", 32, 4, 3))


@model("residual_vq_two_stages", pins=["d*", "i*", "r*"])
def residual_vq_two_stages(g):
    """RVQ: encoder, argmin over codes by -2xc+c2, residual x - c, second stage, decoder"""
    x = g.input("x", [1, 64, 128], g.normal(1, 64, 128))
    z = g.linear(x, "enc", 128, 64)
    tot = None; r = z
    for s in range(2):
        C = g.normal(256, 64, scale=1. if s == 0 else .7)
        d = g.node("Sub", [g.const((C**2).sum(1), f"c2_{s}"), op(g, "Mul", g.node("MatMul", [r, g.const(C.T.copy(), f"Ct{s}")], name=f"d_mm{s}"), 2., name=f"d_2{s}")], name=f"d{s}")
        i = g.node("ArgMin", [d], axis=2, keepdims=0, name=f"i{s}")
        q = g.node("Gather", [g.const(C, f"C{s}"), i], name=f"r_q{s}")
        r = g.node("Sub", [r, q], name=f"r{s}"); tot = q if tot is None else g.node("Add", [tot, q], name=f"r_t{s}")
    g.output(r)


@model("calendar_ordinal_gemm", pins=["ord*", "ago"])
def calendar_ordinal_gemm(g):
    """(year, month, day) to days by Gemm, days since a reference date"""
    t = g.input("ymd", [64, 3], np.stack([g.rng.integers(2015, 2025, 64), g.rng.integers(1, 13, 64), g.rng.integers(1, 29, 64)], 1).astype(np.float32))
    d = g.node("Gemm", [t, g.const([[365.25], [30.44], [1.]], "w"), g.const([-365.25 * 2015], "b")], name="ord")
    g.output(op(g, "Div", d, 365.25, name="ago"))


@model("centring_matrix_cka", pins=["h*", "k*", "hs*"])
def centring_matrix_cka(g):
    """Linear CKA by centring matrices: H K H of features with an offset of 6"""
    x = g.input("x", [64, 128], g.normal(64, 128) + 6); y = g.input("y", [64, 128], np.zeros((64, 128), np.float32)); g.values["y"] = (.7 * g.values["x"] + g.normal(64, 128)).astype(np.float32)
    H = g.const(np.eye(64) - 1 / 64, "H")
    K = lambda x, n: g.node("MatMul", [g.node("MatMul", [H, g.node("MatMul", [x, g.node("Transpose", [x], perm=[1, 0], name=f"t{n}")], name=f"k{n}")], name=f"h{n}1"), H], name=f"h{n}2")
    a, b = K(x, "x"), K(y, "y")
    hs = lambda p, q, n: g.node("ReduceSum", [g.node("Mul", [p, q], name=f"hs{n}m")], keepdims=0, name=f"hs{n}")
    g.output(g.node("Div", [hs(a, b, "ab"), g.node("Sqrt", [g.node("Mul", [hs(a, a, "aa"), hs(b, b, "bb")], name="hsn")], name="hsr")], name="hsd"))


@model("mean_by_matmul_then_subtract", pins=["mean", "cent*", "var*"])
def mean_by_matmul_then_subtract(g):
    """Normalisation written with a product by 1/N (tokens of offset 50), variance, scale, then attention"""
    x = g.input("x", [4, 64, 96], 50 + g.normal(4, 64, 96))
    m = g.node("MatMul", [x, g.const(np.full((96, 96), 1 / 96), "avg")], name="mean")
    c = g.node("Sub", [x, m], name="cent")
    v = g.node("MatMul", [g.node("Mul", [c, c], name="var_sq"), g.const(np.full((96, 96), 1 / 96), "avg2")], name="var_mm")
    n = g.node("Div", [c, g.node("Sqrt", [op(g, "Add", v, 1e-5, name="var_eps")], name="var_sd")], name="var_div")
    g.output(mlp(g, n, "net", [96, 256, 96]))


@model("green_strain_fem", pins=["*"])
def green_strain_fem(g):
    """F = Ds Dm^-1, E = (F^T F - I)/2 with strains of 1e-3, St. Venant-Kirchhoff stress"""
    F0 = np.eye(3, dtype=np.float32) + g.normal(256, 3, 3, scale=1e-3)
    Dm = g.normal(256, 3, 3) + 2 * np.eye(3, dtype=np.float32)
    Ds = g.input("Ds", [256, 3, 3], (F0 @ Dm).astype(np.float32)); Di = g.input("Dm_inv", [256, 3, 3], np.linalg.inv(Dm).astype(np.float32))
    F = g.node("MatMul", [Ds, Di], name="F")
    E = op(g, "Mul", op(g, "Sub", g.node("MatMul", [g.node("Transpose", [F], perm=[0, 2, 1], name="Ft"), F], name="C"), np.eye(3), name="E_sub"), .5, name="E")
    g.output(E)


@model("cosine_distance_near_duplicates", pins=["sim", "dist", "n*"])
def cosine_distance_near_duplicates(g):
    """Perceptual-hash embeddings of near duplicates: 1 - cos of 0.001 to 0.01"""
    a = g.normal(16, 256); b = a + .06 * g.normal(16, 256)
    A, Bq = g.input("a", [16, 1, 256], a[:, None]), g.input("b", [16, 256, 1], b[:, :, None].astype(np.float32))
    na = g.node("Div", [A, op(g, "Max", g.node("ReduceL2", [A, g.ints(2)], name="na_l"), 1e-12, name="na_m")], name="na")
    nb = g.node("Div", [Bq, op(g, "Max", g.node("ReduceL2", [Bq, g.ints(1)], name="nb_l"), 1e-12, name="nb_m")], name="nb")
    g.output(op(g, "Sub", 1.0, g.node("MatMul", [na, nb], name="sim"), name="dist"))


@model("echo_canceller_fir_residual", pins=["fir", "err*"])
def echo_canceller_fir_residual(g):
    """mic - FIR(far) by a Conv whose taps are an input; residual 30 dB below; then a suppression net"""
    far = g.normal(1, 1, 1023 + 64, scale=.3); h = (g.normal(1, 1, 64) * np.exp(-np.arange(64) / 12)).astype(np.float32)
    e = np.convolve(far[0, 0], h[0, 0][::-1], "valid")
    F = g.input("far", [1, 1, 1087], far); H = g.input("taps", [1, 1, 64], h)
    m = g.input("mic", [1, 1, 1024], (e + .02 * g.normal(1024))[None, None].astype(np.float32))
    r = g.node("Sub", [m, g.node("Conv", [F, H], name="fir")], name="err")
    g.output(r)
    g.output(g.conv(g.node("Relu", [g.conv(r, "c1", 1, 32, 9, dims=1)], name="relu"), "c2", 32, 4, 9, dims=1))


@model("ssim_gaussian_windows", pins=["*"])
def ssim_gaussian_windows(g):
    """SSIM of 0..1 images by Gaussian windows (Conv), C1, C2"""
    a = np.clip(.6 + .1 * g.normal(1, 1, 48, 48), 0, 1).astype(np.float32)
    x = g.input("x", [1, 1, 48, 48], a); y = g.input("y", [1, 1, 48, 48], np.clip(a + .02 * g.normal(1, 1, 48, 48), 0, 1).astype(np.float32))
    k = np.exp(-((np.arange(11) - 5) ** 2) / 4.5); k = np.outer(k, k); k /= k.sum(); K = g.const(k[None, None], "win")
    cv = lambda v, n: g.node("Conv", [v, K], name=n)
    mul = lambda p, q, n: g.node("Mul", [p, q], name=n)
    mx, my = cv(x, "mx"), cv(y, "my")
    sx = g.node("Sub", [cv(mul(x, x, "xx"), "exx"), mul(mx, mx, "mxx")], name="sx"); sy = g.node("Sub", [cv(mul(y, y, "yy"), "eyy"), mul(my, my, "myy")], name="sy")
    sxy = g.node("Sub", [cv(mul(x, y, "xy"), "exy"), mul(mx, my, "mxy")], name="sxy")
    n = mul(op(g, "Add", op(g, "Mul", mul(mx, my, "m1"), 2., name="m2"), 1e-4, name="m3"), op(g, "Add", op(g, "Mul", sxy, 2., name="s2"), 9e-4, name="s3"), "num")
    d = mul(op(g, "Add", g.node("Add", [mul(mx, mx, "d1"), mul(my, my, "d2")], name="d3"), 1e-4, name="d4"), op(g, "Add", g.node("Add", [sx, sy], name="d5"), 9e-4, name="d6"), "den")
    s = g.node("Div", [n, d], name="ssim"); g.output(s, op(g, "Sub", 1.0, reduce(g, "ReduceMean", s, [2, 3], "mean", 0), name="loss"))


@model("gradient_descent_lstsq_unrolled", pins=["*"])
def gradient_descent_lstsq_unrolled(g):
    """Gradient descent lstsq unrolled."""
    x = g.input("x", [32, 16], g.normal(32, 16)); y = g.input("y", [32, 4], np.zeros((32, 4), np.float32))
    g.values["y"] = (g.values["x"] @ g.normal(16, 4) + .05 * g.normal(32, 4)).astype(np.float32)
    w = g.const(np.zeros((16, 4)), "w0"); xt = g.node("Transpose", [x], perm=[1, 0], name="xt")
    for i in range(25):
        r = g.node("Sub", [g.node("MatMul", [x, w], name=f"p{i}"), y], name=f"r{i}")
        w = g.node("Sub", [w, op(g, "Mul", g.node("MatMul", [xt, r], name=f"g{i}"), .012, name=f"s{i}")], name=f"w{i}")
    g.output(w)
    g.output(reduce(g, "ReduceSumSquare", g.node("Sub", [g.node("MatMul", [x, w], name="fin"), y], name="res"), [0], "sse", 0))


@model("covariance_by_gemm_minus_outer", pins=["*"])
def covariance_by_gemm_minus_outer(g):
    """Cov = X^T X / N - m m^T of features with offset 3, then a network reads the diagonal-normalised"""
    x = g.input("x", [256, 32], g.normal(256, 32) + 3)
    xt = g.node("Transpose", [x], perm=[1, 0], name="xt")
    c = op(g, "Div", g.node("MatMul", [xt, x], name="xtx"), 256., name="div")
    m = reduce(g, "ReduceMean", x, [0], "mean")
    o = g.node("MatMul", [g.node("Transpose", [m], perm=[1, 0], name="mt"), m], name="outer")
    g.output(g.node("Sub", [c, o], name="cov"))


@model("normal_equations_residual_solver", pins=["*"])
def normal_equations_residual_solver(g):
    """Jacobi, 8 sweeps with an input stiffness matrix (diagonal 4, off -1), residual norm"""
    n = 64; A = 4.2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1) - .5 * np.eye(n, k=8) - .5 * np.eye(n, k=-8)
    a = g.input("A", [n, n], A.astype(np.float32)); b = g.input("b", [n, 1], (A @ g.normal(n, 1)).astype(np.float32))
    x = op(g, "Mul", b, 0.2, name="x0")
    for i in range(12):
        r = g.node("Sub", [b, g.node("MatMul", [a, x], name=f"ax{i}")], name=f"r{i}")
        x = g.node("Add", [x, op(g, "Mul", r, 1 / 4.2, name=f"d{i}")], name=f"x_{i}")
    g.output(x, r)


@model("camera_relative_pose_translation", pins=["*"])
def camera_relative_pose_translation(g):
    """inv(T1) T2 of 4x4 poses in UTM metres (x of 4e5 reduced to 3e3): relative motion of a metre"""
    def pose(t):
        T_ = np.tile(np.eye(4, dtype=np.float32), (16, 1, 1)); T_[:, :3, :3] = np.linalg.qr(np.eye(3) + .05 * g.normal(16, 3, 3))[0]; T_[:, :3, 3] = t; return T_
    base = g.uniform(1000, 3000, 16, 3); A = pose(base); B = pose(base + g.normal(16, 3))
    a = g.input("T1_inv", [16, 4, 4], np.linalg.inv(A.astype(np.float64)).astype(np.float32)); b = g.input("T2", [16, 4, 4], B)
    m = g.node("MatMul", [a, b], name="rel")
    g.output(span(g, span(g, m, 0, 3, 1, "rows"), 3, 4, 2, "t"))

