"""What is measured is compared with -O0 first."""

import json
from pathlib import Path

import pytest
import torch

from octavo.bench.offline import check
from octavo.bench.workloads import Workload
from octavo.config.fields import ConfigError
from octavo.worker.runner import Runner

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 101, "max_position_embeddings": 96,
    "torch_dtype": "float32",
}  # fmt: skip
WORKLOADS = {"few": Workload(3, 20, 4), "mixed": Workload(5, (4, 30), 4)}


@pytest.fixture
def flags(tmp_path: Path) -> dict:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return {"model": str(tmp_path), "load_format": "dummy", "skip_tokenizer_init": True, "max_num_seqs": 5, "max_num_batched_tokens": 32}


def test_each_workload_and_the_longest_context_are_compared(flags):
    found = check(flags, WORKLOADS, seed=1)
    assert {name: one["prompts"] for name, one in found.items()} == {"few": 3, "mixed": 5, "longest": 1}
    assert [len(one["errors"]) for one in found.values()] == [9, 9, 2]
    assert all(one["right"] for one in found.values())


def test_ranks_compare_what_each_has_a_part_of(flags):
    found = check({**flags, "tensor_parallel_size": 2}, WORKLOADS, seed=1)
    assert [len(one["errors"]) for one in found.values()] == [9, 9, 2]
    assert all(one["right"] for one in found.values())
    assert 0 < max(found["mixed"]["errors"].values()) < 1e-3, "sums were made in another order"
    with pytest.raises(ConfigError, match="use -tp alone"):
        check({**flags, "pipeline_parallel_size": 2}, WORKLOADS, seed=1)


def test_wrong_logits_are_found(flags, monkeypatch):
    plain, runners = Runner.waiting_logits, []

    def wrong(self):
        runners.append(self)
        logits = plain(self)
        return torch.roll(logits, 1, dims=-1) if self is runners[0] else logits

    monkeypatch.setattr(Runner, "waiting_logits", wrong)
    assert not any(one["right"] for one in check(flags, WORKLOADS, seed=1).values())
