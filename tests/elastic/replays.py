"""Optimizers in NumPy and float64, with which tests replay what elastic jobs trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import adasum
from regression import ADAM, LBFGS_ITERATIONS, LBFGS_RATE, MOMENTUM, RATE, Batch


class Sgd:
    """With momentum."""

    def __init__(self) -> None:
        self.moment: Any = 0.0

    def step(self, weights: Any, batch: Batch) -> Any:
        """Gives the weights after a step."""
        self.moment = MOMENTUM * self.moment + batch.gradients(weights).mean(axis=0)
        return weights - RATE * self.moment

    def led_by(self, rank: int | None) -> None:
        """A new epoch begins, with the state of this rank of the one before, if it had a place."""


class Adam(Sgd):
    """As torch has it; Keras adds epsilon before the bias is corrected."""

    def __init__(self, of_keras: bool) -> None:
        self.of_keras = of_keras
        self.number, self.moment, self.square = 0, 0.0, 0.0

    def step(self, weights: Any, batch: Batch) -> Any:
        """Gives the weights after a step."""
        gradient = batch.gradients(weights).mean(axis=0)
        rate, one, two, epsilon = ADAM.values()
        self.number += 1
        self.moment = one * self.moment + (1 - one) * gradient
        self.square = two * self.square + (1 - two) * gradient**2
        root = np.sqrt(1 - two**self.number)
        spread = np.sqrt(self.square) / root + epsilon / (root if self.of_keras else 1)
        return weights - rate / (1 - one**self.number) * self.moment / spread


class Adasum(Sgd):
    """Each rank makes a step of SGD with a momentum of its own, and Adasum combines the steps."""

    def __init__(self) -> None:
        self.moments: list[Any] = [0.0]

    def step(self, weights: Any, batch: Batch) -> Any:
        """Gives the weights after a step."""
        own = batch.gradients(weights)
        if len(self.moments) == 1:  # that of the rank which leads
            self.moments *= len(own)
        self.moments = [MOMENTUM * m + g for m, g in zip(self.moments, own, strict=True)]
        return weights + adasum([-RATE * moment for moment in self.moments])

    def led_by(self, rank: int | None) -> None:
        """All ranks of the new epoch get the momentum of its rank 0."""
        assert rank is not None, "nobody of the epoch before leads"
        self.moments = [self.moments[rank]]


class Lbfgs(Sgd):
    """The two-loop recursion without a line search (J. Nocedal and S. Wright, "Numerical
    Optimization", 2006, algorithm 7.4), with the first step and the tolerances of torch's.

    A step is of LBFGS_ITERATIONS, each with the gradient of all ranks at the weights so far.
    """

    GRADIENT, CHANGE, HISTORY = 1e-7, 1e-9, 100
    EVALUATIONS = LBFGS_ITERATIONS * 5 // 4

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []  # changes of the weights, and of the gradient
        self.scale = 1.0
        self.last: tuple[Any, Any] | None = None  # the last change and the gradient before it

    def step(self, weights: Any, batch: Batch) -> Any:
        """Gives the weights after a step."""
        gradient = batch.gradients(weights).mean(axis=0)
        for number in range(1, LBFGS_ITERATIONS + 1):
            if np.abs(gradient).max() <= self.GRADIENT:
                break
            direction = self._direction(gradient)
            first = self.last is None
            change = LBFGS_RATE * direction * (min(1.0, 1 / np.abs(gradient).sum()) if first else 1)
            self.last = change, gradient
            if gradient @ direction > -self.CHANGE:
                break
            before, weights = weights, weights + change
            gradient = batch.gradients(weights).mean(axis=0)
            if (
                number + 1 >= self.EVALUATIONS
                or np.abs(change).max() <= self.CHANGE
                or abs(batch.loss(weights) - batch.loss(before)) < self.CHANGE
            ):
                break
        return weights

    def _direction(self, gradient: Any) -> Any:
        if self.last is not None:
            moved, before = self.last
            changed = gradient - before
            if changed @ moved > 1e-10:
                self.pairs = [*self.pairs, (moved, changed)][-self.HISTORY :]
                self.scale = (changed @ moved) / (changed @ changed)
        q, factors = -gradient, []
        for moved, changed in reversed(self.pairs):
            factors.append(moved @ q / (changed @ moved))
            q = q - factors[-1] * changed
        q = self.scale * q
        for (moved, changed), factor in zip(self.pairs, reversed(factors), strict=True):
            q = q + moved * (factor - changed @ q / (changed @ moved))
        return q
