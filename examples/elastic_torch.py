"""Trains on handwritten digits with PyTorch, in a job whose ranks may die, leave and come.

    horoaccrun -np 4 --min-np 1 python examples/elastic_torch.py --checkpoint digits.pt

Each rank has batches of its own, so the learning rate grows with the number of ranks.
`ElasticSampler` gives each digit once an epoch, whoever dies. Nothing is committed inside an epoch:
a step that a rank has applied is not lost. A job that is killed whole begins behind the last epoch
of its checkpoint.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_digits import accuracy, digits, network
from torch_resume import save

import horoacc.torch as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--checkpoint", type=Path, help="where rank 0 writes after each epoch")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="of one rank")
    parser.add_argument("--learning-rate", type=float, default=0.025, help="of one rank")
    parser.add_argument("--samples", type=int, help="train on so many digits instead of all")
    return parser.parse_args()


def main() -> None:
    args = options()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x, y, x_held_out, y_held_out = digits()
    data = TensorDataset(x[: args.samples], y[: args.samples])
    sampler = hvd.elastic.ElasticSampler(data, seed=1)
    loader: DataLoader[Any] = DataLoader(data, args.batch_size, sampler=sampler)
    model = network()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9),
        named_parameters=model.named_parameters(),
    )

    def factor(epoch: int) -> float:
        return hvd.size() * (1 + math.cos(math.pi * epoch / args.epochs)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, schedule=schedule, sampler=sampler, epoch=0
    )
    # Every process reads it, for the state of any may be the job's if all ranks are lost.
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        for name in ("model", "optimizer", "schedule"):
            getattr(state, name).load_state_dict(saved[name])
        state.epoch = saved["epoch"]
        sampler.set_epoch(state.epoch)
        state.save()

    def fit_rate() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * factor(schedule.last_epoch)

    state.register_reset_callbacks([fit_rate])

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < args.epochs:
            model.train()
            for batch, (inputs, targets) in enumerate(loader):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                state.sampler.record_batch(batch, len(inputs))
                state.check_host_updates()
            # From here on an error is none of a gradient's: it goes back to this commit, where the
            # sampler has nothing left, and so to the test.
            state.commit()
            if hvd.rank() == 0 and args.checkpoint:
                save(args.checkpoint, {
                    "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(), "epoch": state.epoch + 1,
                })  # fmt: skip
            model.eval()
            reached = accuracy(model, x_held_out, y_held_out)
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1}: accuracy {100 * reached:.2f} %, "
                      f"{hvd.size()} ranks", flush=True)  # fmt: skip
            schedule.step()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    train(state)


if __name__ == "__main__":
    main()
