"""Random graphs with a forward and a backward, small enough to try every choice."""

import random

from remat.problem import Graph, Operation, Storage


def random_graph(seed: int, operations: int = 6, *, hard: bool = True) -> Graph:
    """Forward operations that read up to three earlier storages, and their pullbacks in reverse order.

    With `hard`, some make several storages, some cannot be run again, some write into what there is.
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
        writes = [rng.choice(made[1:])] if hard and len(made) > 1 and rng.random() < 0.1 else []
        forward.append(
            Operation(
                f"f{i}",
                float(rng.randint(1, 9)),
                inputs,
                outputs,
                writes,
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
