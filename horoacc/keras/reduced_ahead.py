"""Gradients that `compute_gradients` has reduced already, and tensors made of them.

Between computing and applying a caller may change gradients (clip them, say), which makes other
tensors of them, or may drop them and train with others. In a trace the two can be told apart: a
function that computes and applies does so each time it runs. Outside of functions a second
reduction changes nothing, unless it adds or multiplies, or scales a local variable's gradient.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence
from typing import Any

from horoacc.dtypes import OP_NAMES, Product, Sum
from horoacc.keras import backend


class ReducedAhead:
    """The gradients that one optimizer has reduced before it steps."""

    def __init__(self, op: int) -> None:
        """Notes nothing yet."""
        self._op = op
        self.twice_is_once = op not in (Sum, Product)
        """Whether reducing a second time changes nothing."""
        self._trace: weakref.ref[Any] | None = None
        self._traced = 0
        # Few: a caller may never apply what it computes.
        self._noted: collections.deque[Sequence[Any]] = collections.deque(maxlen=8)

    def note(self, gradients: Sequence[Any]) -> None:
        """Notes gradients that are reduced; None where there is none."""
        trace = backend.current().trace()
        if trace is None:
            self._trace = None
            self._noted.append(list(gradients))
        elif self._trace is not None and self._trace() is trace:
            self._traced += 1
        else:
            # A trace needs no comparison, and its tensors would keep the graph alive.
            self._trace, self._traced = weakref.ref(trace), 1
            self._noted.clear()

    def forget(self) -> None:
        """Forgets all noted gradients."""
        self._trace = None
        self._noted.clear()

    def take(self) -> None:
        """Forgets the gradients that were noted first: they are applied."""
        here = backend.current().trace()
        if self._trace is not None and here is not None and self._trace() is here:
            self._traced -= 1
            if self._traced == 0:
                self._trace = None
        elif here is None and self._noted:
            self._noted.popleft()

    def covers(self, gradients: Sequence[Any]) -> bool:
        """Says whether gradients were noted, or made of noted ones, and forgets that they were.

        ValueError if they may have been reduced in a function that is over, and reducing them again
        would be wrong.
        """
        here = backend.current().trace()
        if self._trace is not None:
            return self._covers_traced(here)
        if here is not None:
            self._noted.clear()
        for index, noted in enumerate(self._noted):
            ids = {id(gradient) for gradient in noted}
            if all(gradient is None or id(gradient) in ids for gradient in gradients):
                del self._noted[index]
                return True
        covered = bool(self._noted) and not self.twice_is_once
        self.take() if covered else self._noted.clear()
        return covered

    def _covers_traced(self, here: Any) -> bool:
        assert self._trace is not None
        if here is not None and self._trace() is here:
            self.take()
            return True
        if here is None and not self.twice_is_once:
            name = OP_NAMES[self._op]
            why = f"op={name}" if self._op in (Sum, Product) else "the scale of local variables"
            raise ValueError(
                "compute_gradients() was called in a tf.function, and what it gave is reduced. "
                f"Outside of it nobody can tell, and {why} must not come twice. Apply the "
                "gradients in the same function, or say apply_gradients(..., "
                "skip_gradients_aggregation=True)."
            )
        return False
