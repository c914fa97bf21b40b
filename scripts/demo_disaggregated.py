#!/usr/bin/env python3
"""The demo of several processes: prompts are computed here and answers decoded there, a worker is killed, nobody notices.

usage: demo_disaggregated.py COKV [--model DIR] [--out DIR] [--streams 12] [--tokens 600] [--rate 12] [--seed 1] [--quick]

A router, two prefill workers, two decode workers and a cache start on ports of their own. Streams of sampled answers arrive at
random times (--rate a second, whatever the servers do), and when a decode worker is in the middle of some it is killed
with kill -9. Each answer is compared with what one undisturbed server says. Exits 1 if any of them is not the same.
"""
import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lib_servers import WARM_UP, Server, Stream, complete, fetch, metric  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Watch(threading.Thread):
    """What the router tells of itself (GET /v1/status), twenty times a second: where each answer was, and all events."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.answers, self.events, self.last, self.lock = port, {}, {}, {}, threading.Lock()
        self.over = threading.Event()

    def take(self, now):
        with self.lock:
            self.last = now
            for event in now["events"]:
                self.events[event["number"]] = event
            for answer in now["sequences"]:
                if answer["decode"]:
                    self.answers.setdefault(answer["id"], []).append(answer)

    def run(self):
        while not self.over.wait(0.05):
            self.take(json.loads(fetch(self.port, "/v1/status")))

    def stop(self):
        self.over.set()
        self.join()

    def of(self, most):
        """The answer that may have so many tokens: its id, and the views of it. Each stream's number is another."""
        with self.lock:
            for name, views in self.answers.items():
                if views[0]["most"] == most:
                    return name, views
        return None, []


def requests(o):
    """Prompts that begin alike and end differently: what the second one has in common with the first need not be computed."""
    rng = random.Random(o.seed)
    verses = open(os.path.join(ROOT, "models/text/genesis.txt")).read().strip().split("\n")
    eos = json.load(open(os.path.join(o.model, "config.json")))["eos_token_id"]
    at = 0.0
    for number in range(o.streams):
        prompt = " ".join(verses[:8] + rng.sample(verses[8:], rng.choice((1, 4, 10))))
        yield at, {"model": "tiny-kjv", "prompt": prompt, "max_tokens": o.tokens + number, "temperature": 1,
                   "seed": rng.randint(0, 1 << 60), "logit_bias": {str(eos): -100}, "stream": True,
                   "stream_options": {"include_usage": True}}
        at += rng.expovariate(o.rate)


def send(port, plan):
    """Open loop: each is sent when its time has come, whatever became of those before."""
    streams, start = [Stream(port, body) for _, body in plan], time.perf_counter()

    def all_of_them():
        for (at, _), stream in zip(plan, streams):
            time.sleep(max(0.0, start + at - time.perf_counter()))
            stream.start()

    sender = threading.Thread(target=all_of_them, daemon=True)
    sender.start()
    return streams, sender


def ended(streams, sender):
    sender.join()
    for stream in streams:
        stream.join()


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"did not come about within {seconds} s: {what}")
        time.sleep(0.02)
    return value


def kill_in_mid_answer(watch, router, decodes, tokens, sender):
    """Kills the decode worker with the most answers, in the middle of one of them. Returns it, when, and what there was."""
    def ripe():
        now = json.loads(fetch(router.port, "/v1/status"))
        watch.take(now)
        had = {s.url: [a for a in now["sequences"] if a["decode"] == s.url and a["told"] > 0] for s in decodes}
        victim = max(decodes, key=lambda s: len(had[s.url]))
        middle = any(tokens // 4 < a["told"] < 3 * tokens // 4 for a in had[victim.url])
        return (victim, now) if middle and len(had[victim.url]) >= (3 if sender.is_alive() else 1) else None

    victim, now = wait_for("a decode worker in the middle of an answer", ripe)
    victim.process.send_signal(signal.SIGKILL)
    return victim, time.perf_counter(), now


def draw(streams, plan, watch, names, killed_at, width=66):
    """One row a stream: '.' until its first token, then the number of the decode worker that it came from."""
    start, end = min(s.asked for s in streams), max(s.at[-1] for s in streams)
    column = lambda t: min(width - 1, int((t - start) / (end - start) * width))
    for number, (stream, (_, body)) in enumerate(zip(streams, plan), 1):
        name, views = watch.of(body["max_tokens"])
        moved = any(e["what"] == "answer_moved" and e.get("sequence") == name for e in watch.events.values())
        marks = [names.get(v["decode"], "?")[-1] for v in views] or ["?"]
        row = [" "] * width
        for at in range(column(stream.asked), column(stream.at[0]) + 1):
            row[at] = "."
        for t in stream.at:
            row[column(t)] = marks[-1] if moved and t > killed_at else marks[0]
        cut = column(killed_at)
        if row[cut] == " ":
            row[cut] = "|"
        print(f"  {number:2} {''.join(row)}")
    print(f"     {' ' * column(killed_at)}^ kill -9")
    print(f"     0 s{'':{width - 9}}{end - start:5.1f} s")


def rows_of(streams, plan, wanted, watch, names, killed_at, victim):
    """What happened to each stream, in words; and whether all of them are right."""
    rows, right = [], True
    for number, (stream, (_, body), text) in enumerate(zip(streams, plan, wanted), 1):
        name, views = watch.of(body["max_tokens"])
        mine = [e for e in watch.events.values() if e.get("sequence") == name]
        moved = [e for e in mine if e["what"] == "answer_moved" and e.get("who") == victim.url]
        resumed = [e for e in mine if e["what"] == "resumed"]
        prompts = [e for e in mine if e["what"] == "prompt_moved"]
        at = names.get(views[0]["decode"], "?") if views else "?"
        wait = max((b - max(a, killed_at) for a, b in zip(stream.at, stream.at[1:]) if b > killed_at), default=None)
        after, again, what = "-", "0", "undisturbed"
        if moved and resumed:
            at, after = names[victim.url], names.get(resumed[-1]["to"], "?")
            again, what = str(sum(e["amount"] for e in resumed)), f"went on from its copy at token {moved[-1]['amount']}"
        elif moved:
            at, after = names[victim.url], names.get(views[-1]["decode"], "?") if views else "?"
            again, what = "all", f"no copy yet: prompt and {moved[-1]['amount']} tokens computed again"
        elif prompts:
            what = "its prompt was computed again: nothing of it was told yet"
        elif stream.asked > killed_at:
            what = "came after the kill"
        same = stream.error is None and stream.whole and stream.text == text
        right = right and same
        known = stream.usage or {}
        rows.append((number, known.get("prompt_tokens", "?"), known.get("completion_tokens", len(stream.at)), at, after,
                     f"{1e3 * (stream.at[0] - stream.asked):.0f} ms" if stream.at else "never",
                     f"{1e3 * wait:.0f} ms" if wait is not None else "-", again, "same" if same else "NOT THE SAME",
                     what if stream.error is None else f"error: {stream.error.get('message') or stream.error['code']}"))
    return rows, right


def table(head, rows):
    widths = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        last = len(row) - 1
        print("  " + "  ".join(str(c).ljust(w) if i in (0, last) else str(c).rjust(w)
                               for i, (c, w) in enumerate(zip(row, widths))).rstrip())


def worker_rows(workers, names, victim, watch, seconds):
    """What each worker did: of the killed one as it said last."""
    mb = lambda b: f"{b / 1e6:.1f} MB"
    told = {w["url"]: w for w in watch.last["workers"]}
    for server in workers:
        w = told[server.url]
        did, name = w["doing"], names[server.url]
        remote = next((t for t in did["tiers"]), {"in_bytes": 0, "out_bytes": 0})
        computed = did["prompt_tokens"] - did["cached_tokens"] if w["role"] == "prefill" else 0
        yield (name, w["state"] + (" (as last heard)" if server is victim else ""), w["given"], computed,
               mb(did["sent_bytes"]) if w["role"] == "prefill" else "-", did["generated_tokens"] if w["role"] == "decode" else "-",
               mb(remote["out_bytes"]), mb(remote["in_bytes"]),
               f"{did['computing_us'] / 1e6 / seconds:.0%}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cokv")
    p.add_argument("--model", default=os.path.join(ROOT, "models/tiny-kjv"))
    p.add_argument("--out", default=os.path.join(ROOT, "out"), help="folder for the traces")
    p.add_argument("--streams", type=int, default=12, help="answers")
    p.add_argument("--tokens", type=int, default=600, help="of each answer, and a few more")
    p.add_argument("--rate", type=float, default=12.0, help="streams that arrive in a second, on average")
    p.add_argument("--seed", type=int, default=1, help="of prompts, answers and arrivals")
    p.add_argument("--quick", action="store_true", help="half as many streams, of half as many tokens")
    o = p.parse_args()
    if o.quick:
        o.streams, o.tokens = o.streams // 2, o.tokens // 2
    if o.streams < 3 or o.tokens < 50 or o.rate <= 0:
        raise SystemExit("takes 3 streams, 50 tokens and some rate at the least: a worker is killed in the middle of them")
    o.cokv = os.path.abspath(o.cokv)
    os.makedirs(o.out, exist_ok=True)
    log = open(os.path.join(o.out, "servers.log"), "w")
    plan = list(requests(o))
    model = ["serve", "--model", o.model, "--dtype", "f32"]

    print(f"1. one server answers {o.streams} requests undisturbed: what all answers are compared with")
    with Server(o.cokv, *model, log=log) as one:
        streams, sender = send(one.port, [(0, body) for _, body in plan])
        ended(streams, sender)
        wanted = [s.text for s in streams]
        if any(s.error or not s.whole for s in streams):
            raise SystemExit(f"one server alone fails: {[s.error for s in streams]}")
        one.stop()

    print("2. a cache, two workers that compute prompts, two that decode answers, and a router start")
    with contextlib.ExitStack() as all_of_them:
        start = lambda *arguments: all_of_them.enter_context(Server(o.cokv, *arguments, log=log))
        cache = start("cache", "--memory", "256MiB")
        traces, names = {}, {cache.url: "cache"}

        def worker(role, number):
            name = f"{role}-{number}"
            traces[name] = os.path.join(o.out, f"{name}.perfetto.json")
            with contextlib.suppress(FileNotFoundError):
                os.remove(traces[name])  # one of a run before is none of this one
            made = start(*model, "--role", role, "--kv-remote", cache.url, "--trace", traces[name])
            names[made.url] = name
            return made

        prefills, decodes = [[worker(role, n) for n in (1, 2)] for role in ("prefill", "decode")]
        router = start(*model, "--role", "router", "--replicas", 1, "--heartbeat", 100, "--prefill", ",".join(s.url for s in prefills),
                       "--decode", ",".join(s.url for s in decodes))
        names[router.url] = "router"
        for url, name in names.items():
            print(f"   {name:10} {url}")
        print(f"   (while it runs: {router.url}/ shows it in a browser)")
        wait_for("the decode workers know whose copies they keep",
                 lambda: all(metric(s.port, "cokv_ring_epoch") > 0 for s in decodes))
        for _ in range(4):
            complete(router.port, WARM_UP, 4)  # the first requests of a process pay for cold caches: not ours to show
        watch = Watch(router.port)
        watch.start()

        print(f"3. {o.streams} streams arrive at random times, {o.rate:g} a second, and a decode worker is killed in mid-answer")
        began = time.perf_counter()
        streams, sender = send(router.port, plan)
        victim, killed_at, had = kill_in_mid_answer(watch, router, decodes, o.tokens, sender)
        survivor = next(s for s in decodes if s is not victim)
        victim.process.wait()
        of_it = [a for a in had["sequences"] if a["decode"] == victim.url]
        print(f"   kill -9 {victim.process.pid}: {names[victim.url]}, {killed_at - began:.2f} s after the first stream came, "
              f"with {len(of_it)} answers under way")
        ended(streams, sender)
        seconds = time.perf_counter() - began
        time.sleep(0.5)  # some heartbeats: what the router heard last of its workers is from before the last answers ended
        watch.stop()
        watch.take(json.loads(fetch(router.port, "/v1/status")))

        print(f"\n4. when each stream had its tokens, and from which decode worker ({victim.url} is {names[victim.url]})")
        draw(streams, plan, watch, names, killed_at)
        print("\n5. what became of each stream")
        rows, right = rows_of(streams, plan, wanted, watch, names, killed_at, victim)
        table(("", "prompt", "tokens", "decoded by", "then by", "first token", "longest wait", "computed again", "text",
               "what happened"), rows)
        gaps = [b - a for s in streams for a, b in zip(s.at, s.at[1:])]
        print(f"   longest wait: for a token, from the kill on; usual time between tokens: {1e3 * statistics.median(gaps):.1f} ms")
        print("\n6. what each worker did")
        table(("", "state", "requests", "prompt tokens computed", "KV sent to decode", "tokens decoded", "KV to cache",
               "KV from cache", "busy"), list(worker_rows([*prefills, *decodes], names, victim, watch, seconds)))
        print("\n7. the metrics that prove it")
        proofs = [(router, "cokv_workers", {"role": "decode", "state": "gone"}, "decode workers that died"),
                  (router, "cokv_moved_requests_total", {"of": "answer"}, "answers that lost their worker"),
                  (router, "cokv_resumed_answers_total", {}, "of those, went on from a copy"),
                  (router, "cokv_computed_again_tokens_total", {}, "of those, tokens whose KV was computed again"),
                  (survivor, "cokv_restored_copy_tokens_total", {}, "tokens whose KV came out of copies"),
                  *((s, "cokv_departed_prompts_total", {}, "prompts computed and sent") for s in prefills)]
        values = [metric(s.port, name, **labels) for s, name, labels, _ in proofs]
        for (s, name, labels, meaning), value in zip(proofs, values):
            label = "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else ""
            print(f"   {names[s.url]:10} {name + label:55} {value:6.0f}   {meaning}")
        codes = {names[s.url]: s.stop() for s in (router, *prefills, survivor, cache)}

    resumed = int(values[2])
    lost = sum(1 for row in rows if row[4] != "-")
    print(f"\n   {lost} answers lost their worker, {resumed} went on from a copy; "
          f"{'all' if right else 'NOT ALL'} {len(rows)} texts are the undisturbed ones")
    print("   traces for https://ui.perfetto.dev:")
    for name, path in traces.items():
        print(f"     {os.path.relpath(path)}" if name != names[victim.url] else
              f"     none of {name}: it was killed, and a trace is written at the end")
    failed = {name: code for name, code in codes.items() if code != 0}
    missing = [n for n, path in traces.items() if n != names[victim.url] and not os.path.exists(path)]
    for problem in (f"did not end as they should: {failed}" if failed else "",
                    f"wrote no trace: {missing}" if missing else "",
                    "the kill cost no answer its worker: nothing was shown" if lost == 0 else ""):
        if problem:
            print(f"   {problem}")
    return 0 if right and lost and not failed and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
