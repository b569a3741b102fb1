"""Plans that must be equal on every platform, and what their sources keep to for that.

A change of the schedulers changes the checksums; a change of the platform must not.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest

from flowtrain_core.packing import POLICIES, Packer, schedule

ROOT = Path(__file__).resolve().parents[3]
CPP = sorted((ROOT / "csrc/packing").glob("*.?pp"))
PYTHON = sorted((ROOT / "flowtrain_core/packing").rglob("*.py"))

# Functions whose last bit depends on the math library; and orders that a library may choose.
LIBM = r"(exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|tanh|cbrt|hypot|fma)\("
CPP_NEVER = (
    rf"\b{LIBM}",
    r"std::unordered_",
    # Numbers that compare equal are equal; of anything else the order must be stable.
    r"std::(partial_)?sort\((?!(\w+)\.begin\(\), \2\.end\(\)\);)",
    r"std::nth_element\((?!values\.begin\(\), at, values\.end\(\), std::greater<>\(\)\);)",
    r"#pragma .*(fp_contract|fast)",
)
PYTHON_NEVER = (
    rf"(numpy|math)\.{LIBM}",
    r"argsort\((?![^\n]*kind=\"stable\")",
)

# Of omnibal NumPy's generator decides, which NumPy may change.
GOLDEN = {
    "flowtrain-best": "0xd8c947e7",
    "flowtrain-rigid": "0xd32cae4a",
    "arrival": "0x8b62021c",
    "in-order": "0x5e1c79e6",
    "best-fit-decreasing": "0x82ed6cf1",
    "longest-first": "0xa39527d7",
    "equal-count-differencing": "0xa699bca8",
    "flowtrain": "0x896d2d74",
    "dflop": "0x694d3de4",
    "entrain": "0x3b38ae72",
    "stream": "0xc9938d59",
}


def drawn(seed: int, count: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Tokens, costs and encoder costs by integers and division alone, which are exact."""
    state, numbers = seed, []
    for _ in range(3 * count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        numbers.append(state >> 33)
    tokens, tails, images = numpy.array(numbers, numpy.int64).reshape(3, count)
    tokens = 1 + tokens % 50 * 8 + (tails % 20 == 0) * (tails % 3000)
    return tokens, tokens * (70.0 + tokens / 7.0), images % 9 * 1000.0 / 3.0


def checksum(plan: Any) -> int:
    crc = zlib.crc32(repr((plan.microbatches, plan.bound.hex())).encode())
    for places in (plan.slot, plan.rank, plan.encoder_slot, plan.encoder_rank):
        crc = zlib.crc32(places.astype("<i4").tobytes(), crc)
    return crc


def plans(policy: str) -> int:
    crc = 0
    for seed in (1, 2, 3):
        tokens, cost, encoder = drawn(seed, 200)
        cap = max(int(tokens.max()), int(tokens.sum()) * 5 // (4 * 16))
        for objective in ("lockstep", "accumulate", "max-microbatch", "pipeline"):
            plan = schedule(
                tokens, cost, encoder, ranks=4, microbatches=4, max_tokens=cap, policy=policy,
                objective=objective, stages=2 if objective == "pipeline" else 1,
            )  # fmt: skip
            crc = zlib.crc32(checksum(plan).to_bytes(4, "little"), crc)
    return crc


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "omnibal"])
def test_a_policy_has_one_plan(policy: str) -> None:
    assert f"{plans(policy):#010x}" == GOLDEN[policy]


def test_a_stream_has_one_plan() -> None:
    tokens, cost, _ = drawn(4, 800)
    packer = Packer(ranks=4, microbatches=4, max_tokens=4000, max_age=1)
    crc = 0
    for key in range(800):
        packer.add(key, int(tokens[key]), float(cost[key]))
        if packer.waiting_tokens > 1.05 * 16 * 4000:
            keys, plan = packer.step()
            for values in (keys, plan.slot, plan.rank):
                crc = zlib.crc32(numpy.asarray(values, "<i4").tobytes(), crc)
    assert f"{crc:#010x}" == GOLDEN["stream"]


@pytest.mark.parametrize(("files", "never"), [(CPP, CPP_NEVER), (PYTHON, PYTHON_NEVER)])
def test_sources_use_nothing_that_platforms_do_differently(
    files: list[Path], never: tuple[str, ...]
) -> None:
    assert len(files) > 15
    found = []
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            code = line.split("//")[0].strip()
            found += [f"{file.name}:{number}: {line}" for rule in never if re.search(rule, code)]
    assert not found


def test_products_and_sums_are_rounded_apart() -> None:
    assert "-ffp-contract=off" in (ROOT / "CMakeLists.txt").read_text()
    assert "-ffast-math" not in (ROOT / "CMakeLists.txt").read_text()
