"""Process sets of elastic jobs: which come back after a change of the ranks, and with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from elastic_jobs import Elastic

import horoacc.launcher.elastic.process_sets as rules
from horoacc.launcher.elastic.membership import Epoch, Worker

WORKER = Path(__file__).with_name("process_set_worker.py")
PARTS = [[0, 1], [2, 3], [1, 3]]


@pytest.mark.parametrize("add", ["once", "again", "callback"])
@pytest.mark.parametrize("dead", [3, 0])
def test_sets_come_back_where_their_ranks_are(elastic: Elastic, add: str, dead: int) -> None:
    """A rank dies; its sets wait for the rank that reslots it, the others come back at once.

    A program that adds its sets whenever it begins to train, as Horovod needs it, has those and no
    others; one that adds them in a reset callback has none twice.
    """
    elastic.plan, elastic.batches = [{"batch": 4, "rank": dead, "do": "kill", "at": "begin"}], 150
    elastic.run("-np", "4", "--min-np", "3", ADD=add, program=str(WORKER))
    seen: dict[int, list[Any]] = {}
    for line in elastic.lines():
        if line["what"] != "sets":
            continue
        pids = line["pids"]
        there = [part for part in PARTS if max(part) < len(pids)]
        ranks = [one and one[0] for one in line["sets"]]
        if add == "once" and dead == 3:
            assert ranks == [part if part in there else None for part in PARTS]
        if add == "callback" and line["epoch"] > 1:
            assert ranks == there
            if dead == 0:  # [1, 3] has come back as well, with the ranks of its slots now
                there += [[0, 2], [1, 2]] if len(pids) == 3 else [[0, 3]]
        if add != "once":
            every = {tuple(part) for part in [range(len(pids)), *there]}
            assert line["registered"] == [list(part) for part in sorted(every)]
        else:
            assert len(line["registered"]) == 1 + len(list(filter(None, ranks)))
        for one in filter(None, line["sets"]):
            if line["rank"] in one[0]:
                assert one[1] == [pids[rank] for rank in one[0]]
        seen.setdefault(line["epoch"], []).append(len(pids))
    assert [sizes[0] for _, sizes in sorted(seen.items())] == [4, 3, 4]


def _workers(*slots: tuple[str, int]) -> list[Worker]:
    return [Worker(number, host, slot) for number, (host, slot) in enumerate(slots)]


def test_which_sets_come_back() -> None:
    a, b, c, d = _workers(("x", 0), ("x", 1), ("y", 0), ("y", 1))
    successor = Worker(4, "x", 0)
    sets = rules.ProcessSets()
    first = Epoch(1, [a, b, c, d], True)
    for worker in (b, c, d):
        told = [{"ranks": [0, 1]}, {"ranks": [2, 3]}, {"ranks": [1, 2]}]
        sets.take(worker, told if worker is not d else told[:2], first)  # it died in an addition
    second = Epoch(2, [c, d, b], True, joined=[])
    pair, other = [("x", 0), ("x", 1)], [("y", 0), ("y", 1)]
    assert sets.carried_into(second) == [
        {"slots": pair, "ranks": None}, {"slots": other, "ranks": [0, 1]},
    ]  # fmt: skip
    for worker in (c, d, b):
        sets.take(worker, [{"slots": pair}, {"slots": other}], second)
    sets.take(successor, [{"ranks": [0, 1]}, {"ranks": [2, 3]}, {"ranks": [0, 9]}], second)
    third = Epoch(3, [c, d, b, successor], True, joined=[successor])
    assert [one["ranks"] for one in sets.carried_into(third)] == [[2, 3], [0, 1]]
    # All have died: the sets are those that the new processes' programs name.
    later = _workers(("y", 0), ("y", 1), ("z", 0))
    for worker in later:
        sets.take(worker, [{"ranks": [0, 2]}, {"ranks": [0, 3]}], third)
    assert sets.carried_into(Epoch(4, later, True, joined=later)) == [
        {"slots": [("y", 0), ("z", 0)], "ranks": [0, 2]}
    ]
