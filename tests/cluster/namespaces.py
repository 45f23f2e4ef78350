"""Two hosts of one machine: network namespaces with a cable between them, each with an address of its own and nothing else. Where the
machine allows none, two groups of processes that share its address."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ADDRESSES = ("10.77.0.1", "10.77.0.2")
SCRIPT = f"""
unshare -n sleep 600 & other=$!
sleep 0.2
set -e
ip link set lo up
ip link add cable type veth peer name cable netns $other
ip addr add {ADDRESSES[0]}/24 dev cable
ip link set cable up
nsenter -t $other -n sh -c 'ip link set lo up && ip addr add {ADDRESSES[1]}/24 dev cable && ip link set cable up'
echo $other
read _
kill $other
"""


@dataclass(frozen=True)
class TwoHosts:
    address: str  # of the first
    pids: tuple[int, int] | None  # of a process on each

    def on(self, host: int, command: list[str]) -> list[str]:
        """The command as it runs on one of them."""
        return command if self.pids is None else ["nsenter", "-t", str(self.pids[host]), "-U", "-n", "--preserve-credentials", *command]


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    if any(shutil.which(name) is None for name in ("unshare", "nsenter", "ip")):
        yield TwoHosts("127.0.0.1", None)
        return
    pipe = subprocess.PIPE
    keeper = subprocess.Popen(["unshare", "-Urn", "sh", "-c", SCRIPT], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        line = keeper.stdout.readline().strip()
        yield TwoHosts(ADDRESSES[0], (keeper.pid, int(line))) if line else TwoHosts("127.0.0.1", None)
    finally:
        try:
            keeper.communicate("\n", timeout=5)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            keeper.kill()
            keeper.communicate()
