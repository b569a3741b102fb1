"""Adapters: which layers have them, what they start from, and how they are saved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from flowtrain.config import ConfigError
from flowtrain.config.lora import Adapter, LoraConfig
from flowtrain.models import ModelError
from flowtrain.models.adapters import adapted_layers, adapter_names, merge, modules_to_save
from flowtrain.models.export import save_adapters
from flowtrain.models.family import Family
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model

peft = pytest.importorskip("peft")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, SMALLEST)
    return folder


def family_of(folder: Path, **parts: Any) -> Family:
    return family_for(folder, lora=LoraConfig(**parts))


def build(family: Family, side: Any = "full", dtype: torch.dtype = torch.float32) -> Any:
    return family.build(side, weights=None, seed=3, dtype=dtype, device=CPU)


def test_adapters_start_alike_on_each_side_and_beside_others_and_leave_the_base_alone(
    folder: Path,
) -> None:
    plain = dict(build(family_for(folder)).named_parameters())
    both = family_of(folder, encoder=Adapter(rank=2), backbone=Adapter(rank=4))
    torch.manual_seed(5)
    full = build(both)
    values = {name: full.get_parameter(name) for name in adapter_names(full)}
    assert all(bool(v.any()) == ("lora_A" in name) for name, v in values.items())
    starts = [v.flatten()[:8] for name, v in values.items() if "lora_A" in name]
    assert len({tuple(start.tolist()) for start in starts}) == len(starts)
    for name, value in full.named_parameters():
        if name not in values:
            assert torch.equal(value, plain[name.replace(".base_layer", "")])
    found = {}
    for side, family in (
        ("encoder", both),
        ("backbone", family_of(folder, backbone=Adapter(rank=4))),
    ):
        torch.manual_seed(6)
        module = build(family, side)
        found |= {name: module.get_parameter(name) for name in adapter_names(module)}
    assert found.keys() == values.keys()
    assert all(torch.equal(value, values[name]) for name, value in found.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=["bfloat16", "float64"])
def test_adapters_have_the_dtype_of_their_layer(folder: Path, dtype: torch.dtype) -> None:
    model = build(family_of(folder, backbone=Adapter(rank=4)), dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_targets_are_ends_of_names_within_their_part(folder: Path) -> None:
    adapters = LoraConfig(
        encoder=Adapter(rank=2, targets=("linear_fc1",)),
        backbone=Adapter(rank=4, alpha=3, targets=("layers.0.self_attn.q_proj", "v_proj")),
    )
    layers = dict(adapted_layers(build(family_for(folder, lora=adapters))))
    text = "model.language_model.layers."
    backbone = {name for name in layers if name.startswith(text)}
    assert {name for name in backbone if "q_proj" in name} == {f"{text}0.self_attn.q_proj"}
    assert all(name.endswith((".q_proj", ".v_proj")) for name in backbone)
    encoder = layers.keys() - backbone
    assert encoder
    # Mergers have layers of this name, and are the projector.
    assert all(name.startswith("model.visual.blocks.") for name in encoder)
    assert {layers[n].scaling["default"] for n in backbone} == {3 / 4}
    assert {layers[n].scaling["default"] for n in encoder} == {8 / 2}


@pytest.mark.parametrize("target", ["lm_head", "proj_q", "linear_fc1", "embed_tokens"])
def test_a_target_that_is_no_linear_layer_of_the_part_is_refused(folder: Path, target: str) -> None:
    family = family_of(folder, backbone=Adapter(rank=4, targets=(target,)))
    with pytest.raises(ConfigError, match=rf"lora\.backbone\.targets: '{target}' .*q_proj"):
        family.meta_model()


def test_adapters_without_peft_or_of_a_family_that_adds_none_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = LoraConfig(backbone=Adapter(rank=4))
    with monkeypatch.context() as patch:
        patch.setattr(type(family_for(folder)), "takes_adapters", False)
        with pytest.raises(ModelError, match="model_type=qwen3_vl with section lora: its family"):
            family_for(folder, lora=lora)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="section lora: peft is not installed; run: pip install"):
        family_for(folder, lora=lora)
    family_for(folder, lora=LoraConfig())


def trained(model: Any, *, seed: int) -> None:
    """Change what requires a gradient."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) / 10)


# PEFT calls what transformers will remove; it warns of keys that are missing, which is an error.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_peft_loads_saved_adapters_and_the_merged_model_equals_it(
    folder: Path, tmp_path: Path
) -> None:
    """Two ranks and two factors; the mergers train themselves, all others stay as they are."""
    family = family_of(
        folder, encoder=Adapter(rank=2), backbone=Adapter(rank=4, alpha=3), dropout=0.25
    )
    model = build(family)
    for name, parameter in model.named_parameters():
        if family.part_of(name) == "backbone" and "lora_" not in name:
            assert not parameter.requires_grad, name
    trained(model, seed=1)
    assert {family.part_of(f"{name}.weight") for name in modules_to_save(model)} == {"projector"}
    save_adapters(tmp_path / "adapters", folder, model)
    torch.manual_seed(3)
    base = AutoModelForImageTextToText.from_config(family_for(folder).config, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapters")
    assert loaded.peft_config["default"].lora_dropout == 0.25
    before = dict(model.named_parameters())
    after = {
        name.removeprefix("base_model.model.").replace(".modules_to_save.default", ""): value
        for name, value in loaded.named_parameters()
        if ".original_module." not in name
    }
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not (tmp_path / "adapters" / "config.json").exists()
    assert (tmp_path / "adapters" / "tokenizer.json").exists()
    wanted = loaded.merge_and_unload().state_dict()
    merge(model)
    assert model.state_dict().keys() == wanted.keys()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-6)


def test_a_module_that_trains_in_part_beside_adapters_is_refused(folder: Path) -> None:
    model = build(family_of(folder, backbone=Adapter(rank=4)))
    name = "model.visual.merger.norm.bias"
    model.get_parameter(name).requires_grad_(False)
    with pytest.raises(ConfigError, match=r"merger\.norm\.weight trains and .*merger\.norm\.bias"):
        modules_to_save(model)
