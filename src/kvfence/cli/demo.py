"""What ``make serve`` shows once the server is ready: an answer, a refusal, the incident, and how to ask it yourself.

Everything goes through the server's own HTTP port, as a client would.
"""

import asyncio
import sys
from pathlib import Path

import httpx
import typer
from httpx_sse import aconnect_sse
from msgspec import json

from kvfence.cli.compose import RunningServer
from kvfence.cli.exits import ExitCode
from kvfence.cli.render import print_error
from kvfence.models.bundled import cache_root

QUESTION = "What is the capital of France?"
TIMEOUT_S = 60.0

_SNIPPET = """
Ask it yourself:

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "{question}"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  answer = client.chat.completions.create(
      model="{model}", messages=[{{"role": "user", "content": "{question}"}}], temperature=0, max_tokens=64)
  print(answer.choices[0].message.content)

Also: {url}/health  {url}/ready  {url}/metrics
"""


async def show_demo(server: RunningServer, is_open: bool) -> int:
    """Show the main job; give 0 where all of it was seen."""
    code = int(ExitCode.NOTHING_FOUND)
    if is_open:
        async with httpx.AsyncClient(base_url=server.address.url, timeout=TIMEOUT_S) as client:
            _title("1  A streamed answer through this port")
            answered = await _show_answer(client, server.model.name)
            _title("2  A prompt that does not fit is refused, with the arithmetic")
            refused = await _show_refusal(client, server)
        if not (answered and refused):
            print_error("the server did not answer as it should; see its log above")
            code = int(ExitCode.FOUND)
    else:
        _say("(this server asks for API keys, so the demonstration sends no request of its own)")
    _title("3  The incident, replayed on this model: what the guards change (about two minutes)")
    incident = await _show_incident()
    _title("4  Over to you")
    _say(_SNIPPET.format(url=server.address.url, model=server.model.name, question=QUESTION))
    return code or incident


async def _show_answer(client: httpx.AsyncClient, model: str) -> bool:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 40,
        "stream": True,
    }
    _say(f"  > {QUESTION}\n  ", end="")
    text = ""
    async with aconnect_sse(client, "POST", "/v1/chat/completions", json=body) as source:
        if source.response.status_code != 200:
            await source.response.aread()
            _say(source.response.text)
            return False
        async for event in source.aiter_sse():
            if event.data == "[DONE]":
                break
            for choice in json.decode(event.data).get("choices", []):
                piece = choice.get("delta", {}).get("content") or ""
                text += piece
                _say(piece, end="")
    _say("")
    return bool(text)


async def _show_refusal(client: httpx.AsyncClient, server: RunningServer) -> bool:
    """Send a prompt of one token more than the context, as token ids, so that its length is exact."""
    prompt = [1] * (server.capacity.context_tokens + 1)
    body = {"model": server.model.name, "prompt": prompt, "max_tokens": 16}
    response = await client.post("/v1/completions", json=body)
    _say(f"  POST /v1/completions with {len(prompt)} tokens -> {response.status_code}")
    _say(f"  {json.decode(response.content).get('error', {}).get('message', '')}")
    return response.status_code == 400


async def _show_incident() -> int:
    """Run ``kvfence incident`` as its own process: serve itself can reach no other rule set."""
    page = cache_root() / "incident.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvfence", "incident", "--html", str(page), stdin=asyncio.subprocess.DEVNULL
    )
    try:
        status = await child.wait()
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()
    _say(f"  as a page: {_as_uri(page)}" if page.exists() else "  no page was written")
    return status


def _as_uri(path: Path) -> str:
    return path.resolve().as_uri()


def _title(text: str) -> None:
    _say("")
    typer.secho(text, bold=True)


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()
