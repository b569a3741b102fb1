from __future__ import annotations

import json
import re
from concurrent.futures import Future
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from support import run_tree, write_tiny_data

from flowtrain.cli.main import main
from flowtrain.config import load
from flowtrain.data.check import BadLine, FileCheck, check_file
from flowtrain.data.digits import write_digits
from flowtrain.data.sample_meta import SampleMeta
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import CompactText
from flowtrain.data.workers import WorkerPool
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST
from flowtrain.workloads import read_lengths


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 140 lines, and a copy of its file with five bad lines and a blank one."""
    folder = tmp_path_factory.mktemp("data")
    write_tiny_data(folder / "data", samples=140)
    config = run_tree(folder / "run", folder / "data")
    folder.joinpath("run.yaml").write_text(yaml.safe_dump(config))
    lines = folder.joinpath("data", "train.jsonl").read_text().splitlines()
    long = {"role": "user", "content": "Why? " * 50}
    lines[2] = "{"
    lines[3] = ""
    lines[70] = json.dumps({"messages": [long, {"role": "assistant", "content": "1"}]})
    lines[71] = lines[71].replace("assistant", "judge")
    lines[130] = lines[130].replace(".png", ".gif")
    cut = folder / "data" / json.loads(lines[139])["images"][0]
    cut.with_name("cut.png").write_bytes(cut.read_bytes()[:-30])
    lines[139] = lines[139].replace(cut.name, "cut.png")
    folder.joinpath("data", "bad.jsonl").write_text("\n".join(lines) + "\n\n")
    return folder


@pytest.fixture(scope="module", params=["1", "2"])
def checked(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """Report of the command on the bad lines, for a number of workers, and its file of lengths."""
    lengths = tmp_path_factory.mktemp("lengths") / "lengths.jsonl"
    with redirect_stdout(StringIO()) as printed:
        assert run_check(folder, "--workers", request.param, "--lengths", str(lengths)) == 1
    return json.loads(printed.getvalue()), lengths


def run_check(folder: Path, *options: str) -> int:
    bad = f"data.path={folder / 'data' / 'bad.jsonl'}"
    return main(["data", "check", str(folder / "run.yaml"), bad, *options, "--json"])


def check(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, Any]:
    code = run_check(folder, *options)
    return code, json.loads(capsys.readouterr().out)


def test_every_bad_line_is_listed(checked: tuple[Any, Path]) -> None:
    found, _ = checked
    bad = {each["line"]: each["reason"] for each in found["bad"]}
    assert [*bad] == [3, 71, 72, 131]
    assert all(why.startswith(f"{found['path']}:{line}: ") for line, why in bad.items())
    assert "not JSON" in bad[3]
    assert "exceed train.microbatch_tokens=160" in bad[71]
    assert "role 'judge'" in bad[72]
    assert "there is no such file" in bad[131]
    assert (found["samples"], found["over_limit"], found["images"]) == (139, 1, 135)


def test_the_lengths_of_good_samples_are_a_workload(
    folder: Path, checked: tuple[Any, Path]
) -> None:
    found, lengths = checked
    work = read_lengths(lengths)
    reader = SampleReader(folder / "data/model", load(folder / "run.yaml").data, 160)
    # Lines 3 and 71, 72, 131 are bad, and line 4 is blank: line 5 is the third good one.
    metas = [reader.meta(sample) for sample in (0, 1, 4)]
    assert work.tokens[:3].tolist() == [meta.num_tokens for meta in metas]
    assert work.visual_tokens[:3].tolist() == [sum(meta.image_lengths) for meta in metas]
    assert len(work) == found["samples"] - len(found["bad"])
    assert (work.tokens.sum(), work.visual_tokens.sum()) == (found["tokens"], found["image_tokens"])
    family = family_for(folder / "data/model")
    flops = family.sample_flops(
        metas[2].num_tokens, metas[2].grids, num_targets=metas[2].num_targets
    )
    # The projector lies with the encoder, since both train.
    assert work.encoder_cost[2] == flops.encoder + flops.projector
    assert work.cost[2] == flops.backbone


def test_a_failed_check_keeps_an_older_file_of_lengths(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text("7\n")
    command = ["data", "check", str(folder / "run.yaml"), "data.path=none.jsonl"]
    assert main([*command, "--lengths", str(path)]) == 2
    assert path.read_text() == "7\n"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_changes_during_the_check_is_an_error(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(folder.joinpath("data", "train.jsonl").read_text())
    sizes = SampleReader.sizes_and_text

    def grow(reader: SampleReader, line: int, *read: Any) -> tuple[SampleMeta, CompactText]:
        if line == 3:
            path.write_text(path.read_text() + "{}")
        return sizes(reader, line, *read)

    monkeypatch.setattr(SampleReader, "sizes_and_text", grow)
    config, images = folder / "run.yaml", f"data.image_root={folder / 'data'}"
    argv = ["data", "check", str(config), f"data.path={path}", images, "--workers", "1"]
    assert main(argv) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"flowtrain: {path}: the data changed")


def test_a_reason_that_the_terminal_cannot_encode_is_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = BadLine(sample=0, line=1, reason="image \udcff.png: there is no such file")
    zeros = dict.fromkeys(
        ("samples", "over_limit", "tokens", "targets", "images", "videos", "ended"), 0
    )
    found = FileCheck(bad=[bad], image_tokens=0, unread={}, oddities=[], sources=[], **zeros)
    monkeypatch.setattr("flowtrain.data.check.check_file", lambda *_, **__: found)
    assert main(["data", "check", str(folder / "run.yaml")]) == 1
    assert r"image \udcff.png: there is no such file" in capsys.readouterr().out


def test_few_lines_are_requested_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowtrain.data.check._CHUNK", 1)
    waiting: list[int] = []
    submit = WorkerPool.submit

    def counted(pool: WorkerPool, method: str, first: int, end: int) -> Future[Any]:
        waiting.append(first)
        return submit(pool, method, first, end)

    monkeypatch.setattr(WorkerPool, "submit", counted)
    most = 0

    def progress(done: int, samples: int) -> None:
        nonlocal most
        most = max(most, len(waiting) - done)

    assert check_file(load(folder / "run.yaml"), workers=1, progress=progress).samples == 140
    assert most <= 4


def test_damaged_pixels_are_found_with_the_pixels_option(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = check(folder, capsys, "--workers", "1", "--pixels")
    assert code == 1
    assert [each["line"] for each in found["bad"]] == [3, 71, 72, 131, 140]
    assert "cut.png" in found["bad"][-1]["reason"]


def test_a_good_file_is_summarized(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(folder / "run.yaml"), "--workers", "1"]) == 0
    line, sizes = capsys.readouterr().out.splitlines()
    assert sizes == f"sizes of the good samples: {folder / 'data' / 'train.jsonl.sizes'}"
    assert "140 samples, 0 bad; " in line
    assert " 140 images of " in line
    assert line.endswith(
        "; of images and videos the headers alone were read, and --pixels decodes them"
    )
    assert main(["data", "check", str(folder / "run.yaml"), "--workers", "1", "--pixels"]) == 0
    assert "headers" not in capsys.readouterr().out


def test_turns_that_are_rarely_meant_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, told = ({"role": role, "content": "1"} for role in ("user", "assistant"))
    odd = {
        1: [
            asked,
            {"role": "assistant", "content": [{"type": "text", "text": " \n"}]},
            asked,
            told,
        ],
        5: [asked, asked, asked, told],
        70: [{"role": "system", "content": ""}, asked, {"role": "assistant", "content": ""}, told],
        **{line: [asked, asked, told] for line in (80, 90, 99)},
        **{line: [asked, asked] for line in (81, 91)},  # Bad, and so not odd.
    }
    path = tmp_path / "train.jsonl"
    lines = [json.dumps({"messages": odd.get(n, [asked, told])}) for n in range(1, 101)]
    path.write_text("\n".join(lines))
    argv = ["data", "check", str(folder / "run.yaml"), f"data.path={path}", "--workers", "1"]
    assert main([*argv, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["samples"], each["places"]) for each in found["oddities"]] == [
        (
            "an empty answer, of which only the end is trained",
            2,
            [f"{path}:1: turn 2", f"{path}:70: turn 3"],
        ),
        ("two assistant turns in a row", 1, [f"{path}:70: turn 4"]),
        (
            "two user turns in a row",
            4,
            [f"{path}:5: turn 2", f"{path}:80: turn 2", f"{path}:90: turn 2"],
        ),
    ]
    assert main(argv) == 1
    said = (
        f"4 good samples have two user turns in a row: {path}:5: turn 2, {path}:80: turn 2, {path}"
    )
    assert f"{said}:90: turn 2, ...\n" in capsys.readouterr().err


def test_held_out_samples_are_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, held_out = str(folder / "run.yaml"), folder / "data" / "heldout.jsonl"
    options = [f"eval.path={held_out}", "--held-out", "--json"]
    assert main(["data", "check", config, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["samples"]) == (str(held_out), 4)
    assert main(["data", "check", config, "--held-out"]) == 2
    assert "--held-out: " in capsys.readouterr().err


def test_counts_of_each_source_are_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (folder / "data" / f"{name}.jsonl" for name in ("train", "bad"))
    sources = f"data={{sources: [{{path: {good}, weight: 0.5}}, {{path: {bad}, weight: 2}}]}}"
    assert main(["data", "check", str(folder / "run.yaml"), sources, "--workers", "1"]) == 1
    *reasons, total, of_good, of_bad, _, _ = capsys.readouterr().out.splitlines()
    assert [reason.split(": ")[0] for reason in reasons] == [
        f"{bad}:{line}" for line in (3, 71, 72, 131)
    ]
    assert total.startswith("data.sources: 279 samples, 4 bad; the good ones have ")
    assert of_good.startswith(f"{good}: 140 samples, 0 bad; ")
    assert of_good.endswith("140 images; 70 draws per epoch")
    assert of_bad.startswith(f"{bad}: 139 samples, 4 bad; ")
    assert of_bad.endswith("135 images; 278 draws per epoch")
    assert main(["data", "show", str(folder / "run.yaml"), sources, "--index", "141"]) == 0
    assert f"where  {bad}:2\n" in capsys.readouterr().out


def test_a_file_without_a_remaining_sample_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["data.oversize=truncate", "train.microbatch_tokens=4"]
    assert main(["data", "check", str(folder / "run.yaml"), *short, "--workers", "1"]) == 2
    assert "none of 140 samples fits into train.microbatch_tokens=4" in capsys.readouterr().err


def test_what_is_trained_is_shown_as_text(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["data", "show", str(folder / "run.yaml"), "--index", "2"]
    record = json.loads((folder / "data/train.jsonl").read_text().splitlines()[2])
    question, answer = (turn["content"] for turn in record["messages"])
    assert main([*argv, "--json"]) == 0
    pieces = json.loads(capsys.readouterr().out)["text"]
    assert [piece for piece, trained in pieces if trained] == [f"{answer}<|im_end|>"]
    whole = "".join(piece for piece, _ in pieces)
    shown = re.sub(r"<image: \d+ tokens>", "<|image_pad|>", whole)
    rendered = question.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    assert shown.endswith(
        f"<|im_start|>user\n{rendered}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
    )
    assert main(argv) == 0
    piped = capsys.readouterr().out
    assert f"trained  ['{answer}<|im_end|>']\n" in piped
    assert piped.endswith(f"text\n{whole}\n") and "\x1b" not in piped
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(argv) == 0
    coloured = capsys.readouterr().out
    assert f"\x1b[1;32m{answer}<|im_end|>\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).endswith(f"{whole}\n")


def test_samples_are_printed_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", str(folder / "run.yaml"), "--index", "7", "3", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sample["index"] for sample in shown] == [7, 3]
    assert (
        main(["data", "show", str(folder / "run.yaml"), "--index", "7", "data.path=x.jsonl"]) == 2
    )
    assert "x.jsonl: there is no such file" in capsys.readouterr().err
    assert main(["data", "show", str(folder / "run.yaml"), "--index", "data.path=x.jsonl"]) == 2
    assert "--index: it has no sample number" in capsys.readouterr().err
    assert main(["data", "show", str(folder / "run.yaml"), "--index", "140"]) == 2
    assert "sample 140 does not exist; the last one is 139" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [("train", "0"), ("heldout", "-1"), ("text-only", "20"), ("text-only", "0.6")],
)
def test_digits_that_cannot_be_written_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    argv = ["data", "digits", str(tmp_path / "out"), "--multi-image", "0.6", f"--{option}", value]
    assert main(argv) == 2
    assert f"{option.replace('-', '_')}={value}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_lengths_do_not_replace_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "run.yaml"
    assert main(["data", "check", str(run), "--lengths", str(run)]) == 2
    assert f"--lengths={run}: it is read, and would be lost" in capsys.readouterr().err


def test_digits_do_not_replace_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = tmp_path / "train.jsonl"
    samples.write_text("own")
    assert main(["data", "digits", str(tmp_path)]) == 2
    assert f"{samples}: it exists; remove it, or choose another" in capsys.readouterr().err
    assert samples.read_text() == "own"


def test_answers_that_the_template_never_ends_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_digits(tmp_path / "data", train=3, heldout=1, sizes=SMALLEST, family="llava")
    config = tmp_path / "run.yaml"
    config.write_text(
        "run: run\nmodel: {config: data/model}\ndata: {path: data/train.jsonl}\ntrain: {steps: 1}\n"
    )
    argv = ["data", "check", str(config), "--workers", "1"]
    assert main(argv) == 0
    assert "ends an answer" not in capsys.readouterr().err
    template = tmp_path / "data" / "model" / "chat_template.jinja"
    # As in the released model.
    template.write_text(template.read_text().replace("+ '</s>'", "+ ' '"))
    assert main(argv) == 0
    assert "no sample trains the token that ends an answer" in capsys.readouterr().err


def test_images_of_more_than_8_bits_that_become_blank_are_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = np.linspace(0, 60000, 64 * 64).reshape(64, 64)
    images = {
        "wide.png": wide.astype(np.uint16),
        "share.tiff": (wide / 60000).astype(np.float32),
        "dark.png": (wide / 300).astype(np.uint16),  # In the range of 8 bits.
        "float.tiff": (wide / 300).astype(np.float32),
        "plain.png": (wide / 300).astype(np.uint8),
        "white.png": np.full((64, 64), 255, np.uint16),
    }
    ask = {"role": "user", "content": "<image>Read the digits."}
    lines = []
    for name, values in images.items():
        Image.fromarray(values).save(tmp_path / name)
        turns = [ask, {"role": "assistant", "content": "1"}]
        lines.append(json.dumps({"messages": turns, "images": [name]}) + "\n")
    path = tmp_path / "data.jsonl"
    path.write_text("".join(lines))
    config = [str(folder / "run.yaml"), f"data.path={path}", "train.microbatch_tokens=4096"]
    assert main(["data", "check", *config]) == 0
    errors = capsys.readouterr().err
    assert "flowtrain: 2 images have grey values of 16 or 32 bits and become blank" in errors
    assert f"{tmp_path / 'wide.png'}, for one" in errors


def test_fields_that_nothing_uses_are_counted_with_the_option_that_ignores_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    records = [json.loads(line) for line in (folder / "data/train.jsonl").read_text().splitlines()]
    for record in records[:70]:
        record["height"] = 8
    records[1]["messages"][1]["score"] = 0.5
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    argv = ["data", "check", str(folder / "run.yaml"), f"data.path={path}", "--workers", "1"]
    argv.append(f"data.image_root={folder / 'data'}")
    assert main(argv) == 1
    said = "'height' in 70, 'score' in 1; .* set data.ignore=[height,score]"
    output = capsys.readouterr()
    assert re.search(re.escape(said).replace(r"\.\*", ".*"), output.err)
    assert main([*argv, "data.ignore=[height,score]"]) == 0
    assert "140 samples, 0 bad" in capsys.readouterr().out


def test_a_stream_is_shown_and_not_checked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = folder.joinpath("data", "train.jsonl").read_text().splitlines()
    monkeypatch.setattr(f"{__name__}.rows", lambda: map(json.loads, lines), raising=False)
    stream = ["data.path=null", f"data.dataset={__name__}:rows"]
    argv = [str(folder / "run.yaml"), *stream, f"data.image_root={folder / 'data'}"]
    assert main(["data", "show", *argv, "--index", "5", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("where") == f"data.dataset={__name__}:rows: item 5"
    assert main(["data", "show", str(folder / "run.yaml"), "--index", "5", "--json"]) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert shown == {name: value for name, value in of_file.items() if name != "where"}
    assert main(["data", "check", *argv]) == 2
    assert "a stream has no known end" in capsys.readouterr().err
