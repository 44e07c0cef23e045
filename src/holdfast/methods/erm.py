"""Empirical risk minimisation."""

from __future__ import annotations

from holdfast.methods.base import Method


class ErmMethod(Method):
    """Train on the samples as they are: the protocol's defaults."""
