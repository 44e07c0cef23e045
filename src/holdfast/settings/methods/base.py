"""What each method can be told. Subclassing registers: a method's name finds its settings here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.settings.choice import Choice


@dataclass(frozen=True)
class MethodSettings(Choice):
    """One of the training methods.

    >>> MethodSettings.choose("erm")
    Erm()
    >>> MethodSettings.choose("ermm")
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown method 'ermm'; did you mean 'erm'?
    """

    kind: ClassVar[str] = "method"
    known: ClassVar[dict[str, type[Self]]] = {}
    learns_unlabeled: ClassVar[bool] = False
    """Whether it also learns from images without labels."""

    def akin(self, other: Choice) -> bool:
        """One extends the other, as jtt+biasadv jtt: so a baseline differs from it in nothing but the extension."""
        return other.name.partition("+")[0] == self.name.partition("+")[0]


@dataclass(frozen=True)
class Erm(MethodSettings):
    """Empirical risk minimisation: train on the samples as they are."""

    name: ClassVar[str] = "erm"
    implementation: ClassVar[str] = "holdfast.methods.erm:ErmMethod"
