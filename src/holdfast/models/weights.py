"""Weights: tensors from files, without running anything the files contain, and from there into a model: all of them, or
an error and none; also where a library spells them otherwise."""

from __future__ import annotations

import hashlib
import pickle
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from holdfast.errors import HoldfastError, explaining, require
from holdfast.files import exists
from holdfast.models.adapters import Normalised
from holdfast.models.heads import find_heads, head_note
from holdfast.models.source_types import PICKLED

NESTS = ("state_dict", "model", "model_state", "model_state_dict")
"""Where training scripts keep the weights inside a checkpoint."""
PREFIXES = ("module.", "model.", "_orig_mod.", "net.")
"""What DDP, training scripts, torch.compile and holdfast put before a network's own names."""
COUNTERS = ("num_batches_tracked", "n_averaged")
"""Entries that do not change what a model computes; older files lack them."""
CHECKSUM = "holdfast.sha256"
"""The key under which our safetensors files keep :func:`hash_tensors` of what is in them."""
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
"""Training-time classifiers in torchvision's Inception files, which holdfast does not build."""


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors file, or of a .pth file under torch's tensors-only unpickler."""
    path = Path(path)
    require(exists(path), f"weights {path} do not exist; give --weights a .safetensors or .pth file")
    require(path.is_file(), f"weights {path} is a folder; give a file, such as {path / 'model.safetensors'}")
    known = path.suffix in (".safetensors", *PICKLED)
    require(known, f"weights {path} must be .safetensors or {', '.join(PICKLED)}, not {path.suffix!r}")
    found = _unwrap(_read(path), path)
    for name, value in found.items():
        remedy = "convert it to float32, with its scale if it has one, and save it again"
        held = f"{name} as {_dtype(value)}, where plain numbers are needed"
        require(_is_plain(value), f"weights {path} hold {held}; {remedy}")
    return found


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor's numbers are what they say: dense, real, there at all, and not to be scaled by others."""
    packed = value.is_quantized or (value.is_floating_point() and value.element_size() < 2)
    return value.layout == torch.strided and not (packed or value.is_complex() or value.is_meta)


def _dtype(value: Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    if value.is_meta:
        return f"{kind} without values"
    return kind if value.layout == torch.strided else f"{kind} in {str(value.layout).removeprefix('torch.')} layout"


def _read(path: Path) -> Any:
    safe = path.suffix == ".safetensors"
    kind = "a safetensors file" if safe else "from torch.save"
    with explaining(f"cannot read weights {path}", f"it is damaged or not {kind}"):
        if safe:
            return _read_safetensors(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise HoldfastError(
                f"weights {path} hold more than tensors, a whole pickled model perhaps, or are damaged; loading them "
                "could run any code. If you trust the file, save its tensors alone with torch.save(model.state_dict(), "
                "'weights.pth'); or, to audit it, give a function that loads and returns it: python:module:function"
            ) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        stated = (file.metadata() or {}).get(CHECKSUM)
    require(
        stated in (None, hash_tensors(tensors) or ""),
        f"weights {path} are damaged: they do not match the checksum they were saved with; put a copy back, or, where "
        "they are of a run, let 'holdfast train --resume --out RUN' write them anew from its checkpoint",
    )
    return tensors


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file of tensors, wherever and however they are stored, with its checksum."""
    # Cloned: safetensors refuses tensors that share memory or lie in channels_last order.
    plain = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    return save(plain, metadata={CHECKSUM: hash_tensors(plain) or ""})


def _unwrap(value: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside what was saved, however deep a training script nested it."""
    while isinstance(value, Mapping):
        inner = next((value[key] for key in NESTS if isinstance(value.get(key), Mapping)), None)
        if inner is None:
            break
        value = inner
    tensors = {str(k): v for k, v in value.items() if isinstance(v, Tensor)} if isinstance(value, Mapping) else {}
    remedy = "save model.state_dict() with torch.save"
    require(bool(tensors), f"weights {path} hold no named tensors but {_kind(value)}; {remedy}")
    return tensors


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with the keys {', '.join(map(str, list(value)[:5])) or 'none'}"
    return f"a {type(value).__name__}"


def takes_colour(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the first layer takes three channels; deeper ones take more, depthwise ones take one."""
    return any(value.ndim == 4 and value.shape[1] == 3 for value in tensors.values())


def hash_tensors(tensors: Mapping[str, Tensor]) -> str | None:
    """SHA-256 of names, types, shapes and bytes, in the order of names; None where there is no tensor.

    The same numbers under the same names give the same hash, wherever they were saved.

    >>> a, b = torch.tensor([1.0]), torch.tensor([2.0])
    >>> hash_tensors({"a": a, "b": b}) == hash_tensors({"b": b, "a": a}) != hash_tensors({"a": b, "b": a})
    True
    """
    if not tensors:
        return None
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}/{value.dtype}/{tuple(value.shape)}/".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


@dataclass(frozen=True)
class WeightsLoaded:
    """How weights were copied into a model.

    notes: what to tell the user. fresh_heads: the notes on heads that the weights do not have, or not in this size.
    normalisation: whether mean and std came with them.
    """

    notes: tuple[str, ...]
    fresh_heads: tuple[str, ...]
    normalisation: bool


def load_weights(model: Normalised, path: str | Path) -> tuple[str, ...]:
    """Copy a file's weights into a model; what to tell the user about it.

    A head of another size keeps its own. Everything else must be there and fit, or nothing is copied.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> from holdfast.models import build_model
    >>> first, second = (build_model("convnet", num_classes=2, in_channels=1, image_size=8).model for _ in range(2))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     save_file(first.net.state_dict(), f"{place}/own.safetensors")
    ...     said = load_weights(second, f"{place}/own.safetensors")
    >>> all(bool((a == b).all()) for a, b in zip(first.net.parameters(), second.net.parameters(), strict=True))
    True
    """
    return load_tensors(model, read_tensors(path), origin=str(path)).notes


def load_tensors(model: Normalised, tensors: Mapping[str, Tensor], *, origin: str) -> WeightsLoaded:
    """Like :func:`load_weights`, for tensors already read. origin: what to call them in messages."""
    prefix = find_prefix(tensors, model.net.state_dict())
    inner = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    found, problems, fresh_heads = _fit(model.net, inner)
    notes: list[str] = []
    if problems and (translated := respell(model.net, inner)) is not None:
        second = _fit(model.net, translated)
        if not second[1]:
            found, problems, fresh_heads = second
            notes.append("names and sizes in the weights translated to this model's")
    normalise = _normalisation(tensors, prefix)
    problems += _misfits({"mean": model.mean, "std": model.std}, normalise)
    if "std" in normalise and not bool((normalise["std"] > 0).all()):
        problems.append("std not above 0")
    outside = [n for n in tensors if not n.startswith(prefix) and n.removeprefix(_outer(prefix)) not in normalise]
    problems += _listed("unexpected", [n for n in outside if not n.endswith(COUNTERS)])
    if problems:
        why = f"{'; '.join(problems)}. Check --model, --image-size and the number of channels"
        raise HoldfastError(f"weights {origin} do not fit this {type(model.net).__name__}: {why}")
    copy(model.net.state_dict(), found)
    copy(model.state_dict(), normalise)
    if normalise:
        notes.append(f"normalisation from the weights: {model.extra_repr()}")
    else:
        notes.append(f"no normalisation in the weights; kept: {model.extra_repr()}")
    if stripped := _outer(prefix) if normalise else prefix:
        notes.append(f"prefix {stripped!r} stripped from the names in the weights")
    return WeightsLoaded((*fresh_heads, *notes), tuple(fresh_heads), bool(normalise))


def find_prefix(names: Iterable[str], expected: Iterable[str]) -> str:
    """The chain of known prefixes under which most expected names are found; the shortest of equals.

    >>> find_prefix(["module.net.fc.weight", "module.mean"], ["fc.weight"])
    'module.net.'
    >>> find_prefix(["net.weight"], ["net.weight"])
    ''
    """
    names, expected = set(names), list(expected)
    chains = {""}
    for name in names:
        chain = ""
        while step := next((p for p in PREFIXES if name.startswith(chain + p)), ""):
            chain += step
            chains.add(chain)
    shortest_first = sorted(chains, key=lambda chain: (len(chain), chain))
    return max(shortest_first, key=lambda chain: sum(chain + name in names for name in expected))


def _fit(net: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """(which tensors go where, what is wrong, what to say of heads that are left fresh)."""
    own = net.state_dict()
    found = {name: tensors[name] for name in own if name in tensors}
    notes: list[str] = []
    dropped: set[str] = set()
    for head, _ in find_heads(net):  # one that is absent or of another size stays fresh
        ours, theirs = own[f"{head}.weight"].shape, getattr(found.get(f"{head}.weight"), "shape", None)
        if theirs is None:
            notes.append(f"head {head}: not in the weights; left as freshly initialised")
        elif len(theirs) == len(ours) and theirs[0] != ours[0] and theirs[1:] == ours[1:]:
            notes.append(head_note(head, theirs[0], ours[0]))
        else:
            continue
        dropped |= {f"{head}.weight", f"{head}.bias"}
    found = {name: value for name, value in found.items() if name not in dropped}
    missing = [n for n in own if n not in found and n not in dropped and not n.endswith(COUNTERS)]
    skipped = AUXILIARY if hasattr(net, "aux_logits") else ()
    unexpected = [n for n in tensors if n not in own and not n.endswith(COUNTERS) and not n.startswith(skipped)]
    problems = _listed("missing", missing) + _listed("unexpected", unexpected) + _misfits(own, found)
    return found, problems, notes


def _normalisation(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """mean and std as holdfast saves them, beside the network."""
    names = {name: _outer(prefix) + name for name in ("mean", "std")}
    beside = prefix.endswith("net.") and all(full in tensors for full in names.values())
    return {name: tensors[full] for name, full in names.items()} if beside else {}


def _outer(prefix: str) -> str:
    return prefix.removesuffix("net.")


def _misfits(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    bad = [n for n, value in found.items() if value.shape != own[n].shape]
    whole = [n for n, value in found.items() if own[n].is_floating_point() and not value.is_floating_point()]
    shapes = [f"{n} {_shape(found[n])} instead of {_shape(own[n])}" for n in bad]
    kinds = [f"{n} {str(found[n].dtype).removeprefix('torch.')}" for n in whole]
    return _listed("of another shape", shapes) + _listed("in whole numbers, quantised perhaps", kinds)


def _listed(what: str, names: list[str]) -> list[str]:
    """A count and the first few.

    >>> _listed("missing", ["a", "b", "c", "d"])
    ['4 missing (a, b, c, ...)']
    """
    more = ", ..." if len(names) > 3 else ""
    return [f"{len(names)} {what} ({', '.join(names[:3])}{more})"] if names else []


def _shape(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "a single number"


def respell(net: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The tensors as ``net`` names and shapes them, where its library knows how; None where it does not.

    timm keeps a filter beside each architecture, which also resamples position embeddings to another image
    size. torchvision's published DenseNet files keep the names of its first release.
    """
    translate = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if translate is None:
        return {re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2.", k): v for k, v in tensors.items()}
    try:
        return dict(translate(dict(tensors), net))
    except Exception:
        return None  # the file is not of a kind the filter was written for: the caller says what does not fit


@torch.no_grad()
def copy(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Write values into a state dict's tensors. Some networks' load_state_dict demands metadata that no
    safetensors file carries."""
    for name, value in found.items():
        own[name].copy_(value)
