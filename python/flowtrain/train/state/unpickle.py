"""The metadata of a checkpoint, which torch unpickles without a check."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import torch

_METADATA = "torch.distributed.checkpoint.metadata"
# What the metadata of tensors consists of. Objects that are no tensors would be pickles themselves.
_KNOWN = {
    *(
        (_METADATA, name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *((module, "PosixPath") for module in ("pathlib", "pathlib._local")),
}


def check_metadata(folder: Path) -> None:
    """Check that unpickling the metadata of a checkpoint makes tensors' descriptions alone.

    Args:
        folder: The part of a checkpoint that `torch.distributed.checkpoint` has written.

    Raises:
        OSError: It would call something else, or the file is damaged or cannot be read.
    """
    # If torch cannot use `.metadata`, it reads that of a rank, such as `__0.metadata`.
    for path in {folder / ".metadata", *folder.glob("*.metadata")}:
        with path.open("rb") as file:
            try:
                _Unpickler(file, path.name).load()
            except OSError:
                raise
            except Exception as error:  # Damaged bytes may be any instruction.
                raise OSError(f"{path.name} is damaged: {error}") from error


class _Unpickler(pickle.Unpickler):
    """Makes objects of known classes only."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file)
        self._name = name

    def find_class(self, module: str, name: str) -> Any:
        # With a dot, the name would be an attribute of something in the module.
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) in _KNOWN or is_dtype:
            return super().find_class(module, name)
        raise OSError(
            f"{self._name} names {module}.{name}, which is no part of a description of tensors; it "
            "was changed, or written by a newer torch"
        )
