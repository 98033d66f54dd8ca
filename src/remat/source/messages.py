"""Messages of the loops with the user's names: `carry[1]` is `mode`."""

import re

from remat.source.loop_info import LoopInfo

__all__ = ["with_names"]


def with_names(message: str, info: LoopInfo) -> str:
    """A message of a loop, in which places of the carry have the names of the variables."""

    def name(match: re.Match[str]) -> str:
        place = int(match[2])
        return info.carry[place] if place < len(info.carry) else match[0]

    other_kind = r"(is|became) an? remat\.source\.statics\.\w+( of|:).*?(?=$|\n)"
    message = re.sub(other_kind, r"\1 something of another kind", message)
    return re.sub(r"\b(carry|init)\[(\d+)\]", name, message)
