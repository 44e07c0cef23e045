"""``holdfast describe``: the low-dimensional map of a set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from holdfast.data.splits import Dataset
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.detect.describe import check_projection, describe_images
from holdfast.detect.describe import findings as describe_findings
from holdfast.detect.monitor import Monitor
from holdfast.detect.tasks.places import FINDINGS, PAGE, claim_folder
from holdfast.detect.tasks.sources import Source
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.models.vae import VAESettings
from holdfast.reports import report, write_findings
from holdfast.train.unlabelled import MinimiseSettings, train_vae
from holdfast.types import Finding


def describe(
    data: Source,
    out: str | Path,
    *,
    detector: str | Path | None = None,
    root: str | Path | None = None,
    split: str | None = None,
    image_size: int | None = None,
    latent: int = 2,
    network: str = "strided",
    projection: str = "auto",
    epochs: int = 30,
    batch_size: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
    device: str = "auto",
    note: Callable[[str], None] | None = None,
) -> tuple[Finding, ...]:
    """The low-dimensional map of a set as findings.json and report.html in the folder ``out``.

    detector: a detector's folder, to use its VAE; without one, a VAE with ``latent`` dimensions is trained on the set.
    """
    check_projection(projection)
    place = claim_folder(out, check="describe")
    where = resolve_device(device)
    if detector is not None:
        vae = Monitor.load(detector, device=where).vae
        require(vae is not None, f"the detector in {detector} has no VAE; fit it with a score of one, such as elbo")
        assert vae is not None
        pictures = open_unlabelled(data, root=root, split=split, shape=vae.settings.shape)
    else:
        pictures = open_unlabelled(data, root=root, split=split, image_size=image_size)
        channels, height, width = pictures.shape
        settings = VAESettings((channels, height, width), network, latent)
        if note is not None:
            note(f"training a {network} VAE with {latent} latent dimensions on {len(pictures)} images")
        vae = train_vae(pictures, settings, MinimiseSettings(epochs, batch_size, lr, seed=seed), device=where).model
    labels = pictures.labels if bool((pictures.labels >= 0).all()) else None
    made = describe_images(vae, pictures, labels=labels, projection=projection, seed=seed)
    classes = data.classes if isinstance(data, Dataset) else _class_names(labels)
    found = describe_findings(made, labels, classes)
    name = data.name if isinstance(data, Dataset) else str(data) if isinstance(data, (str, Path)) else "pictures"
    write_findings(place / FINDINGS, found, model={"latent": vae.settings.latent}, data={"name": name})
    report(found, place / PAGE, name=Path(name).name)
    return found


def _class_names(labels: Tensor | None) -> tuple[str, ...]:
    return () if labels is None else tuple(map(str, range(int(labels.max()) + 1)))
