"""A rank of a job with a fault: python faulted_rank.py PHASE VICTIM GO

PHASE is the ranks' activity at the fault: `idle` (no rank calls), `negotiating` (the victim does
not submit the tensor that the others wait for), `collective` (one large reduction after the other),
`shutdown` (the others leave) or `leaving` (the victim leaves once the file GO is there, while the
others wait for it). Ranks wait or reduce until GO is there. Each rank prints a line of JSON when it
has started, one when it is in its phase, and one at its end: its error, the time, and the
descriptors that it still holds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

phase, victim, go = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
# A rank prints its error before it heeds the launcher, which ends the job because of the victim.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

import numpy as np  # noqa: E402

import horoacc as hvd  # noqa: E402

GO_TIMEOUT = 90.0
arrays = [np.ones(1 << 20, np.float32) for _ in range(2)]


def held() -> set[str]:
    """The open descriptors of the process, but for the one that this look opens."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(fd + " " + os.readlink("/proc/self/fd/" + fd))
        except OSError:
            continue
    return found


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def await_go() -> None:
    end = time.monotonic() + GO_TIMEOUT
    while not go.exists() and time.monotonic() < end:
        time.sleep(0.01)


def calls() -> None:
    """Takes down when the rank called last."""
    global called_ns
    called_ns = time.monotonic_ns()


def reduce_until_go() -> None:
    """All leave after the same step."""
    for step in range(10**9):
        calls()
        handles = [
            hvd.allreduce_async(a, op=hvd.Sum, name=f"grad{i}") for i, a in enumerate(arrays)
        ]
        for handle in handles:
            assert (np.asarray(hvd.synchronize(handle)) == hvd.size()).all()
        over = np.array([go.exists()])
        calls()
        if step % 8 == 0 and hvd.allreduce(over, op=hvd.Max, name="over")[0]:
            return


def run() -> None:
    me = hvd.rank()
    hvd.allreduce_(arrays[0], op=hvd.Average, name="warm")
    hvd.barrier()
    say(at=phase, pid=os.getpid())
    if phase == "idle" or (me == victim and phase != "collective"):
        await_go()
    if (phase == "shutdown" and me != victim) or (phase == "leaving" and me == victim):
        return
    if phase == "collective":
        reduce_until_go()
    else:
        calls()
        total = hvd.allreduce(np.ones(3), op=hvd.Sum, name="late")
        assert total.tolist() == [hvd.size()] * 3


called_ns = time.monotonic_ns()
before = held()
say(comes=True, pid=os.getpid())
hvd.init()
place = hvd.rank()
told: dict[str, object] = {}
try:
    run()
except hvd.errors.HoroaccError as error:
    told = {"error": type(error).__name__, "text": str(error), **vars(error)}
told |= {"at_ns": time.monotonic_ns(), "called_ns": called_ns}
hvd.shutdown()
# Memory of the engine stays mapped for arrays that may live in it, but nothing stays open.
say(**told, left=sorted(held() - before))
if "error" in told:
    # The victim ends first; of a rank that has left nobody knows when.
    if told["culprit"] != place and told["error"] != "Aborted":
        signal.sigtimedwait([signal.SIGTERM], 1)
    sys.exit(9)
