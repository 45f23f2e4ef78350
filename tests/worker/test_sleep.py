"""A model that slept says what it said before, and its memory was given back meanwhile."""

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.capture.decode import DecodeGraphs
from octavo.types import InvalidRequest
from octavo.worker.sleep import _used_bytes

PROMPTS = ["The capital of France is", "def f(x):\n    return"]
GREEDY = SamplingParams(temperature=0, max_tokens=8)
KV_BYTES = 48 << 20


def texts(llm: LLM) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def start(enable_sleep_mode=True, **flags) -> LLM:
    return LLM("smollm2-135m", max_model_len=256, kv_cache_memory_bytes=KV_BYTES, enable_sleep_mode=enable_sleep_mode, **flags)


def used_bytes() -> int:
    return _used_bytes(torch.device("cpu"))


def test_both_levels_give_memory_back_and_wake_to_the_same_texts():
    llm = start()
    expected = texts(llm)
    arena = llm._engine.executor.worker.model.attention_layers[0].kv.untyped_storage()
    arena_bytes = arena.nbytes()
    del arena
    for level, least_bytes in ((1, 0), (2, 80 << 20)):  # the weights have 92 MiB
        awake = used_bytes()
        llm.sleep(level)
        assert awake - used_bytes() >= least_bytes
        with pytest.raises(InvalidRequest, match="the model sleeps"):
            texts(llm)
        with pytest.raises(InvalidRequest, match="wake"):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        llm.wake_up()
        runner = llm._engine.executor.worker
        assert runner.model.attention_layers[0].kv.untyped_storage().nbytes() == arena_bytes
        assert isinstance(runner.graphs, DecodeGraphs)
        assert not runner.graphs._captured, "what was recorded points to memory that is gone"
        hits = llm.get_metrics()["prefix_cache_hits"]
        assert texts(llm) == expected
        assert llm.get_metrics()["prefix_cache_hits"] == hits, "nothing is cached after sleep"
    llm.close()


def test_weights_that_lie_on_a_device_of_their_own_go_to_the_host_and_come_back():
    llm = start(dtype="bfloat16", optimization_level=0)
    expected = texts(llm)
    bed = llm._engine.executor.worker.orders["sleep"].__self__
    bed.apart = True  # as on a GPU
    model = llm._engine.executor.worker.model
    sizes = {weight.untyped_storage()._cdata: weight.untyped_storage().nbytes() for weight in model.parameters()}
    llm.sleep(1)
    assert all(weight.untyped_storage().nbytes() == 0 for weight in model.parameters())
    assert sum(kept.nbytes() for _, kept in bed._kept) == sum(sizes.values())
    llm.wake_up(["weights"])
    assert not bed._kept
    with pytest.raises(InvalidRequest, match="sleeps"):
        texts(llm)
    llm.wake_up(["kv_cache"])
    assert llm._engine.executor.worker.model is model
    assert texts(llm) == expected
    llm.sleep(1)
    llm.sleep(2)
    llm.sleep(2)
    llm.sleep(1)
    llm.wake_up()
    assert texts(llm) == expected
    llm.close()


@pytest.mark.parametrize("flags", [{"data_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_workers_and_replicas_sleep_together(flags):
    llm = start(**flags)
    expected = texts(llm)
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        assert texts(llm) == expected
    llm.close()


def test_what_cannot_be_asked_is_told():
    llm = start()
    with pytest.raises(InvalidRequest, match="level = 3"):
        llm.sleep(3)
    llm.sleep(2)
    with pytest.raises(InvalidRequest, match="wake the weights first"):
        llm.wake_up(["kv_cache"])
    with pytest.raises(InvalidRequest, match="graphs"):
        llm.wake_up(["graphs"])
    llm.wake_up()
    llm.close()
    plain = start(enable_sleep_mode=False)
    with pytest.raises(InvalidRequest, match="enable_sleep_mode"):
        plain.sleep()
    plain.close()
