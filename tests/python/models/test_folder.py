"""A file of a model folder that cannot be used is named, with the way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from flowtrain.models.errors import ModelError
from flowtrain.models.folder import check_weights, read_config

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with weights in two files."""
    config = {"model_type": "qwen3_vl", "text_config": {"vocab_size": 6}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    names = ("model-00001-of-00002.safetensors", SHARD)
    weights = ("model.language_model.embed_tokens.weight", "lm_head.weight")
    for name, weight in zip(names, weights, strict=True):
        save_file({weight: np.ones((6, 4), np.float32)}, tmp_path / name)
    index = {"weight_map": dict(zip(weights, names, strict=True))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


CASES: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: cut(f / SHARD), rf"{SHARD}: no complete safetensors file \(it has .* copy or dow"),
    (lambda f: (f / SHARD).write_bytes(b""), rf"{SHARD}: no complete safetensors file"),
    (lambda f: (f / SHARD).write_bytes(LFS), rf"{SHARD}: a Git LFS pointer .* `git lfs pull`"),
    (lambda f: (f / SHARD).unlink(), rf"{SHARD}: there is no such file, and the index"),
    (lambda f: (f / "model.safetensors.index.json").unlink(), r": no model\.safetensors; complete"),
    (lambda f: (f / "model.safetensors.index.json").write_text("[]"), r"index\.json: a JSON list"),
    (lambda f: (f / "tokenizer.json").write_bytes(LFS), r"tokenizer\.json: a Git LFS pointer"),
    (lambda f: (f / "tokenizer.json").write_text("[]"), r"tokenizer\.json: it begins with b'\[\]'"),
    (lambda f: (f / "config.json").write_text("null"), r"config\.json: it begins with b'null'"),
    (
        lambda f: (f / "config.json").write_bytes("{}".encode("utf-16")),
        r"config\.json: it begins with .* must be an object in UTF-8",
    ),
    (
        lambda f: change(f / "config.json", text_config={"vocab_size": 5}),
        r"embed_tokens\.weight has 6 rows, and text_config\.vocab_size=5 .* set it to 6",
    ),
    (
        lambda f: change(f / "config.json", quantization_config={"quant_method": "gptq"}),
        r"config\.json: quantization_config\.quant_method=gptq: .* cannot be trained",
    ),
    (
        lambda f: change(
            f / "config.json", text_config={"quantization_config": {"quant_method": "awq"}}
        ),
        r"quantization_config\.quant_method=awq",
    ),
    (
        lambda f: (f / "adapter_config.json").write_text("{}"),
        r"adapter_config\.json: adapters of PEFT, .*`flowtrain export RUN --merge`",
    ),
]


@pytest.mark.parametrize(("damage", "said"), CASES)
def test_a_damaged_file_is_named_with_the_way_out(
    damage: Callable[[Path], object], said: str, folder: Path
) -> None:
    check_weights(folder)
    damage(folder)
    with pytest.raises(ModelError, match=said):
        check_weights(folder)


def test_other_json_files_of_a_folder_may_be_anything(folder: Path) -> None:
    (folder / "samples.json").write_text("[1, 2]")
    check_weights(folder)


def test_a_configuration_alone_is_enough_to_read_it(folder: Path) -> None:
    """A plan needs no more; a clone without LFS has pointers for the other files."""
    (folder / "tokenizer.json").write_bytes(LFS)
    assert read_config(folder)["model_type"] == "qwen3_vl"


def test_a_cut_file_of_torch_save_is_named(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    path = folder / "pytorch_model.bin"
    torch.save({"weight": torch.ones(3)}, path)
    check_weights(folder)
    cut(path)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: the file is cut"):
        check_weights(folder)
