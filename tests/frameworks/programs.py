"""Programs for the conformance tests: each is a step and its values, and the plain loop that it must agree with."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import autograd.numpy as np
import numpy

State = namedtuple("State", "h c")


@dataclass
class Particle:
    position: object
    velocity: object
    hits: object


def plain_scan(step, init, xs, steps, take):
    """What `remat.scan` stands for: a Python loop; outputs in a list."""
    carry, ys = init, []
    for i in range(steps):
        carry, y = step(carry, take(xs, i))
        ys.append(y)
    return carry, ys


def _random(seed, *shape):
    return numpy.random.default_rng(seed).normal(size=shape)


def lstm(params, carry, x):
    gates = np.dot(x, params["wx"]) + np.dot(carry.h, params["wh"]) + params["b"]
    size = gates.shape[-1] // 4
    i, f, o, g = (gates[..., k * size : (k + 1) * size] for k in range(4))
    c = np.tanh(f) * carry.c + np.tanh(i) * np.tanh(g)
    h = np.tanh(o) * np.tanh(c)
    return State(h, c), np.sum(h**2)


def rnn(params, h, x):
    h = np.tanh(np.dot(h, params["w"]) + x)
    return h, h


def ode(params, state, x):
    """A Runge-Kutta step of a pendulum with friction; the state is a list of two numbers."""

    def slope(angle, speed):
        return speed, -params["k"] * np.sin(angle) - params["d"] * speed

    angle, speed = state
    dt = 0.05
    a1, s1 = slope(angle, speed)
    a2, s2 = slope(angle + dt / 2 * a1, speed + dt / 2 * s1)
    a3, s3 = slope(angle + dt / 2 * a2, speed + dt / 2 * s2)
    a4, s4 = slope(angle + dt * a3, speed + dt * s3)
    return [angle + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4), speed + dt / 6 * (s1 + 2 * s2 + 2 * s3 + s4)], None


def odd(params, state, x):
    """Dicts in tuples, an integer that counts, a dataclass, None, outputs of several kinds."""
    count, rest, particle = state
    force = params[0] * x["push"] - particle.position * params[1]["stiff"]
    velocity = particle.velocity + 0.1 * force
    particle = Particle(particle.position + 0.1 * velocity, velocity, particle.hits + (np.sum(velocity) > 0))
    rest = {"b": rest["b"] * 0.9 + np.sum(force), "a": (np.sin(rest["a"][0] + count * 0.1), None)}
    return (count + 1, rest, particle), {"energy": np.sum(velocity**2), "count": count, "both": (force, rest["b"])}


def complex_wave(params, z, x):
    z = z * np.exp(1j * params["w"]) + 0.1 * np.conj(z) * x
    return z, np.real(z * np.conj(z))


@dataclass
class Program:
    step: object
    params: object
    init: object
    xs: object
    steps: int


def programs(steps=11):
    batch, hidden = 3, 2
    return {
        "lstm": Program(
            lstm,
            {"wx": _random(1, 4, 4 * hidden), "wh": _random(2, hidden, 4 * hidden), "b": _random(3, 4 * hidden)},
            State(_random(4, batch, hidden), _random(5, batch, hidden)),
            _random(6, steps, batch, 4),
            steps,
        ),
        "rnn": Program(rnn, {"w": _random(7, 3, 3)}, _random(8, 3), _random(9, steps, 3), steps),
        "ode": Program(ode, {"k": 1.3, "d": 0.1}, [0.4, -0.2], None, steps),
        "odd": Program(
            odd,
            (_random(10, 2), {"stiff": 0.7}),
            (0, OrderedDict(a=(0.3, None), b=1.5), Particle(_random(11, 2), _random(12, 2), 0)),
            {"push": _random(13, steps, 2)},
            steps,
        ),
        "complex": Program(
            complex_wave, {"w": 0.3}, _random(14, 2) + 1j * _random(15, 2), _random(16, steps, 2), steps
        ),
    }
