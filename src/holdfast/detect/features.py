"""What a model saw in images: computed once, shared by every score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
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
from holdfast.train.rotation import TURNS


@dataclass(frozen=True, eq=False)
class Seen:
    """One row an image; what was not computed is None.

    features: (N, D). logits: (N, K). labels: (N,) int64. reconstruction, kl: (N,) terms of a VAE's bound.
    regret: (N,) likelihood regret. rotation: (N,) how badly the turns of the image are recognised.
    """

    features: Tensor | None = None
    logits: Tensor | None = None
    labels: Tensor | None = None
    reconstruction: Tensor | None = None
    kl: Tensor | None = None
    regret: Tensor | None = None
    rotation: Tensor | None = None

    def items(self) -> Iterator[tuple[str, Tensor]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                yield field.name, value

    def __len__(self) -> int:
        return next((len(value) for _, value in self.items()), 0)

    def __getitem__(self, index: Tensor | slice) -> Seen:
        return Seen(**{name: value[index] for name, value in self.items()})

    def to(self, device: torch.device | str) -> Seen:
        return Seen(**{name: value.to(device) for name, value in self.items()})

    def beside(self, other: Seen) -> Seen:
        """Both, side by side; features that both have are joined."""
        own = dict(self.items())
        for name, value in other.items():
            own[name] = torch.cat([own[name], value], 1) if name == "features" and name in own else value
        return Seen(**own)

    @classmethod
    def cat(cls, parts: Sequence[Seen]) -> Seen:
        require(bool(parts), "there is no image to look at; give at least one")
        return cls(**{name: torch.cat([getattr(p, name) for p in parts]) for name, _ in parts[0].items()})


class Sight(Protocol):
    """Looks at float images (B, C, H, W) on its device."""

    @property
    def device(self) -> torch.device: ...
    def look(self, x: Tensor) -> Seen: ...


@dataclass(frozen=True, eq=False)
class ClassifierSight:
    """Features before the head and logits of any classifier, in one pass."""

    model: nn.Module
    precision: str = "fp32"

    @property
    def device(self) -> torch.device:
        return _device_of(self.model)

    @torch.no_grad()
    def look(self, x: Tensor) -> Seen:
        with evaluating(self.model), autocast(self.precision, x.device), penultimate(self.model) as inner:
            logits = self.model(x).float()
        return Seen(features=inner.features.float(), logits=logits)

    @property
    def head(self) -> tuple[Tensor, Tensor]:
        """(weight (K, D), bias (K,)) of the layer that makes logits."""
        layer = find_head(self.model)[1]
        weight = layer.weight.detach().flatten(1)
        return weight, weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()


@dataclass(frozen=True, eq=False)
class RotationSight:
    """Features of an encoder that was taught to tell by how much an image is turned, and how well it does."""

    model: nn.Module
    precision: str = "fp32"

    @property
    def device(self) -> torch.device:
        return _device_of(self.model)

    @torch.no_grad()
    def look(self, x: Tensor) -> Seen:
        surprises, features = [], None
        with evaluating(self.model), autocast(self.precision, x.device), penultimate(self.model) as inner:
            for turns in range(TURNS):
                logits = self.model(x.rot90(turns, (2, 3))).float()
                features = inner.features.float() if features is None else features
                surprises.append(cross_entropy(logits, torch.full((len(x),), turns, device=x.device)))
        return Seen(features=features, rotation=torch.stack(surprises).mean(0))


@dataclass(frozen=True, eq=False)
class VAESight:
    """The terms of a VAE's bound at z = μ, and μ itself as the features. Nothing is drawn at random.

    features: whether to give μ; not where a classifier's features stand beside it.
    regret: steps of gradient that likelihood regret may take for each image; 0 leaves it out.
    """

    model: VAE
    features: bool = True
    regret: int = 0

    @property
    def device(self) -> torch.device:
        return _device_of(self.model)

    def look(self, x: Tensor) -> Seen:
        with evaluating(self.model), torch.no_grad():
            terms = self.model.terms(x)
        return Seen(
            features=terms.mean if self.features else None,
            reconstruction=terms.reconstruction,
            kl=terms.kl,
            regret=likelihood_regret(self.model, x, steps=self.regret) if self.regret else None,
        )


@dataclass(frozen=True, eq=False)
class JointSight:
    """Several sights side by side."""

    parts: tuple[Sight, ...]

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def look(self, x: Tensor) -> Seen:
        seen = self.parts[0].look(x)
        for part in self.parts[1:]:
            seen = seen.beside(part.look(x))
        return seen


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
        for _ in range(steps):
            loss = -_bound(model, x, mean, first.log_var)
            (gradient,) = torch.autograd.grad(loss.sum(), [mean])
            best = torch.maximum(best, -loss.detach())
            mean.grad = gradient
            optimizer.step()
        with torch.no_grad():
            best = torch.maximum(best, _bound(model, x, mean, first.log_var))
    return best - first.elbo


def _bound(model: VAE, x: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    nll = gaussian_nll(x, model.decode(mean), model.bounded_log_sigma.detach())
    return -(nll + kl_to_standard_normal(mean, log_var))


def look_at(sight: Sight, images: Images, *, batch_size: int = 256, workers: int = 0) -> Seen:
    """Everything a sight sees in images, on the CPU, with the labels of a split."""
    parts = [
        sight.look(x).to("cpu") for x in float_batches(images, sight.device, batch_size=batch_size, workers=workers)
    ]
    seen = Seen.cat(parts)
    return seen if isinstance(images, Tensor) else seen.beside(Seen(labels=images.labels))


def _device_of(model: nn.Module) -> torch.device:
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
