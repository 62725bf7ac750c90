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
    kind = payloads.get(b"horoacc/kind", payloads.get("horoacc/kind"))
    if kind is not None:
        culprit = payloads.get(b"horoacc/culprit", payloads.get("horoacc/culprit", b"-1"))
        return errors.from_core(int(kind), error.message, int(culprit))
    # Where TensorFlow has lost the payloads; as Horovod finds its own.
    if isinstance(error, tf.errors.UnknownError) and "Horovod" in error.message:
        return errors.Aborted(error.message)
    return None
