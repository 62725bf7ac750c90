"""A worker of elastic jobs, to which things happen: elastic_worker.py FOLDER BATCHES SECONDS.

Its last batch waits for LAST_SIZE ranks.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from elastic_plan import happens, note

BATCHES, SECONDS = int(sys.argv[2]), float(sys.argv[3])
LAST_SIZE = int(os.environ.get("LAST_SIZE", "0"))

happens(worker=int(os.environ["HOROACC_WORKER"]))

import numpy as np  # noqa: E402

import horoacc as hvd  # noqa: E402

hvd.init()


@hvd.elastic.run
def train(state: Any) -> None:
    while state.batch < BATCHES:
        batch = state.batch + 1
        while batch == BATCHES and hvd.size() < LAST_SIZE:
            hvd.barrier()  # so that all ranks make as many checks
            time.sleep(0.01)
            state.check_host_updates()
        where = {"batch": batch, "rank": hvd.rank()}
        happens(**where, at="begin")
        total = hvd.allreduce(np.full(3, float(batch)), op=hvd.Sum, name="step")
        happens(**where, at="step")
        state.weight += float(total[0]) / hvd.size()
        state.batch = batch
        note("batch", **where, epoch=epoch(), size=hvd.size(), sum=float(total[0]))
        time.sleep(SECONDS)
        happens(**where, at="commit")
        state.commit()
    if "JOIN" in os.environ:  # as ranks with fewer batches than others do
        happens(rank=hvd.rank(), at="join")
        note("joined", last=hvd.join(), size=hvd.size())


def epoch() -> int:
    return hvd.elastic.epoch()


state = hvd.elastic.ObjectState(batch=0, weight=0.0)
state.register_reset_callbacks([lambda: happens(rank=hvd.rank(), at="reset")])
train(state)
note("end", rank=hvd.rank(), size=hvd.size(), batch=state.batch, weight=state.weight)
hvd.shutdown()
