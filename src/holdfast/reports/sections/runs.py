"""What is not about one check: methods side by side, pictures from the test set, and the settings of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.reports.arms import ALIGNED, Arm, arms, flat, varying
from holdfast.reports.blocks import Block, Cell, Column, Details, Gallery, Picture, Section, Table, png_picture, present
from holdfast.reports.report_tables import method_table, run_table
from holdfast.reports.run_files import RunFiles, group_attribute
from holdfast.reports.sample_browser import as_script, browser_data, within
from holdfast.reports.sections import section
from holdfast.reports.text import finite, records, setting, sure


@section("comparison", order=-2)
def comparison(runs: Sequence[RunFiles]) -> Section | None:
    if len(runs) < 2:
        return None
    groups = arms(runs)
    blocks: list[Block] = [method_table(groups)]
    if len(groups) < len(runs):
        blocks.append(Details(f"Each of the {len(runs)} runs", (run_table(groups),)))
    lead = "One row per model." if len(groups) == len(runs) else "Runs that differ only in their seed share a row."
    if any(arm.spread(ALIGNED) for arm in groups):
        lead += (
            " Bias-aligned samples follow the spurious correlation of the training set, bias-conflicting ones"
            " go against it: a model that uses the shortcut is good on the first and poor on the second."
        )
    return Section("comparison", "Comparison", lead, tuple(blocks))


MOST_PER_ARM = 24
MOST_ANSWER_BYTES = 1_500_000
"""Of the answers that the filters search, small pictures included, over all arms."""


@section("samples", order=4)
def samples(runs: Sequence[RunFiles]) -> Section | None:
    galleries, several, shown = [], False, []
    for arm in arms(runs):
        found = ((run, [p for f in run.findings for p in records(f.evidence.get("pictures"))]) for run in arm.runs)
        run, given = next(((run, own) for run, own in found if own), (None, []))
        if run is not None:
            galleries.append(_gallery(arm, run, given))
            shown.append(run)
            several = several or len(arm.runs) > 1
    answers = within([browser_data(run) for run in shown], MOST_ANSWER_BYTES)
    galleries = [
        replace(own, answers=as_script(given)) if given else own for own, given in zip(galleries, answers, strict=True)
    ]
    lead = "The surest mistakes come first." + _reading(galleries)
    if any(answers):
        lead += " The filters search the answers to all test samples; small pictures of some are in this page."
    lead += " Of several seeds, the first is shown." if several else ""
    return Section("samples", "Samples", lead, tuple(galleries)) if galleries else None


def _reading(galleries: Sequence[Gallery]) -> str:
    """How to read a title, by the first picture that the model gets wrong."""
    wrong = next((dict(p.facts) for gallery in galleries for p in gallery.pictures if p.wrong and p.facts), None)
    if wrong is None:
        return ""
    label, said = wrong["label"], wrong["prediction"]
    return f" {label} → {said} means: the class is {label}, and the model says {said}."


def _gallery(arm: Arm, run: RunFiles, found: Sequence[Mapping[str, Any]]) -> Gallery:
    word = group_attribute(run) or "group"
    pictures = [picture for values in found if (picture := _picture(values, word)) is not None]
    left_out, unreadable = max(0, len(pictures) - MOST_PER_ARM), len(found) - len(pictures)
    notes = [f"{left_out} more in findings.json of {run.name}."] if left_out else []
    notes += [f"{unreadable} could not be read."] if unreadable else []
    return Gallery(arm.label, tuple(pictures[:MOST_PER_ARM]), " ".join(notes))


def _picture(values: Mapping[str, Any], word: str) -> Picture | None:
    label, prediction = str(values.get("label", "?")), str(values.get("prediction", "?"))
    wrong = label != prediction
    title = f"{label} → {prediction}" if wrong else label
    group = "" if values.get("group") is None else f"{word} {values['group']}"
    details = list(filter(None, [sure(values.get("confidence")), group]))
    where = values.get("source") or (f"sample {values['position']}" if "position" in values else "")
    words = f"{label}, taken for {prediction}" if wrong else f"{label}, recognised"
    alt = "; ".join(filter(None, [words, *details, str(where)]))
    made = png_picture(values.get("png"), alt, title, ", ".join(details), wrong=wrong)
    known = {"label": label, "prediction": prediction, "verdict": "wrong" if wrong else "right"}
    known |= {"position": str(values["position"])} if "position" in values else {}
    known |= {"group": str(values["group"])} if values.get("group") is not None else {}
    known |= {"confidence": f"{c:.4f}"} if (c := finite(values.get("confidence"))) is not None else {}
    return made and replace(made, facts=tuple(known.items()))


MOST_TEXT = 400
"""A longer value, such as the names of a thousand classes, is cut."""


@section("settings", order=5)
def settings(runs: Sequence[RunFiles]) -> Section | None:
    own = [flat(run.settings) for run in runs]
    blocks: list[Block | None] = [_differing(runs, own, "Settings that differ between runs")]
    everything = "All settings" if len(runs) == 1 else "Settings that all runs share"
    model_and_data = [
        {f"{kind}.{key}": value for kind in ("model", "data") for key, value in getattr(run, kind).items()}
        for run in runs
    ]
    mappings: dict[str, Sequence[Mapping[str, Any]]]
    mappings = {everything: own, "Environment": [run.environment for run in runs], "Model and data": model_and_data}
    for summary, given in mappings.items():
        caption = summary if given is own or len(runs) == 1 else f"{summary}: what all runs share"
        rows = tuple((Cell(key), _cell(value)) for key, value in varying(given)[0].items())
        tables = present(
            Table(caption, Column.texts("name", "value"), rows) if rows else None,
            None if given is own else _differing(runs, given, f"{summary}: where runs differ"),
        )
        blocks.append(Details(summary, tables) if tables else None)
    lead = "What it takes to repeat this: settings, versions, the command, and hashes of weights and data."
    return Section("settings", "Settings", lead, present(*blocks)) if any(blocks) else None


def _differing(runs: Sequence[RunFiles], mappings: Sequence[Mapping[str, Any]], caption: str) -> Table | None:
    _, keys = varying(mappings)
    if not keys:
        return None
    rows = tuple(
        (Cell(run.name), *(_cell(mapping[key]) if key in mapping else Cell("") for key in keys))
        for run, mapping in zip(runs, mappings, strict=True)
    )
    return Table(caption, Column.texts("run", *keys), rows)


def _cell(value: Any) -> Cell:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = setting(value)
    return Cell(text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …", float(value) if number else None)
