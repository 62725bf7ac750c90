"""Allreduce and reduce-scatter of torch's tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.compiler import is_compiling

from horoacc.calls import ALLREDUCE, REDUCESCATTER, check_scatter_op, member_names, resolve_op
from horoacc.coded_allreduce import complaining_of_vectors
from horoacc.collectives import Collectives
from horoacc.complaints import check_group, complaining
from horoacc.compression import (
    Compressor,
    NoneCompressor,
    check_no_codec,
    decompress_all,
    is_codec,
)
from horoacc.dtypes import Average
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.torch import compiled
from horoacc.torch.autograd import Allreduce, Reducescatter
from horoacc.torch.compression import Compression
from horoacc.torch.ways import any_tracked, apply, set_number, tracked, uncompiled


def _coded(
    tensors: Sequence[torch.Tensor],
    codec: type[Compressor],
    name: str | None,
    op: int | None,
    average: bool | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
    grouped: bool,
) -> list[torch.Tensor]:
    """Reduces what a codec encodes with NumPy, which is not compiled."""
    with complaining_of_vectors(name, len(tensors), process_set):
        op = resolve_op(op, average)
    return list(apply(Allreduce, codec, name, op, scales, process_set, grouped, *tensors))


class Reductions(Collectives):
    """The collectives that reduce; compressed, recorded and traced as asked for."""

    def allreduce(
        self,
        tensor: torch.Tensor,
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """See `Collectives.allreduce`; differentiable."""
        scales = (prescale_factor, postscale_factor)
        compiling = is_compiling()
        if not compiling and not tracked(tensor):
            if compression is NoneCompressor:  # without a detour: see `_reduce`
                return self._reduce(tensor, name, op, average, *scales, process_set, False, True)  # type: ignore[no-any-return]
            plain = super().allreduce
            given = (tensor, average, name, compression, op, *scales, process_set)
            return uncompiled(plain, *given) if is_codec(compression) else plain(*given)  # type: ignore[no-any-return]
        if compiling and not is_codec(compression):
            narrow, context = compression.compress(tensor)
            op = resolve_op(op, average)
            reduced = compiled.allreduce(narrow, name, op, *scales, set_number(process_set))
            return compression.decompress(reduced, context)  # type: ignore[no-any-return]
        if is_codec(compression):
            return uncompiled(  # type: ignore[no-any-return]
                _coded, [tensor], compression, name, op, average, scales, process_set, False
            )[0]
        with complaining(ALLREDUCE, member_names("allreduce", name)[0], process_set):
            op = resolve_op(op, average)
            narrow, context = compression.compress(tensor)
        (reduced,) = apply(Allreduce, NoneCompressor, name, op, scales, process_set, False, narrow)
        return compression.decompress(reduced, context)  # type: ignore[no-any-return]

    def grouped_allreduce(
        self,
        tensors: Sequence[torch.Tensor],
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[torch.Tensor]:
        """See `Collectives.grouped_allreduce`; differentiable."""
        check_group(tensors, ALLREDUCE, name, process_set)
        scales = (prescale_factor, postscale_factor)
        compiling = is_compiling()
        if not compiling and not any_tracked(tensors):
            plain = super().grouped_allreduce
            given = (tensors, average, name, compression, op, *scales, process_set)
            return uncompiled(plain, *given) if is_codec(compression) else plain(*given)
        if compiling and not is_codec(compression):
            narrow = [compression.compress(tensor) for tensor in tensors]
            op = resolve_op(op, average)
            narrowed = [tensor for tensor, _ in narrow]
            number = set_number(process_set)
            reduced = compiled.grouped_allreduce(narrowed, name, op, *scales, number)
            return decompress_all(compression, reduced, narrow)
        if is_codec(compression):
            return uncompiled(  # type: ignore[no-any-return]
                _coded, tensors, compression, name, op, average, scales, process_set, True
            )
        first = member_names("allreduce", name, len(tensors))[0]
        with complaining(ALLREDUCE, first, process_set, grouped=True):
            op = resolve_op(op, average)
            narrow = [compression.compress(tensor) for tensor in tensors]
        narrowed = [tensor for tensor, _ in narrow]
        reduced = apply(Allreduce, NoneCompressor, name, op, scales, process_set, True, *narrowed)
        return decompress_all(compression, reduced, narrow)

    def reducescatter(
        self,
        tensor: torch.Tensor,
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> torch.Tensor:
        """See `Collectives.reducescatter`; differentiable."""
        scales = (prescale_factor, postscale_factor)
        compiling = is_compiling()
        if not compiling and not tracked(tensor):
            return super().reducescatter(tensor, name, compression, op, process_set, *scales)  # type: ignore[no-any-return]
        if compiling:
            check_no_codec(compression)
            narrow, context = compression.compress(tensor)
            op = check_scatter_op(op)
            number = set_number(process_set)
            (part,) = compiled.reducescatter([narrow], name, op, *scales, False, number)
            return compression.decompress(part, context)  # type: ignore[no-any-return]
        with complaining(REDUCESCATTER, member_names("reducescatter", name)[0], process_set):
            check_no_codec(compression)
            narrow, context = compression.compress(tensor)
            op = check_scatter_op(op)
        (part,) = apply(Reducescatter, name, op, scales, process_set, False, narrow)
        return compression.decompress(part, context)  # type: ignore[no-any-return]

    def grouped_reducescatter(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[torch.Tensor]:
        """See `Collectives.grouped_reducescatter`; differentiable."""
        check_group(tensors, REDUCESCATTER, name, process_set)
        scales = (prescale_factor, postscale_factor)
        compiling = is_compiling()
        if not compiling and not any_tracked(tensors):
            return super().grouped_reducescatter(
                tensors, name, compression, op, process_set, *scales
            )
        if compiling:
            check_no_codec(compression)
            narrow = [compression.compress(tensor) for tensor in tensors]
            op = check_scatter_op(op)
            given = [tensor for tensor, _ in narrow]
            number = set_number(process_set)
            parts = compiled.reducescatter(given, name, op, *scales, True, number)
            return decompress_all(compression, parts, narrow)
        first = member_names("reducescatter", name, len(tensors))[0]
        with complaining(REDUCESCATTER, first, process_set, grouped=True):
            check_no_codec(compression)
            narrow = [compression.compress(tensor) for tensor in tensors]
            op = check_scatter_op(op)
        given = [tensor for tensor, _ in narrow]
        parts = apply(Reducescatter, name, op, scales, process_set, True, *given)
        return decompress_all(compression, parts, narrow)
