"""Validation errors: a call that this rank cannot make must not leave the other ranks waiting.

The core sends the other ranks the errors that it finds itself. An error that Python finds first (an
array that is not contiguous, a type or a reduction that does not exist) is submitted in place of
the call. So every rank raises an error, and calls without a name stay in step on a rank that
catches it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from horoacc import process
from horoacc.collectives.calls import COLLECTIVE_NAMES, member_names
from horoacc.dtypes import INT32
from horoacc.errors import HoroaccError
from horoacc.process_sets import ProcessSet
from horoacc.process_sets import number_of as set_number


def send_validation_error(
    error: Exception,
    collective: int,
    name: str | None,
    process_set: ProcessSet,
    grouped: bool = False,
) -> None:
    """Ends a call, of which nothing was submitted, with an error on the ranks that make it.

    Nothing happens without an engine, or for a process set that is not registered or that this rank
    is not in. The core has already sent the errors that it raised; a second call for such an error
    would put calls without a name out of step. `name` is as the core knows it, of a group the first
    member's.
    """
    if isinstance(error, HoroaccError):
        return
    # The core raises the validation error here too, but the caller gets the error that was found.
    with contextlib.suppress(Exception):
        process.engine().submit(
            collective, [(name, 0, 0, (), INT32)], process_set=set_number(process_set),
            validation_error=str(error) or type(error).__name__, grouped=grouped,
        )  # fmt: skip


class validating:
    """Sends a validation error if its block raises.

    The block prepares a call and submits nothing: an exception of a signal's handler right after a
    submission would be sent too. Every call enters one of these, so it is a class: a generator
    would be slower.
    """

    __slots__ = ("_collective", "_grouped", "_names", "_process_set")

    def __init__(
        self,
        collective: int,
        name: str | None,
        process_set: ProcessSet,
        *more: str | None,
        grouped: bool = False,
    ) -> None:
        """Takes the arguments of `send_validation_error`; `more` names calls prepared at once."""
        self._collective, self._names, self._process_set = collective, (name, *more), process_set
        self._grouped = grouped

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            for name in self._names:
                send_validation_error(
                    error, self._collective, name, self._process_set, self._grouped
                )


def check_group(
    tensors: Sequence[Any], collective: int, name: str | None, process_set: ProcessSet
) -> None:
    """Checks the list of a grouped call; ValueError, on all ranks, if it is empty or no list."""
    if isinstance(tensors, (list, tuple)) and tensors:
        return
    what = COLLECTIVE_NAMES[collective]
    error = ValueError(f"grouped_{what} needs a list of at least one tensor.")
    first = None if name is None else member_names(what, name, 1)[0]
    send_validation_error(error, collective, first, process_set, grouped=True)
    raise error
