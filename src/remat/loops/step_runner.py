"""The step runner: runs the user's step on plain values and checks its results.

In: carries and the inputs `xs`. Out: carries, and the outputs `ys`, each written once, in the first sweep, into arrays
allocated for all steps. The functions on leaves are the framework's (`LeafOps`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from remat.errors import CarryError, StepError
from remat.execute.recomputation import is_recomputing, recomputing
from remat.execute.stop import STOP, Stopped
from remat.loops.common_mistakes import LIST_OF_STEPS
from remat.loops.leaf_spec import LeafOps
from remat.loops.stacked_values import Inputs, Outputs
from remat.loops.structure_check import flatten_checked, never_matches, structure_check
from remat.pytree import Leaf, PyTree, TreeDef, flatten

__all__ = ["StepRunner", "unpack_output"]


class StepRunner:
    """Runs the steps of one loop on plain values, checks what they return, and writes each output once.

    `carry` and `specs` are the structure and the leaf specs of the initial carry. `protect` turns a carry into what the
    step is given, such as read-only views. `names` are the user's names of the items of the carry, if there are any.
    """

    def __init__(
        self,
        leaf_ops: LeafOps,
        carry: TreeDef,
        specs: Sequence[Any],
        inputs: Inputs,
        outputs: Outputs,
        protect: Callable[[PyTree], PyTree] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.protect = protect
        self.leaf_ops, self.tree, self.specs, self.inputs, self.outputs = leaf_ops, carry, list(specs), inputs, outputs
        self.names = [_user_name(path, names) for path in carry.paths("carry")]
        self.outputs_written = 0  # steps whose outputs are written; if one of these runs, it is recomputed
        self.current_step = 0  # for error messages
        self.last_output: Any = None  # what the last step returned as y
        self.matches: Callable[[Any], bool] = never_matches  # a predicate for carries, from the first returned one on

    def run(self, step: Callable[[Any, Any], Any], carry: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        # The inner loop of NumPy and PyTorch programs: attributes are read once, and common results checked inline.
        row, write, matches, protect, y = (
            self.inputs.row,
            self.outputs.write,
            self.matches,
            self.protect,
            self.last_output,
        )
        with recomputing(self.outputs_written > start):
            for i in range(start, stop):
                self.current_step = i
                try:
                    out = step(carry if protect is None else protect(carry), row(i))
                except Exception as error:
                    self.add_note(error, carry)
                    raise
                if type(out) is tuple and len(out) == 2:
                    carry, y = out
                else:
                    carry, y = unpack_output(self.leaf_ops, out, i)
                if not matches(carry):
                    for leaf, name in zip(self.check_carry(carry, i, y), self.names, strict=True):
                        self.leaf_ops.reject_tracer(leaf, name)
                    matches = self.matches
                if i >= self.outputs_written:
                    write(i, y)
                    self.outputs_written = i + 1
        self.last_output = y
        return carry

    def begin(self, i: int) -> PyTree:
        """Begin step i, which errors name from now on; return its input."""
        self.current_step = i
        return self.inputs.row(i)

    def begin_with_leaves(self, i: int) -> list[Leaf]:
        """Begin step i; return the leaves of its input."""
        self.current_step = i
        return [leaf[i] for leaf in self.inputs.leaves]

    def write_output(self, i: int, y: PyTree) -> bool:
        """Note the output of step i as the last one, and write it in the first sweep; return whether it was written."""
        self.last_output = y
        if i < self.outputs_written:
            return False
        self.outputs.write(i, y)
        self.outputs_written = i + 1
        return True

    def check_carry(self, carry: Any, i: int, y: Any = None) -> list[Any]:
        """The leaves of the carry that step i returned, or a StepError if its structure or specs differ.

        Every carry that is not an exact match comes here, so STOP, which ends the loop, is noticed here.
        """
        if carry is STOP:
            raise Stopped(i)
        try:
            leaves, specs = flatten_checked(self.leaf_ops, self.tree, self.specs, self.names, carry, "carry", i)
        except CarryError as error:
            raise self._explained(error, carry, y) from error.__cause__
        if specs is not self.specs or self.matches is never_matches:
            self.specs, self.matches = specs, structure_check(self.leaf_ops, self.tree, specs)
        return leaves

    def _explained(self, error: CarryError, carry: Any, y: Any) -> CarryError:
        """The error for a carry that does not fit, with a hint if the output of the step would fit."""
        try:
            for leaf in flatten(carry)[0]:  # what could not be an output either was not meant as one
                self.leaf_ops.spec_of(leaf, "y")
            flatten_checked(self.leaf_ops, self.tree, self.specs, self.names, y, "carry", error.step)
        except StepError:
            return error
        how = "The second value that the step returned has them: return (carry, y), not (y, carry)"
        return CarryError(f"{error}. {how}", error.step, error.leaf)

    def observed(self, carry: Any) -> list[Any]:
        """The leaves whose fingerprints are compared: those of a carry, and of the last output if all are kept."""
        return [*self.tree.flatten_like(carry, "carry"), *self.observed_outputs()]

    def observed_outputs(self) -> list[Leaf]:
        """The leaves of the last output, if all outputs are kept."""
        if self.outputs.tree is None or self.outputs.rows is not None:
            return []
        return self.outputs.tree.flatten_like(self.last_output, "y")

    def add_note(self, error: Exception, carry: Any) -> None:
        """Add the step and the specs of its arguments to an error that the user's step raised."""
        try:
            specs = [
                f"{name} {self.leaf_ops.spec_of(leaf, name)}"
                for value, tree, root in (
                    (carry, self.tree, "carry"),
                    (self.inputs.row(self.current_step), self.inputs.tree, "x"),
                )
                for leaf, name in zip(
                    tree.flatten_like(value, root, self.leaf_ops.unpack), tree.paths(root), strict=True
                )
            ]
        except Exception:  # an error in describing the user's error must not hide it
            specs = []
        shown = ", ".join(specs[:8]) + (f" and {len(specs) - 8} more" if len(specs) > 8 else "")
        note = f"in step {self.current_step} of a loop that remat runs, step(carry, x) with {shown or 'no arrays'}"
        if is_recomputing():
            note += "; the step had run before, and was recomputed for the gradient"
        if self.inputs.tree.node_type in (list, tuple) and self.current_step == 0:
            note += f"; x is a {self.inputs.tree.describe()[2:]}, as xs is: {LIST_OF_STEPS}"
        error.add_note(note)


def unpack_output(leaf_ops: LeafOps, out: Any, i: int) -> tuple[Any, Any]:
    """The result of step i as (carry, y), or a StepError that says what it is instead."""
    out = leaf_ops.unpack(out)
    if type(out) in (tuple, list) and len(out) == 2:
        return out[0], out[1]
    what = "None" if out is None else "one array" if hasattr(out, "shape") else f"a {type(out).__name__}"
    what += f" of {len(out)}" if isinstance(out, tuple | list) else ""
    raise StepError(
        f"the step must return (carry, y), and step {i} returned {what}; without an output return (carry, None)"
    )


def _user_name(path: str, names: Sequence[str]) -> str:
    """The path of a leaf in messages: `carry[1]['h']` is `mode['h']` where the second item of the carry is `mode`."""
    if len(names) == 1 and not path.startswith("carry[0]"):
        return names[0] + path.removeprefix("carry")
    place, end, rest = path.removeprefix("carry[").partition("]")
    return f"{names[int(place)]}{rest}" if end and place.isdigit() and int(place) < len(names) else path
