"""Hosts that an object of the process that calls `horoacc.run` finds, for the job of that call."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from horoacc.launcher.elastic.discovery import PERIOD
from horoacc.launcher.hosts import is_this_host, parse_host_lines

if TYPE_CHECKING:
    from horoacc.elastic.discovery import HostDiscovery


@contextlib.contextmanager
def discovery_script(discovery: HostDiscovery, folder: Path) -> Iterator[str]:
    """Asks an object for hosts, each second from a thread, and keeps its last answer in a file.

    An exception of a later call, or a wrong answer, changes nothing and is printed once.

    Args:
        discovery: The object. Whatever changes its answer happens in this process.
        folder: For the file.

    Yields:
        A discovery script, which prints the file.

    Raises:
        ValueError: The first answer is no host of this machine, or no number of slots.
        Exception: That of the first call.
    """
    path = folder / "hosts"
    over = threading.Event()

    def ask() -> None:
        found = discovery.find_available_hosts_and_slots()
        text = "".join(f"{name}:{slots}\n" for name, slots in found.items())
        for host in parse_host_lines(text, 0):
            if not is_this_host(host.name):
                raise ValueError(
                    f"run() starts ranks on this host only, but {host.name} is another"
                )
        part = folder / "hosts.part"
        part.write_text(text)
        part.rename(path)

    def ask_again() -> None:
        told = ""
        while not over.wait(PERIOD):
            try:
                ask()
                told = ""
            except Exception as error:
                if (how := f"{type(error).__name__}: {error}") != told and not over.is_set():
                    told = how
                    print(f"host_discovery: {how}; the hosts stay as they were", file=sys.stderr)

    ask()
    thread = threading.Thread(target=ask_again, name="horoacc-host-discovery", daemon=True)
    thread.start()
    try:
        yield f"cat {shlex.quote(str(path))}"
    finally:
        over.set()
