"""Ranks on a kernel, or in a container, that has no pidfds (rows 1 and 4), or few descriptors."""

from __future__ import annotations

import json
import sys

import pytest
from holdups import Holdups
from launcher_jobs import Job

NOTICE_SECONDS = 3.0
# A filter of system calls, as container runtimes set one: pidfd_open is unknown.
PROGRAM = """
import ctypes, json, os, signal, struct, time
call, unknown = 434, 38
load, jump, give = 0x20, 0x15, 0x06
steps = [(load, 0, 0, 0), (jump, 0, 1, call), (give, 0, 0, 0x50000 | unknown)]
steps += [(give, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
rules = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, rules) == 0, ctypes.get_errno()
try:
    os.pidfd_open(os.getpid())
    raise AssertionError("there is a pidfd")
except OSError as error:
    assert error.errno == unknown, error
import numpy as np
import horoacc as hvd
hvd.init()
began = time.monotonic()
try:
    hvd.allreduce(np.ones(1000), op=hvd.Sum)  # of which a rank may not be told before the death
    if hvd.rank() == 1:
        if os.fork() == 0:  # as a worker of a DataLoader: it lives longer than the rank
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    hvd.allreduce(np.ones(1000), op=hvd.Sum)
except hvd.errors.PeerLost as error:
    print(json.dumps([error.culprit, time.monotonic() - began]), flush=True)
    # Its own end would tell the launcher's other ranks.
    time.sleep(1)
    os._exit(9)
"""
LIMITS = """
import resource, horoacc
horoacc.init()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_death_is_known_without_pidfds(job: Job, size: int) -> None:
    flags = ["--tcp", "-np", str(size), "--grace-seconds", "8"]
    with Holdups() as holdups:
        result = job.run(*flags, sys.executable, "-c", PROGRAM, code=None)
    for rank in {*range(size)} - {1}:
        assert result.of(rank), result.err
        culprit, took = json.loads(result.of(rank)[0])
        assert culprit == 1 and took < holdups.allow(NOTICE_SECONDS), result.err
    job.expect_nothing_left()


def test_the_limit_of_descriptors_is_raised(job: Job) -> None:
    few = ("sh", "-c", 'ulimit -S -n 100 && ulimit -H -n 300 && exec "$@"', "sh")
    result = job.run("--tcp", "-np", "2", *few, sys.executable, "-c", LIMITS)
    assert result.of(0) == result.of(1) == ["300 300"]
