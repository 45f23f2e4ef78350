"""The bundled SmolLM2, read from its packed GGUF file: logits equal to those of transformers on the same weights."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.models.checkpoint import open_checkpoint
from octavo.models.load import load
from octavo.models.registry import build_model
from tests.parity.memory import Memory

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "<|im_start|>user\nName three planets and say which of them is the largest.<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint("smollm2-135m")


@pytest.fixture(scope="module")
def texts(checkpoint):
    return [checkpoint.tokenizer().encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def their_logits(checkpoint, texts):
    config = LlamaConfig(**checkpoint.config)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict({name: tensor.load(torch.float32) for name, tensor in checkpoint.tensors().items()}, assign=True, strict=False)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    model.tie_weights()
    assert not any(parameter.is_meta for parameter in model.parameters())
    with torch.inference_mode():
        return [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]


@pytest.mark.parametrize("level", [0, 2])
def test_logits(checkpoint, texts, their_logits, level):
    model = build_model(Architecture.from_config(checkpoint.config), Resolved(max_model_len=256, optimization_level=level))
    load(model, checkpoint.tensors())
    memory = Memory(model, 8, max_length=64)
    first = memory.step([(row, text[: 3 + row]) for row, text in enumerate(texts)])
    rest = memory.step([(row, text[3 + row :]) for row, text in enumerate(texts)], padding=2)
    for row, expected in enumerate(their_logits):
        torch.testing.assert_close(torch.cat((first[row], rest[row])), expected, atol=1e-3, rtol=0)
