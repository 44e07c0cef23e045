"""``holdfast data make``: sets with a known shortcut or known anomalies, with a manifest of what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.data.anomalies import FILE, save_anomalies
from holdfast.data.anomaly_making import make_fashion_anomalies
from holdfast.data.biased import VARIANTS, Manifest, make_biased
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

STRENGTH = 0.5
"""How badly anomalies are damaged by default."""


def make_data(
    what: str,
    out: str | Path,
    *,
    data: str | None = None,
    root: str | None = None,
    image_size: int | None = None,
    kind: str | None = None,
    conflict: float | None = None,
    severity: int | None = None,
    frost: str | None = None,
    anomalies: Mapping[str, float] | None = None,
    strength: float | None = None,
    seed: int = 0,
    device: str | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] | None = None,
) -> str:
    """Make a set and say in one line what it holds. Settings that it does not use are refused."""
    given: dict[str, object] = {"data": data, "kind": kind, "conflict": conflict, "severity": severity, "frost": frost}
    given |= {"device": device, "anomalies": anomalies, "strength": strength, "image_size": image_size}
    for name, value in given.items():
        users = [made for made, names in USES.items() if name in names]
        require(
            value is None or what in users, f"{name} {value} is for {', '.join(users)}, not for {what}; leave it out"
        )
    require(what not in VARIANTS or data is not None, f"{what} is added to a set: name it with --data")
    require(0 <= seed < 2**63, f"seed must be in 0..2**63-1, got {seed}")
    file = Path(out) / FILE if what == "fashion-anomalies" else Path(out)
    require(file.suffix == ".npz", f"out must end in .npz, got {file}")
    require(
        overwrite or not file.exists(), f"{file} exists already; replace it with --overwrite or choose another --out"
    )
    where = resolve_device(device or "cpu")
    conflict = CONFLICT if conflict is None else conflict
    note = note or (lambda text: None)
    if what == "fashion-anomalies":
        made = make_fashion_anomalies(
            root=root, shares=anomalies, severity=STRENGTH if strength is None else strength, seed=seed
        )
        folder = save_anomalies(made, out)
        kinds = ", ".join(f"{count} {kind}" for kind, count in made.manifest["anomalies_per_set"].items() if count)
        sizes = f"{len(made.unlabeled):,} garments without and {len(made.labeled):,} with label"
        return f"{folder}: {sizes}; {len(made.sets)} test sets with anomalies ({kinds} each)"
    if what == "corrupted-cifar10":
        source = load("cifar10", root=root)
        kind = kind or "dfa"
        note(f"corrupting {len(source.train) + len(source.test or ()):,} images")
        if "frost" in KINDS.get(kind, ()) and frost is None:
            note("frost textures are drawn from noise; --frost takes a folder of photographs")
        chosen: dict[str, Any] = {"kind": kind, "conflict": conflict, "severity": severity, "seed": seed}
        return _describe(out, make_corrupted_cifar10(source, out=out, **chosen, device=where, frost_folder=frost))
    assert data is not None
    source = load(data, root=root, image_size=image_size)
    for own in source.notes:
        note(str(own))
    return _describe(out, make_biased(source, what, out=out, conflict=conflict, seed=seed))


def _describe(out: str | Path, manifest: Manifest) -> str:
    train = manifest.counts["train"]
    return f"{out}: {train['samples']} training images, {train['conflicting']} of them bias-conflicting"
