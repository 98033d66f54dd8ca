"""A checkpointed module, such as one of equinox: recomputed in the backward.

It is a pytree like the module itself, so that gradients flow to its parameters.
"""

from typing import Any

from jax.tree_util import GetAttrKey, register_pytree_with_keys_class

from remat.frameworks.jax.checkpoint import checkpoint
from remat.profiling.profiler import recorded_call
from remat.pytree import PyTree
from remat.segments import CheckpointOptions

__all__ = ["CheckpointedModule", "checkpoint_module"]


@register_pytree_with_keys_class
class CheckpointedModule:
    """A callable pytree with the attributes of the module; each of its calls is a segment."""

    def __init__(self, module: Any, options: CheckpointOptions) -> None:
        # Not by assignment, which goes to the module.
        self.__dict__["_module"], self.__dict__["_options"] = module, options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns; its residuals are recomputed in the backward."""
        with recorded_call("drop", type(self._module).__call__) as call:
            return checkpoint(self._module, args, kwargs, self._options, call)

    def tree_flatten_with_keys(self) -> tuple[Any, CheckpointOptions]:
        """The module is the only child."""
        return ((GetAttrKey("_module"), self._module),), self._options

    @classmethod
    def tree_unflatten(cls, options: CheckpointOptions, children: PyTree) -> "CheckpointedModule":
        """The same with another module."""
        return cls(children[0], options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_module" not in self.__dict__:  # such as __deepcopy__; or while it is copied
            raise AttributeError(name)
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: PyTree) -> None:
        setattr(self._module, name, value)  # modules of equinox refuse

    def __getitem__(self, key: Any) -> Any:
        return self._module[key]

    def __repr__(self) -> str:
        return f"drop({self._module!r})"


def checkpoint_module(module: Any, options: CheckpointOptions) -> CheckpointedModule:
    """The module, recomputed in the backward."""
    return CheckpointedModule(module, options)
