"""Reads a whole data set as training would, to find every bad line before a run."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from flowtrain.config.schema import RunConfig
from flowtrain.cores import available_cores
from flowtrain.data.conversation import Conversation
from flowtrain.data.errors import DataError, bounded, cut, no_sample_fits
from flowtrain.data.fields import UnreadFieldsError
from flowtrain.data.mixture import epoch_draws
from flowtrain.data.model_files import model_hashes
from flowtrain.data.records import Dataset, State
from flowtrain.data.samples import SampleReader
from flowtrain.data.sizes import Length, SampleSizes, write_sizes
from flowtrain.data.workers import WorkerPool

_CHUNK = 64
_BLANK = "blank: "
_UNREAD = "unread: "
_ODD = "odd: "
_PLACES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class BadLine:
    """A sample that training would refuse."""

    sample: int
    """Sample number, from 0."""
    line: int | None
    """Line number, from 1; None if the format has no lines."""
    reason: str
    """Starts with the data set and the line or row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Oddity:
    """Something that training takes, but that is rarely meant."""

    name: str
    samples: int
    """Good samples that have it."""
    places: list[str]
    """The first of them: the line or row, and the turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceCheck:
    """Contents of one data set, without bad samples."""

    name: str
    """Path or import path."""
    samples: int
    """Samples, with the bad ones."""
    bad: int
    draws: int
    """Draws per epoch: samples times weight."""
    tokens: int
    targets: int
    images: int
    videos: int
    sizes: str | None
    """File to which the sizes of the good samples were written; None if none was."""
    sizes_error: str | None
    """Why that file could not be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """Contents of a data set. Tokens, images and videos are those that training would use."""

    samples: int
    bad: list[BadLine]
    over_limit: int
    """Samples of more than `train.microbatch_tokens` tokens; bad if `data.oversize` is `error`."""
    tokens: int
    targets: int
    images: int
    videos: int
    image_tokens: int
    """Tokens of images and videos."""
    ended: int
    """Samples whose last target is a token that ends an answer; a model that is trained on none
    may not learn to end its answers."""
    blank: int = 0
    """Images with grey values of 16 or 32 bits, most of which are clipped at 255."""
    first_blank: str | None = None
    """Name of one of them."""
    oddities: list[Oddity]
    """Warnings about good samples, such as an empty answer."""
    unread: dict[str, int]
    """Samples that are bad since training does not use a field, by the name of the field."""
    sources: list[SourceCheck]
    """The data sets of `data.sources`, or the only one."""


def check_file(
    config: RunConfig,
    *,
    workers: int | None = None,
    pixels: bool = False,
    progress: Callable[[int, int], None] = lambda done, samples: None,
    lengths: Callable[[Length], None] = lambda length: None,
    store_sizes: bool = False,
) -> FileCheck:
    """Read every sample of a run's data set and list the bad lines.

    Args:
        config: The run whose model, data and limit are used. Bad images are listed for every
            value of `data.bad_image`.
        workers: Worker processes; None means one per core.
        pixels: Whether to decode images and videos; otherwise only headers are read, as planning
            does.
        progress: Called with the number of samples read so far and of all samples.
        lengths: Called with the sizes of each sample that training would use, in their order.
        store_sizes: Whether to write these sizes beside each data set in files, for `read_sizes`.

    Raises:
        DataError: The data set is a stream; a data set does not exist or changed during the check;
            `data.oversize` would drop every sample; a weight draws no sample; or the model's folder
            cannot be used.
        ValueError: `workers` is below 1.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"--workers={workers}: it must be 1 or more")
    workers = workers or available_cores()
    model = model_hashes(config.model.folder)
    # An error of every worker is raised here, once.
    checker = _Checker(config, pixels)
    dataset = checker.dataset
    if dataset.is_stream:
        raise DataError(
            f"{config.data.name}: a stream has no known end, so that it cannot be checked as a "
            "whole; write its first records to a .jsonl file and check that with data.path, or "
            "print single ones with `flowtrain data show --index N`"
        )
    draws = epoch_draws(config.data, dataset)
    samples = len(dataset)
    workers = min(workers, -(-samples // _CHUNK))
    state = dataset.state
    make = partial(_Checker, config, pixels, state) if workers > 1 else lambda: checker
    counts: list[Counter[str]] = [Counter() for _ in draws]
    stored = [SampleSizes() for _ in draws]
    bad: list[BadLine] = []
    odd: dict[str, list[str]] = {}
    done = 0
    with WorkerPool(make, workers if workers > 1 else 0) as pool:
        chunks = (
            (source, pool.submit("check", first, end))
            for source, first, end in _chunks(dataset.sizes)
        )
        # Bounded, as requests for all lines of a large file would take gigabytes.
        ahead = deque(islice(chunks, 2 * workers))
        while ahead:
            source, future = ahead.popleft()
            found, more, sizes, places = future.result()
            ahead.extend(islice(chunks, 1))
            for size in sizes:
                lengths(size)
                if store_sizes:
                    stored[source].add(size)
            stored[source].whole &= not found["over_limit"]
            stored[source].bad += found["bad"]
            for name, first in places.items():
                odd[name] = (odd.get(name, []) + first)[:_PLACES]
            counts[source] += found
            bad += more
            done += found["samples"]
            progress(done, samples)
    total = sum(counts, Counter())
    if not bad and not total["targets"]:
        raise no_sample_fits(config.data, samples, max_tokens=config.train.microbatch_tokens)
    written = write_sizes(config, dataset, model, stored) if store_sizes else [None for _ in draws]
    of_source = ("samples", "tokens", "targets", "images", "videos")
    names = (*of_source, "over_limit", "image_tokens", "ended")
    return FileCheck(
        bad=bad,
        blank=total["blank"],
        first_blank=next((n.removeprefix(_BLANK) for n in total if n.startswith(_BLANK)), None),
        oddities=[
            Oddity(name=name, samples=total[_ODD + name], places=places)
            for name, places in sorted(odd.items())
        ],
        unread={
            name.removeprefix(_UNREAD): number
            for name, number in sorted(total.items())
            if name.startswith(_UNREAD)
        },
        sources=[
            SourceCheck(
                name=name,
                draws=number,
                bad=found["bad"],
                sizes=str(file) if isinstance(file, Path) else None,
                sizes_error=file if isinstance(file, str) else None,
                **{count: found[count] for count in of_source},
            )
            for name, number, found, file in zip(dataset.names, draws, counts, written, strict=True)
        ],
        **{name: total[name] for name in names},
    )


def _chunks(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Source, first and end of ranges of samples, each in one source."""
    before = 0
    for source, size in enumerate(sizes):
        for first in range(0, size, _CHUNK):
            yield source, before + first, before + min(first + _CHUNK, size)
        before += size


class _Checker:
    def __init__(self, config: RunConfig, pixels: bool, state: State | None = None) -> None:
        from flowtrain.models.registry import family_for  # Imports torch.

        data = dataclasses.replace(config.data, bad_image="error")
        self.dataset = Dataset(data, state)
        self._limit = config.train.microbatch_tokens
        self._reader = SampleReader(config.model.folder, data, self._limit, self.dataset.state)
        self._pixels = pixels
        self._family = family_for(config.model.folder, projector_side=config.projector_side)

    def check(
        self, first: int, end: int
    ) -> tuple[Counter[str], list[BadLine], list[Length], dict[str, list[str]]]:
        """Counts and bad lines of a range of samples, sizes of the good ones, and oddities."""
        counts = Counter(samples=end - first)
        bad: list[BadLine] = []
        lengths: list[Length] = []
        odd: dict[str, list[str]] = {}
        for sample in range(first, end):
            try:
                lengths += self._check(sample, counts, odd)
            # An unexpected error of one sample must not hide the others.
            except Exception as error:
                self.dataset.check_state()
                if isinstance(error, UnreadFieldsError):
                    counts.update(_UNREAD + name for name in error.names)
                where, reason = self.dataset.where(sample), str(error)
                if not reason.startswith(where):
                    reason = bounded(f"{where}: {type(error).__name__}: {cut(reason)}")
                bad.append(BadLine(sample=sample, line=self.dataset.line(sample), reason=reason))
        counts["bad"] = len(bad)
        return counts, bad, lengths, odd

    def _check(self, sample: int, counts: Counter[str], odd: dict[str, list[str]]) -> list[Length]:
        """Add to counts and oddities; returns the sizes, or nothing if the sample is dropped."""
        read = self._reader.read(sample)
        meta, text = self._reader.sizes_and_text(sample, read)
        counts["over_limit"] += meta.fit != "whole"
        self._reader.check_length(meta)
        if meta.fit == "dropped":
            return []
        if self._pixels:
            for image, grid in enumerate(meta.grids):
                self._reader.pixels(sample, image, grid)
        if meta.grids and (blank := self._reader.blank_images(sample)):
            if not counts["blank"]:
                counts[_BLANK + blank[0]] = 1
            counts["blank"] += len(blank)
        odd_turns = _oddities(read) if isinstance(read, Conversation) else []
        for name, turn in dict(reversed(odd_turns)).items():
            counts[_ODD + name] += 1
            places = odd.setdefault(name, [])
            if len(places) < _PLACES:
                places.append(f"{self._reader.where(sample)}: turn {turn}")
        counts["tokens"] += meta.num_tokens
        counts["targets"] += meta.num_targets
        videos = sum(second > 0 for second in meta.seconds)
        counts["images"] += len(meta.grids) - videos
        counts["videos"] += videos
        counts["image_tokens"] += sum(meta.image_lengths)
        counts["ended"] += self._reader.ends(text)
        flops = self._family.sample_flops(meta.num_tokens, meta.grids, num_targets=meta.num_targets)
        side = self._family.projector_side
        return [
            {
                "tokens": meta.num_tokens,
                "visual_tokens": sum(meta.image_lengths),
                "cost": flops.on("backbone", side),
                "encoder_cost": flops.on("encoder", side),
            }
        ]


def _oddities(conversation: Conversation) -> list[tuple[str, int]]:
    """Warnings about a conversation that can be trained; turns are numbered from 1."""
    found = []
    turns = conversation.messages
    for number, (turn, before) in enumerate(zip(turns, (None, *turns), strict=False), 1):
        if turn.role == "assistant" and not "".join(map(str, turn.parts)).strip():
            found.append(("an empty answer, of which only the end is trained", number))
        if before is not None and before.role == turn.role:
            found.append((f"two {turn.role} turns in a row", number))
    return found
