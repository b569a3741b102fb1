"""Checks of the files of a Hugging Face folder, which name the file that cannot be used.

Libraries read these files at several places, and their errors name none.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowtrain.git_lfs import POINTER, is_pointer, is_pointer_file
from flowtrain.models.errors import ModelError

_INDEX = ".index.json"
_ADAPTERS = "adapter_config.json"
# JSON files that transformers reads, beside config.json and indexes of weights.
_OBJECTS = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "processor_config.json"),
    *("preprocessor_config.json", "video_preprocessor_config.json", "chat_template.json"),
)
# In the order in which transformers looks for them.
_WEIGHTS = ("model.safetensors", f"model.safetensors{_INDEX}")
_PICKLED = ("pytorch_model.bin", f"pytorch_model.bin{_INDEX}")


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of config.json.

    Raises:
        ModelError: There is no config.json, or it is no JSON object; or there are adapters.
    """
    path = folder / "config.json"
    if (adapters := folder / _ADAPTERS).exists():
        # transformers would put them into the model, whatever model they belong to.
        raise ModelError(
            f"{adapters}: adapters of PEFT, which a run does not start from; give a folder of the "
            "model alone, or one into which they were merged (`flowtrain export RUN --merge`)"
        )
    if not path.exists():
        raise ModelError(f"{folder}: no config.json; give a local Hugging Face model folder")
    _check_start(path)
    return _json_object(path)


def check_files(folder: Path) -> None:
    """Check that the other JSON files that are read begin as objects; a tokenizer has megabytes.

    Raises:
        ModelError: A file is a pointer of Git LFS, or no JSON object.
    """
    for path in (folder / name for name in _OBJECTS):
        if path.is_file():
            _check_start(path)


def check_weights(folder: Path) -> None:
    """Check that the weights of a folder are there, complete, not quantised, and fit its config.

    Only headers are read.

    Args:
        folder: The folder.

    Raises:
        ModelError: They are not, or as `read_config` and `check_files`; the message names the file
            or key.
    """
    config = read_config(folder)
    check_files(folder)
    for fields in (config, config.get("text_config")):
        quantised = fields.get("quantization_config") if isinstance(fields, dict) else None
        if quantised:
            method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
            raise ModelError(
                f"{folder / 'config.json'}: quantization_config.quant_method={method}: quantised "
                "weights cannot be trained; give the model's folder without quantisation"
            )
    for path in weight_files(folder):
        if not path.exists():
            raise ModelError(
                f"{path}: there is no such file, and the index of the weights names it; complete "
                "the folder"
            )
        if is_pointer_file(path):
            raise ModelError(f"{path}: {POINTER}")
        if path.suffix == ".safetensors":
            _check_embeddings(path, _shapes(path), config)
        else:
            _check_archive(path)


def weight_files(folder: Path) -> Iterator[Path]:
    """The files with weights that transformers reads.

    Raises:
        ModelError: There are none, or their index cannot be read.
    """
    names = [name for name in (*_WEIGHTS, *_PICKLED) if (folder / name).exists()]
    if not names:
        raise ModelError(
            f"{folder}: no {_WEIGHTS[0]}; complete the folder, or give it as model.config to draw "
            "all weights from train.seed"
        )
    if not names[0].endswith(_INDEX):
        yield folder / names[0]
        return
    index = _json_object(folder / names[0]).get("weight_map")
    if not isinstance(index, dict):
        raise ModelError(f"{folder / names[0]}: no object weight_map; restore the model's own file")
    yield from (folder / str(name) for name in sorted(set(index.values())))


def _shapes(path: Path) -> dict[str, list[int]]:
    """Shapes of the tensors of a safetensors file, by name, if it is complete."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= size - 8:
                raise ValueError("its header is not complete")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        if end != size:
            raise ValueError(f"it has {size} bytes, and its header says {end}")
        return {name: tensor["shape"] for name, tensor in header.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{path}: no complete safetensors file ({error}); copy or download it again"
        ) from error


def _check_archive(path: Path) -> None:
    """Refuse a file of `torch.save` that is cut; files before torch 1.6 are no archives."""
    with path.open("rb") as file:
        head = file.read(2)
    if head == b"PK" and zipfile.is_zipfile(path):
        return
    if head == b"PK" or os.path.getsize(path) == 0:
        raise ModelError(f"{path}: the file is cut; copy or download it again")


def _check_embeddings(path: Path, shapes: dict[str, list[int]], config: dict[str, Any]) -> None:
    """Refuse embeddings that were resized without the configuration."""
    text = config.get("text_config")
    prefix = "text_config." if isinstance(text, dict) else ""
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    for name, shape in shapes.items():
        if name.endswith(".embed_tokens.weight") and size not in (None, shape[0]):
            raise ModelError(
                f"{path}: {name} has {shape[0]} rows, and {prefix}vocab_size={size} in "
                f"{path.with_name('config.json')}; if the embeddings were resized, set it to "
                f"{shape[0]}, or else restore the model's own files"
            )


def _check_start(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(1 << 8)
    if is_pointer(head):
        raise ModelError(f"{path}: {POINTER}")
    if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        raise ModelError(
            f"{path}: it begins with {head[:20]!r}, and must be an object in UTF-8; restore the "
            "model's own file"
        )


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); restore the model's own file") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: a JSON {type(found).__name__}, which must be an object")
    return found
