"""Operations of a graph and the storages between them, as plain values."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from remat.errors import ProblemError
from remat.units import to_bytes, to_count, to_seconds

__all__ = ["Operation", "Storage"]


@dataclass(frozen=True, init=False)
class Storage:
    """Memory that tensors are views of: its bytes, and a name for display.

    >>> Storage("3 MiB", "qkv").bytes
    3145728
    """

    bytes: int
    name: str

    def __init__(self, bytes: int | str = 1, name: str = "") -> None:
        object.__setattr__(self, "bytes", to_bytes(bytes, "bytes of a storage"))
        object.__setattr__(self, "name", str(name))

    def to_dict(self) -> dict[str, Any]:
        """The storage as plain data."""
        return {"bytes": self.bytes, "name": self.name}


@dataclass(frozen=True, init=False)
class Operation:
    """One operation: its time, and the storages that it reads (`inputs`), makes (`outputs`) and changes (`writes`).

    Storages are given as indices into the graph's `storages`. `backward` operations run once, in order. A forward
    operation that is `repeatable` may be recomputed during the backward; random operations, and those that must not run
    twice, are not repeatable. `workspace` is the bytes that it holds only while it runs. `module` ("blocks.3.mlp") and
    `source` ("model.py:41") say where it comes from. `unpacks` lists the saved tensors that a backward operation of a
    traced step unpacks, numbered in the order in which the forward saved them: only there anything can be recomputed.

    >>> Operation("gelu", "2 ms", inputs=[4], outputs=[5], module="blocks.0.mlp", source="model.py:41").seconds
    0.002
    """

    name: str
    seconds: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    writes: tuple[int, ...]
    backward: bool
    repeatable: bool
    workspace: int
    module: str
    source: str
    unpacks: tuple[int, ...]

    def __init__(
        self,
        name: str = "",
        seconds: float | str = 1.0,
        inputs: Iterable[int] = (),
        outputs: Iterable[int] = (),
        writes: Iterable[int] = (),
        *,
        backward: bool = False,
        repeatable: bool = True,
        workspace: int | str = 0,
        module: str = "",
        source: str = "",
        unpacks: Iterable[int] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "name", str(name))
        put(self, "seconds", to_seconds(seconds, "seconds"))
        for item, storages in (("inputs", inputs), ("outputs", outputs), ("writes", writes)):
            numbers = tuple(to_count(storage, f"a storage in {item}") for storage in storages)
            put(self, item, tuple(dict.fromkeys(numbers)))
        for item, value in (("backward", backward), ("repeatable", repeatable)):
            if not isinstance(value, bool):
                raise ProblemError(f"{item} must be True or False, not {value!r}")
            put(self, item, value)
        put(self, "workspace", to_bytes(workspace, "workspace"))
        put(self, "module", str(module))
        put(self, "source", str(source))
        put(self, "unpacks", tuple(to_count(number, "a saved tensor in unpacks") for number in unpacks))

    @property
    def where(self) -> str:
        """The name of the operation and where it comes from, as text."""
        places = ", ".join(filter(None, (self.module, self.source)))
        return f"{self.name or 'an operation'}{f' ({places})' * bool(places)}"

    @property
    def reads(self) -> tuple[int, ...]:
        """The storages whose contents it needs: its inputs and those it writes into."""
        return tuple(dict.fromkeys((*self.inputs, *self.writes)))

    def to_dict(self) -> dict[str, Any]:
        """The operation as plain data."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**data, **{name: list(data[name]) for name in ("inputs", "outputs", "writes", "unpacks")}}
