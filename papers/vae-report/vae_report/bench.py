"""What the jobs of a VAE study share: its sizes, the data of a seed, and the models trained once for it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from holdfast.data.anomalies import AnomalySet
from holdfast.data.splits import ArraySplit
from holdfast.errors import require
from holdfast.files import write_atomic
from holdfast.models import load_model, save_model
from holdfast.models.vae import VAE, VAESettings
from holdfast.models.weights import read_tensors
from holdfast.rng import derive
from holdfast.train.rotation import rotation_card, train_rotation
from holdfast.train.unlabelled import MinimiseSettings, train_vae


@dataclass(frozen=True)
class StudySettings:
    """Sizes of a study; the defaults are the report's and, beyond it, ours.

    epochs, batch_size: of the report's VAE. our_epochs: of our VAE. rotation_epochs, label_epochs, fixmatch_epochs:
    of the encoder, the supervised classifiers and FixMatch. model: network of encoder and classifiers. first_seed:
    where seeds begin; not at 0, because what ``fused`` joins was chosen with sight of the sets of seeds 0 and 1.
    """

    seeds: int = 3
    first_seed: int = 10
    epochs: int = 100
    batch_size: int = 100
    our_epochs: int = 100
    rotation_epochs: int = 10
    head_epochs: int = 100
    label_epochs: int = 60
    fixmatch_epochs: int = 30
    fixmatch_ratio: int = 7
    model: str = "cifar-resnet18"
    precision: str = "bf16"
    device: str = "cpu"
    flip: bool = False

    def __post_init__(self) -> None:
        for name in ("seeds", "batch_size", "fixmatch_ratio", *(f.name for f in fields(self) if "epochs" in f.name)):
            require(getattr(self, name) >= 1, f"{name} must be >= 1, got {getattr(self, name)}")


QUICK: Final = StudySettings(
    seeds=1,
    epochs=5,
    batch_size=20,
    our_epochs=20,
    rotation_epochs=8,
    head_epochs=20,
    label_epochs=20,
    fixmatch_epochs=10,
    fixmatch_ratio=2,
    model="convnet",
    precision="fp32",
)
"""The whole study on the embedded digits in a minute of one core."""


@dataclass(frozen=True, eq=False)
class Bench:
    """What a job works with. folder: where the models that several jobs of a seed share are kept."""

    data: AnomalySet
    seed: int
    settings: StudySettings
    folder: Path

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """(to train on, held out) of the unlabelled images: a tenth, at least 100, is never trained on."""
        split = self.data.unlabeled
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(derive(self.seed, "study/held-out")))
        kept = max(100, len(split) // 10)
        return split.images[order[kept:]], split.images[order[:kept]]

    @property
    def labelled(self) -> tuple[Tensor, Tensor, ArraySplit]:
        """(images, labels, test) of the classifiers: the normal ones of the first test set are learned from too."""
        data = self.data
        first, second = (s.subset((~data.anomalous(s)).nonzero().flatten()) for s in data.sets[:2])
        images = torch.cat([data.labeled.images, first.images])
        return images, torch.cat([data.labeled.labels, first.labels]), second

    def loop(self, epochs: int, batch_size: int, lr: float, weight_decay: float = 0.0, **rest: Any) -> MinimiseSettings:
        return MinimiseSettings(
            epochs, batch_size, lr, weight_decay, precision=self.settings.precision, seed=self.seed, **rest
        )

    def vae(self) -> VAE:
        """Our VAE of the training images: read where it was kept, else trained and kept."""
        path, s = self.folder / "vae.safetensors", self.settings
        made = VAESettings(self.data.unlabeled.shape, latent=32)
        if path.is_file():
            model = VAE(made)
            model.load_state_dict(read_tensors(path))
            return model.to(s.device).eval()
        loop = self.loop(s.our_epochs, s.batch_size, 1e-3, schedule="cosine")
        model = train_vae(self.parts[0], made, loop, device=s.device).model
        tensors = {n: v.cpu().clone(memory_format=torch.contiguous_format) for n, v in model.state_dict().items()}
        write_atomic(path, save(tensors))
        return model

    def encoder(self, *, changes: bool = False) -> nn.Module:
        """The encoder that learned rotations (and changes) of the training images, kept in the same way."""
        folder, s = self.folder / ("encoder-changes" if changes else "encoder"), self.settings
        if not (folder / "model.json").is_file():
            loop = self.loop(s.rotation_epochs, 128, 2e-3, 1e-4, schedule="cosine", optimizer="adamw")
            built = train_rotation(self.parts[0], loop, model=s.model, changes=changes, device=s.device)
            save_model(folder, built, card=rotation_card(built, self.data.unlabeled.shape))
        return load_model(folder)[0].to(s.device)
