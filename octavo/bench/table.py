"""Fills the tables of the documents from the measured results: `python -m octavo.bench.table` (`make docs`).

A result is the JSON that `octavo bench ... --output-json bench/results/NAME.json` wrote; those of `octavo bench startup` stand in
bench/results/starts. In a document the text between two marks is replaced: by all results, by all starts, or by a summary, which sets their
medians beside what other engines gave (`bench/peers.json`). All other text is written by hand and stays.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octavo.bench.startup import as_table

MARKS = {name: (f"<!-- {name} -->", f"<!-- end of {name} -->") for name in ("results", "starts", "summary")}
LEVEL = 2  # that engines start with unless told otherwise
NOTHING = "No result is recorded yet."
HEAD = (
    *("model", "number format", "workload", "output tokens/s", "prompt tokens/s", "ms a token"),
    *("start to first tokens, s", "logits against -O0"),
)


def starts(results: Iterable[Mapping[str, Any]]) -> str:
    """What each result of `octavo bench startup` says."""
    return "\n\n".join(map(_starts, results)) or NOTHING


def _starts(result: Mapping[str, Any]) -> str:
    head = f"**{result['device']}, {result['flags']['model']}**"
    return "\n\n".join((head, as_table(result["results"]), "Measured by:", _origin(result)))


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Every result of `octavo bench startup` in the folder, in the order of file names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


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


def summary(results: Iterable[Mapping[str, Any]], peers: Iterable[Mapping[str, Any]]) -> str:
    """A row for each figure of another engine, with Octavo's median of the same model, device, layout and workload beside it.

    A peer names what is compared: `device`, `model`, `workload` in words, `unit`, its `engine` and `figure`; and either `octavo`, where
    both were measured in turn, or where to look it up: `on` (a device), `config`, and of a start its `caches`, else `case`, `figures` (a
    name in the results), and the `flags` that make its layout.
    """
    known = list(results)
    head = ("device", "model", "workload", "Octavo", "another engine", "times as fast")
    return "\n".join([_line(head), _line(["---"] * len(head)), *(_line(_compared(peer, known)) for peer in peers)])


def _compared(peer: Mapping[str, Any], results: list[Mapping[str, Any]]) -> list[str]:
    own = peer["octavo"] if "octavo" in peer else _median(peer, results)
    less_is_better = not peer["unit"].endswith("/s")
    times = peer["figure"] / own if less_is_better else own / peer["figure"]
    return [
        *(peer[name] for name in ("device", "model", "workload")),
        f"{_number(own)} {peer['unit']}",
        f"{_number(peer['figure'])} ({peer['engine']})",
        f"{times:.2f}",
    ]


def _median(peer: Mapping[str, Any], results: list[Mapping[str, Any]]) -> float:
    """Raises ValueError where no result is of what the peer names."""
    layout = peer.get("flags", {})
    alike = [
        result["results"]
        for result in results
        if result["device"] == peer["on"]
        and Path(str(result["flags"].get("model"))).name == peer["config"]
        and {name: value for name, value in result["flags"].items() if name.endswith("_size") or name.startswith("enable_")} == layout
    ]
    if "caches" in peer:
        of_level = [start for found in alike for start in found.get("starts", ()) if start["level"] == LEVEL]
        figures = [seconds for start in of_level if start["caches"] == peer["caches"] for seconds in start["first_token_s"]]
    else:
        figures = [found[peer["case"]][peer["figures"]] for found in alike if peer["case"] in found]
    if not figures:
        raise ValueError(f"no result of {peer['workload']} for {peer['config']} on {peer['on']} with {layout or 'no flags'}")
    return statistics.median(figures)


def filled(document: str, texts: Mapping[str, str]) -> str:
    """The document with each text between the marks of its name. Raises ValueError where it has none of them."""
    found = [name for name in texts if MARKS[name][0] in document]
    if not found:
        raise ValueError(f"the document has no {' and no '.join(begin for begin, _ in MARKS.values())}")
    for name in found:
        begin, end = MARKS[name]
        before, _, rest = document.partition(begin)
        document = f"{before}{begin}\n\n{texts[name]}\n\n{end}{rest.partition(end)[2]}"
    return document


def texts(bench: Path) -> dict[str, str]:
    """What goes between the marks, from a folder with results and peers."""
    results, begun = read_results(bench / "results"), read_starts(bench / "results" / "starts")
    peers = json.loads((bench / "peers.json").read_text(encoding="utf-8"))
    return {"results": tables(results), "starts": starts(begun), "summary": summary([*results, *begun], peers)}


def main(documents: Iterable[str]) -> None:
    found = texts(Path("bench"))
    for path in map(Path, documents):
        path.write_text(filled(path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
