"""A rank that dies in a step whose gradients are one call a bucket: the others hear of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launcher_jobs import Job

from horoacc.launcher import explain

PROGRAM = """
import os, signal, sys, time
import torch
import horoacc.torch as hvd

hvd.init()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
params = [torch.nn.Parameter(torch.ones(5)) for _ in range(6)]
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(params, lr=0.1), named_parameters=[(f"p{i}", p) for i, p in enumerate(params)]
)
seen = 0

def halts(grad):
    global seen
    seen += 1
    if hvd.counters()["plan_rounds"] == 3 and seen % 6 == 3:
        if sys.argv[1] == "within":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "late":
            time.sleep(float(sys.argv[2]))

victim = hvd.size() - 1
if hvd.rank() == victim:
    for param in params:
        param.register_post_accumulate_grad_hook(halts)
try:
    for step in range(10 if sys.argv[1] == "late" else 100):
        optimizer.zero_grad()
        sum(p.square().sum() for p in params).backward()
        leaves = sys.argv[1] == "shutdown" and hvd.rank() == victim
        if leaves and hvd.counters()["plan_rounds"] == 3:
            hvd.shutdown()
            sys.exit()
        optimizer.step()
except hvd.HorovodInternalError as error:
    locked = hvd.counters()["plan_rounds"]
    print(type(error).__name__, error.culprit, error.tensor, locked, flush=True)
    assert f"rank {victim}" in str(error)
    sys.exit(0 if sys.argv[1] == "shutdown" else 9)
"""


@pytest.mark.parametrize(("how", "code"), [("within", None), ("shutdown", 0)])
@pytest.mark.parametrize("size", [2, 4])
def test_the_others_are_told(size: int, how: str, code: int | None) -> None:
    with Job() as job:
        result = job.run(
            "-np", str(size), sys.executable, "-c", PROGRAM, how, code=code,
            HOROACC_PLAN_ROUNDS="2", HOROACC_GRACE_SECONDS="30",
        )  # fmt: skip
    for rank in range(size - 1):
        (line,) = result.of(rank)
        kind, culprit, tensor, rounds = line.split()
        assert kind == {"within": "PeerLost", "shutdown": "Aborted"}[how]
        assert culprit == str(size - 1)
        # The buckets of the victim's last step may have been reduced before it shut down.
        assert rounds in {"within": ["3"], "shutdown": ["3", "4"]}[how]
        assert tensor.startswith("allreduce.p")


@pytest.mark.parametrize("size", [2, 3])
def test_a_stall_names_the_gradients_that_are_missing(size: int) -> None:
    with Job() as job:
        result = job.run(
            "-np", str(size), sys.executable, "-c", PROGRAM, "late", "3",
            HOROACC_PLAN_ROUNDS="2", HOROACC_STALL_CHECK_TIME_SECONDS="1",
        )  # fmt: skip
    others, victim = ", ".join(map(str, range(size - 1))), size - 1
    found = re.search(
        rf"'allreduce\.p\d and 5 more \(plan .*' has waited for \d+ s: rank\(s\) {others} are "
        rf"ready, rank\(s\) {victim} have not submitted it; rank {victim} is in halts .*"
        rf"; rank {victim} lacks (.*)",
        result.err,  # of a busy machine, other waits may take a second, too
    )
    assert found, result.err
    missing = re.findall(r"'(allreduce\.p\d)'", found[1])
    assert 3 <= len(set(missing)) <= 4, result.err  # of the third, its hook may have run


def test_the_error_and_the_records_name_them(tmp_path: Path) -> None:
    with Job() as job:
        result = job.run(
            "-np", "2", "--flight-dir", str(tmp_path), sys.executable, "-c", PROGRAM, "late", "9",
            code=None, HOROACC_PLAN_ROUNDS="2", HOROACC_STALL_CHECK_TIME_SECONDS="1",
            HOROACC_STALL_SHUTDOWN_TIME_SECONDS="6", HOROACC_GRACE_SECONDS="30",
        )  # fmt: skip
    ended = r"'allreduce\.p\d and 5 more \(plan .*' was not submitted by rank\(s\) 1 within .*"
    assert re.search(ended + r"; rank 1 lacks 'allreduce\.p\d', ", result.err), result.err
    told = explain.explain(tmp_path)[0]
    assert re.match(r"Rank 0 waits for rank 1 in 'allreduce\.p\d and 5 more ", told), told
    assert re.search(r"; it lacks 'allreduce\.p\d', ", told), told
