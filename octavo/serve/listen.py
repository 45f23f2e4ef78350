"""The port, which a server takes before all else, so that a busy one is told at once: nothing heavy is imported here."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

from octavo.config.engine import EngineConfig
from octavo.config.server import ServerConfig

BACKLOG = 2048  # connections that may wait until somebody accepts them


def num_processes(asked: EngineConfig, config: ServerConfig) -> int:
    """That answer; by default one for each engine."""
    return config.api_server_count or asked.parallel.data_parallel_size


class PortBusy(OSError):
    """Somebody else listens there; the text says where and what to do."""


def bind(config: ServerConfig, *, shared: bool = False) -> socket.socket:
    """A listening socket: from now on the address is ours, and clients that come too early wait. `shared`: `bind_too` can make another.

    Raises `PortBusy` and `OSError`.
    """
    if config.uds is not None:
        return _bind_unix(Path(config.uds))
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise OSError(f"--host {config.host} is no address of this machine: {error.strerror}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        if shared:  # from now on: whoever comes from elsewhere finds the port busy
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortBusy(f"cannot listen on {config.host} port {config.port}: {error.strerror}; choose another with --port") from None
    return listener


def _bind_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise PortBusy(f"somebody listens on {path}; choose another path with --uds")
        path.unlink()  # left by a server that is gone
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortBusy(f"cannot listen on {path}: {error.strerror}; choose another path with --uds") from None
    return listener


def url_of(config: ServerConfig, listener: socket.socket) -> str:
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{shown}:{port}{config.root_path}"
