"""What the course found: a settings file with reasons, lines for the terminal, and a page with the trade-off of load and latency."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from octavo.bench.document import document
from octavo.bench.plot import Axis, Plot, Series
from octavo.simulate.result import LATENCIES
from octavo.tune.course import Compared, Outcome, text
from octavo.tune.objective import Figures, Limit, Score, Slo
from octavo.tune.space import Choice

SHOWN = (Limit("ttft", "p99", math.inf), Limit("itl", "p99", math.inf))  # on the page, where nothing else is limited

CSS = """.big { font-size: 1.3rem; margin: 1rem 0; }
pre { font: .85rem ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; margin: 0; }
section { margin-top: .75rem; overflow-x: auto; }
.plots { gap: 0 .75rem; }
td.text, th.text { text-align: left; }
.key { display: inline-block; width: 1.2em; height: .25em; vertical-align: middle; margin: 0 .3em 0 .9em; }"""
BODY = """<p class="big">{verdict}</p>
<section><h2>Changes, each on top of those above it</h2>{changes}</section>
<p class="quiet" style="margin-top:.75rem">{key}</p>
<div class="plots">{plots}</div>
<section><h2>What was measured</h2>{confirmed}</section>
<section><h2>What held the defaults back</h2>{advice}</section>
<section><h2>The settings file</h2><pre>{file}</pre></section>
<section><h2>How</h2><p>{how}</p><p><code>{command}</code></p><p class="quiet">{versions}</p></section>
"""


@dataclass(frozen=True)
class Head:
    """What was asked, where and when."""

    circumstances: Mapping[str, Any]
    model: str
    workload: str
    slo: Slo
    unit: str


def verdict(head: Head, found: Outcome) -> str:
    base, best = found.baseline, found.best
    was = f"{base.measured.value:.4g} {head.unit}"
    if best is base:
        return f"The defaults stay: {was}, and nothing that was measured was better."
    predicted = best.predicted.gain_over(base.predicted)
    return f"{best.measured.value:.4g} {head.unit}, {signed(best.measured.gain_over(base.measured))} over the defaults' {was}" + (
        f" (the simulator said {signed(predicted)})."
    )


def signed(gain: float) -> str:
    return "more than nothing" if math.isinf(gain) else f"{gain:+.1%}"


def reasons(found: Outcome, choices: Sequence[Choice]) -> Iterable[tuple[str, Any, Any, str, str]]:
    """(flag, value, value before, why, gain) of each change, the weightiest first."""
    by_flag = {choice.flag: choice for choice in choices}
    for stair in found.stairs:
        choice = by_flag[stair.flag]
        gain = f"{signed(stair.measured_gain)} measured, {signed(stair.predicted_gain)} simulated"
        yield stair.flag, stair.value, choice.values[0], choice.reason(stair.value), gain


def settings_file(head: Head, found: Outcome, choices: Sequence[Choice], given: Mapping[str, Any]) -> str:
    """YAML for `--config`."""
    where = head.circumstances
    lines = [
        f"# {where['command']}", f"# {where['device']}, {where['date'][:16].replace('T', ' ')} UTC",
        f"# load: {head.workload}; limits: {head.slo}", f"# {verdict(head, found)}",
    ]  # fmt: skip
    lines += [f"{_dashed(name)}: {_yaml(value)}" for name, value in given.items()]
    for flag, value, before, why, gain in reasons(found, choices):
        was = "off" if before is None else before
        lines.append(f"{_dashed(flag)}: {_yaml(value)}    # {was} by default; {why}: {gain}")
    return "\n".join(lines) + "\n"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _yaml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def as_text(head: Head, found: Outcome, choices: Sequence[Choice]) -> str:
    lines = [f"  {verdict(head, found)}", f"  steps of the baseline are {found.errors['median']:.1%} off in the middle"]
    lines += [f"  {flag} {before} -> {value}: {why}: {gain}" for flag, value, before, why, gain in reasons(found, choices)]
    return "\n".join([*lines, *(f"  defaults: {one['kind']}: {one['evidence']}" for one in found.advice)])


def page(head: Head, found: Outcome, choices: Sequence[Choice]) -> str:
    where = head.circumstances
    rows = [
        [f"<code>{_dashed(flag)}</code>", str(before), str(value), why, gain] for flag, value, before, why, gain in reasons(found, choices)
    ]
    advice = [f"<p>{escape(one['kind'])}: {escape(one['evidence'])}. {escape(one['advice'])}</p>" for one in found.advice]
    how = (
        f"{found.num_trials} settings simulated, {len(found.confirmed)} measured; costs from {found.model.origin}, "
        f"with the baseline's steps {found.errors['median']:.1%} off in the middle before they counted."
    )
    body = BODY.format(
        verdict=escape(verdict(head, found)),
        changes=_table(("flag", "default", "now", "why", "gain"), rows, text_columns=(3,)) if rows else "<p>None.</p>",
        key=_key(found), plots="".join(f"<section><h2>{escape(name)}</h2>{plot.svg(name)}</section>" for name, plot in plots(head, found)),
        confirmed=_confirmed(head, found), advice="".join(advice) or "<p>Nothing that a setting could move.</p>",
        file=escape(settings_file(head, found, choices, {})), how=escape(how),
        command=escape(where["command"]), versions=escape(", ".join(f"{name} {version}" for name, version in where["versions"].items())),
    )  # fmt: skip
    subtitle = f"{where['device']}, {where['date'][:16].replace('T', ' ')} UTC; limits: {head.slo}"
    return document(f"{head.model}: tuned for {head.workload}", subtitle, body, CSS)


def _key(found: Outcome) -> str:
    names = ["defaults", text(found.best.changes)] if found.best is not found.baseline else ["defaults"]
    keys = [f'<span class="key" style="background:var(--c{place})"></span>{escape(name)}' for place, name in enumerate(names)]
    return "".join(keys) + " &nbsp; lines are simulated, dots measured"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: tuple[int, ...] = ()) -> str:
    def cell(tag: str, place: int, content: str) -> str:
        return f"<{tag}{' class=text' if place in text_columns else ''}>{content}</{tag}>"

    head = "".join(cell("th", place, name) for place, name in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell('td', place, one) for place, one in enumerate(row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _confirmed(head: Head, found: Outcome) -> str:
    def row(one: Compared) -> list[str]:
        gains = (one.measured.gain_over(found.baseline.measured), one.predicted.gain_over(found.baseline.predicted))
        values = [f"{one.measured.value:.4g}", f"{one.predicted.value:.4g}", *map(signed, gains)]
        return [escape(text(one.changes)), *values, f"{len(one.measured.probes)}"]

    heads = ("settings", f"measured, {escape(head.unit)}", "simulated", "gain", "simulated gain", "loads played")
    return _table(heads, [row(one) for one in (found.baseline, *found.confirmed)])


def plots(head: Head, found: Outcome) -> list[tuple[str, Plot]]:
    """Each limited latency over the load: where the limits are met, for the defaults and for what was found."""
    both = [found.baseline] + [found.best] * (found.best is not found.baseline)
    shown = head.slo.limits or SHOWN
    return [(f"{LATENCIES[f'{limit.name}_s']}, {limit.part}", _plot(limit, both)) for limit in shown if _finite(found.baseline.measured)]


def _finite(score: Score) -> list[tuple[float, Figures]]:
    return sorted(((rate, figures) for rate, figures in score.probes if math.isfinite(rate)), key=lambda probe: probe[0])


def _plot(limit: Limit, both: Sequence[Compared]) -> Plot:
    series: list[Series] = []
    for colour, one in enumerate(both):
        for kind, score in (("line", one.predicted), ("dots", one.measured)):
            points = [(rate, 1000 * limit.of(figures)) for rate, figures in _finite(score)]
            series.append(Series(points, kind, colour))  # pyright: ignore[reportArgumentType]  # the two kinds of Series
    bounded = math.isfinite(limit.seconds)
    highest = max((y for one in series for _, y in one.points), default=1.0)
    right = max((x for one in series for x, _ in one.points), default=1.0)
    top = min(highest, 3000 * limit.seconds) if bounded else highest
    limits = [(1000 * limit.seconds, f"limit {1000 * limit.seconds:g} ms")] if bounded else []
    return Plot(Axis.of("requests/s", right), Axis.of("ms", max(top, 1100 * limit.seconds if bounded else 0.0)), series, limits)
