"""Readings of the ranks of one host, over Unix sockets that only processes of the user may ask."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import NamedTuple

from horoacc import process
from horoacc.monitor.door import SHORT, SHORT_SECONDS, ask, is_users, job_name
from horoacc.monitor.families import samples

_ANSWER_SECONDS = 1.0  # that all ranks of a host have together


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
    host = process.position().cross_rank
    return f"\0horoacc-metrics-{os.getuid()}-{job_name()}-{host}-{local_rank}".encode()


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
            except OSError as error:
                if error.errno not in SHORT:
                    return  # close() has shut it down
                time.sleep(SHORT_SECONDS)
                continue
            with link, contextlib.suppress(OSError, ValueError):
                link.settimeout(_ANSWER_SECONDS)
                if is_users(link):
                    link.sendall(json.dumps(own()._asdict()).encode())


def own() -> Reading:
    """Gives the reading of this rank; ValueError after `shutdown()`."""
    return Reading(process.position().rank, process.engine().counters())


def of_host() -> dict[int, Reading | None]:
    """Gives the readings of the host's ranks, by local rank; None of those that do not answer."""
    where = process.position()
    found: dict[int, Reading | None] = dict.fromkeys(range(where.local_size))
    found[where.local_rank] = own()
    others = {local_rank: _name(local_rank) for local_rank in found if found[local_rank] is None}
    for local_rank, text in ask(others, _ANSWER_SECONDS).items():
        with contextlib.suppress(ValueError, TypeError):
            found[local_rank] = Reading(**json.loads(text))
    return found
