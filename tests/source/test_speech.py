"""Printing, logging and writing once per turn, wherever it is done; and user objects that only look like a log."""

import contextlib
import io
import logging
import sys
import threading

import numpy as np
import pytest
from autograd import grad

import remat
from remat.errors import RematError, SourceError

torch = pytest.importorskip("torch")
BUDGETS = [{"slots": 3}, {"memory": "1 MiB"}]


def say(i):
    print("hello", i)


def printed(function, *args, differentiate=True):
    """What a function prints in its forward and backward, and the gradient or the exception."""
    x = torch.tensor(0.3, requires_grad=True)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            result = function(x, *args)
            result.backward()
            found = result.item(), x.grad.item()
        except (ValueError, IndexError, UnboundLocalError, StopIteration) as error:
            found = type(error)
    return text.getvalue(), found


def in_a_helper(x):
    for i in range(7):
        x = torch.sin(x)
        say(i)
    return x


def in_an_expression(x):
    for i in range(7):
        x = torch.sin(x) * (print("at", i) or 1.0)
    return x


def by_the_stream(x):
    for i in range(7):
        n = sys.stdout.write(f"{i}\n")
        x = torch.sin(x) * n
    return x


def in_a_helper_of_an_inner_loop(x):
    for i in range(4):
        for j in range(3):
            x = torch.sin(x) + i
            say(j)
        say("outer")
    return x


def before_an_error(x):
    for i in range(7):
        print("at", i)
        x = torch.sin(x)
        if i == 4:
            raise ValueError
    return x


def before_an_error_of_its_iterator(x):
    for a, b in zip([1.0, 2.0, 3.0], [1.0, 2.0], strict=True):
        print("at", a)
        x = torch.sin(x) * b
    return x


def what_changes_later(x):
    for i in range(5):
        seen = [i]
        print(seen)
        seen.append(i)
        x = torch.sin(x) * len(seen)
    return x


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(
    "program",
    [
        in_a_helper,
        in_an_expression,
        by_the_stream,
        in_a_helper_of_an_inner_loop,
        before_an_error,
        before_an_error_of_its_iterator,
        what_changes_later,
    ],
)
def test_a_turn_prints_once(program, budget):
    assert printed(remat.checkpointed(**budget)(program)) == printed(program)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_turn_logs_once_also_in_a_helper(budget, caplog):
    logger = logging.getLogger("remat.tests.speech")

    def helper(i):
        logger.warning("helper %d", i)

    def program(x):
        for i in range(6):
            logger.warning("turn %d", i)
            x = torch.sin(x)
            helper(i)
        return x

    remat.checkpointed(**budget)(program)(torch.tensor(0.3, requires_grad=True)).backward()
    assert [r.getMessage() for r in caplog.records] == [f"{who} {i}" for i in range(6) for who in ("turn", "helper")]


@pytest.mark.parametrize("budget", BUDGETS)
def test_streams_are_written_once(budget):
    def program(x, stream):
        n = 0
        for i in range(6):
            n += stream.write(f"{i};")
            x = torch.sin(x) * n
            print("end", i, file=stream)
        return x

    streams = io.StringIO(), io.StringIO()
    assert printed(program, streams[0]) == printed(remat.checkpointed(**budget)(program), streams[1])
    assert streams[0].getvalue() == streams[1].getvalue()


def test_a_stream_that_the_loop_reads_is_refused():
    @remat.checkpointed(slots=3)
    def program(x, stream):
        for i in range(6):
            stream.write(f"{i};")
            x = torch.sin(x) * len(stream.getvalue())
        return x

    with pytest.raises(SourceError, match="also uses otherwise"):
        program(torch.tensor(0.3, requires_grad=True), io.StringIO())


class Counter:
    def __init__(self):
        self.k = 0

    def write(self, i):
        self.k += i


class History:
    def __init__(self):
        self.values = []

    def log(self, value):
        self.values.append(value)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_counter_with_the_name_of_a_writer_counts(budget):
    def program(x):
        writer = Counter()
        for i in range(6):
            writer.write(i)
            x = torch.sin(x) + writer.k
        return x * writer.k

    assert printed(remat.checkpointed(**budget)(program)) == printed(program)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_history_with_the_name_of_a_logger_is_not_lost(budget):
    def program(x):
        logger = History()
        for i in range(6):
            x = torch.sin(x)
            logger.log(x)
        return sum(logger.values)

    x = torch.tensor(0.3, requires_grad=True)
    with pytest.raises(RematError, match="stored in a list"):
        remat.checkpointed(**budget)(program)(x).backward()


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_error_is_that_of_the_plain_loop(budget):
    def stops(x):
        for i in range(6):
            x = torch.sin(x)
            if i == 3:
                raise StopIteration
        return x

    def unbound(x):
        for i in range(6):
            if i > 8:
                y = x
            if i == 2:
                x = x + y
            x = torch.sin(x)
        return x

    def appended(x, seen):
        for i in range(6):
            x = torch.sin(x)
            seen.append(i)
            if i == 4:
                raise ValueError
        return x

    for program in (stops, unbound):
        assert printed(remat.checkpointed(**budget)(program)) == printed(program)
    lists = [], []
    assert printed(appended, lists[0]) == printed(remat.checkpointed(**budget)(appended), lists[1])
    assert lists[0] == lists[1] == [0, 1, 2, 3, 4]


def test_the_streams_are_restored_and_other_threads_write():
    before, handle = sys.stdout, logging.Logger.handle

    def program(x):
        for i in range(6):
            x = np.sin(x)
            thread = threading.Thread(target=say, args=(i,))
            thread.start()
            thread.join()
        return x

    with contextlib.redirect_stdout(io.StringIO()) as text:
        remat.grad_with_checkpointing(program, num_checkpoints=3)(0.3)
    assert text.getvalue().startswith("hello 0\nhello 1\n")
    assert sys.stdout is before
    assert logging.Logger.handle is handle


def test_printing_in_a_helper_on_jax():
    jax = pytest.importorskip("jax")

    def program(x):
        for i in range(6):
            x = jax.numpy.sin(x)
            say(i)
        return x

    def of(function):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            gradient = jax.grad(function)(0.3)
        return text.getvalue(), float(gradient)

    assert of(remat.checkpointed(slots=3)(program)) == of(program)


def two_kinds_settle(x):
    before, total = None, 0.0
    for i in range(5):
        print("at", i)
        x = np.tanh(1.1 * x)
        change = 0.0 if before is None else np.sum(x - before)
        before = x
        total += np.sum(x)
    return total + change


def one_settles_late(x):
    best = None
    for i in range(6):
        print("at", i)
        x = np.tanh(1.1 * x)
        if i == 3:
            best = x
    return np.sum(best + x)


@pytest.mark.parametrize("fn", [two_kinds_settle, one_settles_late], ids=lambda fn: fn.__name__)
def test_a_turn_in_which_a_kind_settles_prints_once(fn, capsys):
    grad(remat.checkpointed(slots=2)(fn))(np.ones(3))
    ours = capsys.readouterr().out
    fn(np.ones(3))
    assert ours == capsys.readouterr().out
