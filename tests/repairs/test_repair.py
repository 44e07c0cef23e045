"""``holdfast repair`` and ``holdfast.repair`` as users call them, on runs of small sets with a planted shortcut."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast
from holdfast.cli import main
from holdfast.data import ArraySplit, Dataset
from holdfast.detect.features import ClassifierExtractor, extract
from holdfast.errors import HoldfastError
from holdfast.models import load_model
from holdfast.repairs import repair
from holdfast.train import fit

QUICK: dict[str, Any] = {"device": "cpu", "workers": 0, "strengths": (0.1, 1.0), "repeats": 2}


def split(n: int, *, conflict: float, seed: int, groups: bool = True) -> ArraySplit:
    """The class is the half that is brighter, faintly; the group, loud, is the brightness of a corner."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    group = torch.where(torch.rand(n, generator=generator) < conflict, 1 - y, y)
    images = torch.randint(0, 120, (n, 1, 8, 8), generator=generator, dtype=torch.uint8)
    images[y == 1, :, :, 4:] += 30
    images[y == 0, :, :, :4] += 30
    images[group == 1, :, :3, :3] += 120
    return ArraySplit(images, y, group if groups else None)


def shortcut_data(*, val: float | None = 0.5, groups: bool = True) -> Dataset:
    return Dataset(
        "corners",
        ("left", "right"),
        train=split(400, conflict=0.01, seed=1, groups=groups),
        val=None if val is None else split(200, conflict=val, seed=2, groups=groups),
        test=split(400, conflict=0.5, seed=3),
        group_names=("dark", "bright"),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "erm"
    fit(shortcut_data(), epochs=3, optimizer="adamw", lr=3e-3, batch_size=32, device="cpu", out=out, progress=False)
    return out


def accuracies(model: torch.nn.Module, data: Dataset) -> float:
    assert data.test is not None
    with torch.no_grad():
        right = model(data.test.read(torch.arange(len(data.test))) / 255).argmax(1) == data.test.labels
    cells = data.test.labels * 2 + data.test.groups
    return min(float(right[cells == cell].double().mean()) for cell in range(4))


@pytest.mark.parametrize("by", ["dfr", "afr"])
def test_a_new_last_layer_raises_worst_group_accuracy_and_leaves_the_rest(run: Path, by: str, tmp_path: Path) -> None:
    data = shortcut_data()
    before = (run / "model.safetensors").read_bytes()
    made = repair(run, data=data, by=by, out=tmp_path / "new", **QUICK)
    old, new = load_model(run)[0], load_model(tmp_path / "new")[0]
    assert made.audit is not None
    assert accuracies(new, data) > accuracies(old, data) + 0.1
    assert set(made.chosen) == ({"C"} if by == "dfr" else {"gamma", "pull"})
    assert json.loads((tmp_path / "new/repair.json").read_text())["chosen"] == made.chosen
    assert made.audit["worst_group_accuracy"].value == pytest.approx(accuracies(new, data))
    changed = {k for k, v in new.state_dict().items() if not torch.equal(v, old.state_dict()[k])}
    assert len(changed) == 2, "weight and bias of the last layer"
    assert (run / "model.safetensors").read_bytes() == before


def test_confidence_is_calibrated_and_the_threshold_leaves_the_share_that_was_asked_for(
    run: Path, tmp_path: Path
) -> None:
    data = shortcut_data()
    made = repair(run, data=data, by="none", coverage=0.7, out=tmp_path / "new", **QUICK)
    assert data.val is not None
    old, new = (extract(ClassifierExtractor(load_model(p)[0]), data.val).logits for p in (run, made.out))
    assert old is not None and new is not None  # noqa: PT018
    torch.testing.assert_close(new * made.temperature, old, atol=1e-4, rtol=1e-4)
    loss = [
        float(torch.nn.functional.cross_entropy(old / (made.temperature * f), data.val.labels)) for f in (0.97, 1, 1.03)
    ]
    assert loss[1] == min(loss)
    assert float((new.softmax(1).max(1).values >= made.threshold - 1e-6).double().mean()) == pytest.approx(
        0.7, abs=0.01
    )
    found = json.loads((made.out / "findings.json").read_text())["findings"]
    names = {(f["name"], f["where"].get("model")) for f in found if f["check"] == "repair"}
    assert {("selective_error", "before"), ("selective_error", "after"), ("risk_coverage_area", "after")} <= names


def test_the_test_split_has_no_say(run: Path, tmp_path: Path) -> None:
    data = shortcut_data()
    assert data.test is not None
    flipped = replace(data, test=ArraySplit(data.test.read(torch.arange(400)), 1 - data.test.labels, data.test.groups))
    first, second = (
        repair(run, data=d, out=tmp_path / n, checks=("accuracy",), **QUICK) for d, n in ((data, "a"), (flipped, "b"))
    )
    assert first.out.joinpath("model.safetensors").read_bytes() == second.out.joinpath("model.safetensors").read_bytes()
    assert first.threshold == second.threshold


def test_without_groups_it_is_afr_and_without_a_validation_split_it_says_what_it_fits_on(
    run: Path, tmp_path: Path
) -> None:
    data = shortcut_data(val=None, groups=False)
    made = repair(run, data=data, out=tmp_path / "new", audit=False, held_out=0.25, **QUICK)
    assert (made.by, made.held_out) == ("afr", 100)
    assert made.fitted_on == "25% of every class of the training split of corners (seed 0)"
    with pytest.raises(HoldfastError, match="dfr needs held-out images of at least two groups, and there are 0"):
        repair(run, data=data, by="dfr", out=tmp_path / "other", **QUICK)
    assert not (tmp_path / "other").exists()


def test_images_that_the_run_was_trained_on_are_warned_of(tmp_path: Path) -> None:
    data, path = shortcut_data(val=None), tmp_path / "corners.npz"
    assert data.test is not None
    arrays = {"train": data.train, "test": data.test}
    images = {f"x_{name}": own.read(torch.arange(len(own))).numpy() for name, own in arrays.items()}
    np.savez(path, **images, **{f"y_{name}": own.labels.numpy() for name, own in arrays.items()})
    for out, val, warned in (("seen", 0.0, ["fitted-on-training-images"]), ("new", 0.5, [])):
        fit(path, val=val, epochs=1, device="cpu", out=tmp_path / out, progress=False)
        made = repair(tmp_path / out, audit=False, gammas=(1.0,), pulls=(0.1,), out=tmp_path / f"{out}-afr", **QUICK)
        assert [note.code for note in made.notes if note.code == "fitted-on-training-images"] == warned


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "magic"}, "unknown by 'magic'"),
        ({"coverag": 0.5}, "unknown repair key 'coverag'; did you mean 'coverage'"),
        ({"gammas": (-1.0,)}, "gammas must be finite numbers >= 0"),
        ({"pulls": (0.0,)}, "pulls must be finite numbers > 0, got \\[0.0\\]"),
        ({"by": "afr", "gammas": ()}, "gammas must be finite numbers >= 0, got \\[\\]"),
        ({"strengths": ()}, "strengths must be finite numbers > 0, got \\[\\]"),
        ({"coverage": 1.5}, r"coverage must be in \(0, 1\], got 1.5"),
        ({"checks": ("nonsense",)}, "unknown check 'nonsense'"),
        ({"risk": 1e-4}, "no confidence bounds the error"),
        ({"by": "none", "temperature": False, "coverage": 1.0}, "changes nothing"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    run: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(HoldfastError, match=message):
        repair(run, data=shortcut_data(), out=tmp_path / "new", **{**QUICK, **settings})
    assert not (tmp_path / "new").exists()


def test_other_classes_and_other_folders_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"corners has the classes a, b, the model left, right"):
        repair(run, data=replace(shortcut_data(), classes=("a", "b")), **QUICK)
    with pytest.raises(HoldfastError, match="is the run itself"):
        repair(run, data=shortcut_data(), out=run, **QUICK)
    with pytest.raises(HoldfastError, match="was trained on a set in memory, corners; give it with data"):
        repair(run, **QUICK)
    with pytest.raises(HoldfastError, match="has no run.yaml"):
        repair(tmp_path, data=shortcut_data(), **QUICK)


@pytest.mark.slow
def test_the_command_makes_a_run_that_other_commands_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fit("coloured-digits", conflict=0.05, val=0.2, epochs=1, image_size=8, device="cpu", out="erm", progress=False)
    words = ["repair", "erm", "--data", "coloured-digits", "--strengths", "0.3", "--device", "cpu", "--workers", "0"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "last layer: DFR, C 0.3, fitted on" in said
    assert "bias-conflicting accuracy:" in said
    assert main(words) == 2, "a run that is there is not replaced"
    assert "already holds a run" in capsys.readouterr().err
    assert main(["predict", "erm-dfr", "--data", "coloured-digits", "--out", "p.csv", "--device", "cpu"]) == 0
    audit = ["audit", "erm-dfr", "--data", "coloured-digits", "--checks", "accuracy", "--out", "a", "--device", "cpu"]
    assert main(audit) == 0
    assert main(["report", "erm-dfr"]) == 0
    page = Path("erm-dfr/report.html").read_text(encoding="utf-8")
    assert "Error among the images that are answered" in page
    record = json.loads(Path("erm-dfr/repair.json").read_text())
    assert (record["by"], record["fitted_on"]) == ("dfr", "the validation split of coloured-digits")
    assert holdfast.repair is repair


def test_predictions_of_a_repaired_run_say_where_it_abstains(run: Path, tmp_path: Path, capsys: Any) -> None:
    data = shortcut_data()
    assert data.test is not None
    made = repair(run, data=data, by="none", coverage=0.6, out=tmp_path / "new", audit=False, **QUICK)
    np.savez(tmp_path / "new.npz", x_train=data.test.read(torch.arange(400)).numpy())
    images = str(tmp_path / "new.npz")
    words = ["predict", str(tmp_path / "new"), "--data", images, "--out", str(tmp_path / "p.csv"), "--device", "cpu"]
    assert main(words) == 0
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[5:] == ["reason", "abstain"]
    expected = [str(int(float(row["confidence"]) < made.threshold)) for row in rows]
    assert [row["abstain"] for row in rows] == expected
    share = expected.count("0") / len(expected)
    assert 0.45 < share < 0.75, "about the share that was to be answered"
    assert f"{expected.count('1')} below the confidence to answer" in capsys.readouterr().out
    found = holdfast.predict(tmp_path / "new", images, device="cpu")
    assert found.abstain is not None
    assert found.columns()["abstain"] == found.abstain.tolist() == [word == "1" for word in expected]
    assert f"abstains from {expected.count('1')}" in repr(found)
    # a threshold of one's own, for any run; none without one
    assert holdfast.predict(run, images, device="cpu").abstain is None
    own = holdfast.predict(run, images, abstain_below=0.9, device="cpu")
    assert own.abstain is not None
    assert torch.equal(own.abstain, own.confidence < 0.9)
    with pytest.raises(HoldfastError, match="abstain_below is a confidence in 0..1, got 90"):
        holdfast.predict(run, images, abstain_below=90, device="cpu")


def test_a_training_into_the_folder_of_a_repair_forgets_its_threshold(run: Path, tmp_path: Path) -> None:
    from holdfast.train.folder import abstention_threshold

    made = repair(run, data=shortcut_data(), by="none", out=tmp_path / "new", audit=False, **QUICK)
    assert abstention_threshold(tmp_path / "new") == made.threshold
    fit(shortcut_data(), epochs=1, device="cpu", out=tmp_path / "new", overwrite=True, progress=False)
    assert abstention_threshold(tmp_path / "new") is None
    (tmp_path / "new" / "repair.json").write_text("{")
    with pytest.raises(HoldfastError, match="cannot read the threshold in .*repair the run again"):
        abstention_threshold(tmp_path / "new")
