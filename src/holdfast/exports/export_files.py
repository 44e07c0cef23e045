"""The files of an export: the network as ONNX, TorchScript or torch.export file, and the model card beside it.

Open this file to change what is written. Each writer takes a network on the CPU in evaluation mode, images
(2, C, H, W) to follow it with, the file to write and what the file says of itself. The number of images is left open;
their size is not. The card says what the model is, how to run it, what it was trained on and what was measured; it is
made from files and facts alone, never from a network.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from torch import Tensor, nn

from holdfast.data import Dataset
from holdfast.errors import require
from holdfast.models.source_types import KEY, MEMBER, ExportMetadata
from holdfast.parts import CHECKS
from holdfast.printable import one_line
from holdfast.reports.findings_file import FindingsFile
from holdfast.reports.renderings import markdown, markdown_text
from holdfast.reports.run_files import RunFiles, hide_folders

ONNX_PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
LARGEST_ONNX: Final = 2 * 1024**3 - 64 * 1024**2
"""Bytes of weights in one file: what protocol buffers hold, less room for the graph."""


class ExportedNetwork(nn.Module):
    """Images (B, C, H, W) in [0, 1] to logits or probabilities (B, K), by the names that a file calls them."""

    def __init__(self, net: nn.Module, *, probabilities: bool) -> None:
        super().__init__()
        self.net, self.probabilities = net, probabilities
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits.softmax(1) if self.probabilities else logits


def write_onnx(net: nn.Module, images: Tensor, path: Path, says: ExportMetadata, *, opset: int | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on its own translation, which nobody can act on
        program: Any = torch.onnx.export(
            net,
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=[says.output],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            opset_version=opset,
            verbose=False,
        )
    program.model.metadata_props[KEY] = says.to_json()
    program.save(str(path), external_data=False)


def write_torchscript(net: nn.Module, images: Tensor, path: Path, says: ExportMetadata) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises its successor; what a trace misses the comparison finds
        traced: Any = torch.jit.trace(net, images, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path), _extra_files={MEMBER: says.to_json()})


def write_pt2(net: nn.Module, images: Tensor, path: Path, says: ExportMetadata) -> None:
    dynamic = {"images": {0: torch.export.Dim("batch")}}
    program = torch.export.export(net, (images,), dynamic_shapes=dynamic)
    torch.export.save(program, str(path), extra_files={MEMBER: says.to_json()})


WRITERS: Final[dict[str, Callable[..., None]]] = {
    "onnx": write_onnx,
    "torchscript": write_torchscript,
    "pt2": write_pt2,
}


def require_exportable(to: str, net: nn.Module) -> None:
    """Refuse what could not be written or compared, before any work."""
    if to != "onnx":
        return
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    require(not missing, f"exporting to onnx needs {', '.join(missing)}; run: pip install 'holdfast[onnx]'")
    size = sum(value.nbytes for value in net.state_dict().values())
    require(size <= LARGEST_ONNX, f"an .onnx file holds 2 GiB, and these weights are {size:,} bytes; use --to pt2")


MOST_CLASSES = 200
"""Classes in the card's table; the file itself names them all."""
USE = {
    "onnx": """\
import numpy, onnxruntime
session = onnxruntime.InferenceSession({file!r})
images = numpy.zeros((4, {channels}, {height}, {width}), dtype=numpy.float32)  # in [0, 1]
({output},) = session.run(None, {{"images": images}})""",
    "torchscript": """\
import torch
model = torch.jit.load({file!r})
{output} = model(torch.zeros(4, {channels}, {height}, {width}))  # images in [0, 1]""",
    "pt2": """\
import torch
model = torch.export.load({file!r}).module()
{output} = model(torch.zeros(4, {channels}, {height}, {width}))  # images in [0, 1]""",
}


@dataclass(frozen=True, eq=False)
class CardFacts:
    """What a card is made from. record: the run's files, None for a module. audits: findings of this model. data: the
    training data, where it was at hand. compared: images, difference, largest and same_class of the comparison."""

    name: str
    file: str
    to: str
    says: ExportMetadata
    record: RunFiles | None
    audits: tuple[FindingsFile, ...]
    data: Dataset | None
    compared: Mapping[str, Any]
    compared_on: str


def card_page(facts: CardFacts, *, redact: bool = False) -> str:
    """The card in Markdown, with the header that model hubs read."""
    settings: dict[str, Any] = dict(facts.record.settings) if facts.record is not None else {}
    network = str(settings.get("model", facts.name))
    header = {
        "library_name": "holdfast",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", facts.to],
    }
    title = f"An image classifier with {len(facts.says.classes)} classes: {network}"
    sections = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {markdown_text(facts.name)}",
        f"{markdown_text(title)}.",
        _use(facts),
        _training(facts, settings),
        _results(facts),
        _limits(facts),
    ]
    page = "\n\n".join(filter(None, sections)) + "\n"
    return str(hide_folders(page)) if redact else page


def _use(facts: CardFacts) -> str:
    says, found = facts.says, facts.compared
    height, width = says.size
    colours = {1: "grey", 3: "red, green, blue"}.get(says.channels, f"{says.channels} channels")
    code = USE[facts.to].format(file=facts.file, channels=says.channels, height=height, width=width, output=says.output)
    rows = [f"| {i} | {markdown_text(name)} |" for i, name in enumerate(says.classes[:MOST_CLASSES])]
    more = len(says.classes) - MOST_CLASSES
    return "\n".join([
        "## Use",
        "",
        f"`{one_line(facts.file)}` takes float32 images of shape (batch, {says.channels}, {height}, {width}), "
        f"{colours}, in [0, 1], any number at a time, and returns {says.output} (batch, {len(says.classes)}). "
        "Normalisation is inside.",
        "",
        "```python",
        code,
        "```",
        "",
        f"It was compared with the trained network on {markdown_text(facts.compared_on)}, in batches of other sizes "
        f"than it was made with: outputs differ by at most {found['difference']:.2g} (the largest is "
        f"{found['largest']:.3g}), and {found['same_class']:.1%} of the predicted classes are the same.",
        "",
        "| output | class |",
        "|---:|---|",
        *rows,
        *([f"\n{more} more are named in the file."] if more > 0 else []),
    ])  # fmt: skip


def _training(facts: CardFacts, settings: Mapping[str, Any]) -> str:
    record, data, lines = facts.record, facts.data, ["## Training data", ""]
    if data is not None:
        parts = [f"{len(split):,} {name}" for name, split in data.splits.items()]
        lines.append(f"{markdown_text(data.name)}: {', '.join(parts)} images of {data.num_classes} classes.")
        counts = data.train.labels.bincount(minlength=data.num_classes).tolist()
        lines.append(f"Training images per class: {min(counts):,} to {max(counts):,}.")
        if data.group_names:
            lines.append(f"Groups: {markdown_text(', '.join(data.group_names))}.")
    elif settings.get("data"):
        lines.append(f"{markdown_text(str(settings['data']))}.")
    else:
        lines.append("Not recorded: the model was given as a module.")
    environment: Mapping[str, Any] = record.environment if record is not None else {}
    if environment.get("data_sha256"):
        lines.append(f"SHA-256 of the data: `{environment['data_sha256']}`.")
    if settings:
        lines += ["", "## Settings", "", "```yaml", yaml.safe_dump(dict(settings), sort_keys=False).strip(), "```"]
    known = [f"{name} {environment[name]}" for name in ("holdfast", "torch", "python", "gpu") if name in environment]
    lines += ["", markdown_text(", ".join([*known, f"weights {facts.says.weights[:12]}"])) + "."]
    if environment.get("command"):
        lines += ["", "Train it again:", "", f"    {one_line(str(environment['command']))}"]
    return "\n".join(lines)


def _files(facts: CardFacts) -> list[FindingsFile]:
    own = [facts.record.file()] if facts.record is not None and facts.record.findings else []
    return [*facts.audits, *own]


def _results(facts: CardFacts) -> str:
    files = _files(facts)
    if not files:
        return "## Audit results\n\nNone: nothing was measured yet. Run `holdfast audit`, and export with `--audits`."
    parts = [markdown([file]) for file in files]  # one by one: they may be on different data
    return "\n\n".join(["## Audit results", *(re.sub("^#", "##", part, flags=re.MULTILINE).strip() for part in parts)])


def _fitting(facts: CardFacts) -> str:
    """How training brought an image to its size; nothing for a module, which was trained elsewhere."""
    height, width = facts.says.size
    if facts.record is None:
        return ""
    if height == width:
        return f" as for training: the short side is resized to {height} and the centre cut out"
    part = "the largest part at the centre that has these proportions is cut out and resized"
    return f" as for training: {part}"


def _limits(facts: CardFacts) -> str:
    height, width = facts.says.size
    files = _files(facts)
    measured = {record.name for file in files for record in file.checks if record.state == "measured"}
    measured |= {finding.check for file in files for finding in file.findings}
    missing = [part.name for part in CHECKS.values() if part.name not in measured]
    lines = [f"Images must be brought to {height}x{width} pixels{_fitting(facts)}. Other sizes are refused."]
    lines += [f"Not measured: {', '.join(missing)}."] if missing else []
    lines += list(dict.fromkeys(text for file in files for text in file.warnings))
    return "\n".join(["## Limits", "", *(f"- {markdown_text(line)}" for line in lines)])
