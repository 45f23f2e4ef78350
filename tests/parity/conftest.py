"""Small random models made with transformers and saved, and a miniature of the runner that feeds Octavo's model from paged memory."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.context import Batch, ForwardContext
from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.models.safetensors_reader import read_safetensors_folder

SIZES = dict(
    vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


@dataclass
class Pair:
    """The same model twice."""

    theirs: torch.nn.Module
    config: dict
    tensors: dict

    def ours(self, max_model_len=512, **settings):
        model = build_model(Architecture.from_config(self.config), Resolved(max_model_len=max_model_len, **settings))
        load(model, self.tensors)
        return model

    @torch.inference_mode()
    def their_logits(self, tokens):
        return self.theirs(torch.tensor([tokens]), use_cache=False).logits[0].float()


@pytest.fixture
def make_pair(tmp_path):
    """make_pair(model_type, **config) saves a random model of transformers and reads what it saved."""

    def make(model_type, **changes):
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
        config._attn_implementation = "eager"
        theirs = AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():  # weights that matter: larger than transformers' init, norms and biases away from 1 and 0
            for name, parameter in theirs.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.15)
                else:
                    parameter.add_(0.2 * torch.randn_like(parameter)) if "norm" in name else parameter.normal_(0, 0.2)
        theirs.save_pretrained(tmp_path, max_shard_size="100KB")
        return Pair(theirs, json.loads((tmp_path / "config.json").read_text()), read_safetensors_folder(tmp_path))

    return make


def random_tokens(n, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(3, SIZES["vocab_size"]) for _ in range(n)]


@dataclass
class Memory:
    """Paged memory for a model, one group a layer, with blocks handed out in random order; and steps that run through it.

    Memory starts as NaN, so that reading anything not written shows.
    """

    model: torch.nn.Module
    block_tokens: int
    num_rows: int = 4
    max_length: int = 512
    computed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        per_row = -(-self.max_length // self.block_tokens)
        layers = self.model.attention_layers
        order = torch.Generator().manual_seed(1)
        self.tables = []
        for group, layer in enumerate(layers):
            spec = layer.kv_spec()
            shape = (self.num_rows * per_row, 2, self.block_tokens, spec.num_kv_heads, spec.head_dim)
            layer.kv = torch.full(shape, float("nan"), dtype=getattr(torch, spec.dtype))
            layer.group = group
            self.tables.append(torch.randperm(shape[0], generator=order).view(self.num_rows, per_row).int())

    @torch.inference_mode()
    def step(self, work, padding=0):
        """Run `work`, a list of (row, tokens), as one batch; gives the logits of every token, per slice. `padding` adds that many tokens
        without slots and slices without tokens."""
        tokens, positions, starts, lengths, rows, slots = [], [], [0], [], [], [[] for _ in self.tables]
        for row, new in work:
            first = self.computed.get(row, 0)
            tokens += new
            positions += range(first, first + len(new))
            starts.append(len(tokens))
            lengths.append(first + len(new))
            rows.append(row)
            for group, table in enumerate(self.tables):
                blocks = table[row].tolist()
                slots[group] += [
                    blocks[p // self.block_tokens] * self.block_tokens + p % self.block_tokens for p in range(first, lengths[-1])
                ]
            self.computed[row] = lengths[-1]
        num_tokens = len(tokens)
        long = torch.int64
        batch = Batch(
            tokens=torch.tensor(tokens + [0] * padding), positions=torch.tensor(positions + [0] * padding),
            starts=torch.tensor(starts + [num_tokens] * padding, dtype=torch.int32),
            lengths=torch.tensor(lengths + [0] * padding, dtype=torch.int32),
            rows=torch.tensor(rows + [0] * padding, dtype=torch.int32), slots=torch.tensor([s + [-1] * padding for s in slots]),
            sample_at=torch.arange(num_tokens), sample_rows=torch.zeros(num_tokens, dtype=long),
            num_tokens=num_tokens, num_slices=len(rows), max_count=max(len(new) for _, new in work), max_length=max(lengths),
        )  # fmt: skip
        backend = self.model.attention_layers[0].backend
        plans = tuple(backend.plan(batch, group, table, self.block_tokens) for group, table in enumerate(self.tables))
        hidden = self.model(ForwardContext(batch, plans))
        assert hidden.isfinite().all()
        logits = self.model.logits(hidden[batch.sample_at])
        return [logits[start:end] for start, end in pairwise(starts)]

    def run(self, tokens, chunks, row=0):
        """All of `tokens` in chunks of the given sizes, then one by one; gives the logits of every token."""
        logits, sizes = [], list(chunks)
        while self.computed.get(row, 0) < len(tokens):
            done = self.computed.get(row, 0)
            logits += self.step([(row, tokens[done : done + (sizes.pop(0) if sizes else 1)])])
        return torch.cat(logits)
