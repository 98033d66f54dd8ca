"""State that a recomputation does not put back, for tests that count runs or change something behind remat's back.

Attributes, lists and dicts that a function reaches leave no trace of a recomputation; slots do not belong to them.
"""

__all__ = ["Box", "Log"]


class Box:
    """One value."""

    __slots__ = ("value",)

    def __init__(self, value=None):
        self.value = value


class Log:
    """A list that only grows; in a tuple, as a list in a slot would be put back."""

    __slots__ = ("entries",)

    def __init__(self):
        self.entries = ()

    def append(self, entry):
        self.entries += (entry,)

    def clear(self):
        self.entries = ()

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)

    def __eq__(self, other):
        return list(self.entries) == list(other)

    __hash__ = None

    def __repr__(self):
        return repr(list(self.entries))
