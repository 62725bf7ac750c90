"""What the machine code of the built kernels must be: loads under way, registers, local memory.

A GPU is not needed, but a disassembler is: `requirements-dev.txt` installs NVIDIA's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from horoacc import cuda_plugin

THREADS = 256  # of a block, in plugin/launch.h
BLOCKS = 3  # on a processor
REGISTERS = 65536 // (BLOCKS * THREADS) // 8 * 8  # of a thread: a processor has so many for all
UNITS = 8  # loads of a thread's turn, in kernels/reduce_grid.h
PACK_UNITS = 4

LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
REGISTER = re.compile(r"\bR(\d+)\b")


@dataclass
class Kernel:
    name: str
    registers: int = 0
    stack: int = 0
    code: list[tuple[int, str]] = field(default_factory=list)  # address and instruction

    @property
    def divides(self) -> bool:
        """Integers by factors: CUDA's division has products that are fused with sums."""
        whole = re.search("Scaled|Bool|long|int|short|char", self.name) is not None
        return "Scaled" in self.name or (self.name.startswith("PersistentKernel") and whole)

    @property
    def takes_more_than_8(self) -> bool:
        return re.search(r"ReduceKernel<.*, 0u,", self.name) is not None

    def mnemonics(self) -> set[str]:
        return {operation(text).split(".")[0] for _, text in self.code}

    def local_in_loops(self) -> list[str]:
        """Accesses to local memory in innermost loops with wide loads."""
        ends = [
            (int(target[1], 16), at)
            for at, text in self.code
            if (target := re.search(r"\bBRA (?:\S+, )?0x([0-9a-f]+)", text))
        ]
        loops = [(begin, end) for begin, end in ends if begin < end]
        inner = [
            loop
            for loop in loops
            if not any(loop[0] <= b and e <= loop[1] for b, e in loops if (b, e) != loop)
        ]
        found = []
        for begin, end in inner:
            body = [text for at, text in self.code if begin <= at <= end]
            if any(is_load(text, 128) for text in body):
                found += [text for text in body if operation(text).split(".")[0] in ("LDL", "STL")]
        return found

    def under_way(self, bits: int) -> int:
        """The most loads of so many bits that have begun before any of them is used."""
        most, count, pending = 0, 0, set[int]()
        for _, text in self.code:
            if is_load(text, bits):
                destination, address = registers_of(text)
                if address & pending:
                    count, pending = 0, set()
                width = max(bits // 32, 1)
                pending |= {min(destination) + i for i in range(width)}
                count += 1
                most = max(most, count)
            elif pending and set().union(*registers_of(text)) & pending:
                count, pending = 0, set()
        return most


def operation(text: str) -> str:
    return re.sub(r"^@!?U?P\w+\s+", "", text).split(" ")[0]


def is_load(text: str, bits: int) -> bool:
    """Of elements: flags and words of other ranks are loaded with an order or a scope."""
    parts = operation(text).split(".")
    if parts[0] not in ("LDG", "LD") or "STRONG" in parts:
        return False
    return {"128": 128, "64": 64}.get(parts[-1], 32) == bits and not {"U8", "U16"} & set(parts)


def registers_of(text: str) -> tuple[set[int], set[int]]:
    """The first operand's registers, and those of the others."""
    operands = text.split(" ", 1)[-1].split(",")
    sets = [{int(number) for number in REGISTER.findall(operand)} for operand in operands]
    return sets[0], set().union(*sets[1:])


def tool(name: str) -> str | None:
    nvcc = shutil.which("nvcc")
    folders = [
        *(str(bin) for bin in Path(sysconfig.get_paths()["purelib"]).glob("nvidia/cu*/bin")),
        *([str(Path(nvcc).resolve().parent)] if nvcc else []),
        os.environ["PATH"],
    ]
    return shutil.which(name, path=os.pathsep.join(folders))


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    if not cuda_plugin.LIBRARY.exists():
        pytest.skip("the plug-in was not built: it needs an nvcc")
    cuobjdump, nvdisasm, demangle = tool("cuobjdump"), tool("nvdisasm"), shutil.which("c++filt")
    if not cuobjdump or not nvdisasm or not demangle:
        pytest.skip("no disassembler: cuobjdump, nvdisasm and c++filt are needed")
    environ = {**os.environ, "PATH": f"{Path(nvdisasm).parent}{os.pathsep}{os.environ['PATH']}"}

    def dump(what: str) -> str:
        raw = subprocess.run(
            [cuobjdump, what, str(cuda_plugin.LIBRARY)],
            env=environ, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        plain = subprocess.run(
            [demangle], input=raw, check=True, capture_output=True, text=True
        ).stdout
        return re.sub(r"horoacc::|cuda::|\(anonymous namespace\)::|void ", "", plain)

    found: dict[tuple[str, str], Kernel] = {}
    arch = ""
    for line in dump("-sass").splitlines():
        if match := re.search(r"Function : (.*)", line):
            kernel = found.setdefault((arch, match[1]), Kernel(match[1]))
        elif match := LINE.match(line):
            kernel.code.append((int(match[1], 16), match[2]))
        elif match := re.match(r"arch = (\S+)", line):
            arch = match[1]
    for line in dump("-res-usage").splitlines():
        if match := re.match(r"\s*Function (.*):$", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+)", line):
            kernel = found[arch, name]
            kernel.registers, kernel.stack = int(match[1]), int(match[2])
        elif match := re.match(r"arch = (\S+)", line):
            arch = match[1]
    assert all(kernel.code and kernel.registers for kernel in found.values())
    return list(found.values())


def of(kernels: list[Kernel], kind: str) -> list[Kernel]:
    some = [kernel for kernel in kernels if kernel.name.startswith(kind)]
    assert some, f"there is no {kind}"
    return some


def test_kernels_of_up_to_8_sources_have_no_local_memory(kernels: list[Kernel]) -> None:
    some = [kernel for kernel in of(kernels, "ReduceKernel") if not kernel.takes_more_than_8]
    for kernel in [*some, *of(kernels, "Pack"), *of(kernels, "AdasumKernel")]:
        assert kernel.stack == 0, kernel.name
        assert not kernel.mnemonics() & {"LDL", "STL"}, kernel.name


def test_no_loop_over_elements_uses_local_memory(kernels: list[Kernel]) -> None:
    found = {kernel.name: kernel.local_in_loops() for kernel in kernels}
    assert {name: code for name, code in found.items() if code} == {}


def test_three_blocks_fit_on_a_processor(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        if kernel.name.startswith("PersistentKernel"):
            continue
        assert kernel.registers <= REGISTERS, kernel.name


def test_all_loads_of_a_turn_are_under_way_before_the_first_is_used(kernels: list[Kernel]) -> None:
    for kernel in of(kernels, "ReduceKernel"):
        whole = "Complex<double>" in kernel.name  # whose elements are as wide as loads
        narrow = 64 if re.search("double|long|Complex", kernel.name) and not whole else 32
        bits = narrow if kernel.takes_more_than_8 and not whole else 128
        units = UNITS // 2 if whole else UNITS
        assert kernel.under_way(bits) >= units, (kernel.name, kernel.under_way(bits))
    for kernel in of(kernels, "PersistentKernel"):
        if "Scaled" in kernel.name:
            continue  # rare, and without faster code: kernels/combine_grid.h
        assert kernel.under_way(128) >= UNITS, (kernel.name, kernel.under_way(128))
    for kernel in of(kernels, "Pack"):
        assert kernel.under_way(128) >= PACK_UNITS, (kernel.name, kernel.under_way(128))
    for kind, bits in (("float", 32), ("double", 64)):
        (kernel,) = of(kernels, f"AdasumKernel<Number<{kind}>")
        assert kernel.under_way(bits) >= 2 * UNITS, (kernel.name, kernel.under_way(bits))


def test_counts_are_released_behind_a_fence_and_acquired(kernels: list[Kernel]) -> None:
    for kernel in of(kernels, "PersistentKernel"):
        code = [operation(text) for _, text in kernel.code]
        fences = [at for at, name in enumerate(code) if re.fullmatch(r"MEMBAR\..*\.SYS", name)]
        # The barrier of direct calls; and of schedules a message's two counts, and a lane's end.
        assert len(fences) >= 4, (kernel.name, len(fences))
        for at in fences:
            behind = next(name for name in code[at:] if name.startswith("ST"))
            assert ".64.STRONG.SYS" in behind, (kernel.name, behind)
        # The same barrier; three waits of a step, and two for memory.
        acquires = [at for at, name in enumerate(code) if at > 0 and name == "CCTL.IVALL"
                    and re.match(r"LDG?\..*64\.STRONG\.SYS", code[at - 1])]  # fmt: skip
        assert len(acquires) >= 6, (kernel.name, len(acquires))


def test_no_product_is_fused_with_a_sum(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        if kernel.divides:
            continue
        for _, text in kernel.code:
            fused = operation(text).split(".")[0] in ("FFMA", "DFMA", "HFMA2")
            # With a zero, it is the compiler's way to load a constant or to copy a register.
            assert not fused or "RZ" in text, (kernel.name, text)


def test_loads_are_counted_until_one_is_used() -> None:
    def under_way(*code: str) -> int:
        return Kernel("", code=list(enumerate(code))).under_way(128)

    load = "@P0 LDG.E.128 R{}, desc[UR6][R2.64]".format
    assert under_way(load(4), load(8), "FADD R4, R4, R8", load(12)) == 2
    assert under_way(load(4), "IADD3 R20, R21, R22, RZ", load(8), load(12)) == 3
    assert under_way(load(4), "FADD R20, R7, R8", load(8), "FADD R20, R7, R8") == 1
    assert under_way("LDG.E.64.STRONG.SYS R4, desc[UR6][R2.64]", load(8)) == 1


def test_local_memory_is_found_in_innermost_loops() -> None:
    spill = (16, "STL [R1], R4")
    loop = [(32, "LDG.E.128 R4, desc[UR6][R2.64]"), (48, "@P0 BRA 0x20")]
    outer = Kernel("", code=[spill, *loop, (64, "BRA 0x0")])
    assert outer.local_in_loops() == []
    inner = Kernel("", code=[(16, "NOP"), loop[0], (40, spill[1]), loop[1]])
    assert inner.local_in_loops() == [spill[1]]
