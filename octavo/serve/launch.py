"""The life of a server that has its port: start the engine, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from octavo.config.server import ServerConfig
from octavo.host.heap import share_heap
from octavo.serve.app import create_app
from octavo.serve.batches_run import run_batches
from octavo.serve.beside import ENDING_S, Others
from octavo.serve.files_store import store_of
from octavo.serve.front import Front
from octavo.serve.http import Protocol
from octavo.serve.listen import url_of
from octavo.serve.progress import keep_looking

log = logging.getLogger("octavo.serve")
T = TypeVar("T")
CHECK_EVERY_S = 0.1
REPORT_EVERY_S = 10.0
DEATH_GRACE_S = 2.0  # how long the health routes tell of a dead engine before the server ends
WRITE_OUT_S = 5.0  # for answers that are ready but not read yet
MANY_FILES = 65_536


class Stops:
    """Wishes to stop: the first signal asks for a graceful end, the second for a quick one. Both are orderly."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()

    def note(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.note)


class Server(uvicorn.Server):
    """Uvicorn without its own handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def run(
    config: ServerConfig,
    listener: socket.socket,
    start: Callable[[], Awaitable[Front]],
    stops: Stops,
    tell_ready: Callable[[Front], None] | None = None,
    others: Others | None = None,
) -> int:
    """Start what `start` builds and serve it, together with `others`, until a wish to stop or a death. The exit code: 0 when asked to stop,
    else 1."""
    others = others or Others()
    try:
        front = await _unless(stops, start())
        if front is None:
            log.info("stopped while starting")
            return 0
        server = Server(_uvicorn_config(config, front))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        looking = asyncio.create_task(_look(front))
        gc.collect()
        gc.freeze()  # what is here now stays for good; the collector need not look at it again
        try:
            await _unless(stops, others.join(front))
            if tell_ready is None:
                log.info("ready on %s, model %s", url_of(config, listener), front.model.names[0])
            else:
                tell_ready(front)
            died = await _serve(front, serving, stops, others)
            server.should_exit = True
            await serving
        finally:
            looking.cancel()
            await others.close(WRITE_OUT_S + ENDING_S)
            await front.engine.close()
    finally:
        await others.close()
    if config.uds is not None:
        Path(config.uds).unlink(missing_ok=True)
    return 0 if died is None else 1


async def _serve(front: Front, serving: asyncio.Task[None], stops: Stops, others: Others) -> str | None:
    """Until the end, and through it; what has died, if anything has."""
    tasks = [asyncio.create_task(_report(front)), asyncio.create_task(run_batches(front, store_of(front)))]
    while front.engine.dead is None and others.ended is None and not stops.first.is_set() and not serving.done():
        await _pause(stops.first, CHECK_EVERY_S)
    if front.engine.dead is None and others.ended is not None:
        front.engine.lose(others.ended)
    died = front.engine.dead
    if died is not None:
        log.error("%s has ended: %s", "the engine" if others.ended is None else "a process", died)
        others.say("dead", reason=died)
        await _pause(stops.first, DEATH_GRACE_S)
    else:
        others.say("stop")
        await drain(front, front.config.shutdown_timeout, stops.second)
        others.say("stop")  # those of their requests that are left have had their time
    for task in tasks:
        task.cancel()
    return died


async def drain(front: Front, deadline_s: float, hurry: asyncio.Event) -> None:
    """Take nothing new and let what runs finish, until the deadline or a second signal; what is left then is aborted."""
    front.draining = True
    log.info("stopping: %d requests have %g s to finish", len(front.running), deadline_s)
    end_s = front.clock() + deadline_s
    while front.metrics.num_running and front.clock() < end_s and not hurry.is_set() and front.engine.dead is None:
        await _pause(hurry, CHECK_EVERY_S)
    if front.running:
        log.warning("%d requests are aborted", len(front.running))
    for following in list(front.running.values()):
        following.abort()


async def _unless(stops: Stops, starting: Awaitable[T]) -> T | None:
    """What it gives, or None if a signal comes first."""
    task = asyncio.ensure_future(starting)
    stopping = asyncio.create_task(stops.first.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None
    finally:
        stopping.cancel()


async def _pause(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _uvicorn_config(config: ServerConfig, front: Front) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(front),
        http=Protocol,
        ws="none",
        lifespan="off",
        log_level=config.uvicorn_log_level,
        log_config=None,
        access_log=not config.disable_uvicorn_access_log,
        root_path=config.root_path,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=ssl.VerifyMode(config.ssl_cert_reqs),
        timeout_graceful_shutdown=int(WRITE_OUT_S),
        server_header=False,
    )


async def _report(front: Front) -> None:
    """A line of statistics now and then, while there is something to tell."""
    metrics, told = front.metrics, (0, 0)
    while not front.config.disable_log_stats:
        await asyncio.sleep(REPORT_EVERY_S)
        now = (metrics.prompt_tokens, metrics.generation_tokens)
        if now == told and not front.running:
            continue
        await front.read_stats()
        stats = metrics.stats
        log.info(
            "prompt %.1f tok/s, generation %.1f tok/s, running %d, waiting %d, KV cache %.1f %%, prefix cache hits %.1f %%",
            (now[0] - told[0]) / REPORT_EVERY_S,
            (now[1] - told[1]) / REPORT_EVERY_S,
            stats.num_requests_running,
            stats.num_requests_waiting,
            100 * stats.kv_cache_usage,
            100 * stats.prefix_cache_hits / max(stats.prefix_cache_queries, 1),
        )
        told = now


async def _look(front: Front) -> None:
    """Whether the engine gets on."""
    await keep_looking(front.progress, front.engine, lambda: front.metrics.num_running > 0, front.clock, front.heard)


def allow_many_files() -> None:
    """Each client takes a descriptor, and the usual limit of 1,024 is a courtesy to programs of the past: raise it as far as one may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_until_done(
    config: ServerConfig, listener: socket.socket, start: Callable[[], Awaitable[Front]], others: Callable[[], Others] = Others
) -> int:
    """`run`, stopped by signals. `others` starts further API processes."""

    async def main() -> int:
        stops = Stops()
        stops.listen()
        return await run(config, listener, start, stops, others=others())

    return on_quickest_loop(main)


def on_quickest_loop(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run it on the quickest event loop there is."""
    allow_many_files()
    share_heap()
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())
