#!/usr/bin/env python3
"""Answers whose KV goes to a cache as it grows (--replicate-to) go on at any other worker when theirs is lost."""
import subprocess

from checks import MODEL, at_least, run, same, until
from cluster import LONG, Cluster, all_answered, ask, asked, at_the_worker_of, blocks_are_free, kill, some_requests, told
from lib_servers import Server, metric


def cache_of(binary, *more):
    return Server(binary, "cache", "--memory", "256MiB", *more)


def sum_of(cluster, name, servers=None):
    return sum(metric(s.port, name) for s in servers or cluster.decodes if s.process.poll() is None)


def an_answer_goes_on_from_the_cache(binary, folder):
    with cache_of(binary) as cache, \
            Cluster(binary, decodes=2, decode=("--replicate-to", cache.url)) as cluster:
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]
        same("sequences that are copied", sum_of(cluster, "cokv_uncovered_tokens_total"), 0)
        prompts = metric(cluster.prefill.port, "cokv_departed_prompts_total")
        text, victim = at_the_worker_of(cluster, cluster.decodes, kill)
        same("the answer", text, whole)
        at_least("answers that went on", metric(cluster.port, "cokv_resumed_answers_total"), 1)
        same("tokens computed again", metric(cluster.port, "cokv_computed_again_tokens_total") <= 1, True)
        same("prompts computed again", metric(cluster.prefill.port, "cokv_departed_prompts_total") - prompts, 1)
        at_least("tokens out of the cache", sum_of(cluster, "cokv_restored_copy_tokens_total"), 1)
        cluster.at_rest()


def the_only_worker_goes_on_when_it_is_back(binary, folder):
    with cache_of(binary) as cache, Cluster(binary, decode=("--replicate-to", cache.url)) as cluster:
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]

        def again(worker):
            kill(worker)
            cluster.decodes.append(Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", "decode",
                                          "--replicate-to", cache.url, port=worker.port))
        text, _ = at_the_worker_of(cluster, list(cluster.decodes), again)
        same("the answer", text, whole)
        same("answers that went on", metric(cluster.port, "cokv_resumed_answers_total"), 1)
        same("tokens computed again", metric(cluster.port, "cokv_computed_again_tokens_total") <= 1, True)


def many_answers_and_some_are_lost(binary, folder):
    requests = [r | {"max_tokens": 150 + 15 * i, "logit_bias": LONG["logit_bias"]}
                for i, r in enumerate(some_requests(16, 52))]
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
    with cache_of(binary) as cache, \
            Cluster(binary, decodes=3, decode=("--replicate-to", cache.url, "--kv-blocks", 700, "--block-tokens", 8)) as cluster:
        peers = [asked(cluster.port, r) for r in requests]
        victim = cluster.decode
        until("it is in the middle", lambda: metric(victim.port, "cokv_generated_tokens_total") > 150 and
              metric(victim.port, "cokv_replicated_sequences") > 1)
        kill(victim)
        all_answered(peers, requests, wanted)
        at_least("answers that went on from the cache", metric(cluster.port, "cokv_resumed_answers_total"), 1)
        blocks_are_free(cluster)


def a_cache_that_dies_is_missed_by_nobody(binary, folder):
    with cache_of(binary) as cache, \
            Cluster(binary, decodes=2, decode=("--replicate-to", cache.url)) as cluster:
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]

        def both(worker):
            kill(cache)
            kill(worker)
        text, victim = at_the_worker_of(cluster, cluster.decodes, both)
        same("the answer", text, whole)
        same("answers that went on", metric(cluster.port, "cokv_resumed_answers_total"), 0)
        same("the next answer", ask(cluster.port, **LONG)[1]["choices"][0]["text"], whole)
        at_least("batches that it did not take", sum_of(cluster, "cokv_replication_failures_total"), 1)
        cluster.at_rest()


def a_cache_that_wants_a_key(binary, folder):
    keys, mine = f"{folder}/keys", f"{folder}/mine"
    open(keys, "w").write("secret-of-the-cache\n")
    open(mine, "w").write("secret-of-the-cache\n")
    with cache_of(binary, "--api-key-file", keys) as cache:
        with Cluster(binary, decodes=2, decode=("--replicate-to", cache.url, "--replicate-key-file", mine)) as cluster:
            whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]
            at_least("KV that it took", sum_of(cluster, "cokv_replicated_bytes_total"), 1 << 20)
        with Cluster(binary, decodes=2, decode=("--replicate-to", cache.url)) as cluster:
            same("an answer without it", ask(cluster.port, **LONG)[1]["choices"][0]["text"], whole)
            same("KV that it took", sum_of(cluster, "cokv_replicated_bytes_total"), 0)


def a_cache_that_is_not_there_keeps_no_blocks(binary, folder):
    """With blocks for a part of what is asked for at once: those that end, or are put off, make room for the others."""
    requests = [{"prompt": [5 + i] * 20, "max_tokens": 300, "temperature": 0, "logit_bias": LONG["logit_bias"]}
                for i in range(4)]
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
    with Cluster(binary, decode=("--replicate-to", "http://127.0.0.1:1", "--kv-blocks", 40, "--max-sequence", 400)) as cluster:
        all_answered([asked(cluster.port, r) for r in requests], requests, wanted)
        same("whether it replicates", metric(cluster.decode.port, "cokv_replicating"), 0)
        cluster.at_rest()


def what_can_not_be_used_is_told(binary, folder):
    for word, *arguments in (("--replicate-to", "--role", "decode", "--replicate-to", "nonsense"),
                             ("--replicate-to", "--role", "prefill", "--replicate-to", "http://127.0.0.1:1"),
                             ("key file", "--role", "decode", "--replicate-to", "http://127.0.0.1:1",
                              "--replicate-key-file", f"{folder}/nothing"),
                             ("--replicate-to", "--role", "decode", "--replicate-key-file", f"{folder}/nothing")):
        done = subprocess.run([binary, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", *arguments],
                              capture_output=True, text=True, timeout=60)
        same(f"exit code of {arguments}", done.returncode, 2)
        same(f"{done.stderr} says {word}", word in done.stderr.strip().splitlines()[-1], True)


run(an_answer_goes_on_from_the_cache, the_only_worker_goes_on_when_it_is_back, many_answers_and_some_are_lost, a_cache_that_dies_is_missed_by_nobody,
    a_cache_that_wants_a_key, a_cache_that_is_not_there_keeps_no_blocks, what_can_not_be_used_is_told)
