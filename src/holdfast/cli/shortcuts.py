"""``holdfast shortcuts``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from holdfast.cli.common import narrate, parse, require_data, say
from holdfast.errors import HoldfastError
from holdfast.settings.conflict import check_conflict
from holdfast.settings.hints import Unset


@dataclass(frozen=True)
class ShortcutsOptions:
    """Where to look for a shortcut."""

    run: Annotated[Positional[Unset[str]], arg(metavar="[RUN]")] = None
    """A run folder: its data and network are taken; or name a set with --data."""
    data: Unset[str] = None
    """A built-in set, an .npz file, a folder of images, or a CSV/Parquet table."""
    out: Unset[str] = None
    """The folder to write to (default: runs/shortcuts-DATA, or shortcuts in the run)."""
    model: Unset[str] = None
    """The network (default: the run's, or convnet)."""
    reuse: bool = False
    """Take the biased model of a run that trained one instead of training it again."""
    epochs: int = 10
    """Epochs of each training."""
    seeds: int = 2
    """Trainings to agree over."""
    seed: int = 0
    """Seed of the first training; the others follow it."""
    batch_size: Unset[int] = None
    """Images a step (default: 64 for fewer than 10,000 images, else 128)."""
    lr: float = 1e-3
    """Learning rate."""
    clusters: Unset[int] = None
    """Clusters that the contradicting samples are sorted into (default: chosen from the data)."""
    root: Unset[str] = None
    """Where built-in sets lie (default: $HOLDFAST_ROOT, or ./data)."""
    image_size: Unset[int] = None
    """Side in pixels that images are brought to (default: their own)."""
    conflict: Unset[float] = None
    """Sets made with a shortcut (coloured-digits, ...): share of training that contradicts it (default: 0.05)."""
    names: Unset[str] = None
    """Pattern of file names that labels are taken from, such as "{age}_{gender}_{race}_"."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA."""
    group: Unset[str] = None
    """The same for the group, which only judges what was found."""
    data_seed: int = 0
    """Seed of held-out splits and generated sets."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Of the arithmetic."""
    channels_last: bool = False
    """Keep images and weights in NHWC order in memory; pays on GPUs in bf16."""
    compile: bool = False
    """Compile the network with torch.compile."""
    overwrite: bool = False
    """Replace what is in --out."""
    quiet: bool = False
    """No progress, only the result."""


def shortcuts(words: list[str]) -> int:
    """Find the samples that contradict what is easy to learn, and show what the easy way looks at."""
    options: ShortcutsOptions = parse(ShortcutsOptions, words, "shortcuts", shortcuts.__doc__)
    if options.run is None and options.data is None:
        raise HoldfastError("where shall it look? give a run folder, or a set with --data")
    if options.data is not None:
        require_data(options.data)
        check_conflict(options.data, options.conflict)
    from holdfast.shortcuts import shortcuts as find
    from holdfast.train.progress import make_progress

    values = dict(vars(options))
    run, data = values.pop("run"), values.pop("data")
    progress = make_progress(not values.pop("quiet"))
    name = Path(run or data).stem
    if values["out"] is None:
        values["out"] = f"{run}/shortcuts" if run else f"runs/shortcuts-{name}"
    found = find(run or data, data=data if run else None, progress=progress, **values)
    for note in found.notes if options.quiet else ():  # progress has said them otherwise
        narrate(note)
    share = found.share
    say(f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%}) of training contradicts what is easy to learn")
    if found.judged is not None:
        say(f"average precision against the group labels: {found.judged.value:.3f} (base rate {found.base_rate:.3f})")
    say(f"gallery: {Path(values['out']) / 'shortcuts.html'}")
    return 0
