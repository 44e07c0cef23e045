"""Modules of ``papers/`` are imported by path: they are not part of the package."""

from __future__ import annotations

import sys
from pathlib import Path

PAPERS = Path(__file__).parents[2] / "papers"
sys.path.insert(0, str(PAPERS / "vae-report"))
