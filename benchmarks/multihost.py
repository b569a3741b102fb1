"""Runs over two hosts, which namespaces on this machine emulate.

Needs root and iproute2. Runs are undisturbed, or the link is cut, or the second host is killed as a
whole. A frozen run with encoder ranks on both hosts goes on without the second one; in another one
encoder ranks join, leave and die at random. Any other run ends with an error, and goes on by a
resume. Each is compared with a run on one host, sample by sample. Payloads go over TCP, and where
UCX is installed over UCX.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from two_hosts import LIMIT_S, Host, two_hosts, wait_for

from flowtrain.bench.conditions import conditions
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST
from flowtrain.train.state.logs import read_log

PROGRAM = [sys.executable, "-m", "flowtrain"]
PORT = 4711
SAMPLES, STEPS = 240, 30
# Ranks of the other host take seconds to start, and are to make much of the frozen run; in the
# other runs, there is to be a checkpoint before the event.
DELAYS_MS = {"frozen 1 + 1": 400.0, "none": 0.0, "cut": 60.0, "kill": 60.0}
# Changes of the encoder ranks of a frozen run, and the largest number of commands that run them.
CHANGES, MOST_COMMANDS, BETWEEN_S = 20, 3, 1.5
CHANGES_DELAY_MS = 2000.0


@dataclass(frozen=True, slots=True)
class Case:
    """A layout, and where its ranks are.

    Attributes:
        fields: Sections of the configuration.
        ranks: Of each world, its ranks on the first and on the second host.
    """

    fields: dict[str, Any]
    ranks: dict[str, tuple[int, int]]


CASES = {
    "frozen 1 + 1": Case(
        {
            "flow": {"mode": "frozen", "item_tokens": 24, "encoder_ranks": 1, "backbone_ranks": 1},
            "pool": {"slab_bytes": 4096},
        },
        {},
    ),
    "strict 1 + 2": Case(
        {"flow": {"encoder_ranks": 1, "backbone_ranks": 2}},
        {"backbone": (1, 1), "encoder": (0, 1)},
    ),
    "strict colocated 2": Case({"flow": {"ranks": 2}}, {"colocated": (1, 1)}),
    "strict FSDP2 1 + 2": Case(
        {
            "flow": {"encoder_ranks": 1, "backbone_ranks": 2},
            "parallel": {"backbone": {"sharding": "full"}},
        },
        {"backbone": (1, 1), "encoder": (0, 1)},
    ),
}
ROWS = [
    *(("frozen 1 + 1", event) for event in ("none", "cut", "kill", "changes")),
    *(("strict 1 + 2", event) for event in ("none", "cut", "kill")),
    ("strict colocated 2", "none"),
    ("strict FSDP2 1 + 2", "none"),
]


def tree_of(case: str, run: Path, data: Path, *, delay_ms: float) -> dict[str, Any]:
    return {
        "run": str(run),
        "model": {"config": str(data / "model")},
        "data": {"path": str(data / "train.jsonl"), "workers": 0},
        "train": {"steps": STEPS, "global_batch": 8, "microbatch_tokens": 160, "threads": 1},
        "optim": {"lr": 1e-3},
        "checkpoint": {"every": 5},
        "debug": {"delay_ms": delay_ms},
        **CASES[case].fields,
    }


def write_tree(tree: dict[str, Any]) -> Path:
    path = Path(tree["run"] + ".yaml")
    path.write_text(yaml.safe_dump(tree))
    return path


class Run:
    """A run over two hosts."""

    def __init__(self, case: str, event: str, path: str, folder: Path, data: Path) -> None:
        self.case, self.event, self.folder = CASES[case], event, folder
        self.run, self.token = folder / "run", folder / "token"
        folder.mkdir()
        self.token.write_text("multihost-benchmark-token")
        self.token.chmod(0o600)
        delay_ms = DELAYS_MS.get(case) or DELAYS_MS[event]
        if event == "changes":
            delay_ms = CHANGES_DELAY_MS
        self.config = write_tree(tree_of(case, self.run, data, delay_ms=delay_ms))
        self.row: dict[str, Any] = {"case": case, "event": event, "path": path}

    def log(self, name: str) -> Path:
        return self.folder / name

    def go(self) -> dict[str, Any]:
        with two_hosts() as hosts:
            code = self._attempt(*hosts)
        if self.event != "none" and self.case.ranks:
            assert code != 0
            with two_hosts() as hosts:
                self.event = "none"
                code = self._attempt(*hosts, "--resume")
        assert code == 0, self.log("here").read_text()[-4000:]
        return self.row

    def _attempt(self, here: Host, there: Host, *more: str) -> int:
        for log in ("here", "there"):
            self.log(log).unlink(missing_ok=True)
        flags = ["--token", self.token, "--timeout", 60, "--path", self.row["path"]]
        if self.row["path"] == "ucx" and (wheel := find_spec("libucx")) is not None:
            flags += ["--ucx", Path(str(wheel.origin)).parent / "lib" / "libucp.so.0"]
        listens = ("--listen", f"{here.address}:{PORT}", *flags)
        if self.case.ranks:
            command = ("host", self.config, *more, *listens)
            run = here.popen(*PROGRAM, *command, log=self.log("here"))
        else:
            run = here.popen(*PROGRAM, "train", self.config, log=self.log("here"))
            here.popen(*PROGRAM, "host", self.run, *listens, log=self.log("here"))
        wait_for(self.log("here"), "other hosts can join")
        # A frozen run needs no folder that both hosts share.
        folder = self.run if self.case.ranks else self.folder / "elsewhere"
        joins = ("--join", f"{here.address}:{PORT}", *flags)
        there.popen(*PROGRAM, "host", folder, *joins, log=self.log("there"))
        wait_for(self.log("there"), "host here is connected")
        if self.case.ranks:
            self._start_ranks(here, there)
        else:
            there.popen(*PROGRAM, "encoder", "--job", folder, log=self.log("there"))
        if self.event == "changes":
            self._change(run, {here: self.run, there: folder})
        elif self.event != "none":
            self._disturb(here, there)
        code = run.wait(LIMIT_S)
        if self.event == "none":
            pattern = r"sent (\d+) items of (\d+) bytes, .* received (\d+) of (\d+) bytes"
            found = wait_for(self.log("there"), pattern)
            self.row["items"] = int(found[1]) + int(found[3])
            self.row["bytes_through_pool"] = int(found[2]) + int(found[4])
            self.row["veth_bytes"] = here.bytes_on_link()
        return code

    def _start_ranks(self, here: Host, there: Host) -> None:
        for number, (world, ranks) in enumerate(self.case.ranks.items()):
            used = [(host, n) for host, n in zip((here, there), ranks, strict=True) if n]
            first, _ = used[0]
            for node, (host, count) in enumerate(used):
                host.popen(
                    *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(used)}"),
                    *(f"--node-rank={node}", f"--nproc-per-node={count}"),
                    *(f"--master-addr={first.address}", f"--master-port={29500 + number}"),
                    *("-m", "flowtrain", "rank", "--job", self.run, "--world", world),
                    log=self.log(f"{world}-{node}"),
                )

    def _change(self, run: subprocess.Popen[bytes], folders: dict[Host, Path]) -> None:
        """Let encoder ranks join, leave and die at random on both hosts, while the run goes on."""
        rng = random.Random(1)
        commands: list[subprocess.Popen[bytes]] = []
        counts = Counter[str]()
        while counts.total() < CHANGES and run.poll() is None:
            commands = [command for command in commands if command.poll() is None]
            kinds = ["join"] * (len(commands) < MOST_COMMANDS) + ["leave", "die"] * bool(commands)
            kind = rng.choice(kinds)
            if kind == "join":
                host, folder = rng.choice(list(folders.items()))
                words = ("encoder", "--job", folder)
                commands.append(host.popen(*PROGRAM, *words, log=self.log("encoders")))
            else:
                command = commands.pop(rng.randrange(len(commands)))
                for pid in Host.children(command.pid):
                    os.kill(pid, signal.SIGTERM if kind == "leave" else signal.SIGKILL)
            counts[kind] += 1
            time.sleep(BETWEEN_S)
        self.row["changes"] = dict(counts)

    def _disturb(self, here: Host, there: Host) -> None:
        """Cut the link or kill the other host, once that has made some of the steps."""
        if self.case.ranks:
            end = time.monotonic() + LIMIT_S
            while len(read_log(self.run / "metrics.jsonl")) < 8:
                assert time.monotonic() < end, self.log("here").read_text()
                time.sleep(0.05)
        else:
            wait_for(self.log("there"), "joining the run")
            time.sleep(10)
        seen, start = len(self.log("here").read_text()), time.monotonic()
        there.kill() if self.event == "kill" else here.ip("link", "set", here.device, "down")
        told = wait_for(self.log("here"), "host there .* is lost.*", seen)
        self.row["detect_s"] = round(time.monotonic() - start, 3)
        if self.case.ranks:
            error = wait_for(self.log("here"), "the run ended early.*", seen)
            self.row["error_s"] = round(time.monotonic() - start, 3)
            self.row["error"] = f"{told[0]}; {error[0]}"


def compare(run: Path, base: Path) -> dict[str, Any]:
    """Losses of a run against those on one host, and samples that were lost or repeated."""
    steps, expected = (read_log(folder / "metrics.jsonl") for folder in (run, base))
    used = Counter(sample for step in steps for sample in step["samples"])
    return {
        "steps": len(steps),
        "max_rel_loss_diff": max(
            abs(a["loss"] - b["loss"]) / abs(b["loss"])
            for a, b in zip(steps, expected, strict=True)
        ),
        "lost": sum(used[sample] == 0 for sample in range(SAMPLES)),
        "repeated": sum(count - 1 for count in used.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    parser.add_argument("--match", default="*", help="cases to run, such as 'strict*' or '*cut*'")
    parser.add_argument(
        "--paths",
        type=lambda text: text.split(","),
        default=["tcp", "ucx"] if find_spec("libucx") else ["tcp"],
        help="paths of payloads, such as tcp,ucx (default: both, if libucx-cu12 is installed)",
    )
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flowtrain-multihost-"))
    try:
        data = folder / "data"
        data.mkdir()
        write_digits(data, train=SAMPLES, heldout=4, seed=3, sizes=SMALLEST)
        bases: dict[str, Path] = {}
        rows = []
        for number, (path, (case, event)) in enumerate(product(given.paths, ROWS)):
            if not fnmatch(f"{case}, {event}, {path}", given.match):
                continue
            if case not in bases:
                bases[case] = folder / f"base-{number}"
                tree = tree_of(case, bases[case], data, delay_ms=0.0)
                subprocess.run(
                    [*PROGRAM, "train", write_tree(tree)],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            run = Run(case, event, path, folder / f"run-{number}", data)
            rows.append(run.go() | compare(run.run, bases[case]))
            if not given.json:
                print(rows[-1], flush=True)
        print(json.dumps({"benchmark": "multihost", "runs": rows, **conditions()}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
