"""`optimize`: runs a model the quickest way, eager or by a back end of torch.compile."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from horoacc import process, trials
from horoacc.dtypes import Max
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.torch import ops
from horoacc.torch.compile_trials import Steps, Way, blocks_of, difference, uninstall
from horoacc.torch.functions import allgather_object, broadcast_object

EAGER = "eager"
_MOST_ROUNDS = 60
_NEEDS = {"openxla": "torch_xla", "tvm": "tvm"}
"""Packages without which back ends that torch lists cannot work."""
_KIND = "compile"
_log = logging.getLogger("horoacc.torch")

Model = TypeVar("Model", bound=nn.Module)


def optimize(
    model: Model,
    batch: Any,
    loss: Callable[[Any], Tensor] | None = None,
    *,
    optimizer: Any = None,
    backends: Sequence[str] | None = None,
    seconds: float = 10.0,
    process_set: ProcessSet = global_process_set,
) -> Model:
    """Runs a model the quickest way from now on: eager, or compiled by a back end of torch.compile.

    It runs forward and backward passes on real batches, eager and compiled in turns, at least
    twelve pairs. Eager stays unless the interval of the ratios of the pairs lies below 1. A back
    end that fails, or whose output or gradients are not eager's, is left out, and a line of the
    logger `horoacc.torch` says why. The choice is remembered for this model, these shapes, this
    version of torch and this machine; a later call only checks the numbers again. Parameters,
    gradients, buffers and random numbers are afterwards what they were. All ranks of the process
    set must call it, the slowest of them counts, and they choose alike.

    Args:
        model: The model, in the mode (`train()` or `eval()`) and on the device where it is to run.
            It is compiled in place, and keeps its class and the names of its parameters.
        batch: What it is called with: a tensor, a tuple of arguments, a dict of keywords; or a list
            of such batches.
        loss: From the model's output to the loss. None: the output's attribute or key `loss`, else
            the mean of its squares.
        optimizer: A `DistributedOptimizer` of the model's parameters. Then steps include the
            reduction of the gradients, and compiling block by block is tried too: a model that is
            compiled as a whole hands over its gradients at its end.
        backends: Back ends to try, by name. None: those of `torch.compiler.list_backends()` whose
            packages are there.
        seconds: How long the trials may take, without compilation.
        process_set: The ranks that choose together. Not initialized: this process alone.

    Returns:
        The model.

    Raises:
        ValueError: There is no batch, the model's output has no gradient and no `loss` was given,
            or the model is wrapped by torch's DistributedDataParallel.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("optimize() takes the model that DistributedDataParallel is to wrap")
    batches = batch if isinstance(batch, list) else [batch]
    if not batches:
        raise ValueError("optimize() needs at least one batch")
    uninstall(list(model.modules()))
    ranks = _Ranks(process_set)
    steps = Steps(model, batches, loss, optimizer)
    found = ranks.of_first(lambda: _backends(backends, model))
    ways = _ways(model, found, optimizer is not None and ranks.several)
    name = trials.key(
        _KIND, torch.__version__, _shape_of(model, batches), [way.name for way in ways],
        ranks.count, optimizer is not None, torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_num_threads(),
    )  # fmt: skip
    with steps.untraced():
        # What eager cannot do is an error of the script's, and a lazy model becomes whole here.
        steps.run(0)
        known = ranks.of_first(lambda: trials.recall(os.environ, _KIND, name))
        chosen = _known(known, ways) if known else None
        if chosen is not None:
            ways = [way for way in ways if way.name == chosen]
        good, for_good = _right(ways, steps, len(batches), ranks)
        if chosen is None:
            chosen, of_eager = _quickest(good, steps, seconds, ranks)
            if for_good:
                choice = {"way": chosen, "of_an_eager_step": of_eager, "torch": torch.__version__}
                ranks.remember(name, choice)
        elif chosen == EAGER:
            ranks.say(logging.INFO, "the model stays eager, as earlier trials of it have found")
    for way in good:
        if way.name == chosen:
            way.install(_watched)
            ranks.say(logging.INFO, f"the model runs by {chosen}")
    return model


class _Failure(NamedTuple):
    """Why a way is left out; without a text it is not."""

    text: str = ""
    may_pass: bool = False
    """Something was raised, such as for a missing compiler: another run may do better."""


class _Ranks:
    """The ranks that choose alike; without a job, this process."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._set = process_set
        inside = process.entered() and bool(process_set.included())
        self.count = (process_set.size() or 1) if inside else 1
        self.several = self.count > 1
        self._first = process_set.rank() == 0 if inside else True

    def of_first(self, make: Callable[[], Any]) -> Any:
        """What the first rank makes."""
        made = make() if self._first else None
        if not self.several:
            return made
        root = (self._set.ranks or [0])[0]
        return broadcast_object(made, root, name="optimize.known", process_set=self._set)

    def largest(self, values: Tensor) -> Tensor:
        """Element by element, the largest of all ranks."""
        if not self.several:
            return values
        return ops.allreduce(values, op=Max, name="optimize.times", process_set=self._set)

    def first_failure(self, own: _Failure) -> _Failure:
        """That of the first rank that has one; a text of none says that there is none."""
        if not self.several:
            return own
        told = allgather_object(own, name="optimize.failures", process_set=self._set)
        return next((_Failure(f"rank {r}: {t}", p) for r, (t, p) in enumerate(told) if t), own)

    def say(self, level: int, text: str) -> None:
        if self._first:
            _log.log(level, "%s", text)

    def remember(self, name: str, choice: dict[str, Any]) -> None:
        if self._first:
            try:
                trials.remember(os.environ, _KIND, name, choice)
            except OSError as error:
                _log.warning("the choice is not remembered: %s", error)


def _backends(given: Sequence[str] | None, model: nn.Module) -> list[str]:
    if given is not None:
        return [name for name in dict.fromkeys(given) if name != EAGER]
    found = []
    for name in torch.compiler.list_backends():
        package = _NEEDS.get(name)
        on_gpu = any(p.is_cuda for p in model.parameters())
        if (package is None or importlib.util.find_spec(package)) and (
            on_gpu or name != "cudagraphs"
        ):
            found.append(name)
    return found


def _ways(model: nn.Module, backends: Sequence[str], by_block: bool) -> list[Way]:
    ways = [Way(backend, [model], backend) for backend in backends]
    blocks = blocks_of(model) if by_block else []
    return ways + [Way(name, blocks, f"{name}, block by block") for name in backends if blocks]


def _shape_of(model: nn.Module, batches: Sequence[Any]) -> str:
    """A text of what the time of a step depends on: code, structure, and the shapes of tensors."""
    code = hashlib.sha256()
    for kind in sorted({type(module) for module in model.modules()}, key=repr):
        code.update(repr(kind).encode())
        code.update(getattr(getattr(kind.forward, "__code__", None), "co_code", b""))
    tensors = [(n, t) for n, t in (*model.named_parameters(), *model.named_buffers())]
    inputs = list(enumerate(pytree.tree_leaves(list(batches))))
    shapes = [
        (str(at), str(t.dtype), str(t.device), list(t.shape), t.requires_grad)
        if isinstance(t, Tensor) and not nn.parameter.is_lazy(t)
        else (str(at), type(t).__name__)
        for at, t in (*tensors, *inputs)
    ]
    return f"{model!r} {model.training} {code.hexdigest()} {shapes}"


def _known(known: dict[str, Any], ways: Sequence[Way]) -> str | None:
    name = known.get("way")
    return name if name == EAGER or name in [way.name for way in ways] else None


def _right(
    ways: Sequence[Way], steps: Steps, batches: int, ranks: _Ranks
) -> tuple[list[Way], bool]:
    """Compiles, and gives the ways whose numbers are eager's on all ranks; and whether another run
    would find no others.
    """
    if not ways:
        return [], True
    good, for_good = [], True
    with steps.repeatable() as repeatable:
        own = _Failure("" if repeatable else "two eager steps in the mode of evaluation differ")
        if why := ranks.first_failure(own).text:
            ranks.say(
                logging.WARNING, f"the model stays eager: {why} (random numbers, or NaN), so that "
                "compiled numbers cannot be compared with eager ones",
            )  # fmt: skip
            return [], False
        eager = [steps.tensors(at) for at in range(batches)]
        for way in ways:
            failure = ranks.first_failure(_failure(functools.partial(_check, way, steps, eager)))
            if failure.text:
                ranks.say(logging.WARNING, f"{way.name} is left out: {failure.text}")
                for_good = for_good and not failure.may_pass
            else:
                good.append(way)
    return good, for_good


def _check(way: Way, steps: Steps, eager: Sequence[Sequence[Tensor]]) -> str:
    with way.installed():
        for at, expected in enumerate(eager):
            if why := difference(steps.tensors(at), expected):
                return f"on batch {at}, {why}"
    return ""


def _failure(attempt: Callable[[], str]) -> _Failure:
    try:
        return _Failure(attempt())
    except Exception as error:  # whatever a compiler raises
        return _Failure(_told(error), True)


def _told(error: Exception) -> str:
    """The first lines of an error's text; torch tells in the first only which back end it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join([f"{type(error).__name__}:", *lines[:2]])


def _quickest(
    ways: Sequence[Way], steps: Steps, seconds: float, ranks: _Ranks
) -> tuple[str, dict[str, list[float]]]:
    """Times the ways in turns; the name of the quickest, and each one's part of an eager step."""
    names = [EAGER, *(way.name for way in ways)]
    best, told = EAGER, {}
    if ways:
        times = _times(ways, steps, seconds, ranks)
        least = 1.0
        for index, way in enumerate(names[1:], 1):
            ratio = trials.ratios(times[index], times[0])
            told[way] = list(ratio)
            ranks.say(logging.INFO, f"{way} takes {ratio} of an eager step, {len(times[0])} pairs")
            if ratio.high < 1 and ratio.median < least:
                best, least = way, ratio.median
    if best == EAGER:
        ranks.say(logging.INFO, "the model stays eager: nothing is certain to be quicker")
    return best, told


def _times(ways: Sequence[Way], steps: Steps, seconds: float, ranks: _Ranks) -> list[list[float]]:
    """The times of the steps, eager ones first: of the slowest rank in each turn."""
    everything: list[Way | None] = [None, *ways]
    repeats = int(ranks.largest(torch.tensor([steps.repeats()], dtype=torch.float64))[0])
    for warming in range(2):
        took = sum(_seconds(way, steps, warming, repeats) for way in everything)
    took = float(ranks.largest(torch.tensor([took], dtype=torch.float64))[0])
    rounds = max(trials.LEAST, min(_MOST_ROUNDS, int(seconds / took) if took < seconds else 0))
    times = torch.zeros(len(everything), rounds, dtype=torch.float64)
    for turn in range(rounds):
        for place in range(len(everything)):
            index = (place + turn) % len(everything)  # nobody is always behind the same one
            times[index, turn] = _seconds(everything[index], steps, turn, repeats)
    slowest: list[list[float]] = ranks.largest(times).tolist()
    return slowest


def _seconds(way: Way | None, steps: Steps, turn: int, repeats: int) -> float:
    if way is None:
        return steps.seconds(turn, repeats)
    try:
        with way.installed():
            return steps.seconds(turn, repeats)
    except Exception as error:
        _log.warning("%s fails in a trial: %s", way.name, _told(error))
        steps.seconds(turn, repeats)  # the other ranks may wait for this rank's gradients
        return float("inf")


def _watched(call: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """A compiled call that gives way to eager when it cannot be compiled for another shape."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            _log.warning("%s runs eagerly from now on: %s", type(module).__name__, _told(error))
            module._compiled_call_impl = None
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    return run
