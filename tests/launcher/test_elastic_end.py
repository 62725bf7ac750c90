"""A rank of an elastic program dies: the others go back to their last commit and say so."""

from __future__ import annotations

import sys

import pytest
from launcher_jobs import Job

LOSES = """
import os, signal, sys, time
import numpy as np
import horoacc as hvd
from horoacc.errors import PeerLost

hvd.init()
signal.signal(signal.SIGTERM, signal.SIG_IGN)

@hvd.elastic.run
def train(state):
    while True:
        state.batch += 1
        hvd.allreduce(np.ones(2), name="step")
        if state.batch == 3:
            state.commit()
        if state.batch == 5 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

state = hvd.elastic.ObjectState(batch=0)
begun = time.monotonic()
try:
    train(state)
except PeerLost as error:
    seconds = time.monotonic() - begun
    print(state.batch, error.culprit, seconds < 20, error, flush=True)
    sys.exit(4)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_others_restore_and_raise(job: Job, ranks: int) -> None:
    result = job.run(
        "--tcp", "-np", str(ranks), sys.executable, "-c", LOSES,
        HOROACC_GRACE_SECONDS="30", code=137,
    )  # fmt: skip
    for rank in set(range(ranks)) - {1}:
        (line,) = result.of(rank)
        assert line.startswith("3 1 True "), line
        assert "a rank that is lost is not replaced, so that this job cannot go on" in line
    job.expect_nothing_left()


LEAVES = """
import sys
import numpy as np
import horoacc as hvd
from horoacc.errors import Aborted

hvd.init()

@hvd.elastic.run
def train(state):
    while True:
        state.batch += 1
        if state.batch == 5 and hvd.rank() == int(sys.argv[1]):
            sys.exit(0)
        hvd.allreduce(np.ones(2), name="step")
        if state.batch == 3:
            state.commit()

state = hvd.elastic.ObjectState(batch=0)
try:
    train(state)
except Aborted as error:
    print(state.batch, error, flush=True)
    sys.exit(4)
"""


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_leaves_is_waited_for_and_then_named(job: Job, leaver: int) -> None:
    result = job.run(
        "--tcp", "-np", "2", sys.executable, "-c", LEAVES, str(leaver),
        HOROACC_START_TIMEOUT="3", code=4,
    )  # fmt: skip
    (line,) = result.of(1 - leaver)
    assert line.startswith("3 ") and "the ranks did not meet again: " in line, line
    assert "this job cannot go on" in line
    job.expect_nothing_left()
