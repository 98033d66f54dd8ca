"""What a loop iterates over: it may not change while it runs, or only where that is not seen."""

import pytest

import remat
from tests.source import programs_iterated
from tests.source.corpus import agrees, marked_lines, programs_of, refusal

RIGHT = {program.__name__: program for program in programs_iterated.RIGHT}
HELPERS = {helper.__name__ for helper in programs_iterated.HELPERS}
PROGRAMS = {name: program for name, program in programs_of(programs_iterated).items() if name not in HELPERS}


@pytest.mark.parametrize("name", RIGHT)
def test_items_that_are_not_read_again_may_change(name):
    assert agrees(RIGHT[name])


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - RIGHT.keys()))
def test_other_changes_are_refused(name):
    error = refusal(PROGRAMS[name])
    assert error is not None
    assert [error.line] == marked_lines(PROGRAMS[name])


@pytest.mark.parametrize("settings", [{"slots": 3}, {"memory": "1 MiB"}])
def test_rows_of_a_tensor_are_not_changed_ahead(settings):
    torch = pytest.importorskip("torch")

    def bump(rows, k):
        if k < 2:
            rows[k + 1] += 1.0

    def changed(x):
        rows = torch.ones(3, 2)
        for k, row in zip([0, 1, 2], rows):
            x = torch.tanh(x * row)
            bump(rows, k)
        return x.sum()

    with pytest.raises(remat.errors.SourceError, match="what it iterates over was changed"):
        remat.checkpointed(**settings)(changed)(torch.ones(2, requires_grad=True)).backward()
