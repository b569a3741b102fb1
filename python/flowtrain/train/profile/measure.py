"""Measures the layers of a run's model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.cores import cpu_name
from flowtrain.cost.profiled import Profile, ProfileKey, digest
from flowtrain.cost.tables import Tables
from flowtrain.models import varlen
from flowtrain.models.dtypes import DTYPES
from flowtrain.train.profile.passes import Passes
from flowtrain.train.profile.search import Grid, Limits
from flowtrain.train.profile.session import Outcome, Session
from flowtrain.train.profile.shallow import write_shallow
from flowtrain.train.profile.shapes import image_sizes
from flowtrain.train.ranks.device import choose_device


def measure(
    config: RunConfig, out: Path, *, seconds: float, threads: int, image_tokens: int, depth: int
) -> tuple[Profile, Tables, Outcome]:
    """Measure the layers of a run's model, or continue with that.

    Args:
        config: The run.
        out: File to write, and to continue from.
        seconds: Time for measuring.
        threads: Threads of a rank.
        image_tokens: Maximum tokens of an image.
        depth: Maximum layers of a module that are built; 0 for all of them.

    Raises:
        ProfileError: The file is no profile, or one of other conditions.
    """
    torch.set_num_threads(threads)
    device = choose_device(config.model.device, 0, first=0)
    if depth:
        with tempfile.TemporaryDirectory(prefix="flowtrain-profile-") as folder:
            write_shallow(config.model.folder, Path(folder), depth=depth)
            passes = Passes(config, device, shallow=Path(folder))
    else:
        passes = Passes(config, device)
    key = ProfileKey(
        model=digest(passes.layers),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype=config.model.pass_dtype,
        threads=threads,
        torch=torch.__version__,
        depth=depth,
        compiled=config.model.compile,
        attention=varlen.library(device, DTYPES[config.model.pass_dtype]),
    )
    profile = Profile(key=key, repeats=passes.repeats, joins=passes.joins)
    if out.exists():
        profile = Profile.load(out)
        profile.check(key, str(out))
    limits = Limits(
        row_tokens=config.train.microbatch_tokens,
        call_rows=min(config.item_tokens, config.train.microbatch_tokens),
    )
    images = image_sizes(
        passes.family, passes.processor, max_tokens=min(limits.call_rows, image_tokens)
    )
    grid = Grid(images, limits, joins=passes.joins)
    outcome = Session(profile, passes, grid, out, seconds=seconds).run()
    return profile, Tables(profile, passes.layers), outcome
