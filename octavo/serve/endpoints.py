"""The routes that run requests. Batches run the same ones."""

from __future__ import annotations

from octavo.serve.calls import Endpoint
from octavo.serve.chat import chat_completions
from octavo.serve.completions import completions
from octavo.serve.embeddings import EmbeddingBody, EmbeddingList, embeddings
from octavo.serve.messages import MessageAnswer, error_body, messages
from octavo.serve.messages_input import MessagesBody
from octavo.serve.ranking import Ranking, RerankBody, ScoreBody, ScoreList, rerank, score
from octavo.serve.responses import ResponseAnswer, responses
from octavo.serve.responses_input import ResponsesBody
from octavo.serve.schemas import Answer, ChatBody, CompletionBody

ENDPOINTS = (
    Endpoint(("/v1/completions",), "Continue prompts", CompletionBody, "cmpl", completions, Answer),
    Endpoint(("/v1/chat/completions",), "Answer messages", ChatBody, "chatcmpl", chat_completions, Answer),
    Endpoint(("/v1/responses",), "Answer input items", ResponsesBody, "resp", responses, ResponseAnswer),
    Endpoint(("/v1/messages",), "Answer messages, in Anthropic's form", MessagesBody, "msg", messages, MessageAnswer, error_body),
    Endpoint(("/v1/embeddings",), "Vectors of texts", EmbeddingBody, "embd", embeddings, EmbeddingList),
    Endpoint(("/score", "/v1/score"), "How alike texts are", ScoreBody, "score", score, ScoreList),
    Endpoint(("/rerank", "/v1/rerank", "/v2/rerank"), "Documents by likeness to a query", RerankBody, "rerank", rerank, Ranking),
)
BY_PATH = {path: endpoint for endpoint in ENDPOINTS for path in endpoint.paths}
