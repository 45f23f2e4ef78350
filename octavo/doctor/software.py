"""Checks of what is installed, of folders, the port and the environment."""

from __future__ import annotations

import difflib
import os
import shutil
import socket
import tempfile

from octavo import env
from octavo.doctor.finding import Check, Facts, Finding, ok
from octavo.ops.native.build import SHIPPED, CompilerError, find_compiler, library_name, machine_variants

GIB = 1 << 30
NEEDED = ("torch", "numpy", "tokenizers", "safetensors", "jinja2", "msgspec", "pyzmq")
SERVING = ("starlette", "uvicorn", "llguidance", "httptools")
PREFIXES = ("OCTAVO_", "VLLM_")


def packages(facts: Facts) -> Finding:
    missing = [name for name in NEEDED if name not in facts.versions]
    if missing:
        return Finding("error", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    absent = [name for name in SERVING if name not in facts.versions]
    if absent:
        return Finding("note", f"not installed, and needed by octavo serve: {', '.join(absent)}", "pip install 'octavo[serve]'")
    return ok(", ".join(f"{name} {version}" for name, version in facts.versions.items()))


def compiler(facts: Facts) -> Finding:
    try:
        return ok(f"C compiler: {find_compiler()}")
    except CompilerError as error:
        first = next(iter(machine_variants().values()))
        if not facts.gpus and any((folder / library_name(first)).exists() for folder in (SHIPPED, facts.cache_root / "native")):
            return ok("no C compiler, and none is needed: the kernels are compiled already")
        what = "Triton's kernels cannot be compiled" if facts.gpus else "operations run in torch, several times slower"
        return Finding("error" if facts.gpus else "warning", f"{error}: {what}", "install gcc (apt install gcc)")


def cache_folder(facts: Facts) -> Finding:
    folder = facts.cache_root
    there = next(path for path in (folder, *folder.parents) if path.exists())
    fix = "set OCTAVO_CACHE_ROOT to a folder that can be written to, such as a volume of the container"
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Finding("error", f"{there} cannot be written to: {error.strerror}", fix)
    free = shutil.disk_usage(there).free
    text = f"{folder}: {free / GIB:.1f} GiB free"
    return ok(text) if free >= GIB else Finding("warning", text, f"make room, or {fix}")


def port(facts: Facts) -> Finding:
    family = socket.AF_INET6 if ":" in facts.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((facts.host, facts.port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        return Finding("error", f"{facts.host}:{facts.port} cannot be listened on: {why}", "another --port or --host")
    return ok(f"{facts.host}:{facts.port} is free")


def variables(facts: Facts) -> Finding:
    """Names that nobody reads are typing errors, and values that are not of their type stop the start."""
    known = {name: variable for variable in env.ALL.values() for name in (variable.name, variable.also) if name}
    for name, text in facts.environment.items():
        if name in known and text:
            try:
                known[name].read(text)
            except ValueError as error:
                return Finding("error", f"{name} = {text!r} is not possible: {error}", known[name].help)
    unknown = [name for name in facts.environment if name.startswith(PREFIXES) and name not in known]
    if unknown:
        close = {name: difflib.get_close_matches(name, [one for one in known if one[0] == name[0]], n=1) for name in unknown}
        shown = [f"{name}{f' (did you mean {near[0]}?)' if near else ''}" for name, near in close.items()]
        return Finding("warning", f"without a meaning: {', '.join(shown)}", "docs/flags.md lists the variables that are read")
    given = [name for name in known if facts.environment.get(name)]
    return ok(f"set: {', '.join(given)}" if given else "nothing is set")


CHECKS: dict[str, Check] = {
    "packages": packages, "compiler": compiler, "cache folder": cache_folder, "port": port, "environment": variables,
}  # fmt: skip
