"""What the scripts `restarts.py` and `shrink.py` compute, and the variables of their processes."""

from __future__ import annotations

import os

import numpy as np
import torch


def weights(steps: int) -> np.ndarray:
    """What the script's model is after some steps, on any number of ranks, by NumPy."""
    torch.manual_seed(0)
    weight = torch.nn.Linear(3, 1, bias=False).weight.detach().numpy().astype(np.float64)[0]
    momentum = np.zeros(3)
    for step in range(steps):
        rows = np.arange(step * 12, step * 12 + 12)
        inputs = np.stack([np.sin(rows), np.cos(rows), np.sin(rows / 2)], 1)
        error = inputs @ weight - inputs.sum(1)
        momentum = 0.9 * momentum + 2 * inputs.T @ error / 12
        weight = weight - 0.1 * momentum
    return weight


def environ(**more: str) -> dict[str, str]:
    outside = ("HOROACC_", "HOROVOD_", "OMPI_", "PMI", "TORCHELASTIC_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(outside)}
    if cache := os.environ.get("HOROACC_CACHE_DIR"):
        kept["HOROACC_CACHE_DIR"] = cache
    return kept | {"OMP_NUM_THREADS": "1"} | more
