"""What runs next. Pure: no torch, no clock, no I/O; the engine, the simulator and the tests drive this same object.

`plan` makes a step, `commit` (or `fail`) takes its outcome, in the order of the plans; several plans may be in flight between.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many

from octavo.config.resolved import Resolved
from octavo.core.admission import check
from octavo.core.budget import FixedBudget, StepBudget
from octavo.core.kv.cache import Hit, KVCache
from octavo.core.limits import Limit
from octavo.core.plan import Admission, Plan, Slice, StepOutput, StepShape
from octavo.core.policy import POLICIES, Queue
from octavo.core.router import Load
from octavo.core.sequence import Sequence, draw
from octavo.core.step import Flight, Step
from octavo.types import FinishReason, InvalidRequest, Request, SequenceOutput, TokenLogprobs

# Makes a named tuple of all its fields in half the time that its own constructor takes.
new: Callable[[type[SequenceOutput], tuple[object, ...]], SequenceOutput] = tuple.__new__  # pyright: ignore
MAX_OVERTAKEN = 64  # waiting sequences that others may overtake in one walk: bounds the time of a plan


class Scheduler:
    """Decides what runs in each step, and takes in what came of it. `plan` and `commit` are all that the loop calls for a step."""

    def __init__(self, settings: Resolved, cache: KVCache, limits: Many[Limit] = (), budget: StepBudget | None = None) -> None:
        self.settings = settings
        self.cache = cache
        self.limits = tuple(limits)
        self.budget = budget or FixedBudget(settings.max_num_batched_tokens)
        self.waiting = Queue()
        self.running = Queue()
        self.flight: deque[Flight] = deque()
        self.counts: Counter[str] = Counter()
        self._live: dict[str, dict[int, Sequence]] = {}  # unfinished continuations of each request
        self._unseen: list[Sequence] = []  # added since the last plan
        self._rows = list(range(settings.max_num_seqs - 1, -1, -1))
        self._retired: list[int] = []  # rows given up since the last plan
        self._policy = POLICIES[settings.scheduling_policy]()
        self._max_drafts = settings.num_speculative_tokens
        # In a pipeline a stage learns what was sampled only with the commit, so a sequence that samples waits for it.
        self._exclusive = settings.pipeline_parallel_size > 1
        assert not (self._exclusive and self._max_drafts), "other stages are told one token a step, not drafts"
        self._crowded: object = None  # who did not fit, and into what
        self._num_masked = 0  # of those that run
        self._context = 0  # tokens planned, over all that run
        self._arrivals = self._admissions = self._steps = 0

    # ---- the outside

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def live(self) -> list[tuple[str, int]]:
        """Request and index of every continuation that has not ended."""
        return [(request_id, index) for request_id, family in self._live.items() for index in family]

    @property
    def idle(self) -> bool:
        return not self._live and not self.flight

    def check(self, request: Request) -> None:
        """Raise InvalidRequest for what can never run here, with the numbers."""
        check(request, self.settings, self.cache.layout)

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests. Raises InvalidRequest, and then adds none of them, for an id that is live or what can never run."""
        requests = list(requests)
        fresh: set[str] = set()
        for request in requests:
            self.check(request)
            if request.id in self._live or request.id in fresh:
                raise InvalidRequest("request_id", request.id, "it is in use; ids must be unique among live requests")
            fresh.add(request.id)
        arrived: list[Sequence] = []
        for request in requests:
            arrived += self._sequences(request)
        self.waiting.extend(arrived)
        self._unseen += arrived

    def finish(self, request_id: str, index: int, reason: FinishReason, num_tokens: int | None = None) -> None:
        """The caller ended a continuation, after its first `num_tokens` output tokens or all. Does nothing if it has ended already."""
        seq = self._live.get(request_id, {}).get(index)
        if seq is not None:
            self.counts["tokens_past_finish"] += 0 if num_tokens is None else max(0, seq.num_output - num_tokens)
            self._end(seq, reason)

    def abort(self, request_id: str) -> None:
        """End all continuations of a request, with no news of it. Does nothing if none is live."""
        for seq in list(self._live.get(request_id, {}).values()):
            self._end(seq, FinishReason.ABORT)

    def abort_all(self) -> None:
        """End everything, with no news of it."""
        for request_id in list(self._live):
            self.abort(request_id)

    def successor(self, settings: Resolved, budget: StepBudget) -> Scheduler:
        """One with other settings, that need no more, over the same rows and memory. Only while this one is idle."""
        assert self.idle
        other = Scheduler(settings, KVCache(self.cache.layout, settings.enable_prefix_caching), self.limits, budget)
        other._retired = self._retired
        return other

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks; False, with nothing done, while sequences hold some."""
        return self.cache.reset()

    @property
    def num_preemptions(self) -> int:
        """Since the start."""
        return self.counts["preemptions"]

    @property
    def load(self) -> Load:
        """What a router wants to know."""
        return Load(len(self.waiting), len(self.running), self.cache.usage)

    def stats(self) -> Mapping[str, float]:
        """Gauges and running counters, by name."""
        pool = self.cache.pool
        return {
            "num_requests_running": len(self.running),
            "num_requests_waiting": len(self.waiting),
            "kv_cache_usage": self.cache.usage,
            "num_preemptions": self.num_preemptions,
            "prefix_cache_queries": self.cache.queries,
            "prefix_cache_hits": self.cache.hits,
            "prompt_tokens": self.counts["prompt_tokens"],
            "generation_tokens": self.counts["generation_tokens"],
            "num_steps": self._steps,
            "kv_evictions": pool.evictions,
            "kv_cached_blocks": pool.num_cached,
            "prefix_match_tokens": self.cache.match_tokens,
            "failed_steps": self.counts["failed_steps"],
            "slices_ignored": self.counts["slices_ignored"],
            "tokens_past_finish": self.counts["tokens_past_finish"],
            "draft_tokens": self.counts["draft_tokens"],
            "draft_tokens_accepted": self.counts["draft_tokens_accepted"],
            "hash_collisions": self.cache.collisions,
            **{f"prefix_misses_{reason}": count for reason, count in self.cache.misses.counts.items()},
        }

    # ---- making a plan

    def plan(self, now_s: float) -> Plan | None:
        """The next step, or None if nothing can be planned before a commit or a new request. Times are of the caller's clock."""
        for seq in self._unseen:
            seq.seen_s = now_s
        self._unseen.clear()
        step = self._open(now_s)
        self._continue_running(step)
        if not step.slices and not self.flight:
            # Every decode waits for blocks of those before it, and these yielded their tokens to the decodes: the blocks come first.
            step.decodes_first = False
            self._continue_running(step)
        if len(self.waiting) and not step.preempted:
            self._admit_waiting(step, now_s)
        return self._close(step) if step.slices else None

    def _open(self, now_s: float) -> Step:
        settings = self.settings
        samples = settings.max_num_seqs
        if self._exclusive:
            could_run = min(len(self.running) + len(self.waiting), settings.max_num_seqs)
            samples = -(-could_run // settings.pipeline_parallel_size)
        budget = self.budget.tokens(self.running, self.waiting, now_s)
        return Step(budget, samples)

    def _continue_running(self, step: Step) -> None:
        """Walk the running in order. Most decode one token into blocks they have: those take the short way."""
        exclusive, slices, sequences = self._exclusive, step.slices, step.sequences
        allowed = short = min(step.left, step.samples)  # how many more may take the short way
        for seq in self.running.items:  # preemption shortens this list at its end while it is walked
            piece = seq.steady
            if piece is not None and seq.planned < seq.room and short and not (exclusive and seq.pending):
                seq.planned += 1
                seq.pending += 1
                short -= 1
                slices.append(piece)
                sequences.append(seq)
            else:
                step.spend(allowed - short)
                n = self._size(seq, step)
                if n > 0 and self._reserve(seq, n, step):
                    self._take(seq, n, step)
                allowed = short = min(step.left, step.samples)
        step.spend(allowed - short)

    def _size(self, seq: Sequence, step: Step) -> int:
        """How far a running sequence may advance in this step."""
        if seq.planned >= seq.fed:
            if step.samples == 0 or (self._exclusive and seq.pending):
                return 0
            return min(1 + seq.drafts, seq.bound - seq.planned, step.left)
        want = seq.fed - seq.planned
        n = self._clip(seq, max(0, min(want, step.left - (self._set_aside(seq) if step.decodes_first else 0))))
        if n == want and step.samples == 0:
            return 0
        return n

    def _set_aside(self, seq: Sequence) -> int:
        """Tokens that the decoding sequences after `seq` will want: decodes come first."""
        rest = self.running.items[self.running.place(seq) + 1 :]
        return sum(
            min(1 + other.drafts, other.bound - other.planned)
            for other in rest
            if other.planned >= other.fed and not (self._exclusive and other.pending)
        )

    def _clip(self, seq: Sequence, n: int) -> int:
        """What the threshold for long prompts and the limits leave of a chunk."""
        if self._is_long(seq):
            n = min(n, self.settings.long_prefill_token_threshold)
        for limit in self.limits:
            n = limit.clip(seq, n)
        return n

    def _reserve(self, seq: Sequence, n: int, step: Step) -> bool:
        """Blocks for `n` more tokens. The last sequence not yet visited gives way; if that is `seq`, it waits for those before it."""
        while True:
            grown = self.cache.grow(seq, seq.planned + n)
            if grown is not None:
                step.grown += grown
                return True
            if self.running.items[-1] is seq:
                # Alone it fits, at the latest once no draft is in doubt any more: until then a window keeps blocks for their refusal.
                assert len(self.running) > 1 or seq.unsure, "what was admitted fits alone"
                return False
            self._preempt(self.running.items.pop())
            step.preempted = True

    def _take(self, seq: Sequence, n: int, step: Step) -> None:
        """Plan `n` tokens of a sequence that has the blocks."""
        start = seq.planned
        seq.planned = start + n
        step.left -= n
        step.sequences.append(seq)
        if start >= seq.fed:
            piece = seq.steady or Slice(seq.row, seq.generation, n, n - 1, True)
        else:
            end = start + n
            piece = Slice(seq.row, seq.generation, n, 0, end == seq.fed, tuple(seq.tokens[start:end]))
            step.chunks.append(seq)
            step.chunk_tokens += n
            step.chunk_pairs += n * start + n * (n + 1) // 2
        step.slices.append(piece)
        if piece.sample:
            step.samples -= 1
            seq.pending += 1 + piece.drafts
            seq.unsure += piece.drafts
            seq.drafts = self._max_drafts

    def _admit_waiting(self, step: Step, now_s: float) -> None:
        """Walk the waiting in order; the first that lacks room ends the walk, one held back by something of its own is overtaken.

        A block is left to spare for each that runs, or the newcomer would soon be preempted and computed again: with two thirds of the
        blocks needed this took the tokens computed in vain from 28 to 7 in a hundred, for one step more in a hundred.
        """
        items, settings = self.waiting.items, self.settings
        partial = [seq for seq in self.running if seq.planned < seq.fed]
        visited = overtaken = 0
        while visited < len(items) and self._rows and step.left > 0 and overtaken < MAX_OVERTAKEN:
            seq = items[visited]
            if seq.pending:  # preempted, and a step in flight still samples for it
                break
            if seq.lead is not None and not (seq.lead.spread or seq.lead.ended):
                overtaken += 1
            else:
                room = (seq.order, self.cache.pool.num_free, len(self.running))
                if room == self._crowded:  # it did not fit into this
                    break
                hit = self.cache.lookup(seq)
                n = self._chunk(seq, len(seq.tokens) - hit.num_tokens, step, partial)
                if n is None:
                    break
                if n == 0:
                    overtaken += 1
                elif self.cache.fits(hit, len(seq.tokens), settings.max_num_batched_tokens, spare_blocks=len(self.running)):
                    self._admit(seq, hit, n, step, now_s)
                    if seq.planned < seq.fed:
                        partial.append(seq)
                else:
                    self._crowded = room
                    break
            visited += 1
        items[:visited] = [seq for seq in items[:visited] if seq.row < 0]

    def _chunk(self, seq: Sequence, want: int, step: Step, partial: list[Sequence]) -> int | None:
        """First chunk of a waiting sequence that lacks `want` tokens: 0 if others may go before it, None if they may not."""
        settings = self.settings
        n = self._clip(seq, min(want, step.left))
        if n == want:
            return n if step.samples else None
        if not settings.enable_chunked_prefill:
            return None if n else 0
        if len(partial) >= settings.max_num_partial_prefills:
            return 0
        if self._is_long(seq) and sum(map(self._is_long, partial)) >= settings.max_long_partial_prefills:
            return 0
        return n

    def _is_long(self, seq: Sequence) -> bool:
        threshold = self.settings.long_prefill_token_threshold
        return 0 < threshold < len(seq.tokens) and self.settings.enable_chunked_prefill

    def _admit(self, seq: Sequence, hit: Hit, n: int, step: Step, now_s: float) -> None:
        """Give the sequence a row and its first chunk."""
        if not seq.admitted:
            seq.admitted = True
            self._policy.admitted(seq)
            seq.queued_s = now_s - seq.seen_s
            self.cache.account(seq, hit)
        self._admissions += 1
        seq.row, seq.generation = self._rows.pop(), self._admissions
        seq.fed = len(seq.tokens)
        seq.scored = hit.num_tokens
        self.cache.hold(seq, hit)
        self._context += seq.planned
        self._num_masked += seq.masked
        self.running.push(seq)
        for limit in self.limits:
            limit.enter(seq)
        tokens, params = tuple(seq.tokens), seq.request.params
        step.admitted.append(
            Admission(seq.row, seq.generation, params, seq.index, tokens, seq.num_prompt, hit.num_tokens, hit.tables, seq.seed)
        )
        grown = self.cache.grow(seq, seq.planned + n)
        assert grown is not None, "the room was checked"
        step.grown += grown
        self._take(seq, n, step)

    def _close(self, step: Step) -> Plan:
        """Number the plan, and let others find the blocks that it writes from known tokens."""
        self._steps += 1
        decoding = zip(step.slices, step.sequences) if self._exclusive else ()
        newest = tuple((piece.row, seq.tokens[-1]) for piece, seq in decoding if not piece.tokens)
        slices, masked = tuple(step.slices), ()
        if self._num_masked:
            masked = tuple(i for i, seq in enumerate(step.sequences) if seq.masked and slices[i].sample)
        plan = Plan(self._steps, slices, tuple(step.admitted), tuple(self._retired), tuple(step.grown), masked, newest=newest)
        self._retired.clear()
        registered = [(seq, self.cache.register(seq, seq.planned)) for seq in step.chunks]
        for seq in step.chunks:
            seq.spread = seq.spread or seq.planned == seq.fed
        self.flight.append(Flight(plan, step.sequences, registered, self._shape(step)))
        return plan

    def _shape(self, step: Step) -> StepShape:
        num_tokens = step.budget - step.left
        self._context += num_tokens
        num_sampled = len(step.slices)
        decode_context = self._context
        for seq in step.chunks:
            decode_context -= seq.planned
            num_sampled -= seq.planned < seq.fed
        return StepShape(num_tokens, len(step.slices), num_sampled, step.chunk_tokens, step.chunk_pairs, decode_context)

    # ---- taking its outcome

    def commit(self, plan: Plan, output: StepOutput, now_s: float) -> list[SequenceOutput]:
        """The oldest plan in flight is done: the news for the front."""
        flight = self._land(plan)
        assert output.step == plan.step
        plain = not (output.num_drafts or output.logprobs or output.prompt_logprobs or output.failed)
        news: list[SequenceOutput] = []
        ignored = beyond = 0
        for piece, seq, sampled, i in zip(plan.slices, flight.sequences, output.tokens, range(len(plan.slices))):
            if piece is seq.steady and plain:
                token = sampled[0]
                tokens = seq.tokens
                tokens.append(token)
                seq.pending -= 1
                reason = stop = None
                if len(tokens) > seq.bound or token in seq.ending:
                    reason, stop = self._ending(seq, token)
                fields = (seq.request_id, seq.index, (token,), (), (), reason, stop, None, seq.num_preemptions, None, None, None)
                news.append(new(SequenceOutput, fields))
            elif piece.generation == seq.generation:
                said = self._accept(seq, piece, sampled, i, output)
                if said is not None:
                    news.append(said)
                    beyond += len(said.token_ids) - 1
            else:
                ignored += 1
        self.counts["slices_ignored"] += ignored
        self.counts["generation_tokens"] += len(news) + beyond
        return news

    def fail(self, plan: Plan, reason: str) -> list[SequenceOutput]:
        """A plan in flight raised: its sequences end with an error, and nothing that hangs on what it should have written is kept."""
        place = next(i for i, flight in enumerate(self.flight) if flight.plan.step == plan.step)
        flight = self.flight[place]
        later = list(self.flight)[place:]
        del self.flight[place]
        self.counts["failed_steps"] += 1
        writers = {block: seq for one in later for seq, blocks in one.registered for block in blocks}
        self.cache.unregister(writers)
        news = [self._end_in_error(seq, reason) for piece, seq in zip(plan.slices, flight.sequences) if piece.generation == seq.generation]
        for seq in [seq for seq in self.waiting if seq.pending]:
            self._disown(seq)
        for seq in [seq for seq in self.running if any(writers.get(block, seq) is not seq for table in seq.blocks for block in table)]:
            self.running.remove(seq)
            self._preempt(seq)
            self._disown(seq)
        return news

    def _land(self, plan: Plan) -> Flight:
        flight = self.flight.popleft()
        assert flight.plan.step == plan.step, "plans end in the order in which they were made"
        return flight

    def _accept(self, seq: Sequence, piece: Slice, sampled: list[int], i: int, output: StepOutput) -> SequenceOutput | None:
        """Take what slice `i` gave, in every case but the plainest."""
        if output.failed and i in output.failed:
            return self._end_in_error(seq, output.failed[i])
        prompt_logprobs = self._prompt_logprobs(seq, piece, (output.prompt_logprobs or {}).get(i, [])) if piece.tokens else ()
        if not piece.sample:
            return SequenceOutput(seq.request_id, seq.index, prompt_logprobs=prompt_logprobs) if prompt_logprobs else None
        self._lower(seq, piece, len(sampled), output.num_drafts[i] if output.num_drafts else 0)
        reason = stop = None
        num_taken = 0
        for token in sampled:
            seq.tokens.append(token)
            num_taken += 1
            if len(seq.tokens) > seq.bound or token in seq.ending:
                reason, stop = self._ending(seq, token)
                if reason is not None:
                    break
        taken = tuple(sampled[:num_taken])
        logprobs = tuple(output.logprobs[i][:num_taken]) if output.logprobs and i in output.logprobs else ()
        told = (seq.request_id, seq.index, taken, logprobs, prompt_logprobs)
        said = new(SequenceOutput, (*told, reason, stop, None, seq.num_preemptions, None, None, None))
        if not self._max_drafts and seq.row >= 0 and seq.steady is None:
            seq.steady = Slice(seq.row, seq.generation, 1, 0, True)
        if seq.reported:
            return said
        seq.reported = True
        self.counts["prompt_tokens"] += seq.num_prompt
        pooled = output.pooled.get(i) if output.pooled else None
        return said._replace(num_cached_tokens=seq.cached_tokens, queued_s=seq.queued_s, cache_miss=seq.miss, pooled=pooled)

    def _lower(self, seq: Sequence, piece: Slice, num_sampled: int, num_drafts: int) -> None:
        """Bring the counters from upper bounds to what has come true."""
        assert 1 <= num_sampled <= 1 + piece.drafts
        refused = 1 + piece.drafts - num_sampled
        seq.pending -= 1 + piece.drafts
        seq.unsure -= piece.drafts
        self.counts["draft_tokens"] += piece.drafts
        self.counts["draft_tokens_accepted"] += num_sampled - 1
        if seq.row >= 0:
            if not seq.pending:  # else a later step has taken the drafts already, by their upper bound
                seq.drafts = num_drafts
            if refused:
                seq.planned -= refused
                self._context -= refused
                self.cache.trim(seq)

    def _ending(self, seq: Sequence, token: int) -> tuple[FinishReason | None, int | None]:
        """A token was appended that may end the sequence: why it has ended, if so, and by which token of the caller's."""
        reason = stop = None
        params = seq.request.params
        if token in seq.ending and seq.num_output > params.min_tokens:
            reason = FinishReason.STOP
            if token in params.stop_token_ids and (params.ignore_eos or token not in params.eos_token_ids):
                stop = token
        elif len(seq.tokens) > seq.bound:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._end(seq, reason)
        return reason, stop

    def _prompt_logprobs(self, seq: Sequence, piece: Slice, given: list[TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
        """Those not told before (a preempted sequence computes its prompt again); of the first continuation only."""
        if seq.request.params.prompt_logprobs is None or seq.index > 0:
            return ()
        fresh = given[max(0, seq.prompt_sent - seq.scored) :]
        seq.scored += piece.count
        seq.prompt_sent += len(fresh)
        return tuple(fresh)

    # ---- where sequences come from and go

    def _sequences(self, request: Request) -> list[Sequence]:
        self._arrivals += 1
        number = self._arrivals
        made: list[Sequence] = []
        for index in range(request.params.n):
            order = self._policy.order(request, number, index)
            seq = Sequence(request, index, number, order, self.settings.max_model_len, len(self.cache.layout.groups))
            seq.seed = draw(self.settings.seed, number) if request.params.seed is None else request.params.seed
            seq.lead = made[0] if made else None
            self.cache.enter(seq)
            made.append(seq)
        self._live[request.id] = {seq.index: seq for seq in made}
        return made

    def _preempt(self, seq: Sequence) -> None:
        """Back to waiting; its blocks stay in the prefix cache as long as nobody needs the space."""
        self._vacate(seq)
        seq.num_preemptions += 1
        self.counts["preemptions"] += 1
        self.waiting.push(seq)

    def _disown(self, seq: Sequence) -> None:
        """Ignore what steps in flight will give for a waiting sequence."""
        seq.generation = -1
        seq.pending = seq.unsure = 0

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        seq.finish_reason = reason
        seq.generation = -1
        if seq.row >= 0:
            self.running.remove(seq)
            self._vacate(seq)
        else:
            self.waiting.remove(seq)
        if self._policy.ended(seq, self.waiting.items):
            self.waiting.sort()
        self.cache.leave(seq)
        family = self._live[seq.request_id]
        del family[seq.index]
        if not family:
            del self._live[seq.request_id]
        if not self._live:
            self._unseen.clear()

    def _end_in_error(self, seq: Sequence, reason: str) -> SequenceOutput:
        """What it wrote may be worthless, so nobody shall find it."""
        self.cache.discard(seq)
        self._end(seq, FinishReason.ERROR)
        return SequenceOutput(seq.request_id, seq.index, finish_reason=FinishReason.ERROR, stop_reason=reason)

    def _vacate(self, seq: Sequence) -> None:
        """Give up the row and all blocks."""
        self.cache.release(seq)
        for limit in self.limits:
            limit.leave(seq)
        self._rows.append(seq.row)
        self._retired.append(seq.row)
        seq.row = -1
        seq.steady = None
        self._context -= seq.planned
        self._num_masked -= seq.masked
        seq.planned = seq.drafts = seq.fed = 0
