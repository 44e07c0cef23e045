"""Models against each other on the same samples: the leads that an audit has measured, in a table and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.robustness_summary import with_interval
from holdfast.reports.text import CHANCES, finite, number, part, percent
from holdfast.types import Finding

CONFIDENCE = {"score": "msp"}
PLACES = {"bias_aligned_accuracy": "aligned", "bias_conflicting_accuracy": "conflicting"}
PLACES["mean_corruption_accuracy"] = "mean over corruptions"


def leads(findings: Iterable[Finding], name: str, *, parts: bool = False) -> list[tuple[Cell, ...]]:
    """Rows of :func:`paired`: how far a model leads each other one on the same samples.

    By default where checks stand in one number, as in the table of what drops; ``parts``: in all others, such as every
    group and every corruption.
    """
    found = [f for f in findings if f.check == "against" and _stands(f.where) != parts]
    p = {tuple(f.where.items()): f for f in found if f.name in CHANCES}
    rows = []
    for f in found:
        value = finite(f.value)
        if f.name != "lead" or value is None:
            continue
        chance = p.get(tuple(f.where.items()))
        rest = {k: v for k, v in f.where.items() if k != "against"}
        shown = None if chance is None else finite(chance.value)
        rows.append((
            Cell(f"{name} − {f.where.get('against', '?')}"),
            Cell(_place(rest)),
            with_interval("lead", value, f.low, f.high),
            *(_count(f.evidence.get(key)) for key in ("only_this", "only_other")),
            Cell("" if chance is None or shown is None else number(chance.name, shown), shown),
            Cell(f"{f.n:,}", f.n),
        ))  # fmt: skip
    return rows


def _place(where: Mapping[str, str]) -> str:
    """The part in the words of the table of what drops; a lead in AUROC says so, since all others are in accuracy."""
    measure = where.get("measure")
    if measure == "mean_corruption_accuracy" and where.get("strength") == "1":
        return "under corruptions"
    if measure == "robust_accuracy":
        return f"under attack, {where.get('radius')}"
    if "score" in where:
        return f"OOD images, AUROC of {where['score']}" + (f", {where['ood']}" if "ood" in where else "")
    rest = {k: v for k, v in where.items() if k != "measure"}
    return ", ".join(filter(None, (PLACES.get(str(measure)), part(rest) if rest else ""))) or "clean accuracy"


def _stands(where: Mapping[str, str]) -> bool:
    """Whether a part stands for a check: the whole test set, both sides of a shortcut, worst groups, means, radii."""
    keys = set(where) - {"against", "column", "measure"}
    alone = {k: where[k] for k in keys} in ({"strength": "1"}, CONFIDENCE)
    return alone or not keys or bool(keys & {"worst group of", "radius"})


def paired(rows: Sequence[tuple[Cell, ...]], caption: str = "Paired differences") -> Table | None:
    """Models against each other on the same samples; a single pair is named in the caption."""
    columns: tuple[Column, ...] = (
        Column("models"), Column("where"), Column("lead, points (95 %)", numeric=True),
        Column("only the first right", numeric=True), Column("only the second", numeric=True),
        Column("p", numeric=True), Column("n", numeric=True),
    )  # fmt: skip
    note = (
        "Both models on the same samples. In accuracy the interval is Bonett and Price's and the test McNemar's exact "
        "one; in AUROC both are DeLong's. Each row speaks for itself: of many, one in twenty is beyond its interval by "
        "chance, and a group that was picked as a model's worst shows that model at its worst."
    )
    if len({row[0].text for row in rows}) == 1:  # said once, names leave room for numbers
        columns, caption = columns[1:], f"{caption}: {rows[0][0].text}"
        rows = [row[1:] for row in rows]
    return Table(caption, columns, tuple(rows), note) if rows else None


def lead_sentence(findings: Iterable[Finding], name: str) -> str:
    """The first comparison on the whole test set in words; empty where there is none."""
    found = [f for f in findings if f.check == "against" and f.where.get("measure") == "accuracy"]
    lead = next((f for f in found if f.name == "lead" and finite(f.value) is not None), None)
    if lead is None or lead.value is None:
        return ""
    other = lead.where["against"]
    p = next((f.value for f in found if f.name == "mcnemar_p" and f.where == lead.where), None)
    tail = f" on the same {lead.n:,} images" + ("" if p is None else f", McNemar's p {number('mcnemar_p', p)}")
    low, high = finite(lead.low), finite(lead.high)
    span = "" if low is None or high is None else f" ({percent(low)} to {percent(high)})"
    if low is not None and high is not None and low <= 0 <= high:
        return f"{name} and {other} are level: {percent(lead.value)} points apart{span}{tail}"
    ahead = "ahead of" if lead.value > 0 else "behind"
    return f"{name} is {percent(abs(lead.value))} points {ahead} {other}{span}{tail}"


def _count(value: object) -> Cell:
    return Cell(f"{value:,}", value) if isinstance(value, int) else Cell("")
