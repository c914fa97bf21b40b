#!/usr/bin/env python3
"""The demo in which a worker dies shows what it says, and leaves nothing behind."""
import glob
import json
import os
import re
import subprocess
import sys

from checks import ROOT, at_least, run, same


def a_worker_is_killed_and_every_text_is_right(binary, folder):
    script = os.path.join(ROOT, "scripts/demo_disaggregated.py")
    done = subprocess.run([sys.executable, script, binary, "--quick", "--out", folder], capture_output=True, text=True,
                          timeout=300)
    same(f"exit code, with {done.stdout}{done.stderr}", done.returncode, 0)
    rows = re.findall(r"^  \d+ +\d+ +(\d+) +(decode-\d|\?) +(decode-\d|-) .* (same|NOT THE SAME)  (.*)$", done.stdout, re.M)
    same("streams", len(rows), 6)
    same("texts", {r[3] for r in rows}, {"same"})
    same("whole answers", [int(r[0]) for r in rows], list(range(300, 306)))
    victim = re.search(r"kill -9 (\d+): (decode-\d)", done.stdout)
    moved = [r for r in rows if r[2] != "-"]
    at_least("streams that moved", len(moved), 1)
    same("away from whom", {r[1] for r in moved}, {victim[2]})
    proof = lambda name: float(re.search(rf"{re.escape(name)} +(\d+) ", done.stdout)[1])
    same("workers that are gone", proof('cokv_workers{role="decode",state="gone"}'), 1)
    at_least("answers that moved", proof('cokv_moved_requests_total{of="answer"}'), len(moved))
    same("answers that went on from a copy", proof("cokv_resumed_answers_total"),
         sum("went on from its copy" in r[4] for r in rows))
    same("the victim is gone", os.path.exists(f"/proc/{victim[1]}"), False)
    traces = sorted(os.path.basename(path) for path in glob.glob(f"{folder}/*.perfetto.json"))
    alive = sorted({"prefill-1", "prefill-2", "decode-1", "decode-2"} - {victim[2]})
    same("traces", traces, [f"{name}.perfetto.json" for name in alive])
    for trace in traces:
        events = json.load(open(os.path.join(folder, trace)))["traceEvents"]
        at_least(f"layers in {trace}", sum(e["name"].startswith("layer ") for e in events), 1)


run(a_worker_is_killed_and_every_text_is_right)
