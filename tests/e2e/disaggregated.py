#!/usr/bin/env python3
"""A router, a prefill and a decode worker answer as one server does, whatever link their KV goes by."""
import json
import os
import random
import signal
import socket
import subprocess

from checks import MODEL, at_least, run, same, until
from cluster import (CASES, LONG, VERSES, Cluster, all_answered, ask, asked, at_the_worker_of, blocks_are_free, kill,
                     ring_is_told, some_requests, told)
from lib_servers import Server, complete, fetch, metric, request_bytes


def same_answers(binary, folder, count, seed, **options):
    requests = list(some_requests(count, seed))
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [ask(one.port, **r) for r in requests]
        chat = {"path": "/v1/chat/completions", "messages": [{"role": "user", "content": VERSES[3]}], "max_tokens": 12,
                "temperature": 0}
        wanted_chat = ask(one.port, **chat)
    with Cluster(binary, **options) as cluster:
        for request, (status, answer) in zip(requests, wanted):
            same("status of one server", status, 200)
            status, got = ask(cluster.port, **request)
            same(f"status of {request}", status, 200)
            same(f"answer to {request}", told(got), told(answer))
        same("a chat", told(ask(cluster.port, **chat)[1]), told(wanted_chat[1]))
        greedy = next(r for r in requests if r["temperature"] == 0 and "stop" not in r)
        text = complete(cluster.port, greedy["prompt"], greedy["max_tokens"])
        same("streamed", text["text"], ask(cluster.port, prompt=greedy["prompt"], max_tokens=greedy["max_tokens"],
                                           temperature=0)[1]["choices"][0]["text"])
        at_least("prompts that were sent", metric(cluster.prefill.port, "cokv_departed_prompts_total"), count)
        at_least("KV that was sent", metric(cluster.prefill.port, "cokv_departed_bytes_total"), 1)
        cluster.at_rest()
        same("exit codes after SIGTERM", cluster.stop(), [0, 0, 0])


def over_shared_memory(binary, folder):
    same_answers(binary, folder, 40, 1, decode=("--link", f"shm://{folder}/kv"))


def over_tcp_in_chunks(binary, folder):
    same_answers(binary, folder, 40, 2, prefill=("--max-batched-tokens", 48), decode=("--link", "tcp://127.0.0.1:0"))


def over_ucx(binary, folder):
    same_answers(binary, folder, 25, 4, prefill=("--max-batched-tokens", 100), decode=("--link", "ucx://127.0.0.1:0"))


def other_block_sizes_and_few_blocks(binary, folder):
    same_answers(binary, folder, 15, 3, both=("--block-tokens", 8), decode=("--kv-blocks", 400))


def blocks_that_are_cut_on_their_way(binary, folder):
    """Prompts come from blocks of one size to blocks of another, larger or smaller or neither of them a part of the other."""
    for number, (mine, theirs, link) in enumerate(((16, 8, f"shm://{folder}/a"), (8, 32, "tcp://127.0.0.1:0"),
                                                   (24, 16, "tcp://127.0.0.1:0"))):
        same_answers(binary, folder, 12, 20 + number, prefill=("--block-tokens", mine, "--max-batched-tokens", 80),
                     decode=("--block-tokens", theirs, "--link", link))


def decode_workers_of_other_blocks_stand_in_for_each_other(binary, folder):
    requests = [r | {"max_tokens": 120, "logit_bias": LONG["logit_bias"]} for r in some_requests(8, 31)]
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
    model = ("--model", MODEL, "--dtype", "f32")
    with Server(binary, "serve", *model, "--role", "prefill") as prefill, \
            Server(binary, "serve", *model, "--role", "decode", "--block-tokens", 8) as small, \
            Server(binary, "serve", *model, "--role", "decode", "--block-tokens", 32) as large, \
            Server(binary, "serve", *model, "--role", "router", "--prefill", prefill.url, "--decode",
                   f"{small.url},{large.url}", "--replicas", 1) as router:
        peers = [asked(router.port, r) for r in requests]
        until("both decode", lambda: all(metric(s.port, "cokv_generated_tokens_total") > 30 for s in (small, large)))
        same("copies at another kind", metric(large.port, "cokv_kept_copies") + metric(small.port, "cokv_kept_copies"), 0)
        kill(small)
        all_answered(peers, requests, wanted)


def logprobs_of(port, request):
    """Of each token behind the first, which the other worker computed: the likeliest ones."""
    status, answer = ask(port, **request)
    same(f"status of {request}", status, 200)
    top = answer["choices"][0]["logprobs"]
    return top["tokens"], top["top_logprobs"]


def another_element_type_is_converted_where_both_agree(binary, folder):
    requests = [r | {"max_tokens": 8, "temperature": 0, "logprobs": 5, "n": 1, "stop": None, "top_p": 1}
                for r in some_requests(10, 40)]
    for mine, theirs in (("f32", "bf16"), ("bf16", "f32")):
        with Server(binary, "serve", "--model", MODEL, "--dtype", theirs) as one, \
                Server(binary, "serve", "--model", MODEL, "--dtype", mine, "--role", "prefill", "--convert-kv") as prefill, \
                Server(binary, "serve", "--model", MODEL, "--dtype", theirs, "--role", "decode", "--convert-kv",
                       "--block-tokens", 8) as decode, \
                Server(binary, "serve", "--model", MODEL, "--role", "router", "--prefill", prefill.url, "--decode",
                       decode.url) as router:
            compared = 0
            for r in requests:
                got, wanted = logprobs_of(router.port, r), logprobs_of(one.port, r)
                for token, want, ours, theirs_too in zip(*got[:1], *wanted[:1], got[1], wanted[1]):
                    if token != want:
                        break  # another way from here on: so near were the two
                    for name in ours.keys() & theirs_too.keys():
                        if abs(ours[name] - theirs_too[name]) > 0.4:
                            raise AssertionError(f"{mine} to {theirs}: {name!r} has {ours[name]}, alone {theirs_too[name]}")
                        compared += 1
            at_least("logprobs that were compared", compared, 200)
            # What came stays: the second time it is the decode worker's own.
            before = metric(prefill.port, "cokv_departed_bytes_total")
            logprobs_of(router.port, requests[-1])
            width = {"f32": 4, "bf16": 2}[theirs]
            same("a second time", metric(prefill.port, "cokv_departed_bytes_total") - before <
                 2 * 8 * 4 * 32 * width * 16, True)


def what_goes_to_the_decode_worker_is_on_the_timeline(binary, folder):
    with Cluster(binary, prefill=("--max-batched-tokens", 64)) as cluster:
        for i in range(4):
            ask(cluster.port, prompt=[3 + i] * 900, max_tokens=1)
        at_least("part of the transfer that was hidden", metric(cluster.prefill.port, "cokv_kv_hidden_fraction"), 0.01)
        drawn = json.loads(fetch(cluster.prefill.port, "/v1/status"))["timeline"]
        at_least("pieces of KV on its way", len(drawn["out"]), 1)


def the_expected_continuations(binary, folder):
    with Cluster(binary) as cluster:
        for case in CASES["cases"]:
            same(case["prompt"], complete(cluster.port, case["prompt"], len(case["tokens"]))["text"], case["text"])


def what_the_decode_worker_has_is_not_sent(binary, folder):
    prompt = " ".join(VERSES[:12])
    with Cluster(binary) as cluster:
        first = complete(cluster.port, prompt, 8)
        sent = metric(cluster.prefill.port, "cokv_departed_bytes_total")
        again = complete(cluster.port, prompt, 8)
        same("text", again["text"], first["text"])
        more = metric(cluster.prefill.port, "cokv_departed_bytes_total") - sent
        if more * 10 > sent:
            raise AssertionError(f"{more} bytes were sent again, of {sent}")
        at_least("cached tokens", again["usage"]["prompt_tokens_details"]["cached_tokens"],
                 (again["usage"]["prompt_tokens"] - 1) // 16 * 16)


def cached_of_chats(binary, policy):
    """Tokens that prefill workers did not compute, of four conversations whose turns come at random."""
    rng = random.Random(5)
    with Cluster(binary, prefills=3, router=("--policy", policy)) as cluster:
        talks = {n: f"{n} " + " ".join(VERSES[8 * n:8 * n + 8]) for n in range(4)}
        turns = [n for n in talks for _ in range(5)]
        rng.shuffle(turns)
        for n in turns:
            talks[n] += complete(cluster.port, talks[n], 4)["text"] + " " + rng.choice(VERSES)
        whole = sum(metric(p.port, "cokv_prompt_tokens_total") for p in cluster.prefills)
        return sum(metric(p.port, "cokv_cached_tokens_total") for p in cluster.prefills) / whole


def a_prompt_goes_where_its_beginning_is(binary, folder):
    by_prefix, by_load = cached_of_chats(binary, "prefix"), cached_of_chats(binary, "least-loaded")
    at_least("part of the prompts that was there", by_prefix, 0.65)
    at_least("the same against placement by load", by_prefix, by_load + 0.1)
    at_least("the same by SLO", cached_of_chats(binary, "slo"), by_load + 0.1)


def workers_tell_of_their_kv(binary, folder):
    with Cluster(binary) as cluster:
        with socket.create_connection(("127.0.0.1", cluster.prefill.port), timeout=30) as peer:
            peer.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
            data = b""
            while b": follows" not in data:
                data += peer.recv(1 << 16)
            complete(cluster.port, " ".join(VERSES[:4]), 2)
            while b"event: stored" not in data or b'"tier":"device"' not in data:
                data += peer.recv(1 << 16)


def many_at_once(binary, folder):
    requests = list(some_requests(24, 4))
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
    with Cluster(binary) as cluster:
        peers = [asked(cluster.port, r) for r in requests]
        all_answered(peers, requests, wanted)
        cluster.at_rest()


def answers_that_take_turns_on_the_decode_worker(binary, folder):
    """With copies of them at a second one, and blocks for a part of them at each."""
    requests = [{**r, "max_tokens": 60} for r in some_requests(24, 9)]
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
    with Cluster(binary, decodes=2, decode=("--kv-blocks", 64, "--swap", "64MiB"), router=("--replicas", 1)) as cluster:
        peers = [asked(cluster.port, r) for r in requests]
        all_answered(peers, requests, wanted)
        at_least("bytes swapped", sum(metric(d.port, "cokv_swapped_bytes_total") for d in cluster.decodes), 1)
        cluster.at_rest()


def a_client_that_goes_leaves_nothing(binary, folder):
    with Cluster(binary) as cluster:
        for after in (0, 1, 3):
            with socket.create_connection(("127.0.0.1", cluster.port), timeout=60) as peer:
                peer.sendall(request_bytes(cluster.port, "POST", "/v1/completions",
                                           {"model": "tiny-kjv", "prompt": " ".join(VERSES[:20]), "max_tokens": 4000,
                                            "stream": True}))
                for _ in range(after):
                    peer.recv(1 << 12)
            cluster.at_rest()
        same("it goes on", len(complete(cluster.port, "In the beginning", 4)["arrivals"]) > 0, True)


def a_worker_that_dies_is_an_error_and_not_a_hang(binary, folder):
    with Cluster(binary) as cluster:
        complete(cluster.port, "In the beginning", 4)
        cluster.prefill.process.send_signal(signal.SIGKILL)
        cluster.prefill.process.wait()
        status, answer = ask(cluster.port, prompt="And the earth was", max_tokens=4)
        same("status without a prefill worker", status, 503)
        same("its code", answer["error"]["code"], "unavailable")
        until("no block is in use",
              lambda: metric(cluster.decode.port, "cokv_kv_blocks", tier="device", state="in_use") == 0)
    with Cluster(binary) as cluster:
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=60) as peer:
            peer.sendall(request_bytes(cluster.port, "POST", "/v1/completions",
                                       {"model": "tiny-kjv", "prompt": VERSES[0], "max_tokens": 4000, "stream": True,
                                        "ignore_eos": True}))
            data = peer.recv(1 << 12)
            cluster.decode.process.send_signal(signal.SIGKILL)
            cluster.decode.process.wait()
            while chunk := peer.recv(1 << 16):
                data += chunk
        same("the stream ends with an error object", b'"error"' in data, True)
        same("status without a decode worker", ask(cluster.port, prompt="And the earth was", max_tokens=4)[0], 503)


def a_decode_worker_that_stands_still_is_an_error(binary, folder):
    with Cluster(binary) as cluster:
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=60) as peer:
            peer.sendall(request_bytes(cluster.port, "POST", "/v1/completions",
                                       {"model": "tiny-kjv", "prompt": VERSES[0], "max_tokens": 4000, "stream": True,
                                        "ignore_eos": True}))
            data = peer.recv(1 << 12)
            cluster.decode.process.send_signal(signal.SIGSTOP)
            while chunk := peer.recv(1 << 16):
                data += chunk
            cluster.decode.process.send_signal(signal.SIGCONT)
        same("the stream ends with an error object", b'"error"' in data, True)
        cluster.at_rest()
        at_least("pieces afterwards", len(complete(cluster.port, "In the beginning", 4)["arrivals"]), 1)


def a_decode_worker_that_dies_in_mid_answer_is_not_noticed(binary, folder):
    with Cluster(binary, decodes=2) as cluster:
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]

        text, victim = at_the_worker_of(cluster, cluster.decodes, kill)
        same("the answer", text, whole)
        at_least("answers that moved", metric(cluster.port, "cokv_moved_requests_total", of="answer"), 1)
        until("it is known to be gone",
              lambda: metric(cluster.port, "cokv_workers", role="decode", state="gone") == 1)
        same("the next answer", ask(cluster.port, **LONG)[1]["choices"][0]["text"], whole)
        cluster.at_rest()


def a_decode_worker_that_stands_still_is_left(binary, folder):
    with Cluster(binary, decodes=2) as cluster:
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]
        text, victim = at_the_worker_of(cluster, cluster.decodes, lambda s: s.process.send_signal(signal.SIGSTOP))
        same("the answer", text, whole)
        victim.process.send_signal(signal.SIGCONT)
        until("it is here again", lambda: metric(cluster.port, "cokv_workers", role="decode", state="here") == 2)
        cluster.at_rest()


def an_answer_goes_on_from_its_copy(binary, folder):
    with Cluster(binary, decodes=2, router=("--replicas", 1)) as cluster:
        ring_is_told(cluster)
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]
        until("its copy is forgotten", lambda: sum(metric(s.port, "cokv_kept_copies") for s in cluster.decodes) == 0)
        prompts = metric(cluster.prefill.port, "cokv_departed_prompts_total")
        text, victim = at_the_worker_of(cluster, cluster.decodes, kill)
        same("the answer", text, whole)
        same("answers that went on from a copy", metric(cluster.port, "cokv_resumed_answers_total"), 1)
        if metric(cluster.port, "cokv_computed_again_tokens_total") > 1:
            raise AssertionError("more than a token was computed again")
        same("prompts that were computed", metric(cluster.prefill.port, "cokv_departed_prompts_total"), prompts + 1)
        blocks_are_free(cluster)
        same("the next answer", ask(cluster.port, **LONG)[1]["choices"][0]["text"], whole)


def of_two_copies_one_is_enough(binary, folder):
    with Cluster(binary, decodes=3, router=("--replicas", 2)) as cluster:
        ring_is_told(cluster)
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]
        for number in (1, 2):
            text, victim = at_the_worker_of(cluster, cluster.decodes, kill)
            same("the answer", text, whole)
            at_least("answers that went on from a copy", metric(cluster.port, "cokv_resumed_answers_total"), number)
            cluster.decodes.remove(victim)
            ring_is_told(cluster)
        blocks_are_free(cluster)


def who_only_stood_still_changes_no_copy(binary, folder):
    with Cluster(binary, decodes=2, router=("--replicas", 1)) as cluster:
        ring_is_told(cluster)
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]
        text, victim = at_the_worker_of(cluster, cluster.decodes, lambda s: s.process.send_signal(signal.SIGSTOP))
        same("the answer", text, whole)
        same("answers that went on from a copy", metric(cluster.port, "cokv_resumed_answers_total"), 1)
        victim.process.send_signal(signal.SIGCONT)
        until("it is here again", lambda: metric(cluster.port, "cokv_workers", role="decode", state="here") == 2)
        ring_is_told(cluster)
        same("the next answer", ask(cluster.port, **LONG)[1]["choices"][0]["text"], whole)
        blocks_are_free(cluster)


def many_answers_are_copied_and_some_lost(binary, folder):
    requests = [r | {"max_tokens": 150 + 15 * i, "logit_bias": LONG["logit_bias"]} for i, r in enumerate(some_requests(16, 12))]
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
    with Cluster(binary, decodes=3, both=("--kv-blocks", 1000), router=("--replicas", 1)) as cluster:
        ring_is_told(cluster)
        peers = [asked(cluster.port, r) for r in requests]
        victim = cluster.decode
        until("others keep copies of answers that go on",
              lambda: metric(victim.port, "cokv_generated_tokens_total") > 150 and
              metric(victim.port, "cokv_copied_sequences") > 1 and
              sum(metric(s.port, "cokv_kept_copies") for s in cluster.decodes[1:]) > 1)
        kill(victim)
        all_answered(peers, requests, wanted)
        at_least("answers that went on from a copy", metric(cluster.port, "cokv_resumed_answers_total"), 1)
        blocks_are_free(cluster)


def a_prefill_worker_that_dies_is_not_noticed(binary, folder):
    requests = list(some_requests(24, 9))
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
    with Cluster(binary, prefills=2, prefill=("--max-batched-tokens", 64)) as cluster:
        peers = [asked(cluster.port, r) for r in requests]
        until("it computes", lambda: metric(cluster.prefill.port, "cokv_requests_running") > 0)
        cluster.prefill.process.send_signal(signal.SIGKILL)
        cluster.prefill.process.wait()
        all_answered(peers, requests, wanted)
        at_least("prompts that moved", metric(cluster.port, "cokv_moved_requests_total", of="prompt"), 1)
        cluster.at_rest()


def workers(port):
    return json.loads(fetch(port, "/v1/workers"))["workers"]


def workers_come_and_leave(binary, folder):
    def told_to(method, path="/v1/workers", body=None):
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=60) as peer:
            peer.sendall(request_bytes(cluster.port, method, path, body))
            return int(peer.recv(1 << 12).split()[1])

    with Cluster(binary) as cluster, \
            Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", "decode") as more, \
            Server(binary, "serve", "--model", MODEL, "--dtype", "bf16", "--role", "decode") as other:
        whole = ask(cluster.port, **LONG)[1]["choices"][0]["text"]
        same("status", told_to("POST", body={"url": more.url}), 204)
        same("again", told_to("POST", body={"url": more.url}), 204)
        same("of no URL", told_to("POST", body={"url": "nonsense"}), 400)
        same("of another model", told_to("POST", body={"url": other.url}), 204)
        until("both decode", lambda: metric(cluster.port, "cokv_workers", role="decode", state="here") == 2)
        until("the other does not", lambda: metric(cluster.port, "cokv_workers", state="misfit") == 1)
        same("who leaves", told_to("DELETE", "/v1/workers?url=" + cluster.decode.url), 204)
        same("who is not here", told_to("DELETE", "/v1/workers?url=http://127.0.0.1:1"), 404)
        until("it is forgotten", lambda: cluster.decode.url not in (w["url"] for w in workers(cluster.port)))
        same("the answer", ask(cluster.port, **LONG)[1]["choices"][0]["text"], whole)
        at_least("sequences at the new one", metric(more.port, "cokv_generated_tokens_total"), 100)
        cluster.at_rest()


def workers_that_join_by_themselves_say_goodbye(binary, folder):
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", "router") as router:
        start = lambda role: Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", role, "--join", router.url)
        with start("prefill") as prefill, start("decode") as first, start("decode") as second:
            until("all are here", lambda: sum(w["state"] == "here" for w in workers(router.port)) == 3)
            until("it answers", lambda: ask(router.port, prompt="In", max_tokens=1)[0] == 200)
            whole = ask(router.port, **LONG)[1]["choices"][0]["text"]
            cluster = type("", (), {"port": router.port})
            text, victim = at_the_worker_of(cluster, [first, second], lambda s: s.process.send_signal(signal.SIGTERM))
            same("the answer", text, whole)
            same("exit code of who was told to end", victim.process.wait(timeout=60), 0)
            same("answers that moved", metric(router.port, "cokv_moved_requests_total", of="answer"), 0)
            until("it is forgotten", lambda: len(workers(router.port)) == 2)
            same("the next answer", ask(router.port, **LONG)[1]["choices"][0]["text"], whole)


def a_worker_that_was_let_go_stays_away(binary, folder):
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", "router") as router:
        log = open(f"{folder}/log", "w+")
        start = lambda role: Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", role, "--join",
                                    router.url, log=log)
        with start("prefill") as prefill, start("decode") as first, start("decode") as second:
            until("all are here", lambda: sum(w["state"] == "here" for w in workers(router.port)) == 3)
            with socket.create_connection(("127.0.0.1", router.port), timeout=30) as peer:
                peer.sendall(request_bytes(router.port, "DELETE", f"/v1/workers?url={first.url}", None))
                same("status of letting it go", peer.recv(1 << 12).split()[1], b"204")
            until("it knows", lambda: "joins no more" in open(log.name).read())
            same("who is left", {w["url"] for w in workers(router.port)}, {prefill.url, second.url})
            same("an answer", ask(router.port, prompt="In", max_tokens=1)[0], 200)
            with socket.create_connection(("127.0.0.1", router.port), timeout=30) as peer:
                peer.sendall(request_bytes(router.port, "POST", "/v1/workers", {"url": first.url}))
                same("status of asking it back", peer.recv(1 << 12).split()[1], b"204")
            until("it is here", lambda: sum(w["state"] == "here" for w in workers(router.port)) == 3)


def the_shortest_prompts_and_answers(binary, folder):
    requests = [{"prompt": p, "max_tokens": n, "temperature": 0} for p in ([5], [5, 6, 7], VERSES[0]) for n in (1, 2)]
    with Server(binary, "serve", "--model", MODEL, "--dtype", "f32") as one:
        wanted = [told(ask(one.port, **r)[1]) for r in requests]
        long = {"prompt": [7] * (2047), "max_tokens": 1, "temperature": 0}
        wanted_long = told(ask(one.port, **long)[1])
    with Cluster(binary) as cluster:
        for r, answer in zip(requests, wanted):
            same(f"answer to {r}", told(ask(cluster.port, **r)[1]), answer)
        same("the longest prompt", told(ask(cluster.port, **long)[1]), wanted_long)
        same("a prompt that is too long", ask(cluster.port, prompt=[7] * 9000, max_tokens=1)[0], 400)
        cluster.at_rest()
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=60) as peer:
            peer.sendall(request_bytes(cluster.port, "POST", "/v1/completions",
                                       {"model": "tiny-kjv", "prompt": VERSES[1], "max_tokens": 30, "stream": True}))
            peer.recv(1 << 12)
            same("exit codes after SIGTERM with a sequence alive", cluster.stop(), [0, 0, 0])


def what_does_not_fit_together_is_told(binary, folder):
    def router(*arguments):
        done = subprocess.run([binary, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", *map(str, arguments)],
                              capture_output=True, text=True, timeout=60)
        same("one line", len(done.stderr.strip().splitlines()[-1:]), 1)
        return done.returncode, done.stderr.strip().splitlines()[-1]

    def refused(word, *arguments):
        code, line = router(*arguments)
        same(f"exit code with {arguments}", code, 2)
        if word not in line:
            raise AssertionError(f"{arguments}: {line!r} does not say {word!r}")

    refused("--dead-after", "--role", "router", "--heartbeat", 1000, "--dead-after", 1000)
    refused("--prefill", "--prefill", "http://127.0.0.1:1")
    refused("--link", "--role", "prefill", "--link", "tcp://127.0.0.1:0")
    refused("--link", "--role", "decode", "--link", "nonsense")
    refused("--prefill", "--role", "router", "--prefill", "nonsense", "--decode", "http://127.0.0.1:1")
    with Server(binary, "serve", "--model", MODEL) as plain, \
            Server(binary, "serve", "--model", MODEL, "--role", "decode") as decode, \
            Server(binary, "serve", "--model", MODEL, "--role", "prefill"):
        refused("is no worker", "--role", "router", "--prefill", plain.url, "--decode", decode.url)
        refused("is a worker for decode", "--role", "router", "--prefill", decode.url, "--decode", decode.url)
    # One that converts, and one that does not.
    with Server(binary, "serve", "--model", MODEL, "--dtype", "bf16", "--role", "decode") as decode, \
            Server(binary, "serve", "--model", MODEL, "--dtype", "f32", "--role", "prefill", "--convert-kv") as prefill:
        refused("is not that of", "--role", "router", "--prefill", prefill.url, "--decode", decode.url)


run(over_shared_memory, over_tcp_in_chunks, over_ucx, other_block_sizes_and_few_blocks, blocks_that_are_cut_on_their_way,
    decode_workers_of_other_blocks_stand_in_for_each_other, another_element_type_is_converted_where_both_agree,
    what_goes_to_the_decode_worker_is_on_the_timeline, the_expected_continuations,
    what_the_decode_worker_has_is_not_sent, a_prompt_goes_where_its_beginning_is, workers_tell_of_their_kv,
    answers_that_take_turns_on_the_decode_worker, many_at_once, a_client_that_goes_leaves_nothing,
    a_worker_that_dies_is_an_error_and_not_a_hang, a_decode_worker_that_stands_still_is_an_error,
    a_decode_worker_that_dies_in_mid_answer_is_not_noticed, a_decode_worker_that_stands_still_is_left,
    an_answer_goes_on_from_its_copy, of_two_copies_one_is_enough, who_only_stood_still_changes_no_copy,
    many_answers_are_copied_and_some_lost, a_prefill_worker_that_dies_is_not_noticed, workers_come_and_leave,
    workers_that_join_by_themselves_say_goodbye, a_worker_that_was_let_go_stays_away, the_shortest_prompts_and_answers, what_does_not_fit_together_is_told)
