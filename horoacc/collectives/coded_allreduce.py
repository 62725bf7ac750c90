"""Allreduce of vectors that travel encoded: encoded vectors cannot be added up.

Each rank encodes its vector in as many parts as there are ranks and sends part r to rank r, which
decodes and adds them, encodes the sum and sends it to all. Whatever the number of ranks, a rank
receives two encoded vectors' worth. The rank that encodes keeps the loss of the encoding and adds
it the next time (F. Seide et al., "1-Bit Stochastic Gradient Descent", 2014; both sides of the
exchange as in H. Tang et al., "1-bit Adam", 2021).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from horoacc import process
from horoacc.collectives.calls import ALLTOALL, check_factors, member_names, part_name, resolve_op
from horoacc.collectives.exchanges import Exchanges
from horoacc.collectives.numpy_tensors import numpy_tensors
from horoacc.collectives.tensors import Tensors
from horoacc.collectives.validation_errors import validating
from horoacc.compression import Codec
from horoacc.dtypes import Average, Sum
from horoacc.handles import result
from horoacc.process_sets import ProcessSet, number_of
from horoacc.reduction import Scaling

Numbers = npt.NDArray[np.float32]
_exchanges: Exchanges[Any] = Exchanges(lambda _: numpy_tensors)


class ErrorFeedback:
    """The losses of encoding, by vector, of one process set."""

    def __init__(self) -> None:
        self._sent: dict[Hashable, Numbers] = {}
        self._summed: dict[Hashable, Numbers] = {}

    def add_sent(self, key: Hashable, values: Numbers) -> Numbers:
        """Adds the last loss of this rank's vector to it."""
        return _sum(values, self._sent.get(key))

    def add_summed(self, key: Hashable, values: Numbers) -> Numbers:
        """Adds the last loss of this rank's part of the sum to it."""
        return _sum(values, self._summed.get(key))

    def keep_sent(self, key: Hashable, lost: Numbers) -> None:
        """Keeps the loss of this rank's vector."""
        self._sent[key] = _finite(lost)

    def keep_summed(self, key: Hashable, lost: Numbers) -> None:
        """Keeps the loss of this rank's part of the sum."""
        self._summed[key] = _finite(lost)


def _sum(values: Numbers, lost: Numbers | None) -> Numbers:
    # A loss of another shape is dropped: the parameter or the process set has changed its size.
    return values if lost is None or lost.shape != values.shape else values + lost


def _finite(lost: Numbers) -> Numbers:
    """An overflow must not come back in every later step."""
    return np.where(np.isfinite(lost), lost, np.float32(0))


def _vector_names(name: str | None, count: int) -> list[str | None]:
    """The names of the vectors that a call makes of its tensors."""
    return [name] if count == 1 else [part_name(name, str(index)) for index in range(count)]


def validating_vectors(
    name: str | None, count: int, process_set: ProcessSet
) -> contextlib.AbstractContextManager[None]:
    """Sends a validation error, if its block raises, in place of the first call of every vector."""
    parts = (part_name(vector, "parts") for vector in _vector_names(name, count))
    first, *more = (member_names("alltoall", part)[0] for part in parts)
    return validating(ALLTOALL, first, process_set, *more)


class CodedAllreduce:
    """One allreduce of a vector on its way: `add` and the call follow the making."""

    def __init__(
        self,
        values: Numbers,
        codec: type[Codec],
        name: str | None,
        scaling: Scaling,
        process_set: ProcessSet,
        feedback: ErrorFeedback | None = None,
    ) -> None:
        """Encodes `values`, float32 of shape [n] on every rank, and starts sending the parts.

        The losses are kept in `feedback` by the call's name, or forgotten if it is None. ValueError
        if the reduction is neither Average nor Sum, or the name is in flight.
        """
        self._codec = codec
        self._name = name
        self._scaling = scaling
        self._process_set = process_set
        self._feedback = feedback
        self._counts: list[int] = []
        with validating_vectors(name, 1, process_set):
            codes = self._encode(values)
        self._handle = _exchanges.alltoall_async(
            np.concatenate(codes), [code.size for code in codes], part_name(name, "parts"),
            process_set,
        )  # fmt: skip
        self._added = False
        self._failure: Exception | None = None

    def _encode(self, values: Numbers) -> list[Any]:
        """Encodes the part of each rank, and notes how long it is."""
        codec, name, feedback = self._codec, self._name, self._feedback
        if self._scaling.op not in (Average, Sum):
            raise ValueError(f"{codec.__name__} travels with Average and Sum only.")
        process.position()
        number_of(self._process_set)
        ranks = self._process_set.size() or 1
        each, more = divmod(values.size, ranks)
        self._counts = [each + (rank < more) for rank in range(ranks)]
        if self._scaling.prescale != 1.0:
            values = values * np.float32(self._scaling.prescale)
        if feedback is not None:
            values = feedback.add_sent(name, values)
        parts = np.split(values, np.cumsum(self._counts)[:-1])
        codes = [codec.encode(part) for part in parts]
        if feedback is not None:
            decoded = [codec.decode(*pair) for pair in zip(codes, self._counts, strict=True)]
            feedback.keep_sent(name, values - np.concatenate(decoded))
        return codes

    def add(self) -> None:
        """Waits for the parts, adds them and starts sending the sum. A second call does nothing.

        An error is kept for the call that asks for the result, which the caller must make.
        """
        if self._added:
            return
        try:
            received, _ = result(self._handle)
        except Exception as error:  # the calls of the other vectors must end too
            self._added = True
            self._failure = error
            return
        self._added = True
        count = self._counts[self._process_set.rank() or 0]
        total: Any = np.zeros(count, np.float32)
        for code in np.split(received, len(self._counts)):
            total += self._codec.decode(code, count)
        factor = self._scaling.postscale
        if self._scaling.op == Average:
            factor /= len(self._counts)
        total *= np.float32(factor)
        if self._feedback is not None:
            total = self._feedback.add_summed(self._name, total)
        code = self._codec.encode(total)
        if self._feedback is not None:
            self._feedback.keep_summed(self._name, total - self._codec.decode(code, count))
        self._handle = _exchanges.allgather_async(
            code, part_name(self._name, "sum"), self._process_set
        )

    def __call__(self) -> Numbers:
        """Waits for the result: float32 of shape [n], the same bits on every rank."""
        self.add()
        if self._failure is not None:
            raise self._failure
        gathered = result(self._handle)
        ends = np.cumsum([self._codec.encoded_bytes(count) for count in self._counts])
        parts = np.split(gathered, ends[:-1])
        return np.concatenate(
            [self._codec.decode(*pair) for pair in zip(parts, self._counts, strict=True)]
        )


def allreduce_coded(
    choose: Callable[[Any], Tensors],
    tensors: Sequence[Any],
    codec: Any,
    name: str | None,
    op: int | None,
    average: bool | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
) -> list[Any] | None:
    """Reduces tensors that are not sent again, so that losses of the encoding are not kept.

    Gives None, and has sent nothing, if a tensor is not of real floating-point numbers: then they
    travel as they are.
    """
    with validating_vectors(name, len(tensors), process_set):
        scaling = Scaling(resolve_op(op, average), *check_factors(scales))
        kind = choose(tensors[0])
        vectors = [kind.numbers(tensor) for tensor in tensors]
    known = [vector for vector in vectors if vector is not None]
    if len(known) < len(vectors):
        return None
    # The other ranks make every call: after an error of one vector this rank makes the rest too,
    # and frees their names.
    failures: list[Exception] = []
    started = []
    for vector, part in zip(known, _vector_names(name, len(tensors)), strict=True):
        try:
            started.append(CodedAllreduce(vector, codec, part, scaling, process_set))
        except Exception as error:
            failures.append(error)
    for flight in started:
        flight.add()
    reduced = []
    for flight in started:
        try:
            reduced.append(flight())
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return [kind.of_numbers(numbers, like) for numbers, like in zip(reduced, tensors, strict=True)]
