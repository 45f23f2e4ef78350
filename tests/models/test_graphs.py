"""What a graph would replay: no layer and no operation looks at a value on the host, or has a shape that depends on one."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from octavo.config.families import FAMILIES
from octavo.context import Batch, ForwardContext
from octavo.models.materialize import finish, layers_of
from octavo.models.registry import build_model
from tests.parity.tiny import SETTINGS, tiny


class NoAttention:
    def run(self, plan, q, kv, shape, scales, sinks):
        return q * 1


def forward(c, peek=lambda x: x):
    """Logits of a batch without values: a tensor that only has a shape fails when a value is asked for."""
    with FakeTensorMode(), torch.inference_mode():
        model = build_model(c, SETTINGS)
        finish(layer for _, layer in layers_of(model))
        for layer in model.attention_layers:
            layer.backend, layer.group = NoAttention(), 0
            layer.kv = torch.empty(6, 2, 4, layer.shape.kv_heads, layer.shape.head_dim)
        long, short = torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int32)
        batch = Batch(long, long, torch.zeros(6, dtype=torch.int32), short, short, long[None], long[:2], long[:2], 5, 5, 1, 9)
        hidden = model(ForwardContext(batch, (None,)))
        return model.logits(peek(hidden)[batch.sample_at])


# References of experts read on the host which were chosen; the kernels for a GPU, which are captured, do not.
EXPERTS = {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"}


@pytest.mark.parametrize("family", [row.name for row in FAMILIES if row.name not in EXPERTS])
def test_shapes_are_enough(family):
    assert forward(tiny(family)).shape == (2, 50)


def test_the_test_would_notice():
    with pytest.raises(DynamicOutputShapeException):
        forward(tiny(), lambda x: x[x[:, 0] > 0])
    with pytest.raises(DataDependentOutputException):
        forward(tiny(), lambda x: x * x.sum().item())
