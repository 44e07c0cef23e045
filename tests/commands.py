"""Whether a command is understood: its words are parsed, and no work is begun."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest

from holdfast.cli import COMMANDS, main


class BegunError(Exception):
    """Raised where a command would begin its work."""


def command_of(words: Sequence[str]) -> str:
    """The name of the command that words begin with, such as "train" or "data check"."""
    return next(known for known in COMMANDS if list(words[: len(known.split())]) == known.split())


def require_understood(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a command line, without the program's name, is refused."""
    name = command_of(words)
    if name in ("train", "compare"):
        assert main([*words, "--print-config"]) == 0
        return
    home = import_module(COMMANDS[name].__module__)
    real = home.parse

    def parse(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise BegunError

    monkeypatch.setattr(home, "parse", parse)
    with pytest.raises(BegunError):
        main(list(words))
