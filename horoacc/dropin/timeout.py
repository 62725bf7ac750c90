"""Horovod's deadline for several waits, which its users' launch scripts import."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """The time is over."""


class Timeout:
    """A deadline that begins now."""

    def __init__(self, timeout: float, message: str) -> None:
        """Begins.

        Args:
            timeout: In seconds.
            message: The text of `check_time_out_for`'s error, with {activity} and {timeout}.
        """
        self._timeout, self._message = timeout, message
        self._ends_at = time.monotonic() + timeout

    def remaining(self) -> float:
        """Gives the seconds that are left.

        Returns:
            Their number; 0 when the time is over.
        """
        return max(0.0, self._ends_at - time.monotonic())

    def timed_out(self) -> bool:
        """Says whether the time is over.

        Returns:
            True if so.
        """
        return time.monotonic() > self._ends_at

    def check_time_out_for(self, activity: str) -> None:
        """Raises when the time is over.

        Args:
            activity: The activity that the caller waits for.

        Raises:
            TimeoutException: It is.
        """
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout))
