"""Plain `numpy` in the user's function: names that refer to the module or its functions are replaced by autograd's.

The rule: a global or closed-over name that is bound to NumPy when the function is decorated is read as autograd's
module, and as NumPy's own for what that lacks. Without boxes both compute the same. What it can miss: helpers that are
not decorated, and NumPy under another name that is bound at run time; autograd's boxes then raise a TypeError. The
cost: an attribute lookup.
"""

import ast
from functools import update_wrapper
from types import CellType, FunctionType, ModuleType
from typing import Any

__all__ = ["DifferentiableModule", "differentiable_names", "replace_names", "with_differentiable_names"]

_MODULES = {
    "numpy": "autograd.numpy",
    "numpy.linalg": "autograd.numpy.linalg",
    "numpy.fft": "autograd.numpy.fft",
    "scipy.special": "autograd.scipy.special",
    "scipy.linalg": "autograd.scipy.linalg",
    "scipy.stats": "autograd.scipy.stats",
    "scipy.signal": "autograd.scipy.signal",
}


class DifferentiableModule:
    """A module of NumPy or SciPy with autograd's functions where these exist."""

    __slots__ = ("_cache", "_module", "_traced")

    def __init__(self, module: ModuleType, traced: ModuleType) -> None:
        self._module, self._traced = module, traced
        self._cache: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = self._cache.get(name, self)
        if found is self:
            found = self._cache[name] = self._find(name)
        return found

    def _find(self, name: str) -> Any:
        plain = getattr(self._module, name)
        if isinstance(plain, ModuleType):
            return differentiable(plain)
        if isinstance(plain, type) or not callable(plain):
            return plain
        return getattr(self._traced, name, plain)

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __repr__(self) -> str:
        return repr(self._module)


def differentiable(value: Any) -> Any:
    """The replacement for a value: autograd's module or function, or the value itself."""
    from importlib import import_module

    if isinstance(value, ModuleType):
        traced = _MODULES.get(value.__name__)
        if traced is None:
            return value
        try:
            return DifferentiableModule(value, import_module(traced))
        except ImportError:
            return value
    name, home = getattr(value, "__name__", None), getattr(value, "__module__", None) or ""
    if isinstance(name, str) and callable(value) and not isinstance(value, type):
        for module, traced in _MODULES.items():
            if (home == module or home.startswith("numpy")) or type(value).__name__ == "ufunc":
                plain = _loaded(module)
                if plain is not None and getattr(plain, name, None) is value:
                    return getattr(import_module(traced), name, value)
    return value


def _loaded(module: str) -> Any:
    import sys

    return sys.modules.get(module)


def with_differentiable_names(function: FunctionType) -> FunctionType:
    """The function with autograd's names in place of NumPy's, without its source; it sees the globals of now."""
    names = function.__globals__ | {
        name: differentiable(function.__globals__[name])
        for name in function.__code__.co_names
        if name in function.__globals__
    }
    cells = tuple(_differentiable_cell(cell) for cell in function.__closure__ or ())
    new = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    new.__kwdefaults__ = function.__kwdefaults__
    update_wrapper(new, function)
    return new


def _differentiable_cell(cell: CellType) -> CellType:
    try:
        value = differentiable(cell.cell_contents)
    except ValueError:  # not bound yet
        return cell
    return cell if value is cell.cell_contents else CellType(value)


def differentiable_names(function: FunctionType, tree: ast.FunctionDef) -> dict[str, Any]:
    """The replacements for NumPy's names in a function, by name."""
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    stored |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    found: dict[str, Any] = {}
    for name in read - stored:
        value = _value_of(function, name)
        new = differentiable(value) if value is not None else None
        if new is not value:
            found[name] = new
    return found


def _value_of(function: FunctionType, name: str) -> Any:
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:  # not bound yet
            return None
    return function.__globals__.get(name)


def replace_names(tree: ast.AST, names: dict[str, str]) -> None:
    """Rename the names that a tree reads, in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            node.id = names[node.id]
