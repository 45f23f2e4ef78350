"""Llama 3.1 and later: the whole text is `{"name": ..., "parameters": {...}}`, or several with `;` between, `<|python_tag|>` before or not.

No marker is needed, so a JSON answer could look like a call: only the name of a tool that was offered makes one.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from octavo.serve.parts import Reader, Reading
from octavo.serve.tools.json_calls import read_call

TAG = "<|python_tag|>"


class Llama3Json:
    markers = (TAG,)

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        between = ""
        while True:
            reader.mark()
            yield from reader.skip_space()
            if between and (yield from reader.take(between)):
                yield from reader.skip_space()
            if (yield from reader.take(TAG)):
                yield from reader.skip_space()
            if not (yield from read_call(reader, known)):
                return reader.refuse()
            yield from reader.skip_last_space()
            between = ";"
