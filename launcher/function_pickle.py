"""How what a rank of `horoacc.run` returns or raises travels: cloudpickle, with exceptions whole.

pickle makes an exception again by calling its class with `args`, which a class whose `__init__`
takes something else does not survive. Here nobody calls that: the exception gets its `args` and its
attributes back. One that says itself how it is pickled (`__reduce__`) is left to that.
"""

from __future__ import annotations

import io
from typing import Any

import cloudpickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException) and not _has_its_own_way(type(obj)):
            return _made_again, (type(obj), obj.args), obj.__dict__ or None
        return super().reducer_override(obj)


def dumps(value: object) -> bytes:
    """Pickles a value; `cloudpickle.loads` gives it back.

    Args:
        value: Anything that cloudpickle can pickle, or an exception of such things.

    Returns:
        The bytes.
    """
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


def _has_its_own_way(kind: type[BaseException]) -> bool:
    return (
        kind.__reduce__ is not BaseException.__reduce__
        or kind.__reduce_ex__ is not object.__reduce_ex__
    )


def _made_again(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception without its attributes, which pickle adds.

    What is behind Python's own exceptions beside `args` (the parts of a UnicodeError, the code of a
    SystemExit) their `__init__` sets, and that takes `args`.
    """
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error: BaseException = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)  # type: ignore[misc]
    return error
