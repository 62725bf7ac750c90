"""Gradients that `compute_gradients` has reduced already, and tensors made of them.

Between computing and applying a caller may change gradients (clip them, say), which makes other
tensors of them, or may drop them and train with others. In a trace the two can be told apart: a
function that computes and applies does so each time it runs. Outside of functions a second
reduction changes nothing, unless it adds or multiplies.
"""

from __future__ import annotations

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
        self._twice_is_once = op not in (Sum, Product)
        self._trace: weakref.ref[Any] | None = None
        self._gradients: Sequence[Any] = ()

    def note(self, gradients: Sequence[Any]) -> None:
        """Notes gradients that are reduced; None where there is none."""
        trace = backend.current().trace()
        self._trace = None if trace is None else weakref.ref(trace)
        # A trace needs no comparison, and its tensors would keep the graph alive.
        self._gradients = list(gradients) if trace is None else ()

    def forget(self) -> None:
        """Forgets the noted gradients."""
        self._trace, self._gradients = None, ()

    def covers(self, gradients: Sequence[Any]) -> bool:
        """Says whether gradients were noted, or made of noted ones, and forgets that they were.

        ValueError if they may have been reduced in a function that is over, and reducing them again
        would be wrong.
        """
        here = backend.current().trace()
        if self._trace is not None:
            return self._covers_traced(here)
        noted, self._gradients = self._gradients, ()
        if here is not None or not noted:
            return False
        ids = {id(gradient) for gradient in noted}
        same = all(gradient is None or id(gradient) in ids for gradient in gradients)
        return same or not self._twice_is_once

    def _covers_traced(self, here: Any) -> bool:
        assert self._trace is not None
        if here is not None and self._trace() is here:
            self.forget()
            return True
        if here is None and not self._twice_is_once:
            name = OP_NAMES[self._op]
            raise ValueError(
                "compute_gradients() was called in a tf.function, and what it gave is reduced. "
                f"Outside of it nobody can tell, and op={name} must not reduce twice. Apply the "
                "gradients in the same function, or say apply_gradients(..., "
                "skip_gradients_aggregation=True)."
            )
        return False
