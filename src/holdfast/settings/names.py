"""Names that must be known before anything heavy is imported."""

DATA_NAMES = (
    "digits",
    "coloured-digits",
    "cifar10",
    "cifar100",
    "svhn",
    "mnist",
    "fashion-mnist",
    "tiny-imagenet",
)
"""Data sets that are loaded by name; the readers are registered in holdfast.data.sources."""
