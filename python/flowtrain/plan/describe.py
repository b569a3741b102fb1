"""Description of a model for the planner, as plain data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flowtrain.cost.flops import Side
from flowtrain.cost.layers import PARTS, Counts, Layer, Unit

_NOTHING = Counts()


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Means over the samples of a workload.

    Attributes:
        tokens: Tokens.
        squares: Tokens^2.
        targets: Target tokens.
        visual: Visual tokens.
        images: Images, or frames that are encoded apart.
        visual_squares: Sum over the images of their tokens^2.
    """

    tokens: float
    squares: float
    targets: float
    visual: float
    images: float
    visual_squares: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageShape:
    """How visual tokens become work of the encoder.

    Attributes:
        tile_tokens: Visual tokens of a tile, if the encoder computes tiles of one size. Otherwise
            it computes images as they are.
        per_tile: What a tile has of each unit; nothing if there are no tiles.
        per_token: What a visual token has of each unit, besides attention to the whole image.
        per_pair: What a pair of visual tokens of an image has.
    """

    tile_tokens: int | None = None
    per_tile: Counts = _NOTHING
    per_token: Counts = _NOTHING
    per_pair: Counts = _NOTHING

    def counts(self, visual: float, visual_squares: float) -> Counts:
        """What visual tokens have of each unit.

        Args:
            visual: The tokens.
            visual_squares: Sum over their images of tokens^2.
        """
        tiles = visual / self.tile_tokens if self.tile_tokens else 0.0
        each = zip(self.per_tile, self.per_token, self.per_pair, strict=True)
        return Counts(
            *(tiles * tile + visual * one + visual_squares * two for tile, one, two in each)
        )


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
        unused: Parameters of each layer that never train, since the loss does not depend on them.
        vocabulary: Logits of a target.
        width: Values of a token of the decoder.
        heads: Query heads of the decoder.
        kv_heads: Key-value heads of the decoder.
        kv_width: Values of the keys of a token.
        num_experts: Experts of a layer; 0 for a dense decoder.
        chosen_experts: Experts that a token is sent to.
        vision_width: Values of a token of the tower.
        vision_heads: Heads of the tower.
        row_width: Values of a row between encoder and backbone.
        projector_side: On which side the projector is.
        tied_parameters: Parameters of the output head, the last layer, that are those of the
            embedding; if they are on different stages, both have them.
        image: How visual tokens become work.
        far_inputs: Outputs that layers other than the next one read.
        estimated: What is not known and was estimated, in words.
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
    vision_width: int
    vision_heads: int
    row_width: int
    projector_side: Side
    image: ImageShape
    tied_parameters: int = 0
    far_inputs: tuple[FarInput, ...] = ()
    estimated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("parameters", "experts", "unused"):
            if len(getattr(self, name)) != len(self.layers):
                raise ValueError(
                    f"{self.name}: {name} has {len(getattr(self, name))} entries for "
                    f"{len(self.layers)} layers; give one for each layer"
                )
        if unknown := next((layer.name for layer in self.layers if layer.saved is None), None):
            raise ValueError(
                f"{unknown}: what its backward pass keeps is not known, so its memory cannot be "
                "planned; give its `saved` tensors, or an estimate of them"
            )

    def parts_of(self, module: str) -> tuple[str, ...]:
        """Parts of the model that a module computes: `encoder`, `backbone`, or both as `model`."""
        if module == "model":
            return PARTS
        own = (module, "projector") if self.projector_side == module else (module,)
        return tuple(part for part in PARTS if part in own)

    def counts(self, share: Share, *, rows: float = 1.0) -> Counts:
        """What samples have of each unit.

        Args:
            share: Means of the samples.
            rows: Number of samples; it may be a fraction.
        """
        text = Counts(tokens=share.tokens, pairs=share.squares / 2, targets=share.targets)
        image = self.image.counts(share.visual, share.visual_squares)
        return Counts(*(rows * (a + b) for a, b in zip(text, image, strict=True)))

    def trained_parameters(self, trained: Collection[str]) -> int:
        """Parameters that train."""
        return sum(
            total - unused
            for layer, total, unused in zip(self.layers, self.parameters, self.unused, strict=True)
            if layer.part in trained
        )
