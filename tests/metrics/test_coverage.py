"""Every 95 % interval covers: a few rows of benchmarks/coverage.py again, and the whole table as it was committed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_coverage", ROOT / "benchmarks/coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "statistic", "data", "n"),
    [
        ("auroc", "AUROC", "normal", "52 / 1000"),
        ("auroc", "AUROC", "heavy tails (t3)", "26 / 1000"),
        ("auroc", "AUROC", "some hidden", "52 / 1000"),
        ("auroc", "AUROC", "discrete, 9 levels", "10 / 100"),
        ("fpr95", "FPR95", "exponential, AUROC 0.9", "26 / 1000"),
        ("fpr95", "FPR95", "exponential, AUROC 0.9", "200 / 1000"),
        ("groups", "worst-group accuracy", "all at 95 %", "12 cells of 20"),
        ("groups", "worst-group accuracy", "one at 50 %, others at 90 %", "4 cells of 100"),
        ("groups", "balanced accuracy (mean of cells)", "all at 99%", "100 cells of 10"),
        ("proportions", "accuracy (any share)", "binomial", "100"),
        ("paired_answers", "paired difference", "2.00% won, 2.00% lost", "50"),
        ("leads_in_auroc", "lead in AUROC", "equal, shift 0.4", "10 / 100"),
    ],
)
def test_intervals_cover(coverage: ModuleType, study: str, statistic: str, data: str, n: str) -> None:
    cases = [c for c in coverage.STUDIES[study]() if (c.statistic, c.data, c.n) == (statistic, data, n)]
    assert cases
    for case in cases:
        row = coverage.simulate(case, 400, seed=1)
        assert row.coverage >= 0.925, row  # 0.95 at least is expected, deviation 0.011


def test_the_committed_table_covers(coverage: ModuleType) -> None:
    """Every row; and the page in the docs shows them."""
    figures = json.loads((ROOT / "benchmarks/results/coverage.json").read_text(encoding="utf-8"))["figures"]
    rows = [coverage.Row(**row) for row in figures["rows"]]
    assert {case.statistic for study in coverage.STUDIES.values() for case in [next(iter(study()))]} <= {
        row.statistic for row in rows
    }
    for row in rows:
        assert row.coverage >= 0.93, row
    assert coverage.table(rows) in coverage.PAGE.read_text(encoding="utf-8")
