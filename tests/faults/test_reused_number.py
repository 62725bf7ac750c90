"""A rank that dies and whose process number somebody else gets (row 22)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launcher_jobs import Job

# The ranks are started, and looked after, in a namespace where this program counts processes alone.
PROGRAM = """
import os, signal, subprocess, sys
RANK = '''
import sys
import numpy as np
import horoacc as hvd
hvd.init()
hvd.barrier()
print("up", flush=True)
sys.stdin.readline()
try:
    hvd.allreduce(np.ones(3), name="late")
except hvd.errors.PeerLost as error:
    print(error.culprit, error.tensor, error, flush=True)
hvd.shutdown()
'''
size = int(sys.argv[1])
ranks = []
for rank in range(size):
    place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "SECRET": "s" * 64,
             "RENDEZVOUS": "127.0.0.1:4711"}
    own = {f"HOROACC_{name}": str(value) for name, value in place.items()}
    ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=os.environ | own, text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE))
for one in ranks:
    assert one.stdout.readline() == "up\\n"
*survivors, victim = ranks
for one in survivors:  # nobody looks before the number has another owner
    one.send_signal(signal.SIGSTOP)
victim.kill()
victim.wait()
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(victim.pid - 1))
other = subprocess.Popen(["sleep", "600"])
assert other.pid == victim.pid
for one in survivors:
    one.send_signal(signal.SIGCONT)
for one in survivors:
    told, _ = one.communicate("\\n", timeout=300)
    assert told.startswith(f"{size - 1} allreduce.late "), told
    assert f"rank {size - 1} died without shutting down" in told, told
    assert one.returncode == 0
assert other.poll() is None
other.kill()
other.wait()
"""


@pytest.mark.parametrize("size", [2, 4, 8])
def test_another_process_is_not_taken_for_the_rank(size: int) -> None:
    # A network of its own as well, where the port is free.
    unshare = ["unshare", "--pid", "--net", "--fork", "--mount-proc", "sh", "-c"]
    unshare += ['ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user may not have processes of its own numbers")
    with Job() as job:
        done = subprocess.run(
            [*unshare, sys.executable, "-c", PROGRAM, str(size)],
            env=job.environ(), capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        job.expect_nothing_left()
