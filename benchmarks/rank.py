"""One rank of a system: joins its job, then does what the driver says.

`python -m benchmarks.rank SYSTEM ADDRESS`; `benchmarks.group` starts it.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client
from typing import Any

from benchmarks.adapters import Adapter, open_adapter


class Rank:
    """What the functions of the benchmarks get as their first argument on a rank."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.kept: dict[str, Any] = {}
        """What a benchmark keeps between two orders."""


def _bind() -> None:
    """Takes a core of its own, as mpirun gives one to the ranks of the peers."""
    allowed = sorted(os.sched_getaffinity(0))
    number = int(os.environ.get("HOROACC_LOCAL_RANK") or os.environ["BENCH_RANK"])
    os.sched_setaffinity(0, {allowed[number % len(allowed)]})


def _call(rank: Rank, order: tuple[str, str, tuple[Any, ...], dict[str, Any]]) -> tuple[str, Any]:
    module, name, arguments, named = order
    try:
        function = getattr(importlib.import_module(module), name)
        return "ok", function(rank, *arguments, **named)
    except BaseException:
        return "failed", traceback.format_exc()


def main() -> None:
    system, address = sys.argv[1:]
    link = Client(address, "AF_UNIX", authkey=bytes.fromhex(os.environ.pop("BENCH_KEY")))
    # A collection in the middle of a loop would be measured as the loop's.
    gc.disable()
    try:
        if "BENCH_BIND" in os.environ:
            _bind()
        rank = Rank(open_adapter(system))
    except BaseException:
        link.send(("failed", traceback.format_exc()))
        raise
    link.send(("ok", rank.adapter.rank))
    while True:
        try:
            order = link.recv()
        except EOFError:
            os._exit(1)  # the driver is gone; a clean end might wait for ranks that hang
        if order is None:
            break
        answer = _call(rank, order)
        gc.collect()  # before the answer: the next system's turn begins with it
        link.send(answer)
    rank.kept.clear()
    rank.adapter.close()


if __name__ == "__main__":
    main()
