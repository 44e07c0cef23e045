"""What checks are told on the command line reaches them; what they would refuse is refused before anything runs."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.parts import CHECKS
from holdfast.reports.findings_file import read_findings
from holdfast.settings.audit_settings import command_settings, parse_settings
from holdfast.train import fit


@pytest.mark.parametrize("check", CHECKS)
def test_every_setting_is_one_that_the_check_takes(check: str) -> None:
    assert set(command_settings(check)) <= set(inspect.signature(CHECKS[check].made).parameters)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("attacks.images=0", "attacks.images must be >= 1, got 0"),
        ("attacks.images=many", "attacks.images must be a whole number, got 'many'"),
        ("attacks.imges=3", "unknown setting 'attacks.imges'; did you mean 'attacks.images'"),
        ("atacks.images=3", "unknown check 'atacks'; did you mean 'attacks'"),
        ("accuracy.images=3", "the check accuracy has no settings"),
        ("attacks.radii=0.1,-1", "attacks.radii must be finite numbers > 0, got [0.1, -1.0]"),
        ("attacks.radii=nan", "attacks.radii must be finite numbers > 0"),
        ("attacks.presets=alps-table-7", "unknown attacks.presets 'alps-table-7'; did you mean"),
        ("attacks.norm=l3", "unknown attacks.norm 'l3'; did you mean 'l2'"),
        ("ood.scores=mspp", "unknown ood.scores 'mspp'; did you mean 'msp'"),
        ("ood.data=svhn", "ood.data must be a mapping such as {NAME: VALUE}, got 'svhn'"),
        ("corruptions.severities=1,9", "corruptions.severities must be numbers in 1..5, got [1, 9]"),
        ("slices.level=2", "slices.level must be in (0, 1), got 2"),
        ("attacks.images", "'attacks.images' sets nothing; write CHECK.SETTING=VALUE"),
        ("attacks.norm={", "cannot read the value of 'attacks.norm={'"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        parse_settings([text])
    assert says in str(error.value)
    with pytest.raises(HoldfastError, match="is set twice"):
        parse_settings(["curvature.images=3", "curvature.images=4"])


@pytest.mark.slow
def test_the_tables_of_alps_with_either_models_gradients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images made against the very model are those of its own gradients; against another they are no worse."""
    quick = {"model": "convnet", "epochs": 1, "device": "cpu", "progress": False}
    for name, seed in (("mine", 0), ("other", 1)):
        fit("digits", out=tmp_path / name, seed=seed, **quick)
    told = ["attacks.images=16", "attacks.radii=0.05", "attacks.presets=alps-table-5"]
    sets = [word for text in told for word in ("--set", text)]

    def errors(surrogate: Path) -> dict[str, float]:
        out = tmp_path / f"audit-{surrogate.name}"
        common = ["--data", "digits", "--checks", "attacks", "--device", "cpu", "--quiet", "--out", str(out)]
        words = ["audit", str(tmp_path / "mine"), *common, *sets, "--set", f"attacks.surrogate={surrogate}"]
        assert main(words) == 0
        file = read_findings(out / "findings.json")
        assert next(f for f in file.checks if f.name == "attacks").settings["radii"] == [0.05]
        assert file.model["surrogate"]["spec"] == str(surrogate)
        return {
            f.where["access"]: f.value
            for f in file.findings
            if "preset" in f.where and f.value is not None and f.n == 16
        }

    own, foreign = errors(tmp_path / "mine"), errors(tmp_path / "other")
    assert own["black-box transfer"] == own["white-box"] == foreign["white-box"]
    assert foreign["black-box transfer"] <= foreign["white-box"]
    words = ["audit", str(tmp_path / "mine"), "--data", "digits", "--set", "attacks.surrogate=nowhere"]
    assert main([*words, "--out", str(tmp_path / "bad"), "--device", "cpu"]) == 2
    assert "unknown model 'nowhere'" in capsys.readouterr().err
