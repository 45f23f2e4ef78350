"""A causal language model: embedding, this stage's layers, final norm, head."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import nn

from octavo.config.architecture import Architecture, LayerConfig
from octavo.config.stages import Stage
from octavo.context import ForwardContext
from octavo.layers.attention import PagedAttention
from octavo.layers.embedding import Embedding, TiedHead
from octavo.layers.env import Env
from octavo.layers.experts import Router
from octavo.layers.latent import LatentAttention
from octavo.layers.layer import Layer
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.parallel.shard import Extent, Shard

Block = Callable[[Architecture, LayerConfig], nn.Module]


class Decoder(Layer):
    """Tokens, or the hidden state of the stage before, to the hidden state after this stage's layers."""

    def __init__(self, c: Architecture, stage: Stage, block: Block) -> None:
        super().__init__()
        self.stage = stage
        if stage.first or (stage.last and c.tied_embeddings):
            self.embed_tokens = Embedding(c.vocab, c.hidden, c.embedding_scale)
        self.layers = nn.ModuleDict({str(i): block(c, c.layers[i]) for i in stage.layers})
        if stage.last:
            self.norm = RMSNorm(c.hidden, c.norm_eps, c.norm_offset)

    def forward(self, ctx: ForwardContext) -> torch.Tensor:
        x = ctx.hidden_in if ctx.hidden_in is not None else ctx.embeds if ctx.embeds is not None else self.embed_tokens(ctx.batch.tokens)
        residual = None
        for layer in self.layers.values():
            x, residual = layer(x, residual, ctx)
        if self.stage.last:
            return self.norm.add(x, residual)[0]
        return x if residual is None else residual + x


class CausalLM(Layer):
    """What the runner calls. Module paths are the checkpoint's names."""

    def __init__(self, c: Architecture, stage: Stage, block: Block) -> None:
        super().__init__()
        self.architecture, self.stage = c, stage
        self.model = Decoder(c, stage, block)
        if stage.last:
            untied = Linear(c.hidden, c.vocab, Shard.OUT, padded=True)
            self.lm_head = TiedHead(self.model.embed_tokens) if c.tied_embeddings else untied

    def bind(self, path: str, env: Env) -> None:
        self.group, self.ops = env.mesh.tp, env.ops
        vocab = Extent(self.architecture.vocab, padded=True)
        self.first_token, rows = vocab.share(self.group)
        self.num_tokens_here = max(0, min(rows, vocab.size - self.first_token))  # of the vocabulary; the rest of the rows is padding

    @cached_property
    def attention_layers(self) -> list[PagedAttention | LatentAttention]:
        """This stage's layers that keep KV, in order."""
        return [module for module in self.modules() if isinstance(module, (PagedAttention, LatentAttention))]

    @cached_property
    def expert_tokens(self) -> dict[int, torch.Tensor]:
        """By layer of this stage that has experts: how many tokens have gone to each, [num_experts] int64."""
        return {int(path.split(".")[2]): module.tokens for path, module in self.named_modules() if isinstance(module, Router)}

    def forward(self, ctx: ForwardContext) -> torch.Tensor:
        """The hidden state [T, hidden] of every token of the batch; after the last stage it is normed and ready for `logits`."""
        return self.model(ctx)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] -> [N, vocab], scaled and soft-capped: float32, or as the product gave them where nothing is done to them."""
        return self._shaped(self.group.all_gather(self.lm_head(hidden))[:, : self.architecture.vocab])

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [N] int64 and logits [N] float32 of the largest in each row of `logits`, which no rank needs to have whole."""
        here = self._shaped(self.lm_head(hidden)[:, : self.num_tokens_here])
        if not here.shape[1]:  # a vocabulary so small that this rank has padding only
            here = here.new_full((here.shape[0], 1), float("-inf"))
        return self.group.best(*self.ops.best(here), self.first_token)

    def _shaped(self, logits: torch.Tensor) -> torch.Tensor:
        if self.architecture.logits_scale != 1.0:
            logits = logits.float() * self.architecture.logits_scale
        cap = self.architecture.logits_softcap
        return logits if cap is None else torch.tanh(logits.float() / cap) * cap
