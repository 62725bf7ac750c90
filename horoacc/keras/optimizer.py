"""`DistributedOptimizer`: a Keras optimizer that steps with gradients reduced over all ranks.

All of Keras 3's trainers end in `optimizer.apply`, which is overridden: a class is
derived from that of the given optimizer. To Keras' serialization an instance says that it is of
the class it was derived from, so that files hold the plain optimizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from horoacc import basics
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import OP_NAMES, Average, Sum
from horoacc.keras import backend, compilation, legacy
from horoacc.keras.gradients import (
    GradientReduction,
    Options,
    ReducesGradients,
    derived_class,
    is_distributed,
)
from horoacc.keras.loss_scaling import teach_loss_scaling
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.reduction import chosen_groups


class CallableList(list[Any]):
    """A list that a caller may call: `optimizer.variables` was a method once."""

    def __call__(self) -> CallableList:
        """Returns itself."""
        return self


class _DistributedOptimizer(ReducesGradients):
    """Mixed in before a Keras optimizer's class: reduces the gradients before each step."""

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the optimizer's variables."""
        super().build(variables)  # type: ignore[misc]
        # The constructor of the given class comes first.
        if hasattr(self, "_reduction"):
            self._reduction.build(variables)

    @property
    def variables(self) -> CallableList:
        """The optimizer's variables; may also be called."""
        return CallableList(super().variables)  # type: ignore[misc]

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduces gradients and steps with them.

        Args:
            grads: One for each variable; None where there is none.
            trainable_variables: The variables; by default those that the optimizer was built for.

        Raises:
            HorovodInternalError: A reduction failed.
            ValueError: XLA compiles the function that calls this.
        """
        step = super().apply  # type: ignore[misc]
        grads = list(grads)
        self._apply_reduced(grads, trainable_variables, step)

    def _apply_reduced(self, grads: Sequence[Any], variables: Any, step: Any) -> None:
        """Reduces gradients and gives them to `step`, together with the variables."""
        given = self._trainable_variables if variables is None else list(variables)  # type: ignore[attr-defined]
        if len(grads) != len(given):
            step(grads, variables)  # raises an error that names the fault
            return
        if self._reduction.reduces():
            compilation.refuse_xla()
        self._reduction.apply(grads, given, lambda reduced: step(reduced, given))

    def apply_gradients(self, grads_and_vars: Iterable[Any], name: str | None = None,
                        experimental_aggregate_gradients: bool = True,
                        skip_gradients_aggregation: bool = False) -> Any:  # fmt: skip
        """Reduces gradients and steps with them.

        Args:
            grads_and_vars: Pairs of gradient and variable.
            name: As in Keras 2; not used.
            experimental_aggregate_gradients: Whether to reduce them.
            skip_gradients_aggregation: Whether not to.

        Returns:
            The optimizer's count of iterations.
        """
        del name
        apply = super().apply_gradients  # type: ignore[misc]
        if skip_gradients_aggregation or not experimental_aggregate_gradients:
            self._reduction.ahead.take()
            with self._reduction.leaving_as_they_are():
                return apply(list(grads_and_vars))
        return apply(list(grads_and_vars))

    def _like_it(self, config: dict[str, Any], custom_objects: Any = None) -> Any:
        plain = self.__class__.from_config(config, custom_objects)  # type: ignore[attr-defined]
        return distribute(plain, self._reduction.options)

    def _allreduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._reduction.reduce(list(grads), list(variables))

    def _aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> list[Any]:
        """Reduces gradients ahead of `apply_gradients`, unless several passes make a step."""
        grads, variables = zip(*grads_and_vars, strict=True)
        if self._reduction.passes > 1:
            return list(grads)
        reduced = self._allreduce(grads, variables)
        self._reduction.ahead.note(reduced)
        return reduced

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Computes reduced gradients, for `apply_gradients`.

        With several backward passes a step they are this rank's: they are reduced when they are
        applied for the last of them. Tensors made of the gradients (clipped ones, say) may be
        applied just as well, by the function that computes them.

        Args:
            loss: The loss; on TensorFlow without a tape, a function that computes it.
            var_list: The variables, or a function that gives them.
            tape: The tape that has recorded the loss, on TensorFlow.

        Returns:
            Pairs of gradient and variable.
        """
        variables = list(var_list() if callable(var_list) else var_list)
        grads = backend.current().gradients(loss, variables, tape)
        pairs = list(zip(grads, variables, strict=True))
        return list(zip(self._aggregate_gradients(pairs), variables, strict=True))

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Any]:
        if grad_loss is not None:
            raise ValueError("grad_loss is not supported: multiply the loss by it.")
        return self.compute_gradients(loss, var_list, tape)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Computes reduced gradients; see `compute_gradients`.

        Args:
            loss: The loss.
            params: The variables.

        Returns:
            The gradients.
        """
        return [gradient for gradient, _ in self.compute_gradients(loss, params)]


def _config(optimizer: Any) -> dict[str, Any]:
    """The config of an optimizer of the same class with the same settings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lambda")
        config = dict(optimizer.get_config())
    rate = getattr(optimizer, "_learning_rate", None)
    if "learning_rate" in config and callable(rate) and not isinstance(rate, keras.Variable):
        config["learning_rate"] = rate  # a schedule or a function holds no state: share it
    return config


def _copy(optimizer: Any) -> Any:
    """A distributed optimizer with the settings of the given one."""
    base: Any = type(optimizer)
    inner = getattr(optimizer, "inner_optimizer", None)
    derived = derived_class(_DistributedOptimizer, base)
    choose = getattr(optimizer, "_optimizer_map", None)
    if choose is not None and not hasattr(choose, "get_config"):
        # A MultiOptimizer's function, which makes optimizers, holds no state: share it.
        return derived(choose, optimizer.loss_scale_factor, optimizer.name)
    if inner is None:
        return derived.from_config(_config(optimizer))
    # With its class: Keras may not know it by its name.
    return derived.from_config(_config(optimizer), {type(inner).__name__: type(inner)})


def _take_state(optimizer: Any, copied: Any) -> None:
    """Gives the copy the variables' values and the optimizer's other attributes."""
    # An optimizer loaded from an .h5 file is built, but without variables.
    if optimizer.built and optimizer._trainable_variables:
        copied.build(list(optimizer._trainable_variables))
        copied.built = True
    for mine, theirs in zip(copied.variables, optimizer.variables, strict=True):
        mine.assign(theirs)
    _take_notes(optimizer, copied)
    if hasattr(optimizer, "inner_optimizer"):
        _take_notes(optimizer.inner_optimizer, copied.inner_optimizer)


def _take_notes(optimizer: Any, copied: Any) -> None:
    """Copies attributes that are no part of an optimizer's config."""
    for name, value in vars(optimizer).items():
        noted = name.startswith("_exclude_from_weight_decay") or not name.startswith("_")
        if noted and name not in vars(copied):
            setattr(copied, name, value)


def distribute(optimizer: Any, options: Options) -> Any:
    """Makes an optimizer whose class has the name of the given one's and derives from it.

    TypeError if it is no optimizer of Keras; ValueError if it is distributed already, or an option
    makes no sense.
    """
    of_keras_2 = legacy.is_a(optimizer, "optimizers.legacy.Optimizer")
    if not (of_keras_2 or legacy.is_a(optimizer, "optimizers.Optimizer")):
        raise TypeError(compilation.not_of_keras("optimizer", optimizer))
    if is_distributed(optimizer) or is_distributed(getattr(optimizer, "inner_optimizer", None)):
        raise ValueError("This optimizer is distributed already.")
    if options.op not in (Average, Sum):
        raise ValueError(
            "op of a Keras DistributedOptimizer must be hvd.Average or hvd.Sum, not "
            f"{OP_NAMES.get(options.op, repr(options.op))}."
        )
    for layer in options.local_layers:
        if not legacy.is_a(layer, "layers.Layer"):
            raise ValueError(
                f"All local layers must be of type keras.layers.Layer, not {type(layer).__name__}."
            )
    if legacy.is_legacy(optimizer):
        legacy.require_tensorflow(optimizer)
        if basics.is_initialized() and basics.rank() != 0:
            legacy.silence()  # it may have been imported after init()
        from horoacc.keras import legacy_optimizer  # noqa: PLC0415 - only where TensorFlow is

        return legacy_optimizer.distribute(optimizer, options)
    copied = _copy(optimizer)
    copied._reduction = GradientReduction(options, copied._var_key)
    if hasattr(copied, "inner_optimizer"):  # it scales losses
        copied._reduction.agree_on_overflow()
    _take_state(optimizer, copied)
    compilation.teach_models()
    teach_loss_scaling()
    return copied


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a Keras optimizer so that it steps with gradients reduced over all ranks.

    The new optimizer starts with the settings and the state of the given one, which stays as it is.
    A model that is saved with it holds the given one's class and needs no HoroACC to be loaded;
    `load_model` gives it a distributed one again.

    Args:
        optimizer: The optimizer to wrap, a `LossScaleOptimizer` among others; of Keras 3 or of
            tf_keras.
        name: The prefix of its collectives' names, the same on all ranks. Optimizers that
            step at the same time, in several threads, need names.
        device_dense: As in Horovod; not used.
        device_sparse: As in Horovod; not used.
        compression: How to make gradients narrower while they travel.
        sparse_as_dense: Reduce sparse gradients as dense ones.
        gradient_predivide_factor: Divides by this before the sum and by `size` over it after.
        op: Average or Sum.
        num_groups: The older name of an integer `groups`.
        groups: A number of groups, or lists of variables, of which the gradients travel together.
        backward_passes_per_step: How many calls to accumulate before reducing and stepping.
            Schedules and bias corrections count steps.
        average_aggregated_gradients: Divide the accumulated gradients by their number.
        process_set: The ranks that train together.
        scale_local_gradients: Divide the gradients of local variables by the number of ranks.

    Returns:
        An optimizer whose class has the name of the given one's and derives from it.

    Raises:
        TypeError: It is no optimizer of Keras.
        ValueError: An argument makes no sense, or the optimizer is distributed already.
    """
    del device_dense, device_sparse
    return distribute(optimizer, Options(
        name, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, chosen_groups(num_groups, groups),
        process_set, (), scale_local_gradients,
    ))  # fmt: skip


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Leaves some layers to each rank; arguments and errors as for `DistributedOptimizer`.

    Gradients of `local_layers`, a layer or several, are not reduced. `scale_local_gradients`
    divides them by the number of ranks, so that the learning rate of the whole model suits them.

    Returns:
        The optimizer.
    """
    del device_dense, device_sparse
    if local_layers is None:
        layers: tuple[Any, ...] = ()
    else:
        many = isinstance(local_layers, (list, tuple, set))
        layers = tuple(local_layers) if many else (local_layers,)
    return distribute(optimizer, Options(
        name, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, chosen_groups(0, groups),
        process_set, layers, scale_local_gradients,
    ))  # fmt: skip
