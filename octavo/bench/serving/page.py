"""The report of one run as an HTML page: figures, percentiles and courses over time. It needs no other file and no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from octavo.bench.document import document
from octavo.bench.plot import Axis, Plot, Point, Series, thinned
from octavo.bench.serving.client import Outcome
from octavo.bench.serving.result import course
from octavo.bench.serving.run import Run
from octavo.simulate.result import LATENCIES, percentile

MOST_POINTS = 1500
NUM_BUCKETS = 60
NINES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)

CSS = """.bad { color: var(--c1); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
dl > div { background: var(--card); border-radius: 10px; padding: .75rem 1rem; }
dd, dt { margin: 0; } dt { color: var(--quiet); font-size: .85rem; } dd { font-size: 1.45rem; font-variant-numeric: tabular-nums; }
dd small { font-size: .9rem; color: var(--quiet); }
.plots { gap: .75rem; margin-top: .75rem; }
.wide { overflow-x: auto; } th, td { white-space: nowrap; } th:first-child, td:first-child { padding-left: 0; }"""
BODY = """<dl>{tiles}</dl>
{notes}
<section class="wide"><h2>Latency, milliseconds</h2>{latencies}</section>
<div class="plots">{plots}</div>
<section style="margin-top:.75rem"><h2>How it was measured</h2><p><code>{command}</code></p><p class="quiet">{versions}</p></section>
"""


def page(result: Mapping[str, Any], run: Run) -> str:
    """`result` as `octavo bench serve --json` gives it, of one load."""
    (name, found), *_ = result["results"].items()
    title = f"{result['flags']['model']}: {name}"
    good = [outcome for outcome in run.outcomes if outcome.error is None]
    limits: Mapping[str, float] = found.get("goodput", {}).get("limits_s", {})
    plots = [_percentiles(key, label, values, limits) for key, label, values in _latencies(good) if values]
    plots += _courses(run, good) if good else []
    body = BODY.format(
        tiles="".join(_tiles(found)),
        notes="".join(_notes(found)),
        latencies=_table(found),
        plots="".join(f"<section><h2>{escape(head)}</h2>{plot.svg(head)}</section>" for head, plot in plots),
        command=escape(result["command"]),
        versions=escape(", ".join(f"{package} {version}" for package, version in result["versions"].items())),
    )
    subtitle = f"{result['device']}, {result['flags']['endpoint']}, {result['date'][:16].replace('T', ' ')} UTC"
    return document(title, subtitle, body, CSS)


def _tiles(found: Mapping[str, Any]) -> list[str]:
    def tile(name: str, value: str, unit: str = "", more: str = "") -> str:
        return f"<div><dt>{name}</dt><dd>{value} <small>{unit}</small></dd><dt>{more}</dt></div>"

    def latency(name: str, key: str) -> str:
        return tile(name, f"{1000 * found[key]['p50']:,.1f}", "ms", f"p99 {1000 * found[key]['p99']:,.1f} ms")

    tiles = [
        tile("Requests", f"{found['requests_per_s']:,.2f}", "a second", f"{found['requests']:,} in {found['seconds']:,.1f} s"),
        tile("Output tokens", f"{found['output_tokens_per_s']:,.0f}", "a second", f"{found['output_tokens']:,} in all"),
        tile("Prompt tokens", f"{found['prompt_tokens_per_s']:,.0f}", "a second", f"{found['prefix_hit_rate']:.0%} found in the cache"),
        latency("First token, p50", "ttft_s"),
        latency("Between tokens, p50", "itl_s"),
    ]
    if "goodput" in found:
        good = found["goodput"]
        tiles.append(tile("Goodput", f"{good['requests_per_s']:,.2f}", "a second", f"{good['share']:.1%} kept all limits"))
    return tiles


def _notes(found: Mapping[str, Any]) -> list[str]:
    lines = []
    if found["failed"] or found["refused"]:
        lines.append(f'<p class="bad">{found["failed"]:,} failed, {found["refused"]:,} refused (429)</p>')
        lines += [f'<p class="quiet">{count:,} x {escape(error)}</p>' for error, count in list(found["errors"].items())[:10]]
    if found["client"]["limits"]:
        lines.append('<p class="bad">The client may have held this back: it was busy, or sent late.</p>')
    return lines and ["<section>", *lines, "</section><br>"]


def _table(found: Mapping[str, Any]) -> str:
    rows = [(label, found[key]) for key, label in LATENCIES.items() if key in found]
    head = "".join(f"<th>{name}</th>" for name in ("", *rows[0][1]))
    body = "".join(f"<tr><td>{label}</td>{''.join(f'<td>{1000 * value:,.1f}</td>' for value in of.values())}</tr>" for label, of in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _latencies(good: Sequence[Outcome]) -> list[tuple[str, str, list[float]]]:
    return [
        ("ttft", "Time to first token", [one.ttft_s for one in good]),
        ("itl", "Between tokens", [gap for one in good for gap in one.gaps_s]),
        ("tpot", "A token after the first, mean of each request", [one.tpot_s for one in good if one.num_output > 1]),
        ("e2e", "Whole request", [one.e2e_s for one in good]),
    ]


def _percentiles(key: str, label: str, values: Sequence[float], limits: Mapping[str, float]) -> tuple[str, Plot]:
    """A latency over the share of values that are not higher; equal distances on the axis are equal numbers of nines."""
    ordered = sorted(values)
    last = max(0.9, 1 - 1 / len(ordered))

    def place(share: float) -> float:
        return -math.log10(1 - share)

    shares = [last * number / 200 for number in range(100)] + [
        1 - 10 ** -(place(last / 2) + (place(last) - place(last / 2)) * n / 150) for n in range(151)
    ]
    points = [(place(share), 1000 * percentile(ordered, 100 * share)) for share in sorted(shares)]
    limit = [(1000 * limits[key], f"limit {1000 * limits[key]:g} ms")] if key in limits else []
    high = max([points[-1][1], *(value for value, _ in limit)])
    marks = [
        (place(share), 1000 * percentile(ordered, 100 * share), name)
        for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
        if share <= last
    ]
    ticks = [(place(share), f"{100 * share:g} %") for share in NINES if share <= last]
    axis = Axis("share of values up to this", 0.0, place(last), ticks)
    return f"{label}, ms", Plot(axis, Axis.of("", high), [Series(points, "line")], limit, marks)


def _courses(run: Run, good: Sequence[Outcome]) -> list[tuple[str, Plot]]:
    """What happened when, in seconds from the first request."""
    end_s = max(outcome.ended_s for outcome in run.outcomes) - run.begin_s
    seconds = Axis.of("seconds", end_s)
    firsts = sorted((one.sent_s - run.begin_s, 1000 * one.ttft_s) for one in good)
    under_way = [(at_s - run.begin_s, float(count)) for at_s, count in course(run.outcomes)]
    tokens = _rate(good, run.begin_s, end_s)
    by_length = sorted((float(one.num_prompt), 1000 * one.ttft_s) for one in good)
    prompts = Axis.of("prompt tokens", max(x for x, _ in by_length))

    def over(points: Sequence[Point], x: Axis, kind: Any, colour: int) -> Plot:
        return Plot(x, Axis.of("", max(y for _, y in points)), [Series(thinned(points, MOST_POINTS), kind, colour)])

    return [
        ("Output tokens a second", over(tokens, seconds, "area", 2)),
        ("Requests under way", over(under_way, seconds, "steps", 3)),
        ("Time to first token, ms, by when it was sent", over(firsts, seconds, "dots", 0)),
        ("Time to first token, ms, by length of the prompt", over(by_length, prompts, "dots", 1)),
    ]


def _rate(good: Sequence[Outcome], begin_s: float, end_s: float) -> list[Point]:
    """Tokens a second in equal stretches of time; pieces of more than one token count as the mean of their request."""
    width_s = end_s / NUM_BUCKETS or 1.0
    sums = [0.0] * (NUM_BUCKETS + 1)
    for one in good:
        each = one.num_output / len(one.times_s)
        for at_s in one.times_s:
            sums[min(NUM_BUCKETS, int((at_s - begin_s) / width_s))] += each
    return [((number + 0.5) * width_s, total / width_s) for number, total in enumerate(sums[:NUM_BUCKETS])]
