"""Out-of-distribution inputs: which scores of a classifier, or of a detector, tell them from known ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.parts import DETECTORS, described_data
from holdfast.reports.arms import Arm, FindingKey, share_chart, spread_cell
from holdfast.reports.blocks import Cell, Chart, Column, Details, Gallery, Section, Side, Table, png_picture, present
from holdfast.reports.report_tables import all_numbers
from holdfast.reports.robustness_summary import fitted_on
from holdfast.reports.sections import of_check
from holdfast.reports.svg.lines import LONGEST_LABEL, Line, histogram_lines, share_lines
from holdfast.reports.text import PLAIN, finite, number, records, sure, titled
from holdfast.types import Finding

AUROC = {"ood": "ood_auroc", "detect": "auroc"}
"""The measure by which scores are ranked, by check."""
KINDS = (("roc", "ROC", "false alarms, %"), ("pr", "Precision and recall", "recall, %"))
"""Curves: key in the evidence, title, and what the axis says."""
MOST_SCORES = 4
JOINED = "fused"
"""The score of a detector that its threshold cuts."""


@of_check("ood")
def ood(groups: Sequence[Arm]) -> Section:
    lead = (
        "How well a score tells out-of-distribution (OOD) images from test images. AUROC is the chance that an "
        "OOD image scores higher than a test image. FPR95 is the share of test images that are flagged when 95 % "
        "of the OOD images are caught. Precision, recall, F1 and false alarms are at a threshold that was set on "
        "other test images."
    )
    return _section(groups, "ood", "Out-of-distribution inputs", lead)


@of_check("detect")
def detect(groups: Sequence[Arm]) -> Section:
    lead = (
        "How well a score tells anomalies from normal images. AUROC is the chance that an anomaly scores higher "
        "than a normal image. FPR95 is the share of normal images that are flagged when 95 % of the anomalies "
        "are caught. Precision, recall, F1 and false alarms are at the detector's own threshold, which was set on "
        "held-out normal images before."
    )
    for arm in groups:
        if seen := fitted_on(arm):
            lead += f" {arm.label} was fitted on {seen} among these: do not take its numbers for those of new images."
    return _section(groups, "detect", "Detection", lead)


def _section(groups: Sequence[Arm], check: str, title: str, lead: str) -> Section:
    alone = len(groups) == 1
    best = [(f"{arm.label}, {score}", arm.number, f) for arm in groups for score, f in _ranked(arm, check)[:1]]
    between = _curves(groups[0], check, alone=True) if alone else _rates(best, f"{check}-{{}}", ", best score of each")
    own = () if alone else tuple(chart for arm in groups for chart in _curves(arm, check, alone=False))
    names = dict.fromkeys(score for arm in groups for score in _scores(arm, check))
    rows = {name: [arm.measured(_key(check, name)) for arm in groups] for name in names}
    bars = share_chart("AUROC", groups, rows, id=f"{check}-auroc", drawn="AUROC by score", brief=True)
    blocks = present(
        *(block for arm in groups for block in (_table(arm, check, groups), *_confusion(arm, check))),
        _sets(groups, check),
        Side(present(bars if rows else None, *between)),
        Details("Curves of each", (Side(own),)) if own else None,
        *(gallery for arm in groups for gallery in _misses(arm, check)),
        all_numbers(groups, check),
    )
    return Section(check, title, lead, blocks)


def _scores(arm: Arm, check: str) -> list[str]:
    """Scores in the order of the findings; those over all OOD images have no other part."""
    found = [dict(m.where) for m in arm.found if m.check == check and m.name == AUROC[check]]
    return list(dict.fromkeys(w["score"] for w in found if set(w) == {"score"}))


def _key(check: str, score: str, name: str = "") -> FindingKey:
    return FindingKey(name or AUROC[check], (("score", score),), check)


def _table(arm: Arm, check: str, groups: Sequence[Arm]) -> Table:
    """One row per score, one column per measure that was taken of scores."""
    scores = _scores(arm, check)
    names = list(dict.fromkeys(k.name for k in arm.found if k.check == check and set(dict(k.where)) == {"score"}))
    ranks = [s.mean or 0.0 for score in scores if (s := arm.measured(_key(check, score)))]
    best = {AUROC[check]: max(ranks, default=None)}
    rows = tuple(
        (Cell(score), *(spread_cell(arm.measured(_key(check, score, name)), best.get(name)) for name in names))
        for score in scores
    )
    found = [(score, f) for score in scores for f in arm.found.get(_key(check, score), ())]
    known = {score: DETECTORS[score].about.rstrip(".") for score in scores if score in DETECTORS}
    notes = dict.fromkeys(f"{score}: {about}." for score, about in known.items() if arm is groups[-1])
    notes |= dict.fromkeys(f"{score}: {f.evidence['reason']}." for score, f in found if "reason" in f.evidence)
    columns = Column.texts("score") + Column.numbers(*(titled(arm.measure(FindingKey(n, check=check))) for n in names))
    return Table("By score" if len(groups) == 1 else f"By score, {arm.label}", columns, rows, " ".join(notes))


NOISE = "noise"


def _sets(groups: Sequence[Arm], check: str) -> Table | None:
    """AUROC on each set of OOD images, with a word on what it is; one column per arm and score."""
    parts = [dict(key.where) for arm in groups for key in arm.found if (key.check, key.name) == (check, AUROC[check])]
    sets = list(dict.fromkeys(where["ood"] for where in parts if set(where) == {"score", "ood"}))
    if not sets:
        return None
    columns = [(arm, score) for arm in groups for score in _scores(arm, check)]
    rows = []
    for name in sets:
        keys = [(arm, FindingKey(AUROC[check], (("ood", name), ("score", score)), check)) for arm, score in columns]
        rows.append(
            (Cell(name), Cell(_what(groups, check, name)), *(spread_cell(arm.measured(key)) for arm, key in keys))
        )
    titles = [f"{arm.label}, {score}, %" if len(groups) > 1 else f"{score}, %" for arm, score in columns]
    note = "50 % is guessing; below it, the score takes these images for more familiar than test images."
    heads = Column.texts("OOD set", "what it is") + Column.numbers(*titles)
    return Table("AUROC by OOD set", heads, tuple(rows), note)


def _what(groups: Sequence[Arm], check: str, name: str) -> str:
    """What a set of OOD images is: where it came from, as the check was told."""
    found = (f.settings.get("data") for arm in groups for fs in arm.found.values() for f in fs if f.check == check)
    given = next((data[name] for data in found if isinstance(data, Mapping) and name in data), None)
    if given is not None:
        return str(given)
    if name == NOISE:
        return "random pixels in the size of the test images"
    return described_data().get(name, "images that the audit was given").partition(";")[0].rstrip(".")


def _confusion(arm: Arm, check: str) -> Iterator[Table]:
    """What a detector's threshold makes of each kind; of several seeds, the first's."""
    for finding in arm.found.get(_key(check, JOINED), ())[:1]:
        counts: Any = finding.evidence.get("confusion")
        threshold = finite(finding.evidence.get("threshold"))
        names = ("true_negative", "false_positive", "false_negative", "true_positive")
        whole = isinstance(counts, Mapping) and all(isinstance(counts.get(name), int) for name in names)
        if whole and threshold is not None:
            cells = [Cell(f"{counts[name]:,}", counts[name]) for name in names]
            rows = ((Cell("normal"), *cells[:2]), (Cell("anomalous"), *cells[2:]))
            caption = f"At the threshold, {number(PLAIN, threshold)} of {JOINED}"
            yield Table(caption, Column.texts("truth") + Column.numbers("passed", "flagged"), rows)


def _ranked(arm: Arm, check: str) -> list[tuple[str, Finding]]:
    """Scores that have curves, best first, with their finding; of several seeds, the first's."""
    first = [(score, f) for score in _scores(arm, check) for f in arm.found.get(_key(check, score), ())[:1]]
    found = [(score, f) for score, f in first if finite(f.value) is not None and "curves" in f.evidence]
    return sorted(found, key=lambda row: -(row[1].value or 0.0))


def _rates(curves: Sequence[tuple[str, int, Finding]], id: str, of: str, *, direct: bool = False) -> Iterator[Chart]:
    """ROC and precision-recall: a label, a colour and a finding with the curves for each line."""
    for key, title, x_label in KINDS:
        found = [(label, _points(finding.evidence["curves"], key), colour) for label, colour, finding in curves]
        lines = [Line(label, (points,), colour) for label, points, colour in found if points]
        short = direct or all(len(line.label) <= LONGEST_LABEL for line in lines)
        own = id.format(key)
        if chart := share_lines(f"{title}{of}", lines, id=own, x_label=x_label, drawn=title, direct=short):
            yield chart


def _curves(arm: Arm, check: str, *, alone: bool) -> Iterator[Chart]:
    """ROC and precision-recall of a model's best scores, and the histogram of the one that is cut, or of the best."""
    ranked, of = _ranked(arm, check), "" if alone else f", {arm.label}"
    id = f"{check}-{{}}" if alone else f"{check}-{{}}-{arm.number}"
    best = [(score, colour, finding) for colour, (score, finding) in enumerate(ranked[:MOST_SCORES])]
    yield from _rates(best, id, of, direct=True)
    for score, finding in ([r for r in ranked if r[0] == JOINED] or ranked)[:1]:
        if chart := _histogram(finding, score, of, id.format("histogram")):
            yield chart


def _points(values: object, key: str) -> tuple[tuple[float, float], ...]:
    found = values.get(key) if isinstance(values, Mapping) else None
    rows = found if isinstance(found, (list, tuple)) else ()
    return tuple((100 * float(p[0]), float(p[1])) for p in rows if isinstance(p, (list, tuple)) and len(p) == 2)


def _histogram(finding: Finding, score: str, of: str, id: str) -> Chart | None:
    values: Any = finding.evidence.get("histogram")
    low, high = (finite(values.get(key)) for key in ("low", "high")) if isinstance(values, Mapping) else (None, None)
    if low is None or high is None:
        return None
    lines = histogram_lines(values, low, high)
    note = f"{len(lines[0].points)} bins." if lines else ""
    threshold = finite(finding.evidence.get("threshold"))
    if threshold is not None:
        note += f" Above {number(PLAIN, threshold)} an image is flagged."
    return share_lines(
        f"Distribution of {score}{of}", lines, id=id, x_label="score", drawn=f"Images by {score}", direct=True,
        note=note, top=max((y for line in lines for _, y in line.points), default=1.0), whole=False,
    )  # fmt: skip


def _misses(arm: Arm, check: str) -> Iterator[Gallery]:
    """OOD images that were taken for known ones with the most confidence; of several seeds, the first's."""
    for finding in arm.found.get(FindingKey("misses", (), check), ())[:1]:
        pictures = []
        for values in records(finding.evidence.get("misses")):
            label, score = str(values.get("label", "")), finite(values.get("score"))
            title = f"{label} → {values['prediction']}" if values.get("prediction") is not None else label
            detail = sure(values.get("confidence")) or ("" if score is None else f"score {score:.2f}")
            pictures.append(png_picture(values.get("png"), f"{title}; {detail}", title, detail, wrong=True))
        yield from Gallery.readable(f"Worst misses, {arm.label}", pictures)
