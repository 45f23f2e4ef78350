"""Reasoning between two tags at the beginning of an answer. The opening one may stand in the prompt, or be left out."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.serve.parts import Reader, Reading


@dataclass(frozen=True)
class ThinkTags:
    """`implied`: the model thinks from its first token on, whether it says so or not."""

    opening: str = "<think>"
    closing: str = "</think>"
    implied: bool = False

    def opened_by(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins inside the reasoning."""
        end = prompt.rstrip()
        return end.endswith(self.opening) or (self.implied and not end.endswith(self.closing))

    def read(self, reader: Reader, opened: bool) -> Reading[None]:
        """Tell the reasoning, without white space around it, if there is any; what is left is the answer."""
        reader.mark()
        yield from reader.skip_space()
        if not (yield from reader.take(self.opening)) and not opened:
            return reader.refuse()
        reader.accept()
        yield from reader.skip_space()
        yield from reader.text_until(self.closing, reader.reasoning)
        reader.accept()
        yield from reader.skip_space()
