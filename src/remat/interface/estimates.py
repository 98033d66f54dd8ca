"""Evenly spaced save points."""

from remat.errors import ProblemError
from remat.planners.loop.save_points import even_positions
from remat.units import to_count

__all__ = ["save_points"]


def save_points(steps: int, count: int) -> list[int]:
    """The `count` positions that cut `steps` into sections of equal length, or nearly so, the longer ones last.

    Args:
        steps: The number of steps of the loop.
        count: The number of save points, fewer than steps.

    Returns:
        The positions, increasing; none is 0 or `steps`.

    Raises:
        ProblemError: If a count is not a whole number, or there are more save points than places between steps.

    Example:
        >>> save_points(2048, 7)
        [256, 512, 768, 1024, 1280, 1536, 1792]
    """
    steps, count = to_count(steps, "steps"), to_count(count, "count")
    if count >= max(steps, 1):
        raise ProblemError(
            f"{steps} steps have {max(steps - 1, 0)} places between them, too few for {count} save points"
        )
    return even_positions(steps, count)
