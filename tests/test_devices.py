"""CUDA graphs without a GPU: when work runs eagerly, is captured or replayed, and what a failed capture leaves behind.

A fake graph keeps the work it was given and runs it at each replay; capturing itself runs nothing, as on a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import devices
from holdfast.attacks.captured import CapturedAttack
from holdfast.attacks.pgd import pgd
from holdfast.devices import WARM_UP, CaptureAfterWarmUp, Recordings, capture, kernels, own_stream, resolve_device
from holdfast.errors import HoldfastError

CPU = torch.device("cpu")


class FakeStream:
    def wait_stream(self, other: FakeStream) -> None: ...


class FakeGraph:
    """made: all graphs of a test."""

    made: list[FakeGraph]

    def __init__(self) -> None:
        self.work: Callable[[], object] = lambda: None
        self.generators: list[torch.Generator] = []
        self.kept_cache = False
        FakeGraph.made.append(self)

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def capture_begin(self, *, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.kept_cache = True

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        self.work()


@pytest.fixture(autouse=True)
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's CUDA functions that capturing uses, such that they do nothing on a CPU."""

    @contextmanager
    def graph(graph: FakeGraph, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        yield

    FakeGraph.made = []
    fakes: dict[str, Any] = {
        "CUDAGraph": FakeGraph,
        "graph": graph,
        "Stream": lambda device=None: FakeStream(),
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device=None: FakeStream(),
        "current_device": lambda: 0,
        "default_generators": (torch.Generator(),),
        "graph_pool_handle": lambda: "pool",
        "is_current_stream_capturing": lambda: False,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(devices, "_release", lambda generator, state: generator.set_state(state))


class Work:
    """Adds up what it is given. log: the sums that really were computed, on captured memory or not."""

    def __init__(self, *, fails: bool = False) -> None:
        self.total, self.log, self.calls, self.fails = torch.zeros(()), [], 0, fails  # type: ignore[var-annotated]

    def __call__(self, *tensors: Tensor) -> None:
        """Each fourth call is the one that is captured: the graph keeps it, and runs it at a replay."""
        self.calls += 1
        if self.calls == WARM_UP + 1 and FakeGraph.made:
            if self.fails:
                raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
            FakeGraph.made[-1].work = lambda: self.add(tensors)
            return
        self.add(tensors)

    def add(self, tensors: Sequence[Tensor]) -> None:
        self.total += sum(tensor.sum() for tensor in tensors)
        self.log.append(float(self.total))


def test_calls_are_the_same_before_and_after_the_capture() -> None:
    work = Work()
    calls = CaptureAfterWarmUp(work, device=CPU)
    for value in range(1, 8):
        calls(torch.tensor([float(value)]), torch.tensor([10.0]))
    assert work.log == [11.0, 23.0, 36.0, 50.0, 65.0, 81.0, 98.0]
    assert work.calls == WARM_UP + 1, "from then on it is replayed"
    assert len(FakeGraph.made) == 1


def test_each_size_has_a_warm_up_and_a_graph_of_its_own() -> None:
    sizes: list[int] = []
    calls = CaptureAfterWarmUp(lambda x: sizes.append(len(x)), device=CPU)
    for size in (2, 2, 3, 2, 3, 3, 2, 3):
        calls(torch.zeros(size))
    assert sizes == [2, 2, 3, 2, 3, 3, 2, 3]
    assert len(FakeGraph.made) == 2


def test_generators_are_registered() -> None:
    generators = [torch.Generator(), torch.Generator()]
    capture(lambda: None, device=CPU, generators=generators)
    assert FakeGraph.made[0].generators == generators


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_during_a_capture(fails: bool) -> None:
    """A graph among it would be removed, which invalidates the capture."""

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            removed.append(self)

    def work() -> None:
        Cycle()
        keep = [[n] for n in range(5000)]
        assert len(keep) == 5000
        during.extend(removed)
        if fails:
            raise RuntimeError("not this time")

    removed: list[object] = []
    during: list[object] = []
    before = gc.get_threshold()
    gc.set_threshold(10)
    try:
        with pytest.raises(RuntimeError) if fails else nullcontext():
            capture(work, device=CPU)
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
    assert not during


def test_what_cannot_be_captured_runs_eagerly_and_says_why() -> None:
    work, heard = Work(fails=True), []  # type: ignore[var-annotated]
    calls = CaptureAfterWarmUp(work, device=CPU, note=heard.append)
    for value in range(1, 7):
        calls(torch.tensor([float(value)]))
    assert work.log == [1.0, 3.0, 6.0, 10.0, 15.0, 21.0]
    assert heard == ["the step cannot be captured (operation not permitted when stream is capturing); it runs eagerly"]
    assert len(FakeGraph.made) == 1, "it is tried once"


def test_without_a_listener_a_failed_capture_is_an_error() -> None:
    calls = CaptureAfterWarmUp(Work(fails=True), device=CPU)
    for _ in range(WARM_UP):
        calls(torch.zeros(1))
    with pytest.raises(HoldfastError, match="cannot be captured: operation not permitted .*; use --capture off"):
        calls(torch.zeros(1))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_capture_leaves_the_generators_as_they_were(error: type[BaseException]) -> None:
    own, default = torch.Generator().manual_seed(3), torch.cuda.default_generators[0]
    before = [generator.get_state() for generator in (own, default)]

    def work() -> None:
        torch.rand(2, generator=own)
        torch.rand(2, generator=default)
        raise error("no")

    with pytest.raises(error):
        capture(work, device=CPU, generators=[own])
    for generator, state in zip((own, default), before, strict=True):
        assert torch.equal(generator.get_state(), state)


def test_rehearsals_come_before_the_capture() -> None:
    seen: list[int] = []
    capture(lambda: seen.append(len(FakeGraph.made)), device=CPU, rehearsals=2)
    assert seen == [0, 0, 1]


def test_recordings_are_made_the_second_time_and_keep_the_cache() -> None:
    ran: list[int] = []
    recordings = Recordings(limit=2)

    def work() -> str:
        ran.append(len(FakeGraph.made))
        return "result"

    assert [recordings.run("key", work) for _ in range(4)] == ["result"] * 4
    assert ran == [0, 1], "plainly, then recorded; replays run no Python"
    assert FakeGraph.made[0].kept_cache
    for key in ("b", "c"):  # one more than the limit: all are forgotten
        recordings.run(key, work)
    assert set(recordings._known) == {"c"}


def test_a_captured_attack_fills_a_short_batch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inputs stay where they are; rows beyond a shorter batch repeat its first image."""
    attack = CapturedAttack(lambda x: torch.stack([x.mean((1, 2, 3)), torch.zeros(len(x))], 1), attack=pgd, radius=0.1)
    x, y = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
    expected = attack(x, y)
    meta = torch.device("cuda", 0)
    monkeypatch.setattr(Tensor, "device", property(lambda self: meta))
    inputs = torch.zeros(3, 1, 2, 2), torch.zeros(3).long()
    replay = attack._replay = devices.CapturedCall(FakeGraph(), inputs, expected)  # type: ignore[arg-type]
    attack._classes = 2
    assert torch.equal(attack(x, y), expected)
    assert torch.equal(replay.inputs[0], x)
    assert torch.equal(attack(x[1:2], y[1:2]), expected[:1])
    assert torch.equal(replay.inputs[0], x[1:2].expand(3, 1, 2, 2))
    assert replay.inputs[1].tolist() == [1, 1, 1]
    with pytest.raises(HoldfastError, match="captured for"):
        attack(torch.rand(4, 1, 2, 2), torch.zeros(4).long())


@pytest.mark.parametrize(
    ("pixel", "label", "message"),
    [
        (torch.nan, 1, "image 1 has NaN or infinite pixels"),
        (torch.inf, 1, "image 1 has NaN or infinite pixels"),
        (0.5, 2, "label 2 of image 1 is not a class of the model, which are 0 to 1"),
        (0.5, -1, "label -1 of image 1 is not a class"),
    ],
)
def test_a_recorded_attack_refuses_bad_images_and_labels_of_every_batch(
    monkeypatch: pytest.MonkeyPatch, pixel: float, label: int, message: str
) -> None:
    """The graph never reads a label out of range, which would end the CUDA context; a good batch works afterwards."""
    attack = CapturedAttack(lambda x: x.flatten(1)[:, :2], attack=pgd, radius=0.1)
    x, y = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
    bad, wrong = x.clone(), y.clone()
    bad[1, 0, 1, 1], wrong[1] = pixel, label
    device = torch.device("cuda", 0)
    monkeypatch.setattr(Tensor, "device", property(lambda self: device))
    replay = devices.CapturedCall(FakeGraph(), (torch.zeros(3, 1, 2, 2), torch.zeros(3).long()), x + 0.1)
    attack._replay, attack._classes = replay, 2  # type: ignore[assignment]
    with pytest.raises(HoldfastError, match=message):
        attack(bad, wrong)
    assert set(replay.inputs[1].tolist()) <= {0, 1}
    assert torch.equal(attack(x, y), x + 0.1)


def test_a_cpu_needs_no_stream_of_its_own() -> None:
    with own_stream(CPU):
        pass


@pytest.mark.parametrize(
    ("name", "message"), [("tpu9", "unknown device 'tpu9'"), ("cuda:7", "not there"), ("meta", "not supported")]
)
def test_devices_that_are_not_there_are_refused(name: str, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        resolve_device(name)


@pytest.mark.parametrize("mine", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_callers_choice_of_deterministic_kernels_is_restored(mine: tuple[bool, bool], deterministic: bool) -> None:
    torch.use_deterministic_algorithms(mine[0], warn_only=mine[1])
    try:
        with kernels("fp32", deterministic=deterministic):
            assert torch.are_deterministic_algorithms_enabled() is (deterministic or mine[0])
        after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        assert after == mine
    finally:
        torch.use_deterministic_algorithms(False)
