"""Trust checks that set one attack's errors against another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from holdfast.attacks.norms import Norm
from holdfast.audits.checks import trust
from holdfast.audits.checks.attacks.falls import BLACK, NONE, WHITE, Key, any_of, radius_text
from holdfast.audits.checks.trust import Check

GRADIENT = ("fgsm", "pgd-10", "apgd-ce", "apgd-dlr")


def comparisons(
    wrong: Mapping[Key, Tensor], radii: Sequence[float], norm: Norm, long: Mapping[float, Tensor]
) -> list[Check]:
    """The checks that set one error against another, image by image."""
    at = {r: radius_text(r, norm) for r in radii}
    ladder = [0.0, *radii]

    def climbing(name: str) -> dict[str, tuple[Tensor, Tensor]]:
        found = {r: wrong["clean", NONE, 0.0] if r == 0 else wrong[name, WHITE, r] for r in ladder}
        return {
            f"{name}, {at[b]} over {'clean' if a == 0 else at[a]}": (found[b], found[a]) for a, b in pairwise(ladder)
        }

    white = {r: any_of(wrong, r, lambda key: key[1] == WHITE and key[0] in GRADIENT) for r in radii}
    black = {r: any_of(wrong, r, lambda key: key[1] == BLACK) for r in radii}
    random = {r: wrong["noise", NONE, r] for r in radii}
    has_black = any(key[1] == BLACK for key in wrong)
    in_steps = {f"10 steps over 1, {at[r]}": (wrong["pgd-10", WHITE, r], wrong["fgsm", WHITE, r]) for r in radii}
    in_steps |= {f"more steps over 10, {at[r]}": (more, wrong["pgd-10", WHITE, r]) for r, more in long.items()}
    return [
        trust.at_least("radius-growth", climbing("pgd-10") | climbing("apgd-ce"), "error grows with the radius"),
        trust.at_least("steps-growth", in_steps, "error grows with the steps"),
        trust.at_least(
            "white-over-black",
            {at[r]: (white[r], black[r]) for r in radii} if has_black else {},
            "white-box finds no less than transfer",
        ),
        trust.at_least(
            "black-over-noise",
            {at[r]: (black[r], random[r]) for r in radii} if has_black else {},
            "transfer finds no less than noise",
        ),
        trust.at_least(
            "white-over-noise",
            {at[r]: (white[r], random[r]) for r in radii},
            "white-box finds no less than noise",
        ),
        trust.at_least(
            "gradients-over-search",
            {at[r]: (white[r][: len(found)], found) for r in radii for found in [wrong["square", WHITE, r]]},
            "gradients find no less than search without them",
        ),
    ]
