"""The settings of ``holdfast data check``: its flags, and keyword arguments of :func:`holdfast.check_data`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from holdfast.settings.fields import LARGEST_SEED, Bounded, Columns, Confine, Device, Root, Unset, Within


@dataclass(frozen=True)
class CheckedDataSettings(Bounded):
    """How the data is read, as :func:`holdfast.data.load` reads it."""

    root: Root = None
    names: Unset[str] = None
    """Pattern of file names that hold the labels, such as "{age}_{gender}_{race}_"."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA."""
    group: Unset[str] = None
    """The same for the group; for a table or hf: data the column of groups."""
    columns: Columns = None
    confine: Confine = False

    def reading(self) -> dict[str, Any]:
        """These alone."""
        return {f.name: getattr(self, f.name) for f in fields(CheckedDataSettings)}


@dataclass(frozen=True)
class QualitySettings(CheckedDataSettings):
    """What to search for beside unreadable files, and where to write it."""

    near: Annotated[float, Within(0, 1)] = 0.3
    """Largest distance of near duplicates (correlation is 1 - distance²/2); 0 searches for identical images alone."""
    label_errors: bool = False
    """Also search for wrong labels, by confident learning. It trains one model per fold."""
    model: str = "convnet"
    """label errors: the network that is trained on each fold."""
    pretrained: bool = False
    """label errors: do not train the network; fit a linear classifier per fold on its pretrained features."""
    folds: Annotated[int, Within(2, 100, "..")] = 4
    """label errors: parts of the training split, each judged by a model that was trained on the others."""
    epochs: Annotated[int, Within(1)] = 8
    """label errors: epochs of each training."""
    image_size: Annotated[Unset[int], Within(1, 4096, "..")] = None
    """label errors: side in pixels that images are resized to (default: their own)."""
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """label errors: seed of folds and trainings."""
    device: Device = "auto"
    out: Unset[str] = None
    """A folder for a page of pictures (data_check.html), findings.json and tables of all that was found."""
    overwrite: bool = False
    """Replace what an earlier check wrote there."""
