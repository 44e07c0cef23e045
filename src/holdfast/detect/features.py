"""What models compute of images, once for every score: features, logits, terms of a VAE's bound.

Open this file to see what a detector can read, or to connect another kind of model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor, nn

from holdfast.data.loaders import Images, float_batches
from holdfast.devices import autocast
from holdfast.errors import require
from holdfast.losses import cross_entropy, gaussian_nll, kl_to_standard_normal
from holdfast.models.heads import find_head, penultimate
from holdfast.models.vae import VAE
from holdfast.module_state import evaluating
from holdfast.train.progress import Progress
from holdfast.train.rotation import TURNS

REGRET_STEPS = 20


@dataclass(frozen=True, eq=False)
class Features:
    """What was computed of images, one row per image; None where it was not.

    features: (N, D). logits: (N, K). labels: (N,) int64. reconstruction, kl: (N,) terms of a VAE's bound.
    drawn: (N,) the reconstruction term at a random z. regret: (N,) likelihood regret. rotation: (N,) how badly the
    turns of the image are recognised.
    """

    features: Tensor | None = None
    logits: Tensor | None = None
    labels: Tensor | None = None
    reconstruction: Tensor | None = None
    kl: Tensor | None = None
    drawn: Tensor | None = None
    regret: Tensor | None = None
    rotation: Tensor | None = None

    def items(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, value) for name, value in vars(self).items() if value is not None)

    def __len__(self) -> int:
        return next((len(value) for _, value in self.items()), 0)

    def __getitem__(self, index: Tensor | slice) -> Features:
        return Features(**{name: value[index] for name, value in self.items()})

    def to(self, device: torch.device | str) -> Features:
        return Features(**{name: value.to(device) for name, value in self.items()})

    def beside(self, other: Features) -> Features:
        """Both, side by side; features that both have are joined."""
        own = dict(self.items())
        for name, value in other.items():
            own[name] = torch.cat([own[name], value], 1) if name == "features" and name in own else value
        return Features(**own)

    @classmethod
    def cat(cls, parts: Sequence[Features]) -> Features:
        require(bool(parts), "give at least one image to extract features from")
        return cls(**{name: torch.cat([getattr(p, name) for p in parts]) for name, _ in parts[0].items()})


class FeatureExtractor(Protocol):
    """Computes features of float images (B, C, H, W) on its device."""

    @property
    def device(self) -> torch.device: ...
    def extract(self, x: Tensor) -> Features: ...


@dataclass(frozen=True, eq=False)
class NetworkExtractor:
    """What is computed by one network, on the device that it is on."""

    model: nn.Module
    precision: str = "fp32"

    @property
    def device(self) -> torch.device:
        return next((t.device for t in (*self.model.parameters(), *self.model.buffers())), torch.device("cpu"))


class ClassifierExtractor(NetworkExtractor):
    """Features before the head and logits of any classifier, in one pass."""

    @torch.no_grad()
    def extract(self, x: Tensor) -> Features:
        with evaluating(self.model), autocast(self.precision, x.device), penultimate(self.model) as inner:
            logits = self.model(x).float()
        return Features(features=inner.features.float(), logits=logits)

    @property
    def head(self) -> tuple[Tensor, Tensor]:
        """(weight (K, D), bias (K,)) of the layer that makes logits."""
        layer = find_head(self.model)[1]
        weight = layer.weight.detach().flatten(1)
        return weight, weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()


@dataclass(frozen=True, eq=False)
class LogitExtractor:
    """Logits alone, of a program whose features cannot be reached: TorchScript, .pt2, ONNX."""

    model: nn.Module
    device: torch.device
    precision: str = "fp32"

    @torch.no_grad()
    def extract(self, x: Tensor) -> Features:
        with evaluating(self.model), autocast(self.precision, x.device):
            return Features(logits=self.model(x).float())


class RotationExtractor(NetworkExtractor):
    """Features of an encoder that was taught to tell by how much an image is turned, and how well it does."""

    @torch.no_grad()
    def extract(self, x: Tensor) -> Features:
        surprises, features = [], None
        with evaluating(self.model), autocast(self.precision, x.device), penultimate(self.model) as inner:
            for turns in range(TURNS):
                logits = self.model(x.rot90(turns, (2, 3))).float()
                features = inner.features.float() if features is None else features
                surprises.append(cross_entropy(logits, torch.full((len(x),), turns, device=x.device)))
        return Features(features=features, rotation=torch.stack(surprises).mean(0))


@dataclass(frozen=True, eq=False)
class VAEExtractor:
    """The terms of a VAE's bound at z = μ, and μ itself as the features.

    features: whether to give μ; not where a classifier's features stand beside it.
    regret: steps of gradient that likelihood regret may take for each image; 0 leaves it out.
    drawn: whether to give the reconstruction term at a z drawn from q(z|x) too, by this seed, anew for every batch.
    """

    model: VAE
    features: bool = True
    regret: int = 0
    drawn: bool = False
    seed: int = 0

    @property
    def device(self) -> torch.device:
        return self.model.log_sigma.device

    def extract(self, x: Tensor) -> Features:
        with evaluating(self.model), torch.no_grad():
            terms, drawn = self.model.terms(x), None
            if self.drawn:
                generator = torch.Generator(x.device).manual_seed(self.seed)
                noise = torch.randn(terms.mean.shape, device=x.device, generator=generator)
                drawn = self.model.terms(x, noise).reconstruction
        return Features(
            features=terms.mean if self.features else None,
            reconstruction=terms.reconstruction,
            kl=terms.kl,
            drawn=drawn,
            regret=likelihood_regret(self.model, x, steps=self.regret) if self.regret else None,
        )


@dataclass(frozen=True, eq=False)
class JointExtractor:
    """What several extractors compute of the same images, side by side; features that more than one has are joined."""

    parts: tuple[FeatureExtractor, ...]

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def extract(self, x: Tensor) -> Features:
        return reduce(Features.beside, (part.extract(x) for part in self.parts))


def make_extractor(
    vae: VAE | None, encoder: nn.Module | None, kind: str, *, reads: Collection[str]
) -> FeatureExtractor:
    """The given models side by side. Beside an encoder's features, a VAE gives its terms only.

    reads: fields of :class:`Features` that will be needed; turning images and fitting codes cost several passes.
    """
    parts: list[FeatureExtractor] = []
    if encoder is not None:
        turned = kind == "rotation" and "rotation" in reads
        parts.append(RotationExtractor(encoder) if turned else ClassifierExtractor(encoder))
    if vae is not None:
        regret = REGRET_STEPS if "regret" in reads else 0
        parts.append(VAEExtractor(vae, features=encoder is None, regret=regret, drawn="drawn" in reads))
    require(bool(parts), "a detector needs a VAE or an encoder to extract features with")
    return parts[0] if len(parts) == 1 else JointExtractor(tuple(parts))


def likelihood_regret(model: VAE, x: Tensor, *, steps: int = 20, lr: float = 0.1) -> Tensor:
    """(B,) how much the bound of each image gains when q(z|x) is fitted to that image alone (Xiao et al., 2020).

    The authors fit the whole encoder; here q's mean alone, which is what the encoder answers with, so that images
    do not share parameters and a batch is fitted at once. z is that mean throughout: the variance has no say in it.
    """
    with evaluating(model), torch.enable_grad():
        with torch.no_grad():
            first = model.terms(x)
        mean = first.mean.clone().requires_grad_()
        optimizer = torch.optim.Adam([mean], lr=lr)
        best = first.elbo.clone()
        for step in range(steps + 1):
            nll = gaussian_nll(x, model.decode(mean), model.bounded_log_sigma.detach())
            loss = nll + kl_to_standard_normal(mean, first.log_var)
            best = torch.maximum(best, -loss.detach())
            if step < steps:
                (mean.grad,) = torch.autograd.grad(loss.sum(), [mean])
                optimizer.step()
    return best - first.elbo


def extract(
    extractor: FeatureExtractor,
    images: Images,
    *,
    batch_size: int | None = None,
    workers: int | None = 0,
    progress: Progress | None = None,
) -> Features:
    """Everything an extractor computes of images, on the CPU, with the labels of a split. progress: steps per batch.

    >>> from holdfast.models import build_model
    >>> network = build_model("convnet", num_classes=3, in_channels=1, image_size=8).model
    >>> found = extract(ClassifierExtractor(network), torch.rand(5, 1, 8, 8))
    >>> found.logits.shape, found.features.ndim
    (torch.Size([5, 3]), 2)
    """
    shown, parts = progress or Progress(), []
    for x in float_batches(images, extractor.device, batch_size=batch_size, workers=workers):
        parts.append(extractor.extract(x).to("cpu"))
        shown.step()
    found = Features.cat(parts)
    return found if isinstance(images, Tensor) else found.beside(Features(labels=images.labels))
