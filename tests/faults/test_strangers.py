"""Strangers at every port of a job, while it starts and while it runs (row 21)."""

from __future__ import annotations

import resource
import socket
import threading

import strangers
import wire_format
from linked_ranks import LinkedRanks

# Both ends of a connection count against the limit of their own process only.
CROWD = min(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
# Of the port that stays open (docs/security.md), and what a rank opens now and then.
MOST_GUESTS, SOME = 256, 16


def _visit(address: strangers.Address, secret: str, purpose: int) -> None:
    """One stranger of each kind."""
    for _ in range(5):
        strangers.noise(address)
    strangers.http(address)
    strangers.scan(address)
    strangers.wrong_secret(address, purpose)
    strangers.wrong_epoch(address, secret, purpose)


def test_while_the_ranks_meet(linked: LinkedRanks) -> None:
    linked.start(0)
    address = ("127.0.0.1", linked.port)
    _await_listener(address)
    late = threading.Thread(target=strangers.slow, args=(address, 3))
    late.start()
    _visit(address, linked.secret, wire_format.RENDEZVOUS)
    # Who knows the secret, but is no rank that is missing, is told so and does not take a place.
    for rank, size, word in ((2, 2, b"no place"), (0, 2, b"no place"), (1, 3, b"expects 3")):
        assert word in _prove(address, linked.secret, rank, size), word
    idle = strangers.Crowd(address, CROWD)
    linked.start(1)
    linked.await_start()
    late.join()
    idle.leave()
    linked.end()
    (warning,) = _told_of(linked, 0)
    assert "to the rendezvous was turned away" in warning
    assert not _told_of(linked, 1)


def test_while_the_job_runs(linked: LinkedRanks) -> None:
    for rank in range(2):
        linked.start(rank)
    linked.await_start()
    pids = {rank: one.process.pid for rank, one in linked.ranks.items()}
    ports = {address for pid in pids.values() for address in strangers.ports_of(pid)}
    # The data links' of each rank; those of the meeting are closed.
    assert len(ports) == 2 and {host for host, _ in ports} == {"127.0.0.1"}
    fds = {rank: linked.holds(rank, "fds") for rank in pids}
    kib = {rank: linked.holds(rank, "kib") for rank in pids}
    crowds = [strangers.Crowd(address, CROWD // 2) for address in ports]
    late = [threading.Thread(target=strangers.slow, args=(address, 3)) for address in ports]
    for thread in late:
        thread.start()
    for address in ports:
        _visit(address, linked.secret, wire_format.DATA)
        strangers.replayed(address, wire_format.greeting(wire_format.DATA, 0, 2) + bytes(32))
    linked.await_steps(20)
    for rank in pids:
        assert linked.holds(rank, "fds") <= fds[rank] + MOST_GUESTS + SOME
        assert linked.holds(rank, "kib") <= kib[rank] + (64 << 10)
    for crowd in crowds:
        crowd.leave()
    for thread in late:
        thread.join()
    linked.wait_for(
        lambda: all(linked.holds(rank, "fds") <= fds[rank] + SOME for rank in pids), "their end"
    )
    linked.end()
    for rank in pids:
        (warning,) = _told_of(linked, rank)
        assert "to the port of the data links was turned away" in warning


def _told_of(linked: LinkedRanks, rank: int) -> list[str]:
    return [line for line in linked.ranks[rank].warnings() if "turned away" in line]


def _await_listener(address: strangers.Address) -> None:
    for _ in range(6000):
        try:
            socket.create_connection(address, 1).close()
        except OSError:
            threading.Event().wait(0.02)
        else:
            return
    raise AssertionError(f"nobody listens at {address}")


def _prove(address: strangers.Address, secret: str, rank: int, size: int) -> bytes:
    """Comes as somebody who knows the secret; what is said after the proofs."""
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
