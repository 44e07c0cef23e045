"""Results of trainings as rows of small JSON files: from run folders, and from what a machine sent back.

    python papers/collect.py BACK.json [BACK.json ...]     # adds what run_queue.py collected elsewhere
    python papers/readme_tables.py                          # then writes the tables of every README

What is recorded already is never changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence import Row, Unit, merged, read_rows, results_file, write_rows

POINTS = 20
"""Of a curve, about."""
CURVES = ("test_accuracy", "test_bias_aligned_accuracy", "test_bias_conflicting_accuracy", "val_accuracy", "train_loss")
SUMMED_UP = ("accuracy", "groups", "slices", "saliency")
"""Checks with a finding per class, cluster or picture: only what is of the whole set is kept."""
DERIVED = ("corruption_drop", "mean_corruption_drop", "attack_drop", "ood_ap", "ood_precision", "ood_recall", "ood_f1",
           "ood_false_alarm_rate")  # fmt: skip
"""Measures of an audit that follow from others, or say nearly the same: left out to keep the files small."""


def collect_unit(unit: Unit, folder: Path, *, beside: int, commit: str, hardware: str) -> Row:
    """The row of a finished unit. folder: as run_queue.py leaves it. beside: trainings at once."""
    from holdfast.reports import RunFiles

    (run,) = (path.parent for path in folder.glob("runs/*/findings.json"))
    files = RunFiles.read(run)
    curves = {key: _thinned(files.metrics, key) for key in CURVES}
    row: Row = {
        "cell": unit.cell,
        "seed": unit.seed,
        "flags": dict(unit.flags),
        "command": " ".join(f"'{word}'" if " " in word else word for word in unit.words()),
        "commit": commit,
        "python": files.environment.get("python"),
        "torch": files.environment.get("torch"),
        "hardware": hardware,
        "trainings_at_once": beside,
        "started": files.environment.get("started"),
        "seconds": round(sum(record["seconds"] for record in files.metrics), 1),
        "settings": _told(files.settings),
        "measures": _whole(files.findings),
        "curves": {key: curve for key, curve in curves.items() if curve},
    }
    if tested := [(record["test_accuracy"], record["epoch"]) for record in files.metrics if "test_accuracy" in record]:
        best, epoch = max(tested)
        row["best_epoch_on_test"] = {"epoch": epoch, "accuracy": round(best, 5)}
    audits = {}
    for name in unit.audits:
        found = RunFiles.read(folder / f"audit-{name}")
        seconds = sum(check.seconds for check in found.checks)
        audits[name] = {"seconds": round(seconds, 1), "findings": _findings(found.findings)}
        others = {check.name: f"{check.state}: {check.reason}" for check in found.checks if check.state != "measured"}
        audits[name] |= {"not_measured": others} if others else {}
    return row | ({"audits": audits} if audits else {})


def _told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that differ from the defaults, without where things lie."""
    from holdfast.settings import TrainSettings, flatten

    usual = flatten(TrainSettings())
    places = ("root", "device", "seed", "workers")
    return {
        key: value if key != "data" else Path(str(value)).stem
        for key, value in settings.items()
        if key not in places and value != usual.get(key)
    }


def _whole(findings: Sequence[Any]) -> dict[str, list[Any]]:
    """[value, low, high, n] of what was measured on the whole test set."""
    return {f.name: _numbers(f) for f in findings if not f.where and f.value is not None}


def _numbers(finding: Any) -> list[Any]:
    return [*(None if v is None else round(v, 5) for v in (finding.value, finding.low, finding.high)), finding.n]


def _findings(findings: Sequence[Any]) -> list[list[Any]]:
    """[name, where, value, low, high, n] of each."""
    told = (f for f in findings if f.value is not None and f.name not in DERIVED)
    kept = (f for f in told if not (f.where and f.check in SUMMED_UP))
    return [[f.name, ", ".join(f"{k}={v}" for k, v in f.where.items()), *_numbers(f)] for f in kept]


def _thinned(records: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    """Value by epoch of the last stage: the first, about POINTS evenly, and the last."""
    stage = records[-1].get("stage") if records else None
    own = [(r["epoch"], r[key]) for r in records if key in r and r.get("stage") == stage]
    step = max(1, len(own) // POINTS)
    kept = {e: v for i, (e, v) in enumerate(own, start=1) if i % step == 0 or i in (1, len(own))}
    return {str(epoch): round(value, 4) for epoch, value in kept.items()}


def add(back: Mapping[str, Sequence[Row]]) -> list[str]:
    """Put rows by study where they are kept; what was added, in words."""
    said = []
    for study, rows in back.items():
        before = read_rows(study)
        after = merged(before, rows)
        write_rows(results_file(study), after)
        said.append(f"{study}: {len(after) - len(before)} rows more, {len(after)} in all")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("back", nargs="+", type=Path, help="collected.json of run_queue.py")
    args = parser.parse_args()
    if missing := [str(path) for path in args.back if not path.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}; run_queue.py writes OUT/collected.json")
    for path in args.back:
        print("\n".join(add(json.loads(path.read_bytes())["rows"])))


if __name__ == "__main__":
    main()
