from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from flowtrain.models.errors import ModelError
from flowtrain.models.export import save_final
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model


@pytest.mark.parametrize("tied", [False, True])
def test_plain_hugging_face_loads_the_saved_model(tied: bool, tmp_path: Path) -> None:
    source, final = tmp_path / "source", tmp_path / "final"
    write_tiny_model(source, SMALLEST)
    config = json.loads((source / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = tied
    (source / "config.json").write_text(json.dumps(config))
    family = family_for(source)
    parts = [
        family.build(part, weights=None, seed=7, dtype=torch.bfloat16, device=torch.device("cpu"))
        for part in ("full", "encoder", "backbone")
    ]
    save_final(final, source, parts[0])  # type: ignore[arg-type]

    loaded = AutoModelForImageTextToText.from_pretrained(final).eval()
    assert loaded.dtype == torch.bfloat16
    merged = {**parts[1].state_dict(), **parts[2].state_dict()}
    assert merged.keys() == loaded.state_dict().keys()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, merged[name]), name

    processor = AutoProcessor.from_pretrained(final)
    ask = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "read"}]}]
    text = processor.apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=[text], images=[[Image.new("RGB", (24, 8))]], return_tensors="pt")
    out = loaded.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert out.shape[1] > inputs["input_ids"].shape[1]


def test_a_folder_with_a_missing_weight_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, SMALLEST)
    family, cpu = family_for(tmp_path), torch.device("cpu")
    model = family.build("full", weights=None, seed=7, dtype=torch.float32, device=cpu)
    lacking = {"model.language_model.norm.weight", "model.visual.merger.norm.bias"}
    kept = {name: value for name, value in model.state_dict().items() if name not in lacking}
    model.save_pretrained(tmp_path, state_dict=kept)  # type: ignore[operator]
    with pytest.raises(ModelError, match="2 weights .* missing, model.language_model.norm.weight"):
        family.build("backbone", weights=tmp_path, seed=7, dtype=torch.float32, device=cpu)


def test_a_folder_with_a_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, SMALLEST)
    family, cpu = family_for(tmp_path), torch.device("cpu")
    model = family.build("full", weights=None, seed=7, dtype=torch.float32, device=cpu)
    weights = {**model.state_dict(), "model.language_model.norm.weight": torch.ones(3)}
    model.save_pretrained(tmp_path, state_dict=weights)  # type: ignore[operator]
    with pytest.raises(ModelError, match=r"1 weights .*language_model\.norm\.weight .*: \(3,\) in"):
        family.build("backbone", weights=tmp_path, seed=7, dtype=torch.float32, device=cpu)
