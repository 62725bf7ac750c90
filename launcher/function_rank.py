"""A rank of `horoacc.run`: calls the function and writes down what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from horoacc.launcher import environment, function_pickle


def main() -> None:
    """Calls the function in the folder that the command line names.

    Raises:
        BaseException: What the function raised, after it was written down: what runs at exit has
            to see that this rank failed.
    """
    folder = Path(sys.argv[1])
    rank = environment.detect(os.environ).rank
    sys.argv[1:] = []
    path = json.loads((folder / "path").read_text())
    sys.path += [entry for entry in path if entry not in sys.path]
    try:
        func, args, kwargs = cloudpickle.loads((folder / "function").read_bytes())
        value = func(*args, **kwargs)
        data = _dumps(value, rank)
    except BaseException as raised:
        error = _named(raised)
        _write(folder / f"error.{rank}", cloudpickle.dumps(_told(error, raised)))
        sys.excepthook = lambda *_: None  # the caller of run() gets the traceback
        raise error from None
    _write(folder / f"result.{rank}", data)


def _dumps(value: Any, rank: int) -> bytes:
    try:
        return function_pickle.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        raise TypeError(f"rank {rank} returned a {kind} that cannot be pickled: {error}") from error


def _named(raised: BaseException) -> Exception:
    """What ends a program without a traceback becomes an exception that says so."""
    if isinstance(raised, Exception):
        return raised
    code = f"({raised.code})" if isinstance(raised, SystemExit) else ""
    return RuntimeError(
        f"the function ended with {type(raised).__name__}{code} instead of a result"
    )


def _told(error: Exception, raised: BaseException) -> dict[str, Any]:
    pickled = None
    with contextlib.suppress(Exception):
        pickled = function_pickle.dumps(error)
    return {
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
