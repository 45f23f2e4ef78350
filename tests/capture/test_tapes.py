"""Decode steps replayed from tapes give what they give op by op."""

import pytest

from octavo import LLM, SamplingParams
from octavo.capture.decode import DecodeGraphs


def answers(**flags):
    llm = LLM("smollm2-135m", max_model_len=256, kv_cache_memory_bytes=48 << 20, seed=0, **flags)
    lengths = (5, 9, 9, 14)  # so that steps are of four, three and one sequences
    prompts = [{"prompt_token_ids": list(range(100 * number, 100 * number + 20))} for number in range(1, 5)]
    greedy = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False) for length in lengths]
    drawn = [SamplingParams(temperature=0.8, seed=3, top_k=20, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=1)]
    mixed = [
        SamplingParams(temperature=heat, seed=number, top_p=0.9, max_tokens=8, ignore_eos=True, detokenize=False)
        for number, heat in enumerate((0, 0.7, 1.0, 1.5, 2.0))
    ]
    found = llm.generate(prompts, greedy, use_tqdm=False) + llm.generate(prompts[:1], drawn, use_tqdm=False)
    found += llm.generate([prompts[0]] * 5, mixed, use_tqdm=False)
    graphs = llm._engine.executor.worker.graphs
    llm.close()
    return [output.outputs[0].token_ids for output in found], graphs


def test_texts_are_the_same_with_tapes_and_without():
    taped, graphs = answers()
    assert isinstance(graphs, DecodeGraphs)
    assert {size for (size, _, _), captured in graphs._captured.items() if captured} == {1, 3, 4, 5}
    plain, graphs = answers(enforce_eager=True)
    assert not isinstance(graphs, DecodeGraphs)
    assert taped == plain


def test_steps_of_short_sequences_are_recorded_for_themselves():
    one_class, graphs = answers()
    assert {length for _, length, _ in graphs._captured} == {256}
    two_classes, graphs = answers(most_model_len=26)
    assert two_classes == one_class
    by_length = {length: {size for size, own, _ in graphs._captured if own == length} for length in (26, 256)}
    assert by_length == {26: {3, 4, 5}, 256: {1, 3, 5}}, "up to 26 tokens one, beyond the other, and nothing else"


def test_plain_weights_run_from_tapes_too():
    llm = LLM("smollm2-135m", dtype="bfloat16", max_model_len=256, kv_cache_memory_bytes=48 << 20)
    prompts = [{"prompt_token_ids": [number, 5]} for number in range(3)]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False), use_tqdm=False)
    captured = llm._engine.executor.worker.graphs._captured
    llm.close()
    assert captured
    assert all(captured.values())


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp8_e5m2"])
def test_compressed_kv_runs_from_tapes_and_as_the_reference(kind):
    prompts = ["The capital of France is", "One, two, three, four,", "def add(a, b):\n    return"]
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    texts = []
    for backend in ("auto", "reference"):
        flags = {"kv_cache_dtype": kind, "attention_backend": backend, "max_model_len": 64, "kv_cache_memory_bytes": 16 << 20}
        llm = LLM("smollm2-135m", dtype="float32", **flags)
        texts.append([output.outputs[0].token_ids for output in llm.generate(prompts, greedy, use_tqdm=False)])
        worker = llm._engine.executor.worker
        assert worker.attention.name == ("cpu" if backend == "auto" else backend)
        assert [bool(captured) for captured in worker.graphs._captured.values()] == [backend == "auto"]
        llm.close()
    assert texts[0] == texts[1]
