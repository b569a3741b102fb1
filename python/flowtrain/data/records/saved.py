"""Folders that `save_to_disk` of Hugging Face datasets has written."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from flowtrain.data.errors import DataError
from flowtrain.data.records.base import Records, State, file_state, hash_of
from flowtrain.error_texts import reason_of

_CHECKED_EVERY_S = 1.0


class SavedDataset(Records):
    """Records of a folder written by `save_to_disk`, which are mapped and not loaded.

    A record has the stored values: features such as `Image` are not decoded.

    Raises:
        DataError: datasets is not installed; the folder holds no data set, several splits or no
            rows; or it has another state.
    """

    def __init__(self, path: Path, state: State | None = None) -> None:
        self._path = path
        if (path / "dataset_dict.json").exists():
            splits = sorted(each.parent.name for each in path.glob("*/dataset_info.json"))
            raise DataError(
                f"{path}: the folder has the splits {', '.join(splits)}; choose one, "
                f"such as {path / (splits[0] if splits else 'train')}"
            )
        if not (path / "dataset_info.json").exists() or not (path / "state.json").exists():
            raise DataError(
                f"{path}: the folder has no dataset_info.json and state.json, as "
                "save_to_disk of Hugging Face datasets writes them; write it so, or name a "
                ".jsonl, .json or .parquet file"
            )
        try:
            from datasets import load_from_disk
        except ImportError as error:
            raise DataError(
                f"{path}: such folders are read with datasets, which cannot be imported "
                f"({error}); install it: pip install datasets"
            ) from error
        super().__init__(str(path), state)
        self._checked = time.monotonic()
        try:
            self._rows: Any = load_from_disk(str(path), keep_in_memory=False)
            # Other formats would decode images.
            self._rows = self._rows.with_format("arrow")
        # Damaged files raise errors of Arrow and of many built-in types.
        except Exception as error:
            raise DataError(
                f"{path}: datasets cannot load the folder ({type(error).__name__}: "
                f"{error}); write it again with save_to_disk"
            ) from error
        if len(self) == 0:
            raise DataError(f"{path}: no samples; write one row per sample")

    def __len__(self) -> int:
        return len(self._rows)

    def _read(self, sample: int) -> Any:
        # Not for each record, as there may be many files.
        if time.monotonic() - self._checked > _CHECKED_EVERY_S:
            self.check_state()
            self._checked = time.monotonic()
        try:
            return self._rows[sample].to_pylist()[0]
        except Exception as error:
            raise DataError(
                f"{self.where(sample)}: cannot be read ({reason_of(error)}); write "
                "the folder again with save_to_disk"
            ) from error

    def _files(self) -> list[Path]:
        return sorted(path for path in self._path.iterdir() if path.is_file())

    def _state_now(self) -> State:
        states = [(path.name, *file_state(path)) for path in self._files()]
        return hashlib.sha256(repr(states).encode()).hexdigest()

    @property
    def num_bytes(self) -> int:
        return sum(file_state(path)[0] for path in self._files())

    def contents(self, *, every: int = 1) -> str:
        digest = hashlib.sha256()
        for path in self._files():
            with path.open("rb") as file:
                found = hash_of(file.fileno(), every=every)
            digest.update(f"{path.name} {found}\n".encode())
        self.check_state()
        return digest.hexdigest()
