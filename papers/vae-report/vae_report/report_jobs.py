"""The report's own runs: its network, its training, its head with each of its mistakes, its map."""

from __future__ import annotations

import time
from typing import Literal

import torch

from holdfast.detect.description import probe
from holdfast.detect.detectors import make_detector
from holdfast.detect.evaluation import Threshold
from holdfast.detect.features import VAEExtractor, extract
from holdfast.models.vae import VAE, VAESettings, report_settings
from holdfast.rng import derive
from holdfast.train.unlabelled import train_vae
from vae_report.bench import Bench
from vae_report.few_labels import Mistakes, accuracy, train_few_labels
from vae_report.judging import SHOWN, Record, judged, reconstructions, report_cut, rounded, test_sets, values


def report_job(
    bench: Bench,
    *,
    latent: int,
    lr: float,
    optimizer: Literal["adam", "sgd"] = "adam",
    heads: bool = False,
    learned: bool = False,
    everything: bool = False,
) -> Record:
    """The report's network and training; with its fixed σ², or with σ learned and everything else as it was.

    everything: train on all unlabelled images, as the report did; thresholds are then set on the labelled ones, which
    no VAE is trained on.
    """
    data, s = bench.data, bench.settings
    shape = data.unlabeled.shape
    vae_settings = VAESettings(shape, "report", latent) if learned else report_settings(shape, latent=latent)
    loop = bench.loop(s.epochs, s.batch_size, lr, optimizer=optimizer)
    train, held = (data.unlabeled.images, data.labeled.images) if everything else bench.parts
    begun = time.perf_counter()
    trained = train_vae(train, vae_settings, loop, device=s.device)
    seconds = time.perf_counter() - begun
    extractor = VAEExtractor(trained.model, drawn=True, seed=derive(bench.seed, "study/drawn"))
    normal = extract(extractor, held)
    record: Record = {
        "settings": {**vae_settings.to_json(), "optimizer": optimizer, "lr": lr, "epochs": s.epochs},
        "train_seconds": seconds,
        "history": list(trained.history),
        "held_out": float(make_detector("elbo").score_features(normal).mean()),
        "sigma": trained.model.sigma,
        "scores": {},
        "values": {"elbo": {}},
        "reconstructions": reconstructions(trained.model, held[:SHOWN]),
    }
    for split, images in test_sets(data):
        seen, truth = extract(extractor, images), data.anomalous(images)
        for name in ("elbo", "elbo-drawn", "reconstruction", "kl"):
            detector = make_detector(name)
            found, level = detector.score_features(seen), Threshold.from_normal(detector.score_features(normal))
            record["scores"].setdefault(name, {})[split] = judged(found, truth, images, data, level)
            if name == "elbo":
                record["values"][name][split] = values(found, truth)
                record.setdefault("report_cut", {})[split] = report_cut(found, truth)
    record["map"] = _map(trained.model, bench)
    if heads:
        record["heads"] = _heads(trained.model, bench)
    return record


def _heads(vae: VAE, bench: Bench) -> Record:
    """The report's classifier on the frozen encoder, with each of its mistakes, and fine-tuned without them."""
    s, (images, labels, test) = bench.settings, bench.labelled
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(derive(bench.seed, "study/80-20")))
    kept, rest = order[: round(0.8 * len(labels))], order[round(0.8 * len(labels)) :]  # as the report split them
    ways = {
        "frozen, all mistakes": ("frozen", Mistakes(True, True, True)),
        "frozen, no activation in the head": ("frozen", Mistakes(linear_head=True)),
        "frozen, both mistakes": ("frozen", Mistakes(True, True)),
        "frozen, softmax before the loss": ("frozen", Mistakes(softmax_before_loss=True)),
        "frozen, z drawn at random": ("frozen", Mistakes(sampled_z=True)),
        "frozen, no mistakes": ("frozen", Mistakes()),
        "fine-tuned, no mistakes": ("fine-tuned", Mistakes()),
    }
    found: Record = {"accuracy": {}, "loss": {}, "history": {}}
    for name, (way, mistakes) in ways.items():
        made = train_few_labels(
            way,
            images[kept],
            labels[kept],
            num_classes=len(bench.data.classes),
            vae=vae,
            mistakes=mistakes,
            loop=bench.loop(s.head_epochs, s.batch_size, 1e-3),
            validation=(images[rest], labels[rest]),
            device=s.device,
        )
        found["history"][name] = list(made.history)
        found["accuracy"][name], found["loss"][name] = accuracy(
            made.model, test, test.labels, seed=bench.seed, device=s.device
        )
    return found


def _map(vae: VAE, bench: Bench) -> Record:
    """How well the classes lie apart in μ, and in the random z that the report drew instead; the points of two."""
    labelled = bench.data.labeled
    with torch.no_grad():
        x = (labelled.images.float() / 255).to(bench.settings.device)
        parts = [vae.encode(part) for part in torch.split(x, 500)]
    mean, log_var = (torch.cat(p).cpu() for p in zip(*parts, strict=True))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(derive(bench.seed, "study/map")))
    places = {"mean": mean, "drawn": mean + (0.5 * log_var).exp() * noise}
    found: Record = {name: probe(z, labelled.labels, seed=bench.seed) for name, z in places.items()}
    if mean.shape[1] == 2:
        found["points"] = {name: rounded(z) for name, z in places.items()} | {"labels": labelled.labels.tolist()}
    return found
