"""Kinds of outputs, decided on a whole sample, and back to logits without changing what the model said."""

from __future__ import annotations

import pytest
import torch

from holdfast.audits.alignment.outputs import (
    change,
    check_classes,
    check_finite,
    decide_kind,
    kind_warnings,
    to_logits,
)
from holdfast.errors import HoldfastError

LOGITS = 4 * torch.randn(64, 5, generator=torch.Generator().manual_seed(0))


def test_each_kind_is_recognised() -> None:
    assert decide_kind(LOGITS) == "logits"
    assert decide_kind(LOGITS.softmax(1)) == "probabilities"
    assert decide_kind(LOGITS.softmax(1).half().float()) == "probabilities"
    assert decide_kind(LOGITS.log_softmax(1)) == "log-probabilities"
    assert decide_kind(LOGITS.sigmoid()) == "logits"


def test_one_row_does_not_decide_for_the_sample() -> None:
    """Batch by batch, the first of these would be read as probabilities and the rest as logits."""
    mixed = torch.cat([torch.tensor([[1.0, 0, 0, 0, 0]]), LOGITS])
    assert decide_kind(mixed[:1]) == "probabilities"
    assert decide_kind(mixed) == "logits"


@pytest.mark.parametrize("kind", ["logits", "probabilities", "log-probabilities"])
def test_logits_give_the_models_own_probabilities(kind: str) -> None:
    outputs = {"logits": LOGITS, "probabilities": LOGITS.softmax(1), "log-probabilities": LOGITS.log_softmax(1)}[kind]
    assert torch.allclose(to_logits(outputs, kind).softmax(1), LOGITS.softmax(1), atol=1e-6)


def test_sure_probabilities_stay_finite_and_keep_their_gradient() -> None:
    sure = torch.tensor([[1.0, 0.0]], requires_grad=True)
    logits = to_logits(sure, "probabilities")
    assert bool(logits.isfinite().all())
    logits[0, 0].backward()
    assert sure.grad is not None
    assert sure.grad[0, 0] == 1


def test_sigmoid_outputs_are_the_users_word_and_otherwise_warned_of() -> None:
    assert torch.allclose(to_logits(LOGITS.sigmoid(), "sigmoid"), LOGITS, atol=1e-2)
    assert "--output sigmoid" in str(kind_warnings(LOGITS.sigmoid(), "logits")[0])
    assert kind_warnings(LOGITS, "logits") == []
    assert kind_warnings(LOGITS.softmax(1), "probabilities") == []
    with pytest.raises(HoldfastError, match="unknown kind of outputs 'logit'; did you mean 'logits'"):
        to_logits(LOGITS, "logit")


def test_bad_numbers_are_refused() -> None:
    bad = LOGITS.clone()
    bad[3, 1], bad[7, 0] = float("nan"), float("inf")
    with pytest.raises(HoldfastError, match="NaN or infinity for 2 of 64 images, the first at position 3"):
        check_finite(bad)
    certain = torch.tensor([[0.0, float("-inf")]])
    check_finite(certain)  # the logarithm of a probability of zero
    with pytest.raises(HoldfastError, match="1 of 1 images"):
        check_finite(torch.full((1, 2), float("-inf")))
    with pytest.raises(HoldfastError, match="one output per image"):
        check_classes(torch.zeros(4, 1))


def test_change_is_relative_to_the_spread() -> None:
    assert change(LOGITS, LOGITS) == 0
    assert change(LOGITS * 100, LOGITS * 100 + 1) == pytest.approx(change(LOGITS, LOGITS + 0.01), rel=1e-3)
    assert change(torch.zeros(2, 2), torch.zeros(2, 2)) == 0
