"""Models of Hugging Face in twelve architectures, and every layer of torch.nn, on a GPU: are gradients the plain ones?

    PYTHONPATH=src:. python benchmarks/transformers_gpu.py [models] [attention] [compiled] [layers] [--only Llama]

`models`: the twelve with their defaults and padded batches, in bfloat16. `attention`: three of them with each kernel of
scaled dot-product attention, with and without dropout. `compiled`: the same three through torch.compile, with dropout.
`layers`: every layer of torch.nn as a segment and as a step, in float32 and bfloat16.

One line a case, and totals. "right" is within rounding of the plain run (for models also of a second plain one, which
tells how far kernels repeat themselves) and "bitwise" to the last bit; "refused" is an error of remat, "crashed" any
other one. What plain PyTorch cannot run is no case. On a CPU the models are tiny and in float32: to try the script.
"""

import argparse
import logging
import time
import warnings
from collections import Counter
from contextlib import nullcontext

import torch
from tests.frameworks.torch import layer_runs
from tests.frameworks.torch.layer_cases import CASES
from tests.frameworks.torch.programs import plain_scan
from torch.nn.attention import SDPBackend, sdpa_kernel

import remat

GROUPS = ("models", "attention", "compiled", "layers")
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
THREE = ("Llama", "GPT-2", "Whisper")


class Report:
    """Prints a line for each case and counts verdicts, by group."""

    def __init__(self):
        self.group, self.counts = "", Counter()

    def case(self, title, plain, ours, compare):
        """Run both; a verdict on what they leave. `plain` gives what is expected, or raises where it cannot run."""
        start = time.perf_counter()
        try:
            expected = plain()
        except Exception as error:
            self.say(title, "no case", _line(error), start)
            return
        try:
            verdict, why = compare(ours(), expected)
        except remat.errors.RematError as error:
            verdict, why = "refused", _line(error)
        except Exception as error:
            verdict, why = "crashed", _line(error)
        self.say(title, verdict, why, start)

    def say(self, title, verdict, why, start):
        self.counts[self.group, verdict] += 1
        print(f"{self.group} | {title} | {verdict} | {time.perf_counter() - start:.2f} s {why}", flush=True)

    def totals(self):
        for group in dict.fromkeys(group for group, _ in self.counts):
            verdicts = {verdict: n for (of, verdict), n in self.counts.items() if of == group}
            right = verdicts.get("bitwise", 0) + verdicts.get("right", 0)
            bad = [f"{verdicts.get(name, 0)} {name}" for name in ("WRONG", "refused", "crashed")]
            print(f"total of {group}: {right} right ({verdicts.get('bitwise', 0)} bitwise), {', '.join(bad)}", end="")
            print(f"; {verdicts.get('no case', 0)} that plain PyTorch cannot run")


def _line(error):
    return f"({type(error).__name__}: {' '.join(str(error).split())[:160]})"


# Models.


def large(device):
    from tests.frameworks.torch.transformer_cases import TINY, Size

    return TINY if device == "cpu" else Size(layers=3, heads=8, width=64, words=96, batch=4, vocabulary=1000, side=64)


def run_model(device, name, way, *, attention="sdpa", dropout=0.1, training=True, padded=True, compiled=False):
    """What a model leaves; gradients of all parameters, outputs and caches."""
    from tests.frameworks.torch import transformer_cases

    model, inputs = transformer_cases.make(name, large(device), attention=attention, dropout=dropout)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model.to(device, dtype).train(training)
    inputs = {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in inputs.items()}
    if not padded:
        inputs.pop("attention_mask", None)
    if way:
        transformer_cases.CHANGES[way](model)
    if compiled:
        torch._dynamo.reset()
        model.compile(backend="aot_eager" if device == "cpu" else "inductor")
    found = transformer_cases.outcome(model, inputs)
    return {key: value for key, value in found.items() if "gradient" in key} if compiled else found


def compare_models(found, expected, again):
    """Bitwise, or within bfloat16's rounding and the distance of two plain runs, relative to the largest gradient."""
    if not layer_runs.differences(found, expected):
        return "bitwise", ""
    if found.keys() != expected.keys():
        return "WRONG", f"(only one has {sorted(found.keys() ^ expected.keys())[:3]})"
    most = max(float(value.abs().max()) for key, value in expected.items() if "gradient" in key and value is not None)
    worst, where = 0.0, ""
    for key, value in expected.items():
        error = _distance(found[key], value, key, most) - 4 * _distance(again[key], value, key, most)
        worst, where = max((worst, where), (error, key))
    return ("right" if worst <= 0.02 else "WRONG"), f"(by {worst:.1g}, {where})"


def _distance(a, b, key, most):
    """Relative to the larger of the tensor's largest number and a hundredth of the largest gradient's."""
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    a, b = a.double(), b.double()
    scale = max(float(b.abs().max()) if b.numel() else 0.0, 0.01 * most if "gradient" in key else 1e-30)
    return float((a - b).abs().max()) / scale if b.numel() else 0.0


def model_case(report, title, device, name, ways, context=nullcontext, **options):
    """All ways of one model; the plain runs are made once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = []

        def expected():
            if not plain:
                with context():
                    plain.extend(run_model(device, name, None, **options) for _ in range(2))
            return plain[0]

        def ours(way):
            with context():
                return run_model(device, name, way, **options)

        for way in ways:
            report.case(
                f"{name}, {title}, {way}",
                expected,
                lambda way=way: ours(way),
                lambda found, expected: compare_models(found, expected, plain[1]),
            )


def models(report, device, only):
    from tests.frameworks.torch.transformer_cases import ARCHITECTURES, CHANGES

    for name, architecture in ARCHITECTURES.items():
        for attention in architecture.attentions if name in only else ():
            for training in (True, False):
                title = f"{attention}, {'train' if training else 'eval'}"
                model_case(report, title, device, name, CHANGES, attention=attention, training=training)


def attention(report, device, only):
    for name in THREE:
        for kernel, backend in KERNELS.items() if name in only else ():
            for dropout in (0.0, 0.1):
                for padded in (False, True):
                    title = f"{kernel}, dropout {dropout}, {'padded' if padded else 'whole'}"
                    options = {
                        "dropout": dropout,
                        "padded": padded,
                        "context": lambda backend=backend: sdpa_kernel(backend),
                    }
                    model_case(report, title, device, name, ("drop", "checkpoint"), **options)


def compiled(report, device, only):
    import torch._inductor.config as inductor

    for name in THREE:
        for kernel, backend in KERNELS.items() if name in only else ():
            options = {"padded": False, "context": lambda backend=backend: sdpa_kernel(backend)}
            with inductor.patch(fallback_random=True):  # the same numbers, whatever is fused
                model_case(report, f"{kernel}, compiled", device, name, ("drop",), compiled=True, **options)


# Layers.


def layers(report, device, only):
    def compare(found, expected):
        if not layer_runs.differences(found, expected):
            return "bitwise", ""
        wrong = layer_runs.differences(found, expected, tolerance)
        return ("WRONG", f"({', '.join(wrong[:4])})") if wrong else ("right", "")

    for dtype in (torch.float32, torch.bfloat16):
        tolerance = 64 * torch.finfo(dtype).eps if dtype is torch.float32 else 4 * torch.finfo(dtype).eps
        for training in (True, False):
            options = {"dtype": dtype, "training": training, "device": device}
            title = f"{str(dtype).removeprefix('torch.')}, {'train' if training else 'eval'}"
            for case in CASES:
                for way, (plain, ours) in layer_runs.WAYS.items():
                    layer_case(report, f"{case}, {title}, {way}", case, plain, ours, options, compare)
            for case, form in layer_runs.loops():
                for way, scan in layer_runs.SCANS.items() if dtype is torch.float32 else ():
                    plain, ours = (_looped(form, loop) for loop in (plain_scan, scan))
                    layer_case(report, f"{case}, {title}, {way}", case, plain, ours, options, compare)


def _looped(form, loop):
    return lambda *inputs: form(loop, *inputs)


def layer_case(report, title, case, plain, ours, options, compare):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report.case(
            title,
            lambda: layer_runs.outcome(case, plain, **options),
            lambda: layer_runs.outcome(case, ours, **options),
            compare,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", help="names of models")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    report = Report()
    print(f"remat {remat.__version__}, torch {torch.__version__}, {given.device}")
    for group in given.groups or GROUPS:
        report.group = group
        if group == "layers":
            only = ()
        else:
            from tests.frameworks.torch.transformer_cases import ARCHITECTURES

            only = given.only or ARCHITECTURES
        {"models": models, "attention": attention, "compiled": compiled, "layers": layers}[group](
            report, given.device, only
        )
    report.totals()


if __name__ == "__main__":
    main()
