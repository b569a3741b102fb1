"""`flowtrain data digits | show | check`: make a data set, print samples, find bad lines."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowtrain import progress
from flowtrain.cli.overrides import add_overrides
from flowtrain.output import checked_stdout

if TYPE_CHECKING:
    from flowtrain.config import RunConfig
    from flowtrain.data.check import FileCheck, SourceCheck


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("data", help=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    digits = kinds.add_parser("digits", help="write strips of handwritten digits and a tiny model")
    digits.add_argument("folder", type=Path)
    digits.add_argument("--train", type=int, default=12_000, help="training samples")
    digits.add_argument("--heldout", type=int, default=400, help="held-out strips")
    digits.add_argument("--seed", type=int, default=0)
    digits.add_argument(
        "--text-only", type=float, default=0.0, help="share of samples without an image"
    )
    digits.add_argument(
        "--multi-image", type=float, default=0.0, help="share of samples with several images"
    )
    digits.set_defaults(run=run_digits)
    show = kinds.add_parser("show", help="print samples as the model gets them")
    _add_config(show)
    show.add_argument(
        "--index",
        type=_index,
        nargs="+",
        required=True,
        metavar="N",
        help="sample numbers from 0: rows, or lines without the blank ones",
    )
    show.add_argument("--json", action="store_true", help="one JSON object per line")
    show.set_defaults(run=run_show)
    check = kinds.add_parser(
        "check",
        help="read every sample, list the bad ones, and write the sizes of the good ones",
    )
    _add_config(check)
    check.add_argument("--workers", type=int, help="processes (default: one per core)")
    check.add_argument("--pixels", action="store_true", help="decode images, not only headers")
    check.add_argument(
        "--lengths",
        type=Path,
        metavar="FILE",
        help="write tokens and FLOPs of each good sample as a file of lengths too",
    )
    check.add_argument("--json", action="store_true", help="one JSON object")
    check.set_defaults(run=run_check)


def _index(text: str) -> int | str:
    """A sample number, or an override behind the numbers, which argparse takes for one of them."""
    if "=" in text:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: write sample numbers, such as 0 7") from error


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="YAML file")
    add_overrides(parser)
    parser.add_argument(
        "--held-out", action="store_true", help="the held-out samples of eval, not those of data"
    )


def _load(given: argparse.Namespace) -> RunConfig:
    """The configuration, whose data are the held-out samples if the options say so."""
    from flowtrain.config import ConfigError, load

    config = load(given.config, given.overrides)
    if not given.held_out:
        return config
    if config.held_out is None:
        raise ConfigError(
            f"--held-out: {given.config} names no held-out samples; set eval.path or eval.dataset"
        )
    return dataclasses.replace(config, data=config.held_out)


def run_digits(given: argparse.Namespace) -> int:
    for name in ("train.jsonl", "heldout.jsonl", "model"):
        if (there := given.folder / name).exists():
            raise ValueError(f"{there}: it exists; remove it, or choose another folder")
    with progress.bar("loading the digits"):
        from flowtrain.data.digits import write_digits

        summary = write_digits(
            given.folder,
            train=given.train,
            heldout=given.heldout,
            seed=given.seed,
            text_only=given.text_only,
            multi_image=given.multi_image,
        )
    print(json.dumps(dataclasses.asdict(summary)))
    return 0


def run_show(given: argparse.Namespace) -> int:
    from flowtrain.data.show import show_samples

    indices = [each for each in given.index if isinstance(each, int)]
    given.overrides += [each for each in given.index if isinstance(each, str)]
    if not indices:
        raise ValueError("--index: it has no sample number; write some, such as 0 7")
    for sample in show_samples(_load(given), indices):
        if given.json:
            print(json.dumps(sample))
            continue
        pieces = sample.pop("text")
        for key, value in sample.items():
            print(f"{key:>16}  {value}")
        _print_text(pieces)
    return 0


def _print_text(pieces: list[tuple[str, bool]]) -> None:
    """Print a text: what is trained in colour on a terminal, and otherwise apart."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if console.is_terminal:
        print(f"{'text':>16}  (what is trained is green)")
        styled = [(piece, "bold green" if trained else "") for piece, trained in pieces]
        console.print(Text.assemble(*styled), soft_wrap=True)
        return
    print(f"{'trained':>16}  {[piece for piece, trained in pieces if trained]}")
    print(f"{'text':>16}\n{''.join(piece for piece, _ in pieces)}")


def run_check(given: argparse.Namespace) -> int:
    from flowtrain.config.checks import check_outputs

    config = _load(given)
    samples = [source.path for source in config.data.all_sources]
    check_outputs({"--lengths": given.lengths}, [given.config, *samples])
    with progress.bar("loading the model"), _lines(given.lengths) as write:
        from flowtrain.data.check import check_file

        found = check_file(
            config,
            workers=given.workers,
            pixels=given.pixels,
            progress=partial(progress.show, "samples"),
            lengths=write,
            store_sizes=True,
        )
    # Keeps the exit code even if the reader closes the output early.
    with checked_stdout():
        if given.json:
            print(json.dumps({"path": config.data.name, **dataclasses.asdict(found)}))
        else:
            for bad in found.bad:
                # A message may contain a file name that the terminal cannot encode.
                encoding = sys.stdout.encoding
                print(bad.reason.encode(encoding, "backslashreplace").decode(encoding))
            print(
                f"{config.data.name}: {_counts(found, len(found.bad))} of {found.image_tokens} "
                f"tokens; {found.over_limit} samples exceed "
                f"train.microbatch_tokens={config.train.microbatch_tokens}"
                + "; of images and videos the headers alone were read, and --pixels decodes them"
                * (not given.pixels and found.images + found.videos > 0)
            )
            for source in found.sources if config.data.sources else ():
                counts = _counts(source, source.bad)
                print(f"{source.name}: {counts}; {source.draws} draws per epoch")
            for source in found.sources:
                if source.sizes is not None:
                    print(f"sizes of the good samples: {source.sizes}")
    for source in found.sources:
        if source.sizes_error is not None:
            print(f"flowtrain: sizes are not stored: {source.sizes_error}", file=sys.stderr)
    if found.blank:
        print(
            f"flowtrain: {found.blank} images have grey values of 16 or 32 bits and become blank, "
            f"as values are not scaled to 8 bits but clipped at 255: {found.first_blank}, for one; "
            "convert them to 8 bits (docs/data.md)",
            file=sys.stderr,
        )
    for oddity in found.oddities:
        more = ", ..." * (oddity.samples > len(oddity.places))
        print(
            f"flowtrain: {oddity.samples} good samples have {oddity.name}: "
            f"{', '.join(oddity.places)}{more}",
            file=sys.stderr,
        )
    if found.unread:
        from flowtrain.data.fields import ignoring

        fields = ", ".join(f"{name!r} in {number}" for name, number in found.unread.items())
        print(
            f"flowtrain: bad samples by the field that is not read: {fields}; if training needs "
            f"none of these, set {ignoring(found.unread)}",
            file=sys.stderr,
        )
    if not found.ended and found.targets:
        print(
            "flowtrain: no sample trains the token that ends an answer, so that the model may not "
            "end its answers: let the chat template write it within the target text (docs/data.md)",
            file=sys.stderr,
        )
    return 1 if found.bad else 0


@contextmanager
def _lines(path: Path | None) -> Iterator[Callable[[object], None]]:
    """A function that writes a line of JSON to a file, which appears when all are written."""
    if path is None:
        yield lambda value: None
        return
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w") as file:
            yield lambda value: print(json.dumps(value), file=file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _counts(found: FileCheck | SourceCheck, bad: int) -> str:
    visuals = f"{found.images} images" + f" and {found.videos} videos" * (found.videos > 0)
    return (
        f"{found.samples} samples, {bad} bad; the good ones have {found.tokens} tokens, "
        f"{found.targets} of them targets, and {visuals}"
    )
