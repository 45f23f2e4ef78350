"""`octavo bench serve`: a load on any server that speaks OpenAI's API, and how it was answered. vLLM's names of flags."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from octavo import env
from octavo.bench.serving.client import Route
from octavo.bench.serving.dataset import (
    Dataset,
    Pace,
    Voice,
    choose_conversations,
    drawn_case,
    listed,
    made_up,
    read_conversations,
    recorded,
    spread_length,
)
from octavo.bench.serving.http import Address
from octavo.bench.serving.measure import Server, ServerUnusable, count_tokens, find_model, measure, run_quickly
from octavo.bench.serving.report import details, result_of, write_page, write_trace
from octavo.bench.serving.result import Slo, summarize, table
from octavo.bench.serving.run import Run
from octavo.bench.workloads import CASES, Length, draw, read_length
from octavo.cli.flags import Settings
from octavo.config.fields import ConfigError, Flag, at_least, option, settings_of
from octavo.progress import Progress
from octavo.simulate.load import Arrival, Kind

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
WARM_UP_LEN = (32, 4)  # tokens of prompt and output
WARM_UP_TOKEN = -1  # made-up prompts have tokens from 2 on, so warm-ups begin like none of them
DEFAULT_PROMPTS = 1000


@dataclass(frozen=True)
class BenchServeOptions:
    """Which server, which load, and where the result goes."""

    base_url: Annotated[str | None, Flag("address of the server, such as http://127.0.0.1:8000; goes over --host and --port")] = None
    host: Annotated[str, Flag("address of the server's machine")] = "127.0.0.1"
    port: Annotated[int, Flag("port of the server")] = 8000
    backend: Annotated[Literal["openai", "vllm", "openai-chat"], Flag("openai-chat is --endpoint /v1/chat/completions")] = "openai"
    endpoint: Annotated[str | None, Flag(f"{ENDPOINTS[0]}, which gets token ids, or {ENDPOINTS[1]}, which gets words")] = None
    model: Annotated[str | None, Flag("model that requests name; default: the first of /v1/models", short=("-m",))] = None
    api_key: Annotated[str | None, Flag("key that the server asks for", env=env.API_KEY, secret=True)] = None
    header: Annotated[tuple[str, ...], Flag("further headers, NAME=VALUE", secret=True)] = ()
    extra_body: Annotated[dict[str, Any], Flag("JSON of further fields of every request")] = field(default_factory=dict[str, Any])
    temperature: Annotated[float | None, Flag("temperature of sampling, 0 is greedy; none: the server's default")] = 0.0
    ignore_eos: Annotated[
        bool | None,
        Flag("ask for outputs of exactly the drawn length; default: yes, but not with sharegpt (the field is vLLM's and Octavo's)"),
    ] = None
    dataset_name: Annotated[
        Literal["random", "sharegpt", "prefix_repetition", "trace"],
        Flag("made-up prompts, conversations of a file, prompts of few beginnings, or a trace as octavo simulate reads it"),
    ] = "random"
    dataset_path: Annotated[str | None, Flag("file of conversations in ShareGPT's form, or of a trace")] = None
    num_prompts: Annotated[int | None, Flag("requests to send; default: 1000, or all of a trace or a --case")] = None
    random_input_len: Annotated[str, Flag("prompt tokens of each, or a uniform range such as 100:1024", also=("input_len",))] = "1024"
    random_output_len: Annotated[str, Flag("output tokens of each, or a uniform range", also=("output_len",))] = "128"
    random_range_ratio: Annotated[float, Flag("lengths vary uniformly by this share to both sides, 0 to 1")] = 0.0
    random_prefix_len: Annotated[int, Flag("further tokens at the beginning that all prompts share")] = 0
    case: Annotated[str | None, Flag(f"the very prompts of octavo bench throughput --case: {', '.join(CASES)}")] = None
    prefix_repetition_prefix_len: Annotated[int, Flag("tokens of each shared beginning")] = 256
    prefix_repetition_suffix_len: Annotated[int, Flag("tokens of a prompt after its beginning")] = 256
    prefix_repetition_num_prefixes: Annotated[int, Flag("number of different beginnings")] = 10
    prefix_repetition_output_len: Annotated[int, Flag("output tokens of each")] = 128
    sharegpt_output_len: Annotated[int | None, Flag("output tokens of each; default: as many as the conversation's answer has")] = None
    sharegpt_max_len: Annotated[int, Flag("conversations of more tokens, prompt and answer, are left out")] = 2048
    vocab_size: Annotated[int, Flag("token ids of made-up prompts are lower numbers")] = 32000
    request_rate: Annotated[float | Literal["inf"], Flag("requests a second; inf: all at once, or as --max-concurrency lets them")] = "inf"
    burstiness: Annotated[float, Flag("shape of the gamma distributed gaps: 1 is Poisson, lower numbers give bursts")] = 1.0
    max_concurrency: Annotated[int | None, Flag("most requests under way; more wait at the client")] = None
    seed: Annotated[int, Flag("start of the random numbers of arrivals, lengths and prompts; octavo simulate draws the same from it")] = 1
    num_warmups: Annotated[int, Flag("requests before, which are not counted")] = 1
    ready_check_timeout_sec: Annotated[float, Flag("seconds to wait for the server to answer")] = 0.0
    timeout: Annotated[float, Flag("seconds after which a request counts as failed")] = 3600.0
    goodput: Annotated[tuple[str, ...], Flag("limits in ms that good requests keep: ttft:200 tpot:50 itl:80 e2el:5000")] = ()
    output_json: Annotated[str | None, Flag("write the result to this file; without it, it is printed with --json")] = None
    json: Annotated[bool, Flag("print one JSON object in place of the table")] = False
    output_html: Annotated[str | None, Flag("write a report with plots to this file, which needs nothing else")] = None
    save_detailed: Annotated[bool, Flag("the result also has each request's times")] = False
    save_trace: Annotated[str | None, Flag("write what was sent when to this file, for octavo simulate --trace")] = None
    save_result: Annotated[bool, Flag("write the result to --result-dir under --result-filename")] = False
    result_dir: Annotated[str, Flag("folder of --save-result")] = "."
    result_filename: Annotated[str | None, Flag("file of --save-result; default: of label, rate, concurrency, model and time")] = None
    label: Annotated[str | None, Flag("name of this result; default: the dataset's or the case's")] = None
    metadata: Annotated[tuple[str, ...], Flag("further facts for the result, KEY=VALUE, such as device=H200")] = ()
    disable_tqdm: Annotated[bool, Flag("no progress bar")] = False

    def __post_init__(self) -> None:
        for name in ("num_prompts", "max_concurrency", "prefix_repetition_num_prefixes", "prefix_repetition_output_len"):
            at_least(name, getattr(self, name), 1)
        for name in ("prefix_repetition_prefix_len", "prefix_repetition_suffix_len", "sharegpt_output_len", "sharegpt_max_len"):
            at_least(name, getattr(self, name), 1)
        for name in ("random_prefix_len", "num_warmups", "ready_check_timeout_sec", "temperature"):
            at_least(name, getattr(self, name), 0)
        at_least("vocab_size", self.vocab_size, 2)
        for name in ("burstiness", "timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, getattr(self, name), "it must be greater than 0")
        if self.rate <= 0:
            raise ConfigError("request_rate", self.request_rate, "it must be greater than 0, or inf")
        if not 0 <= self.random_range_ratio <= 1:
            raise ConfigError("random_range_ratio", self.random_range_ratio, "use 0 to 1")
        if self.route_path not in ENDPOINTS:
            raise ConfigError("endpoint", self.endpoint, f"use {' or '.join(ENDPOINTS)}")
        if self.case is not None and (self.case not in CASES or self.dataset_name != "random" or self.chat):
            raise ConfigError("case", self.case, f"use {', '.join(CASES)}, with --dataset-name random and {ENDPOINTS[0]}")
        if self.dataset_name in ("sharegpt", "trace") and self.dataset_path is None:
            raise ConfigError("dataset_path", None, f"--dataset-name {self.dataset_name} needs the file")
        if self.dataset_name == "trace" and self.rate < inf:
            raise ConfigError("request_rate", self.request_rate, "a trace says itself when requests come; leave the rate out")
        self.address()
        self.kind()
        self.slo()
        _pairs("header", self.header)
        _pairs("metadata", self.metadata)

    @property
    def rate(self) -> float:
        return float(self.request_rate)

    @property
    def route_path(self) -> str:
        return self.endpoint or ENDPOINTS[self.backend == "openai-chat"]

    @property
    def chat(self) -> bool:
        return self.route_path == ENDPOINTS[1]

    def address(self) -> Address:
        url = self.base_url or f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        try:
            return Address.parse(url)
        except ValueError as error:
            raise ConfigError("base_url" if self.base_url else "port", url, str(error)) from None

    def server(self) -> Server:
        ignores = self.dataset_name != "sharegpt" if self.ignore_eos is None else self.ignore_eos
        always: dict[str, Any] = {} if self.temperature is None else {"temperature": self.temperature}
        fields = {**always, **({"ignore_eos": True} if ignores else {}), **self.extra_body}
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        headers = {**key, **_pairs("header", self.header)}
        if not all((name + value).isprintable() and (name + value).isascii() for name, value in headers.items()):
            raise ConfigError("header", "...", "headers and keys hold printable ASCII")
        return Server(self.address(), Route(self.route_path, self.model, fields), headers, self.timeout)

    def kind(self) -> Kind:
        """Lengths of made-up prompts."""
        return Kind(self._spread("random_input_len", self.random_input_len), self._spread("random_output_len", self.random_output_len))

    def _spread(self, name: str, text: str) -> Length:
        length = _length(name, text)
        if self.random_range_ratio and not isinstance(length, int):
            raise ConfigError(name, text, "with --random-range-ratio it is one number")
        return spread_length(length, self.random_range_ratio) if isinstance(length, int) else length

    def slo(self) -> Slo:
        try:
            return Slo.parse(self.goodput)
        except ValueError as error:
            raise ConfigError("goodput", " ".join(self.goodput), str(error)) from None

    def pace(self, default: int = DEFAULT_PROMPTS) -> Pace:
        return Pace(self.num_prompts or default, self.rate, self.burstiness, self.max_concurrency, self.seed)

    def voice(self) -> Voice:
        return Voice(self.seed, self.vocab_size, self.chat)

    async def dataset(self, server: Server) -> Dataset:
        """Raises `InvalidRequest` and OSError for a file that cannot be used."""
        path = Path(self.dataset_path or "")
        if self.case is not None:
            return drawn_case(self.pace(CASES[self.case].num_prompts), draw(CASES[self.case], self.vocab_size, self.seed))
        if self.dataset_name == "trace":
            return recorded(path, self.num_prompts, self.voice())
        if self.dataset_name == "sharegpt":
            exchanges = read_conversations(path)
            texts = [text for exchange in exchanges for text in (exchange.prompt, exchange.answer)]
            lengths, counted = await count_tokens(server, texts)
            if not counted:
                print("octavo bench serve: the server has no /tokenize; four characters are taken for a token", file=sys.stderr)
            pairs = list(zip(lengths[::2], lengths[1::2]))
            return listed(self.pace(), choose_conversations(exchanges, pairs, self.pace(), self.sharegpt_output_len, self.sharegpt_max_len))
        if self.dataset_name == "prefix_repetition":
            kind = Kind(self.prefix_repetition_suffix_len, self.prefix_repetition_output_len)
            return made_up(self.pace(), kind, self.voice(), self.prefix_repetition_prefix_len, self.prefix_repetition_num_prefixes)
        return made_up(self.pace(), self.kind(), self.voice(), self.random_prefix_len)


OPTIONS = BenchServeOptions
TOPICS = ()


def run(settings: Settings) -> int:
    options: BenchServeOptions = settings.topic(BenchServeOptions)
    slo = options.slo()
    try:
        server, done = run_quickly(_measure(options))
    except (ServerUnusable, OSError) as error:
        print(f"octavo bench serve: {error}", file=sys.stderr)
        return 1
    found = summarize(done, slo)
    name = options.label or options.case or options.dataset_name
    result = result_of(_command(settings), server, name, found, _pairs("metadata", options.metadata))
    if options.save_detailed:
        result["details"] = details(done)
    _write(options, result, done)
    print(json.dumps(result) if options.json else f"{server.route.model} at {server.address.name}{server.route.endpoint}\n\n{table(found)}")
    return 0 if found["requests"] else 1


async def _measure(options: BenchServeOptions) -> tuple[Server, Run]:
    server = await find_model(options.server(), options.ready_check_timeout_sec)
    dataset = await options.dataset(server)
    tokens = [(WARM_UP_TOKEN - number,) * WARM_UP_LEN[0] for number in range(options.num_warmups)]
    warm_ups = [options.voice().ask(Arrival(0.0, made_up, WARM_UP_LEN[1])) for made_up in tokens]
    with Progress(dataset.num_prompts, "requests", shown=not options.disable_tqdm) as progress:
        return server, await measure(server, dataset, warm_ups, options.max_concurrency, lambda outcome: progress.advance())


def _write(options: BenchServeOptions, result: dict[str, Any], done: Run) -> None:
    paths = [Path(options.output_json)] if options.output_json else []
    if options.save_result:
        rate = f"{options.request_rate}qps" + (f"-concurrency{options.max_concurrency}" if options.max_concurrency else "")
        model = str(result["flags"]["model"]).replace("/", "-")
        known = f"{options.label or options.backend}-{rate}-{model}-{result['date'][:19].replace(':', '')}.json"
        paths.append(Path(options.result_dir) / (options.result_filename or known))
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if options.output_html:
        write_page(Path(options.output_html), result, done)
    if options.save_trace:
        write_trace(Path(options.save_trace), done)


def _command(settings: Settings) -> str:
    """The command again, without keys."""
    words = ["octavo bench serve"]
    known = {setting.name: setting for setting in settings_of(BenchServeOptions)}
    for name, value in settings.values.items():
        if known[name].is_switch:
            words.append(option(name) if value else "--no-" + option(name)[2:])
        elif not known[name].flag.secret:
            words += [option(name), shlex.join(map(str, value)) if known[name].is_list else shlex.quote(_text(value))]
    return " ".join(words)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _pairs(name: str, texts: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE. Raises `ConfigError`."""
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise ConfigError(name, text, "use KEY=VALUE")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


def _length(name: str, text: str) -> Length:
    try:
        return read_length(text)
    except ValueError:
        raise ConfigError(name, text, "a number of tokens such as 128, or a range such as 100:1024") from None
