"""States of training with TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horoacc import basics, gradient_calls
from horoacc.backward_passes import begin_step
from horoacc.elastic.state import CountedState, ModelState
from horoacc.errors import HorovodInternalError
from horoacc.tensorflow.failures import with_own_errors
from horoacc.tensorflow.functions import broadcast_object, broadcast_variables
from horoacc.tensorflow.variables import variable_of

__all__ = ["TensorFlowKerasState", "TensorFlowState"]


class _OwnErrors(CountedState):
    """Its methods that may meet a death raise HoroACC's errors, not those of TensorFlow's ops."""

    @with_own_errors
    def on_reset(self) -> None:
        """As `State.on_reset`; the callbacks may train."""
        super().on_reset()


class TensorFlowState(_OwnErrors):
    """Variables, and plain objects as attributes."""

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        """Makes a state that is committed with the values given.

        Args:
            variables: Variables of TensorFlow's or of Keras; the global variables of the default
                graph if None, which needs a TF1-style graph.
            session: The session in which the variables have their values, for a TF1-style graph;
                the default session if None.
            kwargs: The objects.

        Raises:
            ValueError: No variables were given in eager execution, or there is no session.
        """
        if variables is None:
            if tf.executing_eagerly():
                raise ValueError("In eager execution TensorFlowState needs the variables.")
            variables = tf.compat.v1.global_variables()
        self._session = session
        # Keras 3, tf_keras and tf_keras.optimizers.legacy name them so.
        self._counts = [
            variable_of(one) for one in variables
            if one.name.partition(":")[0].rpartition("/")[2] in ("iteration", "iter")
            and tuple(one.shape) == () and variable_of(one).dtype.is_integer
        ]  # fmt: skip
        self._set_variables(variables)
        self._saved_values = self._values()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def _set_variables(self, variables: Sequence[Any]) -> None:
        self.variables = [variable_of(variable) for variable in variables]
        self._broadcast: Any = None
        self._placeholders: list[Any] = []
        self._assign: Any = None
        if not tf.executing_eagerly():
            # Ops are added to a graph once, not at each commit.
            self._broadcast = broadcast_variables(self.variables, root_rank=0)
            self._placeholders = [
                tf.compat.v1.placeholder(variable.dtype, variable.shape)
                for variable in self.variables
            ]
            self._assign = tf.group(
                *[
                    variable.assign(value)
                    for variable, value in zip(self.variables, self._placeholders, strict=True)
                ]
            )

    def _run(self, fetches: Any, feed: Any = None) -> Any:
        session = self._session or tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError("A state of a TF1-style graph needs a session.")
        return session.run(fetches, feed)

    def _values(self) -> list[Any]:
        if tf.executing_eagerly():
            return [variable.numpy() for variable in self.variables]
        return list(self._run(self.variables))

    def _count(self) -> int:
        """Reads the count of the optimizer whose variables are among those of the state, or 0."""
        counted = tf.executing_eagerly() and len(self._counts) == 1
        return int(self._counts[0].numpy()) if counted else 0

    def obstacle(self, error: HorovodInternalError) -> str:
        """Says why the values must not be used as they stand after an error.

        Args:
            error: Of a collective.

        Returns:
            The reason; "" if it was the reduction of a gradient that failed, before its step, the
            optimizer has counted the steps, and all values change in steps only.
        """
        if not tf.executing_eagerly():
            return "of a TF1-style graph nobody knows which steps were applied"
        if len(self._counts) != 1:
            return "the state has no count of an optimizer's steps among its variables, or several"
        return self._foreign() or gradient_calls.obstacle_after(error)

    def save(self) -> None:
        """Copies all values, for `restore`."""
        self._saved_values = self._values()
        super().save()

    def restore(self) -> None:
        """Goes back to the last saved values, in place for variables."""
        if tf.executing_eagerly():
            with self._taking_values():
                for variable, value in zip(self.variables, self._saved_values, strict=True):
                    variable.assign(value)
        else:
            self._run(self._assign, dict(zip(self._placeholders, self._saved_values, strict=True)))
        super().restore()

    @with_own_errors
    def sync(self) -> None:
        """Gives all ranks the values of rank 0, and saves them. Every rank calls it."""
        if tf.executing_eagerly():
            with self._taking_values():
                broadcast_variables(self.variables, root_rank=0)
        else:
            self._run(self._broadcast)
        super().sync()
        self._saved_values = self._values()  # once all is shared: what is saved fits together


class TensorFlowKerasState(_OwnErrors, ModelState):
    """A Keras model, its optimizer, and plain objects as attributes."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """Makes a state that is committed with the values given.

        Args:
            model: A model that has been built.
            optimizer: Its optimizer; the one that the model was compiled with if None.
            backend: Accepted for Horovod's sake; not used.
            kwargs: The objects.

        Raises:
            ValueError: The model has no variables yet.
        """
        del backend
        if not model.built:
            raise ValueError(
                "TensorFlowKerasState needs a model that is built: call model.build() or the model."
            )
        self.model = model
        self.optimizer = optimizer if optimizer is not None else model.optimizer
        # All ranks must have the same variables before the first step makes them.
        _build(self.optimizer, model.trainable_variables)
        self._saved_values = self._values()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def _variables(self) -> list[Any]:
        optimizer: Any = self.optimizer
        own: Any = [] if optimizer is None else optimizer.variables
        if isinstance(own, Callable):  # type: ignore[arg-type]
            own = own()
        return [*self.model.weights, *own]

    def _count(self) -> int:
        """Reads the optimizer's count; 0 without an optimizer."""
        return 0 if self.optimizer is None else int(variable_of(self.optimizer.iterations).numpy())

    def _values(self) -> list[Any]:
        return [variable_of(variable).numpy() for variable in self._variables()]

    def save(self) -> None:
        """Copies all values, for `restore`."""
        self._saved_values = self._values()
        super().save()

    def restore(self) -> None:
        """Goes back to the last saved values, in place.

        Of a step of several backward passes the ranks begin with the first.
        """
        begin_step(self.optimizer)
        with self._taking_values():
            for variable, value in zip(self._variables(), self._saved_values, strict=True):
                variable.assign(value)
        super().restore()

    @with_own_errors
    def sync(self) -> None:
        """Gives all ranks the values of rank 0, and saves them. Every rank calls it."""
        begin_step(self.optimizer)
        with self._taking_values():
            broadcast_variables(self._variables(), root_rank=0)
        super().sync()
        self._saved_values = self._values()  # once all is shared: what is saved fits together


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the variables of an optimizer of Keras 3 or of tf_keras, unless it has them."""
    if hasattr(optimizer, "_create_all_weights"):  # of tf_keras.optimizers.legacy
        optimizer._create_all_weights(variables)
    elif hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        optimizer.build(variables)  # also where the optimizer does not say whether it is built
