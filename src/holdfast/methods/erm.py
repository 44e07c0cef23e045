"""Empirical risk minimisation: plain training, the defaults of every method."""

from __future__ import annotations

from typing import ClassVar

from holdfast.methods import Method, method


@method("erm", about="Empirical risk minimisation: train on the samples as they are.", order=0)
class Erm(Method):
    images_alone: ClassVar[bool] = True
