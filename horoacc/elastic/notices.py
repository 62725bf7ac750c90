"""News of hosts that came or went, for the states that listen."""

from __future__ import annotations

import threading
from enum import IntFlag
from typing import Protocol


class HostUpdateResult(IntFlag):
    """A change of the job's hosts."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """A state, as the bringer of news sees it."""

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Takes the news."""


class Notices:
    """Passes news on to the states of running training functions.

    In an elastic job the coordinator's news comes by `State.check_host_updates`; only a program
    itself calls `handle_hosts_updated`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    def init(self) -> None:
        """Does nothing: there is no service to listen to. Horovod's name."""

    def register_listener(self, listener: Listener) -> None:
        """Has a state get the news.

        Args:
            listener: The state.
        """
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Undoes `register_listener`; one that is not there does no harm.

        Args:
            listener: The state.
        """
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Tells every state.

        Args:
            timestamp: When it happened; later news has a larger one.
            update_res: The change.
        """
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)
