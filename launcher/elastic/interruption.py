"""Has all ranks of an epoch stop at the same check, so that the ranks can change there.

The coordinator asks each rank how many checks it has made. A rank that was asked passes no further
check before it hears the verdict; so the one after the largest count is one that no rank has
passed, and all stop there. No collective is needed, and no rank needs to be in step with another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from horoacc.launcher.elastic.channel import Message


class Interruption:
    """The interruption of one epoch, if there is to be one."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        """`tell` sends a message to all ranks."""
        self._tell = tell
        self._number = 0  # of the question
        self._change = 0  # 0: none is wanted
        self._counts: dict[int, int] = {}
        self._decided = False
        self._ranks: Sequence[int] = ()
        self.asked_at = float("inf")
        """When the question went out that not all have answered."""

    def want(self, change: int, now: float, ranks: Sequence[int]) -> None:
        """Begins to interrupt the ranks because of a change, or with 0 gives it up.

        Args:
            change: What the ranks are told.
            now: The time.
            ranks: All that live. One that has died need not answer.
        """
        self._ranks = ranks
        if change and not self._change:
            self._number += 1
            self._change, self._counts, self._decided = change, {}, False
            self.asked_at = now
            self._tell({"kind": "question", "question": self._number})
        elif not change and self._change and not self._decided:
            self._change = 0
            self.asked_at = float("inf")
            self._tell({"kind": "verdict", "question": self._number, "at": None})
        self._decide()

    def take_count(self, rank: int, number: int, count: int) -> None:
        """A rank answers."""
        if number == self._number and self._change and not self._decided:
            self._counts[rank] = count
            self._decide()

    def _decide(self) -> None:
        if not self._change or self._decided or self.unanswered(float("inf")):
            return
        self._decided = True
        self.asked_at = float("inf")
        self._tell(
            {
                "kind": "verdict",
                "question": self._number,
                "at": max(self._counts.values(), default=0) + 1,
                "change": self._change,
                "time": time.time(),
            }
        )

    def unanswered(self, before: float) -> list[int]:
        """The ranks that have not answered a question of that time or earlier."""
        if self.asked_at > before:
            return []
        return [rank for rank in self._ranks if rank not in self._counts]

    def over(self) -> None:
        """The epoch is over."""
        self._change = 0
        self.asked_at = float("inf")
