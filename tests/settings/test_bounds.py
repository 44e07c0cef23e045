"""Numbers outside their bounds are refused on the command line, before anything is read, with the bounds named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import pytest

from holdfast.audits.checks.attacks.attack_plans import BUDGETS, AttackBudget
from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.parts import CHECKS
from holdfast.settings.detect_settings import FitSettings, ReadSettings, VAETrainingSettings
from holdfast.settings.fields import Bounded, Within

AUDIT = ("audit", "convnet", "--data", "digits", "--set")
FIT = ("detect", "fit", "--data", "digits", "--out", "made")
DESCRIBE = ("describe", "digits", "--out", "made")
MAKE = ("data", "make", "--out", "made.npz")
SHORTCUTS = ("shortcuts", "--data", "digits", "--out", "made")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*AUDIT, "attacks.images=-5"), "attacks.images must be >= 1, got -5"),
        ((*AUDIT, "attacks.radii=0.1,0"), "attacks.radii must be finite numbers > 0, got [0.1, 0.0]"),
        ((*AUDIT, "attacks.radii=.inf"), "attacks.radii must be finite numbers > 0, got [inf]"),
        ((*AUDIT, "corruptions.images=0"), "corruptions.images must be >= 1, got 0"),
        ((*AUDIT, "corruptions.severities=0"), "corruptions.severities must be numbers in 1..5, got [0]"),
        ((*AUDIT, "corruptions.severities=[]"), "corruptions.severities must be numbers in 1..5, got []"),
        ((*AUDIT, "corruptions.strengths=-1"), "corruptions.strengths must be finite numbers > 0, got [-1.0]"),
        ((*AUDIT, "curvature.images=0"), "curvature.images must be >= 1, got 0"),
        ((*AUDIT, "ood.images=0"), "ood.images must be >= 1, got 0"),
        ((*AUDIT, "saliency.images=-1"), "saliency.images must be >= 1, got -1"),
        ((*AUDIT, "slices.level=0"), "slices.level must be in (0, 1), got 0.0"),
        ((*AUDIT, "slices.level=.nan"), "slices.level must be in (0, 1), got nan"),
        ((*FIT, "--epochs", "0"), "epochs must be >= 1, got 0"),
        ((*FIT, "--encoder-epochs", "-1"), "encoder_epochs must be >= 1, got -1"),
        ((*FIT, "--latent", "0"), "latent must be in 1..4096, got 0"),
        ((*FIT, "--lr", "0"), "lr must be > 0, got 0.0"),
        ((*FIT, "--lr", "nan"), "lr must be a finite number > 0, got nan"),
        ((*FIT, "--beta", "-1"), "beta must be >= 0, got -1.0"),
        ((*FIT, "--sigma", "inf"), "sigma must be a finite number > 0, got inf"),
        ((*FIT, "--held-out", "1"), "held_out must be in (0, 1), got 1.0"),
        ((*FIT, "--false-alarm-rate", "1.5"), "false_alarm_rate must be in (0, 1), got 1.5"),
        ((*FIT, "--image-size", "0"), "image_size must be in 1..4096, got 0"),
        ((*FIT, "--batch-size", "0"), "batch_size must be >= 1, got 0"),
        ((*FIT, "--seed", "-1"), "seed must be in 0..2**63-1, got -1"),
        ((*DESCRIBE, "--epochs", "0"), "epochs must be >= 1, got 0"),
        ((*DESCRIBE, "--seed", "-1"), "seed must be in 0..2**63-1, got -1"),
        (("detect", "score", "d", "--data", "digits", "--out", "made", "--workers", "-1"), "workers must be >= 0"),
        (("detect", "evaluate", "d", "--normal", "digits", "--resamples", "0"), "resamples must be >= 1, got 0"),
        ((*MAKE, "corrupted-cifar10", "--severity", "0"), "severity must be in 1..5, got 0"),
        ((*MAKE, "fashion-anomalies", "--strength", "0"), "strength must be in (0, 1], got 0.0"),
        ((*MAKE, "coloured", "--data", "digits", "--conflict", "2"), "conflict must be in [0, 1], got 2.0"),
        ((*SHORTCUTS, "--clusters", "0"), "clusters must be >= 1, got 0"),
        ((*SHORTCUTS, "--lr", "-1"), "lr must be > 0, got -1.0"),
        (("demo", "--seeds", "0", "--out", "made"), "seeds must be >= 1, got 0"),
    ],
)
def test_a_number_outside_its_bounds_is_refused(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def numbers(settings: type) -> Iterator[str]:
    """The settings that are numbers, or several, and that a command takes."""
    for f in fields(settings):
        kind = get_type_hints(settings)[f.name]
        if f.metadata.get("python_only"):
            continue
        if {int, float} & {kind, *get_args(kind), *(inner for part in get_args(kind) for inner in get_args(part))}:
            yield f.name


BOUNDED = [*(part.made for part in CHECKS.values()), FitSettings, VAETrainingSettings, ReadSettings, AttackBudget]


@pytest.mark.parametrize("settings", BOUNDED, ids=lambda made: made.__name__)
def test_every_number_of_a_check_and_of_a_detector_has_bounds(settings: type) -> None:
    hints = get_type_hints(settings, include_extras=True)
    bounds = {
        name: [one for one in getattr(hints[name], "__metadata__", ()) if isinstance(one, Within)] for name in hints
    }
    assert [name for name in numbers(settings) if not bounds[name]] == []
    assert issubclass(settings, Bounded) or not list(numbers(settings))


def test_a_tuple_is_within_bounds_if_every_value_is() -> None:
    class Made(Bounded):
        def __init__(self, values: Any) -> None:
            object.__setattr__(self, "values", values)
            self.__post_init__()

        values: Annotated[tuple[int, ...] | None, Within(1, 3, "..")]

    Made((1, 2, 3))
    Made(None)
    for wrong in ((), (0,), (1, 4)):
        with pytest.raises(HoldfastError, match=r"values must be numbers in 1\.\.3, got \["):
            Made(wrong)


def test_an_attack_of_no_steps_is_refused() -> None:
    with pytest.raises(HoldfastError, match="apgd_steps must be >= 1, got -3"):
        AttackBudget(**{**vars(BUDGETS["cpu"]), "apgd_steps": -3})
