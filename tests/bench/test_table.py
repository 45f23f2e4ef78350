"""docs/benchmarks.md says what the files in bench/results say."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.table import BEGIN, BEGIN_STARTS, END, END_STARTS, NOTHING, filled, read_results, starts, tables

ROOT = Path(__file__).parents[2]


def result(**changes: Any) -> dict[str, Any]:
    return {
        "command": "octavo bench throughput --case lat8",
        "date": "2026-01-02T03:04:05+00:00",
        "device": "A card",
        "versions": {"octavo": "0.1.0", "torch": "2.13.0"},
        "flags": {"model": "m", "dtype": "bfloat16"},
        "start": {"import_s": 1.0, "init_s": 2.0, "first_tokens_s": 0.5},
        "results": {
            "lat8": {"requests": 8, "input_tokens": 1024, "output_tokens": 2048, "output_tokens_per_s": 1234.5, "ms_per_output_token": 6.4},
            "again": {"requests": 8, "runs": 3, "ms_per_output_token": 123.4},
        },
        **changes,
    }


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert page == filled(page, tables(read_results(ROOT / "bench" / "results"))), "run `make docs`"
    assert page == filled(page, starts(ROOT / "bench" / "results" / "starts"), BEGIN_STARTS, END_STARTS), "run `make docs`"


def test_a_row_for_each_workload_and_a_table_for_each_device() -> None:
    text = tables([result(), result(device="Another")])
    assert text.index("**A card**") < text.index("**Another**")
    assert "| m | bfloat16 | lat8: 8 at once, 128 in, 256 out | 1,234 |  | 6.4 | 3.5 |" in text
    assert "| m | bfloat16 | again: 8 at once |  |  | 123 | 3.5 |" in text
    assert text.count("- `octavo bench throughput --case lat8` on 2026-01-02 (octavo 0.1.0, torch 2.13.0)") == 2


def test_only_what_is_between_the_marks_changes() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter"
    assert filled(page, tables([])) == f"before\n{BEGIN}\n\n{NOTHING}\n\n{END}\nafter"
    with pytest.raises(ValueError, match="results"):
        filled("no marks", "x")


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(result()))
    assert len(read_results(tmp_path)) == 1
    (tmp_path / "odd.json").write_text(json.dumps({"command": "x"}))
    with pytest.raises(ValueError, match=r"odd.json.*date"):
        read_results(tmp_path)
