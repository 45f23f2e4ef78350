"""Every flag of vLLM is known by name: a setting, or accepted with one note, or refused with a reason."""

import dataclasses
import logging

import pytest

from octavo.cli.flags import parse
from octavo.cli.serve import OPTIONS, TOPICS
from octavo.config.compat import FOREIGN
from octavo.config.engine import COMPOUND, ENGINE_TOPICS, EngineConfig, names_of
from octavo.config.fields import ConfigError, option
from octavo.config.server import ServerConfig
from octavo.types import FOREIGN_SAMPLING_PARAMS, InvalidRequest, SamplingParams

FLAGS_TEXT = """
model runner convert tokenizer tokenizer_revision tokenizer_mode skip_tokenizer_init trust_remote_code dtype seed hf_config_path
config_format revision code_revision hf_token hf_overrides max_model_len max_logprobs logprobs_mode enforce_eager disable_sliding_window
disable_cascade_attn enable_prompt_embeds served_model_name generation_config override_generation_config enable_sleep_mode model_impl
logits_processors allowed_local_media_path allowed_media_domains quantization quantization_config allow_deprecated_quantization
renderer_num_workers io_processor_plugin pooler_config model_class_overrides task load_format download_dir safetensors_load_strategy
model_loader_extra_config ignore_patterns use_tqdm_on_load pt_load_map_location block_size gpu_memory_utilization
device_memory_utilization kv_cache_memory_bytes kv_cache_memory kv_cache_dtype kv_cache_dtype_skip_layers calculate_kv_scales
num_gpu_blocks_override enable_prefix_caching prefix_caching_hash_algo prefix_cache_retention_interval prefix_match_unit mamba_block_size
mamba_cache_mode mamba_cache_dtype mamba_ssm_cache_dtype kv_sharing_fast_prefill swap_space kv_offloading_size kv_offloading_backend
cpu_offload_gb offload_backend offload_group_size offload_num_in_group offload_prefetch_step offload_params cpu_offload_params
max_num_batched_tokens max_num_scheduled_tokens max_num_seqs max_num_active_seqs max_num_queued_reqs max_num_queued_tokens
enable_chunked_prefill max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold
long_prefill_token_threshold_adaptive scheduling_policy async_scheduling disable_chunked_mm_input scheduler_reserve_full_isl watermark
prefill_schedule_interval disable_hybrid_kv_cache_manager stream_interval scheduler_cls tensor_parallel_size pipeline_parallel_size
data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address data_parallel_rpc_port
data_parallel_backend data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb headless
enable_expert_parallel expert_placement_strategy all2all_backend enable_eplb eplb_config enable_dbo ubatch_size dbo_decode_token_threshold
dbo_prefill_token_threshold decode_context_parallel_size prefill_context_parallel_size dcp_comm_backend dcp_kv_cache_interleave_size
cp_kv_cache_interleave_size distributed_executor_backend nnodes node_rank master_addr master_port numa_bind numa_bind_nodes numa_bind_cpus
device_ids disable_custom_all_reduce disable_nccl_for_dp_synchronization dp_sync_interval max_parallel_loading_workers
distributed_timeout_seconds cpu_distributed_timeout_seconds worker_cls worker_extension_cls enable_elastic_ep enable_fault_tolerance
enable_ep_weight_filter compilation_config optimization_level cudagraph_mode cudagraph_capture_sizes max_cudagraph_capture_size
performance_mode attention_backend attention_config moe_backend linear_backend enable_flashinfer_autotune limit_mm_per_prompt
language_model_only enable_mm_embeds media_io_kwargs mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type
mm_shm_cache_max_object_size_mb mm_hasher_algorithm mm_encoder_tp_mode mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_only
skip_mm_profiling interleave_mm_strings video_pruning_rate video_pruning_method mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb
enable_lora max_loras max_lora_rank max_cpu_loras lora_dtype fully_sharded_loras lora_modules default_mm_loras lora_target_modules
enable_tower_connector_lora specialize_active_lora structured_outputs_config reasoning_parser reasoning_parser_plugin
enable_auto_tool_choice tool_call_parser tool_parser_plugin tool_strict_level kv_cache_metrics kv_cache_metrics_sample cudagraph_metrics
enable_mfu_metrics enable_logging_iteration_details per_request_spec_decode_metrics otlp_traces_endpoint collect_detailed_traces
show_hidden_metrics_for_version disable_log_stats aggregate_engine_logging enable_log_requests disable_log_requests shutdown_timeout
kv_transfer_config kv_events_config ec_transfer_config additional_config profiler_config speculative_config spec_method spec_model
spec_tokens host port uds api_server_count api_key ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs ssl_ciphers enable_ssl_refresh
root_path middleware allowed_origins allowed_methods allowed_headers allow_credentials chat_template chat_template_content_format
trust_request_chat_template default_chat_template_kwargs response_role return_tokens_as_token_ids enable_prompt_tokens_details
enable_force_include_usage enable_server_load_tracking enable_tokenizer_info_endpoint enable_request_id_headers sse_keep_alive_interval
enable_per_request_metrics enable_log_outputs enable_log_deltas max_log_len disable_uvicorn_access_log disable_access_log_for_endpoints
uvicorn_log_level disable_fastapi_docs enable_offline_docs h11_max_incomplete_event_size h11_max_header_count tool_server fingerprint_mode
enable_scale_out tokens_only grpc log_config_file log_error_stack exclude_tools_when_tool_choice_none
"""
# Beside those, what the parser and the argument classes of vLLM 0.32 have.
FLAGS_TEXT += """
model_weights enable_return_routed_experts return_sampling_mask aux_output_config enable_trace_replay use_fp64_gumbel watermark_config
diffusion_config engram_config reasoning_config weight_transfer_config sleep_mode_offload_cudagraph sleep_preserve_parameter_names
enable_cumem_allocator enable_nccl_comm_suspend safetensors_prefetch_num_threads safetensors_prefetch_block_size mamba_config
mamba_backend mamba_ssu_algorithm mamba_cache_philox_rounds enable_mamba_cache_stochastic_rounding
enable_mamba_shared_prefix_checkpoint use_replayssm replayssm_buffer_len swa_bounded_replay fault_tolerance_config elastic_ep_max_dp_size
dcp_q_replicate enable_hc_sp enable_batch_sharded_sampling enable_shm_tensor_arena data_parallel_supervisor_port
dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_supervisor_probe_failure_threshold ray_workers_use_nsight kernel_config
ir_op_priority sparse_indexer_topk_backend gdn_prefill_backend kda_prefill_backend kda_decode_backend jit_monitor_mode
jit_monitor_verbose mm_device_do_normalize enable_mm_processor_stats trust_request_mm_kwargs ec_manager_config
mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin enable_mixed_moe_lora_format
enable_moe_shared_loras max_lora_cls_labels custom_histogram_buckets enable_layerwise_nvtx_tracing logging_config log_level
fail_on_environ_validation fingerprint_value grpc_port omni cohere_is_reasoning_model cohere_format anthropic_disabled_thinking_effort
enable_flash_late_interaction
"""
FLAGS = FLAGS_TEXT.split()

SHORT_TEXT = "-tp -pp -dp -dpn -dpr -dpl -dpa -dpp -dpb -dph -dpe -dpm -ep -dcp -pcp -n -r -q -O -cc -sc -dc -ac -asc"
SHORT = SHORT_TEXT.split()

LLM_ARGUMENTS_TEXT = """
model tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code allowed_local_media_path tensor_parallel_size dtype quantization
revision tokenizer_revision chat_template seed gpu_memory_utilization cpu_offload_gb enforce_eager hf_overrides mm_processor_kwargs
pooler_config structured_outputs_config compilation_config attention_config profiler_config logits_processors disable_log_stats
max_model_len swap_space kv_cache_memory_bytes max_num_seqs load_format runner convert allowed_media_domains offload_group_size
offload_num_in_group offload_prefetch_step offload_params enable_return_routed_experts return_sampling_mask disable_custom_all_reduce
hf_token quantization_config spec_method spec_model spec_tokens
"""
LLM_ARGUMENTS = LLM_ARGUMENTS_TEXT.split()

KNOWN = {**names_of((*ENGINE_TOPICS, ServerConfig))}


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_is_a_setting_or_has_a_reason(name: str) -> None:
    assert name in KNOWN or name in FOREIGN or name in COMPOUND


def test_a_name_is_either_a_setting_or_foreign() -> None:
    assert not set(KNOWN) & set(FOREIGN)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_flag_is_noted_or_refused_with_its_reason(name: str, caplog: pytest.LogCaptureFixture) -> None:
    foreign = FOREIGN[name]
    words = [option(name)] if foreign.takes == "switch" else [option(name), "17"]
    if foreign.refused:
        with pytest.raises(ConfigError) as caught:
            parse(words, (OPTIONS, *TOPICS))
        assert option(name) in str(caught.value)
        assert foreign.reason in str(caught.value)
        return
    assert parse(words, (OPTIONS, *TOPICS)).values == {}
    assert [foreign.reason in record.message for record in caplog.records if record.levelno == logging.WARNING] == [True]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_flag_that_asks_for_nothing_passes_in_silence(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for nothing in (None, False, "", "{}", *FOREIGN[name].harmless):
        EngineConfig.from_flags(**{name: nothing})
    assert not caplog.records


@pytest.mark.parametrize("short", SHORT)
def test_every_short_form_parses(short: str) -> None:
    flags = {short: setting.flag for setting in KNOWN.values() for short in setting.flag.short}
    foreign = {short: item for item in FOREIGN.values() for short in item.short}
    assert short in flags or short in foreign or short in ("-cc", "-ac")


@pytest.mark.parametrize("name", LLM_ARGUMENTS)
def test_every_argument_of_llm_is_known(name: str) -> None:
    EngineConfig.from_flags(**{name: None if name in FOREIGN or KNOWN.get(name) is None else KNOWN[name].default})


def test_short_forms_are_unique() -> None:
    own = [short for name, setting in KNOWN.items() if name == setting.name for short in setting.flag.short]
    shorts = own + [short for item in FOREIGN.values() for short in item.short]
    assert len(shorts) == len(set(shorts))


SAMPLING_TEXT = """
n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids bad_words ignore_eos
max_tokens min_tokens logprobs prompt_logprobs logprob_token_ids flat_logprobs detokenize skip_special_tokens
spaces_between_special_tokens include_stop_str_in_output output_kind structured_outputs logit_bias allowed_token_ids thinking_token_budget
repetition_detection extra_args skip_reading_prefix_cache truncate_prompt_tokens best_of logits_processors guided_decoding
prompt_logprob_token_ids prompt_logprob_start routed_experts_prompt_start trace_decode_token_ids watermarking stream_interval
"""
SAMPLING_ARGUMENTS = SAMPLING_TEXT.split()


@pytest.mark.parametrize("name", SAMPLING_ARGUMENTS)
def test_every_argument_of_sampling_params_is_known(name: str) -> None:
    default = next(field.default for field in dataclasses.fields(SamplingParams) if field.name == name)
    assert SamplingParams(**{name: default}) == SamplingParams()


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words", "seed", "logit_bias", "allowed_token_ids", "structured_outputs"])
def test_none_asks_for_nothing(name: str) -> None:
    assert SamplingParams(**{name: None}) == SamplingParams()


@pytest.mark.parametrize("name", FOREIGN_SAMPLING_PARAMS)
def test_a_foreign_argument_of_sampling_params_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: 2})
    assert caught.value.field == name
    assert FOREIGN_SAMPLING_PARAMS[name] in str(caught.value)
    for nothing in (None, False, [], {}):
        assert SamplingParams(**{name: nothing}).greedy is False
