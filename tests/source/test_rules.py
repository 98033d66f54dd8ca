"""Each rule of the data flow is needed: with one switched off, some program is wrong, fails, or is not refused.

A switch replaces one function of the analysis; the programs named beside it are those that the rule is for.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from remat.errors import RematError
from remat.source.data_flow import analysis, outputs
from remat.source.data_flow.flow import FlowVisitor
from remat.source.run_time import item_assignment, segments_of_turns, traced_turns, turns, unrolled_turns
from remat.source.run_time.items import Items
from tests.source.corpus import agrees, marked_lines, refusal
from tests.source.test_programs import REFUSED, RIGHT


def nothing(*args, **kwargs):
    return []


RULES = {
    "a live name that is not surely written is carried": (
        ["conditional_live", "one_branch", "continue_before_assign"],
        lambda patch: patch.setattr(analysis, "live_after", lambda f: _nothing_live(f)),
    ),
    "what is sure is so at every break and continue": (
        ["continue_before_assign", "break_before_assign"],
        lambda patch: patch.setattr(FlowVisitor, "sure_at_every_end", lambda flow: set(flow.sure)),
    ),
    "only what both branches write is sure": (
        ["conditional_live", "one_branch"],
        lambda patch: patch.setattr(FlowVisitor, "_join", _any_branch),
    ),
    "inner functions that read what a loop assigns are refused": (
        ["late_closure", "late_lambda", "gen_before"],
        lambda patch: patch.setattr(analysis, "late_readers", nothing),
    ),
    "two names for one object are followed": (
        ["aug_alias_later", "changed_before_it_is_appended"],
        lambda patch: patch.setattr(analysis, "find_stale_reads", nothing),
    ),
    "an object that is replaced must not be read by another name": (
        ["annotated", "diagonal_view", "default_of_a_lambda"],
        lambda patch: patch.setattr(item_assignment, "_check_not_shared", nothing),
    ),
    "arrays that are changed in place are compared when the loop starts": (
        ["aug_alias_plain", "item_fill_alias"],
        lambda patch: patch.setattr(turns, "check_separate", nothing),
    ),
    "objects that turns share are not changed": (
        ["append_in_a_branch", "attribute_of_an_object", "list_insert"],
        lambda patch: patch.setattr(analysis.refusal, "check_loop", nothing),
    ),
    "an appended list is not used otherwise": (
        ["append_first_too", "append_last_carry"],
        lambda patch: patch.setattr(outputs, "names_in", lambda part: _only_appended(part)),
    ),
    "an exception below a handler ends the loop": (
        ["try_around", "suppress_around"],
        lambda patch: patch.setattr(segments_of_turns, "_passes", lambda error, info: True),
    ),
    "finally runs before a continued turn's carry is read": (
        ["try_in_loop_carry"],
        lambda patch: patch.setattr("remat.source.rewrite.step_body._continues_through_finally", lambda body: False),
    ),
    "an iterator that others have is taken lazily": (
        ["rest_of_iter"],
        lambda patch: patch.setattr(turns, "items_of", _all_at_once),
    ),
    "an iterator that draws is refused": (
        ["gen_draws"],
        lambda patch: patch.setattr(Items, "has", _has_without_looking),
    ),
}


def _nothing_live(function):
    import ast

    return {id(node): set() for node in ast.walk(function) if isinstance(node, ast.For | ast.While)}


def _any_branch(flow, branches):
    flow.left = all(branch.left for branch in branches)
    flow.sure = set.union(*(branch.sure for branch in branches))


def _only_appended(part):
    import ast

    appended = outputs.appended_list(part) if isinstance(part, ast.stmt) else None
    return [appended] if appended else []


def _all_at_once(iterable, is_array):
    return Items(tuple(iterable))


def _has_without_looking(items, k):
    while items.count is None and len(items._held) <= k:
        try:
            items._held.append(next(items._rest))
        except StopIteration:
            items.count = len(items._held)
    return k < (len(items._held) if items.count is None else items.count)


def _all_pure(functions, arrays):
    return SimpleNamespace(effects=set(), foreign=set(), stored=[], asks=False)


def holds(name):
    """Whether a program still does what the corpus says."""
    try:
        if name in RIGHT:
            return agrees(RIGHT[name])
        error = refusal(REFUSED[name])
        return error is not None and [error.line] == marked_lines(REFUSED[name])
    except Exception:
        return False


@pytest.mark.parametrize("rule", RULES)
def test_some_program_needs_the_rule(rule, monkeypatch):
    names, switch_off = RULES[rule]
    assert all(map(holds, names))
    switch_off(monkeypatch)
    assert not all(map(holds, names))


# The same for what is compiled on JAX, and for what its turns hand on: with a rule off, a program is wrong or crashes.
RULES_ON_JAX = {
    "a loop that draws is not compiled": (
        "draws_of_numpy",
        lambda patch: patch.setattr(traced_turns.StateReplay, "used", False),
    ),
    "a loop that handles exceptions is not compiled": (
        "handler_in_a_helper",
        lambda patch: patch.setattr(traced_turns, "Purity", _all_pure),
    ),
    "a loop that asks for texts is not compiled": (
        "texts",
        lambda patch: patch.setattr(traced_turns, "Purity", _all_pure),
    ),
    "traced arrays that a step reaches are arguments of its segment": (
        "captured",
        lambda patch: patch.setattr(unrolled_turns.ConvertedClosure, "take_values", nothing),
    ),
    "draws are replayed when a turn ends the loop": (
        "draws_and_ends",
        lambda patch: patch.setattr(unrolled_turns.StateReplay, "rewind", nothing),
    ),
    "draws are replayed in the backward": (
        "draws_and_ends",
        lambda patch: patch.setattr(unrolled_turns.SegmentReplay, "rewound", lambda replay: nullcontext()),
    ),
    "a test that was tried is taken back": (
        "draws_in_a_test",
        lambda patch: patch.setattr(traced_turns.StateReplay, "rewind", nothing),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES_ON_JAX)
def test_some_program_on_jax_needs_the_rule(rule, monkeypatch):
    pytest.importorskip("jax")
    from tests.source import test_jax_turns

    name, switch_off = RULES_ON_JAX[rule]
    test_jax_turns.check(getattr(test_jax_turns, name))
    switch_off(monkeypatch)
    with pytest.raises((AssertionError, RematError, TypeError, KeyError, IndexError)):
        test_jax_turns.check(getattr(test_jax_turns, name))
