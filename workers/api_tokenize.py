"""Text to tokens and back over HTTP: what a prompt will cost, before it is sent."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from workers.api_body import read_json
from workers.api_prompts import aside, chat_text, check_model, check_template, check_token_ids
from workers.api_validation import parse_detokenize, parse_tokenize
from workers.backend import Backend


def tokenize_router(backend: Backend) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        """The tokens of a prompt, or of messages as the chat template writes them."""
        body = await read_json(request)
        asked = await aside(len(body), lambda: parse_tokenize(body))
        if asked.model is not None:
            check_model(backend, asked.model)
        if asked.messages is None:
            text, adds_special = asked.prompt or "", asked.add_special_tokens is not False
        else:
            check_template(backend)
            text = await chat_text(
                backend, asked.messages, add_generation_prompt=asked.add_generation_prompt is not False
            )
            adds_special = asked.add_special_tokens is True  # the template has written its own
        token_ids = await aside(
            len(text),
            lambda: list(backend.tokenizer.encode(text, add_special_tokens=adds_special, verbose=False)),
        )
        names = backend.tokenizer.convert_ids_to_tokens(token_ids) if asked.return_token_strs else None
        return JSONResponse(
            {"count": len(token_ids), "max_model_len": backend.max_context, "tokens": token_ids, "token_strs": names}
        )

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        """The text of tokens, special ones by their names."""
        body = await read_json(request)
        asked = await aside(len(body), lambda: parse_detokenize(body))
        if asked.model is not None:
            check_model(backend, asked.model)
        check_token_ids(backend, "tokens", asked.tokens)
        text = await aside(
            len(asked.tokens),
            lambda: backend.tokenizer.decode(
                asked.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
            ),
        )
        return JSONResponse({"prompt": text})

    return router
