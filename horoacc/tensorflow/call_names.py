"""Names of the calls in graphs: unique in a graph, and the same on all ranks.

A name is made of the call's place (the functions and loops that it is traced into, and the name
scope) and of its own name. Numbers that TensorFlow counts up in a process are left out,
because ranks may count differently: one that sees a batch of another shape traces a function once
more.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from typing import Any

# Also in the middle, as in the gradient of a loop: while_body_12_grad_34.
_NUMBER = re.compile(r"_\d+(?=_|$)")

# By outermost function: a function that is traced again has the same names again.
_taken: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def name_in(graph: Any, name: str, ignore_name_scope: bool) -> str:
    """Makes the name of a call in a graph; it may leave the name scope out."""
    parts = []
    outermost = graph
    while getattr(outermost, "outer_graph", None) is not None:
        parts.append(_NUMBER.sub("", outermost.name))
        if getattr(outermost.outer_graph, "outer_graph", None) is None:
            break
        outermost = outermost.outer_graph
    parts.reverse()
    if not ignore_name_scope and (scope := graph.get_name_scope()):
        parts.append(scope)
    full = "/".join([*parts, name])
    taken = _taken.setdefault(outermost, Counter())
    taken[full] += 1
    return full if taken[full] == 1 else f"{full}_{taken[full] - 1}"
