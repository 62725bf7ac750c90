"""Reduces a list of gradients, for the tape and the optimizers.

`horoacc.reduction` decides how gradients are reduced; this module handles TensorFlow's tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from horoacc import reduction
from horoacc.collectives.calls import ALLREDUCE
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Average
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow.graph_buckets import buckets
from horoacc.tensorflow.reductions import allreduce, reduce_unit
from horoacc.tensorflow.sizes import divided, local_divisor
from horoacc.tensorflow.variables import variable_of
from horoacc.tensorflow.whole_steps import tied


class GradientReducer:
    """Reduces gradients over the ranks of a process set.

    Gradients go by their place in the list, so that ranks whose variables have other names match.
    In a graph a large one is reduced when it is there, and small ones by one op
    (`horoacc.tensorflow.graph_buckets`); in an elastic job none is given before all are
    (`horoacc.tensorflow.whole_steps`). In eager execution all travel as one unit.
    """

    def __init__(
        self,
        name: str,
        compression: type[Compressor] = NoneCompressor,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: Any = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Prepares; `name` is the prefix of the allreduces' names, before a gradient's place."""
        self._groups = reduction.keyed(groups, key_of)
        reduction.partition([], self._groups)  # refuses arguments that make no sense
        self._name = name
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._scaling = reduction.scaling(op, gradient_predivide_factor)
        self.process_set = process_set

    def __call__(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        local: Collection[int] = (),
        scale_local_gradients: bool = True,
    ) -> list[Any]:
        """Reduces tensors and `tf.IndexedSlices`; None stays None, on all ranks.

        `local` has the keys of variables of which the gradients stay on their rank;
        `scale_local_gradients` divides those as an average divides the others.
        """
        keys = [key_of(variable) for variable in variables]
        travelling = self._travelled(
            [grad for grad, key in zip(grads, keys, strict=True) if key not in local],
            [key for key in keys if key not in local],
        )
        divisor = local_divisor(self.process_set, scale_local_gradients)
        reduced = iter(travelling)
        return tied([
            divided(grad, divisor) if key in local else next(reduced)
            for grad, key in zip(grads, keys, strict=True)
        ])  # fmt: skip

    def _travelled(self, grads: Sequence[Any], keys: Sequence[int]) -> list[Any]:
        reduced = [self._dense(grad) for grad in grads]
        if not reduction.has_peers(self.process_set):
            return reduced
        dense = []
        for index, grad in enumerate(reduced):
            if isinstance(grad, tf.IndexedSlices):
                # The two factors of a predivided average make a plain average.
                reduced[index] = allreduce(
                    grad, op=self._scaling.op, name=self._member(index),
                    process_set=self.process_set,
                )  # fmt: skip
            elif grad is not None:
                dense.append(index)
        parts = self._parts(dense, reduced, keys)
        for part in parts:
            # Between hosts several that are ready share a message and a schedule instead.
            unit = self._reduce(part, reduced, recurring=len(parts) == 1)
            for index, grad in zip(part, unit, strict=True):
                reduced[index] = grad
        return reduced

    def _dense(self, grad: Any) -> Any:
        if self._sparse_as_dense and isinstance(grad, tf.IndexedSlices):
            return tf.convert_to_tensor(grad)
        return grad

    def _member(self, index: int) -> str:
        return f"{self._name}.{index}"

    def _parts(
        self, dense: list[int], grads: Sequence[Any], keys: Sequence[int]
    ) -> list[list[int]]:
        if self._groups == 0 and tf.executing_eagerly():
            return [dense] if dense else []
        if self._groups == 0:
            travelling = [grads[index] for index in dense]
            parts = buckets(travelling, self._scaling.op, self._compression)
            return [[dense[place] for place in part] for part in parts]
        if isinstance(self._groups, int):
            return reduction.partition(dense, self._groups)
        place = {keys[index]: index for index in dense}
        parts = reduction.partition([keys[index] for index in dense], self._groups)
        return [[place[key] for key in part] for part in parts]

    def _reduce(self, part: list[int], grads: list[Any], recurring: bool) -> list[Any]:
        return reduce_unit(
            ALLREDUCE, [grads[index] for index in part], self._compression,
            self._scaling.op, (self._scaling.prescale, self._scaling.postscale),
            self._member(part[0]), self.process_set, False, len(part) if len(part) > 1 else None,
            recurring,
        )  # fmt: skip


def key_of(variable: Any) -> int:
    """Gives the key of a variable, which cannot be compared: the identity of TensorFlow's."""
    return id(variable_of(variable))
