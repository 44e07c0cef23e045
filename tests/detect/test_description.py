"""The map: projections against scikit-learn, probes on clusters whose separation is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from holdfast.detect.description import describe_findings, describe_images, probe, project
from holdfast.errors import HoldfastError
from holdfast.models.vae import VAE, VAESettings


def clusters(apart: float, n: int = 150, k: int = 3, d: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % k
    return torch.randn(n, d, generator=generator) + apart * torch.eye(d)[labels], labels


def test_probes_know_far_clusters_from_none() -> None:
    far, none = probe(*clusters(30.0)), probe(*clusters(0.0, n=600))
    assert far["linear"] == far["knn"] == 1.0
    assert far["silhouette"] > 0.85
    assert none["linear"] == pytest.approx(1 / 3, abs=0.1)
    assert none["knn"] == pytest.approx(1 / 3, abs=0.1)
    assert none["silhouette"] == pytest.approx(0, abs=0.05)


def test_pca_is_that_of_scikit_learn_up_to_sign() -> None:
    z, _ = clusters(4.0)
    truth = PCA(2).fit_transform(z.numpy())
    np.testing.assert_allclose(np.abs(project(z, how="pca").numpy()), np.abs(truth), atol=1e-3)


def test_a_map_of_two_dimensions_is_the_latent_itself() -> None:
    z = clusters(1.0, d=5)[0][:, :2]
    assert torch.equal(project(z), z)
    assert torch.equal(project(z, how="tsne", seed=1), project(z, how="tsne", seed=1))
    assert project(z[:, :1]).shape == (150, 2)


def test_pictures_are_what_the_decoder_draws() -> None:
    vae = VAE(VAESettings((1, 8, 8), latent=3))
    images = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    made = describe_images(vae, images, labels=torch.arange(30) % 3, steps=5)
    assert made.z.shape == (30, 3)
    assert torch.equal(made.z, describe_images(vae, images).z)  # the mean: nothing is drawn at random
    shapes = {name: tuple(grid.shape) for name, grid in made.galleries.items()}
    assert shapes == {
        "reconstructions": (2, 5, 1, 8, 8), "traversals": (3, 5, 1, 8, 8), "interpolations": (2, 5, 1, 8, 8)
    }  # fmt: skip
    assert torch.equal(made.galleries["reconstructions"][0], (images[:5] * 255).round().to(torch.uint8))
    with torch.no_grad():
        end = vae.decode(made.z[:1])
    torch.testing.assert_close(made.galleries["interpolations"][0, 0].float(), (end[0] * 255).round(), atol=1, rtol=0)


def test_a_class_of_two_images_is_on_the_map_and_left_out_of_the_numbers() -> None:
    vae = VAE(VAESettings((1, 8, 8), latent=2))
    images = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1] * 15 + [2, 2])
    made = describe_images(vae, images, labels=labels)
    assert {name: value for name, (value, _) in made.figures.items()} == probe(made.z[:30], labels[:30])
    found = {f.name: f for f in describe_findings(made, labels, ("cat", "dog", "eel"))}
    assert found["map"].n == 32
    assert found["silhouette"].n == 30
    assert found["linear"].n == found["knn"].n == 10, "a third is held out to try the probes on"
    assert (found["linear"].value or 0) * 10 == pytest.approx(round((found["linear"].value or 0) * 10))
    assert found["silhouette"].settings["too_few_to_probe"] == ["eel"]
    alone = describe_images(vae, images[-17:], labels=labels[-17:] // 2 * 2)  # fifteen of one class, two of another
    assert alone.figures == {}
    assert "too_few_to_probe" not in describe_findings(describe_images(vae, images), None, ())[0].settings


def test_bad_input_is_refused() -> None:
    z, labels = clusters(1.0)
    with pytest.raises(HoldfastError, match="unknown projection 'tsnee'; did you mean 'tsne'"):
        project(z, how="tsnee")
    with pytest.raises(HoldfastError, match="only with 2 dimensions, it has 5"):
        project(z, how="latent")
    with pytest.raises(HoldfastError, match="at least two classes"):
        probe(z, torch.zeros_like(labels))
    with pytest.raises(HoldfastError, match="at least 3 samples of every class, one has 1; leave it out"):
        probe(z, torch.cat([labels[:-1], labels.max()[None] + 1]))
    with pytest.raises(HoldfastError, match="no image to describe"):
        describe_images(VAE(VAESettings((1, 8, 8))), torch.zeros(0, 1, 8, 8))
