"""Progress bars that follow Keras' own setting in all threads.

`keras.config.disable_interactive_logging` is a setting of the thread that calls it, but Keras may
update its bars in others.
"""

from __future__ import annotations

import functools
from typing import Any

import keras


def teach_progress_bars() -> None:
    """Has Keras draw no bars where messages are off when training begins. Once is enough."""
    logger: Any = keras.callbacks.ProgbarLogger
    if not hasattr(logger.set_params, "_heeds_messages"):
        logger.set_params = _heeding(logger.set_params)


def _heeding(original: Any) -> Any:
    @functools.wraps(original)
    def set_params(self: Any, params: Any) -> None:
        original(self, params)
        if not keras.config.is_interactive_logging_enabled():
            self.verbose = 0

    set_params._heeds_messages = True  # type: ignore[attr-defined]
    return set_params
