"""The jobs of a VAE study by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.detect.study.bench import Bench
from holdfast.detect.study.judging import Record
from holdfast.detect.study.ours import LOCAL, few_labels_job, labelled_job, our_job
from holdfast.detect.study.report import report_job

Job = Callable[[Bench], Record]

JOBS: dict[str, Job] = {
    "report-latent16-lr0.001": partial(report_job, latent=16, lr=1e-3, heads=True),
    "ours": our_job,
    "labels-fixmatch": partial(few_labels_job, way="fixmatch"),
    "ours-changes": partial(our_job, changes=True),
    "ours-local": partial(our_job, changes=True, members=LOCAL),
    "labels-fixmatch-started": partial(few_labels_job, way="fixmatch", started=True),
    **{f"report-latent{n}-lr0.001": partial(report_job, latent=n, lr=1e-3) for n in (2, 32)},
    "report-learned-sigma": partial(report_job, latent=16, lr=1e-3, learned=True),
    **{f"report-latent16-lr{rate:g}": partial(report_job, latent=16, lr=rate) for rate in (1e-2, 5e-4, 1e-4, 1e-5)},
    **{
        f"report-latent16-sgd-lr{rate:g}": partial(report_job, latent=16, lr=rate, optimizer="sgd")
        for rate in (1e-3, 1e-4, 3e-5, 1e-5)
    },
    "labels-rotation": partial(few_labels_job, way="rotation"),
    "labels-supervised": partial(few_labels_job, way="supervised"),
    "ours-labelled": labelled_job,
}
"""What is done with every seed; what the conclusions rest on comes first."""
