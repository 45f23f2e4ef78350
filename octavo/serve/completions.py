"""/v1/completions: prompts as texts or token ids, continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from octavo.serve.answers import Call, PromptPositions, finite, prompt_positions, token_name
from octavo.serve.front import Front
from octavo.serve.params import check_supported, sampling_params
from octavo.serve.parts import Content, Part
from octavo.serve.prompts import make_request, prompt_list
from octavo.serve.schemas import CompletionBody, CompletionChoice, CompletionLogprobs
from octavo.text.detokenize import complete_text, pieces_of
from octavo.types import MAX_CONTINUATIONS, CompletionOutput, InvalidRequest, Logprob, Request, RequestOutput


async def completions(front: Front, body: CompletionBody, label: str) -> Call:
    """Raises `ApiError` and `InvalidRequest`."""
    front.check_model(body.model)
    check_supported(body)
    params = sampling_params(body, front.model.intake)
    prompts = prompt_list(body.prompt, "prompt")
    if len(prompts) * params.n > MAX_CONTINUATIONS:
        raise InvalidRequest("n", params.n, f"with {len(prompts)} prompts there would be more than {MAX_CONTINUATIONS} texts in one call")
    requests = [await make_request(front, prompt, body, params, label, add_special_tokens=True) for prompt in prompts]
    front.check_room(requests)
    texts = [_prompt_text(front, prompt, request) if body.echo else None for prompt, request in zip(prompts, requests)]
    shape = CompletionShape(front, body, requests, texts)
    return Call(front, shape, body, label, requests, texts, show_tokens=not shape.only_echo)


def _prompt_text(front: Front, prompt: str | list[int], request: Request) -> str:
    """What `echo` shows. A cut prompt is shown as it was used."""
    if isinstance(prompt, str) and request.params.truncate_prompt_tokens is None:
        return prompt
    return complete_text(front.model.tokenizer, request.prompt_token_ids, skip_special_tokens=request.params.skip_special_tokens)


class CompletionShape:
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, front: Front, body: CompletionBody, requests: list[Request], prompts: list[str | None]) -> None:
        self.only_echo = bool(body.echo) and body.max_tokens == 0
        self._tokenizer = front.model.tokenizer
        self._requests = requests
        self._prompts = prompts  # None: not to be echoed
        self._with_logprobs = body.logprobs is not None
        self._as_ids = bool(body.return_tokens_as_token_ids or front.config.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)
        self._with_prompt_logprobs = body.prompt_logprobs is not None
        self._opened: set[int] = set()
        self._prompt_positions: dict[int, PromptPositions] = {}

    def choice(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> msgspec.Struct:
        return self._choice(index, place, output, one)

    def opening(self, index: int) -> msgspec.Struct | None:
        return None

    @property
    def plain(self) -> bool:
        return not (self._with_logprobs or self._with_ids or self._with_prompt_logprobs or self._prompts[0] is not None)

    @property
    def by_text(self) -> bool:
        return self.plain

    def reader(self, index: int) -> Callable[[str], Sequence[Part]]:
        return lambda text: (Content(text),)

    def delta(self, index: int, part: Part) -> msgspec.Struct:
        assert isinstance(part, Content), "a completion has no other parts"
        return CompletionChoice(index, part.text)

    def news(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> Iterable[str | msgspec.Struct]:
        if self.plain and one.finish_reason is None:
            return (one.text,) if one.text else ()
        choice = self._choice(index, place, output, one)
        return (choice,) if choice.text or choice.logprobs or choice.finish_reason or self._with_ids else ()

    def _choice(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> CompletionChoice:
        """All of `one`, after the prompt where that is echoed and was not yet."""
        if output.prompt_logprobs is not None:
            self._prompt_positions[place] = output.prompt_logprobs
        first = index not in self._opened
        self._opened.add(index)
        prompt = self._prompts[place]
        text = "" if self.only_echo else one.text
        choice = CompletionChoice(index, (prompt or "") + text if first else text)
        choice.finish_reason, choice.stop_reason = one.finish_reason, one.stop_reason
        if self.only_echo and choice.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = "length", None
        if self._with_logprobs:
            choice.logprobs = self._logprobs(place, one, echo=first and prompt is not None)
        if first and self._with_prompt_logprobs and place in self._prompt_positions:
            choice.prompt_logprobs = prompt_positions(self._prompt_positions[place])
        if self._with_ids:
            choice.token_ids = [] if self.only_echo else one.token_ids
            if first:
                choice.prompt_token_ids = list(self._requests[place].prompt_token_ids)
        return choice

    def _logprobs(self, place: int, one: CompletionOutput, echo: bool) -> CompletionLogprobs:
        logprobs = CompletionLogprobs([], [], [], [])
        if echo:
            self._add_prompt(place, logprobs)
        shift = 0 if self._prompts[place] is None else len(self._prompts[place] or "")
        if not self.only_echo:
            for token_id, position, offset in zip(one.token_ids, one.logprobs or (), one.text_offsets or ()):
                self._add(logprobs, token_id, position, offset + shift)
        return logprobs

    def _add_prompt(self, place: int, logprobs: CompletionLogprobs) -> None:
        """The prompt's tokens; the first has no log-probability."""
        request = self._requests[place]
        pieces = pieces_of(self._tokenizer, request.prompt_token_ids, skip_special_tokens=request.params.skip_special_tokens)
        offset = 0
        for token_id, position, piece in zip(request.prompt_token_ids, self._prompt_positions[place], pieces):
            self._add(logprobs, token_id, position, offset)
            offset += len(piece)

    def _add(self, logprobs: CompletionLogprobs, token_id: int, position: dict[int, Logprob] | None, offset: int) -> None:
        logprobs.text_offset.append(offset)
        assert logprobs.top_logprobs is not None
        if position is None:
            logprobs.tokens.append(self._name(token_id, None))
            logprobs.token_logprobs.append(None)
            logprobs.top_logprobs.append(None)
            return
        logprobs.tokens.append(self._name(token_id, position[token_id].decoded_token))
        logprobs.token_logprobs.append(finite(position[token_id].logprob))
        logprobs.top_logprobs.append({self._name(other, one.decoded_token): finite(one.logprob) for other, one in position.items()})

    def _name(self, token_id: int, decoded: str | None) -> str:
        """The token's text. Pieces of characters are written byte by byte, so that different tokens keep different names."""
        data = self._tokenizer.token_bytes(token_id)
        if decoded is None or "�" in decoded:
            try:
                decoded = data.decode()
            except UnicodeDecodeError:
                decoded = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return token_name(token_id, decoded, self._as_ids)
