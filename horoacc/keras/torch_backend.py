"""Keras on torch: gradients are torch's, and each is reduced as soon as `apply` is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import torch

# torch.compiler.disable does the same, but loads the compiler, which takes as long as torch itself.
from torch._compile import _disable_dynamo

import horoacc.torch as hvd
from horoacc import gradient_calls
from horoacc.collectives.coded_allreduce import CodedAllreduce
from horoacc.compression import Compressor, NoneCompressor, is_codec
from horoacc.keras.backend import Member, Travel
from horoacc.process_sets import ProcessSet
from horoacc.reduction import local_divisor
from horoacc.torch import _ops
from horoacc.torch.tensors import torch_tensors

R = TypeVar("R")
Landing = Callable[[], "list[torch.Tensor]"]
"""Waits for a submission and gives its gradients."""


class TorchBackend:
    """See `horoacc.keras.backend.Backend`."""

    frontend = hvd
    sends_absent = True

    def attach(self) -> None:
        """Lets torch allocate in the arena."""
        _ops.attach()

    def register(self, variables: Sequence[Any], compression: type[Compressor]) -> None:
        """Tells torch's allocator how large the gradients are."""
        _ops.attach()
        _ops.register_gradients([self.tensor(variable) for variable in variables], compression)

    def tensor(self, value: Any) -> torch.Tensor:
        """See `Backend.tensor`; of a variable it is the tensor that the variable holds."""
        if isinstance(value, keras.Variable):
            value = value.value
        return torch.as_tensor(value).detach()

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Refuses: there is no graph that would collect variables."""
        del root_rank
        raise RuntimeError(
            "hvd.broadcast_global_variables() is for graphs of TensorFlow 1, and Keras uses torch. "
            "Use hvd.callbacks.BroadcastGlobalVariablesCallback."
        )

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, name: str) -> None:
        """Gives all ranks the root's values, in place."""
        hvd.broadcast_parameters(
            [(f"{name}.{index}", self.tensor(one)) for index, one in enumerate(variables)],
            root_rank,
        )

    def gradients(self, loss: Any, variables: Sequence[Any], tape: Any) -> list[Any]:
        """Computes the gradients of a loss."""
        if tape is not None:
            raise ValueError("A tape is TensorFlow's, but Keras uses torch; leave it out.")
        params = [variable.value for variable in variables]
        return list(torch.autograd.grad(loss, params, allow_unused=True))

    @_disable_dynamo
    @torch.no_grad()
    def reduce_gradients(
        self, parts: Sequence[Sequence[Member]], travel: Travel
    ) -> list[torch.Tensor | None]:
        """See `Backend.reduce_gradients`.

        Whether any rank has a gradient travels with the gradients, so that a variable that no rank
        has used stays as it is, and one that only some ranks have used delays no rank.
        """
        members = [member for part in parts for member in part]
        landings: list[Landing] = []
        failure: Exception | None = None
        for part in parts:
            try:
                landings.extend(_send(part, travel))
            except Exception as error:  # the other ranks wait for the remaining calls
                failure = failure or error
        have = torch.tensor([float(member.gradient is not None) for member in members])
        try:
            landings.append(_send_plain([have], [f"{travel.name}.present"], travel))
        except Exception as error:
            failure = failure or error
        reduced: list[torch.Tensor] = []
        for land in landings:
            try:
                reduced.extend(land())
            except Exception as error:  # calls in flight must end before their memory may be reused
                failure = failure or error
        if failure is not None:
            raise failure
        present = reduced.pop().tolist()
        return [gradient if some else None for gradient, some in zip(reduced, present, strict=True)]

    def teach_optimizers(self) -> None:
        """There is nothing to teach: calls are carried out in their order."""

    @_disable_dynamo
    def note(self, by: Any, prefix: str, obstacle: str) -> None:
        """See `Backend.note`."""
        gradient_calls.note(by, prefix, obstacle)

    def tied(self, gradients: Sequence[Any]) -> list[Any]:
        """See `Backend.tied`: all are there by now."""
        return list(gradients)

    @_disable_dynamo
    @torch.no_grad()
    def all_finite(self, gradients: Sequence[torch.Tensor], travel: Travel) -> bool:
        """See `Backend.all_finite`."""
        dense = [self.dense(gradient) for gradient in gradients]
        mine = torch.tensor(int(all(bool(torch.isfinite(one).all()) for one in dense)))
        everywhere = hvd.allreduce(
            mine, op=hvd.Min, name=f"{travel.name}.finite", process_set=travel.process_set
        )
        return bool(everywhere.item())

    def spoiled_unless(self, finite: bool, gradient: torch.Tensor) -> torch.Tensor:
        """See `Backend.spoiled_unless`."""
        return gradient if finite else gradient * float("nan")

    def local_divisor(self, process_set: ProcessSet, scale_local_gradients: bool) -> int:
        """See `Backend.local_divisor`."""
        return local_divisor(process_set, scale_local_gradients)

    def trace(self) -> None:
        """There are no graphs that run without this code."""

    def with_own_errors(self, func: Callable[..., R]) -> Callable[..., R]:
        """Gives the function itself: torch's calls raise HoroACC's errors."""
        return func

    def scaled(self, gradient: torch.Tensor, factor: float) -> torch.Tensor:
        """Multiplies a gradient."""
        return gradient * factor

    def dense(self, gradient: torch.Tensor) -> torch.Tensor:
        """Makes a sparse gradient dense."""
        return gradient.to_dense() if gradient.is_sparse else gradient


def _own(member: Member) -> torch.Tensor:
    """A contiguous tensor that may be overwritten with the reduced gradient."""
    gradient, variable = member.gradient, member.variable.value
    if gradient is None:
        return torch.zeros_like(variable, requires_grad=False)
    # None of Keras' optimizers takes sparse gradients on torch.
    gradient = BACKEND.dense(gradient.detach())
    dense = gradient.contiguous()
    # The variable's own gradient belongs to this step; another tensor is the caller's.
    own = variable.grad is not None and dense.data_ptr() == variable.grad.data_ptr()
    return dense if own or dense is not gradient else dense.clone()


def _send(part: Sequence[Member], travel: Travel) -> list[Landing]:
    """Hands over the gradients of one unit."""
    tensors = [_own(member) for member in part]
    names = [member.name for member in part]
    if is_codec(travel.compression) and all(tensor.is_floating_point() for tensor in tensors):
        return [
            _send_coded(tensor, name, travel) for tensor, name in zip(tensors, names, strict=True)
        ]
    if is_codec(travel.compression) or travel.compression is NoneCompressor:
        return [_send_plain(tensors, names, travel)]
    compressed = [travel.compression.compress(tensor) for tensor in tensors]
    land = _send_plain([tensor.contiguous() for tensor, _ in compressed], names, travel)

    def restored() -> list[torch.Tensor]:
        pairs = zip(land(), compressed, strict=True)
        return [travel.compression.decompress(tensor, ctx) for tensor, (_, ctx) in pairs]

    return [restored]


def _send_plain(tensors: list[torch.Tensor], names: list[str], travel: Travel) -> Landing:
    """Hands over tensors to be reduced in place, as one unit."""
    scaling = travel.scaling
    how: dict[str, Any] = {
        "op": scaling.op, "prescale_factor": scaling.prescale,
        "postscale_factor": scaling.postscale, "process_set": travel.process_set,
    }  # fmt: skip
    if len(tensors) == 1:
        one = hvd.allreduce_async_(tensors[0], name=names[0], **how)
        return lambda: [hvd.synchronize(one)]
    group = hvd.grouped_allreduce_async_(tensors, name=names[0], **how)
    return lambda: list(hvd.synchronize(group))


def _send_coded(tensor: torch.Tensor, name: str, travel: Travel) -> Landing:
    """Hands over a tensor that travels encoded."""
    values = torch_tensors.numbers(tensor)
    assert values is not None
    codec: Any = travel.compression
    reduction = CodedAllreduce(
        values, codec, name, travel.scaling, travel.process_set, travel.feedback
    )
    return lambda: [torch_tensors.of_numbers(reduction(), tensor)]


BACKEND = TorchBackend()
