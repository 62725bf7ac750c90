"""After a rank was lost the others can leave, and meet again without it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys

import pytest
from launcher_jobs import Job

# The test itself starts the ranks and gives them their places, so that the survivors live on.
RANK = """
import os, pickle, sys
import numpy as np
import horoacc as hvd
def place(rank, size, address):
    os.environ.update(
        HOROACC_RANK=str(rank), HOROACC_SIZE=str(size), HOROACC_LOCAL_RANK=str(rank),
        HOROACC_LOCAL_SIZE=str(size), HOROACC_RENDEZVOUS=address)
hvd.init()
print("up", os.getpid(), flush=True)
steps = 0
while True:
    try:
        while True:
            total = hvd.allreduce(np.ones(1000), op=hvd.Sum, name="x")
            assert (total == hvd.size()).all()
            steps += 1
            if len(sys.argv) > 1 and hvd.size() == int(sys.argv[1]):
                break
        break
    except hvd.errors.PeerLost as error:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and vars(again) == vars(error), vars(again)
        hvd.shutdown()
        print("lost", error.culprit, error.host, error.tensor, error.collective > 0, flush=True)
        rank, size, address = sys.stdin.readline().split()
        place(int(rank), int(size), address)
        hvd.init()
assert steps > 0
print("done", hvd.rank(), hvd.size(), flush=True)
hvd.shutdown()
"""


def _address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(("size", "victims", "hosts"), [(2, [0], ""), (4, [0, 2], "2+2")])
def test_the_survivors_meet_again(size: int, victims: list[int], hosts: str) -> None:
    with Job() as job:
        left = size - len(victims)
        secret = secrets.token_hex(32)

        def environ(rank: int, of: int, address: str) -> dict[str, str]:
            # Parts are of the whole job only: the survivors share one host.
            return job.environ(
                HOROACC_RANK=str(rank), HOROACC_SIZE=str(of), HOROACC_LOCAL_RANK=str(rank),
                HOROACC_LOCAL_SIZE=str(of), HOROACC_RENDEZVOUS=address, HOROACC_SECRET=secret,
                HOROACC_SIMULATED_HOSTS=hosts,
            )  # fmt: skip

        address = _address()
        program = RANK.replace(
            "    os.environ.update(", "    os.environ.update(HOROACC_SIMULATED_HOSTS='',"
        )
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(left)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, env=environ(rank, size, address), text=True,
            )
            for rank in range(size)
        ]  # fmt: skip
        survivors = [rank for rank in range(size) if rank not in victims]
        lines = {rank: ranks[rank].stdout for rank in range(size)}
        for rank in range(size):
            assert (lines[rank].readline().split() or [""])[0] == "up"  # type: ignore[union-attr]
        for victim in victims:
            ranks[victim].send_signal(signal.SIGKILL)
        again = _address()
        for place, rank in enumerate(survivors):
            word, culprit, host, tensor, numbered = lines[rank].readline().split()  # type: ignore[union-attr]
            assert (word, host, tensor) == ("lost", os.uname().nodename, "allreduce.x")
            assert int(culprit) in victims and numbered == "True"
            ranks[rank].stdin.write(f"{place} {left} {again}\n")  # type: ignore[union-attr]
            ranks[rank].stdin.flush()  # type: ignore[union-attr]
        for place, rank in enumerate(survivors):
            assert lines[rank].readline() == f"done {place} {left}\n"  # type: ignore[union-attr]
            assert ranks[rank].wait(300) == 0
        for victim in victims:
            assert ranks[victim].wait(300) == -signal.SIGKILL
        for rank in ranks:
            rank.stdin.close()  # type: ignore[union-attr]
            rank.stdout.close()  # type: ignore[union-attr]
        job.expect_nothing_left()
