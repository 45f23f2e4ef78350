"""Who may import whom. A file stands in the first layer below whose prefix fits it."""

from __future__ import annotations

from tests.style.source import Source, sources

BASE = ("types", "env", "miss", "logs", "host")
TENSORS = (*BASE, "context", "registry", "core", "config", "ops")
NETWORK = (*TENSORS, "parallel", "quant", "attention", "layers")
HANDS = (*NETWORK, "grammar", "models", "sampling", "drafting", "text", "plan", "capture", "worker")

LAYERS: dict[str, tuple[str, ...]] = {
    "types": (),
    "env": (),
    "miss": ("env",),
    "logs": ("env",),
    "host.numa": ("host", "config.parallel", "config.fields", "env"),
    "host": ("env",),
    "registry": (),
    "context": (),
    "progress": (),
    "config.resolve": ("config", "plan", *BASE),  # it decides with plan's arithmetic, so it stands above plan
    "config.graphs": ("config", "plan.devices", *BASE),
    "config": BASE,
    "core": ("types", "config"),
    "plan": ("core", "config", *BASE),
    "text": ("types", "config", "env", "grammar.library"),
    "grammar": ("types", "text.detokenize"),
    "ops": ("context", "env", "miss", "host", "config.experts"),
    "parallel": TENSORS,
    "quant": (*TENSORS, "parallel"),
    "attention": TENSORS,
    "layers": (*TENSORS, "parallel", "quant", "attention"),
    "models": (*NETWORK, "text", "plan"),  # a checkpoint brings its tokeniser
    "sampling": ("ops", "context", "core", "config", *BASE),
    "drafting": (*NETWORK, "models", "sampling"),
    "capture": ("context", "core", "ops", "sampling"),
    "worker": HANDS,
    "cluster.headless": ("cluster", "engine.build", "engine", "config", *BASE),
    "cluster.ranks": ("cluster", "engine", "config", "parallel", *BASE),
    "cluster": ("engine", "config", "core", "plan.devices", "parallel.meeting", *BASE),
    "engine.build": (*HANDS, "engine", "cluster"),  # puts an engine together, so it knows the worker
    "engine.inline": (*HANDS, "engine"),
    "engine": ("cluster.coordinator", "core", "config", "plan", "grammar", *BASE),
    "ledger": (),
    "histogram": ("ledger",),
    "engine_metrics": (),
    "expert_metrics": (),
    "metrics": ("types", "engine.client", "engine_metrics", "expert_metrics", "histogram", "ledger"),
    "llm": ("engine", "cluster", "config", "plan", "text", "progress", "models.checkpoint", *BASE),
    "async_llm": ("engine", "cluster", "config", "text", "models.checkpoint", *BASE),
    "serve": (
        "async_llm", "engine", "cluster", "config", "text", "metrics", "histogram", "ledger", "models.checkpoint",
        "registry", "progress", *BASE,
    ),
    "simulate": ("core", "plan", "config", *BASE),
    "bench": (*HANDS, "engine", "llm", "progress", "simulate"),
    "doctor": ("host", "plan", "config", "ops.native.build", *BASE),
    "cli.doctor": ("cli", "doctor", "config", *BASE),
    "tune": ("bench", "attention.registry", "llm", "simulate", "core", "config", "plan", "progress", *BASE),
    "cli.plan": ("cli", "plan", "config", "models.checkpoint", "attention.registry", *BASE),
    "cli": ("llm", "serve", "bench", "tune", "plan", "simulate", "config", "text", "models.checkpoint", "progress", "engine.client", *BASE),
    "__main__": ("cli",),
}
TORCH_FREE = (
    "types", "env", "host", "registry", "config", "core", "plan", "simulate", "text", "grammar", "cli", "progress", "metrics",
    "expert_metrics",
)  # fmt: skip
PURE = (
    "torch",
    "numpy",
    "time",
    "datetime",
    "random",
    "secrets",
    "os",
    "io",
    "pathlib",
    "socket",
    "threading",
    "asyncio",
    "subprocess",
    "logging",
)


def fits(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def layer_of(source: Source) -> str:
    name = source.module.removeprefix("octavo.")
    return next(layer for layer in LAYERS if fits(name, layer))


def inside() -> list[Source]:
    """All files but the package's own `__init__`, which names the public classes."""
    return [source for source in sources() if source.module != "octavo"]


def inner(source: Source) -> set[str]:
    """Modules of the package that it imports, without the package's own name, which every file may ask for the version."""
    return {name.removeprefix("octavo.") for name in source.imports() if name.startswith("octavo.")}


def test_a_file_imports_only_what_its_layer_may() -> None:
    wrong = [
        f"{source.name} imports {name}"
        for source in inside()
        for name in sorted(inner(source))
        if not any(fits(name, allowed) for allowed in (layer_of(source), *LAYERS[layer_of(source)]))
    ]
    assert wrong == []


def test_the_layers_are_checked_by_a_rule_that_can_fail() -> None:
    assert fits("core.plan", "core")
    assert not fits("corex", "core")
    source = next(source for source in sources() if source.name == "config/resolve.py")
    assert layer_of(source) == "config.resolve"
    assert "plan.memory" in inner(source)
    assert not any(fits("plan.memory", allowed) for allowed in LAYERS["config"])


def test_only_the_brain_s_own_kind_of_imports() -> None:
    for source in sources():
        if fits(source.module, "octavo.core"):
            wrong = [name for name in source.imports() if name.split(".")[0] in PURE]
            assert not wrong, f"{source.name}: the core has no torch, no clock and no I/O"


def test_what_reads_and_plans_does_not_import_torch_at_the_top() -> None:
    for source in sources():
        if source.module == "octavo" or layer_of(source).split(".")[0] in TORCH_FREE:
            top = {alias.name for node in source.tree.body if hasattr(node, "names") for alias in node.names}
            top |= {getattr(node, "module", None) or "" for node in source.tree.body}
            assert not any(name.split(".")[0] == "torch" for name in top), source.name


def test_transformers_is_never_imported() -> None:
    for source in sources():
        assert not any(name.split(".")[0] == "transformers" for name in source.imports()), source.name


def test_no_two_files_import_each_other_even_over_others() -> None:
    imports = {source.module: {f"octavo.{name}" for name in inner(source)} for source in inside()}
    state: dict[str, str] = {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert state.get(module) != "open", f"cycle: {' -> '.join((*trail[trail.index(module) :], module))}"
        if module not in state:
            state[module] = "open"
            for other in sorted(imports.get(module, ())):
                visit(other, (*trail, module))
            state[module] = "done"

    for module in imports:
        visit(module, ())
