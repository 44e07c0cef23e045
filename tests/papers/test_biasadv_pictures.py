"""What BiasAdv's attack does to images, and where models look: the two scripts that draw pictures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from evidence import PAPERS
from PIL import Image


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"biasadv_{name}", PAPERS / "biasadv" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", *words])
    module.main()


def test_the_share_of_a_map_on_the_background() -> None:
    gradcam = script("gradcam")
    frame = torch.ones(4, 24, 24)
    frame[0, 4:20, 4:20] = 0  # nothing on the digit's square
    frame[1] = 1 - frame[0]  # nothing outside it
    frame[3] = 0  # no map at all: left out
    assert gradcam.on_background(frame).tolist() == pytest.approx([1, 0, 1 - (16 / 24) ** 2])


def test_where_models_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradcam = script("gradcam")
    monkeypatch.setattr(gradcam, "METHODS", {"erm": {"name": "erm"}, "lff": {"name": "lff"}})
    run(gradcam, monkeypatch, "--seeds", "1", "--epochs", "2", "--out", str(tmp_path))
    figures = json.loads((tmp_path / "gradcam.json").read_bytes())["figures"]
    assert figures["n"] == 539, "nine tenths of 599 test images"
    own = figures["bias-conflicting"]["erm"]
    assert own["accuracy"][0] < 0.1, "after two epochs it knows the background alone"
    assert 0 < own["map on the background"][0] < 1
    cell, rows = 24 + 2, 3  # the images, and the maps of two methods; two pixels between them
    assert Image.open(tmp_path / "gradcam.png").size == (3 * (8 * cell + 2), 3 * (rows * cell + 2))


def test_what_the_attack_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--data", "coloured-digits", "--model", "convnet", "--epochs", "2", "--images", "60", "--radius", "1.5"]
    run(script("look"), monkeypatch, *words, "--out", str(tmp_path))
    figures = json.loads((tmp_path / "look.json").read_bytes())["figures"]
    for own in (figures["bias-aligned"], figures["bias-conflicting"]):
        assert own["as they are"]["mean length of the perturbation"] == 0
        assert all(own[way]["mean length of the perturbation"] <= 1.5 + 1e-5 for way in own if way != "n")
    own = figures["bias-aligned"]
    f, g = ({way: own[way][name] for way in own if way != "n"} for name in ("model right", "biased model right"))
    assert f["AdvProp"] < f["BiasAdv, λ 0"] <= f["BiasAdv"], "one attacks the model, one nothing of it, one spares it"
    assert g["BiasAdv, λ 0"] < min(g["AdvProp"], g["noise"]), "the attack on the biased model"
    assert (tmp_path / "look.png").exists()
