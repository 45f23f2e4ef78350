"""What is run: the model, its tokeniser, its number format and its length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from octavo import env
from octavo.config.fields import ConfigError, Flag, at_least

DEFAULT_MODEL = "smollm2-135m"

DType = Literal["auto", "bfloat16", "float16", "float32", "half", "float"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Quantization = Literal["auto", "gguf", "mxfp4", "none"]


@dataclass(frozen=True)
class ModelConfig:
    """The model and how it is read."""

    model: Annotated[str, Flag("folder with config.json, a .gguf file, a hub id, or the bundled alias smollm2-135m", env=env.MODEL)] = (
        DEFAULT_MODEL
    )
    tokenizer: Annotated[str | None, Flag("folder, tokenizer.json or hub id of the tokeniser; default: the model's own")] = None
    skip_tokenizer_init: Annotated[bool, Flag("load no tokeniser: prompts and outputs are token ids")] = False
    revision: Annotated[str | None, Flag("branch, tag or commit of a model on the hub")] = None
    tokenizer_revision: Annotated[str | None, Flag("the same for a tokeniser given as a hub id; default: --revision")] = None
    download_dir: Annotated[str | None, Flag("folder for downloads from the hub; default: the hub library's cache")] = None
    load_format: Annotated[
        LoadFormat, Flag("how weights are stored; auto looks at the files; dummy draws random weights, for measuring")
    ] = "auto"
    dtype: Annotated[
        DType,
        Flag(
            "number format of weights and activations; auto: bfloat16 where the device is fast with it, else float32 (CPU) or float16 (GPU)"
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Flag(
            "how packed weights are kept in memory: gguf, as in a .gguf file (Q4_0, Q4_1, Q8_0; products round activations to 8 "
            "or 15 bits); mxfp4, the experts of GPT-OSS as in its files; "
            "none, as numbers of --dtype; auto: as in the file, of a .gguf file on CPU where --dtype is auto too",
            short=("-q",),
        ),
    ] = "auto"
    seed: Annotated[int, Flag("start of all random numbers of requests that bring no seed of their own")] = 0
    enable_sleep_mode: Annotated[
        bool, Flag("/sleep and /wake_up, `LLM.sleep` and `LLM.wake_up` give the device's memory back and take it again")
    ] = False
    max_model_len: Annotated[
        int | Literal["auto"] | None,
        Flag("tokens of prompt and output together; auto or -1: the longest that fits in memory; default: what the model was made for"),
    ] = None
    most_model_len: Annotated[
        int | None,
        Flag("length that most sequences stay within: steps in which all do are recorded for it, a second time beside --max-model-len"),
    ] = None
    hf_overrides: Annotated[dict[str, Any], Flag("JSON merged into the model's config.json, nested objects key by key")] = field(
        default_factory=dict[str, Any]
    )
    served_model_name: Annotated[
        tuple[str, ...], Flag("names under which the server answers; the first is echoed in responses; default: the model as given")
    ] = ()
    generation_config: Annotated[
        str, Flag("auto: sampling defaults from the model's generation_config.json; vllm: none; or a folder to read the file from")
    ] = "auto"
    override_generation_config: Annotated[dict[str, Any], Flag("JSON of sampling defaults and end ids, over --generation-config")] = field(
        default_factory=dict[str, Any]
    )
    chat_template: Annotated[str | None, Flag("Jinja template of chats, as a file or in one line; default: the model's own")] = None
    pooling_type: Annotated[
        Literal["auto", "last", "mean"],
        Flag("which state makes the vector of a text: the last token's, or the mean of all; auto: as the model says, else the last"),
    ] = "auto"
    max_logprobs: Annotated[int, Flag("most log-probabilities a token that a request may ask for; -1: the whole vocabulary")] = 20
    logits_processors: Annotated[
        tuple[str, ...], Flag("sampling stages of your own, as package.module:Class, applied in this order (docs/sampling.md)")
    ] = ()

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model", self.model, f"name a folder, a .gguf file, a hub id or {DEFAULT_MODEL}")
        if isinstance(self.max_model_len, int) and self.max_model_len != -1 and self.max_model_len < 2:
            raise ConfigError("max_model_len", self.max_model_len, "it must be at least 2, a prompt and an output token; or auto")
        at_least("most_model_len", self.most_model_len, 2)
        at_least("max_logprobs", self.max_logprobs, -1)
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError("seed", self.seed, "it must fit in 64 bits")
