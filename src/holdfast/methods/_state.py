"""What a training with a method remembers. Apart from the methods, which import without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from holdfast.methods import Context, Stage


class State(nn.Module):
    """The auxiliary models and buffers of one training. context: what is known of it. stage: the one under way."""

    stage: Stage

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    if TYPE_CHECKING:  # what a method puts here is its own business

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...
