"""Values that no training can use are refused before one begins."""

from __future__ import annotations

import math
import re
from ast import literal_eval
from dataclasses import fields
from typing import Any

import pytest

from holdfast.cli import parse_train
from holdfast.errors import HoldfastError
from holdfast.parts import ASCENTS, METHODS
from holdfast.settings import TrainSettings, build, flatten

FLAT = {k: v for k, v in flatten(TrainSettings()).items() if isinstance(v, float)} | {
    "lr": 0.1,
    "clip": 1.0,
    "ema": 0.9,
}
FAMILIES = {"method": METHODS, "ascent": ASCENTS}
OF_CHOICES = [
    (kind, name, f.name)
    for kind, family in FAMILIES.items()
    for name, part in family.items()
    for f in fields(part.made)
    if "float" in str(f.type)
]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", FLAT)
def test_every_number_is_finite(name: str, value: float) -> None:
    with pytest.raises(HoldfastError, match=f"^{name} must be .*, got {value}"):
        build(TrainSettings, {name: value})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("kind", "name", "setting"), OF_CHOICES)
def test_so_is_every_number_of_a_method_or_ascent(kind: str, name: str, setting: str, value: float) -> None:
    with pytest.raises(HoldfastError, match=setting):
        build(TrainSettings, {kind: {"name": name, setting: value}})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--warmup", "inf"], "warmup must be finite, got inf"),
        (["--gamma", "inf"], "gamma must be finite, got inf"),
        (["--milestones", "-1"], r"milestones must rise from 1 on, got \(-1,\)"),
        (["--milestones", "9", "3"], r"milestones must rise from 1 on, got \(9, 3\)"),
        (["--ascent", "asam", "--ascent.eta", "-1"], "eta must be >= 0, got -1"),
        (["--ascent", "fisher-fsam", "--ascent.lmbda", "1"], r"lmbda must be in \[0, 1\), got 1"),
        (["--ascent", "sam", "--ascent.rho", "inf"], "ascent.rho must be finite, got inf"),
        (["--method", "mixup", "--method.alpha", "inf"], "method.alpha must be finite, got inf"),
        (["--method", "jtt", "--method.up", "1000000000"], "up must be in 1..10000, got 1000000000"),
        (["--optimizer", "adam", "--betas", "0.9", "nan"], "betas must be in"),
    ],
)
def test_flags_name_the_value(words: list[str], message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        parse_train(words)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"ascent.rho": 0.1}, "ascent={'name': 'sam', 'rho': 0.1}"),
        ({"ascent_rho": 0.1}, "ascent={'name': 'sam', 'rho': 0.1}"),
        ({"ascent": "asam", "ascent.rho": 0.1}, "ascent={'name': 'asam', 'rho': 0.1}"),
        ({"method": {"name": "mixup"}, "method_alpha": 0.2}, "method={'name': 'mixup', 'alpha': 0.2}"),
    ],
)
def test_a_flag_of_a_part_is_refused_with_the_form_that_works(given: dict[str, Any], form: str) -> None:
    with pytest.raises(HoldfastError, match=f"unknown settings key .*; a setting of the .*: {re.escape(form)}$"):
        build(TrainSettings, given)
    kind, _, value = form.partition("=")
    build(TrainSettings, {kind: literal_eval(value)})


def test_what_is_finite_passes_unchanged() -> None:
    given: dict[str, Any] = {"warmup": 5.0, "milestones": [1, 3], "ascent": {"name": "fasam", "eta": 0.0, "lmbda": 0.0}}
    built = build(TrainSettings, given)
    assert (built.schedule.warmup, built.schedule.milestones) == (5.0, (1, 3))
