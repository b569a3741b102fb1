from __future__ import annotations

from report_pages import Page
from results_page import page_of, read

from flowtrain.pages.page import html_of


def test_only_planted_errors_are_beyond_the_tolerance() -> None:
    matrix, connect = read("parity_matrix.jsonl"), read("connect.jsonl")
    page = Page(html_of(page_of(matrix, connect)))
    runs = page.charts[0]["data"]["values"]
    loops = page.charts[1]["data"]["values"]
    assert {row["said"] for row in runs} == {row["row"] for row in matrix}
    assert {row["said"] for row in loops} == {row["row"] for row in connect}
    assert all(row["value"] <= 1 for row in runs)
    beyond = {row["said"] for row in loops if row["value"] > 1}
    assert beyond == {row["row"] for row in connect if row["planted"]}
