"""What the families of Hugging Face VLMs have in common: how a model is split, and its packed loss.

A model is split at `mm_encoder_outputs`: its vision tower and projector make the features of image
tokens, and its language model takes them. If the projector is behind the cut, its input crosses the
pool: in the tower its modules pass on what they are given, and the loss calls them.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.modeling_outputs import BaseModelOutputWithPooling

from flowtrain.config.model import Part
from flowtrain.cost.decoder import decoder_layers
from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import Counts, Layer
from flowtrain.models import attention
from flowtrain.models.adapters import add_adapters
from flowtrain.models.documents import Documents
from flowtrain.models.errors import ModelError
from flowtrain.models.family import Family
from flowtrain.models.head import head_loss
from flowtrain.models.loading import ConversionError, load_full_model, load_weights
from flowtrain.models.own_functions import use_own_functions
from flowtrain.models.packed_batch import LossOutput, PackedBatch
from flowtrain.models.patch_embed import use_linear_patches
from flowtrain.models.rms_norm import use_own_norms
from flowtrain.models.sides import Backbone, Encoder
from flowtrain.models.swiglu import use_own_mlps
from flowtrain.models.target_rows import compute_target_rows


class HuggingFaceFamily(Family):
    """A family whose models have `model.language_model`, `lm_head`, and modules for images.

    Attributes:
        image_modules: Names of the modules and parameters of `model` that a text model lacks.
        projector_modules: Those of them, or paths in them, that are the projector.
        tower_attention: Attention implementation of the vision tower.
        axes: Rows of the position ids.
    """

    image_modules: ClassVar[tuple[str, ...]]
    projector_modules: ClassVar[tuple[str, ...]]
    tower_attention: ClassVar[str]
    axes: ClassVar[int]
    takes_adapters = True

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        self._folder = folder
        self.projector_side = projector_side
        self._attention = attention.register()
        try:
            self.config = self._read_config(folder)
        except ModelError:
            raise
        except Exception as error:  # Of many types, as each configuration checks its own fields.
            reason = " ".join(str(error).split())
            raise ModelError(
                f"{folder / 'config.json'}: {reason}; restore the model's own file"
            ) from error
        self.image_id = self.config.image_token_id
        text = self.config.get_text_config()
        if getattr(text, "output_router_logits", False):
            raise ModelError(
                f"{folder / 'config.json'}: text_config.output_router_logits=true asks for the "
                "router's auxiliary loss, which depends on all tokens of a step at once and is not "
                "computed; set it to false to train without"
            )
        self._width: int = text.hidden_size

    @staticmethod
    def _read_config(folder: Path) -> Any:
        """The configuration of the model in the folder."""
        return AutoConfig.from_pretrained(folder)

    def part_of(self, name: str) -> Part:
        def lies_in(modules: Sequence[str]) -> bool:
            return any(f"{name}.".startswith(f"model.{module}.") for module in modules)

        if lies_in(self.projector_modules):
            return "projector"
        return "encoder" if lies_in(self.image_modules) else "backbone"

    @cached_property
    def layers(self) -> Sequence[Layer]:
        # Each attribute of a transformers configuration takes microseconds to read.
        return (*self._image_layers(), *decoder_layers(self.config.get_text_config()))

    def counts(
        self,
        num_tokens: int,
        grids: Sequence[Grid],
        *,
        num_targets: int,
        causal_share: float = 0.5,
    ) -> Counts:
        text = Counts(tokens=num_tokens, pairs=causal_share * num_tokens**2, targets=num_targets)
        if not grids:
            return text
        return Counts(*map(sum, zip(text, *map(self._image_counts, grids), strict=True)))

    @abstractmethod
    def _image_layers(self) -> Sequence[Layer]:
        """Layers of the vision tower and of the projector."""

    @abstractmethod
    def _image_counts(self, grid: Grid) -> Counts:
        """How much of each unit of these layers an image has."""

    def build(
        self,
        side: Side | Literal["full"],
        *,
        weights: Path | None,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        before_load: Callable[[torch.nn.Module], None] | None = None,
    ) -> torch.nn.Module:
        meta = torch.device("meta")
        if weights is not None and side != "full" and device != meta:
            module = self.build(side, weights=weights, seed=seed, dtype=dtype, device=meta)
            if before_load is not None:
                before_load(module)
            # What cannot be read in parts is loaded with the other side, which is dropped below.
            with suppress(ConversionError):
                load_weights(module, weights, self, device=device, seed=seed)
                return module
        model = self._full_model(weights, seed=seed, dtype=dtype, device=device)
        self._prepare(model)
        use_linear_patches(model)
        use_own_norms(model)
        use_own_functions(model)
        use_own_mlps(model)
        # Parameters alone: `.to(dtype)` would also round the rotary frequencies, which stay
        # float32 in a loaded model.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        if self.lora.adapters:
            add_adapters(model, self.lora, self.part_of, seed=seed)
        if side == "encoder":
            del model.model.language_model, model.lm_head
        else:
            _check_layers(model.model.language_model)
            compute_target_rows(model.model.language_model.layers[-1])
            _mark_without_check(model.model)
        if side == "backbone":
            self._drop_tower(model.model)
        elif self.projector_side == "backbone":
            self._bypass_projector(model.model)
            if side == "encoder":
                self._drop_projector(model.model)
        model = model.to(device)
        model.train()
        if side == "full":
            return model
        return Encoder(self, model) if side == "encoder" else Backbone(self, model)

    def meta_model(self) -> torch.nn.Module:
        model = super().meta_model()
        self._prepare(model)
        if self.lora.adapters:
            add_adapters(model, self.lora, self.part_of, seed=0)
        return model

    def _full_model(
        self, weights: Path | None, *, seed: int, dtype: torch.dtype, device: torch.device
    ) -> Any:
        implementations = {
            "attn_implementation": {
                "text_config": self._attention,
                "vision_config": self.tower_attention,
            },
            # Experts one by one: torch's grouped product, the default, has no float64.
            "experts_implementation": "eager" if dtype == torch.float64 else None,
        }
        if device.type == "meta":
            with device:
                return AutoModelForImageTextToText.from_config(
                    self.config, dtype=dtype, **implementations
                )
        if weights is None:
            torch.manual_seed(seed)
            return AutoModelForImageTextToText.from_config(
                self.config, dtype=torch.float32, **implementations
            )
        return load_full_model(weights, dtype=dtype, implementations=implementations)

    def _prepare(self, model: Any) -> None:
        """Change a full model before it is split."""

    @abstractmethod
    def _bypass_projector(self, model: Any) -> None:
        """Let the modules of the projector pass on what they are given."""

    @abstractmethod
    def _project(self, model: Any, rows: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """Features of image tokens, from what the projector would have been given.

        Args:
            model: The module `model` of a model that holds the projector.
            rows: Rows that crossed the pool.
            grids: Grids of their images.
        """

    def _drop_tower(self, model: Any) -> None:
        """Delete what the forward pass does not use once features are given."""
        kept = self.projector_modules if self.projector_side == "backbone" else ()
        for name in self.image_modules:
            inside = [path.removeprefix(f"{name}.") for path in kept if path.startswith(f"{name}.")]
            if inside:
                shell = getattr(model, name)
                for child in [child for child, _ in shell.named_children() if child not in inside]:
                    delattr(shell, child)
            elif name not in kept:
                delattr(model, name)

    def _drop_projector(self, model: Any) -> None:
        """Delete the parameters of a projector that is bypassed."""
        for path in self.projector_modules:
            if path in dict(model.named_parameters(recurse=False)):
                delattr(model, path)
                continue
            for module in model.get_submodule(path).modules():
                module._parameters.clear()

    def position_ids(
        self,
        mm_token_type_ids: torch.Tensor,
        grids: Sequence[Grid],
        doc_lengths: Sequence[int],
        seconds: Sequence[float] = (),
    ) -> torch.Tensor:
        lengths = torch.tensor(doc_lengths)
        starts = lengths.cumsum(0) - lengths
        return torch.arange(len(mm_token_type_ids))[None] - starts.repeat_interleave(lengths)

    def next_tokens(
        self, backbone: torch.nn.Module, batch: PackedBatch, rows: torch.Tensor | None
    ) -> torch.Tensor:
        ends = Documents(batch.doc_lengths).boundaries(batch.labels.device)[1:].long()
        model: Any = backbone
        logits: torch.Tensor = model.lm_head(self._hidden(backbone, batch, rows, ends - 1))
        return logits.argmax(-1)

    def loss(
        self,
        backbone: torch.nn.Module,
        batch: PackedBatch,
        rows: torch.Tensor | None,
        *,
        logit_bytes: int | None = None,
    ) -> LossOutput:
        model: Any = backbone
        loss_sum = head_loss(
            model.lm_head,
            self._hidden(backbone, batch, rows, batch.predicting),
            batch.labels[batch.predicting + 1],
            vocabulary=self.config.get_text_config().vocab_size,
            logit_bytes=logit_bytes,
        )
        return LossOutput(loss_sum, len(batch.predicting))

    def _hidden(
        self,
        backbone: torch.nn.Module,
        batch: PackedBatch,
        rows: torch.Tensor | None,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """What the output head takes of some tokens of a batch, shape [tokens, width].

        Args:
            backbone: As for `loss`.
            batch: The documents.
            rows: As for `loss`.
            wanted: Indices of these tokens in the row.
        """
        model: Any = backbone
        self._check(model, batch, rows)
        self._before_forward(model, batch)
        inputs = self.model_inputs(model, batch, rows)
        hidden: torch.Tensor = model.model(**inputs, target_rows=wanted).last_hidden_state[0]
        return hidden[wanted]

    def _before_forward(self, backbone: Any, batch: PackedBatch) -> None:
        """Tell the model what is known of a batch on the host."""

    def model_inputs(
        self, backbone: Any, batch: PackedBatch, rows: torch.Tensor | None
    ) -> dict[str, Any]:
        """Arguments of the Hugging Face model for packed documents whose images are encoded.

        Args:
            backbone: The model, of which only the projector is used, if it is behind the cut.
            batch: The documents.
            rows: As for `loss`.
        """
        features = rows
        if rows is not None and self.projector_side == "backbone":
            features = self._project(backbone.model, rows, batch.grids)
        return {
            # [tokens] as a batch of one row; several axes stand in front of the batch.
            "input_ids": self._with_one_visual_id(batch.input_ids)[None],
            "position_ids": batch.position_ids if self.axes == 1 else batch.position_ids[:, None],
            "use_cache": False,
            "mm_encoder_outputs": (
                {} if features is None else {"image": self._encoder_output(features)}
            ),
            "documents": Documents(batch.doc_lengths, batch.input_ids.device),
        }

    def _with_one_visual_id(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Tokens with those of videos as image tokens, whose features come in one tensor.

        Features take the place of the embeddings, so that the id has no other effect.
        """
        if self.video_id in (None, self.image_id):
            return input_ids
        return input_ids.masked_fill(input_ids == self.video_id, self.image_id)

    def _encoder_output(self, features: torch.Tensor) -> Any:
        """Features of all image tokens, in the form in which `get_image_features` returns them."""
        # A tuple over images, here one for all of them.
        outputs: dict[str, Any] = {"pooler_output": (features,)}
        return BaseModelOutputWithPooling(**outputs)

    def _rows_of(self, batch: PackedBatch) -> int:
        """Rows that cross the pool for the images of a batch."""
        return len(batch.visual)

    def _check(
        self,
        backbone: Any,
        batch: PackedBatch,
        rows: torch.Tensor | None,
    ) -> None:
        """Check what an exact loss needs; the model itself would not warn."""
        tokens = batch.input_ids.shape[0]
        if batch.position_ids.shape != (self.axes, tokens):
            raise ModelError(
                f"position_ids: shape {tuple(batch.position_ids.shape)} must be "
                f"({self.axes}, {tokens}); otherwise documents would see each other"
            )
        if sum(batch.doc_lengths) != tokens:
            raise ModelError(
                f"doc_lengths: they sum to {sum(batch.doc_lengths)} tokens, and the row has "
                f"{tokens}"
            )
        shape = (0, self.row_width) if rows is None else tuple(rows.shape)
        needed = (self._rows_of(batch), self.row_width)
        if shape != needed:
            raise ModelError(
                f"rows: shape {shape}, but the images of the batch need {needed}; gather all "
                f"fields ({', '.join(self.fields)}) of every image"
            )
        chosen = backbone.model.config.text_config._attn_implementation
        if chosen != self._attention:
            raise ModelError(
                f"attn_implementation={chosen}: packed documents would see each other; build the "
                f"model with {self._attention}"
            )


def _mark_without_check(model: Any) -> None:
    """Let a model find image tokens without counting them, for which the host waits twice.

    `_check` has counted them.
    """
    takes_videos = "video_features" in inspect.signature(model.get_placeholder_mask).parameters
    image_id = model.config.image_token_id

    def mask(input_ids: torch.Tensor, **_: Any) -> Any:
        found = (input_ids == image_id)[..., None]
        return (found, None) if takes_videos else found

    model.get_placeholder_mask = mask


def _check_layers(language_model: Any) -> None:
    """Refuse a language model whose layers do not allow packing."""
    last = language_model.layers[-1]
    attention_of_last = getattr(last, "self_attn", None)
    if not (hasattr(attention_of_last, "o_proj") and hasattr(last, "mlp")):
        raise ModelError(
            f"text_config.model_type={language_model.config.model_type}: its decoder layers have "
            "no self_attn.o_proj and mlp, which packing needs; use a model with a Llama, Mistral "
            "or Qwen decoder"
        )


def bypass(module: Any, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let a module compute something else; `without_bypass` computes what it was made for."""
    module.forward = forward


def without_bypass(module: Any, *arguments: torch.Tensor) -> torch.Tensor:
    """What a module computes that may be bypassed."""
    out: torch.Tensor = type(module).forward(module, *arguments)
    return out
