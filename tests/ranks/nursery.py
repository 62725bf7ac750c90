"""Imports a framework once and forks ranks from there.

One order is a line of JSON on stdin: the number of ranks, their variables and worker.py's
arguments. The answer is a line with their process ids.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import secrets
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

import worker


def be_rank(rank: int, order: dict[str, Any], meeting: socket.socket, secret: str) -> NoReturn:
    """Turns a forked child into a rank."""
    code = 1
    folder = order["arguments"][2]
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(os.path.join(folder, f"stderr.{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        host, port = meeting.getsockname()
        size = order["size"]
        position = {
            "RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0,
            "CROSS_SIZE": 1, "SECRET": secret, "RENDEZVOUS": f"{host}:{port}",
        }  # fmt: skip
        if rank == 0:
            position["RENDEZVOUS_FD"] = meeting.fileno()
        else:
            meeting.close()
        os.environ.clear()
        os.environ.update(order["variables"])
        os.environ.update({f"HOROACC_{name}": str(value) for name, value in position.items()})
        worker.main(*order["arguments"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(framework: str) -> None:
    ctypes.CDLL(None).prctl(worker.PR_SET_PDEATHSIG, signal.SIGKILL)
    # Nobody waits for the ranks: the pool sees them end through descriptors.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    importlib.import_module(framework)
    importlib.import_module("pytest")
    if "torch" in sys.modules:
        # The first use of an optimizer would import it, in seconds.
        importlib.import_module("torch._dynamo")
    for line in sys.stdin.buffer:
        order = json.loads(line)
        pids = []
        secret = secrets.token_hex(32)
        with contextlib.closing(socket.create_server(("127.0.0.1", 0), backlog=128)) as meeting:
            for rank in range(order["size"]):
                pid = os.fork()
                if pid == 0:
                    be_rank(rank, order, meeting, secret)
                pids.append(pid)
        print(json.dumps(pids), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
