"""Grad-CAM maps as pictures, and how concentrated they are: what the check ``saliency`` measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import rankdata  # type: ignore[import-untyped]
from torch import Tensor, nn

from holdfast.audits.checks.saliency.grad_cam import default_layer, grad_cam
from holdfast.audits.subject import Subject, draw
from holdfast.augment.basic import to_float
from holdfast.data.images import png
from holdfast.data.splits import Split
from holdfast.errors import HoldfastError
from holdfast.metrics import mean_interval
from holdfast.module_state import evaluating
from holdfast.types import Finding

if TYPE_CHECKING:
    from holdfast.audits.checks.saliency import Saliency

SHARED = 10
MISTAKES = 6
BATCH = 64
SIDE = 96
"""Small pictures are enlarged to about this side, or their maps could not be seen."""


def saliency_maps(subject: Subject, told: Saliency) -> tuple[Finding, ...]:
    others, split, device = told.others, subject.split, subject.device
    drawn = draw(len(split), told.images, subject.seed, "saliency/images")
    try:
        layer = default_layer(subject.model, to_float(split.read(drawn[:1]).to(device)))
    except HoldfastError as reason:  # no layer keeps a plane: nothing to measure, and why
        return (Finding("saliency", "saliency_half_area", None, 0, evidence={"reason": str(reason)}),)
    found_at = next(name for name, module in subject.model.named_modules() if module is layer)
    settings = {"map": "Grad-CAM", "layer": found_at, "images": len(drawn), "seed": subject.seed}
    maps = maps_of(subject, subject.model, drawn, subject.predictions.logits.argmax(1)[drawn], layer)
    found = [measured(name, values, settings) for name, values in concentration(maps).items()]
    for side, inside in subject.sides.items():
        half = concentration(maps[inside[drawn]])["saliency_half_area"]
        found.append(measured("saliency_half_area", half, settings, {"bias": side}))
    labels = split.labels[drawn]
    own = maps_of(subject, subject.model, drawn, labels, layer) if others else maps
    for name, other in (others or {}).items():
        theirs = maps_of(subject, other.to(device), drawn, labels)
        found.append(measured("saliency_agreement", rank_correlation(own, theirs), settings, {"model": name}))
    models = {"": subject.model, **(others or {})}
    evidence = {"maps": pictures(subject, models), "models": list(models)}
    return (*found, Finding("saliency", "maps", None, 0, settings=settings, evidence=evidence))


def concentration(maps: Tensor) -> dict[str, Tensor]:
    """Of each map (N, H, W) with any energy: the smallest share of the picture that holds half of it, and its entropy.

    saliency_half_area: 0.5 for a map that is the same everywhere. saliency_entropy: over that of such a
    map, so in [0, 1].

    >>> flat = concentration(torch.ones(1, 4, 4))
    >>> flat["saliency_half_area"], flat["saliency_entropy"]
    (tensor([0.5000]), tensor([1.]))
    """
    flat = maps.flatten(1)
    share = flat[flat.sum(1) > 0].double()
    share = share / share.sum(1, keepdim=True)
    sums = share.sort(1, descending=True).values.cumsum(1)
    places = max(share.shape[1], 2)
    # 1e-9: half of the energy stays half when rounding has taken a little of it
    half = ((sums < 0.5 - 1e-9).sum(1) + 1) / share.shape[1]
    entropy = -torch.xlogy(share, share).sum(1) / math.log(places)
    return {"saliency_half_area": half.float(), "saliency_entropy": entropy.float()}


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """(M,) Spearman's correlation of maps (N, H, W) with their partners, for pairs of which neither is constant."""
    flat = [maps.flatten(1).cpu().double() for maps in (a, b)]
    varied = torch.stack([(m.amax(1) > m.amin(1)) for m in flat]).all(0)
    first, second = (average_ranks(m[varied]) for m in flat)
    first, second = (r - r.mean(1, keepdim=True) for r in (first, second))
    return (first * second).sum(1) / (first.square().sum(1) * second.square().sum(1)).sqrt()


def average_ranks(values: Tensor) -> Tensor:
    """(N, D) ranks along a row; equal values share the mean of their ranks.

    >>> average_ranks(torch.tensor([[3.0, 1.0, 3.0]]))
    tensor([[1.5000, 0.0000, 1.5000]], dtype=torch.float64)
    """
    return torch.from_numpy(rankdata(values.numpy(), axis=1)) - 1


def measured(name: str, values: Tensor, settings: Mapping[str, Any], where: Mapping[str, str] | None = None) -> Finding:
    """A mean with its interval; empty where no map had anything to measure."""
    if len(values) == 0:
        return Finding("saliency", name, None, 0, where=where or {}, settings=settings)
    mean, *ends = mean_interval(values)
    low, high = ends if math.isfinite(ends[0]) else (None, None)
    return Finding("saliency", name, mean, len(values), low, high, where or {}, settings)


def pictures(subject: Subject, models: Mapping[str, nn.Module]) -> list[dict[str, Any]]:
    """Pictures with an overlay of each model's map of its own prediction.

    First those that every model on this data is shown: by class, the first that contradicts the shortcut, or the first
    at all. Then the surest mistakes of the subject.
    """
    seen, split, data = subject.predictions, subject.split, subject.data
    shared = by_class(split, subject.sides.get("conflicting"))
    sure = torch.where(seen.correct, -1.0, seen.logits.softmax(1).amax(1))
    mistakes = [i for i in sure.argsort(descending=True, stable=True).tolist() if sure[i] > 0 and i not in shared]
    chosen = torch.tensor([*shared, *mistakes[:MISTAKES]])
    images = split.read(chosen)
    columns = [looks(model, images, device=subject.device, classes=data.classes) for model in models.values()]
    return [
        {
            "png": png(image),
            "label": data.classes[split.labels[i]],
            "group": data.group_names[split.groups[i]] if data.group_names and split.groups[i] >= 0 else None,
            "position": i,
            "source": split.describe(i),
            "shared": row < len(shared),
            "looks": [column[row] for column in columns],
        }
        for row, (i, image) in enumerate(zip(chosen.tolist(), images, strict=True))
    ]


def by_class(split: Split, wanted: Tensor | None) -> list[int]:
    """A picture of each of the first classes, from those wanted where there is one."""
    chosen = []
    for label in sorted(set(split.labels.tolist()))[:SHARED]:
        own = (split.labels == label).nonzero().flatten()
        best = own if wanted is None or not bool(wanted[own].any()) else own[wanted[own]]
        chosen.append(int(best[0]))
    return chosen


def looks(model: nn.Module, images: Tensor, *, device: torch.device, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """What a model says of uint8 images (N, C, H, W), how sure it is, and an overlay of its map."""
    x = to_float(images.to(device))
    with evaluating(model), torch.no_grad():
        logits = model(x).float().cpu()
    maps = grad_cam(model, x).cpu()
    confidence, said = logits.softmax(1).max(1)
    return [
        {"overlay": overlay(image, heat), "prediction": classes[k], "confidence": c}
        for image, heat, k, c in zip(images, maps, said.tolist(), confidence.tolist(), strict=True)
    ]


def maps_of(
    subject: Subject, model: nn.Module, positions: Tensor, target: Tensor, layer: nn.Module | None = None
) -> Tensor:
    """(N, H, W) maps of a model for the test images at these positions, on the CPU."""
    made = []
    for index, classes in zip(torch.split(positions, BATCH), torch.split(target, BATCH), strict=True):
        x = to_float(subject.split.read(index).to(subject.device))
        made.append(grad_cam(model, x, classes.to(subject.device), layer=layer).cpu())
    return torch.cat(made)


def overlay(image: Tensor, heat: Tensor) -> str:
    """A uint8 image (C, H, W) under its map (H, W) in [0, 1], as base64 PNG. Where the map is high, it is bright."""
    import matplotlib  # slow to import

    factor = max(1, round(SIDE / max(image.shape[1:])))
    size = [factor * n for n in image.shape[1:]]
    grey = image.float().amax(0)[None, None] / 255  # the largest channel: blue strokes are strokes too
    enlarged = F.interpolate(grey, size=size, mode="nearest")[0, 0].numpy()
    smooth = F.interpolate(heat[None, None].float(), size=size, mode="bilinear", align_corners=False)[0, 0].numpy()
    # the picture keeps its strokes in grey: colours would be mistaken for the map's
    blended = 0.6 * matplotlib.colormaps["inferno"](smooth)[..., :3] + 0.4 * enlarged[..., None]
    coarse = (255 * blended.clip(0, 1)).astype(np.uint8) & 0xF8  # no eye sees more in a map, and files halve
    return png(torch.from_numpy(coarse).permute(2, 0, 1), longest=SIDE)
