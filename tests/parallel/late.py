"""A rank that comes to every collective, and one that comes to none."""

from __future__ import annotations

import time

import torch

from octavo.parallel.collectives import join


def run(status, rank: int, meeting, operation: str) -> None:
    group = join(meeting, rank, torch.device("cpu")).tp
    status.say("joined")
    if rank:
        time.sleep(600)
    getattr(group, operation)(torch.zeros(2))
