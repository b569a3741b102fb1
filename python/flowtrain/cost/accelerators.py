"""Figures of accelerators, from data sheets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowtrain.cost.timing import (
    ATTENTION,
    LINEAR,
    DataSheetTiming,
    Efficiency,
    attention_efficiency,
    linear_efficiency,
)

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """A type of GPU or NPU.

    Attributes:
        name: Name in the text of a cluster, such as `H100`.
        memory_bytes: Memory as the driver reports it, before any process has a context.
        bf16_flops: Peak in dense bfloat16, FLOP/s.
        hbm_bytes_per_s: Peak rate of its memory.
        source: Where each figure is from.
        linear: Share of the peak that products with a weight reach in training.
        attention: Share of the peak that fused attention reaches.
    """

    name: str
    memory_bytes: int
    bf16_flops: float
    hbm_bytes_per_s: float
    source: str
    linear: Efficiency = LINEAR
    attention: Efficiency = ATTENTION

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "bf16_flops", "hbm_bytes_per_s"):
            value = getattr(self, field)
            if not 0 < value < math.inf:
                raise ValueError(
                    f"accelerator {self.name}: {field}={value}: it must be above 0, and finite"
                )

    def timing(self, *, extrapolates: bool = False) -> DataSheetTiming:
        """Times in bfloat16 from these figures.

        Args:
            extrapolates: As for `DataSheetTiming`.
        """
        return DataSheetTiming(
            flops_per_s=self.bf16_flops,
            memory_bytes_per_s=self.hbm_bytes_per_s,
            linear=self.linear,
            attention=self.attention,
            extrapolates=extrapolates,
        )


_TRAINED = "chosen on the tables of llm-foundry (docs/cost.md); "
_PAPER = "what FlashAttention-2 (arXiv 2307.08691) states"
_AMPERE = (
    linear_efficiency(0.75, f"{_TRAINED}the best product alone reaches 0.87 (ml-engineering)"),
    attention_efficiency(0.45, f"below the 0.5 to 0.73 of {_PAPER} for long documents"),
)
_HOPPER = (
    linear_efficiency(
        0.6,
        f"{_TRAINED}newer software may be a third faster; the best product alone reaches 0.8 "
        "(ml-engineering)",
    ),
    attention_efficiency(0.35, f"{_PAPER} for long documents; FlashAttention-3 states up to 0.75"),
)
_UNTRAINED = "assumption: that of the H100; no training in bfloat16 was compared with it"
_BLACKWELL = (
    linear_efficiency(
        0.6, f"{_UNTRAINED}, and the best product alone reaches 0.78 (ml-engineering)"
    ),
    attention_efficiency(0.35, _UNTRAINED),
)


def _nvidia(
    name: str,
    mib: int,
    tera: float,
    giga: float,
    sheet: str,
    efficiency: tuple[Efficiency, Efficiency],
) -> Accelerator:
    return Accelerator(
        name=name,
        memory_bytes=mib * _MIB,
        bf16_flops=tera * 1e12,
        hbm_bytes_per_s=giga * 1e9,
        source=f"peak and bandwidth: NVIDIA {sheet}; memory: nvidia-smi",
        linear=efficiency[0],
        attention=efficiency[1],
    )


# By the words that the name of the device has; the first entry that matches counts.
_DEVICES: dict[str, Accelerator] = {
    "A100 40GB": _nvidia("A100-40GB", 40960, 312, 1555, "A100 data sheet, SXM 40 GB", _AMPERE),
    "A100": _nvidia("A100-80GB", 81920, 312, 2039, "A100 data sheet, SXM 80 GB", _AMPERE),
    "H100 PCIe": _nvidia("H100-PCIe", 81559, 756, 2000, "H100 data sheet, PCIe", _HOPPER),
    "H100 NVL": _nvidia("H100-NVL", 95830, 835, 3900, "H100 data sheet, NVL", _HOPPER),
    "H100": _nvidia("H100", 81559, 989, 3350, "H100 data sheet, SXM", _HOPPER),
    "H200": _nvidia("H200", 143771, 989, 4800, "H200 data sheet, SXM", _HOPPER),
    "B200": _nvidia("B200", 183359, 2250, 8000, "DGX B200 data sheet, one of 8 GPUs", _BLACKWELL),
    # 24 cube units of 16 x 16 x 16 multiply-adds a cycle, at 1.8 GHz.
    "910B2": Accelerator(
        name="Ascend-910B2",
        memory_bytes=65536 * _MIB,
        bf16_flops=353.9e12,
        hbm_bytes_per_s=1600e9,
        source="peak: 24 cube units at 1.8 GHz, platform files of CANN; bandwidth and memory: "
        "Atlas A2 in the migration guide of CANN's operators",
    ),
}

ACCELERATORS: dict[str, Accelerator] = {each.name: each for each in _DEVICES.values()}
"""Known accelerators by name."""


def device_accelerator(device: str) -> Accelerator | None:
    """The accelerator with the name that a driver gives the device, or None if it is not known."""
    for words, accelerator in _DEVICES.items():
        if all(word in device for word in words.split()):
            return accelerator
    return None
