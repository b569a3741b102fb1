"""Fuzz all input from other processes with libFuzzer, and keep the corpus.

    python tests/cpp/fuzz/run.py BUILD --seconds 600 [--keep]

BUILD is a folder of `fuzz_*` programs built with `-fsanitize=fuzzer-no-link,...`; each gets an
equal share of the time. The kept corpora are `corpus/fuzz_*.txt`, one input in hexadecimal per
line, which `replay.cpp` runs without a fuzzer. `--keep` rewrites them with a minimal set of inputs
of the same coverage. Exits with 1 at the first fault, and names the input.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE / "corpus"
MAX_BYTES = 160  # Per input: a dozen changes.


def unpack(kept: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if kept.exists():
        for number, line in enumerate(kept.read_text().split()):
            (folder / f"kept-{number:04}").write_bytes(bytes.fromhex(line))


def pack(folder: Path, kept: Path) -> int:
    inputs = sorted({path.read_bytes().hex() for path in folder.iterdir()} - {""})
    kept.write_text("".join(f"{line}\n" for line in inputs))
    return len(inputs)


def fuzz(program: Path, seconds: int, *, keep: bool) -> bool:
    corpus = program.parent / "corpus" / program.name
    kept = KEPT / f"{program.name}.txt"
    unpack(kept, corpus)
    found = program.parent / "found"  # Inputs that end with a fault.
    found.mkdir(exist_ok=True)
    options = [f"-max_len={MAX_BYTES}", "-len_control=0", "-timeout=10", "-rss_limit_mb=4096"]
    done = subprocess.run(
        [
            *(program, *options, f"-max_total_time={seconds}", "-print_final_stats=1"),
            *(f"-artifact_prefix={found}/{program.name}-", corpus),
        ],
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        print(done.stderr[-8000:], file=sys.stderr)
        return False
    runs = next(line for line in done.stderr.splitlines() if line.startswith("Done "))
    print(f"{program.name}: {runs[5:]}, no fault")
    if keep:
        minimal = program.parent / "minimal" / program.name
        minimal.mkdir(parents=True, exist_ok=True)
        for old in minimal.iterdir():
            old.unlink()
        subprocess.run(
            [program, *options, "-merge=1", minimal, corpus], check=True, capture_output=True
        )
        print(f"{kept.name}: {pack(minimal, kept)} inputs, {kept.stat().st_size} bytes")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=int, default=600, help="total time (default: 600)")
    parser.add_argument("--keep", action="store_true", help="rewrite the kept corpus")
    given = parser.parse_args()
    programs = [given.build / source.stem for source in sorted(HERE.glob("fuzz_*.cpp"))]
    if missing := [program.name for program in programs if not program.exists()]:
        print(f"{given.build}: no {', '.join(missing)}; build them first", file=sys.stderr)
        return 2
    share = max(1, given.seconds // len(programs))
    return 0 if all(fuzz(program, share, keep=given.keep) for program in programs) else 1


if __name__ == "__main__":
    sys.exit(main())
