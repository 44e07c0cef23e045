"""Describe a set of images in few dimensions: a map, how well its classes separate, and what a VAE draws.

``describe`` is what ``holdfast describe`` calls; ``describe_images`` takes a VAE and images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from holdfast.data.images import png
from holdfast.data.loaders import Images, float_batches
from holdfast.data.splits import Dataset
from holdfast.data.unlabelled_images import ImageSource, open_images
from holdfast.detect.fitted_detector import FittedDetector, load_fitted
from holdfast.detect.scoring import FINDINGS, PAGE, claim_folder
from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, require, require_known
from holdfast.models.vae import VAE, VAESettings
from holdfast.module_state import evaluating
from holdfast.reports import report, write_findings
from holdfast.rng import derive, evenly
from holdfast.settings.detect_settings import DESCRIBE_TRAINING
from holdfast.train.progress import Progress, make_progress
from holdfast.train.unlabelled import MinimiseSettings, train_vae
from holdfast.types import Finding, Measure, Unit

MEASURES: Final = (
    Measure("silhouette", "silhouette of the classes", Unit.NUMBER, digits=3),
    Measure("linear", "accuracy of a linear probe"),
    Measure("knn", "accuracy of a k-NN probe"),
)
PROJECTIONS: Final = ("auto", "latent", "pca", "tsne", "umap")
NEIGHBOURS: Final = 5
MOST_SILHOUETTE: Final = 2000
"""Silhouette compares every pair: a sample of so many stands for a larger set."""
LEAST: Final = 3
"""Samples of a class that a probe can learn from, and be tried on."""
MOST_POINTS: Final = 2000
LONGEST: Final = 640


def probe(z: Tensor, labels: Tensor, *, seed: int = 0) -> dict[str, float]:
    """How well classes separate in z (N, K).

    silhouette: in [-1, 1]. linear, knn: accuracy of a linear and a k-NN classifier on a held-out third.

    >>> labels = torch.arange(60) % 2
    >>> z = torch.stack([labels.float(), torch.linspace(0, 0.1, 60)], 1)  # two tight clusters
    >>> {name: round(value, 2) for name, value in probe(z, labels).items()}
    {'silhouette': 0.97, 'linear': 1.0, 'knn': 1.0}
    """
    return {name: value for name, (value, _) in _probe(z, labels, seed).items()}


def _probe(z: Tensor, labels: Tensor, seed: int) -> dict[str, tuple[float, int]]:
    """The same, each with the number of samples that it rests on."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import silhouette_score
    from sklearn.model_selection import train_test_split
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    each = torch.bincount(labels)
    require(int((each > 0).sum()) >= 2, "a probe needs labels of at least two classes")
    fewest = int(each[each > 0].min())
    require(fewest >= LEAST, f"a probe needs at least {LEAST} samples of every class, one has {fewest}; leave it out")
    points, truth = z.double().numpy(), labels.numpy()
    state = derive(seed, "describe/probe") % 2**32
    x, x_test, y, y_test = train_test_split(points, truth, test_size=1 / 3, random_state=state, stratify=truth)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(x, y)
    neighbours = make_pipeline(StandardScaler(), KNeighborsClassifier(min(NEIGHBOURS, len(x)))).fit(x, y)
    compared = min(MOST_SILHOUETTE, len(points))
    return {
        "silhouette": (float(silhouette_score(points, truth, sample_size=compared, random_state=state)), compared),
        "linear": (float(linear.score(x_test, y_test)), len(y_test)),
        "knn": (float(neighbours.score(x_test, y_test)), len(y_test)),
    }


def check_projection(how: str) -> None:
    """Refuse what :func:`project` could not do; worth asking before a model is trained for it."""
    require_known("projection", how, PROJECTIONS)
    if how == "umap" and find_spec("umap") is None:
        raise HoldfastError("umap is not installed; pip install umap-learn, or use pca or tsne")


def project(z: Tensor, *, how: str = "auto", seed: int = 0) -> Tensor:
    """(N, 2) a map of z (N, K): z itself where it has two dimensions, else PCA, t-SNE or UMAP of it."""
    check_projection(how)
    if how == "auto":
        how = "latent" if z.shape[1] == 2 else "pca"
    if how == "latent":
        require(z.shape[1] == 2, f"the latent itself is a map only with 2 dimensions, it has {z.shape[1]}; use pca")
        return z
    require(len(z) >= 3, f"a projection needs at least 3 images, got {len(z)}")
    if how == "pca":
        if z.shape[1] == 1:
            return torch.cat([z, torch.zeros_like(z)], 1)
        u, s, _ = torch.linalg.svd((z - z.mean(0)).double(), full_matrices=False)
        flat: Tensor = u[:, :2] * s[:2]
        return (flat * flat.gather(0, flat.abs().argmax(0, keepdim=True)).sign()).float()  # a sign that is repeatable
    state = derive(seed, "describe/project") % 2**32
    if how == "tsne":
        from sklearn.manifold import TSNE

        made = TSNE(2, perplexity=min(30.0, (len(z) - 1) / 3), init="pca", random_state=state).fit_transform(z.numpy())
        return torch.from_numpy(np.ascontiguousarray(made)).float()
    from umap import UMAP  # type: ignore[import-not-found]

    return torch.from_numpy(UMAP(random_state=state).fit_transform(z.numpy())).float()


@dataclass(frozen=True, eq=False)
class Description:
    """A map of a data set, what a VAE draws of it, and how well its classes separate.

    map: (N, 2). z: (N, K) mean of q(z|x). galleries: uint8 (rows, columns, C, H, W) of each kind.
    figures: of :func:`probe`, each with the number of images that it rests on, all of them among the ``probed`` ones of
    classes that have enough; none where there are not two such.
    """

    z: Tensor
    map: Tensor
    galleries: dict[str, Tensor]
    figures: dict[str, tuple[float, int]]
    probed: int


def describe_images(
    vae: VAE, images: Images, *, labels: Tensor | None = None, projection: str = "auto", seed: int = 0, steps: int = 9
) -> Description:
    """Where a VAE puts images, and what it draws: reconstructions, a walk along each dimension, one between images.

    >>> from holdfast.models.vae import VAE, VAESettings
    >>> images = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> found = describe_images(VAE(VAESettings((1, 8, 8), latent=2)), images)
    >>> found.map.shape
    torch.Size([12, 2])
    """
    device = next(vae.parameters()).device

    def decode(codes: Tensor) -> Tensor:
        return vae.decode(codes.to(device)).cpu()

    with evaluating(vae), torch.no_grad():
        parts = [vae(x).cpu() for x in float_batches(images, device)]
        require(bool(parts), "there is no image to describe; give at least one")
        z, first = torch.cat(parts), next(float_batches(images, device, batch_size=steps))
        galleries = {
            "reconstructions": torch.stack([first.cpu(), decode(vae(first))]),
            "traversals": _walks(decode, z, steps),
            "interpolations": _between(decode, z, labels, steps),
        }
    if labels is None and not isinstance(images, Tensor) and bool((images.labels >= 0).any()):
        labels = images.labels
    probed = torch.zeros(len(z), dtype=torch.bool)
    if labels is not None:
        probed = (labels >= 0) & (_count(labels)[labels.clamp(min=0)] >= LEAST)
    figures: dict[str, tuple[float, int]] = {}
    if labels is not None and len(torch.unique(labels[probed])) > 1:
        figures = _probe(z[probed], labels[probed], seed)
    as_bytes = {k: v.clamp(0, 1).mul(255).round().to(torch.uint8) for k, v in galleries.items()}
    return Description(z, project(z, how=projection, seed=seed), as_bytes, figures, int(probed.sum()))


def _walks(decode: Callable[[Tensor], Tensor], z: Tensor, steps: int, most: int = 6) -> Tensor:
    """Each dimension from its 2.5th to its 97.5th percentile, the others at their mean; the widest ones first."""
    wide = z.std(0, unbiased=False).argsort(descending=True)[:most]
    low, high = z.quantile(0.025, 0), z.quantile(0.975, 0)
    rows = []
    for k in wide.tolist():
        row = z.mean(0).repeat(steps, 1)
        row[:, k] = torch.linspace(float(low[k]), float(high[k]), steps)
        rows.append(decode(row))
    return torch.stack(rows)


def _between(decode: Callable[[Tensor], Tensor], z: Tensor, labels: Tensor | None, steps: int, most: int = 4) -> Tensor:
    """Straight lines between images, of different classes where they are known."""
    ends = torch.arange(len(z)) if labels is None else torch.stack([
        (labels == label).nonzero()[0, 0] for label in torch.unique(labels)
    ])  # fmt: skip
    chosen = z[ends[: most + 1]] if len(ends) > 1 else z[[0, 0]]
    share = torch.linspace(0, 1, steps)[:, None]
    return torch.stack([decode(torch.lerp(a, b, share)) for a, b in pairwise(chosen)])


def _count(labels: Tensor) -> Tensor:
    """How many samples each class has; those of no class, -1, do not count."""
    return torch.bincount(labels[labels >= 0])


def describe_findings(made: Description, labels: Tensor | None, classes: tuple[str, ...]) -> tuple[Finding, ...]:
    """The description as findings: the probes as numbers, the map and the galleries as evidence."""
    n = len(made.z)
    few = []
    if labels is not None:
        few = [classes[number] for number, count in enumerate(_count(labels).tolist()) if 0 < count < LEAST]
        if bool((labels < 0).any()):
            labels, classes = torch.where(labels < 0, len(classes), labels), (*classes, "no class")
    kept = torch.unique(evenly(n, MOST_POINTS))
    points: dict[str, Any] = {"points": [[round(v, 4) for v in row] for row in made.map[kept].tolist()]}
    if labels is not None:
        points |= {"labels": labels[kept].tolist(), "classes": list(classes)}
    rows = {name: [strip(row) for row in grid] for name, grid in made.galleries.items()}
    settings: dict[str, Any] = {"latent": made.z.shape[1], **({"too_few_to_probe": few} if few else {})}
    drawn = Finding("describe", "map", None, n, settings=settings, evidence={**points, "strips": rows})
    return (drawn, *(Finding("describe", name, *own, settings=settings) for name, own in made.figures.items()))


def strip(images: Tensor) -> str:
    """uint8 images (N, C, H, W) side by side, as a base64 PNG."""
    return png(images.permute(1, 2, 0, 3).flatten(2), longest=LONGEST)


def describe(
    data: ImageSource,
    *,
    out: str | Path | None = None,
    detector: str | Path | FittedDetector | None = None,
    split: str | None = None,
    projection: str = "auto",
    note: Callable[[str], None] | None = None,
    progress: bool | Progress | None = None,
    **training: Any,
) -> tuple[Finding, ...]:
    """A low-dimensional map of a set, reconstructions, and how well its classes separate.

    out: a folder for findings.json and report.html. detector: fitted, or the folder of one, to use its VAE; without
    one, a VAE is trained on the set: on its training part where a validation or test part is described. training:
    root, device, latent, epochs, ... (:class:`VAETrainingSettings`); latent is 2 and epochs 30 by default. progress: a
    bar while it trains; by default on a terminal and in a notebook.

    >>> found = describe("digits", epochs=1, projection="pca", device="cpu")
    >>> [finding.name for finding in found]
    ['map', 'silhouette', 'linear', 'knn']
    """
    how = replace(DESCRIBE_TRAINING, **training)
    check_projection(projection)
    place = None if out is None else claim_folder(out, check="describe", data=data)
    device = resolve_device(how.device)
    where: dict[str, Any] = {"root": how.root, "confine": how.confine, "columns": how.columns}
    if detector is not None:
        vae = load_fitted(detector, device=how.device).vae
        require(vae is not None, f"the detector in {detector} has no VAE; fit it with a score of one, such as elbo")
        assert vae is not None
        images, classes = open_images(data, split=split, shape=vae.settings.shape, note=note, **where)
    else:
        held_out, size = split in ("val", "test"), how.image_size
        own = "train" if held_out else split
        images, classes = open_images(data, split=own, image_size=size, fitting=True, note=note, **where)
        channels, height, width = images.shape
        settings = VAESettings((channels, height, width), how.network, how.latent)
        if note is not None:
            note(f"training a {how.network} VAE with {how.latent} latent dimensions on {len(images)} images")
        loop = MinimiseSettings(how.epochs, how.batch_size, how.lr, seed=how.seed)
        with make_progress(progress) as shown:
            vae = train_vae(images, settings, loop, device=device, progress=shown).model
        if held_out:
            images, classes = open_images(data, split=split, shape=vae.settings.shape, **where)
    labels = images.labels if bool((images.labels >= 0).any()) else None
    made = describe_images(vae, images, labels=labels, projection=projection, seed=how.seed)
    highest = -1 if labels is None else int(labels.max())
    found = describe_findings(made, labels, classes if len(classes) > highest else (*map(str, range(highest + 1)),))
    name = data.name if isinstance(data, Dataset) else str(data) if isinstance(data, (str, Path)) else "images"
    if place is not None:
        measures, model = {"describe": MEASURES}, {"latent": vae.settings.latent}
        write_findings(place / FINDINGS, found, model=model, data={"name": name}, measures=measures)
        report(found, place / PAGE, name=Path(name).name, measures=measures)
    return found
