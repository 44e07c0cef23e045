"""Files of any content are read or clearly refused: seconds' worth of every fuzzer, the same cases each time.

HOLDFAST_FUZZ_CASES and HOLDFAST_FUZZ_SECONDS ask for more; ``python -m tests.fuzz`` runs very many.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.harness import KINDS, run

CASES = int(os.environ.get("HOLDFAST_FUZZ_CASES", "400"))
SECONDS = float(os.environ.get("HOLDFAST_FUZZ_SECONDS", "3"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_clear_errors(kind: str) -> None:
    found = run(kind, cases=CASES, seconds=SECONDS)
    assert not found.failures, "\n".join(f"--- {kind} {n}\n{text}" for n, text in found.failures.items())
    assert found.accepted > found.cases / 50, f"nearly nothing gets past the first look: {found}"
    assert found.refused > found.cases / 20, f"nearly nothing is wrong with these files: {found}"


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("config", 32757),  # --columns of ten thousand letters, printed in full
        ("predictions", 1908),  # so a class name
        ("findings", 82652),  # a failed gate whose threshold is null
    ],
)
def test_a_case_that_failed_once(kind: str, case: int) -> None:
    assert not run(kind, cases=1, first=case).failures
