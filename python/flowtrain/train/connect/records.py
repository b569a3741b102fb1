"""Records that a loop has in memory, as a file that its encoder ranks read too."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowtrain.data.errors import DataError
from flowtrain.data.records import json_line
from flowtrain.train.state import atomic


def write_records(records: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write records as `samples-HASH.jsonl`; the same records have the same name.

    Args:
        records: As in a JSONL file; images may also be bytes or images of Pillow, which are stored
            as PNG.
        folder: Folder of the job, created if it does not exist.

    Returns:
        The file.

    Raises:
        DataError: There is none, or one cannot be written as JSON.
        OSError: The file cannot be written.
    """
    if not records:
        raise DataError("flow.steps: the list has no records; give at least one")
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    part = folder / f"samples.{os.getpid()}{atomic.PART}"
    try:
        with part.open("wb") as file:
            for number, record in enumerate(records):
                line = json_line(record, f"flow.steps: record {number}")
                digest.update(line)
                file.write(line)
        atomic.flush(part)
        return part.replace(folder / f"samples-{digest.hexdigest()[:16]}.jsonl")
    finally:
        part.unlink(missing_ok=True)
