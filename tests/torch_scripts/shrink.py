"""Trains with DDP; ranks die or leave, and the others go on with torch.distributed.shrink_group.

Run as rank RANK of WORLD_SIZE: shrink.py FOLDER STEPS DEATHS. "1@3 0,2@5" kills rank 1 before step
3, and ranks 0 and 2 of those that are left before step 5; "1@3-leaves" has it end in peace.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import horoacc.torch as hvd

folder, steps, deaths = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split()


def wait_for(step, size):
    """Until all ranks have made a step, so that none of them is to be made again."""
    deadline = time.monotonic() + 60
    while step >= 0 and len(list(folder.glob(f"done.{step}.*"))) < size:
        assert time.monotonic() < deadline
        time.sleep(0.01)


torch.manual_seed(0)
model = torch.nn.Linear(3, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
dist.init_process_group("horoacc")
pair = dist.new_group([0, 1])  # a group beside the default one, which goes with it
forward = DistributedDataParallel(model)
step = 0
while step < steps:
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    dying = []
    leaves = False
    if deaths and step == int(deaths[0].partition("@")[2].partition("-")[0]):
        dying = [int(number) for number in deaths[0].partition("@")[0].split(",")]
        leaves = deaths[0].endswith("leaves")
    if dying:
        wait_for(step - 1, size)
    if rank in dying:
        if leaves:
            break
        os.kill(os.getpid(), signal.SIGKILL)
    share = 12 // size
    rows = torch.arange(step * 12 + rank * share, step * 12 + (rank + 1) * share)
    inputs = torch.stack([torch.sin(rows), torch.cos(rows), torch.sin(rows / 2.0)], 1).float()
    optimizer.zero_grad()
    try:
        if leaves:
            raise dist.DistBackendError("planned")
        loss = (forward(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
    except dist.DistBackendError as error:
        print(f"step {step}: {error}", flush=True)
        start = time.monotonic()
        group = dist.shrink_group(dying)
        deaths.pop(0)
        forward = DistributedDataParallel(model)
        print(f"shrunk in {time.monotonic() - start:.3f} s", flush=True)
        assert group is dist.group.WORLD and dist.get_backend() == "horoacc"
        assert dist.get_world_size() == size - len(dying) == group.size()
        ranks = [torch.zeros(1) for _ in range(group.size())]
        dist.all_gather(ranks, torch.tensor([float(dist.get_rank())]))
        assert [int(each) for each in ranks] == list(range(group.size()))
        sent = torch.tensor([dist.get_rank() + 5])
        dist.broadcast(sent, src=group.size() - 1)
        assert int(sent) == group.size() + 4
        if group.size() > 1:
            pair = dist.new_group([0, 1])
            if dist.get_rank() < 2:
                both = torch.ones(3)
                dist.all_reduce(both, group=pair)
                assert both.tolist() == [2.0] * 3
        print(f"group of {dist.get_world_size()} as {dist.get_rank()}", flush=True)
        continue
    optimizer.step()
    step += 1
    (folder / f"done.{step - 1}.{os.environ['RANK']}").touch()
if step == steps:
    torch.save({"step": step, "model": model.state_dict()}, folder / f"end.{os.environ['RANK']}")
    dist.destroy_process_group()
