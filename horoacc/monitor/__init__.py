"""What a job tells while it runs: `metrics()`, and the same for Prometheus (docs/metrics.md)."""

from horoacc.monitor.readings import metrics

__all__ = ["metrics"]
