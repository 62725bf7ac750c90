"""TensorFlow's errors, as the errors of the core that they were."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from horoacc import errors

R = TypeVar("R")


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


def with_own_errors(func: Callable[..., R]) -> Callable[..., R]:
    """Wraps a function so that errors of HoroACC's ops come out as those of `horoacc.errors`.

    Args:
        func: Calls ops.

    Returns:
        A function of the same arguments and result.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> R:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            cause = cause_of(error)
            if cause is None:
                raise
            raise cause from error

    return translated
