import pytest

from octavo.registry import Registry


def test_names_are_imported_on_use():
    registry = Registry("thing", {"path": "os.path:join", "broken": "no.such.module:x"})
    assert registry.names() == ["path", "broken"]
    assert registry.load("path")("a", "b") == "a/b"
    with pytest.raises(ModuleNotFoundError):
        registry.load("broken")
    with pytest.raises(KeyError, match=r"no thing is named 'other'; there are: path, broken"):
        registry.load("other")
