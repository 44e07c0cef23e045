"""What a message says of a name that is not known."""

from __future__ import annotations

import pytest

from holdfast.cli import main
from holdfast.errors import unknown


def test_many_names_are_left_to_the_command_that_lists_them_or_cut() -> None:
    names = [f"layer{i}" for i in range(40)]
    assert str(unknown("layer", "zqx", names)) == (
        "unknown layer 'zqx'; 40 are known: layer0, layer1, layer2, layer3, layer4, layer5, layer6, layer7, ..."
    )
    assert str(unknown("model", "zqx", names, listed_by="holdfast list models")) == (
        "unknown model 'zqx'; 'holdfast list models' lists the 40 that are known"
    )


@pytest.mark.parametrize(("command", "name"), [("list models", "convnet"), ("list recipes", "erm/cifar10-resnet18"),
                                               ("train --print-config", "batch_size")])  # fmt: skip
def test_the_commands_that_messages_point_to_list_the_names(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 0
    assert name in capsys.readouterr().out
