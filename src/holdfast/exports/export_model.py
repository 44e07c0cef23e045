"""``holdfast.export``: a trained model as a file that other programs run, kept only if it agrees with the run.

In order: the model and images to compare on are found, the file is written beside its place, opened as an audit would
open it, compared with the run in batches of other sizes, and put in place together with its card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn

from holdfast.audits.audit_result import Audit
from holdfast.augment.basic import to_float
from holdfast.data import Dataset, Split
from holdfast.data.unlabelled_images import ImageSource, open_unlabelled
from holdfast.errors import HoldfastError, explaining, require, require_known
from holdfast.exports.export_files import WRITERS, CardFacts, ExportedNetwork, card_page, require_exportable
from holdfast.files import filling, writable_folder
from holdfast.models import load_model, open_model
from holdfast.models.adapters import FixedBatch
from holdfast.models.loaded_model import sample_images
from holdfast.models.saved_model import shape_for
from holdfast.models.source_types import ExportMetadata
from holdfast.models.weights import hash_tensors
from holdfast.module_state import evaluating
from holdfast.reports.findings_file import FindingsFile, read_findings
from holdfast.reports.run_files import RunFiles, redacted
from holdfast.rng import evenly
from holdfast.settings import flatten
from holdfast.settings.command_settings import ExportKind, ExportSettings
from holdfast.train.folder import read_settings
from holdfast.train.preparing import load_data
from holdfast.train.run_result import Run

if TYPE_CHECKING:
    Exportable = str | Path | Run | nn.Module
    """A run folder, the result of a training, or a module."""

FOLDER: Final = "export"
BATCHES: Final = (1, 50)
"""Images at a time while outputs are compared: one, then so many; neither is what the file was made with."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """A file that agrees with its run. path: the file; card: its description in Markdown. images: on how many it was
    compared, of ``compared_on``. difference: largest between any two outputs; largest: the largest output of the run.
    same_class: share of the images on which both name the same class."""

    path: Path
    card: Path
    to: str
    images: int
    compared_on: str
    difference: float
    largest: float
    same_class: float


@dataclass(frozen=True, eq=False)
class _Trained:
    """What is exported: a network of its own on the CPU, what its outputs mean, and where it comes from."""

    net: nn.Module
    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    folder: Path | None = None
    data: Dataset | None = None
    record: RunFiles | None = None


def export(
    model: Exportable,
    *,
    to: ExportKind = "onnx",
    out: str | Path | None = None,
    output: Literal["logits", "probabilities"] = "logits",
    opset: int | None = None,
    data: ImageSource | None = None,
    root: str | Path | None = None,
    images: int = 1000,
    tolerance: float = 1e-4,
    audits: Sequence[str | Path | Audit] = (),
    redact_paths: bool = False,
    overwrite: bool = False,
    note: Tell | None = None,
) -> Exported:
    """Write a trained model as an ONNX, TorchScript or ``torch.export`` file, with a model card beside it.

    model: a run folder, the result of a training, or a module from images in [0, 1] to logits (then with ``data``).
    audits: folders or results of audits of this model, for the card. note: called with lines on what happens.

    The file takes float images (B, C, H, W) in [0, 1], any number of them, at the size the model was trained with:
    normalisation is inside. It is opened again (an ONNX file in onnxruntime), run on up to ``images`` images in batches
    of other sizes, and kept only if no output differs by more than ``tolerance``, as a share of the largest output
    where that is above 1. The settings are the flags of ``holdfast export`` (:class:`ExportSettings`).

    >>> import tempfile, holdfast
    >>> run = holdfast.fit("digits", epochs=1, device="cpu", progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = export(run, to="torchscript", out=f"{folder}/digits.torchscript")
    ...     made.images, made.difference < 1e-4, made.card.name
    (599, True, 'digits.torchscript.md')
    """
    ExportSettings(opset=opset, images=images, tolerance=tolerance)  # refuses numbers out of bounds
    require_known("kind of export", to, WRITERS)
    require_known("output", output, ("logits", "probabilities"))
    require(opset is None or to == "onnx", f"opset {opset} is for ONNX; leave it out with --to {to}")
    tell = note or (lambda text: None)
    trained = _open(model, data, tell)
    require_exportable(to, trained.net)
    path = _place(trained, out, to, overwrite=overwrite)
    digest = hash_tensors(trained.net.state_dict()) or ""
    files = _audit_files(audits, digest, tell)
    source, compared_on = _images(trained, data, root, images, tell)
    says = ExportMetadata(trained.classes, trained.shape[0], trained.shape[1:], output, digest)
    net = ExportedNetwork(trained.net, probabilities=output == "probabilities")
    remedy = "use another --to; a network with control flow may need to be written without it"
    with filling(path.parent) as folder:
        tell(f"writing {path}")
        with explaining(f"{trained.name} cannot be exported to {to}", remedy), torch.no_grad():
            options = {} if opset is None else {"opset": opset}
            WRITERS[to](net, sample_images(trained.shape, torch.device("cpu")), folder / path.name, says, **options)
        tell(f"comparing it with the run on {compared_on}")
        found = _compare(net, folder / path.name, trained.shape, source)
        limit = tolerance * max(1.0, found["largest"])
        require(
            found["difference"] <= limit,
            f"the file does not agree with the run: outputs differ by up to {found['difference']:.3g} on {compared_on}"
            f", and at most {limit:.3g} is accepted; nothing was kept. Use another --to, or a larger --tolerance",
        )
        card = path.with_name(f"{path.name}.md")
        made = Exported(path, card, to, compared_on=compared_on, **found)
        record = trained.record
        if record is not None and redact_paths:
            record = redacted(record)
        facts = CardFacts(trained.name, path.name, to, says, record, files, trained.data, found, compared_on)
        (folder / card.name).write_text(card_page(facts, redact=redact_paths), encoding="utf-8")
    return made


def _open(model: Exportable, data: ImageSource | None, tell: Tell) -> _Trained:
    if isinstance(model, (str, Path)):
        net, card = load_model(model)
        folder = Path(model)
        own = _data_of(folder, tell) if data is None else None
        shape = shape_for(card) or (own.shape if own is not None else None)
        require(shape is not None, f"{folder} does not say the size of its images; give --data")
        assert shape is not None
        name = folder.resolve().name
        return _Trained(net, name, tuple(card.classes), shape, folder, own, RunFiles.read(folder))
    if isinstance(model, Run):
        own, place = model.data, model.out
        name = place.resolve().name if place is not None else f"{model.settings.model.name} on {own.name}"
        record = RunFiles(name, flatten(model.settings) | {"data": own.name}) if place is None else RunFiles.read(place)
        return _Trained(_copied(model.model), name, tuple(own.classes), own.shape, place, own, record)
    require(
        isinstance(model, nn.Module), f"a run folder, the result of a training or a module is needed, got {model!r}"
    )
    remedy = "give the holdfast.data.load(...) of what it was trained on as data"
    require(isinstance(data, Dataset), f"a module says neither its classes nor its image size; {remedy}")
    assert isinstance(data, Dataset)
    return _Trained(_copied(model), type(model).__name__, tuple(data.classes), data.shape, data=data)


def _copied(model: nn.Module) -> nn.Module:
    """On the CPU and in evaluation mode, without touching the caller's."""
    return deepcopy(model).cpu().eval()


def _data_of(run: Path, tell: Tell) -> Dataset | None:
    """The data that a run was trained on, where it is still there."""
    try:
        return load_data(read_settings(run / "run.yaml"))
    except (HoldfastError, OSError) as error:
        tell(f"the data of {run} cannot be read ({error}); outputs are compared on noise unless --data names images")
        return None


def _place(trained: _Trained, out: str | Path | None, to: str, *, overwrite: bool) -> Path:
    require(out is not None or trained.folder is not None, "no place for the file; give out")
    path = Path(out) if out is not None else Path(trained.folder or "", FOLDER, f"model.{to}")
    require(path.suffix == f".{to}", f"out {path} must end in .{to} for --to {to}")
    require(overwrite or not path.exists(), f"{path} exists; replace it with --overwrite, or choose another --out")
    require(path.is_file() or not path.exists(), f"{path} is not a file; choose another --out")
    writable_folder(path.parent)
    return path


def _images(
    trained: _Trained, data: ImageSource | None, root: str | Path | None, most: int, tell: Tell
) -> tuple[Callable[[], Iterator[Tensor]], str]:
    """Batches of float images to compare on, and what they are."""
    own = trained.data
    split: Split | None = None
    name = ""
    if data is not None and not isinstance(data, Dataset):
        split = open_unlabelled(data, root=root, usual="test", shape=trained.shape, note=tell)
        name = str(data) if isinstance(data, (str, Path)) else "the given set"
    elif (known := data if isinstance(data, Dataset) else own) is not None:
        part, split = [*known.splits.items()][-1]
        name = f"the {part} split of {known.name}"
    if split is None or len(split) == 0:
        noise = torch.rand(most, *trained.shape, generator=torch.Generator().manual_seed(0))
        return lambda: iter(_batched(noise)), f"{most} images of noise"
    given = f"images have shape {split.shape} (C, H, W) and the model takes {trained.shape}"
    require(tuple(split.shape) == tuple(trained.shape), f"{given}; give others with --data")
    positions = evenly(len(split), most)
    chosen = split
    return lambda: (to_float(chosen.read(own)) for own in _batched(positions)), f"{len(positions)} images of {name}"


def _batched(rows: Tensor) -> Sequence[Tensor]:
    first, size = BATCHES
    return [part for part in (rows[:first], *torch.split(rows[first:], size)) if len(part)]


@torch.no_grad()
def _compare(
    net: nn.Module, path: Path, shape: tuple[int, int, int], batches: Callable[[], Iterator[Tensor]]
) -> dict[str, Any]:
    """How far the outputs of a file are from those of the network it was made of."""
    opened = open_model(str(path), shape=shape)
    fixed = any(isinstance(module, FixedBatch) for module in opened.model.modules())
    require(not fixed, "the network takes a fixed number of images in this format; use another --to")
    n, difference, largest, same = 0, 0.0, 0.0, 0
    with evaluating(net), evaluating(opened.model):
        for x in batches():
            ours, theirs = net(x).float(), opened.model(x)
            apart = (ours - theirs).abs().max()
            difference = max(difference, float(apart)) if bool(apart.isfinite()) else float("inf")
            largest = max(largest, float(ours.abs().max()))
            same += int((ours.argmax(1) == theirs.argmax(1)).sum())
            n += len(x)
    return {"images": n, "difference": difference, "largest": largest, "same_class": same / n}


def _audit_files(audits: Sequence[str | Path | Audit], digest: str, tell: Tell) -> tuple[FindingsFile, ...]:
    """What audits found; one of another model is refused, for the card would speak of that."""
    files: list[FindingsFile] = []
    for one in audits:
        file = read_findings(Path(one) / "findings.json") if isinstance(one, (str, Path)) else one.files[0]
        theirs = file.model.get("hash")
        what = f"the audit {one if isinstance(one, (str, Path)) else ''} is of other weights ({str(theirs)[:12]}...)"
        require(not theirs or theirs == digest, f"{what}; give an audit of this run")
        if not theirs:
            tell(f"the audit {one} does not say which weights it is of")
        files.append(file)
    return tuple(files)
