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
from horoacc.collectives.calls import ALLREDUCE, BROADCAST
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


def _number(process_set: ProcessSet) -> int | None:
    """The core's number of a set; None if the call cannot be made, which it then says itself."""
    if process_set is global_process_set:
        return 0
    try:
        return set_number(process_set)
    except Exception:
        return None
