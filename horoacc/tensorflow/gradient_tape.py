"""`tf.GradientTape`s that give gradients reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horoacc import process
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Average
from horoacc.gradient_calls import TapeSources, obstacle_of
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow.gradient_reducer import GradientReducer, key_of
from horoacc.tensorflow.raw_ops import as_written
from horoacc.tensorflow.whole_steps import note, teach_optimizers

_PREFIX = "DistributedGradientTape"
_known_sources: dict[tuple[int, ...], TapeSources] = {}


def _sources_of(variables: Sequence[Any]) -> TapeSources:
    return _known_sources.setdefault(tuple(key_of(one) for one in variables), TapeSources())


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Mixed in before a tape's class: reduces the result of `gradient`."""

    def _distribute(
        self, reducer: GradientReducer, scale_local_gradients: bool, obstacle: str
    ) -> None:
        self._reducer = reducer
        self._obstacle = obstacle
        self._scale_local_gradients = scale_local_gradients
        self._local_sources: dict[int, Any] = {}

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of a variable on this rank: it is not reduced.

        Args:
            source: A variable that each rank has for itself.
        """
        self._local_sources[key_of(source)] = source

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Computes gradients and reduces them, but for those of local sources.

        Args:
            target: The tensor to differentiate, as for `tf.GradientTape.gradient`.
            sources: A variable, or a structure of them, to differentiate by.
            output_gradients: A gradient for each element of `target`.
            use_generic_names: Accepted for Horovod's sake: gradients always go by their place.
            unconnected_gradients: The gradient of a source that the target does not depend on.

        Returns:
            The gradients, in the structure of `sources`. Gradients of local sources are over the
            number of ranks if `scale_local_gradients` was given, which is the default.

        Raises:
            tf.errors.OpError: A collective failed.
        """
        del use_generic_names
        computed = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources = tf.nest.flatten(sources)
        grads = tf.nest.flatten(computed)
        if process.is_elastic():
            note(_sources_of(flat_sources), _PREFIX, self._obstacle)
        grads = self._reducer(grads, flat_sources, self._local_sources, self._scale_local_gradients)
        return tf.nest.pack_sequence_as(sources, grads)

    @as_written
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Computes gradients, and gives them twice: as they were computed here, and reduced.

        Args:
            target: As for `gradient`.
            sources: As for `gradient`.
            output_gradients: As for `gradient`.
            use_generic_names: As for `gradient`.

        Returns:
            The list of this rank's gradients, with None in the places of those that are reduced,
            and the list of reduced ones, with None in the places of local sources.
        """
        grads = tf.nest.flatten(self.gradient(target, sources, output_gradients, use_generic_names))
        local = [key_of(source) in self._local_sources for source in tf.nest.flatten(sources)]
        pairs = list(zip(grads, local, strict=True))
        return (
            [grad if here else None for grad, here in pairs],
            [None if here else grad for grad, here in pairs],
        )


def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a tape whose `gradient` is reduced over all ranks.

    Args:
        gradtape: The tape, which has recorded or is going to; the new one takes it over.
        device_dense: Not used.
        device_sparse: Not used.
        compression: How to make gradients narrower while they travel.
        sparse_as_dense: Reduce `tf.IndexedSlices` as dense tensors.
        op: Average, Sum, Adasum, Min, Max or Product.
        gradient_predivide_factor: Divides by this before the sum and by `size` over it after.
        num_groups: The older name of an integer `groups`.
        groups: A number of groups, or lists of variables, of which the gradients travel together.
        process_set: The ranks that train together.
        scale_local_gradients: Divide gradients of local sources by the number of ranks, as an
            average does it with the others.

    Returns:
        A tape whose class has the name of the given one's and derives from it, with the methods
        `register_local_source` and `get_local_and_global_gradients` besides.

    Raises:
        ValueError: An argument makes no sense.
    """
    del device_dense, device_sparse
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError("This tape is distributed already.")
    teach_optimizers()
    reducer = GradientReducer(
        _PREFIX, compression, sparse_as_dense, op, gradient_predivide_factor,
        groups if groups is not None else num_groups, process_set,
    )  # fmt: skip
    base = type(gradtape)
    derived: Any = type(
        base.__name__,
        (_DistributedGradientTape, base),
        {"__doc__": base.__doc__, "__module__": __name__},
    )
    wrapped = derived.__new__(derived)
    wrapped.__dict__.update(gradtape.__dict__)
    wrapped._distribute(reducer, scale_local_gradients, obstacle_of(op, 1, process_set))
    return wrapped


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a tape that leaves some layers to each rank, as for `DistributedGradientTape`.

    `local_layers` is a Keras layer or a list of them, which each rank trains by itself.

    Returns:
        The tape.

    Raises:
        ValueError: An argument makes no sense, or an element of `local_layers` is no layer.
    """
    layers: Sequence[Any] = () if local_layers is None else tf.nest.flatten(local_layers)
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
        gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers must be Keras layers, not a {type(layer).__name__}.")
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
