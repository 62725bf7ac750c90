"""How jobs end whose ranks do not all share memory: parts are as if on hosts of their own."""

from __future__ import annotations

import signal
import sys

import pytest
from launcher_jobs import Job

# The survivors hold back SIGTERM until they have printed their error, and end after the others.
PROGRAM = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
import numpy as np
import horoacc as hvd
how, who = sys.argv[1], int(sys.argv[2])
hvd.init()
me = hvd.rank()
arrays = [np.ones(1 << 18, np.float32) for _ in range(4)]
try:
    for step in range(10**9):
        flights = [hvd.allreduce_async_(x, name=f"grad{i}") for i, x in enumerate(arrays)]
        if me == who and step == 5:
            if how == "fork and be killed":
                if os.fork() == 0:  # as a loader of data does, that hangs on somewhere
                    time.sleep(60)
            if "kill" in how:
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raise":
                raise ValueError("only here")
            for flight in flights:
                hvd.synchronize(flight)
            hvd.shutdown()
            print("left", flush=True)
            break
        for flight in flights:
            hvd.synchronize(flight)
except hvd.HorovodInternalError as error:
    print(type(error).__name__, error.culprit, flush=True)
    if how == "shut down":
        hvd.shutdown()
        sys.exit(0)
    signal.sigtimedwait([signal.SIGTERM], 1)
    sys.exit(9)
"""


@pytest.mark.parametrize("hosts", ["2+1", "1+1+1"])
@pytest.mark.parametrize(("how", "who"), [("kill", 0), ("fork and be killed", 2), ("raise", 1)])
def test_a_rank_ends_in_the_middle(job: Job, hosts: str, how: str, who: int) -> None:
    result = job.run(
        "--tcp", "-np", "3", sys.executable, "-c", PROGRAM, how, str(who), code=None,
        HOROACC_SIMULATED_HOSTS=hosts, HOROACC_GRACE_SECONDS="30",
    )  # fmt: skip
    assert result.code == (128 + signal.SIGKILL if "kill" in how else 1), result
    for survivor in {0, 1, 2} - {who}:
        assert result.of(survivor) == [f"PeerLost {who}"], result


@pytest.mark.parametrize("who", [0, 2])
def test_a_rank_shuts_down_while_others_go_on(job: Job, who: int) -> None:
    result = job.run(
        "--tcp", "-np", "3", sys.executable, "-c", PROGRAM, "shut down", str(who),
        HOROACC_SIMULATED_HOSTS="2+1",
    )  # fmt: skip
    assert result.of(who) == ["left"], result
    for survivor in {0, 1, 2} - {who}:
        assert result.of(survivor) == [f"Aborted {who}"], result


@pytest.mark.parametrize("hosts", ["2+1", "all"])
def test_hosts_that_do_not_add_up(job: Job, hosts: str) -> None:
    program = "import horoacc; horoacc.init()"
    result = job.run(
        "--tcp", "-np", "2", sys.executable, "-c", program, code=None, HOROACC_SIMULATED_HOSTS=hosts
    )
    said = f"'simulated_hosts' cannot be '{hosts}' in a job of 2 ranks: it is 'each', or"
    assert said in result.err, result


def test_an_algorithm_that_is_none(job: Job) -> None:
    program = "import horoacc; horoacc.init()"
    result = job.run(
        "--tcp", "-np", "2", sys.executable, "-c", program, code=None,
        HOROACC_SIMULATED_HOSTS="1+1", HOROACC_ALGORITHM="rings",
    )  # fmt: skip
    assert "there is no algorithm 'rings'; there are ring, double_tree" in result.err, result


# Rank 2 leaves, and then rank 3, which is alone on its host, is stopped.
STOPPED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
import numpy as np
import horoacc as hvd
hvd.init()
me = hvd.rank()
others = hvd.add_process_set([0, 1, 3])
hvd.barrier()
if me == 2:
    hvd.shutdown()
    print("left", flush=True)
else:
    hvd.allreduce(np.ones(3), process_set=others, op=hvd.Sum)
    if me == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        hvd.allreduce(np.ones(3), process_set=others, op=hvd.Sum)
    except hvd.HorovodInternalError as error:
        print(type(error).__name__, error.culprit, flush=True)
        if me == 1:
            signal.sigtimedwait([signal.SIGTERM], 1)
        sys.exit(9)
"""


def test_a_host_whose_lowest_rank_has_left_is_watched(job: Job) -> None:
    result = job.run(
        "--tcp", "-np", "4", sys.executable, "-c", STOPPED, code=None,
        HOROACC_SIMULATED_HOSTS="2+2", HOROACC_HEARTBEAT_WARNING_SECONDS="2",
        HOROACC_HEARTBEAT_TIMEOUT_SECONDS="6", HOROACC_GRACE_SECONDS="2",
    )  # fmt: skip
    assert result.of(2) == ["left"], result
    assert [result.of(rank) for rank in (0, 1)] == [["Timeout 3"]] * 2, result
    assert "rank 3 (on another host" in result.err, result
