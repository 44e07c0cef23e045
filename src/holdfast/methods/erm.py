"""Empirical risk minimisation: plain training, the defaults of every method."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.methods import Method
from holdfast.parts import method


@method("erm", about="Empirical risk minimisation: train on the samples as they are.", order=0)
@dataclass(frozen=True)
class Erm(Method):
    pass
