"""``holdfast data make``: sets with a known shortcut or known anomalies, with a manifest of what is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.data.anomalies import FILE, save_anomalies
from holdfast.data.anomaly_making import make_fashion_anomalies
from holdfast.data.biased import VARIANTS, make_biased
from holdfast.data.load_data import load
from holdfast.data.readers.corrupted_cifar10 import KINDS, make_corrupted_cifar10
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.settings.training import CONFLICT

USES = {
    "corrupted-cifar10": ("kind", "conflict", "severity", "frost", "device"),
    **dict.fromkeys(VARIANTS, ("data", "image_size", "conflict")),
    "fashion-anomalies": ("anomalies", "strength"),
}
"""Which settings each set is made with, besides its place and its seed."""


def make_data(
    what: str,
    out: str | Path,
    *,
    note: Callable[[str], None] = lambda text: None,
    root: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    **settings: Any,
) -> str:
    """Make a set and say in one line what it holds.

    settings: those of ``USES``, None for the default. Those that the set does not use are refused.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        users = [made for made, names in USES.items() if name in names]
        require(what in users, f"{name} {value} is for {', '.join(users)}, not for {what}; leave it out")
    require(what not in VARIANTS or "data" in given, f"{what} is added to a set: name it with --data")
    require(0 <= seed < 2**63, f"seed must be in 0..2**63-1, got {seed}")
    file = Path(out) / FILE if what == "fashion-anomalies" else Path(out)
    require(file.suffix == ".npz", f"out must end in .npz, got {file}")
    remedy = "replace it with --overwrite or choose another --out"
    require(overwrite or not file.exists(), f"{file} exists already; {remedy}")
    where = resolve_device(given.pop("device", "cpu"))
    if what == "fashion-anomalies":
        severity = given.get("strength", 0.5)
        made = make_fashion_anomalies(root=root, shares=given.get("anomalies"), severity=severity, seed=seed)
        folder = save_anomalies(made, out)
        kinds = ", ".join(f"{count} {kind}" for kind, count in made.manifest["anomalies_per_set"].items() if count)
        sizes = f"{len(made.unlabeled):,} garments without and {len(made.labeled):,} with label"
        return f"{folder}: {sizes}; {len(made.sets)} test sets with anomalies ({kinds} each)"
    if what == "corrupted-cifar10":
        source = load("cifar10", root=root)
        chosen: dict[str, Any] = {"kind": "dfa", "conflict": CONFLICT} | given
        frost = chosen.pop("frost", None)
        note(f"corrupting {len(source.train) + len(source.test or ()):,} images")
        if "frost" in KINDS.get(chosen["kind"], ()) and frost is None:
            note("frost textures are drawn from noise; --frost takes a folder of photographs")
        manifest = make_corrupted_cifar10(source, out=out, **chosen, seed=seed, device=where, frost_folder=frost)
    else:
        source = load(given["data"], root=root, image_size=given.get("image_size"))
        for own in source.notes:
            note(str(own))
        manifest = make_biased(source, what, out=out, conflict=given.get("conflict", CONFLICT), seed=seed)
    train = manifest.counts["train"]
    return f"{out}: {train['samples']} training images, {train['conflicting']} of them bias-conflicting"
