"""Trains on handwritten digits on a Ray cluster.

    python examples/ray_digits.py --workers 4            # this machine as a cluster
    python examples/ray_digits.py --workers 4 --address auto
    python examples/ray_digits.py --workers 4 --elastic  # workers and nodes may die, leave and come

The nodes of a cluster find this folder under the same path.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import elastic_torch
import ray
import torch
import torch_digits

import horoacc.torch as hvd
from horoacc.ray import RayExecutor


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits on Ray.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--nodes", type=int, help="so many, with as many workers each")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--address", help="of a Ray cluster, or auto; else this machine is one")
    parser.add_argument("--elastic", action="store_true", help="go on with one worker at least")
    return parser.parse_args()


def train(epochs: int) -> tuple[float, str]:
    """Runs on each worker. Returns the share of right answers, and a digest of the parameters."""
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x, y, x_held_out, y_held_out = torch_digits.digits()
    model = torch_digits.network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=hvd.Sum
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    torch_digits.train(model, optimizer, x, y, epochs, 64, 1)
    reached = torch_digits.accuracy(model, x_held_out, y_held_out)
    return reached, torch_digits.parameter_hash(model)


def main() -> int:
    args = options()
    ray.init(address=args.address, num_cpus=None if args.address else args.workers)
    settings = RayExecutor.create_settings()
    if args.elastic:
        executor = RayExecutor(settings, min_workers=1, max_workers=args.workers)
        executor.start()
        executor.run(elastic_torch.main)  # rank 0 prints the accuracy after each epoch
        return 0
    if args.nodes:
        each = args.workers // args.nodes
        executor = RayExecutor(settings, num_hosts=args.nodes, num_workers_per_host=each)
    else:
        executor = RayExecutor(settings, num_workers=args.workers)
    executor.start()
    results = executor.run(train, [args.epochs])
    executor.shutdown()
    reached, digest = results[0]
    print(f"accuracy {100 * reached:.2f} %, {len(results)} ranks, parameters {digest[:12]}")
    return 0 if {one for _, one in results} == {digest} else 1


if __name__ == "__main__":
    sys.exit(main())
