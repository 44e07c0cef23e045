"""``holdfast demo``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli.common import console, parse, say
from holdfast.settings.fields import Bounded, Quiet, Unset, Within

SEEDS = 3
QUICK_SEEDS, QUICK_EPOCHS = 1, 6


@dataclass(frozen=True)
class DemoOptions(Bounded):
    """The demonstration."""

    out: str = "runs/demo"
    """Where the runs and the report go."""
    seeds: Annotated[Unset[int], Within(1)] = None
    """Trainings of each method (default: 3; with --quick 1)."""
    epochs: Annotated[Unset[int], Within(1)] = None
    """Epochs of each training (default: 20; with --quick 6)."""
    quick: bool = False
    """Half a minute: see that it works. The numbers are not those of the README."""
    quiet: Quiet = False


def demo(words: list[str]) -> int:
    """Show a shortcut in embedded data and what each method makes of it, in minutes."""
    options: DemoOptions = parse(DemoOptions, words, "demo", demo.__doc__)
    from holdfast.comparisons.demo import demo as run_demo
    from holdfast.reports import comparison_table
    from holdfast.train.progress import make_progress

    progress = make_progress(not options.quiet)
    seeds, epochs = options.seeds, options.epochs
    if options.quick:
        seeds, epochs = seeds or QUICK_SEEDS, epochs or QUICK_EPOCHS
    runs = run_demo(Path(options.out), seeds=seeds or SEEDS, epochs=epochs, progress=progress)
    console().print(comparison_table(runs))
    say(f"report: {Path(options.out) / 'report.html'}")
    return 0
