"""Flags as the shared parsing code reads them, over every command: lists in both forms, help in groups, completion."""

from __future__ import annotations

import itertools
import re
import subprocess
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from holdfast.cli import COMMANDS, main
from holdfast.cli.common import options_of, parse
from holdfast.cli.compare import plan_comparison
from holdfast.cli.parser_words import joined, list_flags
from holdfast.errors import HoldfastError
from holdfast.settings.fields import ROLES

KINDS = {f"{name} {kind.__name__}": kind for name, command in COMMANDS.items() for kind in options_of(command)}
FLAGS = [(name, flag) for name, kind in KINDS.items() for flag in list_flags(kind)]


def value_of(parsed: Any, flag: str) -> Any:
    """What a flag became, in whichever group it is."""
    *groups, name = flag.removeprefix("--").replace("-", "_").split(".")
    for group in groups:
        parsed = getattr(parsed, group)
    for one in (parsed, *(getattr(parsed, f.name) for f in fields(parsed))):
        if is_dataclass(one) and not is_dataclass(found := getattr(one, name, one)):
            return found
    raise AssertionError(f"{flag} became nothing")


def needed(kind: Any) -> list[str]:
    """Words for what a command cannot do without, arguments first."""
    missing = [f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    hints = get_type_hints(kind, include_extras=True)
    named = [f.name for f in missing if any("Positional" in repr(mark) for mark in get_args(hints[f.name])[1:])]
    return [*("x" for _ in named), *(w for f in missing if f.name not in named for w in (f"--{f.name}", "x"))]


def test_list_valued_flags_are_found_in_many_commands() -> None:
    assert {("audit AuditOptions", "--against"), ("compare CompareOptions", "--vary")} <= set(FLAGS)
    assert ("train Train", "--milestones") in FLAGS
    assert len(FLAGS) >= 12


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_a_list_is_given_in_one_go_or_flag_by_flag(name: str, flag: str) -> None:
    kind, three = KINDS[name], ["1=1", "2=2", "3=3"] if list_flags(KINDS[name])[flag] else ["1", "2", "3"]
    a, b, c = three
    forms = [
        [flag, a, b, c],
        [flag, a, flag, b, flag, c],
        [flag, a, b, f"{flag}={c}"],
        [f"{flag.replace('-', '_').replace('__', '--', 1)}", a, flag, b, c],
    ]
    assert [joined(kind, form) for form in forms] == [[flag, *three]] * len(forms)
    try:
        found = [value_of(parse(kind, [*needed(kind), *form], "x", None), flag) for form in forms]
    except (HoldfastError, SystemExit):  # values that this setting does not take; the same words in every form
        return
    assert all(value == found[0] for value in found)
    assert [str(value).removesuffix(".0") for value in found[0]] == three


def test_other_flags_between_repeated_ones_keep_their_values() -> None:
    words = ["--methods", "erm", "--epochs", "7", "--methods", "lff", "--vary", "lr=0.1", "--vary", "epochs=2"]
    plan, options, _ = plan_comparison(words)
    assert (options.methods, options.vary) == (("erm", "lff"), ("lr=0.1", "epochs=2"))
    assert plan.baseline.settings.loop.epochs == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checks", "accuracy", "runs/x"], "--checks took 'accuracy' and 'runs/x'"),
        (["--data", "digits", "--group", "site", "runs/x", "--quiet"], "--group took 'site' and 'runs/x'"),
        (["--against", "runs/x"], "--against took 'runs/x'"),
        (["--against", "a", "--json", "--against", "runs/x"], "--against took 'a' and 'runs/x'"),
    ],
)
def test_a_list_that_took_the_model_says_so(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"no MODEL was given: {message}" in err
    assert "put MODEL first" in err


@pytest.mark.parametrize(
    "words",
    list(itertools.permutations([("--fail-under", "accuracy=0.1"), ("runs/none",), ("--set", "attacks.images=9")])),
)
def test_gates_and_settings_leave_the_model_alone(
    words: tuple[tuple[str, ...], ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """KEY=VALUE words are told from a model wherever they stand."""
    assert main(["audit", *(word for part in words for word in part)]) == 2
    assert "model runs/none does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "audit"])
def test_help_is_in_groups(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    titles = re.findall(r"^\W*([a-z]+) options\b", capsys.readouterr().out, flags=re.MULTILINE)
    assert {"data", "model"} < set(titles)
    assert len(titles) >= 6, titles


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_the_terminal_and_breaks_lines_only_where_they_end(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser would keep the line breaks that docstrings have in the code, and leave descriptions unwrapped."""
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(len(line) for line in lines if not line.startswith("usage:")) <= 80
    told = [line.strip("│ ") for line in lines]
    indents = [len(line) - len(line.lstrip("│ ")) for line in lines]
    for k in range(len(lines) - 1):
        if indents[k] == indents[k + 1] >= 8 and not told[k].endswith((".", ")")):  # within an option's text
            word = told[k + 1].split(" ")[0]
            assert indents[k] + len(told[k]) + 1 + len(word) > 78, f"broken: {told[k]}"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("holdfast au", {"audit"}),
        ("holdfast detect s", {"score"}),
        ("holdfast audit --fail-o", {"--fail-on", "--fail-on-warning", "--fail-over"}),
        ("holdfast compare --choose val-worst-", {"val-worst-class", "val-worst-group"}),
        ("holdfast compare --milest", {"--milestones"}),
        ("holdfast audit runs/m", set()),  # a path, which bash completes itself
    ],
)
def test_bash_completes_commands_flags_and_choices(
    typed: str, offered: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "holdfast.bash"
    script.write_text(capsys.readouterr().out)
    words = typed.split()
    lines = [f"source {script}", f"COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1} COMP_LINE={typed!r}"]
    lines += [
        f"COMP_POINT={len(typed)}",
        "_holdfast",
        'printf "%s\\n" "${COMPREPLY[@]}"',
        "echo ${#COMPREPLY[@]}",
        "complete -p holdfast",
    ]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    *found, count, registered = done.stdout.split("\n")[:-1]
    assert set(found) - {""} == offered, done.stderr
    assert int(count) == len(offered)
    assert "-o default" in registered, "paths complete too"


@pytest.mark.parametrize("command", ["train", "data check"])
def test_help_names_every_role_of_a_column(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main([*command.split(), "--help"])
    told = capsys.readouterr().out.partition("--columns")[2][:600]
    assert [role for role in ROLES if f"{role}=" not in told] == []
