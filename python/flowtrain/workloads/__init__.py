"""Workloads for schedulers: presets drawn from a seed, and length files."""

from flowtrain.workloads.lengths import read_lengths
from flowtrain.workloads.presets import PRESETS, preset
from flowtrain.workloads.workload import (
    Workload,
    decoder_flops,
    native_encoder_flops,
)

__all__ = ["PRESETS", "Workload", "decoder_flops", "native_encoder_flops", "preset", "read_lengths"]
