"""The settings of a repair: flags of ``holdfast repair``, and keyword arguments of :func:`holdfast.repair`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from holdfast.errors import require
from holdfast.settings.fields import LARGEST_SEED, Bounded, Confine, Device, Root, Several, Unset, Within, Workers


@dataclass(frozen=True)
class RepairSettings(Bounded):
    """How to repair a trained classifier, and with which held-out images."""

    by: Literal["auto", "dfr", "afr", "none"] = "auto"
    """New last layer: dfr (groups are known), afr (they are not), none (keep it); auto chooses by the groups."""
    held_out: Annotated[float, Within(0, 1, "()")] = 0.5
    """Share of the training split to fit on where the data has no validation split."""
    penalty: Literal["l1", "l2"] = "l1"
    """dfr: what keeps the weights small."""
    strengths: Annotated[tuple[float, ...], Within(0, ends="()")] = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)
    """dfr: candidates for C, the weight of the losses against the penalty; the best worst-group accuracy decides."""
    balance: Literal["auto", "subsample", "weights"] = "auto"
    """dfr: draw equally many of every pair of class and group, or weigh them; auto weighs where a pair has under 5."""
    repeats: Annotated[int, Within(1)] = 10
    """dfr: group-balanced subsamples that the last layer is averaged over."""
    gammas: Annotated[tuple[float, ...], Within(0, ends="[)")] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    """afr: candidates for γ, how much more a sample counts that the model is not sure of; 0 weighs classes only."""
    pulls: Annotated[tuple[float, ...], Within(0, ends="()")] = (0.001, 0.01, 0.1, 1.0)
    """afr: candidates for λ, how strongly the new layer is drawn to the old one."""
    temperature: bool = True
    """Scale the logits so that confidence is calibrated on the held-out images; --no-temperature leaves them."""
    coverage: Annotated[float, Within(0, 1, "(]")] = 0.9
    """Share of inputs to answer; below the confidence that gives it, the model abstains."""
    risk: Annotated[Unset[float], Within(0, 1, "()")] = None
    """Instead: the largest share of wrong answers to allow among those given, with 95 % certainty."""
    folds: Annotated[int, Within(2)] = 5
    """Parts of the held-out images; a layer is judged and calibrated on a part that it was not fitted on."""
    checks: Several[str] = ()
    """Checks of the audit before and after (default: accuracy and groups)."""
    audit: bool = True
    """Audit the model before and after on the test split; --no-audit leaves that out."""
    conflict: Unset[float] = None
    """Sets made with a shortcut (coloured-digits, ...): share of bias-conflicting samples (default: the run's)."""
    val: Annotated[Unset[float], Within(0, 1, "[)")] = None
    """Share of training that is the validation split (default: the run's, where it is the run's data)."""
    data_seed: Unset[int] = None
    """Seed of held-out splits and generated sets (default: the run's)."""
    root: Root = None
    confine: Confine = False
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """Seed of subsamples, folds, and the part of training that is held out."""
    batch_size: Annotated[Unset[int], Within(1)] = None
    """Images per pass (default: 256; on a CPU fewer of large images, such as 4 of 224 pixels)."""
    workers: Annotated[Workers, Within(0)] = 4
    device: Device = "auto"
    overwrite: bool = False
    """Replace the run in --out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        answer = self.by != "none" or self.temperature or self.risk is not None or self.coverage < 1
        require(answer, "by none without temperature at coverage 1 changes nothing; ask for one of them")
