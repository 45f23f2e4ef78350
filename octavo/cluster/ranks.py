"""The world that a replica's workers belong to: their own, or one with the replicas that share experts with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo import env
from octavo.cluster.coordinator import Seat
from octavo.config.parallel import Replica
from octavo.config.resolved import Resolved
from octavo.engine.lockstep import Alone, LockStep, Others
from octavo.host.network import interface_of
from octavo.parallel.meeting import Layout, Meeting


@dataclass(frozen=True)
class Ranks:
    """Where this replica's ranks meet, and which they are there. The store of the meeting lives as long as this object."""

    meeting: Meeting
    first: int  # of this replica's ranks in that world
    others: Others
    store: Any  # Host, where this process keeps it

    @staticmethod
    def of(settings: Resolved, replica: Replica, address: str = "127.0.0.1") -> Ranks:
        """Replicas that share experts find each other by their coordinator; the first keeps the store. Others meet at `address`.

        Raises `ExecutorDead`.
        """
        from octavo.parallel.collectives import Host

        tensor, pipeline = settings.tensor_parallel_size, settings.pipeline_parallel_size
        if replica.coordinator is None:
            layout = Layout(tensor, pipeline, experts=settings.expert_parallel_size > 1)
            host = Host.open(layout, address) if layout.num_ranks > 1 else None
            return Ranks(host.meeting if host else Meeting("", 0, layout), 0, Alone(), host)
        layout = Layout(tensor, pipeline, settings.data_parallel_size, experts=True)
        host = Host.open(layout, replica.coordinator[0]) if replica.rank == 0 else None
        brings = (host.meeting.host, host.meeting.port) if host else None
        seat = Seat(replica.coordinator, replica.rank, settings.data_parallel_size, brings)
        env.meet_over(interface_of(seat.own_address))
        address, port = seat.brought[0]
        return Ranks(Meeting(address, port, layout), replica.rank * tensor * pipeline, LockStep(seat), host)
