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


def test_known_names_from_a_file_are_shown_on_one_line() -> None:
    """A class of a user's table may hold a line break, or what steers a terminal."""
    assert str(unknown("class", "cat", ["h\nsition", "\x1b[31mred"])) == (
        r"unknown class 'cat'; known: h\nsition, \x1b[31mred"
    )
    many = str(unknown("class", "zz", [f"{i}\n" for i in range(30)]))
    assert "\n" not in many
    assert many.startswith(r"unknown class 'zz'; 30 are known: 0\n, 1\n")
