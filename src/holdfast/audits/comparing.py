"""A model against others on the same samples: leads in accuracy by McNemar's test, in AUROC by DeLong's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import torch
from torch import Tensor

from holdfast.audits.checks.groups.group_accuracy import parts
from holdfast.audits.open_models import AuditedModel
from holdfast.audits.sample_passes import ANSWERS, FALLS, RANKS, WRONG, Ranks, decode, read_ranks, unpack
from holdfast.metrics import bounded_mean, holm, paired_auroc, paired_difference
from holdfast.reports.findings_file import AGAINST
from holdfast.types import Finding

LEVEL: Final = 0.95
MOST_GROUPS: Final = 50
"""Beyond so many groups a model is compared on the worst of them alone."""

Where = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Compared:
    model: AuditedModel
    findings: Sequence[Finding]

    @property
    def correct(self) -> Tensor:
        return self.model.subject.predictions.correct

    def has_groups(self) -> bool:
        return any(f.check == "groups" and f.value is not None for f in self.findings)

    def worst(self) -> Iterator[tuple[dict[str, str], Tensor]]:
        """The worst cell of class and group in each column, and its positions."""
        for f in self.findings:
            if (f.check, f.name) == ("groups", "worst_group_accuracy") and f.value is not None:
                positions = torch.tensor([p for p, _ in decode(f.evidence["verdicts"])], dtype=torch.int64)
                yield {**f.where, **{str(k): str(v) for k, v in f.evidence["cell"].items()}}, positions

    def answers(self) -> dict[Where, Tensor]:
        """(N,) share of right answers on every test image, by the part of a check; NaN for images it did not see."""
        size = len(self.model.subject.split)
        single: dict[Where, Tensor] = {}
        means: dict[str, list[Tensor]] = {}
        for f in self.findings:
            if ANSWERS in f.evidence:
                flags = unpack(f.evidence[ANSWERS], size)
                single[_key(f.name, f.where)] = flags
                means.setdefault(f.where["strength"], []).append(flags)
        for strength, every in means.items():
            single[_key("mean_corruption_accuracy", {"strength": strength})] = torch.stack(every).mean(0)
        return single | self.withstood(size)

    def withstood(self, size: int) -> dict[Where, Tensor]:
        """(N,) which images no attack within a radius brings down: an image lost at one is lost at all larger ones."""
        radii = {f.where["radius"]: float(f.evidence["radius"]) for f in self.findings if f.name == "robust_accuracy"}
        made = {}
        said = [f.evidence["verdicts"] for f in self.findings if (f.check, f.name) == ("attacks", "trusted")]
        for verdicts, (text, radius) in product(said, radii.items()):
            lost = {WRONG, *(f"{FALLS}{other}" for other, r in radii.items() if r <= radius)}
            flags = torch.full((size,), torch.nan, dtype=torch.float64)
            for position, word in decode(verdicts):
                flags[position] = float(word not in lost)
            made[_key("robust_accuracy", {"radius": text})] = flags
        return made

    def rankings(self) -> dict[str, Ranks]:
        size = len(self.model.subject.split)
        return {f.where["score"]: read_ranks(f.evidence[RANKS], size) for f in self.findings if RANKS in f.evidence}


def against(
    model: AuditedModel, other: AuditedModel, mine: Sequence[Finding], theirs: Sequence[Finding]
) -> list[Finding]:
    """How far a model leads another on the same samples, by paired intervals and McNemar's test.

    On all of them, in every group, in the worst cell of either, under every corruption and attack, and in every score
    of OOD images (there by DeLong's test): wherever both were measured. ``where`` names the measure and its part.
    """
    us, them = Compared(model, mine), Compared(other, theirs)
    named = {"against": other.name}
    place = {name: i for i, name in enumerate(other.ids())}
    there = torch.tensor([place.get(name, -1) for name in model.ids()], dtype=torch.int64)
    if not bool((there >= 0).any()):
        reason = "the two models share no test sample"
        return [Finding(AGAINST, "lead", None, 0, where=named, evidence={"reason": reason})]
    ours, right = us.correct.double(), _brought(them.correct.double(), there)
    found = _lead(ours, right, {**named, "measure": "accuracy"})
    if us.has_groups() and them.has_groups():
        groups = list(parts(model.subject))
        groups = groups if len(groups) <= MOST_GROUPS else []
        groups += [("group_accuracy", where, inside) for where, inside in _worst(us, them, there)]
        for measure, where, inside in groups:
            found += _lead(torch.where(inside, ours, torch.nan), right, {**named, "measure": measure, **where})
    answers = them.answers()
    for key, flags in us.answers().items():
        if key in answers:
            found += _lead(flags, _brought(answers[key], there), {**named, **dict(key)})
    return [*found, *auroc_leads(us.rankings(), them.rankings(), there, named)]


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; what is a p-value also says, as evidence, what it is by Holm's correction for all of them."""
    chances = [i for i, f in enumerate(findings) if f.name in ("mcnemar_p", "delong_p") and f.value is not None]
    adjusted = dict(zip(chances, holm([findings[i].value or 0.0 for i in chances]), strict=True))
    told = {"correction": "Holm", "comparisons": len(chances)}
    return [
        replace(f, evidence={**f.evidence, "adjusted_p": adjusted[i], **told}) if i in adjusted else f
        for i, f in enumerate(findings)
    ]


def _worst(us: Compared, them: Compared, there: Tensor) -> Iterator[tuple[dict[str, str], Tensor]]:
    """The worst cells of the two as (N,) flags on the first one's samples; one that is worst for both comes once."""
    cells: dict[Where, tuple[list[str], Tensor]] = {}
    for side in (us, them):
        for where, positions in side.worst():
            inside = torch.isin(torch.arange(len(there)) if side is us else there, positions)
            cells.setdefault(tuple(where.items()), ([], inside))[0].append(side.model.name)
    for key, (names, inside) in cells.items():
        yield {"worst cell of": " and ".join(names), **dict(key)}, inside


def _key(measure: str, where: Mapping[str, str]) -> Where:
    return tuple({"measure": measure, **where}.items())


def _brought(values: Tensor, there: Tensor) -> Tensor:
    """Numbers of another model's samples in the order of ours; NaN where it has no such sample."""
    return torch.where(there >= 0, values[there.clamp_min(0)], torch.nan)


def _lead(first: Tensor, second: Tensor, where: Mapping[str, str]) -> list[Finding]:
    """From (N,) shares of right answers, NaN where a sample was not looked at; nothing where none is shared."""
    first, second = _shared(first, second)
    if len(first) == 0:
        return []
    told = {"level": LEVEL}
    if not bool(((first == 0) | (first == 1)).all() & ((second == 0) | (second == 1)).all()):
        mean = bounded_mean(first - second, (-1.0, 1.0), extra=1)
        return [Finding(AGAINST, "lead", mean.value, mean.n, mean.low, mean.high, where, told)]
    a, b = first.bool(), second.bool()
    pair = paired_difference(a, b, level=LEVEL)
    counts = {"only_this": int((a & ~b).sum()), "only_other": int((b & ~a).sum())}
    return [
        Finding(AGAINST, "lead", pair.lead, pair.n, pair.low, pair.high, where, told, counts),
        Finding(AGAINST, "mcnemar_p", pair.p, pair.n, where=where, evidence={**counts, "reason": "a p-value"}),
    ]


def auroc_leads(
    mine: Mapping[str, Ranks], theirs: Mapping[str, Ranks], there: Tensor, named: Mapping[str, str]
) -> Iterator[Finding]:
    """``lead`` in AUROC of every score that both have, over all OOD images and each set of them.

    there: (N,) position of each of our test images in the other's split, -1 where it has none. Sets that only one has
    are left out, and so is the lead over all OOD images then.
    """
    for score in [score for score in mine if score in theirs]:
        (own_test, own), (other_test, other) = mine[score], theirs[score]
        where = {**named, "measure": "ood_auroc", "score": score}
        test = _shared(own_test, _brought(other_test, there))
        sets = {key: _shared(own[key], other[key]) for key in own if key in other}
        for (name, _), images in sets.items():
            yield from _auroc_lead(test, images, {**where, "ood": name})
        if sets and len(sets) == len(own) == len(other):
            first, second = zip(*sets.values(), strict=True)
            yield from _auroc_lead(test, (torch.cat(first), torch.cat(second)), where)


def _shared(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    both = ~(first.isnan() | second.isnan())
    return first[both], second[both]


def _auroc_lead(test: tuple[Tensor, Tensor], ood: tuple[Tensor, Tensor], where: Mapping[str, str]) -> Iterator[Finding]:
    if min(len(test[0]), len(ood[0])) < 2:
        return
    pair = paired_auroc((test[0], ood[0]), (test[1], ood[1]), level=LEVEL)
    yield Finding(AGAINST, "lead", pair.lead, pair.n, pair.low, pair.high, where, {"level": LEVEL})
    yield Finding(AGAINST, "delong_p", pair.p, pair.n, where=where, evidence={"reason": "a p-value"})
