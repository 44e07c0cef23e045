"""How ranks share a batch so that a step is that of one process with all of it. Open it to change that arithmetic.

Every rank draws, mixes, weighs and computes losses for the whole batch, from the same generators: all of that is cheap,
and so it comes out the same everywhere. Only networks are shared out: a hook gives each rank its own rows of what a
network is called with, and gathers the outputs. So methods, ascents, meters and evaluation see whole batches and need
not know of ranks. A gradient then holds the part of a rank's own rows; the sum over ranks is that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from holdfast.data.loaders import active_ranks, own_rows
from holdfast.methods import State
from holdfast.rng import derive
from holdfast.train.distributed import Ranks
from holdfast.types import Batch

ALONE_TOO = False
"""Whether a rank without others exchanges with itself, which changes nothing and costs a tenth of a step. For tests of
captured collectives on a machine with one GPU."""
BUCKET = 8 << 20
"""Bytes of gradients that are summed together: large enough for a network's bandwidth, small enough to begin early."""


class SharedBatch:
    """A batch's way through the networks of several ranks. rows: how many the batch has that is on its way.

    images_alone: whether no rank needs the images that others have of a batch, nor gradients with respect to them.
    """

    def __init__(self, ranks: Ranks, *, sync_batchnorm: bool = False, images_alone: bool = False) -> None:
        self.ranks, self.sync_batchnorm, self.images_alone = ranks, sync_batchnorm, images_alone
        self.rows: int | None = None
        self.apart = False  # whether gradients stay those of the own rows
        self._random: Tensor | None = None
        self._sums: dict[int, GradientSum] = {}

    @contextmanager
    def over(self, state: State, networks: Iterable[nn.Module], *, seed: int, compiled: bool = False) -> Iterator[None]:
        """While open, each network runs on the own rows of what it is called with, and gives the outputs of all.

        What networks draw for their rows, each rank draws from a generator of its own.
        """
        shared = self  # hooks are plain functions, so that a network can be copied with them

        def take(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            x, *rest = inputs
            shared.rows = len(x)
            if x.requires_grad and not shared.images_alone and not _alone(shared.ranks):
                x = _Summed.apply(x, shared.ranks)
            return (x[shared._own()], *rest)

        def give(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            gathered, shared.rows = shared.gathered(output), None
            return gathered

        uncompiled: Callable[[Any], Any] = torch.compiler.disable if compiled else lambda hook: hook
        self._networks: list[nn.Module] = list({id(network): network for network in networks}.values())
        self._random = torch.get_rng_state()
        if self.ranks.size > 1:
            torch.manual_seed(derive(seed, f"ranks/{self.ranks.rank}"))
        state.shared = self
        with ExitStack() as attached:
            attached.callback(setattr, state, "shared", None)
            for network in self._networks:
                attached.enter_context(network.register_forward_pre_hook(uncompiled(take)))
                attached.enter_context(network.register_forward_hook(uncompiled(give)))
            if self.sync_batchnorm:
                attached.enter_context(_SyncedBatchNorm(self))
            attached.callback(self._forget)
            yield

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _own(self) -> slice:
        assert self.rows is not None
        return own_rows(self.rows, self.ranks.rank, self.ranks.size)

    def counts(self) -> list[int]:
        """How many rows each rank has of the batch on its way. Those without any compute two that do not count."""
        assert self.rows is not None
        active = active_ranks(self.rows, self.ranks.size)
        return [len(range(rank, self.rows, active)) if rank < active else 0 for rank in range(self.ranks.size)]

    def gathered(self, own: Tensor, *, summed: bool = False) -> Tensor:
        """The rows of all ranks, in their places. summed: whether other ranks use the own rows, and what they use them
        for comes back as gradient."""
        assert self.rows is not None
        if _alone(self.ranks):
            return own
        mine, active = self.counts()[self.ranks.rank], active_ranks(self.rows, self.ranks.size)
        made: Tensor = _Gathered.apply(own[:mine], self.rows, active, self.ranks, summed)
        return made

    def of_each_rank(self, own: Tensor) -> Tensor:
        """(size, ...) what every rank gives."""
        size = self.ranks.size
        made: Tensor = _Gathered.apply(own[None], size, size, self.ranks, True)
        return made

    def jointly(self, change: Callable[[Tensor], Tensor], own: Tensor) -> Tensor:
        """``change`` of the whole batch, for what looks across its rows inside a network; the own rows of that.

        What it draws from torch's own generator is the same on all ranks (on a GPU, whose generator a graph holds, each
        rank takes its rows of a draw of its own).
        """
        if self.rows is None:
            return change(own)
        mine = None if own.is_cuda or self.ranks.size == 1 else torch.get_rng_state()
        if mine is not None and self._random is not None:
            torch.set_rng_state(self._random)
        changed = change(self.gathered(own, summed=True))
        if mine is not None:
            self._random = torch.get_rng_state()
            torch.set_rng_state(mine)
        return changed[self._own()]

    def completed(self, batch: Batch) -> Batch:
        """A batch of which each rank has decoded its own rows; with the images of all, where they are needed."""
        if self.images_alone:
            return batch
        self.rows = len(batch)
        x = self.gathered(batch.x[self._own()])
        self.rows = None
        return replace(batch, x=x)

    # ---- sums -----------------------------------------------------------------------------------------------------

    @contextmanager
    def climbing_apart(self, apart: bool) -> Iterator[None]:
        """While open, gradients are those of the own rows alone (m-sharpness), as large as those of a whole batch."""
        self.apart = apart
        try:
            yield
        finally:
            self.apart = False

    @contextmanager
    def summing(self, params: Sequence[Tensor]) -> Iterator[None]:
        """Around the last backward pass of a gradient: it is summed over ranks while the pass goes on."""
        if _alone(self.ranks):
            yield
            return
        if self.apart:
            yield
            torch._foreach_mul_([p.grad for p in params if p.grad is not None], float(self.ranks.size))
            return
        key = id(params[0])
        if key not in self._sums:
            self._sums[key] = GradientSum(params, self.ranks)
        with self._sums[key].summing():
            yield

    def _forget(self) -> None:
        for one in self._sums.values():
            one.remove()
        self._sums.clear()
        self._networks.clear()

    @torch.no_grad()
    def average_statistics(self, count: int) -> None:
        """After a step: running statistics follow the mean over ranks, each by its rows of a batch of ``count``."""
        if self.sync_batchnorm or _alone(self.ranks):
            return
        modules = [
            m for network in self._networks for m in network.modules() if isinstance(m, _NormBase) and m.training
        ]
        running = [b for m in modules for b in (m.running_mean, m.running_var) if b is not None]
        if not running:
            return
        self.rows = count
        share = self.counts()[self.ranks.rank] / count
        self.rows = None
        flat = torch.cat([b.flatten() for b in running]) * share
        dist.all_reduce(flat, group=self.ranks.group)
        torch._foreach_copy_(running, [new.view_as(b) for b, new in zip(running, _pieces(flat, running), strict=True)])

    # ---- what a checkpoint must know of every rank ----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        assert self._random is not None
        return {"random": self._random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random = state["random"]


def _alone(ranks: Ranks) -> bool:
    return ranks.size == 1 and not ALONE_TOO


class _Gathered(torch.autograd.Function):
    """Rows of all ranks: row i of rank r of a is row i·a + r. Backwards, the own rows of the gradient.

    The loss is computed by every rank from all rows, so their gradient is there already; but where rows of others are
    used inside a network, each rank has only the part of the gradient that its own rows gave, and the sum is due.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, rows: int, active: int, ranks: Ranks, summed: bool) -> Tensor:
        ctx.count, ctx.active, ctx.ranks, ctx.summed = len(own), active, ranks, summed
        most = -(-rows // active)
        padded = own.new_zeros(most, *own.shape[1:])
        padded[: len(own)] = own
        parts = own.new_empty(ranks.size * most, *own.shape[1:])
        dist.all_gather_into_tensor(_bytes(parts), _bytes(padded), group=ranks.group)
        parts = parts.view(ranks.size, most, *own.shape[1:])[:active]
        return parts.transpose(0, 1).reshape(active * most, *own.shape[1:])[:rows]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.summed:
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=ctx.ranks.group)
        return grad[ctx.ranks.rank :: ctx.active][: ctx.count], None, None, None, None


class _Summed(torch.autograd.Function):
    """The same; backwards, the sum over ranks, of which each has the gradient of its own rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.ranks.group)
        return grad, None


def _bytes(tensor: Tensor) -> Tensor:
    """What is only copied has no type: gloo does not know all of torch's."""
    return tensor.flatten().view(torch.uint8)


class GradientSum:
    """Sums the gradients of parameters over ranks in buckets, each as soon as the backward pass has filled it.

    Buckets begin in the same order on every rank. One whose parameters got no gradient is summed at the end.
    """

    def __init__(self, params: Sequence[Tensor], ranks: Ranks) -> None:
        self.ranks = ranks
        self.buckets: list[list[Tensor]] = []
        size = BUCKET
        for p in reversed(params):  # about the order in which a backward pass comes to them
            bytes_ = p.numel() * p.element_size()
            if size + bytes_ > BUCKET or self.buckets[-1][0].dtype != p.dtype:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += bytes_
        self._bucket_of = {p: n for n, bucket in enumerate(self.buckets) for p in bucket}
        self._armed = False
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in self._bucket_of]  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def summing(self) -> Iterator[None]:
        self._missing = [len(bucket) for bucket in self.buckets]
        self._under_way: list[tuple[Any, Tensor]] = []
        self._armed = True
        try:
            yield
        finally:
            self._armed = False
        while len(self._under_way) < len(self.buckets):
            self._begin()
        for bucket, (work, flat) in zip(self.buckets, self._under_way, strict=True):
            work.wait()
            pairs = zip(bucket, _pieces(flat, bucket), strict=True)
            filled = [(_as_it_lies(p.grad, p), new) for p, new in pairs if p.grad is not None]
            if filled:
                torch._foreach_copy_([grad for grad, _ in filled], [new.view_as(grad) for grad, new in filled])
        self._under_way = []

    def _arrived(self, p: Tensor) -> None:
        if not self._armed:
            return
        self._missing[self._bucket_of[p]] -= 1
        while len(self._under_way) < len(self.buckets) and self._missing[len(self._under_way)] == 0:
            self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        bucket = self.buckets[len(self._under_way)]
        flat = torch.cat([_as_it_lies(torch.zeros_like(p) if p.grad is None else p.grad, p).flatten() for p in bucket])
        self._under_way.append((dist.all_reduce(flat, group=self.ranks.group, async_op=True), flat))


def _as_it_lies(tensor: Tensor, like: Tensor) -> Tensor:
    """Its dimensions in the order in which those of ``like`` lie in memory, so that flattening channels-last weights
    copies nothing across."""
    strides = like.stride()
    return tensor.permute(sorted(range(like.ndim), key=lambda dim: -strides[dim]))


def _pieces(flat: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.split(flat, [tensor.numel() for tensor in like])


class _SyncedBatchNorm(TorchFunctionMode):
    """While open, BatchNorm in training uses the mean and variance of the whole batch, whichever module asks for it."""

    def __init__(self, shared: SharedBatch) -> None:
        super().__init__()
        self.shared = shared

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and self.shared.rows is not None:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        shared, places = self.shared, x[0, 0].numel()
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        dims = [0, *range(2, x.ndim)]
        own = torch.stack([exact.mean(dims), exact.var(dims, correction=0)])
        means, variances = shared.of_each_rank(own).unbind(1)
        counts = shared.counts()
        share = torch.stack([exact.new_full((1,), count / sum(counts)) for count in counts])  # a graph copies no list
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean).square())).sum(0)  # within ranks, and between them
        if running_mean is not None and running_var is not None:
            total = sum(counts) * places
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((variance * (total / max(1, total - 1))).to(running_var.dtype), momentum)
        shape = [1, -1] + [1] * (x.ndim - 2)
        scale = (variance + eps).rsqrt() * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        return (exact * scale.view(shape) + shift.view(shape)).to(x.dtype)
