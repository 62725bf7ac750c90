"""Where the interpreter is, asked while it runs, and what a script does with the signals itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launcher_jobs import Job

# In place of the core, which asks over the same socket.
MOVES = """
import os, socket, sys, threading
from horoacc.stacks import StackWatch

class Core:
    def watch_stacks(self, talk, signal, fd, heed_requests):
        self.talk = socket.socket(fileno=os.dup(talk))

def churn(depth):
    return depth and churn(depth - 1) + sum(k for k in range(3))

def run():
    all_run.wait()
    while not over.is_set():
        churn(40)

sys.setswitchinterval(1e-5)
core, over, all_run = Core(), threading.Event(), threading.Barrier(5)
watch = StackWatch(core, False)
threads = [threading.Thread(target=run) for _ in range(4)]
for thread in threads:
    thread.start()
all_run.wait()
for k in range(300):
    question = k.to_bytes(4, "little")
    core.talk.send(question)
    answer = core.talk.recv(1 << 17)
    sections = answer[4:].decode().split("\\n\\n")
    assert answer[:4] == question and len(sections) == 5, answer
    assert all(one.startswith("Thread 0x") for one in sections), answer
    assert "in <module>" in sections[-1] and "in run" in sections[0], answer
over.set()
for thread in threads:
    thread.join()
core.talk.close()
watch.close()
assert threading.active_count() == 1
"""

USERS = """
import faulthandler, os, signal, sys, threading
import numpy as np
import horoacc as hvd

def ring():
    before = os.path.getsize(sys.argv[1])
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    assert os.path.getsize(sys.argv[1]) > before

hvd.init()
file = open(sys.argv[1], "w")
faulthandler.register(signal.SIGUSR1, file=file)
ring()
hvd.shutdown()
ring()  # still the script's
hvd.init()
ring()
assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [1, 1]
hvd.shutdown()
ring()
print("done", flush=True)
"""


def test_stacks_are_taken_while_all_threads_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MOVES], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_script_takes_the_signal_for_itself(tmp_path: Path) -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "1", sys.executable, "-c", USERS, str(tmp_path / "stacks"),
            HOROACC_FLIGHT_DIR=str(tmp_path / "flight"),
        )  # fmt: skip
    assert result.of(0) == ["done"], result
