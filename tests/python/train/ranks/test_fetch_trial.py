"""What is fetched follows from the times of the first images, and not from when they are asked."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from flowtrain.cache import CacheFolder, Context
from flowtrain.data.files import IMAGE
from flowtrain.data.pixel_maker import SamplePixels, StoredRows
from flowtrain.steps import PlannedImage
from flowtrain.train.ranks.features import FeatureCache

CPU = torch.device("cpu")
IMAGES = [PlannedImage(sample, 0, (1, 2, 2)) for sample in range(8)]
ROWS = torch.zeros(2, 4)


def make(folder: Path, *, reports: bool = True) -> FeatureCache:
    return FeatureCache(
        CacheFolder(folder / "cache"),
        lambda: Context({}),
        width=4,
        dtype=torch.float32,
        device=CPU,
        always=False,
        reports=reports,
    )


def read(cache: FeatureCache, step: int, *, stored: bool, fetch_s: float, decode_s: float) -> str:
    """Ask for the images of a step as a rank does; the letters say what data workers did."""
    done = ""
    for image in IMAGES:
        method, arguments = cache.request(step, image)
        finds = method == "features" and arguments[-1]
        done += "p" if method == "pixels" else "f" if finds else "e"
        found: SamplePixels | StoredRows
        if finds and stored:
            found = StoredRows(numpy.zeros(ROWS.nbytes, numpy.uint8), fetch_s)
        else:
            key = None if method == "pixels" else b"k" * 32
            found = SamplePixels(values=None, kind=IMAGE, key=key, read_s=decode_s)
        assert cache.rows(found, lambda _: ROWS.clone()).shape == ROWS.shape
        # The same request for as long as the step lasts, whatever is found out meanwhile.
        assert cache.request(step, image) == (method, arguments)
    cache.forget(step)
    return done


@pytest.mark.parametrize("fetch_s", [0.5, 5.0])
def test_a_full_cache_is_compared_with_images_that_are_encoded_all_the_same(
    fetch_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = make(tmp_path)
    times = {"stored": True, "fetch_s": fetch_s, "decode_s": 1.0}
    assert read(cache, 0, **times) == read(cache, 1, **times) == "fefefefe"
    assert read(cache, 2, **times) == ("ffffffff" if fetch_s < 1 else "pppppppp")
    cache.close()
    told = capsys.readouterr().err
    assert f"features of an image of 2 rows are fetched in {1e3 * fetch_s:,.1f} ms" in told
    assert ("this rank encodes all images from now on" in told) == (fetch_s > 1)


def test_an_empty_cache_is_judged_by_its_first_hits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = make(tmp_path, reports=False)
    times = {"fetch_s": 5.0, "decode_s": 1.0}
    assert read(cache, 0, stored=False, **times) == "fefefefe"
    assert read(cache, 1, stored=False, **times) == "ffffffff"
    assert read(cache, 2, stored=True, **times) == "ffffffff"
    assert read(cache, 3, stored=True, **times) == "pppppppp"
    cache.close()
    assert "encodes all images" in capsys.readouterr().err
