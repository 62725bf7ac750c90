"""Ray Train's TorchTrainer."""

from __future__ import annotations

import os
import sys

import ray
import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train import torch as ray_torch
from tiny import data, model
from told import BACKEND, tell
from torch import nn
from torch.utils.data import DataLoader

AUTO = "auto" in sys.argv


def set_up() -> None:
    """In each worker, before Ray makes the process group."""
    if AUTO:
        import horoacc.auto
    else:
        import horoacc.torch  # noqa: F401


def train() -> None:
    net = ray_torch.prepare_model(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    batches = ray_torch.prepare_data_loader(DataLoader(data(), batch_size=8))
    for _ in range(4):
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    assert get_context().get_world_size() == 2
    tell(net.parameters(), get_context().get_world_rank())


oracle = BACKEND == "gloo" and not AUTO
hook = {} if oracle else {"worker_process_setup_hook": set_up}
ray.init(num_cpus=3, include_dashboard=False, runtime_env=hook)
ray_torch.TorchTrainer(
    train,
    torch_config=ray_torch.TorchConfig(backend=BACKEND),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.environ["TOLD"]),
).fit()
