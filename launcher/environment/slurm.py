"""How the tasks of an srun find each other without MPI.

Rank 0 listens at one of a few ports that follow from the numbers of job and step, on the first
host of the step. Each other rank asks there, and is told the address of the rendezvous and, if the
job has none yet, a secret. Question and answer are sealed (`seal.py`), so a stranger who listens at
such a port, or asks there, learns and changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import selectors
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from horoacc.launcher.environment.placement import Placement, PlacementError, Rendezvous
from horoacc.launcher.environment.seal import Seal, seal_of
from horoacc.launcher.hosts import address_of
from horoacc.launcher.nodelist import expand

_FIRST_PORT, _PORTS = 20_000, 10_000  # below those that systems give out by themselves
_TRIES = 4  # so many ports, of which others may have taken some
_LONGEST_LINE = 4096
_STRANGER_SECONDS = 1.0  # that a peer may take to read its answer
_STRANGERS = 64  # unproved connections beside those of ranks; then the oldest is closed
_LONGEST_PAUSE = 0.02


def rendezvous(
    placement: Placement, environ: Mapping[str, str], seconds: float = 60.0, host: str = ""
) -> Rendezvous:
    """Has rank 0 listen, and tells the others where.

    Args:
        placement: This rank's.
        environ: Its variables.
        seconds: How long to wait for the others.
        host: Rank 0's; "": the first of the step.

    Raises:
        PlacementError: The variables cannot be read, there is no secret that ranks could share, or
            some ranks did not come in time.
    """
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    try:
        nodes = expand(environ.get("SLURM_STEP_NODELIST", ""))
    except ValueError as error:
        raise PlacementError(f"SLURM_STEP_NODELIST: {error}") from None
    host = "127.0.0.1" if len(nodes) == 1 else host or nodes[0]
    try:
        place, _ = address_of(host)
    except OSError as error:
        raise PlacementError(
            f"node {host}, where rank 0 is, has no address here: {error}"
        ) from None
    given = environ.get("HOROACC_SECRET", "")
    seal = seal_of(given, f"Slurm's step {step}")
    draw = hashlib.sha256(f"{environ.get('SLURM_CLUSTER_NAME', '')} {step}".encode()).digest()
    first = int.from_bytes(draw[:4], "big") % _PORTS
    ports = [_FIRST_PORT + (first + 997 * number) % _PORTS for number in range(_TRIES)]
    end = time.monotonic() + seconds
    meeting = _Meeting(step, place, ports, seal, end)
    try:
        if placement.rank == 0:
            return meeting.gather(placement.size, given)
        told = meeting.ask(placement.rank)
    except OSError as error:
        raise PlacementError(
            f"rank {placement.rank} of Slurm's step {step} did not meet the others on {host} "
            f"(ports {', '.join(map(str, ports))}) in {seconds:g} s: {error.strerror or error}"
        ) from None
    return Rendezvous(told["address"], None, given or told["secret"])


class _Meeting:
    def __init__(self, step: str, place: str, ports: list[int], seal: Seal, end: float) -> None:
        self._step = step
        self._place = place
        self._ports = ports
        self._seal = seal
        self._end = end

    def gather(self, size: int, given: str) -> Rendezvous:
        """Rank 0's part: it tells each other rank."""
        with self._door(size) as door, contextlib.ExitStack() as stack:
            listener = self._listen(0, size)
            stack.callback(listener.close)
            host, port = listener.getsockname()[:2]
            own = given or secrets.token_hex(32)
            told = {"address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
            told |= {} if given else {"secret": own}
            self._answer(door, set(range(1, size)), told)
            stack.pop_all()
            return Rendezvous(told["address"], listener.detach(), own)

    def ask(self, rank: int) -> dict[str, Any]:
        """What rank 0 tells this rank; TimeoutError: it does not."""
        pause, why = 0.001, "nobody listens there"
        while time.monotonic() < self._end:
            for port in self._ports:
                question = {"step": self._step, "rank": rank, "nonce": secrets.token_hex(16)}
                try:
                    wait = min(5.0, max(0.1, self._end - time.monotonic()))
                    with socket.create_connection((self._place, port), timeout=wait) as link:
                        link.sendall(self._seal.close(question) + b"\n")
                        with link.makefile("rb") as lines:
                            answer = self._seal.open(lines.readline(_LONGEST_LINE).strip())
                        if answer["to"] == question:
                            link.sendall(self._seal.close({"heard": question}) + b"\n")
                            return answer
                    why = "an old answer came"
                except ConnectionRefusedError:
                    pass
                except (OSError, ValueError, KeyError) as error:
                    why = f"port {port}: {error}"
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise TimeoutError(0, why)

    def _door(self, size: int) -> socket.socket:
        for port in self._ports:
            try:
                return self._listen(port, size)
            except OSError as error:
                why = error
        raise why

    def _listen(self, port: int, size: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._place else socket.AF_INET
        return socket.create_server((self._place, port), family=family, backlog=max(128, size))

    def _answer(self, door: socket.socket, missing: set[int], told: dict[str, str]) -> None:
        """Answers until all have been told; a silent stranger keeps nobody waiting."""
        heard: dict[socket.socket, _Heard] = {}
        most = _STRANGERS + len(missing)
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            stack.callback(lambda: _close(heard))
            selector.register(door, selectors.EVENT_READ)
            while missing:
                left = self._end - time.monotonic()
                if left <= 0:
                    ranks = ", ".join(map(str, sorted(missing)))
                    raise TimeoutError(0, f"rank(s) {ranks} did not come")
                over = list(heard)[: max(0, len(heard) - most)]
                for key, _ in selector.select(left):
                    link = key.fileobj
                    assert isinstance(link, socket.socket)
                    if link is door:
                        new = door.accept()[0]
                        new.settimeout(_STRANGER_SECONDS)
                        heard[new] = _Heard()
                        selector.register(new, selectors.EVENT_READ)
                    elif (rank := self._hear(link, heard[link], told)) is not None:
                        missing.discard(rank)
                        over.append(link)
                for link in set(over):
                    selector.unregister(link)
                    del heard[link]
                    link.close()

    def _hear(self, link: socket.socket, heard: _Heard, told: dict[str, str]) -> int | None:
        """Takes what came; the number of a rank that was told, -1 of a stranger, or None yet.

        A rank says that it was: an answer may be lost with its connection, and then it asks again.
        """
        try:
            data = link.recv(_LONGEST_LINE)
            heard.line += data
            if b"\n" not in heard.line and data and len(heard.line) < _LONGEST_LINE:
                return None
            message = self._seal.open(bytes(heard.line.partition(b"\n")[0]))
            if heard.question:
                return int(heard.question["rank"]) if message["heard"] == heard.question else -1
            if message["step"] != self._step:
                return -1
            link.sendall(self._seal.close({"to": message, **told}) + b"\n")
            heard.line, heard.question = bytearray(), message
            return None
        except (OSError, ValueError, KeyError):
            return -1


@dataclass
class _Heard:
    """What came over a connection: the line that has begun, and the question before it."""

    line: bytearray = field(default_factory=bytearray)
    question: dict[str, Any] = field(default_factory=dict)


def _close(links: Iterable[socket.socket]) -> None:
    for link in links:
        link.close()
