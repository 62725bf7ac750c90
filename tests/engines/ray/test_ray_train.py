"""Inside Ray Train: its TorchTrainer starts the workers, and `hvd.init()` makes ranks of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ray_nodes import Nodes

SCRIPT = """
import sys
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    from pathlib import Path

    import ray.train
    import torch

    import horoacc.torch as hvd

    hvd.init()
    context = ray.train.get_context()
    assert (hvd.rank(), hvd.size()) == (context.get_world_rank(), context.get_world_size())
    assert (hvd.local_rank(), hvd.local_size()) == (
        context.get_local_rank(), context.get_local_world_size()
    )
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = model.weight.clone()
    model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    optimizer.step()  # the mean of the ranks' numbers, 0 to 3
    if hvd.rank() == 0:
        Path(config["told"]).write_text(str((before - model.weight).mean().item()))


ray.init(sys.argv[1], log_to_driver=False)
TorchTrainer(
    train,
    train_loop_config={"told": f"{sys.argv[2]}/told"},
    scaling_config=ScalingConfig(
        num_workers=4, resources_per_worker={"CPU": 0.75}, placement_strategy="SPREAD"
    ),
    run_config=RunConfig(storage_path=sys.argv[2]),
).fit()
"""


def test_ranks_of_ray_train(nodes: Nodes, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, nodes.address, str(tmp_path)],
                          capture_output=True, text=True, timeout=110)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert float((tmp_path / "told").read_text()) == 1.5
