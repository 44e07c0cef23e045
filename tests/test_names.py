"""Public names: spellings resolve, mistaken keywords get a hint, and what is documented can be called."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.errors import HoldfastError, UnknownArgument, close_names, hinted, plain_name
from holdfast.models.resolution import resolve
from holdfast.parts import ASCENTS, CHECKS, CORRUPTIONS, DETECTORS, METHODS, Registry, data_name, named_data
from holdfast.settings import TrainSettings, build
from holdfast.settings.audit_settings import chosen_checks, make_checks, parse_settings

PAPERS = {
    "SAM": "sam",
    "ASAM": "asam",
    "Fisher SAM": "fisher-sam",
    "F-SAM": "fsam",
    "FriendlySAM": "fsam",
    "Friendly-SAM": "fsam",
}
METHOD_NAMES = {
    "LfF": "lff",
    "LfF+BiasAdv": "lff+biasadv",
    "Group_DRO": "group-dro",
    "GroupDRO": "group-dro",
    "MixUp": "mixup",
    "Manifold Mixup": "manifold-mixup",
    "Learning from Failure": "lff",
}


def brightness(x: Tensor) -> Tensor:
    return torch.stack([x.mean((1, 2, 3)), 0.5 - x.mean((1, 2, 3))], 1)


IMAGES, LABELS = torch.full((2, 3, 8, 8), 0.5), torch.tensor([0, 1])


@pytest.mark.parametrize(("spelt", "name"), PAPERS.items())
def test_the_papers_spelling_of_an_ascent_resolves(spelt: str, name: str) -> None:
    assert ASCENTS[spelt].name == name
    assert build(TrainSettings, {"ascent": spelt}).ascent.name == name


@pytest.mark.parametrize(("spelt", "name"), METHOD_NAMES.items())
def test_the_papers_spelling_of_a_method_resolves(spelt: str, name: str) -> None:
    assert build(TrainSettings, {"method": spelt}) == build(TrainSettings, {"method": name})


@pytest.mark.parametrize("registry", [METHODS, ASCENTS, CHECKS, DETECTORS, CORRUPTIONS], ids=lambda r: r.kind)
def test_no_spelling_means_two_parts(registry: Registry[Any]) -> None:
    spelt = Counter(plain_name(one) for part in registry.values() for one in {part.name, *part.aliases})
    shared = {name for name, count in spelt.items() if count > 1}
    # corruptions of two families may share a name; find_corruption decides by the scale that is asked for
    assert not shared or registry is CORRUPTIONS
    for name in registry:
        assert registry[name].name == name
        assert registry[name.replace("-", "_").upper()].name == name
    with pytest.raises(HoldfastError, match=f"unknown {registry.kind} 'zzzz'"):
        registry["zzzz"]


def test_checks_scores_data_and_models_are_found_by_other_spellings() -> None:
    assert chosen_checks(["OOD", "Accuracy"]) == ["accuracy", "ood"]
    assert make_checks({"Attacks": {"images": 3}})["attacks"].images == 3
    assert parse_settings(["Attacks.images=3"]) == {"attacks": {"images": 3}}
    assert data_name("coloured_digits") == "coloured-digits"
    assert len({plain_name(name) for name in named_data()}) == len(named_data())
    assert len(hf.data.load("Coloured_Digits", image_size=8).train) == len(
        hf.data.load("coloured-digits", image_size=8).train
    )
    assert resolve("ResNet-50")[1] == "resnet50"
    with pytest.raises(HoldfastError, match="unknown check 'acuracy'; did you mean 'accuracy'"):
        chosen_checks(["acuracy"])


def test_a_folder_wins_over_another_spelling_of_a_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coloured_digits").mkdir()
    with pytest.raises(HoldfastError, match="coloured_digits has no folders in it"):
        hf.data.load("coloured_digits")


@pytest.mark.parametrize("spelt", ["gaussian_noise", "gaussian-noise", "Gaussian Noise", "GaussianNoise"])
def test_corrupt_takes_every_spelling_and_needs_no_generator(spelt: str) -> None:
    torch.manual_seed(3)
    first = hf.corruptions.corrupt(IMAGES, spelt, severity=3)
    assert first.shape == IMAGES.shape
    assert first.min() >= 0
    assert first.max() <= 1
    assert not torch.equal(first, hf.corruptions.corrupt(IMAGES, spelt, severity=3)), "each call draws anew"
    torch.manual_seed(3)
    assert torch.equal(first, hf.corruptions.corrupt(IMAGES, spelt, severity=3)), "torch's own seed decides"


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_every_corruption_works_without_a_generator(name: str) -> None:
    amount = {CORRUPTIONS[name].scale: 1}
    assert hf.corruptions.corrupt(torch.rand(1, 3, 32, 32), name, **amount).shape == (1, 3, 32, 32)


ATTACKS = {
    "fgsm": {},
    "pgd": {"steps": 2},
    "apgd": {"steps": 2},
    "square": {"queries": 50},  # with two, none may help
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_name_the_argument_that_was_meant(name: str) -> None:
    attack = getattr(hf.attacks, name)
    with pytest.raises(UnknownArgument, match=f"{name}: unknown setting of the attack 'eps'; did you mean 'radius'?"):
        attack(brightness, IMAGES, LABELS, eps=8 / 255)
    with pytest.raises(TypeError, match="unknown setting of the attack 'epsilon'; did you mean 'radius'?"):
        attack(brightness, IMAGES, LABELS, epsilon=8 / 255)
    with pytest.raises(HoldfastError, match="unknown setting of the attack 'nrom'; did you mean 'norm'"):
        attack(brightness, IMAGES, LABELS, radius=0.1, nrom="l2")
    with pytest.raises(HoldfastError, match="unknown setting of the attack 'clip_min'; did you mean 'bounds'"):
        attack(brightness, IMAGES, LABELS, radius=0.1, clip_min=0)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_refuse_images_outside_of_the_unit_range_unless_told_the_bounds(name: str) -> None:
    attack = getattr(hf.attacks, name)
    normalised = (IMAGES - 0.485) / 0.229 - 1
    wrong = r"x must be images in \[0, 1\], got values from -0\.9345 to -0\.9345; attack images before normalisation"
    with pytest.raises(HoldfastError, match=wrong):
        attack(brightness, normalised, LABELS, radius=0.1, **ATTACKS[name])
    with pytest.raises(HoldfastError, match="got values from 127 to 127"):
        attack(brightness, torch.full((2, 3, 8, 8), 127.0), LABELS, radius=8, **ATTACKS[name])
    moved = attack(brightness, normalised, LABELS, radius=0.1, bounds=(-2.2, 2.7), **ATTACKS[name])
    assert 0 < (moved - normalised).abs().max() <= 0.1
    rounded = IMAGES.clone()
    rounded[0, 0, 0, 0] = -3e-8  # as interpolation leaves it
    assert attack(brightness, rounded, LABELS, radius=0.1, **ATTACKS[name]).shape == IMAGES.shape


def test_other_public_functions_hint_too() -> None:
    with pytest.raises(TypeError, match="corrupt: unknown argument 'level'"):
        hf.corruptions.corrupt(IMAGES, "brightness", level=3)
    with pytest.raises(HoldfastError, match="unknown settings key 'learning_rate'; did you mean 'lr'?"):
        hf.fit("digits", learning_rate=0.1)
    with pytest.raises(HoldfastError, match="unknown settings key 'wd'; did you mean 'weight_decay'?"):
        hf.fit("digits", wd=0.1)
    with pytest.raises(HoldfastError, match="unknown setting of an audit 'num_workers'; did you mean 'workers'?"):
        hf.audit(torch.nn.Identity(), "digits", num_workers=0)
    with pytest.raises(AttributeError, match="no attribute 'attack'; did you mean 'attacks'?"):
        _ = hf.attack


@pytest.mark.parametrize("name", ["SAM", "ASAM", "FisherSAM", "FriendlySAM"])
def test_optimisers_hint_too(name: str) -> None:
    kind, params = getattr(hf.optim, name), [torch.nn.Parameter(torch.zeros(2))]
    for given, meant in {
        "radius": "rho",
        "eps": "rho",
        "learning_rate": "lr",
        "wd": "weight_decay",
        "capure": "capture",
    }.items():
        with pytest.raises(TypeError, match=f"{name}: unknown argument '{given}'; did you mean '{meant}'"):
            kind(params, torch.optim.SGD, lr=0.1, **{given: 0.1})
    assert kind(params, torch.optim.AdamW, lr=0.1, eps=1e-6).defaults["eps"] == 1e-6, "AdamW has one of its own"
    if name in ("ASAM", "FisherSAM"):
        with pytest.raises(TypeError, match=f"{name}: unknown argument 'etta'; did you mean 'eta'"):
            kind(params, torch.optim.SGD, lr=0.1, etta=0.1)


def test_a_hint_is_for_what_the_function_takes() -> None:
    assert close_names("eps", ["radius", "steps"]) == ["radius"]
    assert close_names("eps", ["epochs"]) == ["epochs"], "no radius here: the nearest spelling"

    @hinted("norm")
    def attack(x: int, *, radius: float = 1.0, **within: Any) -> tuple[float, dict[str, Any]]:
        return radius, within

    assert attack(1, radius=2.0, norm="l2") == (2.0, {"norm": "l2"})
    assert list(inspect.signature(attack).parameters) == ["x", "radius", "within"], "editors see the signature"


def test_the_design_names_are_importable_without_torch_until_used() -> None:
    names = ["fit", "audit", "report", "predict", "find_shortcuts", "compare", "Run", "Audit"]
    modules = ["attacks", "corruptions", "optim", "detect", "augment", "losses", "metrics"]
    assert {*names, *modules} <= {*dir(hf)}
    code = "import sys, holdfast; dir(holdfast); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
