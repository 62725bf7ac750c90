"""Allreduce of one tensor, for every kind of tensor."""

from __future__ import annotations

from typing import Any

from horoacc import handles, process
from horoacc.calls import resolve_op
from horoacc.compression import Compressor, NoneCompressor
from horoacc.engine_outputs import EngineOutputs
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number
from horoacc.tensors import Restore


class Allreduce(EngineOutputs):
    """Allreduce of one tensor."""

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
        engine = process.engine()
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
