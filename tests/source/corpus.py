"""How programs are judged: against the plain function, differentiated by autograd, or by differences where it cannot.

A program is a function of `start`, `weights` and `bias`, in plain NumPy. In its plain form `np` is autograd's.
"""

import inspect
import linecache
import types

import autograd.numpy as anp
import numpy as np
from autograd import grad

import remat
from remat.errors import SourceError

rng = np.random.default_rng(0)
INPUTS = rng.standard_normal(4) * 0.5, rng.standard_normal((4, 4)) * 0.4, rng.standard_normal(4) * 0.3
STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60))  # of the sixth order


def programs_of(module):
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__
    }


def plain(program):
    """The program as autograd differentiates it."""
    names = program.__globals__ | {"np": anp}
    copy = types.FunctionType(program.__code__, names, program.__name__, program.__defaults__, program.__closure__)
    copy.__kwdefaults__ = program.__kwdefaults__
    return copy


def value_and_gradients(program):
    """The value while the program is differentiated, and the gradients."""
    values = []

    def noted(*inputs):
        value = program(*inputs)
        values.append(getattr(value, "_value", value))
        return value

    return values, grad(noted, (0, 1, 2))(*INPUTS)


def differences(program, size=2e-3):
    """The gradients by central differences: item assignment is what autograd cannot differentiate."""
    found = []
    for k, array in enumerate(INPUTS):
        found.append(np.zeros_like(array))
        for place in np.ndindex(array.shape):
            for far, weight in STENCIL:
                for sign in (1, -1):
                    moved = [each.copy() for each in INPUTS]
                    moved[k][place] += sign * far * size
                    found[k][place] += sign * weight * program(*moved) / size
    return found


def agrees(program, **settings):
    """Whether the checkpointed program has the value and the gradients of the plain one."""
    marked = remat.checkpointed(**settings or {"slots": 4})(program)
    expected = plain(program)
    np.testing.assert_allclose(marked(*_copies()), expected(*_copies()), rtol=1e-10)
    values, gradients = value_and_gradients(marked)
    try:
        [value], exact = value_and_gradients(expected)
        tolerance = 1e-10
    except (TypeError, ValueError, AttributeError):
        value, exact, tolerance = program(*_copies()), differences(program), 1e-8
    np.testing.assert_allclose(values[0], value, rtol=1e-10)
    size = max(np.abs(theirs).max() for theirs in exact)
    for ours, theirs in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * size)
    return True


def refusal(program):
    """The SourceError of a program, when it is decorated or when it is differentiated."""
    try:
        marked = remat.checkpointed(slots=4)(program)
        grad(marked, (0, 1, 2))(*INPUTS)
    except SourceError as error:
        return error
    return None


def marked_lines(program):
    """The lines of a program with the comment `here`."""
    lines, first = inspect.getsourcelines(program)
    return [first + k for k, line in enumerate(lines) if line.rstrip().endswith("# here")]


def text_of(error):
    return linecache.getline(error.file, error.line).strip()


def _copies():
    return [each.copy() for each in INPUTS]
