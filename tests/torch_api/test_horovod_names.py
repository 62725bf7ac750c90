"""`import horovod` gives the objects of HoroACC, name by name."""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import horoacc
import horoacc.torch
from horoacc.dropin import finder, names

TENSORFLOW = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


KERAS = pytest.mark.skipif(
    importlib.util.find_spec("keras") is None, reason="keras is not installed"
)


def marked(module: str, *more: str) -> Any:
    """A case, left out where its framework is not installed."""
    keras = module.startswith(("horovod.keras", "horovod.tensorflow.keras"))
    # Keras computes with TensorFlow if nobody says what else.
    marks = [KERAS, TENSORFLOW] if keras else []
    if module.startswith("horovod.tensorflow"):
        marks = [*marks, TENSORFLOW]
    return pytest.param(module, *more, marks=marks)


# They are in the environments of their own tests (tests/engines).
ENGINES = ("horovod.ray", "horovod.spark")
MODULES = [marked(module) for module in names.MODULES if not module.startswith(ENGINES)]
ROWS = [
    marked(module, name)
    for module, parts in names.NAMES.items()
    for name in parts
    if not module.startswith(ENGINES)
]


@pytest.fixture(autouse=True)
def dropped_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Horovod's names for one test."""
    for name in ("PYTHONPATH", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    horoacc.install_as_horovod()
    yield
    for name in [n for n in sys.modules if n == "horovod" or n.startswith("horovod.")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", MODULES)
def test_module_is_the_same_object(name: str) -> None:
    assert importlib.import_module(name) is importlib.import_module(names.MODULES[name])


@pytest.mark.parametrize(("module", "name"), ROWS)
def test_name_is_the_same_object(module: str, name: str) -> None:
    place, _, attribute = names.NAMES[module][name].partition(":")
    wanted = getattr(importlib.import_module(place), attribute)
    assert getattr(importlib.import_module(module), name) is wanted


# What scripts and tools import, in their own words.
IMPORTS = """
import horovod
import horovod.torch as hvd
from horovod import run
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import ObjectState, State, run_fn, notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.exceptions import HorovodVersionMismatchError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.process_sets import add_process_set, remove_process_set
from horovod.common.util import get_ext_suffix
from horovod.common.util import _cache, support_non_legacy_keras_optimizers
from horovod.common.util import env, gpu_available, is_iterable, split_list, mpi_built
from horovod.runner import run
from horovod.runner import run_commandline
from horovod.runner.common.util import hosts, secret, timeout
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.launch import run_commandline
from horovod.runner.util.threads import execute_function_multithreaded, in_thread, on_event
from horovod.torch import elastic
from horovod.torch.compression import Compression, Compressor, FP16Compressor, NoneCompressor
from horovod.torch.elastic import ElasticSampler, TorchState
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import ModelStateHandler, OptimizerStateHandler
from horovod.torch.elastic.state import SamplerStateHandler, StateHandler
from horovod.torch.elastic.state import get_handler_registry, set_handler_registry
from horovod.torch.functions import allgather_object, broadcast_object
from horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters
from horovod.torch.mpi_ops import Average, Sum, _basics, allreduce_async_, synchronize, size
from horovod.torch.mpi_ops import *
from horovod.torch.optimizer import DistributedOptimizer
""".strip().splitlines()

IMPORTS_OF_TENSORFLOW = """
import horovod.tensorflow as hvd
from horovod.tensorflow import elastic, Compression, DistributedGradientTape
from horovod.tensorflow import SyncBatchNormalization, BroadcastGlobalVariablesHook
from horovod.tensorflow.compression import Compression, FP16Compressor
from horovod.tensorflow.elastic import run, TensorFlowKerasState, TensorFlowState
from horovod.tensorflow.functions import allgather_object, broadcast_object, broadcast_variables
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import allgather, size, rank, Average, Sum, rank_op, _basics
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from horovod.tensorflow.util import _executing_eagerly, _make_subgraph, vars_to_refs
""".strip().splitlines()


@pytest.mark.parametrize(
    "line",
    [*IMPORTS, *(pytest.param(line, marks=TENSORFLOW) for line in IMPORTS_OF_TENSORFLOW)],
)
def test_import_line(line: str) -> None:
    exec(line, {})


def test_names_below_horovod_are_never_second_copies() -> None:
    copy: Any = importlib.import_module("horovod.torch.ops")
    assert copy is horoacc.torch.ops
    assert importlib.import_module("horovod.objects") is horoacc.objects


def test_version_is_one_that_scripts_accept() -> None:
    horovod: Any = importlib.import_module("horovod")
    assert tuple(int(part) for part in horovod.__version__.split(".")) >= (0, 28, 0)
    assert {"run", "__version__"} <= set(dir(horovod))
    assert horovod.allreduce is horoacc.allreduce
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = horovod.no_such_thing


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("horovod._keras", "no frontend for what horovod.keras"),
        ("horovod.mxnet", "no frontend for MXNet yet"),
        ("horovod.runner.common.util.config_parser", "horoaccrun reads its --config-file itself"),
        ("horovod.runner.common.util.network", "protocol of their own"),
        ("horovod.runner.common.util.safe_shell_exec", "take subprocess"),
        ("horovod.runner.common.util.settings", "arguments of horoacc.run"),
        ("horovod.torch.mpi_lib_v2", "mpi_ops, which has the collectives"),
        ("horovod.torch.no_such_module", "no such part of Horovod"),
        ("horovod.common.no_such_module", "no such part of Horovod"),
    ],
)
def test_what_is_not_here_says_so(name: str, words: str) -> None:
    with pytest.raises(ImportError, match=words) as caught:
        importlib.import_module(name)
    # Whoever is asked for a part is first asked for the whole.
    assert name.startswith(str(caught.value.name))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_that_is_not_installed_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"horovod.ray": "ray", "horovod.spark": "pyspark"}[name]
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=f"pip install .*{package}"):
        importlib.import_module(name)


def test_a_second_installation_changes_nothing() -> None:
    before = list(sys.meta_path), os.environ["PYTHONPATH"]
    horoacc.install_as_horovod()
    assert (list(sys.meta_path), os.environ["PYTHONPATH"]) == before


def test_a_horovod_that_was_imported_before_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [one for one in sys.meta_path if not isinstance(one, finder.HorovodFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    monkeypatch.setitem(sys.modules, "horovod", os)
    with pytest.raises(ImportError, match=r"imported already, from .*os\.py"):
        horoacc.install_as_horovod()
    assert sys.meta_path == others


def test_an_installed_horovod_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise RuntimeError('the other one')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("horovod").run is horoacc.run


def test_basics_object() -> None:
    basics: Any = importlib.import_module("horovod.torch.mpi_ops")._basics
    with pytest.raises(ValueError, match=r"use hvd\.init"):
        basics._get_process_set_ids_and_ranks()
    horoacc.init()
    try:
        assert (basics.rank(), basics.size(), basics.Average, basics.Product) == (0, 1, 0, 5)
        assert basics._get_process_set_ids_and_ranks() == {0: [0]}
        assert (basics._process_set_rank(0), basics._process_set_size(0)) == (0, 1)
        with pytest.raises(ValueError, match="No process set with the number 7"):
            basics._process_set_size(7)
        assert basics._remove_process_set_impl(0) is None
        assert basics.gloo_built() and not basics.ccl_built() and not basics.ddl_built()
    finally:
        horoacc.shutdown()


def test_names_of_the_c_library(tmp_path: Path) -> None:
    library = importlib.import_module("horovod.torch.mpi_ops")._basics.MPI_LIB_CTYPES
    assert (library.horovod_is_initialized(), library.horovod_rank()) == (False, -1)
    assert library.horovod_stop_timeline() == -1
    assert [
        getattr(library, f"horovod_reduce_op_{op}")()
        for op in ("average", "sum", "adasum", "min", "max", "product")
    ] == list(range(6))
    assert library.horovod_init(None, 0, None, None, 0)
    try:
        assert library.horovod_is_initialized()
        places = [
            f"{scope}{what}" for scope in ("", "local_", "cross_") for what in ("rank", "size")
        ]
        assert [getattr(library, f"horovod_{place}")() for place in places] == [0, 1] * 3
        library.horovod_size.restype = ctypes.c_int
        # As what C would be handed.
        pointer = ctypes.cast(library.horovod_size, ctypes.c_void_p).value
        assert ctypes.CFUNCTYPE(ctypes.c_int)(pointer)() == 1
        assert library.horovod_gloo_built() and not library.horovod_ddl_built()
        assert library.horovod_number_of_process_sets() == 1
        ids, ranks = (ctypes.c_int * 1)(7), (ctypes.c_int * 1)(7)
        assert (library.horovod_process_set_ids(ids), ids[0]) == (0, 0)
        assert (library.horovod_process_set_ranks(0, ranks), ranks[0]) == (0, 0)
        assert (library.horovod_process_set_size(0), library.horovod_process_set_size(7)) == (1, -1)
        assert (library.horovod_process_set_rank(0), library.horovod_process_set_included(0)) == (
            0, 1)  # fmt: skip
        assert library.horovod_add_process_set(ranks, 1) == -1  # there is one of these ranks
        trace = tmp_path / "trace.json"
        assert library.horovod_start_timeline(str(trace).encode(), False) == 0
        assert library.horovod_stop_timeline() == 0 and trace.exists()
    finally:
        assert library.horovod_shutdown() is None
    assert library.horovod_size() == -1
    assert "horovod_rank" in dir(library)
    with pytest.raises(AttributeError, match="no C function 'horovod_init_multi_comm'"):
        _ = library.horovod_init_multi_comm


def test_hosts_secrets_and_timeouts(tmp_path: Path) -> None:
    hosts: Any = importlib.import_module("horovod.runner.common.util.hosts")
    assert hosts.HostInfo.from_string("a:2") == hosts.HostInfo("a", 2)
    (tmp_path / "hosts").write_text("a slots=2\nb:1\n")
    text = hosts.parse_host_files(str(tmp_path / "hosts"))
    assert text == "a:2,b:1"
    found = hosts.get_host_assignments(hosts.parse_hosts(text + ",c:4"), 2, 5)
    assert [(one.hostname, one.rank, one.local_rank, one.local_size, one.cross_rank, one.cross_size)
            for one in found] == [
        ("a", 0, 0, 2, 0, 3), ("a", 1, 1, 2, 0, 2), ("b", 2, 0, 1, 1, 3), ("c", 3, 0, 2, 2, 3),
        ("c", 4, 1, 2, 1, 2)]  # fmt: skip
    assert {one.size for one in found} == {5}
    with pytest.raises(ValueError, match="8 ranks do not fit into 7 slots"):
        hosts.get_host_assignments(hosts.parse_hosts("a:7"), 8)
    secret: Any = importlib.import_module("horovod.runner.common.util.secret")
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"message")
    assert len(digest) == secret.DIGEST_LENGTH_BYTES and secret.make_secret_key() != key
    assert secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(key, b"massage", digest)
    timeout: Any = importlib.import_module("horovod.runner.common.util.timeout")
    late = timeout.Timeout(-1, "{activity} took longer than {timeout} s")
    assert late.timed_out() and late.remaining() == 0
    with pytest.raises(timeout.TimeoutException, match="start took longer than -1 s"):
        late.check_time_out_for("start")
    early = timeout.Timeout(600, "")
    early.check_time_out_for("start")
    assert not early.timed_out() and 0 < early.remaining() <= 600


def test_small_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = importlib.import_module("horovod.common.util")
    assert small.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert small.split_list([1], 3) == [[1], [], []]
    assert [n for n in range(9) if small.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert small.is_iterable("ab") and not small.is_iterable(3)
    assert small.get_ext_suffix() in importlib.machinery.EXTENSION_SUFFIXES
    assert small.extension_available("torch") and not small.extension_available("mxnet")
    small.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "path", "mpi_lib_v2")
    with pytest.raises(ImportError, match="no frontend for mxnet"):
        small.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", "path")
    assert small.is_version_greater_equal_than("2.13.0+cpu", "2.2.0")
    assert not small.is_version_greater_equal_than("2.1", "2.1.1")
    with pytest.raises(ValueError, match="'new' is no version"):
        small.is_version_greater_equal_than("new", "1.0.0")
    monkeypatch.setenv("SET_BEFORE", "1")
    with small.env(SET_BEFORE="2", SET_INSIDE="3", LEFT_ALONE=None):
        assert (os.environ["SET_BEFORE"], os.environ["SET_INSIDE"]) == ("2", "3")
    assert os.environ["SET_BEFORE"] == "1" and "SET_INSIDE" not in os.environ
    average = small.get_average_backwards_compatibility_fun(horoacc)
    assert average(None, None) == horoacc.Average and average(horoacc.Min, None) == horoacc.Min
    with pytest.warns(DeprecationWarning, match="average"):
        assert average(None, False) == horoacc.Sum
    with pytest.raises(ValueError, match="supersedes"):
        average(horoacc.Sum, True)


def test_variables_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    variables: Any = importlib.import_module("horovod.runner.common.util.env")
    for prefix in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        monkeypatch.delenv(f"{prefix}_RANK", raising=False)
        monkeypatch.delenv(f"{prefix}_SIZE", raising=False)
    assert variables.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "2")
    with pytest.raises(RuntimeError, match="not PMI_SIZE"):
        variables.get_env_rank_and_size()
    monkeypatch.setenv("PMI_SIZE", "4")
    assert variables.get_env_rank_and_size() == (2, 4)
    assert variables.is_exportable("PATH") and not variables.is_exportable("HOROVOD_SECRET_KEY")


def test_threads(capsys: pytest.CaptureFixture[str]) -> None:
    threads: Any = importlib.import_module("horovod.runner.util.threads")
    found = threads.execute_function_multithreaded(lambda a, b: a * b, [(2, 3), (4, 5)])
    assert found == {0: 6, 1: 20}
    assert threads.execute_function_multithreaded(lambda: None, []) is None
    partly = threads.execute_function_multithreaded(lambda a: 1 // a, [(0,), (1,)])
    assert partly == {1: 1} and "ZeroDivisionError" in capsys.readouterr().err
    go, stop, ran = threading.Event(), threading.Event(), threading.Event()
    waiting = threads.on_event(go, ran.set, stop=stop, check_stop_interval_s=0.01)
    assert not ran.is_set()
    go.set()
    waiting.join(10)
    assert ran.is_set()
    given_up = threads.on_event(threading.Event(), ran.clear, stop=stop, check_stop_interval_s=0.01)
    stop.set()
    given_up.join(10)
    assert ran.is_set() and not given_up.is_alive()
    with pytest.raises(ValueError, match="tuple"):
        threads.in_thread(time.sleep, [1])


CHILD = """
import sys
import horoacc
horoacc.install_as_horovod()
import subprocess
done = subprocess.run([sys.executable, "-c", "import horovod.torch as h, horoacc.torch as o;"
                       "print(h is o, 'sitecustomize' in __import__('sys').modules)"],
                      check=True, capture_output=True, text=True)
print(done.stdout.strip())
"""


def test_child_processes_have_the_names_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "True True", done.stderr
