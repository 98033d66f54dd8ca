"""Segments in random programs: checkpoint, drop and the like around a part of what is computed."""

from tests.random_programs.choices import Choices
from tests.random_programs.containers import KINDS as CONTAINERS
from tests.random_programs.containers import packed, taken
from tests.random_programs.torch_scope import Scope
from tests.random_programs.torch_statements import kind, write_body

ARGUMENTS = {"bare": 5, "container": 2, "twice": 1, "view and base": 1, "keyword": 1, "cache": 1, "made": 1}
RESULTS = {"bare": 5, "container": 2, "alias": 0.7, "view": 0.7}
WAYS = {"checkpoint": 4, "drop": 3, "drop before": 2, "adaptive": 1}


@kind(4, "nests")
def segment(s: Scope, c: Choices) -> None:
    """A part of the computation as a segment, called once or some times."""
    arguments, results = c.pick("arguments", ARGUMENTS), c.pick("results", RESULTS)
    box = c.pick("container", CONTAINERS) if "container" in (arguments, results) else ""
    parameters, call = _arguments(s, c, arguments, box)

    def fill(inner: Scope) -> None:
        _unpack(inner, arguments, box)
        write_body(inner, c.part("body"))
        inner(f"return {_result(results, box)}")

    made = s.callable(c, "seg", parameters, fill)
    around = ""
    if c.chance("called in a loop", 0.2):
        around = f"for _ in range({c.number('calls', 1, 2) + 1}):"
    elif c.chance("called without gradient", 0.04):
        around = "with torch.no_grad():"
    if around:
        with s.out.block(around):
            _call(s, c, made, call, results, box)
    else:
        _call(s, c, made, call, results, box)


def _arguments(s: Scope, c: Choices, how: str, box: str) -> tuple[str, str]:
    """The parameters of a segment, and the arguments of its call."""
    if how == "container":
        return "given", packed(box, ["h", "torch.arange(3)", "None", "0.5"])
    if how == "cache":
        return "h, store", f"h, {s.create('store', 'Box(keys=None, count=0)')}"
    return {
        "bare": ("h", "h"),
        "twice": ("h, again, more", "h, h, [h]"),
        "view and base": ("h, part", "h, h[:, :2]"),
        "keyword": ("h, *, scale=1.0, mask=None", "h, scale=0.9, mask=h > 0"),
        "made": ("h, other", "torch.sin(h), torch.cos(h)"),
    }[how]


def _unpack(s: Scope, how: str, box: str) -> None:
    if how == "container":
        h, whole, _, half = taken(box, "given", 4)
        s(f"h = {h} * {half} + {whole}[:, None]")
    elif how == "twice":
        s("h = h * again - 0.1 * more[0]")
    elif how == "view and base":
        s("h = h + part.sum() * 0.1")
    elif how == "keyword":
        s("h = torch.where(mask, h, scale * h)")
    elif how == "made":
        s("h = h * other")
    elif how == "cache":
        entry = "h.detach()" if s.loops or "cached graph" in s.banned else "h"
        s("store.count += 1", f"store.keys = {entry} if store.keys is None else torch.cat([store.keys, {entry}])")
        s("h = h * (1 + 0.1 * store.count) + store.keys.mean(0)")


def _result(how: str, box: str) -> str:
    if how == "container":
        return packed(box, ["h", "h.pow(2).sum()", "'text'", "h.argmax()"])
    return {"bare": "h", "alias": "(h, h)", "view": "h.t()"}[how]


def _call(s: Scope, c: Choices, made: str, call: str, results: str, box: str) -> None:
    way = c.pick("way", WAYS)
    options = _options(c) if way.startswith("drop") else ""
    if way == "drop before" and made.startswith(f"{s.owner}."):
        name = s.create("dropped", f"remat.drop({made}{options})")
        s(f"out = {name}({call})")
    elif way.startswith("drop"):
        s(f"out = remat.drop({made}{options})({call})")
    elif way == "adaptive":
        s(f"out = remat.adaptive_checkpoint({made}, {call}, threshold={(1, 10000)[c.number('threshold', 0, 1)]})")
    else:
        s(f"out = remat.checkpoint({made}, {call})")
    if results == "container":
        h, total, _, place = taken(box, "out", 4)
        s(f"h = {h} + 0.1 * {total}" if c.chance("all results are used", 0.6) else f"h = {h} * (1 + 0.01 * {place})")
    else:
        s({"bare": "h = out", "alias": "h = out[0] * torch.sigmoid(out[1])", "view": "h = out.t() * 1.1"}[results])


def _options(c: Choices) -> str:
    check = c.pick("segment check", {"first": 3, "always": 1, "never": 1})
    stop = ", early_stop=False" if c.chance("no early stop", 0.3) else ""
    return ("" if check == "first" else f", check={check!r}") + stop
