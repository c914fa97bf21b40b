#!/usr/bin/env python3
"""Random requests to a router and its workers, in every way that they can be set up here, against one server: the same
tokens in f32, sampled ones too; in bf16 as far as each token leads by the margin that the two may differ by.

COKV_REQUESTS says how many each time; 24 unless told, 200 for the whole of it. COKV_LINKS says over which links (shm,tcp,ucx,
cuda_ipc,mpi), unless all that a machine without a GPU has; COKV_SERVE what computes: on a GPU
products of other numbers of rows are summed in another order, unless --batch-invariant.
"""
import os
import shutil

from checks import MODEL, at_least, run, same
from cluster import Cluster, all_answered, ask, asked, some_requests, told
from lib_servers import Server, metric

COUNT = int(os.environ.get("COKV_REQUESTS", "24"))
AT_ONCE = 24
LINKS = os.environ.get("COKV_LINKS", "shm,tcp,ucx,mpi").split(",")
if unknown := set(LINKS) - {"shm", "tcp", "ucx", "cuda_ipc", "mpi"}:
    raise SystemExit(f"COKV_LINKS: no link is called {unknown}")
MARGIN = 0.15  # of a logit: what orders of summation differ by in bf16


def links(folder):
    every = {"shm": f"shm://{folder}/kv-%d", "tcp": "tcp://127.0.0.1:0", "ucx": "ucx://127.0.0.1:0",
             "cuda_ipc": f"cuda_ipc://{folder}/gpu-%d"}
    return {link: url for link, url in every.items() if link in LINKS}


def one_server(binary, requests, dtype="f32"):
    with Server(binary, "serve", "--model", MODEL, "--dtype", dtype) as one:
        answers = [ask(one.port, **r) for r in requests]
    for status, answer in answers:
        same("status of one server", status, 200)
    return [answer for _, answer in answers]


def everywhere(binary, folder, name, seed, *, decode=(), prefill=(), check=None, longer=0, **options):
    requests = [r | {"max_tokens": r["max_tokens"] + longer} for r in some_requests(COUNT, seed)]
    wanted = [told(a) for a in one_server(binary, requests)]

    def the_same(link, cluster):
        for at in range(0, COUNT, AT_ONCE):
            some = requests[at:at + AT_ONCE]
            all_answered([asked(cluster.port, r) for r in some], some, wanted[at:at + AT_ONCE])
        at_least("prompts that were sent", metric(cluster.prefill.port, "cokv_departed_prompts_total"), COUNT)
        if check:
            check(cluster)
        cluster.at_rest()
        print(f"      {name} over {link}: {COUNT} requests the same", flush=True)

    decodes = options.get("decodes", 1)
    if "mpi" in LINKS and shutil.which("mpirun") and not os.environ.get("COKV_SANITIZE") and not os.environ.get("COKV_SERVE"):
        with Cluster(binary, decode=decode, prefill=prefill, mpi=True, **options) as cluster:
            the_same("mpi", cluster)
    for link, url in links(folder).items():
        each = [("--link", url % i if "%" in url else url) for i in range(decodes)]
        lends = ("--link", url % 100 if "%" in url else url) if options.get("lend") else ()
        with Cluster(binary, decode=decode, each_decode=each, prefill=(*prefill, *lends), **options) as cluster:
            the_same(link, cluster)


def plain(binary, folder):
    everywhere(binary, folder, "plain", 100)


def with_copies(binary, folder):
    for replicas in (1, 2):
        everywhere(binary, folder, f"{replicas} copies", 100 + replicas, decodes=3, router=("--replicas", replicas))


def with_turns_on_the_device(binary, folder):
    everywhere(binary, folder, "turns", 103, longer=80, decode=("--kv-blocks", 64, "--swap", "256MiB"),
               check=lambda c: at_least("bytes swapped", metric(c.decode.port, "cokv_swapped_bytes_total"), 1))


def with_layers_lent(binary, folder):
    for layers in (3, 7):
        everywhere(binary, folder, f"{layers} layers lent", 110 + layers, longer=30, lend=layers, decodes=layers // 3,
                   prefill=("--lend-memory", "1GiB", "--max-batched-tokens", 100),
                   decode=("--kv-blocks", 300, "--block-tokens", 8),
                   check=lambda c: at_least("bytes that came back", metric(c.decode.port, "cokv_borrowed_bytes_total",
                                                                           way="in"), 1))


def with_blocks_of_other_sizes(binary, folder):
    everywhere(binary, folder, "blocks", 104, prefill=("--block-tokens", 24), decode=("--block-tokens", 16))


def with_all_of_it(binary, folder):
    everywhere(binary, folder, "all", 105, decodes=2, router=("--replicas", 1),
               prefill=("--block-tokens", 32, "--max-batched-tokens", 100, "--async-scheduling"),
               decode=("--block-tokens", 8, "--kv-blocks", 128, "--swap", "256MiB"))


def in_bf16_by_the_margin(binary, folder):
    requests = [r | {"temperature": 0, "logprobs": 2, "n": 1, "stop": None} for r in some_requests(COUNT, 106)]
    wanted = one_server(binary, requests, "bf16")
    compared = 0
    with Cluster(binary, dtype="bf16", decode=("--block-tokens", 8)) as cluster:
        for r, want in zip(requests, wanted):
            status, got = ask(cluster.port, **r)
            same(f"status of {r}", status, 200)
            (ours,), (theirs,) = ([c["logprobs"] for c in a["choices"]] for a in (got, want))
            for token, other, top in zip(ours["tokens"], theirs["tokens"], theirs["top_logprobs"]):
                first, second = sorted(top.values())[-1:-3:-1]
                if token != other:
                    same(f"{other!r} leads by more than the margin in {r}", first - second < MARGIN, True)
                    break
                compared += 1
    at_least("tokens that were compared", compared, 5 * COUNT)


run(plain, with_copies, with_turns_on_the_device, with_layers_lent, with_blocks_of_other_sizes, with_all_of_it, in_bf16_by_the_margin)
