"""Stands between mpirun, or srun, and a rank: `python -I -S shim.py command`, a plain file.

It opens pipes for the program's output and passes their ends to horoaccrun, which so gets every
rank's bytes apart and unchanged; it tells horoaccrun how the program ended, and dies with mpirun.
On another host, where horoaccrun cannot be reached, mpirun forwards the output.

Only the standard library, and little of it: one of these starts for every rank.
"""

import contextlib
import ctypes
import fcntl
import hmac
import json
import os
import signal
import socket
import sys
from collections.abc import MutableMapping

_PR_SET_PDEATHSIG = 1
# Bits of the byte that lets a rank start: the descriptors that come with it, in this order.
STDIN, LISTENER = 1, 2
_NONCE = 32  # bytes
SECRET_FILE = "HOROACC_SECRET_FD"
"""The variable that names the file with the job's secret, PID:FD."""
SECRET_FILE_NAME = "horoacc-secret"
_SECONDS = 60.0  # that horoaccrun may take to answer


def proof_of_shim(secret: str, challenge: bytes, nonce: bytes, rank: int, pid: int) -> str:
    """A shim's answer to horoaccrun's challenge, which needs the job's secret."""
    text = b"shim" + challenge + nonce + f"{rank} {pid}".encode()
    return hmac.new(secret.encode(), text, "sha256").hexdigest()


def proof_of_horoaccrun(secret: str, challenge: bytes, nonce: bytes) -> str:
    """The answer of horoaccrun to a shim's nonce, which needs the job's secret."""
    return hmac.new(secret.encode(), b"horoaccrun" + challenge + nonce, "sha256").hexdigest()


def hold_secret(secret: str, environ: MutableMapping[str, str]) -> int:
    """Puts the job's secret into a memory file; gives its descriptor, which is not inherited yet.

    The variables tell a process where to find it, and not the secret, which trackers would record.
    """
    fd = os.memfd_create(SECRET_FILE_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, secret.encode())
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    environ.pop("HOROACC_SECRET", None)
    environ[SECRET_FILE] = f"{os.getpid()}:{fd}"
    return fd


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _rank() -> int:
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    sys.exit("horoaccrun: this mpirun tells its processes no rank")


def _execute(command: list[str]) -> None:
    """Executes the program; on failure prints the reason, as a shell does."""
    if "HOROACC_SECRET" in os.environ:
        os.set_inheritable(hold_secret(os.environ["HOROACC_SECRET"], os.environ), True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"horoaccrun: cannot start '{command[0]}': {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _connect(name: str) -> tuple[socket.socket, bytes] | None:
    """The connection to horoaccrun, and its challenge; None if it is out of reach."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(_SECONDS)
        link.connect(f"\0{name}")
        challenge = link.recv(_NONCE, socket.MSG_WAITALL)
    except OSError:
        challenge = b""
    if len(challenge) < _NONCE:
        link.close()
        return None
    link.settimeout(None)
    return link, challenge


def _tell_place() -> None:
    """Sets the variables of a rank: torch's, and for a rendezvous over TCP those without MPI."""
    rank = _rank()
    size = _number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", default=1)
    here = len(os.environ.get("SLURM_GTIDS", "0").split(","))  # under srun: of the tasks there
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    local_size = _number("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", default=here)
    local_rank = _number(*names, default=rank % local_size)
    over_tcp = "HOROACC_RENDEZVOUS" in os.environ
    variables = place_variables if over_tcp else torch_variables
    os.environ.update(variables(rank, size, local_rank, local_size))


def place_variables(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """The variables that tell a rank without MPI its place.

    Horovod's launcher sets its names too when it runs without MPI, and scripts look at them.
    """
    hosts = -(-size // local_size)
    place = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": local_size,
        # Exact on hosts of equally many ranks, as for an MPI job; the core asks every rank.
        "CROSS_RANK": min(max(rank - local_rank, 0) // local_size, hosts - 1),
        "CROSS_SIZE": hosts,
    }
    variables = torch_variables(rank, size, local_rank, local_size)
    variables["HOROVOD_HOSTNAME"] = socket.gethostname()
    for name, value in place.items():
        variables[f"HOROACC_{name}"] = variables[f"HOROVOD_{name}"] = str(value)
    return variables


def torch_variables(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """The variables by which programs for torch know a rank's place, as torchrun sets them."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
    }


def _number(*names: str, default: int) -> int:
    return next((int(os.environ[n]) for n in names if os.environ.get(n, "").isdigit()), default)


def _main(command: list[str]) -> int:
    _die_with_parent()
    _tell_place()
    connected = _connect(os.environ.pop("HOROACC_OUTPUT_SOCKET", ""))
    if connected is None:
        _execute(command)
    assert connected is not None
    link, challenge = connected
    secret, nonce = os.environ["HOROACC_SECRET"], os.urandom(_NONCE)
    held = hold_secret(secret, os.environ)
    stdout, stdout_end = os.pipe()
    stderr, stderr_end = os.pipe()
    child = os.fork()
    if child == 0:
        _die_with_parent()
        os.setpgid(0, 0)
        os.dup2(stdout_end, 1)
        os.dup2(stderr_end, 2)
        # Not before horoaccrun knows this process, so that it can end it. Rank 0 also gets its
        # standard input, for mpirun's own forwarding may never deliver the end of it.
        go, fds, _, _ = socket.recv_fds(link, 128, 2)
        expected = proof_of_horoaccrun(secret, challenge, nonce).encode()
        if not hmac.compare_digest(go[1:], expected):
            os._exit(1)
        os.dup2(fds.pop(0) if go[0] & STDIN else os.open(os.devnull, os.O_RDONLY), 0)
        if go[0] & LISTENER:
            os.set_inheritable(fds[0], True)
            os.environ["HOROACC_RENDEZVOUS_FD"] = str(fds[0])
        os.set_inheritable(held, True)
        _execute(command)
    os.setpgid(child, child)
    proof = proof_of_shim(secret, challenge, nonce, _rank(), child)
    hello = {"rank": _rank(), "pid": child, "nonce": nonce.hex(), "proof": proof}
    socket.send_fds(link, [json.dumps(hello).encode() + b"\n"], [stdout, stderr])
    for fd in (stdout, stderr, stdout_end, stderr_end):
        os.close(fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: _pass_on(child, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    link.sendall(json.dumps({"status": code}).encode() + b"\n")
    exit_code = code if code >= 0 else 128 - code
    # mpirun ends all ranks when it sees that one failed, so it sees that no sooner than horoaccrun
    # says. mpirun itself may end the wait by a signal, and horoaccrun's death ends the link.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(exit_code))
    with contextlib.suppress(OSError):
        link.recv(1)
    return exit_code


def _pass_on(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended and been waited for
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
