"""The few pictures at the top of a report: failures that a reader can see. Open it to change which are shown.

A failure in the worst group with its Grad-CAM map, a corrupted image that flips, an attacked one, and an
out-of-distribution image that the model is sure of; whichever the findings have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from holdfast.reports.blocks import Gallery, Picture, png_picture
from holdfast.reports.run_files import RunFiles, group_attribute
from holdfast.reports.text import finite, records, sure

MOST_PICTURES = 6
MOST_EXAMPLES = 12
SIDES = {"aligned": "bias-aligned", "conflicting": "bias-conflicting"}
Values = Mapping[str, Any]


def proof_pictures(runs: Sequence[RunFiles], names: Mapping[str, str] | None = None) -> Gallery | None:
    """At most six pictures of one model's failures; of several models, with the others' maps of the same image.

    The model: the first that has pictures of mistakes; of a comparison, that is the baseline where it comes first.
    names: what to call a run, by its own name.
    """
    for run in runs:
        others = [other for other in runs if other is not run and other.checks]
        shown = [*_failure(run, others), *_flip(run), *_attack(run), *_ood(run)]
        have = {picture.source for picture in shown}
        more = (picture for picture in _mistakes(run) if picture.source not in have)
        shown += islice(more, MOST_PICTURES if not shown else 0)
        if shown:
            who = (names or {}).get(run.name, run.name)
            name = f"What {who} gets wrong" if len(runs) > 1 else "What it gets wrong"
            return Gallery(name, tuple(shown[:MOST_PICTURES]))
    return None


def data_pictures(runs: Sequence[RunFiles]) -> Gallery | None:
    """A row of test images of one data set, of the first run that has them: what the report is about."""
    if len({str(run.data.get("name")) for run in runs}) > 1:
        return None
    for run in runs:
        word = group_attribute(run) or "group"
        made, sides = [], set()
        for row in _evidence(run, "accuracy", "samples", "examples")[:MOST_EXAMPLES]:
            side = SIDES.get(str(row.get("bias")), "")
            group = "" if row.get("group") is None else f", {word} {row['group']}"
            title = str(row.get("label", "?"))
            picture = png_picture(row.get("png"), "; ".join(filter(None, [title + group, side])), title, side)
            made += [picture] if picture else []
            sides |= {side} if picture else set()
        if len(made) > 1:
            note = ""
            if sides == set(SIDES.values()):
                note = f"First samples whose {word} is the usual one of their class in training (bias-aligned), then "
                note += f"samples with another {word} (bias-conflicting)."
            return Gallery(f"What {run.data.get('name') or 'the data'} looks like", tuple(made), note)
    return None


def _evidence(run: RunFiles, check: str, name: str, key: str) -> list[Values]:
    return [row for f in run.findings if (f.check, f.name) == (check, name) for row in records(f.evidence.get(key))]


def _worst_cell(run: RunFiles) -> tuple[str, str]:
    """Class and group of the worst cell; empty texts where it is not known."""
    found = (f.evidence.get("cell") for f in run.findings if (f.check, f.name) == ("groups", "worst_group_accuracy"))
    cell = next((c for c in found if isinstance(c, Mapping) and "class" in c), {})
    return str(cell.get("class", "")), str(next((v for k, v in cell.items() if k != "class"), ""))


def _ranked(run: RunFiles, rows: Sequence[Values]) -> list[Values]:
    """Those of the worst cell first, then of its group, then the surest."""
    label, group = _worst_cell(run)

    def rank(row: Values) -> tuple[bool, bool, float]:
        same = str(row.get("group", "")) == group and bool(group)
        return not (same and str(row.get("label")) == label), not same, -(finite(row.get("confidence")) or 0.0)

    return sorted(rows, key=rank)


def _looks(run: RunFiles) -> dict[int, Values]:
    """By position in the test set: the picture, what the model says of it, and its map."""
    found: dict[int, Values] = {}
    for row in _evidence(run, "saliency", "maps", "maps"):
        looks = records(row.get("looks"))
        if isinstance(row.get("position"), int) and looks and looks[0].get("prediction") is not None:
            found[row["position"]] = {**row, **looks[0]}
    return found


def _failure(run: RunFiles, others: Sequence[RunFiles]) -> Iterator[Picture]:
    """A misclassified image and where the model looks; then where other models look that get it right."""
    own = _looks(run)
    wrong = _ranked(run, [row for row in own.values() if str(row["prediction"]) != str(row.get("label"))])
    theirs = {other.name: _looks(other) for other in others}

    def solved(row: Values) -> int:
        found = (looks.get(row["position"], {}) for looks in theirs.values())
        return sum(str(look.get("prediction")) == str(row.get("label")) for look in found)

    for row in sorted(wrong, key=lambda row: -solved(row))[:1]:
        yield from filter(None, [_mistake(row, group_attribute(run) or "group"), _map(row, run.name if others else "")])
        seen = ((name, looks[row["position"]]) for name, looks in theirs.items() if row["position"] in looks)
        yield from filter(None, (_map(look, name) for name, look in islice(seen, 1)))


def _mistake(row: Values, word: str = "group") -> Picture | None:
    label, said = str(row.get("label", "?")), str(row.get("prediction", "?"))
    group = "" if row.get("group") is None else f"{word} {row['group']}"
    detail = ", ".join(filter(None, [group, sure(row.get("confidence"))]))
    return png_picture(
        row.get("png"), f"a {label} taken for {said}; {detail}", f"{label} taken for {said}", detail, wrong=True
    )


def _map(row: Values, name: str) -> Picture | None:
    said = str(row.get("prediction", "?"))
    title = f"where {name or 'it'} looks"
    alt = f"Grad-CAM: {title}, which takes this {row.get('label', '?')} for {said}"
    wrong = said != str(row.get("label"))
    return png_picture(row.get("overlay"), alt, title, f"Grad-CAM, says {said}", wrong=wrong)


def _flip(run: RunFiles) -> Iterator[Picture]:
    """An image that is recognised as it is, and the mildest corruption after which it is not."""
    rows = _evidence(run, "corruptions", "examples", "examples")
    clean = next((r for r in rows if r.get("corruption") == "none"), {})
    if not clean or clean.get("prediction") != clean.get("label"):
        return
    wrong = [r for r in rows if r.get("prediction") != r.get("label") and _strength(r) > 0]
    for row in sorted(wrong, key=lambda r: (_strength(r), -(finite(r.get("confidence")) or 0.0)))[:1]:
        label, said = str(clean.get("label", "?")), str(row.get("prediction", "?"))
        what = str(row.get("corruption", "")).replace("-", " ").replace("_", " ")
        first = png_picture(
            clean.get("png"), f"a {label}, recognised", f"{label} recognised", sure(clean.get("confidence"))
        )
        detail = ", ".join(filter(None, [f"the same with {what}", sure(row.get("confidence"))]))
        second = png_picture(
            row.get("png"),
            f"the same {label} with {what}, taken for {said}",
            f"{label} taken for {said}",
            detail,
            wrong=True,
        )
        if first and second:
            yield from (first, second)


def _strength(row: Values) -> float:
    try:
        return float(str(row.get("strength", row.get("severity", "0"))))
    except ValueError:
        return 0.0


def _attack(run: RunFiles) -> Iterator[Picture]:
    """An adversarial example, where the check kept one."""
    for row in _evidence(run, "attacks", "examples", "examples")[:1]:
        label, said = str(row.get("label", "?")), str(row.get("prediction", "?"))
        detail = ", ".join(filter(None, [f"attacked at {row.get('radius', '?')}", sure(row.get("confidence"))]))
        made = png_picture(
            row.get("png"), f"an attacked {label}, taken for {said}", f"{label} taken for {said}", detail, wrong=True
        )
        yield from filter(None, [made])


def _ood(run: RunFiles) -> Iterator[Picture]:
    """The out-of-distribution image that the model is surest of."""
    rows = [r for r in _evidence(run, "ood", "misses", "misses") if finite(r.get("confidence")) is not None]
    for row in sorted(rows, key=lambda r: -(finite(r.get("confidence")) or 0.0))[:1]:
        label, said = str(row.get("label", "?")), str(row.get("prediction", "?"))
        made = png_picture(
            row.get("png"),
            f"out of distribution ({label}), taken for {said}",
            f"{label} taken for {said}",
            f"out of distribution, {sure(row.get('confidence'))}",
            wrong=True,
        )
        yield from filter(None, [made])


def _mistakes(run: RunFiles) -> Iterator[Picture]:
    """Misclassified test images, those of the worst group first."""
    rows = [row for f in run.findings for row in records(f.evidence.get("pictures"))]
    wrong = [row for row in rows if str(row.get("prediction")) != str(row.get("label"))]
    word = group_attribute(run) or "group"
    ranked = _ranked(run, wrong)
    first = {str(row.get("group")): i for i, row in reversed([*enumerate(ranked)])}
    # one of each group tells more than six of the same
    order = sorted(range(len(ranked)), key=lambda i: (first[str(ranked[i].get("group"))] != i, i))
    yield from filter(None, (_mistake(ranked[i], word) for i in order))
