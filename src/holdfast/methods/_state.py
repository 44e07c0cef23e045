"""What a training with a method remembers. Apart from the methods, which import without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from holdfast.methods import Context, Stage


class State(nn.Module):
    """The auxiliary models and buffers of one training. context: what is known of it. stage: the one under way. shared:
    how ranks share its batches, where there are several."""

    stage: Stage

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.shared: Any = None

    def jointly(self, change: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """``change(rows)``, for hooks inside a network that look across the rows of a batch or draw for them.

        Where several ranks share a batch, a network is given a part of its rows; this gives ``change`` all of them.
        """
        made: Tensor = change(rows) if self.shared is None else self.shared.jointly(change, rows)
        return made

    if TYPE_CHECKING:  # what a method puts here is its own business

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...
