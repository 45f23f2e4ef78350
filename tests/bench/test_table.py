"""docs/benchmarks.md says what the files in bench/results say."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.table import MARKS, NOTHING, filled, read_results, summary, tables, texts

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


@pytest.mark.parametrize("name", ["README.md", "docs/benchmarks.md"])
def test_pages_are_current(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page == filled(page, texts(ROOT / "bench")), "run `make docs`"


PEER = {
    "device": "One card", "model": "M", "workload": "eight at once", "unit": "ms a token", "engine": "another", "figure": 12.8,
    "on": "A card", "config": "m", "case": "lat8", "figures": "ms_per_output_token",
}  # fmt: skip


def test_a_summary_sets_medians_beside_figures_of_others() -> None:
    slower = result(results={"lat8": {"requests": 8, "ms_per_output_token": 9.4}})
    ranks = result(flags={"model": "m", "tensor_parallel_size": 2}, results={"lat8": {"requests": 8, "ms_per_output_token": 4.0}})
    results = [result(), slower, result(), ranks, result(device="Another", results={"lat8": {"ms_per_output_token": 1.0}})]
    rows = summary(results, [PEER, {**PEER, "flags": {"tensor_parallel_size": 2}}]).splitlines()[2:]
    assert rows[0] == "| One card | M | eight at once | 6.4 ms a token | 12.8 (another) | 2.00 |"
    assert "| 4 ms a token | 12.8 (another) | 3.20 |" in rows[1]


def test_rates_compare_the_other_way_round_and_may_come_with_the_peer() -> None:
    assert "| 30 tokens/s | 20 (another) | 1.50 |" in summary([], [{**PEER, "unit": "tokens/s", "figure": 20.0, "octavo": 30.0}])


def test_starts_are_compared_by_their_caches() -> None:
    begun = [{"level": level, "caches": caches, "first_token_s": [level, 4.0, 9.0]} for level in (0, 2) for caches in ("empty", "filled")]
    start = {**PEER, "unit": "s", "figure": 8.0, "caches": "filled"}
    assert "| 4 s | 8 (another) | 2.00 |" in summary([result(), result(results={"starts": begun})], [start])


def test_a_peer_without_a_result_is_named() -> None:
    with pytest.raises(ValueError, match="no result of eight at once for m on A card"):
        summary([], [PEER])


def test_a_row_for_each_workload_and_a_table_for_each_device() -> None:
    text = tables([result(), result(device="Another")])
    assert text.index("**A card**") < text.index("**Another**")
    assert "| m | bfloat16 | lat8: 8 at once, 128 in, 256 out | 1,234 |  | 6.4 | 3.5 |" in text
    assert "| m | bfloat16 | again: 8 at once |  |  | 123 | 3.5 |" in text
    assert text.count("- `octavo bench throughput --case lat8` on 2026-01-02 (octavo 0.1.0, torch 2.13.0)") == 2


def test_only_what_is_between_the_marks_changes() -> None:
    begin, end = MARKS["results"]
    page = f"before\n{begin}\nold\n{end}\nafter"
    assert filled(page, {"summary": "other", "results": tables([])}) == f"before\n{begin}\n\n{NOTHING}\n\n{end}\nafter"
    with pytest.raises(ValueError, match="results"):
        filled("no marks", {"results": "x"})


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(result()))
    assert len(read_results(tmp_path)) == 1
    (tmp_path / "odd.json").write_text(json.dumps({"command": "x"}))
    with pytest.raises(ValueError, match=r"odd.json.*date"):
        read_results(tmp_path)
