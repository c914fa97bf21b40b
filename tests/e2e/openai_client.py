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


def samplings(binary, folder):
    with serve(binary) as server:
        client = client_of(server)
        ask = dict(model="tiny-kjv", prompt=CASE["prompt"], max_tokens=12, seed=5)
        three = client.completions.create(**ask, n=3, logprobs=2, temperature=1)
        same("answers", [c.index for c in three.choices], [0, 1, 2])
        same("different answers", len({c.text for c in three.choices}) > 1, True)
        same("prompt tokens are counted once", three.usage.prompt_tokens, len(CASE["prompt_tokens"]))
        for choice in three.choices:
            log = choice.logprobs
            same("text of the tokens", "".join(log.tokens), choice.text)
            same("offsets", log.text_offset, [sum(map(len, log.tokens[:i])) for i in range(len(log.tokens))])
            same("the likeliest is no less likely", all(p <= max(top.values()) + 1e-6 for p, top in
                                                        zip(log.token_logprobs, log.top_logprobs)), True)
        same("the first of three is the one", client.completions.create(**ask, temperature=1).choices[0].text,
             three.choices[0].text)
        streamed = {}
        for chunk in client.completions.create(**ask, n=3, temperature=1, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] = streamed.get(choice.index, "") + choice.text
        same("streamed", [streamed[i] for i in range(3)], [c.text for c in three.choices])
        best = client.completions.create(**{**ask, "temperature": 0, "logprobs": 1})
        banned = CASE["tokens"][0]
        other = client.completions.create(**{**ask, "temperature": 0, "logprobs": 1, "logit_bias": {str(banned): -100}})
        same("a banned token", other.choices[0].logprobs.tokens[0] != best.choices[0].logprobs.tokens[0], True)
        same("whose logprob stays", other.choices[0].logprobs.top_logprobs[0], best.choices[0].logprobs.top_logprobs[0])
        plain = client.completions.create(**{**ask, "max_tokens": 60, "temperature": 0})
        less = client.completions.create(**{**ask, "max_tokens": 60, "temperature": 0}, frequency_penalty=2,
                                         presence_penalty=1, extra_body={"repetition_penalty": 1.3, "min_p": 0.1})
        same("penalties change an answer", plain.choices[0].text != less.choices[0].text, True)
        chat = client.chat.completions.create(model="tiny-kjv", messages=[{"role": "user", "content": "Who?"}],
                                              max_completion_tokens=5, logprobs=True, top_logprobs=3, n=2)
        for choice in chat.choices:
            same("top", [len(t.top_logprobs) for t in choice.logprobs.content], [3] * len(choice.logprobs.content))
            same("bytes", b"".join(bytes(t.bytes) for t in choice.logprobs.content).decode(errors="replace").startswith(
                choice.message.content), True)


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
        same("param", refused(openai.BadRequestError, n=300).param, "n")
        same("code", refused(openai.BadRequestError, max_tokens=100000).code, "context_length_exceeded")
        refused(openai.BadRequestError, prompt="")


if openai is None:
    print(f"the openai package is not installed for {sys.executable}: 4 checks with the client are skipped", flush=True)
    run(what_a_client_reads)
else:
    run(what_a_client_reads, completions, chats, samplings, errors)
