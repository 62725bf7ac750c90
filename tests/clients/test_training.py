"""Each client trains with HoroACC what it trains with Gloo, under every launcher.

Two ranks add two numbers whatever the order, so the parameters must be equal to the bit.
"""

from __future__ import annotations

import pytest
import torch
from client_jobs import BIN, PYTHON, SECONDS, Client, trained, with_gloo

AUTO = ("auto",)  # refuse the name: test_refusals.py
group = pytest.mark.xdist_group
FEATURES = (
    *("ddp", "fp16_hook", "powersgd_hook", "fsdp2", "tensor_parallel", "dtensor"),
    *("checkpoint", "pipeline"),
)
# Without this it starts one process, however many are asked for: on CPUs it leaves that to mpirun.
MPIRUN = ("--mpirun_hostfile", "localhost.txt", "--num_machines", "1")
PORT = ("--main_process_port", "{port}")
ACCELERATE = (str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "2", *PORT, *MPIRUN)
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
DEEPSPEED = (str(BIN / "deepspeed"), "--num_accelerators", "2", "--master_port", "{port}")
CLIENTS = {
    "lightning": Client("lightning_train.py", own=tuple(PYTHON)),
    "lightning_fsdp2": Client("lightning_train.py", ("fsdp2",), own=tuple(PYTHON)),
    "accelerate": Client("accelerate_train.py", own=ACCELERATE, ways=AUTO, environ=AS_ROOT),
    "transformers": Client("transformers_train.py", own=ACCELERATE, ways=AUTO, environ=AS_ROOT),
    "deepspeed": Client(
        "deepspeed_train.py", own=DEEPSPEED, own_auto=(*DEEPSPEED, "--module", "horoacc.auto"),
        files=("zero1", "zero2", "zero3"), environ={"DS_ACCELERATOR": "cpu"},
    ),
    "ignite": Client(
        "ignite_train.py", own=tuple(PYTHON), own_arguments=("spawn",), ways=AUTO
    ),
    "ignite_horovod": Client("ignite_train.py", ways=("horovod",), launchers=("horoaccrun", "tcp")),
    "ray": Client(
        "ray_train.py", own=tuple(PYTHON), launchers=(), oracle="own",
        # It waits for its daemon for 30 s, which a busy machine exceeds; nothing sets that.
        late="The current node timed out during startup",
        own_auto=tuple(PYTHON),  # a hook of the script's imports `horoacc.auto` in the workers
    ),
    "torch": Client("torch_features.py", files=FEATURES),
}  # fmt: skip
CASES = [
    # In one process of pytest-xdist, which keeps what the client trains with Gloo.
    pytest.param(client, launcher, way, id=f"{name}-{launcher}-{way}", marks=group(name))
    for name, client in CLIENTS.items()
    for launcher in (*client.launchers, *(["own"] if client.own else []))
    for way in client.ways
]


def expect_equal(told: dict[str, list[torch.Tensor]], other: dict[str, list[torch.Tensor]]) -> None:
    for name, tensors in other.items():
        assert len(told[name]) == len(tensors), name
        for index, (one, two) in enumerate(zip(told[name], tensors, strict=True)):
            assert torch.equal(one, two), f"{name}, tensor {index}: {(one - two).abs().max()}"


@pytest.mark.timeout(2 * SECONDS + 60)
@pytest.mark.parametrize(("client", "launcher", "way"), CASES)
def test_parameters_are_those_of_gloo(client: Client, launcher: str, way: str) -> None:
    expect_equal(trained(client, launcher, way), with_gloo(client))
