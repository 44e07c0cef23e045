"""Check ``attacks``: the check itself, its bench of attacks, its checks and its findings, a file each."""

from holdfast.audits.checks.attacks.check import attacks
from holdfast.audits.checks.attacks.comparisons import GRADIENT, comparisons
from holdfast.audits.checks.attacks.falls import BLACK, NONE, WHITE, Key, fallen, radius_text
from holdfast.audits.checks.attacks.plans import BUDGETS, RADII, Budget
from holdfast.audits.checks.attacks.surrogate import train_surrogate

__all__ = [
    "BLACK",
    "BUDGETS",
    "GRADIENT",
    "NONE",
    "RADII",
    "WHITE",
    "Budget",
    "Key",
    "attacks",
    "comparisons",
    "fallen",
    "radius_text",
    "train_surrogate",
]
