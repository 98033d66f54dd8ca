"""A parameter fit through 10,000 Runge-Kutta steps: stiffness and friction of pendulums, from where they end up.

Plain reverse mode would hold 10,000 tapes; here 100 states are kept. The step's adjoint is written out and passed as
`vjp=`, which is some ten times faster than letting autograd record so small a step. Run it: python examples/ode.py
"""

import time

import autograd.numpy as np
import numpy
from autograd import grad, value_and_grad

import remat

STEPS, DT, SLOTS, GRADIENTS = 10_000, 0.002, 100, 6
ANGLES = numpy.linspace(0.2, 1.5, 16)


def step(params, state):
    """The midpoint rule, a Runge-Kutta method of second order."""
    angle, speed = state
    middle = angle + 0.5 * DT * speed
    middle_speed = speed + 0.5 * DT * (-params[0] * np.sin(angle) - params[1] * speed)
    return angle + DT * middle_speed, speed + DT * (-params[0] * np.sin(middle) - params[1] * middle_speed)


def step_vjp(params, state, bar):
    """The adjoint of a step: cotangents of the state and of the parameters."""
    (angle, speed), (angle_bar, speed_bar) = state, bar
    middle = angle + 0.5 * DT * speed
    middle_speed = speed + 0.5 * DT * (-params[0] * numpy.sin(angle) - params[1] * speed)
    push_bar = DT * speed_bar
    middle_bar = -params[0] * numpy.cos(middle) * push_bar
    middle_speed_bar = DT * angle_bar - params[1] * push_bar
    first_bar = 0.5 * DT * middle_speed_bar
    params_bar = numpy.array(
        [
            -numpy.sin(middle) @ push_bar - numpy.sin(angle) @ first_bar,
            -middle_speed @ push_bar - speed @ first_bar,
        ]
    )
    angle_bar = angle_bar + middle_bar - params[0] * numpy.cos(angle) * first_bar
    speed_bar = speed_bar + middle_speed_bar + 0.5 * DT * middle_bar - params[1] * first_bar
    return (angle_bar, speed_bar), params_bar


def swing(params, steps=None, written=True):
    """Where the pendulums are after all steps, or after some."""

    def vjp(state, _, bar, y_bar):
        state_bar, params_bar = step_vjp(params, state, bar)
        return state_bar, None, {"params": params_bar}

    start = (ANGLES, numpy.zeros_like(ANGLES))
    own = {"vjp": vjp} if written else {}
    return remat.scan(lambda state, _: (step(params, state), None), start, length=steps or STEPS, slots=SLOTS, **own)[0]


def main():
    true, params = numpy.array([1.0, 0.1]), numpy.array([1.02, 0.12])
    written, by_autograd = (grad(lambda p, how=how: np.sum(swing(p, 50, how)[0] ** 2))(params) for how in (True, False))
    print(f"the written adjoint and that of autograd agree to {numpy.max(numpy.abs(written / by_autograd - 1)):.1e}")
    observed = swing(true)

    def loss(params):
        angle, speed = swing(params)
        return np.sum((angle - observed[0]) ** 2) + np.sum((speed - observed[1]) ** 2)

    plan = remat.plan(remat.Loop(STEPS), slots=SLOTS)
    print(f"{plan.forward_steps} step evaluations for each gradient of {STEPS} steps, {SLOTS} states kept")
    value, gradient = value_and_grad(loss)(params)
    first, move = value, -1e-3 * gradient / numpy.linalg.norm(gradient)
    for number in range(1, GRADIENTS):
        began = time.perf_counter()
        params, before = params + move, gradient
        value, gradient = value_and_grad(loss)(params)
        print(f"{number}: loss {value:.3e} at {params.round(6)}, {time.perf_counter() - began:.1f} s")
        change = gradient - before  # the length of the next move by the last two gradients (Barzilai and Borwein)
        move = -gradient * abs(move @ change) / (change @ change)
    print(f"true {true}, found {params.round(4)}")
    assert value < 0.02 * first


if __name__ == "__main__":
    main()
