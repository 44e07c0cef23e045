"""What a training needs before it can begin: its data, its network, the method's state and settings with nothing left
open. Open this file to change how these are made, or what is refused because the data cannot serve it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holdfast.augment.basic import to_float
from holdfast.data import Dataset, load
from holdfast.data.loaders import choose_reading
from holdfast.data.splits import ArraySplit, channel_statistics, hash_data
from holdfast.data.unlabelled_images import few_labels
from holdfast.devices import autocast, resolve_device
from holdfast.errors import HoldfastError, require
from holdfast.files import at_home
from holdfast.methods import Context, State, method_of
from holdfast.models import BuiltModel, build_model, load_model
from holdfast.models.adapters import Normalised
from holdfast.models.heads import find_heads, freeze_backbone
from holdfast.models.saved_model import CARD, TENSORS
from holdfast.models.sources.python import make_module, maker_name
from holdfast.models.vae import LatentClassifier
from holdfast.module_state import evaluating
from holdfast.settings import DATA_READING_KEYS, ModelSettings, TrainSettings
from holdfast.settings.training_defaults import ChosenDefaults, choose_defaults
from holdfast.train.progress import Progress
from holdfast.train.rotation import train_rotation
from holdfast.train.step_parts import class_weights
from holdfast.train.training_facts import device_facts_of, facts_of
from holdfast.train.unlabelled import MinimiseSettings, train_vae

PRETRAINING_LR = 1e-3
OwnModel = nn.Module | Callable[..., nn.Module]
"""A module of the caller's, or what makes one."""


def from_run(settings: TrainSettings) -> TrainSettings:
    """Where the model is the folder of a run: its architecture, starting from its weights."""
    own = settings.model
    if not os.path.isfile(os.path.join(at_home(own.name), CARD)):
        return settings
    taken = own.pretrained or own.weights
    require(not taken, f"model {own.name} is a run, which brings its weights; leave pretrained and weights out")
    card, weights = load_model(at_home(own.name))[1], os.path.join(at_home(own.name), TENSORS)
    return replace(settings, model=replace(own, name=card.name, weights=weights))


class Prepared(NamedTuple):
    """A training that can begin. built: how the network was built, unless it was given. chosen: what of the settings
    follows from data and model."""

    settings: TrainSettings
    network: nn.Module
    built: BuiltModel | None
    state: State
    chosen: ChosenDefaults


def prepare(
    settings: TrainSettings, data: Dataset, *, model: OwnModel | None = None, progress: Progress | None = None
) -> Prepared:
    """The network, the method's state and settings with nothing left open; refuses what this data cannot serve."""
    loop = settings.loop
    lost = f"early_stopping {loop.early_stopping} needs a validation set; hold one out with --val 0.1"
    require(not loop.early_stopping or data.val is not None, lost)
    class_weights(loop.class_weights, data.train.labels, data.classes)
    held = not loop.select.startswith("val-") or data.val is not None
    require(held, f"select {loop.select} needs a validation set; hold one out with --val 0.1")
    grouped = data.val is not None and bool((data.val.groups >= 0).any())
    lost = "select val-worst-group needs groups in the validation set, and it has none; use val-worst-class"
    require(loop.select != "val-worst-group" or grouped, lost)
    require(loop.select != "oracle-test" or data.test is not None, "select oracle-test needs a test set")
    _check_pretraining(settings, model)
    progress = progress or Progress()
    built: BuiltModel | None = None

    def own_network() -> nn.Module:
        assert model is not None
        classes, channels = data.num_classes, data.shape[0]
        return model if isinstance(model, nn.Module) else make_module(model, num_classes=classes, channels=channels)

    if model is None:
        make = partial(build_for, data, settings.model, channel_statistics(data.train))
        network: nn.Module = (built := make()).model
        for note in dict.fromkeys(built.notes):
            progress.note(note)
    else:
        network = check_module(own_network(), data, resolve_device(loop.device), precision=loop.precision)
    chosen = choose(settings, data, network, own=model is not None)
    settings = chosen.settings
    for said in filter(None, (str(chosen), chosen.device_note, *_useless_rates(settings))):
        progress.note(said)

    def new_network() -> nn.Module:
        if model is None:
            made: nn.Module = make().model
        else:
            made = copy_of(model, progress) if isinstance(model, nn.Module) else own_network()
        if settings.model.freeze != "none":
            freeze_backbone(made)
        return made

    context = Context(
        num_classes=data.num_classes,
        labels=data.train.labels,
        groups=data.train.groups,
        epochs=settings.loop.epochs,
        make_model=new_network,
        unlabeled=None if data.unlabeled is None else data.unlabeled.read(torch.arange(len(data.unlabeled))),
    )
    return Prepared(settings, network, built, method_of(settings).start(context), chosen)


def _useless_rates(settings: TrainSettings) -> Iterator[str]:
    """Warnings of a learning rate that trains nothing, or never reaches its peak. They are not refused: a rate of 0
    shows what a training starts from, and a recipe's warm-up may meet a short trial."""
    lr, warmup, epochs = settings.optimizer.lr, settings.schedule.warmup or 0.0, settings.loop.epochs
    if lr == 0:
        yield "warning: lr is 0, so the weights stay as they are; give another --lr, or leave it out"
    elif warmup >= epochs:
        end = f"warmup {warmup:g} does not end within {epochs} epoch{'s' * (epochs > 1)}"
        yield f"warning: {end}, so the learning rate never reaches {lr:g}; give a shorter --warmup, or more --epochs"


def _check_pretraining(settings: TrainSettings, model: OwnModel | None = None) -> None:
    """Refuse a pre-training that is missing or cannot be. model: a module of the caller's."""
    own = settings.model
    frozen = "the encoder of vae-head is frozen; use --pretrain vae, or --model vae-classifier"
    require(own.pretrain != "rotation" or own.name != "vae-head", frozen)
    learned = own.pretrained or bool(own.weights) or own.pretrain != "none" or model is not None
    fresh = f"freeze {own.freeze} would train a head on the random features of a fresh {own.name}"
    require(own.freeze == "none" or learned, f"{fresh}; add --pretrained, --weights or --pretrain")
    encoder = own.pretrain == "vae" or bool(own.weights) or model is not None
    remedy = "give it one with --pretrain vae, or --weights"
    require(own.name != "vae-head" or encoder, f"vae-head trains a head on a frozen encoder; {remedy}")
    made = f"networks that are built by name, and this is a {maker_name(model)} of your own"
    remedy = "name one with model, or leave pretrain out"
    require(own.pretrain == "none" or model is None, f"pretrain {own.pretrain} is for {made}; {remedy}")


def pretrain(
    network: nn.Module, data: Dataset, settings: TrainSettings, *, device: torch.device, note: Callable[[str], None]
) -> None:
    """Bring a fresh classifier to where its training starts: weights learned from the images without labels."""
    model, loop = settings.model, settings.loop
    images = data.train if data.unlabeled is None else data.unlabeled
    own = MinimiseSettings(model.pretrain_for, loop.batch_size, PRETRAINING_LR, schedule="cosine", seed=loop.seed)
    precision = "fp32" if loop.precision == "fp16" else loop.precision
    own = replace(own, precision=precision, capture=loop.capture != "off")
    assert isinstance(network, Normalised)
    if model.pretrain == "vae":
        inner = network.net
        if not isinstance(inner, LatentClassifier):
            remedy = "use --model vae-head or vae-classifier, or --pretrain rotation"
            raise HoldfastError(f"{model.name} has no VAE's encoder; {remedy}")
        inner.start_from(train_vae(images, inner.settings, own, device=device, note=note).model)
        return
    turned = train_rotation(images, own, model=model.name, device=device, note=note).model
    heads = tuple(f"{name}." for name, _ in find_heads(network))
    fresh, learned = network.state_dict(), turned.state_dict()
    network.load_state_dict({k: fresh[k] if k.startswith(heads) else learned[k] for k in fresh})


def fingerprint(data: Dataset) -> str:
    """SHA-256 of everything that a training reads of its data."""
    return hash_data(data, (data.train, data.val, data.test, data.unlabeled))["hash"]


def load_data(settings: TrainSettings, source: Any = None) -> Dataset:
    """The data set that settings name, or that a user has in hand, read as they say."""
    s = settings.data
    data = load(
        s.name if source is None else source,
        **{key: getattr(s, key) for key in DATA_READING_KEYS if key not in ("labels", "unlabeled")},
    )
    if s.labels is None and s.unlabeled is None:
        return data
    return few_labels(data, s.labels, unlabeled=s.unlabeled, root=s.root, seed=s.data_seed, confine=s.confine)


def choose_ahead(settings: TrainSettings) -> ChosenDefaults:
    """What a training would choose, found without its weights: nothing is downloaded or read for them."""
    settings = from_run(settings.resolved())
    data = load_data(settings)
    bare = replace(settings.model, pretrained=False, weights=None)
    network = build_for(data, bare, channel_statistics(data.train)).model
    return choose(settings, data, network)


def choose(settings: TrainSettings, data: Dataset, network: nn.Module, *, own: bool = False) -> ChosenDefaults:
    """Settings with nothing left open, for this data, this network and the device that the settings name."""
    device = device_facts_of(settings, data, network, resolve_device(settings.loop.device), own=own)
    chosen = choose_defaults(settings, facts_of(settings, data, network, own=own), device)
    return replace(chosen, reading=_reading(chosen.settings, data))


def _reading(settings: TrainSettings, data: Dataset) -> str:
    """How many workers read the training images, and why; empty where that was said, or where none could."""
    own, split = settings.data, data.train
    if own.workers is not None or own.loader != "auto" or isinstance(split, ArraySplit):
        return ""
    found = choose_reading(split, passes=settings.loop.epochs, decode=own.decode)
    return f"{found.workers}: {found.why}"


def build_for(
    data: Dataset, model: ModelSettings, statistics: tuple[tuple[float, ...], tuple[float, ...]]
) -> BuiltModel:
    """A network for the images and classes of a data set. statistics: the mean and deviation of its channels."""
    return build_model(
        model.name,
        num_classes=data.num_classes,
        in_channels=data.shape[0],
        image_size=data.shape[1:],
        statistics=statistics,
        pretrained=model.pretrained,
        weights=model.weights,
    )


def copy_of(model: nn.Module, progress: Progress) -> nn.Module:
    """An auxiliary network like a module of the caller's, which nobody else can build."""
    name = type(model).__name__
    try:
        made = deepcopy(model)
    except Exception as error:  # whatever the caller's parts raise
        why = f"this method needs a second network, and this {name} cannot be copied: {error}"
        raise HoldfastError(f"{why}; fix that, or use a method without one, such as erm") from error
    progress.note(f"the auxiliary network is a copy of this {name}, with the weights that it came with")
    return made


def check_module(model: nn.Module, data: Dataset, device: torch.device, *, precision: str) -> nn.Module:
    """Bring a module of the caller's to the device, and refuse one that does not give logits of the data's classes."""
    images = to_float(data.train.read(torch.arange(min(2, len(data.train)))).to(device))
    try:
        with torch.no_grad(), evaluating(model.to(device)), autocast(precision, device):
            outputs = model(images)
    except RuntimeError as error:
        what = f"this {type(model).__name__} cannot take images of shape {data.shape} (C, H, W)"
        raise HoldfastError(f"{what}: {error}; give a model that does, or other images with image_size") from error
    got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    meant = [name for name in ("logits", "out") if isinstance(getattr(outputs, name, None), Tensor)]
    wanted = (len(images), data.num_classes)
    shapes = f"{wanted} for {len(images)} images of {data.num_classes} classes, and gives {got}"
    remedy = f"wrap it so that it returns .{meant[0]}" if meant else "change its last layer"
    require(got == wanted, f"this {type(model).__name__} must give logits of shape {shapes}; {remedy}")
    trained = any(p.requires_grad for p in model.parameters())
    require(trained, f"this {type(model).__name__} has no parameter to train; let some require a gradient")
    return model
