"""A run folder: the model that training left there, with the classes and normalisation of its card."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import require
from holdfast.files import exists
from holdfast.models.source_types import ModelSource, OpenRequest, Preprocessing, SourceModel, both_sides
from holdfast.parts import source


@source("run", about="The folder of a training run.", syntax="a run folder", folders=True, order=1)
class RunFolders(ModelSource):
    def open(self, name: str, request: OpenRequest) -> SourceModel:
        from holdfast.models.saved_model import CARD, load_model
        from holdfast.models.weights import hash_tensors

        inner = [p.parent for p in Path(name).glob(f"*/{CARD}")]
        there = ", ".join(str(p) for p in sorted(inner)[:3])
        require(exists(Path(name) / CARD) or not inner, f"no model in {name}, but in {there}; give one of them")
        model, card = load_model(name)
        net, own = model.net.to(request.device), Preprocessing(card.mean, card.std)
        size = None if card.image_size is None else both_sides(card.image_size)
        digest = hash_tensors(model.state_dict())
        return SourceModel(net, own, classes=card.classes, size=size, channels=len(card.mean), hash=digest)
