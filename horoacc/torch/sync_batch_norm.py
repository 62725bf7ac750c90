"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horoacc import process
from horoacc.batch_statistics import Statistics, Vector, merge_over_ranks, sum_over_ranks
from horoacc.process_sets import ProcessSet, global_process_set, number_of


class SyncBatchNorm(_BatchNorm):
    """Normalises each channel with mean and variance of the ranks' batches together.

    It is to them what `torch.nn.BatchNorm1d`, 2d or 3d is to one batch. Batches may differ in
    length and in all dimensions but the second. Only the statistics travel, through the CPU,
    wherever the tensors are. In evaluation it uses the running statistics and no collective;
    without running statistics every rank has to evaluate alike.

    Shapes: input and output are [batch, num_features, ...].
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Makes the layer.

        Args:
            num_features: The number of channels.
            eps: Added to the variance before its root is taken.
            momentum: The weight of a batch in the running statistics; None for the mean over all
                batches.
            affine: Scale and shift each channel by learned numbers.
            track_running_stats: Keep running statistics for evaluation.
            process_set: The ranks that normalise together.
        """
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _ranks(self) -> int:
        """How many ranks normalise together, if this one is among them."""
        process.position()
        number_of(self.process_set)
        return self.process_set.size() or 1

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"expected {self.num_features} channels, but the input has {input.shape[1]}"
            )
        if not input.is_floating_point():
            raise ValueError(f"expected floating-point input, not {input.dtype}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises a batch.

        Args:
            input: This rank's batch, of shape [batch, num_features, ...] and a floating-point type.

        Returns:
            The normalised batch, of the same shape and type.

        Raises:
            ValueError: The input has another number of channels or is not floating-point, or all
                ranks together have less than two values a channel.
            HorovodInternalError: The collective failed.
        """
        self._check_input_dim(input)
        tracks = self.running_mean is not None
        if (not self.training and tracks) or self._ranks() == 1:
            return super().forward(input)
        weight = 0.0
        if self.training and tracks:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            weight = (
                1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            )
        output, statistics = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, self.process_set
        )
        if self.training and tracks:
            unbiased = statistics.deviation / (statistics.count - 1)
            self._follow(self.running_mean, statistics.mean, weight)
            self._follow(self.running_var, unbiased, weight)
        return output  # type: ignore[no-any-return]

    @staticmethod
    @torch.no_grad()
    def _follow(running: Any, value: Vector, weight: float) -> None:
        running.lerp_(torch.as_tensor(value, dtype=running.dtype, device=running.device), weight)


def _accurate(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit numbers are too coarse to add up."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _of_channels(values: Vector, like: torch.Tensor) -> torch.Tensor:
    """Numbers for each channel, to be combined with a batch."""
    shape = (1, -1) + (1,) * (like.dim() - 2)
    return torch.as_tensor(values, dtype=like.dtype, device=like.device).view(shape)


def _array(tensor: torch.Tensor) -> Vector:
    return tensor.detach().to("cpu", torch.float64).numpy()


def _statistics(x: torch.Tensor, dims: list[int]) -> Statistics:
    count = x.numel() // x.shape[1]
    if count == 0:
        nothing = np.zeros(x.shape[1])
        return Statistics(0, nothing, nothing)
    variance, mean = torch.var_mean(x, dims, correction=0)
    return Statistics(count, _array(mean), _array(variance) * count)


class _Normalise(torch.autograd.Function):
    """The normalisation, with the gradient of the whole batch."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, Statistics]:
        """Normalises; also gives the statistics."""
        x = _accurate(batch)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        whole = merge_over_ranks(_statistics(x, dims), process_set)
        if whole.count < 2:
            raise ValueError(
                "Expected more than 1 value per channel when training, but all ranks together "
                f"have {whole.count}"
            )
        root = 1.0 / np.sqrt(whole.variance + eps)
        normal = (x - _of_channels(whole.mean, x)) * _of_channels(root, x)
        ctx.save_for_backward(normal, weight)
        ctx.whole = (whole.count, root, process_set, dims)
        output = normal
        if weight is not None:
            output = output * _of_channels(_array(weight), x)
        if bias is not None:
            output = output + _of_channels(_array(bias), x)
        return output.to(batch.dtype), whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        """Takes into account that each value moved the statistics of all ranks."""
        normal, weight = ctx.saved_tensors
        count, root, process_set, dims = ctx.whole
        grads: list[torch.Tensor | None] = [None, None, None]
        g = grad.to(normal.dtype)
        own = torch.stack([g.sum(dims), (g * normal).sum(dims)])
        # Collectives must not depend on the gradients that this rank's graph needs.
        sums = sum_over_ranks(_array(own), process_set) / count
        if ctx.needs_input_grad[0]:
            factor = root if weight is None else root * _array(weight)
            centred = g - _of_channels(sums[0], g) - normal * _of_channels(sums[1], g)
            grads[0] = (centred * _of_channels(factor, g)).to(grad.dtype)
        if weight is not None:
            grads[1:] = [own[1].to(weight.dtype), own[0].to(weight.dtype)]
        return (*grads, None, None)
