"""Which functions may take several steps in a call: an elastic job goes back to a commit then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

tf: Any = pytest.importorskip("tensorflow")

from horoacc import gradient_calls, process  # noqa: E402
from horoacc.tensorflow import whole_steps  # noqa: E402

pytestmark = pytest.mark.ranks(1, framework="horoacc.tensorflow")


class Reducer:
    """Stands for what reduces a model's gradients."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def step(self) -> Any:
        whole_steps.note(self, "gradient", "")
        return tf.constant(1)

    def meanwhile_step(self) -> Any:
        return self.step()

    def with_a_variable(self) -> Any:
        """As a metric makes it in its first call: the function is traced twice."""
        if not self.made:
            self.made.append(tf.Variable(0))
        return self.step() + self.made[0]


def twice(f: Callable[[], Any]) -> Any:
    f()
    return f()


def in_a_loop(f: Callable[[], Any]) -> Any:
    def body(number: Any) -> Any:
        return number + f()

    return tf.while_loop(lambda number: number < 2, body, [tf.constant(0)])


CASES: dict[str, tuple[Callable[[Reducer], Callable[[], Any]], bool]] = {
    "one step": (lambda r: r.step, False),
    "another function's name": (lambda r: tf.function(r.meanwhile_step), False),
    "traced again": (lambda r: tf.function(r.with_a_variable), False),
    "in one branch": (lambda r: lambda: tf.cond(tf.constant(1) > 0, r.step, lambda: 0), False),
    "twice": (lambda r: lambda: twice(r.step), True),
    "two functions": (lambda r: lambda: tf.function(r.step)() + tf.function(r.step)(), True),
    "in a loop": (lambda r: lambda: in_a_loop(r.step), True),
    "a function in a loop": (lambda r: lambda: in_a_loop(tf.function(r.step)), True),
}


@pytest.mark.parametrize("name", CASES)
def test_several_steps_in_a_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, several = CASES[name]
    found: list[str] = []
    monkeypatch.setattr(process, "is_elastic", lambda: True)
    monkeypatch.setattr(gradient_calls, "note", lambda by, prefix, obstacle: found.append(obstacle))
    tf.function(make(Reducer()), autograph=False)()
    assert found and any(found) == several
    assert set(found) <= {"", whole_steps.SEVERAL_STEPS}
