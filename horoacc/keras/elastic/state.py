"""The state of training with Keras."""

from __future__ import annotations

from typing import Any

import keras

from horoacc import basics
from horoacc.backward_passes import begin_step
from horoacc.elastic.state import ModelState
from horoacc.keras import backend
from horoacc.keras.optimizer_state import variables_of
from horoacc.objects import broadcast_object


class KerasState(ModelState):
    """A model, its optimizer and plain objects as attributes, each with a committed copy.

    Attributes:
        model: The model.
        optimizer: The optimizer.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Makes a state that is committed with the values given.

        Args:
            model: A model. One that is not built yet is saved and shared from when it is.
            optimizer: Its optimizer; by default the one that it was compiled with.
            kwargs: More values, as for `ObjectState`.
        """
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self._saved_values: list[Any] = []
        self._save_values()
        super().__init__(bcast_object=broadcast_object, get_rank=basics.rank, **kwargs)

    def _variables(self) -> list[Any]:
        """The variables that training changes, in the order of the saved values."""
        if not self.model.built:
            return []
        return [*self.model.weights, *variables_of(self.optimizer, self.model)]

    def _save_values(self) -> None:
        # A copy, because an array may share a tensor's memory.
        self._saved_values = [
            keras.ops.convert_to_numpy(variable).copy() for variable in self._variables()
        ]

    def _count(self) -> int:
        """Reads the optimizer's count; 0 without an optimizer, or before the model is built."""
        if self.optimizer is None or not self.model.built:
            return 0
        return int(keras.ops.convert_to_numpy(self.optimizer.iterations))

    def save(self) -> None:
        """Copies all values, for `restore`."""
        self._save_values()
        super().save()

    def restore(self) -> None:
        """Goes back to the last saved values, in place for model and optimizer.

        Of a step of several backward passes the ranks begin with the first.
        """
        begin_step(self.optimizer)
        if self._saved_values:
            with self._taking_values():
                for variable, value in zip(self._variables(), self._saved_values, strict=True):
                    variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of rank 0, and saves them. Every rank calls it.

        Raises:
            ValueError: This rank's model or optimizer has other variables than rank 0's.
        """
        begin_step(self.optimizer)
        variables = self._alike()
        own = backend.current()
        if variables:
            with self._taking_values():
                own.with_own_errors(own.broadcast_variables)(variables, 0, "keras.state")
        super().sync()
        self._save_values()  # once all is shared: what is saved fits together

    def _alike(self) -> list[Any]:
        """The variables, where rank 0's model was built by training that this rank has not seen."""
        variables = self._variables()
        config = self.model.get_build_config() if self.model.built else None
        config, count = self._bcast_object((config, len(variables)))
        if config and not self.model.built:
            self.model.build_from_config(config)
            variables = self._variables()
        if len(variables) != count:
            raise ValueError(
                f"KerasState: the model and the optimizer have {len(variables)} variables here and "
                f"{count} on rank 0. Build the model on all ranks before the state is shared: give "
                "it an Input, or call it once."
            )
        return variables

    def on_reset(self) -> None:
        """As `State.on_reset`; the callbacks may train."""
        backend.current().with_own_errors(super().on_reset)()
