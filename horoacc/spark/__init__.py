"""HoroACC on a Spark cluster: jobs whose ranks are Spark's tasks, and estimators.

`run` and `run_elastic` call a function on ranks; `horoacc.spark.torch` and `horoacc.spark.keras`
have estimators that train on a DataFrame. docs/spark.md.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("pyspark") is None:
    raise ImportError(
        "horoacc.spark needs Spark's Python package, which is not installed: pip install pyspark",
        name="pyspark",
    )

if TYPE_CHECKING:
    from horoacc.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]


def __getattr__(name: str) -> Any:
    """Imports the caller's part when it is asked for: tasks, which do not, start sooner."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from horoacc.spark import runner

    return getattr(runner, name)
