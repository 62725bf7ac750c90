"""What shrink_group does with groups that cannot shrink, and where nobody has died.

Run as rank RANK of WORLD_SIZE 3: shrink_refused.py CASE.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

import horoacc.torch as hvd

case = sys.argv[1]
dist.init_process_group("horoacc")
rank = dist.get_rank()
every = dist.new_group([0, 1, 2])
dist.barrier()
if case == "a job that works":
    if rank != 1:
        left = dist.shrink_group([1], group=every)
        tensor = torch.full([2], float(rank + 1))
        dist.all_reduce(tensor, group=left)
        print(tensor.tolist(), left.size(), left.rank(), flush=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # the default group goes on
    print(tensor.item(), flush=True)
    dist.destroy_process_group()
    sys.exit(0)
if case == "control by MPI":
    try:
        assert rank == 2 or dist.shrink_group([2])
    except RuntimeError as error:
        print(error, flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)
if case in ("a rank that lives", "a rank that is stopped"):
    if rank == 2:
        if case.endswith("stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        sys.stdin.readline()  # the others have ended
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError as error:
            print(error, flush=True)
        sys.exit(0)
    dist.shrink_group([2])
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    print(tensor.item(), flush=True)
    dist.destroy_process_group()
    sys.exit(0)
dead = 0 if case == "the store died" else 2
if rank == dead:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(3))
except dist.DistBackendError as error:
    assert f"rank {dead}" in str(error), error
try:
    if case == "a group of a job that failed":
        dist.shrink_group([dead], group=every)
    elif case == "they disagree":
        dist.shrink_group([2] if rank == 0 else [0, 2])
    else:
        dist.shrink_group([dead])
    print("of", hvd.size(), flush=True)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
