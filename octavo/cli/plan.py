"""`octavo plan`: what fits on a device, from a model's config.json alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from octavo.cli.flags import CommandLineError, Settings
from octavo.config.architecture import Architecture
from octavo.config.engine import ENGINE_TOPICS, EngineConfig
from octavo.config.fields import ConfigError, Flag, at_least
from octavo.config.model import ModelConfig
from octavo.config.resolve import divides, resolve
from octavo.config.resolved import Resolved
from octavo.env import cache_root
from octavo.plan import predict
from octavo.plan.cost import SHIPPED, CostModel, Roofline, cost_model
from octavo.plan.devices import GPUS, Device
from octavo.plan.memory import LENGTHS, MemoryPlan, kv_layout, num_parameters, plan_memory
from octavo.plan.remarks import Planned, Remark, remarks_on
from octavo.plan.report import as_data, as_reasons, as_table, by_format, formats_as_lines, size

ALL = "all"  # layouts, for --compare
NO_ROOM = ("model", "gpu_memory_utilization", "max_model_len")  # what a device without room is told by
SPREADS = (2, 4, 8, 16, 32)  # ranks that are tried then


@dataclass(frozen=True)
class PlanOptions:
    """For which devices and which requests, and how to print."""

    device: Annotated[str, Flag(f"here (this machine's GPUs, or its CPU), cpu, or {', '.join(GPUS)}")] = "here"
    devices: Annotated[
        int | None, Flag("how many there are; without a layout, the fewest ranks that hold the model, and replicas of them")
    ] = None
    lengths: Annotated[tuple[int, ...], Flag("tokens of sequences, to say how many of each fit")] = LENGTHS
    input_len: Annotated[int, Flag("prompt tokens of the requests that the prediction is for")] = 512
    output_len: Annotated[int, Flag("their output tokens")] = 128
    media_tokens: Annotated[int, Flag("tokens that the images, videos and sounds of a request take, beside those of its text")] = 0
    load_input: Annotated[float | None, Flag("prompt tokens a second that are to be served, to say how many devices it takes")] = None
    load_output: Annotated[float | None, Flag("output tokens a second that are to be served")] = None
    compare: Annotated[
        tuple[str, ...], Flag("layouts in a table in place of the page, such as tp1 tp2 dp2tp2 dp4ep pp2; all: those of --devices")
    ] = ()
    json: Annotated[bool, Flag("print one JSON object")] = False

    def __post_init__(self) -> None:
        for name in ("devices", "input_len", "output_len", "load_input", "load_output"):
            at_least(name, getattr(self, name), 1)
        at_least("media_tokens", self.media_tokens, 0)
        for length in self.lengths:
            at_least("lengths", length, 1)
        for text in self.compare:
            if text != ALL:
                _layout(text)

    @property
    def prompt_len(self) -> int:
        return self.input_len + self.media_tokens


OPTIONS = PlanOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    options, asked = settings.topic(PlanOptions), settings.engine()
    try:
        device, count = Device.here() if options.device.lower() == "here" else (Device.named(options.device), options.devices or 1)
    except ValueError as error:
        raise CommandLineError(f"--device: {error}") from None
    count = options.devices or count
    config = read_config(asked.model)
    arch = Architecture.from_config(config)
    if options.compare:
        return _compare(options, settings, config, arch, device, count)
    flags = settings.engine_flags()
    if options.devices:
        flags = _laid_out(flags, config, arch, device, count)
    found = _plan(options, _resolved(flags, config, arch, device), config, arch, device)
    data, ranks = found.settings.data_parallel_size, found.settings.tensor_parallel_size * found.settings.pipeline_parallel_size
    if options.json:
        head = {"model": asked.model.model, "device": device.name, "devices": data * ranks, "num_parameters": num_parameters(arch)}
        print(json.dumps({**head, **found.as_data(), "attention": _attention(arch, found.settings, device)}))
        return 0
    of = f"{data * ranks} x {device.name} ({_layout_text(found.settings)})" if data * ranks > 1 else device.name
    print(f"{asked.model.model} on {of}: {num_parameters(arch):,} parameters in {found.settings.dtype}\n")
    print("\n".join(found.as_lines(device)))
    print(f"\n{as_reasons(found.settings)}\n  attention: {_attention_line(_attention(arch, found.settings, device))}")
    return 0


@dataclass(frozen=True)
class _Found:
    """All that the page says of one layout."""

    settings: Resolved
    plan: MemoryPlan
    formats: Mapping[str, Any]
    costs: CostModel
    expected: predict.Prediction
    needs: Mapping[str, Any]
    remarks: list[Remark]

    def as_lines(self, device: Device) -> list[str]:
        lines = [as_table(self.plan, self.settings), *formats_as_lines(self.formats), "", *predict.as_lines(self.expected, self.costs)]
        warned = [f"  ! {remark.text}" for remark in self.remarks]
        return [*lines, *_needs_lines(self.needs, device), *(["", *warned] if warned else [])]

    def as_data(self) -> dict[str, Any]:
        told = {"predicted": predict.as_data(self.expected, self.costs), "warnings": [asdict(remark) for remark in self.remarks]}
        return {**as_data(self.plan, self.settings), **self.formats, **told, **self.needs}


def _plan(options: PlanOptions, chosen: Resolved, config: Mapping[str, Any], arch: Architecture, device: Device) -> _Found:
    costs, length = cost_model(arch, chosen, device, (cache_root() / "costs", SHIPPED)), min(options.prompt_len, chosen.max_model_len - 1)
    output_len = min(options.output_len, chosen.max_model_len - length)

    def again(settings: Resolved) -> predict.Prediction:
        model = replace(costs, roofline=Roofline.of(arch, settings, device)) if settings != chosen else costs
        return predict.predict(model, settings, kv_layout(arch, settings), length, output_len)

    expected, plan = again(chosen), plan_memory(arch, chosen, [length + options.media_tokens for length in options.lengths])
    needs = _needs(options, chosen, expected)
    formats = by_format(arch, chosen, (config.get("quantization_config") or {}).get("tensors") or {})
    judged = Planned(arch, chosen, device, plan, expected, again, needs["cpu_cores"])
    return _Found(chosen, plan, formats, costs, expected, needs, remarks_on(judged))


def _resolved(flags: Mapping[str, Any], config: Mapping[str, Any], arch: Architecture, device: Device) -> Resolved:
    """What the engine would run with. Raises `ConfigError`, with the ranks over which the model would fit, where there are such."""
    asked = EngineConfig.from_flags(**flags)
    try:
        return resolve(asked, config, device)
    except ConfigError as error:
        if error.name in NO_ROOM and device.kind == "cuda" and asked.parallel.world_size == 1:
            for ranks in SPREADS:
                if divides(arch, ranks) and _fits({**flags, "tensor_parallel_size": ranks}, config, device):
                    text = f"{error.allowed}; or --tensor-parallel-size {ranks}, with which it fits on {ranks} x {device.name}"
                    raise ConfigError(error.name, error.value, text) from None
        raise


def _fits(flags: Mapping[str, Any], config: Mapping[str, Any], device: Device) -> bool:
    try:
        resolve(EngineConfig.from_flags(**flags), config, device)
    except ConfigError:
        return False
    return True


def _laid_out(
    flags: Mapping[str, Any], config: Mapping[str, Any], arch: Architecture, device: Device, count: int
) -> dict[str, Any]:
    """The flags with a layout for so many devices. Raises `ConfigError` where a given one takes more."""
    given = EngineConfig.from_flags(**flags).parallel
    taken = given.world_size * given.data_parallel_size
    if taken > count:
        raise ConfigError("devices", count, f"the layout that is asked for takes {taken}")
    if taken > 1:
        return dict(flags)
    for ranks in _tensor_sizes(arch, count):
        found = {**flags, "tensor_parallel_size": ranks, "data_parallel_size": count // ranks}
        if _fits(found, config, device):
            return found
    return dict(flags)


def _layout_text(settings: Resolved) -> str:
    names = {"tp": settings.tensor_parallel_size, "pp": settings.pipeline_parallel_size, "dp": settings.data_parallel_size}
    text = " ".join(f"{name}{size}" for name, size in names.items() if size > 1)
    return text + (f" ep{settings.expert_parallel_size}" if settings.expert_parallel_size > 1 else "")


def _needs(options: PlanOptions, chosen: Resolved, expected: predict.Prediction) -> dict[str, Any]:
    """Cores, and devices for the load that was named."""
    tensor, pipeline, data = chosen.tensor_parallel_size, chosen.pipeline_parallel_size, chosen.data_parallel_size
    found: dict[str, Any] = {"cpu_cores": predict.cores_needed(tensor, pipeline, data)}
    if options.load_input or options.load_output:
        given_in, given_out = options.load_input, options.load_output
        ratio = options.prompt_len / options.output_len
        wanted = given_in or (given_out or 0.0) * ratio, given_out or (given_in or 0.0) / ratio
        fleet = predict.fleet_for(expected, *wanted, tensor * pipeline)
        found["load"] = {"prompt_tokens_per_s": wanted[0], "output_tokens_per_s": wanted[1], **asdict(fleet)}
    return found


def _attention_line(backends: Mapping[str, str]) -> str:
    """The chosen one, and the reasons that are no mere order."""
    chosen = next((name for name, why in backends.items() if why == "chosen"), "none")
    passed = [f"not {name}: {why}" for name, why in backends.items() if why != "chosen" and "comes first" not in why]
    return "; ".join([chosen, *passed])


def _needs_lines(needs: Mapping[str, Any], device: Device) -> list[str]:
    cores = f"    physical CPU cores: {needs['cpu_cores']} (a front and an engine a replica, a worker a device)"
    lines = [cores] if device.kind == "cuda" else []
    if "load" in needs:
        load, (fewest, most) = needs["load"], needs["load"]["devices"]
        lines.append(
            f"    {load['prompt_tokens_per_s']:,.0f} prompt and {load['output_tokens_per_s']:,.0f} output tokens/s need "
            f"{fewest:,} to {most:,} x {device.name} ({predict.FULL_USE:.0%} to {predict.LIGHT_USE:.0%} used)"
        )
    return lines


HEADS = ("layout", "devices", "weights each", "KV tokens", "longest", "first token", "next tokens", "output tokens/s", "a device", "cores")


def _compare(
    options: PlanOptions, settings: Settings, config: Mapping[str, Any], arch: Architecture, device: Device, count: int
) -> int:
    """A row for each layout; for one that does not fit the reason."""
    rows: list[dict[str, Any]] = []
    for text in (one for given in options.compare for one in (_layouts(arch, count) if given == ALL else [given])):
        try:
            chosen = resolve(EngineConfig.from_flags(**settings.engine_flags() | _layout(text)), config, device)
        except ConfigError as error:
            rows.append({"layout": text, "refused": str(error)})
            continue
        found = _plan(options, chosen, config, arch, device)
        data, ranks = chosen.data_parallel_size, chosen.tensor_parallel_size * chosen.pipeline_parallel_size
        plan, expected = found.plan, found.expected
        made = data * expected.output_tokens_per_s
        rows.append({
            "layout": text, "devices": data * ranks, "weight_bytes": plan.costs.weight_bytes, "kv_tokens": data * plan.kv_tokens,
            "longest_sequences": data * int(plan.max_concurrency), "ttft_s": expected.light.ttft_s, "itl_s": expected.light.itl_s,
            "output_tokens_per_s": made, "output_tokens_per_s_and_device": made / data / ranks,
            "warnings": [remark.kind for remark in found.remarks], **found.needs,
        })  # fmt: skip
    print(json.dumps({"device": device.name, "layouts": rows}) if options.json else _rows_as_table(rows))
    return 0


def _layouts(arch: Architecture, count: int) -> list[str]:
    """All that take so many devices."""
    found: list[str] = []
    for tensor in _tensor_sizes(arch, count):
        rest = count // tensor
        for stages in (number for number in range(1, min(rest, arch.num_layers) + 1) if rest % number == 0):
            sizes = {"dp": rest // stages, "tp": tensor, "pp": stages}
            found.append("".join(f"{name}{number}" for name, number in sizes.items() if number > 1) or "tp1")
    return found


def _tensor_sizes(arch: Architecture, count: int) -> list[int]:
    """Over how many of so many devices layers can be cut."""
    return [ranks for ranks in range(1, count + 1) if count % ranks == 0 and divides(arch, ranks)]


def _rows_as_table(rows: list[dict[str, Any]]) -> str:
    lines = ["".join(f"{head:>17}" for head in HEADS)]
    for row in rows:
        if "refused" in row:
            lines.append(f"{row['layout']:>17}  {row['refused']}")
            continue
        cells = (
            row["layout"], row["devices"], size(row["weight_bytes"]), f"{row['kv_tokens']:,}", f"{row['longest_sequences']:,}",
            f"{1000 * row['ttft_s']:,.0f} ms", f"{1000 * row['itl_s']:.1f} ms", f"{row['output_tokens_per_s']:,.0f}",
            f"{row['output_tokens_per_s_and_device']:,.0f}", row["cpu_cores"],
        )  # fmt: skip
        lines.append("".join(f"{cell:>17}" for cell in cells))
    lines.append(f"  latencies at {predict.LIGHT_USE:.0%} of the capacity; longest: sequences of the longest context that fit at once")
    return "\n".join(lines)


def _layout(text: str) -> dict[str, Any]:
    """tp2, dp4tp2, pp2, dp4ep ... as flags."""
    found = re.findall(r"(dp|tp|pp)(\d+)", text)
    experts = text.endswith("ep")
    if not found or "".join(kind + count for kind, count in found) + "ep" * experts != text:
        raise ConfigError("compare", text, "layouts are written as tp2, pp2, dp4tp2, dp4ep and the like; all: those of --devices")
    names = {"dp": "data_parallel_size", "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    return {names[kind]: int(count) for kind, count in found} | ({"enable_expert_parallel": True} if experts else {})


def _attention(arch: Architecture, chosen: Resolved, device: Device) -> dict[str, str]:
    """The attention backends by name: the chosen one first, then why each other is not."""
    from octavo.attention.registry import choose_attention  # it brings torch in, which the arithmetic above does without

    choice = choose_attention(arch, chosen, device.sm, elsewhere=device.kind == "cuda")
    return {choice.backend.name: "chosen", **choice.refused}


def read_config(model: ModelConfig) -> Mapping[str, Any]:
    """The model's config.json with overrides; the file itself may be named too. No weight is read or fetched."""
    from octavo.models import checkpoint

    if model.model.endswith(".json"):
        return checkpoint.merged(checkpoint.read_config(Path(model.model)), model.hf_overrides)
    return checkpoint.open_checkpoint(
        model.model,
        revision=model.revision,
        load_format=model.load_format,
        hf_overrides=model.hf_overrides,
        download_dir=model.download_dir,
        weights=False,
    ).config
