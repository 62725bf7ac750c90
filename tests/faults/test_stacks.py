"""Stacks of a running interpreter on a signal, beside a script's own signal handlers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
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

sys.setswitchinterval(1e-3)
core, over, all_run = Core(), threading.Event(), threading.Barrier(5)
watch = StackWatch(core, False)
threads = [threading.Thread(target=run) for _ in range(4)]
for thread in threads:
    thread.start()
all_run.wait()
for k in range(50):
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

# Threads that take turns at the interpreter's lock, which none gives up soon: the one that answers
# has to wait, and stacks move meanwhile.
CROWDED = """
import random, sys, threading, time
import numpy as np
import horoacc as hvd
hvd.init()
sys.setswitchinterval(0.1)
sys.setrecursionlimit(3000)
go, over = threading.Event(), threading.Event()

def churn(depth):
    return depth and churn(depth - 1)

def run():
    go.wait()
    while not over.is_set():
        churn(random.randrange(900))

def compute():
    go.set()
    time.sleep(4)
    over.set()

late = hvd.rank() == 1
threads = [threading.Thread(target=run) for _ in range(6 * late)]
for thread in threads:
    thread.start()
hvd.barrier()
if late:
    compute()
handles = []
for k in range(20):
    handles.append(hvd.allreduce_async(np.ones(3), op=hvd.Sum, name=f"t{k}"))
    if not late:
        time.sleep(0.1)
print([hvd.synchronize(handle).tolist() for handle in handles] == 20 * [[2.0] * 3], flush=True)
for thread in threads:
    thread.join()
"""

# A step's gradients stall between hosts. To take a stack needs 0.3 s here at least.
STEP = """
import time
import numpy as np
import horoacc as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    time.sleep(5)
start = time.monotonic()
handles = [hvd.allreduce_async(np.ones(3), op=hvd.Sum, name=f"t{k}") for k in range(300)]
print([hvd.synchronize(handle).tolist() for handle in handles] == 300 * [[4.0] * 3], flush=True)
print("seconds", time.monotonic() - start if hvd.rank() == 1 else 0, flush=True)
"""

# More threads than faulthandler writes, and deep ones.
MANY = """
import threading, time
import numpy as np
import horoacc as hvd
hvd.init()
over = threading.Event()

def wait(depth):
    if depth == 0:
        over.wait()
    else:
        wait(depth - 1)

def load():
    time.sleep(3)

late = hvd.rank() == 1
threads = [threading.Thread(target=wait, args=(60,)) for _ in range(110 * late)]
for thread in threads:
    thread.start()
hvd.barrier()
if late:
    load()
print(hvd.allreduce(np.ones(2), op=hvd.Sum, name="late").tolist(), flush=True)
over.set()
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


@pytest.mark.parametrize("hosts", ["", "1+1"])
def test_stacks_that_move_while_they_are_read_harm_nobody(hosts: str) -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "2", sys.executable, "-c", CROWDED,
            HOROACC_STALL_CHECK_TIME_SECONDS="1", HOROACC_SIMULATED_HOSTS=hosts,
        )  # fmt: skip
    assert result.of(0) == result.of(1) == ["True"], result
    assert re.search(r"rank\(s\) 1 have not submitted", result.err), result


def test_a_rank_is_asked_once_for_all_calls_that_wait() -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "4", sys.executable, "-c", STEP,
            HOROACC_STALL_CHECK_TIME_SECONDS="1", HOROACC_SIMULATED_HOSTS="each",
            HOROACC_LOG_HIDE_TIME="1",
        )  # fmt: skip
    told = re.findall(
        r"rank (\d) warning: tensor 'allreduce.t\d+' .*; rank 1 is in <module>", result.err
    )
    assert len(told) == 300 and len(set(told)) == 1, result.err
    for rank in range(4):
        correct, seconds = result.of(rank)
        # Of 300 questions the answers would take more than a minute.
        assert correct == "True" and float(seconds.split()[1]) < 30, result


def test_the_main_thread_of_many_is_shown() -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "2", sys.executable, "-c", MANY, HOROACC_STALL_CHECK_TIME_SECONDS="1"
        )
    assert result.of(0) == result.of(1) == ["[2.0, 2.0]"], result
    assert re.search(r"; rank 1 is in load \(<string>:\d+\) < <module>", result.err), result


def test_a_script_takes_the_signal_for_itself(tmp_path: Path) -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "1", sys.executable, "-c", USERS, str(tmp_path / "stacks"),
            HOROACC_FLIGHT_DIR=str(tmp_path / "flight"),
        )  # fmt: skip
    assert result.of(0) == ["done"], result
