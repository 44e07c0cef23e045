"""``holdfast export``: arguments to a call of :func:`holdfast.export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli.common import narrate, parse, require_data, say
from holdfast.settings.command_settings import ExportSettings
from holdfast.settings.fields import Quiet, flatten


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ExportSettings):
    """What to export, and as what."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """The folder of a trained classifier."""
    quiet: Quiet = False


def export_(words: list[str]) -> int:
    """Write a trained model as an ONNX, TorchScript or torch.export file that agrees with it, with a model card."""
    options: ExportOptions = parse(ExportOptions, words, "export", export_.__doc__)
    if options.data is not None:
        require_data(options.data)
    from holdfast.exports import export

    values = flatten(options)
    quiet = values.pop("quiet")
    made = export(values.pop("run"), **values, note=None if quiet else narrate)
    say(f"{made.path}: outputs differ from the run's by at most {made.difference:.2g} on {made.compared_on}")
    say(f"card: {made.card}")
    return 0
