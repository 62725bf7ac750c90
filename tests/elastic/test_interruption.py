"""All ranks are interrupted at the same check, however their messages are delayed."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from horoacc.launcher.elastic.interruption import Interruption


class ModelRank:
    """A rank as horoacc.elastic.member is one: it counts checks, and stops at a verdict's."""

    def __init__(self) -> None:
        self.checks = 0
        self.question: int | None = None
        self.verdict: dict[str, Any] | None = None
        self.inbox: deque[dict[str, Any]] = deque()
        self.outbox: deque[tuple[int, int]] = deque()
        self.stopped_at: int | None = None

    def hear(self) -> None:
        message = self.inbox.popleft()
        if message["kind"] == "question":
            self.question, self.verdict = message["question"], None
            self.outbox.append((message["question"], self.checks))
        elif message["question"] == self.question:
            if message["at"] is None:
                self.question = None
            self.verdict = None if message["at"] is None else message

    def may_check(self) -> bool:
        waits = self.question is not None and self.verdict is None
        return self.stopped_at is None and not waits

    def check(self) -> None:
        self.checks += 1
        if self.verdict is not None and self.checks >= self.verdict["at"]:
            self.stopped_at = self.checks


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(150))
def test_all_stop_at_one_check(ranks: int, seed: int) -> None:
    draw = random.Random(seed * 10 + ranks)
    model = [ModelRank() for _ in range(ranks)]
    interruption = Interruption(lambda message: [rank.inbox.append(message) for rank in model])
    wanted = 0
    for _ in range(2000):
        moves: list[tuple[str, int]] = [("want", 0)] if draw.random() < 0.1 else []
        for number, rank in enumerate(model):
            moves += [("hear", number)] * bool(rank.inbox)
            moves += [("answer", number)] * bool(rank.outbox)
            # No rank is more than a few checks ahead of another, as in a training.
            ahead = rank.checks - min(other.checks for other in model)
            moves += [("check", number)] * (rank.may_check() and ahead < 3)
        if not moves:
            break
        move, number = draw.choice(moves)
        rank = model[number]
        if move == "want":
            # Given up now and then: somebody died, or the newcomer did.
            wanted = draw.choice([0, 1, 2, 3])
            interruption.want(wanted, 0.0, list(range(ranks)))
        elif move == "hear":
            rank.hear()
        elif move == "answer":
            interruption.take_count(number, *rank.outbox.popleft())
        else:
            rank.check()
        stopped = {r.stopped_at for r in model} - {None}
        assert len(stopped) <= 1
        # None passes where another has stopped.
        assert not stopped or all(r.checks <= max(stopped) for r in model)
    assert {r.stopped_at for r in model} - {None}, "nobody was interrupted in all this time"
    assert len({r.stopped_at for r in model}) == 1
