"""A rank that crashes and whose core is dumped (row 4): the others need not wait for that."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from holdups import Holdups
from launcher_jobs import Job

NOTICE_SECONDS = 3.0
# The kernel visits every page of it, for much longer than a minute, and writes none.
PROGRAM = """
import json, mmap, os, resource, sys, time
import numpy as np
import horoacc as hvd
hvd.init()
hvd.allreduce(np.ones(1000), op=hvd.Sum)
if hvd.rank() == 1:
    os.chdir(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE of Linux
    memory = mmap.mmap(-1, 4 << 40, flags=flags)
    memory[0] = 1
    os.abort()
began = time.monotonic()
try:
    hvd.allreduce(np.ones(1000), op=hvd.Sum)
except hvd.errors.PeerLost as error:
    print(json.dumps([error.culprit, str(error), time.monotonic() - began]), flush=True)
    os._exit(9)
"""


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_crash_is_known_before_the_core_is_dumped(job: Job, tmp_path: Path, size: int) -> None:
    with Holdups() as holdups:
        flags = ["--tcp", "-np", str(size), "--grace-seconds", "1"]
        result = job.run(*flags, sys.executable, "-c", PROGRAM, str(tmp_path), code=None)
    for rank in {*range(size)} - {1}:
        assert result.of(rank), result.err
        culprit, text, took = json.loads(result.of(rank)[0])
        assert culprit == 1 and "rank 1" in text, text
        assert took < holdups.allow(NOTICE_SECONDS), text
    job.expect_nothing_left()
