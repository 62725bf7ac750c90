"""Readings of the ranks of one host, over Unix sockets that only processes of the user may ask."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import threading
import time
from typing import NamedTuple

from horoacc import process
from horoacc.monitor.families import samples

_ANSWER_SECONDS = 1.0  # that all ranks of a host have together
_MOST_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Reading(NamedTuple):
    """The counters of a rank at one moment."""

    rank: int
    counters: dict[str, int]


def metrics() -> dict[str, float]:
    """Reads this rank's metrics since `init()`.

    Returns:
        Their values, by the names that Prometheus shows, such as `horoacc_submissions_total` or
        `horoacc_reduced_bytes_total{path="arena"}`; docs/metrics.md lists them.

    Raises:
        ValueError: `init()` was not called.
    """
    return {one.name: float(one.number) for one in samples(process.engine().counters())}


def _name(local_rank: int) -> bytes:
    """The abstract address of a rank's socket. It is no secret: the kernel tells who asks."""
    where = process.position()
    known = ("HOROACC_MASTER", "MASTER_PORT", "PMIX_NAMESPACE")
    job = next(filter(None, map(os.environ.get, known)), str(os.getppid()))
    return f"\0horoacc-metrics-{os.getuid()}-{job}-{where.cross_rank}-{local_rank}".encode()


def _is_users(link: socket.socket) -> bool:
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.getuid())


class Answering:
    """Answers whoever asks for this rank's reading, until it is closed."""

    def __init__(self) -> None:
        """Listens.

        Raises:
            OSError: Another process has this rank's address.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(_name(process.position().local_rank))
        except OSError:
            self._listener.close()
            raise
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._run, name="horoacc-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with link, contextlib.suppress(OSError, ValueError):
                link.settimeout(_ANSWER_SECONDS)
                if _is_users(link):
                    link.sendall(json.dumps(own()._asdict()).encode())


def own() -> Reading:
    """Gives the reading of this rank; ValueError after `shutdown()`."""
    return Reading(process.position().rank, process.engine().counters())


def of_host() -> dict[int, Reading | None]:
    """Gives the readings of the host's ranks, by local rank; None of those that do not answer."""
    where = process.position()
    found: dict[int, Reading | None] = dict.fromkeys(range(where.local_size))
    found[where.local_rank] = own()
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for local_rank in found:
            if local_rank == where.local_rank:
                continue
            link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            link.setblocking(False)
            with contextlib.suppress(OSError):
                link.connect(_name(local_rank))
                if _is_users(link):
                    selector.register(link, selectors.EVENT_READ, (local_rank, bytearray()))
        end = time.monotonic() + _ANSWER_SECONDS
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                local_rank, text = key.data
                assert isinstance(key.fileobj, socket.socket)
                try:
                    part = key.fileobj.recv(_MOST_BYTES)
                except OSError:
                    part = b""
                text += part
                if part and len(text) < _MOST_BYTES:
                    continue
                selector.unregister(key.fileobj)
                with contextlib.suppress(ValueError, TypeError):
                    found[local_rank] = Reading(**json.loads(text))
    return found
