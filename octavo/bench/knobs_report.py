"""What moving each flag did, as lines for the terminal and as an HTML page with plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from octavo.bench.document import document
from octavo.bench.knobs import FIGURES, Knob, Trial, figure
from octavo.bench.plot import Axis, Plot, Series

THROUGHPUT, FIRST, BETWEEN = "output tokens/s", "first token p99, ms", "between p99, ms"
PLOTTED = (THROUGHPUT, FIRST, BETWEEN)
CSS = """section { margin-top: .75rem; overflow-x: auto; } .plots { gap: 0 .75rem; } .plots section { margin-top: .25rem; }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
h3 { font-size: .95rem; font-weight: 500; margin: .75rem 0 .25rem; } td.refused { text-align: left; color: var(--quiet); }"""


def grouped(trials: Sequence[Trial], knob: str) -> dict[str, list[Trial]]:
    """A knob's trials by load."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.knob == knob:
            found.setdefault(trial.load, []).append(trial)
    return found


def effect(trial: Trial, first: Trial) -> str:
    """What the value does to throughput, over the first value that ran."""
    here, there = figure(trial, THROUGHPUT), figure(first, THROUGHPUT)
    if trial is first or here is None or not there:
        return ""
    return f"{here / there - 1:+.0%}"


def line(trial: Trial) -> str:
    """What one trial gave."""
    made = figure(trial, THROUGHPUT)
    return f"{trial.knob} {trial.value}, {trial.load}: {trial.refused or f'{made:,.0f} output tokens/s'}"


def as_text(trials: Sequence[Trial], knobs: Sequence[Knob]) -> str:
    """A table for each knob and load."""
    lines: list[str] = []
    for knob in knobs:
        for load, rows in grouped(trials, knob.name).items():
            heads = "".join(f"{name:>{len(name) + 2}}" for name in FIGURES)
            lines += ["", f"{knob.name}: {load}", f"  {'':<18}{heads}{'throughput':>12}"]
            first = next((row for row in rows if row.figures is not None), rows[0])
            for row in rows:
                cells = "".join(f"{_text(name, figure(row, name)):>{len(name) + 2}}" for name in FIGURES)
                lines.append(f"  {row.value:<18}" + (f"  {row.refused}" if row.refused else f"{cells}{effect(row, first):>12}"))
    return "\n".join(lines)


def page(head: Mapping[str, Any], model: str, trials: Sequence[Trial], knobs: Sequence[Knob]) -> str:
    sections = "".join(_section(knob, grouped(trials, knob.name)) for knob in knobs)
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    how = f'<section><h2>How</h2><p><code>{escape(head["command"])}</code></p><p class="quiet">{escape(versions)}</p></section>'
    subtitle = f"{head['device']}, {head['date'][:16].replace('T', ' ')} UTC; one flag at a time, all others as by default"
    return document(f"{model}: what each setting does", subtitle, sections + how, CSS)


def _section(knob: Knob, by_load: Mapping[str, Sequence[Trial]]) -> str:
    tables = "".join(f"<h3>{escape(load)}</h3>{_table(rows)}" for load, rows in by_load.items())
    plots = "".join(f"<section><h3>{escape(name)}</h3>{_plot(name, by_load).svg(f'{knob.name}: {name}')}</section>" for name in PLOTTED)
    keys = "".join(f'<span style="color:var(--c{place})">&#9644; {escape(load)}</span> ' for place, load in enumerate(by_load))
    key = f'<p class="quiet">{keys}</p>' if len(by_load) > 1 else ""
    head = f'<h2>{escape(knob.name)}</h2><p class="quiet">{escape(knob.about)}</p>'
    return f'<section>{head}{tables}{key}<div class="plots">{plots}</div></section>'


def _plot(name: str, by_load: Mapping[str, Sequence[Trial]]) -> Plot:
    """Values side by side, in the order of the table, a line for each load."""
    values = list(dict.fromkeys(row.value for rows in by_load.values() for row in rows))
    series: list[Series] = []
    highest = 0.0
    for place, rows in enumerate(by_load.values()):
        points = [(float(values.index(row.value)), found) for row in rows if (found := figure(row, name)) is not None]
        highest = max([highest, *(y for _, y in points)])
        series += [Series(points, "line", place), Series(points, "dots", place)]
    ticks = [(float(number), value) for number, value in enumerate(values)]
    return Plot(Axis("", -0.4, len(values) - 0.6, ticks), Axis.of(name, highest), series)


def _table(rows: Sequence[Trial]) -> str:
    first = next((row for row in rows if row.figures is not None), rows[0])
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *FIGURES, "throughput"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(_rows(rows, first))}</tbody></table>"


def _rows(rows: Sequence[Trial], first: Trial) -> Iterable[str]:
    for row in rows:
        if row.refused:
            yield f'<tr><td>{escape(row.value)}</td><td class="refused" colspan="{len(FIGURES) + 1}">{escape(row.refused)}</td></tr>'
            continue
        cells = (*(_text(name, figure(row, name)) for name in FIGURES), effect(row, first))
        yield f"<tr><td>{escape(row.value)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _text(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "found in the cache":
        return f"{value:.0%}"
    return f"{value:,.0f}" if name == "preemptions" or value >= 100 else f"{value:,.1f}"
