"""Runs batches, and goes on with those that a server left when it ended.

Of all processes that use a store one runs its batches, the one that holds a lock. Answers are kept line by line as they come, in the form
of the `batch` command, so that what is answered is never asked twice. Requests of batches have the lowest priority, and none begins while
another request waits for its first token.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from octavo.engine.client import EngineDead
from octavo.serve.batch_calls import answer
from octavo.serve.batch_file import Answered, BadLine, Line, answered_well, read_lines, resume, settled
from octavo.serve.batches import OPEN
from octavo.serve.files_store import OWNER, Record, Store
from octavo.serve.front import Front

log = logging.getLogger("octavo.batch")
LOOK_EVERY_S = 0.25
MOST_LINES = 50_000
MOST_ERRORS = 100  # told of a file that is refused
YIELD_S = 0.01
ENDED = "_ended"  # in a record that is being closed: how
LOWEST = {"priority": 1 << 30}


async def run_batches(front: Front, store: Store) -> None:
    """Until cancelled, or until the server drains: what is not done then stays open, for the next one."""
    running: dict[str, asyncio.Task[None]] = {}  # also those that failed: they go on with the next server
    closed: set[str] = set()
    turns = asyncio.Semaphore(front.config.batch_concurrency)
    with ExitStack() as held:
        try:
            while not (store.root.exists() and _lock(store, held)):
                await asyncio.sleep(LOOK_EVERY_S)
            while not front.draining and front.engine.dead is None:
                for record in store.everything("batches", closed.union(running)):
                    if record["status"] in OPEN:
                        running[record["id"]] = asyncio.create_task(Running(front, store, record, turns).run())
                    else:
                        closed.add(record["id"])
                await asyncio.sleep(LOOK_EVERY_S)
        except OSError as error:
            log.error("no batches are run: %s: %s", store.root, error.strerror)
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)


def _lock(store: Store, held: ExitStack) -> bool:
    """Whether this process is the one that runs the store's batches."""
    file = (store.root / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    held.enter_context(file)
    return True


class Running:
    """One batch under way."""

    def __init__(self, front: Front, store: Store, record: Record, turns: asyncio.Semaphore) -> None:
        self._store, self._record = store, record
        self._front = front.of(front.accounts.named(record[OWNER]))
        self._turns = turns
        self._concurrency = front.config.batch_concurrency
        self._counts = record["request_counts"]
        self._written_s = 0.0

    async def run(self) -> None:
        """Until it has ended. What stops it in between is logged, and the batch left open for the next server."""
        try:
            await self._run()
        except (Exception, EngineDead) as error:
            log.exception("%s stops, and goes on with the next server", self._record["id"], exc_info=error)

    async def _run(self) -> None:
        record = self._record
        if record["status"] == "validating":
            if not await self._validated():
                return
            self._become("in_progress")
        if record["status"] == "in_progress":
            record[ENDED] = await self._answered()
            self._become("finalizing")
        await asyncio.to_thread(self._divide)
        wish = self._store.path(record["id"], "cancel")
        if record[ENDED] == "cancelled" and wish.exists():
            record["cancelling_at"] = int(wish.stat().st_mtime)
        self._become(record[ENDED])
        for kind in ("answers", "cancel"):
            self._store.path(record["id"], kind).unlink(missing_ok=True)

    async def _validated(self) -> bool:
        """Whether every line of its file is a call of its endpoint; it has failed otherwise."""
        total, errors = await asyncio.to_thread(self._look)
        self._counts["total"] = total
        if errors:
            self._record["errors"] = {"object": "list", "data": errors}
            self._become("failed")
        return not errors

    def _look(self) -> tuple[int, list[Record]]:
        total, errors, endpoint = 0, list[Record](), self._record["endpoint"]
        for line in self._lines():
            total += 1
            if isinstance(line, BadLine):
                errors.append({"code": "invalid_line", "message": line.reason, "param": None, "line": line.number})
            elif line.url != endpoint:
                reason = f"url is {line.url}, the batch's endpoint {endpoint}"
                errors.append({"code": "mismatched_endpoint", "message": reason, "param": "url", "line": line.number})
            if total > MOST_LINES:
                errors.insert(0, {"code": "too_many_lines", "message": f"use at most {MOST_LINES} lines", "param": None, "line": total})
            if total > MOST_LINES or len(errors) >= MOST_ERRORS:
                break
        if not total:
            errors.append({"code": "empty_file", "message": "the file has no line", "param": None, "line": None})
        return total, errors

    def _lines(self) -> Iterator[Line | BadLine]:
        try:
            with self._store.path(self._record["input_file_id"], "data").open(encoding="utf-8", errors="replace") as texts:
                yield from read_lines(texts)
        except FileNotFoundError:
            yield BadLine(0, None, "the file was deleted")

    async def _answered(self) -> str:
        """Answer what is not answered; "completed", or why no more is answered."""
        path = self._store.path(self._record["id"], "answers")
        answered = await asyncio.to_thread(self._resume, path)
        left = (line for line in self._lines() if not answered.has(line))
        with path.open("a", encoding="utf-8") as file:
            answering = answer(self._front, left, lambda record: self._keep(record, file), self._concurrency, self._turn, LOWEST)
            work = asyncio.create_task(answering)
            try:
                while not work.done():
                    if self._store.path(self._record["id"], "cancel").exists():
                        return "cancelled"
                    if self._store.clock() > self._record["expires_at"]:
                        return "expired"
                    await asyncio.wait([work], timeout=LOOK_EVERY_S)
                work.result()
                return "completed"
            finally:
                work.cancel()
                with suppress(asyncio.CancelledError, EngineDead):
                    await work

    def _resume(self, path: Path) -> Answered:
        """What is answered already, and the counts of it. Answers that failed inside the server are dropped, to be asked for again."""
        answered = resume(path)
        records = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
        good = [answered_well(record) for record in records if settled(record)]
        if len(good) < len(records):
            beside = path.with_suffix(".settled")
            beside.write_text("".join(json.dumps(record) + "\n" for record in records if settled(record)), "utf-8")
            beside.replace(path)
        self._counts["completed"], self._counts["failed"] = good.count(True), good.count(False)
        return answered

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of few, while nobody else waits for a first token."""
        async with self._turns:
            while _others_wait(self._front):
                await asyncio.sleep(YIELD_S)
            yield

    def _keep(self, record: Record, file: IO[str]) -> None:
        file.write(json.dumps(record) + "\n")
        file.flush()  # what is answered is kept, whatever happens next
        self._counts["completed" if answered_well(record) else "failed"] += 1
        now_s = self._front.clock()
        if now_s - self._written_s > 1:
            self._written_s = now_s
            self._store.put(self._record)

    def _divide(self) -> None:
        """The file of answers and that of errors, each where there are some."""
        record, path = self._record, self._store.path(self._record["id"], "answers")
        for field, well in (("output_file_id", True), ("error_file_id", False)):
            if record[field] is None and path.exists():
                part = path.with_suffix(f".{field}")
                with path.open("rb") as answers, part.open("wb") as kept:
                    kept.writelines(line for line in answers if answered_well(json.loads(line)) is well)
                if part.stat().st_size:
                    with part.open("rb") as kept:
                        name = f"{record['id']}_{'output' if well else 'error'}.jsonl"
                        record[field] = self._store.add_file(kept, name, "batch_output", record[OWNER])["id"]
                    self._store.put(record)
                part.unlink()

    def _become(self, status: str) -> None:
        self._record["status"] = status
        self._record[f"{status}_at"] = self._record.get(f"{status}_at") or int(self._store.clock())
        self._store.put(self._record)


def _others_wait(front: Front) -> bool:
    """Whether a request that is no batch's has no token yet."""
    return any(
        not name.startswith("batch-") and not following.state.num_output_tokens for name, following in front.running.items()
    )
