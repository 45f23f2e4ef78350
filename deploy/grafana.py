"""Writes deploy/grafana.json, a dashboard for Grafana: `python deploy/grafana.py > deploy/grafana.json` (`make docs`).

What is shown stands in `ROWS`; Grafana's own form of it is made here. Every panel is one sum, rate or percentile over the servers that the
variables `model_name` and `instance` choose.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CHOSEN = '{model_name=~"$model_name", instance=~"$instance"}'
PERCENTILES = (0.5, 0.95, 0.99)
COLUMNS, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """One chart: queries with their legends, and the unit of all."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    most: float | None = None
    about: str = ""


def total(name: str) -> str:
    return f"sum(octavo:{name}{CHOSEN})"


def rate(name: str, by: str = "") -> str:
    """Growth a second of a counter, over Grafana's own interval."""
    return f"sum{f' by ({by})' if by else ''} (rate(octavo:{name}_total{CHOSEN}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    return f"{rate(part)} / {rate(whole)}"


def percentiles(name: str) -> list[tuple[str, str]]:
    buckets = f"sum by (le) (rate(octavo:{name}_bucket{CHOSEN}[$__rate_interval]))"
    return [(f"histogram_quantile({share}, {buckets})", f"p{100 * share:.0f}") for share in PERCENTILES]


def mean(name: str) -> str:
    sums, counts = (f"sum(rate(octavo:{name}_{end}{CHOSEN}[$__rate_interval]))" for end in ("sum", "count"))
    return f"{sums} / {counts}"


def spread(name: str) -> list[tuple[str, str]]:
    """How many values fell into each bucket, for a heat map."""
    return [(f"sum by (le) (increase(octavo:{name}_bucket{CHOSEN}[$__rate_interval]))", "{{le}}")]


ROWS: dict[str, Sequence[Panel]] = {
    "What users feel": (
        Panel("Time to first token", percentiles("time_to_first_token_seconds"), "s"),
        Panel("Time between tokens", percentiles("inter_token_latency_seconds"), "s"),
        Panel("Time a token, mean of each request", percentiles("time_per_output_token_seconds"), "s"),
        Panel("Whole request", percentiles("e2e_request_latency_seconds"), "s"),
        Panel(
            "Where a request's time goes",
            [
                (mean("request_queue_time_seconds"), "waiting"),
                (mean("request_prefill_time_seconds"), "reading the prompt"),
                (mean("request_decode_time_seconds"), "making tokens"),
            ],
            "s",
            about="Means over the requests that ended.",
        ),
        Panel("Requests that end, a second", [(rate("request_success", "finished_reason"), "{{finished_reason}}")], "reqps"),
    ),
    "Load": (
        Panel("Requests", [(total("num_requests_running"), "running"), (total("num_requests_waiting"), "waiting")]),
        Panel("Requests that come, a second", [(rate("requests_started"), "started")], "reqps"),
        Panel("Output tokens a second", [(rate("generation_tokens"), "given to clients"), (rate("engine_generation_tokens"), "sampled")]),
        Panel("Prompt tokens a second", [(rate("prompt_tokens"), "all"), (rate("prompt_tokens_cached"), "from the cache")]),
        Panel("Prompt tokens of a request", percentiles("request_prompt_tokens")),
        Panel("Tokens made for a request", [*percentiles("request_generation_tokens"), (mean("request_params_max_tokens"), "allowed")]),
    ),
    "Memory": (
        Panel("KV memory in use", [(f"max by (instance) (octavo:kv_cache_usage_perc{CHOSEN})", "{{instance}}")], "percentunit", most=1),
        Panel("Prefix cache: tokens found", [(share("prefix_cache_hits", "prefix_cache_queries"), "hit rate")], "percentunit", most=1),
        Panel("Why the cache gave no more", [(rate("prefix_cache_misses", "reason"), "{{reason}}")], "reqps"),
        Panel("Blocks that keep prefixes", [(total("kv_cached_blocks"), "blocks")]),
        Panel("Given up, a second", [(rate("num_preemptions"), "preemptions"), (rate("cache_evictions"), "evictions")], "ops"),
        Panel("Failures, a second", [(rate("oom_events"), "out of memory"), (rate("failed_steps"), "failed steps")], "ops"),
    ),
    "Steps": (
        Panel("Steps a second", [(rate("engine_steps"), "steps")], "ops"),
        Panel("Sequences in a step", spread("batch_size"), kind="heatmap"),
        Panel("Tokens in a step", spread("iteration_tokens_total"), kind="heatmap"),
        Panel(
            "Drafted tokens that are accepted",
            [(share("spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens"), "share")],
            "percentunit",
            most=1,
        ),
        Panel("Tokens drafted at a time", [(share("spec_decode_num_draft_tokens", "spec_decode_num_drafts"), "tokens")]),
        Panel("Seconds of the start", [(f"max by (stage) (octavo:startup_seconds{CHOSEN})", "{{stage}}")], "s", kind="bargauge"),
    ),
}


def panel(one: Panel, number: int, column: int, line: int) -> dict[str, Any]:
    queries = [
        {"datasource": SOURCE, "expr": query, "legendFormat": legend, "refId": chr(ord("A") + place), "instant": one.kind == "bargauge"}
        for place, (query, legend) in enumerate(one.queries)
    ]
    limits = {"min": 0} if one.most is None else {"min": 0, "max": one.most}
    if one.kind == "heatmap":
        for query in queries:
            query["format"] = "heatmap"
    return {
        "id": number,
        "type": one.kind,
        "title": one.title,
        "description": one.about,
        "datasource": SOURCE,
        "gridPos": {"x": column, "y": line, "w": COLUMNS // 3, "h": HEIGHT},
        "targets": queries,
        "fieldConfig": {"defaults": {"unit": one.unit, **limits, "custom": {"fillOpacity": 8, "showPoints": "never"}}, "overrides": []},
        "options": OPTIONS[one.kind],
    }


OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
    "heatmap": {"calculate": False, "color": {"mode": "scheme", "scheme": "Cividis"}, "yAxis": {"unit": "short"}, "cellGap": 1},
    "bargauge": {"orientation": "horizontal", "displayMode": "basic", "reduceOptions": {"calcs": ["lastNotNull"], "values": False}},
}


def variable(name: str, label: str) -> dict[str, Any]:
    """A choice among a label's values; at first all of them."""
    query = f"label_values(octavo:num_requests_running, {name})"
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "definition": query,
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    line = 0
    for name, row in ROWS.items():
        head = {"id": len(panels) + 1, "type": "row", "title": name, "collapsed": False, "panels": []}
        panels.append({**head, "gridPos": {"x": 0, "y": line, "w": COLUMNS, "h": 1}})
        line += 1
        for place, one in enumerate(row):
            panels.append(panel(one, len(panels) + 1, place % 3 * (COLUMNS // 3), line + place // 3 * HEIGHT))
        line += -(-len(row) // 3) * HEIGHT
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    return {
        "uid": "octavo", "title": "Octavo", "tags": ["octavo", "llm"], "schemaVersion": 39, "editable": True, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "", "graphTooltip": 1,
        "templating": {"list": [source, variable("model_name", "Model"), variable("instance", "Server")]},
        "panels": panels,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
