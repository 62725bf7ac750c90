"""Reduce-scatter, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from horoacc import handles
from horoacc.collectives.calls import REDUCESCATTER, check_factors, check_scatter_op, member_names
from horoacc.collectives.engine_outputs import EngineOutputs, T, each, only
from horoacc.collectives.validation_errors import check_group, validating
from horoacc.compression import Compressor, NoneCompressor, check_no_codec, decompress_all
from horoacc.dtypes import Average
from horoacc.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from horoacc._core import Output


def _own_rows(process_set: ProcessSet) -> Callable[[Any], Any]:
    def rows(tensor: Any) -> Any:
        if not process_set.included() or not tensor.shape:
            return tensor  # the engine refuses the call
        size, rank = process_set.size() or 1, process_set.rank() or 0
        each, more = divmod(len(tensor), size)
        first = each * rank + min(rank, more)
        return tensor[first : first + each + (rank < more)]

    return rows


class Reducescatters(EngineOutputs[T]):
    """Reduce-scatter in all its variants."""

    def _scatter(
        self,
        tensors: Sequence[T],
        names: Sequence[str | None],
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        finish: Callable[[list[Any], list[Output]], Any],
    ) -> int:
        with validating(REDUCESCATTER, names[0], process_set, grouped=finish is each):
            op = check_scatter_op(op)
            prescale, postscale = check_factors(scales)
        return self._submit(
            REDUCESCATTER, tensors, names, process_set, finish, part=_own_rows(process_set), op=op,
            prescale=prescale, postscale=postscale,
        )  # fmt: skip

    def _differentiable_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None,
        compression: type[Compressor],
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
    ) -> list[T]:
        """Compresses tensors, reduces them and gives this rank's parts in their own types."""
        names = member_names("reducescatter", name, len(tensors) if grouped else None)
        with validating(REDUCESCATTER, names[0], process_set, grouped=grouped):
            check_no_codec(compression)
            narrow = [compression.compress(tensor) for tensor in tensors]
        given = [tensor for tensor, _ in narrow]
        finish = each if grouped else only
        parts = handles.result(self._scatter(given, names, op, scales, process_set, finish))
        return decompress_all(compression, parts if grouped else [parts], narrow)

    def reducescatter_async(
        self,
        tensor: T,
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
            prescale_factor: Factor of each rank's tensor before the reduction.
            postscale_factor: Factor of the result.

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
        tensor: T,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Reduces a tensor and gives each rank a part; arguments as for `reducescatter_async`.

        `compression` makes the tensor narrower while it travels; a codec cannot.

        Returns:
            This rank's rows of the reduction, [own rows, ...], of the same type.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
            RuntimeError: `op` is neither Average nor Sum.
        """
        scales = (prescale_factor, postscale_factor)
        return self._differentiable_reducescatter(
            [tensor], name, compression, op, scales, process_set, False
        )[0]

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
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
        tensors: Sequence[T],
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """Reduce-scatters several tensors as one unit; arguments as for `reducescatter`.

        `tensors` is a list of one tensor or more, each as there; as many on every rank. No codec
        can be their `compression`.

        Returns:
            This rank's rows of each reduction, in order.
        """
        check_group(tensors, REDUCESCATTER, name, process_set)
        scales = (prescale_factor, postscale_factor)
        return self._differentiable_reducescatter(
            tensors, name, compression, op, scales, process_set, True
        )
