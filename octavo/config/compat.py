"""Flags of vLLM that Octavo does not have: each is accepted with one note, where it cannot change results, or refused with the reason and
the alternative. Data only; a value listed as harmless asks for nothing and passes in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Takes = Literal["value", "list", "switch"]


@dataclass(frozen=True)
class Foreign:
    """What becomes of a flag that is not a setting of Octavo."""

    refused: bool
    reason: str
    harmless: tuple[object, ...] = ()
    takes: Takes = "value"
    short: tuple[str, ...] = ()

    def harmless_value(self, value: object) -> bool:
        asked_nothing = value is None or value is False or value in ("", "None", "none", "null", "{}", "[]", {}, [], ())
        return asked_nothing or str(value).lower() in {str(known).lower() for known in self.harmless}


def _noted(reason: str, *harmless: object, takes: Takes = "value", short: str = "") -> Foreign:
    return Foreign(False, reason, harmless, takes, tuple(short.split()))


def _refused(reason: str, *harmless: object, takes: Takes = "value", short: str = "") -> Foreign:
    return Foreign(True, reason, harmless, takes, tuple(short.split()))


_FIXED = "the number of replicas is fixed at the start, and one that ends ends all; start anew with another --data-parallel-size"
_WHOLE = "contexts are not cut over ranks; use 1"
_NO_RECURRENT = "the models of this version have no recurrent layers"
_TEXT_ONLY = "the models of this version read text only"
_NO_ADAPTERS = "adapters are not loaded by this version; merge the adapter into the model's weights and serve that folder"
_NO_DRAFTS = "speculative decoding is not part of this version; leave it out, the text is the same without"
_NO_OFFLOAD = "weights stay on the device; use a smaller model or more devices"
_NO_POOLING = "every model generates and gives vectors (/v1/embeddings, LLM.embed) without a flag; heads that classify are not loaded"
_FOREIGN_CODE = "classes are not loaded by name; add a file to the project instead (docs/architecture.md)"
_OWN_KERNELS = "kernels are chosen by device and shape"
_NO_AUXILIARY = "answers carry tokens, texts, vectors and log-probabilities only; leave it out"
_NO_SUPERVISOR = "replicas of one host are watched by the server that starts them; leave it out"
_NO_COHERE = "there are no routes of Cohere's form"
_NO_TOOLS = "the server calls no tools itself; leave it out and call them in the client"

MODEL = {
    "task": _refused(_NO_POOLING, "auto", "generate", "embed", "embedding", "score"),
    "runner": _refused(_NO_POOLING, "auto", "generate", "pooling"),
    "convert": _refused(_NO_POOLING, "auto", "embed"),
    "pooler_config": _refused('use --pooling-type last or mean; a request asks for vectors as they are with "normalize": false'),
    "tokenizer_mode": _refused("there is one kind of tokeniser, read from tokenizer.json or from the .gguf file; use auto", "auto", "hf"),
    "trust_remote_code": _refused(
        "code that comes with a checkpoint is never run; use a model whose architecture Octavo knows", takes="switch"
    ),
    "hf_config_path": _refused("config.json is read beside the weights; use --hf-overrides to change entries of it"),
    "config_format": _refused("the only format is config.json; use auto", "auto", "hf"),
    "code_revision": _noted("no code of a checkpoint is run, so its revision does not matter"),
    "disable_sliding_window": _refused(
        "the window is part of the model; set --max-model-len to the window's length instead", takes="switch"
    ),
    "disable_cascade_attn": _noted("shared prefixes are not computed apart, so there is nothing to switch off", takes="switch"),
    "enable_prompt_embeds": _refused("prompts are text or token ids; leave it out", takes="switch"),
    "hf_token": _refused("set HF_TOKEN in the environment, where the list of processes does not show it"),
    "logprobs_mode": _refused(
        "log-probabilities are the model's own, before penalties, bias and temperature; use raw_logprobs", "raw_logprobs"
    ),
    "model_impl": _refused("models are Octavo's own; use auto", "auto", "vllm"),
    "quantization_config": _refused("weights are used in the format of the checkpoint; leave it out"),
    "allow_deprecated_quantization": _noted("no method is deprecated here", takes="switch"),
    "renderer_num_workers": _noted("templates and tokenisation run in the server's own threads"),
    "io_processor_plugin": _refused(_FOREIGN_CODE),
    "model_class_overrides": _refused(_FOREIGN_CODE),
    "safetensors_load_strategy": _noted("files are read in parallel in one way"),
    "model_loader_extra_config": _noted("the loader chooses its threads by itself"),
    "ignore_patterns": _noted("only the files that are needed are fetched", takes="list"),
    "use_tqdm_on_load": _noted("loading prints one line with its rate", takes="switch"),
    "pt_load_map_location": _noted("weights go straight to their device"),
    "safetensors_prefetch_num_threads": _noted("files are read in parallel in one way"),
    "safetensors_prefetch_block_size": _noted("files are read in parallel in one way"),
    "model_weights": _noted("weights are read from the model's own folder or file"),
    "enable_return_routed_experts": _refused(_NO_AUXILIARY, takes="switch"),
    "return_sampling_mask": _refused(_NO_AUXILIARY, takes="switch"),
    "aux_output_config": _refused(_NO_AUXILIARY),
    "enable_trace_replay": _refused("a text is sampled, never dictated; prompt_logprobs score one that is given", takes="switch"),
    "use_fp64_gumbel": _noted("there is one way of drawing, told in docs/sampling.md", takes="switch"),
    "watermark_config": _refused("texts carry no watermark; leave it out"),
    "diffusion_config": _refused("models write from left to right; leave it out", short="-dc"),
    "engram_config": _noted("no model of this version has such tables"),
    "reasoning_config": _noted("--reasoning-parser says how reasoning is written, and its length is not limited apart"),
    "weight_transfer_config": _refused("weights come from files; leave it out"),
    "sleep_mode_offload_cudagraph": _noted("graphs are recorded anew when a model wakes", takes="switch"),
    "sleep_preserve_parameter_names": _noted("all weights of a dropped model are loaded anew", takes="list"),
    "enable_cumem_allocator": _noted("memory comes from PyTorch's allocator", takes="switch"),
    "enable_nccl_comm_suspend": _noted("ranks keep their connections while a model sleeps", takes="switch"),
}

CACHE = {
    "kv_cache_dtype_skip_layers": _refused("all layers of a model cache in one format; leave it out", takes="list"),
    "calculate_kv_scales": _refused("scales come from the checkpoint; leave it out", takes="switch"),
    "prefix_caching_hash_algo": _noted("blocks are always hashed with SHA-256, the same in every process", "sha256"),
    "prefix_cache_retention_interval": _noted("blocks are kept until their memory is needed", "0"),
    "prefix_match_unit": _noted("the unit of a prefix hit is a block"),
    "mamba_block_size": _noted(_NO_RECURRENT),
    "mamba_cache_mode": _noted(_NO_RECURRENT),
    "mamba_cache_dtype": _noted(_NO_RECURRENT, "auto"),
    "mamba_ssm_cache_dtype": _noted(_NO_RECURRENT, "auto"),
    "mamba_config": _noted(_NO_RECURRENT),
    "mamba_backend": _noted(_NO_RECURRENT),
    "mamba_ssu_algorithm": _noted(_NO_RECURRENT),
    "mamba_cache_philox_rounds": _noted(_NO_RECURRENT, "0"),
    "enable_mamba_cache_stochastic_rounding": _noted(_NO_RECURRENT, takes="switch"),
    "enable_mamba_shared_prefix_checkpoint": _noted(_NO_RECURRENT, takes="switch"),
    "use_replayssm": _noted(_NO_RECURRENT, takes="switch"),
    "replayssm_buffer_len": _noted(_NO_RECURRENT),
    "swa_bounded_replay": _noted("cached prefixes keep their windows, so that nothing is computed again", takes="switch"),
    "kv_sharing_fast_prefill": _noted("no model of this version shares KV between layers", takes="switch"),
    "swap_space": _noted("preempted sequences are computed again, never swapped out"),
    "kv_offloading_size": _refused("evicted blocks are not kept in host memory by this version; leave it out", "0"),
    "kv_offloading_backend": _noted("nothing is offloaded", "native"),
    "cpu_offload_gb": _refused(_NO_OFFLOAD, "0", "0.0"),
    "cpu_offload_params": _noted(_NO_OFFLOAD, takes="list"),
    "offload_backend": _noted(_NO_OFFLOAD, "auto"),
    "offload_group_size": _refused(_NO_OFFLOAD, "0"),
    "offload_num_in_group": _noted(_NO_OFFLOAD, "1"),
    "offload_prefetch_step": _noted(_NO_OFFLOAD, "1"),
    "offload_params": _noted(_NO_OFFLOAD, takes="list"),
}

SCHEDULER = {
    "max_num_scheduled_tokens": _noted("a step takes up to --max-num-batched-tokens"),
    "max_num_active_seqs": _refused("use --max-num-seqs"),
    "long_prefill_token_threshold_adaptive": _noted("the threshold is the number given by --long-prefill-token-threshold", takes="switch"),
    "disable_chunked_mm_input": _noted(_TEXT_ONLY, takes="switch"),
    "scheduler_reserve_full_isl": _noted("admission follows one rule, proved free of deadlock", takes="switch"),
    "watermark": _noted("admission follows one rule, proved free of deadlock", "0", "0.0"),
    "prefill_schedule_interval": _noted("prompts are looked at in every step", "1"),
    "disable_hybrid_kv_cache_manager": _noted("layers with a window keep only their window; the text is the same", takes="switch"),
    "scheduler_cls": _refused(_FOREIGN_CODE),
}

PARALLEL = {
    "data_parallel_backend": _refused("engines are started host by host; use mp", "mp", short="-dpb"),
    "data_parallel_multi_port_external_lb": _refused("use --data-parallel-rank for each", takes="switch", short="-dpm"),
    "expert_placement_strategy": _noted("neighbouring experts are placed together; the text is the same", "linear"),
    "enable_eplb": _noted("experts stay where they are placed; the text is the same", takes="switch"),
    "eplb_config": _noted("experts stay where they are placed; the text is the same"),
    "enable_dbo": _noted("steps run whole; the text is the same", takes="switch"),
    "ubatch_size": _noted("steps run whole", "0"),
    "dbo_decode_token_threshold": _noted("steps run whole"),
    "dbo_prefill_token_threshold": _noted("steps run whole"),
    "decode_context_parallel_size": _refused(_WHOLE, "1", short="-dcp"),
    "prefill_context_parallel_size": _refused(_WHOLE, "1", short="-pcp"),
    "dcp_comm_backend": _noted(_WHOLE),
    "dcp_kv_cache_interleave_size": _noted(_WHOLE),
    "cp_kv_cache_interleave_size": _noted(_WHOLE),
    "device_ids": _refused("name the devices in CUDA_VISIBLE_DEVICES", takes="list"),
    "disable_custom_all_reduce": _noted("sums over ranks take the fastest way that works; the text is the same", takes="switch"),
    "disable_nccl_for_dp_synchronization": _noted("replicas never agree by NCCL", takes="switch"),
    "dp_sync_interval": _noted("replicas agree before each step"),
    "max_parallel_loading_workers": _noted("each rank reads its own part"),
    "distributed_timeout_seconds": _noted("a rank that is missing for 10 minutes ends all"),
    "cpu_distributed_timeout_seconds": _noted("a rank that is missing for 10 minutes ends all"),
    "worker_cls": _refused(_FOREIGN_CODE, "auto"),
    "worker_extension_cls": _refused(_FOREIGN_CODE),
    "enable_elastic_ep": _refused(_FIXED, takes="switch"),
    "enable_fault_tolerance": _refused(_FIXED, takes="switch"),
    "enable_ep_weight_filter": _noted("each rank keeps only the experts that it has, always", takes="switch"),
    "fault_tolerance_config": _refused(_FIXED),
    "elastic_ep_max_dp_size": _noted(_FIXED),
    "dcp_q_replicate": _noted(_WHOLE, takes="switch"),
    "enable_hc_sp": _noted("no model of this version has such connections", takes="switch"),
    "enable_batch_sharded_sampling": _noted("tokens are drawn once for all ranks; the text is the same", takes="switch"),
    "enable_shm_tensor_arena": _noted("workers get plans of a few kilobytes", takes="switch"),
    "data_parallel_supervisor_port": _noted(_NO_SUPERVISOR),
    "dp_supervisor_probe_interval_s": _noted(_NO_SUPERVISOR),
    "dp_supervisor_probe_timeout_s": _noted(_NO_SUPERVISOR),
    "dp_supervisor_probe_failure_threshold": _noted(_NO_SUPERVISOR),
    "ray_workers_use_nsight": _noted("profiles are taken by --profiler-config", takes="switch"),
}

COMPILATION = {
    "performance_mode": _noted("batch sizes are those of --max-num-seqs and --max-num-batched-tokens", "balanced"),
    "moe_backend": _noted(_OWN_KERNELS, "auto"),
    "linear_backend": _noted(_OWN_KERNELS, "auto"),
    "enable_flashinfer_autotune": _noted("-O3 tunes kernels", takes="switch"),
    "kernel_config": _noted(_OWN_KERNELS),
    "ir_op_priority": _noted(_OWN_KERNELS),
    "sparse_indexer_topk_backend": _noted(_OWN_KERNELS, "auto"),
    "gdn_prefill_backend": _noted(_NO_RECURRENT, "auto"),
    "kda_prefill_backend": _noted(_NO_RECURRENT, "auto"),
    "kda_decode_backend": _noted(_NO_RECURRENT, "auto"),
    "jit_monitor_mode": _noted("kernels are compiled before the first request", "warn"),
    "jit_monitor_verbose": _noted("kernels are compiled before the first request", takes="switch"),
}

MULTIMODAL = {
    "limit_mm_per_prompt": _noted(_TEXT_ONLY),
    "language_model_only": _noted(_TEXT_ONLY, takes="switch"),
    "enable_mm_embeds": _refused(_TEXT_ONLY + "; leave it out", takes="switch"),
    "allowed_local_media_path": _noted(_TEXT_ONLY),
    "allowed_media_domains": _noted(_TEXT_ONLY, takes="list"),
    "media_io_kwargs": _noted(_TEXT_ONLY),
    "mm_processor_kwargs": _noted(_TEXT_ONLY),
    "mm_processor_cache_gb": _noted(_TEXT_ONLY),
    "mm_processor_cache_type": _noted(_TEXT_ONLY, "lru"),
    "mm_shm_cache_max_object_size_mb": _noted(_TEXT_ONLY),
    "mm_hasher_algorithm": _noted(_TEXT_ONLY),
    "mm_encoder_tp_mode": _noted(_TEXT_ONLY, "weights"),
    "mm_encoder_attn_backend": _noted(_TEXT_ONLY),
    "mm_encoder_attn_dtype": _noted(_TEXT_ONLY),
    "mm_encoder_fp8_scale_path": _noted(_TEXT_ONLY),
    "mm_encoder_fp8_scale_save_path": _noted(_TEXT_ONLY),
    "mm_encoder_fp8_scale_save_margin": _noted(_TEXT_ONLY),
    "mm_encoder_only": _refused(_TEXT_ONLY + "; leave it out", takes="switch"),
    "skip_mm_profiling": _noted(_TEXT_ONLY, takes="switch"),
    "interleave_mm_strings": _noted(_TEXT_ONLY, takes="switch"),
    "video_pruning_rate": _noted(_TEXT_ONLY),
    "video_pruning_method": _noted(_TEXT_ONLY),
    "mm_tensor_ipc": _noted(_TEXT_ONLY),
    "mm_processor_device": _noted(_TEXT_ONLY),
    "mm_ipc_gpu_memory_gb": _noted(_TEXT_ONLY),
    "mm_device_do_normalize": _noted(_TEXT_ONLY, takes="switch"),
    "enable_mm_processor_stats": _noted(_TEXT_ONLY, takes="switch"),
    "trust_request_mm_kwargs": _noted(_TEXT_ONLY, takes="switch"),
    "ec_manager_config": _noted(_TEXT_ONLY),
}

ADAPTERS = {
    "enable_lora": _refused(_NO_ADAPTERS, takes="switch"),
    "lora_modules": _refused(_NO_ADAPTERS, takes="list"),
    "default_mm_loras": _refused(_NO_ADAPTERS),
    "max_loras": _noted(_NO_ADAPTERS),
    "max_lora_rank": _noted(_NO_ADAPTERS),
    "max_cpu_loras": _noted(_NO_ADAPTERS),
    "lora_dtype": _noted(_NO_ADAPTERS),
    "fully_sharded_loras": _noted(_NO_ADAPTERS, takes="switch"),
    "lora_target_modules": _noted(_NO_ADAPTERS, takes="list"),
    "enable_tower_connector_lora": _noted(_NO_ADAPTERS, takes="switch"),
    "specialize_active_lora": _noted(_NO_ADAPTERS, takes="switch"),
    "enable_mixed_moe_lora_format": _noted(_NO_ADAPTERS, takes="switch"),
    "enable_moe_shared_loras": _noted(_NO_ADAPTERS, takes="switch"),
    "max_lora_cls_labels": _noted(_NO_ADAPTERS),
}

SPECULATION = {
    "speculative_config": _refused(_NO_DRAFTS, short="-sc"),
    "speculative_model": _refused(_NO_DRAFTS),
    "spec_method": _refused(_NO_DRAFTS),
    "spec_model": _refused(_NO_DRAFTS),
    "spec_tokens": _refused(_NO_DRAFTS, "0"),
    "per_request_spec_decode_metrics": _noted(_NO_DRAFTS),
}

OBSERVABILITY = {
    "kv_cache_metrics": _noted("such metrics are not kept", takes="switch"),
    "kv_cache_metrics_sample": _noted("such metrics are not kept"),
    "cudagraph_metrics": _noted("such metrics are not kept", takes="switch"),
    "enable_mfu_metrics": _noted("such metrics are not kept", takes="switch"),
    "enable_logging_iteration_details": _noted("steps are not logged one by one", takes="switch"),
    "collect_detailed_traces": _noted("a request is one span, whose attributes are its times"),
    "show_hidden_metrics_for_version": _noted("no metric is hidden"),
    "custom_histogram_buckets": _noted("the bounds of histograms are those of docs/metrics.md"),
    "enable_layerwise_nvtx_tracing": _noted("profiles are taken by --profiler-config", takes="switch"),
    "logging_config": _noted("set OCTAVO_LOGGING_LEVEL instead"),
    "log_level": _noted("set OCTAVO_LOGGING_LEVEL instead"),
    "fail_on_environ_validation": _noted("a variable whose value cannot be always ends the start", takes="switch"),
    "aggregate_engine_logging": _noted("there is one engine", takes="switch"),
    "disable_log_requests": _noted("requests are not logged unless --enable-log-requests asks for it", takes="switch"),
    "kv_transfer_config": _refused("KV is not moved between instances by this version; leave it out"),
    "kv_events_config": _refused("events of KV blocks are not published; leave it out"),
    "ec_transfer_config": _refused("encoders do not run apart; leave it out"),
    "additional_config": _noted("no platform of Octavo reads it"),
}

SERVER = {
    "ssl_ciphers": _refused("Python's choice of ciphers is used; put a proxy in front of the server for another one"),
    "enable_ssl_refresh": _refused("certificates are read at start; restart the server after changing them", takes="switch"),
    "middleware": _refused("the server runs no foreign code; put a proxy in front of it", takes="list"),
    "tool_parser_plugin": _refused(_FOREIGN_CODE),
    "reasoning_parser_plugin": _refused(_FOREIGN_CODE),
    "tool_strict_level": _noted("a tool's own field strict says how exactly its arguments follow the schema", "auto"),
    "tool_server": _refused(_NO_TOOLS),
    "structured_outputs_config": _noted("a request says itself which constraint it wants"),
    "enable_server_load_tracking": _noted("/load always counts", takes="switch"),
    "enable_tokenizer_info_endpoint": _refused("there is no such route; read the model's tokenizer files", takes="switch"),
    "sse_keep_alive_interval": _noted("streams carry data only", "0"),
    "enable_per_request_metrics": _noted("/metrics has the times of all requests", takes="switch"),
    "enable_log_outputs": _refused("the texts of users are not logged; log in the client", takes="switch"),
    "enable_log_deltas": _noted("the texts of users are not logged", takes="switch"),
    "max_log_len": _noted("the texts of users are not logged"),
    "disable_access_log_for_endpoints": _noted("calls are not logged unless --no-disable-uvicorn-access-log asks for it"),
    "disable_fastapi_docs": _noted("/docs only describes the API, and asks for a key where there is one", takes="switch"),
    "enable_offline_docs": _noted("/docs needs nothing from elsewhere, always", takes="switch"),
    "h11_max_incomplete_event_size": _noted("headers and bodies have limits of their own"),
    "h11_max_header_count": _noted("headers and bodies have limits of their own"),
    "fingerprint_mode": _noted("system_fingerprint is null in all responses", "full"),
    "fingerprint_value": _noted("system_fingerprint is null in all responses"),
    "enable_scale_out": _refused("there are no such routes; leave it out", takes="switch"),
    "tokens_only": _refused("there are no such routes; send token ids to /v1/completions", takes="switch"),
    "grpc": _refused("the server speaks HTTP; leave it out", takes="switch"),
    "grpc_port": _refused("the server speaks HTTP; leave it out"),
    "omni": _refused("models of this version read and write text; leave it out", takes="switch"),
    "cohere_is_reasoning_model": _noted(_NO_COHERE, takes="switch"),
    "cohere_format": _noted(_NO_COHERE),
    "anthropic_disabled_thinking_effort": _noted("/v1/messages leaves the template's own choice of effort"),
    "enable_flash_late_interaction": _noted("scores are cosines of two vectors", takes="switch"),
    "log_config_file": _noted("set OCTAVO_LOGGING_LEVEL instead"),
    "log_error_stack": _noted("errors inside are logged with their stack", takes="switch"),
}

FOREIGN: dict[str, Foreign] = {
    **MODEL,
    **CACHE,
    **SCHEDULER,
    **PARALLEL,
    **COMPILATION,
    **MULTIMODAL,
    **ADAPTERS,
    **SPECULATION,
    **OBSERVABILITY,
    **SERVER,
}
