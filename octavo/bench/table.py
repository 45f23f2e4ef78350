"""Fills the tables of the documents from the measured results: `python -m octavo.bench.table` (`make docs`).

A result is the JSON that `octavo bench ... --output-json bench/results/NAME.json` wrote; those of `octavo bench startup` stand in
bench/results/starts. In a document the text between two marks is replaced; all other text is written by hand and stays.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octavo.bench.startup import as_table

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
BEGIN_STARTS, END_STARTS = "<!-- starts -->", "<!-- end of starts -->"
NOTHING = "No result is recorded yet."
HEAD = (
    *("model", "number format", "workload", "output tokens/s", "prompt tokens/s", "ms a token"),
    *("start to first tokens, s", "logits against -O0"),
)


def starts(folder: Path) -> str:
    """What each of the folder's results of `octavo bench startup` says, in the order of file names."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return "\n\n".join(map(_starts, results)) or NOTHING


def _starts(result: Mapping[str, Any]) -> str:
    head = f"**{result['device']}, {result['flags']['model']}**"
    return "\n\n".join((head, as_table(result["results"]), "Measured by:", _origin(result)))


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every result in the folder, in the order of file names. Raises ValueError for a file that is none."""
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def _read(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in ("command", "date", "device", "versions", "flags", "start", "results") if key not in result]
    if missing:
        raise ValueError(f"{path.name} is no result of `octavo bench`: it has no {', '.join(missing)}")
    return result


def tables(results: Iterable[Mapping[str, Any]]) -> str:
    """A table for each device, a row for each workload, and the commands that gave them."""
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_device.setdefault(result["device"], []).append(result)
    return "\n\n".join(_table(device, found) for device, found in sorted(by_device.items())) or NOTHING


def _table(device: str, results: list[Mapping[str, Any]]) -> str:
    rows = [_row(result, name, one) for result in results for name, one in result["results"].items()]
    lines = [f"**{device}**", "", _line(HEAD), _line(["---"] * len(HEAD)), *map(_line, rows), "", "Measured by:", ""]
    return "\n".join([*lines, *dict.fromkeys(map(_origin, results))])


def _start_s(start: Mapping[str, Any]) -> float:
    """Of its stages; the timeline beside them tells the same seconds once more."""
    return sum(value for name, value in start.items() if name.endswith("_s"))


def _row(result: Mapping[str, Any], name: str, one: Mapping[str, Any]) -> list[str]:
    flags, start = result["flags"], result["start"]
    return [
        str(flags.get("model", "smollm2-135m")),
        str(flags.get("dtype", "auto")),
        _workload(name, one),
        _number(one.get("output_tokens_per_s")),
        _number(one.get("prompt_tokens_per_s")),
        _number(one.get("ms_per_output_token")),
        "" if result.get("checks") else _number(_start_s(start)),  # a check has imported and compiled everything before
        _checked(result.get("checks", {}).get(name)),
    ]


def _checked(check: Mapping[str, Any] | None) -> str:
    """The largest error of the logits over all steps compared, and its limit."""
    return "" if check is None else f"differ by {max(check['errors'].values()):.2g} at most (limit {check['tolerance']:g})"


def _workload(name: str, one: Mapping[str, Any]) -> str:
    requests = one["requests"]
    if "input_tokens" not in one:
        return f"{name}: {requests} at once"
    return f"{name}: {requests} at once, {one['input_tokens'] / requests:,.0f} in, {one['output_tokens'] / requests:,.0f} out"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _origin(result: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"- `{result['command']}` on {result['date'][:10]} ({versions})"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def filled(document: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The document with `text` between its marks. Raises ValueError where it has none."""
    marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not marked.search(document):
        raise ValueError(f"the document has no {begin} ... {end}")
    return marked.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", document)


def main(documents: Iterable[str]) -> None:
    results, begun = tables(read_results(Path("bench/results"))), starts(Path("bench/results/starts"))
    for path in map(Path, documents):
        page = filled(path.read_text(encoding="utf-8"), results)
        if BEGIN_STARTS in page:
            page = filled(page, begun, BEGIN_STARTS, END_STARTS)
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
