"""The nineteen corruptions once more, one image at a time, with numpy, scipy and Pillow: what the published sets did.

Images are float (H, W, 3) in [0, 1]; whatever is drawn at random is an argument. Written from the description of each
operation, apart from the package.
"""

from __future__ import annotations

import colorsys
import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

Array = npt.NDArray[Any]


def blur(image: Array, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Array:
    sigmas = (sigma, sigma, 0)[: image.ndim]
    return np.asarray(ndimage.gaussian_filter(image, sigmas, mode=mode, truncate=truncate))


def defocus(image: Array, radius: float, softness: float) -> Array:
    reach, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    at = np.arange(-reach, reach + 1)
    kernel = (at[:, None] ** 2 + at[None] ** 2 <= radius**2).astype(float)
    kernel /= kernel.sum()
    tap = np.exp(-(np.arange(-soft, soft + 1) ** 2) / (2 * softness**2))
    tap /= tap.sum()
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, tap, axis, mode="mirror")
    return np.stack([ndimage.correlate(image[..., c], kernel, mode="mirror") for c in range(image.shape[-1])], -1)


def glass(image: Array, sigma: float, reach: int, down: Array, right: Array) -> Array:
    """down, right: (times, H, W) offsets."""
    image = np.floor(blur(image, sigma) * 255 + 1e-7)
    height, width = image.shape[:2]
    for t in range(len(down)):
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                image[h, w] = image[h + down[t, h, w], w + right[t, h, w]]
    return np.clip(blur(image / 255, sigma), 0, 1)


def smear(image: Array, degrees: float, radius: int, sigma: float) -> Array:
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    out = np.zeros_like(image)
    height, width = image.shape[:2]
    for i, weight in enumerate(weights):
        dx = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        rows, columns = np.clip(np.arange(height) + dy, 0, height - 1), np.clip(np.arange(width) + dx, 0, width - 1)
        out += weight * image[rows][:, columns]
    return out


def clipped_zoom(image: Array, factor: float) -> Array:
    side = image.shape[0]
    kept = math.ceil(side / factor)
    first = (side - kept) // 2
    large = ndimage.zoom(image[first : first + kept, first : first + kept], (factor, factor, 1), order=1)
    trim = (large.shape[0] - side) // 2
    return np.asarray(large[trim : trim + side, trim : trim + side])


def zoom_blur(image: Array, factors: tuple[float, ...]) -> Array:
    return np.mean([image, *(clipped_zoom(image, f) for f in factors)], axis=0)


def snow(image: Array, layer: Array, degrees: float, s: dict[str, Any]) -> Array:
    layer = clipped_zoom(layer[..., None], s["size"])
    layer[layer < s["threshold"]] = 0
    layer = np.floor(np.clip(layer, 0, 1) * 255 + 1e-7) / 255
    layer = smear(layer, degrees, s["radius"], s["sigma"])
    grey = (image @ np.array([0.299, 0.587, 0.114]))[..., None]
    image = s["keep"] * image + (1 - s["keep"]) * np.maximum(image, grey * 1.5 + 0.5)
    return np.clip(image + layer + np.rot90(layer, 2), 0, 1)


def fog(image: Array, cloud: Array, density: float) -> Array:
    brightest = image.max()
    return np.clip((image + density * cloud[..., None]) * brightest / (brightest + density), 0, 1)


def brightness(image: Array, add: float) -> Array:
    return _in_hsv(image, lambda h, s, v: (h, s, min(max(v + add, 0), 1)))


def saturate(image: Array, factor: float, add: float) -> Array:
    return _in_hsv(image, lambda h, s, v: (h, min(max(s * factor + add, 0), 1), v))


def _in_hsv(image: Array, change: Any) -> Array:
    pixels = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*p))) for p in image.reshape(-1, 3).tolist()]
    return np.clip(np.array(pixels).reshape(image.shape), 0, 1)


def contrast(image: Array, factor: float) -> Array:
    mean = image.mean((0, 1))
    return np.clip((image - mean) * factor + mean, 0, 1)


def pixelate(image: Array, factor: float) -> Array:
    picture = to_picture(image)
    size = picture.size
    small = picture.resize((int(size[0] * factor), int(size[1] * factor)), Image.Resampling.BOX)
    return np.asarray(small.resize(size, Image.Resampling.BOX)) / 255


def jpeg(image: Array, quality: int) -> Array:
    file = io.BytesIO()
    to_picture(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


def to_picture(image: Array) -> Image.Image:
    return Image.fromarray(np.rint(image * 255).astype(np.uint8))


def affine(image: Array, moved: Array) -> Array:
    """moved: (3, 2) pixels (x, y)."""
    height, width = image.shape[:2]
    reach = min(height, width) // 3
    centre = np.array([width // 2, height // 2])
    corners = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    full = np.column_stack([corners + moved, np.ones(3)])
    back = np.linalg.solve(full, corners).T
    row, column = np.mgrid[:height, :width]
    x = back[0, 0] * column + back[0, 1] * row + back[0, 2]
    y = back[1, 0] * column + back[1, 1] * row + back[1, 2]
    return interpolate(image, y, x, "mirror")


def elastic(image: Array, moved: Array, noise: Array, sigma: float, shift: float) -> Array:
    """noise: (2, H, W) for columns and rows; sigma and shift in pixels."""
    image = affine(image, moved)
    dx, dy = (ndimage.gaussian_filter(n, sigma, mode="reflect", truncate=3) * shift for n in noise)
    row, column = np.mgrid[: image.shape[0], : image.shape[1]]
    return np.clip(interpolate(image, row + dy, column + dx, "reflect"), 0, 1)


def interpolate(image: Array, row: Array, column: Array, mode: str) -> Array:
    channels = [
        ndimage.map_coordinates(image[..., c], [row, column], order=1, mode=mode) for c in range(image.shape[2])
    ]
    return np.stack(channels, -1)


def plasma(side: int, decay: float, noise: Any) -> Array:
    """Point by point. noise(shape, amplitude): the uniform numbers of the next stage, (rows, columns)."""
    cloud = np.zeros((side, side))
    step, amplitude = side, 100.0
    while step >= 2:
        half, count = step // 2, side // step
        stages = [(half, half), (0, half), (half, 0)]
        drawn = [noise((count, count), amplitude) * amplitude for _ in stages]
        for (top, left), jitter in zip(stages, drawn, strict=True):
            reach = [(-half, -half), (-half, half), (half, -half), (half, half)]
            if (top, left) != (half, half):
                reach = [(-half, 0), (half, 0), (0, -half), (0, half)]
            for i in range(count):
                for j in range(count):
                    r, c = i * step + top, j * step + left
                    total = sum(cloud[(r + a) % side, (c + b) % side] for a, b in reach)
                    cloud[r, c] = total / 4 + jitter[i, j]
        step, amplitude = half, amplitude / decay
    cloud -= cloud.min()
    return np.asarray(cloud / cloud.max())
