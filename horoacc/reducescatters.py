"""Reduce-scatter, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from horoacc import handles
from horoacc.calls import REDUCESCATTER, check_list, check_scatter_op, member_names
from horoacc.compression import Compressor, NoneCompressor, decompress_all
from horoacc.dtypes import Average
from horoacc.engine_outputs import EngineOutputs, each, only
from horoacc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from horoacc._core import Output


class Reducescatter(EngineOutputs):
    """Reduce-scatter in all its variants."""

    def _scatter(
        self,
        tensors: Sequence[Any],
        names: Sequence[str | None],
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        finish: Callable[[list[Any], list[Output]], Any],
    ) -> int:
        return self._submit(
            REDUCESCATTER, tensors, names, process_set, finish, op=check_scatter_op(op),
            prescale=scales[0], postscale=scales[1],
        )  # fmt: skip

    def reducescatter_async(
        self,
        tensor: Any,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Starts a reduction of which every rank gets a part of the first dimension.

        Args:
            tensor: The tensor. The first `rows % size` ranks get one row more than the others.
            name: The same on all ranks; calls without one are matched by their order.
            op: Average or Sum.
            process_set: The ranks that take part.
            prescale_factor: What each rank's tensor is multiplied by before.
            postscale_factor: What the result is multiplied by.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work.
            RuntimeError: `op` is neither Average nor Sum.
        """
        return self._scatter(
            [tensor], member_names("reducescatter", name), op,
            (prescale_factor, postscale_factor), process_set, only,
        )  # fmt: skip

    def reducescatter(
        self,
        tensor: Any,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> Any:
        """Reduces a tensor and gives every rank a part; arguments as `reducescatter_async`.

        Returns:
            This rank's rows of the reduction.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
            RuntimeError: `op` is neither Average nor Sum.
        """
        narrow, context = compression.compress(tensor)
        handle = self._scatter(
            [narrow], member_names("reducescatter", name), op,
            (prescale_factor, postscale_factor), process_set, only,
        )  # fmt: skip
        return compression.decompress(handles.synchronize(handle), context)

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[Any],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Starts reduce-scatters of several tensors as one unit, as `reducescatter_async` does.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_list(tensors, "reducescatter")
        return self._scatter(
            tensors, member_names("reducescatter", name, len(tensors)), op,
            (prescale_factor, postscale_factor), process_set, each,
        )  # fmt: skip

    def grouped_reducescatter(
        self,
        tensors: Sequence[Any],
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[Any]:
        """Reduce-scatters several tensors as one unit; arguments and errors as `reducescatter`.

        Returns:
            This rank's rows of each reduction, in order.
        """
        check_list(tensors, "reducescatter")
        narrow = [compression.compress(tensor) for tensor in tensors]
        handle = self._scatter(
            [tensor for tensor, _ in narrow], member_names("reducescatter", name, len(narrow)), op,
            (prescale_factor, postscale_factor), process_set, each,
        )  # fmt: skip
        return decompress_all(compression, handles.synchronize(handle), narrow)
