"""Plain loops and calls with the signatures of remat's, to run a program without it."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tests.random_programs.tree import leaves, mapped


@dataclass(frozen=True)
class Plain:
    """What programs call `remat` when they are run plainly. `stack` puts the rows of one output leaf together."""

    stack: Callable[[Sequence[Any]], Any]
    noise: float = 0.0  # the relative change of all parameters, to find out what a program makes of rounding

    def scan(self, step: Any, init: Any, xs: Any = None, *, length: int | None = None, **_: Any) -> Any:
        steps = length if length is not None else len(leaves(xs)[0])
        carry, ys = init, []
        for index in range(steps):
            carry, y = step(carry, mapped(lambda leaf, i=index: leaf[i], xs))
            ys.append(y)
        return carry, mapped(lambda *rows: self.stack(rows), *ys)

    @staticmethod
    def profile() -> Any:
        return nullcontext()

    @staticmethod
    def while_loop(cond: Any, body: Any, init: Any, *, max_steps: int | None = None, **_: Any) -> Any:
        carry, steps = init, 0
        while steps != max_steps and cond(carry):
            carry, steps = body(carry), steps + 1
        return carry

    @staticmethod
    def checkpoint(fn: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    @staticmethod
    def adaptive_checkpoint(fn: Any, *args: Any, threshold: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    @staticmethod
    def checkpointed(**_: Any) -> Any:
        return lambda fn: fn

    @staticmethod
    def range(length: int, **_: Any) -> Any:
        return range(length)

    @staticmethod
    def drop(fn: Any, **_: Any) -> Any:
        return fn
