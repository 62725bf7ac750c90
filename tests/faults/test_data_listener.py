"""A data service whose process has no descriptor left for another connection (row 23)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LISTENER = Path(__file__).resolve().parents[2] / "horoacc" / "tensorflow" / "data" / "listener.py"
PAUSE = 0.05  # seconds at least between two attempts to accept
PROGRAM = """
import importlib.util, resource, socket, sys, threading, time
spec = importlib.util.spec_from_file_location("listener", sys.argv[1])
listener = importlib.util.module_from_spec(spec)
spec.loader.exec_module(listener)

looks = 0
class Counting(socket.socket):
    def accept(self):
        global looks
        looks += 1
        return super().accept()
socket.socket = Counting
served = threading.Event()
listens = listener.Listener(["127.0.0.1"], b"key", lambda link: served.set())
unauthenticated = [socket.socket() for _ in range(3)]
most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
begun = time.monotonic()
for client in unauthenticated:
    client.connect(listens.addresses[0])
while looks < 8 and time.monotonic() < begun + 60:
    time.sleep(0.01)
seen, took = looks, time.monotonic() - begun
resource.setrlimit(resource.RLIMIT_NOFILE, most)
for client in unauthenticated:
    client.close()
listener.dial(listens.addresses[0], b"key", 60)
assert served.wait(300)
print(seen, took)
"""


def test_waiting_peers_wake_it_seldom_and_are_served_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(LISTENER)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    looks, seconds = map(float, done.stdout.split())
    assert 8 <= looks <= seconds / PAUSE + 2, (looks, seconds)
    # One line, however many come.
    (line,) = done.stderr.splitlines()
    assert "cannot accept a connection: Too many open files" in line, line
