"""A trained model as a plain Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import PreTrainedModel

from flowtrain.models.adapters import ADAPTER, adapted_layers, modules_to_save

# Files that save_pretrained writes, and the initial weights.
_NOT_COPIED = ("config.json", "*.safetensors*", "*.bin*", "*.pt", "*.pth", ".*")


def save_final(folder: Path, source: Path, model: PreTrainedModel) -> None:
    """Write weights, configuration, tokenizer and processor.

    Args:
        folder: Folder to write. `AutoModelForImageTextToText.from_pretrained` and
            `AutoProcessor.from_pretrained` can load it without FlowTrain.
        source: Folder that the run started from. Its tokenizer and processor files are copied
            unchanged.
        model: The full model.
    """
    model.set_attn_implementation("sdpa")
    model.save_pretrained(folder)
    _copy_files(source, folder)


def save_adapters(folder: Path, source: Path, model: Any) -> None:
    """Write what trains of a model with adapters as PEFT does, and tokenizer and processor.

    Args:
        folder: Folder to write. `PeftModel.from_pretrained(model, folder)` can load it, where
            `model` is the model that the run started from.
        source: As for `save_final`.
        model: The full model, with adapters; its parameters that train require gradients.

    Raises:
        ConfigError: As for `modules_to_save`.
    """
    from peft import get_peft_model_state_dict
    from peft.utils import SAFETENSORS_WEIGHTS_NAME

    modules = modules_to_save(model)
    state = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    state |= {
        name: value.clone()  # The file refuses tensors that share memory, such as tied embeddings.
        for name, value in model.state_dict().items()
        if any(name.startswith(f"{module}.") for module in modules)
    }
    config = model.peft_config[ADAPTER]
    # PEFT has shortened the names as far as they differ from others in the model at hand.
    config.target_modules = [name for name, _ in adapted_layers(model)]
    config.modules_to_save = modules or None
    config.base_model_name_or_path = str(source.absolute())
    config.inference_mode = True
    kind = type(model)
    auto_mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
    config.save_pretrained(str(folder), auto_mapping_dict=auto_mapping)
    # PEFT's model holds the plain one as `base_model.model`.
    named = {f"base_model.model.{name}": value for name, value in state.items()}
    save_file(named, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
    _copy_files(source, folder)


def _copy_files(source: Path, folder: Path) -> None:
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in _NOT_COPIED):
            shutil.copy2(path, folder / path.name)
