"""The slices check: looks by other means, no weak part where there is none, and a planted one found."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor, nn

from holdfast.audits.checks.slices import WeakSlices
from holdfast.audits.checks.slices.weak_slices import (
    Slice,
    appearance,
    brightness,
    candidates,
    colourfulness,
    contrast,
    file_sizes,
    search,
    sharpness,
)
from holdfast.audits.subject import Subject, halves
from holdfast.data import Dataset, FileSplit
from holdfast.errors import HoldfastError
from tests.audits.checks.from_logits import get, one_hot, split, told
from tests.audits.checks.run_checks import slices


def pictures(n: int = 5, channels: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(n, channels, 9, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_looks_by_numpy_and_scipy() -> None:
    x = pictures()
    for i, image in enumerate(x.numpy()):
        red, green, blue = image
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        assert brightness(x)[i].item() == pytest.approx(luma.mean())
        assert contrast(x)[i].item() == pytest.approx(luma.std())
        assert sharpness(x)[i].item() == pytest.approx(ndimage.laplace(luma)[1:-1, 1:-1].std())
        rg, yb = red - green, 0.5 * (red + green) - blue
        expected = np.hypot(rg.std(), yb.std()) + 0.3 * np.hypot(rg.mean(), yb.mean())
        assert colourfulness(x)[i].item() == pytest.approx(expected)


def test_looks_of_plain_images() -> None:
    grey = torch.full((2, 1, 4, 4), 0.25)
    assert brightness(grey).tolist() == [0.25, 0.25]
    assert contrast(grey).tolist() == sharpness(grey).tolist() == colourfulness(grey).tolist() == [0.0, 0.0]
    assert sharpness(torch.rand(2, 3, 2, 2)).tolist() == [0.0, 0.0]
    assert brightness(torch.full((1, 4, 3, 3), 0.5)).tolist() == [0.5]


def test_sizes_are_those_on_disk(tmp_path: Path) -> None:
    paths = []
    for i, (width, height) in enumerate([(20, 10), (8, 32)]):
        paths.append(tmp_path / f"{i}.png")
        Image.new("RGB", (width, height)).save(paths[-1])
    found = file_sizes(FileSplit(paths, torch.tensor([0, 1]), torch.tensor([-1, -1]), size=(16, 16)), torch.arange(2))
    assert found["size"].tolist() == pytest.approx([200**0.5, 16.0])
    assert found["aspect"].tolist() == [2.0, 0.25]
    assert file_sizes(split(torch.tensor([0])), torch.arange(1)) == {}


def test_candidates_are_the_ends_or_the_kinds() -> None:
    ends = list(candidates("brightness", torch.arange(100).double()))
    lower = {s.value: int(s.members(torch.arange(100)).sum()) for s in ends if s.side == "at most"}
    upper = {s.value: int(s.members(torch.arange(100)).sum()) for s in ends if s.side == "above"}
    assert sorted(lower.values()) == sorted(upper.values()) == [5, 10, 20, 30]
    kinds = list(candidates("site", torch.arange(60) % 12))
    assert [(s.side, s.value) for s in kinds] == [("is", float(i)) for i in range(12)]
    assert list(candidates("same", torch.ones(50))) == []
    some = torch.tensor([float("nan"), *range(30)])
    assert not any(bool(s.members(some)[0]) for s in candidates("partly", some))


@pytest.mark.slow
def test_no_part_of_random_predictions_is_confirmed_more_often_than_the_level() -> None:
    """100 models that err without regard to the image: at most 5 are expected, 12 or more are one in a thousand."""
    generator, alarms, brought = torch.Generator().manual_seed(0), 0, 0
    for model in range(100):
        values = {name: torch.rand(600, generator=generator) for name in "abcdef"}
        values["kind"] = torch.randint(8, (600,), generator=generator)
        correct = torch.rand(600, generator=generator) < 0.8
        found = search(values, correct, *halves(600, model, "halves"))
        brought += len(found)
        alarms += any(s.adjusted_p <= WeakSlices().level for s in found)
    assert brought > 100  # the search alone would cry wolf more than once a model
    assert alarms < 12


def test_a_part_is_confirmed_by_holms_p_over_all_that_were_brought_forward() -> None:
    """In plain Python, on parts of which some are weak: the k-th smallest p counts as many times as are left."""
    generator, several = torch.Generator().manual_seed(0), 0
    for model in range(20):
        values = {name: torch.rand(400, generator=generator) for name in "abcdef"}
        correct = torch.rand(400, generator=generator) < torch.where(values["a"] < 0.3, 0.7, 0.85)
        found = sorted(search(values, correct, *halves(400, model, "halves")), key=lambda s: s.p)
        several += len(found) > 1
        expected = 0.0
        for k, part in enumerate(found):
            expected = max(expected, min(1.0, (len(found) - k) * part.p))
            assert part.adjusted_p == pytest.approx(expected)
    assert several > 5


def dark_is_hard(n: int = 800, seed: int = 0, *, weak: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and predictions of a model that is right on 95 %, but on the darkest fifth on fewer."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randint(40, 215, (n, 1, 1, 1), generator=generator)
    noise = torch.randint(-20, 21, (n, 3, 8, 8), generator=generator)
    images = (level + noise).to(torch.uint8)
    labels = torch.randint(2, (n,), generator=generator)
    dark = level.flatten() < 75
    right = torch.rand(n, generator=generator) < torch.where(dark, weak, 0.95)
    return images, labels, torch.where(right, labels, 1 - labels)


def test_a_planted_weak_part_is_found() -> None:
    images, labels, prediction = dark_is_hard()
    findings = slices(told(one_hot(prediction, 2), split(labels, images=images)))
    confirmed = get(findings, "confirmed_slices")
    assert confirmed.value == 1.0
    assert confirmed.n == 400
    (found,) = [f for f in findings if f.evidence.get("confirmed") is True]
    assert found.where["slice"].startswith("brightness at most ")
    assert found.evidence["value"] == pytest.approx(75 / 255, abs=0.02)
    assert found.value == pytest.approx(0.5, abs=0.15)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.5 < found.high
    gap = get(findings, "slice_gap", slice=found.where["slice"])
    assert gap.low is not None
    assert gap.low > 0.2
    examples = found.evidence["examples"]
    assert all(base64.b64decode(e["png"]).startswith(b"\x89PNG") and e["label"] != e["prediction"] for e in examples)
    json.dumps([f.to_json() for f in findings], allow_nan=False)


def test_numbers_come_from_the_half_that_did_not_find_the_part() -> None:
    images, labels, prediction = dark_is_hard()
    whose = told(one_hot(prediction, 2), split(labels, images=images))
    found = next(f for f in slices(whose) if f.evidence.get("confirmed") is True)
    at = found.evidence["value"]
    dark = appearance(whose)["brightness"] <= at
    both = found.n + found.evidence["found"]["n"]
    assert both == int(dark.sum())
    right = found.n * (found.value or 0) + found.evidence["found"]["n"] * found.evidence["found"]["accuracy"]
    assert right == pytest.approx(int(whose.predictions.correct[dark].sum()))


def test_an_even_model_has_no_part_confirmed() -> None:
    images, labels, prediction = dark_is_hard(weak=0.95)
    findings = slices(told(one_hot(prediction, 2), split(labels, images=images)))
    assert get(findings, "confirmed_slices").value == 0.0


@pytest.mark.parametrize("right", [True, False])
def test_a_model_that_is_always_right_or_always_wrong_has_none(right: bool) -> None:
    images, labels, _ = dark_is_hard(100)
    findings = slices(told(one_hot(labels if right else 1 - labels, 2), split(labels, images=images)))
    assert len(findings) == 1
    assert findings[0].evidence["brought_forward"] == 0


def test_columns_of_the_user_are_searched_and_named() -> None:
    generator = torch.Generator().manual_seed(2)
    labels, site = torch.randint(2, (500,), generator=generator), torch.randint(3, (500,), generator=generator)
    right = torch.rand(500, generator=generator) < torch.where(site == 1, 0.4, 0.9)
    whose = told(one_hot(torch.where(right, labels, 1 - labels), 2), split(labels))
    findings = slices(whose, columns={"site": site}, names={"site": ("Kiel", "Rome", "Oslo")})
    assert [f.where["slice"] for f in findings if f.evidence.get("confirmed") is True] == ["site is Rome"]
    assert get(findings, "confirmed_slices").evidence["constant"] == [
        "brightness",
        "contrast",
        "colourfulness",
        "sharpness",
    ]
    with pytest.raises(HoldfastError, match="'site' has shape"):
        slices(whose, columns={"site": site[:9]})
    with pytest.raises(HoldfastError, match="level"):
        slices(whose, level=0.0)


def test_profile_follows_the_attribute() -> None:
    images, labels, prediction = dark_is_hard()
    profile = get(slices(told(one_hot(prediction, 2), split(labels, images=images))), "confirmed_slices").evidence[
        "profile"
    ]
    tenths = profile["brightness"]
    assert tenths["value"] == sorted(tenths["value"])
    assert tenths["n"] == [80] * 10
    assert tenths["accuracy"][0] < 0.7 < min(tenths["accuracy"][3:])


def test_real_files_through_the_loader(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    paths = []
    for i in range(40):
        paths.append(tmp_path / f"{i}.png")
        side = int(generator.integers(8, 40))
        Image.fromarray(generator.integers(0, 255, (side, 16, 3), dtype=np.uint8)).save(paths[-1])
    test = FileSplit(paths, torch.arange(40) % 2, torch.full((40,), -1), size=(8, 8))
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    subject = Subject(model, Dataset("files", ("a", "b"), train=test, test=test), torch.device("cpu"), workers=0)
    found = get(slices(subject), "confirmed_slices")
    assert set(found.evidence["attributes"]) == {
        "brightness", "contrast", "colourfulness", "sharpness", "size", "aspect",
    }  # fmt: skip


def test_slice_members() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, float("nan")])
    assert Slice("a", "at most", 2.0, 1.0).members(values).tolist() == [True, True, False, False]
    assert Slice("a", "above", 2.0, 1.0).members(values).tolist() == [False, False, True, False]
    assert Slice("a", "is", 2.0, 1.0).members(values).tolist() == [False, True, False, False]
