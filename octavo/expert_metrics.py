"""How evenly tokens are spread over the experts of a mixture, for Prometheus: as many series as layers and experts, not their product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Totals = Mapping[int, Mapping[int, int]]  # tokens by layer and expert


def imbalance(totals: Mapping[int, int]) -> float:
    """Tokens of the busiest expert of a layer over those of the mean one: 1 where all have as many, 0 before the first token."""
    return max(totals.values()) * len(totals) / sum(totals.values()) if any(totals.values()) else 0.0


def by_expert(totals: Totals) -> Mapping[int, int]:
    """Tokens of each expert over all layers."""
    return sum((Counter(layer) for layer in totals.values()), Counter[int]())


def expert_families(namespace: str, labels: Sequence[str], model_name: str, engines: Sequence[Totals]) -> Iterator[Metric]:
    """Without a line where no engine has experts."""
    tokens = CounterMetricFamily(f"{namespace}:expert_tokens", "Tokens of each expert, over all layers", labels=[*labels, "expert"])
    uneven = GaugeMetricFamily(f"{namespace}:expert_load_imbalance", "Busiest expert of a layer over the mean", labels=[*labels, "layer"])
    for number, totals in enumerate(engines):
        for expert, count in by_expert(totals).items():
            tokens.add_metric((model_name, str(number), str(expert)), count)
        for layer, own in totals.items():
            uneven.add_metric((model_name, str(number), str(layer)), imbalance(own))
    yield tokens
    yield uneven
