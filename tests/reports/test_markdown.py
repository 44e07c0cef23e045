"""Markdown: every number and state of the findings, and nothing that a name could smuggle in."""

from __future__ import annotations

import re

import pytest

from holdfast.reports.renderings import MOST_ROWS, markdown, markdown_text
from holdfast.types import Finding
from tests.reports.audits import audited


def test_states_numbers_gates_and_the_command_are_there() -> None:
    text = markdown([audited()])
    lines = text.splitlines()
    assert lines[0] == "## net on digits"
    assert "1 of 4 checks measured; crashed: attacks; 1 of 2 gates failed. Warning: look here" in lines
    assert "| accuracy | measured | clean accuracy | 71.2 % | 66.0 to 75.0 % | 1,642 |" in lines
    assert "| groups | not applicable | no groups |  |  |  |" in lines
    assert "| attacks | crashed | RuntimeError: cat |  |  |  |" in lines
    assert "| accuracy &gt;= 0.9 | FAILED | 0.7120 |  | 1,642 | value 0.7120 is under 0.9 |" in lines
    assert "| nll | all | 0.831 | 0.800 to 0.900 | 1,642 |" in lines
    assert "- look here" in lines
    assert "    holdfast audit net --data digits" in lines


def test_several_models_have_a_chapter_each() -> None:
    text = markdown([audited("a"), audited("b")])
    assert re.findall("^## (.*)$", text, re.M) == ["Side by side", "a on digits", "b on digits"]
    assert "| accuracy | clean accuracy | 71.2 % (66.0 to 75.0 %) | 71.2 % (66.0 to 75.0 %) |" in text


def test_long_checks_say_what_is_left_out() -> None:
    from dataclasses import replace

    many = [Finding("accuracy", "accuracy", i / 1000, 1, where={"class": str(i)}) for i in range(MOST_ROWS + 7)]
    text = markdown([replace(audited(), findings=tuple(many))])
    assert "7 more in findings.json." in text
    assert text.count("| accuracy | class ") == MOST_ROWS


@pytest.mark.parametrize(
    "name",
    [
        "</script><script>alert(1)</script>",
        "a | b | c",
        "[x](http://evil)",
        "![x](http://evil/y.png)",
        "`code`",
        "two\nlines\n## chapter",
        "\x1b[31mred",
        "@everyone",
        "https://evil.example",
        "<!-- -->",
        "&lt;b&gt;",
    ],
)
def test_hostile_names_stay_names(name: str) -> None:
    plain, hostile = markdown([audited()]).splitlines(), markdown([audited(name, cls=name)]).splitlines()
    assert len(hostile) == len(plain)
    text = "\n".join(line for line in hostile if "details" not in line)
    assert "<" not in text
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)[`\[]", text)
    assert "://" not in text
    assert "@" not in text.replace("&#64;", "")
    columns = [len(re.findall(r"(?<!\\)\|", line)) for line in plain if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in hostile if line.startswith("|")] == columns


def test_an_escape_is_not_escaped_by_the_next() -> None:
    assert markdown_text("\\|") == "\\\\\\|"
