"""An audit goes on: each check ends in a state of its own, and none takes the others along."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.audits.measuring import measure
from holdfast.audits.open_models import ready
from holdfast.audits.run_audit import audit
from holdfast.audits.subject import Subject
from holdfast.data import Dataset
from holdfast.errors import HoldfastError
from holdfast.settings.audit_settings import chosen_checks as check_names
from holdfast.types import Finding
from tests.audits.checks.run_checks import put
from tests.conftest import make_data

ONE = (Finding("accuracy", "accuracy", 0.5, 8, 0.2, 0.8),)


def subject(data: Dataset | None = None, model: nn.Module | None = None, **kwargs: Any) -> Subject:
    data = data or make_data()
    with torch.random.fork_rng():  # about one random model in six would raise a warning of its own
        torch.manual_seed(3)
        model = model or nn.Sequential(nn.Flatten(), nn.Linear(64, data.num_classes))
    return Subject(model, data, torch.device("cpu"), workers=0, **kwargs)


def test_a_check_that_raises_is_crashed_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(_: Subject) -> tuple[Finding, ...]:
        raise ZeroDivisionError("on purpose\nand more")

    put(monkeypatch, "accuracy", bad)
    outcome = measure("accuracy", subject())
    assert (outcome.state, outcome.reason, outcome.findings) == ("crashed", "ZeroDivisionError: on purpose", ())


def test_the_rest_of_an_audit_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(_: Subject) -> tuple[Finding, ...]:
        raise RuntimeError("on purpose")

    put(monkeypatch, "groups", bad)
    given = subject()
    with pytest.warns(RuntimeWarning, match="check groups crashed: RuntimeError: on purpose"):
        found = audit(given.model, given.data, checks=["groups", "accuracy"], device="cpu")
    state = {record.name: record.state for record in found.checks}
    assert (state["groups"], state["accuracy"], found.exit_code, found.passed) == ("crashed", "measured", 3, False)
    assert not [f for f in found if f.check == "groups"]
    assert any(f.check == "accuracy" and f.value is not None for f in found)


def test_what_does_not_apply_says_why() -> None:
    outcome = measure("groups", subject())
    assert outcome.state == "not applicable"
    assert "no groups" in outcome.reason


def test_an_interrupt_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: Subject) -> tuple[Finding, ...]:
        raise KeyboardInterrupt

    put(monkeypatch, "accuracy", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure("accuracy", subject())


class Hungry(nn.Module):
    """Has memory for so many images."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.seen.append(len(x))
        return x.flatten(1)[:, :3]


def test_batches_are_halved_until_memory_holds_them() -> None:
    model = Hungry(5)
    whole, notes = ready(subject(model=model, batch_size=32))
    assert whole.batch_size == 4
    assert tuple(map(str, notes)) == tuple(f"out of memory: batches of {b} instead of {2 * b}" for b in (16, 8, 4))
    expected = make_data().test.images.flatten(1)[:, :3].float() / 255  # type: ignore[union-attr]
    torch.testing.assert_close(whole.predictions.logits, expected)


def test_a_check_that_runs_out_of_memory_keeps_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def hungry(given: Subject) -> tuple[Finding, ...]:
        sizes.append((given.batch_size, id(given.predictions)))
        if given.batch_size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return ONE

    put(monkeypatch, "accuracy", hungry)
    outcome = measure("accuracy", subject(batch_size=8))
    assert outcome.state == "measured"
    assert [size for size, _ in sizes] == [8, 4, 2]
    assert len({seen for _, seen in sizes}) == 1
    assert len(outcome.notes) == 2


def test_one_image_that_does_not_fit_is_a_crash_of_the_check_and_bad_input_of_the_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hungry(_: Subject) -> tuple[Finding, ...]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    put(monkeypatch, "accuracy", hungry)
    assert measure("accuracy", subject(batch_size=4)).state == "crashed"
    with pytest.raises(HoldfastError, match="out of memory with a single image"):
        ready(subject(model=Hungry(0), batch_size=4))


def test_a_model_that_does_not_fit_the_data_is_bad_input() -> None:
    told = "the model gives 7 outputs per image and does not name them; the data has 3 classes"
    with pytest.raises(HoldfastError, match=told):
        audit(nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), make_data(), checks=["groups"], device="cpu")


class Wrapped(nn.Module):
    """Probabilities, in an object with ``.logits`` where asked."""

    def __init__(self, inner: nn.Module, how: str) -> None:
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x: Tensor) -> Any:
        logits = self.inner(x)
        return {
            "object": SimpleNamespace(logits=logits, loss=None),
            "probabilities": logits.softmax(1),
            "log-probabilities": logits.log_softmax(1),
            "sigmoid": logits.sigmoid(),
        }[self.how]


@pytest.mark.filterwarnings("ignore:the outputs seem to stand in another order")  # the network is random
@pytest.mark.parametrize("how", ["object", "probabilities", "log-probabilities"])
def test_what_a_model_returns_is_made_logits(how: str) -> None:
    """Numbers that depend on probabilities, and on gradients through them, are those of the logits themselves."""
    data = make_data()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Flatten(), nn.Linear(64, data.num_classes))
    only = ["accuracy", "curvature"]
    plain, other = (audit(m, data, checks=only, device="cpu") for m in (inner, Wrapped(inner, how)))
    for a, b in zip(plain, other, strict=True):
        assert (a.check, a.name, a.where, a.n) == (b.check, b.name, b.where, b.n)
        assert b.value == (None if a.value is None else pytest.approx(a.value, rel=1e-3, abs=1e-5))


@pytest.mark.filterwarnings("ignore:the outputs seem to stand in another order")  # the network is random
def test_sigmoids_are_doubted_and_taken_at_the_users_word() -> None:
    data = make_data()
    inner = nn.Sequential(nn.Flatten(), nn.Linear(64, data.num_classes))
    with pytest.warns(RuntimeWarning, match="--output sigmoid"):
        audit(Wrapped(inner, "sigmoid"), data, checks=["accuracy"], device="cpu")
    told = audit(Wrapped(inner, "sigmoid"), data, checks=["accuracy"], device="cpu", output="sigmoid")
    plain = audit(inner, data, checks=["accuracy"], device="cpu")
    for a, b in zip(plain, told, strict=True):
        assert b.value == (None if a.value is None else pytest.approx(a.value, rel=1e-3, abs=1e-4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp8"}, "unknown precision 'fp8'; did you mean"),
        ({"seed": "x"}, "seed must be a whole number >= 0, got 'x'"),
        ({"seed": 2**70}, "seed must be in 0"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        ({"output": "logit"}, "unknown kind of outputs 'logit'; did you mean 'logits'"),
        ({"model": 7}, "int"),
        ({"model": nn.Linear(3, 2)}, "Linear cannot take grey images of 8x8 pixels"),
    ],
)
def test_bad_input_from_python_has_a_sentence(settings: dict[str, Any], message: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(HoldfastError, match=message):
        audit(**{"model": model, "data": make_data(), "checks": ["accuracy"], "device": "cpu", **settings})


def test_whole_numbers_of_numpy_are_numbers() -> None:
    assert subject(seed=np.int64(3), batch_size=np.int32(8)).seed == 3


def test_names_are_checked_and_put_in_order() -> None:
    assert check_names(["groups", "accuracy", "groups"]) == ["accuracy", "groups"]
    with pytest.raises(HoldfastError, match="unknown check 'acuracy'; did you mean 'accuracy'"):
        check_names(["acuracy"])
