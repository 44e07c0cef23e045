"""Rivals: what is tried, and how often equals are taken for better."""

from __future__ import annotations

import pytest
import torch

from holdfast.audits.alignment.alignment_probes import MEANING, candidates, judge, named
from holdfast.models import HALF, IMAGENET, NONE, Preprocessing


def test_what_is_in_use_is_no_rival_of_itself() -> None:
    everything = candidates(Preprocessing((0.1,), (0.2,)), channels=3, data=Preprocessing((0.3,), (0.3,)))
    assert set(everything) == set(MEANING)
    assert "imagenet" not in candidates(IMAGENET, channels=3)
    assert "none" not in candidates(NONE, channels=3)
    assert "half" not in candidates(HALF, channels=1)
    assert "data" not in candidates(HALF, channels=1, data=HALF)
    assert "bgr" not in candidates(HALF, channels=1)
    assert "imagenet" in named(IMAGENET, channels=3)  # the user may still ask for it by name
    assert candidates(IMAGENET, channels=3)["bgr"] == Preprocessing(IMAGENET.mean, IMAGENET.std, bgr=True)


def test_a_clear_lead_is_an_alarm_and_a_small_one_is_not() -> None:
    stated = torch.arange(1000) < 700
    clear, small = torch.arange(1000) < 760, torch.arange(1000) < 715
    names = {"none": NONE, "half": HALF}
    found = judge(stated, {"half": small, "none": clear}, names)
    assert [(r.name, r.better) for r in found] == [("none", True), ("half", False)]
    assert found[1].paired.low > 0  # sure, but not worth it
    assert found[0].paired.level == 0.995  # two rivals share the one percent
    text = str(found[0].warning(0.7))
    assert "none (images without preprocessing" in text
    assert "76.0% where the one in use scores 70.0% on the same 1000 images: +6.0 points" in text


@pytest.mark.slow
def test_equals_raise_an_alarm_in_less_than_one_percent_of_audits() -> None:
    generator = torch.Generator().manual_seed(0)
    names = dict.fromkeys(MEANING, NONE)
    alarms = 0
    for _ in range(400):
        shared = torch.rand(512, generator=generator)
        draws = {name: shared + 0.3 * torch.rand(512, generator=generator) < 0.9 for name in ("stated", *names)}
        alarms += judge(draws.pop("stated"), draws, names)[0].better
    assert alarms <= 8  # 4 expected at the level; more than 8 has probability 0.02
