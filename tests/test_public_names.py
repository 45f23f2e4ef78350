"""What `import octavo` offers."""

import subprocess
import sys

import pytest

import octavo


@pytest.mark.parametrize(
    "name",
    [
        "EngineConfig", "SamplingParams", "StructuredOutputsParams", "RequestOutput", "CompletionOutput", "EmbeddingRequestOutput",
        "ScoringRequestOutput", "TextPrompt", "TokensPrompt", "LLM", "AsyncLLM",
    ],
)
def test_public_names(name: str) -> None:
    assert getattr(octavo, name).__name__ in (name, "StructuredOutputs")
    assert name in dir(octavo)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="Llama"):
        octavo.Llama  # noqa: B018


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_program_says_its_version(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "octavo", *words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == octavo.__version__
