"""Description of a model for the planner, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from flowtrain.cost.flops import Side
from flowtrain.cost.layers import Counts, Layer, Unit

_NOTHING = Counts()


Modality = Literal["vision", "audio"]
"""Kind of input of an encoder. Each kind has its own column of tokens in a workload."""

MODALITIES: tuple[Modality, ...] = get_args(Modality)


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Tokens of one modality, in the mean of the samples.

    Attributes:
        tokens: Tokens.
        inputs: Inputs that are encoded apart: images or frames, or clips of audio.
        squares: Sum over the inputs of their tokens^2.
    """

    tokens: float
    inputs: float
    squares: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Means over the samples of a workload.

    Attributes:
        tokens: Tokens.
        squares: Tokens^2.
        targets: Target tokens.
        encoded: Tokens that encoders make, by modality.
    """

    tokens: float
    squares: float
    targets: float
    encoded: Mapping[Modality, Encoded]

    @property
    def has_inputs(self) -> bool:
        """Whether there is something to encode."""
        return any(encoded.tokens > 0 for encoded in self.encoded.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShape:
    """How tokens become work of the encoder that makes them.

    Attributes:
        tile_tokens: Tokens of a tile, if the encoder computes tiles of one size. Otherwise it
            computes inputs as they are.
        per_tile: What a tile has of each unit; nothing if there are no tiles.
        per_token: What a token has of each unit, besides attention to the whole input.
        per_pair: What a pair of tokens of an input has.
    """

    tile_tokens: int | None = None
    per_tile: Counts = _NOTHING
    per_token: Counts = _NOTHING
    per_pair: Counts = _NOTHING

    def counts(self, tokens: float, squares: float) -> Counts:
        """Units of work for tokens of the encoder.

        Args:
            tokens: The tokens.
            squares: Sum over their inputs of tokens^2.
        """
        tiles = tokens / self.tile_tokens if self.tile_tokens else 0.0
        each = zip(self.per_tile, self.per_token, self.per_pair, strict=True)
        return Counts(*(tiles * tile + tokens * one + squares * two for tile, one, two in each))


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """A tower with its projector.

    Attributes:
        name: Name of its module in plans.
        modality: What it reads.
        first: Number of its first layer; its projector is the last of its layers.
        end: Number of the first layer behind it.
        width: Values of a token of the tower.
        heads: Heads of the tower.
        row_width: Values of a row between encoder and backbone.
        projector_side: On which side of the cut the projector is.
        shape: How tokens become work.
    """

    name: str
    modality: Modality
    first: int
    end: int
    width: int
    heads: int
    row_width: int
    projector_side: Side
    shape: InputShape


@dataclass(frozen=True, kw_only=True, slots=True)
class FarInput:
    """Output of a layer that a layer further behind reads, such as a tap of deepstack.

    Attributes:
        source: Number of the layer that makes it.
        target: Number of the last layer that reads it.
        unit: What its size is proportional to.
        values: Values per unit.
    """

    source: int
    target: int
    unit: Unit
    values: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """Layers of a model with their parameters, and the sizes that parallelism divides.

    Attributes:
        name: Name for reports.
        layers: Layers in the order of the forward pass, without those that FlowTrain leaves out.
        parameters: Parameters of each layer.
        experts: Parameters of each layer that are in experts.
        unused: Parameters of each layer that never train, since the loss does not depend on them or
            adapters train in their place. If they are no fewer than `experts`, these are among
            them.
        vocabulary: Logits of a target.
        width: Values of a token of the decoder.
        heads: Query heads of the decoder.
        kv_heads: Key-value heads of the decoder.
        kv_width: Values of the keys of a token.
        num_experts: Experts of a layer; 0 for a dense decoder.
        chosen_experts: Experts that a token is sent to.
        encoders: What is in front of the backbone, in the order of the layers.
        tied_parameters: Parameters of the output head, the last layer, that are those of the
            embedding; if they are on different stages, both have them.
        far_inputs: Outputs that layers other than the next one read.
        estimated: What is not known and was estimated, in words.
        idle: Names of encoders that were left out, as the samples have no tokens of them.
        untrained: `model_type` of the model if no family of FlowTrain trains it; otherwise empty.
    """

    name: str
    layers: tuple[Layer, ...]
    parameters: tuple[int, ...]
    experts: tuple[int, ...]
    unused: tuple[int, ...]
    vocabulary: int
    width: int
    heads: int
    kv_heads: int
    kv_width: int
    num_experts: int
    chosen_experts: int
    encoders: tuple[Encoder, ...]
    tied_parameters: int = 0
    far_inputs: tuple[FarInput, ...] = ()
    estimated: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    untrained: str = ""

    @property
    def encoder_names(self) -> tuple[str, ...]:
        """Names of the encoders, idle ones included."""
        return (*(encoder.name for encoder in self.encoders), *self.idle)

    def __post_init__(self) -> None:
        for name in ("parameters", "experts", "unused"):
            if len(getattr(self, name)) != len(self.layers):
                raise ValueError(
                    f"{self.name}: {name} has {len(getattr(self, name))} entries for "
                    f"{len(self.layers)} layers; give one for each layer"
                )
        end = 0
        for encoder in self.encoders:
            if not end == encoder.first < encoder.end <= len(self.layers):
                raise ValueError(
                    f"{self.name}: encoder {encoder.name} has layers {encoder.first} to "
                    f"{encoder.end}; encoders follow each other from layer 0 on"
                )
            end = encoder.end
        if unknown := next((layer.name for layer in self.layers if layer.saved is None), None):
            raise ValueError(
                f"{unknown}: what its backward pass keeps is not known, so its memory cannot be "
                "planned; give its `saved` tensors, or an estimate of them"
            )

    def layers_of(self, module: str) -> tuple[int, ...]:
        """Numbers of the layers that a module computes.

        Args:
            module: Name of an encoder, `backbone`, or `model` for all of them.
        """
        if module == "model":
            return tuple(range(len(self.layers)))
        module_of = ["backbone"] * len(self.layers)
        for encoder in self.encoders:
            for number in range(encoder.first, encoder.end):
                is_projector = self.layers[number].part == "projector"
                if not is_projector or encoder.projector_side == "encoder":
                    module_of[number] = encoder.name
        return tuple(number for number, name in enumerate(module_of) if name == module)

    def with_inputs(self, share: Share) -> ModelDescription:
        """The model without encoders that have nothing to encode, as long as another one has.

        Args:
            share: Means of the samples.

        Raises:
            ValueError: Samples have tokens that no encoder makes.
        """
        made = {encoder.modality for encoder in self.encoders}
        for modality, encoded in share.encoded.items():
            if encoded.tokens and modality not in made:
                raise ValueError(
                    f"{self.name}: samples have {modality} tokens, and the model has no encoder "
                    f"that makes them, but for {' and '.join(sorted(made))}; leave them out"
                )
        idle = [encoder for encoder in self.encoders if not share.encoded[encoder.modality].tokens]
        if len(idle) == len(self.encoders):
            return self
        found = self
        for encoder in reversed(idle):
            found = found._without(encoder)
        return found

    def _without(self, left_out: Encoder) -> ModelDescription:
        first, end = left_out.first, left_out.end

        def moved(number: int) -> int:
            return number - (end - first if number >= end else 0)

        return replace(
            self,
            layers=self.layers[:first] + self.layers[end:],
            parameters=self.parameters[:first] + self.parameters[end:],
            experts=self.experts[:first] + self.experts[end:],
            unused=self.unused[:first] + self.unused[end:],
            encoders=tuple(
                replace(each, first=moved(each.first), end=moved(each.end))
                for each in self.encoders
                if each is not left_out
            ),
            far_inputs=tuple(
                replace(far, source=moved(far.source), target=moved(far.target))
                for far in self.far_inputs
                if not first <= far.source < end
            ),
            idle=(left_out.name, *self.idle),
        )

    def text_counts(self, share: Share, *, rows: float = 1.0) -> Counts:
        """Units of work of the backbone.

        Args:
            share: Means of the samples.
            rows: Number of samples; it may be a fraction.
        """
        return Counts(
            tokens=rows * share.tokens, pairs=rows * share.squares / 2, targets=rows * share.targets
        )

    def trained_parameters(self, trained: Collection[str]) -> int:
        """Parameters that train."""
        return sum(
            total - unused
            for layer, total, unused in zip(self.layers, self.parameters, self.unused, strict=True)
            if layer.part in trained
        )
