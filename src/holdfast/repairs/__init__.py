"""Repair a trained classifier without training it again: a new last layer, calibrated confidence, abstention."""

from holdfast.repairs.run_repair import Repair, repair

__all__ = ["Repair", "repair"]
