"""Gradients of long loops in JAX: lax.scan, nested jax.checkpoint, equinox, diffrax, and remat at budgets.

    python benchmarks/jax_loops.py                                the CPU's cases, under 3 minutes on two cores
    python benchmarks/jax_loops.py --device gpu                   the GPU's cases
    python benchmarks/jax_loops.py --only ode                     or lstm, compile, long
    python benchmarks/jax_loops.py --only lstm --steps 4000 --hidden 256 --batch 32 --slots 20

All in one process, each way compiled ahead, then run one after the other and several times round; `time` is the median
of ratios to the first way of the same round. `trace s` is until StableHLO (planning included), whose text is `HLO
bytes`, `compile s` what XLA takes; `temp MiB` is XLA's memory_analysis: all but arguments and results. `evals` are
evaluations of the step (of the field, for an ODE), counted in a run of their own with a callback. `error` is the
largest relative difference of value and gradients to the first way's. Gradients are those of weights and initial state,
not of the inputs. Equinox and diffrax are left out where they are not installed; copies of them, of what they need and
of the dist-info folders on PYTHONPATH will do.
"""

import argparse
import os
import platform

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")

import jax
from jax_loops_table import MIB, Compiled, Table, ignore, reason, target
from jax_loops_ways import (
    AdaptiveOde,
    Lstm,
    Ode,
    SavedOde,
    adjoints,
    by_equinox,
    by_remat,
    by_while_loop,
    diffrax,
    equinox,
    nested,
    plain,
    while_remat,
)

from remat.units import bytes_text, to_bytes

MODULES = {"jax": jax, "equinox": equinox, "diffrax": diffrax}
PLAIN, NESTED = "lax.scan", "√n nested jax.checkpoint"


def rows(slots, budgets=()):
    """The ways for one number of slots, and remat at further budgets."""
    ways = {PLAIN: plain, NESTED: nested}
    ways[f"equinox, {slots} slots"] = by_equinox(slots)
    ways[f"remat, {slots} slots"] = by_remat(slots=slots)
    for budget in budgets:
        ways[remat_row(budget)] = by_remat(**budget)
    return ways


def remat_row(budget):
    if "slots" in budget:
        return f"remat, {budget['slots']} slots"
    return f"remat, {bytes_text(to_bytes(budget['memory'], 'memory'))}"


def lstm_on_cpu(rounds, counted):
    table = Table(Lstm(10_000, 64, 8), rows(31, [{"slots": 100}, {"memory": "1 MiB"}]))
    table.measure(rounds, counted).show()
    compare(table, "remat, 31 slots", PLAIN, 1.3)
    compare(table, "equinox, 31 slots", "remat, 31 slots", 1.5, least=True)
    target("temporaries of remat, 31 slots, over lax.scan's", table.share("remat, 31 slots", PLAIN), 1 / 200)
    inside(table, "1 MiB")
    table = Table(Lstm(1000, 128, 16), rows(10, [{"slots": 31}, {"memory": "4 MiB"}]))
    table.measure(rounds + 2, counted).show()
    compare(table, "remat, 10 slots", PLAIN, 1.4)
    compare(table, "equinox, 10 slots", "remat, 10 slots", 1.4, least=True)
    inside(table, "4 MiB")


def lstm_on_gpu(rounds, counted):
    table = Table(Lstm(1000, 512, 64), rows(31, [{"memory": "64 MiB"}, {"memory": "32 MiB"}, {"memory": "11 MiB"}]))
    table.measure(rounds + 2, counted).show()
    inside(table, "64 MiB")
    compare(table, "remat, 64 MiB", NESTED, 1.0)
    inside(table, "32 MiB")
    inside(table, "11.5 MiB", "remat, 31 slots")
    compare(table, "equinox, 31 slots", "remat, 31 slots", 2.0, least=True)
    model = Lstm(10_000, 512, 64)
    shapes = jax.eval_shape(model.arguments)
    one_percent = Compiled(model.function(plain, ignore), shapes).temporaries // 100
    table = Table(model, rows(31, [{"memory": one_percent}]))
    table.measure(min(rounds, 3), counted).show()
    row = remat_row({"memory": one_percent})
    target(f"temporaries of {row}, over lax.scan's", table.share(row, PLAIN), 0.01)
    compare(table, row, PLAIN, 1.4)


def long(model, memory):
    """More steps than a plain scan has memory for."""
    row = remat_row({"memory": memory})
    inside(Table(model, {row: by_remat(memory=memory)}).measure(1, counted=0).show(), memory)
    wanted = "unknown"
    try:
        compiled = Compiled(model.function(plain, ignore), jax.eval_shape(model.arguments))
        wanted = f"{compiled.temporaries / MIB:.0f} MiB"
        if jax.default_backend() == "cpu" and compiled.temporaries > host_memory() // 2:
            print(f"  {PLAIN}: wants {wanted} of temporaries, and was not run")
            return
        arguments = model.arguments()
        compiled.seconds(arguments)
        seconds = compiled.seconds(arguments)
    except Exception as error:  # out of memory, as it should be
        print(f"  {PLAIN}: temporaries of {wanted}; {reason(error)}")
    else:
        print(f"  {PLAIN}: {1e6 * seconds / model.steps:.2f} us a step, {wanted} of temporaries")


def ode(steps, slots, rounds, counted):
    ways = {PLAIN: Ode.on_grid(plain)}
    ways |= {name: Ode.by_adjoint(adjoint) for name, adjoint in adjoints(slots).items()}
    equinox = by_equinox(slots)
    ways[f"equinox while_loop, {slots} slots"] = equinox and Ode.on_grid(equinox)
    ways[f"remat.while_loop, {slots} slots"] = Ode.on_grid(by_while_loop(while_remat(slots)))
    ways[f"remat.scan, {slots} slots"] = Ode.on_grid(by_remat(slots=slots))
    Table(Ode(steps), ways).measure(rounds, counted).show()
    if diffrax is None:
        return
    for model in (AdaptiveOde, SavedOde):
        ways = {name: model.by_adjoint(adjoint) for name, adjoint in adjoints(slots).items()}
        if model is AdaptiveOde:
            ways[f"remat.while_loop, {slots} slots"] = model.in_loop(while_remat(slots))
        table = Table(model(), ways).measure(rounds, counted).show()
        theirs, ours = list(ways)[:2]
        target(f"temporaries of {ours}, over those of {theirs}", table.share(ours, theirs), 1.0)
        compare(table, ours, theirs, 1.0)


def compiling(slots, rounds, lengths=(100, 1000, 10_000, 100_000)):
    """Seconds and bytes by number of steps."""
    print("\nLSTM, hidden 16, batch 4, only compiled, by number of steps: seconds to trace, at first,")
    print(f"seconds to compile, the least of {rounds}, and bytes of HLO")
    print(f"{'':34}" + "".join(f"{f'n = {steps}':>24}" for steps in lengths))
    for name, way in rows(slots).items():
        if way is None:
            print(f"{name:34}   not installed")
            continue
        try:
            found = compile_times([Lstm(steps, 16, 4) for steps in lengths], way, rounds)
        except Exception as error:  # a row that says why, among rows with figures
            print(f"{name:34}   {reason(error)}")
            continue
        print(f"{name:34}" + "".join(f"{trace:>8.2f}{seconds:>7.2f}{text:>9}" for trace, seconds, text in found))
        if name.startswith("remat"):
            _, seconds, texts = zip(*found, strict=True)
            target("largest over smallest seconds to compile", max(seconds) / min(seconds), 1.5)
            target("largest over smallest bytes of HLO", max(texts) / min(texts), 1.05)


def compile_times(models, way, rounds):
    """Seconds to trace and to compile, and bytes of HLO of each model, by turns: a busy machine hits all of them."""
    shapes = [jax.eval_shape(model.arguments) for model in models]
    found = [
        [Compiled(model.function(way, ignore), shape) for model, shape in zip(models, shapes, strict=True)]
        for _ in range(rounds)
    ]
    return [(one[0].trace, min(each.compile for each in one), one[0].text) for one in zip(*found, strict=True)]


def compare(table, name, other, limit, **sense):
    target(f"time of {name}, over that of {other}", table.ratio(name, other), limit, **sense)


def inside(table, memory, row=None):
    """Whether the temporaries of remat at this budget, or of another row, are inside it."""
    row, limit = row or remat_row({"memory": memory}), to_bytes(memory, "memory")
    taken = table.temporaries(row)
    if taken is not None and jax.default_backend() == "cpu":  # there, sums of gradients are among the temporaries
        weights = jax.eval_shape(table.model.arguments)[0]
        taken -= sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))
    beside = " beside the gradients of weights" if jax.default_backend() == "cpu" else ""
    target(f"MiB of temporaries of {row}{beside}", None if taken is None else taken / MIB, limit / MIB)


def host_memory():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--only", choices=["lstm", "ode", "compile", "long"])
    parser.add_argument("--steps", type=int, help="with --hidden and --batch: an LSTM, or an ODE, of this size instead")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--slots", type=int, default=31)
    parser.add_argument("--memory", default="256 MiB", help="the budget with --only long, or of a row more")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--count", type=int, default=1000, help="count evaluations in loops up to so many steps; slow")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cuda,cpu" if args.device == "gpu" else "cpu")
    versions = [f"{name} {module.__version__ if module else 'not installed'}" for name, module in MODULES.items()]
    where = jax.devices()[0].device_kind if args.device == "gpu" else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"on {where}, {', '.join(versions)}")
    wanted = [args.only] if args.only else ["lstm", "ode", "compile"] + ["long"] * (args.device == "gpu")
    if "lstm" in wanted and args.steps:
        table = Table(Lstm(args.steps, args.hidden, args.batch), rows(args.slots, [{"memory": args.memory}]))
        inside(table.measure(args.rounds, args.count).show(), args.memory)
    elif "lstm" in wanted:
        (lstm_on_gpu if args.device == "gpu" else lstm_on_cpu)(args.rounds, args.count)
    if "ode" in wanted:
        ode(args.steps or 300, args.slots, args.rounds, args.count)
    if "compile" in wanted:
        compiling(args.slots, 2)
    if "long" in wanted and args.device == "gpu":
        long(Lstm(args.steps or 100_000, 512, 64), args.memory)
    elif "long" in wanted:
        long(Lstm(args.steps or 100_000, 64, 8), args.memory)


if __name__ == "__main__":
    main()
