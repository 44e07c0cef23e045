"""The check on saliency: its numbers against closed forms and scipy, its pictures, its limits."""

from __future__ import annotations

import base64
import io
import json
import math
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr
from torch import Tensor, nn

from holdfast.audits.checks.saliency.saliency_maps import average_ranks, concentration, overlay, rank_correlation
from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset
from holdfast.errors import HoldfastError
from holdfast.types import Finding
from tests.audits.checks.run_checks import saliency
from tests.conftest import make_data

CPU = torch.device("cpu")


class Corners(nn.Module):
    """Class 0 is the light in the upper left quarter, class 1 that in the lower right."""

    def __init__(self, *, swapped: bool = False) -> None:
        super().__init__()
        self.planes = nn.Conv2d(1, 2, 1, bias=False)
        nn.init.ones_(self.planes.weight)
        mask = torch.zeros(2, 8, 8)
        mask[0, :4, :4] = mask[1, 4:, 4:] = 1
        self.register_buffer("mask", mask.flip(0) if swapped else mask)
        self.kept = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.kept(self.planes(x) * self.mask).mean((2, 3))


def corner_data(*, groups: bool = False) -> Dataset:
    def split(n: int) -> ArraySplit:
        labels = torch.arange(n) % 2
        images = torch.zeros(n, 1, 8, 8, dtype=torch.uint8)
        images[labels == 0, :, :4, :4] = 200
        images[labels == 1, :, 4:, 4:] = 200
        own = torch.where(torch.arange(n) % 5 == 0, 1 - labels, labels) if groups else torch.full((n,), -1)
        return ArraySplit(images, labels, own)

    return Dataset("corners", ("upper", "lower"), split(40), None, split(20), ("a", "b") if groups else ())


def named(found: tuple[Finding, ...], name: str, **where: str) -> Finding:
    (one,) = [f for f in found if f.name == name and dict(f.where) == where]
    return one


def test_a_quarter_of_the_picture_is_found() -> None:
    found = saliency(Subject(Corners(), corner_data(), CPU))
    half = named(found, "saliency_half_area")
    assert half.value == pytest.approx(1 / 8)  # half of a quarter that is lit evenly
    assert half.n == 20
    assert half.settings["layer"] == "kept"
    assert named(found, "saliency_entropy").value == pytest.approx(math.log(16) / math.log(64))


def test_both_sides_of_the_shortcut() -> None:
    found = saliency(Subject(Corners(), corner_data(groups=True), CPU))
    assert named(found, "saliency_half_area", bias="aligned").n == 16
    assert named(found, "saliency_half_area", bias="conflicting").n == 4


def test_pictures_of_unknown_group_are_on_neither_side_and_contradict_no_shortcut() -> None:
    data = corner_data(groups=True)
    assert data.test is not None
    data.test.groups[[0, 1, 5]] = -1  # 0 and 5 are two of the four that contradict it
    found = saliency(Subject(Corners(), data, CPU))
    assert [named(found, "saliency_half_area", bias=side).n for side in ("aligned", "conflicting")] == [15, 2]
    shown = [picture["position"] for picture in named(found, "maps").evidence["maps"] if picture["shared"]]
    assert shown == [10, 15], "the first of each class that is known to contradict the shortcut"


def test_agreement_of_models() -> None:
    subject = Subject(Corners(), corner_data(), CPU)
    found = saliency(subject, others={"same": Corners(), "swapped": Corners(swapped=True)})
    assert named(found, "saliency_agreement", model="same").value == pytest.approx(1)
    swapped = named(found, "saliency_agreement", model="swapped")
    assert swapped.n == 0  # it looks where there is no light: no map to compare
    assert swapped.value is None


def test_pictures_show_where_each_model_looks() -> None:
    found = saliency(Subject(Corners(), corner_data(), CPU), others={"other": Corners()})
    maps = found[-1]
    assert maps.evidence["models"] == ["", "other"]
    json.dumps(maps.to_json())
    first = maps.evidence["maps"][0]
    assert (first["label"], first["position"], first["shared"], len(first["looks"])) == ("upper", 0, True, 2)
    assert first["looks"][0]["prediction"] == "upper"
    picture = decoded(first["looks"][0]["overlay"])
    assert picture.shape == (96, 96, 3)
    assert picture[:36, :36].mean() > 150 > 30 > picture[60:, 60:].mean()


def test_shared_pictures_contradict_the_shortcut_and_mistakes_follow() -> None:
    data = corner_data(groups=True)
    wrong = Corners()
    with torch.no_grad():
        wrong.planes.weight[1] = -1  # never says "lower"
    rows = saliency(Subject(wrong, data, CPU))[-1].evidence["maps"]
    shared = [row for row in rows if row["shared"]]
    assert [(row["label"], row["group"]) for row in shared] == [("upper", "b"), ("lower", "a")]
    rest = [row for row in rows if not row["shared"]]
    assert len(rest) == 6
    assert {row["label"] for row in rest} == {"lower"}


def test_the_model_is_given_back_and_the_seed_decides() -> None:
    torch.manual_seed(0)
    data, model = make_data(groups=2), nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Pooled(4, 3))
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    first = saliency(Subject(model, data, CPU), images=16)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    again = saliency(Subject(model, data, CPU), images=16)
    other = saliency(Subject(model, data, CPU, seed=1), images=16)
    assert first == again
    assert named(first, "saliency_entropy").value != named(other, "saliency_entropy").value


class Pooled(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def test_a_net_without_planes_is_reported_not_raised() -> None:
    (only,) = saliency(Subject(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), corner_data(), CPU))
    assert only.value is None
    assert "no layer of Sequential keeps the plane" in only.evidence["reason"]


def test_bad_input() -> None:
    with pytest.raises(HoldfastError, match="images must be >= 1, got 0"):
        saliency(Subject(Corners(), corner_data(), CPU), images=0)


def test_concentration_of_known_maps() -> None:
    spot = torch.zeros(1, 10, 10)
    spot[0, 3, 3] = 1
    found = concentration(torch.cat([torch.ones(1, 10, 10), spot, torch.zeros(1, 10, 10)]))
    torch.testing.assert_close(
        found["saliency_half_area"], torch.tensor([0.5, 0.01])
    )  # a map without energy is left out
    torch.testing.assert_close(found["saliency_entropy"], torch.tensor([1.0, 0.0]))


def test_rank_correlation_is_scipys() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 5, 7, 6, generator=generator).mul(9).round()  # many ties
    expected = [spearmanr(x.flatten(), y.flatten()).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(rank_correlation(a, b).numpy(), expected)
    assert rank_correlation(a, a).tolist() == pytest.approx([1.0] * 5)
    assert len(rank_correlation(a, torch.ones_like(a))) == 0
    assert average_ranks(torch.tensor([[2.0, 2.0, 1.0]])).tolist() == [[1.5, 1.5, 0.0]]


def test_overlay_is_bright_where_the_map_is() -> None:
    image = torch.full((3, 4, 8), 128, dtype=torch.uint8)
    heat = torch.zeros(4, 8)
    heat[:, 4:] = 1
    pixels = decoded(overlay(image, heat))
    assert pixels.shape == (48, 96, 3)
    assert pixels[:, 60:].mean() > pixels[:, :36].mean() + 80


def decoded(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")).astype(float)


def test_a_program_that_hides_its_layers_says_so() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against what people still have
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2))
        program = torch.jit.trace(net, torch.rand(1, 1, 8, 8))  # type: ignore[no-untyped-call]
    (only,) = saliency(Subject(nn.Sequential(program), corner_data(), CPU))
    assert only.value is None
    assert "program hides its layers" in only.evidence["reason"]
