"""A rank of a job in which one is killed (test_killed_gpu_rank.py)."""

import signal
import sys
import time

import fake_gpu
import torch

import horoacc.torch as hvd
from horoacc.errors import PeerLost

# A rank reports before the launcher ends the job because of the death.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd.init()
gpu = fake_gpu.install()
tensors = [torch.ones(100_000).to("cuda") for _ in range(2)]
try:
    for _ in range(10_000):
        called = time.monotonic()
        op = getattr(hvd, sys.argv[1])
        # Two at once: a GPU packs the second while the first one is being reduced.
        calls = [hvd.allreduce_async(x, op=op, name=f"x{k}") for k, x in enumerate(tensors)]
        for call in calls:
            hvd.synchronize(call)
except PeerLost as error:
    told = time.monotonic()
    limit = time.monotonic() + 20
    # Read once, since later output may take a moment.
    while (waiting := gpu.waits) > 0 and time.monotonic() < limit:
        time.sleep(0.01)
    text = str(error).replace("\n", " ")
    took = time.monotonic() - called
    print(f"told after {told - called:.2f} s, released after {took:.2f} s", flush=True)
    print(f"released by PeerLost: {text}; waiting streams: {waiting}", flush=True)
