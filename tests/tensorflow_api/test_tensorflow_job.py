"""The TensorFlow frontend: start and end, elastic states and loop, Horovod's small names."""

from __future__ import annotations

import importlib
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
hvd = importlib.import_module("horoacc.tensorflow")
calls = importlib.import_module("tensorflow_calls")
errors = importlib.import_module("horoacc.errors")
failures = importlib.import_module("horoacc.tensorflow.failures")
ops = importlib.import_module("horoacc.tensorflow._ops")

pytestmark = pytest.mark.ranks(1, 2, 4, framework="horoacc.tensorflow")


def test_init_shutdown_and_init_again() -> None:
    me, size = hvd.rank(), hvd.size()
    traced = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    assert traced(tf.constant(1.0)).numpy() == size
    assert (hvd.is_initialized(), hvd.is_homogeneous()) == (True, True)
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (
        me, size, 0, 1
    )  # fmt: skip
    hvd.shutdown()
    for call in (traced, lambda x: hvd.allreduce(x)):
        with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
            call(tf.constant(1.0))
    with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
        hvd.rank_op()
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.rank()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (me, size)
    assert traced(tf.constant(1.0)).numpy() == size


def test_errors_are_those_of_the_core() -> None:
    def cause(call: Any) -> Any:
        with pytest.raises(tf.errors.OpError) as caught:
            call()
        return failures.cause_of(caught.value)

    size = hvd.size()
    found = cause(lambda: hvd.broadcast(tf.zeros([2]), size))
    assert isinstance(found, errors.InvalidArgument)
    if size > 1:
        for call in (hvd.allreduce, tf.function(lambda x: hvd.allreduce(x, name="mine"))):
            found = cause(lambda call=call: call(tf.zeros([1 + hvd.rank()])))
            assert isinstance(found, errors.Mismatch)
    assert cause(lambda: tf.reshape(tf.zeros([2]), [3])) is None


def test_a_rank_leaves() -> None:
    me, size = hvd.rank(), hvd.size()
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    if size > 1 and me != 1:
        for call in (hvd.allreduce, reduce):
            with pytest.raises(tf.errors.UnknownError) as caught:
                call(tf.zeros([3]))
            found = failures.cause_of(caught.value)
            assert isinstance(found, (errors.PeerLost, errors.Aborted)) and found.culprit == 1
    hvd.shutdown()
    hvd.init()
    assert reduce(tf.constant(1.0)).numpy() == size


def test_a_name_in_flight() -> None:
    """Of an eager call that another thread waits for; and of one that nobody has made."""
    me, size = hvd.rank(), hvd.size()
    got: list[Any] = []
    first = threading.Thread(
        target=lambda: got.append(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="twice"))
    )
    if me == 0 and size > 1:
        before = hvd.counters()["submissions"]
        first.start()
        deadline = time.monotonic() + 60
        while hvd.counters()["submissions"] == before and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(tf.errors.InvalidArgumentError, match="twice"):
            hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="twice")
        in_graph = tf.function(
            lambda x: ops.library().horovod_allreduce(tensor=x, tensor_name="allreduce.twice")
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="twice"):
            in_graph(tf.constant(1.0))
    hvd.broadcast(tf.zeros([1]), 0, name="both were refused")
    if me != 0 or size == 1:
        first.run()
    else:
        first.join(60)
    assert [one.numpy() for one in got] == [size]


@pytest.mark.parametrize("what", ["allreduce", "allgather", "broadcast_"])
def test_a_signal_ends_the_wait_of_an_eager_call(what: str) -> None:
    """And not the call: the other ranks make it, and everybody goes on."""
    me, size = hvd.rank(), hvd.size()
    variable = tf.Variable(tf.fill([3], float(me)))
    call = {
        "allreduce": lambda: hvd.allreduce(variable, op=hvd.Sum, name="interrupted"),
        "allgather": lambda: hvd.allgather(variable, name="interrupted"),
        "broadcast_": lambda: hvd.broadcast_([variable], size - 1, name="interrupted"),
    }[what]

    def ring(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def send(submitted: int) -> None:
        """The signal, once the call has been submitted and not before."""
        while hvd.counters()["submissions"] == submitted:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    if me == 0 and size > 1:
        before = signal.signal(signal.SIGALRM, ring)
        sender = threading.Thread(target=send, args=(hvd.counters()["submissions"],), daemon=True)
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            call()
        sender.join(60)
        signal.signal(signal.SIGALRM, before)
    hvd.broadcast(tf.zeros([1]), 0, name="the signal came")
    if me != 0 or size == 1:
        call()
    assert variable.numpy()[0] == (size - 1 if what == "broadcast_" and me != 0 else me)
    hvd.allreduce(tf.zeros([1]), name="everybody is here")
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum).numpy() == size
    call()  # the name is free again


def test_a_handler_that_does_not_raise_leaves_the_wait() -> None:
    me, size = hvd.rank(), hvd.size()
    rung: list[int] = []
    if me == 0:
        before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    else:
        time.sleep(0.5)
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="waited").numpy() == size
    if me == 0:
        deadline = time.monotonic() + 60
        while not rung and time.monotonic() < deadline:
            time.sleep(0.01)
        signal.signal(signal.SIGALRM, before)
        assert rung == [signal.SIGALRM]


def test_state_of_variables() -> None:
    me = hvd.rank()
    variables = [tf.Variable(float(me)), tf.Variable([me, me])]
    state = hvd.elastic.TensorFlowState(variables, batch=me)
    state.sync()
    assert (state.batch, variables[0].numpy(), variables[1].numpy().tolist()) == (0, 0.0, [0, 0])
    variables[0].assign(5.0)
    state.batch = 5
    state.restore()
    assert (state.batch, variables[0].numpy()) == (0, 0.0)
    variables[0].assign(6.0)
    state.commit()
    variables[0].assign(7.0)
    state.restore()
    assert variables[0].numpy() == 6.0
    with pytest.raises(ValueError, match="needs the variables"):
        hvd.elastic.TensorFlowState()


def test_state_of_a_session() -> None:
    me = hvd.rank()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("w", initializer=[float(me)])
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, epoch=3)
        state.sync()
        assert session.run(variable) == [0.0]
        session.run(variable.assign([9.0]))
        state.restore()
        assert session.run(variable) == [0.0] and state.epoch == 3


def test_state_of_a_keras_model() -> None:
    import keras

    me = hvd.rank()
    keras.utils.set_random_seed(me)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=me)
    state.sync()
    kernels = hvd.allgather(tf.convert_to_tensor(model.layers[0].kernel)[tf.newaxis]).numpy()
    assert (kernels == kernels[0]).all() and state.batch == 0
    optimizer.apply([tf.ones([2, 1]), tf.ones([1])], model.trainable_variables)
    state.restore()
    np.testing.assert_array_equal(tf.convert_to_tensor(model.layers[0].kernel), kernels[0])
    assert int(optimizer.iterations) == 0
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]))


def test_run_goes_back_to_the_last_commit() -> None:
    """A call that fails in a graph is undone on all ranks, and they go on."""
    size = hvd.size()
    variable = tf.Variable(0.0)
    state = hvd.elastic.TensorFlowState([variable], batch=0, failed=False)
    tries = []

    @tf.function
    def add(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    @hvd.elastic.run
    def train(state: Any) -> float:
        tries.append(state.batch)
        while state.batch < 4:
            variable.assign_add(add(tf.constant(1.0)))
            if state.batch == 2 and len(tries) == 1:
                raise hvd.HorovodInternalError("as a lost message would")
            state.batch += 1
            state.commit()
        return float(variable.numpy())

    assert train(state) == 4 * size
    assert tries == [0, 2]

    @hvd.elastic.run
    def disagree(state: Any) -> None:
        add(tf.zeros([1 + hvd.rank()]))

    if size > 1:
        with pytest.raises(errors.Mismatch):
            disagree(state)


def test_names_beside_the_api() -> None:
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    refs = hvd.vars_to_refs(variables)
    assert hash(refs) == hash(hvd.vars_to_refs(variables)) and refs == hvd.vars_to_refs(variables)
    assert hvd.refs_to_vars(refs)[1][0] is variables[1][0]
    assert hvd.split_list([1, 2, 3], 2) == [[1, 2], [3]]
    assert hvd._executing_eagerly() and not hvd.gpu_available("tensorflow")
    assert hvd._allreduce(tf.constant(1.0)).numpy() == hvd.size()
    assert hvd.handle_average_backwards_compatibility(None, None) == hvd.Average
    hvd.check_num_rank_power_of_2(4)
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.check_num_rank_power_of_2(3)
    assert (hvd.nccl_built(), hvd.gloo_built(), hvd.rocm_built()) == (0, True, False)
    with pytest.raises(AttributeError, match="no attribute"):
        hvd.no_such_name  # noqa: B018
