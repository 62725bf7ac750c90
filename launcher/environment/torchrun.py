"""How ranks of torchrun, or of torch's env:// variables, find each other."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from horoacc.launcher.addresses import listen
from horoacc.launcher.environment.placement import (
    Placement,
    PlacementError,
    Rendezvous,
    number,
)

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# Rank 0 looks again for the others after this time, in seconds.
_LONGEST_PAUSE = 0.02


class _Open(Protocol):
    def __call__(self, placement: Placement, environ: Mapping[str, str], seconds: float) -> Store:
        """Connects to the job's key-value store."""


def _tcp_store(placement: Placement, environ: Mapping[str, str], seconds: float) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # torchrun's agent hosts the store; with plain env:// variables rank 0 does, shared with
    # torch.distributed's own init_process_group in the same process (multi_tenant).
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        environ["MASTER_ADDR"],
        number(environ, "MASTER_PORT"),
        placement.size,
        placement.rank == 0 and not agent,
        timeout=timedelta(seconds=seconds),
        multi_tenant=True,
    )


def rendezvous(
    placement: Placement,
    environ: Mapping[str, str],
    seconds: float = 60.0,
    open_store: _Open = _tcp_store,
    meeting: str = "",
) -> Rendezvous:
    """Has rank 0 listen with a fresh secret, and tells the others through torch's store.

    torchrun's agent keeps its store when it starts the ranks again, with the keys of those before;
    neither their count of restarts nor anything else tells an agent that came later which round
    it is. So each rank asks under a random number of its own, and rank 0 answers whoever asks
    until all have heard it. What a dead rank has left there is answered, too, and harms nobody.

    The store of torchrun is not authenticated, so the secret is as safe as torchrun's own traffic.

    Args:
        placement: This rank's.
        environ: Variables.
        seconds: How long to wait for the others.
        open_store: Opens the store.
        meeting: What the ranks agree on beside the job and its size: others cannot meet them.

    Raises:
        PlacementError: The store, or some ranks, did not answer in time; the message names them.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "env")
    prefix = f"horoacc/{run}/{meeting or placement.size}"
    listener: socket.socket | None = None
    try:
        store = open_store(placement, environ, seconds)
        if placement.rank == 0:
            names = [environ["MASTER_ADDR"], socket.gethostname()]
            one_host = placement.local_size == placement.size
            listener, address = listen([] if one_host else names, 1024)
            told = {"address": address, "secret": secrets.token_hex(32)}
            told["heard"] = f"{prefix}/heard/{secrets.token_hex(16)}"
            _answer(store, prefix, placement.size, told, seconds)
        else:
            told = _ask(store, prefix, placement.rank, seconds)
    except (RuntimeError, OSError) as error:
        if listener is not None:
            listener.close()
        port = environ.get("MASTER_PORT", "")
        at = f" at {environ['MASTER_ADDR']}:{port}" if port else ""
        raise PlacementError(
            f"rank {placement.rank} could not meet the others through torch's store{at} within "
            f"{seconds:g} s: {error}"
        ) from error
    listen_fd = listener.detach() if listener is not None else None
    return Rendezvous(told["address"], listen_fd, told["secret"])


def _ask(store: Store, prefix: str, rank: int, seconds: float) -> dict[str, str]:
    """What rank 0 answers this rank."""
    number = secrets.token_hex(16)
    store.set(f"{prefix}/asks/{rank}", number)
    store.wait([f"{prefix}/answer/{number}"], timedelta(seconds=seconds))
    answer: dict[str, str] = json.loads(store.get(f"{prefix}/answer/{number}"))
    # Rank 0 may host the store: it must not drop it before all ranks have read.
    store.set(f"{answer['heard']}/{rank}", "1")
    return answer


def _answer(
    store: Store, prefix: str, size: int, answer: Mapping[str, str], seconds: float
) -> None:
    """Answers every other rank; TimeoutError, an OSError, if some do not ask."""
    deadline = time.monotonic() + seconds
    numbers = dict.fromkeys(range(1, size), "")
    pause = 0.001
    while True:
        for rank, asked in list(numbers.items()):
            if asked and store.check([f"{answer['heard']}/{rank}"]):
                del numbers[rank]
            elif store.check([f"{prefix}/asks/{rank}"]):
                numbers[rank] = store.get(f"{prefix}/asks/{rank}").decode()
                if numbers[rank] != asked:
                    store.set(f"{prefix}/answer/{numbers[rank]}", json.dumps(answer))
        if not numbers:
            return
        if time.monotonic() > deadline:
            missing = ", ".join(str(rank) for rank in numbers)
            raise TimeoutError(f"rank(s) {missing} did not come")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
