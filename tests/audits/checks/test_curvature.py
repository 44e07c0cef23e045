"""The curvature check: the right numbers from the right images, and a reason where there are none."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.audits.checks.curvature import Curvature
from holdfast.audits.run_audit import audit
from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset
from holdfast.errors import HoldfastError
from holdfast.types import Finding
from tests.audits.checks.run_checks import curvature
from tests.conftest import make_data, same_weights

NAMES = ["top_eigenvalue", "fifth_eigenvalue", "eigenvalue_ratio"]


def make_model(classes: int = 3) -> nn.Module:
    """Small enough for its whole Hessian."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, classes))


def subject_of(model: nn.Module, data: Dataset, **changes: object) -> Subject:
    return Subject(model, data, torch.device("cpu"), **changes)  # type: ignore[arg-type]


def value(findings: Sequence[Finding], name: str) -> float:
    (found,) = [f.value for f in findings if f.name == name]
    assert found is not None
    return found


def exact_eigenvalues(model: nn.Module, split: ArraySplit) -> Tensor:
    """All eigenvalues of the Hessian over a whole split, largest first, by dense algebra in float64."""
    model = copy.deepcopy(model).double()
    x, y = split.images.double() / 255, split.labels
    shapes = {name: p.shape for name, p in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, named, (x,)), y)

    point = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, point)).flip(0)


def test_numbers_are_those_of_the_full_hessian_of_the_training_images(data: Dataset) -> None:
    model = make_model()
    exact = exact_eigenvalues(model, data.train)
    findings = curvature(subject_of(model, data, batch_size=40))
    assert [f.name for f in findings] == NAMES
    assert {f.check for f in findings} == {"curvature"}
    assert {f.n for f in findings} == {len(data.train)}
    evidence = findings[0].evidence
    assert evidence["eigenvalues"] == pytest.approx(exact[:5].tolist(), rel=1e-4)
    assert value(findings, "top_eigenvalue") == pytest.approx(float(exact[0]), rel=1e-4)
    assert value(findings, "fifth_eigenvalue") == pytest.approx(float(exact[4]), rel=1e-4)
    assert value(findings, "eigenvalue_ratio") == pytest.approx(float(exact[0] / exact[4]), rel=1e-4)
    assert evidence["converged"] == [True] * 5
    assert evidence["complete"] is True
    assert all(0 <= r <= 1e-3 * v for v, r in zip(evidence["eigenvalues"], evidence["residuals"], strict=True))


def test_fewer_images_give_larger_eigenvalues_so_there_is_no_interval() -> None:
    """Jensen: λ1 is convex, so the mean over parts of a set is above λ1 of the set; here by a tenth and more.

    An interval around the number of such a part claims 95 % and misses the truth on one side.
    """
    data = make_data(n=120, test=6)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():  # classes are told apart, so that few images count
        x, y = data.train.read(torch.arange(120)).flatten(1).float() / 255, data.train.labels
        model[1].weight.copy_(4 * torch.stack([x[y == k].mean(0) for k in range(3)]))
        model[1].bias.zero_()
    whole = curvature(subject_of(model, data), images=120)
    parts = [
        curvature(subject_of(model, replace(data, train=data.train.subset(part))), images=15)
        for part in torch.arange(120).chunk(8)
    ]
    found = torch.tensor([value(part, "top_eigenvalue") for part in parts])
    assert float(found.mean()) > 1.1 * value(whole, "top_eigenvalue")
    assert value(whole, "top_eigenvalue") == pytest.approx(float(exact_eigenvalues(model, data.train)[0]), rel=1e-3)  # type: ignore[arg-type]
    assert all(f.low is None and f.high is None for f in (*whole, *parts[0]))


def test_gauss_newton_is_an_option_and_has_no_negative_part(data: Dataset) -> None:
    subject = subject_of(make_model(), data)
    hessian, gauss_newton = curvature(subject), curvature(subject, ggn=True)
    assert gauss_newton[0].settings["matrix"] == "generalised Gauss-Newton"
    assert value(gauss_newton, "top_eigenvalue") != pytest.approx(value(hessian, "top_eigenvalue"), rel=1e-3)
    lowest = [
        min(f[0].evidence["density"]["grid"]) + 5 * f[0].evidence["density"]["sigma"] for f in (hessian, gauss_newton)
    ]
    assert lowest[0] < -1e-4
    assert lowest[1] > -1e-4


def test_density_is_one(data: Dataset) -> None:
    density = curvature(subject_of(make_model(), data))[0].evidence["density"]
    grid, values = density["grid"], density["density"]
    assert sum(values) * (grid[1] - grid[0]) == pytest.approx(1.0, abs=1e-4)
    assert grid[0] < 0 < grid[-1]


def test_findings_are_json_and_say_how_they_were_made(data: Dataset) -> None:
    findings = curvature(subject_of(make_model(), data, seed=7))
    assert [Finding.from_json(json.loads(json.dumps(f.to_json()))) for f in findings] == list(findings)
    assert findings[0].settings == {
        "matrix": "Hessian",
        "loss": "mean cross-entropy",
        "split": "train",
        "images": 96,
        "augmentation": "none",
        "precision": "fp32",
        "tolerance": 1e-3,
        "seed": 7,
        "parameters": 16 * 6 + 6 + 6 * 3 + 3,
    }


def test_a_seeded_sample_of_a_large_set(data: Dataset) -> None:
    model = make_model()
    first, again, other = (
        value(curvature(subject_of(model, data, seed=seed), images=20), "top_eigenvalue") for seed in (0, 0, 1)
    )
    assert first == again != other
    assert curvature(subject_of(model, data), images=20)[0].n == 20


def test_a_cpu_takes_few_images() -> None:
    usual = Curvature().usual_images("cpu")
    assert usual is not None
    data = make_data(n=usual + 50, test=6)
    assert curvature(subject_of(make_model(), data))[0].n == usual


def test_the_way_data_are_cut_makes_no_difference(data: Dataset) -> None:
    whole, cut = (curvature(subject_of(make_model(), data, batch_size=b)) for b in (96, 7))
    assert value(cut, "top_eigenvalue") == pytest.approx(value(whole, "top_eigenvalue"), rel=1e-5)
    assert value(cut, "fifth_eigenvalue") == pytest.approx(value(whole, "fifth_eigenvalue"), rel=1e-4)


def test_without_training_images_the_test_set_serves(data: Dataset) -> None:
    assert isinstance(data.train, ArraySplit)
    findings = curvature(subject_of(make_model(), replace(data, train=data.train.subset(torch.arange(0)))))
    assert findings[0].settings["split"] == "test"
    assert findings[0].n == 48


def test_model_is_given_back_as_it_was(data: Dataset) -> None:
    model = nn.Sequential(nn.BatchNorm2d(1), make_model(), nn.Dropout())
    model[0].eval()
    before = nn.Sequential(nn.BatchNorm2d(1), make_model(), nn.Dropout())
    audit(model, data, checks=["curvature"], device="cpu")
    assert [m.training for m in (model, model[0], model[1], model[2])] == [True, False, True, True]
    assert same_weights(model, before)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_model()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).detach()


class Voting(Detached):
    def forward(self, x: Tensor) -> Tensor:
        return F.one_hot(self.net(x).argmax(1), 3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Detached(), "no gradient flows from the outputs (torch.float32)"),
        (Voting(), "no gradient flows from the outputs (torch.int64)"),
        (nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.ConstantPad1d((0, -1), 0.0)), "no parameters"),
        (make_model().double().requires_grad_(False).bfloat16(), "float32"),
    ],
    ids=["detached", "votes", "no parameters", "half precision"],
)
def test_a_model_without_a_hessian_gets_a_reason(model: nn.Module, words: str, data: Dataset) -> None:
    (finding,) = curvature(subject_of(model, data))
    assert (finding.name, finding.value, finding.n) == ("top_eigenvalue", None, 0)
    assert words in finding.evidence["reason"]


def test_weights_that_are_not_finite_get_a_reason(data: Dataset) -> None:
    model = make_model()
    nn.init.constant_(model[2].weight, math.nan)
    (finding,) = curvature(subject_of(model, data))
    assert "not finite" in finding.evidence["reason"]


def test_a_ratio_to_nothing_is_not_a_number(data: Dataset) -> None:
    # one image, three classes, linear outputs: the Hessian has rank two
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    findings = curvature(subject_of(model, data), images=1)
    assert value(findings, "top_eigenvalue") > 0.1
    assert value(findings, "fifth_eigenvalue") == pytest.approx(0.0, abs=1e-5)
    assert (findings[-1].value, findings[-1].n) == (None, 0)
    assert "λ5 is not clearly above zero" in findings[-1].evidence["reason"]


def test_fewer_than_five_parameters(data: Dataset) -> None:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x.mean((1, 2, 3))[:, None] * self.scale

    (finding,) = curvature(subject_of(Tiny(), data))
    assert len(finding.evidence["eigenvalues"]) == 3


def test_a_model_for_other_classes_is_refused(data: Dataset) -> None:
    with pytest.raises(HoldfastError, match=r"outputs of shape \(2,\) per image, and bars has 3 classes"):
        curvature(subject_of(make_model(classes=2), data))


@pytest.mark.slow
def test_is_part_of_every_audit(data: Dataset) -> None:
    assert {f.check for f in audit(make_model(), data, device="cpu")} >= {"accuracy", "curvature"}
