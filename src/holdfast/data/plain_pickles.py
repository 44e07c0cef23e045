"""Pickles of plain values and arrays, read without running anything that they name.

Open this file to change what a pickled data file may hold. numpy's own rebuilding of arrays and types trusts the file
and crashes on a damaged one, so both are rebuilt here, from bytes whose number is known to be right.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

from holdfast.errors import brief
from holdfast.printable import printable

if TYPE_CHECKING:  # readers that use this file are imported by --help, which has no time for numpy
    import numpy as np

    from holdfast.data.images import Array

Find = Callable[[str, str], Any]
"""What a pickle means by a module and a name in it; a ``pickle.UnpicklingError`` for what it may not name."""
TYPES = re.compile(r"[biufcSU][1-9]\d{0,8}|O8?")
"""numpy's codes of numbers, text and objects; ``b1`` is boolean."""


def load_plain(file: IO[bytes], find: Find) -> Any:
    """The value in a pickle; a ``pickle.UnpicklingError`` that says what is wrong with a damaged or refused one."""
    start = file.tell()
    try:
        for code, number, position in pickletools.genops(file):
            # Python reserves memory for as many objects as the highest number says, damaged or not.
            if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(number or 0) > (position or 0):
                raise pickle.UnpicklingError(f"a damaged pickle (object {number} at byte {position})")
        file.seek(start)
        return _Plain(file, find).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle fails in nearly any way
        raise pickle.UnpicklingError(f"a damaged pickle ({type(error).__name__})") from error


class _Plain(pickle.Unpickler):
    def __init__(self, file: IO[bytes], find: Find) -> None:
        super().__init__(file)
        self._find = find

    def find_class(self, module: str, name: str) -> Any:
        return self._find(module, name)


class PickledArray:
    """An array as a pickle builds it, empty at first; one of Python objects has ``items`` and no ``array``."""

    array: Array | None = None
    items: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[int, tuple[int, ...], PickledType, bool, Any]) -> None:
        _, shape, kind, fortran, content = state
        if kind.dtype.hasobject:
            self.items = tuple(content)
        else:
            self.array = _array_from(content, kind, shape, "F" if fortran else "C")


class PickledType:
    """A numpy type as a pickle builds it: its code first, then its byte order."""

    def __init__(self, code: str, *_: bool) -> None:
        import numpy as np

        if not (isinstance(code, str) and TYPES.fullmatch(code)):
            raise pickle.UnpicklingError(f"it holds an array of type {brief(code)}, neither numbers nor text")
        self.dtype: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *parts = state
        if any(part is not None for part in parts[:3]):
            raise pickle.UnpicklingError("it holds an array of records, neither numbers nor text")
        self.dtype = self.dtype.newbyteorder(order)


def find_arrays(module: str, name: str) -> Any:
    """What the pickle of an array names. Functions are made anew: a pickle may set attributes of what it was given."""
    if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
        return lambda *_: PickledArray()
    if module in ("numpy.core.numeric", "numpy._core.numeric") and name == "_frombuffer":
        return lambda *parts: _from_buffer(*parts)
    if (module, name) == ("numpy", "ndarray"):
        return name  # only ever handed to _reconstruct
    if (module, name) == ("numpy", "dtype"):
        return PickledType
    if (module, name) == ("_codecs", "encode"):
        return lambda text, encoding: _latin1(text, encoding)
    if module in ("__builtin__", "builtins") and name == "bytes":
        return lambda: b""  # how old pickles write none
    raise pickle.UnpicklingError(
        f"it holds more than arrays ({printable(module)}.{printable(name)}), which could run code and is "
        "never unpickled; save it as plain arrays: numpy.savez(file, **{'labeled_data/data': ..., ...})"
    )


def _from_buffer(
    content: Any, kind: PickledType, shape: tuple[int, ...], order: str, axes: tuple[int, ...] | None = None
) -> PickledArray:
    """How protocol 5 builds an array; axes: their order in memory, where that is neither C's nor Fortran's."""
    made = PickledArray()
    array = _array_from(content, kind, shape, "F" if order == "F" else "C")
    made.array = array if axes is None else array.transpose(axes)
    return made


def _array_from(content: Any, kind: PickledType, shape: Any, order: Any) -> Array:
    import numpy as np

    whole = isinstance(content, bytes | bytearray) and isinstance(shape, tuple)
    whole = whole and all(type(side) is int and side >= 0 for side in shape)
    if not whole or math.prod(shape) * kind.dtype.itemsize != len(content):
        raise pickle.UnpicklingError("a damaged pickle (an array has not the bytes of its shape)")
    return np.ndarray(shape, kind.dtype, bytes(content), order=order).copy(order="K")


def _latin1(text: str, encoding: str) -> bytes:
    """How old pickles write bytes; no other encoding has a place in an array."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes text as {encoding!r}, which no array does")
    return text.encode("latin1")
