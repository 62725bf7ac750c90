"""DeepSpeed: ZeRO of the stages 1 to 3."""

from __future__ import annotations

import os

import deepspeed
import torch
from tiny import data, model
from told import BACKEND, tell
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed.init_distributed(dist_backend=BACKEND)
for stage in (1, 2, 3):
    net = model()
    engine, _, _, _ = deepspeed.initialize(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    for _ in range(2):
        for x, y in DataLoader(data(), batch_size=8, sampler=DistributedSampler(data())):
            engine.backward(nn.functional.cross_entropy(engine(x), y))
            engine.step()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        tell(net.parameters(), engine.global_rank, f"zero{stage}")
assert engine.world_size == 2
