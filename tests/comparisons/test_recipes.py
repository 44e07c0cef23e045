"""Recipes hold what the papers say, and every one of them is a valid setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.ascents import Fsam, NoAscent, Sam
from holdfast.comparisons.recipes import find_recipes, read_recipe, recipe_names
from holdfast.errors import HoldfastError
from holdfast.settings import TrainSettings, build


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_a_valid_setting(name: str) -> None:
    build(TrainSettings, read_recipe(name))


@pytest.mark.parametrize(("data", "rho"), [("cifar10", 0.1), ("cifar100", 0.2)])
@pytest.mark.parametrize("net", ["resnet18", "vgg16-bn", "wrn-28-10"])
def test_friendly_sam_and_its_siblings(data: str, rho: float, net: str) -> None:
    ours, sam, sgd = (build(TrainSettings, read_recipe(f"fsam/{data}-{net}{end}")) for end in ("", "-sam", "-sgd"))
    assert ours.data.name == sam.data.name == sgd.data.name == data
    assert ours.model.name == sam.model.name == sgd.model.name == f"cifar-{net}"
    assert ours.ascent == Fsam(rho=rho, sigma=1.0, lmbda=0.9)
    assert sam.ascent == Sam(rho=rho)
    assert sgd.ascent == NoAscent()
    assert [s.optimizer.weight_decay for s in (ours, sam, sgd)] == [1e-3, 1e-3, 5e-4]
    assert ours.loop.epochs == 200
    assert (ours.augment.cutout, ours.augment.cutout_p) == (16, 0.5)


def test_a_misspelled_recipe_gets_a_hint() -> None:
    with pytest.raises(HoldfastError, match="unknown recipe 'fsam/cifar10-resnet81'; did you mean"):
        read_recipe("fsam/cifar10-resnet81")


def test_what_is_read_can_be_changed() -> None:
    read_recipe("fsam/cifar10-resnet18")["lr"] = 3
    assert read_recipe("fsam/cifar10-resnet18")["lr"] == 0.05


def test_sets_and_augmentation_are_those_of_the_papers() -> None:
    """BiasAdv D.1 moves 17 test images of BAR into training; ALPS 5.1 crops and flips all its sets."""
    assert {read_recipe(name)["data"] for name in find_recipes(["biasadv/bar-*"])} == {"bar-1pct"}
    alps = [read_recipe(name) for name in find_recipes(["alps/*"])]
    assert {recipe["flip"] for recipe in alps} == {True}
    assert min(recipe["crop"] for recipe in alps) > 0


def test_the_favoured_reading_of_biasadv_differs_from_the_papers_numbers_where_it_says() -> None:
    letter, favoured = (
        build(TrainSettings, read_recipe(f"biasadv/cifar10c-lff+biasadv{end}")) for end in ("", "-favoured")
    )
    assert favoured == replace(letter, method=replace(letter.method, radius=2.0, running="clean"))
