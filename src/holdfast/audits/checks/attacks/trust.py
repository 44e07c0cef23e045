"""Whether attack numbers can be believed: a model whose gradients lead nowhere looks robust to attacks that need them;
and the findings, which all carry that verdict.

Each check compares what must hold for any honest model (Athalye et al., 2018; Carlini et al., 2019). Errors are
compared image by image, and a check fails only where chance would hardly explain the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.attacks import PRESETS
from holdfast.attacks.norms import Norm
from holdfast.attacks.objectives import log_odds
from holdfast.audits.checks.attacks.attack_plans import radius_text
from holdfast.audits.sample_passes import FALLS, WRONG, encode
from holdfast.metrics import paired_difference, proportion, sign_test, wilson_interval
from holdfast.module_state import evaluating
from holdfast.types import Finding

WARNING = "gradients masked: do not trust"
UNUSUAL = "gradients are scaled or replaced; attacks still succeed"
ALPHA = 1e-3
"""How rarely an honest model may fail a comparison by chance."""
DOUBT = 0.05
"""The same, where the gradients themselves are unusual: then every comparison must hold clearly."""
PROBES = (1 / 64 / 255, 1 / 16 / 255, 1 / 4 / 255)
"""Lengths of steps that a gradient's promise is held to, parts of a grey level: the shortest that float32 resolves."""
FLOAT_NOISE = 1e-4
"""A promise smaller than this share of the largest logit would drown in rounding."""
REPEATS = {"fp32": 1e-3, "tf32": 1e-3, "bf16": 3e-2, "fp16": 3e-2}
"""By how much of their spread logits of the same image may differ between two passes."""

OF_GRADIENTS = {"gradients-present", "gradients-kept"}
"""Checks of the gradients alone; the others look at what attacks achieve."""

Key = tuple[str, str, float]
"""Attack, access, radius."""
WHITE, TRANSFER, QUERIES, NONE = "white-box", "black-box transfer", "black-box queries", "none"
"""Access: the model's own gradients, those of another model, only the model's outputs, or nothing at all."""


def any_of(wrong: Mapping[Key, Tensor], radius: float, chosen: Callable[[Key], bool]) -> Tensor:
    """(N,) images that at least one of the chosen attacks of a radius gets wrong; some see the first images only."""
    found = torch.zeros_like(wrong["clean", NONE, 0.0])
    for key, value in wrong.items():
        if key[2] == radius and chosen(key):
            found[: len(value)] |= value
    return found


@dataclass(frozen=True)
class TrustCheck:
    """One check. passed is None where there was nothing to compare. says: what was seen, in one sentence."""

    name: str
    passed: bool | None
    n: int
    says: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def verdict(checks: Sequence[TrustCheck]) -> dict[str, Any]:
    """What every finding says of trust: ``trusted``, with a ``warning`` where it is False or a ``remark``.

    Gradients that are scaled (logits × 50) or replaced (rounding, straight through) may lead attacks just as well. So
    the two checks of the gradients alone do not condemn a model whose attacks do all that attacks of a sound model do:
    errors without a radius, more with every radius and step, and no fewer than searches that use none of its gradients.
    """
    failed = {check.name for check in checks if check.passed is False}
    if not failed:
        return {"trusted": True}
    compared = [check.numbers["pairs"].values() for check in checks if "pairs" in check.numbers]
    if failed <= OF_GRADIENTS and all(row["p"] >= DOUBT / len(rows) for rows in compared for row in rows):
        return {"trusted": True, "remark": UNUSUAL}
    return {"trusted": False, "warning": WARNING}


def at_least(name: str, pairs: Mapping[str, tuple[Tensor, Tensor]], what: str) -> TrustCheck:
    """Whether the first of each pair of errors (N,) is no less than the second, image by image."""
    if not pairs:
        return TrustCheck(name, None, 0, f"{what}: nothing to compare")
    rows: dict[str, dict[str, Any]] = {}
    for place, (strong, weak) in pairs.items():
        wins, losses = int((strong & ~weak).sum()), int((weak & ~strong).sum())
        errors, p = [float(own.double().mean()) for own in (strong, weak)], sign_test(wins, losses, alternative="less")
        rows[place] = {"errors": errors, "only_first": wins, "only_second": losses, "p": p}
    place, worst = min(rows.items(), key=lambda item: float(item[1]["p"]))
    passed = bool(worst["p"] >= ALPHA / len(pairs))
    first, second = worst["errors"]
    says = f"{what}: {'holds' if passed else 'fails'}; closest at {place}, {first:.1%} against {second:.1%}"
    return TrustCheck(name, passed, len(next(iter(pairs.values()))[0]), says, {"pairs": rows})


def repeatable(first: Tensor, again: Tensor, *, precision: str) -> TrustCheck:
    """Radius 0 equals clean: the same images must give the same logits whenever they are asked for.

    first: (N, K). again: (R, N, K), several times, for one draw may serve a whole batch and come up twice.
    """
    spread = first.amax(1) - first.amin(1)
    moved = (first - again).abs().amax((0, 2)) > REPEATS[precision] * spread.clamp(min=1e-12)
    count, n = int(moved.sum()), len(moved)
    changed = int((first.argmax(1) != again.argmax(2)).any(0).sum())
    says = f"radius 0 equals clean: logits of {count} of {n} images differ when asked again, {changed} predictions"
    return TrustCheck("radius-zero", count <= n // 100, n, says, {"moved": count, "predictions": changed})


def reaches_all(wrong: Tensor) -> TrustCheck:
    """Without a radius, gradients must lead every image astray."""
    n, hits = len(wrong), int(wrong.sum())
    _, high = wilson_interval(hits, n)
    says = f"unbounded attack reaches {hits / n:.1%} error; it must be near 100 %"
    return TrustCheck("unbounded", high >= 0.99, n, says, {"error": hits / n})


def slopes(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[TrustCheck, TrustCheck]:
    """Whether gradients are there at all, and whether a short step does what they promise.

    The first looks at the gradient of cross-entropy as everybody computes it, in float32: where it is exactly zero,
    attacks of other tools stand still. The second moves each image by a part of a grey level along the sign of the
    gradient, to both sides, and compares the change of the log-odds with the promise: for a network that is what its
    gradient says, the ratio is near 1; for one that rounds, draws or hides, it is anything.
    """
    none, plain, ratios, flat, n = 0, 0, [], 0, 0
    with evaluating(model):
        for x, y in batches:
            n += len(y)
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                logits = model(leaf).float()
                gradient = _gradient(log_odds(logits, y), leaf, retain=True)
                textbook = _gradient(F.cross_entropy(logits, y, reduction="none"), leaf)
            right = logits.argmax(1) == y
            none += int((gradient.abs().amax((1, 2, 3)) == 0).sum())
            plain += int(((textbook.abs().amax((1, 2, 3)) == 0) & right).sum())
            kept = _ratio(model, x, y, gradient, FLOAT_NOISE * logits.detach().abs().amax(1))
            flat += int(kept.isnan().sum())
            ratios += kept[~kept.isnan()].tolist()
    return _present(none, plain, n), _kept(ratios, flat)


@torch.no_grad()
def _ratio(model: nn.Module, x: Tensor, y: Tensor, gradient: Tensor, floor: Tensor) -> Tensor:
    """(B,) change seen over change promised, at the shortest step whose promise is above the floor; NaN where none."""
    kept = torch.full_like(floor, torch.nan, dtype=torch.float64)
    for length in PROBES:
        up, down = ((x + side * length * gradient.sign()).clamp(0, 1) for side in (1, -1))
        promised = ((up - down).double() * gradient.double()).sum((1, 2, 3))
        seen = (log_odds(model(up).float(), y) - log_odds(model(down).float(), y)).double()
        kept = torch.where(kept.isnan() & (promised > floor), seen / promised, kept)
    return kept


def _gradient(value: Tensor, x: Tensor, *, retain: bool = False) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(value.sum(), x, retain_graph=retain, allow_unused=True)
    return torch.zeros_like(x) if found is None else found.float()


def _present(none: int, plain: int, n: int) -> TrustCheck:
    passed = max(none, plain) <= 0.05 * n
    says = "gradients are there: the gradient of cross-entropy is exactly zero on "
    says += f"{plain} of {n} images, that of the log-odds on {none}"
    return TrustCheck("gradients-present", passed, n, says, {"zero": none, "zero_cross_entropy": plain})


def _kept(ratios: list[float], flat: int) -> TrustCheck:
    n = len(ratios) + flat
    if len(ratios) < 0.5 * n:
        says = f"a short step does what the gradient promises: {flat} of {n} images have no slope to follow"
        return TrustCheck("gradients-kept", False, n, says, {"flat": flat})
    values = torch.tensor(ratios, dtype=torch.float64)
    near = float(((values > 1 / 3) & (values < 3)).double().mean())
    median = float(values.median())
    says = f"a short step does what the gradient promises: {near:.0%} of images, by {median:.2f} of it in the median"
    numbers = {"median_ratio": median, "share_near": near, "flat": flat}
    return TrustCheck("gradients-kept", near > 0.5 and 0.5 < median < 2, n, says, numbers)


AVERAGED = "pgd-averaged"
GRADIENT = ("fgsm", "pgd-10", "apgd-ce", "apgd-dlr")


def comparisons(
    wrong: Mapping[Key, Tensor], radii: Sequence[float], norm: Norm, long: Mapping[float, Tensor]
) -> list[TrustCheck]:
    """The checks that set one error against another, image by image."""
    at = {r: radius_text(r, norm) for r in radii}
    ladder = [0.0, *radii]

    def climbing(name: str) -> dict[str, tuple[Tensor, Tensor]]:
        found = {r: wrong["clean", NONE, 0.0] if r == 0 else wrong[name, WHITE, r] for r in ladder}
        below = {0.0: "clean", **at}
        return {f"{name}, {at[b]} over {below[a]}": (found[b], found[a]) for a, b in pairwise(ladder)}

    white = {r: any_of(wrong, r, lambda key: key[1] == WHITE and key[0] in GRADIENT) for r in radii}
    transfer = {r: any_of(wrong, r, lambda key: key[1] == TRANSFER) for r in radii}
    random = {r: wrong["noise", NONE, r] for r in radii}
    has_transfer = any(key[1] == TRANSFER for key in wrong)
    in_steps = {f"10 steps over 1, {at[r]}": (wrong["pgd-10", WHITE, r], wrong["fgsm", WHITE, r]) for r in radii}
    in_steps |= {f"more steps over 10, {at[r]}": (more, wrong["pgd-10", WHITE, r]) for r, more in long.items()}

    def by_radius(strong: Mapping[float, Tensor], weak: Mapping[float, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        return {at[r]: (strong[r][: len(weak[r])], weak[r]) for r in radii}

    search = {r: wrong["square", QUERIES, r] for r in radii}  # on the first images only
    around = {r: wrong[AVERAGED, WHITE, r] for r in radii}
    over_transfer, over_noise = by_radius(white, transfer), by_radius(transfer, random)
    return [
        at_least("radius-growth", climbing("pgd-10") | climbing("apgd-ce"), "error does not fall as the radius grows"),
        at_least("steps-growth", in_steps, "error does not fall with more steps"),
        at_least("white-over-transfer", over_transfer if has_transfer else {}, "white-box finds no less than transfer"),
        at_least("transfer-over-noise", over_noise if has_transfer else {}, "transfer finds no less than noise"),
        at_least("white-over-noise", by_radius(white, random), "white-box finds no less than noise"),
        at_least("plain-over-averaged", by_radius(white, around), "gradients find no less than averaged ones"),
        at_least("gradients-over-search", by_radius(white, search), "gradients find no less than search without them"),
    ]


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
    norm: Norm = settings["norm"]
    trusting = verdict(checks)

    def share(values: Tensor, where: Mapping[str, str], more: Mapping[str, Any]) -> Finding:
        e = proportion(values)
        return Finding("attacks", "attack_error", e.value, e.n, e.low, e.high, where, settings, {**more, **trusting})

    def error(values: Tensor, attack: str, access: str, radius: float | None) -> Finding:
        at = {"radius": radius_text(radius, norm)} if radius else {}
        return share(values, {"attack": attack, "access": access, **at}, {"radius": radius, "norm": norm})

    made = [error(values, *key) for key, values in wrong.items()]
    fallen_by_now = clean = wrong["clean", NONE, 0.0]
    for radius in sorted({key[2] for key in wrong if key[2]}):
        fallen_by_now = fallen_by_now | any_of(wrong, radius, lambda key: True)  # a ball holds the smaller ones
        made.append(error(fallen_by_now, "strongest", "any", radius))
    made += withstood(made)
    made.append(error(unlimited, "unbounded", WHITE, None))
    for (name, access), values in presets.items():
        preset = PRESETS[name]
        told = {"radius": preset.radius, "norm": "linf", "space": preset.space, "steps": preset.steps}
        made.append(share(values, {"preset": name, "access": access}, told))
    for check in checks:
        value, of = None if check.passed is None else float(check.passed), {"check": check.name}
        evidence = {"passed": check.passed, "says": check.says, **check.numbers, **trusting}
        made.append(Finding("attacks", "trust_check", value, check.n, None, None, of, settings, evidence))
    failed = [check.name for check in checks if check.passed is False]
    said = {"failed": failed, "verdicts": encode(positions, fallen(wrong, norm)), **trusting}
    trusted = float(trusting["trusted"])
    return (*made, Finding("attacks", "trusted", trusted, len(clean), settings=settings, evidence=said))


STRONGEST: Final = {"attack": "strongest", "access": "any"}
UNMOVED: Final = {"attack": "clean", "access": "none"}


def withstood(findings: Sequence[Finding]) -> Iterator[Finding]:
    """``robust_accuracy`` and ``attack_drop`` at every radius, from errors under the strongest attack and without one.

    The images are the same, and what is wrong as it is counts as wrong under attack. So the pairs that differ are known
    from the two errors alone: as many as were lost, and none that was won.
    """
    own = [(f, f.value) for f in findings if f.name == "attack_error" and f.value is not None]
    clean = next((error for f, error in own if f.where == UNMOVED), None)
    for f, error in own:
        if clean is None or not f.where.items() >= STRONGEST.items():
            continue
        image, where = torch.arange(f.n), {"radius": f.where["radius"]}
        lost = paired_difference(image < f.n - round(clean * f.n), image < f.n - round(error * f.n))
        low, high = (None if end is None else 1 - end for end in (f.high, f.low))
        yield Finding("attacks", "robust_accuracy", 1 - error, f.n, low, high, where, f.settings, f.evidence)
        yield Finding("attacks", "attack_drop", lost.lead, f.n, lost.low, lost.high, where, f.settings, f.evidence)
