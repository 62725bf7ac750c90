"""A script for Horovod, on a Spark of its own: `horovod.spark` is HoroACC's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import spark_bodies
import spark_cluster

import horoacc


def main() -> None:
    horoacc.install_as_horovod()
    import horovod.spark
    import horovod.spark.common.store

    session = spark_cluster.session("local[2]", Path("."))
    try:
        print(horovod.spark.run(spark_bodies.as_horovod, num_proc=2))
    finally:
        session.stop()


if __name__ == "__main__":
    main()
