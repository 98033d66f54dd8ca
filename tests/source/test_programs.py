"""A corpus of programs with loops: each is right, or refused in the line that says so; none is wrong.

Those of `programs_refused.py` would be wrong, or cannot be run: the error names the line with the comment `here`.
"""

import pytest

from tests.source import (
    programs_containers,
    programs_control_flow,
    programs_details,
    programs_dicts,
    programs_ends,
    programs_iterators,
    programs_methods,
    programs_more,
    programs_names,
    programs_records,
    programs_refused,
    programs_refused_aliases,
    programs_refused_more,
    programs_shared_objects,
    programs_traps,
)
from tests.source.corpus import agrees, marked_lines, programs_of, refusal

RIGHT = {}
for module in (
    programs_control_flow,
    programs_containers,
    programs_details,
    programs_dicts,
    programs_ends,
    programs_iterators,
    programs_more,
    programs_names,
    programs_records,
    programs_shared_objects,
    programs_traps,
):
    assert not RIGHT.keys() & programs_of(module).keys()
    RIGHT |= programs_of(module)
REFUSED = programs_of(programs_refused) | programs_of(programs_refused_aliases) | programs_of(programs_refused_more)


@pytest.mark.parametrize("name", RIGHT)
def test_value_and_gradients_are_those_of_the_plain_function(name):
    assert agrees(RIGHT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_in_its_line(name):
    error = refusal(REFUSED[name])
    assert error is not None
    assert [error.line] == marked_lines(REFUSED[name])
    assert error.file == REFUSED[name].__code__.co_filename
    assert str(error).startswith(f"{error.file}, line {error.line}: ")


def test_more_than_three_quarters_are_right():
    assert len(RIGHT) / (len(RIGHT) + len(REFUSED)) > 0.75


@pytest.mark.parametrize("name", programs_methods.METHODS)
def test_methods(name):
    plain, marked = programs_methods.METHODS[name]
    programs_methods.compare(plain, marked)
