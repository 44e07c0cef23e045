"""Coloured MNIST by its name is what the command that makes such sets would write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.audits.checks.ood.ood_scores import knows_digits
from holdfast.data import load
from holdfast.data.biased import coloured
from holdfast.data.images import resize


@pytest.mark.parametrize(("name", "digits"), [("mnist", True), ("fashion-mnist", False)])
def test_the_grey_set_in_the_colours_of_a_shortcut(name: str, digits: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {"train": 200, "test": 100}
    images = {f"x_{part}": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for part, n in parts.items()}
    np.savez(tmp_path / f"{name}.npz", **images, **{f"y_{part}": np.arange(n) % 10 for part, n in parts.items()})
    made = load(f"coloured-{name}", root=tmp_path, conflict=0.1, data_seed=3)
    same = coloured(load(name, root=tmp_path), conflict=0.1, seed=3)
    assert made.test is not None
    assert same.test is not None
    for own, other in ((made.train, same.train), (made.test, same.test)):
        everything = torch.arange(len(own))
        assert torch.equal(own.read(everything), other.read(everything))
        assert torch.equal(own.groups, other.groups)
    assert (made.name, made.shape, made.group_attribute) == (f"coloured-{name}", (3, 28, 28), "colour")
    assert int((made.train.groups != made.train.labels).sum()) == 20
    assert knows_digits(made) == digits
    small = load(f"coloured-{name}", root=tmp_path, image_size=16)
    grey = resize(load(name, root=tmp_path).train.read(torch.arange(200)), 16)
    assert torch.equal(small.train.read(torch.arange(200)).amax(1, keepdim=True), grey), (
        "every colour is bright in a channel"
    )
