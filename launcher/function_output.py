"""What the ranks of `horoacc.run` print: into the notebook's cell, or where this process prints."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def forwarded() -> Iterator[tuple[int | None, int | None]]:
    """Makes the two descriptors that a child process is to print to.

    Yields:
        For stdout and stderr: None where the child can have this process's own, else a pipe whose
        lines go to `sys.stdout` or `sys.stderr`, which a notebook has replaced.
    """
    threads: list[threading.Thread] = []
    ends: list[int | None] = []
    for stream, own in ((sys.stdout, 1), (sys.stderr, 2)):
        if _number(stream) == own:
            stream.flush()  # what was printed before comes before
            ends.append(None)
            continue
        reader, writer = os.pipe()
        ends.append(writer)
        threads.append(threading.Thread(target=_forward, args=(reader, stream), daemon=True))
        threads[-1].start()
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            if end is not None:
                os.close(end)
        for thread in threads:
            thread.join(5.0)  # a process that left the job's care may still hold the pipe


def _number(stream: TextIO | None) -> int:
    try:
        return -1 if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return -1


def _forward(reader: int, stream: TextIO | None) -> None:
    with open(reader, errors="replace") as lines:
        for line in lines:
            if stream is not None:
                with contextlib.suppress(ValueError, OSError):  # closed: nobody reads it any more
                    stream.write(line)
                    stream.flush()
