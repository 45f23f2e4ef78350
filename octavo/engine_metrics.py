"""What engines tell of themselves, under the names and with the texts that Prometheus shows."""

from __future__ import annotations

GAUGES = {
    "num_requests_running": ("Requests that are being computed", lambda stats: stats.num_requests_running),
    "num_requests_waiting": ("Requests that wait for their first step or to resume", lambda stats: stats.num_requests_waiting),
    "kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1", lambda stats: stats.kv_cache_usage),
    # Older names of the same facts; nothing is ever swapped to the host.
    "gpu_cache_usage_perc": ("Same as kv_cache_usage_perc", lambda stats: stats.kv_cache_usage),
    "cpu_cache_usage_perc": ("Always 0: preempted requests are computed anew", lambda stats: 0.0),
    "num_requests_swapped": ("Always 0: preempted requests are computed anew", lambda stats: 0),
}
ENGINE_COUNTERS = {
    "num_preemptions": ("Times a running request gave its blocks back", lambda stats: stats.num_preemptions),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache", lambda stats: stats.prefix_cache_queries),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache", lambda stats: stats.prefix_cache_hits),
    "engine_steps": ("Steps that the engine has run", lambda stats: stats.num_steps),
    "engine_generation_tokens": ("Tokens sampled, also those past a stop string", lambda stats: stats.generation_tokens),
}
# Further counts an engine may keep, by its own names; zero where it has none, so that a dashboard always finds them.
FURTHER_COUNTERS = {
    "failed_steps": ("failed_steps", "Steps that raised an error"),
    "oom_events": ("oom_events", "Times the device had no memory left"),
    "cache_evictions": ("kv_evictions", "Cached blocks given to other requests"),
    "spec_decode_num_drafts": ("drafts", "Times tokens were drafted"),
    "spec_decode_num_draft_tokens": ("draft_tokens", "Tokens drafted"),
    "spec_decode_num_accepted_tokens": ("draft_tokens_accepted", "Drafted tokens that were accepted"),
}
FURTHER_GAUGES = {
    "sleep_level": "How deep the engine sleeps: 0 awake, 1 weights on the host, 2 weights dropped",
    "kv_cached_blocks": "Blocks that hold cached prefixes and may be given away",
    "prefix_match_tokens": "Prompts share prefixes in multiples of so many tokens",
    "longest_step_seconds": "How long the engine expects its longest step to take",
    "prompt_tokens_per_second": "How fast the engine expects to read a prompt that comes alone",
}
