"""``holdfast tune``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import OmitArgPrefixes

from holdfast.cli.common import console, parse, require_data, say
from holdfast.cli.train import parse_train
from holdfast.settings.command_settings import EngineSettings, SearchSettings
from holdfast.settings.fields import Pairs, Quiet

MOST_ROWS = 10


@dataclass(frozen=True)
class TuneOptions:
    """What to search."""

    out: str = "runs/tune"
    """Folder of the trials, of best.yaml, tuning.json and, unless --storage names another, the study."""
    space: Pairs = ()
    """SETTING=LOW..HIGH, SETTING=LOW..HIGH:log or SETTING=VALUE,VALUE (default: learning rate, weight decay, and the
    numbers of the method and the ascent; --plan shows them)."""
    plan: bool = False
    """Say what would be searched, and stop."""
    quiet: Quiet = False
    search: OmitArgPrefixes[SearchSettings] = field(default_factory=SearchSettings)
    where: OmitArgPrefixes[EngineSettings] = field(default_factory=EngineSettings)


def tune(words: list[str]) -> int:
    """Search the settings that do best on held-out data, and write them as a file to train with."""
    about = f"{tune.__doc__} Every flag of 'holdfast train' is taken too, and sets what all trials share."
    options, rest = parse(TuneOptions, words, "tune", about, return_unknown_args=True)
    base, _ = parse_train([*rest, "--out", options.out], called="tune")
    from holdfast.comparisons.search_space import check_space, default_space, parse_space

    space = parse_space(options.space) or None
    if space is not None:
        check_space(base, space)
    require_data(base.data.name)
    if options.plan:
        from holdfast.train.preparing import choose_ahead

        for name, own in (space or default_space(choose_ahead(base).settings)).items():
            say(f"{name}: {', '.join(map(str, own)) if isinstance(own, tuple) else own}")
        return 0

    from holdfast.comparisons.tuning import search
    from holdfast.train.progress import make_progress

    how = {"space": space, "wanted": options.search, "where": options.where}
    done = search(base, Path(options.out), progress=make_progress(not options.quiet), **how)
    from holdfast.reports.renderings import rich_table

    console().print(rich_table(done.table(MOST_ROWS)))
    say(f"best: {done.front[0].name}; train with it: holdfast train --config {Path(options.out) / 'best.yaml'}")
    return 0
