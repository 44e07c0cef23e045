"""conflict: for sets that are made with a shortcut, refused for all others, and in records of older runs overlooked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli import parse_train
from holdfast.comparisons.plans import make_plan
from holdfast.errors import HoldfastError
from holdfast.parts import named_data
from holdfast.settings import TrainSettings, build, flatten, read_yaml
from holdfast.settings.training import CONFLICT, takes_conflict
from holdfast.settings.training_defaults import TrainingFacts, choose_defaults
from holdfast.train.folder import claim, read_settings

MADE_WITH_A_SHORTCUT = tuple(name for name in named_data() if takes_conflict(name))
OLD = {"data": "bar", "conflict": 0.05, "epochs": 3, "lr": 0.05}
"""What a run of BAR recorded while 0.05 was the default for all data."""


def written(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.parametrize("name", [*sorted(set(named_data()) - set(MADE_WITH_A_SHORTCUT)), "photos/", "made.npz"])
@pytest.mark.parametrize("conflict", [0.0, 0.05])
def test_data_that_cannot_use_it_refuses_any_value(name: str, conflict: float) -> None:
    with pytest.raises(HoldfastError, match=f"conflict {conflict}.*{name}.*leave it out"):
        build(TrainSettings, {"data": name, "conflict": conflict})
    assert build(TrainSettings, {"data": name}).data.conflict is None


def test_the_remedy_names_the_split_that_has_the_share() -> None:
    with pytest.raises(HoldfastError, match="bar-1pct.*bar-5pct"):
        build(TrainSettings, {"data": "bar", "conflict": 0.05})


@pytest.mark.parametrize("name", MADE_WITH_A_SHORTCUT)
def test_made_sets_take_it_and_have_a_default(name: str) -> None:
    given, default = (build(TrainSettings, {"data": name, **more}) for more in ({"conflict": 0.3}, {}))
    assert (given.data.conflict, given.resolved().data.conflict) == (0.3, 0.3)
    assert (default.data.conflict, default.resolved().data.conflict) == (None, CONFLICT)


def test_resolved_settings_of_other_data_have_none() -> None:
    settings = build(TrainSettings, {"data": "cifar10", "optimizer": "adam"}).resolved()
    settings = choose_defaults(settings, TrainingFacts(images=50_000)).settings
    assert (settings.data.conflict, settings.optimizer.lr) == (None, 1e-3)


def test_a_run_of_an_older_version_loads_and_goes_on(tmp_path: Path) -> None:
    record = written(tmp_path / "run.yaml", OLD | {"environment": {"holdfast": "0.1.0"}})
    settings = read_settings(record)
    assert (settings.data.name, settings.data.conflict) == ("bar", None)
    with claim(tmp_path, resume=True) as folder:
        folder.open(build(TrainSettings, {"data": "bar", "epochs": 3}).resolved(), {"data_sha256": "hash"})


def test_a_value_that_an_older_version_recorded_and_did_not_use_is_overlooked(tmp_path: Path) -> None:
    record = written(tmp_path / "run.yaml", OLD | {"conflict": 0.01, "environment": {"holdfast": "0.1.0"}})
    assert read_settings(record).data.conflict is None


def test_printed_settings_of_an_older_version_load_and_other_values_in_a_file_are_refused(tmp_path: Path) -> None:
    assert "conflict" not in read_yaml(written(tmp_path / "a.yaml", OLD))
    with pytest.raises(HoldfastError, match=r"conflict 0.01"):
        build(TrainSettings, read_yaml(written(tmp_path / "b.yaml", OLD | {"conflict": 0.01})))


def test_a_made_sets_share_is_kept_in_files(tmp_path: Path) -> None:
    values = {"data": "coloured-digits", "conflict": 0.05, "environment": {}}
    assert read_yaml(written(tmp_path / "run.yaml", values))["conflict"] == 0.05
    assert read_yaml(written(tmp_path / "run.yaml", {"conflict": 0.05}))["conflict"] == 0.05


def test_a_comparison_started_with_the_former_default_is_the_same(tmp_path: Path) -> None:
    old = build(TrainSettings, {"conflict": 0.05})
    assert flatten(old.resolved()) == flatten(TrainSettings().resolved())
    assert len(make_plan(TrainSettings(), vary={"conflict": [0.01, 0.05]}).cells) == 2


def test_a_recipes_share_does_not_go_with_other_data() -> None:
    settings, _ = parse_train(["--recipe", "biasadv/cifar10c-lff", "--data", "bffhq"])
    assert settings.data.conflict is None
    settings, _ = parse_train(["--recipe", "biasadv/cifar10c-lff", "--data=coloured-digits"])
    assert settings.data.conflict == 0.01
    with pytest.raises(HoldfastError, match=r"conflict 0.02"):
        parse_train(["--recipe", "biasadv/cifar10c-lff", "--data", "bffhq", "--conflict", "0.02"])


def test_values_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(HoldfastError, match=r"conflict must be in \[0, 1\], got 1.5"):
        build(TrainSettings, {"conflict": 1.5})
