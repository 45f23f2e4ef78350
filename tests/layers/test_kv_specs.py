import pytest

from octavo.config.families import FAMILIES
from octavo.models.registry import build_model
from octavo.plan.kv import kv_specs
from tests.parity.tiny import SETTINGS, tiny


@pytest.mark.parametrize("family", [row.name for row in FAMILIES])
def test_layers_and_planner_agree_on_what_is_kept(family):
    c = tiny(family, sliding_window=16, use_sliding_window=True, max_window_layers=1)
    model = build_model(c, SETTINGS)
    assert [layer.kv_spec() for layer in model.attention_layers] == kv_specs(c, SETTINGS.kv_dtype)


def test_ranks_share_kv_heads():
    assert [kv_specs(tiny(), "bfloat16", ranks)[0].num_kv_heads for ranks in (1, 2, 4)] == [2, 1, 1]
