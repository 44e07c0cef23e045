"""Dropout on the penultimate layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.methods import Method, method
from holdfast.settings import Within

if TYPE_CHECKING:
    from torch import Tensor, nn

    from holdfast.methods import State


@method("dropout", about="Dropout on the features that the classifier layer is given.")
class Dropout(Method):
    images_alone: ClassVar[bool] = True
    p: Annotated[float, Within(0, 1, "[)")] = 0.5
    """Share of the features set to zero."""

    @contextmanager
    def attached(self, state: State, model: nn.Module) -> Iterator[None]:
        """The network itself is not changed: a hook drops features on their way into the head, in training only."""
        import torch.nn.functional as F

        from holdfast.models.heads import find_head

        def drop(head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
            features, *rest = inputs
            return (state.jointly(lambda whole: F.dropout(whole, self.p, training=head.training), features), *rest)

        with find_head(model)[1].register_forward_pre_hook(drop):
            yield
