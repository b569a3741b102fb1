from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowtrain.cost import Counts, Layer, Product
from flowtrain.cost.profiled import (
    ATTENTION,
    Profile,
    ProfileError,
    ProfileKey,
    Record,
    Sample,
    Update,
    digest,
    kinds,
)
from flowtrain.cost.step import Row, step_seconds
from flowtrain.cost.tables import Tables
from flowtrain.cost.timing import PassSeconds

EMBED = Layer(name="embed", part="encoder", products=(Product("patches", 1.0, is_first=True),))
BLOCKS = [
    Layer(
        name=f"blocks.{i}",
        part="encoder",
        products=(
            Product("vision_tokens", 10.0),
            Product("vision_pairs", 2.0, has_weight=False),
        ),
    )
    for i in range(2)
]
PROJECT = Layer(name="project", part="projector", products=(Product("projected", 5.0),))
TOKENS = Layer(name="tokens", part="backbone")
DECODE = Layer(
    name="decode",
    part="backbone",
    products=(
        Product("tokens", 3.0),
        Product("pairs", 2.0, has_weight=False),
        Product("targets", 4.0),
    ),
)
HEAD = Layer(name="head", part="backbone", products=(Product("targets", 9.0),))
LAYERS = [EMBED, *BLOCKS, PROJECT, TOKENS, DECODE, HEAD]

KEY = ProfileKey(model=digest(LAYERS), device="a device", dtype="float32", threads=1, torch="2.10")
IMAGE = Counts(patches=16, vision_tokens=16, vision_pairs=16**2, projected=4)


def attention(count: int, length: int) -> float:
    """Seconds of the attention of equal documents, in one call."""
    return 1e-6 * count * length**2


def of_images(counts: Counts, lengths: Sequence[int]) -> dict[str, float]:
    """Forward seconds by label; both blocks are of one kind."""
    return {
        "embed": 1e-4 * counts.patches,
        "blocks.0": 2 * 3e-4 * counts.vision_tokens,
        "blocks.0" + ATTENTION: 2 * calls(lengths),
        "project": 2e-4 * counts.projected,
    }


def of_row(counts: Counts, lengths: Sequence[int]) -> dict[str, float]:
    return {
        "tokens": 1e-4 * counts.tokens + 5e-4 * counts.projected,
        "decode": 1e-3 * counts.tokens,
        "decode" + ATTENTION: calls(lengths),
        "head": 4e-3 * counts.targets,
    }


def calls(lengths: Sequence[int]) -> float:
    """Seconds of one call for equal documents, or of many calls whose results are joined."""
    if len(set(lengths)) == 1:
        return attention(len(lengths), lengths[0])
    return sum(attention(1, length) for length in lengths) + 1e-6 * len(lengths)


def record(counts: Counts, lengths: Sequence[int], law: Callable[..., dict[str, float]]) -> Record:
    forward = law(counts, lengths)
    twice = {label: 2 * seconds for label, seconds in forward.items()}
    three = {label: 3 * seconds for label, seconds in forward.items()}
    samples = [Sample(forward=forward, backward=three, backward_input=twice)] * 3
    return Record(counts=counts, documents=lengths, samples=samples)


def row_counts(lengths: Sequence[int], *, targets: int, projected: int = 0) -> Counts:
    pairs = sum(length**2 for length in lengths) / 2
    return Counts(tokens=sum(lengths), pairs=pairs, targets=targets, projected=projected)


@pytest.fixture
def profile() -> Profile:
    records = {}
    for length in (8, 32, 128):
        for count in (1, 4, 16):
            lengths, tokens = [length] * count, length * count
            for targets in (tokens // 8, tokens):
                counts = row_counts(lengths, targets=targets)
                records[f"row {count} {length} {targets}"] = record(counts, lengths, of_row)
            counts = row_counts(lengths, targets=tokens, projected=tokens // 2)
            records[f"row of images {count} {length}"] = record(counts, lengths, of_row)
            patches = float(tokens)
            counts = Counts(patches, patches, patches * length, projected=patches / 4)
            records[f"images {count} {length}"] = record(counts, lengths, of_images)
    for count in (2, 16):
        mixed = [8, 9] * (count // 2)
        counts = row_counts(mixed, targets=sum(mixed) // 8)
        records[f"mixed {count}"] = record(counts, mixed, of_row)
    updates = {
        part: Update(parameters=100, seconds=seconds, accumulate_s=seconds / 10)
        for part, seconds in (("encoder", 1.0), ("projector", 2.0), ("backbone", 4.0))
    }
    return Profile(
        key=KEY,
        repeats=dict(Counter(kinds(LAYERS).values())),
        joins=True,
        records=records,
        updates=updates,
    )


def test_layers_of_a_kind_share_its_time_and_have_the_attention_of_their_documents(
    profile: Profile,
) -> None:
    tables = Tables(profile, LAYERS)
    lengths = [32] * 5
    counts = Counts(vision_tokens=160, vision_pairs=5 * 32**2)
    forward = 3e-4 * 160 + attention(5, 32)
    for block in BLOCKS:
        found = tables.seconds(block, counts)
        assert found == tables.seconds(block, counts, documents=lengths)
        assert found.forward == pytest.approx(forward)
        assert found.attention == pytest.approx(attention(5, 32))
        assert found.backward_input == pytest.approx(2 * forward)
        assert found.backward_weight == pytest.approx(forward)


def test_images_add_to_the_time_of_the_embedding(profile: Profile) -> None:
    tables = Tables(profile, LAYERS)
    found = tables.seconds(TOKENS, row_counts([32] * 3, targets=1, projected=40))
    assert found.forward == pytest.approx(1e-4 * 96 + 5e-4 * 40)


def test_runs_of_equal_documents_are_calls_whose_joining_takes_time(profile: Profile) -> None:
    tables = Tables(profile, LAYERS)
    lengths = [8, 8, 8, 9, 10, 11]
    counts = row_counts(lengths, targets=27)
    linear = 1e-3 * 54
    wanted = attention(3, 8) + sum(attention(1, n) for n in (9, 10, 11)) + 4e-6
    found = tables.seconds(DECODE, counts, documents=lengths)
    # The mixed documents that were measured differ by a token.
    assert found.forward - linear == pytest.approx(wanted, rel=0.01)


def test_few_targets_take_the_time_of_the_fewest_that_were_measured(profile: Profile) -> None:
    tables = Tables(profile, LAYERS)
    few, none = (tables.seconds(DECODE, row_counts([32], targets=n)) for n in (4, 0))
    assert few == none


def test_shards_divide_all_but_the_fixed_cost_of_a_call(profile: Profile) -> None:
    tables = Tables(profile, LAYERS)
    counts = Counts(projected=32)
    fixed = 2e-4 * 2  # At the smallest size.
    found = tables.seconds(PROJECT, counts, tp=2, cp=2)
    assert found.forward == pytest.approx(fixed + (2e-4 * 32 - fixed) / 4)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (Counts(tokens=4096, pairs=4096**2 / 2, targets=1), "tokens=4096: measured from 8 to 2048"),
        (Counts(tokens=4, pairs=8, targets=1), "tokens=4: measured from 8 to 2048"),
        (row_counts([256], targets=1), "pairs, tokens of a document=256: measured from 8 to 128"),
    ],
)
def test_sizes_that_were_not_measured_are_an_error_unless_curves_may_be_prolonged(
    profile: Profile, counts: Counts, text: str
) -> None:
    with pytest.raises(ProfileError, match=text):
        Tables(profile, LAYERS).seconds(DECODE, counts)
    found = Tables(profile, LAYERS, extrapolate=True).seconds(DECODE, counts)
    wanted = 1e-3 * counts.tokens + 2e-6 * counts.pairs
    assert found.forward == pytest.approx(wanted, rel=1e-6)


def test_a_step_has_the_passes_that_its_trained_parts_need(profile: Profile) -> None:
    tables = Tables(profile, LAYERS)
    lengths = [32, 32]
    row = Row(documents=lengths, num_targets=8, image_rows=8, calls=[[IMAGE, IMAGE]])
    images = sum(of_images(Counts(*(2 * n for n in IMAGE)), [16, 16]).values())
    embed, project = 1e-4 * 32, 2e-4 * 8
    backbone = sum(of_row(row_counts(lengths, targets=8, projected=8), lengths).values())

    def seconds(*trained: str) -> tuple[float, float, float]:
        step = step_seconds(tables, LAYERS, [row, row], trained)
        return step.encode, step.backbone, step.update

    # Adding the gradients of the second microbatch takes a tenth of an update.
    everything = (2 * (4 * images - 2 * embed) + 0.3, 2 * 4 * backbone + 0.4, 7.0)
    assert seconds("encoder", "projector", "backbone") == pytest.approx(everything)
    # Without gradients in front of the projector.
    projector = (2 * (images + 3 * project) + 0.2, 2 * 3 * backbone, 2.0)
    assert seconds("projector") == pytest.approx(projector)
    assert seconds("backbone") == pytest.approx((2 * images, 2 * 4 * backbone + 0.4, 4.0))


def test_a_step_of_text_updates_the_backbone_alone(profile: Profile) -> None:
    row = Row(documents=[32], num_targets=8)
    found = step_seconds(Tables(profile, LAYERS), LAYERS, [row], ("projector", "backbone"))
    assert (found.encode, found.update) == (0.0, 4.0)


def test_a_written_profile_gives_the_same_times(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile.to_json())
    counts = row_counts([20, 50], targets=30)
    assert Tables.load(path, LAYERS).seconds(DECODE, counts) == Tables(profile, LAYERS).seconds(
        DECODE, counts
    )
    assert isinstance(Tables.load(path, LAYERS).seconds(HEAD, counts), PassSeconds)


def test_a_profile_of_another_model_is_refused(profile: Profile) -> None:
    wider = [replace(layer, products=layer.products * 2) for layer in LAYERS]
    with pytest.raises(ProfileError, match="the layers are those of model"):
        Tables(profile, wider)


@pytest.mark.parametrize("name", ["model", "device", "dtype", "threads", "torch", "compiled"])
def test_a_profile_of_other_conditions_is_not_continued(profile: Profile, name: str) -> None:
    other = replace(KEY, **{name: 7 if name == "threads" else "another"})
    with pytest.raises(ProfileError, match=rf"a\.json: measured for {name}=.* not for (7|another)"):
        profile.check(other, "a.json")


def no_samples(tree: dict[str, Any]) -> None:
    next(iter(tree["records"].values()))["samples"] = []


def a_negative_time(tree: dict[str, Any]) -> None:
    next(iter(tree["records"].values()))["samples"][0]["forward"]["tokens"] = -1.0


def another_version(tree: dict[str, Any]) -> None:
    tree["version"] = 0


@pytest.mark.parametrize("damage", [no_samples, a_negative_time, another_version])
def test_a_damaged_profile_is_refused(
    profile: Profile, tmp_path: Path, damage: Callable[[dict[str, Any]], None]
) -> None:
    tree = json.loads(profile.to_json())
    damage(tree)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(ProfileError, match="profile.json: no profile that can be read"):
        Profile.load(path)


@pytest.mark.parametrize("text", ["", "[]", '{"format": "flowtrain-profile"', "{}"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match="it is no file of flowtrain profile"):
        Profile.load(path)
