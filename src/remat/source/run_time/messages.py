"""Messages of the loops with the user's names: `mode` for `carry[1]`, the name of a list for `y[0]`."""

import re

from remat.source.loop_info import LoopInfo

__all__ = ["with_names"]


def with_names(message: str, info: LoopInfo) -> str:
    """A loop's message with the names of the user's variables in place of items of the carry."""

    def name(match: re.Match[str]) -> str:
        place = int(match[2])
        return info.carry[place] if place < len(info.carry) else match[0]

    def output(match: re.Match[str]) -> str:
        names = (*info.lists, *info.arrays)
        return f"what {names[int(match[1])]} gets" if int(match[1]) < len(names) else match[0]

    other_kind = r"(is|became) an? remat\.source\.run_time\.statics\.\w+( of|:).*?(?=$|\n)"
    message = re.sub(other_kind, r"\1 something of another kind", message)
    message = re.sub(r"\by\[(\d+)\]", output, message)
    if len(info.carry) == 1:  # its value is the carry itself
        message = re.sub(r"^carry (?=was|is|has|became)", f"{info.carry[0]} ", message)
    return re.sub(r"\b(carry|init)\[(\d+)\]", name, message)
