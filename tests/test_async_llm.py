"""`AsyncLLM` over the scripted engine."""

import asyncio
from contextlib import aclosing

import pytest

from octavo.async_llm import AsyncLLM
from octavo.engine.client import EngineDead
from octavo.text.intake import Intake
from octavo.types import InvalidRequest, OutputKind, SamplingParams
from tests.scripted_engine import EOS, VOCAB_SIZE, PieceTokenizer, Script, ScriptedEngine


def make(script: Script | None = None) -> tuple[AsyncLLM, ScriptedEngine]:
    tokenizer = PieceTokenizer()
    engine = ScriptedEngine(tokenizer, script or Script())
    return AsyncLLM(engine, Intake(tokenizer, 128, VOCAB_SIZE, (EOS,))), engine


def test_texts_grow_for_several_callers_at_once() -> None:
    llm, engine = make()

    async def texts(prompt: str | list[int], kind: OutputKind) -> list[str]:
        return [output.outputs[0].text async for output in llm.generate(prompt, SamplingParams(output_kind=kind), "same label")]

    async def run() -> list[list[str]]:
        return await asyncio.gather(texts("a", OutputKind.CUMULATIVE), texts([65], OutputKind.DELTA), texts("a", OutputKind.FINAL_ONLY))

    grown, deltas, final = asyncio.run(run())
    assert grown[0] == "Hello"
    assert grown[-1] == "".join(deltas) == final[0] == "Hello, world!"
    assert len(final) == 1
    assert not engine.aborted


def test_leaving_the_loop_aborts() -> None:
    llm, engine = make(Script(forever=True))

    async def run() -> None:
        async with aclosing(llm.generate("a", SamplingParams(max_tokens=100))) as outputs:
            async for _ in outputs:
                break

    asyncio.run(run())
    assert not engine.active
    assert len(engine.aborted) == 1


def test_abort_by_label_ends_the_stream_with_its_reason() -> None:
    llm, _ = make(Script(forever=True, step_s=0.001))

    async def run() -> list[str | None]:
        reasons = []
        async for output in llm.generate("a", SamplingParams(max_tokens=100), "mine"):
            reasons.append(output.outputs[0].finish_reason)
            assert output.request_id == "mine"
            await llm.abort("mine")
        return reasons

    assert asyncio.run(run()) == [None, "abort"]


def test_bad_requests_and_a_dead_engine() -> None:
    llm, engine = make()

    async def ask(prompt: str | list[int]) -> None:
        async for _ in llm.generate(prompt):
            pass

    with pytest.raises(InvalidRequest, match="prompt"):
        asyncio.run(ask([-1]))
    engine.dead = "gone"
    with pytest.raises(EngineDead, match="gone"):
        asyncio.run(ask("a"))
