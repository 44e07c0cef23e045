"""A classifier from a share of a set's labels: the rest of its images serve without theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast.data import Dataset, load
from holdfast.data.splits import Split
from holdfast.detect.few_labels import FixMatch, accuracy, train_few_labels
from holdfast.detect.folders import open_pictures
from holdfast.detect.loop import LoopSettings
from holdfast.detect.rotation import train_rotation
from holdfast.detect.vae import train_vae
from holdfast.errors import require
from holdfast.metrics import wilson_interval
from holdfast.models.vae import VAESettings
from holdfast.rng import derive
from holdfast.train.api import resolve_device
from holdfast.types import Finding


@dataclass(frozen=True, eq=False)
class FewLabelsResult:
    """finding: accuracy on the test split. labelled: positions in the training split whose labels were used."""

    model: nn.Module
    finding: Finding
    labelled: Tensor
    history: tuple[dict[str, float], ...]


def few_labels(
    data: str | Path | Dataset,
    *,
    labels: int,
    way: str = "fixmatch",
    unlabeled: str | Path | Split | None = None,
    model: str = "convnet",
    latent: int = 16,
    epochs: int = 30,
    pretrain_epochs: int = 20,
    batch_size: int = 64,
    lr: float = 1e-3,
    confidence: float = 0.95,
    ratio: int = 7,
    flip: bool = False,
    root: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    note: Callable[[str], None] | None = None,
) -> FewLabelsResult:
    """Train with so many labels, the same number of every class, and all other training images without theirs.

    unlabeled: more or other pictures without labels; by default the training images that were not chosen. way: see
    ``holdfast.detect.train_few_labels``.
    """
    where, say = resolve_device(device), note or (lambda text: None)
    dataset = data if isinstance(data, Dataset) else load(data, root=root)
    require(dataset.test is not None, f"{dataset.name} has no test split to judge by")
    assert dataset.test is not None
    chosen = choose(dataset.train.labels, labels, dataset.num_classes, seed)
    rest = torch.ones(len(dataset.train), dtype=torch.bool)
    rest[chosen] = False
    others: Split = dataset.train.subset(rest.nonzero().flatten())
    if unlabeled is not None:
        others = open_pictures(unlabeled, root=root, shape=dataset.shape)
    images = dataset.train.read(chosen)
    vae = encoder = None
    pretrain = LoopSettings(pretrain_epochs, batch_size, lr, precision=precision, seed=seed)
    if way in ("frozen", "fine-tuned"):
        say(f"training a VAE on {len(others)} images without labels")
        vae = train_vae(others, VAESettings(dataset.shape, latent=latent), pretrain, device=where).model
    elif way == "rotation":
        say(f"training {model} to predict rotations on {len(others)} images without labels")
        encoder = train_rotation(others, pretrain, model=model, device=where).model
    say(f"training on {len(chosen)} labels")
    trained = train_few_labels(
        way,
        images,
        dataset.train.labels[chosen],
        num_classes=dataset.num_classes,
        vae=vae,
        encoder=encoder,
        unlabeled=others,
        model=model,
        loop=LoopSettings(epochs, batch_size, lr, schedule="cosine", precision=precision, seed=seed),
        fixmatch=FixMatch(ratio, confidence),
        flip=flip,
        device=where,
    )
    share, loss = accuracy(trained.model, dataset.test, dataset.test.labels, device=where)
    n = len(dataset.test)
    settings = {"way": way, "labels": len(chosen), "unlabelled": len(others), "seed": seed}
    low, high = wilson_interval(share * n, n)
    finding = Finding("clean", "accuracy", share, n, low, high, {}, settings, {"nll": loss})
    return FewLabelsResult(trained.model, finding, chosen, trained.history)


def choose(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """Positions of ``count`` labels, as evenly over the classes as they go, drawn by the seed.

    >>> classes = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> classes[choose(classes, 4, 2, seed=0)]
    tensor([0, 0, 1, 1])
    """
    require(classes <= count <= len(labels), f"labels must be in {classes}..{len(labels)}, got {count}")
    generator = torch.Generator().manual_seed(derive(seed, "few-labels/choice"))
    order = torch.randperm(len(labels), generator=generator)
    rank = torch.empty(len(labels), dtype=torch.int64)
    for label in range(classes):
        own = order[labels[order] == label]
        rank[own] = torch.arange(len(own))
    # by rank within the class first: every class gets its n-th sample before any gets one more
    first = order[rank[order].argsort(stable=True)][:count]
    return first.sort().values
