"""The package as a whole: its public names, what importing it costs, its tables, and the rules that its code keeps."""

import ast
import importlib
import inspect
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import FunctionType

import pytest

import remat
from remat import ops
from remat.planners import PLANNERS, Planner
from remat.planners import chain as chain_planners
from remat.planners import exhaustive as exhaustive_module
from remat.planners import graph as graph_planners
from remat.planners import loop as loop_planners

PUBLIC = {
    "plan": "Chain Loop Memory Plan Stage plan sweep",
    "loops": "checkpointed grad grad_with_checkpointing replace_loops save_points scan while_loop",
    "segments": "adaptive_checkpoint auto_checkpoint chain checkpoint drop is_recomputing largest_batch measure",
    "see": "explain profile report simulate verify",
    "the rest": "errors legacy ops testing __version__",
}

# Every name that was public before it moved into remat.ops, remat.errors, remat.legacy, remat.planners or
# remat.schedule: programs that use them run on. With them the parts of problems, which few programs name.
OLDER = """
Advance Chain CheckpointGroup CheckpointProfiler Claim Curve DeterminismError Drop Event Fetch FileError Graph
IllegalError InfeasibleError Keep Level Live Loop Memory Op Operation Option Plan Planner PlannerError ProblemError
Profile Pullback Record RematError ReportError Schedule ScheduleError Stage StepError Storage Trace Turn Verdict
__version__ adaptive_checkpoint ag_tuple binomial_checkpoint checkpoint checkpoint_segment checkpoint_segment_flex
checkpointed_loop
compute_checkpoint_positions drop estimate_checkpoint_savings get_memory_savings is_recomputing plan profile report
save_points scan should_checkpoint simulate sweep verify while_loop
"""

# Found, and not in `__all__`: `from remat import *` must not hide the builtin `range`.
UNLISTED = "CarryError SourceError range"

SOURCE = Path(remat.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def run_python(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment}).stdout


def test_public_names_are_these():
    assert remat.__all__ == " ".join(PUBLIC.values()).split()
    assert len(remat.__all__) <= 32
    assert dir(remat) == sorted(remat.__all__)
    assert all(hasattr(remat, name) for name in remat.__all__)


def test_older_names_are_found_too_and_unknown_ones_are_not():
    for name in OLDER.split():
        assert getattr(remat, name) is getattr(remat, name)
    with pytest.raises(AttributeError, match="module 'remat' has no attribute 'scam'"):
        _ = remat.scam
    with pytest.raises(ImportError, match="scam"):
        exec("from remat import scam")
    with pytest.raises(AttributeError, match=r"module 'remat\.legacy' has no attribute 'scam'"):
        _ = remat.legacy.scam


def test_threads_may_use_names_for_the_first_time_at_once():
    code = """
import remat, threading
barrier = threading.Barrier(5)
def first_use(name):
    barrier.wait()
    getattr(remat, name)
threads = [threading.Thread(target=first_use, args=(n,)) for n in ("scan", "profile", "plan", "checkpoint", "report")]
[t.start() for t in threads]; [t.join() for t in threads]
print(sum(n in vars(remat) for n in ("scan", "profile", "plan", "checkpoint", "report")))
"""
    for _ in range(3):
        assert run_python(code).strip() == "5"


def test_names_are_found_at_once_in_any_order():
    names = sorted({*OLDER.split(), *remat.__all__}, reverse=True)
    assert run_python(f"from remat import {', '.join(names)}; print(Drop.__name__, drop.__name__)").split() == [
        "Drop",
        "drop",
    ]
    assert run_python("from remat import *; print(scan.__name__, Loop(3).steps)").split() == ["scan", "3"]
    code = "import remat; print(remat.ops.Drop is remat.Drop, remat.errors.StepError is remat.StepError)"
    assert run_python(code).split() == ["True", "True"]
    code = "import remat; print(remat.legacy.ag_tuple is remat.ag_tuple, remat.testing.check_plan.__name__)"
    assert run_python(code).split() == ["True", "check_plan"]


def test_wrappers_are_modules_of_remat_by_the_name_of_their_library():
    """As attributes and in every form of import; one module, since Keras knows its layers by their module."""
    code = """
import remat
from remat.keras import RNN
import remat.keras
import remat.layers.keras
print(remat.keras is remat.layers.keras, RNN is remat.layers.keras.RNN)
from remat import keras
print(keras is remat.keras)
"""
    assert run_python(code, KERAS_BACKEND="torch").split() == ["True"] * 3
    code = "import remat.diffrax as found; import remat; print(found is remat.diffrax, found.RematAdjoint.__module__)"
    assert run_python(code).split() == ["True", "remat.layers.diffrax"]


def test_names_can_be_pickled():
    for name in ("Loop", "Plan", "Drop", "StepError", "scan", "CheckpointGroup"):
        value = getattr(remat, name)
        assert pickle.loads(pickle.dumps(value)) is value
    plan = remat.plan(remat.Loop(10), slots=3)
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_no_submodule_hides_a_public_function():
    modules = {module.name for module in pkgutil.iter_modules([str(SOURCE)])}
    functions = {name for name in {*OLDER.split(), *remat.__all__} if isinstance(getattr(remat, name), FunctionType)}
    assert {"plan", "profile", "report", "scan", "sweep"} <= functions
    assert not modules & functions


def test_type_checkers_see_the_names_that_are_found():
    [block] = [node for node in TREES[Path("__init__.py")].body if isinstance(node, ast.If) and is_type_checking(node)]
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        star = node.names[0].name == "*"
        names = importlib.import_module(node.module).__all__ if star else [alias.name for alias in node.names]
        seen |= dict.fromkeys(names, node.module)
    modules = {name for name, home in seen.items() if home == "remat"}
    assert {name: home for name, home in seen.items() if home != "remat"} == remat._HOME_OF
    assert modules <= remat._SUBMODULES
    assert seen.keys() | {"__version__"} == {*OLDER.split(), *UNLISTED.split(), *remat.__all__}


def test_importing_remat_imports_no_framework_and_little_else():
    loaded = run_python("import sys, remat; print(*sys.modules)").split()
    assert not {"torch", "jax", "tensorflow", "keras", "autograd", "rich", "hypothesis", "numpy"} & set(loaded)
    assert sum(name.partition(".")[0] == "remat" for name in loaded) <= 30


def test_a_plan_has_its_report_without_an_import(tmp_path):
    code = f"import remat; print(remat.plan(remat.Loop(4), slots=2).report({str(tmp_path / 'plan.txt')!r}))"
    assert Path(run_python(code).strip()).read_text()


def test_every_planner_file_has_its_line_in_the_registry():
    planners = set()
    for room in (loop_planners, chain_planners, graph_planners):
        for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, Planner) and value.__module__ == module.name:
                    planners.add(value)
    planners = {planner for planner in planners if not inspect.isabstract(planner)}
    planners.add(exhaustive_module.Exhaustive)
    assert planners == set(PLANNERS.values()) - {PLANNERS["auto"]}
    assert all(planner.name == name and planner.summary for name, planner in PLANNERS.items())


def test_every_op_says_how_it_is_read():
    for name in ("Advance", "Record", "Keep", "Fetch", "Drop", "Turn", "Pullback"):
        assert "is read as:" in getattr(ops, name).__doc__


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def imported(node: ast.AST) -> list[str]:
    """The modules of an import statement."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "remat"


def is_type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_no_two_modules_have_one_name():
    """Same role, same name holds of the frameworks; commands and wrappers are named as what they run and wrap."""
    names = Counter(
        path.name
        for path in TREES
        if path.name != "__init__.py" and path.parts[0] not in ("cli", "frameworks", "layers")
    )
    for framework in ("numpy", "torch", "jax"):
        names.update(f"{framework}: {path.name}" for path in TREES if path.parts[:2] == ("frameworks", framework))
        del names[f"{framework}: __init__.py"]
    assert [name for name, count in names.items() if count > 1] == []


def test_no_function_is_longer_than_50_lines():
    long = [
        f"{path}: {function.name} has {lines} lines"
        for path, tree in TREES.items()
        for function in functions(tree)
        if (lines := function.end_lineno - function.lineno + 1) > 50
    ]
    assert long == []


def test_no_file_is_longer_than_400_lines():
    assert [path.name for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


def test_no_test_file_is_longer_than_500_lines():
    tests = Path(__file__).parent.rglob("*.py")
    assert [path.name for path in tests if len(path.read_text(encoding="utf-8").splitlines()) > 500] == []


# On PyTorch second derivatives and vmap are loops again, loaded when they are asked for; so are the models of commands.
OPTIONAL = {("frameworks", "torch"), ("cli", "demo"), ("cli", "lstm")}


def test_our_own_modules_are_imported_at_the_top_of_a_file():
    inside = [
        f"{path}: {function.name} imports {module}"
        for path, tree in TREES.items()
        if path.parts[:2] not in OPTIONAL
        for function in functions(tree)
        for node in ast.walk(function)
        for module in imported(node)
        if is_ours(module)
    ]
    assert inside == []


def test_no_import_for_type_checkers_hides_a_cycle():
    hidden = [
        f"{path}: {module}"
        for path, tree in TREES.items()
        if path != Path("__init__.py") and path.parts[0] != "cli"
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and is_type_checking(block)
        for node in ast.walk(block)
        for module in imported(node)
        if is_ours(module)
    ]
    assert hidden == []


# What JAX declares to be for extensions, or does not declare at all, changes between releases: these files are where to
# look then. tests/frameworks has the like for PyTorch and autograd.
INTERNALS = ("jax.core", "jax.extend", "jax.interpreters", "jax._src")


JAX_INTERNALS = ("avals.py", "identities.py", "mutable_arrays.py", "primitives.py")


def test_internals_of_jax_are_used_in_the_files_that_say_so():
    used = [
        f"{path}: {name}"
        for path, tree in TREES.items()
        if path.parts[:2] != ("frameworks", "jax") or path.name not in JAX_INTERNALS
        for node in ast.walk(tree)
        for name in ([ast.unparse(node)] if isinstance(node, ast.Attribute) else imported(node))
        if name.startswith(INTERNALS)
    ]
    assert used == []


def test_what_is_said_of_the_package_is_said_once():
    """Version, authors and Pythons are the same in the package, its citation and the workflow that tests it."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    citation = (root / "CITATION.cff").read_text()
    assert f"version: {project['version']}" in citation
    assert all(f'name: "{author["name"]}"' in citation for author in project["authors"])
    pythons = [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r"Python :: 3\.\d+$", text)]
    assert str(pythons).replace("'", '"') in (root / ".github/workflows/test.yml").read_text()


def test_the_documentation_of_public_functions_names_each_argument():
    """A row for two arguments at once would be shown by the site as an argument that does not exist."""
    for name in remat.__all__:
        found = re.search(r"Args:\n(.*?)(\n\n|\Z)", inspect.getdoc(getattr(remat, name)) or "", re.DOTALL)
        if found is not None:
            named = {arg.lstrip("*") for arg in re.findall(r"^    (\S.*?):", found[1], re.MULTILINE)}
            hidden = {"unnamed"}  # takes what was passed by position in vain, for a better error
            assert named == {*inspect.signature(getattr(remat, name)).parameters} - hidden, name
