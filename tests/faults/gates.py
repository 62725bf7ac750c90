"""A TCP fault proxy: gates through which the connections to one rank go, and their faults.

`Passage` stands between a rank and the rendezvous. It replaces the addresses at which the rank
listens, for control links and for data links, by those of gates, so that the other ranks connect to
the gates. It knows the job's secret: from anybody else the ranks would take no such message.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import wire_format

_CHUNK = 1 << 16
_OPENING = wire_format.GREETING.size + wire_format.PROOF_BYTES
# Of control links, then of data links, after the mark of a step that succeeded.
_ADDRESSES = re.compile(rb"\+127\.0\.0\.1:(\d+)\n127\.0\.0\.1:(\d+)")
_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER


@dataclass
class Fault:
    """The fault of bytes on their way: "to" the rank behind the gate, or "from" it."""

    delay: float = 0.0  # seconds, each way
    jitter: float = 0.0  # seconds more or less
    stalled: tuple[str, ...] = ()  # ways on which nothing passes for now
    flip: tuple[str, int] | None = None  # a way, and which byte of a frame loses a bit, once


class Gate:
    """Listens, and passes connections on to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.fault = Fault()
        self.target = target
        self.links: list[tuple[socket.socket, socket.socket]] = []
        self.openings: list[bytes] = []
        """The first bytes to the rank behind the gate, of each connection."""
        self._open = True
        self._resets = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def reset(self, index: int) -> None:
        """Ends a connection as if a packet with RST had come to both ends."""
        self._resets = True
        for end in self.links[index]:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            # The thread that reads it keeps it open otherwise.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)
            end.close()

    def close(self) -> None:
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self.links:
            for end in link:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def pass_on(self, way: str) -> Callable[[bytes], bytes]:
        """Makes the function that transforms the bytes of a new connection."""
        return lambda data: self._late_or_damaged(data, way)

    def _serve(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            self.links.append((near, far))
            for source, sink, way in ((near, far, "to"), (far, near, "from")):
                words = (source, sink, way, self.pass_on(way))
                threading.Thread(target=self._pump, args=words, daemon=True).start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        way: str,
        become: Callable[[bytes], bytes],
    ) -> None:
        with contextlib.suppress(OSError):
            opening = b""
            while data := source.recv(_CHUNK):
                if way == "to" and len(opening) < _OPENING <= len(opening) + len(data):
                    self.openings.append((opening + data)[:_OPENING])
                opening = (opening + data)[:_OPENING]
                sink.sendall(become(data))
        if not self._resets:  # its ends are to see only the reset
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def _late_or_damaged(self, data: bytes, way: str) -> bytes:
        if self.fault.delay:
            jitter = random.uniform(-self.fault.jitter, self.fault.jitter)
            time.sleep(max(0.0, self.fault.delay + jitter))
        while way in self.fault.stalled and self._open:
            time.sleep(0.01)
        if self.fault.flip is None or self.fault.flip[0] != way:
            return data
        begin = max(map(data.rfind, (wire_format.FRAME_MAGIC, wire_format.DATA_MAGIC)))
        at = begin + self.fault.flip[1]
        if begin < 0 or at >= len(data):
            return data
        self.fault.flip = None
        return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


class Passage(Gate):
    """The way of one rank to the rendezvous. `gates` are those of its latest `init()`."""

    def __init__(self, port: int, secret: str) -> None:
        self.gates: list[Gate] = []
        self._secret = secret
        super().__init__(("127.0.0.1", port))

    @property
    def control(self) -> Gate:
        return self.gates[0]

    @property
    def data(self) -> Gate:
        return self.gates[1]

    def pass_on(self, way: str) -> Callable[[bytes], bytes]:
        if way == "from":
            return self._told.listen
        self._close_gates()
        self._told = _Told(self.gates, self._secret)
        return self._told.pass_on

    def close(self) -> None:
        super().close()
        self._close_gates()

    def _close_gates(self) -> None:
        while self.gates:
            self.gates.pop().close()


class _Told:
    """Whole messages of one connection to the rendezvous, with other addresses in them."""

    def __init__(self, gates: list[Gate], secret: str) -> None:
        self._gates = gates
        self._secret = secret
        self._dialer = self._listener = self._begun = b""
        self._seals = 0

    def listen(self, data: bytes) -> bytes:
        self._listener += data[: wire_format.GREETING.size - len(self._listener)]
        return data

    def pass_on(self, data: bytes) -> bytes:
        opening = min(_OPENING - len(self._dialer), len(data))
        self._dialer += data[:opening]
        told, self._begun = data[:opening], self._begun + data[opening:]
        head = wire_format.HEADER_BYTES + wire_format.TAG_BYTES
        while len(self._begun) >= head:
            _, kind, epoch, length, _ = wire_format.HEADER.unpack_from(self._begun)
            end = head + length + (wire_format.TAG_BYTES if length else 0)
            if len(self._begun) < end:
                break
            payload = self._begun[head : head + length]
            self._begun = self._begun[end:]
            if kind == wire_format.BLOB and (found := _ADDRESSES.fullmatch(payload)):
                control, data = (Gate(("127.0.0.1", int(port))) for port in found.groups()[:2])
                self._gates += [control, data]
                gates = f"+127.0.0.1:{control.port}\n127.0.0.1:{data.port}"
                payload = gates.encode()
            dialer = self._dialer[: wire_format.GREETING.size]
            key = wire_format.link_key(self._secret, dialer, self._listener)
            told += wire_format.frame(kind, epoch, payload, key, self._seals)
            self._seals += 2 if payload else 1
        return told
