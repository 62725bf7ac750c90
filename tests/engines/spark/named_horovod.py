"""A script for Horovod, on a Spark of its own: `horovod.spark` is HoroACC's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import spark_bodies
import spark_cluster

import horoacc
from horoacc.dropin import names


def main() -> None:
    horoacc.install_as_horovod()
    import horovod.spark

    for name in (one for one in names.MODULES if one.startswith("horovod.spark")):
        assert importlib.import_module(name) is importlib.import_module(names.MODULES[name]), name
    try:
        importlib.import_module("horovod.spark.lightning")
    except ImportError as error:
        assert "trains in a function for horoacc.spark.run" in str(error), error
    session = spark_cluster.session("local[2]", Path("."))
    try:
        print(horovod.spark.run(spark_bodies.as_horovod, num_proc=2))
    finally:
        session.stop()


if __name__ == "__main__":
    main()
