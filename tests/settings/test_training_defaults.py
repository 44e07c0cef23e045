"""What follows from data and model where settings leave it open: the table, and that what is given stays."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast.comparisons.recipes import read_recipe, recipe_names
from holdfast.settings import TrainSettings, build, flatten
from holdfast.settings.training_defaults import (
    BATCHES,
    CHOSEN_KEYS,
    ROWS,
    SGD_FROM,
    TrainingFacts,
    choose_defaults,
    open_settings,
)

SMALL = TrainingFacts(images=1_200, weights=95_000)
LARGE = TrainingFacts(images=50_000, weights=11_000_000)


def values(facts: TrainingFacts, **given: Any) -> dict[str, Any]:
    flat = flatten(choose_defaults(build(TrainSettings, given), facts).settings)
    return {key: flat[key] for key in CHOSEN_KEYS}


def steps(facts: TrainingFacts, **given: Any) -> int:
    chosen = values(facts, **given)
    return chosen["epochs"] * math.ceil(facts.images / chosen["batch_size"])


OPEN = ("recommended/few-labels", "recommended/shortcut")
"""Recipes for any data, which leave to the data what follows from it."""


@pytest.mark.parametrize("name", OPEN)
def test_a_recipe_for_any_data_leaves_the_length_to_it(name: str) -> None:
    given = build(TrainSettings, read_recipe(name))
    assert open_settings(given) == list(CHOSEN_KEYS)
    for facts in (SMALL, LARGE):
        assert values(facts, **read_recipe(name)) == values(facts)


@pytest.mark.parametrize("name", sorted({*recipe_names()} - {*OPEN}))
def test_recipes_keep_their_own_values(name: str) -> None:
    """To the last bit, on any data: a recipe leaves nothing open; without a warm-up of its own there is none."""
    given = build(TrainSettings, read_recipe(name))
    assert open_settings(given) == []
    assert given.resolved().schedule.warmup == read_recipe(name).get("warmup", 0.0)
    for facts in (SMALL, LARGE, TrainingFacts(300, "transformer", 86_000_000, pretrained=True)):
        chosen = choose_defaults(given, facts)
        assert chosen.reasons == {}
        assert str(chosen) == ""
        assert chosen.recorded() == {}
        assert flatten(chosen.settings) == flatten(given.resolved())


def test_whatever_is_given_is_kept() -> None:
    own = {"optimizer": "adam", "lr": 0.7, "batch_size": 3, "epochs": 11, "warmup": 0.5}
    for count in range(32):
        given = {key: value for bit, (key, value) in enumerate(own.items()) if count >> bit & 1}
        for facts in (SMALL, LARGE):
            chosen = choose_defaults(build(TrainSettings, given), facts)
            flat = flatten(chosen.settings)
            assert {key: flat[key] for key in given} == given
            assert not set(chosen.reasons) & set(given)
            assert open_settings(chosen.settings) == []
            rest = {key: value for key, value in flat.items() if key not in CHOSEN_KEYS}
            assert rest == {
                key: value for key, value in flatten(TrainSettings().resolved()).items() if key not in CHOSEN_KEYS
            }


def test_choosing_twice_changes_nothing() -> None:
    once = choose_defaults(TrainSettings(), SMALL).settings
    assert choose_defaults(once, LARGE).settings == once


def test_few_images_get_enough_steps_and_many_are_not_shown_for_ever() -> None:
    """The defect: 30 epochs of SGD were 300 steps on 1,200 digits."""
    assert steps(SMALL) >= 3_000
    assert values(SMALL)["optimizer"] == "adamw"
    assert steps(SMALL, batch_size=256) >= 1_000, "of a large batch too, as far as the most epochs allow"
    assert values(LARGE)["optimizer"] == "sgd"
    assert values(LARGE)["epochs"] == values(TrainingFacts(images=1_000_000))["epochs"] == 30
    assert values(TrainingFacts(images=20))["epochs"] == 200


@pytest.mark.parametrize(
    ("network", "pretrained", "frozen"), list(product(["convolutional", "transformer"], *[[False, True]] * 2))
)
def test_the_bounds_hold_for_every_kind_of_training(network: Any, pretrained: bool, frozen: bool) -> None:
    """Enough steps or the most epochs; more images never mean a smaller batch, nor, with the same one, more epochs."""
    before: dict[str, Any] = {}
    for images in (2, 50, 400, 1_999, 2_000, 9_999, 10_000, 19_999, 20_000, 1_300_000):
        facts = TrainingFacts(images, network, 5_000_000, pretrained=pretrained, frozen=frozen)
        now, row = values(facts), ROWS[facts.row]
        assert 1e-5 <= now["lr"] <= 0.2
        assert 0 <= now["warmup"] < now["epochs"]
        assert row.epochs[0] <= now["epochs"] <= row.epochs[1]
        assert steps(facts) >= row.steps or now["epochs"] == row.epochs[1]
        if before:
            assert now["batch_size"] >= before["batch_size"]
            assert now["epochs"] <= before["epochs"] or now["batch_size"] > before["batch_size"]
        before = now


def test_a_pretrained_network_learns_no_faster_and_shorter_than_a_fresh_one() -> None:
    for network in ("convolutional", "transformer"):
        fresh, tuned = (TrainingFacts(5_000, network, pretrained=p) for p in (False, True))  # type: ignore[arg-type]
        for optimizer in ("sgd", "adam", "adamw"):
            assert values(tuned, optimizer=optimizer)["lr"] <= values(fresh, optimizer=optimizer)["lr"]
        assert values(tuned, optimizer="sgd")["lr"] < values(fresh, optimizer="sgd")["lr"]
        assert values(tuned)["epochs"] < values(fresh)["epochs"]
    convolutional, transformer = (values(TrainingFacts(50_000, kind)) for kind in ("convolutional", "transformer"))  # type: ignore[arg-type]
    assert (convolutional["optimizer"], transformer["optimizer"]) == ("sgd", "adamw")


def test_size_and_normalisation_change_the_rate() -> None:
    def rate(**facts: Any) -> float:
        return float(values(TrainingFacts(5_000, **facts))["lr"])

    assert rate(weights=900_000) == pytest.approx(3 * rate(weights=1_000_000))
    assert rate(normalised=False) == pytest.approx(rate() / 3, rel=0.02)


@pytest.mark.parametrize(("lr", "optimizer"), [(0.1, "sgd"), (0.01, "sgd"), (0.003, "adamw"), (1e-4, "adamw")])
@pytest.mark.parametrize("facts", [SMALL, LARGE])
def test_a_rate_alone_gets_the_optimiser_it_is_usual_for(lr: float, optimizer: str, facts: TrainingFacts) -> None:
    assert values(facts, lr=lr)["optimizer"] == optimizer
    assert values(facts, lr=lr)["warmup"] == 0


def test_a_rate_grows_with_a_given_batch_size() -> None:
    def ratio(optimizer: str, batch_size: int) -> float:
        usual, other = (values(LARGE, optimizer=optimizer, batch_size=size)["lr"] for size in (128, batch_size))
        return float(other / usual)

    assert ratio("sgd", 256) == 2
    assert ratio("sgd", 32) == 1 / 4
    assert ratio("adamw", 512) == 2
    assert ratio("adam", 32) == 1 / 2
    assert ratio("sgd", 128 * 64) == 8, "and no further"


def test_every_value_comes_with_its_reason() -> None:
    chosen = choose_defaults(build(TrainSettings, {"epochs": 7}), SMALL)
    assert list(chosen.values) == list(chosen.reasons) == ["optimizer", "lr", "batch_size", "warmup"]
    assert all(chosen.reasons.values())
    assert "1,200 training images" in str(chosen)
    assert "95,000 weights" in str(chosen)
    assert f"lr {chosen.values['lr']:g}" in str(chosen)
    assert any(line.startswith("--batch-size 32: ") for line in chosen.lines())


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/defaults.md").read_text(encoding="utf-8")
    for name, row in ROWS.items():
        rates = f"{row.sgd:g} | {row.adamw:.5f}".rstrip("0")
        low, high = row.epochs
        assert f"| {name} | {rates} | {row.steps:,} | {low} to {high} | {row.warmup:.0%} |".replace("%", " %") in page
    for below, size in BATCHES[:-1]:
        assert f"{size} below {below:,}" in page
    assert f"on {SGD_FROM:,} images or more" in page
