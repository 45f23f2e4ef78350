"""A Ray cluster of two hosts, which are two groups of processes here: a stage on each, one text, and the first error within moments."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from octavo import LLM
from octavo.config.fields import ConfigError
from octavo.engine.executor import ExecutorDead
from tests.cluster.one_text import FLAGS, LIMIT_S, of_one_process, texts
from tests.parity.conftest import make_pair  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def two_nodes(monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra octavo[ray] is not installed")
    from ray.cluster_utils import Cluster

    for name, value in {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    cluster.add_node(**{name: small[name] for name in ("num_cpus", "object_store_memory")})
    cluster.connect()
    yield ray
    ray.shutdown()
    for node in (*cluster.worker_nodes, cluster.head_node):  # at once: a busy machine takes longer than Ray waits for a graceful end
        cluster.remove_node(node, allow_graceful=False)
    cluster.shutdown()


def test_two_nodes_with_a_stage_each_say_what_one_process_says(two_nodes, make_pair, tmp_path):  # noqa: F811
    make_pair("llama")
    expected = of_one_process(str(tmp_path))
    with pytest.raises(ConfigError, match=r"3 stages of 1 CPUs are needed.*the cluster's hosts have 1, 1;"):
        LLM(str(tmp_path), **FLAGS, pipeline_parallel_size=3, distributed_executor_backend="ray")
    two = LLM(str(tmp_path), **FLAGS, pipeline_parallel_size=2, distributed_executor_backend="ray")
    assert texts(two) == expected
    groups = two_nodes.util.placement_group_table().values()
    (nodes,) = [set(group["bundles_to_node_id"].values()) for group in groups if group["state"] == "CREATED"]
    assert len(nodes) == 2, "a stage on each"
    told = [re.findall(r"process (\d+)", party.progress()) for party in two._engine.executor.parties]
    os.kill(int(told[1][0]), signal.SIGKILL)
    begin_s = time.monotonic()
    with pytest.raises(ExecutorDead, match="worker 1: its process ended with signal 9"):
        texts(two)
    assert time.monotonic() - begin_s < LIMIT_S
    two.close()
