"""Trains a small residual network as one trains on ImageNet, in a job whose ranks may die and come.

    horoaccrun -np 4 --min-np 1 python examples/elastic_torch_imagenet.py --checkpoints folder

It has what large jobs have: a learning rate that is warmed up and then falls in steps, set for each
batch; metrics that are averaged over the ranks; batch normalization; several backward passes a
step; gradients that travel as 16-bit floats; a commit every few batches; a checkpoint an epoch,
behind the newest of which a job begins. The images are handwritten digits, so that nothing has to
be downloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_digits import digits
from torch_resume import save

import horoacc.torch as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a residual network.")
    parser.add_argument("--checkpoints", type=Path, help="a folder for a checkpoint an epoch")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--warmup-epochs", type=float, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="of a rank's backward pass")
    parser.add_argument("--batches-per-allreduce", type=int, default=1,
                        help="backward passes a step")  # fmt: skip
    parser.add_argument("--batches-per-commit", type=int, default=10, help="steps a commit")
    parser.add_argument("--base-lr", type=float, default=0.0125, help="of one backward pass")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send 16-bit gradients")
    parser.add_argument("--samples", type=int, help="train on so many images instead of all")
    return parser.parse_args()


class Block(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList([
            nn.Sequential(
                nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU(),
                nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made),
            ),
            nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made)),
        ])  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        straight, around = self.ways
        return torch.relu(straight(x) + around(x))


def residual_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


class Metric:
    """The mean of a number over batches and ranks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sum = torch.zeros(())
        self._count = 0

    def update(self, value: torch.Tensor) -> None:
        self._sum += hvd.allreduce(value.detach(), name=self._name, op=hvd.Average)
        self._count += 1

    @property
    def average(self) -> float:
        return float(self._sum) / max(self._count, 1)


def right(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == targets).float().mean()


class Training:
    """All that is trained, and what trains it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        x, y, x_held_out, y_held_out = digits()
        data = TensorDataset(x[: args.samples], y[: args.samples])
        self.count = len(data)
        sampler = hvd.elastic.ElasticSampler(data, seed=1)
        together = args.batch_size * args.batches_per_allreduce
        self.loader: DataLoader[Any] = DataLoader(data, together, sampler=sampler)
        tests = TensorDataset(x_held_out, y_held_out)
        # Parted among the ranks as well; nothing is recorded in it, so each epoch has all.
        self.test_sampler = hvd.elastic.ElasticSampler(tests, shuffle=False)
        self.test_loader: DataLoader[Any] = DataLoader(tests, 64, sampler=self.test_sampler)
        self.model = residual_network()
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=args.base_lr, momentum=0.9, weight_decay=5e-5
        )
        self.optimizer: Any = hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
            backward_passes_per_step=args.batches_per_allreduce,
        )  # fmt: skip
        self.state = hvd.elastic.TorchState(
            model=self.model, optimizer=self.optimizer, sampler=sampler, epoch=0, batch=0
        )
        self.state.register_reset_callbacks([self.test_sampler.reset])
        self._resume()

    def _file(self, epoch: int) -> Path:
        return Path(self.args.checkpoints) / f"checkpoint-{epoch}.pt"

    def _resume(self) -> None:
        # Every process does, for the state of any may be the job's if all ranks are lost.
        if not self.args.checkpoints:
            return
        self.args.checkpoints.mkdir(parents=True, exist_ok=True)
        for epoch in range(self.args.epochs, 0, -1):
            if self._file(epoch).exists():
                saved = torch.load(self._file(epoch))
                self.model.load_state_dict(saved["model"])
                self.optimizer.load_state_dict(saved["optimizer"])
                self.state.epoch = epoch
                self.state.sampler.set_epoch(epoch)
                self.state.save()
                return

    def fit_rate(self) -> None:
        """From a rank's rate to that of all in the first epochs, and down at 1/2 and 3/4."""
        # Of the samples and not of the batches, whose number changes with that of the ranks.
        epoch = self.state.epoch + min(1.0, self.state.sampler.processed_num / self.count)
        ranks = hvd.size()
        if epoch < self.args.warmup_epochs:
            factor = 1 + epoch * (ranks - 1) / self.args.warmup_epochs
        else:
            factor = ranks * 0.1 ** sum(epoch >= self.args.epochs * p for p in (0.5, 0.75))
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.base_lr * self.args.batches_per_allreduce * factor

    def train_epoch(self) -> Metric:
        """The epoch, or what is left of it."""
        self.model.train()
        loss_metric = Metric("train_loss")
        for inputs, targets in self.loader:
            self.fit_rate()
            self.optimizer.zero_grad()
            total = torch.zeros(())
            # An epoch's last step may have fewer passes, as many on all ranks.
            size = self.args.batch_size
            for part, labels in zip(inputs.split(size), targets.split(size), strict=True):
                # The gradients of the passes are added up: that of the mean over all samples.
                loss = nn.functional.cross_entropy(self.model(part), labels, reduction="sum")
                loss = loss / len(targets)
                loss.backward()
                total += loss.detach()
            self.optimizer.step()
            loss_metric.update(total)
            self.state.sampler.record_batch(self.state.batch, len(targets))
            self.state.batch += 1
            if self.state.batch % self.args.batches_per_commit == 0:
                self.state.commit()
        return loss_metric

    def test(self) -> float:
        self.model.eval()
        metric = Metric("test_accuracy")
        with torch.no_grad():
            for inputs, targets in self.test_loader:
                metric.update(right(self.model(inputs), targets))
        return metric.average

    def run(self, state: Any) -> None:
        while state.epoch < self.args.epochs:
            loss = self.train_epoch().average
            state.commit()  # a death from here on goes back to this place
            if hvd.rank() == 0 and self.args.checkpoints:
                save(self._file(state.epoch + 1), {
                    "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                })  # fmt: skip
            reached = self.test()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1}: loss {loss:.4f}, accuracy {100 * reached:.2f} %, "
                      f"{hvd.size()} ranks", flush=True)  # fmt: skip
            state.epoch += 1
            state.batch = 0
            state.sampler.set_epoch(state.epoch)
            state.commit()


def main() -> None:
    args = options()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    training = Training(args)
    hvd.elastic.run(training.run)(training.state)


if __name__ == "__main__":
    main()
