"""The command line: arguments to calls. Nothing heavy is imported before the arguments are known to be right."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast import __version__
from holdfast.errors import HoldfastError, unknown
from holdfast.settings import AscentSettings, Choice, MethodSettings, TrainSettings, build, flatten, read_yaml


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 2 bad input, 128 + N ended by signal N."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except HoldfastError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except BrokenPipeError:  # the reader of our output, such as head, has left
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"holdfast {__version__}")
        return 0
    name = " ".join(words[:2]) if words[0] == "data" else words[0]
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    return COMMANDS[name](words[len(name.split()) :])


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: holdfast COMMAND [OPTIONS]",
            "",
            "Train image classifiers that hold outside their training data, and measure whether they do.",
            "",
            *rows,
            "",
            "'holdfast COMMAND --help' lists the options of a command; start with 'holdfast demo'.",
        ]
    )


def _parse(kind: Any, words: Sequence[str], command: Callable[..., int], **kwargs: Any) -> Any:
    name = next(n for n, c in COMMANDS.items() if c is command)
    return tyro.cli(kind, prog=f"holdfast {name}", description=command.__doc__, args=words, **kwargs)


@dataclass(frozen=True)
class RunOptions:
    """Where settings come from and where the run goes. Flags win over --config, and that over --recipe."""

    out: str | None = None
    """The run folder (default: runs/DATA-MODEL-METHOD-seedN)."""
    resume: bool = False
    """Continue the run in --out; its settings are taken from there."""
    overwrite: bool = False
    """Replace the run in --out."""
    recipe: str | None = None
    """Named settings ('holdfast list recipes')."""
    config: str | None = None
    """A YAML file of settings; any run.yaml repeats its run."""
    print_config: bool = False
    """Print the resolved settings as YAML and stop."""
    quiet: bool = False
    """No progress, only the result."""


def train(words: list[str]) -> int:
    """Train a model, measure it on the test set, write a run folder with a report."""
    settings, options = parse_train(words)
    if options.print_config:
        import yaml

        print(yaml.safe_dump(flatten(settings), sort_keys=False), end="")
        return 0
    _require_data(settings.data.name)
    out = Path(options.out or default_out(settings))

    from holdfast.experiment.run import run
    from holdfast.reports import findings_table
    from holdfast.train import Interrupted
    from holdfast.train.progress import make_progress

    try:
        files = run(
            settings,
            out,
            resume=options.resume,
            overwrite=options.overwrite,
            progress=make_progress(not options.quiet),
        )
    except Interrupted as stopped:
        Console(stderr=True).print(str(stopped), markup=False, highlight=False, soft_wrap=True)
        return 128 + stopped.signum
    console = Console()
    console.print(findings_table(files.findings))
    console.print(f"report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    return 0


def parse_train(words: list[str]) -> tuple[TrainSettings, RunOptions]:
    """Settings from flags, over a YAML file, over a recipe, over the defaults."""
    from holdfast.experiment.recipes import read_recipe

    values: dict[str, Any] = {}
    if recipe := _peek(words, "--recipe"):
        values |= read_recipe(recipe)
    if config := _peek(words, "--config"):
        values |= read_yaml(Path(config))
    out = _peek(words, "--out")
    if "--resume" in words and out and (Path(out) / "run.yaml").exists():
        values |= read_yaml(Path(out) / "run.yaml")
    base = build(TrainSettings, values)
    chosen = {}
    for family in (MethodSettings, AscentSettings):
        current = getattr(base, family.kind)
        name = _peek(words, f"--{family.kind}")
        chosen[family.kind] = current if name in (None, current.name) else family.choose(name)
    command = make_dataclass(
        "Train",
        [
            ("options", OmitArgPrefixes[RunOptions], field(default_factory=RunOptions)),
            *(
                (
                    f"{kind}_name",
                    Annotated[str, arg(name=kind, help=f"One of: {', '.join(choice.known)}.")],
                    choice.name,
                )
                for kind, choice in chosen.items()
            ),
            *((kind, type(choice), field(default=choice)) for kind, choice in chosen.items()),
            *((f.name, f.type, getattr(base, f.name)) for f in _groups()),
        ],
        frozen=True,
    )
    parsed = _parse(command, words, train)
    groups = {f.name: getattr(parsed, f.name) for f in _groups()}
    return replace(base, method=parsed.method, ascent=parsed.ascent, **groups), parsed.options


def _groups() -> list[Any]:
    import typing

    hints = typing.get_type_hints(TrainSettings, include_extras=True)
    found = [f for f in fields(TrainSettings) if f.name not in ("method", "ascent")]
    for f in found:
        f.type = hints[f.name]
    return found


def _peek(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag before anything is parsed.

    >>> _peek(["--method", "lff", "--config=a.yaml"], "--config")
    'a.yaml'
    """
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def default_out(settings: TrainSettings) -> str:
    """A folder name that says what was trained."""
    data = Path(settings.data.name).stem
    parts = [data, settings.model.name.replace(":", "-").replace("/", "-"), settings.method.name]
    parts += [settings.ascent.name] if settings.ascent.name != "none" else []
    return "runs/" + "-".join([*parts, f"seed{settings.loop.seed}"])


def _require_data(name: str) -> None:
    """Refuse a mistyped name before torch is imported."""
    from holdfast.settings.names import DATA_NAMES

    if name not in DATA_NAMES and not Path(name).exists():
        raise unknown("data set (and no such file or folder)", name, DATA_NAMES)


@dataclass(frozen=True)
class DemoOptions:
    """The demonstration."""

    out: str = "runs/demo"
    """Where the runs and the report go."""
    seeds: int = 3
    """Trainings of each method."""
    epochs: int | None = None
    """Epochs of each training (default: the recipe's)."""
    quiet: bool = False


def demo(words: list[str]) -> int:
    """Show a shortcut in embedded data and what each method makes of it, in minutes."""
    options: DemoOptions = _parse(DemoOptions, words, demo)
    from holdfast.experiment.demo import demo as run_demo
    from holdfast.reports import comparison_table
    from holdfast.train.progress import make_progress

    runs = run_demo(
        Path(options.out), seeds=options.seeds, epochs=options.epochs, progress=make_progress(not options.quiet)
    )
    console = Console()
    console.print(comparison_table(runs))
    console.print(f"report: {Path(options.out) / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    return 0


@dataclass(frozen=True)
class ReportOptions:
    """The report."""

    folders: Positional[tuple[str, ...]]
    """Run folders."""
    out: str | None = None
    """The file to write (default: report.html in the run folder, or here for several)."""


def report(words: list[str]) -> int:
    """Rebuild report.html from the files of one or more runs alone."""
    options: ReportOptions = _parse(ReportOptions, words, report)
    if not options.folders:
        raise HoldfastError("no run folder given; try: holdfast report runs/demo/*")
    from holdfast.reports import read_runs, write_report

    folders = [Path(folder) for folder in options.folders]
    default = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    out = Path(options.out) if options.out else default
    write_report(read_runs(folders), out)
    print(f"report: {out}")
    return 0


@dataclass(frozen=True)
class CheckOptions:
    """What to check."""

    data: Positional[str]
    """A built-in set, an .npz file, a folder of images, or a CSV/Parquet table."""
    root: str | None = None
    """Where built-in sets lie."""


def data_check(words: list[str]) -> int:
    """List classes, groups, sizes, channels, and every file that cannot be read."""
    options: CheckOptions = _parse(CheckOptions, words, data_check)
    _require_data(options.data)
    from holdfast.data.check import check

    found = check(options.data, root=options.root)
    print(found.to_text())
    return 0 if found.sound else 2


@dataclass(frozen=True)
class ListOptions:
    """What to list."""

    what: Annotated[Positional[str], arg(metavar="methods|ascents|data|recipes|models")] = "all"
    """One kind, or everything but the many model names."""


def list_(words: list[str]) -> int:
    """List methods, ascents, data sets, recipes or models by name."""
    options: ListOptions = _parse(ListOptions, words, list_)
    from holdfast.experiment.recipes import recipe_names
    from holdfast.settings.names import DATA_NAMES

    def described(family: type[Choice]) -> list[str]:
        return [f"{name:<20} {(kind.__doc__ or '').splitlines()[0]}" for name, kind in family.known.items()]

    def models() -> list[str]:
        from holdfast.models import model_names

        return [
            name if kind == "holdfast" else f"{kind}:{name}" for kind, names in model_names().items() for name in names
        ]

    kinds: dict[str, Callable[[], Sequence[str]]] = {
        "methods": lambda: described(MethodSettings),
        "ascents": lambda: described(AscentSettings),
        "data": lambda: DATA_NAMES,
        "recipes": recipe_names,
        "models": models,
    }
    if options.what not in kinds and options.what != "all":
        raise unknown("kind", options.what, kinds)
    for kind in kinds if options.what == "all" else [options.what]:
        if options.what == "all":
            if kind == "models":
                continue
            print(f"{kind}:")
        for line in kinds[kind]():
            print(f"  {line}" if options.what == "all" else line)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "demo": demo,
    "train": train,
    "report": report,
    "data check": data_check,
    "list": list_,
}


if __name__ == "__main__":
    sys.exit(main())
