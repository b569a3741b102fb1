"""A side that is read from a folder has the values that transformers loads, sharded or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageTextToText
from transformers.core_model_loading import Transpose, WeightConverter
from two_ranks import on_two_ranks

from flowtrain.config.lora import Adapter, LoraConfig
from flowtrain.cost.flops import Side
from flowtrain.models import loading
from flowtrain.models.errors import ModelError
from flowtrain.models.family import Family
from flowtrain.models.loading import ConversionError, load_weights
from flowtrain.models.packed_batch import pack
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, TINY, write_tiny_model

CPU, META = torch.device("cpu"), torch.device("meta")
SIDES: tuple[Side, ...] = ("encoder", "backbone")
# Two ranks cannot divide the rows of the first one's matrices evenly.
LORA = LoraConfig(encoder=Adapter(rank=3), backbone=Adapter(rank=4)) if find_spec("peft") else None
EMBEDDING = "model.language_model.embed_tokens.weight"


def write(folder: Path, kind: str, *, tied: bool = False) -> Any:
    """Write a model with drawn weights, in several files with the names of released ones."""
    write_tiny_model(folder, replace(SMALLEST, tied=tied), family=kind)
    family = family_for(folder)
    model: Any = family.build("full", weights=None, seed=7, dtype=torch.float32, device=CPU)
    model.save_pretrained(folder, max_shard_size="100KB")
    return model


def store(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Put weights into one file, in place of those of the folder."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    copies = {name: value.detach().clone() for name, value in weights.items()}
    save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})


def turn_experts(name: str, value: torch.Tensor) -> torch.Tensor:
    """A weight as it is in a released folder."""
    return value.transpose(1, 2).contiguous() if ".experts." in name else value


def build(
    family: Family, side: Side, folder: Path, device: torch.device, dtype: torch.dtype
) -> torch.nn.Module:
    return family.build(side, weights=folder, seed=1, dtype=dtype, device=device)


def tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and all buffers; a tied parameter has both of its names."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return parameters | dict(module.named_buffers())


def assert_equal(module: torch.nn.Module, truth: dict[str, torch.Tensor]) -> None:
    for name, value in tensors(module).items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        assert whole.dtype == truth[name].dtype, name
        assert torch.equal(whole, truth[name]), name


@pytest.fixture(autouse=True)
def nan_in_new_memory() -> Iterator[None]:
    """Let memory that is allocated and not written hold NaN, not what happened to be there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", TINY)
def test_values_are_those_that_transformers_loads(kind: str, tmp_path: Path) -> None:
    write(tmp_path, kind)
    # Some released folders hold their weights twice, in files that transformers does not read.
    first = min(tmp_path.glob("*.safetensors"))
    strays = {name: torch.cat([value, value]) for name, value in load_file(first).items()}
    save_file(strays, tmp_path / "consolidated.safetensors")
    for dtype in (torch.bfloat16, torch.float64):
        theirs = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=dtype)
        names = set()
        # An encoder whose projector is behind the cut has modules without parameters.
        for projector_side in SIDES:
            family = family_for(tmp_path, projector_side=projector_side)
            for side in SIDES:
                module = build(family, side, tmp_path, CPU, dtype)
                assert_equal(module, tensors(theirs))
                assert module.training
                names |= tensors(module).keys()
        assert names == tensors(theirs).keys()


@pytest.mark.parametrize("kind", TINY)
def test_stored_names_may_be_those_of_the_model_or_older_ones(kind: str, tmp_path: Path) -> None:
    model = write(tmp_path, kind)
    stored: dict[str, torch.Tensor] = {}
    for path in tmp_path.glob("*.safetensors"):
        stored |= load_file(path)
    # Towers were once a level further down, and the matrices of experts the other way round.
    older = {
        name.replace("vision_tower.", "vision_tower.vision_model."): turn_experts(name, value)
        for name, value in stored.items()
    }
    has_older = kind in ("qwen3_vl_moe", "llava", "llava_onevision")
    for weights in (model.state_dict(), *([older] if has_older else [])):
        store(tmp_path, weights)
        for side in SIDES:
            module = build(family_for(tmp_path), side, tmp_path, CPU, torch.float32)
            assert_equal(module, tensors(model))


def test_tied_weights_are_one_parameter_and_differ_in_no_file(tmp_path: Path) -> None:
    weights = write(tmp_path, "qwen3_vl", tied=True).state_dict()
    family = family_for(tmp_path)
    head_alone = {name: value for name, value in weights.items() if name != EMBEDDING}
    for given in (weights, head_alone):
        store(tmp_path, given)
        backbone: Any = build(family, "backbone", tmp_path, CPU, torch.float32)
        assert backbone.lm_head.weight is backbone.model.language_model.embed_tokens.weight
        assert torch.equal(backbone.lm_head.weight, weights[EMBEDDING])
    store(tmp_path, weights | {"lm_head.weight": weights["lm_head.weight"] + 1})
    with pytest.raises(ModelError, match=r"lm_head.weight and .* differ.* tie_word_embeddings"):
        build(family, "backbone", tmp_path, CPU, torch.float32)


@pytest.mark.skipif(LORA is None, reason="PEFT is not installed")
def test_a_side_with_adapters_has_the_values_of_the_full_model(tmp_path: Path) -> None:
    write(tmp_path, "qwen3_vl")
    family = family_for(tmp_path, lora=LORA)
    full = family.build("full", weights=tmp_path, seed=1, dtype=torch.bfloat16, device=CPU)
    for side in SIDES:
        assert_equal(build(family, side, tmp_path, CPU, torch.bfloat16), tensors(full))


def test_what_cannot_be_read_in_parts_is_loaded_whole_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path, "llava")
    family = family_for(tmp_path)

    def check(refusal: str) -> None:
        for side in SIDES:
            module = build(family, side, tmp_path, CPU, torch.float32)
            assert_equal(module, tensors(model))
            made = build(family, side, tmp_path, META, torch.float32)
            with pytest.raises(ConversionError, match=refusal):
                load_weights(made, tmp_path, family, device=CPU, seed=1)

    with monkeypatch.context() as patch:
        # transformers itself converts nothing here, and loads the values as they are.
        turned = WeightConverter("o_proj.weight", "o_proj.weight", operations=[Transpose(0, 1)])
        patch.setattr(loading, "get_model_conversion_mapping", lambda _: [turned])
        store(tmp_path, model.state_dict())
        check(r"transformers converts .*o_proj\.weight for LlavaForCond.*; set .* to replicated")
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    check(r"pytorch_model\.bin: .*save_pretrained")


def test_parameters_may_stay_in_host_memory_and_buffers_not(tmp_path: Path) -> None:
    weights = tensors(write(tmp_path, "qwen3_vl"))
    family = family_for(tmp_path)
    for side in SIDES:
        made = build(family, side, tmp_path, META, torch.float32)
        load_weights(made, tmp_path, family, device=META, seed=1, parameters_on=CPU)
        for name, value in made.named_parameters():
            assert torch.equal(value, weights[name]), name
        assert {buffer.device for buffer in made.buffers()} == {META}


def check_shards(folder: Path, rank: int) -> None:
    """Each rank holds its shards, and computes what a whole module does."""
    torch.use_deterministic_algorithms(True)
    ids = torch.arange(20, 30)
    for kind in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        family = family_for(folder / kind, lora=LORA if kind == "qwen3_vl" else None)
        for side in SIDES:
            whole: Any = build(family, side, folder / kind, CPU, torch.float64)
            module: Any = build(family, side, folder / kind, META, torch.float64)
            if side == "backbone":
                for layer in module.model.language_model.layers:
                    fully_shard(layer)
            fully_shard(module)
            key = f"{kind} {side}"
            store = dist.distributed_c10d._get_default_store()
            if rank == 1:  # A collective would need both.
                store.wait([key])
            load_weights(module, folder / kind, family, device=CPU, seed=1)
            store.set(key, "")
            assert_equal(module, tensors(whole))
            for name, value in module.named_parameters():
                assert isinstance(value, DTensor), name
                assert value.to_local().numel() < value.numel(), name
        positions = family.position_ids(torch.zeros(10, dtype=torch.long), [], [6, 4])
        batch = pack(
            input_ids=ids,
            labels=ids,
            position_ids=positions,
            grids=[],
            doc_lengths=[6, 4],
            visual_ids=family.visual_ids,
            device=CPU,
        )
        with torch.no_grad():
            assert torch.equal(module(batch, None).loss_sum, whole(batch, None).loss_sum)


@pytest.mark.limit(60)
def test_ranks_read_their_shards_without_each_other(tmp_path: Path) -> None:
    write(tmp_path / "qwen3_vl", "qwen3_vl", tied=True)
    write(tmp_path / "llava", "llava")
    experts = write(tmp_path / "experts", "qwen3_vl_moe").state_dict()
    store(
        tmp_path / "experts", {name: turn_experts(name, value) for name, value in experts.items()}
    )
    on_two_ranks(partial(check_shards, tmp_path), tmp_path)
