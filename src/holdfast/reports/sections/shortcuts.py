"""Shortcuts: how many training samples are bias-conflicting, their clusters, and pictures of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.reports.blocks import Block, Cell, Chart, Column, Gallery, Picture, Section, Table, png_picture, present
from holdfast.reports.findings_file import measure_of
from holdfast.reports.run_files import RunFiles
from holdfast.reports.sections import section
from holdfast.reports.sections.saliency import look_picture
from holdfast.reports.svg.lines import histogram_lines, share_lines
from holdfast.reports.text import SHARE, finite, interval, percent, records
from holdfast.types import Finding

MOST_BYTES = 6_000_000
"""For all pictures of one data set together."""


@section("shortcuts")
def shortcuts(runs: Sequence[RunFiles]) -> Section | None:
    blocks: list[Block] = []
    notes: list[str] = []
    for number, run in enumerate(runs):
        found = [f for f in run.findings if f.check == "shortcuts"]
        if found:
            several = f" ({run.name})" if len(runs) > 1 else ""
            blocks += _blocks(found, run, several, number)
            notes += [str(n) for f in found for n in f.evidence.get("notes") or ()]
    if not blocks:
        return None
    lead = (
        "Biased models learn the shortcut. The score of a training sample is 1 minus the probability they give its "
        "label, over epochs and seeds: high for bias-conflicting samples, but also for wrong labels and odd pictures. "
        "Each picture is followed by the saliency of the models: a biased one looks at the shortcut."
    )
    warning = "".join(f"Caution: {note}. " for note in dict.fromkeys(notes))
    return Section("shortcuts", "Shortcuts", warning + lead, tuple(blocks))


def summary(findings: Sequence[Finding]) -> str:
    value = {f.name: f for f in findings if f.check == "shortcuts" and not f.where}
    share = value.get("conflicting_share")
    if share is None or (size := finite(share.value)) is None:
        return "Nothing was measured"
    span = interval(SHARE, share.low, share.high)
    return f"About {percent(size)} % of {share.n:,} training samples are bias-conflicting" + (
        f" ({span})" if span else ""
    )


def _blocks(found: Sequence[Finding], run: RunFiles, several: str, number: int) -> Iterator[Block]:
    yield _numbers(found, run, several)
    clusters = [f for f in found if f.name == "cluster_size"]
    if clusters:
        yield _clusters(clusters, several)
    yield from present(*(_histogram(finding, several, number) for finding in found))
    room = MOST_BYTES
    galleries = [(_title(f), f.evidence.get("rows")) for f in clusters]
    ends = {"top": "Highest scores of all", "bottom": "Lowest scores: bias-aligned samples"}
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
        text = f"{percent(value)} %" + (f", {lift:.1f} times the base rate" if lift is not None else "")
        span = Cell(interval(SHARE, f.low, f.high), finite(f.low))
        title = measure_of(f.check, f.name, run.measures).title
        rows.append((Cell(title), Cell(text, value), span, Cell(f"{f.n:,}", f.n)))
    columns = Column.texts("measure") + Column.numbers("value", "95 % interval", "n")
    return Table(f"What was found{several}", columns, tuple(rows))


def _clusters(clusters: Sequence[Finding], several: str) -> Table:
    titles = {"label": "mostly of class", "biased_prediction": "mostly predicted as", "group": "mostly in group"}
    if not any(f.evidence.get("group") for f in clusters):
        del titles["group"]
    named = ([Cell(_named(f.evidence.get(key))) for key in titles] for f in clusters)
    first = ((Cell(f.where.get("cluster", "?")), Cell(f"{f.n:,}", f.n)) for f in clusters)
    rows = tuple((*cells, *own) for cells, own in zip(first, named, strict=True))
    columns = Column.texts("cluster") + Column.numbers("samples") + Column.texts(*titles.values())
    note = "Suspected samples, clustered by k-means on the biased model's features."
    return Table(f"Clusters of bias-conflicting samples{several}", columns, rows, note)


def _title(finding: Finding) -> str:
    label, predicted = (finding.evidence.get(key) for key in ("label", "biased_prediction"))
    one = isinstance(label, (list, tuple)) and len(label) == 2 and (finite(label[1]) or 0.0) >= 0.5
    of = f"class {_named(label)}" if one else "several classes"
    return f"Cluster {finding.where.get('cluster', '?')}: {of}, predicted as {_named(predicted)}"


def _named(value: object) -> str:
    """A name with its share of the cluster."""
    name, given = value if isinstance(value, (list, tuple)) and len(value) == 2 else ("", None)
    return str(name) + ("" if (share := finite(given)) is None else f" ({100 * share:.0f} %)")


def _histogram(finding: Finding, several: str, number: int) -> Chart | None:
    values: Any = finding.evidence.get("histogram")
    if finding.name != "conflicting_share" or not isinstance(values, Mapping):
        return None
    named = {f"bias-{name}" if name in ("aligned", "conflicting") else str(name): own for name, own in values.items()}
    lines = histogram_lines(named, 0.0, 100.0)
    return share_lines(
        f"Training samples by score{several}", lines, id=f"shortcuts-histogram-{number}", x_label="score, %",
        drawn="Samples by score", direct=True, note="Each line: share of its samples, in percent.",
        top=max((y for line in lines for _, y in line.points), default=1.0),
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
