"""Pages with charts in headless Chromium: what it draws, and what it complains of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import results_page
from forked_ranks import trained
from support import run_tree

from flowtrain.cli.main import main
from flowtrain.pages import write_page
from flowtrain.train.state.strips import ReadStrip, write_strips

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

# Runs behind the page's own script, once it has drawn.
MEASURE = """
<script>
const wait = setInterval(() => {
  if (document.body.dataset.drawn !== "yes") return;
  clearInterval(wait);
  const root = document.documentElement;
  const marks = [...document.querySelectorAll("[data-chart]")].map((place) => [
    place.parentElement.querySelector("h3").textContent,
    place.querySelectorAll(
      "svg .mark-rect path, svg .mark-line path, svg .mark-area path, svg .mark-symbol path"
    ).length,
  ]);
  const outside = (text) => {
    const [own, svg] = [text, text.closest("svg")].map((each) => each.getBoundingClientRect());
    return own.width && (own.top < svg.top - 2 || own.bottom > svg.bottom + 2
      || own.left < svg.left - 2 || own.right > svg.right + 2);
  };
  const measured = {
    cut: [...document.querySelectorAll("[data-chart] svg text")].filter(outside)
      .map((text) => text.textContent),
    images: [...document.images].map((image) => image.naturalWidth > 0),
    marks, width: innerWidth, needed: root.scrollWidth,
    ground: getComputedStyle(document.body).backgroundColor,
  };
  parent.postMessage(JSON.stringify(measured), "*");
}, 20);
</script>
"""
# A window of Chromium is at least 500 pixels wide; a frame may be narrower.
FRAME = """<!doctype html><meta charset="utf-8"><pre id="measured"></pre>
<script>onmessage = (e) => document.getElementById("measured").textContent = e.data;</script>
<iframe src="measured.html" style="width: {width}px; height: 3000px; border: 0"></iframe>
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A page on two runs, each with evaluations, of which one has read a strip."""
    folder = tmp_path_factory.mktemp("browser")
    layouts = {"decoupled": {"encoder_ranks": 1, "backbone_ranks": 2}, "colocated": {"ranks": 2}}
    for name, flow in layouts.items():
        held_out = {"path": str(data / "heldout.jsonl"), "every": 2}
        trained(run_tree(folder / name, data, flow=flow, eval=held_out))
    png = next(data.joinpath("images", "heldout").iterdir()).read_bytes()
    write_strips(folder / "decoupled", [ReadStrip(png, "1", "2")])
    assert main(["report", *(str(folder / name) for name in layouts)]) == 0
    return folder / "decoupled" / "report.html"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on all policies, with more ranks than it shows."""
    page = tmp_path_factory.mktemp("browser") / "packed.html"
    words = ["--ranks", "48", "--max-tokens", "26000", "--samples", "4096"]
    assert main(["pack", "video", *words, "--plot", str(page)]) == 0
    return page


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A page on the plan of a small model."""
    page = tmp_path_factory.mktemp("browser") / "planned.html"
    words = ["--cluster", "1x4xH100", "--workload", "native", "--gpus", "2..4"]
    assert main(["plan", "--model", str(data / "model"), *words, "--plot", str(page)]) == 0
    return page


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on the kept results of benchmarks."""
    page = tmp_path_factory.mktemp("browser") / "results.html"
    kept = results_page.read("parity_matrix.jsonl"), results_page.read("connect.jsonl")
    write_page(results_page.page_of(*kept), page, option="--out")
    return page


PAGES = {"report": 15, "packed": 8, "planned": 5, "results": 4}
"""Charts that each has at least."""


def with_script(page: Path, script: str) -> str:
    # Vega has a page of its own in a string.
    before, end, after = page.read_text().rpartition("</body>")
    return before + script + end + after


def opened(page: Path, folder: Path, *, width: int, dark: bool) -> tuple[dict[str, Any], list[str]]:
    """What a page measures of itself, and what the browser logs of it."""
    folder.joinpath("measured.html").write_text(with_script(page, MEASURE))
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("{width}", str(width)))
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--virtual-time-budget=20000", f"--user-data-dir={folder / 'profile'}"),
            *("--enable-logging=stderr", "--window-size=1600,3000"),
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            *("--dump-dom", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    (found,) = re.findall(r'<pre id="measured">(.*?)</pre>', done.stdout)
    return json.loads(found), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_draws_every_chart(
    name: str, width: int, dark: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page: Path = request.getfixturevalue(name)
    assert page.stat().st_size < 5e6
    measured, console = opened(page, tmp_path, width=width, dark=dark)
    assert console == [], "\n".join(console)
    assert len(measured["marks"]) >= PAGES[name]
    assert [title for title, count in measured["marks"] if not count] == []
    assert measured["cut"] == []
    assert measured["images"] == [True] * (name == "report")
    assert measured["width"] == width
    assert measured["needed"] <= width
    assert (measured["ground"] == "rgb(255, 255, 255)") != dark


def test_a_page_that_asks_for_something_is_found(packed: Path, tmp_path: Path) -> None:
    asking = tmp_path / "asking.html"
    ask = '<script>fetch("http://127.0.0.1:9/")</script>'
    asking.write_text(with_script(packed, ask))
    _, console = opened(asking, tmp_path, width=1400, dark=False)
    assert any("Content Security Policy" in line for line in console)
