"""The registry in which dispatchers and workers of a data service announce themselves.

One process serves; all others ask. A connection carries one question and one answer, both JSON.
`listener.py` serves only peers that know the key.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from horoacc import settings
from horoacc.tensorflow.data.listener import Link, Listener, WrongKeyError, addresses_of, dial

Addresses = Mapping[str, Sequence[Sequence[Any]]]
"""By interface, pairs of an IP address and a port."""

_SECONDS = 30.0
"""That a message may take on its way."""


class Registry:
    """Serves until it is closed; one lock guards its state."""

    def __init__(self, dispatchers: int, workers_per_dispatcher: int, key: bytes) -> None:
        """Begins to serve.

        Args:
            dispatchers: How many dispatchers there will be.
            workers_per_dispatcher: How many workers each of them will have.
            key: The key that a client must know.

        Raises:
            ValueError: Setting `network_interfaces` names one that this host has not.
        """
        self._wanted = dispatchers, workers_per_dispatcher
        self._news = threading.Condition()
        self._dispatchers: dict[int, str] = {}
        self._workers: Counter[int] = Counter()
        self._ended = False
        names = str(settings.read(os.environ)["network_interfaces"]).replace(" ", "").split(",")
        self._listener = Listener(addresses_of(filter(None, names)), key, self._answer)

    @property
    def addresses(self) -> dict[str, list[list[Any]]]:
        """Where it can be reached: at the interfaces of setting `network_interfaces`, else by the
        host's name and from the host itself.
        """
        return {"any": [[*address] for address in self._listener.addresses]}

    def wait_for_shutdown(self, seconds: float | None = None) -> bool:
        """Waits until a client has asked for the end.

        Args:
            seconds: How long; None: as long as it takes.

        Returns:
            Whether that happened.
        """
        with self._news:
            return self._news.wait_for(lambda: self._ended, seconds)

    def close(self) -> None:
        """Ends the service and tells those that wait for its end."""
        with self._news:
            self._ended = True
            self._news.notify_all()
        self._listener.close()

    def _answer(self, link: Link) -> None:
        asked = json.loads(link.receive(_SECONDS))
        link.send(json.dumps(self._outcome(**asked)).encode(), _SECONDS)

    def _outcome(self, what: str, seconds: float, dispatcher: int, address: str) -> Any:
        """The answer to a question; None if it did not come about in time."""
        many, each = self._wanted
        if not 0 <= dispatcher < many:
            return {"error": f"there is no dispatcher {dispatcher}: there are {many}"}
        with self._news:
            if what == "dispatcher is":
                if self._dispatchers.setdefault(dispatcher, address) != address:
                    return {"error": f"there is a dispatcher {dispatcher} already"}
            elif what == "worker of":
                self._workers[dispatcher] += 1
            elif what == "end":
                self._ended = True
            self._news.notify_all()
            there = {
                "where is": lambda: dispatcher in self._dispatchers,
                "workers of": lambda: self._workers[dispatcher] >= each,
                "until the end": lambda: self._ended,
            }.get(what, lambda: True)
            if not self._news.wait_for(there, seconds):
                return {"late": True}
            return {"value": self._dispatchers.get(dispatcher, "")}


class ComputeClient:
    """Asks a registry."""

    def __init__(self, addresses: Addresses, key: bytes, timeout: float) -> None:
        """Remembers where it is; the first question connects.

        Args:
            addresses: Where the registry may be reached.
            key: Its key.
            timeout: Seconds that an answer may take.
        """
        self._addresses = [(str(host), int(port)) for of in addresses.values() for host, port in of]
        self._key = key
        self._timeout = timeout

    def register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        """Says where a dispatcher is.

        Args:
            dispatcher_id: Its number.
            address: Its host and port.

        Raises:
            ValueError: There is no such number, or another dispatcher has it.
        """
        self._ask("dispatcher is", dispatcher_id, address)

    def register_worker_for_dispatcher(self, dispatcher_id: int) -> None:
        """Says that a worker of a dispatcher is there.

        Args:
            dispatcher_id: The dispatcher's number.
        """
        self._ask("worker of", dispatcher_id)

    def wait_for_dispatcher_registration(self, dispatcher_id: int) -> str:
        """Waits for a dispatcher.

        Args:
            dispatcher_id: Its number.

        Returns:
            Its host and port.

        Raises:
            TimeoutError: It did not come in time.
        """
        return self._ask("where is", dispatcher_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int) -> None:
        """Waits until a dispatcher has all its workers.

        Args:
            dispatcher_id: Its number.

        Raises:
            TimeoutError: They did not come in time.
        """
        self._ask("workers of", dispatcher_id)

    def wait_for_shutdown(self) -> None:
        """Waits until the service has ended or is gone."""
        while True:
            try:
                self._ask("until the end", 0)
            except TimeoutError:
                continue
            except ConnectionError:
                return
            return

    def shutdown(self) -> None:
        """Ends the service: its workers stop."""
        self._ask("end", 0)

    def local_address(self) -> str:
        """Gives the address by which this host is known where the registry is."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            address, link = self._reached()
            link.close()
            probe.connect(address)
            return str(probe.getsockname()[0])

    def _reached(self) -> tuple[tuple[str, int], Link]:
        """Connects to the first address that answers."""
        failures = []
        for address in self._addresses:
            try:
                return address, dial(address, self._key, _SECONDS)
            except WrongKeyError:
                raise
            except (OSError, EOFError) as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
        raise ConnectionError(f"the compute service cannot be reached: {'; '.join(failures)}")

    def _ask(self, what: str, dispatcher: int, address: str = "") -> str:
        asked = {"what": what, "seconds": self._timeout, "dispatcher": dispatcher,
                 "address": address}  # fmt: skip
        _, link = self._reached()
        try:
            link.send(json.dumps(asked).encode(), _SECONDS)
            answer = json.loads(link.receive(self._timeout + _SECONDS))
        except TimeoutError as error:
            raise TimeoutError(f"the compute service has not answered: {what}") from error
        except EOFError as error:
            raise ConnectionResetError("the compute service is gone") from error
        finally:
            link.close()
        if "error" in answer:
            raise ValueError(answer["error"])
        if "late" in answer:
            raise TimeoutError(
                f"the compute service waited {self._timeout:g} s for '{what} {dispatcher}'"
            )
        return str(answer["value"])
