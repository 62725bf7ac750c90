"""The shapes of real models' gradients, in the order of their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class GradientSet:
    """What one step reduces."""

    name: str
    shapes: list[Shape]

    @property
    def bytes(self) -> int:
        return 4 * sum(prod(shape) for shape in self.shapes)


def resnet50() -> GradientSet:
    """He et al. 2015, as torchvision has it: 161 tensors, 25.6 M parameters."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, before, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, before, 1, 1), (4 * width,), (4 * width,)]
            before = 4 * width
    return GradientSet("ResNet-50", [*shapes, (1000, 2048), (1000,)])


def gpt2_small() -> GradientSet:
    """Radford et al. 2019: 148 tensors, 124 M parameters."""
    width = 768
    shapes: list[Shape] = [(50257, width), (1024, width)]
    for _ in range(12):
        shapes += [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
        shapes += [(width,), (width,), (width, 4 * width), (4 * width,)]
        shapes += [(4 * width, width), (width,)]
    return GradientSet("GPT-2 small", [*shapes, (width,), (width,)])


def many_small() -> GradientSet:
    """2000 tensors of 1 KiB: nothing but overhead."""
    return GradientSet("2000 x 1 KiB", [(256,)] * 2000)
