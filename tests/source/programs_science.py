"""Programs such as scientists and students write: simulations, networks, optimisers, filters, on three frameworks."""

import itertools
import math

import jax
import numpy as np

__all__ = ["PROGRAMS"]


def val(x):
    """The number in an array of any framework, for a branch."""
    while hasattr(x, "_value"):
        x = x._value
    if isinstance(x, jax.Array):
        x = jax.lax.stop_gradient(x)
    return float(x.detach() if hasattr(x, "detach") else x)


def rk4(xp, x, weights, b):

    def f(t, y):
        return xp.sin(weights @ y) * math.cos(t) + b

    h = 0.1
    for n in range(12):
        t = n * h
        k1 = f(t, x)
        k2 = f(t + h / 2, x + h / 2 * k1)
        k3 = f(t + h / 2, x + h / 2 * k2)
        k4 = f(t + h, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return xp.sum(x)


def verlet(xp, x, weights, b):
    v = b
    a = -x
    traj = []
    for step in range(15):
        x_new = x + v * 0.1 + 0.5 * a * 0.01
        a_new = -x_new + 0.1 * xp.sin(weights @ x_new)
        v = v + 0.5 * (a + a_new) * 0.1
        x, a = (x_new, a_new)
        traj.append((x, v))
    return xp.sum(traj[4][0]) + xp.sum(traj[-1][1])


def lstm(xp, x, weights, b):
    h, c = (x * 0, x * 0)
    sig = lambda z: 1 / (1 + xp.exp(-z))
    for t in range(8):
        z = weights @ h + x
        i, f, o, g = (sig(z), sig(z + b), sig(z - b), xp.tanh(z))
        c = f * c + i * g
        h = o * xp.tanh(c)
    return xp.sum(h)


def stacked_layers(xp, x, weights, b):
    layers = [weights, weights * 0.5, weights * 0.25]
    hs = [x, x * 0.5, x * 0.2]
    for t in range(6):
        inp = b * t
        for now, layer in enumerate(layers):
            hs[now] = xp.tanh(layer @ hs[now] + inp)
            inp = hs[now]
    return xp.sum(hs[-1])


def sgd(xp, x, weights, b):
    w = x
    lr = 0.1
    for it in range(20):
        r = weights @ w - b
        g = weights.T @ r
        w = w - lr * g
    return xp.sum(w**2)


def momentum(xp, x, weights, b):
    p = {"w": x, "c": b}
    m = {k: v * 0 for k, v in p.items()}
    for it in range(10):
        g = {"w": weights.T @ (weights @ p["w"] - p["c"]), "c": p["c"] - p["w"]}
        for k in p:
            m[k] = 0.9 * m[k] + g[k]
            p[k] = p[k] - 0.05 * m[k]
    return xp.sum(p["w"]) + xp.sum(p["c"])


def adam(xp, x, weights, b):
    w, m, v = (x, x * 0, x * 0)
    for t in range(1, 16):
        g = weights.T @ (weights @ w - b)
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g**2
        w = w - 0.05 * (m / (1 - 0.9**t)) / (xp.sqrt(v / (1 - 0.99**t)) + 1e-08)
    return xp.sum(w)


def newton(xp, x, weights, b):
    y = xp.sum(x**2) + 1.0
    z = y
    for k in range(50):
        new = 0.5 * (z + y / z)
        if abs(val(new - z)) < 1e-14:
            break
        z = new
    else:
        return z * 0
    return z * k


def power_iter(xp, x, weights, b):
    v = b
    lam = 0
    for i in range(30):
        w = weights @ v
        lam_new = xp.sum(v * w)
        v = w / xp.sqrt(xp.sum(w**2))
        if i > 5 and abs(val(lam_new - lam)) < 0.001:
            lam = lam_new
            break
        lam = lam_new
    return lam + xp.sum(v)


def fixed_point(xp, x, weights, b):
    z = x * 0
    for k in itertools.count():
        zn = xp.tanh(0.4 * (weights @ z) + x)
        if val(xp.sum((zn - z) ** 2)) < 1e-10 or k > 40:
            return xp.sum(zn) + k
        z = zn


def conj_grad(xp, x, weights, b):
    A = weights @ weights.T + xp.eye(3)
    y = x * 0
    r = b - A @ y
    p = r
    rs = xp.sum(r * r)
    for i in range(3):
        Ap = A @ p
        al = rs / xp.sum(p * Ap)
        y = y + al * p
        r = r - al * Ap
        rn = xp.sum(r * r)
        if val(rn) < 1e-20:
            break
        p = r + rn / rs * p
        rs = rn
    return xp.sum(y * x)


def ema(xp, x, weights, b):
    avg = None
    for i in range(8):
        x = xp.tanh(weights @ x + b)
        avg = x if avg is None else 0.9 * avg + 0.1 * x
    return xp.sum(avg)


def running_best(xp, x, weights, b):
    best = None
    bi = -1
    for i in range(8):
        x = xp.sin(weights @ x * 2 + b)
        s = xp.sum(x)
        if best is None or val(s) > val(best):
            best, bi = (s, i)
    return best * bi


def lr_schedule(xp, x, weights, b):
    sched = {0: 0.1, 3: 0.05, 6: 0.01}
    lr = 0.5
    for i in range(9):
        lr = sched.get(i, lr)
        x = x - lr * (weights.T @ (weights @ x - b))
    return xp.sum(x)


def bptt_chunks(xp, x, weights, b):
    loss = 0.0
    h = x
    for chunk in range(3):
        for t in range(4):
            h = xp.tanh(weights @ h + b * t)
            loss = loss + xp.sum(h**2)
        h = h * 0.5
    return loss / 12


def grad_clip(xp, x, weights, b):
    for i in range(8):
        g = weights.T @ (weights @ x - b)
        n = xp.sqrt(xp.sum(g**2))
        g = g / n if val(n) > 0.1 else g
        x = x - 0.1 * g
    return xp.sum(x)


def backward_alg(xp, x, weights, b):
    fw = [x]
    for t in range(5):
        fw.append(xp.tanh(weights @ fw[-1] + b))
    bw = b
    for t in range(5, 0, -1):
        bw = xp.tanh(weights.T @ bw) * fw[t]
    return xp.sum(bw)


def nbody(xp, x, weights, b):
    pos = [x, b, x - b]
    vel = [x * 0, b * 0, x * 0]
    for s in range(4):
        acc = []
        for i in range(3):
            a = x * 0
            for j in range(3):
                if i != j:
                    d = pos[j] - pos[i]
                    a = a + d / (xp.sum(d**2) + 1.0) ** 1.5
            acc.append(a)
        vel = [v + 0.1 * a for v, a in zip(vel, acc)]
        pos = [p + 0.1 * v for p, v in zip(pos, vel)]
    return xp.sum(pos[0] * pos[1])


def try_div(xp, x, weights, b):
    bad = 0
    for i in range(6):
        try:
            c = 1.0 / (i - 3)
        except ZeroDivisionError:
            bad += 1
            continue
        x = xp.tanh(weights @ x * c + b)
    return xp.sum(x) * bad


def len_cond(xp, x, weights, b):
    ys = []
    while len(ys) < 6:
        x = xp.tanh(weights @ x + b)
        ys.append(x)
    return xp.sum(ys[2] + ys[-1])


def hmm(xp, x, weights, b):
    A = xp.exp(weights)
    A = A / xp.sum(A)
    al = xp.exp(x)
    al = al / xp.sum(al)
    ll = 0
    for o in [0, 1, 2, 1, 0]:
        al = al @ A * xp.exp(b * o)
        z = xp.sum(al)
        ll = ll + xp.log(z)
        al = al / z
    return ll


def wave(xp, x, weights, b):
    prev, cur = (x, x + 0.1 * b)
    for n in range(8):
        prev, cur = (cur, 2 * cur - prev + 0.05 * (weights @ cur))
    return xp.sum(cur)


def ou(xp, x, weights, b):
    rs = np.random.RandomState(0)
    path = [x]
    for n in range(8):
        path.append(path[-1] + 0.1 * (b - path[-1]) + 0.05 * val(rs.randn()))
    return xp.sum(path[-1]) + xp.sum(path[3])


def hopfield(xp, x, weights, b):
    s = x
    es = []
    for i in range(6):
        s = xp.tanh(3 * (weights @ s))
        es.append(-0.5 * xp.sum(s * (weights @ s)))
        if len(es) > 2 and abs(val(es[-1] - es[-2])) < 0.0001:
            break
    return es[-1]


def rollout(xp, x, weights, b):
    rew, disc, done = (0.0, 1.0, False)
    t = 0
    while not done:
        a = xp.tanh(weights @ x)
        x = 0.9 * x + 0.1 * a + b * 0.1
        rew = rew + disc * xp.sum(-(x**2))
        disc *= 0.95
        t += 1
        done = t >= 9
    return rew


def early_stop(xp, x, weights, b):
    best, patience, bad = (float("inf"), 3, 0)
    for epoch in range(100):
        r = weights @ x - b
        loss = xp.sum(r**2)
        x = x - 0.1 * (weights.T @ r)
        now = val(loss)
        if now < best - 0.001:
            best, bad = (now, 0)
        else:
            bad += 1
            if bad >= patience:
                break
    return loss + epoch * xp.sum(x)


def line_search(xp, x, weights, b):
    f = lambda z: xp.sum((weights @ z - b) ** 2)
    for it in range(6):
        g = weights.T @ (weights @ x - b)
        s = 1.0
        while val(f(x - s * g)) > val(f(x)) and s > 0.001:
            s /= 2
        x = x - s * g
    return f(x)


PROGRAMS = [
    rk4,
    verlet,
    lstm,
    stacked_layers,
    sgd,
    momentum,
    adam,
    newton,
    power_iter,
    fixed_point,
    conj_grad,
    ema,
    running_best,
    lr_schedule,
    bptt_chunks,
    grad_clip,
    backward_alg,
    nbody,
    try_div,
    len_cond,
    hmm,
    wave,
    ou,
    hopfield,
    rollout,
    early_stop,
    line_search,
]
