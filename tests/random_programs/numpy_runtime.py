"""What random programs on NumPy import: objects of the user's, and the way they are run."""

import random
from typing import Any

import autograd.numpy as np
import numpy
from autograd.extend import defvjp, primitive
from autograd.tracer import getval, isbox

from tests.random_programs.observe import Seen, global_state, observed
from tests.random_programs.plain import Plain
from tests.random_programs.tree import children, rebuilt
from tests.random_programs.user_objects import D1, D2, D3, D4, P1, P2, P3, P4, Box
from tests.random_programs.verdict import Program

__all__ = ["D1", "D2", "D3", "D4", "P1", "P2", "P3", "P4", "Box", "constant", "cubed", "the_plan"]


@primitive
def cubed(x: Any) -> Any:
    return x**3


defvjp(cubed, lambda ans, x: lambda bar: 3 * x**2 * bar)


def constant(value: Any) -> Any:
    """The numbers of a traced value."""
    while isbox(value):
        value = getval(value)
    return value


def the_plan(remat: Any, length: int, slots: int, planner: str) -> Any:
    """A plan of one's own; plain loops need none."""
    if isinstance(remat, Plain):
        return None
    import remat as real

    return real.plan(real.Loop(length), slots=slots, planner=planner)


plain = Plain(lambda rows: np.stack(rows))


def run(program: Program, remat: Any) -> list[Seen]:
    """All that can be seen after the program was run with `remat`, or with what takes its place."""
    random.seed(program.seed), numpy.random.seed(program.seed)
    functions = program.loaded(remat)
    user, parameters = functions["make"]()
    if noise := getattr(remat, "noise", 0.0):
        parameters = {name: value * (1 + noise) for name, value in parameters.items()}
    results = functions["drive"](user, parameters)
    seen = {name: _untraced(value) for name, value in vars(user).items()}
    return [*observed("result", results), *observed("user", seen), *observed("given", parameters), *global_state()]


def _untraced(value: Any) -> Any:
    """A value as it is seen, with numbers for what autograd traced."""
    if isbox(value):
        return constant(value)
    if type(value) is Box or type(value).__module__ == "random_program":
        return {name: _untraced(each) for name, each in vars(value).items()}
    parts = children(value)
    return value if parts is None else rebuilt(value, [_untraced(part) for part in parts])
