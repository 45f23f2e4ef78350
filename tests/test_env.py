"""Environment variables: read when asked, typed, with the names that vLLM's users know."""

from pathlib import Path

import pytest

from octavo import env


@pytest.mark.parametrize("variable", env.ALL.values(), ids=lambda variable: variable.name)
def test_unset_and_empty_mean_the_default(variable: env.Variable[object], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in filter(None, (variable.name, variable.also)):
        monkeypatch.delenv(name, raising=False)
    assert variable.get() == variable.default
    assert variable.given_as() is None
    monkeypatch.setenv(variable.name, "")
    assert variable.get() == variable.default
    assert len(variable.help) > 12


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        (env.CPU_KVCACHE_SPACE, "1.5", 1.5),
        (env.OMP_NUM_THREADS, "2", 2),
        (env.HF_HUB_OFFLINE, "1", True),
        (env.HF_HUB_OFFLINE, "off", False),
        (env.LOGGING_LEVEL, "debug", "DEBUG"),
        (env.API_KEY, "secret", "secret"),
        (env.CACHE_ROOT, "/somewhere", Path("/somewhere")),
    ],
)
def test_values_have_their_type(variable: env.Variable[object], text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable.name, text)
    assert variable.get() == value
    assert variable.given_as() == variable.name


def test_the_other_name_counts_and_ours_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    assert (env.CPU_KVCACHE_SPACE.get(), env.CPU_KVCACHE_SPACE.given_as()) == (3.0, "VLLM_CPU_KVCACHE_SPACE")
    monkeypatch.setenv("OCTAVO_CPU_KVCACHE_SPACE", "4")
    assert env.CPU_KVCACHE_SPACE.get() == 4.0


def test_another_engine_s_cache_folder_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_CACHE_ROOT", raising=False)
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/theirs")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert env.cache_root() == Path("/caches/octavo")


@pytest.mark.parametrize(
    ("variable", "text"),
    [(env.CPU_KVCACHE_SPACE, "lots"), (env.CPU_KVCACHE_SPACE, "-1"), (env.CPU_KVCACHE_SPACE, "nan"), (env.CPU_KVCACHE_SPACE, "inf"),
     (env.OMP_NUM_THREADS, "1.5"), (env.OMP_NUM_THREADS, "-1"), (env.HF_HUB_OFFLINE, "maybe"), (env.LOGGING_LEVEL, "LOUD")],
)  # fmt: skip
def test_bad_values_name_variable_value_and_meaning(variable: env.Variable[object], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable.name, text)
    with pytest.raises(env.BadEnvironment) as caught:
        variable.get()
    assert variable.name in str(caught.value)
    assert repr(text) in str(caught.value)
    assert variable.help in str(caught.value)
