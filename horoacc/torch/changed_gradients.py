"""Notices gradients that a program changes while they are reduced, as by clipping too early.

Such a change is lost on some elements and not on others, and the ranks' weights differ from then
on. Torch counts the writes to a tensor; the engine's own are not among them, nor are those through
`.data`, which are noticed by nothing.
"""

from __future__ import annotations

import os
import warnings

from horoacc import settings
from horoacc.collectives.calls import level_of_user


class ChangedGradientError(RuntimeError):
    """A gradient was changed between its backward pass and `synchronize()`."""


class ChangeNotice:
    """Says so: once for an optimizer, or each time by an exception (`changed_gradients`)."""

    def __init__(self) -> None:
        self._told = False

    def tell(self, name: str) -> ChangedGradientError | None:
        """Warns, or gives the error to raise.

        Args:
            name: The parameter's.
        """
        text = (
            f"the gradient of '{name}' was changed while it was being reduced, so the ranks may "
            "have different weights from now on. Call optimizer.synchronize() before anything that "
            "changes gradients (clipping, unscaling), and step() inside `with "
            "optimizer.skip_synchronize():`."
        )
        if settings.read(os.environ)["changed_gradients"] == "raise":
            return ChangedGradientError(text)
        if not self._told:
            self._told = True
            warnings.warn(f"horoacc: {text}", stacklevel=level_of_user("horoacc.", "torch."))
        return None
