#!/usr/bin/env python3
"""The same tokens wherever the KV comes from, and however the prompt is split."""
import os
import random

from checks import MODEL, ROOT, at_least, run, same, until
from lib_servers import Server, complete, metric

VERSES = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
PROMPT = " ".join(VERSES[:20])


def serve(binary, *arguments, dtype="f32"):
    # What is found is loaded, however fast this machine computes.
    return Server(binary, "serve", "--model", MODEL, "--dtype", dtype, "--kv-policy", "always", *arguments)


def reference(binary, prompt=PROMPT, **options):
    with serve(binary) as server:
        answer = complete(server.port, prompt, 32, **options)
        same("exit code after SIGTERM", server.stop(), 0)
        return answer


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def other_prompts(count):
    rng = random.Random(3)
    for number in range(count):
        yield f"{number} " + " ".join(rng.sample(VERSES, 15))


def any_split_of_the_prompt(binary, folder):
    wanted = reference(binary)
    for budget in (16, 64, 1024):
        for block in (8, 16, 32):
            with serve(binary, "--max-batched-tokens", budget, "--block-tokens", block) as server:
                answer = complete(server.port, PROMPT, 32)
                same(f"text with budget {budget}, block {block}", answer["text"], wanted["text"])
                again = complete(server.port, PROMPT, 32)
                same(f"text from the device's KV, budget {budget}, block {block}", again["text"], wanted["text"])
                tokens = answer["usage"]["prompt_tokens"]
                same("cached tokens the second time", cached(again), (tokens - 1) // block * block)


def from_the_device(binary, folder):
    wanted = reference(binary)
    with serve(binary) as server:
        same("cached at first", cached(complete(server.port, PROMPT, 32)), 0)
        again = complete(server.port, PROMPT, 32)
        same("text", again["text"], wanted["text"])
        at_least("cached tokens", cached(again), wanted["usage"]["prompt_tokens"] - 16)
        at_least("device hits", metric(server.port, "cokv_kv_hits_total", tier="device"), 1)


def from_the_host(binary, folder):
    wanted = reference(binary)
    tokens = wanted["usage"]["prompt_tokens"]
    blocks = (tokens + 32) // 16 + 4
    with serve(binary, "--kv-blocks", blocks, "--kv-host", "64MiB") as server:
        complete(server.port, PROMPT, 32)
        for prompt in other_prompts(3):  # the device has room for one prompt: these push the first one out
            complete(server.port, prompt, 4)
        again = complete(server.port, PROMPT, 32)
        same("text", again["text"], wanted["text"])
        at_least("cached tokens", cached(again), tokens - 16)
        at_least("host hits", metric(server.port, "cokv_kv_hits_total", tier="host"), 1)


def from_the_disk_after_a_restart(binary, folder, *how):
    wanted = reference(binary)
    disk = ("--kv-dir", os.path.join(folder, "kv"), "--kv-disk", "256MiB")
    with serve(binary, *disk, *how) as server:
        complete(server.port, PROMPT, 32)
        same("exit code", server.stop(), 0)
    with serve(binary, *disk) as server:
        again = complete(server.port, PROMPT, 32)
        same("text", again["text"], wanted["text"])
        at_least("cached tokens", cached(again), wanted["usage"]["prompt_tokens"] - 16)
        at_least("disk hits", metric(server.port, "cokv_kv_hits_total", tier="disk"), 1)


def from_the_disk_past_its_cache(binary, folder):
    from_the_disk_after_a_restart(binary, folder, "--kv-direct")  # and read back the other way


def from_the_remote_cache_after_a_restart(binary, folder):
    for dtype in ("f32", "bf16"):
        with Server(binary, "cache", "--memory", "256MiB") as cache:
            with serve(binary, "--kv-remote", cache.url, dtype=dtype) as server:
                wanted = complete(server.port, PROMPT, 32)
                same("exit code", server.stop(), 0)
            with serve(binary, "--kv-remote", cache.url, dtype=dtype) as server:
                again = complete(server.port, PROMPT, 32)
                same("text", again["text"], wanted["text"])
                at_least("cached tokens", cached(again), wanted["usage"]["prompt_tokens"] - 16)
                at_least("remote hits", metric(server.port, "cokv_kv_hits_total", tier="remote"), 1)
            same("exit code of the cache", cache.stop(), 0)


def through_the_memory_of_a_remote_cache_on_this_machine(binary, folder):
    wanted = reference(binary)
    socket = os.path.join(folder, "socket")
    with Server(binary, "cache", "--memory", "256MiB", "--socket", socket) as cache:
        with serve(binary, "--kv-remote", "unix://" + socket) as server:
            same("text", complete(server.port, PROMPT, 32)["text"], wanted["text"])
            # The pool itself is shown, not a piece to copy blocks to.
            until("the pool is mapped", lambda: metric(cache.port, "cokv_cache_passed_bytes") > 4 << 20)
            same("exit code after SIGTERM", server.stop(), 0)  # which waits for what is to be stored
        stored = metric(cache.port, "cokv_cache_bytes", tier="memory")
        at_least("bytes that were copied from the pool", metric(cache.port, "cokv_cache_taken_bytes_total"), 1)
        at_least("bytes that are stored", stored, metric(cache.port, "cokv_cache_taken_bytes_total"))
        with serve(binary, "--kv-remote", "unix://" + socket) as server:
            again = complete(server.port, PROMPT, 32)
            same("text from there", again["text"], wanted["text"])
            at_least("cached tokens", cached(again), wanted["usage"]["prompt_tokens"] - 16)
        at_least("reads by reference", metric(cache.port, "cokv_cache_leases_total"), 1)


def kv_of_another_dtype_or_block_size_is_not_used(binary, folder):
    with Server(binary, "cache", "--memory", "256MiB") as cache:
        with serve(binary, "--kv-remote", cache.url) as server:
            complete(server.port, PROMPT, 4)
            server.stop()
        for other in (dict(dtype="bf16"),):
            with serve(binary, "--kv-remote", cache.url, **other) as server:
                same("cached tokens", cached(complete(server.port, PROMPT, 4)), 0)
        with serve(binary, "--kv-remote", cache.url, "--block-tokens", 32) as server:
            same("cached tokens", cached(complete(server.port, PROMPT, 4)), 0)


def sampled_answers_too(binary, folder):
    sampling = dict(temperature=1.0, top_p=0.9, seed=11)
    wanted = reference(binary, **sampling)
    with Server(binary, "cache", "--memory", "256MiB") as cache:
        for _ in range(2):
            with serve(binary, "--kv-remote", cache.url) as server:
                same("text", complete(server.port, PROMPT, 32, **sampling)["text"], wanted["text"])
                server.stop()


run(any_split_of_the_prompt, from_the_device, from_the_host, from_the_disk_after_a_restart, from_the_disk_past_its_cache,
    from_the_remote_cache_after_a_restart, through_the_memory_of_a_remote_cache_on_this_machine,
    kv_of_another_dtype_or_block_size_is_not_used, sampled_answers_too)
