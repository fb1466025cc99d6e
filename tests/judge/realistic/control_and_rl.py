"""Reinforcement learning and control: values, advantages, policies, returns, models of the plant."""

import numpy as np

from .build import model
from .parts import Body, mlp
from .named_parts import INT64, Part, ints, relu_conv, smooth_image


# Games whose returns are to 1e5: a normalised value times sigma plus mu.
@model("popart_denormalised_values_of_atari_scores", pins=["popart_*"], opset=17)
def popart(g):
    x = g.input("frames", ["batch", 4, 84, 84], smooth_image(g, 2, 4, 84, 84))
    x = g.node("Mul", [x, g.const(1 / 255)], name="unit")
    for i, (a, b, k, s) in enumerate(((4, 16, 8, 4), (16, 32, 4, 2), (32, 32, 3, 1))):
        x = g.node("Relu", [g.conv(x, f"conv{i}", a, b, k, strides=[s, s])], name=f"relu{i}")
    x = g.node("Flatten", [x], name="flat", axis=1)
    x = g.node("Relu", [g.linear(x, "fc", 32 * 49, 128)], name="fc_relu")
    v = g.linear(x, "value", 128, 6)
    p = Part(g, "popart")
    mu = np.array([120.0, 3.1, 18500, 960, 76000, -4.2], np.float32)
    second = mu**2 * np.float32(1.2) + 5
    sigma = p("Sqrt", p("Max", p("Sub", second, mu**2), 1e-4))
    g.output(p("Add", p("Mul", v, sigma), mu), g.node("Softmax", [g.linear(x, "policy", 128, 6)], name="pi", axis=-1))


# Backwards in time: delta + 0.9405 A, with values of a critic.
@model("gae_lambda_095_reverse_scan_with_critic", pins=["delta_*", "gae", "gae/*"], opset=16)
def gae(g):
    t, b = 128, 8
    obs = g.input("obs", [t + 1, b, 24], g.normal(t + 1, b, 24))
    rew = g.input("rewards", [t, b], g.normal(t, b, scale=0.3) + 0.5)
    done = g.input("dones", [t, b], (g.rng.random((t, b)) < 0.02).astype(np.float32))
    p = Part(g, "delta")
    v = p("Add", p("Mul", p.sq(mlp(g, obs, "critic", [24, 64, 64, 1], "Tanh"), 2), 3.0), 20.0)
    live = p("Mul", p("Sub", 1.0, done), 0.99)
    delta = p("Sub", p("Add", rew, p("Mul", live, p.cut(v, 1, t + 1, 0))), p.cut(v, 0, t, 0))
    body = Body(g, "gae_body")
    a, d, l = body.entry("a", [b]), body.entry("d", [b]), body.entry("l", [b])
    q = Part(body, "step")
    new = q("Add", d, q("Mul", q("Mul", l, 0.95), a))
    out = body.node("Identity", [new], name="step_out")
    graph = body.graph((new, [b]), (out, [b]))
    _, adv = g.node("Scan", [g.const(np.zeros(b)), delta, live], name="gae", outputs=2, body=graph, num_scan_inputs=2,
                    scan_input_directions=[1, 1], scan_output_directions=[1])
    g.output(adv, p("Add", adv, p.cut(v, 0, t, 0)))


# Ratios exp(new - old) of near log-probabilities, advantages standardised over the batch.
@model("ppo_clipped_surrogate_normalised_advantages", pins=["ppo_*"], opset=22)
def ppo(g):
    n = 512
    obs = g.input("obs", [n, 32], g.normal(n, 32))
    act = g.input("actions", [n, 1], g.rng.integers(0, 6, (n, 1)))
    old = g.input("old_log_prob", [n, 1], np.log(g.uniform(0.08, 0.4, n, 1)))
    adv = g.input("advantages", [n, 1], g.normal(n, 1, scale=12.0) + 40)
    logits = mlp(g, obs, "policy", [32, 128, 128, 6], "Tanh")
    p = Part(g, "ppo")
    logp = p("LogSoftmax", logits, axis=-1)
    lp = p("GatherElements", logp, act, axis=1)
    d = p("Sub", adv, p.red("ReduceMean", adv, 0, 1))
    std = p("Sqrt", p("Div", p.red("ReduceSum", p.square(d), 0, 1), n - 1.0))
    a = p("Div", d, p("Add", std, 1e-8))
    ratio = p("Exp", p("Sub", lp, old))
    s = p("Min", p("Mul", a, ratio), p("Mul", a, p("Clip", ratio, 0.8, 1.2)))
    ent = p.red("ReduceSum", p("Mul", p("Exp", logp), logp), 1)
    kl = p.red("ReduceMean", p("Sub", p("Sub", ratio, 1.0), p("Sub", lp, old)), 0, 1, keep=0)
    loss = p("Add", p("Neg", p.red("ReduceMean", s, 0, 1, keep=0)), p("Mul", p.red("ReduceMean", ent, 0, 1, keep=0), 0.01))
    g.output(loss, kl, ratio)


# log(1 - tanh^2 + 1e-6): some actions are saturated.
@model("sac_tanh_gaussian_log_prob_eps_1e_minus_6", pins=["lp_*"], opset=17)
def sac(g):
    b, a = 64, 6
    obs = g.input("obs", ["batch", 17], g.normal(b, 17))
    eps = g.input("eps", ["batch", a], g.normal(b, a))
    h = g.node("Relu", [mlp(g, obs, "actor", [17, 128, 128])], name="actor_relu")
    p = Part(g, "lp")
    mu = p("Mul", g.linear(h, "mu", 128, a), 2.0)
    logstd = p("Clip", p("Sub", g.linear(h, "log_std", 128, a), 1.0), -20.0, 2.0)
    std = p("Exp", logstd)
    u = p("Add", mu, p("Mul", std, eps))
    act = p("Tanh", u)
    z = p("Div", p("Sub", u, mu), std)
    lp = p("Sub", p("Sub", p("Mul", p("Pow", z, 2.0), -0.5), logstd), float(0.5 * np.log(2 * np.pi)))
    lp = p("Sub", lp, p("Log", p("Add", p("Sub", 1.0, p("Pow", act, 2.0)), 1e-6)))
    logp = p.red("ReduceSum", lp, 1)
    q = mlp(g, g.node("Concat", [obs, act], name="sa", axis=1), "critic", [17 + a, 128, 128, 1])
    g.output(logp, g.node("Sub", [q, g.node("Mul", [logp, g.const(0.05)], name="lp_alpha")], name="lp_target"), act)


# Bellman-shifted atoms to fractional bins; floor and ceiling are indices, their distances are shares.
@model("c51_categorical_projection_51_atoms", pins=["proj_*"], opset=22)
def c51(g):
    b, n, na = 16, 51, 4
    obs = g.input("next_obs", [b, 32], g.normal(b, 32))
    rew = g.input("reward", [b, 1], g.rng.choice([-1.0, 0, 0, 0.3, 1], (b, 1)).astype(np.float32))
    done = g.input("done", [b, 1], (g.rng.random((b, 1)) < 0.1).astype(np.float32))
    logits = mlp(g, obs, "net", [32, 128, 128, na * n])
    p = Part(g, "proj")
    z = np.linspace(-10, 10, n).astype(np.float32)
    prob = p("Softmax", p("Mul", p.reshape(logits, b, na, n), 2.0), axis=-1)
    q = p.red("ReduceSum", p("Mul", prob, z), 2, keep=0)
    best = p("Expand", p.unsq(p("ArgMax", q, axis=1, keepdims=1), 2), ints(b, 1, n))
    prob = p.sq(p("GatherElements", prob, best, axis=1), 1)
    tz = p("Clip", p("Add", rew, p("Mul", p("Mul", p("Sub", 1.0, done), 0.99), z[None])), -10.0, 10.0)
    pos = p("Div", p("Add", tz, 10.0), 0.4)
    lo = p("Min", p("Floor", pos), n - 2.0)
    share = p("Sub", pos, lo)
    li = p.cast(lo, INT64)
    m = p("ScatterElements", np.zeros((b, n)), li, p("Mul", prob, p("Sub", 1.0, share)), axis=1, reduction="add")
    m = p("ScatterElements", m, p("Add", li, np.int64(1)), p("Mul", prob, share), axis=1, reduction="add")
    g.output(m, q)


# Riccati steps of a double integrator at 50 Hz; the gain acts on states that a network estimates.
@model("lqr_riccati_ten_steps_double_integrator", pins=["ric_*"], opset=17)
def lqr(g):
    x = g.input("sensors", ["batch", 32], g.normal(4, 32))
    est = mlp(g, x, "estimator", [32, 128, 64, 4], "Tanh")
    dt = 0.02
    a = np.eye(4, dtype=np.float32)
    a[0, 2] = a[1, 3] = dt
    bm = np.zeros((4, 2), np.float32)
    bm[:2] = np.eye(2) * dt**2 / 2
    bm[2:] = np.eye(2) * dt
    p = Part(g, "ric")
    qc, r = np.diag([100.0, 100, 1, 1]), 0.01
    cost = g.const(qc, "terminal")
    for _ in range(10):
        pb = p("MatMul", cost, bm)
        s = p("Add", p("MatMul", bm.T.copy(), pb), np.eye(2) * r)
        det = p("Sub", p("Mul", p.cut(p.cut(s, 0, 1, 0), 0, 1, 1), p.cut(p.cut(s, 1, 2, 0), 1, 2, 1)),
                p("Mul", p.cut(p.cut(s, 0, 1, 0), 1, 2, 1), p.cut(p.cut(s, 1, 2, 0), 0, 1, 1)))
        # The adjugate of a 2 by 2 matrix: trace * I - S.
        trace = p("Add", p.cut(p.cut(s, 0, 1, 0), 0, 1, 1), p.cut(p.cut(s, 1, 2, 0), 1, 2, 1))
        inv = p("Div", p("Sub", p("Mul", trace, np.eye(2)), s), det)
        k = p("MatMul", inv, p("MatMul", bm.T.copy(), p("MatMul", cost, a)))
        closed = p("Sub", a, p("MatMul", bm, k))
        cost = p("Add", p("MatMul", p("MatMul", a.T.copy(), cost), closed), qc)
    u = p("Neg", p("MatMul", est, p.perm(k, 1, 0)))
    g.output(p("Clip", u, -20.0, 20.0), cost)


# Costs of 256 rollouts in the thousands, weights exp(-(S - min) / lambda).
@model("mppi_rollout_costs_softmin_weighted_controls", pins=["roll_*", "mppi_*"], opset=18)
def mppi(g):
    k, t = 256, 12
    x0 = g.input("state", [1, 4], np.array([[12.5, -3.2, 0.7, 6.1]], np.float32))
    goal = g.input("goal", [1, 2], np.array([[24.0, 5.0]], np.float32))
    noise = g.input("noise", [k, t, 2], g.normal(k, t, 2, scale=0.4))
    nominal = g.input("nominal", [1, t, 2], g.normal(1, t, 2, scale=0.1))
    p, q = Part(g, "roll"), Part(g, "mppi")
    u = q("Add", nominal, noise)
    x, total = p("Expand", x0, ints(k, 4)), None
    w1, w2 = g.weight("dyn_w1", 6, 64), g.weight("dyn_w2", 64, 2, scale=0.05)
    for i in range(t):
        c = p.sq(p.cut(u, i, i + 1, 1), 1)
        px, py, th, v = p.parts(x, 1, 1, 1, 1, 1)
        scaled = g.node("Concat", [p.cat(1, p("Mul", p.cat(1, px, py), 0.05), th, v), c], name=f"dyn_in{i}", axis=1)
        h = g.node("Tanh", [g.node("MatMul", [scaled, w1], name=f"dyn_a{i}")], name=f"dyn_t{i}")
        dth, dv = p.parts(p("Add", g.node("MatMul", [h, w2], name=f"dyn_b{i}"), c), 1, 1, 1)
        nx = p("Add", px, p("Mul", p("Mul", v, p("Cos", th)), 0.1))
        ny = p("Add", py, p("Mul", p("Mul", v, p("Sin", th)), 0.1))
        x = p.cat(1, nx, ny, p("Add", th, p("Mul", dth, 0.1)), p("Add", v, p("Mul", dv, 0.1)))
        d = p.red("ReduceSum", p.square(p("Sub", p.cat(1, nx, ny), goal)), 1)
        total = d if total is None else p("Add", total, d)
    rel = q("Div", q("Sub", total, q.red("ReduceMin", total, 0)), 4.0)
    w = q("Exp", q("Neg", rel))
    w = q("Div", w, q.red("ReduceSum", w, 0))
    g.output(q.red("ReduceSum", q("Mul", q.unsq(w, 2), u), 0), total)


# Metres, revolutions, pascals and angles standardised by their running moments, clipped to 10.
@model("running_mean_std_filter_of_mixed_sensor_units", pins=["filter_*"], opset=15)
def obs_filter(g):
    n = 24
    mean = np.tile(np.array([310.0, 5400, 101325, 0.02, -0.6, 42.0], np.float32), 4)
    std = np.tile(np.array([55.0, 800, 350, 0.004, 0.3, 7.5], np.float32), 4)
    obs = g.input("obs", ["batch", n], mean + std * g.normal(8, n))
    p = Part(g, "filter", constants=True)
    var = p("Div", std**2 * np.float32(2e5), 2e5)
    x = p("Clip", p("Div", p("Sub", obs, mean), p("Sqrt", p("Add", var, 1e-8))), -10.0, 10.0)
    h = g.node("Tanh", [mlp(g, x, "trunk", [n, 128, 128], "Tanh")], name="trunk_tanh")
    g.output(g.node("Tanh", [g.linear(h, "action", 128, 4)], name="action"), g.linear(h, "value", 128, 1))


# Huber losses of every pair of quantiles, weighted by |tau - 1(u < 0)|.
@model("qr_dqn_quantile_huber_of_all_pairs", pins=["qh_*"], opset=17)
def qrdqn(g):
    b, n = 16, 32
    obs = g.input("obs", [b, 32], g.normal(b, 32))
    nxt = g.input("target_quantiles", [b, n], np.sort(g.normal(b, n, scale=4.0) + 30, axis=1))
    rew = g.input("reward", [b, 1], g.normal(b, 1))
    p = Part(g, "qh")
    theta = p("Add", p("Mul", mlp(g, obs, "net", [32, 128, 128, n]), 4.0), 30.0)
    target = p("Add", rew, p("Mul", nxt, 0.99))
    u = p("Sub", p.unsq(target, 1), p.unsq(theta, 2))
    a = p("Abs", u)
    huber = p("Where", p("LessOrEqual", a, 1.0), p("Mul", p("Pow", u, 2.0), 0.5), p("Sub", a, 0.5))
    tau = ((np.arange(n) + 0.5) / n).reshape(1, n, 1)
    w = p("Abs", p("Sub", tau, p.cast(p("Less", u, 0.0))))
    loss = p("ReduceMean", p.red("ReduceSum", p("Mul", w, huber), 1, keep=0), axes=[1], keepdims=0)
    g.output(loss, p("ReduceMean", theta, axes=[1], keepdims=0))


# R2D2's h and its inverse with eps 1e-3: a root of 1 + 0.004 (...), less one, over 0.002.
@model("r2d2_inverse_value_rescaling_eps_1e_minus_3", pins=["h_*"], opset=17)
def r2d2(g):
    b, na = 16, 6
    obs = g.input("obs", [b, 64], g.normal(b, 64))
    rew = g.input("reward", [b, 1], g.rng.choice([0.0, 0, 0, 1, 10, 50], (b, 1)).astype(np.float32))
    h = g.node("Relu", [mlp(g, obs, "core", [64, 128, 128])], name="core_relu")
    val, adv = g.linear(h, "value", 128, 1), g.linear(h, "adv", 128, na)
    p = Part(g, "h")
    q = p("Add", p("Mul", p("Add", val, p("Sub", adv, p("ReduceMean", adv, axes=[1], keepdims=1))), 6.0), 9.0)
    best = p("ReduceMax", q, axes=[1], keepdims=1)
    eps = 1e-3
    root = p("Sqrt", p("Add", 1.0, p("Mul", 4 * eps, p("Add", p("Abs", best), 1 + eps))))
    inv = p("Mul", p("Sign", best), p("Sub", p.square(p("Div", p("Sub", root, 1.0), 2 * eps)), 1.0))
    y = p("Add", rew, p("Mul", inv, 0.9851))
    back = p("Sub", p("Sqrt", p("Add", p("Abs", y), 1.0)), 1.0)
    target = p("Add", p("Mul", p("Sign", y), back), p("Mul", y, eps))
    g.output(target, q)


# DreamerV3: 255 two-hot bins from -20 to 20 in symlog space; symexp of their mean is in the thousands.
@model("dreamerv3_two_hot_symexp_critic", pins=["symlog_*", "bins_*"], opset=23)
def dreamer(g):
    b, n = 32, 255
    obs = g.input("vector_obs", [b, 24], g.normal(b, 24) * np.exp(g.uniform(-2, 7, 1, 24)))
    s = Part(g, "symlog")
    x = s("Mul", s("Sign", obs), s("Log", s("Add", 1.0, s("Abs", obs))))
    x = g.layer_norm(g.linear(x, "in", 24, 128), "in", 128)
    x = g.node("Mul", [x, g.node("Sigmoid", [x], name="in_sig")], name="in_silu")
    x = mlp(g, x, "trunk", [128, 128, 128])
    p = Part(g, "bins")
    grid = np.linspace(-20, 20, n)
    prior = -((grid - 6.5) ** 2) / 2
    logits = p("Add", g.linear(x, "head", 128, n, scale=0.05), prior)
    prob = p("Softmax", logits, axis=-1)
    mean = p.red("ReduceSum", p("Mul", prob, grid), 1)
    g.output(p("Mul", p("Sign", mean), p("Sub", p("Exp", p("Abs", mean)), 1.0)), prob)
