"""``holdfast completion``: a script with which the shell completes commands, flags and choices."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from holdfast.cli.common import options_of

Commands = Mapping[str, Callable[[list[str]], int]]


PATHS_IN_BASH = """
_holdfast() {
  _tyro_holdfast "$@"
  if [[ ${#COMPREPLY[@]} -eq 1 && -z "${COMPREPLY[0]}" ]]; then COMPREPLY=(); fi
}
complete -o default -o bashdefault -F _holdfast holdfast
"""
"""The parser's script offers an empty word where no flag or choice fits; a path is completed there instead."""


@dataclass(frozen=True)
class CompletionOptions:
    """For which shell."""

    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="{bash,zsh,fish}")]
    """The shell that is to complete."""


def completion_script(shell: str, commands: Commands) -> str:
    """The script for a shell, from what the commands declare."""
    config = (OmitArgPrefixes, OmitSubcommandPrefixes, FlagCreatePairsOff)
    script = io.StringIO()
    with redirect_stdout(script), suppress(SystemExit):
        words = ["--tyro-write-completion", shell, "-"]
        tyro.cli(_any_of(commands), prog="holdfast", args=words, config=config)
    return script.getvalue() + (PATHS_IN_BASH if shell == "bash" else "")


def _any_of(commands: Commands) -> Any:
    """One type for all commands: those of a family are a choice of their own."""
    families: dict[str, dict[str, Callable[[list[str]], int]]] = {}
    for name, command in commands.items():
        family, _, rest = name.partition(" ")
        families.setdefault(family, {})[rest] = command
    kinds = []
    for name, own in families.items():
        kind = _options(name, own[""]) if "" in own else make_dataclass(name, [("command", _any_of(own))])
        kinds.append(Annotated[kind, subcommand(name)])
    return Union[tuple(kinds)]  # noqa: UP007


def _options(name: str, command: Callable[[list[str]], int]) -> Any:
    """The options of a command; of one that takes those of another too, all of them, each once."""
    first, *others = options_of(command)
    if not others:
        return first
    known = {f.name for f in fields(first)}
    more = [(f.name, f.type, field(default=f.default, default_factory=f.default_factory)) for other in others
            for f in fields(other) if f.name not in known]  # fmt: skip
    return make_dataclass(name, more, bases=(first,), frozen=True)
