"""The collectives of torch's tensors without autograd; the plain case of a call is one call of C++.

torch_ops/plain_calls.cc says what is plain: dense, contiguous tensors on the CPU, above all. All
else takes the way of `horoacc.collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horoacc import handles
from horoacc.collectives import Collectives
from horoacc.collectives.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from horoacc.compression import Compressor, NoneCompressor
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number
from horoacc.torch._ops import Attached
from horoacc.torch.tensors import torch_tensors


class PlainCollectives(Collectives[torch.Tensor]):
    """Horovod's collectives for torch's tensors."""

    def __init__(self) -> None:
        """Makes the functions."""
        super().__init__(lambda _: torch_tensors)

    def _reduce(
        self,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool,
        wait: bool,
    ) -> Any:
        call = Attached.plain_call
        if call is not None and average is None:
            number = 0 if process_set is global_process_set else _number(process_set)
            done = call(
                ALLREDUCE, tensor, name, op, 0, prescale, postscale, number, False, in_place, wait
            )  # fmt: skip
            if done is not None:
                return done if wait else handles.start(Attached.engine, *done)  # type: ignore[arg-type]
        return super()._reduce(
            tensor, average, name, op, prescale, postscale, process_set, in_place, wait
        )

    def _reduce_group(
        self,
        tensors: Sequence[torch.Tensor],
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool,
    ) -> int:
        call = Attached.plain_call
        if call is not None and average is None:
            number = _number(process_set)
            done = call(
                ALLREDUCE, tensors, name, op, 0, prescale, postscale, number, True, in_place, False
            )  # fmt: skip
            if done is not None:
                return handles.start(Attached.engine, *done)  # type: ignore[arg-type]
        return super()._reduce_group(
            tensors, average, name, op, prescale, postscale, process_set, in_place
        )

    def _broadcast(
        self,
        tensor: torch.Tensor,
        root: int,
        name: str | None,
        process_set: ProcessSet,
        in_place: bool,
    ) -> int:
        call = Attached.plain_call
        if call is not None:
            number = _number(process_set)
            done = call(
                BROADCAST, tensor, name, None, root, 1.0, 1.0, number, False, in_place, False
            )
            if done is not None:
                return handles.start(Attached.engine, *done)  # type: ignore[arg-type]
        return super()._broadcast(tensor, root, name, process_set, in_place)

    def _differentiable_broadcast(
        self, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        call = Attached.plain_call
        if call is not None:
            number = _number(process_set)
            done = call(BROADCAST, tensor, name, None, root, 1.0, 1.0, number, False, False, True)
            if done is not None:
                return done  # type: ignore[no-any-return]
        return super()._differentiable_broadcast(tensor, root, name, process_set)

    def _differentiable_allgather(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None,
        process_set: ProcessSet,
        grouped: bool,
    ) -> list[torch.Tensor]:
        done = _gathered(ALLGATHER, tensors, name, None, (1.0, 1.0), process_set, grouped)
        if done is not None:
            return done
        return super()._differentiable_allgather(tensors, name, process_set, grouped)

    def _differentiable_reducescatter(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None,
        compression: type[Compressor],
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
    ) -> list[torch.Tensor]:
        if compression is NoneCompressor:
            done = _gathered(REDUCESCATTER, tensors, name, op, scales, process_set, grouped)
            if done is not None:
                return done
        return super()._differentiable_reducescatter(
            tensors, name, compression, op, scales, process_set, grouped
        )

    def _differentiable_alltoall(
        self, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        if splits is None:
            done = _gathered(ALLTOALL, [tensor], name, None, (1.0, 1.0), process_set, False)
            if done is not None:
                return done[0], None  # the caller asks for no counts
        return super()._differentiable_alltoall(tensor, splits, name, process_set)


def _gathered(
    collective: int,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
    grouped: bool,
) -> list[torch.Tensor] | None:
    """Makes a call whose results the engine allocates; None if it is not plain."""
    call = Attached.plain_call
    if call is None:
        return None
    given, number = tensors if grouped else tensors[0], _number(process_set)
    return call(collective, given, name, op, 0, *scales, number, grouped, False, True)  # type: ignore[no-any-return]


def _number(process_set: ProcessSet) -> int | None:
    """The core's number of a set; None if the call cannot be made, which it then says itself."""
    if process_set is global_process_set:
        return 0
    try:
        return set_number(process_set)
    except Exception:
        return None
