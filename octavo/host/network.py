"""Connections between hosts that last as long as both do, and are known to be broken within seconds."""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from contextlib import suppress

RETRY_S = 0.2
SILENT_S = 3  # until a silent connection is looked after; then every second
LOST_S = 7  # until a host that does not answer is given up
SIOCGIFADDR = 0x8915  # linux/sockios.h


class NobodyThere(OSError):
    """No connection came about in time; the text names the address."""


def lasting(link: socket.socket) -> socket.socket:
    """The same connection, on which small messages leave at once and a host that is gone is noticed within `LOST_S`."""
    link.setblocking(True)
    if link.family != socket.AF_UNIX:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", SILENT_S), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", LOST_S - SILENT_S)):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_S * 1000)
    return link


def connect(host: str, port: int, patience_s: float) -> socket.socket:
    """A connection to who listens there, or will within `patience_s`. Raises `NobodyThere`."""
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return lasting(socket.create_connection((host, port), timeout=LOST_S))
        except OSError as error:
            if time.monotonic() >= end_s:
                raise NobodyThere(f"{host}:{port} does not answer within {patience_s:g} s: {error}") from None
        time.sleep(RETRY_S)


def interface_of(address: str) -> str | None:
    """The name of this host's interface with this IPv4 address, such as eth0; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without such an address
                found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
