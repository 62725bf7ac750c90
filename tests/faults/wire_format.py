"""The handshake and the frames of the rendezvous, as a peer of another make would speak them.

Written from the description in csrc/transport (handshake.h, frames.h, sealing.h), so that the tests
do not ask the code that they test.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct

RENDEZVOUS, CONTROL, HOST, DATA = 1, 2, 3, 4
GREETING = struct.Struct("<IIIiiIQ32s")
PROOF_BYTES = 32
HEADER = struct.Struct("<4sIQQI")
HEADER_BYTES = HEADER.size + 4
TAG_BYTES = 16  # behind a header, and behind a payload that is not empty
FRAME_MAGIC, DATA_MAGIC = b"HACF", b"HACD"
BLOB = 3  # kind of the frame with which a rank tells the others something while it starts
_DIAL, _ACCEPT = 1, 2


def greeting(purpose: int, rank: int, size: int, epoch: int = 0) -> bytes:
    return GREETING.pack(0x43434148, 3, purpose, rank, size, 0, epoch, os.urandom(32))


def proof(secret: str, dialer: bytes, listener: bytes, side: int = _DIAL) -> bytes:
    text = b"horoacc handshake" + bytes([side]) + dialer + listener
    return hmac.new(secret.encode(), text, hashlib.sha256).digest()


def link_key(secret: str, dialer: bytes, listener: bytes) -> bytes:
    """Of the seals of what the dialer sends."""
    text = b"horoacc link key" + bytes([_DIAL]) + dialer + listener
    return hmac.new(secret.encode(), text, hashlib.sha256).digest()


def is_proof_of_listener(secret: str, dialer: bytes, listener: bytes, given: bytes) -> bool:
    return hmac.compare_digest(given, proof(secret, dialer, listener, _ACCEPT))


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ _TABLE[(state ^ byte) & 255]
    return state ^ 0xFFFFFFFF


def frame(kind: int, epoch: int, payload: bytes, key: bytes, number: int) -> bytes:
    """Sealed by HMAC-SHA256; `number`: of seals before it on the connection, in its direction."""
    head = HEADER.pack(FRAME_MAGIC, kind, epoch, len(payload), 0)
    told = b""
    for sealed in filter(None, (head + struct.pack("<I", crc32c(head)), payload)):
        tag = hmac.digest(key, number.to_bytes(8, "little") + sealed, hashlib.sha256)
        told += sealed + tag[:TAG_BYTES]
        number += 1
    return told
