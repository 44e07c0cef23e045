"""One part of each kind in a single file outside the package, registered by an entry point: nothing else knows them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forking import ForkServer

Holdfast = Callable[..., str]

PARTS = '''
"""Eight parts of another package."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ascents import Sam
from holdfast.detect.detectors import Detector
from holdfast.methods import Method
from holdfast.models.source_types import ModelSource, SourceModel
from holdfast.parts import ascent, check, corruption, detector, method, reader, source, tracker
from holdfast.types import Finding, Measure, Needs, Unit, View, Views


@method("mirrored", about="Train on the images and their mirror images.")
@dataclass(frozen=True)
class Mirrored(Method):
    share: float = 0.5
    """Weight of the mirror images."""

    def views(self, batch, *, model, state, rng):
        weight = batch.x.new_full((len(batch),), self.share)
        return Views((View(batch.x, batch.y), View(batch.x.flip(3), batch.y, weight)))


@ascent("sam-signs", about="SAM along the signs of the gradient.")
@dataclass(frozen=True)
class SamSigns(Sam):
    scale: float = 1.0
    """Nothing but a setting of its own."""

    def direction(self, step, drawn, others):
        found = step.gradients(drawn)
        for p in step.trained():
            if p.grad is not None:
                p.grad = p.grad.sign() * self.scale
        return found


@check(
    "darkness",
    title="In the dark",
    about="Accuracy on darkened images.",
    needs=Needs.IMAGES | Needs.MODEL,
    measures=(
        Measure("dark_accuracy", "accuracy in the dark", gate=True, headline=True),
        Measure("dark_level", "how dark", Unit.NUMBER, "neither"),
    ),
)
@dataclass(frozen=True)
class Darkness:
    level: float = 0.5
    """What images are multiplied by."""

    def run(self, subject):
        import torch

        from holdfast.metrics import wilson_interval

        images = subject.split.read(torch.arange(len(subject.split))).float() / 255
        with torch.no_grad():
            right = subject.model(images * self.level).argmax(1) == subject.split.labels
        low, high = wilson_interval(int(right.sum()), len(right))
        yield Finding("darkness", "dark_accuracy", float(right.float().mean()), len(right), low, high)
        yield Finding("darkness", "dark_level", self.level, len(right))


@detector("first-feature", about="The first feature alone.", reads=("features",))
class FirstFeature(Detector):
    def learn(self, features):
        return {"mean": features.features[:, 0].mean()}

    def compute(self, features):
        return (features.features[:, 0] - self.state["mean"]).abs()


@corruption("negative", about="White becomes black.", random=False)
def negative(x, *, severity, generator):
    return x + (1 - 2 * x) * severity / 5


@reader("stripes", about="Stripes that tell the class.", names=("stripes",), suffixes=(".stripes",))
def read_stripes(source, options):
    import torch

    from holdfast.data import ArraySplit, Dataset

    def split(n, seed):
        labels = torch.arange(n) % 2
        images = torch.randint(0, 90, (n, 1, 16, 16), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        for i, label in enumerate(labels.tolist()):
            images[i, :, label :: 2] += 120
        return ArraySplit(images, labels)

    return Dataset("stripes", ("even", "odd"), train=split(96, 1), test=split(64, 2))


@source("tiny", about="A linear network.", syntax="tiny:NAME", prefix="tiny:")
class Tiny(ModelSource):
    def names(self):
        return ["linear"]

    def build(self, name, *, num_classes, channels, image_size, pretrained):
        from torch import nn

        layers = [nn.AdaptiveAvgPool2d(16), nn.Flatten(), nn.Linear(256 * channels, 8), nn.ReLU()]
        return SourceModel(nn.Sequential(*layers, nn.Linear(8, num_classes)))


@tracker("notebook", about="A text file of one's own.", package="json")
class Notebook:
    def start(self, run):
        self.lines = [f"{run.name} {run.settings['data']}"]
        return "page 1"

    def log(self, values, step):
        self.lines.append(f"step {step} loss {values['main/train_loss']:.3f}")

    def finish(self, results, files, status):
        self.lines += [f"{name} {value}" for name, value in results.items()]
        self.lines += [status, *(path.name for path in files), ""]
        with open("notebook.txt", "a") as file:
            file.write("\\n".join(self.lines))
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file and the metadata that pip would install with it."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "seven_parts.py").write_text(PARTS, encoding="utf-8")
    info = folder / "seven_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seven-parts\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[holdfast]\nseven = seven_parts\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def holdfast(place: Path) -> Iterator[Holdfast]:
    """What a command prints, in an interpreter that was started where the package is installed."""
    env = {**os.environ, "COLUMNS": "200"}
    with ForkServer(place) as server:

        def command(*words: str, code: int = 0) -> str:
            done = server.run([*words], cwd=place, env=env)
            assert done.wait() == code, done.stdout + done.stderr
            return done.stdout

        yield command


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("methods", "mirrored .*Train on the images and their mirror images."),
        ("ascents", "sam-signs .*SAM along the signs of the gradient."),
        ("checks", "darkness .*Accuracy on darkened images."),
        ("measures", "dark_accuracy .*accuracy in the dark"),
        ("detectors", "first-feature .*The first feature alone."),
        ("corruptions", "negative .*White becomes black."),
        ("data", "stripes .*Stripes that tell the class."),
        ("sources", "tiny:NAME .*A linear network."),
        ("models", "tiny:linear"),
        ("trackers", "notebook .*A text file of one's own."),
    ],
)
def test_it_is_listed(holdfast: Holdfast, kind: str, line: str) -> None:
    assert re.search(rf"^{line}", holdfast("list", kind), re.M)


@pytest.mark.slow
def test_it_is_explained_by_help(holdfast: Holdfast) -> None:
    train = holdfast("train", "--method", "mirrored", "--ascent", "sam-signs", "--help")
    assert "mirrored" in train
    assert "Weight of the mirror images." in train
    assert "Nothing but a setting of its own." in train
    audit = holdfast("audit", "--help")
    assert "darkness" in audit
    assert "tiny:NAME" in audit
    assert "first-feature" in holdfast("detect", "fit", "--help")


@pytest.mark.slow
def test_it_trains_audits_gates_reports_and_detects(place: Path, holdfast: Holdfast) -> None:
    common = ("--device", "cpu", "--quiet")
    words = ("train", "--data", "stripes", "--model", "tiny:linear", "--method", "mirrored", "--ascent", "sam-signs")
    holdfast(*words, "--epochs", "8", "--lr", "0.1", "--out", "run", "--track", "notebook", *common)
    noted = (place / "notebook.txt").read_text(encoding="utf-8").splitlines()
    assert noted[0] == "run stripes"
    assert sum(line.startswith("step ") for line in noted) == 8
    assert noted[-5:] == ["finished", "run.yaml", "metrics.jsonl", "findings.json", "report.html"]
    wanted = ("--checks", "accuracy", "corruptions", "darkness", "--set", "darkness.level=0.8")
    kinds = ("--set", "corruptions.kinds=negative")
    audit = ("audit", "run", "--data", "stripes", *wanted, *kinds, "--out", "audit", *common)
    shown = holdfast(*audit, "--fail-under", "dark_accuracy=0.01", "--track", "notebook")
    noted = (place / "notebook.txt").read_text(encoding="utf-8").splitlines()[len(noted) :]
    assert noted[0] == "audit stripes"
    assert any(line.startswith("dark_accuracy ") for line in noted), "a headline of a check of its own"
    assert "accuracy in the dark" in shown
    findings = json.loads((place / "audit" / "findings.json").read_text(encoding="utf-8"))
    (dark,) = (f for f in findings["findings"] if f["name"] == "dark_accuracy")
    assert dark["n"] == 64
    assert any(f["where"].get("corruption") == "negative" for f in findings["findings"])
    assert [(g["measure"], g["passed"]) for g in findings["gates"]] == [("dark_accuracy", True)]
    for page, word in (("report.html", "accuracy in the dark"), ("summary.md", "accuracy in the dark"),
                       ("junit.xml", "dark_accuracy")):  # fmt: skip
        assert word in (place / "audit" / page).read_text(encoding="utf-8"), page
    assert "negative" in (place / "audit" / "report.html").read_text(encoding="utf-8")
    black = ("--checks", "darkness", "--set", "darkness.level=0", "--fail-under", "dark_accuracy=0.9")
    holdfast("audit", "run", "--data", "stripes", *black, "--out", "black", *common, code=1)
    fit = ("detect", "fit", "--data", "stripes", "--run", "run", "--scores", "first-feature", "--out", "detector",
           "--false-alarm-rate", "0.2")  # fmt: skip
    holdfast(*fit, "--device", "cpu")
    scored = holdfast("detect", "score", "detector", "--data", "stripes", "--out", "scores.csv", "--device", "cpu")
    assert "scores.csv" in scored
    assert len((place / "scores.csv").read_text(encoding="utf-8").splitlines()) >= 65


def test_a_part_that_fails_to_import_is_named_and_the_rest_works(place: Path, tmp_path: Path) -> None:
    (tmp_path / "broken_parts.py").write_text("raise RuntimeError('no luck')", encoding="utf-8")
    info = tmp_path / "broken_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-parts\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[holdfast]\nbroken = broken_parts\n", encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, "-m", "holdfast", "list", "methods"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "erm" in done.stdout
    assert "the parts of broken-parts were not loaded" in done.stderr
    assert "no luck" in done.stderr
    assert "RuntimeWarning" not in done.stderr
