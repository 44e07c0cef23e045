"""A run folder: the model that training left there, with its card."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import require
from holdfast.files import exists
from holdfast.models.architecture import both_sides
from holdfast.models.sources.asked import Asked
from holdfast.models.sources.hashing import hash_tensors
from holdfast.models.sources.opened import Found
from holdfast.models.sources.preprocessing import Preprocessing
from holdfast.models.store import CARD, load_model


def find(folder: str, asked: Asked) -> Found:
    inner = [p.parent for p in Path(folder).glob(f"*/{CARD}")]
    require(
        exists(Path(folder) / CARD) or not inner,
        f"no model in {folder}, but in {', '.join(str(p) for p in sorted(inner)[:3])}; give one of them",
    )
    model, card = load_model(folder)
    return Found(
        model.net.to(asked.device),
        Preprocessing(card.mean, card.std),
        classes=card.classes,
        size=None if card.image_size is None else both_sides(card.image_size),
        channels=len(card.mean),
        hash=hash_tensors(model.state_dict()),
    )
