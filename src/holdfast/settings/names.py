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
