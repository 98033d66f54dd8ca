"""Programs for loops: each is a step, parameters, an initial carry and inputs, written once for all frameworks."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy

__all__ = ["PROGRAMS", "Particle", "Program", "State", "program", "random"]

State = namedtuple("State", "h c")


@dataclass
class Particle:
    position: object
    velocity: object
    hits: object


@dataclass
class Program:
    """step(params, carry, x) -> (carry, y), and its values; the length where there are no inputs."""

    step: object
    params: object
    init: object
    xs: object
    steps: int
    name: str | None = None

    @property
    def length(self):
        return self.steps if self.xs is None else None


def random(framework, seed, *shape):
    return framework.array(numpy.random.default_rng(seed).normal(size=shape))


def lstm(framework, steps=11, hidden=2, batch=3):
    """A named tuple as the carry; the output is a number."""
    np = framework.np

    def step(params, carry, x):
        gates = np.dot(x, params["wx"]) + np.dot(carry.h, params["wh"]) + params["b"]
        i, f, o, g = (gates[..., k * hidden : (k + 1) * hidden] for k in range(4))
        c = np.tanh(f) * carry.c + np.tanh(i) * np.tanh(g)
        h = np.tanh(o) * np.tanh(c)
        return State(h, c), np.sum(h**2)

    params = {
        "wx": random(framework, 1, 4, 4 * hidden),
        "wh": random(framework, 2, hidden, 4 * hidden),
        "b": random(framework, 3, 4 * hidden),
    }
    init = State(random(framework, 4, batch, hidden), random(framework, 5, batch, hidden))
    return Program(step, params, init, random(framework, 6, steps, batch, 4), steps)


def rnn(framework, steps=11, hidden=3):
    """An array as the carry, which is the output too."""
    np = framework.np

    def step(params, h, x):
        h = np.tanh(np.dot(h, params["w"]) + x)
        return h, h

    params = {"w": random(framework, 7, hidden, hidden)}
    return Program(step, params, random(framework, 8, hidden), random(framework, 9, steps, hidden), steps)


def ode(framework, steps=11):
    """A Runge-Kutta step of a pendulum with friction: a list of two numbers, no inputs and no outputs."""
    np, dt = framework.np, 0.05

    def step(params, state, x):
        def slope(angle, speed):
            return speed, -params["k"] * np.sin(angle) - params["d"] * speed

        angle, speed = state
        a1, s1 = slope(angle, speed)
        a2, s2 = slope(angle + dt / 2 * a1, speed + dt / 2 * s1)
        a3, s3 = slope(angle + dt / 2 * a2, speed + dt / 2 * s2)
        a4, s4 = slope(angle + dt * a3, speed + dt * s3)
        return [angle + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4), speed + dt / 6 * (s1 + 2 * s2 + 2 * s3 + s4)], None

    params = {"k": framework.array(1.3), "d": framework.array(0.1)}
    return Program(step, params, [framework.array(0.4), framework.array(-0.2)], None, steps)


def odd(framework, steps=11):
    """Dicts in tuples, an ordered dict, an integer that counts, a dataclass, None, outputs of several kinds."""
    np = framework.np

    def step(params, state, x):
        count, rest, particle = state
        force = params[0] * x["push"] - particle.position * params[1]["stiff"]
        velocity = particle.velocity + 0.1 * force
        hits = particle.hits + (np.sum(velocity) > 0)
        particle = Particle(particle.position + 0.1 * velocity, velocity, hits)
        rest = OrderedDict(a=(np.sin(rest["a"][0] + count * 0.1), None), b=rest["b"] * 0.9 + np.sum(force))
        return (count + 1, rest, particle), {"energy": np.sum(velocity**2), "count": count, "both": (force, rest["b"])}

    framework.dataclass(Particle)
    init = (
        framework.array(0, "int64"),
        OrderedDict(a=(framework.array(0.3), None), b=framework.array(1.5)),
        Particle(random(framework, 11, 2), random(framework, 12, 2), framework.array(0, "int64")),
    )
    params = random(framework, 10, 2), {"stiff": framework.array(0.7)}
    return Program(step, params, init, {"push": random(framework, 13, steps, 2)}, steps)


def complex_wave(framework, steps=11):
    """Complex numbers in the carry, and real ones for parameters, inputs and outputs."""
    np = framework.np

    def step(params, z, x):
        z = z * np.exp(1j * params["w"]) + 0.1 * np.conj(z) * x
        return z, np.real(z * np.conj(z))

    values = numpy.random.default_rng(14).normal(size=(2, 2))
    init = framework.array(values[0] + 1j * values[1], "complex128")
    return Program(step, {"w": framework.array(0.3)}, init, random(framework, 16, steps, 2), steps)


def without_carry(framework, steps=11):
    """Nothing is carried: a map over the inputs."""
    np = framework.np
    return Program(
        lambda params, _, x: (None, np.sin(x * params)),
        framework.array(0.7),
        None,
        random(framework, 17, steps, 2),
        steps,
    )


PROGRAMS = {
    "lstm": lstm,
    "rnn": rnn,
    "ode": ode,
    "odd": odd,
    "complex": complex_wave,
    "without carry": without_carry,
}


def program(framework, name, steps=11):
    """One of the programs, with so many steps."""
    made = PROGRAMS[name](framework, steps)
    made.name = name
    return made
