"""What the bodies of this folder share: one default process group for each rank of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import horoacc.torch  # noqa: F401 - registers the backend

WIDTH = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6}


def world() -> tuple[int, int]:
    """Rank and size, after the default group has been made by the first body of this process."""
    if not dist.is_initialized():
        dist.init_process_group("horoacc")
    return dist.get_rank(), dist.get_world_size()


def values(shape: Sequence[int], dtype: torch.dtype, rank: int, seed: int = 0) -> torch.Tensor:
    """What a rank gives: any rank can compute what another has."""
    draw = np.random.default_rng([seed, rank])
    if dtype == torch.bool:
        return torch.from_numpy(draw.integers(0, 2, shape)).bool()
    if dtype.is_complex:
        real, imaginary = (draw.integers(-8, 9, shape) for _ in range(2))
        return torch.from_numpy(np.asarray(real + 1j * imaginary)).to(dtype)
    return torch.from_numpy(draw.integers(-8, 9, shape)).to(dtype)


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as NumPy's widest kind of number."""
    if tensor.dtype == torch.bool:
        return tensor.numpy()
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128).numpy()
    if tensor.dtype.is_floating_point:
        return tensor.double().numpy()
    return tensor.long().numpy()


def same(got: torch.Tensor, wanted: torch.Tensor | np.ndarray[Any, Any], what: object = "") -> None:
    """Equal values, after the type's own rounding and wrapping."""
    if not isinstance(wanted, torch.Tensor):
        wanted = torch.from_numpy(np.asarray(wanted)).to(got.dtype)
    assert got.shape == wanted.shape, (what, got.shape, wanted.shape)
    assert torch.equal(got, wanted), (what, got, wanted)
