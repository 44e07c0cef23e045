"""An audit goes on: each front ends in a state of its own, and none takes the others along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.data import Dataset
from holdfast.errors import HoldfastError
from holdfast.fronts import FRONTS, Subject, audit, check_names, measure
from holdfast.fronts.auditing import ready
from holdfast.types import Finding
from tests.conftest import make_data

ONE = (Finding("clean", "accuracy", 0.5, 8, 0.2, 0.8),)


def subject(data: Dataset | None = None, model: nn.Module | None = None, **kwargs: Any) -> Subject:
    data = data or make_data()
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(64, data.num_classes))
    return Subject(model, data, torch.device("cpu"), workers=0, **kwargs)


def put(monkeypatch: pytest.MonkeyPatch, name: str, front: Any) -> None:
    monkeypatch.setitem(FRONTS, name, front)


def test_a_front_that_raises_is_crashed_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(_: Subject) -> tuple[Finding, ...]:
        raise ZeroDivisionError("on purpose\nand more")

    put(monkeypatch, "clean", bad)
    outcome = measure("clean", subject())
    assert (outcome.state, outcome.reason, outcome.findings) == ("crashed", "ZeroDivisionError: on purpose", ())


def test_the_rest_of_an_audit_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(_: Subject) -> tuple[Finding, ...]:
        raise RuntimeError("on purpose")

    put(monkeypatch, "groups", bad)
    given = subject()
    with pytest.warns(RuntimeWarning, match="front groups crashed: RuntimeError: on purpose"):
        found = audit(given.model, given.data, only=["groups", "clean"], device="cpu")
    (crashed,) = [f for f in found if f.front == "groups"]
    assert (crashed.name, crashed.value) == ("crashed", None)
    assert any(f.front == "clean" and f.value is not None for f in found)


def test_what_does_not_apply_says_why() -> None:
    outcome = measure("groups", subject())
    assert outcome.state == "not applicable"
    assert "no groups" in outcome.reason


def test_an_interrupt_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: Subject) -> tuple[Finding, ...]:
        raise KeyboardInterrupt

    put(monkeypatch, "clean", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure("clean", subject())


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
    assert notes == tuple(f"out of memory: batches of {b} instead of {2 * b}" for b in (16, 8, 4))
    expected = make_data().test.images.flatten(1)[:, :3].float() / 255  # type: ignore[union-attr]
    torch.testing.assert_close(whole.predictions.logits, expected)


def test_a_front_that_runs_out_of_memory_keeps_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def hungry(given: Subject) -> tuple[Finding, ...]:
        sizes.append((given.batch_size, id(given.predictions)))
        if given.batch_size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return ONE

    put(monkeypatch, "clean", hungry)
    outcome = measure("clean", subject(batch_size=8))
    assert outcome.state == "measured"
    assert [size for size, _ in sizes] == [8, 4, 2]
    assert len({seen for _, seen in sizes}) == 1
    assert len(outcome.notes) == 2


def test_one_image_that_does_not_fit_is_a_crash_of_the_front_and_bad_input_of_the_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hungry(_: Subject) -> tuple[Finding, ...]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    put(monkeypatch, "clean", hungry)
    assert measure("clean", subject(batch_size=4)).state == "crashed"
    with pytest.raises(HoldfastError, match="out of memory with a single image"):
        ready(subject(model=Hungry(0), batch_size=4))


def test_a_model_that_does_not_fit_the_data_is_bad_input() -> None:
    with pytest.raises(HoldfastError, match="they must match"):
        audit(nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), make_data(), only=["groups"], device="cpu")


def test_names_are_checked_and_put_in_order() -> None:
    assert check_names(["groups", "clean", "groups"]) == ["clean", "groups"]
    with pytest.raises(HoldfastError, match="unknown front 'clan'; did you mean 'clean'"):
        check_names(["clan"])
