"""A rank of `horoacc.run`: calls the function and writes its result, or its exception, to a file.

cloudpickle makes an exception again by calling its class with `args`, which a class whose
`__init__` takes other arguments does not survive. Here the exception gets its `args` and attributes
back without that call. A class with its own `__reduce__` is left to that.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

import horoacc
from horoacc import process
from horoacc.elastic.member import Removed
from horoacc.launcher import environment


def main() -> None:
    """Calls the function in the folder that the command line names. Raises its exception."""
    folder = Path(sys.argv[1])
    path = json.loads((folder / "path").read_text())
    call((folder / "function").read_bytes(), path, lambda name, data: _write(folder / name, data))


def call(pickled: bytes, path: Sequence[str], write: Callable[[str, bytes], None]) -> None:
    """Calls a function, and writes its result as `result.RANK`, or its exception as `error.NUMBER`.

    Args:
        pickled: The function, its arguments and its keyword arguments.
        path: Where else than this Python to look for modules.
        write: Takes a name and what is written under it.

    Raises:
        BaseException: The function's exception, after it was written: handlers that run at exit
            have to see that this rank failed.
    """
    sys.argv[1:] = []
    sys.path += [entry for entry in path if entry not in sys.path]
    try:
        func, args, kwargs = cloudpickle.loads(pickled)
        if process.is_elastic():
            horoacc.init()  # for its place, which a function may read from the environment
        value = func(*args, **kwargs)
        data = _dumps_result(value, _rank())
    except Removed:
        raise
    except BaseException as raised:
        error = _named(raised)
        # Of an elastic job by the worker: it may have no rank yet.
        number = os.environ.get("HOROACC_WORKER") or _rank()
        write(f"error.{number}", cloudpickle.dumps(_told(error, raised)))
        sys.excepthook = lambda *_: None  # the caller of run() gets the traceback
        raise error from None
    write(f"result.{_rank()}", data)


def _rank() -> int:
    """The rank of this process, which changes in an elastic job."""
    return environment.detect(os.environ).rank


def _dumps_result(value: Any, rank: int) -> bytes:
    try:
        return _dumps(value)
    except Exception as error:
        kind = type(value).__name__
        raise TypeError(f"rank {rank} returned a {kind} that cannot be pickled: {error}") from error


def _named(raised: BaseException) -> Exception:
    """Turns a SystemExit or KeyboardInterrupt into an exception with a traceback."""
    if isinstance(raised, Exception):
        return raised
    code = f"({raised.code})" if isinstance(raised, SystemExit) else ""
    return RuntimeError(
        f"the function ended with {type(raised).__name__}{code} instead of a result"
    )


def _told(error: Exception, raised: BaseException) -> dict[str, Any]:
    pickled = None
    with contextlib.suppress(Exception):
        pickled = _dumps(error)
    return {
        "host": socket.gethostname(),
        "time": time.monotonic(),
        "summary": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(raised)),
        "exception": pickled,
    }


def _write(path: Path, data: bytes) -> None:
    """Writes a file that is there whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(data)
    part.rename(path)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException) and not _has_its_own_way(type(obj)):
            return _made_again, (type(obj), obj.args), obj.__dict__ or None
        return super().reducer_override(obj)


def _dumps(value: object) -> bytes:
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

    The `__init__` of Python's own exceptions takes `args` and sets their other fields (the parts of
    a UnicodeError, the code of a SystemExit).
    """
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error: BaseException = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)  # type: ignore[misc]
    return error
