"""Allreduce, for every kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horoacc import _core, basics, handles
from horoacc.calls import check_list, member_names, resolve_op
from horoacc.compression import Compressor, NoneCompressor
from horoacc.growing import Growing
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number
from horoacc.tensors import Restore

if TYPE_CHECKING:
    from horoacc._core import Output


class Allreduce(Growing):
    """Allreduce in all its variants."""

    def _reduce(
        self,
        tensor: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        in_place: bool,
    ) -> int:
        """Submits one tensor. Blocking calls of small tensors are as fast as this is short."""
        kind = self._choose(tensor)
        restore: Restore | None = None
        if in_place:
            source = output = kind.writable(tensor)
            pointer, shape, dtype = kind.view(source)
            target = pointer
        else:
            source, restore = kind.readable(tensor)
            output = kind.empty_like(source)
            pointer, shape, dtype = kind.view(source)
            target = kind.view(output)[0]
        engine = basics.engine()
        handle = engine.allreduce(
            None if name is None else f"allreduce.{name}", pointer, target, shape, dtype, op,
            prescale, postscale, set_number(process_set), (source, output),
        )  # fmt: skip
        if in_place:
            return handles.start(engine, handle, tensor)
        if restore is None:
            return handles.start(engine, handle, output)
        finish = restore
        return handles.start(engine, handle, None, lambda _: finish(output))

    def _reduce_group(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        in_place: bool,
    ) -> int:
        """Submits several tensors as one unit."""
        kind = self._choose(tensors[0])
        restores: list[Restore | None] = [None] * len(tensors)
        if in_place:
            inputs = outputs = [kind.writable(tensor) for tensor in tensors]
        else:
            inputs = []
            for index, tensor in enumerate(tensors):
                readable, restores[index] = kind.readable(tensor)
                inputs.append(readable)
            outputs = [kind.empty_like(tensor) for tensor in inputs]
        views = [kind.view(tensor) for tensor in inputs]
        targets = views if in_place else [kind.view(tensor) for tensor in outputs]
        members = [
            (member, pointer, target[0], shape, dtype)
            for member, (pointer, shape, dtype), target in zip(
                member_names("allreduce", name, len(tensors)), views, targets, strict=True
            )
        ]
        engine = basics.engine()
        handle = engine.submit(
            _core.ALLREDUCE, members, op, *scales, process_set=set_number(process_set),
            keep=(inputs, outputs),
        )  # fmt: skip
        if in_place:
            return handles.start(engine, handle, list(tensors))

        def give(_: list[Output]) -> list[Any]:
            return [
                output if restore is None else restore(output)
                for output, restore in zip(outputs, restores, strict=True)
            ]

        return handles.start(engine, handle, None, give)

    def allreduce_async(
        self,
        tensor: Any,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction over all ranks.

        Args:
            tensor: The tensor; not changed.
            average: Older way to say `op=Average` (True) or `op=Sum` (False).
            name: The same on all ranks; calls without one are matched by their order.
            op: The reduction; Average by default.
            prescale_factor: What each rank's tensor is multiplied by before.
            postscale_factor: What the result is multiplied by.
            process_set: The ranks that take part.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work, or the name belongs to a handle that nobody has
                synchronised yet.
        """
        return self._reduce(
            tensor,
            name,
            resolve_op(op, average),
            prescale_factor,
            postscale_factor,
            process_set,
            in_place=False,
        )

    def allreduce(
        self,
        tensor: Any,
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Reduces a tensor over all ranks.

        Args:
            tensor: The tensor; not changed.
            average: Older way to say `op=Average` (True) or `op=Sum` (False).
            name: The same on all ranks; calls without one are matched by their order.
            compression: How to make the tensor narrower while it travels.
            op: The reduction; Average by default.
            prescale_factor: What each rank's tensor is multiplied by before.
            postscale_factor: What the result is multiplied by.
            process_set: The ranks that take part.

        Returns:
            The reduced tensor, the same on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        narrow, context = compression.compress(tensor)
        handle = self._reduce(
            narrow,
            name,
            resolve_op(op, average),
            prescale_factor,
            postscale_factor,
            process_set,
            in_place=False,
        )
        return compression.decompress(handles.synchronize(handle), context)

    def allreduce_async_(
        self,
        tensor: Any,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction in place; arguments and errors as for `allreduce_async`.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        return self._reduce(
            tensor,
            name,
            resolve_op(op, average),
            prescale_factor,
            postscale_factor,
            process_set,
            in_place=True,
        )

    def allreduce_(
        self,
        tensor: Any,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Reduces a tensor in place; arguments and errors as for `allreduce`.

        Returns:
            The same tensor.
        """
        handle = self._reduce(
            tensor,
            name,
            resolve_op(op, average),
            prescale_factor,
            postscale_factor,
            process_set,
            in_place=True,
        )
        return handles.synchronize(handle)

    def grouped_allreduce_async(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction of several tensors as one unit; arguments as `allreduce_async`.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_list(tensors, "allreduce")
        return self._reduce_group(
            tensors,
            name,
            resolve_op(op, average),
            (prescale_factor, postscale_factor),
            process_set,
            in_place=False,
        )

    def grouped_allreduce(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        """Reduces several tensors as one unit; arguments and errors as for `allreduce`.

        Returns:
            The reduced tensors, in order.
        """
        check_list(tensors, "allreduce")
        narrow = [compression.compress(tensor) for tensor in tensors]
        handle = self._reduce_group(
            [tensor for tensor, _ in narrow],
            name,
            resolve_op(op, average),
            (prescale_factor, postscale_factor),
            process_set,
            in_place=False,
        )
        return widen(compression, handles.synchronize(handle), narrow)

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts a reduction of several tensors in place; arguments as for `allreduce_async`.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_list(tensors, "allreduce")
        return self._reduce_group(
            tensors,
            name,
            resolve_op(op, average),
            (prescale_factor, postscale_factor),
            process_set,
            in_place=True,
        )

    def grouped_allreduce_(
        self,
        tensors: Sequence[Any],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        """Reduces several tensors in place; arguments and errors as for `allreduce`.

        Returns:
            The same tensors.
        """
        check_list(tensors, "allreduce")
        handle = self._reduce_group(
            tensors,
            name,
            resolve_op(op, average),
            (prescale_factor, postscale_factor),
            process_set,
            in_place=True,
        )
        return handles.synchronize(handle)  # type: ignore[no-any-return]


def widen(
    compression: type[Compressor], results: Sequence[Any], narrow: Sequence[tuple[Any, Any]]
) -> list[Any]:
    """Decompresses the results of a grouped call."""
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, narrow, strict=True)
    ]
