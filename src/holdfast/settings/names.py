"""Names that must be known before anything heavy is imported."""

from holdfast.errors import require

DATA_NAMES = (
    "digits",
    "coloured-digits",
    "cifar10",
    "cifar100",
    "svhn",
    "mnist",
    "fashion-mnist",
    "tiny-imagenet",
    "corrupted-cifar10-lff-0",
    "corrupted-cifar10-lff-1",
    "corrupted-cifar10-dfa",
    "bar",
    "bar-1pct",
    "bar-5pct",
    "cifar10c-0.5pct",
    "cifar10c-1pct",
    "cifar10c-2pct",
    "cifar10c-5pct",
    "bffhq",
    "metashift",
    "waterbirds",
    "celeba",
)
"""Data sets that are loaded by name; the readers are registered in holdfast.data.sources."""

MADE_WITH_A_SHORTCUT = tuple(
    name for name in DATA_NAMES if name == "coloured-digits" or name.startswith("corrupted-cifar10-")
)
"""Those that are made as they are loaded, so that the share of training that contradicts the shortcut can be chosen."""

CONFLICT = 0.05
"""That share, where none is given."""


def takes_conflict(name: object) -> bool:
    """Whether the share of conflicting samples can be chosen; all other data is as it is."""
    return name in MADE_WITH_A_SHORTCUT


def check_conflict(name: object, conflict: float | None) -> None:
    """Refuse a share that is none, or that the data of that name would silently ignore."""
    if conflict is None:
        return
    number = isinstance(conflict, (int, float))
    require(number and 0 <= conflict <= 1, f"conflict must be in [0, 1], got {conflict!r}")
    require(
        takes_conflict(name),
        f"conflict {conflict} is for data made with a shortcut ({', '.join(MADE_WITH_A_SHORTCUT)}), and {name} is as "
        "it is; leave it out, take a split published with its share (bar-1pct, bar-5pct, cifar10c-5pct, ...), or put a "
        "shortcut into the set: holdfast data make",
    )
