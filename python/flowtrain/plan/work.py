"""What a step has to compute: its samples, and how the model trains on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy

from flowtrain.config.flow import ITEM_TOKENS
from flowtrain.config.optim import OptimConfig
from flowtrain.config.train import LOGIT_BYTES
from flowtrain.cost.layers import PARTS, check_parts
from flowtrain.plan.describe import MODALITIES, Encoded, Modality, Share
from flowtrain.workloads import Workload
from flowtrain.workloads.workload import FloatArray, IntArray

MAX_BATCH = 1 << 20
"""Samples of a step at most: the planner draws several steps of them."""

_DEVIATIONS = 3
_BATCHES = 16  # To draw, for means of the largest sample.


@dataclass(frozen=True, kw_only=True)
class Work:
    """Samples of a step, and how the model trains on them.

    Attributes:
        workload: Samples from which the means are taken and batches are drawn.
        batch: Samples of a step.
        trained: Parts of the model that train.
        optim: Optimizer, which sets the bytes of a parameter.
        itemsize: Bytes of a weight and of a value in the passes (`model.compute_dtype`).
        stored_itemsize: Bytes of a weight that trains as it is stored (`model.dtype`).
        microbatch_tokens: Maximum tokens of a microbatch; None lets the search choose.
        target_share: Share of the text tokens that are targets.
        item_tokens: `flow.item_tokens`: maximum tokens that an encoder makes at once; a larger
            input is alone.
        logit_bytes: `train.logit_bytes`: maximum bytes of the logits that are held at once.
        cache_hits: Share of the inputs whose features are in a cache (`flow.cache`): their encoder
            is not computed. Nothing in front of the cut may train then.
    """

    workload: Workload
    batch: int
    trained: tuple[str, ...] = PARTS
    optim: OptimConfig = field(default_factory=OptimConfig)
    itemsize: int = 2
    stored_itemsize: int = 4
    microbatch_tokens: int | None = None
    target_share: float = 1.0
    item_tokens: int = ITEM_TOKENS["cuda"]
    logit_bytes: int = LOGIT_BYTES
    cache_hits: float = 0.0

    def __post_init__(self) -> None:
        name = f"workload '{self.workload.name}'"
        check_parts(self.trained)
        if not len(self.workload) or not self.workload.tokens.any():
            raise ValueError(f"{name}: it has no tokens; give at least one sample with tokens")
        for what in ("batch", "itemsize", "item_tokens", "logit_bytes", "microbatch_tokens"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise ValueError(f"{what}={value}: it must be at least 1")
        if self.batch > MAX_BATCH:
            raise ValueError(f"batch={self.batch}: it must be at most {MAX_BATCH}")
        if self.stored_itemsize < self.itemsize:
            raise ValueError(
                f"stored_itemsize={self.stored_itemsize}: it must be at least "
                f"itemsize={self.itemsize}"
            )
        if not 0 < self.target_share <= 1:
            raise ValueError(f"target_share={self.target_share}: it must be above 0, and at most 1")
        if not 0 <= self.cache_hits <= 1:
            raise ValueError(f"cache_hits={self.cache_hits:g}: it must be from 0 to 1")
        if self.cache_hits and "encoder" in self.trained:
            raise ValueError(
                f"cache_hits={self.cache_hits:g} with a trained encoder: its features change in "
                "each step and are not stored; leave it out of `trained`, or leave "
                "cache_hits out"
            )
        tokens = self.workload.tokens
        encoded = numpy.array([self.encoded_tokens(modality) for modality in MODALITIES])
        if (bad := (encoded < 0).any(0) | (encoded.sum(0) > tokens)).any():
            first = int(numpy.flatnonzero(bad)[0])
            visual, audio = encoded[:, first]
            also = f" and {audio} audio tokens" if audio else ""
            raise ValueError(
                f"{name}: sample {first} has {visual} visual tokens{also} of {tokens[first]}; "
                "give from 0 to the tokens of the sample"
            )
        cap = self.microbatch_tokens
        if cap is not None and self.longest > cap:
            raise ValueError(
                f"microbatch_tokens={cap}: the longest sample of {name} has {self.longest} tokens, "
                "and samples are not split; raise it, or drop longer samples"
            )

    def encoded_tokens(self, modality: Modality) -> IntArray:
        """Tokens of each sample that encoders of a modality make, shape [num_samples]."""
        return self._encoded[modality][0]

    def inputs(self, modality: Modality) -> IntArray:
        """Inputs of each sample, such as images, shape [num_samples]; 0 without their tokens."""
        return self._encoded[modality][1]

    @cached_property
    def _encoded(self) -> dict[Modality, tuple[IntArray, IntArray]]:
        found: dict[Modality, tuple[IntArray, IntArray]] = {}
        workload = self.workload
        audio = workload.audio_tokens
        columns: dict[Modality, tuple[IntArray, IntArray | None]] = {
            "vision": (workload.visual_tokens, workload.images),
            "audio": (
                numpy.zeros_like(workload.tokens) if audio is None else audio,
                workload.clips,
            ),
        }
        for modality, (tokens, given) in columns.items():
            counts = 1 if given is None else numpy.maximum(given, 1)
            found[modality] = tokens, numpy.where(tokens > 0, counts, 0)
        return found

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return int(self.workload.tokens.max())

    def largest_input(self, modality: Modality) -> float:
        """Tokens of the largest input, if those of a sample are equal."""
        if modality not in self._largest:
            self._largest[modality] = float(self._sizes(modality).max())
        return self._largest[modality]

    def largest_item(self, modality: Modality) -> float:
        """Tokens that an encoder makes at once at most; items do not span microbatches."""
        most: float = self.item_tokens
        if self.microbatch_tokens is not None:
            most = min(most, self.most_of(self.microbatch_tokens, modality))
        return max(most, self.largest_input(modality))

    def _sizes(self, modality: Modality) -> FloatArray:
        """Tokens of an input of each sample, shape [num_samples]."""
        found: FloatArray = self.encoded_tokens(modality) / numpy.maximum(self.inputs(modality), 1)
        return found

    @cached_property
    def share(self) -> Share:
        """Means of a sample."""
        tokens = self.workload.tokens.astype(numpy.float64)
        return Share(
            tokens=float(tokens.mean()),
            squares=float((tokens**2).mean()),
            targets=self.target_share * max(float(self._text.mean()), 1.0),
            encoded={modality: self._mean(modality) for modality in MODALITIES},
        )

    def _mean(self, modality: Modality) -> Encoded:
        tokens = self.encoded_tokens(modality).astype(numpy.float64)
        inputs = self.inputs(modality)
        return Encoded(
            tokens=float(tokens.mean()),
            inputs=float(inputs.mean()),
            squares=float((tokens**2 / numpy.maximum(inputs, 1)).mean()),
        )

    @cached_property
    def _text(self) -> IntArray:
        """Text tokens of each sample, shape [num_samples]."""
        found: IntArray = self.workload.tokens - sum(map(self.encoded_tokens, MODALITIES))
        return found

    @cached_property
    def tokens(self) -> float:
        """Tokens of a step in the mean."""
        return self.batch * self.share.tokens

    @cached_property
    def targets(self) -> FloatArray:
        """Target tokens of each sample, shape [num_samples]."""
        return numpy.asarray(self.target_share * self._text, numpy.float64)

    @cached_property
    def _spreads(self) -> dict[Modality | None, tuple[float, float, float]]:
        """Share of the tokens, deviation from that share, and largest; None is that of targets."""
        tokens = self.workload.tokens.astype(numpy.float64)
        found: dict[Modality | None, tuple[float, float, float]] = {}
        for what in (*MODALITIES, None):
            values = self.targets if what is None else self.encoded_tokens(what)
            values = values.astype(numpy.float64)
            part = float(values.sum() / tokens.sum())
            found[what] = part, float((values - part * tokens).std()), float(values.max())
        return found

    def most_of(self, tokens: float, modality: Modality | None) -> float:
        """Tokens of a modality, or None for target tokens, that a full microbatch has at most.

        Those of the mean samples that fill it and three standard deviations, or those of the sample
        with the most of them.

        Args:
            tokens: Tokens of the microbatch.
            modality: The modality.
        """
        samples = max(1.0, tokens / self.share.tokens)
        part, spread, largest = self._spreads[modality]
        return min(tokens, max(part * tokens + _DEVIATIONS * spread * math.sqrt(samples), largest))

    def drawn(self, values: FloatArray) -> FloatArray:
        """Values of the samples of some batches, drawn from a fixed seed.

        Args:
            values: Of each sample, shape [num_samples].

        Returns:
            Shape [num_batches, batch].
        """
        random = numpy.random.default_rng(0)
        found: FloatArray = values[random.integers(0, len(values), (_BATCHES, self.batch))]
        return found

    def largest_input_of(self, modality: Modality, groups: int) -> float:
        """Tokens of the largest input of a part of a batch, in the mean.

        Args:
            modality: The modality.
            groups: Equal parts that the batch is in.
        """
        key = (modality, groups)
        if key not in self._largest:
            sizes, size = self._sizes(modality), max(1, self.batch // groups)
            parts = self.drawn(sizes)[:, : self.batch // size * size].reshape(_BATCHES, -1, size)
            self._largest[key] = float(parts.max(axis=2).mean())
        return self._largest[key]

    @cached_property
    def _largest(self) -> dict[Modality | tuple[Modality, int], float]:
        return {}

    def cap(self, mean_tokens: float, headroom: float) -> int | None:
        """Maximum tokens of a microbatch with a mean, or None if none is allowed.

        Samples need some room to be balanced, and the longest one has to fit.

        Args:
            mean_tokens: Tokens of a microbatch in the mean.
            headroom: Factor on the mean.
        """
        most = self.microbatch_tokens
        if most is not None:
            return most if headroom * mean_tokens <= most else None
        return max(math.ceil(headroom * mean_tokens), self.longest)
