"""Process sets of an elastic job: they outlive the epoch in which the ranks added them.

A set is one of places, each a slot of a host. It comes back in each epoch in which ranks are in all
its places: those that were in it, or others that have replaced them there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from horoacc.launcher.elastic.channel import Message
from horoacc.launcher.elastic.membership import Epoch, Worker

Place = tuple[str, int]


class ProcessSets:
    """The sets of one job, as its workers tell them when they ask for seats."""

    def __init__(self) -> None:
        self._told: dict[int, list[list[Place]]] = {}
        self._given: dict[int, list[list[int]]] = {}

    def take(self, worker: Worker, told: Sequence[Message], epoch: Epoch | None) -> None:
        """Takes a worker's sets, in the order in which they were added.

        Args:
            worker: It asks for a seat.
            told: Of each set the ranks in the epoch that is over, or its places.
            epoch: That epoch. A worker that was not in it has ranks that it expects.
        """
        if epoch is None or worker not in epoch.workers:
            self._given[worker.number] = [list(map(int, one["ranks"])) for one in told]
            return
        places = [(member.host, member.slot) for member in epoch.workers]
        self._told[worker.number] = [
            [places[rank] for rank in one["ranks"]]
            if "ranks" in one
            else [(str(host), int(slot)) for host, slot in one["places"]]
            for one in told
        ]

    def carried_into(self, epoch: Epoch) -> list[Message]:
        """Says which sets the ranks of a new epoch know, and which of them come back.

        Args:
            epoch: It begins.

        Returns:
            Of each set its places, and its ranks, or None if a place is empty.
        """
        now = {(worker.host, worker.slot): rank for rank, worker in enumerate(epoch.workers)}
        lists = [self._told.pop(w.number, []) for w in epoch.workers if w not in epoch.joined]
        if lists:
            # A death may have been in the middle of a change: the sets before it are there.
            known = zip(*lists, strict=False)
            agreed = itertools.takewhile(lambda sets: sets.count(sets[0]) == len(sets), known)
            alike = [sets[0] for sets in agreed]
        else:
            places = list(now)
            given = self._given.get(epoch.workers[0].number, [])
            alike = [[places[r] for r in ranks] for ranks in given if max(ranks) < len(places)]
        self._told.clear()
        for worker in epoch.workers:
            self._given.pop(worker.number, None)
        return [
            {"places": places, "ranks": sorted(map(now.get, places)) if there else None}
            for places in alike
            for there in [now.keys() >= set(places)]
        ]
