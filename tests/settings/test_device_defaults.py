"""What follows from the device where settings leave it to ``auto``; and that what is given stays."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.parser_words import switched
from holdfast.errors import HoldfastError
from holdfast.settings import TrainSettings, build, flatten
from holdfast.settings import device_defaults as table
from holdfast.settings.device_defaults import (
    DEVICE_KEYS,
    DeviceFacts,
    break_even_steps,
    choose_for_device,
    open_on_device,
)

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
GPU = DeviceFacts(
    "cuda", bf16=True, compiler=True, convolutions=20, layers=41, activations=1_228_810, passes=1.0, images=50_000
)


def values(facts: DeviceFacts, **given: Any) -> dict[str, Any]:
    settings = build(TrainSettings, {"epochs": 30, "batch_size": 128} | given)
    flat = flatten(choose_for_device(settings, facts)[0])
    return {key: flat[key] for key in DEVICE_KEYS}


def test_a_cpu_computes_plainly_and_a_gpu_fast() -> None:
    assert values(DeviceFacts(images=50_000)) == {"precision": "fp32", "channels_last": "off", "compile": "off"}
    assert values(GPU) == {"precision": "bf16", "channels_last": "on", "compile": "off"}
    assert values(replace(GPU, bf16=False))["precision"] == "fp32"
    assert values(replace(GPU, convolutions=1))["channels_last"] == "off", "a transformer's patches"


def test_whatever_is_given_is_kept_and_the_rest_of_the_settings_too() -> None:
    own = {"precision": "tf32", "channels_last": "off", "compile": "on"}
    for chosen in product([False, True], repeat=3):
        given = {key: own[key] for key, wanted in zip(own, chosen, strict=True) if wanted}
        settings = build(TrainSettings, {"epochs": 3, "batch_size": 8, "lr": 0.5} | given)
        made, reasons = choose_for_device(settings, GPU)
        flat, before = flatten(made), flatten(settings)
        assert {key: flat[key] for key in given} == given
        assert set(reasons) == set(own) - set(given)
        assert open_on_device(made) == []
        assert {k: v for k, v in flat.items() if k not in own} == {k: v for k, v in before.items() if k not in own}


def test_compiling_is_chosen_exactly_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 60 s to compile and 0.5 ms saved per step, after 120,000 steps: 308 epochs of 390 full batches."""
    monkeypatch.setattr(table, "COMPILE_SECONDS", 19.0)
    monkeypatch.setattr(table, "COMPILE_SECONDS_PER_LAYER", 1.0)
    monkeypatch.setattr(table, "SAVED_PER_LAYER", 0.2e-3 / 41)
    monkeypatch.setattr(table, "SAVED_PER_ACTIVATION", 0.3e-3 / (128 * GPU.activations))
    full = replace(GPU, images=390 * 128)
    assert break_even_steps(full, 128) == pytest.approx(120_000)
    assert values(full, epochs=307)["compile"] == "off"
    assert values(full, epochs=308)["compile"] == "on"
    assert values(replace(full, passes=2.0), epochs=154)["compile"] == "on", "an ascent saves twice as much per step"
    assert values(replace(full, images=390 * 128 + 40), epochs=308)["compile"] == "off", "a second size is compiled too"
    assert values(replace(full, compiler=False), epochs=10_000)["compile"] == "off"
    assert values(replace(full, activations=0), epochs=10_000)["compile"] == "off"


def test_what_was_measured_is_what_is_chosen() -> None:
    """On the networks of the benchmark the defaults take the flag with which a training ends first."""
    figures = json.loads((RESULTS / "gpu_defaults.json").read_text())["figures"]
    for net, found in figures.items():
        facts = replace(GPU, layers=found["layers"], activations=found["activations"])
        flags = {"off": found["flags"]["captured"], "on": found["flags"]["compiled"]}
        for epochs in (30, 90, 300, 1000):
            steps = epochs * 391
            whole = {flag: own["compile_s"] + steps * own["step_ms"] / 1e3 for flag, own in flags.items()}
            chosen = whole[str(values(facts, epochs=epochs)["compile"])]
            assert chosen <= 1.05 * min(whole.values()), f"{net}, {epochs} epochs: {whole}"


def test_true_and_false_of_yaml_and_python_are_on_and_off() -> None:
    loop = build(TrainSettings, {"compile": True, "channels_last": False, "capture": True}).loop
    assert (loop.compile, loop.channels_last, loop.capture, loop.compiles) == ("on", "off", "on", True)
    with pytest.raises(HoldfastError, match="compile"):
        build(TrainSettings, {"compile": "yes"})
    with pytest.raises(HoldfastError, match="precision"):
        build(TrainSettings, {"precision": True})


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--compile"], ["--compile", "on"]),
        (["--compile", "--seed", "1"], ["--compile", "on", "--seed", "1"]),
        (["--compile=off"], ["--compile=off"]),
        (["--channels_last", "auto"], ["--channels_last", "auto"]),
        (["--no-channels-last", "x"], ["--channels-last", "off", "x"]),
        (["--no-deterministic"], ["--no-deterministic"]),
        (["--seed", "--compile"], ["--seed", "--compile", "on"]),
        ([], []),
    ],
)
def test_switches_need_no_value(words: list[str], meant: list[str]) -> None:
    assert switched(TrainSettings, words) == meant
