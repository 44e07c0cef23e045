"""A check is taken up again only where nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.audits.audit_folder import redaction, without_pictures
from holdfast.audits.measuring import CheckOutcome as Outcome
from holdfast.audits.measuring import read_check, write_check
from holdfast.audits.shard_rows import hash_of
from holdfast.types import Finding, Note

OUTCOME = Outcome(
    "accuracy",
    "measured",
    settings={"images": 9},
    seconds=1.25,
    notes=(Note("x", "y", "z"),),
    findings=(Finding("accuracy", "accuracy", 1 / 3, 9, 0.1, 0.6),),
)


def test_a_check_comes_back_whole_under_its_key_and_not_under_another(tmp_path: Path) -> None:
    write_check(tmp_path, OUTCOME, "key")
    assert read_check(tmp_path, "accuracy", "key") == OUTCOME
    assert read_check(tmp_path, "accuracy", "other") is None
    assert read_check(tmp_path, "groups", "key") is None


def test_a_crash_is_tried_again(tmp_path: Path) -> None:
    write_check(tmp_path, Outcome("accuracy", "crashed", reason="boom"), "key")
    assert read_check(tmp_path, "accuracy", "key") is None


@pytest.mark.parametrize("keep", [0, 1, 60, -5])
def test_a_truncated_check_is_measured_again(tmp_path: Path, keep: int) -> None:
    write_check(tmp_path, OUTCOME, "key")
    path = tmp_path / "accuracy.json"
    path.write_bytes(path.read_bytes()[:keep])
    assert read_check(tmp_path, "accuracy", "key") is None


def test_keys_depend_on_values_and_not_on_their_order() -> None:
    assert hash_of({"a": 1, "b": [2]}) == hash_of({"b": [2], "a": 1}) != hash_of({"a": 1, "b": [3]})


def test_a_picture_takes_along_what_describes_it() -> None:
    picture = {"png": "iVBORw0KGgoAAA", "label": "cat"}
    found = Finding(
        "accuracy", "samples", None, 0, evidence={"pictures": [picture], "curve": [1, 2], "grid": "iVBORw0KGgo"}
    )
    assert without_pictures(found).evidence == {"pictures": [], "curve": [1, 2]}


def test_redaction_leaves_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    hide = redaction([tmp_path / "data"])
    assert hide({"spec": f"{tmp_path}/data/x.png", "n": 3}) == {"spec": "…/x.png", "n": 3}
