"""A rank of the replay benchmark: `python -m benchmarks.replays.rank NET STEPS [FOLDER]`.

It trains a network of `benchmarks.nets`; rank 0 prints what a step takes. With a folder, each rank
leaves its flight record there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import horoacc.torch as hvd
from benchmarks.nets import NETS

WARM = 12


def main() -> None:
    name, steps, *folder = sys.argv[1:]
    if folder:
        os.environ["HOROACC_FLIGHT_DIR"] = folder[0]
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(1)
    task = NETS[name]()
    x, y = task.data()
    loss = torch.nn.CrossEntropyLoss()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(task.model.parameters(), lr=1e-3),
        named_parameters=task.model.named_parameters(),
    )
    begun = 0.0
    for step in range(WARM + int(steps)):
        if step == WARM:
            hvd.barrier()
            begun = time.perf_counter()
        optimizer.zero_grad()
        loss(task.model(x), y).backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(json.dumps({"time": (time.perf_counter() - begun) / int(steps)}), flush=True)
    if folder:
        os.kill(os.getpid(), signal.SIGUSR1)
        record = Path(folder[0]) / f"rank.{hvd.rank()}.json"
        while not record.exists():  # the engine's threads write it
            time.sleep(0.01)
    hvd.shutdown()


if __name__ == "__main__":
    main()
