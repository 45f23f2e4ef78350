"""`octavo doctor`: what of this machine will keep a model from running well, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from octavo.cli.flags import Settings
from octavo.config.fields import Flag
from octavo.config.parallel import ParallelConfig

MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}


@dataclass(frozen=True)
class DoctorOptions:
    """Where a server would listen, and how to print."""

    host: Annotated[str, Flag("address that a server would listen on")] = "127.0.0.1"
    port: Annotated[int, Flag("port that a server would listen on")] = 8000
    json: Annotated[bool, Flag("print one JSON object")] = False


OPTIONS = DoctorOptions
TOPICS = (ParallelConfig,)


def run(settings: Settings) -> int:
    """1 where something that is asked for will not work."""
    from octavo.doctor.examine import examine, read_facts

    options = settings.topic(DoctorOptions)
    found = examine(read_facts(settings.topic(ParallelConfig), options.host, options.port))
    failed = any(finding.severity == "error" for finding in found.values())
    if options.json:
        print(json.dumps({"ok": not failed, "findings": [{"name": name, **asdict(finding)} for name, finding in found.items()]}))
        return int(failed)
    for name, finding in found.items():
        print(f"{MARKS[finding.severity]:<8} {name:<16} {finding.text}")
        if finding.advice:
            print(f"{'':<25} -> {finding.advice}")
    return int(failed)
