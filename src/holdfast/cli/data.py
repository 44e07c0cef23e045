"""``holdfast data``: check a data set, write it as shards, or make one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli.common import narrate, parse, require_data, say
from holdfast.errors import HoldfastError, require_known
from holdfast.parts import data_syntax
from holdfast.settings.command_settings import QualitySettings
from holdfast.settings.fields import (
    LARGEST_SEED,
    Bounded,
    Columns,
    Confine,
    Quiet,
    Several,
    SkipUnreadable,
    Unset,
    Within,
    flatten,
)

if TYPE_CHECKING:
    from holdfast.train.progress import Progress


@dataclass(frozen=True)
class CheckOptions:
    """What to check."""

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """The set to check."""
    quality: OmitArgPrefixes[QualitySettings] = field(default_factory=QualitySettings)
    quiet: Quiet = False


def data_check(words: list[str]) -> int:
    """Check a data set: counts, unreadable files, duplicates, leakage between splits, probable label errors."""
    about = f"{data_check.__doc__}\n\nDATA is {data_syntax()}."
    options: CheckOptions = parse(CheckOptions, words, "data check", about)
    require_data(options.data)
    from holdfast.quality import check_data

    values = flatten(options)
    found = check_data(values.pop("data"), progress=not values.pop("quiet"), **values)
    print(found.to_text())
    if options.quality.out:
        say(f"pictures: {Path(options.quality.out) / 'data_check.html'}")
    return 0 if found.sound else 2


@dataclass(frozen=True)
class ShardOptions(Bounded):
    """What to write as shards, and where."""

    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """The set to write as shards."""
    out: Annotated[Positional[str], arg(metavar="OUT")]
    """The folder for the shards and their index."""
    megabytes: Annotated[float, Within(0, math.inf, "()")] = 256.0
    """How large a shard may become."""
    unlabelled: bool = False
    """Take all images of a folder, without labels."""
    root: Unset[str] = None
    """Folder of sets that have a name (default: $HOLDFAST_ROOT, or ./data)."""
    image_size: Annotated[Unset[int], Within(1, 4096, "..")] = None
    """Side in pixels that images of sets with a name are made at, where that can be chosen; files stay as they are."""
    names: Unset[str] = None
    """Pattern of file names that labels are taken from, such as "{age}_{gender}_{race}_"."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA."""
    group: Unset[str] = None
    """The same for the group; for a table or hf: data the column of groups."""
    columns: Columns = None
    confine: Confine = False
    skip_unreadable: SkipUnreadable = False
    overwrite: bool = False
    """Replace the shards in OUT."""
    quiet: Quiet = False


def data_shard(words: list[str]) -> int:
    """Write a data set as tar shards in WebDataset's layout, with an index: for large sets, slow disks and URLs."""
    about = f"{data_shard.__doc__}\n\nSOURCE is {data_syntax()}."
    options: ShardOptions = parse(ShardOptions, words, "data shard", about)
    require_data(options.source)
    from holdfast.data import shard
    from holdfast.train.progress import make_progress

    values = dict(vars(options))
    with make_progress(not values.pop("quiet")) as shown:
        said = shard(
            values.pop("source"), values.pop("out"), shown=partial(_show, shown, "images"), note=narrate, **values
        )
    say(said)
    return 0


@dataclass(frozen=True)
class IndexOptions:
    """Which shards to index."""

    shards: Annotated[Positional[str], arg(metavar="SHARDS")]
    """A folder of tar shards, a .tar file, or a URL that can be written to."""
    overwrite: bool = False
    """Replace the index that is there."""
    quiet: Quiet = False


def data_index(words: list[str]) -> int:
    """Index tar shards that another tool wrote, or that have changed; without it that is done on first use."""
    options: IndexOptions = parse(IndexOptions, words, "data index", data_index.__doc__)
    from holdfast.data import index
    from holdfast.train.progress import make_progress

    with make_progress(not options.quiet) as shown:
        said = index(options.shards, overwrite=options.overwrite, shown=partial(_show, shown, "shards"))
    say(said)
    return 0


def _show(progress: Progress, what: str, done: int, total: int) -> None:
    if done == 1:
        progress.begin(what, 1, total, 0)
    progress.step()


@dataclass(frozen=True)
class MakeOptions(Bounded):
    """What to make, and where to write it."""

    what: Annotated[Positional[str], arg(metavar="SET")]
    """corrupted-cifar10, fashion-anomalies; or coloured, watermark, background: a shortcut added to --data."""
    out: str
    """The file to write (.npz; a manifest goes beside it), or the folder for fashion-anomalies."""
    data: Unset[str] = None
    """The set to add a shortcut to."""
    image_size: Annotated[Unset[int], Within(1, 4096, "..")] = None
    """Side in pixels that its images are resized to (default: their own; 224 where they differ)."""
    root: Unset[str] = None
    """Folder of sets that have a name (default: $HOLDFAST_ROOT, or ./data)."""
    kind: Unset[Literal["lff-0", "lff-1", "dfa"]] = None
    """corrupted-cifar10: which ten corruptions (default: dfa)."""
    conflict: Annotated[Unset[float], Within(0, 1)] = None
    """Share of bias-conflicting training samples (default: 0.05)."""
    severity: Annotated[Unset[int], Within(1, 5, "..")] = None
    """corrupted-cifar10: severity of the corruptions, 1 to 5 (default: 5, which LfF calls 4)."""
    frost: Unset[str] = None
    """corrupted-cifar10: a folder of frost textures (default: drawn from noise)."""
    anomalies: Several[str] = ()
    """fashion-anomalies: kinds and their shares, of corrupted, garments, digits, noise (default: corrupted=0.5
    garments=0.25 digits=0.25)."""
    strength: Annotated[Unset[float], Within(0, 1, "(]")] = None
    """fashion-anomalies: strength of the damage to corrupted images, above 0 to 1 (default: 0.5)."""
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """Seed of everything that is drawn."""
    device: Unset[str] = None
    """corrupted-cifar10: device to compute on (default: cpu)."""
    overwrite: bool = False
    """Replace an existing --out."""


def data_make(words: list[str]) -> int:
    """Make a data set with a known shortcut or known anomalies, with a manifest of what is in it."""
    options: MakeOptions = parse(MakeOptions, words, "data make", data_make.__doc__)
    known = ("corrupted-cifar10", "coloured", "watermark", "background", "fashion-anomalies")
    require_known("set to make", options.what, known)
    from holdfast.data.making import make_data

    say(make_data(**{**vars(options), "anomalies": _shares(options.anomalies)}, note=narrate))
    return 0


def _shares(words: tuple[str, ...]) -> dict[str, float] | None:
    """KIND=SHARE each; a kind alone has share 1.

    >>> _shares(("corrupted=0.5", "noise=0.5")), _shares(("digits",)), _shares(())
    ({'corrupted': 0.5, 'noise': 0.5}, {'digits': 1.0}, None)
    """
    found: dict[str, float] = {}
    for word in words:
        kind, _, share = word.partition("=")
        try:
            found[kind] = float(share or 1)
        except ValueError:
            raise HoldfastError(f"anomalies are KIND=SHARE, such as corrupted=0.5, got {word!r}") from None
    return found or None
