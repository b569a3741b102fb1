"""What trains beside adapters, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from linear_run import configuration, module_of

from flowtrain.config import ConfigError, RunConfig
from flowtrain.models.family import Family
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model
from flowtrain.train.state.trained import Trained

pytest.importorskip("peft")
LORA = {"backbone": {"rank": 4}, "encoder": {"rank": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_tiny_model(folder / "model", SMALLEST)
    return folder


def started(folder: Path, **sections: Any) -> tuple[RunConfig, Family]:
    config = configuration(folder, **{"lora": LORA, **sections})
    family = family_for(config.model.folder, projector_side=config.projector_side, lora=config.lora)
    return config, family


def test_weights_beside_adapters_have_no_gradients_no_masters_and_no_moments(folder: Path) -> None:
    config, family = started(folder, model={"compute_dtype": "bfloat16"})
    for side in ("encoder", "backbone"):
        cpu = torch.device("cpu")
        module: Any = family.build(
            side,  # type: ignore[arg-type]
            weights=None,
            seed=1,
            dtype=torch.float32,
            device=cpu,
        )
        state = module_of(module, config, part_of=family.part_of)
        assert state.optimizer is not None
        stepped = {p for group in state.optimizer.param_groups for p in group["params"]}
        names = {name for name, p in module.named_parameters() if p in stepped}
        own = {name for name in names if family.part_of(name) == side}
        assert own
        assert all(".lora_A." in name or ".lora_B." in name for name in own)
        assert {family.part_of(name) for name in names - own} <= {"projector"}
        assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
        with state.master.in_place():
            drawn = [module.get_parameter(name) for name in own if ".lora_A." in name]
            assert not any(torch.equal(a, a.bfloat16().float()) for a in drawn)
            for parameter in module.parameters():
                dtype = torch.float32 if parameter in stepped else torch.bfloat16
                assert parameter.dtype == dtype
                assert parameter.requires_grad == (parameter in stepped)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"optim": {"groups": [{"match": "model.language_model.embed_tokens.*", "lr": 0.1}]}},
            r"optim\.groups\.0\.match='model\.language_model\.embed_tokens\.\*': no parameter",
        ),
        ({"lora": {"backbone": {"rank": 2, "targets": ["query"]}}}, r"lora\.backbone\.targets: 'q"),
        (
            {"optim": {"groups": [{"match": "*merger.norm.bias", "train": False}]}},
            r"merger\.norm\.weight trains and model\.visual\.merger\.norm\.bias does not",
        ),
    ],
)
def test_what_contradicts_adapters_is_refused(
    sections: dict[str, Any], said: str, folder: Path
) -> None:
    config, family = started(folder, **sections)
    with pytest.raises(ConfigError, match=said):
        Trained(config.trained_parts, config.optim).check(family, mode=config.flow.mode)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"freeze": ["backbone"]}}, r"lora\.backbone\.rank=4 with model\.freeze=\[back"),
        ({"flow": {"mode": "frozen"}}, r"lora\.encoder\.rank=2 with .* flow\.mode=frozen"),
        ({"lora": {"encoder": {"targets": ["qkv"]}}}, r"lora\.encoder\.rank=0 with alpha=8 and"),
        ({"lora": {"backbone": {"rank": -1}}}, r"lora\.backbone\.rank=-1: "),
        ({"lora": {"dropout": 1.0}}, r"lora\.dropout=1\.0: it must be at least 0 and less than 1"),
    ],
)
def test_adapters_of_what_does_not_train_are_refused(
    sections: dict[str, Any], said: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        configuration(folder, **{"lora": LORA, **sections})


def test_groups_match_adapters_alone_in_their_part(folder: Path) -> None:
    groups = [{"match": "*.lora_B.*", "lr": 0.1}, {"match": "*.merger.*", "lr": 0.2}]
    config, family = started(folder, optim={"groups": groups})
    trained = Trained(config.trained_parts, config.optim).groups(family)
    assert [group.match for group in trained] == ["*.lora_B.*", "*.merger.*"]
