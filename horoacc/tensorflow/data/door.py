"""Where those who know a data service's key come in, and nobody else gets anywhere.

Who comes greets with a nonce, hears one, and proves that it knows the key; then the listener does.
Each proof is an HMAC of both nonces and of the side that gives it. Until then nothing else is read,
a connection keeps 80 bytes and 10 s at most, and there are at most 64 of them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import logging
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable

__all__ = ["Door", "Link", "WrongKeyError", "addresses_of", "dial"]

MOST_STRANGERS = 64
STRANGER_SECONDS = 10.0
_GREETING = b"horoacc data 1\n\0"
_NONCE = 32
_PROOF = 32
_MOST_BYTES = 1 << 16  # of a message
_PAUSE = 1 / 500  # seconds from one connection that is taken to the next
_SHORTAGE_SECONDS = 0.05  # from one look at whoever waits to the next, while none can be taken
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SIOCGIFADDR = 0x8915
_log = logging.getLogger("horoacc.tensorflow.data")


class WrongKeyError(PermissionError):
    """Who listens knows another key."""


class Link:
    """A connection whose ends have proved that they know the key; messages are bytes."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def send(self, message: bytes, seconds: float) -> None:
        """Sends a message.

        Args:
            message: At most 64 KiB.
            seconds: How long that may take.
        """
        self._link.settimeout(seconds)
        self._link.sendall(struct.pack("!I", len(message)) + message)

    def receive(self, seconds: float) -> bytes:
        """Waits for a message.

        Args:
            seconds: How long until it is there as a whole.

        Returns:
            The message.

        Raises:
            TimeoutError: It is not.
            EOFError: The other end is gone.
            ValueError: It is too long.
        """
        until = time.monotonic() + seconds
        (length,) = struct.unpack("!I", _read(self._link, 4, until))
        if length > _MOST_BYTES:
            raise ValueError("a message without end")
        return _read(self._link, length, until)

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()


class Door:
    """Listens at some addresses of this host, each with a port of its own."""

    def __init__(self, addresses: Iterable[str], key: bytes, serve: Callable[[Link], None]) -> None:
        """Begins to listen.

        Args:
            addresses: The IPv4 addresses.
            key: What whoever comes must know.
            serve: Is called on a thread of its own with each that has proved it, and may raise
                what `Link` raises.
        """
        self._key = key
        self._serve = serve
        self._strangers: list[socket.socket] = []
        self._told = False
        self._lock = threading.Lock()
        self._closing, self._closed = socket.socketpair()
        self._listeners = [socket.create_server((one, 0), backlog=64) for one in addresses]
        self.addresses = [one.getsockname() for one in self._listeners]
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._closed, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._ready.register(listener, selectors.EVENT_READ)
        self._listens = threading.Thread(target=self._listen, name="horoacc-data", daemon=True)
        self._listens.start()

    def close(self) -> None:
        """Listens no more. Who is being served stays."""
        with contextlib.suppress(OSError):
            self._closing.send(b"\0")
        self._listens.join()

    def _listen(self) -> None:
        with contextlib.ExitStack() as owned:
            for one in (self._closing, self._closed, *self._listeners, self._ready):
                owned.enter_context(one)  # type: ignore[arg-type]
            while True:
                pause = _PAUSE
                for key, _ in self._ready.select():
                    if key.fileobj is self._closed:
                        return
                    pause = max(pause, self._let_in(key.fileobj))  # type: ignore[arg-type]
                time.sleep(pause)

    def _let_in(self, listener: socket.socket) -> float:
        """Takes one of those who wait; seconds until the next may be taken."""
        try:
            stranger, _ = listener.accept()
        except OSError as error:
            if error.errno not in _SHORTAGES:
                return _PAUSE  # gone again
            # Whoever waits would wake this process again and again.
            self._tell(f"somebody who came to the data service waits: {error.strerror}")
            return _SHORTAGE_SECONDS
        self._admit(stranger)
        return _PAUSE

    def _tell(self, what: str) -> None:
        """Once, however many come."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            _log.warning("%s (later ones are not reported)", what)

    def _admit(self, stranger: socket.socket) -> None:
        with self._lock:
            crowded = len(self._strangers) >= MOST_STRANGERS
            if crowded:
                with contextlib.suppress(OSError):
                    self._strangers.pop(0).shutdown(socket.SHUT_RDWR)
            self._strangers.append(stranger)
        if crowded:
            self._tell("strangers crowd at the data service: the oldest was turned away")
        # A thread of its own: a stranger who says nothing holds nobody up.
        meeting = threading.Thread(target=self._meet, args=(stranger,), daemon=True)
        try:
            meeting.start()
        except RuntimeError:  # there are too many
            with self._lock, stranger:
                self._strangers.remove(stranger)

    def _meet(self, stranger: socket.socket) -> None:
        with stranger, contextlib.suppress(OSError, EOFError, ValueError):
            proved = False
            try:
                proved = self._has_proved(stranger, time.monotonic() + STRANGER_SECONDS)
            finally:
                with self._lock:
                    if stranger in self._strangers:
                        self._strangers.remove(stranger)
                if not proved:
                    self._tell(
                        f"{_name_of(stranger)}, who came to the data service, was turned away"
                    )
            if proved:
                self._serve(Link(stranger))

    def _has_proved(self, stranger: socket.socket, until: float) -> bool:
        greeting = _read(stranger, len(_GREETING) + _NONCE, until)
        if not greeting.startswith(_GREETING):
            return False
        nonces = greeting[len(_GREETING) :] + secrets.token_bytes(_NONCE)
        stranger.sendall(nonces[_NONCE:])
        given = _read(stranger, _PROOF, until)
        if not hmac.compare_digest(given, _proof(self._key, b"who comes", nonces)):
            stranger.sendall(bytes(_PROOF))  # no proof, which tells why it ends
            return False
        stranger.sendall(_proof(self._key, b"who listens", nonces))
        return True


def dial(address: tuple[str, int], key: bytes, seconds: float) -> Link:
    """Comes to a door.

    Args:
        address: Its host and port.
        key: What it asks for.
        seconds: How long coming in may take.

    Returns:
        The connection.

    Raises:
        WrongKeyError: The door knows another key.
        OSError: Nobody listens there, or does not answer.
        EOFError: It was closed.
    """
    until = time.monotonic() + seconds
    link = socket.create_connection(address, seconds)
    try:
        own = secrets.token_bytes(_NONCE)
        link.sendall(_GREETING + own)
        nonces = own + _read(link, _NONCE, until)
        link.sendall(_proof(key, b"who comes", nonces))
        given = _read(link, _PROOF, until)
        if not hmac.compare_digest(given, _proof(key, b"who listens", nonces)):
            raise WrongKeyError("the key is not that of the compute service")
    except BaseException:
        link.close()
        raise
    return Link(link)


def addresses_of(interfaces: Iterable[str]) -> list[str]:
    """Gives the IPv4 addresses of network interfaces.

    Args:
        interfaces: Their names; none: those that the host's name stands for, and loopback.

    Returns:
        The addresses, loopback last.

    Raises:
        ValueError: There is no such interface, or it has no such address.
    """
    found = [_address_of(name) for name in interfaces]
    if not found:
        with contextlib.suppress(OSError):
            known = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
            found = [str(one[4][0]) for one in known]
        found = [one for one in found if _is_own(one)] + ["127.0.0.1"]
    return sorted(set(found), key=lambda one: (one.startswith("127."), one))


def _address_of(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asked = struct.pack("256s", name.encode()[:15])
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, asked)
        except OSError as error:
            raise ValueError(
                f"this host has no network interface {name!r} with an IPv4 address"
            ) from error
    return socket.inet_ntoa(answer[20:24])


def _name_of(stranger: socket.socket) -> str:
    """Where somebody comes from."""
    try:
        host, port = stranger.getpeername()
    except OSError:  # it is gone
        return "somebody"
    return f"{host}:{port}"


def _is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, _GREETING + side + b"\0" + nonces, "sha256")


def _read(link: socket.socket, count: int, until: float) -> bytes:
    """Exactly so many bytes, in time."""
    said = b""
    while len(said) < count:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        link.settimeout(left)
        more = link.recv(count - len(said))
        if not more:
            raise EOFError("the other end is gone")
        said += more
    return said
