"""Functions that ranks call on Spark's executors."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def place(factor: float = 1.0, *, name: str = "") -> dict[str, Any]:
    import horoacc as hvd

    hvd.init()
    print(f"out {hvd.rank()}")
    print(f"err {hvd.rank()}", file=sys.stderr)
    summed = hvd.allreduce(np.full(3, hvd.rank() * factor), op=hvd.Sum)
    return {
        "place": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()),
        "summed": summed.tolist(),
        "name": name,
        "variable": os.environ.get("OF_THE_TEST"),
        "horoacc": os.environ.get("HOROACC_LOG_LEVEL"),
        "master": os.environ["MASTER_ADDR"],
        "parent": os.getppid(),
    }


def program(*words: str) -> None:
    """Runs a file of Python's with its arguments."""
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")


def torch_distributed() -> float:
    """torch's own process group, at MASTER_ADDR and MASTER_PORT."""
    import torch

    torch.distributed.init_process_group("gloo")
    value = torch.ones(1)
    torch.distributed.all_reduce(value)
    torch.distributed.destroy_process_group()
    return value.item()


def large(size: int) -> bytes:
    import horoacc as hvd

    hvd.init()
    return bytes([hvd.rank()]) * size


class Refusal(Exception):
    """Takes other arguments than it keeps."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} refuses: {reason}")


def fails(culprit: int, how: str) -> None:
    """Rank `culprit` fails while the others wait for it."""
    import horoacc as hvd
    from horoacc.spark.store import LocalStore

    hvd.init()
    hvd.barrier()
    if hvd.rank() == culprit:
        if how == "raises":
            raise Refusal(culprit, "no reason")
        if how == "exits":
            print("the last words", file=sys.stderr, flush=True)
            os._exit(7)
        with LocalStore("/nowhere").get_local_output_dir_fn("one")():  # is left behind
            os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()


def waits(folder: str, seconds: float) -> None:
    """Writes its process id and sleeps; what it starts lives longer."""
    import subprocess

    import horoacc as hvd

    hvd.init()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # courier_rank"])
    Path(folder, f"rank.{hvd.rank()}").write_text(f"{os.getpid()} {child.pid}")
    hvd.barrier()
    time.sleep(seconds)


def meets(folder: str) -> None:
    """Writes its process id, and meets the others again and again."""
    import horoacc as hvd

    hvd.init()
    Path(folder, f"rank.{hvd.rank()}").write_text(str(os.getpid()))
    while True:
        hvd.barrier()
        time.sleep(0.01)


def as_horovod() -> tuple[str, int]:
    import horovod
    import horovod.torch as hvd

    hvd.init()
    return horovod.__version__, hvd.size()


def trains(log: str, steps: int, until_size: int = 0, fail: str = "") -> tuple[int, int, int]:
    """Steps of a small model, each a line of a log: time, process, rank, size and step.

    `fail` is a folder: rank R raises at step S, once, if it holds R.S. With `until_size` the
    training goes on until so many ranks have taken five steps.
    """
    import torch

    import horoacc.torch as hvd

    hvd.init()
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> tuple[int, int, int]:
        together = 0
        while state.step < steps or (until_size and together < 5):
            together += hvd.size() == until_size
            marked = Path(fail, f"{hvd.rank()}.{state.step}")
            if fail and marked.exists():
                marked.unlink()
                raise Refusal(hvd.rank(), "it was told to")
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            state.step += 1
            with open(log, "a") as file:
                file.write(f"{time.time()} {os.getpid()} {hvd.rank()} {hvd.size()} {state.step}\n")
            time.sleep(0.05)
            state.check_host_updates()
        return hvd.rank(), hvd.size(), state.step

    return train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
