"""MACs of pickled objects: of what comes from another host nothing is unpickled before a MAC is
right. Frames on HoroACC's own connections have tags; where data go over MPI, a transport plug-in or
connections without tags, an object has a MAC of its own, and so has its length, which goes ahead.
"""

from __future__ import annotations

import hmac
import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from horoacc.errors import PeerLost

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ObjectCall", "ObjectCalls"]

_BYTES = 32


class _Numbers:
    """The numbers of one sender's calls that were taken: each one at most once.

    Threads may take them in another order than they were given out, but never so many apart.
    """

    WINDOW = 1024

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0
        self._taken = 0  # bit k: the number that is k older than the newest

    def take(self, number: int) -> bool:
        with self._lock:
            if number > self._newest:
                self._taken <<= min(number - self._newest, self.WINDOW)
                self._taken &= (1 << self.WINDOW) - 1
                self._newest = number
            age = self._newest - number
            if age >= self.WINDOW or self._taken >> age & 1:
                return False
            self._taken |= 1 << age
            return True


class ObjectCall:
    """One call of a collective of objects on this rank.

    Each sender first tells its length, in an announcement, then sends the pickled object. Both have
    MACs of the job's key, the collective, its name, the ranks of its process set, the sender and
    the sender's number of the call.
    """

    def __init__(self, calls: ObjectCalls, kind: str, name: str | None, ranks: Sequence[int]):
        """Begins a call; `kind` and what follows are alike on all ranks."""
        self._calls = calls
        self._about = f"{kind!r} {name!r} {tuple(ranks)!r}" if calls.key else ""
        self._numbers: dict[int, int] = {}

    def _mac(self, part: str, sender: int, data: npt.NDArray[np.uint8]) -> bytes:
        text = f"{part} {sender} {self._numbers[sender]} {self._about} "
        made = hmac.new(self._calls.key, text.encode(), "sha256")
        made.update(data.data)
        return made.digest()

    def blank(self) -> npt.NDArray[np.int64]:
        """Gives the room for an announcement: a length, and with a key its number and MAC."""
        import numpy as np

        return np.zeros(6 if self._calls.key else 1, np.int64)

    def announce(self, sender: int, length: int) -> npt.NDArray[np.int64]:
        """Gives the announcement of this rank's payload."""
        import numpy as np

        row = self.blank()
        row[0] = length
        if self._calls.key:
            row[1] = self._numbers[sender] = next(self._calls.next_number)
            row[2:] = np.frombuffer(self._mac("length", sender, row[:2].view(np.uint8)), np.int64)
        return row

    def length(self, sender: int, row: npt.NDArray[np.int64]) -> int:
        """Gives the length of a rank's payload, for which memory may be taken then.

        Raises:
            PeerLost: The announcement is not what that rank has sent in this call.
        """
        import numpy as np

        length, key = int(row[0]), self._calls.key
        if not key:
            return length
        number = self._numbers[sender] = int(row[1])
        mac = self._mac("length", sender, row[:2].view(np.uint8))
        if not hmac.compare_digest(mac, row[2:].tobytes()) or not self._calls.take(sender, number):
            _refuse(f"the length of an object of rank {sender}", sender, "no memory was taken")
        return length

    def seal(self, sender: int, payload: npt.NDArray[np.uint8]) -> None:
        """Writes the MAC into the room that this rank's announced payload has for it at its end."""
        import numpy as np

        if self._calls.key:
            mac = self._mac("data", sender, payload[:-_BYTES])
            payload[-_BYTES:] = np.frombuffer(mac, np.uint8)

    def open(self, sender: int, payload: npt.NDArray[np.uint8]) -> memoryview:
        """Gives the pickled bytes of a rank's payload, which may be unpickled then.

        Raises:
            PeerLost: The payload is not what that rank has sent in this call.
        """
        if not self._calls.key:
            return payload.data
        pickled = payload[:-_BYTES]
        mac = self._mac("data", sender, pickled)
        if not hmac.compare_digest(mac, payload[-_BYTES:].tobytes()):
            _refuse(f"an object of rank {sender}", sender, "it was not unpickled")
        return pickled.data


def _refuse(what: str, sender: int, so: str) -> NoReturn:
    raise PeerLost(
        f"{what} was damaged on its way, or forged; {so}",
        sender,
        hint="What carries data between the hosts has no tags (docs/security.md).",
    )


class ObjectCalls:
    """The calls of one engine."""

    def __init__(self, key: bytes) -> None:
        """Without a key, objects have no MACs."""
        self.key = key
        self.next_number = itertools.count(1)
        self._numbers: dict[int, _Numbers] = {}

    @property
    def room(self) -> bytes:
        """What is behind a pickled object until `ObjectCall.seal`."""
        return bytes(_BYTES if self.key else 0)

    def take(self, sender: int, number: int) -> bool:
        """Says whether a sender's number, whose MAC is right, comes for the first time."""
        return self._numbers.setdefault(sender, _Numbers()).take(number)
