"""Process sets of an elastic job: they outlive the epoch in which the ranks added them.

A set is known by the slots of hosts that its ranks had when they added it. It comes back in each
epoch in which ranks have all these slots: the same processes, or others that replaced them there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from horoacc.launcher.elastic.channel import Message
from horoacc.launcher.elastic.membership import Epoch, Worker

Slot = tuple[str, int]


class ProcessSets:
    """The sets of one job, as its workers tell them when they ask for seats."""

    def __init__(self) -> None:
        self._told: dict[int, list[list[Slot]]] = {}
        self._given: dict[int, list[list[int]]] = {}

    def take(self, worker: Worker, told: Sequence[Message], epoch: Epoch | None) -> None:
        """Takes a worker's sets, in the order in which they were added.

        Args:
            worker: It asks for a seat.
            told: Of each set the ranks in the epoch that is over, or its slots.
            epoch: That epoch. A worker that was not in it has ranks that it expects.
        """
        if epoch is None or worker not in epoch.workers:
            self._given[worker.number] = [list(map(int, one["ranks"])) for one in told]
            return
        slots = [(member.host, member.slot) for member in epoch.workers]
        self._told[worker.number] = [
            [slots[rank] for rank in one["ranks"]]
            if "ranks" in one
            else [(str(host), int(slot)) for host, slot in one["slots"]]
            for one in told
        ]

    def carried_into(self, epoch: Epoch) -> list[Message]:
        """Says which sets the ranks of a new epoch know, and which of them come back.

        Args:
            epoch: It begins.

        Returns:
            Of each set its slots, and its ranks, or None if a slot is empty.
        """
        now = {(worker.host, worker.slot): rank for rank, worker in enumerate(epoch.workers)}
        lists = [self._told.pop(w.number, []) for w in epoch.workers if w not in epoch.joined]
        if lists:
            # A death may have been in the middle of a change: the sets before it are there.
            known = zip(*lists, strict=False)
            agreed = itertools.takewhile(lambda sets: sets.count(sets[0]) == len(sets), known)
            alike = [sets[0] for sets in agreed]
        else:
            slots = list(now)
            given = self._given.get(epoch.workers[0].number, [])
            alike = [[slots[r] for r in ranks] for ranks in given if max(ranks) < len(slots)]
        self._told.clear()
        for worker in epoch.workers:
            self._given.pop(worker.number, None)
        return [
            {"slots": slots, "ranks": sorted(map(now.get, slots)) if there else None}
            for slots in alike
            for there in [now.keys() >= set(slots)]
        ]
