"""Trains a small network on real handwritten digits, on one rank or many.

    horoaccrun -np 2 python examples/torch_digits.py

The batch size is that of the whole job, so every number of ranks computes the same gradients, and
reaches the same accuracy, as one rank does.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import horoacc.torch as hvd

TEST_SHARE = 5  # every fifth digit is held out


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    # For the test that sees the ranks drift apart.
    parser.add_argument("--no-communication", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, then those held out."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(images, dtype=torch.float32) / 16.0).view(-1, 1, 8, 8)[order]
    y = torch.tensor(labels)[order]
    held_out = torch.arange(len(y)) % TEST_SHARE == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def progress(epochs: int) -> Iterable[int]:
    """Counts epochs, behind a bar on rank 0."""
    try:
        from tqdm import tqdm
    except ImportError:
        return range(epochs)
    return tqdm(range(epochs), desc="epochs", disable=hvd.rank() != 0)


def train(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor,
          epochs: int, batch: int, seed: int) -> None:  # fmt: skip
    # All ranks draw the same order; each takes its share of every batch. The loss is the sum over
    # the share divided by the whole batch, so the sum of the gradients is that of the whole batch,
    # also where the shares of the last batch differ in length.
    order = torch.Generator().manual_seed(seed)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, epochs))
    for _ in progress(epochs):
        for chosen in torch.randperm(len(y), generator=order).split(batch):
            share = chosen[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[share]), y[share], reduction="sum")
            (loss / len(chosen)).backward()
            optimizer.step()
        decay.step()


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of right answers; every rank looks at a part of the digits."""
    with torch.no_grad():
        mine = slice(hvd.rank(), None, hvd.size())
        right = (model(x[mine]).argmax(1) == y[mine]).sum()
    return hvd.allreduce(right, name="right", op=hvd.Sum).item() / len(y)


def parameter_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for _, value in sorted(model.state_dict().items()):
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    args = options()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    x, y, x_held_out, y_held_out = digits()
    model = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    if not args.no_communication:
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), op=hvd.Sum
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, x, y, args.epochs, args.batch_size, args.seed)

    reached = accuracy(model, x_held_out, y_held_out)
    hashes = hvd.allgather_object(parameter_hash(model))
    if hvd.rank() == 0:
        print(f"accuracy {100 * reached:.2f} % on {len(y_held_out)} held-out digits, "
              f"{hvd.size()} ranks, parameters {hashes[0][:12]}", flush=True)  # fmt: skip
    if len(set(hashes)) != 1:
        if hvd.rank() == 0:
            different = [rank for rank, value in enumerate(hashes) if value != hashes[0]]
            print(f"the parameters of ranks {different} are not those of rank 0: the ranks did "
                  "not train the same model", file=sys.stderr, flush=True)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
