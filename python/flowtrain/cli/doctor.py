"""`flowtrain doctor`: check that this machine can run FlowTrain."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("doctor", help=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from flowtrain.doctor import examine

    findings = examine()
    if given.json:
        print(json.dumps({f.name: {"state": f.state, "text": f.text} for f in findings}))
    else:
        for finding in findings:
            print(f"{finding.state:>5}  {finding.name}: {finding.text}")
    return 1 if any(finding.state == "bad" for finding in findings) else 0
