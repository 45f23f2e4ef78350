"""What holds an engine back, from a window of what it counted and the cost model; with the evidence, and the flag to move. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from octavo.config.resolved import Resolved

OFTEN = 0.2  # share of the time or of the steps from which a limit is said to bind
FULL = 0.95  # of a pool or a budget
ROOM = 0.8  # of the KV memory, below which it is not what holds others back
LEAST_S, LEAST_STEPS = 5.0, 20  # a window below says nothing
SLOW = 1.5  # times the predicted time of steps
IDLE, EMPTY = 0.15, 0.2  # share of the time at work, and of the KV memory, below which a machine is too large
LOW_HITS, MANY_TOKENS = 0.1, 2000  # of the prompt tokens looked up


@dataclass(frozen=True)
class Window:
    """What an engine counted in a stretch of time. Shares of time count the time at work only."""

    seconds: float
    busy_s: float
    num_steps: int = 0
    predicted_s: float = 0.0  # of those steps, by the cost model; 0: not known
    full_steps: int = 0  # that used all of their tokens while requests waited
    kv_full_s: float = 0.0  # with hardly a block free, while requests waited
    rows_full_s: float = 0.0  # with every row taken, while requests waited
    waiting_s: float = 0.0  # while requests waited at all
    most_kv: float = 0.0  # share
    mean_waiting: float = 0.0
    mean_running: float = 0.0
    preemptions: int = 0
    prefix_queries: int = 0  # tokens
    prefix_hits: int = 0
    prefix_misses: Mapping[str, int] = field(default_factory=dict[str, int])  # prompts by reason


@dataclass(frozen=True)
class Finding:
    """One thing that holds back, or that could be had for less."""

    kind: str
    evidence: str
    advice: str
    flags: tuple[str, ...]  # to move


def advise(window: Window, settings: Resolved) -> list[Finding]:
    """What the window shows, the weightiest first; nothing for a window that is too short to say."""
    if window.seconds < LEAST_S:
        return []
    if window.num_steps < LEAST_STEPS:
        return [finding for finding in (_over_provisioned(window, settings),) if finding]
    rules: tuple[Callable[[Window, Resolved], Finding | None], ...] = (
        _kv_bound, _rows_bound, _budget_bound, _host_bound, _cache_misaligned, _over_provisioned,
    )  # fmt: skip
    found = [finding for finding in (rule(window, settings) for rule in rules) if finding]
    binds = {finding.kind for finding in found} & {"kv-bound", "sequence-bound", "budget-bound", "host-bound"}
    saturated = None if binds else _saturated(window, settings)
    return found + ([saturated] if saturated else [])


def _share(part_s: float, window: Window) -> float:
    return part_s / window.busy_s if window.busy_s else 0.0


def _kv_bound(window: Window, settings: Resolved) -> Finding | None:
    full = _share(window.kv_full_s, window)
    if not window.preemptions and full < OFTEN:
        return None
    memory = "OCTAVO_CPU_KVCACHE_SPACE" if settings.device == "cpu" else "--gpu-memory-utilization"
    flags = [memory, "--max-num-seqs"]
    smaller = ""
    if not settings.kv_dtype.startswith(("fp8", "int8")):
        flags.insert(1, "--kv-cache-dtype")
        times = "nearly four times" if settings.kv_dtype == "float32" else "nearly twice"
        smaller = f", or --kv-cache-dtype int8, which holds {times} as many tokens"
    fewer = f"or let fewer run at once: lower --max-num-seqs below {settings.max_num_seqs}"
    advice = f"give the KV cache more memory ({memory}){smaller}; {fewer}"
    evidence = f"{window.preemptions} preemptions; {full:.0%} of the time hardly a block was free while requests waited"
    return Finding("kv-bound", evidence, advice, tuple(flags))


def _rows_bound(window: Window, settings: Resolved) -> Finding | None:
    full = _share(window.rows_full_s, window)
    if full < OFTEN or window.most_kv > ROOM:
        return None
    return Finding(
        "sequence-bound",
        f"{full:.0%} of the time all of --max-num-seqs = {settings.max_num_seqs} ran and others waited, with at most "
        f"{window.most_kv:.0%} of the KV memory in use",
        f"raise --max-num-seqs, to {2 * settings.max_num_seqs} at first", ("--max-num-seqs",),
    )  # fmt: skip


def _budget_bound(window: Window, settings: Resolved) -> Finding | None:
    share = window.full_steps / window.num_steps
    if share < OFTEN or window.most_kv > FULL or _share(window.rows_full_s, window) >= OFTEN:
        return None
    evidence = f"{share:.0%} of the steps used all of their tokens while prompts waited, with rows and KV memory to spare"
    if settings.target_itl_s:
        target = f"the target of {1000 * settings.target_itl_s:g} ms between tokens"
        advice = f"{target} leaves no more for prompts: raise --target-itl-ms, or add replicas"
        return Finding("budget-bound", evidence, advice, ("--target-itl-ms", "--data-parallel-size"))
    advice = (
        f"raise --max-num-batched-tokens, to {2 * settings.max_num_batched_tokens} at first; if gaps between tokens then grow too long, "
        "give --target-itl-ms"
    )
    return Finding("budget-bound", evidence, advice, ("--max-num-batched-tokens", "--target-itl-ms"))


def _host_bound(window: Window, settings: Resolved) -> Finding | None:
    if settings.device != "cuda" or not window.predicted_s or window.busy_s < SLOW * window.predicted_s:
        return None
    flags = ("--async-scheduling",) if settings.overlap_depth == 0 else ("--no-enforce-eager",) if not settings.graph_sizes else ()
    advice = {
        "--async-scheduling": "plan the next step while one runs: --async-scheduling",
        "--no-enforce-eager": "record steps as graphs: leave --enforce-eager and -O0 out",
        "": "see that the engine has cores of its own: one each for front, engine and worker, and nothing else on them",
    }["".join(flags)]
    evidence = f"steps took {window.busy_s:.1f} s, and the device needs about {window.predicted_s:.1f} s for them"
    return Finding("host-bound", evidence, advice, flags)


def _cache_misaligned(window: Window, settings: Resolved) -> Finding | None:
    hits, lost = window.prefix_hits, {reason: window.prefix_misses.get(reason, 0) for reason in ("short", "tokens", "evicted")}
    reason = max(lost, key=lambda name: lost[name])
    seldom = lost[reason] == 0 or lost[reason] < OFTEN * sum(window.prefix_misses.values())
    if seldom or window.prefix_queries < MANY_TOKENS or hits > LOW_HITS * window.prefix_queries:
        return None
    advice, flags = {
        "short": (f"prompts share less than a block: a smaller --block-size than {settings.block_size}", ("--block-size",)),
        "tokens": ("prompts begin alike and then differ early: put what changes from request to request after what stays the same", ()),
        "evicted": ("prefixes are pushed out before they come again: give the KV cache more memory", ("--gpu-memory-utilization",)),
    }[reason]
    found = f"{hits / window.prefix_queries:.0%} of {window.prefix_queries:,} prompt tokens were found in the cache"
    evidence = f"{found}; {lost[reason]} prompts missed by `{reason}`"
    return Finding("cache-misaligned", evidence, advice, flags)


def _saturated(window: Window, settings: Resolved) -> Finding | None:
    busy = window.busy_s / window.seconds
    if busy < FULL or _share(window.waiting_s, window) < 0.5:
        return None
    evidence = f"at work {busy:.0%} of the time; {window.mean_waiting:.1f} requests waited on average, and no setting held them back"
    advice = "more devices (--data-parallel-size), or less load: --max-num-queued-reqs refuses what would wait too long"
    return Finding("saturated", evidence, advice, ("--data-parallel-size", "--max-num-queued-reqs"))


def _over_provisioned(window: Window, settings: Resolved) -> Finding | None:
    busy = window.busy_s / window.seconds
    if busy > IDLE or window.most_kv > EMPTY or window.waiting_s or not window.num_steps:
        return None
    flag = "OCTAVO_CPU_KVCACHE_SPACE" if settings.device == "cpu" else "--gpu-memory-utilization"
    evidence = f"at work {busy:.0%} of the time, at most {window.most_kv:.0%} of the KV memory in use, and nobody waited"
    return Finding("over-provisioned", evidence, f"fewer replicas or a smaller device would do; {flag} can leave memory to others", (flag,))
