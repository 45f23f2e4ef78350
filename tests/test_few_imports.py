"""Offline use needs torch, numpy, tokenizers, safetensors and jinja2, and nothing else that a server needs."""

import subprocess
import sys

NOT_NEEDED = "msgspec zmq prometheus_client starlette uvicorn huggingface_hub transformers gguf yaml httpx openai"
PROGRAM = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(NOT_NEEDED.split())}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from octavo import LLM, SamplingParams

llm = LLM("smollm2-135m", load_format="dummy", hf_overrides={{"num_hidden_layers": 1}}, max_model_len=64, kv_cache_memory_bytes=1 << 22)
print(len(llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids), "tokens")
llm.close()
from octavo.cli.main import main

small = ["--hf-overrides.num_hidden_layers", "1", "--kv-cache-memory-bytes", "64M", "--num-prompts", "1", "--output-len", "4"]
sys.exit(main(["bench", "throughput", "--load-format", "dummy", *small]))
"""


def test_llm_and_bench_run_without_them() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 tokens\n")
    assert "output_tokens_per_s" in done.stdout
