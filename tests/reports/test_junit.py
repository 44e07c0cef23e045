"""JUnit XML: gates and checks as test cases, in the words of the findings."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from holdfast.reports.renderings import junit
from tests.reports.audits import audited


def suite(text: str) -> ElementTree.Element:
    found = ElementTree.fromstring(text.encode("utf-8")).find("testsuite")
    assert found is not None
    return found


def case(text: str, name: str) -> ElementTree.Element:
    (found,) = [c for c in suite(text).iter("testcase") if c.attrib["name"] == name]
    return found


def test_counts_are_those_of_the_cases() -> None:
    made = suite(junit([audited()]))
    assert made.attrib == {"name": "net on digits", "tests": "7", "failures": "1", "errors": "1", "skipped": "3"}
    for kind, key in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped"), ("testcase", "tests")):
        assert len(list(made.iter(kind))) == int(made.attrib[key])


def test_a_failed_gate_is_a_failed_case_and_one_that_holds_is_not() -> None:
    text = junit([audited()])
    failure = case(text, "accuracy >= 0.9").find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "value 0.7120 is under 0.9"
    assert list(case(text, "accuracy >= 0.7")) == []


def test_a_crashed_check_is_an_error_and_others_are_skipped_with_their_reason() -> None:
    text = junit([audited()])
    error, skipped = case(text, "attacks").find("error"), case(text, "groups").find("skipped")
    assert error is not None
    assert skipped is not None
    assert error.attrib["message"] == "RuntimeError: cat"
    assert skipped.attrib["message"] == "not applicable: no groups"


def test_numbers_are_properties() -> None:
    made = {p.attrib["name"]: p.attrib["value"] for p in case(junit([audited()]), "accuracy").iter("property")}
    assert made == {
        "accuracy, all": "71.2 % (66.0 to 75.0 %), n 1,642",
        "accuracy, class cat": "50.0 % (20.0 to 80.0 %), n 10",
        "nll, all": "0.831 (0.800 to 0.900), n 1,642",
    }


@pytest.mark.parametrize(
    "name", ["</testcase><x/>", '"quotes"', "\x00null", "\ufffe", "\ud800", "\x1b[31m", "a\nb", "]]>"]
)
def test_hostile_names_leave_the_file_well_formed(name: str) -> None:
    plain, hostile = junit([audited()]), junit([audited(name, cls=name)])
    tags = [element.tag for element in ElementTree.fromstring(plain.encode("utf-8")).iter()]
    assert [element.tag for element in ElementTree.fromstring(hostile.encode("utf-8")).iter()] == tags
