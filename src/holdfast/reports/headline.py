"""The first sentence of a report and those below it. Open it to change what someone learns who reads nothing else.

One audit: clean accuracy, the largest failure with its interval and n, and whether gates passed. Several models: what
fails in the baseline, and what another model makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.parts import METHODS
from holdfast.reports.arms import ALIGNED, AVERAGE, CONFLICTING, Arm, share
from holdfast.reports.blocks import Gallery
from holdfast.reports.next_steps import Step, next_steps
from holdfast.reports.overview import states
from holdfast.reports.proof_pictures import data_pictures, proof_pictures
from holdfast.reports.report_tables import (
    PLAIN_TRAINING,
    Difference,
    against,
    all_leads,
    baseline_arm,
    best_arm,
    lead_sentence,
    method_of,
    significance,
    turned_upside_down,
)
from holdfast.reports.robustness_summary import (
    CLEAN,
    RobustnessResult,
    arm_sentence,
    arms_verdict,
    drop_clauses,
    headline_findings,
    robustness,
    summary_sentence,
    weakest_part,
)
from holdfast.reports.run_files import RunFiles, group_attribute
from holdfast.reports.text import finite, percent, quantity
from holdfast.types import Finding, Needs

OWN_GROUPS = "group"
"""The column of the data's own groups."""
ROUNDING = 5e-4
"""How far the difference of two shares may be from the lead that is said beside them, in shares."""
MOST_SENTENCES = 8
MOST_WARNINGS = 12
LARGE_LOSS = 0.05
"""From which loss on bias-aligned samples on the first sentence says what a gain on bias-conflicting ones costs."""
MOST_NAMED = 3
"""Failed gates that the first sentence names."""
Found = Sequence[RobustnessResult]


@dataclass(frozen=True, slots=True)
class Top:
    """What stands above the sections: the first sentence, warnings, pictures, what to do next, and further sentences.

    sentences, warnings: what each is about, and what it says. look: a row of images that shows what the data is.
    """

    verdict: str
    sentences: Sequence[tuple[str, str]] = ()
    warnings: Sequence[tuple[str, str]] = ()
    proof: Gallery | None = None
    steps: Sequence[Step] = ()
    look: Gallery | None = None


def top(runs: Sequence[RunFiles], groups: Sequence[Arm], *, images: bool = True) -> Top:
    made, several = _found(runs, groups), len(runs) > 1
    said = [("Warning", str(note)) for arm in groups if (note := turned_upside_down(arm))]
    said += [("Warning" + f", {run.name}" * several, text) for run in runs for text in run.file().warnings]
    # who reads the first sentence alone must not take a failed gate, a crash or a warning for a clean bill
    known = [words for run in runs if (words := _outcome(run, f" of {run.name}" * several))]
    tail = [text for words in known[:MOST_SENTENCES] for text in words]
    if len(known) > MOST_SENTENCES:
        tail.append(f"{len(known) - MOST_SENTENCES} more models have gates or crashes")
    if said:
        tail.append("Read the warning first" if len(said) == 1 else f"Read the {len(said)} warnings first")
    left = len(said) - MOST_WARNINGS
    said = [*said[:MOST_WARNINGS], *([(f"{left} more warnings", "in findings.json")] if left > 0 else [])]
    verdict = ". ".join([made.verdict, *tail])
    sentences = [(name, unbroken(text)) for name, text in made.sentences]
    names = {run.name: arm.label for arm in groups for run in arm.runs}
    proof = proof_pictures(_first_told(runs, groups), names) if images else None
    look = data_pictures(runs) if images else None
    ended = f"{verdict}." if ". " in verdict else verdict  # of several sentences the last ends like the others
    return Top(unbroken(ended), sentences, said, proof, next_steps(runs), look)


def _first_told(runs: Sequence[RunFiles], groups: Sequence[Arm]) -> list[RunFiles]:
    """The runs, those of the baseline first: its failures are what the first sentence begins with."""
    baseline = baseline_arm(groups)
    first = {run.name for run in baseline.runs} if baseline else set()
    first |= {f.where["against"] for run in runs for f in run.findings if "against" in f.where}
    return sorted(runs, key=lambda run: run.name not in first)


def _outcome(run: RunFiles, of: str) -> list[str]:
    """Whether the gates passed, and which checks crashed; nothing where there is neither. of: whose, in words."""
    crashed = [record.name for record in run.checks if record.state == "crashed"]
    words = [f"Crashed checks{of}: {', '.join(crashed)}"] if crashed else []
    failed = [str(gate["name"]) for gate in run.gates if not gate["passed"]]
    if failed and len(run.gates) == 1:
        words.append(f"Gate{of} failed: {failed[0]}")
    elif failed:
        more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
        words.append(f"Gates{of}: {len(failed)} of {len(run.gates)} failed ({', '.join(failed[:MOST_NAMED])}{more})")
    elif run.gates:
        words.append(f"Gate{of} passed" if len(run.gates) == 1 else f"Gates{of}: all {len(run.gates)} passed")
    return words


def _found(runs: Sequence[RunFiles], groups: Sequence[Arm]) -> Top:
    found = [(run, robustness(run.findings, run.measures, run.gates)) for run in runs if run.checks]
    if len(found) == len(runs) == 1:
        return _one_audit(*found[0])
    if len(found) == len(runs) and not any(arm.spread(AVERAGE) for arm in groups):
        said = [(run.name, states(run.checks, run.gates)) for run in runs]
        return Top(f"{len(said)} models; clean accuracy was not measured", _first(said, "tables"))
    if len(found) < len(runs) or not all(drop_clauses(own) for _, own in found):
        pairs = [(arm.label, arm_sentence(arm).removeprefix(f"{arm.label}: ")) for arm in groups]
        # a single arm's sentence is the verdict already
        return Top(over_seeds(groups) or arms_verdict(groups), _first(pairs, "table") if pairs[1:] else [])
    leads = [(run, own) for run, own in found if lead_sentence(run.findings, run.name)]
    pairs = [(run.name, f"{summary_sentence(own)}. {states(run.checks, run.gates)}") for run, own in found]
    if not leads:
        return Top(arms_verdict(groups), _first(pairs, "tables"))
    run, own = leads[0]
    verdict = against_baseline(found) or _overall(run, own)
    return Top(verdict, [("Clean accuracy", lead_sentence(run.findings, run.name)), *_first(pairs, "tables")])


def _first(pairs: Sequence[tuple[str, str]], rest: str) -> list[tuple[str, str]]:
    shown, left = [*pairs[:MOST_SENTENCES]], len(pairs) - MOST_SENTENCES
    return [*shown, (f"{left} more", f"in the {rest} below")] if left > 0 else shown


def _one_audit(run: RunFiles, found: Found) -> Top:
    name, data = run.name, run.data.get("name")
    who, checks = f"{name} on {data}" if data else name, ("Checks", states(run.checks, run.gates))
    if not found or (found[0].check, found[0].name) != CLEAN:
        return Top(f"{who}: {_without_clean(run, found)}", [checks])
    clauses = drop_clauses(found)
    sentences = [(word.rstrip(":").capitalize(), text) for word, text in clauses]
    failure = _failure_clause(found, run) if clauses else _bare(run, found[0])
    return Top(f"{who}: {failure}", [*sentences, checks])


def _without_clean(run: RunFiles, found: Found) -> str:
    """Of an audit that did not measure the unmodified test set: what it measured, and on which images."""
    if len(found) == 1 and found[0].compared and found[0].changed_images:  # what it dropped from is clean accuracy
        only, base = found[0], found[0].value + (found[0].drop or 0.0)
        bare = replace(only, compared="")
        word = "but" if bare.clear(replace(only, value=base, low=base)) else "and"
        return f"{only.base} % clean accuracy on the {only.n:,} images measured, {word} {bare.share(span=True)}"
    said = [r.share(span=True) for r in found]
    if not said:
        others = ((m, f) for m, own in headline_findings(run.findings, run.measures) for f in own[:1])
        said = [f"{m.title} {quantity(m, finite(f.value) or 0.0)}" for m, f in others]
    known = any(r.compared and r.changed_images for r in found)  # it says clean accuracy of its own images
    missing = "the check accuracy was not run" if known else "clean accuracy was not measured"
    return "; ".join(filter(None, [", ".join(said[:MOST_NAMED]), missing]))


def _bare(run: RunFiles, clean: RobustnessResult) -> str:
    """Of an audit that measured nothing to compare clean accuracy with."""
    return clean.on_images + weakest_part(Arm.of(run.name, [run]))


def failures(found: Found) -> list[RobustnessResult]:
    """What is surely below, the furthest first: on unmodified test images, then on changed ones."""
    clear = [r for r in found if r.clear(found[0])]
    return sorted(clear, key=lambda r: (r.changed_images, -r.sure_drop(found[0])))


def largest_failure(found: Found) -> RobustnessResult | None:
    return next(iter(failures(found)), None)


def relied_on(run: RunFiles, result: RobustnessResult) -> str:
    """What the groups of a result are, in a word: what the data says of its own, or their column; else nothing."""
    column = result.found_in.get("column", OWN_GROUPS)
    return group_attribute(run) if column == OWN_GROUPS else column


def _failure_clause(found: Found, run: RunFiles) -> str:
    """Clean accuracy and the largest failure; or that there is none, and what chance may explain.

    A clear drop on bias-conflicting samples says that the model relies on what the groups are.
    """
    clean = found[0].on_images
    if worst := largest_failure(found):
        if worst.compared and worst.name == CONFLICTING.name:  # the two parts say it, and not the mix of them
            bare, attribute = replace(worst, compared=""), relied_on(run, worst)
            why = f": the model relies on {attribute}" if attribute else ""
            return f"{clean}; {worst.base} % {worst.compared}, but {bare.share(span=True)}{why}"
        return f"{clean}, but {worst.share(span=True)}"
    lower = [r for r in found if (r.drop or 0.0) > 0]
    if lower:
        worst = max(lower, key=lambda r: r.drop or 0.0)
        return f"{clean}, no clear failure; lowest: {worst.share(span=True)}, which chance may explain"
    level = [r.title for r in found if r.drop is not None]
    # a model that guesses loses nothing: that is no praise
    return f"{clean}, and no drop in {_listed(level)}" if level and not found[0].guess else clean


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _overall(run: RunFiles, own: Found) -> str:
    """Who is ahead on the whole test set, and the largest failure of the model that was audited against another."""
    worst, text = largest_failure(own), lead_sentence(run.findings, run.name, brief=True)
    text += f"; {run.name} has {percent(own[0].value)} %" + (f" ({own[0].guess})" if own[0].guess else "")
    return f"{text}. Largest failure of {run.name}: {worst.share(span=True)}" if worst else text


def against_baseline(found: Sequence[tuple[RunFiles, Found]]) -> str:
    """What fails in the model that another was audited against, and what the other makes of it, on the same images.

    Of several failures the first that both models were measured on; a weak slice is of one model alone. Failures of the
    new model count where it is the worse one.
    """
    by_name = {run.name: (run, own) for run, own in found}
    for run, own in found:
        leads = [f for f, _, stands in all_leads(run.findings, run.measures) if stands and finite(f.value) is not None]
        for other in dict.fromkeys(f.where.get("against", "") for f in leads):
            if other not in by_name or other == run.name:
                continue
            theirs = by_name[other][1]
            paired = [f for f in leads if f.where.get("against") == other]
            clean = next((f for f in paired if f.where.get("measure") == CLEAN[1]), None)
            for worst in [*failures(theirs), *failures(own)]:
                for lead in (f for f in paired if f.where.get("measure") == worst.name):
                    mine = worst in failures(own) and worst not in failures(theirs)
                    if mine and (lead.value or 0.0) >= 0:
                        continue
                    if text := _told(run, own, other, theirs, lead):
                        return text + _cost(clean, lead, told=worst.changed_images)
    return ""


def _cost(clean: Finding | None, lead: Finding, *, told: bool) -> str:
    """What a gain elsewhere costs in clean accuracy, where that is clear; told: also where it gains."""
    low, high = (None, None) if clean is None else (finite(clean.low), finite(clean.high))
    if clean is None or clean is lead or low is None or high is None or not clean.value or low <= 0 <= high:
        return ""
    if clean.value > 0 and not told:
        return ""
    ends = sorted((abs(low), abs(high)))
    whose = "Its clean accuracy" if clean.n == lead.n else f"On all {clean.n:,} images its clean accuracy"
    gap = f"{percent(abs(clean.value))} points {'higher' if clean.value > 0 else 'lower'}"
    return f". {whose} is {gap} (95 % interval {percent(ends[0])} to {percent(ends[1])})"


def _told(run: RunFiles, own: Found, other: str, theirs: Found, lead: Finding) -> str:
    new, old = (next((r for r in found if r.name == lead.where["measure"]), None) for found in (own, theirs))
    if new is None or old is None or lead.value is None:
        return ""
    if abs(new.value - old.value - lead.value) > ROUNDING:  # of other parts of the data: beside them it would be false
        return ""
    gap = Difference(lead.value, finite(lead.low), finite(lead.high), 1)
    p = significance(run.findings, lead)
    covers_zero = gap.low is None or gap.high is None or gap.low <= 0 <= gap.high
    unclear = covers_zero or (p is not None and p >= 0.05)
    verb = "has" if unclear else "reaches" if lead.value > 0 else "falls to"
    base = old.compared.replace("on the same ", "on ", 1)  # the same as what comes next
    was = f"{old.base} % {base}, but {percent(old.value)} % {old.where}" if old.compared else old.share()
    word = relied_on(run, old) if old.name == CONFLICTING.name and old in failures(theirs) else ""
    text = f"{other} {f'relies on {word}:' if word else 'has'} {was}. {run.name} {verb} {percent(new.value)} %"
    text += f" ({_points(gap)}on the same {lead.n:,} images)"
    return text + (": no clear difference" if unclear else "")


def _points(gap: Difference) -> str:
    """A difference in words, such as "+18.6 points, 95 % interval 14.5 to 22.5, "."""
    value, span = f"{'-' if gap.value < 0 else '+'}{percent(abs(gap.value))} points, ", ""
    if gap.low is not None and gap.high is not None:
        span = f"95 % interval {percent(gap.low)} to {percent(gap.high)}, "
    return value + span


def over_seeds(groups: Sequence[Arm]) -> str:
    """What plain training, or the named baseline, does on bias-conflicting samples, and what the best other one does
    there, and on bias-aligned ones.

    Empty where there is no baseline, no other arm, or no clear drop from bias-aligned to bias-conflicting samples.
    """
    baseline = baseline_arm(groups)
    if baseline is None or len({arm.data for arm in groups}) > 1:
        return ""
    aligned, conflicting = baseline.measured(ALIGNED), baseline.measured(CONFLICTING)
    others = [arm for arm in groups if arm is not baseline and arm.measured(CONFLICTING)]
    if not others or aligned is None or conflicting is None or not aligned.differs(conflicting):
        return ""
    if (aligned.mean or 0.0) <= (conflicting.mean or 0.0):
        return ""
    best, _ = best_arm(others)
    gap = against(best, baseline, CONFLICTING)
    own = best.measured(CONFLICTING)
    if gap is None or own is None:
        return ""
    name = f"Plain training ({baseline.label})" if method_of(baseline) == PLAIN_TRAINING else baseline.label
    shortcut = group_attribute(baseline.runs[0]) or "a shortcut"
    text = f"{name} relies on {shortcut}: {share(aligned)} % on bias-aligned samples, but "
    text += f"{share(conflicting)} % on bias-conflicting ones. "
    if (turned := turned_upside_down(best)) is not None:
        return text + turned.text
    text += f"On these, {best.label}"
    text += f", the best of {len(others)} others," if len(others) > 1 else ""
    seeds = f"over {gap.n} seeds" if gap.n > 1 else "one seed"
    clear = gap.low > 0 if gap.low is not None else own.differs(conflicting) and gap.value > 0
    text += f" {'reaches' if clear else 'has'} {share(own)} % ({_points(gap)}{seeds})"
    labels = f"{group_attribute(baseline.runs[0]) or 'group'} labels"
    text += ": no clear gain" if not clear else "" if _needs_groups(best) else f" without {labels}"
    there, cost = best.measured(ALIGNED), against(best, baseline, ALIGNED)
    if there is None or cost is None or cost.value > -LARGE_LOSS:
        return text
    return f"{text}, and has {share(there)} % on bias-aligned ones"


def _needs_groups(arm: Arm) -> bool:
    """Whether a training was told groups; also where that is not known."""
    given: Any = arm.runs[0].settings.get("method")
    own = given.values() if isinstance(given, Mapping) else ()
    name = method_of(arm)
    return name not in METHODS or bool(METHODS[name].needs & Needs.GROUPS) or "group" in own


def unbroken(text: str) -> str:
    """A number stays on one line with its unit, its spread and its exponent."""
    kept = text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0").replace("n = ", "n\u00a0=\u00a0")
    return re.sub(r"(\de)-(\d)", "\\1\u2011\\2", kept)
