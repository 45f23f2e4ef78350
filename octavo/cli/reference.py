"""Writes docs/flags.md: `python -m octavo.cli.reference > docs/flags.md` (`make docs`)."""

from __future__ import annotations

from octavo import env
from octavo.cli.help import default_text, value_name
from octavo.cli.main import COMMANDS
from octavo.config.compat import FOREIGN
from octavo.config.fields import Setting, option, settings_of

HEAD = """# Flags

Made from the declarations in `octavo/config` and `octavo/cli` by `make docs`; do not edit.

The names are vLLM's. `--max-num-seqs 64` on the command line is `max_num_seqs=64` in `LLM(...)` and `max_num_seqs: 64` in the file of
`--config`. The command line goes over the file, the file over the environment, the environment over the default. Switches have `--x` and
`--no-x`. Numbers may be written `32k` (32,000) and `32K` (32,768). A JSON argument may be given key by key:
`--hf-overrides.rope_theta 5e5`.
"""


def reference() -> str:
    """The whole page in Markdown."""
    lines = [HEAD]
    seen: set[str] = set()
    for name, command in COMMANDS.items():
        module = command.module(name)
        lines += [f"## octavo {name}", "", command.summary, "", f"    octavo {command.usage}", ""]
        shared: list[str] = []
        for topic in (module.OPTIONS, *module.TOPICS):
            settings = settings_of(topic)
            if topic.__name__ in seen and settings:
                shared.append(f"[{settings[0].topic}](#{settings[0].topic})")
            elif settings:
                lines += [f"### {settings[0].topic}", "", *_table(settings)]
            seen.add(topic.__name__)
        lines += [f"Also: {', '.join(shared)}.", ""] if shared else []
    return "\n".join([*lines, *_environment(), *_foreign()])


def _table(settings: tuple[Setting, ...]) -> list[str]:
    rows = ["| flag | value | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in settings:
        names = ", ".join(f"`{name}`" for name in (*setting.flag.short, option(setting.name), *map(option, setting.flag.also)))
        value = "on, off" if setting.is_switch else ", ".join(map(str, setting.choices)) or value_name(setting)
        source = f"; environment: `{setting.flag.env.name}`" if setting.flag.env else ""
        rows.append(f"| {names} | {_cell(value)} | {_cell(default_text(setting))} | {_cell(setting.flag.help)}{source} |")
    return [*rows, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _environment() -> list[str]:
    lines = ["## Environment variables", "", "`OCTAVO_X` may also be given as `VLLM_X` where the table says so.", ""]
    lines += ["| name | also | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{item.name}` | {f'`{item.also}`' if item.also else ''} | {_cell(item.help)} |" for item in env.ALL.values()]
    return [*lines, ""]


def _foreign() -> list[str]:
    lines = ["## Flags of vLLM that do nothing here", "", "Accepted with a note, as they cannot change results, or refused.", ""]
    lines += ["| flag | | why |", "| --- | --- | --- |"]
    lines += [f"| `{option(name)}` | {'refused' if item.refused else 'noted'} | {_cell(item.reason)} |" for name, item in FOREIGN.items()]
    return [*lines, ""]


if __name__ == "__main__":
    print(reference(), end="")
