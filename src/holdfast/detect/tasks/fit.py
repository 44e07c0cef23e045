"""``holdfast detect fit``: pictures, a detector learned from them, its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.detect.fitting import fit_monitor
from holdfast.detect.monitor import Monitor
from holdfast.detect.tasks.sources import DETECTOR, Source, shape_for
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.files import writable_folder
from holdfast.models import load_model
from holdfast.models.vae import VAESettings
from holdfast.train.unlabelled import MinimiseSettings


def detect_fit(
    data: Source,
    out: str | Path | None = None,
    *,
    scores: Sequence[str] = ("fused",),
    run: str | Path | None = None,
    root: str | Path | None = None,
    image_size: int | None = None,
    network: str = "strided",
    latent: int = 16,
    beta: float = 1.0,
    sigma: float | None = None,
    encoder: str = "convnet",
    changes: bool = False,
    epochs: int = 20,
    encoder_epochs: int = 10,
    batch_size: int = 128,
    lr: float = 1e-3,
    combine: str = "mean",
    held_out: float = 0.2,
    false_alarm_rate: float = 0.05,
    seed: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    note: Callable[[str], None] | None = None,
) -> Monitor:
    """Learn what is normal from ``data``, every picture of which is, and write the detector to the folder ``out``.

    run: a trained run whose classifier is to be watched; its features are scored then, and the detector goes into the
    run unless ``out`` says otherwise, where ``predict`` finds it.
    """
    require(out is not None or run is not None, "where shall the detector go? give out, or the run it belongs to")
    out = writable_folder(Path(run or "") / DETECTOR if out is None else out)
    require(not (out / "detector.json").exists(), f"{out} holds a detector already; choose another place")
    where = resolve_device(device)
    classifier, card = (None, None) if run is None else load_model(run)
    split = open_unlabelled(data, root=root, shape=shape_for(card), image_size=image_size)
    channels, height, width = split.shape
    monitor = fit_monitor(
        split,
        scores=scores[0] if len(scores) == 1 else scores,
        classifier=None if classifier is None else classifier.to(where),
        card=card,
        vae=VAESettings((channels, height, width), network, latent, sigma, beta),
        vae_loop=MinimiseSettings(epochs, batch_size, lr, precision=precision, seed=seed),
        encoder=encoder,
        encoder_loop=MinimiseSettings(
            encoder_epochs, batch_size, 2 * lr, schedule="cosine", precision=precision, seed=seed
        ),
        changes=changes,
        combine=combine,
        held_out=held_out,
        false_alarm_rate=false_alarm_rate,
        seed=seed,
        device=where,
        note=note,
    )
    monitor.save(out)
    return monitor
