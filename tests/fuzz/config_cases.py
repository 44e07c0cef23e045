"""YAML files of settings: known keys with unexpected values, aliases, tags, merges, damaged text."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import yaml

from holdfast.cli import main
from holdfast.cli.train import default_out
from holdfast.errors import HoldfastError
from holdfast.parts import ASCENTS, METHODS
from holdfast.settings import TrainSettings, build, flatten, layered, read_config
from tests.fuzz.mutations import damaged, disturb, value

PLAIN = flatten(TrainSettings())
SCALARS = (
    "!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "!!binary x", "!!binary aGk=", "!!set {a, b}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]", "!!python/object/apply:os.getcwd []", "!!str 5", "!x y", "2020-13-45",
    "0001-01-01 00:00:00+23:59",
    "2020-01-01", "1:2:3", "190:20:30", "0x" + "F" * 5000, "0b11", "0o7", "0xZ", ".inf", "-.inf", ".nan", "1e400",
    "1.0e+400",
    "1_000", "~", "null", "yes", "=", "<<", "*nowhere", "&a [*a]", "&a {b: *a}", '"\\uD800"', '"\\x00"', '"\\',
    "|\n  text", ">",
    "[" * 400, "{" * 400, "[" * 30 + "]" * 30, "{a: {b: {c: d}}}", "? x", "- x", "%TAG", "--- x", "... ", "@x", "`x",
    "\t", "#",
    "{name: lff, <<: {q: 1}}", "{name: lff, <<: [{q: 1}, 5]}", "{<<: 5}", "{? [a]: 1}", "{? {a: 1}: 1}", "{1: 2, 1: 3}",
)  # fmt: skip


def fuzz(random: Random, folder: Path) -> None:
    path = folder / "case.yaml"
    path.write_bytes(_content(random))
    values = layered(read_config(path, random.choice(([], ["data", "model"]))))
    settings = build(TrainSettings, values)
    default_out(settings)
    if random.random() < 0.1:
        again = build(TrainSettings, yaml.safe_load(yaml.safe_dump(flatten(settings))))
        if again != settings:
            raise AssertionError(f"written and read again, {settings} is {again}")
    if random.random() < 0.005:
        _command(path)


def _command(path: Path) -> None:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = main(["train", "--config", str(path), "--print-config"])
    if code == 2:
        raise HoldfastError(said.getvalue().strip())
    if code != 0:
        raise AssertionError(f"exit code {code}: {said.getvalue()}")


def _content(random: Random) -> bytes:
    kind = random.random()
    if kind < 0.1:
        return _bomb(random).encode()
    keys = random.choices(list(PLAIN), k=random.randrange(1, 6))
    keys += ["method", "ascent"] * (random.random() < 0.3)
    values: dict[Any, Any] = {key: deepcopy(PLAIN[key]) for key in keys}
    if random.random() < 0.5:
        values |= (
            {"method": _choice(random, METHODS)} if random.random() < 0.5 else {"ascent": _choice(random, ASCENTS)}
        )
    if random.random() < 0.1:
        values["environment"] = random.choice(({"own_data": "mine"}, {"own_model": "mine"}, value(random)))
    for _ in range(random.choice((0, 0, 1, 2))):
        if values:
            disturb(random, values)
    text = "".join(f"{_flow(key)}: {_flow(own)}\n" for key, own in values.items())
    if random.random() < 0.4:
        key = random.choice([*PLAIN, "method", "ascent", "nonsense"])
        text += f"{key}: {random.choice(SCALARS)}\n"
    content = text.encode("utf-8", "surrogatepass")
    return damaged(random, content) if random.random() < 0.3 else content


def _choice(random: Random, registry: Any) -> dict[str, Any]:
    name = random.choice(list(registry))
    own = flatten(registry[name].made())
    return {"name": name, **{key: own[key] for key in own if random.random() < 0.5}}


def _flow(values: Any) -> str:
    """A value on one line: JSON is YAML."""
    return json.dumps(values)


def _bomb(random: Random) -> str:
    """Aliases of aliases, lists or merged mappings, under a key that is known or not."""
    depth, width = random.randrange(2, 12), random.randrange(2, 12)
    merge = random.random() < 0.3
    lines = ["a0: &a0 " + ("{lr: 1}" if merge else "[x, y]")]
    for i in range(1, depth):
        inner = ", ".join([f"*a{i - 1}"] * width)
        lines.append(f"a{i}: &a{i} " + (f"{{<<: [{inner}]}}" if merge else f"[{inner}]"))
    key = random.choice(
        ("epochs", "data", "model", "method", "betas", "environment", "nonsense", "lr", "milestones", "ascent")
    )
    if random.random() < 0.5:  # all of it inside one known key
        inside = ", ".join(lines if merge else [line.partition(": ")[2] for line in lines])
        return f"{key}: " + (f"{{{inside}}}" if merge else f"[{inside}]") + "\n"
    return "\n".join([*lines, f"{key}: *a{depth - 1}"]) + "\n"
