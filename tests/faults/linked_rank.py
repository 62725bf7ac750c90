"""A rank that reduces until it is told to stop: python linked_rank.py GO [ELEMENTS]

It prints lines of JSON: the outcome of `init()`, from time to time its step and holdings, and its
end. While GO.idle is there no rank calls, while GO.absent is there the last rank does not; a rank
that does not call leaves when GO.leave comes. With LINKED_AGAIN it joins the others again after an
error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

import horoacc as hvd

# Descriptors that the rank takes for itself: all but so many before init(), or all after it.
spare, hoard = os.environ.get("LINKED_SPARE"), "LINKED_HOARD" in os.environ
again = "LINKED_AGAIN" in os.environ
go, elements = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000


idle, absent, leave = (go.with_suffix(suffix) for suffix in (".idle", ".absent", ".leave"))


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def take_all_but(count: int) -> list[int]:
    """All descriptors but so many, of a limit that is lowered first."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for fd in taken[:count]:
            os.close(fd)
    return taken[count:]


def resident_kib() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def holdings() -> dict[str, int]:
    return {"fds": len(os.listdir("/proc/self/fd")), "kib": resident_kib()}


def tell(error: hvd.errors.HoroaccError, **more: object) -> None:
    say(error=type(error).__name__, text=str(error), **vars(error), **more)


def run() -> None:
    """All stop after the same step."""
    mine = np.arange(elements, dtype=np.float32) * (hvd.rank() + 1)
    expected = np.arange(elements, dtype=np.float32) * sum(range(1, hvd.size() + 1))
    said = 0.0
    for step in range(10**9):
        total = hvd.allreduce(mine, op=hvd.Sum, name="grad")
        assert (np.asarray(total) == expected).all(), "a wrong result"
        asked = np.array([go.exists(), idle.exists(), absent.exists()])
        over, nobody, not_last = hvd.allreduce(asked, op=hvd.Max, name="over")
        if over:
            return say(ended=step)
        if nobody or (not_last and hvd.rank() == hvd.size() - 1):
            say(away=step)
            while idle.exists() or absent.exists():
                if leave.exists():
                    return say(left=step)
                time.sleep(0.01)
        if time.monotonic() - said > 0.2:
            said = time.monotonic()
            say(step=step, time=said, **({} if hoard else holdings()))
            time.sleep(0.01)


def join_and_run() -> None:
    try:
        hvd.init()
    except hvd.errors.HoroaccError as error:
        tell(error, at="init")
        sys.exit(7)
    hvd.allreduce(np.zeros(elements, np.float32))  # the data links come with the first one
    if hoard:
        take_all_but(0)
    say(at="start", pid=os.getpid())
    run()


if spare is not None:
    take_all_but(int(spare))
while True:
    try:
        join_and_run()
    except hvd.errors.HoroaccError as error:
        tell(error, at="run", time=time.monotonic())
        hvd.shutdown()
        if not again or go.exists():
            sys.exit(9)
    else:
        break
hvd.shutdown()
