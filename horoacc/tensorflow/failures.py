"""TensorFlow's errors, as the errors of the core that they were."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc import errors


def cause_of(error: Any) -> errors.HoroaccError | None:
    """Finds the error of the core that an op's error tells of.

    Args:
        error: A `tf.errors.OpError`.

    Returns:
        The core's error, not raised yet; None if it was another op's.
    """
    payloads = getattr(error, "experimental_payloads", None) or {}

    def payload(key: str, default: str) -> str:
        found = payloads.get(key.encode(), payloads.get(key, default))
        return found.decode(errors="replace") if isinstance(found, bytes) else str(found)

    if kind := payload("horoacc/kind", ""):
        return errors.from_core(
            int(kind),
            error.message,
            int(payload("horoacc/culprit", "-1")),
            payload("horoacc/host", ""),
            payload("horoacc/tensor", ""),
            int(payload("horoacc/collective", "-1")),
            payload("horoacc/hint", ""),
        )
    # TensorFlow has lost the payloads: go by the text, as Horovod does.
    if isinstance(error, tf.errors.UnknownError) and "Horovod" in error.message:
        return errors.Aborted(error.message)
    return None
