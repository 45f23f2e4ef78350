"""Model families by name, and how a model is built from what was decided."""

from __future__ import annotations

import functools
import logging

import torch

from octavo.attention.registry import choose_attention
from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.config.stages import stage
from octavo.layers.env import Env
from octavo.layers.rotary import rope_table
from octavo.models.base import CausalLM
from octavo.models.materialize import materialize
from octavo.ops.select import choose_ops
from octavo.parallel.dispatch import DISPATCHES
from octavo.parallel.mesh import Mesh
from octavo.quant.checkpoint import ChooseScheme, plain_scheme
from octavo.registry import Registry

log = logging.getLogger(__name__)

LAYERS = Registry(
    "model family",
    {
        "llama": "octavo.models.dense:PreNormLayer",
        "mistral": "octavo.models.dense:PreNormLayer",
        "qwen2": "octavo.models.dense:PreNormLayer",
        "qwen3": "octavo.models.dense:PreNormLayer",
        "mixtral": "octavo.models.moe:MixtralLayer",
        "qwen2_moe": "octavo.models.moe:QwenMoeLayer",
        "qwen3_moe": "octavo.models.moe:QwenMoeLayer",
        "gpt_oss": "octavo.models.moe:GptOssLayer",
        "deepseek_v2": "octavo.models.deepseek:DeepseekLayer",
        "deepseek_v3": "octavo.models.deepseek:DeepseekLayer",
        "smollm3": "octavo.models.dense:PreNormLayer",
        "phi3": "octavo.models.dense:PreNormLayer",
        "granite": "octavo.models.dense:PreNormLayer",
        "olmo2": "octavo.models.dense:PostNormLayer",
        "gemma2": "octavo.models.gemma:SandwichLayer",
        "gemma3_text": "octavo.models.gemma:SandwichLayer",
    },
)


ALONE = Mesh()


def build_model(
    architecture: Architecture, settings: Resolved, mesh: Mesh = ALONE, scheme: ChooseScheme = plain_scheme
) -> CausalLM:
    """This rank's part of the model, its parameters allocated on the device and not yet filled (`load` or `fill_dummy` does that).

    `scheme` gives each layer the way its weights are stored. Raises ValueError when no attention backend fits.
    """
    device = torch.device(settings.device)
    attention = choose_attention(architecture, settings, _compute_capability(device))
    log.info("attention by %s", attention)
    model = CausalLM(architecture, stage(architecture.num_layers, mesh.pp.rank, mesh.pp.size), LAYERS.load(architecture.family))
    env = Env(
        device=device,
        dtype=getattr(torch, settings.dtype),
        kv_dtype=settings.kv_dtype,
        ops=choose_ops(device.type, settings.optimization_level, settings.batch_invariant),
        attention=attention.backend,
        mesh=mesh,
        dispatch=DISPATCHES.load(settings.dispatch),
        scheme=scheme,
        rope_table=functools.cache(lambda rope: rope_table(rope, settings.max_model_len, device)),
    )
    materialize(model, env)
    return model


def _compute_capability(device: torch.device) -> int:
    """90 for 9.0; 0 where it means nothing."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
