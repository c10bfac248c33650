"""Addresses of OpenAI's API and of other servers that are not served here: each is refused by name.

Not for: fields (``openai.py``).
"""

from kvfence.gateway.responses import INVALID, Failure

NOT_SERVED: dict[str, str] = {
    "assistants": "Assistants are",
    "audio": "Audio is",
    "batches": "Batches are",
    "containers": "Containers are",
    "conversations": "Conversations are",
    "embeddings": "Embeddings are",
    "evals": "Evals are",
    "files": "Files are",
    "fine_tuning": "Fine-tuning is",
    "images": "Images are",
    "messages": "Anthropic's messages are",
    "moderations": "Moderations are",
    "organization": "Administration is",
    "pooling": "Pooling is",
    "realtime": "Realtime sessions are",
    "rerank": "Reranking is",
    "responses": "Responses are",
    "score": "Scoring is",
    "threads": "Threads are",
    "uploads": "Uploads are",
    "vector_stores": "Vector stores are",
    "videos": "Videos are",
}
"""The first part of an address behind /v1/, and how its refusal begins."""


def refuse_address(path: str, instead: str) -> Failure:
    """Refuse what stands at no address of ours; the path is not repeated."""
    _, _, behind = path.partition("/v1/")
    subject = NOT_SERVED.get(behind.partition("/")[0]) if path.startswith("/v1/") else None
    if subject is None:
        return Failure(404, INVALID, f"There is nothing at this address; try {instead}.", "not_found")
    message = f"{subject} not supported here; this server generates text: {instead}."
    return Failure(404, INVALID, message, "not_supported")
