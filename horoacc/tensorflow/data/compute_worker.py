"""The preparing job: `horoaccrun -np 4 python -m horoacc.tensorflow.data.compute_worker FILE`."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

import horoacc.tensorflow as hvd
from horoacc.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn
from horoacc.tensorflow.data.registry import Registry


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Prepares data on every rank of this job until a training job ends the service.

    Args:
        dispatchers: How many dispatchers; they divide the number of ranks.
        dispatcher_side: Which job runs them, "compute" or "training".
        configfile: The file that tells the training job; it is there while the service is.
        timeout: Seconds that one part of the service waits for another.

    Raises:
        ValueError: The arguments do not fit the job.
    """
    hvd.init()
    if dispatchers < 1 or hvd.size() % dispatchers:
        raise ValueError(f"{dispatchers} dispatchers do not divide {hvd.size()} ranks.")
    workers = hvd.size() // dispatchers
    registry = None
    config = None
    if hvd.rank() == 0:
        key = secrets.token_bytes(32)
        registry = Registry(dispatchers, workers, key)
        config = TfDataServiceConfig(
            dispatchers, workers, dispatcher_side, registry.addresses, key, timeout
        )
        config.write(configfile)
    config = hvd.broadcast_object(config, name="compute_service.config")
    try:
        compute_worker_fn(config)
    finally:
        hvd.allgather_object(None, name="compute_service.end")  # until all know the end
        if registry is not None:
            registry.close()
            Path(configfile).unlink(missing_ok=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configfile", help="file that tells the training job of the service")
    parser.add_argument("--dispatchers", type=int, default=1)
    parser.add_argument("--dispatcher-side", choices=("compute", "training"), default="compute")
    parser.add_argument("--timeout", type=int, default=60, help="seconds")
    options = parser.parse_args()
    main(options.dispatchers, options.dispatcher_side, options.configfile, options.timeout)
