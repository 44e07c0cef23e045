"""What a choice among trainings may look at: scores of their models on the validation split, never on the test set."""

from __future__ import annotations

from pathlib import Path

from holdfast.data import Dataset
from holdfast.data.loaders import make_loader
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.models.saved_model import load_model
from holdfast.settings import TrainSettings
from holdfast.settings.training import CellRule
from holdfast.train.evaluate import predict, selection_score
from holdfast.train.folder import recorded


def require_groups(rule: CellRule, data: Dataset) -> None:
    """Refuse a rule that looks at groups where the validation split has none."""
    grouped = data.val is None or bool((data.val.groups >= 0).any())
    require(
        rule != "val-worst-group" or grouped,
        f"choose val-worst-group needs groups in the validation set, and {data.name} has none there; use "
        "val-worst-class, or data with groups",
    )


def held_out_score(folder: Path, settings: TrainSettings, data: Dataset, rule: CellRule) -> float:
    """What a rule says of the model that a run kept, on the validation split."""
    assert data.val is not None
    loop = recorded(folder, settings).loop
    device = resolve_device(loop.device)
    loader = make_loader(
        data.val, batch_size=loop.batch_size, device=device, kind=settings.data.loader, workers=settings.data.workers
    )
    model = load_model(folder)[0].to(device)
    return selection_score(rule, predict(model, data.val, loader, device=device, precision=loop.precision))
