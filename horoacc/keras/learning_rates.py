"""Learning rates that change while a model is trained.

Momentum is corrected as in P. Goyal et al., "Accurate, Large Minibatch SGD" (2017): the velocity
holds steps of the old rate, so that for one batch the momentum is multiplied by new rate / old.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras

from horoacc import basics
from horoacc.keras import callback, legacy


class LearningRateScheduleCallback(callback.Callback):
    """Sets the learning rate to `initial_lr` times a factor, in some epochs."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Makes the callback.

        Args:
            initial_lr: The rate that the factor multiplies.
            multiplier: The factor, or a function of the epoch that gives it.
            start_epoch: The first epoch to set the rate in.
            end_epoch: The first epoch not to; None to go on to the end.
            staircase: Set it at the beginning of each epoch, not at every batch with an epoch
                that grows by fractions.
            momentum_correction: Whether to correct the optimizer's momentum.
            steps_per_epoch: The number of batches, if Keras does not know it.

        Raises:
            ValueError: There is no initial rate.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._momentum: _Momentum | None = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            factor = float(multiplier)
            self.staircase = True
            self.multiplier = lambda epoch: factor

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the optimizer's parameters and the number of batches.

        Raises:
            ValueError: The number of batches is not known, or the optimizer follows a schedule.
        """
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the "
                    f"steps_per_epoch parameter to the {type(self).__name__}()."
                )
        optimizer = _innermost(self.model.optimizer)
        if legacy.is_legacy(optimizer):
            settable = legacy.schedule_of(optimizer) is None
        else:
            settable = isinstance(getattr(optimizer, "_learning_rate", None), keras.Variable)
        if not settable:
            raise ValueError(
                f"{type(self).__name__} cannot set the learning rate of this optimizer, which "
                "was made with a schedule or a function: make it with a number."
            )
        if self.momentum_correction and getattr(optimizer, "momentum", None):
            self._momentum = _Momentum(self.model, optimizer)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate, if it is time."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._adjust(epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(epoch)

    def _adjust(self, epoch: float) -> None:
        old = self._rate()
        new = self.initial_lr * self.multiplier(epoch)
        self.model.optimizer.learning_rate = new
        if self._momentum is not None and old > 0:
            self._momentum.multiply(new / old)

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Gives the momentum its own value again."""
        if self._momentum is not None:
            self._momentum.restore()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the rate to the logs, as `lr`."""
        if logs is not None:
            logs["lr"] = self._rate()


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` over the first epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Makes the callback.

        Args:
            initial_lr: The rate to reach, usually that of one rank times the number of ranks.
            warmup_epochs: How many epochs it takes.
            momentum_correction: Whether to correct the optimizer's momentum.
            steps_per_epoch: The number of batches, if Keras does not know it.
            verbose: Whether to print when the rate is reached.
        """

        def multiplier(epoch: float) -> float:
            # At the end of the batches that are about to run, so that an epoch ends at a round
            # number.
            assert self.steps_per_epoch
            run = _batches_at_once(self.model) / self.steps_per_epoch
            epoch = min(epoch + run, math.floor(epoch) + 1)
            return (epoch * (basics.size() - 1) / warmup_epochs + 1) / basics.size()

        super().__init__(
            initial_lr, multiplier, start_epoch=0, end_epoch=warmup_epochs,  # type: ignore[arg-type]
            staircase=False, momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )  # fmt: skip
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the rate to the logs, and says when it is reached."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}."
            )


def _batches_at_once(model: Any) -> int:
    """How many batches a model runs for one call of the callbacks."""
    known = getattr(model, "steps_per_execution", None)
    return known if isinstance(known, int) else 1


def _innermost(optimizer: Any) -> Any:
    """The optimizer inside a loss-scaling one."""
    return getattr(optimizer, "inner_optimizer", optimizer)


class _Live(float):
    """A number that graphs of TensorFlow read from a variable: they keep plain numbers for good."""

    variable: Any
    dtype = float
    """The type by which Keras promotes a number."""

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        import tensorflow as tf  # noqa: PLC0415 - only TensorFlow calls this

        del name
        return tf.cast(self.variable, dtype or tf.float32)


class _Momentum:
    """The momentum of an optimizer, which may be changed between batches."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._usual = float(optimizer.momentum)
        self._variable: Any = None
        self._changed = False
        # Optimizers of tf_keras.optimizers.legacy have it in a variable already.
        if keras.backend.backend() == "tensorflow" and not hasattr(optimizer, "_hyper"):
            known = getattr(optimizer.momentum, "variable", None)
            if known is None:
                import tensorflow as tf  # noqa: PLC0415 - Keras has imported it

                known = tf.Variable(self._usual, trainable=False, dtype=tf.float64)
                # A function that was traced before keeps the old number in its graph.
                model.train_function = None
            self._variable = known
            self._set(self._usual)
            model.make_train_function()

    def _set(self, value: float) -> None:
        if self._variable is None:
            self._optimizer.momentum = value
            return
        self._variable.assign(value)
        live = _Live(value)
        live.variable = self._variable
        self._optimizer.momentum = live

    def multiply(self, factor: float) -> None:
        """Multiplies it, until `restore`."""
        self._changed = True
        self._set(self._usual * factor)

    def restore(self) -> None:
        """Undoes `multiply`."""
        if self._changed:
            self._changed = False
            self._set(self._usual)
