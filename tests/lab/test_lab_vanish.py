"""A host that vanishes from a job: nobody tells, nothing is closed, packets just end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading

import pytest
from lab_jobs import MODES, ROOT

from benchmarks.lab import Laboratory, Network, missing

# Told within about four seconds; a machine with more to do may take longer.
SECONDS = 60
LIMIT = 3
PROGRAM = """
import os, time
import numpy as np
import horoacc as hvd
hvd.init()
hvd.allreduce(np.ones(1), name="first")
print("together\\n", end="", flush=True)
began = time.monotonic()
try:
    while time.monotonic() - began < 50:
        hvd.allreduce(np.ones(1000), name="next")
        time.sleep(0.05)
except hvd.errors.PeerLost as error:
    why = "in time" if "(host_timeout_seconds: 3)" in str(error) else str(error)
    print(f"lost {error.culprit} {why}\\n", end="", flush=True)
os._exit(0)
"""


def test_a_host_that_vanishes_is_noticed_and_named() -> None:
    if reason := missing():
        pytest.skip(reason)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HOROACC_")}
    # The daemons of mpirun are killed here, and their files would be in the way of the next
    # laboratory's, whose processes have the same numbers.
    with tempfile.TemporaryDirectory() as folder, Laboratory(Network()) as lab:
        job = lab.hosts["h1"].popen(
            [sys.executable, "-m", "horoacc.launcher.main", *MODES["tcp over openmpi"],
             "--host-timeout-seconds", str(LIMIT), "-H", "h1:2,h2:1",
             sys.executable, "-c", PROGRAM],
            env=kept | {"PYTHONPATH": str(ROOT), "HOROACC_GRACE_SECONDS": "1",
                        "TMPDIR": folder},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert job.stdout
        limit = threading.Timer(SECONDS, job.kill)
        limit.start()
        try:
            together = {job.stdout.readline().strip() for _ in range(3)}
            assert together == {f"[{rank}] together" for rank in range(3)}
            lab.unplug("h2")
            told = {job.stdout.readline().strip() for _ in range(2)}
            assert told == {"[0] lost 2 in time", "[1] lost 2 in time"}
        finally:
            # mpirun still waits for a host that is gone; the laboratory's end takes it along.
            limit.cancel()
            job.stdout.close()
            job.kill()
            job.wait(timeout=SECONDS)
