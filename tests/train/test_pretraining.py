"""``holdfast train --labels``: every way ends in a run folder like any other."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml

from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.models import load_model
from holdfast.train import fit

QUICK = "train --data digits --labels 100 --epochs 3 --batch-size 25 --device cpu --quiet --pretrain-for 1"
WAYS = {
    "frozen": "--model vae-head --pretrain vae --pretrain-for 6 --optimizer adam --lr .003 --method mixup --epochs 40",
    "fine-tuned": "--model vae-classifier --pretrain vae --optimizer adam --ascent sam --epochs 20",
    "supervised": "--crop 1 --epochs 15",
    "rotation": "--pretrain rotation --ascent sam",
    "fixmatch": "--method fixmatch --method.ratio 2 --epochs 15",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_every_way_is_a_run_like_any_other(way: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*QUICK.split(), *WAYS[way].split(), "--out", str(run)]) == 0
    assert yaml.safe_load((run / "run.yaml").read_text())["labels"] == 100
    findings = json.loads((run / "findings.json").read_text())["findings"]
    accuracy = next(f for f in findings if f["name"] == "accuracy" and not f["where"])
    assert accuracy["n"] == 599
    assert accuracy["low"] > 0.1
    assert (run / "report.html").is_file()
    assert main(["predict", str(run), "--data", "digits", "--out", str(tmp_path / "p.csv"), "--workers", "0"]) == 0
    with (tmp_path / "p.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 599


@pytest.mark.slow
def test_its_settings_repeat_a_run(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert main([*QUICK.split(), *WAYS["frozen"].split(), "--out", str(first)]) == 0
    assert main(["train", "--config", str(first / "run.yaml"), "--out", str(again), "--quiet"]) == 0
    for a, b in zip(load_model(first)[0].parameters(), load_model(again)[0].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_a_stopped_run_goes_on_without_pretraining_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK.split(), "--pretrain", "rotation", "--out", str(tmp_path)]
    assert main(words) == 0
    whole = load_model(tmp_path)[0].state_dict()
    (tmp_path / "model.json").unlink()
    assert main(["train", "--out", str(tmp_path), "--resume", "--quiet"]) == 0
    assert "pretraining" not in capsys.readouterr().err
    resumed = load_model(tmp_path)[0].state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_pretraining_is_where_it_starts_from(tmp_path: Path) -> None:
    weights = []
    for way in ([], ["--pretrain", "vae"]):
        out = tmp_path / str(len(way))
        extra = ["--model", "vae-classifier", "--lr", "0", "--weight-decay", "0", "--out", str(out)]
        assert main([*QUICK.split(), *extra, *way]) == 0
        weights.append(load_model(out)[0].state_dict())
    plain, started = weights
    same = {name for name in plain if torch.equal(plain[name], started[name])}
    assert same == {n for n in plain if n.startswith(("net.head", "mean", "std"))}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--labels 1199", "labels must be in 10..1198"),
        ("--labels 3", "labels must be in 10..1198"),
        ("--labels 0", "labels must be >= 1, got 0"),
        (
            "--method fixmatch --labels 20 --unlabeled coloured-digits",
            "unlabelled images have shape (C, H, W) (3, 16, 16)",
        ),
        ("--method fixmatch --unlabeled rest", "there is no rest"),
        ("--labels 20 --pretrain rotation --unlabeled nowhere/", "nowhere"),
        ("--model vae-head", "--pretrain vae"),
        ("--model vae-head --pretrain rotation", "the encoder of vae-head is frozen"),
        ("--pretrain vae", "convnet has no VAE's encoder"),
        ("--pretrain vae --pretrained", "would overwrite the weights"),
    ],
)
def test_bad_input_ends_with_two(words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["train", "--data", "digits", "--device", "cpu", *words.split(), "--out", str(tmp_path / "run")])
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_pictures_that_nothing_would_look_at_are_refused() -> None:
    with pytest.raises(HoldfastError, match="unlabeled rest: mixup learns from labels alone; add --pretrain rotation"):
        fit("digits", method="mixup", labels=20, unlabeled="rest", epochs=1, device="cpu")
