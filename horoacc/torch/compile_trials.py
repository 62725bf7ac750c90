"""Steps of a model, eager and compiled: run, compared, and timed in turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_SAMPLE_SECONDS = 0.005
"""A shorter step is repeated within a sample: the clock and the call itself take microseconds."""
_TOLERANCES = {
    torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2,
}  # fmt: skip
"""By type: how far a compiled tensor may be from eager's, as a part of eager's norm. Compilers fuse
and reorder, so that each element is off by some units in the last place, more in deep networks.
"""
_NEXT_TO_NOTHING = 1e-2
"""A tensor whose norm is a smaller part of the norm of them all is mostly rounding errors, as the
gradient of a bias before a batch normalization is; it is compared with this part.
"""


class Way:
    """The model as it is, or some of its modules compiled by a back end."""

    def __init__(self, backend: str, modules: Sequence[nn.Module], name: str) -> None:
        self.name = name
        self.backend = backend
        self._modules = list(modules)
        self._calls: list[Callable[..., Any]] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Runs the model this way inside."""
        self.install()
        try:
            yield
        finally:
            uninstall(self._modules)

    def install(self, watch: Callable[[Callable[..., Any], nn.Module], Any] | None = None) -> None:
        """Runs the model this way from now on.

        Args:
            watch: From the compiled call and its module to what is called instead.
        """
        if not self._calls:
            self._calls = [
                torch.compile(module._call_impl, backend=self.backend) for module in self._modules
            ]
        for module, call in zip(self._modules, self._calls, strict=True):
            module._compiled_call_impl = watch(call, module) if watch else call


def uninstall(modules: Sequence[nn.Module]) -> None:
    """Runs modules eagerly."""
    for module in modules:
        module._compiled_call_impl = None


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers that the model repeats: what its lists of modules of one class hold."""
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
            kinds = {type(layer) for layer in module}
            inside = any(layer in found for layer in module)
            # A layer of torch's own is too little to compile by itself.
            own = all(kind.__module__.startswith("torch.nn.") for kind in kinds)
            if len(kinds) == 1 and not inside and not own:
                found += module
    return found


class Steps:
    """Runs steps of a model without a trace: gradients, buffers and random numbers stay."""

    def __init__(
        self, model: nn.Module, batches: Sequence[Any], loss: Callable[[Any], Tensor] | None,
        optimizer: Any,
    ) -> None:  # fmt: skip
        self._model = model
        self._batches = batches
        self._loss = loss or _loss_of
        self._optimizer = optimizer
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._backward = torch.is_grad_enabled() and bool(self._trained)

    @contextlib.contextmanager
    def untraced(self) -> Iterator[None]:
        """Leaves the model, its gradients and the generators as they were."""
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        gradients = [
            (p, None if p.grad is None else p.grad.clone()) for p in self._trained
        ]  # fmt: skip
        try:
            with torch.random.fork_rng():
                yield
        finally:
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)
            if self._optimizer is not None:
                for p, gradient in gradients:
                    p.grad = gradient

    def run(self, turn: int) -> None:
        """One step, with the reduction of its gradients if there is an optimizer."""
        output = self._forward(turn)
        if not self._backward:
            return
        if self._optimizer is None:
            # Neither the gradients nor the hooks of parameters notice.
            torch.autograd.grad(self._loss(output), self._trained, allow_unused=True)
        else:
            self._optimizer.zero_grad()
            torch.autograd.backward(self._loss(output))
            self._optimizer.synchronize()

    def seconds(self, turn: int, repeats: int) -> float:
        """The time of one step, by some of them; work that a GPU still has to do counts."""
        _finish()
        began = time.perf_counter()
        for _ in range(repeats):
            self.run(turn)
        _finish()
        return (time.perf_counter() - began) / repeats

    def repeats(self) -> int:
        """How many eager steps a sample needs."""
        self.run(0)
        return max(1, round(_SAMPLE_SECONDS / max(self.seconds(0, 1), 1e-6)))

    def tensors(self, batch: int) -> list[Tensor]:
        """What a step gives: the tensors of the output, and the gradients."""
        with self.untraced():
            torch.manual_seed(0)
            return self._tensors(batch)

    def _tensors(self, batch: int) -> list[Tensor]:
        output = self._forward(batch)
        found = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        if self._backward:
            grads = torch.autograd.grad(self._loss(output), self._trained, allow_unused=True)
            found += [torch.zeros(()) if grad is None else grad for grad in grads]
        return [tensor.detach().clone() for tensor in found]

    def _forward(self, turn: int) -> Any:
        batch = self._batches[turn % len(self._batches)]
        if isinstance(batch, Mapping):
            return self._model(**batch)
        return self._model(*batch) if isinstance(batch, tuple) else self._model(batch)

    @contextlib.contextmanager
    def repeatable(self) -> Iterator[bool]:
        """Gives whether steps do the same whatever the seed is, with less and less at random.

        Compiled functions draw other random numbers than eager ones. So dropout is off inside, if
        that is needed and enough, or the model is in the mode of evaluation.
        """
        dropout = [m for m in self._model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        for quiet in ([], dropout, list(self._model.modules())):
            modes = [(module, module.training) for module in quiet]
            try:
                for module, _ in modes:
                    module.training = False
                if self._is_repeatable():
                    yield True
                    return
            finally:
                for module, training in modes:
                    module.training = training
        yield False

    def _is_repeatable(self) -> bool:
        with self.untraced():
            torch.manual_seed(1)
            other = self._tensors(0)
        return difference(self.tensors(0), other) == ""


def _loss_of(output: Any) -> Tensor:
    """The output's own loss, or the mean of the squares of all that it has of real numbers."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    means = [
        leaf.float().square().mean()
        for leaf in pytree.tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_complex()
    ]
    if not means:
        raise ValueError("the model's output has no gradient: give `loss`, from output to loss")
    return torch.stack(means).sum()


def difference(ours: Sequence[Tensor], eager: Sequence[Tensor]) -> str:
    """Says where tensors are not eager's within the tolerance of their types; "" if they are."""
    if len(ours) != len(eager):
        return f"{len(ours)} tensors instead of {len(eager)}"
    norms = [_norm(tensor) for tensor in eager]
    whole = sum(norm**2 for norm in norms) ** 0.5
    for index, (one, other, norm) in enumerate(zip(ours, eager, norms, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return (
                f"tensor {index} is {one.dtype} {tuple(one.shape)}, "
                f"not {other.dtype} {tuple(other.shape)}"
            )
        tolerance = _TOLERANCES.get(other.dtype)
        if tolerance is None:
            if not torch.equal(one, other):
                return f"tensor {index} ({other.dtype}) differs"
            continue
        off = _norm(one.double() - other.double())
        allowed = tolerance * max(norm, _NEXT_TO_NOTHING * whole)
        if not off <= allowed:  # also where eager has NaN, which nothing can be compared with
            return (
                f"tensor {index} ({other.dtype} {tuple(other.shape)}) is off by a norm of "
                f"{off:.3g}, and {allowed:.3g} is allowed"
            )
    return ""


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm()) if tensor.is_floating_point() else 0.0


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
