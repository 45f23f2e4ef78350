"""`octavo plan`: what fits on a device, from a model's config.json alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from octavo.cli.flags import CommandLineError, Settings
from octavo.config.architecture import Architecture
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import Flag
from octavo.config.model import ModelConfig
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.plan.devices import GPUS, Device
from octavo.plan.memory import num_parameters, plan_memory
from octavo.plan.report import as_data, as_reasons, as_table


@dataclass(frozen=True)
class PlanOptions:
    """For which device, and how to print."""

    device: Annotated[str, Flag(f"cpu (this machine's), or {', '.join(GPUS)}")] = "cpu"
    json: Annotated[bool, Flag("print one JSON object")] = False


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
    chosen = resolve(asked, config, device)
    plan = plan_memory(arch, chosen, device)
    if options.json:
        head = {"model": asked.model.model, "device": device.name, "num_parameters": num_parameters(arch)}
        print(json.dumps({**head, **as_data(plan, chosen), "attention": _attention(arch, chosen, device)}))
        return 0
    print(f"{asked.model.model} on {device.name}: {num_parameters(arch):,} parameters in {chosen.dtype}\n")
    print(f"{as_table(plan, chosen)}\n\n{as_reasons(chosen)}\n\n  attention")
    print("\n".join(f"    {name}: {why}" for name, why in _attention(arch, chosen, device).items()))
    return 0


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
