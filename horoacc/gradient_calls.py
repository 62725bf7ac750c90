"""Which calls reduce gradients, so that an elastic job knows after an error what was applied.

A step that waits for all of its gradients is applied whole or not at all. An error of one of their
calls therefore means that the state is that of the step before. Whatever reduces gradients this way
notes it here; states ask after an error (docs/elastic.md). Torch's optimizers know it themselves.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

from horoacc.dtypes import Adasum
from horoacc.process import is_elastic
from horoacc.process_sets import ProcessSet, global_process_set

# By what reduces: the prefix of its calls' names, and why a job must not go forward after them.
_notes: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()


class TapeSources:
    """The variables by which tapes differentiate, for as long as the process lives.

    Eagerly each step has a tape of its own, and the tape of a function is gone once it is traced.
    """


def note(by: Any, prefix: str, obstacle: str = "") -> None:
    """Notes a reduction of gradients, before it begins; only in an elastic job.

    Args:
        by: What reduces the same variables' gradients in each step. It is not kept alive.
        prefix: What the calls' names begin with, before a point and the rest.
        obstacle: Why the state may not be that of a whole number of steps after an error, or "".
            The first one stays.
    """
    if is_elastic():
        _, known = _notes.get(by, (prefix, ""))
        _notes[by] = (prefix, known or obstacle)


def obstacle_of(op: int, passes: int, process_set: ProcessSet) -> str:
    """Says why a job must not go forward after an error in such reductions; "" if it may."""
    if passes != 1:
        return "a step takes several backward passes"
    if op == Adasum:
        return "the ranks' gradients are combined by Adasum"
    if process_set is not global_process_set:
        return "only some of the ranks train the model"
    return ""


def obstacle_after(error: Exception, by: Any = object) -> str:
    """Says why the variables may not be those of a whole number of steps, after an error.

    Args:
        error: Of a collective.
        by: What reduces the gradients of the state's optimizer, or its class.

    Returns:
        The reason; "" if the error is that of a gradient, which was reduced for the next step.
    """
    if len(_notes) > 1:
        return "gradients are reduced for several optimizers or tapes"
    tensor = getattr(error, "tensor", None) or ""
    for who, (prefix, obstacle) in _notes.items():
        if not (isinstance(who, by) if isinstance(by, type) else who is by):
            return "the gradients are reduced for another optimizer than the state's"
        if re.search(rf"(^|/)[a-z]+\.{re.escape(prefix)}\.", tensor):
            return obstacle
    return f"the error left {tensor or 'a call without a name'}, which is no gradient"
