"""What the blocks of a program hold over time: segments, which drop and recompute their residuals, and kept blocks.

From a profile this computes the bytes and seconds of each block, who holds what at the peak, and what to drop or keep
next. A segment holds its inputs from its forward to its pullback, and its recomputed residuals from its recomputation
to its pullback. A kept block holds what its backward needs until the backward has passed it, or, where that was not
seen, until it has reached a block before it.
"""

from collections import Counter
from dataclasses import dataclass, replace

from remat.profiling import Profile
from remat.profiling.segment_contents import KeptBlock, SavedTensor, SegmentContents
from remat.reporting.dominating_tensor import dominating_tensor
from remat.reporting.headline import Headline
from remat.units import bytes_text, seconds_text

__all__ = ["Block", "BlockMemory", "Held", "block_memory"]

WORTH = 0.8  # of a block's bytes: a larger part of it is nearly all of it, so that splitting the block gains little


@dataclass(frozen=True)
class Held:
    """Bytes that a block holds from `start` to `stop`; `what` says why."""

    block: str
    what: str  # "inputs", "recomputed" or "kept"
    size: int
    start: float
    stop: float


@dataclass(frozen=True)
class Block:
    """A block: what it drops or keeps, how often it ran and was recomputed, and for how long."""

    name: str
    where: str
    dropped: bool
    inputs: int
    size: int  # bytes of what its backward needs
    runs: int = 0
    recomputed: int = 0
    seconds: float = 0.0  # total time of its recomputations
    tensors: tuple[SavedTensor, ...] = ()
    seen: bool = True  # whether its runs were observed; those of a compiled program (JAX) are not


@dataclass(frozen=True)
class BlockMemory:
    """All blocks in the order of their first runs, and what they hold when, in seconds since the first."""

    blocks: tuple[Block, ...]
    held: tuple[Held, ...]

    @property
    def seen(self) -> bool:
        """Whether it is known when blocks ran."""
        return all(block.seen for block in self.blocks)

    @property
    def span(self) -> float:
        """The time from which on nothing is held."""
        return max((each.stop for each in self.held), default=0.0)

    @property
    def peak_time(self) -> float:
        """The time at which most bytes are held."""
        return max((each.start for each in self.held), key=lambda time: sum(h.size for h in self.at(time)), default=0.0)

    def at(self, time: float) -> list[Held]:
        """What is held at a time, the largest first."""
        live = [each for each in self.held if each.start <= time < each.stop]
        return sorted(live, key=lambda each: -each.size)

    @property
    def peak(self) -> int:
        """The most bytes that blocks hold at once."""
        return sum(each.size for each in self.at(self.peak_time))

    @property
    def headline(self) -> Headline:
        """The peak and its parts."""
        sizes: Counter[str] = Counter()
        for each in self.at(self.peak_time):
            sizes[each.what] += each.size
        return Headline(self.peak, None, tuple(sizes.most_common()))

    def tips(self) -> list[str]:
        """Which block to drop or keep next, and which tensor dominates the largest block."""
        tips = []
        kept = max((each for each in self.blocks if not each.dropped and each.size), key=lambda b: b.size, default=None)
        if kept is not None:
            tips.append(
                f"To use less memory, drop {kept.name} next: it keeps {bytes_text(kept.size)} for its backward "
                f"({kept.where})."
            )
        else:
            tips += self._nesting()
        paid = [each for each in self.blocks if each.dropped and each.recomputed and each.size]
        best = max(paid, key=lambda block: block.seconds / block.recomputed / block.size, default=None)
        if best is not None:
            tips.append(
                f"To be faster, keep {best.name} next: it saves {seconds_text(best.seconds / best.recomputed)} a "
                f"backward, for {bytes_text(best.size)} more."
            )
        largest = max(self.blocks, key=lambda block: block.size, default=None)
        if largest is not None:
            tips += dominating_tensor(largest.tensors, largest.size, f"what {largest.name} needs")
        return tips

    def _nesting(self) -> list[str]:
        """What dropping the parts of the recomputed block that has the peak would leave live, one part at a time."""
        top = next((each for each in self.at(self.peak_time) if each.what == "recomputed"), None)
        if top is None:
            return []
        block = next(each for each in self.blocks if each.name == top.block)
        start, sizes = f"{block.name}.", Counter[str]()
        for tensor in block.tensors:
            if tensor.module.startswith(start):
                sizes[start + tensor.module.removeprefix(start).partition(".")[0]] += tensor.bytes
        return [
            f"To use less memory, drop the parts of {block.name} too: of its {bytes_text(block.size)}, about "
            f"{bytes_text(size)} are then live at once ({part}), and each part runs once more."
            for part, size in sizes.most_common(1)
            if size < WORTH * block.size
        ]


def block_memory(profile: Profile) -> BlockMemory:
    """What the blocks of a profile held; empty if no framework reported what segments drop."""
    calls = {call.contents.name: call for call in profile.calls if call.contents is not None}
    contents = {name: call.contents for name, call in calls.items() if call.contents is not None}
    kept = _kept(profile, contents)
    first: dict[str, float] = {}
    blocks: dict[str, Block] = {}
    for each in profile.passes:
        if each.name in contents and each.what == "forward" and each.name not in blocks and not each.again:
            found, where = contents[each.name], calls[each.name].site
            step = calls[each.name].step
            line = where.short if step is None else step.short
            seen = calls[each.name].framework != "jax"
            sizes = found.inputs, found.dropped
            blocks[each.name] = Block(each.name, line, True, *sizes, tensors=found.tensors, seen=seen)
            first[each.name] = each.start
    for one in kept:
        found = one.contents
        line = next((tensor.line for tensor in found.tensors if tensor.line), "")
        blocks.setdefault(found.name, Block(found.name, line, False, 0, found.dropped, 1, tensors=found.tensors))
        first.setdefault(found.name, one.since)
    for name, block in blocks.items():
        own = [each for each in profile.passes if each.name == name]
        again = [each for each in own if each.what == "recompute"]
        runs = sum(each.what == "forward" and not each.again for each in own) or block.runs
        seconds = sum(each.seconds for each in again)
        blocks[name] = replace(block, runs=runs, recomputed=len(again), seconds=seconds)
    ordered = sorted(blocks.values(), key=lambda block: first[block.name])
    return BlockMemory(tuple(ordered), tuple(_held(profile, ordered, first, kept)))


def _kept(profile: Profile, segments: dict[str, SegmentContents]) -> list[KeptBlock]:
    """The kept blocks: those that are neither segments nor inside another block."""
    names = {each.contents.name for each in profile.kept} | set(segments)
    # A block of a sequence is named "Sequential.0", and modules inside it "0.mlp".
    names |= {rest for name in names if (rest := name.partition(".")[2]).replace(".", "").isdigit()}
    return [
        each
        for each in profile.kept
        if (own := each.contents.name) not in segments and not any(own.startswith(f"{name}.") for name in names)
    ]


def _held(profile: Profile, blocks: list[Block], first: dict[str, float], kept: list[KeptBlock]) -> list[Held]:
    """What is held from when to when, in seconds since the first pass; what is never released ends with the last."""
    if not blocks:
        return []
    zero = min(first.values())
    ends = [each.start + each.seconds for each in profile.passes] + [each.until or each.since for each in kept]
    last = max(ends) - zero
    # The end of the backward was not seen if the first block is kept: let what is left hold a while.
    if all(each.what == "forward" for each in profile.passes) and any(each.until is None for each in kept):
        last *= 1 + 1 / len(blocks)
    sizes, order = {block.name: block for block in blocks}, [block.name for block in blocks]
    held: list[Held] = []
    opened: dict[str, tuple[float, float | None]] = {}  # segment → since when it holds inputs, and recomputed tensors
    for each in profile.passes:
        block, start = sizes.get(each.name), each.start - zero
        if block is None or each.again:
            continue
        if each.what == "forward" and not each.depth:
            opened[each.name] = start, None
        elif each.what == "recompute":
            opened[each.name] = opened.get(each.name, (start, None))[0], start
        elif each.what == "pullback" and each.name in opened:
            since, again = opened.pop(each.name)
            stop = start + each.seconds
            held.append(Held(each.name, "inputs", block.inputs, since, stop))
            if again is not None:
                held.append(Held(each.name, "recomputed", block.size, again, stop))
    held += [Held(name, "inputs", sizes[name].inputs, since, last) for name, (since, _) in opened.items()]
    returns = [each for each in profile.passes if each.what == "recompute" and each.name in sizes]
    for one in kept:
        before = order[: order.index(one.contents.name)]
        reached = (each.start for each in returns if each.name in before and each.start > one.since)
        stop = one.until or next(reached, last + zero)
        held.append(Held(one.contents.name, "kept", one.contents.dropped, one.since - zero, stop - zero))
    return [each for each in held if each.size]
