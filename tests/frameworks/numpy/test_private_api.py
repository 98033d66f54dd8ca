"""Names of autograd that are not declared by `autograd.extend`: each test fails by name when autograd drops one."""

import ast
import inspect
from pathlib import Path

import autograd.core
import autograd.extend
import autograd.numpy as np
import autograd.tracer
import autograd.util
import pytest
from autograd import grad, make_jvp

import remat.frameworks.numpy
from remat.frameworks.numpy.tape import ActiveTraces

TAPE = Path(remat.frameworks.numpy.__file__).parent / "tape.py"
UNDECLARED = {
    autograd.core: {"add_outgrads"},
    autograd.tracer: {"Node", "box_type_mappings", "getval", "isbox", "new_box", "trace", "trace_stack"},
    autograd.util: {"toposort"},
}


@pytest.mark.parametrize("local", ["t", "start_node"])
def test_trace_has_the_local_variables_that_active_traces_reads(local):
    code = autograd.tracer.trace.__code__
    names = code.co_varnames + code.co_cellvars + code.co_freevars
    assert local in names, f"autograd.tracer.trace has no local {local!r} any more: ActiveTraces must read another one"


def test_active_traces_finds_each_trace_with_its_root():
    seen = []

    def inner(y):
        seen.append((ActiveTraces(), y))
        return y * y

    grad(lambda x: grad(inner)(x * 2.0))(3.0)
    (live, box) = seen[0]
    assert len(live._roots) == 2
    assert live._roots[box._trace] is box._node
    assert live.accepts(box)


def test_active_traces_do_not_accept_a_box_of_a_trace_that_has_ended():
    boxes, answers = [], []
    grad(lambda x: boxes.append(x) or x * x)(1.0)
    grad(lambda x: answers.append((ActiveTraces().accepts(x), ActiveTraces().accepts(boxes[0]))) or x * x)(1.0)
    assert answers == [(True, False)]
    assert not ActiveTraces()


def test_active_traces_accept_boxes_of_forward_mode():
    answers = []
    make_jvp(lambda x: answers.append(ActiveTraces().accepts(x)) or np.sin(x))(1.0)(1.0)
    assert answers == [True]


def test_boxes_and_nodes_have_the_attributes_that_tapes_read():
    seen = []
    grad(lambda x: seen.append(x * x) or seen[0])(2.0)
    (box,) = seen
    for name in ("_trace", "_node", "_value"):
        assert hasattr(box, name), f"a box of autograd has no {name!r} any more"
    for name in ("parents", "vjp"):
        assert hasattr(box._node, name), f"a VJPNode of autograd has no {name!r} any more"
    assert isinstance(autograd.tracer.trace_stack.top, int)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in UNDECLARED.items() for name in sorted(names)]
)
def test_undeclared_names_exist(module, name):
    assert hasattr(module, name), f"{module.__name__} has no {name!r} any more"


def test_declared_names_are_imported_from_the_extension_api():
    declared = {name for name, _ in inspect.getmembers(autograd.extend) if not name.startswith("_")}
    undeclared = {module.__name__: names for module, names in UNDECLARED.items()}
    for path in TAPE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in undeclared:
                names = {alias.name for alias in node.names}
                assert not names & declared, f"{path.name}: import {names & declared} from autograd.extend"
                untested = names - undeclared[node.module]
                assert not untested, f"{path.name}: {untested} is private in autograd and has no test here"
                assert path == TAPE or names <= {"getval", "isbox"}, f"{path.name}: {names} belong into tape.py"
