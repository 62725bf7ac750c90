"""A worker of elastic jobs, to which things happen: elastic_worker.py FOLDER BATCHES SECONDS."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER, BATCHES, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
PLAN = json.loads((FOLDER / "plan").read_text())
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}


def note(what: str, **fields: Any) -> None:
    line = json.dumps({"time": time.time(), "what": what, "pid": os.getpid(), **fields}) + "\n"
    with open(FOLDER / "log", "a") as log:
        log.write(line)


def happens(**where: Any) -> None:
    """Does what the plan has for here, once in the whole job."""
    for number, step in enumerate(PLAN):
        if any(step.get(name) != value for name, value in where.items()):
            continue
        try:
            (FOLDER / f"happened.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        note(step["do"], **where)
        if step["do"] in SIGNALS:
            os.kill(os.getpid(), SIGNALS[step["do"]])
            time.sleep(0.5)
        elif step["do"] == "raise":
            raise RuntimeError(f"the plan's error at {where}")
        elif step["do"] == "sleep":
            time.sleep(step["seconds"])
        else:
            os._exit(int(step["do"]))


happens(worker=int(os.environ["HOROACC_WORKER"]))

import numpy as np  # noqa: E402

import horoacc as hvd  # noqa: E402

hvd.init()


@hvd.elastic.run
def train(state: Any) -> None:
    while state.batch < BATCHES:
        batch = state.batch + 1
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


def epoch() -> int:
    return hvd.elastic.member.member().epoch


state = hvd.elastic.ObjectState(batch=0, weight=0.0)
state.register_reset_callbacks([lambda: happens(rank=hvd.rank(), at="reset")])
train(state)
note("end", rank=hvd.rank(), size=hvd.size(), batch=state.batch, weight=state.weight)
hvd.shutdown()
