"""The command line: arguments to calls. Nothing heavy is imported before the arguments are known to be right."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout

from holdfast import __version__
from holdfast.cli.audit import audit
from holdfast.cli.common import (
    READER_LEFT,
    at_home,
    is_first_rank,
    narrate,
    parse,
    peek,
    plain_warnings,
    reader_left,
    refuse_empty,
    terminal,
)
from holdfast.cli.compare import compare
from holdfast.cli.completion import CompletionOptions, completion_script
from holdfast.cli.data import data_check, data_index, data_make, data_shard
from holdfast.cli.demo import demo
from holdfast.cli.detect import describe_, detect_evaluate, detect_fit, detect_score, predict_
from holdfast.cli.export import export_
from holdfast.cli.listing import list_
from holdfast.cli.parser_words import laid_out, listed
from holdfast.cli.repair import repair
from holdfast.cli.report import report
from holdfast.cli.shortcuts import shortcuts
from holdfast.cli.train import parse_train, train
from holdfast.cli.tune import tune
from holdfast.errors import HoldfastError, Interrupted, RankEnded, require, require_known
from holdfast.machine import keep_freed_memory, share_the_processor
from holdfast.signals import ended_by_term

__all__ = ["COMMANDS", "main", "parse_train"]


UNHEARD = 3.0
"""Seconds after which an error that only this rank met is shown by it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 done, 1 a gate failed, 2 bad input, 3 a check crashed, 4 another rank was lost, 128 + N ended by signal N (141:
    nobody reads the output).
    """
    words = [at_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    share_the_processor()
    if argv is None:  # a process of our own; others may not like what this does to their memory
        keep_freed_memory()
    with terminal(), plain_warnings():
        try:
            return _answer(words)
        except (OSError, SystemExit) as error:
            if reader_left(error):
                return READER_LEFT
            raise


def _answer(words: list[str]) -> int:
    try:
        refuse_empty(words)
        with ended_by_term(), nullcontext() if is_first_rank() else redirect_stdout(io.StringIO()):
            try:
                return _dispatch(words)
            finally:
                sys.stdout.flush()
    except RankEnded as ended:
        if not ended.reported:
            narrate(f"error: {ended}", any_rank=True)
        return ended.code
    except HoldfastError as error:
        if is_first_rank():
            narrate(f"error: {error}")
        else:  # before ranks have met. If all fail so, torchrun ends this one before it has repeated the message.
            time.sleep(UNHEARD)
            narrate(f"error: rank {os.environ['RANK']}: {error}", any_rank=True)
        return 2
    except OSError as error:
        if error.errno is None or reader_left(error):
            raise
        narrate(f"error: cannot use {error.filename or 'the output'}: {error.strerror}")
        return 2
    except KeyboardInterrupt as ended:
        stopped = ended if isinstance(ended, Interrupted) else Interrupted(signal.SIGINT)
        narrate(f"{stopped.message}; {_how_to_continue(words, stopped)}")
        return 128 + stopped.signum


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"holdfast {__version__}")
        return 0
    if words[0] in FAMILIES and (len(words) == 1 or words[1] in ("-h", "--help", "help")):
        print(_usage(f"{words[0]} "))
        return 0 if len(words) > 1 else 2
    name = _command(words)
    require_known("command", name, COMMANDS)
    started = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"
    shared = name == "train" or (name == "audit" and peek(words, "--shards") is not None)
    remedy = "give --shards, or run it without torchrun" if name == "audit" else "run it without torchrun"
    require(shared or started == "1", f"{name} is one process, and torchrun started {started}; {remedy}")
    return COMMANDS[name](words[len(name.split()) :])


def _command(words: list[str]) -> str:
    return " ".join(words[:2] if words[0] in FAMILIES else words[:1])


def _how_to_continue(words: list[str], stopped: Interrupted) -> str:
    """What the same command does the next time: an engine knows only of its own run, which may be one of many."""
    name = _command(words)
    if name == "train" and stopped.remedy:
        return stopped.remedy
    return CONTINUED.get(name, ANEW) if "--overwrite" not in words else ANEW


ABOUT = "Train image classifiers that stay accurate outside their training data, and measure whether they do."


def _usage(family: str = "") -> str:
    """Every command, or those whose name starts so, with what it does."""
    shown = {name: command for name, command in COMMANDS.items() if name.startswith(family)}
    rows = {name: (command.__doc__ or "").splitlines()[0] for name, command in shown.items()}
    return "\n\n".join([
        f"usage: holdfast {family}COMMAND [OPTIONS]",
        laid_out(ABOUT),
        listed(rows),
        laid_out(f"'holdfast {family}COMMAND --help' lists the options of a command; start with 'holdfast demo'."),
    ])  # fmt: skip


def completion(words: list[str]) -> int:
    """Print a script with which bash, zsh or fish completes commands, flags and choices."""
    options: CompletionOptions = parse(CompletionOptions, words, "completion", completion.__doc__)
    print(completion_script(options.shell, COMMANDS), end="")
    return 0


_FUNCTIONS: tuple[Callable[[list[str]], int], ...] = (
    demo, train, compare, tune, audit, repair, report, data_check, data_make, data_shard, data_index,
    detect_fit, detect_score, detect_evaluate, predict_, export_, describe_, shortcuts, list_, completion,
)  # fmt: skip
COMMANDS = {function.__name__.strip("_").replace("_", " "): function for function in _FUNCTIONS}
FAMILIES = {name.split()[0] for name in COMMANDS if " " in name}
ANEW = "the same command starts anew"
CONTINUED = {
    "train": "the same command with --resume continues",
    "compare": "the same command continues",
    "tune": "the same command continues",
    "audit": "the same command continues with the checks that are missing",
}
"""Commands that keep what they had done when they were stopped, and what to say of it."""
