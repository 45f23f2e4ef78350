"""The HTTP server in front of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from octavo import env
from octavo.config.fields import ConfigError, Flag, at_least


@dataclass(frozen=True)
class ServerConfig:
    """Where the server listens, whom it answers, and what it writes down."""

    host: Annotated[str, Flag("address to listen on; 0.0.0.0 answers other machines too")] = "127.0.0.1"
    port: Annotated[int, Flag("port to listen on; 0: any free one, which is printed")] = 8000
    uds: Annotated[str | None, Flag("path of a Unix socket to listen on instead of host and port")] = None
    api_server_count: Annotated[
        int | None, Flag("processes that answer on the port, before the same engines; default: as many as engines", short=("-asc",))
    ] = None
    api_key: Annotated[
        tuple[str, ...], Flag("keys that clients must show, any of them; default: none is asked for", env=env.API_KEY, secret=True)
    ] = ()
    api_key_file: Annotated[
        str | None, Flag("YAML file of further keys, by name, each with limits of its own: NAME: {key: KEY, requests_per_minute: 60, ...}")
    ] = None
    ssl_keyfile: Annotated[str | None, Flag("file of the TLS key")] = None
    ssl_certfile: Annotated[str | None, Flag("file of the TLS certificate")] = None
    ssl_ca_certs: Annotated[str | None, Flag("file of the authorities that may sign clients' certificates")] = None
    ssl_cert_reqs: Annotated[int, Flag("clients' certificates: 0 not asked for, 1 checked if shown, 2 needed")] = 0
    root_path: Annotated[str, Flag("path before every route where a proxy strips it")] = ""
    allowed_origins: Annotated[tuple[str, ...], Flag("CORS: origins that browsers may call from")] = ("*",)
    allowed_methods: Annotated[tuple[str, ...], Flag("CORS: methods")] = ("*",)
    allowed_headers: Annotated[tuple[str, ...], Flag("CORS: headers")] = ("*",)
    allow_credentials: Annotated[bool, Flag("CORS: cookies and credentials may be sent")] = False
    response_role: Annotated[str, Flag("role of answers in chats")] = "assistant"
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Flag("what the template gets as content: one text, or a list of parts; auto looks at the template"),
    ] = "auto"
    default_chat_template_kwargs: Annotated[dict[str, Any], Flag("JSON of template arguments that requests may override")] = field(
        default_factory=dict[str, Any]
    )
    trust_request_chat_template: Annotated[bool, Flag("let a request bring its own chat template")] = False
    enable_auto_tool_choice: Annotated[bool, Flag("let the model decide whether it calls tools; needs --tool-call-parser")] = False
    tool_call_parser: Annotated[
        Literal["hermes", "mistral", "llama3_json", "llama4_json", "pythonic", "llama4_pythonic", "deepseek_v3", "deepseek_v31"] | None,
        Flag("how the model writes calls of tools"),
    ] = None
    reasoning_parser: Annotated[
        Literal["deepseek_r1", "deepseek_v3", "qwen3", "glm45", "step3", "mistral", "seed_oss"] | None,
        Flag("how the model tells what it thinks apart from what it answers"),
    ] = None
    exclude_tools_when_tool_choice_none: Annotated[bool, Flag('the template sees no tools with tool_choice "none"')] = False
    return_tokens_as_token_ids: Annotated[bool, Flag("log-probabilities name tokens as token_id:17 instead of by text")] = False
    enable_prompt_tokens_details: Annotated[bool, Flag("usage tells how many prompt tokens came from the prefix cache")] = True
    enable_force_include_usage: Annotated[bool, Flag("streams end with usage, asked for or not")] = False
    enable_request_id_headers: Annotated[bool, Flag("echo X-Request-Id in responses")] = False
    enable_log_requests: Annotated[bool, Flag("log a line a request: its id and parameters, never its text")] = False
    otlp_traces_endpoint: Annotated[
        str | None, Flag("URL of an OpenTelemetry collector (OTLP over HTTP, as a rule port 4318); each request is a span, without texts")
    ] = None
    disable_log_stats: Annotated[bool, Flag("no regular line of statistics")] = False
    disable_uvicorn_access_log: Annotated[bool, Flag("no line a call from the HTTP server")] = True
    uvicorn_log_level: Annotated[Literal["critical", "error", "warning", "info", "debug", "trace"], Flag("what the HTTP server writes")] = (
        "warning"
    )
    metrics_namespace: Annotated[
        Literal["octavo", "vllm"], Flag("prefix of the metrics' names; vllm keeps dashboards and autoscalers made for it")
    ] = "octavo"
    max_num_queued_reqs: Annotated[int | None, Flag("requests that may wait; one more is answered with 429 and Retry-After")] = None
    max_num_queued_tokens: Annotated[
        int | None, Flag("prompt tokens that may wait; a request beyond is answered with 429 and Retry-After")
    ] = None
    admission_ttft_ms: Annotated[
        float | None, Flag("milliseconds; a request whose first token is expected to take longer is answered with 429 and Retry-After")
    ] = None
    files_dir: Annotated[
        str | None, Flag("folder of /v1/files and /v1/batches; default: one by the model's name in the cache folder")
    ] = None
    max_file_mb: Annotated[int, Flag("megabytes of the largest file that may be uploaded")] = 200
    max_files_gb: Annotated[float, Flag("gigabytes that all files together may take")] = 10.0
    batch_concurrency: Annotated[int, Flag("requests of batches that run at once, after all others")] = 16
    stall_timeout: Annotated[
        float, Flag("seconds for which requests may wait and no step end before /health/ready fails; longer where steps are expected to be")
    ] = 60.0
    shutdown_timeout: Annotated[float, Flag("seconds that running requests have to finish after SIGTERM")] = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError("port", self.port, f"use 0 to 65535 (nearest: {0 if self.port < 0 else 65535})")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            given, missing = ("ssl_keyfile", "--ssl-certfile") if self.ssl_keyfile else ("ssl_certfile", "--ssl-keyfile")
            raise ConfigError(given, getattr(self, given), f"it needs {missing} too")
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError("ssl_cert_reqs", self.ssl_cert_reqs, "use 0, 1 or 2")
        if any(not key for key in self.api_key):
            raise ConfigError("api_key", "", "a key must have at least one character")
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ConfigError("enable_auto_tool_choice", True, "it needs --tool-call-parser, which says how the model writes calls")
        at_least("api_server_count", self.api_server_count, 1)
        at_least("max_num_queued_reqs", self.max_num_queued_reqs, 1)
        at_least("max_num_queued_tokens", self.max_num_queued_tokens, 1)
        for name, unit in (("stall_timeout", "seconds"), ("admission_ttft_ms", "milliseconds")):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(name, value, f"it must be greater than 0, in {unit}")
        at_least("max_file_mb", self.max_file_mb, 1)
        at_least("batch_concurrency", self.batch_concurrency, 1)
        if self.max_files_gb <= 0:
            raise ConfigError("max_files_gb", self.max_files_gb, "it must be greater than 0, in gigabytes")
        at_least("shutdown_timeout", self.shutdown_timeout, 0)
