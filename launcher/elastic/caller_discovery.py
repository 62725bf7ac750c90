"""Hosts that an object of the process that calls `horoacc.run` finds, for the job of that call."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from horoacc.launcher.elastic.discovery import PERIOD
from horoacc.launcher.hosts import is_this_host, parse_host_lines


class Discovery(Protocol):
    """Finds hosts, as `horoacc.elastic.HostDiscovery` does."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """How many ranks each host may take, the preferred ones first."""


@contextlib.contextmanager
def asked_again(discovery: Discovery, take: Callable[[dict[str, int]], None]) -> Iterator[None]:
    """Asks an object for hosts, at once and then each second from a thread.

    An exception of a later call, or a wrong answer, changes nothing and is printed once.

    Args:
        discovery: The object. Whatever changes its answer happens in this process.
        take: Takes an answer, or refuses it by a ValueError.

    Raises:
        ValueError: The first answer is refused.
        Exception: That of the first call.
    """
    over = threading.Event()

    def ask_again() -> None:
        told = ""
        while not over.wait(PERIOD):
            try:
                take(discovery.find_available_hosts_and_slots())
                told = ""
            except Exception as error:
                if (how := f"{type(error).__name__}: {error}") != told and not over.is_set():
                    told = how
                    print(f"host_discovery: {how}; the hosts stay as they were", file=sys.stderr)

    take(discovery.find_available_hosts_and_slots())
    thread = threading.Thread(target=ask_again, name="horoacc-host-discovery", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


@contextlib.contextmanager
def discovery_script(discovery: Discovery, folder: Path) -> Iterator[str]:
    """Keeps the last answer of an object, which is asked each second, in a file.

    Args:
        discovery: The object.
        folder: For the file.

    Yields:
        A discovery script, which prints the file.

    Raises:
        ValueError: The first answer is no host of this machine, or no number of slots.
        Exception: That of the first call.
    """
    path = folder / "hosts"

    def write(found: dict[str, int]) -> None:
        text = "".join(f"{name}:{slots}\n" for name, slots in found.items())
        for host in parse_host_lines(text, 0):
            if not is_this_host(host.name):
                raise ValueError(
                    f"run() starts ranks on this host only, but {host.name} is another"
                )
        part = folder / "hosts.part"
        part.write_text(text)
        part.rename(path)

    with asked_again(discovery, write):
        yield f"cat {shlex.quote(str(path))}"
