"""Small gradients of a graph share an op, with the bits that they have by themselves."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
hvd = importlib.import_module("horoacc.tensorflow")
graph_buckets = importlib.import_module("horoacc.tensorflow.graph_buckets")
calls = importlib.import_module("tensorflow_calls")

pytestmark = pytest.mark.ranks(2, 4, framework="horoacc.tensorflow")

LARGE = (graph_buckets.LARGEST_MEMBER // 4 + 1,)


def gradients(shapes: list[tuple[int | None, ...]], dtype: Any = tf.float32) -> list[Any]:
    return [tf.zeros(shape, dtype) for shape in shapes]


def test_what_shares_a_bucket() -> None:
    in_buckets, none = graph_buckets.buckets, hvd.Compression.none
    small, quarter = (3, 2), (graph_buckets.LARGEST_MEMBER // 4,)
    # A large one lies between the small ones, as a layer's weights do between the biases.
    assert in_buckets(gradients([small, LARGE, small, ()]), hvd.Average, none) == [[0, 2, 3], [1]]
    assert in_buckets(gradients([quarter] * 5), hvd.Sum, none) == [[0, 1, 2, 3], [4]]
    mixed = [*gradients([small]), *gradients([small], tf.float64)]
    assert in_buckets(mixed, hvd.Max, none) == [[0, 1]]
    alone = [[0], [1]]
    assert in_buckets(mixed, hvd.Adasum, none) == alone
    assert in_buckets(mixed, hvd.Average, hvd.Compression.fp16) == alone
    assert in_buckets([], hvd.Average, none) == []
    signature = [tf.TensorSpec([None, 2]), tf.TensorSpec([3])]
    slices = tf.IndexedSlices(tf.zeros((1, 2)), tf.constant([0]), tf.constant([4, 2]))
    parts: list[Any] = []

    @tf.function(input_signature=signature)
    def trace(unknown: Any, known: Any) -> Any:
        parts.extend(in_buckets([known, unknown, slices, known], hvd.Average, none))
        return known

    trace.get_concrete_function()
    assert parts == [[0, 3], [1], [2]]


class Model:
    """Dense gradients of several sizes and types, a sparse one, and one that is None."""

    def __init__(self, **how: Any) -> None:
        random = np.random.default_rng(5)
        shapes = [(4, 3), (3,), (), LARGE, (7, 5)]
        self.weights = [tf.Variable(random.normal(size=shape), dtype="float32") for shape in shapes]
        self.weights.append(tf.Variable(random.normal(size=(3,)), dtype="float64"))
        self.rows = tf.Variable(random.normal(size=(6, 2)), dtype="float32")
        self.unused = tf.Variable(1.0)
        self.step = tf.function(self._step)
        self._how = how

    @property
    def variables(self) -> list[Any]:
        return [*self.weights, self.rows, self.unused]

    def _step(self, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(self.rows, [1, 4]) ** 2) * tf.reduce_sum(x)
            for weight in self.weights:
                loss += tf.cast(tf.reduce_sum(tf.sin(weight) ** 2), "float32") * tf.reduce_mean(x)
        grads = hvd.DistributedGradientTape(tape, **self._how).gradient(loss, self.variables)
        for grad, variable in zip(grads, self.variables, strict=True):
            if grad is not None:
                variable.assign_sub(0.125 * tf.cast(tf.convert_to_tensor(grad), variable.dtype))

    def train(self) -> list[bytes]:
        for step in range(4):
            self.step(tf.fill([3], 0.37 * (hvd.rank() + 1) + step))
        return [variable.numpy().tobytes() for variable in self.variables]


def ops_of(model: Model) -> dict[str, int]:
    graph = model.step.get_concrete_function(tf.zeros([3])).graph
    types = [op.type for op in graph.get_operations() if op.type.startswith("Horovod")]
    return {kind: types.count(kind) for kind in sorted(set(types))}


@pytest.mark.parametrize("env", [{}, {"HOROACC_SIMULATED_HOSTS": "each"}])
def test_a_step_has_few_calls_and_the_same_bits(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    trained = model.train()
    # The slices are gathered: their values, and their indices.
    assert ops_of(model) == {
        "HorovodAllgather": 2, "HorovodAllreduce": 1, "HorovodGroupedAllreduce": 1,
    }  # fmt: skip
    before = hvd.counters()["submissions"]
    model.train()
    assert hvd.counters()["submissions"] - before == 4 * 4
    monkeypatch.setattr(graph_buckets, "LARGEST_MEMBER", -1)
    alone = Model()
    assert alone.train() == trained
    assert ops_of(alone) == {"HorovodAllgather": 2, "HorovodAllreduce": 6}


def test_groups_of_the_user_stay() -> None:
    model = Model(num_groups=3)
    model.train()
    assert ops_of(model)["HorovodGroupedAllreduce"] == 3


def test_a_process_set() -> None:
    with calls.process_set() as members:
        if not members.included():
            return
        model = Model(
            process_set=members, gradient_predivide_factor=2.0, scale_local_gradients=False
        )
        trained = model.train()
        assert ops_of(model).get("HorovodGroupedAllreduce", 0) == (1 if members.size() > 1 else 0)
        both = hvd.allgather_object(trained, process_set=members)
        assert all(one == both[0] for one in both)


class Graphs:
    """Graphs whose only calls have the same name, and `shapes` of their own."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.weights = [tf.Variable(tf.fill(shape, 0.5)) for shape in shapes]
        self.steps = [tf.function(self._step) for _ in shapes]

    def _step(self, weight: Any, factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight) * factor
        return hvd.DistributedGradientTape(tape).gradient(loss, [weight])[0]

    def train(self, turns: int, mine: float) -> None:
        mean = np.mean([turn + 1 for turn in range(hvd.size())])
        for turn in range(turns):
            for weight, step in zip(self.weights, self.steps, strict=True):
                got = step(weight, tf.constant(mine * (turn + 1)))
                assert (got.numpy() == np.float32(mean) * (turn + 1)).all()


WIDE, NARROW, LONG = (300, 257), (300, 256), (600, 1024)
MESSAGES = ("plan_granted", "plan_dropped")


@pytest.mark.parametrize("env", [{"HOROACC_SIMULATED_HOSTS": "each"}])
@pytest.mark.parametrize(
    ("shapes", "granted"),
    [([WIDE], 8), ([(4, 5)], 0), ([WIDE, NARROW], 0), ([WIDE] * 2 + [NARROW] * 2, 0), ([LONG], 0)],
    ids=["begins without a message", "goes with its message", "turns", "turns of two", "long"],
)
def test_the_only_call_of_a_graph_between_hosts(
    env: dict[str, str], shapes: list[tuple[int, ...]], granted: int
) -> None:
    model = Graphs(*shapes)
    before = hvd.counters()
    model.train(10, hvd.rank() + 1.0)
    now = hvd.counters()
    # The root hears of the first one, and of the second one that it is as the first.
    assert [now[name] - before[name] for name in MESSAGES] == [granted, 0]
    hvd.allreduce(tf.ones(3), name="others")  # goes on beside it
    model.train(2, hvd.rank() + 1.0)
    if hvd.rank() == 1:
        model.steps[0] = tf.function(Graphs(shapes[0])._step)
        model.weights[0] = tf.Variable(tf.ones(shapes[0][:1]))
    with pytest.raises(tf.errors.OpError, match="shape"):
        model.train(1, 1.0)
