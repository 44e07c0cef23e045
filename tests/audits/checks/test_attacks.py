"""The attacks check: right numbers, and every known way to hide gradients is caught while an honest model is not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.attacks import fgsm, pgd
from holdfast.audits.checks.attacks import BUDGETS, RADII, trust
from holdfast.audits.checks.attacks.attack_bench import AttackBench, train_surrogate
from holdfast.audits.checks.attacks.trust import WARNING
from holdfast.audits.sample_passes import decode
from holdfast.audits.subject import Subject
from holdfast.data import Dataset, load
from holdfast.errors import HoldfastError
from holdfast.metrics import sign_test
from holdfast.train import fit
from holdfast.types import Finding
from tests.audits.checks.run_checks import attacks

RADIUS = 16 / 255
SMALL = replace(BUDGETS["cpu"], images=80, unbounded=60, apgd_steps=10, queries=40, long_steps=20)
CHECKS = {
    "radius-zero", "gradients-present", "gradients-kept", "radius-growth", "steps-growth", "white-over-transfer",
    "transfer-over-noise", "white-over-noise", "plain-over-averaged", "gradients-over-search", "unbounded",
}  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", image_size=8)


@pytest.fixture(scope="module")
def model(digits: Dataset) -> nn.Module:
    return fit(digits, epochs=6, device="cpu", progress=False, eval_every=0, seed=1).model


@pytest.fixture(scope="module")
def surrogate(digits: Dataset) -> nn.Module:
    return fit(digits, epochs=3, device="cpu", progress=False, eval_every=0, seed=2).model


def measured(model: nn.Module, data: Dataset, surrogate: nn.Module | None, **changes: object) -> tuple[Finding, ...]:
    subject = Subject(model, data, torch.device("cpu"), batch_size=50)
    settings = {"radii": (4 / 255, RADIUS), "budget": SMALL, "transfer": surrogate is not None, **changes}
    return attacks(subject, surrogate_module=surrogate, **settings)  # type: ignore[arg-type]


def failed(findings: Sequence[Finding]) -> set[str]:
    return {f.where["check"] for f in findings if f.name == "trust_check" and f.value == 0}


def error(findings: Sequence[Finding], attack: str, access: str, radius: str = "16/255") -> Finding:
    (found,) = [
        f
        for f in findings
        if f.name == "attack_error"
        and (f.where.get("attack"), f.where["access"], f.where.get("radius", "")) == (attack, access, radius)
    ]
    return found


@pytest.fixture(scope="module")
def honest(model: nn.Module, digits: Dataset, surrogate: nn.Module) -> tuple[Finding, ...]:
    return measured(model, digits, surrogate)


@pytest.mark.slow
def test_an_honest_model_is_trusted(honest: tuple[Finding, ...]) -> None:
    assert failed(honest) == set()
    assert {f.where["check"] for f in honest if f.name == "trust_check"} == CHECKS
    assert (honest[-1].name, honest[-1].value) == ("trusted", 1.0)
    assert all(f.evidence["trusted"] is True and "warning" not in f.evidence for f in honest)


@pytest.mark.parametrize("seed", [3, 4])
def test_other_honest_models_are_trusted_too(digits: Dataset, surrogate: nn.Module, seed: int) -> None:
    smoothed = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    other = fit(digits, model=smoothed, epochs=5, device="cpu", progress=False, eval_every=0, seed=seed).model
    assert failed(measured(other, digits, surrogate)) == set()


@pytest.mark.slow
def test_numbers_are_those_of_the_attacks(
    honest: tuple[Finding, ...], model: nn.Module, digits: Dataset, surrogate: nn.Module
) -> None:
    assert digits.test is not None
    n = SMALL.images
    part = digits.test.subset(torch.arange(150))
    everything = measured(model, replace(digits, test=part), surrogate, images=150, radii=(RADIUS,))
    x, y = part.read(torch.arange(150)).float() / 255, part.labels
    model.eval()
    with torch.no_grad():
        clean = float((model(x).argmax(1) != y).double().mean())
        moved = {
            ("fgsm", "white-box"): fgsm(model, x, y, radius=RADIUS),
            ("pgd-10", "white-box"): pgd(model, x, y, radius=RADIUS),
            ("fgsm", "black-box transfer"): fgsm(surrogate, x, y, radius=RADIUS),
            ("pgd-10", "black-box transfer"): pgd(surrogate, x, y, radius=RADIUS),
        }
        assert error(everything, "clean", "none", "").value == pytest.approx(clean)
        for (attack, access), images in moved.items():
            truth = float((model(images).argmax(1) != y).double().mean())
            assert error(everything, attack, access).value == pytest.approx(truth, abs=0.007)
    found = error(honest, "pgd-10", "white-box")
    assert found.n == n
    assert found.low is not None
    assert found.high is not None
    assert found.value is not None
    assert found.low < found.value < found.high


def test_verdicts_on_single_images_add_up_to_the_strongest(honest: tuple[Finding, ...]) -> None:
    said = dict(decode(honest[-1].evidence["verdicts"]))
    n = len(said)
    assert n == honest[-1].n
    strongest = [f for f in honest if f.name == "attack_error" and f.where["attack"] == "strongest"]
    down = sum(word == "wrong" for word in said.values())
    assert down / n == error(honest, "clean", "none", "").value
    for f in sorted(strongest, key=lambda f: float(f.evidence["radius"])):
        down += sum(word == f"falls at {f.where['radius']}" for word in said.values())
        assert down / n == pytest.approx(f.value)
    assert down + sum(word.startswith("withstands") for word in said.values()) == n


def test_every_radius_has_its_drop(honest: tuple[Finding, ...]) -> None:
    clean = error(honest, "clean", "none", "").value
    drops = {f.where["radius"]: f for f in honest if f.name == "attack_drop"}
    assert set(drops) == {"4/255", "16/255"}
    for radius, drop in drops.items():
        strongest = error(honest, "strongest", "any", radius)
        assert drop.value == pytest.approx(strongest.value - clean)
        assert drop.low <= drop.value <= drop.high


def test_the_strongest_is_no_less_than_any(honest: tuple[Finding, ...]) -> None:
    for radius in ("4/255", "16/255"):
        top = error(honest, "strongest", "any", radius).value
        others = [f.value for f in honest if f.name == "attack_error" and f.where.get("radius") == radius]
        assert top == max(v for v in others if v is not None)
    assert error(honest, "unbounded", "white-box", "").value == 1.0


class Wrapped(nn.Module):
    def __init__(self, net: nn.Module, amount: float) -> None:
        super().__init__()
        self.net, self.amount = net, amount


class Saturated(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.amount


class Noisy(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.amount * torch.randn_like(x))


class Resized(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        side = int(torch.randint(6, 9, ()))
        left = int(torch.randint(0, 9 - side, ()))
        return self.net(F.pad(F.interpolate(x, (side, side), mode="bilinear"), (left, 8 - side - left) * 2))


class Rounded(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(torch.round(x * self.amount) / self.amount)


class StraightThrough(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + (torch.round(x * self.amount) / self.amount - x).detach())


class ScaledGradient(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x)
        return z.detach() + self.amount * (z - z.detach())


class SineRounded(Wrapped):
    """Rounds smoothly: flat at multiples of 1 / amount, steep between."""

    def forward(self, x: Tensor) -> Tensor:
        turns = 2 * torch.pi * self.amount
        return self.net(x - torch.sin(turns * x) / turns)


class TanhRounded(Wrapped):
    """Rounds to 16 levels by steps that are steeper the larger the amount."""

    def forward(self, x: Tensor) -> Tensor:
        low = torch.floor(16 * x)
        step = torch.tanh(self.amount * (16 * x - low - 0.5)) / (2 * math.tanh(self.amount / 2))
        return self.net((low + 0.5 + step) / 16)


class Detached(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).detach()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hide", "amount", "caught_by"),
    [
        (Noisy, 0.1, {"radius-zero", "gradients-kept"}),
        (Noisy, 0.005, {"radius-zero"}),
        (Resized, 1, {"radius-zero"}),
        (
            Rounded,
            4,
            {"gradients-present", "gradients-kept", "unbounded", "white-over-transfer", "gradients-over-search"},
        ),
        (SineRounded, 16, {"plain-over-averaged"}),
        (TanhRounded, 30, {"plain-over-averaged", "white-over-transfer"}),
        (Detached, 1, {"gradients-present", "gradients-kept", "unbounded", "white-over-transfer"}),
    ],
)
def test_hidden_gradients_are_caught(
    hide: type[Wrapped], amount: float, caught_by: set[str], model: nn.Module, digits: Dataset, surrogate: nn.Module
) -> None:
    torch.manual_seed(0)
    findings = measured(hide(model, amount), digits, surrogate, radii=(RADIUS, 40 / 255))
    assert failed(findings) >= caught_by
    assert (findings[-1].name, findings[-1].value) == ("trusted", 0.0)
    assert set(findings[-1].evidence["failed"]) == failed(findings)
    for finding in findings:  # nobody can quote one number without its warning
        assert finding.evidence["trusted"] is False
        assert finding.evidence["warning"] == WARNING == "gradients masked: do not trust"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "amount", "unusual"),
    [
        (ScaledGradient, 0.2, "gradients-kept"),
        (ScaledGradient, 1e-30, "gradients-kept"),
        (Saturated, 50, "gradients-present"),
        (Saturated, 1e4, "gradients-present"),
        (StraightThrough, 4, "gradients-kept"),
        (StraightThrough, 16, "gradients-kept"),
    ],
)
def test_unusual_gradients_that_lead_attacks_as_well_are_not_called_masked(
    change: type[Wrapped],
    amount: float,
    unusual: str,
    model: nn.Module,
    digits: Dataset,
    surrogate: nn.Module,
    honest: tuple[Finding, ...],
) -> None:
    """The error is that of the plain model, or of one attacked with the identity in place of the rounding."""
    findings = measured(change(model, amount), digits, surrogate, radii=(RADIUS, 40 / 255))
    assert failed(findings) == {unusual}
    assert (findings[-1].value, findings[-1].evidence["failed"]) == (1.0, [unusual])
    for finding in findings:
        assert finding.evidence["remark"] == trust.UNUSUAL == "gradients are scaled or replaced; attacks still succeed"
        assert finding.evidence["trusted"] is True
        assert "warning" not in finding.evidence
    if change is not StraightThrough:
        assert error(findings, "strongest", "any").value == pytest.approx(
            error(honest, "strongest", "any").value, abs=0.02
        )


@pytest.mark.parametrize(
    ("name", "losses", "says"),
    [
        ("gradients-kept", 3, "remark"),  # 2⁻³: nothing speaks against the attacks
        ("gradients-kept", 7, "warning"),  # 2⁻⁷: no failure of its own, but too little beside unusual gradients
        ("gradients-present", 7, "warning"),
        ("unbounded", 0, "warning"),
        (None, 7, None),
    ],
)
def test_unusual_gradients_are_accepted_only_where_every_comparison_holds_clearly(
    name: str | None, losses: int, says: str | None
) -> None:
    weak = torch.arange(20) < losses
    compared = trust.at_least("white-over-noise", {"8/255": (torch.zeros_like(weak), weak)}, "no less than noise")
    assert compared.passed
    assert compared.numbers["pairs"]["8/255"]["p"] == pytest.approx(0.5**losses)
    found = trust.verdict([compared, *([trust.TrustCheck(name, False, 20, "")] if name else [])])
    assert found["trusted"] is (says != "warning")
    assert set(found) - {"trusted"} == ({says} if says else set())


def test_findings_are_json_and_say_how_they_were_made(honest: tuple[Finding, ...]) -> None:
    assert [Finding.from_json(json.loads(json.dumps(f.to_json(), allow_nan=False))) for f in honest] == list(honest)
    assert honest[0].settings == {
        "norm": "linf", "images": 80, "apgd_steps": 10, "queries": 40, "precision": "fp32", "seed": 0,
        "surrogate": "given",
    }  # fmt: skip


def test_the_same_seed_gives_the_same_findings(model: nn.Module, digits: Dataset, surrogate: nn.Module) -> None:
    few = {"images": 20, "radii": (RADIUS,)}
    assert measured(model, digits, surrogate, **few) == measured(model, digits, surrogate, **few)


def test_l2_presets_and_no_surrogate(model: nn.Module, digits: Dataset) -> None:
    few = {"images": 30, "norm": "l2", "radii": (0.5,), "presets": ("alps-table-6", "alps-table-6-normalised")}
    findings = measured(model, digits, None, **few)
    assert failed(findings) == set()
    skipped = {f.where["check"] for f in findings if f.name == "trust_check" and f.value is None}
    assert skipped == {"white-over-transfer", "transfer-over-noise"}
    named = {f.where["preset"]: f for f in findings if "preset" in f.where}
    pixel, normalised = (named[p].value for p in ("alps-table-6", "alps-table-6-normalised"))
    assert named["alps-table-6-normalised"].evidence["space"] == "normalised"
    assert pixel is not None
    assert normalised is not None
    assert pixel >= normalised  # digits deviate by less than 1, so the second ball is inside the first


def test_a_surrogate_is_trained_where_none_is_given(digits: Dataset, model: nn.Module) -> None:
    subject = Subject(model, digits, torch.device("cpu"))
    made = train_surrogate(subject, SMALL)
    assert made is not None
    assert digits.test is not None
    x, y = digits.test.read(torch.arange(200)).float() / 255, digits.test.labels[:200]
    with torch.no_grad():
        assert float((made.eval()(x).argmax(1) == y).double().mean()) > 0.7
    empty = replace(digits, train=digits.train.subset(torch.arange(0)))
    assert train_surrogate(Subject(model, empty, torch.device("cpu")), SMALL) is None


def test_model_is_given_back_as_it_was(digits: Dataset, model: nn.Module, surrogate: nn.Module) -> None:
    model.train()
    next(model.children()).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags, grads = [m.training for m in model.modules()], [p.grad for p in model.parameters()]
    kept = [None if g is None else g.clone() for g in grads]
    measured(model, digits, surrogate, images=10, radii=(RADIUS,))
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is g and p.requires_grad for p, g in zip(model.parameters(), grads, strict=True))
    assert all(g is None or torch.equal(g, k) for g, k in zip(grads, kept, strict=True))  # type: ignore[arg-type]
    model.eval()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"radii": ()}, "radii must be finite numbers > 0, got []"),
        ({"radii": (0.0,)}, "radii must be finite numbers > 0, got [0.0]"),
        ({"images": 0}, "images must be >= 1, got 0"),
        ({"presets": ("alps-table-7",)}, "unknown attacks.presets 'alps-table-7'; did you mean"),
    ],
)
def test_bad_settings_name_the_value(
    changes: dict[str, object], message: str, model: nn.Module, digits: Dataset
) -> None:
    with pytest.raises(HoldfastError) as caught:
        measured(model, digits, None, **changes)
    assert message in str(caught.value)


def test_a_model_for_other_classes_is_refused(digits: Dataset) -> None:
    with pytest.raises(HoldfastError, match="they must match"):
        measured(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), digits, None)


def test_paired_comparison_allows_for_chance() -> None:
    weak, strong = torch.zeros(100, dtype=torch.bool), torch.zeros(100, dtype=torch.bool)
    weak[:5] = True
    assert trust.at_least("x", {"a": (strong, weak)}, "s").passed is True  # five of a hundred: may be chance
    weak[:12] = True
    assert trust.at_least("x", {"a": (strong, weak)}, "s").passed is False
    strong[50:62] = True  # as many on the other side
    assert trust.at_least("x", {"a": (strong, weak)}, "s").passed is True
    assert trust.at_least("x", {}, "s").passed is None
    assert sign_test(3, 9, alternative="less") == pytest.approx(299 / 4096)  # binomial tail, by hand


class Watched(nn.Module):
    """Notes whether anybody asked for gradients that reach the images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.asked = False

    def forward(self, x: Tensor) -> Tensor:
        self.asked |= x.requires_grad
        out: Tensor = self.layers(x)
        return out


def test_access_says_what_an_attack_uses(digits: Dataset) -> None:
    """White-box attacks ask the model for gradients; Square and transfer do not, and are not called so."""
    model, other = Watched(), Watched()
    subject = Subject(model, digits, torch.device("cpu"), batch_size=50)
    bench = AttackBench(subject, 20, replace(SMALL, queries=5), lambda: other)
    access = {}
    for (attack, said, _), _ in bench.bounded((RADIUS,), "linf"):
        access[attack, said] = model.asked, other.asked
        model.asked = other.asked = False
    gradients, surrogate, neither = (True, False), (False, True), (False, False)
    assert access == {
        ("clean", "none"): neither,
        ("noise", "none"): neither,
        **{(name, "white-box"): gradients for name in ("fgsm", "pgd-10", "apgd-ce", "apgd-dlr", "pgd-averaged")},
        ("square", "black-box queries"): neither,
        **{(name, "black-box transfer"): surrogate for name in ("fgsm", "pgd-10")},
    }


def test_radii_have_defaults_for_both_norms() -> None:
    assert RADII["linf"][1] == 4 / 255
    assert all(list(r) == sorted(r) for r in RADII.values())


def test_costly_attacks_see_the_first_images_only(model: nn.Module, digits: Dataset) -> None:
    plan = replace(SMALL, searched=17, unbounded=0)
    findings = measured(model, digits, None, images=30, radii=(RADIUS,), budget=plan)
    counts = {f.where["attack"]: f.n for f in findings if f.name == "attack_error" and "radius" in f.where}
    assert counts == {name: 17 if name == "square" else 30 for name in counts}
    assert next(f.n for f in findings if f.where.get("attack") == "unbounded") == 1, "none is no check"
    white = [f.value for f in findings if f.name == "attack_error" and f.where["access"] == "white-box" and f.n == 30]
    strongest = error(findings, "strongest", "any")
    assert strongest.n == 30
    assert strongest.value is not None
    assert strongest.value >= max(v for v in white if v is not None)
    check = next(f for f in findings if f.where.get("check") == "gradients-over-search")
    assert check.n == 17
