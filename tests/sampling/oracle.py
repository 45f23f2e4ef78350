"""A plain float64 account of sampling, one row at a time, and a small engine around the sampler."""

from __future__ import annotations

import numpy as np
import torch

from octavo.config.resolved import Resolved
from octavo.context import Batch
from octavo.core.plan import Admission, Plan, Slice
from octavo.sampling.sampler import Sampler
from octavo.types import SamplingParams
from octavo.worker.rows import Rows

VOCAB = 40


def processed(logits, params: SamplingParams, prompt, output) -> np.ndarray:
    """The logits of one row before temperature."""
    x = np.array(logits, np.float64)
    vocab = len(x)
    if params.allowed_token_ids is not None:
        x[[i for i in range(vocab) if i not in params.allowed_token_ids]] = -np.inf
    for word in params.bad_token_ids:
        tail = tuple(output[len(output) - len(word) + 1 :]) if len(word) > 1 else ()
        if max(word) < vocab and tail == tuple(word[:-1]):
            x[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        x[[i for i in {*params.eos_token_ids, *params.stop_token_ids} if i < vocab]] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        if token < vocab:
            x[token] += bias
    for token in {*prompt, *output}:
        if token < vocab:
            r = params.repetition_penalty
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
    for token in {token for token in output if token < vocab}:
        x[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    return x


def distribution(logits, params: SamplingParams, prompt=(), output=()) -> np.ndarray:
    """The probabilities [vocab] from which a row's token comes."""
    x = processed(logits, params, prompt, output)
    if params.greedy:
        return np.eye(len(x))[int(np.argmax(x))]
    x = x / params.temperature
    p = np.exp(x - x.max())
    p[p < params.min_p * p.max()] = 0
    if 0 < params.top_k < len(p):
        p[p < np.sort(p)[-params.top_k]] = 0
    if params.top_p < 1:
        order = np.sort(p)[::-1]
        reached = np.searchsorted(np.cumsum(order) / order.sum(), params.top_p)
        p[p < order[min(reached, len(order) - 1)]] = 0
    return p / p.sum()


class Bench:
    """Rows and a sampler; a call samples the rows named, at whatever position they are."""

    def __init__(self, max_num_seqs=8, vocab=VOCAB, own=(), device="cpu", num_slots=None, at_once=1 << 30):
        self.sampler = Sampler(vocab, own, at_once=at_once)
        self.device = device
        self.rows = Rows(Resolved(max_num_seqs=max_num_seqs), (4,), self.sampler.fillers, device, num_slots)
        self.lengths: dict[int, int] = {}

    def admit(self, row, params, prompt=(1, 2, 3), output=(), seed=0, index=0):
        tokens = (*prompt, *output)
        self.rows.apply(Plan(0, admitted=(Admission(row, 0, params, index, tokens, len(prompt), 0, ((),), seed),)))
        self.lengths[row] = len(tokens)

    def retire(self, *rows):
        self.rows.apply(Plan(0, retired=rows))

    def step(self, by_row, masks=None):
        """Sample {row: logits [width]}; the output of the step, slices in the order given."""
        plan = Plan(0, tuple(Slice(row, 0, 1, 0, True) for row in by_row))
        recipe = self.sampler.recipe(plan, self.rows.held)
        sampled = self.sampler(torch.stack([torch.as_tensor(x, dtype=torch.float32) for x in by_row.values()]).to(self.device),
                               self.batch(by_row), self.rows, recipe, masks)
        self.rows.record(self.batch(by_row), sampled)
        for row in by_row:
            self.lengths[row] += 1
        return sampled.fetch(plan).result()

    def batch(self, rows) -> Batch:
        n = len(rows)
        at = torch.arange(n, device=self.device)
        of = torch.tensor(list(rows), device=self.device)
        positions = torch.tensor([self.lengths[row] - 1 for row in rows], device=self.device)
        starts = torch.arange(n + 1, dtype=torch.int32, device=self.device)
        return Batch(at, positions, starts, starts[1:], of.int(), at[None], at, of, n, n, 1, 1)

    def tokens(self, by_row, masks=None):
        return [tokens[0] if tokens else None for tokens in self.step(by_row, masks).tokens]
