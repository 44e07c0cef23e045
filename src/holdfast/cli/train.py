"""``holdfast train``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from tyro.conf import OmitArgPrefixes, arg

from holdfast.cli.common import console, is_first_rank, narrate, parse, peek, require_data, say
from holdfast.errors import require
from holdfast.files import exists
from holdfast.parts import data_syntax, model_syntax
from holdfast.settings import TrainSettings, build, flatten, layered, read_config, read_yaml
from holdfast.settings.fields import Choice, Quiet, Unset
from holdfast.types import Finding


@dataclass(frozen=True)
class RunOptions:
    """Where settings come from and where the run goes. Flags win over --config, and that over --recipe."""

    out: Unset[str] = None
    """The run folder (default: runs/DATA-MODEL-METHOD-seedN)."""
    resume: bool = False
    """Continue the run in --out; its settings are taken from there. Where there is none, one is started if --data,
    --recipe, --config or --method says of what."""
    overwrite: bool = False
    """Replace the run in --out; it is kept until the new one has a checkpoint."""
    recipe: Unset[str] = None
    """Named settings ('holdfast list recipes')."""
    config: Unset[str] = None
    """A YAML file of settings; a run.yaml repeats its run."""
    find_lr: bool = False
    """Try rising learning rates for 100 steps, print the losses and a suggestion, and stop; nothing is written."""
    print_config: bool = False
    """Print the resolved settings as YAML and stop."""
    plan: bool = False
    """Say what would be trained, stage by stage, with the settings that were chosen for it, and stop."""
    quiet: Quiet = False


def train(words: list[str]) -> int:
    """Train a model, measure it on the test set, write a run folder with a report."""
    settings, options = parse_train(words)
    if options.print_config:
        import yaml

        print(yaml.safe_dump(flatten(settings), sort_keys=False), end="")
        return 0
    out = default_out(settings) if options.out is None else options.out
    if options.plan:
        from holdfast.comparisons.plans import ComparisonPlan, GridCell, settle_plan, stage_lines

        planned, chosen = settle_plan(ComparisonPlan((GridCell(settings.method.name, settings),)))
        say(f"{settings.method.name}: {settings.model.name} on {settings.data.name}, into {out}")
        say("\n".join(f"  {line}" for line in [*stage_lines(planned.baseline.settings), *chosen]))
        return 0
    if options.resume:
        _check_resume(out, words)
    if is_first_rank():  # data that is missing on the host of another is found out together
        require_data(settings.data.name)
    settings.require_unlabeled_used()

    if options.find_lr:
        return _find_lr(settings, options)

    from holdfast.comparisons.single_run import run_together
    from holdfast.reports import findings_table
    from holdfast.train.progress import make_progress

    progress = make_progress(not options.quiet)
    files = run_together(settings, out, resume=options.resume, overwrite=options.overwrite, progress=progress)
    if files is None:  # another rank has them
        return 0
    once: dict[object, Finding] = {}
    for f in files.findings:
        if f.n or "reason" not in f.evidence:  # not what the data has nothing of
            once.setdefault((f.name, *f.where.items()), f)  # clean and groups both have the data's own groups
    console().print(findings_table(once.values()))
    if settings.loop.select == "oracle-test":
        say("the epoch was chosen on the test set (--select oracle-test): these numbers are no result")
    say(f"report: {Path(out) / 'report.html'}")
    return 0


def _find_lr(settings: TrainSettings, options: RunOptions) -> int:
    require(not options.resume, "--find-lr starts from fresh weights; leave out --resume")
    require("RANK" not in os.environ, "--find-lr is one process; run it without torchrun")
    from holdfast.train.progress import make_progress
    from holdfast.train.rate_finder import find_rate

    print(find_rate(settings, progress=make_progress(not options.quiet)))
    return 0


def _check_resume(out: str, words: list[str]) -> None:
    """Refuse to train something unasked where there is nothing to continue."""
    if any(exists(Path(out) / name) for name in ("run.yaml", "checkpoint")):
        return
    require(
        any(peek(words, flag) is not None for flag in ("--data", "--recipe", "--config", "--method")),
        f"no run in {out}; correct --out, or say what to train there (--data, --recipe or --config)",
    )
    narrate(f"no run in {out} yet; starting one")


def parse_train(
    words: list[str], *, called: str = "train", under: Mapping[str, Any] | None = None
) -> tuple[TrainSettings, RunOptions]:
    """Settings from flags, over a YAML file, over a recipe, over the defaults. called: the command. under: settings
    instead of a recipe's."""
    from holdfast.comparisons.recipes import read_recipe

    loose = words[0] if words and not words[0].startswith("-") else ""
    require(not loose, f"{called} takes options alone, got {loose!r}; if that is the data, write --data {loose}")
    layers: list[dict[str, Any]] = []
    out = peek(words, "--out")
    if "--resume" in words and out and exists(Path(out) / "run.yaml"):
        layers.append(read_yaml(Path(out) / "run.yaml"))  # undermost: what the command says otherwise is refused later
    if recipe := peek(words, "--recipe"):
        layers.append(read_recipe(recipe))
    layers.append(dict(under or {}))
    if config := peek(words, "--config"):
        layers.append(read_config(Path(config), [kind for kind in ("data", "model") if peek(words, f"--{kind}")]))
    if data := peek(words, "--data"):
        layers.append({"data": data})
    start = {"weights": weights} if (weights := peek(words, "--weights")) else {}
    layers.append(start | ({"pretrained": True} if "--pretrained" in words else {}))
    base = build(TrainSettings, layered(*layers))
    chosen = {}
    for current in (base.method, base.ascent):
        kind = current.registry.kind
        name = peek(words, f"--{kind}")
        chosen[kind] = current if name is None else current.switched(name)
    hints = get_type_hints(TrainSettings, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if name not in chosen}
    flags: list[tuple[str, Any, Any]] = [("run", OmitArgPrefixes[RunOptions], field(default_factory=RunOptions))]
    for kind, choice in chosen.items():
        flags.append((f"{kind}_name", Annotated[str, arg(name=kind, help=_choices(choice))], choice.name))
    flags += [(kind, type(choice), field(default=choice)) for kind, choice in chosen.items()]
    flags += [(name, group, getattr(base, name)) for name, group in groups.items()]
    command = make_dataclass("Train", flags, frozen=True)
    about = f"{train.__doc__}\n\nDATA is {data_syntax()}.\nMODEL is {model_syntax(training=True)}."
    parsed = parse(command, words, called, about, negatable=True)
    return replace(base, **{name: getattr(parsed, name) for name in (*chosen, *groups)}), parsed.run


def _choices(choice: Choice) -> str:
    kind, names = choice.registry.kind, ", ".join(choice.registry)
    return f"One of: {names}; --{kind} NAME --help shows the settings of one."


def default_out(settings: TrainSettings) -> str:
    """A folder name that says what was trained."""
    data = Path(settings.data.name).stem
    parts = [data, settings.model.name.replace(":", "-").replace("/", "-"), settings.method.name]
    parts += [settings.ascent.name] if settings.ascent.name != "none" else []
    parts += [] if settings.data.labels is None else [f"{settings.data.labels}labels"]
    parts += [settings.model.pretrain] if settings.model.pretrain != "none" else []
    return "runs/" + "-".join([*parts, f"seed{settings.loop.seed}"])
