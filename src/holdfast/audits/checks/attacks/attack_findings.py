"""Errors under attack as findings: which images go wrong, robust accuracy, drops, and whether they can be trusted.

Open this file to change what the check ``attacks`` writes down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.attacks import PRESETS
from holdfast.attacks.norms import Norm
from holdfast.audits.checks.attacks.attack_plans import radius_text
from holdfast.audits.checks.attacks.trust import NONE, WARNING, WHITE, Key, TrustCheck, any_of
from holdfast.audits.per_image import FALLS, WRONG, encode
from holdfast.metrics import paired_difference, wilson_interval
from holdfast.types import Finding


def fallen(wrong: Mapping[Key, Tensor], norm: Norm) -> list[str]:
    """What each image can bear: the smallest radius at which some attack brings it down."""
    radii = sorted({key[2] for key in wrong if key[2]})
    said = [f"withstands {radius_text(radii[-1], norm)}"] * len(wrong["clean", NONE, 0.0])
    for radius in reversed(radii):
        for i in any_of(wrong, radius, lambda key: True).nonzero().flatten().tolist():
            said[i] = f"{FALLS}{radius_text(radius, norm)}"
    for i in wrong["clean", NONE, 0.0].nonzero().flatten().tolist():
        said[i] = WRONG
    return said


def findings(
    positions: Tensor,
    wrong: Mapping[Key, Tensor],
    unlimited: Tensor,
    presets: Mapping[tuple[str, str], Tensor],
    checks: Sequence[TrustCheck],
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


STRONGEST: Final = {"attack": "strongest", "access": "any"}
UNMOVED: Final = {"attack": "clean", "access": "none"}


def withstood(findings: Sequence[Finding]) -> Iterator[Finding]:
    """``robust_accuracy`` and ``attack_drop`` at every radius, from errors under the strongest attack and without one.

    The images are the same, and what is wrong as it is counts as wrong under attack. So the pairs that differ are known
    from the two errors alone: as many as were lost, and none that was won.
    """
    own = [f for f in findings if f.check == "attacks" and f.name == "attack_error" and f.value is not None]
    unmoved = next((f for f in own if f.where == UNMOVED), None)
    for f in own:
        if unmoved is None or f.value is None or unmoved.value is None or not f.where.items() >= STRONGEST.items():
            continue
        image = torch.arange(f.n)
        before, after = (image < f.n - round(error * f.n) for error in (unmoved.value, f.value))
        lost = paired_difference(before, after)
        where = {"radius": f.where["radius"]}
        low, high = (None if end is None else 1 - end for end in (f.high, f.low))
        yield Finding("attacks", "robust_accuracy", 1 - f.value, f.n, low, high, where, f.settings, f.evidence)
        yield Finding("attacks", "attack_drop", lost.lead, f.n, lost.low, lost.high, where, f.settings, f.evidence)
