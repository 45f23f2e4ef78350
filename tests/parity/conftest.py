"""Small random models made with transformers and saved."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.models.safetensors_reader import read_safetensors_folder
from tests.parity.memory import VOCAB

SIZES = dict(
    vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
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
            for name, buffer in theirs.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.normal_(0, 0.3)
        theirs.save_pretrained(tmp_path, max_shard_size="100KB")
        return Pair(theirs, json.loads((tmp_path / "config.json").read_text()), read_safetensors_folder(tmp_path))

    return make
