"""Every check as a function of a subject and its settings, as tests call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from holdfast.audits.measuring import given_settings
from holdfast.audits.subject import GroupColumn, Subject
from holdfast.parts import CHECKS
from holdfast.types import Finding


def run(check: str, subject: Subject, **settings: Any) -> tuple[Finding, ...]:
    return tuple(CHECKS[check].made(**settings).run(subject))


def put(monkeypatch: pytest.MonkeyPatch, check: str, function: Callable[..., tuple[Finding, ...]]) -> None:
    """Let a function of a subject and settings run instead of a check."""
    made = CHECKS[check].made
    monkeypatch.setattr(made, "run", lambda self, subject: function(subject, **given_settings(self)))


def accuracy(subject: Subject) -> tuple[Finding, ...]:
    return run("accuracy", subject)


def groups(
    subject: Subject,
    *,
    columns: Mapping[str, Tensor] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    train: Mapping[str, Tensor] | None = None,
) -> tuple[Finding, ...]:
    return run("groups", with_columns(subject, columns or {}, names or {}, train or {}))


def slices(
    subject: Subject,
    *,
    columns: Mapping[str, Tensor] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> tuple[Finding, ...]:
    return run("slices", with_columns(subject, columns or {}, names or {}, {}), **settings)


def with_columns(
    subject: Subject, columns: Mapping[str, Tensor], names: Mapping[str, Sequence[str]], train: Mapping[str, Tensor]
) -> Subject:
    made = {
        name: GroupColumn(ids, tuple(names.get(name, ())), train.get(name), ids if ids.is_floating_point() else None)
        for name, ids in columns.items()
    }
    return replace(subject, columns=made, given=subject.predictions)


def corruptions(subject: Subject, **settings: Any) -> tuple[Finding, ...]:
    return run("corruptions", subject, **settings)


def attacks(subject: Subject, **settings: Any) -> tuple[Finding, ...]:
    return run("attacks", subject, **settings)


def ood(subject: Subject, **settings: Any) -> tuple[Finding, ...]:
    return run("ood", subject, **settings)


def curvature(subject: Subject, **settings: Any) -> tuple[Finding, ...]:
    return run("curvature", subject, **settings)


def saliency(subject: Subject, **settings: Any) -> tuple[Finding, ...]:
    return run("saliency", subject, **settings)
