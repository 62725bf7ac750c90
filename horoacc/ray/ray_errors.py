"""Ray's errors as a line of HoroACC's."""

from __future__ import annotations

from ray.exceptions import RayError


def one_line(error: RayError) -> str:
    """What Ray says of an error, in a line."""
    if getattr(error, "preempted", False):
        return "Ray's actor was on a node that was preempted"
    text = " ".join(str(error).split())
    return f"Ray's actor is gone: {text[:300]}"
