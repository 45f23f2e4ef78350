"""`octavo plan`: what fits on a device, from a model's config.json alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from octavo.cli.flags import CommandLineError, Settings
from octavo.config.architecture import Architecture
from octavo.config.engine import ENGINE_TOPICS, EngineConfig
from octavo.config.fields import ConfigError, Flag, at_least
from octavo.config.model import ModelConfig
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.env import cache_root
from octavo.plan import predict
from octavo.plan.cost import SHIPPED, CostModel, cost_model
from octavo.plan.devices import GPUS, Device
from octavo.plan.memory import kv_layout, num_parameters, plan_memory
from octavo.plan.report import as_data, as_reasons, as_table, size


@dataclass(frozen=True)
class PlanOptions:
    """For which device, and how to print."""

    device: Annotated[str, Flag(f"cpu (this machine's), or {', '.join(GPUS)}")] = "cpu"
    input_len: Annotated[int, Flag("prompt tokens of the requests that the prediction is for")] = 512
    output_len: Annotated[int, Flag("their output tokens")] = 128
    load_input: Annotated[float | None, Flag("prompt tokens a second that are to be served, to say how many devices it takes")] = None
    load_output: Annotated[float | None, Flag("output tokens a second that are to be served")] = None
    compare: Annotated[tuple[str, ...], Flag("several layouts in a table, such as tp1 tp2 dp2tp2 pp2, in place of the page")] = ()
    json: Annotated[bool, Flag("print one JSON object")] = False

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len", "load_input", "load_output"):
            at_least(name, getattr(self, name), 1)
        for text in self.compare:
            _layout(text)


OPTIONS = PlanOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    options, asked = settings.topic(PlanOptions), settings.engine()
    try:
        device = Device.named(options.device)
    except ValueError as error:
        raise CommandLineError(f"--device: {error}") from None
    config = read_config(asked.model)
    arch = Architecture.from_config(config)
    if options.compare:
        return _compare(options, settings, config, arch, device)
    chosen = resolve(asked, config, device)
    plan = plan_memory(arch, chosen)
    costs, expected = _predict(options, arch, chosen, device)
    needs = _needs(options, chosen, expected)
    if options.json:
        head = {"model": asked.model.model, "device": device.name, "num_parameters": num_parameters(arch)}
        found = {"predicted": predict.as_data(expected, costs), **needs, "attention": _attention(arch, chosen, device)}
        print(json.dumps({**head, **as_data(plan, chosen), **found}))
        return 0
    print(f"{asked.model.model} on {device.name}: {num_parameters(arch):,} parameters in {chosen.dtype}\n")
    print("\n".join([as_table(plan, chosen), *predict.as_lines(expected, costs), *_needs_lines(needs, device)]))
    print(f"\n{as_reasons(chosen)}\n\n  attention")
    print("\n".join(f"    {name}: {why}" for name, why in _attention(arch, chosen, device).items()))
    return 0


def _predict(
    options: PlanOptions, arch: Architecture, chosen: Resolved, device: Device
) -> tuple[CostModel, predict.Prediction]:
    costs = cost_model(arch, chosen, device, (cache_root() / "costs", SHIPPED))
    layout = kv_layout(arch, chosen)
    length = min(options.input_len, chosen.max_model_len - 1)
    return costs, predict.predict(costs, chosen, layout, length, min(options.output_len, chosen.max_model_len - length))


def _needs(options: PlanOptions, chosen: Resolved, expected: predict.Prediction) -> dict[str, Any]:
    """Cores, and devices for the load that was named."""
    tensor, pipeline, data = chosen.tensor_parallel_size, chosen.pipeline_parallel_size, chosen.data_parallel_size
    found: dict[str, Any] = {"cpu_cores": predict.cores_needed(tensor, pipeline, data)}
    if options.load_input or options.load_output:
        given_in, given_out = options.load_input, options.load_output
        ratio = options.input_len / options.output_len
        wanted = given_in or (given_out or 0.0) * ratio, given_out or (given_in or 0.0) / ratio
        fleet = predict.fleet_for(expected, *wanted, tensor * pipeline)
        found["load"] = {"prompt_tokens_per_s": wanted[0], "output_tokens_per_s": wanted[1], **asdict(fleet)}
    return found


def _needs_lines(needs: Mapping[str, Any], device: Device) -> list[str]:
    lines = [f"    CPU cores: {needs['cpu_cores']}"] if device.kind == "cuda" else []
    if "load" in needs:
        load, (fewest, most) = needs["load"], needs["load"]["devices"]
        lines.append(
            f"    {load['prompt_tokens_per_s']:,.0f} prompt and {load['output_tokens_per_s']:,.0f} output tokens/s need "
            f"{fewest:,} to {most:,} x {device.name} ({predict.FULL_USE:.0%} to {predict.LIGHT_USE:.0%} used)"
        )
    return lines


HEADS = ("layout", "devices", "weights each", "KV tokens", "longest", "first token", "next tokens", "output tokens/s", "a device", "cores")


def _compare(options: PlanOptions, settings: Settings, config: Mapping[str, Any], arch: Architecture, device: Device) -> int:
    """A row for each layout; for one that does not fit the reason."""
    rows: list[dict[str, Any]] = []
    for text in options.compare:
        flags = settings.engine_flags() | _layout(text)
        try:
            chosen = resolve(EngineConfig.from_flags(**flags), config, device)
        except ConfigError as error:
            rows.append({"layout": text, "refused": str(error)})
            continue
        plan = plan_memory(arch, chosen)
        _, expected = _predict(options, arch, chosen, device)
        data, ranks = chosen.data_parallel_size, chosen.tensor_parallel_size * chosen.pipeline_parallel_size
        made = data * expected.output_tokens_per_s
        rows.append({
            "layout": text, "devices": data * ranks, "weight_bytes": plan.costs.weight_bytes, "kv_tokens": data * plan.kv_tokens,
            "longest_sequences": data * int(plan.max_concurrency), "ttft_s": expected.light.ttft_s, "itl_s": expected.light.itl_s,
            "output_tokens_per_s": made, "output_tokens_per_s_and_device": made / data / ranks, **_needs(options, chosen, expected),
        })  # fmt: skip
    print(json.dumps({"device": device.name, "layouts": rows}) if options.json else _rows_as_table(rows))
    return 0


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


def _layout(text: str) -> dict[str, int]:
    """tp2, dp4tp2, pp2 ... as flags."""
    found = re.findall(r"(dp|tp|pp)(\d+)", text)
    if not found or "".join(kind + count for kind, count in found) != text:
        raise ConfigError("compare", text, "layouts are written as tp2, pp2, dp4tp2 and the like")
    names = {"dp": "data_parallel_size", "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    return {names[kind]: int(count) for kind, count in found}


def _attention(arch: Architecture, chosen: Resolved, device: Device) -> dict[str, str]:
    """The attention backends by name: the chosen one first, then why each other is not."""
    from octavo.attention.registry import choose_attention  # it brings torch in, which the arithmetic above does without

    choice = choose_attention(arch, chosen, device.sm, elsewhere=device.kind == "cuda")
    return {choice.backend.name: "chosen", **choice.refused}


def read_config(model: ModelConfig) -> Mapping[str, Any]:
    """The model's config.json with overrides. No weight is read or fetched."""
    from octavo.models.checkpoint import open_checkpoint

    return open_checkpoint(
        model.model,
        revision=model.revision,
        load_format=model.load_format,
        hf_overrides=model.hf_overrides,
        download_dir=model.download_dir,
        weights=False,
    ).config
