"""Reduce-scatter, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from horoacc import handles
from horoacc.calls import REDUCESCATTER, check_factors, check_scatter_op, member_names
from horoacc.complaints import check_group, complaining
from horoacc.compression import Compressor, NoneCompressor, check_no_codec, decompress_all
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
        with complaining(REDUCESCATTER, names[0], process_set, grouped=finish is each):
            op = check_scatter_op(op)
            prescale, postscale = check_factors(scales)
        return self._submit(
            REDUCESCATTER, tensors, names, process_set, finish, op=op,
            prescale=prescale, postscale=postscale,
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
            tensor: The tensor, [rows, ...] of any type but bool; both are the same on all ranks.
                The first `rows % size` ranks get one row more than the others. Not changed.
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
        """Reduces a tensor and gives each rank a part; arguments as for `reducescatter_async`.

        `compression` makes the tensor narrower while it travels; a codec cannot.

        Returns:
            This rank's rows of the reduction, [own rows, ...], of the same type.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
            RuntimeError: `op` is neither Average nor Sum.
        """
        names = member_names("reducescatter", name)
        with complaining(REDUCESCATTER, names[0], process_set):
            check_no_codec(compression)
            narrow, context = compression.compress(tensor)
        handle = self._scatter(
            [narrow], names, op,
            (prescale_factor, postscale_factor), process_set, only,
        )  # fmt: skip
        return compression.decompress(handles.result(handle), context)

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[Any],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Starts reduce-scatters of several tensors as one unit, as for `reducescatter_async`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_group(tensors, REDUCESCATTER, name, process_set)
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
        """Reduce-scatters several tensors as one unit; arguments as for `reducescatter`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank. No codec
        can be their `compression`.

        Returns:
            This rank's rows of each reduction, in order.
        """
        check_group(tensors, REDUCESCATTER, name, process_set)
        names = member_names("reducescatter", name, len(tensors))
        with complaining(REDUCESCATTER, names[0], process_set, grouped=True):
            check_no_codec(compression)
            narrow = [compression.compress(tensor) for tensor in tensors]
        handle = self._scatter(
            [tensor for tensor, _ in narrow], names, op,
            (prescale_factor, postscale_factor), process_set, each,
        )  # fmt: skip
        return decompress_all(compression, handles.result(handle), narrow)
