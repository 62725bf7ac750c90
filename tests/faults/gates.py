"""A TCP fault proxy: gates through which the connections to one rank go, and what happens in them.

`Passage` stands between a rank and the rendezvous. What the rank tells the others there of where it
listens is replaced by the address of a gate, so that the connections of the job go through gates
without knowing it: first those of the control links, then those of the data links.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

import wire_format

_CHUNK = 1 << 16
_ADDRESS = re.compile(rb"(127\.0\.0\.1):(\d+)")


@dataclass
class Fault:
    """What happens to bytes on their way. `to` is towards the rank behind the gate."""

    delay: float = 0.0  # seconds, each way
    jitter: float = 0.0  # seconds more or less
    stalled: set[str] = field(default_factory=set)  # "to", "from": nothing passes for now
    flip: tuple[str, int] | None = None  # way, and which byte of a frame loses a bit; once


class Gate:
    """Listens, and passes connections on to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.fault = Fault()
        self.flipped = threading.Event()
        self.target = target
        self.links: list[tuple[socket.socket, socket.socket]] = []
        self._open = True
        self._resets = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def reset(self, index: int) -> None:
        """Ends a connection as if a packet with RST had come to both ends."""
        self._resets = True
        for end in self.links[index]:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # The thread that reads it keeps it open otherwise.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)
            end.close()

    def close(self) -> None:
        self._open = False
        self._listener.close()
        for link in self.links:
            for end in link:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _serve(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self.target)
            except OSError:
                continue
            self.links.append((near, far))
            for source, sink, way in ((near, far, "to"), (far, near, "from")):
                threading.Thread(target=self._pump, args=(source, sink, way), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                sink.sendall(self.passed(data, way))
        if not self._resets:  # whose ends are to hear nothing else
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def passed(self, data: bytes, way: str) -> bytes:
        """What becomes of some bytes."""
        fault = self.fault
        if fault.delay:
            time.sleep(max(0.0, fault.delay + random.uniform(-fault.jitter, fault.jitter)))
        while way in fault.stalled and self._open:
            time.sleep(0.01)
        if fault.flip is None or fault.flip[0] != way:
            return data
        found = [data.rfind(magic) for magic in (wire_format.FRAME_MAGIC, wire_format.DATA_MAGIC)]
        at = max(found) + fault.flip[1]
        if max(found) < 0 or at >= len(data):
            return data
        fault.flip = None
        self.flipped.set()
        return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


class Passage(Gate):
    """The way of one rank to the rendezvous."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port))
        self.gates: list[Gate] = []
        self._opening = wire_format.GREETING.size + wire_format.PROOF_BYTES
        self._begun = b""

    @property
    def control(self) -> Gate:
        return self.gates[0]

    @property
    def data(self) -> Gate:
        return self.gates[1]

    def passed(self, data: bytes, way: str) -> bytes:
        return data if way == "from" else self._told(data)

    def _told(self, data: bytes) -> bytes:
        """Whole messages of the rank, with other addresses in them."""
        opening = min(self._opening, len(data))
        self._opening -= opening
        told, self._begun = data[:opening], self._begun + data[opening:]
        while len(self._begun) >= wire_format.HEADER_BYTES:
            _, kind, epoch, length, _ = wire_format.HEADER.unpack_from(self._begun)
            end = wire_format.HEADER_BYTES + length
            if len(self._begun) < end:
                break
            payload = self._begun[wire_format.HEADER_BYTES : end]
            self._begun = self._begun[end:]
            if kind == wire_format.BLOB and (found := _ADDRESS.fullmatch(payload)):
                gate = Gate((found[1].decode(), int(found[2])))
                self.gates.append(gate)
                payload = f"127.0.0.1:{gate.port}".encode()
            told += wire_format.frame(kind, epoch, payload)
        return told

    def close(self) -> None:
        for gate in self.gates:
            gate.close()
        super().close()
