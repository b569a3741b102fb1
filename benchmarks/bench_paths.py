"""`flowtrain bench pool` between two hosts, by each path: rates and latencies of payloads.

The hosts are namespaces on this machine (root and iproute2), joined by a virtual link. The second
one listens, the first one measures by one path after the other.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from two_hosts import two_hosts, wait_for

PROGRAM = [sys.executable, "-m", "flowtrain", "bench", "pool"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paths", nargs="+", choices=("tcp", "ucx"), default=["tcp", "ucx"])
    parser.add_argument("--ucx", default="", metavar="PATH", help="libucp.so.0 of both hosts")
    parser.add_argument("options", nargs="*", help="further ones of the command, after --")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flowtrain-paths-"))
    token, told = folder / "token", folder / "listens"
    token.write_text("bench-paths-benchmark-token")
    token.chmod(0o600)
    common = ["--token", token, *(["--ucx", given.ucx] if given.ucx else [])]
    try:
        with two_hosts() as (here, there):
            there.popen(*PROGRAM, "--listen", there.address, *common, log=told)
            at = wait_for(told, r"--connect (\S+)")[1]
            for path in given.paths:
                rows = folder / path
                flags = ["--path", path, "--connect", at, "--json", *common, *given.options]
                code = here.popen(*PROGRAM, *flags, log=rows).wait()
                if code != 0:
                    raise SystemExit(f"{rows.read_text()}{told.read_text()}")
                print(rows.read_text(), end="", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
