"""The file of `flowtrain profile`: measured times of a model's layers, with what they hold for."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flowtrain.cost.layers import Counts, Layer
from flowtrain.error_texts import reason_of
from flowtrain_core import FlowTrainError

FORMAT = "flowtrain-profile"
VERSION = 1

ATTENTION = " attention"
"""Suffix of the label of a layer's attention; the label without it is all else in the layer."""


class ProfileError(FlowTrainError, ValueError):
    """A profile cannot be used; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileKey:
    """Conditions of measured times.

    Attributes:
        model: Digest of the layers of the model, `digest`.
        device: Name of the processor or accelerator.
        dtype: Dtype of weights and activations.
        threads: Threads of a rank.
        torch: Version of torch.
        depth: Maximum layers of a module that were built; 0 for all of them.
        compiled: Whether torch.compile compiled its blocks.
        attention: Library whose kernel computed the attention of packed documents; empty where
            documents were computed one by one.
    """

    model: str
    device: str
    dtype: str
    threads: int
    torch: str
    depth: int = 0
    compiled: bool = False
    attention: str = ""


def digest(layers: Sequence[Layer]) -> str:
    """Digest of all that costs depend on in the layers that FlowTrain computes of a model."""
    computed = [layer for layer in layers if not layer.left_out]
    return hashlib.sha256(repr(computed).encode()).hexdigest()[:16]


def kinds(layers: Sequence[Layer]) -> dict[str, str]:
    """For the name of each layer that FlowTrain computes, that of the first layer equal to it."""
    first: dict[Layer, str] = {}
    return {
        layer.name: first.setdefault(replace(layer, name=""), layer.name)
        for layer in layers
        if not layer.left_out
    }


def kinds_of(built: Sequence[Layer], whole: Sequence[Layer]) -> dict[str, str]:
    """For the name of each layer of a model with fewer layers, its kind in the whole model."""
    kind = kinds(whole)
    by_shape = {
        replace(layer, name=""): kind[layer.name] for layer in reversed(whole) if layer.name in kind
    }
    return {layer.name: by_shape[replace(layer, name="")] for layer in built if not layer.left_out}


Seconds = Mapping[str, float]
"""Seconds by label: of all layers of a kind together, or of their attention."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Times of a forward and a backward pass.

    Attributes:
        forward: Of the forward pass.
        backward: Of the backward pass if all weights train.
        backward_input: Of the backward pass if none does, and only gradients of inputs are made.
    """

    forward: Seconds
    backward: Seconds
    backward_input: Seconds

    @property
    def total(self) -> float:
        """Seconds of forward and full backward pass."""
        return sum(self.forward.values()) + sum(self.backward.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Measurements of one module on one shape.

    Attributes:
        counts: Of the row, or of the images.
        documents: Tokens of each document of the attention, in order: the documents of a row, or
            the frames of the images.
        samples: One for each round.
    """

    counts: Counts
    documents: Sequence[int]
    samples: list[Sample]

    def median(self) -> Sample:
        """Median of each time over the samples."""
        return Sample(
            **{
                field.name: {
                    label: statistics.median(getattr(s, field.name)[label] for s in self.samples)
                    for label in getattr(self.samples[0], field.name)
                }
                for field in fields(Sample)
            }
        )

    def spread(self) -> float:
        """Relative difference of the medians of every second sample and of the others."""
        totals = [sample.total for sample in self.samples]
        if len(totals) < 2:
            return math.inf
        one, other = (statistics.median(totals[start::2]) for start in (0, 1))
        return abs(one - other) / min(one, other)


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Time of the optimizer on one part of the model.

    Attributes:
        parameters: Values that were updated.
        seconds: Norm, clipping, step of the optimizer and deletion of the gradients.
        accumulate_s: Addition of a gradient to that of an earlier microbatch.
    """

    parameters: int
    seconds: float
    accumulate_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Measured times.

    Attributes:
        key: What they hold for.
        repeats: Layers of each kind in the model that was built.
        joins: Whether documents of different lengths are separate calls of the attention, whose
            outputs are joined, as on a CPU.
        records: Measurements by the name of their shape.
        updates: The optimizer on each part.
    """

    key: ProfileKey
    repeats: Mapping[str, int]
    joins: bool
    records: dict[str, Record] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @staticmethod
    def load(path: Path) -> Profile:
        """Read a file.

        Raises:
            ProfileError: It is no profile, or incomplete.
            OSError: It cannot be read.
        """
        try:
            tree = json.loads(path.read_text())
            is_ours = isinstance(tree, dict) and tree.pop("format", None) == FORMAT
        except ValueError:
            is_ours = False
        if not is_ours:
            raise ProfileError(f"{path}: it is no file of flowtrain profile; name another one")
        try:
            if tree.pop("version") != VERSION:
                raise ValueError(f"it is not of version {VERSION}")
            return _profile(tree)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise ProfileError(
                f"{path}: no profile that can be read ({reason_of(error)}); delete it "
                "and run flowtrain profile"
            ) from error

    def check(self, key: ProfileKey, name: str) -> None:
        """Refuse other conditions than those of the measurement.

        Args:
            key: The conditions.
            name: Name of the file, for messages.

        Raises:
            ProfileError: They differ; the message names the first difference.
        """
        for field_ in fields(ProfileKey):
            ours, theirs = getattr(self.key, field_.name), getattr(key, field_.name)
            if ours != theirs:
                raise ProfileError(
                    f"{name}: measured for {field_.name}={ours}, and not for {theirs}; profile "
                    "into another file"
                )


def _profile(tree: dict[str, Any]) -> Profile:
    records = {
        name: Record(
            counts=Counts(*record["counts"]),
            documents=record["documents"],
            samples=_samples(record["samples"]),
        )
        for name, record in tree.pop("records").items()
    }
    updates = {part: Update(**update) for part, update in tree.pop("updates").items()}
    return Profile(key=ProfileKey(**tree.pop("key")), records=records, updates=updates, **tree)


def _samples(trees: Sequence[dict[str, Any]]) -> list[Sample]:
    if not trees:
        raise ValueError("a shape has no sample")
    return [_sample(tree) for tree in trees]


def _sample(tree: dict[str, Any]) -> Sample:
    sample = Sample(**tree)
    for passes in (sample.forward, sample.backward, sample.backward_input):
        if not all(0 <= seconds < math.inf for seconds in passes.values()):
            raise ValueError("a time is negative or not finite")
    return sample
