"""The examples of docs/data.md do what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from clips import write_clip
from PIL import Image
from plain_processor import processor_of

from flowtrain.config.data import DataConfig
from flowtrain.data import DataError
from flowtrain.data.samples import SampleReader
from flowtrain.models.tiny import write_tiny_model

PAGE = Path(__file__).parents[3].joinpath("docs", "data.md").read_text()
BLOCKS = re.findall(r"```jsonl\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.DOTALL)
READ = [lines for lines, error in BLOCKS if not error]
REFUSED = [(line, error) for line, error in BLOCKS if error]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    write_tiny_model(folder / "model")
    folder.joinpath("images").mkdir()
    for name, width in (("a.png", 16), ("b.png", 8)):
        Image.new("RGB", (width, 8)).save(folder / "images" / name)
    folder.joinpath("videos").mkdir()
    write_clip(folder / "videos" / "a.mp4")
    return folder


def reader(folder: Path, lines: str) -> SampleReader:
    path = folder / "data.jsonl"
    path.write_text(lines.replace("/data/", f"{folder}/"))
    return SampleReader(folder / "model", DataConfig(path=path), 4096)


@pytest.mark.parametrize("lines", READ)
def test_the_lines_of_a_block_are_equivalent(folder: Path, lines: str) -> None:
    read = reader(folder, lines)
    metas = [read.meta(sample) for sample in range(len(read))]
    assert len({read.text(meta.index, meta.grids).tobytes() for meta in metas}) == 1
    assert metas[0].num_targets > 0


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_refused_line_gives_the_message_of_the_page(
    folder: Path, line: str, message: str
) -> None:
    read = reader(folder, line)
    with pytest.raises(DataError) as error:
        read.meta(0)
    assert str(error.value) == f"{folder}/data.jsonl:1: {' '.join(message.split())}"


def test_outputs_of_a_processor_are_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"# my_processed.py\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("my_processed")
    # AutoProcessor needs torchvision for the videos of Qwen3-VL.
    loader = SimpleNamespace(from_pretrained=lambda _: processor_of(folder / "model"))
    monkeypatch.setattr("transformers.AutoProcessor", loader)
    monkeypatch.setitem(sys.modules, "my_processed", module)
    exec(code, vars(module))
    monkeypatch.chdir(folder)
    read = SampleReader(folder / "model", DataConfig(dataset="my_processed:Samples"), 4096)
    texts = [read.answer(sample, [])["expected"] for sample in range(len(read))]
    assert texts == ["12", "345"]
    assert [len(read.meta(sample).grids) for sample in range(len(read))] == [1, 1]


def test_every_example_of_the_page_is_tested() -> None:
    assert len(BLOCKS) == PAGE.count("```jsonl") == 15
    assert len(REFUSED) == PAGE.count("```text") == 8
