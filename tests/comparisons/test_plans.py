"""Which cells a comparison has, and that bad values are refused with a hint before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.comparisons.plans import ComparisonPlan, changed, make_plan, parse_axes, read_study, study_engine
from holdfast.comparisons.recipes import read_recipe
from holdfast.errors import HoldfastError
from holdfast.methods.biasadv import LffBiasAdv
from holdfast.methods.jtt import Jtt
from holdfast.settings import TrainSettings, build, flatten
from holdfast.settings.command_settings import EngineSettings

BIASADV = build(TrainSettings, {"method": {"name": "lff+biasadv", "lam": 0.5, "radius": 0.3, "ema": 0.9}})


def labels(plan: ComparisonPlan) -> list[str]:
    return [cell.label for cell in plan.cells]


def differing(a: TrainSettings, b: TrainSettings) -> set[str]:
    def dotted(settings: TrainSettings) -> dict[str, Any]:
        flat = flatten(settings)
        method = flat.pop("method")
        return flat | (
            {f"method.{k}": v for k, v in method.items()} if isinstance(method, dict) else {"method": method}
        )

    one, other = dotted(a), dotted(b)
    return {key for key in one | other if one.get(key) != other.get(key)}


def test_vary_changes_one_setting_at_a_time_and_the_base_value_once() -> None:
    plan = make_plan(BIASADV, vary={"method.lam": [0.25, 0.5, 1], "method.radius": [0.1, 0.3]}, baseline="lff+biasadv")
    assert labels(plan) == ["lff+biasadv", *(f"lff+biasadv {w}" for w in ("lam=0.25", "lam=1", "radius=0.1"))]
    assert plan.baseline.settings == BIASADV
    assert [differing(BIASADV, cell.settings) for cell in plan.cells[1:]] == [
        {"method.lam"}, {"method.lam"}, {"method.radius"},
    ]  # fmt: skip


def test_a_grid_has_every_combination_once() -> None:
    base = build(TrainSettings, {"method": "jtt"})
    plan = make_plan(base, grid={"method.first_epochs": [1, 2, 5], "method.up": [10, 20]}, baseline="erm")
    assert plan.baseline.label == "erm"
    methods = [cell.settings.method for cell in plan.cells[1:]]
    assert all(isinstance(m, Jtt) for m in methods)
    found = [(m.first_epochs, m.up) for m in methods if isinstance(m, Jtt)]
    assert sorted(found) == [(1, 10), (1, 20), (2, 10), (2, 20), (5, 10), (5, 20)]


def test_the_baseline_differs_in_the_extension_alone() -> None:
    plan = make_plan(BIASADV)
    assert labels(plan) == ["lff", "lff+biasadv"]
    assert plan.baseline.settings.method.ema == 0.9  # type: ignore[attr-defined]
    kept = flatten(BIASADV) | {"method": 0}
    assert flatten(plan.baseline.settings) | {"method": 0} == kept


def test_settings_of_another_method_are_not_carried_over() -> None:
    """A radius of BiasAdv is not one of adversarial training."""
    plan = make_plan(BIASADV, methods=["adversarial", "lff+biasadv"])
    assert plan.cells[0].settings.method.radius == 8 / 255  # type: ignore[attr-defined]
    assert plan.cells[1].settings == BIASADV


def test_a_setting_is_varied_for_the_methods_that_have_it() -> None:
    plan = make_plan(BIASADV, methods=["erm", "lff+biasadv"], vary={"method.lam": [1.0], "lr": [0.3]})
    assert labels(plan) == ["erm", "erm lr=0.3", "lff+biasadv", "lff+biasadv lam=1.0", "lff+biasadv lr=0.3"]


def test_studies_fit_the_recipes_and_hold_the_values_of_section_b() -> None:
    study = read_study("biasadv-sensitivity")
    base = build(TrainSettings, read_recipe("biasadv/bffhq-lff+biasadv"))
    plan = make_plan(base, vary=study["vary"])
    assert plan.baseline.label == "lff"
    # 4 + 5 + 5 + 4 values; the recipe's λ, radius, S and β are among them and make one cell together.
    assert len(plan.cells) == 1 + 1 + (4 - 1) + (5 - 1) + (5 - 1) + (4 - 1)
    assert isinstance(base.method, LffBiasAdv)
    assert (base.method.lam, base.method.radius, base.method.steps, base.method.beta) == (0.5, 0.3, 5, 0.5)
    grid = read_study("jtt-grid")
    jtt = make_plan(build(TrainSettings, read_recipe("biasadv/bar-jtt")), grid=grid["grid"], baseline=grid["baseline"])
    assert len(jtt.cells) == 1 + 4 * 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"vary": {"method.lamm": [1]}}, "unknown setting 'method.lamm'; did you mean 'method.lam'"),
        ({"vary": {"epoch": [1]}}, "unknown settings key 'epoch'; did you mean 'epochs'?"),
        ({"vary": {"loop.epochs": [1]}}, "unknown setting 'loop.epochs'"),
        ({"grid": {"method.lam": [0.5, -1]}}, "lam must be >= 0, got -1"),
        ({"vary": {"method.steps": [1.5]}}, "steps must be a whole number, got 1.5"),
        ({"vary": {"method.norm": ["l3"]}}, "unknown norm 'l3'; did you mean 'l2'"),
        ({"vary": {"seed": [1, 2]}}, "--seeds"),
        ({"vary": {"lr": []}}, "lr has no values"),
        ({"methods": ["erm", "lff"], "vary": {"method.lam": [1]}}, "unknown setting 'method.lam'"),
        ({"methods": ["ermm"]}, "unknown method 'ermm'; did you mean 'erm'?"),
        ({"baseline": "lfff"}, "unknown baseline 'lfff'; did you mean 'lff'"),
    ],
)
def test_bad_values_are_named(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        make_plan(BIASADV, **asked)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=[1"])
def test_unreadable_axes_are_refused(text: str) -> None:
    with pytest.raises(HoldfastError, match="SETTING=VALUE,VALUE"):
        parse_axes([text])
    with pytest.raises(HoldfastError, match="given twice"):
        parse_axes(["lr=1", "lr=2"])


def test_changed_reaches_the_ascent_too() -> None:
    base = build(TrainSettings, {"ascent": "fsam"})
    assert changed(base, "ascent.sigma", 0.5).ascent.sigma == 0.5  # type: ignore[attr-defined]
    assert changed(base, "ascent", "none").ascent.name == "none"


@pytest.mark.parametrize(
    ("name", "rho"),
    [("sam-full", 0.2), ("sam-db", 0.2), ("sam-noise", 0.2), ("fsam", 0.2), ("fisher-fsam", 0.2), ("asam", 0.5)],
)
def test_another_ascent_keeps_the_radius_where_it_measures_the_same(name: str, rho: float) -> None:
    """F-SAM's supplement, A5.1: one radius for SAM and its variants. ASAM's is relative to the weights."""
    sam = build(TrainSettings, read_recipe("fsam/cifar100-vgg16-bn-sam"))
    assert vars(changed(sam, "ascent", name).ascent)["rho"] == rho


def test_recipes_are_compared_with_their_own_settings() -> None:
    """BiasAdv's tables give every method of a set its own numbers."""
    names = ["erm", "jtt", "lff", "erm+biasadv", "jtt+biasadv", "lff+biasadv"]
    recipes = {name: build(TrainSettings, read_recipe(f"biasadv/bffhq-{name}")) for name in names}
    plan = make_plan(TrainSettings(), recipes=recipes, baseline="lff")
    assert {cell.label: cell.settings for cell in plan.cells} == recipes
    assert plan.baseline.label == "lff"
    with pytest.raises(HoldfastError, match="unknown baseline 'mixup'"):
        make_plan(TrainSettings(), recipes=recipes, baseline="mixup")
    with pytest.raises(HoldfastError, match="give methods or recipes"):
        make_plan(TrainSettings(), recipes=recipes, methods=["erm"])


def test_the_figures_of_friendly_sam() -> None:
    """Its supplement, A5.2 and A6: the radius of CIFAR-100 for every batch; SAM and F-SAM at 0.2 and 0.4."""
    vgg, resnet = (build(TrainSettings, read_recipe(f"fsam/cifar100-{n}-sam")) for n in ("vgg16-bn", "resnet18"))
    batches, radii = read_study("fsam-batch"), read_study("fsam-radius")
    cells = [cell.settings.ascent for cell in make_plan(vgg, vary=batches["vary"]).cells]
    assert [(a.name, vars(a)["rho"], a.other_batches) for a in cells] == [
        ("sam", 0.2, 0), ("sam-large", 0.2, 1), ("sam-large", 0.2, 3), ("sam-large", 0.2, 15), ("sam-full", 0.2, 0),
    ]  # fmt: skip
    cells = [cell.settings.ascent for cell in make_plan(resnet, grid=radii["grid"]).cells]
    assert {(a.name, vars(a)["rho"]) for a in cells} == {(n, r) for n in ("sam", "fsam") for r in (0.2, 0.4)}


def test_a_study_says_how_many_threads_unless_the_user_does(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text("methods: [erm]\nthreads: 1\n")
    assert study_engine(EngineSettings(), str(study)).threads == 1
    assert study_engine(EngineSettings(threads=2, parallel="2"), str(study)) == EngineSettings(threads=2, parallel="2")
    assert study_engine(EngineSettings(), None) == EngineSettings() == study_engine(EngineSettings(), "jtt-grid")
    study.write_text("methods: [erm]\nthreads: 0\n")
    with pytest.raises(HoldfastError, match="threads must be >= 1, got 0"):
        study_engine(EngineSettings(), str(study))
