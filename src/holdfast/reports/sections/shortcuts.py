"""Shortcuts: clusters of suspected samples, whether there is a shortcut, and pictures from both ends of the ranking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.reports.blocks import Block, Cell, Chart, Column, Gallery, Picture, Section, Table, png_picture, present
from holdfast.reports.findings_file import measure_of
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.sections.saliency import look_picture
from holdfast.reports.svg.lines import histogram_lines, share_lines
from holdfast.reports.text import P_VALUE, finite, interval, number, quantity, records
from holdfast.types import Finding

FAR_ABOVE = 2.0
"""Times its base rate that a ranking must surely reach to speak for a shortcut."""
MOST_BYTES = 6_000_000


@section("shortcuts")
def shortcuts(runs: Sequence[RunFiles]) -> Section | None:
    blocks: list[Block] = []
    notes: list[str] = []
    for order, run in enumerate(runs):
        found = [f for f in run.findings if f.check == "shortcuts"]
        if found:
            several = f" ({run.name})" if len(runs) > 1 else ""
            blocks += _blocks(found, run, several, order)
            notes += [str(n) for f in found for n in f.evidence.get("notes") or ()]
    if not blocks:
        return None
    lead = (
        "Biased models learn what is easy: the shortcut, where there is one. The score of a training sample is 1 minus "
        "the probability they give its label, over epochs and seeds: high for bias-conflicting samples, but also for "
        "hard ones and wrong labels. Whether there is a shortcut at all is for the test to say. Each picture is "
        "followed by the saliency of the models: a biased one looks at the shortcut."
    )
    warning = "".join(f"Caution: {note}. " for note in dict.fromkeys(notes))
    return Section("shortcuts", "Shortcuts", warning + lead, tuple(blocks))


def summary(findings: Sequence[Finding]) -> str:
    """What the ranking is worth."""
    test = next((f for f in findings if (f.check, f.name) == ("shortcuts", "shortcut_p")), None)
    if test is None:
        return "Nothing was measured"
    if (p := finite(test.value)) is None:
        return "Ranked; whether there is a shortcut was not tested"
    said = f"(p = {number(P_VALUE, p)})"
    if test.evidence.get("alarm") is True:
        place = test.evidence.get("place")
        where = f" in {place}" if isinstance(place, str) and place else ""
        return f"A shortcut{where} is likely {said}: what comes first in the ranking is most likely bias-conflicting"
    if lift := _surely_ranked(findings):
        ahead = f"bias-conflicting samples come first {lift:.0f} times as often as by chance"
        return f"The test shows no shortcut {said}, but the group labels do: {ahead}"
    first = "look at the samples that come first, which may also just be hard or mislabelled"
    return f"The test found no shortcut {said}, which does not rule one out: {first}"


def _surely_ranked(findings: Sequence[Finding]) -> float | None:
    """How many times its base rate the ranking reaches against group labels, where that is surely far above chance."""
    own = {f.name: f for f in findings if f.check == "shortcuts"}
    if "average_precision" not in own or "base_rate" not in own:
        return None
    low, rate = finite(own["average_precision"].low), finite(own["base_rate"].value)
    lift = finite(own["average_precision"].evidence.get("lift"))
    return lift if low is not None and rate is not None and low > FAR_ABOVE * rate else None


def detection_limit(findings: Sequence[Finding]) -> str:
    """Where no shortcut was found: how many bias-conflicting samples it takes to be found."""
    given = next((f.evidence for f in findings if (f.check, f.name) == ("shortcuts", "shortcut_p")), {})
    if (least := finite(given.get("found_from"))) is None:
        return ""
    found = f"was usually found from about {least:,.0f} bias-conflicting samples on"
    missed = "a faint one, or one in images that differ much within a class, can go unseen"
    return f"On digits, garments and CIFAR-10 a clear shortcut {found}; {missed}"


def _blocks(found: Sequence[Finding], run: RunFiles, several: str, order: int) -> Iterator[Block]:
    clusters = sorted((f for f in found if f.name == "cluster_size"), key=_contradiction, reverse=True)
    if clusters:
        yield _clusters(clusters, several)
    yield _numbers(found, run, several)
    yield from present(*(_histogram(finding, several, order) for finding in found))
    room = MOST_BYTES
    galleries = [(_title(f), f.evidence.get("rows")) for f in clusters]
    ends = {"top": "Highest scores of all", "bottom": "Lowest scores of all"}
    galleries += [(words, f.evidence.get(key)) for f in found if f.name == "examples" for key, words in ends.items()]
    for title, rows in galleries:
        gallery = _gallery(f"{title}{several}", rows)
        room -= sum(len(p.source) for p in gallery.pictures)
        if gallery.pictures and room >= 0:
            yield gallery


def _numbers(found: Sequence[Finding], run: RunFiles, several: str) -> Table:
    rows = []
    for f in found:
        value, lift = finite(f.value), finite(f.evidence.get("lift"))
        if f.where or value is None:
            continue
        measure = measure_of(f.check, f.name, run.measures)
        text = quantity(measure, value) + (f", {lift:.1f} times the base rate" if lift is not None else "")
        span = Cell(interval(measure, f.low, f.high), finite(f.low))
        rows.append((Cell(measure.title), Cell(text, value), span, Cell(f"{f.n:,}", f.n)))
    columns = Column.texts("measure") + Column.numbers("value", "95 % interval", "n")
    return Table(f"What was found{several}", columns, tuple(rows), _test_note(found))


def _test_note(found: Sequence[Finding]) -> str:
    """How the test came to its p, and how often it is wrong."""
    given = next((f.evidence for f in found if f.name == "shortcut_p"), {})
    mistakes, conflicting, level = (finite(given.get(key)) for key in ("mistakes", "conflicting", "level"))
    hinging = finite(given.get("hinging"))
    if mistakes is None or conflicting is None or level is None:
        return ""
    hinge = ""
    if hinging is not None:
        hinge = (
            f"{hinging:,.0f} of the mistakes hinge on the part of the picture, or the colour, that the models rely on "
            "most: hiding that puts them right, and hiding another part does not. "
        )
    return (
        f"The test: {conflicting:,.0f} of {mistakes:,.0f} mistakes of biased models on held-out samples look "
        "bias-conflicting: the picture resembles others of its class, and yet the models see another one. "
        f"{hinge}On data without a shortcut, at most {100 * level:.0f} % of such tests say that one is likely. "
        + (f"{limit}." if (limit := detection_limit(found)) else "A faint shortcut may go unseen.")
    )


def _clusters(clusters: Sequence[Finding], several: str) -> Table:
    titles = {"label": "mostly of class", "biased_prediction": "mostly predicted as", "group": "mostly in group"}
    if not any(f.evidence.get("group") for f in clusters):
        del titles["group"]
    named = ([Cell(_named(f.evidence.get(key))) for key in titles] for f in clusters)
    first = ((Cell(f.where.get("cluster", "?")), Cell(f"{f.n:,}", f.n)) for f in clusters)
    rows = tuple((*cells, *own) for cells, own in zip(first, named, strict=True))
    columns = Column.texts("cluster") + Column.numbers("samples") + Column.texts(*titles.values())
    note = (
        "Samples that the biased models get wrong in at least half of the epochs, clustered by k-means on the biased "
        "model's features. Clusters that are most often predicted as one other class come first."
    )
    return Table(f"Clusters of suspected samples{several}", columns, rows, note)


def _contradiction(cluster: Finding) -> tuple[float, int]:
    """How strongly a cluster contradicts its labels: the share that is predicted as one class and does not belong to
    it, as far as the most frequent label says; then its size."""
    (label, own), (predicted, said) = (_share(cluster.evidence.get(key)) for key in ("label", "biased_prediction"))
    return said - own * (label == predicted), cluster.n


def _share(value: object) -> tuple[str, float]:
    name, given = value if isinstance(value, (list, tuple)) and len(value) == 2 else ("", None)
    return str(name), finite(given) or 0.0


def _title(finding: Finding) -> str:
    label, predicted = (finding.evidence.get(key) for key in ("label", "biased_prediction"))
    one = isinstance(label, (list, tuple)) and len(label) == 2 and (finite(label[1]) or 0.0) >= 0.5
    of = f"class {_named(label)}" if one else "several classes"
    return f"Cluster {finding.where.get('cluster', '?')}: {of}, predicted as {_named(predicted)}"


def _named(value: object) -> str:
    name, given = value if isinstance(value, (list, tuple)) and len(value) == 2 else ("", None)
    return str(name) + ("" if (share := finite(given)) is None else f" ({100 * share:.0f} %)")


def _histogram(finding: Finding, several: str, order: int) -> Chart | None:
    values: Any = finding.evidence.get("histogram")
    if finding.name != "shortcut_p" or not isinstance(values, Mapping):
        return None
    named = {f"bias-{name}" if name in ("aligned", "conflicting") else str(name): own for name, own in values.items()}
    lines = histogram_lines(named, 0.0, 100.0)
    return share_lines(
        f"Training samples by score{several}", lines, id=f"shortcuts-histogram-{order}", x_label="score, %",
        drawn="Samples by score", direct=True, note="Each line: share of its samples, in percent.",
        y_label="samples, %", top=max((y for line in lines for _, y in line.points), default=1.0),
    )  # fmt: skip


def _gallery(title: str, rows: object) -> Gallery:
    """Each picture, then each model's saliency; one of which a part cannot be shown is left out."""
    samples: list[list[Picture]] = []
    for row in records(rows):
        label = str(row.get("label", "?"))
        group = f"group {row['group']}" if row.get("group") is not None else ""
        score = finite(row.get("score"))
        detail = ", ".join(filter(None, [group, "" if score is None else f"score {score:.2f}"]))
        where = str(row.get("source") or f"sample {row.get('position', '?')}")
        looks: Any = row.get("looks")
        found = [png_picture(row.get("png"), f"{label}; {detail}; {where}", label, detail)]
        named = looks.items() if isinstance(looks, Mapping) else ()
        found += [look_picture(str(name), label, look) for name, look in named if isinstance(look, Mapping)]
        samples.append([p for p in found if p is not None])
    together = max(map(len, samples), default=1)
    return Gallery(title, tuple(p for own in samples if len(own) == together for p in own), together=together)
