"""Two hosts of one machine: network namespaces with a cable between them, each with an address of its own and nothing else."""

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
    pids: tuple[int, int]  # of a process on each

    def on(self, host: int, command: list[str]) -> list[str]:
        """The command as it runs on one of them."""
        return ["nsenter", "-t", str(self.pids[host]), "-U", "-n", "--preserve-credentials", *command]


class NotAllowed(Exception):
    """There are no namespaces to be had here; the text says why."""


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Raises `NotAllowed`."""
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        raise NotAllowed(f"{', '.join(missing)} not found")
    pipe = subprocess.PIPE
    keeper = subprocess.Popen(["unshare", "-Urn", "sh", "-c", SCRIPT], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    try:
        line = keeper.stdout.readline().strip()
        if not line:
            raise NotAllowed(keeper.stderr.read().strip() or "no word")
        yield TwoHosts((keeper.pid, int(line)))
    finally:
        try:
            keeper.communicate("\n", timeout=5)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            keeper.kill()
            keeper.communicate()
