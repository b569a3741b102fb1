from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import one_thread, run_tree

from flowtrain.config import from_dict
from flowtrain.cost.profiled import ATTENTION, Profile, ProfileKey, Record, Sample, digest
from flowtrain.cost.tables import Tables
from flowtrain.models.tiny import SMALLEST, write_tiny_model
from flowtrain.train.profile.passes import Passes
from flowtrain.train.profile.search import Grid, Limits
from flowtrain.train.profile.session import Outcome, Session
from flowtrain.train.profile.shallow import write_shallow
from flowtrain.train.profile.shapes import ImagesShape, RowShape, Shape, image_sizes

LIMITS = Limits(row_tokens=128, call_rows=32)


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl", "internvl"])
def passes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Passes:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder / "model", SMALLEST, family=request.param)
    return Passes(from_dict(run_tree(folder / "run", folder)), torch.device("cpu"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def of_shapes(passes: Passes) -> tuple[RowShape, ImagesShape]:
    images = image_sizes(passes.family, passes.processor, max_tokens=32)
    image = images[-1]
    return (
        RowShape(count=3, length=2 * image.tokens, image=image, mixed=True),
        ImagesShape(count=2, image=image),
    )


def test_every_layer_and_its_attention_have_time_in_both_passes(passes: Passes) -> None:
    row, images = (passes.sample(shape) for shape in of_shapes(passes))
    for layer in passes.layers:
        kind = passes.kinds[layer.name]
        sample = row if layer.part == "backbone" else images
        for label in [kind, *([kind + ATTENTION] if len(layer.products) > 1 else [])]:
            if label.endswith(ATTENTION) and all(p.has_weight for p in layer.products):
                continue
            assert sample.forward[label] > 0
            if layer.reaches_loss:
                assert sample.backward[label] > 0
    assert set(row.forward).isdisjoint(images.forward)


def test_the_shape_of_a_row_is_what_the_model_is_given(passes: Passes) -> None:
    row, images = of_shapes(passes)
    documents, text = row.inputs(passes.family)
    assert [document.num_tokens for document in documents] == row.lengths
    assert text["count"].sum() == row.counts(passes.family).tokens
    assert text["is_target"].sum() == row.counts(passes.family).targets
    whole = passes.family.counts(0, images.grids, num_targets=0)
    assert images.counts(passes.family) == whole
    if whole.vision_pairs:
        assert sum(n**2 for n in images.lengths) == whole.vision_pairs


def test_a_sample_leaves_the_model_as_it_was(passes: Passes) -> None:
    before = [p.requires_grad for p in passes._model.parameters()]
    passes.sample(of_shapes(passes)[0])
    passes.sample(of_shapes(passes)[1])
    assert [p.requires_grad for p in passes._model.parameters()] == before
    assert all(p.grad is None for p in passes._model.parameters())


class Counted:
    """Passes whose times follow a law, and that are interrupted after some samples."""

    def __init__(self, passes: Passes, *, stop: float = math.inf) -> None:
        self.layers, self.family, self.kinds = passes.layers, passes.family, passes.kinds
        self._passes, self._stop = passes, stop
        self.taken: list[str] = []

    def updates(self, *_: object, **__: object) -> dict[str, object]:
        return {}

    def record(self, shape: Shape) -> Record:
        return self._passes.record(shape)

    def sample(self, shape: Shape) -> Sample:
        if len(self.taken) >= self._stop:
            raise KeyboardInterrupt
        self.taken.append(shape.name)
        size = sum(shape.lengths)
        is_row = isinstance(shape, RowShape)
        seconds = {}
        for layer in self.layers:
            if (layer.part == "backbone") == is_row and not layer.left_out:
                kind = self.kinds[layer.name]
                seconds[kind] = seconds.get(kind, 0.0) + 1e-3 + 1e-5 * size
                if not all(p.has_weight for p in layer.products):
                    label = kind + ATTENTION
                    seconds[label] = seconds.get(label, 0.0) + 1e-6 * size
        return Sample(forward=seconds, backward=seconds, backward_input=seconds)


@pytest.fixture
def grid(passes: Passes) -> Grid:
    images = image_sizes(passes.family, passes.processor, max_tokens=LIMITS.call_rows)
    return Grid(images, LIMITS, joins=True)


def measure(passes: Passes, grid: Grid, path: Path, *, stop: float = math.inf) -> Outcome:
    key = ProfileKey(
        model=digest(passes.layers), device="cpu", dtype="float32", threads=1, torch="2"
    )
    profile = Profile(key=key, repeats=passes.repeats, joins=True)
    if path.exists():
        profile = Profile.load(path)
    counted = Counted(passes, stop=stop)
    session = Session(profile, counted, grid, path, seconds=1e6)  # type: ignore[arg-type]
    return session.run()


def test_an_interrupted_session_continues_from_its_file(
    passes: Passes, grid: Grid, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    outcome = measure(passes, grid, whole)
    assert outcome.missing == 0 and not outcome.unsettled
    every = sum(len(record.samples) for record in Profile.load(whole).records.values())
    for stop in (every // 4, every // 2):
        with pytest.raises(KeyboardInterrupt):
            measure(passes, grid, parts, stop=stop)
    begun = {name: len(r.samples) for name, r in Profile.load(parts).records.items()}
    assert 0 < sum(begun.values()) < every
    assert measure(passes, grid, parts) == outcome
    one, other = Profile.load(whole), Profile.load(parts)
    assert {n: len(r.samples) for n, r in one.records.items()} == {
        n: len(r.samples) for n, r in other.records.items()
    }
    tables = [Tables(profile, passes.layers).summary() for profile in (one, other)]
    assert tables[0] == tables[1]


def test_a_session_without_time_says_that_shapes_are_missing(
    passes: Passes, grid: Grid, tmp_path: Path
) -> None:
    key = ProfileKey(
        model=digest(passes.layers), device="cpu", dtype="float32", threads=1, torch="2"
    )
    profile = Profile(key=key, repeats=passes.repeats, joins=True)
    path = tmp_path / "profile.json"
    session = Session(profile, Counted(passes), grid, path, seconds=-1)  # type: ignore[arg-type]
    outcome = session.run()
    assert outcome.missing == outcome.shapes > 0


def test_shapes_are_put_where_interpolation_is_wrong(passes: Passes, grid: Grid) -> None:
    one, other = grid.edges()[-1]
    middle = grid.between((one, other))
    for edge in grid.edges():
        found = grid.between(edge)
        if found is not None:
            sizes = [sum(shape.lengths) for shape in (edge[0], found, edge[1])]
            assert sizes == sorted(sizes)
    assert middle is None or middle.name not in (one.name, other.name)


def test_a_model_with_fewer_layers_has_the_kinds_of_the_whole_one(
    passes: Passes, tmp_path: Path
) -> None:
    config = passes._config
    write_shallow(config.model.folder, tmp_path, depth=2)
    shallow = Passes(config, torch.device("cpu"), shallow=tmp_path)
    assert sum(shallow.repeats.values()) < sum(passes.repeats.values())
    assert shallow.layers == passes.layers
    for shape in of_shapes(passes):
        sample, whole = shallow.sample(shape), passes.sample(shape)
        assert sample.forward.keys() <= whole.forward.keys()
    # Those of two layers stand for those of three.
    assert set(shallow.repeats) <= set(passes.repeats)
    row, images = of_shapes(passes)
    updates = shallow.updates(images, row, rounds=1)
    assert {part: update.parameters for part, update in updates.items()} == {
        part: sum(p.numel() for p in module.trainable) for part, module in passes._modules.items()
    }
