"""Imports a framework once and forks ranks from there.

One order is a line of JSON on stdin, with worker.py's arguments. It either asks for ranks of a job,
with their number and variables, and is answered by a line with their process ids; or it names an
address at which as many relays (relay.py) will call, for each of which one rank is forked.

Ranks end with this process, and it ends with the tests' process, whose folders it then removes.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import worker

# Above those that a process has when it starts.
SPARE_DESCRIPTOR = 300
RELAY_SECONDS = 30.0


def be_rank(arguments: list[str], prepare: Callable[[], socket.socket | None]) -> NoReturn:
    """Turns a forked child into a rank; who waits for it is told if it ended well."""
    waits = None
    code = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        waits = prepare()
        worker.main(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if waits is not None and code == 0:
            waits.send(b"0")
        os._exit(code)


def set_variables(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def fork_job(order: dict[str, Any]) -> list[int]:
    """Forks all ranks of a job, which meet over TCP."""
    size, folder = order["size"], order["arguments"][2]
    secret = secrets.token_hex(32)
    pids = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as meeting:
        host, port = meeting.getsockname()

        def prepare(rank: int) -> None:
            log = os.open(os.path.join(folder, f"stderr.{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            position = {
                "RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size,
                "CROSS_RANK": 0, "CROSS_SIZE": 1, "SECRET": secret, "RENDEZVOUS": f"{host}:{port}",
            }  # fmt: skip
            if rank == 0:
                position["RENDEZVOUS_FD"] = meeting.fileno()
            else:
                meeting.close()
            own = {f"HOROACC_{name}": str(value) for name, value in position.items()}
            set_variables(order["variables"] | own)

        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                be_rank(order["arguments"], functools.partial(prepare, rank))
            pids.append(pid)
    return pids


def fork_for(relay: socket.socket, arguments: list[str]) -> None:
    """Forks the rank that a relay stands for."""
    relay.settimeout(RELAY_SECONDS)
    length, received, _, _ = socket.recv_fds(relay, 4, 250)
    told = bytearray()
    while len(told) < int.from_bytes(length, "little"):
        part = relay.recv(1 << 16)
        if not part:
            raise ConnectionError("a relay ended before it had told all")
        told += part
    order = json.loads(told)

    def prepare() -> socket.socket:
        # What has one of their numbers here is none of a rank's.
        spare = [os.dup2(fd, SPARE_DESCRIPTOR + index) for index, fd in enumerate(received)]
        waits = os.dup2(relay.fileno(), SPARE_DESCRIPTOR + len(received))
        for fd, number in zip(spare, order["numbers"], strict=True):
            os.dup2(fd, number)
            os.close(fd)
        set_variables(order["variables"])
        return socket.socket(fileno=waits)

    if os.fork() == 0:
        relay.settimeout(None)
        be_rank(arguments, prepare)
    for fd in received:
        os.close(fd)


def serve() -> None:
    """Carries out orders until the tests' process has ended."""
    folders: set[str] = set()
    relays: socket.socket | None = None
    arguments: list[str] = []
    while True:
        ready, _, _ = select.select([sys.stdin.buffer, *([relays] if relays else [])], [], [])
        if relays in ready:
            assert relays is not None
            with relays.accept()[0] as relay:
                fork_for(relay, arguments)
            continue
        line = sys.stdin.buffer.readline()
        if not line:
            break
        order = json.loads(line)
        arguments = order["arguments"]
        folders.add(arguments[2])
        if relays is not None:
            relays.close()
            relays = None
        pids = []
        if "relays" in order:
            relays = socket.socket(socket.AF_UNIX)
            relays.bind(order["relays"])
            relays.listen(128)
        else:
            pids = fork_job(order)
        print(json.dumps(pids), flush=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def main(framework: str) -> None:
    # Nobody waits for the ranks: the pool sees them end through descriptors.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Sent to the whole group of the tests' process, after whose end there is something to do.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    importlib.import_module(framework)
    importlib.import_module("pytest")
    for name in filter(None, os.environ.get("HOROACC_TEST_IMPORTS", "").split(",")):
        importlib.import_module(name)
    if "torch" in sys.modules:
        # The first use of an optimizer would import the one and the first compilation the other, in
        # seconds.
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch._inductor.compile_fx")
    if "horoacc.tensorflow" in sys.modules:
        # Else all ranks would wait for one that compiles them.
        importlib.import_module("horoacc.tensorflow._ops").build_if_needed()
    # A rank that collects garbage would look at millions of objects that live as long as it does,
    # and get a copy of every page they lie on.
    gc.collect()
    gc.freeze()
    serve()


if __name__ == "__main__":
    main(sys.argv[1])
