"""HoroACC on a Spark cluster: jobs whose ranks are Spark's tasks, and estimators.

`run` and `run_elastic` call a function on ranks; `horoacc.spark.torch` and `horoacc.spark.keras`
have estimators that train on a DataFrame. docs/spark.md.
"""

import importlib.util

if importlib.util.find_spec("pyspark") is None:
    raise ImportError(
        "horoacc.spark needs Spark's Python package, which is not installed: pip install pyspark",
        name="pyspark",
    )

from horoacc.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]
