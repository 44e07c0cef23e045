"""Trained models as files that other programs run, with a card that says what they are."""

from holdfast.exports.export_model import Exported, export

__all__ = ["Exported", "export"]
