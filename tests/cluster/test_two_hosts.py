"""Two hosts with addresses of their own (`namespaces`): what --nnodes and its like start over them says what one process says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.first_host import FLAGS
from tests.cluster.namespaces import two_hosts
from tests.cluster.one_text import LIMIT_S, free_port
from tests.cluster.test_replica_hosts import of_one
from tests.parallel.test_lockstep import MOE
from tests.parity.conftest import make_pair  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hosts():
    with two_hosts() as made:
        yield made


@pytest.mark.parametrize(
    ("flags", "words", "lost"),
    [
        ({"pipeline_parallel_size": 2}, "-pp 2", "worker 1: its process ended with signal 9"),
        (
            {"data_parallel_size": 2, "enable_expert_parallel": True}, "-dp 2 -ep",
            "engine 1: the engine process ended with signal 9 on host ",
        ),
    ],
    ids=["a stage on each", "a replica on each, and half of the experts"],
)  # fmt: skip
def test_two_hosts_say_what_one_process_says(hosts, make_pair, tmp_path, flags, words, lost):  # noqa: F811
    make_pair("qwen3_moe", **MOE)
    port = free_port()
    meet = ["--nnodes", "2", "--master-addr", hosts.address, "--master-port", str(port)]
    limits = [word for name, value in FLAGS.items() if value is not True for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "octavo", "serve", "--headless", "--node-rank", "1", *meet, *words.split(), *limits]
    given = json.dumps({**FLAGS, **flags, "nnodes": 2, "master_addr": hosts.address, "master_port": port})
    first = [sys.executable, "-m", "tests.cluster.first_host", str(tmp_path), given]
    pipe = subprocess.PIPE
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}  # of engines in this process
    there = subprocess.Popen(
        hosts.on(1, [*command, "--model", str(tmp_path), "--skip-tokenizer-init"]), stderr=pipe, text=True, cwd=ROOT, env=clean
    )
    here = subprocess.Popen(hosts.on(0, first), stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=clean)
    assert here.stdin is not None
    assert here.stdout is not None
    assert there.stderr is not None
    try:
        expected = of_one(str(tmp_path))
        said = here.stdout.readline()
        assert said, there.stderr.read()
        found = json.loads(said)
        assert found["texts"] == expected
        assert all(found["steps"]), "every engine has worked"
        (child, *_) = Path(f"/proc/{there.pid}/task/{there.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        here.stdin.write("\n")
        here.stdin.flush()
        end = json.loads(here.stdout.readline())
        assert lost in end["error"]
        assert end["seconds"] < LIMIT_S
        assert there.wait(LIMIT_S) == 1
        assert lost in there.stderr.read()
    finally:
        for process in (here, there):
            process.kill()
            process.communicate()
