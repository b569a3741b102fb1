"""Presets are reproducible, within their ranges, and near the measured means."""

from __future__ import annotations

import numpy
import pytest

from flowtrain.workloads import PRESETS, preset

# Mean tiles and tokens of the measured sets, and the shares of the largest.
MEASURED = {
    "ai2d": (2.49, 691),
    "chartqa": (4.75, 1305),
    "docvqa": (4.62, 1465),
    "synthdog": (3.84, 1103),
    "documents": (3.95, 1135),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_depends_on_its_seed_alone(name: str) -> None:
    one, again, other = (
        preset(name, 500, seed=1),
        preset(name, 500, seed=1),
        preset(name, 500, seed=2),
    )
    assert one.tokens.tolist() == again.tokens.tolist()
    assert one.encoder_cost.tolist() == again.encoder_cost.tolist()
    assert one.tokens.tolist() != other.tokens.tolist()
    assert len(one) == 500 and (one.tokens >= 1).all()
    assert (one.visual_tokens <= one.tokens).all() and (one.tokens < 70_000).all()
    assert ((one.encoder_cost > 0) == (one.visual_tokens > 0)).all()
    assert one.images is not None
    assert ((one.images > 0) == (one.visual_tokens > 0)).all()
    assert (one.images <= one.visual_tokens).all()
    assert len(preset(name, 0, seed=1)) == 0


@pytest.mark.parametrize("name", MEASURED)
def test_document_sets_have_their_measured_means(name: str) -> None:
    work = preset(name, 40_000, seed=3)
    tiles, tokens = MEASURED[name]
    assert work.visual_tokens.mean() / 256 == pytest.approx(tiles, rel=0.02)
    assert work.tokens.mean() == pytest.approx(tokens, rel=0.03)


def test_attention_has_the_published_share_of_the_decoder() -> None:
    work = preset("longtail", 4000, seed=0)
    # a / b of the two terms is 70,455 tokens.
    near = numpy.abs(work.tokens - 4096).argmin()
    t = work.tokens[near]
    linear = work.cost[near] / (1 + t / 70_455)
    assert 1 - linear / work.cost[near] == pytest.approx(0.055, abs=0.002)
    double = work.cost[work.tokens.argmax()] / work.tokens.max()
    assert double / (work.cost[near] / t) == pytest.approx(
        (1 + work.tokens.max() / 70_455) / (1 + t / 70_455), rel=1e-3
    )


def test_the_error_of_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="preset 'films': choose from tiles, native, video"):
        preset("films", 1, seed=0)
