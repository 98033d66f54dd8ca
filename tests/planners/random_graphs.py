"""Random graphs with a forward and a backward, small enough to try every choice."""

import random

from remat.problem import Graph, Operation, Storage


def random_graph(seed: int, operations: int = 6, *, hard: bool = True, writes: bool = True) -> Graph:
    """Forward operations that read up to three earlier storages, and their pullbacks in reverse order.

    With `hard`, some make several storages, some cannot be run again and, with `writes`, some write in place.
    """
    rng = random.Random(seed)
    storages, made, forward = [Storage(rng.randint(1, 9), "input")], [0], []
    for i in range(operations):
        inputs = rng.sample(made, min(len(made), rng.randint(1, 3)))
        if made[-1] not in inputs and rng.random() < 0.7:
            inputs[0] = made[-1]
        outputs = []
        for _ in range(1 + (hard and rng.random() < 0.25)):
            outputs.append(len(storages))
            storages.append(Storage(rng.randint(1, 9), f"x{i}"))
        written = [rng.choice(made[1:])] if hard and writes and len(made) > 1 and rng.random() < 0.1 else []
        forward.append(
            Operation(
                f"f{i}",
                float(rng.randint(1, 9)),
                inputs,
                outputs,
                written,
                repeatable=not hard or rng.random() < 0.85,
                workspace=rng.choice([0, 0, 3]) if hard else 0,
            )
        )
        made += outputs
    backward, results = _pullbacks(rng, forward, storages)
    return Graph([*forward, *backward], storages, [made[-1], *results])


def _pullbacks(
    rng: random.Random, forward: list[Operation], storages: list[Storage]
) -> tuple[list[Operation], list[int]]:
    """For each operation its pullback: reads the last cotangent and some of what it read and made."""
    storages.append(Storage(storages[-1].bytes, "cotangent"))
    cotangent = len(storages) - 1
    backward = [Operation("start", 0.0, [], [cotangent], backward=True)]
    for each in reversed(forward):
        saved = [s for s in (*each.inputs, *each.outputs) if rng.random() < 0.6]
        storages.append(Storage(rng.randint(1, 9), f"d{each.name}"))
        backward.append(Operation(f"b{each.name}", 2.0, [cotangent, *saved], [len(storages) - 1], backward=True))
        cotangent = len(storages) - 1
    return backward, [cotangent]


def unit_chain(layers: int) -> Graph:
    """A chain of equal layers and a loss; each pullback reads its layer's output. All takes one second and one byte."""
    operations = [Operation(f"f{i}", 1.0, [i - 1] if i else [], [i]) for i in range(layers)]
    operations.append(Operation("loss", 1.0, [layers - 1], [layers]))
    for number, layer in enumerate(reversed(range(layers)), layers + 1):
        operations.append(Operation(f"b{layer}", 1.0, [number - 1, layer], [number], backward=True))
    return Graph(operations, [Storage(1)] * (2 * layers + 1), [2 * layers])


class _Tape:
    """Builds a graph: each forward operation puts its pullback on a list, which is played in reverse."""

    def __init__(self) -> None:
        self.forward: list[Operation] = []
        self.storages: list[Storage] = []
        self.pullbacks: list[tuple[str, float, list[int], list[int], list[int]]] = []

    def make(self, size: int, name: str = "") -> int:
        self.storages.append(Storage(size, name))
        return len(self.storages) - 1

    def run(self, name: str, seconds: float, inputs: list[int], sizes: list[int], saved: str) -> list[int]:
        """An operation whose pullback needs its inputs ("in"), its outputs ("out"), statistics ("stat") or nothing."""
        outputs = [self.make(size, name) for size in sizes]
        self.forward.append(Operation(name, seconds, inputs, outputs))
        kept = inputs * ("in" in saved) + outputs[1:] * ("stat" in saved)
        self.pullbacks.append((name, 2 * seconds, inputs, outputs[:1], kept))
        return outputs

    def graph(self) -> Graph:
        result = self.forward[-1].outputs[0]
        cotangent = {result: self.make(self.storages[result].bytes, "cotangent")}
        operations = [*self.forward, Operation("cotangent", 0.0, [], [cotangent[result]], backward=True)]
        for name, seconds, inputs, outputs, saved in reversed(self.pullbacks):
            made = []
            for storage in inputs:
                if storage in cotangent:
                    made.append(self.make(self.storages[storage].bytes, f"sum of d {name}"))
                    read = cotangent[storage]
                else:
                    made.append(self.make(self.storages[storage].bytes, f"d {name}"))
                    read = None
                reads = [cotangent[outputs[0]], *saved, *([] if read is None else [read])]
                operations.append(Operation(f"{name} <-", seconds / len(inputs), reads, [made[-1]], backward=True))
                cotangent[storage] = made[-1]
        return Graph(operations, self.storages, [result])


def unet(depth: int, channels: int = 8, side: int = 64) -> Graph:
    """A U-Net: two convolutions with norm and activation a level, and skips from each level down to its way up."""
    tape = _Tape()

    def block(x: int, before: int, after: int, size: int) -> int:
        for wide in (before, after):
            [x] = tape.run("convolution", size * wide * 9 / 4e5, [x], [size * after], "in")
            x, *_ = tape.run("group_norm", size / 2e4, [x], [size * after, 64, 64], "in stat")
            [x] = tape.run("silu", size / 4e4, [x], [size * after], "in")
        return x

    widths = [channels * 2**level for level in range(depth)]
    size, before, skips = side * side, 4, []
    [x] = tape.run("embed", 0.01, [], [size * before], "")
    for wide in widths:
        x = block(x, before, wide, size)
        skips.append((x, wide, size))
        size, before = size // 4, wide
        [x] = tape.run("avg_pool", 0.01, [x], [size * wide], "")
    x = block(x, before, before, size)
    for skip, wide, size in reversed(skips):
        [x] = tape.run("upsample", 0.01, [x], [size * before], "")
        [x] = tape.run("cat", 0.01, [x, skip], [size * (before + wide)], "")
        x, before = block(x, before + wide, wide, size), wide
    tape.run("loss", 0.01, [x], [4], "in")
    return tape.graph()
