"""`flowtrain export`: write the model of a checkpoint as a Hugging Face folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from flowtrain import progress
from flowtrain.config.dtypes import Dtype


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("export", help=__doc__, description=__doc__)
    parser.add_argument("folder", metavar="RUN", type=Path, help="folder of the run")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--step", type=int, help="steps that the checkpoint has (default: the newest)"
    )
    which.add_argument(
        "--best", action="store_true", help="the checkpoint of the lowest loss in an evaluation"
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="the model that the run started from, if its folder has been moved",
    )
    parser.add_argument(
        "--out", type=Path, help="folder to write (default: RUN/exports/step-N); must not exist"
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="merge the LoRA adapters of the run into the model: a folder that needs no PEFT",
    )
    parser.add_argument(
        "--dtype",
        choices=get_args(Dtype),
        help="dtype of the files (default: model.dtype of the run)",
    )
    parser.set_defaults(run=run)


@progress.bar("loading PyTorch")
def run(given: argparse.Namespace) -> int:
    from flowtrain.train.export import export

    exported = export(
        given.folder,
        step=given.step,
        best=given.best,
        model=given.model,
        out=given.out,
        merged=given.merge,
        dtype=given.dtype,
    )
    print(json.dumps(exported))
    return 0
