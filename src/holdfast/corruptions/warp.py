"""Images read off at other places than their pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.corruptions.linear import Border


def pixel_grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """(row (H, 1), column (1, W)) of every pixel of images (B, C, H, W)."""
    height, width = x.shape[-2:]
    row = torch.arange(height, device=x.device, dtype=x.dtype)[:, None]
    return row, torch.arange(width, device=x.device, dtype=x.dtype)[None]


def sample(x: Tensor, row: Tensor, column: Tensor, *, border: Border) -> Tensor:
    """Images (B, C, H, W) at places (B, H', W') given in pixels, by bilinear interpolation."""
    height, width = x.shape[-2:]
    through_centres = border == "mirror"
    places = torch.stack(
        [
            2 * at / max(size - 1, 1) - 1 if through_centres else (2 * at + 1) / size - 1
            for at, size in ((column, width), (row, height))
        ],
        dim=-1,
    )
    padding = "border" if border == "edge" else "reflection"
    return F.grid_sample(x, places, mode="bilinear", padding_mode=padding, align_corners=through_centres)


def solve_affine(source: Tensor, target: Tensor) -> Tensor:
    """(B, 2, 3): the affine map that takes three points (B, 3, 2) to three others."""
    ones = torch.ones_like(source[..., :1])
    solved: Tensor = torch.linalg.solve(torch.cat([source, ones], dim=-1), target)
    return solved.mT


def solve_perspective(source: Tensor, target: Tensor) -> Tensor:
    """(B, 8): a, …, h of (ax+by+c, dx+ey+f) / (gx+hy+1), which takes four points (B, 4, 2) to four others."""
    x, y = source.unbind(-1)
    u, v = target.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    upper = torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], dim=-1)
    lower = torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], dim=-1)
    solved: Tensor = torch.linalg.solve(torch.cat([upper, lower], dim=1), torch.cat([u, v], dim=1))
    return solved
