"""Trains a small network on real handwritten digits, on the executors of a Spark cluster.

    python examples/spark_digits.py                         # two executors on this machine
    python examples/spark_digits.py --estimator             # the same by a TorchEstimator
    spark-submit --master spark://… examples/spark_digits.py

Needs pyspark, Java, scikit-learn, and for the estimator pyarrow, pandas and fsspec.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import torch
from torch import nn

EPOCHS, BATCH = 12, 64
ESTIMATOR_EPOCHS = 20  # its learning rate does not decay


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, then those held out: every fifth."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(images, dtype=torch.float32) / 16.0).view(-1, 1, 8, 8)[order]
    y = torch.tensor(labels)[order]
    held_out = torch.arange(len(y)) % 5 == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train() -> float:
    """What each rank does. Returns the share of right answers."""
    import horoacc.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    x, y, x_held_out, y_held_out = digits()
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(), op=hvd.Sum,
    )  # fmt: skip
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    order = torch.Generator().manual_seed(1)  # the same on all ranks, which share each batch
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(y), generator=order).split(BATCH):
            share = chosen[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[share]), y[share], reduction="sum")
            (loss / len(chosen)).backward()
            optimizer.step()
        decay.step()
    with torch.no_grad():
        reached = (model(x_held_out).argmax(1) == y_held_out).double().mean().item()
    if hvd.rank() == 0:
        print(f"accuracy {100 * reached:.2f} % on {len(y_held_out)} held-out digits, "
              f"{hvd.size()} ranks", flush=True)  # fmt: skip
    return reached


def fit(session, store: str) -> float:  # type: ignore[no-untyped-def]
    """The same by an estimator, from a DataFrame. Returns the share of right answers."""
    from horoacc.spark.store import Store
    from horoacc.spark.torch import TorchEstimator

    x, y, x_held_out, y_held_out = digits()

    def frame(images: torch.Tensor, labels: torch.Tensor):  # type: ignore[no-untyped-def]
        rows = zip(images.flatten(1).tolist(), labels.tolist(), strict=True)
        return session.createDataFrame(list(rows), "features array<float>, label long")

    model = network()
    estimator = TorchEstimator(
        num_proc=2, store=Store.create(store), model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loss=nn.CrossEntropyLoss(), input_shapes=[[-1, 1, 8, 8]], feature_cols=["features"],
        label_cols=["label"], batch_size=BATCH // 2, epochs=ESTIMATOR_EPOCHS, random_seed=1,
    )  # fmt: skip
    trained = estimator.fit(frame(x, y)).setOutputCols(["scores"])
    rows = trained.transform(frame(x_held_out, y_held_out)).collect()
    reached = sum(int(row.scores.toArray().argmax()) == row.label for row in rows) / len(rows)
    print(f"accuracy {100 * reached:.2f} % on {len(rows)} held-out digits, by the estimator")
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits, on Spark.")
    parser.add_argument("--estimator", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    import horoacc.spark

    builder = SparkSession.builder
    if "SPARK_ENV_LOADED" not in os.environ:  # not by spark-submit
        builder = builder.master("local-cluster[2,1,1024]")
    session = builder.getOrCreate()
    try:
        if args.estimator:
            with tempfile.TemporaryDirectory() as store:
                fit(session, store)
        else:
            horoacc.spark.run(train, num_proc=2)
    finally:
        session.stop()


if __name__ == "__main__":
    main()
