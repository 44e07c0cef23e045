"""``holdfast shortcuts``: options, and a call of ``holdfast.find_shortcuts``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from holdfast.cli.common import narrate, parse, require_data, say
from holdfast.errors import require
from holdfast.parts import data_syntax, model_syntax
from holdfast.settings.fields import Bounded, Confine, Device, Quiet, Unset, Within
from holdfast.settings.training import check_conflict


@dataclass(frozen=True)
class ShortcutsOptions(Bounded):
    """Where to search for a shortcut."""

    run: Annotated[Positional[Unset[str]], arg(metavar="[RUN]")] = None
    """A run folder: its data and network are used; or name a set with --data."""
    data: Unset[str] = None
    """The data set; with a run, instead of its own."""
    out: Unset[str] = None
    """The folder to write to (default: runs/shortcuts-DATA, or shortcuts in the run)."""
    model: Unset[str] = None
    """The network (default: the run's, or convnet)."""
    reuse: bool = False
    """Use the biased model that a run of lff or jtt kept instead of training any."""
    epochs: Annotated[int, Within(1)] = 10
    """Epochs of each training."""
    seeds: Annotated[int, Within(1)] = 2
    """Biased models to train; scores are the mean over them."""
    seed: int = 0
    """Seed of the first training; the others follow it."""
    batch_size: Annotated[Unset[int], Within(1)] = None
    """Batch size (default: 64 for fewer than 10,000 images, else 128)."""
    lr: Annotated[float, Within(0, ends="()")] = 1e-3
    """Learning rate."""
    clusters: Annotated[Unset[int], Within(1)] = None
    """Clusters of the suspected samples (default: one per class, ten at most)."""
    test: bool = True
    """Whether there is a shortcut at all is tested by training on two halves of the data; --no-test skips that."""
    root: Unset[str] = None
    """Folder of built-in sets (default: $HOLDFAST_ROOT, or ./data)."""
    image_size: Unset[int] = None
    """Side in pixels that images are brought to (default: their own)."""
    conflict: Unset[float] = None
    """Sets made with a shortcut (coloured-digits, ...): share of bias-conflicting training samples (default: 0.05)."""
    names: Unset[str] = None
    """Pattern of file names that labels are taken from, such as "{age}_{gender}_{race}_"."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA."""
    group: Unset[str] = None
    """The same for the group, which only judges the ranking."""
    confine: Confine = False
    data_seed: int = 0
    """Seed of held-out splits and generated sets."""
    device: Device = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Precision of the arithmetic."""
    channels_last: bool = False
    """Keep images and weights in NHWC order in memory; pays on GPUs in bf16."""
    compile: bool = False
    """Compile the network with torch.compile."""
    overwrite: bool = False
    """Replace what is in --out."""
    quiet: Quiet = False


def shortcuts(words: list[str]) -> int:
    """Find the spurious correlation in training data: rank samples by how likely they are bias-conflicting."""
    about = f"{shortcuts.__doc__}\n\nDATA is {data_syntax()}.\nMODEL is {model_syntax(training=True)}."
    options: ShortcutsOptions = parse(ShortcutsOptions, words, "shortcuts", about)
    require(bool(options.run or options.data), "no data was given; give a run folder, or a set with --data")
    if options.data is not None:
        require_data(options.data)
        check_conflict(options.data, options.conflict)
    from holdfast.reports.sections.shortcuts import detection_limit, summary
    from holdfast.shortcuts import find_shortcuts
    from holdfast.train.progress import make_progress

    values = dict(vars(options))
    run, data = values.pop("run"), values.pop("data")
    progress = make_progress(not values.pop("quiet"))
    name = Path(run or data).stem
    if values["out"] is None:
        values["out"] = f"{run}/shortcuts" if run else f"runs/shortcuts-{name}"
    found = find_shortcuts(run or data, data=data if run else None, progress=progress, **values)
    for note in found.notes if options.quiet else ():  # progress has said them otherwise
        narrate(str(note))
    say(f"ranking: {Path(values['out']) / 'shortcuts.csv'}; clusters of suspected samples: {len(found.clusters)}")
    say(summary(found.findings))
    if limit := detection_limit(found.findings):
        say(limit)
    if (precision := found.average_precision) is not None:
        say(f"average precision against the group labels: {precision:.3f} (base rate {found.base_rate:.3f})")
    say(f"gallery: {Path(values['out']) / 'shortcuts.html'}")
    return 0
