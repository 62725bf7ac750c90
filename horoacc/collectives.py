"""The collectives, once for every kind of tensor.

A `Collectives` object has Horovod's functions as methods; the doors (`horoacc`, `horoacc.torch`)
export those of an object of their own. What differs between libraries is behind `Tensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from horoacc import _core, basics, handles
from horoacc.calls import check_list, check_scatter_op, member_names, resolve_op
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Average
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number

if TYPE_CHECKING:
    from horoacc._core import Output

Restore = Callable[[Any], Any]
View = tuple[int, tuple[int, ...], int]
"""Pointer, shape and the core's number of the type."""


class Tensors(Protocol):
    """What a library's tensors must be able to do. `Any` stands for its contiguous CPU tensor."""

    def readable(self, tensor: Any) -> tuple[Any, Restore | None]:
        """Gives a contiguous CPU tensor with the caller's values, and what makes a result of the
        caller's kind out of such a tensor (None: it is one). ValueError if there is no way."""

    def writable(self, tensor: Any) -> Any:
        """Checks that the caller's tensor can be written in place; ValueError if not."""

    def view(self, tensor: Any) -> View:
        """Says where a contiguous tensor lies and what it is; ValueError for a foreign type."""

    def empty_like(self, tensor: Any) -> Any:
        """Makes a tensor for an output."""

    def owned(self, output: Output) -> Any:
        """Makes a tensor of memory that the engine allocated."""

    def counts(self, rows: Sequence[int]) -> Any:
        """Makes the int32 vector of received splits."""


class Collectives:
    """Horovod's collectives for one kind of tensor, or for the kind that `choose` finds."""

    def __init__(self, choose: Callable[[Any], Tensors]) -> None:
        """Makes the functions.

        Args:
            choose: Finds how to treat a caller's tensor.
        """
        self._choose = choose

    def _reduce(
        self,
        tensors: Sequence[Any],
        names: Sequence[str | None],
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        finish: Callable[[list[Any]], Any],
        in_place: bool,
    ) -> int:
        """Submits an allreduce. `finish` makes the result from the outputs."""
        kind = self._choose(tensors[0])
        restores: list[Restore | None] = [None] * len(tensors)
        if in_place:
            inputs = [kind.writable(tensor) for tensor in tensors]
            outputs = inputs
        else:
            inputs = []
            for index, tensor in enumerate(tensors):
                readable, restores[index] = kind.readable(tensor)
                inputs.append(readable)
            outputs = [kind.empty_like(tensor) for tensor in inputs]
        views = [kind.view(tensor) for tensor in inputs]
        targets = views if in_place else [kind.view(tensor) for tensor in outputs]
        engine = basics.engine()
        number = set_number(process_set)
        keep = (inputs, outputs)
        if len(views) == 1:
            pointer, shape, dtype = views[0]
            handle = engine.allreduce(
                names[0], pointer, targets[0][0], shape, dtype, op, *scales, number, keep
            )
        else:
            members = [
                (name, pointer, target[0], shape, dtype)
                for name, (pointer, shape, dtype), target in zip(names, views, targets, strict=True)
            ]
            handle = engine.submit(
                _core.ALLREDUCE, members, op, *scales, process_set=number, keep=keep
            )

        def give(_: list[Output]) -> Any:
            if in_place:
                return finish(list(tensors))
            return finish(
                [out if restore is None else restore(out)
                 for out, restore in zip(outputs, restores, strict=True)]
            )  # fmt: skip

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
            [tensor], member_names("allreduce", name), resolve_op(op, average),
            (prescale_factor, postscale_factor), process_set, _first, in_place=False,
        )  # fmt: skip

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
            [narrow], member_names("allreduce", name), resolve_op(op, average),
            (prescale_factor, postscale_factor), process_set, _first, in_place=False,
        )  # fmt: skip
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
            [tensor], member_names("allreduce", name), resolve_op(op, average),
            (prescale_factor, postscale_factor), process_set, _first, in_place=True,
        )  # fmt: skip

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
            [tensor], member_names("allreduce", name), resolve_op(op, average),
            (prescale_factor, postscale_factor), process_set, _first, in_place=True,
        )  # fmt: skip
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
        return self._reduce(
            tensors, member_names("allreduce", name, len(tensors)), resolve_op(op, average),
            (prescale_factor, postscale_factor), process_set, list, in_place=False,
        )  # fmt: skip

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
        handle = self._reduce(
            [tensor for tensor, _ in narrow], member_names("allreduce", name, len(narrow)),
            resolve_op(op, average), (prescale_factor, postscale_factor), process_set, list,
            in_place=False,
        )  # fmt: skip
        return _widen(compression, handles.synchronize(handle), narrow)

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
        return self._reduce(
            tensors, member_names("allreduce", name, len(tensors)), resolve_op(op, average),
            (prescale_factor, postscale_factor), process_set, list, in_place=True,
        )  # fmt: skip

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
        handle = self._reduce(
            tensors, member_names("allreduce", name, len(tensors)), resolve_op(op, average),
            (prescale_factor, postscale_factor), process_set, list, in_place=True,
        )  # fmt: skip
        return handles.synchronize(handle)  # type: ignore[no-any-return]

    def _grow(
        self,
        collective: int,
        tensors: Sequence[Any],
        names: Sequence[str | None],
        process_set: ProcessSet,
        finish: Callable[[list[Any], list[Output]], Any],
        **arguments: Any,
    ) -> int:
        """Submits a call of which the engine allocates the outputs."""
        kind = self._choose(tensors[0])
        found = [kind.readable(tensor) for tensor in tensors]
        members = []
        for name, (tensor, _) in zip(names, found, strict=True):
            pointer, shape, dtype = kind.view(tensor)
            members.append((name, pointer, 0, shape, dtype))
        engine = basics.engine()
        handle = engine.submit(
            collective, members, process_set=set_number(process_set),
            keep=[tensor for tensor, _ in found], **arguments,
        )  # fmt: skip

        def give(outputs: list[Output]) -> Any:
            results = []
            for output, (_, restore) in zip(outputs, found, strict=True):
                result = kind.owned(output)
                results.append(result if restore is None else restore(result))
            return finish(results, outputs)

        return handles.start(engine, handle, None, give)

    def allgather_async(
        self, tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Starts a concatenation of all ranks' tensors along the first dimension.

        Args:
            tensor: The tensor. First dimensions may differ between ranks.
            name: The same on all ranks; calls without one are matched by their order.
            process_set: The ranks that take part.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work.
        """
        names = member_names("allgather", name)
        return self._grow(_core.ALLGATHER, [tensor], names, process_set, _only)

    def allgather(
        self, tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> Any:
        """Concatenates all ranks' tensors; arguments as for `allgather_async`.

        Returns:
            The concatenation, in the order of ranks, on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        names = member_names("allgather", name)
        return handles.synchronize(
            self._grow(_core.ALLGATHER, [tensor], names, process_set, _only)
        )

    def grouped_allgather_async(
        self,
        tensors: Sequence[Any],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts concatenations of several tensors as one unit, as `allgather_async` does.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        check_list(tensors, "allgather")
        names = member_names("allgather", name, len(tensors))
        return self._grow(_core.ALLGATHER, tensors, names, process_set, _all)

    def grouped_allgather(
        self,
        tensors: Sequence[Any],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        """Concatenates several tensors as one unit; arguments and errors as for `allgather`.

        Returns:
            The concatenations, in order.
        """
        check_list(tensors, "allgather")
        names = member_names("allgather", name, len(tensors))
        return handles.synchronize(  # type: ignore[no-any-return]
            self._grow(_core.ALLGATHER, tensors, names, process_set, _all)
        )

    def _broadcast(
        self, tensor: Any, root: int, name: str | None, process_set: ProcessSet, in_place: bool
    ) -> int:
        kind = self._choose(tensor)
        restore: Restore | None = None
        if in_place:
            source = output = kind.writable(tensor)
        else:
            source, restore = kind.readable(tensor)
            output = kind.empty_like(source)
        pointer, shape, dtype = kind.view(source)
        target = pointer if in_place else kind.view(output)[0]
        engine = basics.engine()
        handle = engine.submit(
            _core.BROADCAST,
            [(member_names("broadcast", name)[0], pointer, target, shape, dtype)],
            root=root, process_set=set_number(process_set), keep=(source, output),
        )  # fmt: skip
        if restore is None:
            return handles.start(engine, handle, tensor if in_place else output)
        finish = restore
        return handles.start(engine, handle, None, lambda _: finish(output))

    def broadcast_async(
        self,
        tensor: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts sending the root's tensor to all ranks.

        Args:
            tensor: The tensor; shape and type are the same on all ranks. Not changed.
            root_rank: The global rank that sends.
            name: The same on all ranks; calls without one are matched by their order.
            process_set: The ranks that take part.

        Returns:
            A handle for `poll` and `synchronize`.

        Raises:
            ValueError: An argument cannot work.
        """
        return self._broadcast(tensor, root_rank, name, process_set, in_place=False)

    def broadcast(
        self,
        tensor: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends the root's tensor to all ranks; arguments as for `broadcast_async`.

        Returns:
            The root's tensor, on every rank.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        return handles.synchronize(
            self._broadcast(tensor, root_rank, name, process_set, in_place=False)
        )

    def broadcast_async_(
        self,
        tensor: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts sending the root's tensor into all ranks' tensors, as `broadcast_async` does.

        Returns:
            A handle for `poll` and `synchronize`.
        """
        return self._broadcast(tensor, root_rank, name, process_set, in_place=True)

    def broadcast_(
        self,
        tensor: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends the root's tensor into all ranks' tensors; arguments as for `broadcast`.

        Returns:
            The same tensor.
        """
        return handles.synchronize(
            self._broadcast(tensor, root_rank, name, process_set, in_place=True)
        )

    def alltoall_async(
        self,
        tensor: Any,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Starts sending parts of the first dimension to the other ranks.

        Args:
            tensor: The tensor.
            splits: How many rows go to each rank of the set, in order: a vector of integers.
                Equal parts if None.
            name: The same on all ranks; calls without one are matched by their order.
            process_set: The ranks that take part.

        Returns:
            A handle; `synchronize` gives the received rows and how many came from each rank.

        Raises:
            ValueError: An argument cannot work.
        """
        kind = self._choose(tensor)
        rows = None if splits is None else [int(count) for count in splits]

        def finish(results: list[Any], outputs: list[Output]) -> tuple[Any, Any]:
            return results[0], kind.counts(outputs[0].received_splits or [])

        return self._grow(
            _core.ALLTOALL, [tensor], member_names("alltoall", name), process_set, finish,
            splits=rows,
        )  # fmt: skip

    def alltoall(
        self,
        tensor: Any,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Sends parts of the first dimension to the other ranks; arguments as `alltoall_async`.

        Returns:
            The received rows, in the order of ranks; with `splits`, also how many came from each.

        Raises:
            HorovodInternalError: The collective failed.
            ValueError: An argument cannot work.
        """
        received = handles.synchronize(
            Collectives.alltoall_async(self, tensor, splits, name, process_set)
        )
        return received[0] if splits is None else received

    def _scatter(
        self,
        tensors: Sequence[Any],
        names: Sequence[str | None],
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        finish: Callable[[list[Any], list[Output]], Any],
    ) -> int:
        return self._grow(
            _core.REDUCESCATTER, tensors, names, process_set, finish, op=check_scatter_op(op),
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
            (prescale_factor, postscale_factor), process_set, _only,
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
            (prescale_factor, postscale_factor), process_set, _only,
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
            (prescale_factor, postscale_factor), process_set, _all,
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
            (prescale_factor, postscale_factor), process_set, _all,
        )  # fmt: skip
        return _widen(compression, handles.synchronize(handle), narrow)


def _first(results: list[Any]) -> Any:
    return results[0]


def _only(results: list[Any], _: list[Output]) -> Any:
    return results[0]


def _all(results: list[Any], _: list[Output]) -> list[Any]:
    return results


def _widen(
    compression: type[Compressor], results: list[Any], narrow: Sequence[tuple[Any, Any]]
) -> list[Any]:
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, narrow, strict=True)
    ]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it. Other sets go on.

    Args:
        process_set: The ranks that take part.

    Raises:
        HorovodInternalError: A rank was lost, or did not come in time.
    """
    engine = basics.engine()
    handle = engine.submit(_core.BARRIER, [], process_set=set_number(process_set))
    handles.synchronize(handles.start(engine, handle))
