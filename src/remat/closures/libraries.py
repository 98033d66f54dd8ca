"""Libraries: which modules are the user's own, so that what they have in globals is captured and replayed.

The rule. Python, the frameworks and what is installed are libraries. Installed, but the user's, are packages that came
from a folder of sources, as with `pip install .` (PEP 610), and those of functions and modules that were given to remat
(`add_users_package`), but for a list of libraries whose layers and solvers are given to it as they are.

What it can miss: a package that was installed by name, of which nothing was given to remat so far. The cost: nothing
for a module that was asked for before; some milliseconds for the first one that is installed.
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
    """Note that the package of a function, or of a callable object's class, is the user's, wherever it is installed."""
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


_users_packages: set[str] = set()  # their names, of those that are installed


@lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """Whether a module is a library's or built in: then its functions and classes capture no arrays of the user's."""
    package = module.partition(".")[0]
    if package in _FRAMEWORKS:  # by name: builtins have no file, and a development install is not in site-packages
        return True
    if module == "__main__" or package in _users_packages:  # under a profiler the main module's file is the profiler's
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    for name in ("site-packages", "dist-packages"):
        folder, found, _ = file.rpartition(name)
        if found:
            return package in _COMPANIONS or package not in _installed_from_folders(folder + name)
    return bool(file) and file.startswith(_STANDARD)


@lru_cache(maxsize=4096)
def is_always_library(module: str) -> bool:
    """Whether a module is of a library that cannot become the user's: of Python, a framework, or one made for it."""
    return is_library(module) and (is_foundation(module) or module.partition(".")[0] in _COMPANIONS)


@lru_cache(maxsize=4096)
def is_foundation(module: str) -> bool:
    """Whether a module belongs to Python itself, or to a framework: objects of its classes have no state of users."""
    return module.partition(".")[0] in sys.stdlib_module_names.union(_FRAMEWORKS)


@cache
def _installed_from_folders(site: str) -> frozenset[str]:
    """The packages in a folder of installed ones that came from a folder of sources; installers write that down."""
    packages: set[str] = set()
    for origin in Path(site).glob("*.dist-info/direct_url.json"):
        try:
            if "dir_info" in json.loads(origin.read_text()):
                lines = origin.with_name("RECORD").read_text().splitlines()
                packages.update(line.split(",")[0].split("/")[0].removesuffix(".py") for line in lines)
        except (OSError, ValueError):  # not as an installer leaves it
            continue
    return frozenset(packages)


_FRAMEWORKS = ("builtins", "autograd", "jax", "jaxlib", "numpy", "remat", "torch")
# Libraries whose layers, solvers and base classes users give to remat as they are. They keep no state of the user's in
# globals, and it would take time to search them in every call; one that is not here is searched as the user's code is.
_NAMES = """
accelerate apex bitsandbytes deepspeed diffrax diffusers e3nn einops equinox fairscale fastai flash_attn flax
functorch haiku keras lightning lightning_fabric lineax mamba_ssm monai optax optimistix peft pytorch_lightning scipy
sentence_transformers sklearn snntorch timm torch_geometric torchao torchaudio torchdiffeq torchmetrics torchrec
torchsde torchvision transformer_engine transformers triton xformers
"""
_COMPANIONS = frozenset(_NAMES.split())
_STANDARD = sysconfig.get_paths()["stdlib"]  # the folder of the standard library
