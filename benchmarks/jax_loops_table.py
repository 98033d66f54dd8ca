"""Measure ways of one gradient side by side, compiled ahead, and print them as a table: for `jax_loops.py`."""

import statistics
import time

import jax
import numpy as np

MIB = 2**20


class Compiled:
    """One gradient compiled ahead for arguments, or for their shapes."""

    def __init__(self, function, arguments):
        began = time.perf_counter()
        lowered = jax.jit(function).lower(*arguments)
        self.trace = time.perf_counter() - began
        self.text = len(lowered.as_text())
        began = time.perf_counter()
        self.call = lowered.compile()
        self.compile = time.perf_counter() - began
        self.temporaries = self.call.memory_analysis().temp_size_in_bytes

    def seconds(self, arguments):
        began = time.perf_counter()
        jax.block_until_ready(self.call(*arguments))
        return time.perf_counter() - began


class Counter:
    """Counts evaluations on the host."""

    def __init__(self):
        self.calls = 0

    def tick(self, value):
        jax.debug.callback(self.more, value.ravel()[0])  # without an argument it would be hoisted out of the loop

    def more(self, _):
        self.calls += 1


def evaluations(model, way, arguments):
    counter = Counter()
    jax.block_until_ready(jax.jit(model.function(way, counter.tick))(*arguments))
    jax.effects_barrier()
    return counter.calls


def ignore(value):
    pass


def reason(error):
    """The first line of an error, short enough for a row."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


class Table:
    """Ways of one gradient, by name; the first one is what the others are compared with."""

    def __init__(self, model, ways):
        self.model = model
        self.names = list(ways)
        self.first = self.names[0]
        self.absent = {name: "not installed" for name, way in ways.items() if way is None}
        self.ways = {name: way for name, way in ways.items() if way is not None}
        self.compiled, self.counts, self.errors, self.times = {}, {}, {}, {}

    def measure(self, rounds, counted):
        """Compile all, check gradients, count evaluations up to `counted` steps, then time all round by round."""
        arguments = self.model.arguments()
        exact = None
        for name, way in self.ways.items():
            try:
                self.compiled[name] = compiled = Compiled(self.model.function(way, ignore), arguments)
                gradient = [np.asarray(leaf, float) for leaf in jax.tree.leaves(compiled.call(*arguments))]
                exact = gradient if exact is None else exact
                self.errors[name] = max(map(difference, gradient, exact))
                if (self.model.steps or 0) <= counted:
                    self.counts[name] = evaluations(self.model, way, arguments)
            except Exception as error:  # a row that says why, among rows with figures
                self.absent[name] = reason(error)
        running = [name for name in self.ways if name not in self.absent]
        self.times = {name: [] for name in running}
        for _ in range(rounds):
            for name in running:
                self.times[name].append(self.compiled[name].seconds(arguments))
        return self

    def ratio(self, name, other):
        """The time of one over that of another, the median over rounds; None if one of them did not run."""
        if name not in self.times or other not in self.times:
            return None
        return statistics.median(a / b for a, b in zip(self.times[name], self.times[other], strict=True))

    def temporaries(self, name):
        return self.compiled[name].temporaries if name in self.compiled else None

    def share(self, name, other):
        """The temporaries of one over those of another; None if one of them did not compile."""
        if name not in self.compiled or other not in self.compiled:
            return None
        return self.temporaries(name) / self.temporaries(other)

    def show(self):
        print(f"\n{self.model}")
        heads = ("trace s", "compile s", "HLO bytes", "temp MiB", "of first", "time", "ms", "us/step", "evals", "error")
        print(f"{'':34}" + "".join(f"{head:>10}" for head in heads))
        for name in self.names:
            print(f"{name:34}{self.row(name)}")
        return self

    def row(self, name):
        if name not in self.compiled:
            return f"   {self.absent[name]}"
        compiled = self.compiled[name]
        cells = [f"{compiled.trace:.2f}", f"{compiled.compile:.2f}", f"{compiled.text}"]
        cells += [f"{compiled.temporaries / MIB:.2f}", show(self.share(name, self.first), ".2%")]
        if name in self.absent:
            return "".join(f"{cell:>10}" for cell in cells) + f"   {self.absent[name]}"
        median = statistics.median(self.times[name])
        cells += [show(self.ratio(name, self.first), ".3f"), f"{1e3 * median:.1f}"]
        cells += [
            show(self.model.steps and 1e6 * median / self.model.steps, ".2f"),
            show(self.counts.get(name), "d"),
            f"{self.errors[name]:.0e}",
        ]
        return "".join(f"{cell:>10}" for cell in cells)


def difference(value, exact):
    return float(np.linalg.norm(value - exact) / max(np.linalg.norm(exact), 1e-300))


def show(value, form):
    return "-" if value is None else format(value, form)


def target(text, value, limit, *, least=False):
    """Print a figure beside what was aimed at."""
    if value is None:
        print(f"  target: {text}: not measured")
        return
    met = value >= limit if least else value <= limit
    sign = "at least" if least else "at most"
    print(f"  target: {text} {sign} {limit:.4g}: {value:.4g}, {'met' if met else 'NOT MET'}")
