"""Unauthenticated peers at every port of a job, while it starts and while it runs (row 21)."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import unauthenticated_peers as peers
import wire_format
from gates import Passage
from linked_ranks import PHASES, LinkedRanks

# Idle connections by the number of ranks: to the port of the rendezvous, and while the job runs to
# one port and to each of the others. A port accepts 500 a second, the largest crowd in 20 s.
EARLY = {2: 2500, 4: 500, 8: 500}
CROWD = {2: (10_000, 1000), 4: (500, 500), 8: (300, 100)}
# Pending connections of a port (docs/security.md), and descriptors that a rank opens now and then.
MOST_PENDING, SOME = 256, 16


def _visit(address: peers.Address, recorded: bytes, purpose: int) -> None:
    """One peer of each kind, among them some that have recorded a rank's handshake."""
    for _ in range(3):
        peers.noise(address)
    peers.http(address)
    peers.scan(address)
    peers.wrong_secret(address, recorded[: wire_format.GREETING.size])
    peers.wrong_epoch(address, purpose)
    peers.replayed(address, recorded)


def _visit_all(ports: dict[peers.Address, int], recorded: dict[int, bytes]) -> None:
    """All ports at once; each has its purpose."""
    with ThreadPoolExecutor(len(ports)) as visits:
        for visit in [
            visits.submit(_visit, port, recorded[purpose], purpose)
            for port, purpose in ports.items()
        ]:
            visit.result()


def _purpose_of(port: peers.Address, recorded: dict[int, bytes]) -> int:
    """A port answers only a greeting of its own purpose."""
    for purpose, opening in recorded.items():
        if peers.is_answered(port, opening[: wire_format.GREETING.size]):
            return purpose
    raise AssertionError(f"{port} answers no greeting")


@pytest.mark.parametrize("size", [2, 4, 8])
def test_during_rendezvous(linked: LinkedRanks, size: int) -> None:
    linked.size = size
    linked.start(0)
    address = ("127.0.0.1", linked.port)
    _await_listener(address)
    late = threading.Thread(target=peers.slow, args=(address, 3))
    late.start()
    own = wire_format.greeting(wire_format.RENDEZVOUS, 1, size)
    _visit(address, own + wire_format.proof(linked.secret, own, bytes(64)), wire_format.RENDEZVOUS)
    # A peer with the secret that is no missing rank gets an error and takes no rank's place.
    for rank, of, word in (
        (size, size, "no place"),
        (0, size, "no place"),
        (1, size + 1, f"expects {size + 1}"),
    ):
        assert word.encode() in _prove(address, linked.secret, rank, of), word
    idle = peers.Crowd(address, EARLY[size])
    assert idle.await_all() == EARLY[size]
    for rank in range(1, size):
        linked.start(rank)
    linked.await_start()
    late.join()
    idle.leave()
    linked.end()
    (warning,) = _told_of(linked, 0)
    assert "to the rendezvous was turned away" in warning
    assert not any(_told_of(linked, rank) for rank in range(1, size))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_while_the_job_runs(linked: LinkedRanks, size: int) -> None:
    """Some of each kind in every phase, and idle ones until the ranks have left."""
    linked.size = size
    # Records the handshakes of a control link and of a data link.
    passage = Passage(linked.port, linked.secret)
    for rank in range(size):
        address = f"127.0.0.1:{passage.port}" if rank == 1 else ""
        linked.start(rank, address, HOROACC_ALGORITHM="canonical")  # all data go over links
    linked.await_start()
    recorded = {
        wire_format.GREETING.unpack(opening[:64])[2]: opening
        for opening in (passage.control.openings[0], passage.data.openings[0])
    }
    assert recorded.keys() == {wire_format.CONTROL, wire_format.DATA}
    pids = {rank: one.process.pid for rank, one in linked.ranks.items()}
    ports = [address for pid in pids.values() for address in peers.ports_of(pid)]
    # Each rank's ports of control and data links; the port of the rendezvous is closed.
    assert len(ports) == 2 * size and {host for host, _ in ports} == {"127.0.0.1"}
    purposes = {port: _purpose_of(port, recorded) for port in ports}
    assert sorted(purposes.values()) == sorted(size * [wire_format.CONTROL, wire_format.DATA])
    fds = {rank: linked.holds(rank, "fds") for rank in pids}
    kib = {rank: linked.holds(rank, "kib") for rank in pids}
    late = [threading.Thread(target=peers.slow, args=(address, 3)) for address in ports]
    for thread in late:
        thread.start()
    for phase in PHASES:
        linked.enter(phase)
        _visit_all(purposes, recorded)
        linked.resume()
        linked.await_steps(1)
    linked.wait_for(
        lambda: all(linked.holds(rank, "fds") <= fds[rank] + SOME for rank in pids), "their end"
    )
    many, fewer = CROWD[size]
    counts = [many, *[fewer] * (2 * size - 1)]
    crowds = [peers.Crowd(*of_a_port) for of_a_port in zip(ports, counts, strict=True)]
    assert [crowd.await_all() for crowd in crowds] == counts
    linked.await_steps(20)
    for rank in pids:
        assert linked.holds(rank, "fds") <= fds[rank] + 2 * MOST_PENDING + SOME
        assert linked.holds(rank, "kib") <= kib[rank] + (64 << 10)
    linked.enter("idle")
    linked.part()
    linked.end()
    for thread in late:
        thread.join()
    for crowd in crowds:
        crowd.leave()
    for rank in pids:
        told = "".join(sorted(_told_of(linked, rank)))
        for links in ("control links", "data links"):
            assert told.count(f"to the port of the {links} was turned away") == 1, told
    passage.close()


def _told_of(linked: LinkedRanks, rank: int) -> list[str]:
    return [line for line in linked.ranks[rank].warnings() if "turned away" in line]


def _await_listener(address: peers.Address) -> None:
    for _ in range(6000):
        try:
            socket.create_connection(address, 1).close()
        except OSError:
            threading.Event().wait(0.02)
        else:
            return
    raise AssertionError(f"no process listens at {address}")


def _prove(address: peers.Address, secret: str, rank: int, size: int) -> bytes:
    """Connects with the secret; returns the bytes that come after the proofs."""
    own = wire_format.greeting(wire_format.RENDEZVOUS, rank, size)
    said = b""
    with socket.create_connection(address, 30) as link:
        link.settimeout(30)
        link.sendall(own)
        theirs = link.recv(wire_format.GREETING.size, socket.MSG_WAITALL)
        link.sendall(wire_format.proof(secret, own, theirs))
        given = link.recv(wire_format.PROOF_BYTES, socket.MSG_WAITALL)
        assert wire_format.is_proof_of_listener(secret, own, theirs, given)
        while more := link.recv(4096):
            said += more
    return said
