"""Defaults at work: in Python, on the command line and in comparisons; what a run says of them, and how it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.cli import main
from holdfast.comparisons.running import compare
from holdfast.errors import HoldfastError, Interrupted
from holdfast.settings import TrainSettings, flatten, read_environment, read_yaml
from holdfast.settings import training_defaults as table
from holdfast.settings.device_defaults import DeviceFacts
from holdfast.settings.training_defaults import CHOSEN_KEYS
from holdfast.train import fit
from holdfast.train.training_facts import activations, facts_of, has_learned
from tests.conftest import Heard, SignalAt, make_data, same_weights

SHORT: dict[str, Any] = {"epochs": 2, "device": "cpu", "eval_every": 0}


def test_a_run_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    shown = Heard()
    run = fit(make_data(), out=tmp_path / "run", progress=shown, **SHORT)  # type: ignore[arg-type]
    assert run.chosen is not None
    assert set(run.chosen.values) == {"optimizer", "lr", "batch_size", "warmup"}
    assert [note for note in shown.notes if note.startswith("chosen for")] == [str(run.chosen)]
    assert read_environment(tmp_path / "run")["chosen_defaults"] == str(run.chosen)
    recorded = read_yaml(tmp_path / "run" / "run.yaml")
    assert recorded == flatten(run.settings)
    assert {key: recorded[key] for key in run.chosen.values} == run.chosen.values
    assert str(run.chosen) in run._repr_html_().replace("&#39;", "'")


def test_nothing_is_said_where_everything_is_given(tmp_path: Path) -> None:
    shown = Heard()
    given = {"optimizer": "sgd", "lr": 0.05, "batch_size": 16} | SHORT
    run = fit(make_data(), out=tmp_path / "run", progress=shown, **given)  # type: ignore[arg-type]
    assert not any("chosen" in note for note in shown.notes)
    assert "chosen_defaults" not in read_environment(tmp_path / "run")
    assert run.settings.schedule.warmup == 0


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"lr": 0.0}, "lr is 0, so the weights stay as they are; give another --lr, or leave it out"),
        ({"lr": 0.1, "warmup": 2}, "warmup 2 does not end within 2 epochs, so the learning rate never reaches 0.1;"),
        ({"lr": 0.1, "warmup": 1.9}, ""),
    ],
)
def test_a_rate_that_trains_nothing_or_never_reaches_its_peak_is_warned_of(given: dict[str, Any], warning: str) -> None:
    shown = Heard()
    fit(make_data(), progress=shown, **SHORT, **given)  # type: ignore[arg-type]
    found = [note for note in shown.notes if note.startswith("warning: ")]
    assert len(found) == bool(warning)
    assert all(note.startswith(f"warning: {warning}") for note in found)


def test_the_chosen_values_given_by_hand_train_the_same(tmp_path: Path) -> None:
    chosen = fit(make_data(), **SHORT)
    assert chosen.chosen is not None
    by_hand = fit(make_data(), **SHORT, **chosen.chosen.values)
    assert same_weights(chosen.model, by_hand.model)
    assert by_hand.settings == chosen.settings


def test_a_run_resumes_with_what_was_chosen_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, also where the table has changed since; and other settings are refused as ever."""
    whole = fit(make_data(), **SHORT)
    with pytest.raises(Interrupted):
        fit(make_data(), out=tmp_path / "run", progress=SignalAt(5), **SHORT)  # type: ignore[arg-type]
    monkeypatch.setattr(table, "BATCHES", ((10**9, 7),))
    monkeypatch.setattr(table, "SMALL_FACTOR", 5.0)
    resumed = fit(make_data(), out=tmp_path / "run", resume=True, **SHORT)
    assert resumed.settings == whole.settings
    assert same_weights(resumed.model, whole.model)
    with pytest.raises(HoldfastError, match="started with other settings .lr"):
        fit(make_data(), out=tmp_path / "run", resume=True, lr=0.4, **SHORT)


@pytest.mark.slow
def test_the_command_line_chooses_says_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same command, and with the folder alone."""
    asked, out = ["--data", "digits", "--epochs", "1"], ["--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(["train", *asked, *out]) == 0
    assert "chosen for 1,198 training images and a fresh convolutional network" in capsys.readouterr().err
    before = read_yaml(tmp_path / "run" / "run.yaml")
    assert before["optimizer"] == "adamw"
    for again in (asked, []):
        assert main(["train", *again, *out, "--resume"]) == 0
        assert read_yaml(tmp_path / "run" / "run.yaml") == before


def test_a_plan_shows_what_would_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """The same values as a training takes; in a comparison those of each cell, equal cells once."""
    assert main(["train", "--data", "coloured-digits", "--method", "lff", "--plan"]) == 0
    shown = capsys.readouterr().out
    for key, value in {"optimizer": "adamw", "batch_size": 32, "lr": 0.003}.items():
        assert f"--{key.replace('_', '-')} {value}: " in shown
    assert "unknown" not in shown
    words = ["compare", "--data", "digits", "--vary", "batch_size=32,64", "--plan"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "2 cells × 3 seeds = 6 trainings" in shown, "32 is what the first cell has anyway"
    assert "not all are trained equally long" in shown


def test_a_plan_of_data_that_is_not_there_leaves_it_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "bffhq", "--root", str(tmp_path), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "main: as yet unknown epochs (--epochs)" in shown
    assert "follow from the data: " in shown


@pytest.mark.slow
def test_comparisons_choose_for_every_cell_and_extend_what_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: dict[str, Any] = {
        "out": tmp_path / "c",
        "vary": {"batch_size": [16, 32]},
        "device": "cpu",
        "progress": False,
    }
    compare(make_data(), seeds=1, epochs=1, **shared)
    runs = {path.parent.name: read_yaml(path) for path in (tmp_path / "c").glob("*/run.yaml")}
    assert set(runs) == {"erm-seed0", "erm-batch_size16-seed0"}, "32 is what is chosen anyway"
    assert {run["batch_size"] for run in runs.values()} == {16, 32}
    monkeypatch.setattr(table, "SMALL_FACTOR", 5.0)
    compare(make_data(), seeds=2, epochs=1, **shared)
    second = read_yaml(tmp_path / "c" / "erm-seed1" / "run.yaml")
    assert {key: second[key] for key in CHOSEN_KEYS} == {key: runs["erm-seed0"][key] for key in CHOSEN_KEYS}


class Small(nn.Sequential):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 6), norm, nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("norm", "network", "normalised"),
    [
        (nn.BatchNorm1d(6), "convolutional", True),
        (nn.LayerNorm(6), "transformer", True),
        (nn.ReLU(), "convolutional", False),
    ],
)
def test_a_network_is_known_by_its_layers(norm: nn.Module, network: str, normalised: bool) -> None:
    net, data = Small(norm), make_data()
    facts = facts_of(TrainSettings(), data, net, own=True)
    assert (facts.network, facts.normalised, facts.pretrained) == (network, normalised, False)
    assert (facts.images, facts.weights) == (len(data.train), sum(p.numel() for p in net.parameters()))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6), nn.LayerNorm(6)])
def test_a_module_that_was_trained_before_counts_as_pretrained(norm: nn.Module) -> None:
    """So the run in hand is fine-tuned with the rates of fine-tuning, and a fresh module is not."""
    net = Small(norm)
    assert not has_learned(net)
    first = fit(make_data(), model=net, **SHORT)
    assert first.chosen is not None
    assert not first.chosen.facts.pretrained
    assert has_learned(net)
    second = fit(make_data(), model=first, **SHORT)
    assert second.chosen is not None
    assert second.chosen.facts.pretrained
    assert second.chosen.values["lr"] < first.chosen.values["lr"]


def test_published_weights_and_a_frozen_backbone_are_facts(tmp_path: Path) -> None:
    run = fit(make_data(), model="convnet", out=tmp_path / "run", **SHORT)
    tuned = fit(make_data(), model=str(tmp_path / "run"), freeze="backbone", **SHORT)
    assert tuned.chosen is not None
    assert run.chosen is not None
    assert (tuned.chosen.facts.pretrained, tuned.chosen.facts.frozen) == (True, True)
    assert tuned.chosen.facts.row == "the last layer alone"


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, **known: Any) -> None:
    """Defaults as on a GPU, though the arithmetic stays on the CPU, which has bf16 and NHWC too."""
    facts = DeviceFacts("cuda", bf16=True, convolutions=3, layers=7, activations=7_000, **known)
    monkeypatch.setattr("holdfast.train.preparing.device_facts_of", lambda *_, **__: facts)


def test_a_run_records_what_auto_was_and_resumes_with_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without the GPU too: bit for bit as the run that was not stopped."""
    shown = Heard()
    on_a_gpu(monkeypatch, images=60)
    whole = fit(make_data(), progress=shown, **SHORT)  # type: ignore[arg-type]
    assert "chosen for the GPU: precision bf16, channels last on, compile off" in shown.notes
    assert (whole.settings.loop.precision, whole.settings.loop.channels_last) == ("bf16", "on")
    with pytest.raises(Interrupted):
        fit(make_data(), out=tmp_path / "run", progress=SignalAt(3), **SHORT)  # type: ignore[arg-type]
    assert read_yaml(tmp_path / "run" / "run.yaml")["precision"] == "bf16"
    monkeypatch.undo()
    resumed = fit(make_data(), out=tmp_path / "run", resume=True, **SHORT)
    assert resumed.settings == whole.settings
    assert same_weights(resumed.model, whole.model)
    plain = fit(make_data(), **SHORT)
    assert plain.settings.loop.precision == "fp32"
    assert not same_weights(plain.model, whole.model), "the precision would not matter"
    with pytest.raises(HoldfastError, match="precision: bf16 -> fp32"):
        fit(make_data(), out=tmp_path / "run", resume=True, precision="fp32", **SHORT)


def test_a_plan_shows_what_the_gpu_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--data", "digits", "--device", "cpu", "--plan"]
    assert main(words) == 0
    assert "--precision fp32: on a CPU" in capsys.readouterr().out
    on_a_gpu(monkeypatch, images=1198, compiler=True)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "--precision bf16: this GPU computes in it" in shown
    assert "--channels-last on: a convolutional network on a GPU" in shown
    assert "--compile off: 3,002 steps are fewer than the " in shown
    assert main([*words, "--precision", "fp32", "--no-channels-last", "--compile"]) == 0
    assert "precision" not in capsys.readouterr().out


def test_activations_are_counted_and_the_network_stays_as_it_was() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 3))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.get_rng_state()
    assert activations(net, (1, 8, 8)) == 4 * 36 + 4 * 36 + 3
    assert net.training
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not any(module._forward_hooks for module in net.modules())
