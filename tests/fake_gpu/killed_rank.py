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
tensor = torch.ones(100_000).to("cuda")
try:
    for step in range(10_000):
        called = time.monotonic()
        hvd.allreduce(tensor, op=getattr(hvd, sys.argv[1]), name=f"step{step % 2}")
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
