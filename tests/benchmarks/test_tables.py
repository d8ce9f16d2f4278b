"""Do the tables of measurements have what was stored, and nothing else?"""

import json

import pytest

from tests.benchmarks import __main__ as benchmarks

ROW = {"name": "a / b", "values": [1.0, 3.0, 2.0], "unit": "×", "at_least": None, "at_most": 2.5, "under_load": False}
STORED = {
    "bench_a": {"date": "2026-01-02", "machine": "M", "load": 0.5, "rows": [ROW | {"headline": True}]},
    "bench_b": {"date": "2026-01-03", "machine": "N", "load": 2.0, "rows": [ROW | {"name": "c", "headline": False}]},
}
PAGE = "before\n<!-- measured -->\nold\n<!-- end -->\nafter"


@pytest.mark.parametrize("page", benchmarks.PAGES, ids=lambda page: str(page.parent.name))
def test_a_page_shows_the_stored_rows(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- measured -->" in text
    assert benchmarks.with_table(text, benchmarks.PAGES[page]) == text


def test_a_table_has_the_medians_and_the_machines_of_its_rows(tmp_path, monkeypatch):
    (tmp_path / "measured.json").write_text(json.dumps(STORED))
    monkeypatch.setattr(benchmarks, "MEASURED", tmp_path / "measured.json")
    head = "before\n<!-- measured -->\n\n| | median | least to most | goal |\n|---|---|---|---|\n"
    first, tail = "| a / b | 2.00 × | 1.00 to 3.00 | ≤ 2.5: met |\n", ".\n<!-- end -->\nafter"
    second = "| c | 2.00 × | 1.00 to 3.00 | ≤ 2.5: met |\n"
    assert (
        benchmarks.with_table(PAGE, headlines=True)
        == f"{head}{first}\nMeasured on 2026-01-02, M, load 0.5 to 0.5 at the start{tail}"
    )
    on_both = "2026-01-02, M, load 0.5 to 0.5 at the start; 2026-01-03, N, load 2.0 to 2.0 at the start"
    both = f"{head}{first}{second}\nMeasured on {on_both}{tail}"
    assert benchmarks.with_table(PAGE, headlines=False) == both
