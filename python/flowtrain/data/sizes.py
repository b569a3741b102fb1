"""Sizes of all samples, stored beside a data set and valid as long as nothing decides others."""

from __future__ import annotations

import json
import os
import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowtrain import __version__
from flowtrain.config.schema import RunConfig
from flowtrain.config.sources import SourceConfig
from flowtrain.data.errors import DataError
from flowtrain.data.model_files import changed_names, model_hashes
from flowtrain.data.records import SIZES, Dataset
from flowtrain.workloads import Workload

Length = dict[str, float]
"""Sizes of a sample: `tokens`, `visual_tokens`, and the forward FLOPs `cost` and `encoder_cost`, as
`flowtrain.workloads.read_lengths` reads them."""

DECIDING = (
    "ignore",
    "oversize",
    "min_pixels",
    "max_pixels",
    "video_fps",
    "video_max_frames",
    "video_max_pixels",
)
"""Fields of `data` that decide sizes, besides those that name data sets and images."""

_COLUMNS = {"tokens": "q", "visual_tokens": "q", "cost": "d", "encoder_cost": "d"}
_FINGERPRINT = "fingerprint"
# Without an effect on samples that are within the limit.
_LIMITS = ("data.oversize", "train.microbatch_tokens")
_WAY_OUT = "run `flowtrain data check RUN.yaml`, which writes them anew"


class SampleSizes:
    """Sizes of the samples of one data set, in their order; 32 bytes per sample."""

    whole = True
    """Whether all samples, also bad ones, are within `train.microbatch_tokens`."""
    bad = 0
    """Bad samples, which have no sizes."""

    def __init__(self) -> None:
        self._columns: dict[str, array[Any]] = {
            name: array(code) for name, code in _COLUMNS.items()
        }

    def add(self, size: Length) -> None:
        """Add the next sample."""
        for name, column in self._columns.items():
            column.append(size[name])

    def write(self, path: Path, fingerprint: dict[str, Any]) -> None:
        """Write the sizes to a file, which replaces an older one when it is complete.

        Args:
            path: The file: an archive of NumPy arrays (`.npz`).
            fingerprint: What has decided the sizes; values that JSON can hold.

        Raises:
            OSError: The file cannot be written.
        """
        part = path.with_name(f"{path.name}.part")
        arrays: dict[str, Any] = {
            name: np.asarray(column) for name, column in self._columns.items()
        }
        arrays[_FINGERPRINT] = np.array(json.dumps(fingerprint))
        try:
            with part.open("wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def write_sizes(
    config: RunConfig, dataset: Dataset, model: dict[str, str], sizes: list[SampleSizes]
) -> list[Path | str | None]:
    """Write the sizes of each data set beside it.

    Args:
        config: The run that was checked.
        dataset: Its samples, as they were read.
        model: `model_hashes` before the samples were read.
        sizes: Sizes of the good samples of each data set.

    Returns:
        For each data set its file, the reason why it could not be written, or None for a Python
        data set, whose contents cannot be compared.

    Raises:
        DataError: A data set has changed since it was opened.
    """
    if changed := changed_names(model, model_hashes(config.model.folder)):
        return [f"the model's {', '.join(changed)} changed during the check"] * len(sizes)
    written: list[Path | str | None] = []
    for source, contents, found in zip(
        config.data.all_sources, dataset.contents(), sizes, strict=True
    ):
        if source.path is None:
            written.append(None)
            continue
        path = sizes_path(source.path)
        try:
            fingerprint = _fingerprint(config, source, contents, model)
            found.write(path, {**fingerprint, "whole": found.whole, "bad": found.bad})
            written.append(path)
        except OSError as error:
            written.append(f"{path} cannot be written ({error.strerror})")
    return written


def read_sizes(config: RunConfig) -> Workload:
    """Sizes of the samples of a run, which `flowtrain data check` wrote beside its data.

    A sample of a source with a weight appears as often as an epoch draws it; half of the samples,
    evenly spread, if the weight is 0.5.

    Raises:
        DataError: A data set is Python code, or cannot be opened; its sizes are missing or damaged,
            or something that decides sizes has changed. The message names the file and the changes.
        OSError: A file cannot be read.
    """
    sources = config.data.all_sources
    stored = [_read(source) for source in sources]
    dataset, model = Dataset(config.data), model_hashes(config.model.folder)
    parts, bad = [], 0
    for source, contents, (fingerprint, columns) in zip(
        sources, dataset.contents(), stored, strict=True
    ):
        assert source.path is not None
        now = _fingerprint(config, source, contents, model)
        longest = int(columns["tokens"].max(initial=0))
        if fingerprint["whole"] and longest <= config.train.microbatch_tokens:
            fingerprint["fields"] |= {name: now["fields"][name] for name in _LIMITS}
        if changed := _changes(fingerprint, now):
            raise DataError(
                f"{sizes_path(source.path)}: the sizes are not those of this run, as these "
                f"changed: {', '.join(changed)}; {_WAY_OUT}"
            )
        bad += fingerprint["bad"]
        samples = len(columns["tokens"])
        draws = int(source.weight * samples + 0.5)
        places = np.arange(draws) * samples // max(draws, 1)
        parts.append({name: column[places] for name, column in columns.items()})
    joined = {name: np.concatenate([part[name] for part in parts]) for name in _COLUMNS}
    if not len(joined["tokens"]):
        raise DataError(
            f"{config.data.name}: the check of the data found no good sample; see what "
            "`flowtrain data check RUN.yaml` lists"
        )
    return Workload(
        name=config.data.name if config.data.sources else Path(config.data.name).name,
        **joined,
        bad=bad,
        images=(joined["visual_tokens"] > 0).astype(np.int64),
    )


def size_digests(config: RunConfig) -> dict[str, str]:
    """What the sizes of the samples of a run depend on: values of fields, and digests of files.

    `train.microbatch_tokens` is left out, which counts for longer samples alone, and so is the
    `config.json` of the model.

    Raises:
        DataError: A data set is Python code, or cannot be opened.
        OSError: A file cannot be read.
    """
    sources = config.data.all_sources
    for source in sources:
        if source.path is None:
            raise DataError(f"{source.name}: the contents of a Python data set cannot be compared")
    model = model_hashes(config.model.folder)
    found = {f"the model's {name}": value for name, value in model.items() if name != "config.json"}
    for source, contents in zip(sources, Dataset(config.data).contents(), strict=True):
        fields = _fingerprint(config, source, contents, model)["fields"]
        names = fields.keys() - {"version of flowtrain", "train.microbatch_tokens"}
        found |= {name: json.dumps(fields[name]) for name in sorted(names)}
        assert source.path is not None
        found[f"the contents of {source.path.name}"] = contents
        if config.data.sources:
            found[f"the weight of {source.path.name}"] = json.dumps(source.weight)
    return found


def sizes_path(data: Path) -> Path:
    """File with the sizes of a data set: its name and `.sizes`, in the same folder.

    Args:
        data: A file, a folder, or a pattern; `_` stands for each of its special characters.
    """
    return data.with_name(re.sub(r"[*?\[\]]", "_", data.name) + SIZES)


def _read(source: SourceConfig) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Fingerprint and columns of the sizes of a data set."""
    if source.path is None:
        raise DataError(
            f"{source.name}: the sizes of a Python data set are not stored, as its contents cannot "
            "be compared; `flowtrain data check RUN.yaml --lengths FILE` writes them to a file of "
            "lengths, which can be given in their place"
        )
    path = sizes_path(source.path)
    if not path.exists():
        raise DataError(
            f"{path}: there is no such file, so that the sizes of the samples of {source.path} are "
            "not known; run `flowtrain data check RUN.yaml`, which writes it"
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            columns = {name: archive[name] for name in _COLUMNS}
            fingerprint: dict[str, Any] = json.loads(str(archive[_FINGERPRINT]))
        if fingerprint.keys() != {"fields", "contents", "model", "whole", "bad"}:
            raise ValueError(f"its fingerprint has {', '.join(fingerprint)}")
        return fingerprint, columns
    except OSError:
        raise
    # A damaged archive raises errors of zipfile, of NumPy and of many built-in types.
    except Exception as error:
        raise DataError(f"{path}: the file is damaged ({error}); {_WAY_OUT}") from error


def _fingerprint(
    config: RunConfig, source: SourceConfig, contents: str, model: dict[str, str]
) -> dict[str, Any]:
    """Values on which the sizes of a data set in files depend."""
    assert source.path is not None and source.root is not None
    fields = {
        "version of flowtrain": __version__,
        **{f"data.{name}": getattr(config.data, name) for name in DECIDING},
        "data.ignore": sorted(config.data.ignore),  # As it is in JSON.
        # Relative, so that a data set may move with its images.
        "data.image_root": os.path.relpath(source.root, source.path.parent),
        "train.microbatch_tokens": config.train.microbatch_tokens,
        "projector_side (by model.freeze and flow.mode)": config.projector_side,
    }
    return {"fields": fields, "contents": contents, "model": model}


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences between two fingerprints, for a message."""
    changes = [
        f"{name}={before['fields'].get(name)!r} (now {value!r})"
        for name, value in now["fields"].items()
        if before["fields"].get(name) != value
    ]
    if before["contents"] != now["contents"]:
        changes.append("the contents of the data set")
    if names := changed_names(before["model"], now["model"]):
        changes.append(f"the contents of the model's {', '.join(names)}")
    return changes
