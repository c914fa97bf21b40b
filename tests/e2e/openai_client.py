#!/usr/bin/env python3
"""The official `openai` Python client against `cokv serve`; where it is not installed, what it would read, without it."""
import json
import os
import sys

from checks import MODEL, run, same
from lib_servers import Server, complete

try:
    import openai
except ImportError:
    openai = None

CASE = json.load(open(os.path.join(MODEL, "expected.json")))["cases"][0]


def serve(binary, *arguments):
    return Server(binary, "serve", "--model", MODEL, "--dtype", "f32", *arguments)


def client_of(server, key="unused"):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def what_a_client_reads(binary, folder):
    with serve(binary) as server:
        answer = complete(server.port, CASE["prompt"], len(CASE["tokens"]))
        same("text", answer["text"], CASE["text"])
        same("total tokens", answer["usage"]["total_tokens"], len(CASE["tokens"]) + len(CASE["prompt_tokens"]))


def completions(binary, folder):
    with serve(binary) as server:
        client = client_of(server)
        same("models", [m.id for m in client.models.list()], ["tiny-kjv"])
        same("model", client.models.retrieve("tiny-kjv").id, "tiny-kjv")
        ask = dict(model="tiny-kjv", prompt=CASE["prompt"], max_tokens=len(CASE["tokens"]), temperature=0)
        whole = client.completions.create(**ask)
        same("text", whole.choices[0].text, CASE["text"])
        same("usage", whole.usage.completion_tokens, len(CASE["tokens"]))
        text, usage = "", None
        for chunk in client.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
            text += "".join(choice.text for choice in chunk.choices)
            usage = chunk.usage or usage
        same("streamed text", text, CASE["text"])
        same("streamed usage", usage.total_tokens, whole.usage.total_tokens)
        again = client.completions.create(**ask)
        same("cached", again.usage.prompt_tokens_details.cached_tokens, (len(CASE["prompt_tokens"]) - 1) // 16 * 16)


def chats(binary, folder):
    with serve(binary) as server:
        client = client_of(server)
        messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Who was Moses?"}]
        ask = dict(model="tiny-kjv", messages=messages, max_completion_tokens=24, temperature=0)
        whole = client.chat.completions.create(**ask)
        same("role", whole.choices[0].message.role, "assistant")
        text = ""
        with client.chat.completions.create(**ask, stream=True) as stream:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        same("streamed text", text, whole.choices[0].message.content)
        # A message goes back the way it came.
        messages += [whole.choices[0].message.model_dump(), {"role": "user", "content": "And who was Aaron?"}]
        same("second turn", client.chat.completions.create(**ask).choices[0].message.role, "assistant")


def errors(binary, folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("sesame\n")
    with serve(binary, "--api-key-file", keys) as server:
        def refused(kind, key="sesame", **change):
            ask = dict(model="tiny-kjv", prompt="And", max_tokens=4)
            try:
                client_of(server, key).completions.create(**{**ask, **change})
            except kind as error:
                return error
            raise AssertionError(f"{change} was not refused with {kind.__name__}")
        refused(openai.AuthenticationError, key="wrong")
        refused(openai.NotFoundError, model="gpt")
        same("param", refused(openai.BadRequestError, n=3).param, "n")
        same("code", refused(openai.BadRequestError, max_tokens=100000).code, "context_length_exceeded")
        refused(openai.BadRequestError, prompt="")


if openai is None:
    print(f"the openai package is not installed for {sys.executable}: 3 checks with the client are skipped", flush=True)
    run(what_a_client_reads)
else:
    run(what_a_client_reads, completions, chats, errors)
