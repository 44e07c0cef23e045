"""``conflict``, the share of bias-conflicting training samples: which data takes it, and its default.

Only sets that are made as they are loaded take it; their readers say so. Known before anything heavy is imported.
"""

from holdfast.errors import require
from holdfast.parts import named_data

CONFLICT = 0.05
"""The share where none is given."""


def takes_conflict(name: object) -> bool:
    """Whether the share of conflicting samples of this data can be chosen."""
    part = named_data().get(name) if isinstance(name, str) else None
    return part is not None and "conflict" in part.takes


def check_conflict(name: object, conflict: float | None) -> None:
    """Refuse a value that is not a share, or that the data of that name would silently ignore."""
    if conflict is None:
        return
    number = isinstance(conflict, (int, float))
    require(number and 0 <= conflict <= 1, f"conflict must be in [0, 1], got {conflict!r}")
    made = [name for name in named_data() if takes_conflict(name)]
    require(
        takes_conflict(name),
        f"conflict {conflict} is for data made with a shortcut ({', '.join(made)}), not for {name}; leave it out, take "
        "a split published with its share (bar-1pct, bar-5pct, cifar10c-5pct, ...), or put a shortcut into the set: "
        "holdfast data make",
    )
