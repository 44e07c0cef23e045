"""Errors and checks as findings; where a check fails, every one of them says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from holdfast.attacks import PRESETS
from holdfast.attacks.norms import Norm
from holdfast.audits.checks.attacks.falls import NONE, WHITE, Key, any_of, fallen, radius_text
from holdfast.audits.checks.drops import withstood
from holdfast.audits.checks.trust import WARNING, Check
from holdfast.audits.checks.verdicts import encode
from holdfast.metrics import wilson_interval
from holdfast.types import Finding


def findings(
    positions: Tensor,
    wrong: Mapping[Key, Tensor],
    unlimited: Tensor,
    presets: Mapping[tuple[str, str], Tensor],
    checks: Sequence[Check],
    settings: Mapping[str, Any],
) -> tuple[Finding, ...]:
    trusted = all(check.passed is not False for check in checks)
    norm: Norm = settings["norm"]
    verdict: dict[str, Any] = {"trusted": trusted} if trusted else {"trusted": False, "warning": WARNING}

    def error(values: Tensor, attack: str, access: str, radius: float | None) -> Finding:
        n, hits = len(values), int(values.sum())
        where = {"attack": attack, "access": access}
        if radius:
            where["radius"] = radius_text(radius, norm)
        evidence = {"radius": radius, "norm": norm, **verdict}
        low, high = wilson_interval(hits, n)
        return Finding("attacks", "attack_error", hits / n, n, low, high, where, settings, evidence)

    made = [error(values, *key) for key, values in wrong.items()]
    fallen_by_now = clean = wrong["clean", NONE, 0.0]
    for radius in sorted({key[2] for key in wrong if key[2]}):
        fallen_by_now = fallen_by_now | any_of(wrong, radius, lambda key: True)  # a ball holds the smaller ones
        made.append(error(fallen_by_now, "strongest", "any", radius))
    made += withstood(made)
    made.append(error(unlimited, "unbounded", WHITE, None))
    made += [_preset_error(*key, values, settings, verdict) for key, values in presets.items()]
    for check in checks:
        value = None if check.passed is None else float(check.passed)
        evidence = {"passed": check.passed, "says": check.says, **check.numbers, **verdict}
        made.append(
            Finding("attacks", "trust_check", value, check.n, None, None, {"check": check.name}, settings, evidence)
        )
    failed = [check.name for check in checks if check.passed is False]
    made.append(
        Finding(
            "attacks",
            "trusted",
            float(trusted),
            len(clean),
            settings=settings,
            evidence={"failed": failed, "verdicts": encode(positions, fallen(wrong, norm)), **verdict},
        )
    )
    return tuple(made)


def _preset_error(
    name: str, access: str, values: Tensor, settings: Mapping[str, Any], verdict: Mapping[str, Any]
) -> Finding:
    preset, n, hits = PRESETS[name], len(values), int(values.sum())
    evidence = {"radius": preset.radius, "norm": "linf", "space": preset.space, "steps": preset.steps, **verdict}
    low, high = wilson_interval(hits, n)
    return Finding(
        "attacks", "attack_error", hits / n, n, low, high, {"preset": name, "access": access}, settings, evidence
    )
