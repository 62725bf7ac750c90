"""Trains as torch_digits.py does, and goes on where a run that was killed has stopped.

    horoaccrun -np 2 python examples/torch_resume.py --checkpoint digits.pt

Rank 0 writes a checkpoint after each epoch. The same command starts the job again, also with
another number of ranks, and all ranks begin at the epoch behind the checkpoint's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_digits import accuracy, digits, network, parameter_hash

import horoacc.torch as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    return parser.parse_args()


def save(path: Path, state: dict[str, Any]) -> None:
    """At any moment, and after a kill at any moment, there is the old file or the whole new one."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def main() -> None:
    args = options()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x, y, x_held_out, y_held_out = digits()
    model = network()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(),
        op=hvd.Sum,
    )  # fmt: skip
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    # All ranks draw the same order and take their shares of it, so its state fits any number of
    # ranks. What a rank draws for itself, for dropout say, would be seeded by epoch and rank.
    order = torch.Generator().manual_seed(1)

    # Rank 0 alone needs the file; the others get from it what it has read.
    if hvd.rank() == 0 and args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        rest = saved["rest"]
    else:
        rest = {"epoch": 0, "decay": decay.state_dict(), "order": order.get_state()}
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    rest = hvd.broadcast_object(rest, root_rank=0)
    decay.load_state_dict(rest["decay"])
    order.set_state(rest["order"])

    for epoch in range(rest["epoch"], args.epochs):
        total = torch.zeros(())
        for chosen in torch.randperm(len(y), generator=order).split(args.batch_size):
            share = chosen[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[share]), y[share], reduction="sum")
            (loss / len(chosen)).backward()
            optimizer.step()
            total += loss.detach()
        decay.step()
        mean = hvd.allreduce(total, name="loss", op=hvd.Sum).item() / len(y)
        if hvd.rank() == 0:
            rest = {"epoch": epoch + 1, "decay": decay.state_dict(), "order": order.get_state()}
            save(args.checkpoint, {
                "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rest": rest,
            })  # fmt: skip
            print(f"epoch {epoch + 1}: loss {mean:.6f}", flush=True)

    reached = accuracy(model, x_held_out, y_held_out)
    if hvd.rank() == 0:
        print(f"accuracy {100 * reached:.2f} % on {len(y_held_out)} held-out digits, "
              f"{hvd.size()} ranks, parameters {parameter_hash(model)[:12]}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
