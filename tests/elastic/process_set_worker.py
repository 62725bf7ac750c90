"""Ranks of an elastic job with process sets: process_set_worker.py FOLDER BATCHES SECONDS."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from elastic_plan import happens, note

import horoacc as hvd
from horoacc.process_sets import ids_and_ranks

BATCHES, SECONDS, ADD = int(sys.argv[2]), float(sys.argv[3]), os.environ["ADD"]
PARTS = ([0, 1], [2, 3], [1, 3])

hvd.init(process_sets=[])
sets = [hvd.add_process_set(list(part)) for part in PARTS] if ADD != "again" else []


def add_again() -> None:
    sets[:] = [hvd.add_process_set(part) for part in PARTS if max(part) < hvd.size()]


def what_they_do() -> list[Any]:
    """Of each set its ranks, and what those of this process's sets have in common."""
    found: list[Any] = []
    for process_set in sets:
        if process_set.process_set_id is None:
            found.append(None)
            continue
        found.append([process_set.ranks])
        if process_set.included():
            own = np.array([os.getpid()])
            found[-1].append(hvd.allgather(own, process_set=process_set).tolist())
    return found


@hvd.elastic.run
def train(state: Any) -> None:
    if ADD == "again":
        add_again()
    while state.batch < BATCHES:
        where = {"batch": state.batch + 1, "rank": hvd.rank()}
        happens(**where, at="begin")
        pids = hvd.allgather(np.array([os.getpid()]), name="pids").tolist()
        note("sets", **where, pids=pids, epoch=hvd.elastic.epoch(), sets=what_they_do(),
             registered=sorted(ids_and_ranks().values()))  # fmt: skip
        time.sleep(SECONDS)
        state.batch += 1
        state.commit()


state = hvd.elastic.ObjectState(batch=0)
if ADD == "callback":
    state.register_reset_callbacks([add_again])
train(state)
hvd.shutdown()
