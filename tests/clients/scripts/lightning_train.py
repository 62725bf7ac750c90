"""Lightning: DDP, or FSDP2 with the argument `fsdp2`."""

from __future__ import annotations

import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from tiny import data, model
from told import BACKEND, tell
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader


class Tiny(lightning.LightningModule):
    def __init__(self, shard: bool) -> None:
        super().__init__()
        self.shard = shard
        self.model = model()

    def configure_model(self) -> None:
        if self.shard:
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    shard = "fsdp2" in sys.argv
    kind = ModelParallelStrategy if shard else DDPStrategy
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=kind(process_group_backend=BACKEND), max_epochs=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    tiny = Tiny(shard)
    trainer.fit(tiny, DataLoader(data(), batch_size=8))
    tell(tiny.parameters(), trainer.global_rank)


if __name__ == "__main__":
    main()
