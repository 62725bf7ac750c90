"""`DistributedOptimizer`: hooks that hand over each gradient as autograd produces it.

What to do with a gradient is decided in `horoacc.reduction`; here are only torch's side of it: the
hooks, the tensors, and the optimizer's methods.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from horoacc import _core, basics, reduction
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Adasum, Average
from horoacc.process_sets import ProcessSet, global_process_set, number_of
from horoacc.torch import _ops, gradient_hooks
from horoacc.torch.grad_scaler import teach_grad_scaler
from horoacc.torch.gradient_hooks import GradientHooks
from horoacc.torch.ops import sparse_allreduce_async
from horoacc.torch.tensors import torch_tensors

# How to take each parameter's hook off. A parameter has one: a later optimizer's takes the place of
# an earlier's.
_take_off: Any = WeakIdKeyDictionary()


class _Member(NamedTuple):
    """One gradient on its way."""

    param: torch.Tensor
    sent: torch.Tensor
    """What is reduced in place: the gradient itself, or a compressed or dense copy."""
    context: Any


class _Flight(NamedTuple):
    """One submission: an engine's handle, or a function for a sparse gradient."""

    engine: Any
    handle: Any
    members: Sequence[_Member]


class _DistributedOptimizer(torch.optim.Optimizer):
    """Mixed in before a torch optimizer's class: reduces the gradients before each step."""

    def _distribute(
        self,
        named_parameters: Any,
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: Any,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.op = op
        self.process_set = process_set
        self.sparse_as_dense = sparse_as_dense
        self._compression = compression
        self._scaling = reduction.scaling(op, gradient_predivide_factor)
        named = self._named(named_parameters)
        self._parameter_names = {param: f"allreduce.{name}" for name, param in named}
        owned = [
            param for group in self.param_groups for param in group["params"]
            if param.requires_grad
        ]  # fmt: skip
        self._schedule = reduction.Schedule(
            reduction.partition(owned, groups=groups), backward_passes_per_step
        )
        self._flights: list[_Flight] = []
        self._native: GradientHooks | None = None
        self._sparse: set[torch.Tensor] = set()
        self._synchronized = False
        self._should_warn = False
        self._should_synchronize = True
        if self._reduces():
            _ops.attach()
            _ops.register_gradients(owned, compression)
            self._hook(owned)
            teach_grad_scaler(_DistributedOptimizer, "_synchronize_quietly")

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that one step accumulates."""
        return self._schedule.passes

    def _named(self, named_parameters: Any) -> list[tuple[str, torch.Tensor]]:
        if named_parameters is None:
            return [
                (f"noname.{index}.{position}", param)
                for index, group in enumerate(self.param_groups)
                for position, param in enumerate(group["params"])
            ]
        named = list(named_parameters)
        if any(not isinstance(item, tuple) for item in named):
            raise ValueError(
                "named_parameters should be a sequence of tuples (name, parameter), usually "
                "produced by model.named_parameters()."
            )
        reduction.check_names([name for name, _ in named])
        known = {id(param) for _, param in named}
        unnamed = [
            param for group in self.param_groups for param in group["params"]
            if id(param) not in known
        ]  # fmt: skip
        if unnamed:
            raise ValueError(
                "named_parameters was specified, but one or more model parameters were not named. "
                f"Python object ids: {', '.join(str(id(param)) for param in unnamed)}"
            )
        return named

    def _reduces(self) -> bool:
        return bool(self.process_set.included()) and (self.process_set.size() or 1) > 1

    def _hook(self, params: Sequence[torch.Tensor]) -> None:
        for param in params:
            if param in _take_off:
                _take_off[param]()
        simple = (
            self._compression is NoneCompressor
            and not self.sparse_as_dense
            and self._schedule.immediate
        )
        self._native = gradient_hooks.create(
            basics.engine(), number_of(self.process_set), self._scaling, params,
            [self._parameter_names[param] for param in params],
        ) if simple else None  # fmt: skip
        if self._native is not None:
            for param in params:
                _take_off[param] = self._native.remove
            return
        # Weak: the parameters outlive an optimizer that is replaced.
        reference = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._on_gradient(param)

        for param in params:
            register: Any = param.register_post_accumulate_grad_hook
            _take_off[param] = register(hook).remove

    def _native_hooks(self) -> GradientHooks | None:
        """The hooks in C++, if they are in use."""
        return self._native if self._native is not None and self._native.on else None

    @property
    def _touched(self) -> bool:
        """Whether a backward pass began since the last step."""
        native = self._native_hooks()
        return self._schedule.touched or (native is not None and native.touched)

    @property
    def _in_flight(self) -> bool:
        native = self._native_hooks()
        return bool(self._flights) or (native is not None and native.in_flight)

    def _on_gradient(self, param: torch.Tensor) -> None:
        self._synchronized = False
        ready = self._schedule.ready(param)
        if ready:
            self._submit(ready)

    def _submit(self, params: Sequence[torch.Tensor]) -> None:
        engine = basics.engine()
        members = []
        for param in params:
            grad = self._gradient(param)
            if grad.is_sparse:
                self._submit_sparse(engine, param, grad)
            else:
                members.append(self._member(param, grad))
        if not members:
            return
        scaling = self._scaling
        number = number_of(self.process_set)
        if len(members) == 1:
            member = members[0]
            pointer, shape, dtype = torch_tensors.view(member.sent)
            handle = engine.allreduce(
                self._parameter_names[member.param], pointer, pointer, shape, dtype, scaling.op,
                scaling.prescale, scaling.postscale, number, member.sent,
            )  # fmt: skip
        else:
            tensors = []
            for member in members:
                pointer, shape, dtype = torch_tensors.view(member.sent)
                name = self._parameter_names[member.param]
                tensors.append((name, pointer, pointer, shape, dtype))
            handle = engine.submit(
                _core.ALLREDUCE, tensors, scaling.op, scaling.prescale, scaling.postscale,
                process_set=number, keep=members,
            )  # fmt: skip
        self._flights.append(_Flight(engine, handle, members))

    def _gradient(self, param: torch.Tensor) -> torch.Tensor:
        """Gives the gradient to send; zeros if this rank has none but another may."""
        grad = param.grad
        if grad is None:
            if param in self._sparse and not self.sparse_as_dense:
                dims = param.dim()
                grad = torch.sparse_coo_tensor(
                    torch.empty((1, 0), dtype=torch.int64),
                    torch.empty((0, *param.shape[1:]), dtype=param.dtype), param.shape,
                ) if dims else torch.zeros_like(param)  # fmt: skip
            else:
                grad = torch.zeros_like(param, requires_grad=False)
            param.grad = grad
        if grad.is_sparse and self.sparse_as_dense:
            grad = grad.to_dense()
            param.grad = grad
        return grad

    def _member(self, param: torch.Tensor, grad: torch.Tensor) -> _Member:
        if self._compression is NoneCompressor:
            sent, context = grad, None
        else:
            sent, context = self._compression.compress(grad)
        # Ranks could disagree about another memory order, so what travels is contiguous.
        return _Member(param, sent.contiguous(), context)

    def _submit_sparse(self, engine: Any, param: torch.Tensor, grad: torch.Tensor) -> None:
        self._sparse.add(param)
        finish = sparse_allreduce_async(
            grad, self._parameter_names[param], self.op, self.process_set
        )
        self._flights.append(_Flight(engine, finish, [_Member(param, grad, None)]))

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, so that they can be clipped before `step()`.

        Use `skip_synchronize()` around the `step()` that follows.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        self._synchronize()
        self._should_warn = True

    def _synchronize_quietly(self) -> None:
        """For GradScaler, which looks at the gradients before it calls `step()`."""
        if self._should_synchronize and (self._touched or not self._synchronized):
            self._synchronize()

    def _synchronize(self) -> None:
        self._synchronized = True
        self._should_warn = False
        if not self._reduces():
            return
        native = self._native_hooks()
        left = self._schedule.missing() if native is None else [[p] for p in native.missing()]
        for params in left:
            # One that was frozen meanwhile has no gradient on any rank.
            wanted = [p for p in params if p.requires_grad or p.grad is not None]
            if wanted:
                self._submit(wanted)
        failed = self._land()
        if native is not None and native.engine is not basics.engine():
            self._hook(list(self._schedule.params))  # init() was called again
        if failed is not None:
            raise failed

    def _land(self) -> Exception | None:
        """Waits for everything in flight and begins a new step; gives the first error."""
        native = self._native_hooks()
        failed = native.wait() if native is not None else None
        for engine, handle, members in self._flights:
            try:
                if callable(handle):
                    members[0].param.grad = handle()
                    continue
                engine.wait(handle)
            except Exception as error:  # the rest must land before their memory may be reused
                failed = failed or error
            else:
                for member in members:
                    self._give_back(member)
            if not callable(handle):
                engine.release(handle)
        self._flights.clear()
        self._schedule.restart()
        if native is not None:
            native.restart()
        return failed

    def _give_back(self, member: _Member) -> None:
        param, sent, context = member
        grad = param.grad
        if sent is grad:
            return
        value = sent if context is None else self._compression.decompress(sent, context)
        if grad is None:
            param.grad = value.to(param.dtype)
        else:
            # Into the tensor that is there now: others may hold it, or a view of it.
            grad.copy_(value)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets the `step()` inside it rely on an earlier `synchronize()`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the gradients, then steps.

        Args:
            closure: Computes the loss and the gradients again, as LBFGS needs it; they are
                reduced after each call.

        Returns:
            What the wrapped optimizer's `step` returns.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        if closure is not None:
            given = closure

            def reduced() -> Any:
                self._synchronized = False
                loss = given()
                self._synchronize()
                return loss

            closure = reduced
            if self._in_flight:
                self._synchronize()
        elif self._should_synchronize:
            if self._synchronized and not self._touched:
                if self._should_warn:
                    warnings.warn(reduction.STEP_AFTER_SYNCHRONIZE, stacklevel=2)
            else:
                self._synchronize()
        self._synchronized = False
        self._should_warn = False
        return super().step(closure)

    # LBFGS and friends run hooks around the wrapped class's step; a second layer would repeat them.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients.

        Args:
            set_to_none: Drop them instead of setting them to zero.

        Raises:
            AssertionError: Gradients are still being reduced.
        """
        if self._in_flight:
            raise AssertionError(reduction.ZERO_GRAD_TOO_EARLY)
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes the number of backward passes that one step accumulates.

        Args:
            passes: The number.

        Raises:
            ValueError: It is not a positive integer.
        """
        self._schedule.set_passes(passes)
        if self._reduces():
            self._hook(list(self._schedule.params))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of the wrapped optimizer; gradients in flight land first.

        Args:
            state_dict: What `state_dict()` gave, here or on a plain optimizer.
        """
        if self._in_flight and (failed := self._land()) is not None:
            raise failed
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    @staticmethod
    def find_duplicates(lst: Sequence[Any]) -> set[Any]:
        """Finds what occurs more than once.

        Args:
            lst: Names.

        Returns:
            Those that occur at least twice.
        """
        return reduction.find_duplicates(lst)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: type[Compressor] = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Wraps an optimizer so that it steps with gradients reduced over all ranks.

    Gradients travel while the backward pass goes on. State, hooks and learning-rate schedulers of
    the given optimizer stay valid, because the new one shares its parameter groups.

    Args:
        optimizer: The optimizer to wrap.
        named_parameters: Pairs of name and parameter, such as `model.named_parameters()`; the
            names must be the same on all ranks. Without it parameters are matched by position.
        compression: How to make gradients narrower while they travel.
        backward_passes_per_step: How many backward passes to accumulate before reducing.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: Divides by this before the sum and by `size` over it after.
        num_groups: The older name of an integer `groups`.
        groups: A number of groups, or lists of parameters, of which the gradients travel together.
        sparse_as_dense: Reduce sparse gradients as dense ones.
        process_set: The ranks that train together.

    Returns:
        An optimizer whose class has the name of the given one's and derives from it.

    Raises:
        ValueError: An argument makes no sense, names are not unique, or parameters lack a name.
    """
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("This optimizer is distributed already.")
    if op == Adasum:
        raise NotImplementedError("Adasum is not implemented.")
    if num_groups:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed.",
            DeprecationWarning,
            stacklevel=2,
        )
    base = type(optimizer)
    derived: Any = type(
        base.__name__,
        (_DistributedOptimizer, base),
        {"__doc__": base.__doc__, "__module__": __name__},
    )
    wrapped = derived.__new__(derived)
    # Not the constructor: it would ask for arguments that only the caller knew. `step` is there if
    # a learning-rate scheduler wrapped it, bound to the old optimizer.
    wrapped.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    wrapped._distribute(
        named_parameters, compression, backward_passes_per_step, op, gradient_predivide_factor,
        groups if groups is not None else num_groups, sparse_as_dense, process_set,
    )  # fmt: skip
    return wrapped  # type: ignore[no-any-return]
