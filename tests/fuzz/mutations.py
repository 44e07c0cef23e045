"""Changes that files suffer, and values that nobody expects."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

NAMES = (
    "", " ", "x", "label", "path", "0", "1", "-1", "nan", "NaN", "inf", "-inf", "1e999", "1e-999", "0.5", "0,5",
    "1_0", "٣", "²",
    "0x10", "true", "None", "null", "~", "=1+1", "@", "é", "e\u0301", "\u202e", "\u200b", "\x00", "\x1b[31m",
    "\ud800", "\udcff",
    "\ufffe", "😀", "a" * 300, "../..", "/", "/dev/null", "/dev/zero", ".", "..", "\\", "C:\\x", "\r", "\n", "\t", ";",
    ",", '"',
    "'", "{", "}", "[", "<b>", "9" * 30, "9" * 400, "-" + "9" * 30, "1" * 5000,
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 0.0, -0.0, 0.5, 1.5, 1e-320, 1e300, -1e300, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**30,
    10**400,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    [1, 2, 3],
    {"a": 1},
    {"": None},
    ["a", "b"],
    [{}],
    {"x": [1]},
)


def value(random: Random) -> Any:
    """Something else than what belongs there."""
    return deepcopy(random.choice(random.choice((NAMES, NUMBERS, OTHERS))))


def damaged(random: Random, content: bytes) -> bytes:
    """Content with a few bytes changed, cut out, doubled or moved."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        if not data:
            break
        at, much = random.randrange(len(data)), random.choice((1, 1, 2, 4, 16, 64))
        match random.randrange(8):
            case 0:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x2C))
            case 2:
                data[at : at + much] = bytes(much)
            case 3:
                data[at : at + much] = random.randbytes(much)
            case 4:
                del data[at : at + much]
            case 5:
                data[at:at] = data[at : at + much]
            case 6:
                del data[at:]
            case _:
                data[at : at + 1] = random.choice(NAMES).encode("utf-8", "surrogatepass")
    return bytes(data)


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested lists and mappings, as keys from the top."""
    found = [path] if path else []
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, own in inner:
        found += places(own, (*path, key))
    return found


def disturb(random: Random, values: Any) -> None:
    """Change one place of nested lists and mappings: another value, none at all, another key, or it twice."""
    *way, last = random.choice(places(values))
    home = values
    for key in way:
        home = home[key]
    match random.randrange(6):
        case 0:
            del home[last]
        case 1 if isinstance(home, dict):
            home[random.choice(NAMES)] = home.pop(last)
        case 1 | 2 if isinstance(home, list):
            home.insert(last, home[random.randrange(len(home))])
        case 3:
            *way, other = random.choice(places(values))
            borrowed = values
            for key in (*way, other):
                borrowed = borrowed[key]
            home[last] = borrowed if not isinstance(borrowed, (dict, list)) else type(borrowed)()
        case _:
            home[last] = value(random)
