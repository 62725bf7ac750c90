"""Data and models of the estimators' tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from horoacc.spark.backend import Backend


class Here(Backend):
    """Runs the function in this process, as one rank."""

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        import cloudpickle

        import horoacc

        call = cloudpickle.loads(cloudpickle.dumps((fn, args)))
        try:
            return [call[0](*call[1])]
        finally:
            horoacc.shutdown()

    def num_processes(self) -> int:
        return 1


def xor(spark: SparkSession, rows: int = 64) -> DataFrame:
    """Two bits as a vector and as columns, their exclusive or, a weight and a validation column."""
    table = [
        (a, b, Vectors.dense([a, b]), float(a ^ b), 1.0, at % 8 == 0)
        for at in range(rows)
        for a, b in [(at & 1, at >> 1 & 1)]
    ]
    frame = spark.createDataFrame(table, ["x1", "x2", "features", "y", "weight", "val"])
    return frame.withColumn("weight", col("weight").cast("float"))


class Xor(torch.nn.Module):
    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 8), torch.nn.Linear(8, outputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.second(torch.tanh(self.first(features))))


class Two(torch.nn.Module):
    """Two numbers as features of their own, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.of_sum, self.of_product = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat([x1, x2], 1)
        return self.of_sum(both), self.of_product(both)
