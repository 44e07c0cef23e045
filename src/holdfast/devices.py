"""Devices: which one to use, number formats, work side by side on a GPU, and CUDA graphs. All capturing is done here.

What runs beside other work begins after what is under way and is over before what follows, so memory is never reused
too early. In a CUDA graph it becomes a parallel branch. On a CPU one comes after the other.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, require

A = TypeVar("A")
B = TypeVar("B")

WARM_UP = 3
"""Eager calls before a function is captured: kernels are chosen and optimiser states made in them."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """A device that this machine has: ``auto`` is the GPU where there is one.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise HoldfastError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        require(count > (device.index or 0), f"device {name!r} is not there ({count} GPUs found); use --device cpu")
    else:
        require(device.type == "cpu", f"device {name!r} is not supported; use cpu or cuda")
    return device


@contextmanager
def kernels(precision: str, *, deterministic: bool, search: bool = True) -> Iterator[None]:
    """TF32 exactly where it was asked for, and deterministic or fastest kernels: torch's switches, restored afterwards.

    search: try all kernels for each new shape of batch. Where shapes change all the time that takes longer than it
    saves.
    """
    cudnn = torch.backends.cudnn
    before = (cudnn.benchmark, cudnn.deterministic)
    strict = torch.are_deterministic_algorithms_enabled()
    cudnn.benchmark, cudnn.deterministic = search and not deterministic, deterministic
    turn_on = deterministic and not strict
    if turn_on:  # the call imports torch's compiler, which takes longer than torch itself
        torch.use_deterministic_algorithms(True)
    try:
        with tf32_as_asked(precision):
            yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
        if turn_on:
            torch.use_deterministic_algorithms(False)


@contextmanager
def tf32_as_asked(precision: str) -> Iterator[None]:
    """TF32 exactly where it was asked for: torch takes it for convolutions unless it is told otherwise."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (cuda.allow_tf32, cudnn.allow_tf32)
    cuda.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def exact(device: torch.device, *, search: bool = False) -> Iterator[None]:
    """All digits of float32, for derivatives that shorter formats would drown in noise.

    search: for the fastest kernels, which pays where the same shapes come often. Not for second derivatives: those that
    torch makes are so odd that the search takes a minute.
    """
    plain = kernels("fp32", deterministic=False, search=search) if device.type == "cuda" else nullcontext()
    with plain, torch.autocast(device.type, enabled=False):
        yield


def autocast(precision: str | torch.dtype | None, device: torch.device) -> torch.autocast:
    """The autocast region of a precision. Its weight cache is off: a CUDA graph must not keep casts of old weights."""
    dtype = AUTOCAST.get(precision) if isinstance(precision, str) else precision
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False)


def memory_format(channels_last: str) -> torch.memory_format:
    """How images and weights lie in memory, of a setting that is "on" or "off"."""
    return torch.channels_last if channels_last == "on" else torch.contiguous_format


def side_by_side(first: Callable[[], A], second: Callable[[], B], device: torch.device) -> tuple[A, B]:
    """Results of both."""
    if device.type != "cuda":
        return first(), second()
    here, there = torch.cuda.current_stream(device), _stream(device, "side by side")
    there.wait_stream(here)
    with torch.cuda.stream(there):
        one = first()
    other = second()
    here.wait_stream(there)
    return one, other


def ahead(
    prepare: Callable[[], A], aside: Callable[[A], Any], main: Callable[[A], B], device: torch.device
) -> tuple[A, B]:
    """Results of ``prepare`` and of ``main``, which needs the first; so does ``aside``, which runs beside it.

    ``prepare`` and ``aside`` share a stream: a backward pass runs where its forward pass ran.
    """
    if device.type != "cuda":
        prepared = prepare()
        aside(prepared)
        return prepared, main(prepared)
    here, there = torch.cuda.current_stream(device), _stream(device, "ahead")
    there.wait_stream(here)
    with torch.cuda.stream(there):
        prepared = prepare()
        here.wait_event(there.record_event())
        aside(prepared)
    result = main(prepared)
    here.wait_stream(there)
    return prepared, result


@cache
def _stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream of its own on a GPU: CUDA graphs cannot be captured on the default one."""
    if device.type != "cuda":
        yield
        return
    outer, own = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    own.wait_stream(outer)
    with torch.cuda.stream(own):
        yield
    outer.wait_stream(own)


@contextmanager
def branch(tensors: Sequence[Tensor]) -> Iterator[Callable[[], None]]:
    """Work that a recording may run in parallel with what follows, until that calls what this yields.

    A pass over a list of tensors leaves part of the device idle, so two that do not need each other go well together.
    Outside a recording it runs in order. tensors: some of what it works on.
    """
    if not tensors or not tensors[0].is_cuda or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        yield lambda: torch.cuda.current_stream().wait_stream(aside)


def fetch(values: Tensor) -> Callable[[], Tensor]:
    """Begin to copy values to the host. The call gives them: it waits for them, but not for what was queued since, so
    that the device has work meanwhile."""
    if not values.is_cuda:
        return lambda: values
    host = torch.empty_like(values, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> Tensor:
        copied.synchronize()
        return host

    return wait


@dataclass(frozen=True, eq=False)
class CapturedCall(Generic[A]):
    """A call as a CUDA graph. inputs: the tensors it reads. result: what it gave; replays write it again."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    result: A

    def __call__(self, *given: Tensor) -> A:
        """Copy values into the inputs, where some are given, and replay."""
        if given:
            for own, value in zip(self.inputs, given, strict=True):
                own.copy_(value)
        self.graph.replay()
        return self.result


def capture(
    work: Callable[..., A],
    *inputs: Tensor,
    device: torch.device,
    generators: Sequence[torch.Generator] = (),
    rehearsals: int = 0,
    stream: torch.cuda.Stream | None = None,
    pool: Any = None,
    empty_cache: bool = True,
) -> CapturedCall[A]:
    """``work(*inputs)`` as a CUDA graph; capturing runs nothing.

    inputs: tensors that stay where they are. generators: on the device, those that ``work`` draws from beside torch's
    own. rehearsals: how often to run ``work`` before, where nothing has warmed it up. stream: where to capture
    (default: one of torch's). pool: memory to share with other graphs. empty_cache: release the allocator's
    free memory first, so that the graph can have it; without, later tensors can have the addresses of earlier ones.

    A failed capture leaves the generators as they were.
    """
    if rehearsals:
        with own_stream(device):
            for _ in range(rehearsals):
                work(*inputs)
    index = torch.cuda.current_device() if device.index is None else device.index
    drawn_from = (*generators, torch.cuda.default_generators[index])
    before = [generator.get_state() for generator in drawn_from]
    graph = torch.cuda.CUDAGraph()
    try:
        for generator in generators:
            graph.register_generator_state(generator)
        with no_collection(), _capturing(graph, device, stream, pool, empty_cache=empty_cache):
            result = work(*inputs)
    except BaseException:
        for generator, state in zip(drawn_from, before, strict=True):
            _release(generator, state)
        raise
    return CapturedCall(graph, inputs, result)


class CaptureAfterWarmUp:
    """A function of tensors whose calls are replayed from CUDA graphs, one for each size of its first input.

    The first calls of a size run eagerly: they count like any other and serve as the warm-up. Capturing runs nothing,
    so eager and captured calls are the same sequence of updates. Where a call cannot be captured, ``note`` is
    called with the reason and all calls run eagerly from then on; without ``note`` that is an error. The current
    stream must not be the default one: see ``own_stream``.
    """

    def __init__(
        self,
        work: Callable[..., None],
        *,
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.work, self.device, self.generators, self.note = work, device, generators, note
        self._failed = False
        self._called: Counter[int] = Counter()
        self._captured: dict[int, CapturedCall[None]] = {}

    def __call__(self, *inputs: Tensor) -> None:
        size = len(inputs[0])
        if self._failed or self._called[size] < WARM_UP:
            self._called[size] += 1
            return self.work(*inputs)
        if size not in self._captured:
            try:
                self._captured[size] = capture(
                    self.work,
                    *(tensor.clone() for tensor in inputs),
                    device=self.device,
                    generators=self.generators,
                    stream=torch.cuda.current_stream(self.device),
                )
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                if self.note is None:
                    raise HoldfastError(f"the step cannot be captured: {reason}; use --capture off") from error
                self.note(f"the step cannot be captured ({reason}); it runs eagerly")
                self._failed = True
                return self.work(*inputs)
        return self._captured[size](*inputs)


class Recordings:
    """Graphs of work done before, by what they depend on.

    An eager backward pass allocates its gradients again, but from a warm cache they get the addresses of the step
    before. Work is done eagerly the first time its key occurs, recorded the second, and replayed from then on, so that
    tensors whose addresses change cost time and nothing else.

    limit: how many keys are kept before all are forgotten.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._known: dict[Hashable, CapturedCall[object] | None] = {}
        self._pool: Any = None

    def clear(self) -> None:
        """Forget everything: tensors that the work uses, other than those in its keys, have moved."""
        self._known.clear()
        self._pool = None  # a pool dies with its last graph

    def run(self, key: Hashable, work: Callable[[], A]) -> A:
        """What ``work`` gives. The key has to hold all that it depends on, down to the addresses of tensors.

        Replays give the tensors of the recording again, with new contents.
        """
        if torch.cuda.is_current_stream_capturing():  # somebody else's graph takes it in
            return work()
        if key not in self._known:
            if len(self._known) >= self._limit:
                self.clear()
            self._known[key] = None
            return work()
        known = self._known[key]
        if known is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            # without emptying the allocator's cache: the gradients' addresses would go with it
            here = torch.device("cuda", torch.cuda.current_device())
            known = self._known[key] = capture(work, device=here, pool=self._pool, empty_cache=False)
        return known()  # type: ignore[return-value]


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected while this is open: a graph that is removed during a capture invalidates that."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _capturing(
    graph: torch.cuda.CUDAGraph, device: torch.device, stream: torch.cuda.Stream | None, pool: Any, *, empty_cache: bool
) -> Iterator[None]:
    mode = "thread_local"  # a loader's own thread may pin memory while we capture
    if empty_cache:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
            yield
        return
    aside = stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        graph.capture_begin(pool=pool, capture_error_mode=mode)
        try:
            yield
        finally:
            graph.capture_end()


def _release(generator: torch.Generator, state: Tensor) -> None:
    """Free a generator from a capture that failed: it would refuse to draw outside of it."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
