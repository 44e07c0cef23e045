"""Front ``attacks``: the front itself, its bench of attacks, its checks and its findings, a file each."""

from holdfast.fronts.attacks.budget import BUDGETS, RADII, Budget
from holdfast.fronts.attacks.comparisons import GRADIENT, comparisons
from holdfast.fronts.attacks.falls import BLACK, NONE, WHITE, Key, fallen, radius_text
from holdfast.fronts.attacks.front import attacks
from holdfast.fronts.attacks.surrogate import train_surrogate

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
