"""How models tell what they think apart from what they answer, by the names that vLLM gives its parsers. A new kind is a line here."""

from __future__ import annotations

from octavo.serve.reasoning.think_tags import ThinkTags

REASONING_FORMATS = {
    "deepseek_r1": ThinkTags(implied=True),
    "deepseek_v3": ThinkTags(),
    "qwen3": ThinkTags(),
    "glm45": ThinkTags(),
    "step3": ThinkTags(implied=True),
    "mistral": ThinkTags("[THINK]", "[/THINK]"),
    "seed_oss": ThinkTags("<seed:think>", "</seed:think>"),
}
