"""A rank to be looked at: python looked_at.py WHAT NOW MOMENT

All ranks reduce step after step. Once the file NOW is there, rank 1 is what WHAT says: `slow`, it
sleeps in each step; `stalled`, it sleeps and calls no more; `busy`, it computes and calls no more;
`dead`, it is killed; `idle`, as the others. `wordy` ranks begin with many calls of long names, and
do not wait for NOW. It writes the time at which that began to MOMENT. The
job has no end of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

what, now, moment = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if look_dir := os.environ.get("LOOK_DIRS"):  # a folder for each rank, as on hosts of their own
    os.environ["HOROACC_LOOK_DIR"] = f"{look_dir}/{os.environ['HOROACC_RANK']}"

import numpy as np  # noqa: E402

import horoacc as hvd  # noqa: E402


def load() -> None:
    time.sleep(600)


def compute() -> None:
    while True:
        sum(range(1000))


def begin() -> None:
    unfinished = moment.with_suffix(".new")
    unfinished.write_text(str(time.monotonic_ns()))
    unfinished.rename(moment)


hvd.init()
arrays = [np.ones(1 << 14, np.float32) for _ in range(4)]
if what == "wordy":
    for call in range(6000):
        hvd.allreduce(np.ones(1), name=f"{'long' * 50}{call}")
    if hvd.rank() == 1:
        begin()
while True:
    time.sleep(0.01)
    if hvd.rank() == 1 and now.exists():
        if not moment.exists():
            begin()
        if what == "slow":
            time.sleep(0.1)
        elif what == "stalled":
            load()
        elif what == "busy":
            compute()
        elif what == "dead":
            os.kill(os.getpid(), signal.SIGKILL)
    handles = [hvd.allreduce_async(a, name=f"grad{i}") for i, a in enumerate(arrays)]
    try:
        for handle in handles:
            hvd.synchronize(handle)
    except hvd.errors.HoroaccError:
        time.sleep(600)  # so that the job is there to be looked at
