"""Which modules are libraries and which are the user's own: only the user's globals are captured and replayed.

The rule: Python, the frameworks and installed packages are libraries. An installed package is the user's nevertheless
if it was installed from a source folder, as by `pip install .` (PEP 610), or if one of its functions or modules was
passed to remat (`add_users_package`), except for a list of libraries whose layers and solvers are commonly passed.

What it can miss: a package that was installed by name and of which nothing was passed to remat so far. The cost: some
milliseconds for the first installed module; answers are cached.
"""

import json
import sys
import sysconfig
from functools import cache, lru_cache, partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

__all__ = ["add_users_package", "is_always_library", "is_foundation", "is_library"]


def add_users_package(function: Any) -> None:
    """Note that the package of a function, or of a callable object's class, is the user's, even if it is installed."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, MethodType):
        add_users_package(function.__self__)
        function = function.__func__
    if isinstance(function, FunctionType):
        _add(function.__module__ or "")
        return
    cls = function if isinstance(function, type) else type(function)
    if not is_always_library(cls.__module__):
        for base in cls.__mro__:
            _add(base.__module__)


def _add(module: str) -> None:
    if is_library(module) and not is_always_library(module):
        _users_packages.add(module.partition(".")[0])
        is_library.cache_clear()


_users_packages: set[str] = set()  # names of installed packages that are the user's


@lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """Whether a module is built in or a library's, so that its functions and classes capture no user arrays."""
    package = module.partition(".")[0]
    if package in _FRAMEWORKS:  # by name: builtins have no file, and a development install is not in site-packages
        return True
    if module == "__main__" or package in _users_packages:  # by name: a profiler may replace the main module's file
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    for name in ("site-packages", "dist-packages"):
        folder, found, _ = file.rpartition(name)
        if found:
            return package in _COMPANIONS or package not in _installed_from_folders(folder + name)
    return bool(file) and file.startswith(_STANDARD)


@lru_cache(maxsize=4096)
def is_always_library(module: str) -> bool:
    """Whether a module can never become the user's: it belongs to Python, a framework, or a library made for one."""
    return is_library(module) and (is_foundation(module) or module.partition(".")[0] in _COMPANIONS)


@lru_cache(maxsize=4096)
def is_foundation(module: str) -> bool:
    """Whether a module belongs to Python or a framework, so that objects of its classes hold no user state."""
    return module.partition(".")[0] in sys.stdlib_module_names.union(_FRAMEWORKS)


@cache
def _installed_from_folders(site: str) -> frozenset[str]:
    """The packages in a site-packages folder that were installed from a source folder, as installers record it."""
    packages: set[str] = set()
    for origin in Path(site).glob("*.dist-info/direct_url.json"):
        try:
            if "dir_info" in json.loads(origin.read_text()):
                lines = origin.with_name("RECORD").read_text().splitlines()
                packages.update(line.split(",")[0].split("/")[0].removesuffix(".py") for line in lines)
        except (OSError, ValueError):  # not written by an installer
            continue
    return frozenset(packages)


_FRAMEWORKS = ("builtins", "autograd", "jax", "jaxlib", "numpy", "remat", "torch")
# Libraries whose layers, solvers and base classes users pass to remat directly. They keep no user state in globals, and
# searching them in every call would take time; a library that is not listed here is searched like the user's code.
_NAMES = """
accelerate apex bitsandbytes deepspeed diffrax diffusers e3nn einops equinox fairscale fastai flash_attn flax
functorch haiku keras lightning lightning_fabric lineax mamba_ssm monai optax optimistix peft pytorch_lightning scipy
sentence_transformers sklearn snntorch timm torch_geometric torchao torchaudio torchdiffeq torchmetrics torchrec
torchsde torchvision transformer_engine transformers triton xformers
"""
_COMPANIONS = frozenset(_NAMES.split())
_STANDARD = sysconfig.get_paths()["stdlib"]  # the folder of the standard library
