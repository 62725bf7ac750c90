"""The listening sockets of a data service, which serve only peers that know its key.

The dialling side greets with a nonce, receives one, and proves that it knows the key; then the
listener does. Each proof is an HMAC of both nonces and of the side that gives it. An
unauthenticated connection may send 80 bytes and lives for 10 s at most; there are at most 64.
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

__all__ = ["Link", "Listener", "WrongKeyError", "addresses_of", "dial"]

MOST_UNAUTHENTICATED = 64
UNAUTHENTICATED_SECONDS = 10.0
_GREETING = b"horoacc data 1\n\0"
_NONCE = 32
_PROOF = 32
_MOST_BYTES = 1 << 16  # of a message
_PAUSE = 1 / 500  # seconds between two accepted connections
_SHORTAGE_SECONDS = 0.05  # between two attempts to accept, while descriptors or memory lack
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SIOCGIFADDR = 0x8915
_log = logging.getLogger("horoacc.tensorflow.data")


class WrongKeyError(PermissionError):
    """The listener has another key."""


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


class Listener:
    """Listens at some addresses of this host, each with a port of its own."""

    def __init__(self, addresses: Iterable[str], key: bytes, serve: Callable[[Link], None]) -> None:
        """Begins to listen.

        Args:
            addresses: The IPv4 addresses.
            key: The key that a peer must know.
            serve: Called on a thread of its own with each authenticated link; may raise the errors
                of `Link`.
        """
        self._key = key
        self._serve = serve
        self._unauthenticated: list[socket.socket] = []
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
        """Stops listening. Links that are being served stay open."""
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
                    pause = max(pause, self._accept(key.fileobj))  # type: ignore[arg-type]
                time.sleep(pause)

    def _accept(self, listener: socket.socket) -> float:
        """Accepts one connection; returns the seconds until the next may be accepted."""
        try:
            peer, _ = listener.accept()
        except OSError as error:
            if error.errno not in _SHORTAGES:
                return _PAUSE  # the peer has gone
            # A waiting connection would wake this thread again and again.
            self._tell(f"the data service cannot accept a connection: {error.strerror}")
            return _SHORTAGE_SECONDS
        self._admit(peer)
        return _PAUSE

    def _tell(self, what: str) -> None:
        """Logs the first of these events only."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            _log.warning("%s (later ones are not reported)", what)

    def _admit(self, peer: socket.socket) -> None:
        with self._lock:
            crowded = len(self._unauthenticated) >= MOST_UNAUTHENTICATED
            if crowded:
                with contextlib.suppress(OSError):
                    self._unauthenticated.pop(0).shutdown(socket.SHUT_RDWR)
            self._unauthenticated.append(peer)
        if crowded:
            self._tell(
                "too many unauthenticated peers at the data service: the oldest was turned away"
            )
        # On a thread of its own, because a silent peer must not delay the others.
        handshake = threading.Thread(target=self._authenticate, args=(peer,), daemon=True)
        try:
            handshake.start()
        except RuntimeError:  # there are too many
            with self._lock, peer:
                self._unauthenticated.remove(peer)

    def _authenticate(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError, EOFError, ValueError):
            proved = False
            try:
                proved = self._has_proved(peer, time.monotonic() + UNAUTHENTICATED_SECONDS)
            finally:
                with self._lock:
                    if peer in self._unauthenticated:
                        self._unauthenticated.remove(peer)
                if not proved:
                    self._tell(
                        f"the data service turned {_name_of(peer)} away: it does not know the key"
                    )
            if proved:
                self._serve(Link(peer))

    def _has_proved(self, peer: socket.socket, until: float) -> bool:
        greeting = _read(peer, len(_GREETING) + _NONCE, until)
        if not greeting.startswith(_GREETING):
            return False
        nonces = greeting[len(_GREETING) :] + secrets.token_bytes(_NONCE)
        peer.sendall(nonces[_NONCE:])
        given = _read(peer, _PROOF, until)
        if not hmac.compare_digest(given, _proof(self._key, b"who comes", nonces)):
            peer.sendall(bytes(_PROOF))  # no proof, so that the peer knows why
            return False
        peer.sendall(_proof(self._key, b"who listens", nonces))
        return True


def dial(address: tuple[str, int], key: bytes, seconds: float) -> Link:
    """Connects to a listener and authenticates.

    Args:
        address: Its host and port.
        key: The listener's key.
        seconds: How long that may take.

    Returns:
        The connection.

    Raises:
        WrongKeyError: The listener knows another key.
        OSError: No process listens there, or it does not answer.
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


def _name_of(peer: socket.socket) -> str:
    """The address of a peer, for messages."""
    try:
        host, port = peer.getpeername()
    except OSError:  # it is gone
        return "a peer"
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
    """Reads exactly `count` bytes before `until`."""
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
