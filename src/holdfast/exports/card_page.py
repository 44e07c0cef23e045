"""The model card beside an exported file: what it is, how to run it, what it was trained on, what was measured.

Open this file to change what the card says. It is made from files and facts alone, never from a network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from holdfast.data import Dataset
from holdfast.models.export_metadata import ExportMetadata
from holdfast.parts import CHECKS
from holdfast.printable import one_line
from holdfast.reports.findings_file import FindingsFile
from holdfast.reports.markdown import escape, markdown
from holdfast.reports.run_files import RunFiles, hide_folders

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
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n\n# {escape(facts.name)}\n\n{escape(title)}.",
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
    rows = [f"| {i} | {escape(name)} |" for i, name in enumerate(says.classes[:MOST_CLASSES])]
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
        f"It was compared with the trained network on {escape(facts.compared_on)}, in batches of other sizes than it "
        f"was made with: outputs differ by at most {found['difference']:.2g} (the largest is {found['largest']:.3g}), "
        f"and {found['same_class']:.1%} of the predicted classes are the same.",
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
        lines.append(f"{escape(data.name)}: {', '.join(parts)} images of {data.num_classes} classes.")
        counts = data.train.labels.bincount(minlength=data.num_classes).tolist()
        lines.append(f"Training images per class: {min(counts):,} to {max(counts):,}.")
        if data.group_names:
            lines.append(f"Groups: {escape(', '.join(data.group_names))}.")
    elif settings.get("data"):
        lines.append(f"{escape(str(settings['data']))}.")
    else:
        lines.append("Not recorded: the model was given as a module.")
    environment: Mapping[str, Any] = record.environment if record is not None else {}
    if environment.get("data_sha256"):
        lines.append(f"SHA-256 of the data: `{environment['data_sha256']}`.")
    if settings:
        lines += ["", "## Settings", "", "```yaml", yaml.safe_dump(dict(settings), sort_keys=False).strip(), "```"]
    known = [f"{name} {environment[name]}" for name in ("holdfast", "torch", "python", "gpu") if name in environment]
    lines += ["", escape(", ".join([*known, f"weights {facts.says.weights[:12]}"])) + "."]
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


def _limits(facts: CardFacts) -> str:
    height, width = facts.says.size
    files = _files(facts)
    measured = {record.name for file in files for record in file.checks if record.state == "measured"}
    measured |= {finding.check for file in files for finding in file.findings}
    missing = [part.name for part in CHECKS.values() if part.name not in measured]
    lines = [f"Images must be brought to {height}x{width} pixels as for training; other sizes are refused."]
    lines += [f"Not measured: {', '.join(missing)}."] if missing else []
    lines += list(dict.fromkeys(text for file in files for text in file.warnings))
    return "\n".join(["## Limits", "", *(f"- {escape(line)}" for line in lines)])
