"""What LangChain users do, against the base URL given; prints one JSON object."""

import asyncio
import json
import sys

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI
from openai import BadRequestError

base_url, model = sys.argv[1:3]
options = {"base_url": base_url, "api_key": "unused", "model": model, "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(**options, max_tokens=24, stream_usage=True)
messages = [HumanMessage("What is the capital of France?")]

whole = chat.invoke(messages)
parts = list(chat.stream(messages))
streamed = parts[0]
for part in parts[1:]:
    streamed += part


async def asynchronous() -> tuple[list[str], str]:
    batch = await chat.abatch([messages, messages])
    pieces = [part.content async for part in chat.astream(messages)]
    return [answer.content for answer in batch], "".join(pieces)


batch, astream = asyncio.run(asynchronous())
scored = chat.bind(logprobs=True, top_logprobs=2).invoke(messages)
try:
    ChatOpenAI(**options, max_tokens=24, presence_penalty=3).invoke(messages)
    refused = None
except BadRequestError as error:
    refused = error.param
print(
    json.dumps(
        {
            "content": whole.content,
            "finish_reason": whole.response_metadata["finish_reason"],
            "usage": whole.usage_metadata,
            "streamed": streamed.content,
            "streamed_usage": streamed.usage_metadata,
            "batch": batch,
            "astream": astream,
            "logprobs": len(scored.response_metadata["logprobs"]["content"]),
            "completion": OpenAI(**options, max_tokens=8).invoke("The capital of France is"),
            "refused": refused,
        }
    )
)
