"""`DistributedOptimizer`: a torch optimizer that steps with gradients reduced over all ranks.

The gradients themselves travel in `horoacc.torch.gradient_reducer`; this module has the optimizer's
methods, and checks the order of their calls.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from horoacc import autotune, reduction
from horoacc.backward_passes import Schedule
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Adasum, Average
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.torch import _ops, hyperparameters
from horoacc.torch.adasum_optimizer import _DistributedAdasumOptimizer
from horoacc.torch.grad_scaler import teach_grad_scaler
from horoacc.torch.gradient_reducer import GradientReducer
from horoacc.torch.late_parameters import LateParameters, TakesLateParameters
from horoacc.torch.parameter_names import name_parameters


class _DistributedOptimizer(TakesLateParameters):
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
        names = {
            param: name for name, param in name_parameters(self.param_groups, named_parameters)
        }
        owned = [
            param for group in self.param_groups for param in group["params"]
            if param.requires_grad
        ]  # fmt: skip
        self._parameter_names = names  # Horovod's attribute
        self._compression = compression
        self._late = LateParameters(self.param_groups, names)
        self._gradients = GradientReducer(
            names,
            Schedule(reduction.partition(owned, groups), backward_passes_per_step),
            reduction.scaling(op, gradient_predivide_factor),
            compression,
            sparse_as_dense,
            process_set,
        )
        self._synchronized = False
        self._should_warn = False
        self._should_synchronize = True
        self.steps_applied = 0
        self._agreement = hyperparameters.Agreement()
        self._takes_closures = False
        if self._reduces():
            _ops.attach()
            _ops.register_gradients(owned, compression)
            self._gradients.hook()
            teach_grad_scaler()

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that one step accumulates.

        It is set by `set_backward_passes_per_step()`.

        Raises:
            AssertionError: From the backward pass that is one too many before `step()`.
        """
        return self._gradients.schedule.passes

    def _reduces(self) -> bool:
        return reduction.has_peers(self.process_set)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, so that they can be clipped before `step()`.

        Use `skip_synchronize()` around the `step()` that follows.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        self._synchronize()
        self._should_warn = True

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Horovod's: starts the reduction of a parameter's gradient, beside that of the hooks.

        Returns:
            What `synchronize` of `horoacc.torch` waits for, and the compressor's context.
        """
        return self._gradients.start(p)

    def _before_unscale(self) -> None:
        """For GradScaler, which looks at the gradients before it calls `step()`."""
        if self._should_synchronize and (self._gradients.touched or not self._synchronized):
            self._synchronize()

    def _after_unscale(self, overflows: list[torch.Tensor]) -> None:
        """The ranks have seen the same gradients and agree."""

    def _synchronize(self) -> None:
        self._synchronized = True
        self._should_warn = False
        if not self._reduces():
            return
        late = self._late.trained(self._gradients.schedule.params)
        if late:
            _ops.register_gradients(late, self._compression)
        self._gradients.finish(late)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets the `step()` inside it rely on an earlier `synchronize()`.

        Returns:
            A context manager.

        Raises:
            AssertionError: The optimizer was made with `op=Adasum`, which combines steps.
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the gradients, then steps.

        Args:
            closure: Computes the loss and the gradients again, as LBFGS needs it. Both are
                reduced after each call, the loss as the gradients are: optimizers end a search by
                it, and must do so on all ranks at once. A loss is a float or a floating-point
                tensor of one element; something else, and None, is left as it is.

        Returns:
            The result of the wrapped optimizer's `step`; of a closure, the loss of all ranks.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        if self.process_set is global_process_set:
            hyperparameters.agree(self)
        if closure is not None:
            given = closure

            def reduced() -> Any:
                self._synchronized = False
                loss = given()
                self._synchronize()
                return self._gradients.reduced_loss(loss) if self._reduces() else loss

            closure = reduced
            self._takes_closures = True
            if self._gradients.in_flight:
                self._synchronize()
        elif self._should_synchronize:
            if self._synchronized and not self._gradients.touched:
                if self._should_warn:
                    warnings.warn(reduction.STEP_AFTER_SYNCHRONIZE, stacklevel=2)
            else:
                self._synchronize()
        self._synchronized = False
        self._should_warn = False
        result = super().step(closure)
        self.steps_applied += 1
        return result

    # LBFGS and others run hooks around the wrapped class's step; a second layer would repeat them.
    step.hooked = True  # type: ignore[attr-defined]

    def begin_again(self) -> None:
        """Forgets a step that an error or an interruption cut off, with its gradients."""
        self._gradients.restart()
        self._synchronized = self._should_warn = False
        self._should_synchronize = True
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None

    def obstacle_after(self, error: Exception) -> str:
        """Says why the parameters may not be those of a whole number of steps, after an error.

        Args:
            error: Of a collective.

        Returns:
            The reason; "" if the error is that of a gradient, which was reduced for the next step.
        """
        if self.backward_passes_per_step != 1:
            return "a step takes several backward passes"
        if self._takes_closures:
            return "a closure may have failed in the middle of a step"
        if self.process_set is not global_process_set:
            return "only some of the ranks train the model"
        names = self._parameter_names.values()
        tensor = getattr(error, "tensor", None) or ""
        before = tensor.partition(".")[2].startswith(hyperparameters.CALL)
        calls = {f"allreduce.{name}" for name in (*names, autotune.CALL)}
        if not before and tensor not in calls:
            return f"the error left {tensor or 'a call without a name'}, which is no gradient"
        return ""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients.

        Args:
            set_to_none: Drop them instead of setting them to zero.

        Raises:
            AssertionError: Gradients are still being reduced.
        """
        if self._gradients.in_flight:
            raise AssertionError(reduction.ZERO_GRAD_TOO_EARLY)
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes the number of backward passes that one step accumulates.

        Args:
            passes: The number.

        Raises:
            ValueError: It is not a positive integer.
        """
        self._synchronized = False
        self._gradients.schedule.set_passes(passes)
        if self._reduces():
            self._gradients.hook()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of the wrapped optimizer; gradients in flight land first.

        Args:
            state_dict: A result of `state_dict()`, here or of a plain optimizer.

        Raises:
            ValueError: It belongs to an optimizer with other parameter groups.
            HorovodInternalError: A gradient that was in flight could not be reduced.
        """
        self._gradients.land()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    find_duplicates = staticmethod(reduction.find_duplicates)


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
        op: Average, Sum, Min, Max or Product; or Adasum, with which each rank steps by itself and
            the changes of the steps are combined.
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
    if isinstance(optimizer, (_DistributedOptimizer, _DistributedAdasumOptimizer)):
        raise ValueError("This optimizer is distributed already.")
    reduction.scaling(op, gradient_predivide_factor)  # refuses arguments that make no sense
    combines = op == Adasum and reduction.has_peers(process_set)
    base = type(optimizer)
    derived: Any = type(
        base.__name__,
        (_DistributedAdasumOptimizer if combines else _DistributedOptimizer, base),
        {"__doc__": base.__doc__, "__module__": __name__},
    )
    wrapped = derived.__new__(derived)
    # Not the constructor: it needs arguments that only the caller knew. `step` is there if
    # a learning-rate scheduler wrapped it, bound to the old optimizer.
    wrapped.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    parts = reduction.chosen_groups(num_groups, groups)
    if combines:
        wrapped._distribute(
            named_parameters, compression, backward_passes_per_step, parts, process_set
        )
    else:
        wrapped._distribute(
            named_parameters, compression, backward_passes_per_step, op, gradient_predivide_factor,
            parts, sparse_as_dense, process_set,
        )  # fmt: skip
    return wrapped  # type: ignore[no-any-return]
