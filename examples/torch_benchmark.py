"""Trains a network of a chosen size on random data and says how fast, and how much of the time the
ranks wait for each other's gradients.

    horoaccrun -np 2 python examples/torch_benchmark.py --width 2048 --depth 3
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import nn

import horoacc.torch as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures training on random data.")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--width", type=int, default=1024, help="units, or channels of the cnn")
    parser.add_argument("--depth", type=int, default=3, help="hidden layers")
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=5, help="steps that do not count")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for one rank")
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    parser.add_argument("--optimize", action="store_true", help="compile what is then quicker")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser.parse_args()


def network(args: argparse.Namespace) -> tuple[nn.Module, tuple[int, ...]]:
    """The model and the shape of its input."""
    layers: list[nn.Module] = []
    if args.model == "mlp":
        for _ in range(args.depth):
            layers += [nn.Linear(args.width, args.width), nn.ReLU()]
        layers.append(nn.Linear(args.width, 10))
        return nn.Sequential(*layers), (args.width,)
    channels = 3
    for _ in range(args.depth):
        layers += [nn.Conv2d(channels, args.width, 3, padding=1), nn.BatchNorm2d(args.width),
                   nn.ReLU()]  # fmt: skip
        channels = args.width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers), (3, 32, 32)


def main() -> None:
    args = options()
    hvd.init()
    torch.set_num_threads(args.threads)
    torch.manual_seed(hvd.rank())
    model, shape = network(args)
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, args.compression),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    x = torch.randn(args.batch_size, *shape)
    y = torch.randint(0, 10, (args.batch_size,))

    if args.optimize:
        hvd.optimize(model, x, lambda z: nn.functional.cross_entropy(z, y), optimizer=optimizer)

    begin = waited = 0.0
    before: dict[str, int] = {}
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            hvd.barrier()
            before = hvd.counters()
            begin, waited = time.perf_counter(), 0.0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        computed = time.perf_counter()
        optimizer.synchronize()
        waited += time.perf_counter() - computed
        with optimizer.skip_synchronize():
            optimizer.step()
    seconds = time.perf_counter() - begin
    counted = {name: count - before[name] for name, count in hvd.counters().items()}

    # The slowest rank decides how fast a job is.
    seconds, waited = hvd.allreduce(torch.tensor([seconds, waited]), op=hvd.Max).tolist()
    moved = sum(counted[name] for name in ("arena_bytes", "window_bytes", "staged_bytes"))
    result = {
        "ranks": hvd.size(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "samples_per_second": args.steps * args.batch_size * hvd.size() / seconds,
        "milliseconds_per_step": 1e3 * seconds / args.steps,
        "share_of_time_in_communication": waited / seconds,
        "share_reduced_in_place": counted["arena_bytes"] / moved if moved else 0.0,
    }
    if hvd.rank() != 0:
        return
    if args.json:
        print(json.dumps(result), flush=True)
    else:
        print(f"{result['ranks']} ranks, {result['parameters']:,} parameters: "
              f"{result['samples_per_second']:.1f} samples/s, "
              f"{result['milliseconds_per_step']:.2f} ms a step, "
              f"{100 * waited / seconds:.1f} % of it waiting for gradients, "
              f"{100 * result['share_reduced_in_place']:.0f} % of the bytes reduced in place",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
