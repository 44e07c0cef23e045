"""Models that others trained and published: the accuracy is theirs, to the digit. Skipped where they are not there."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.reports import read_findings

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "audit-any-model.md"
MNIST = Path(os.environ.get("HOLDFAST_ROOT", "data")).absolute()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("advertorch_examples") is None, reason="advertorch is not installed")
@pytest.mark.skipif(not any(MNIST.glob("mnist*")), reason="MNIST is not there; name its folder in $HOLDFAST_ROOT")
@pytest.mark.parametrize(("function", "published"), [("make", 0.9889), ("hardened", 0.9864)])
def test_the_accuracy_is_the_published_one(folder: Path, function: str, published: float) -> None:
    code = re.search(r"```python\n(# published\.py\n.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    Path("published.py").write_text(code[1])
    words = ["audit", f"python:published:{function}", "--data", "mnist", "--root", str(MNIST), "--device", "cpu"]
    assert main([*words, "--workers", "0", "--checks", "accuracy", "--out", "out", "--quiet"]) == 0
    read = read_findings("out/findings.json")
    (accuracy,) = [f for f in read.findings if (f.check, f.name, dict(f.where)) == ("accuracy", "accuracy", {})]
    assert (round(accuracy.value or 0.0, 6), accuracy.n) == (published, 10_000)
