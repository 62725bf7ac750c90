"""MACs of pickled objects: of what comes from another host nothing is unpickled before a MAC is
right. Frames on HoroACC's own connections have tags; where data go over MPI, a transport plug-in or
connections without tags, an object has a MAC of its own.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from horoacc.errors import PeerLost

__all__ = ["ObjectCall", "ObjectCalls"]

_BYTES = 32


class ObjectCall(NamedTuple):
    """One call of a collective of objects, alike on all ranks of its process set."""

    key: bytes
    text: str

    def _mac(self, sender: int, pickled: npt.NDArray[np.uint8]) -> bytes:
        made = hmac.new(self.key, f"{sender} {self.text}".encode(), "sha256")
        made.update(pickled.data)
        return made.digest()

    def seal(self, sender: int, payload: npt.NDArray[np.uint8]) -> None:
        """Writes the MAC into the room that the payload of this rank has for it at its end."""
        if self.key:
            payload[-_BYTES:] = np.frombuffer(self._mac(sender, payload[:-_BYTES]), np.uint8)

    def open(self, sender: int, payload: npt.NDArray[np.uint8]) -> memoryview:
        """Gives the pickled bytes of a rank's payload, which may be unpickled then.

        Raises:
            PeerLost: The payload is not what that rank has sent in this call.
        """
        if not self.key:
            return payload.data
        pickled = payload[:-_BYTES]
        if not hmac.compare_digest(self._mac(sender, pickled), payload[-_BYTES:].tobytes()):
            raise PeerLost(
                f"an object of rank {sender} was damaged on its way, or forged; it was not "
                "unpickled",
                sender,
                hint="What carries data between the hosts has no tags (docs/security.md).",
            )
        return pickled.data


class ObjectCalls:
    """The calls of one engine."""

    def __init__(self, key: bytes) -> None:
        """Without a key, objects have no MACs."""
        self._key = key
        self._made: Counter[tuple[str, str | None, tuple[int, ...]]] = Counter()

    @property
    def room(self) -> bytes:
        """What is behind a pickled object until `ObjectCall.seal`."""
        return bytes(_BYTES if self._key else 0)

    def begin(self, kind: str, name: str | None, ranks: Sequence[int]) -> ObjectCall:
        """Numbers a call after its first collective: that one all ranks have made, or none has."""
        if not self._key:
            return ObjectCall(b"", "")
        call = (kind, name, tuple(ranks))
        self._made[call] += 1
        return ObjectCall(self._key, f"{self._made[call]} {call!r} ")
