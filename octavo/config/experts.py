"""Mixtures of experts as a config asks for them: which layers have experts, how many, and how a token's are chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.config.hf_config import HfConfig, UnsupportedModel


@dataclass(frozen=True)
class Choice:
    """How a token's experts are chosen by the router's logits, one an expert, and how their results are weighted."""

    per_token: int
    score: str = "softmax"  # or "sigmoid"; of the logits, in float32
    renormalize: bool = False  # the weights of a token's experts are made to sum to 1
    scale: float = 1.0  # multiplies the weights, last
    num_groups: int = 1  # neighbouring experts form groups of equal size,
    groups_per_token: int = 1  # and only the experts of the best so many groups can be chosen
    group_best: int = 1  # a group is worth the sum of its best so many scores


@dataclass(frozen=True)
class Experts:
    """The experts that a layer has in place of its MLP."""

    num: int
    intermediate: int
    choice: Choice
    activation: str | None = None  # None: the model's
    bias: bool = False  # of the experts' products and of the router
    correction: bool = False  # a learned number an expert is added to its score where experts are chosen, and not where they are weighted
    wide_router: bool = False  # the router's product is in float32
    shared_intermediate: int = 0  # of an MLP beside them that every token goes through; 0: there is none
    shared_gate: bool = False  # its result is multiplied by the sigmoid of one more product


ExpertsByLayer = tuple[Experts | None, ...]  # None: the layer has an MLP


def no_experts(config: HfConfig, num_layers: int) -> ExpertsByLayer:
    """An MLP in every layer."""
    return (None,) * num_layers


def mixtral(config: HfConfig, num_layers: int) -> ExpertsByLayer:
    """The same in every layer."""
    choice = _choice(config, renormalize=True)
    return (_experts(config, "num_local_experts", config.count("intermediate_size"), choice),) * num_layers


def qwen_moe(config: HfConfig, num_layers: int) -> ExpertsByLayer:
    """Qwen 2 and 3: every `decoder_sparse_step`-th layer, but for those that `mlp_only_layers` lists."""
    num = "num_local_experts" if config.get("num_local_experts") is not None else "num_experts"
    choice = _choice(config, renormalize=config.flag("norm_topk_prob"))
    experts = _experts(config, num, config.count("moe_intermediate_size"), choice)
    shared = config.get("shared_expert_intermediate_size", 0)
    experts = replace(experts, shared_intermediate=shared, shared_gate=bool(shared))
    every, plain = config.count("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    return tuple(experts if i not in plain and (i + 1) % every == 0 else None for i in range(num_layers))


def gpt_oss(config: HfConfig, num_layers: int) -> ExpertsByLayer:
    """The gate of its experts has its two numbers in the config; one pair is known."""
    for key, known in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if config.number(key, known) != known:
            raise UnsupportedModel(f"config.json: {key} = {config.get(key)!r} is not supported, only {known} is")
    experts = _experts(config, "num_local_experts", config.count("intermediate_size"), _choice(config, renormalize=True))
    return (replace(experts, activation="clamped_swiglu", bias=True),) * num_layers


def deepseek_v2(config: HfConfig, num_layers: int) -> ExpertsByLayer:
    """Groups are ranked by their best expert (`group_limited_greedy`), or there are none (`greedy`)."""
    method = config.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModel(f"config.json: topk_method = {method!r} is not supported; supported are greedy and group_limited_greedy")
    choice = _choice(config, scale=config.number("routed_scaling_factor", 1.0))
    return _deepseek(config, num_layers, choice if method == "greedy" else _grouped(config, choice, best=1))


def deepseek_v3(config: HfConfig, num_layers: int) -> ExpertsByLayer:
    """Groups are ranked by their two best experts, corrections counted in."""
    choice = _choice(config, score="sigmoid", renormalize=config.flag("norm_topk_prob"), scale=config.number("routed_scaling_factor"))
    layers = _deepseek(config, num_layers, _grouped(config, choice, best=2))
    return tuple(experts and replace(experts, correction=True) for experts in layers)


def _deepseek(config: HfConfig, num_layers: int, choice: Choice) -> ExpertsByLayer:
    """All layers but the first `first_k_dense_replace`."""
    each = config.count("moe_intermediate_size")
    experts = replace(
        _experts(config, "n_routed_experts", each, choice), wide_router=True, shared_intermediate=each * config.get("n_shared_experts", 0)
    )
    first = config.get("first_k_dense_replace", 0)
    return tuple(experts if i >= first else None for i in range(num_layers))


def _choice(config: HfConfig, *, score: str = "softmax", renormalize: bool = False, scale: float = 1.0) -> Choice:
    return Choice(config.count("num_experts_per_tok"), score, renormalize, scale)


def _grouped(config: HfConfig, choice: Choice, best: int) -> Choice:
    groups = config.count("n_group", 1)
    return replace(choice, num_groups=groups, groups_per_token=config.count("topk_group", 1), group_best=best)


def _experts(config: HfConfig, num_key: str, intermediate: int, choice: Choice) -> Experts:
    num = config.count(num_key)
    if choice.per_token > num:
        raise UnsupportedModel(f"config.json: num_experts_per_tok = {choice.per_token} is more than {num_key} = {num}")
    groups = choice.num_groups
    if num % groups or choice.groups_per_token > groups or choice.per_token > choice.groups_per_token * (num // groups):
        raise UnsupportedModel(
            f"config.json: num_experts_per_tok = {choice.per_token} of {num_key} = {num} cannot be chosen in "
            f"topk_group = {choice.groups_per_token} of n_group = {groups} groups"
        )
    return Experts(num, intermediate, choice)
