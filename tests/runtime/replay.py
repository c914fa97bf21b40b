#!/usr/bin/env python3
"""What scripts/replay does with good and bad arguments. replay.py SOURCE BUILD"""
import json
import pathlib
import subprocess
import sys
import tempfile

source, build = map(pathlib.Path, sys.argv[1:])
passed = failed = 0


def replay(*arguments):
    ran = subprocess.run([source / "scripts/replay", "--build", build, *arguments], capture_output=True, text=True)
    return ran.returncode, ran.stdout, ran.stderr


def check(what, good, *shown):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("FAILED:", what, *shown)


code, out, _ = replay("--help")
check("--help explains itself", code == 0 and "scripts/replay 17" in out, code, out)

for bad in ("x17", "-1", "1.5", "0x", "99999999999999999999", ""):
    code, _, err = replay("--", bad, "runtime_sim")
    check(f"seed '{bad}' is refused", code == 2 and f"seed '{bad}'" in err, code, err)

code, _, err = replay("1", "a killed nod takes its handlers along")
check("an unknown test is refused, and the nearest named",
      code == 2 and "no such test or suite" in err and "a killed node takes" in err, code, err)
code, _, err = replay("1", "partition")
check("a part that several tests have is refused, and they are listed",
      code == 2 and "fits" in err and err.count("\n") > 2, code, err)
code, _, err = replay()
check("no seed at all is refused", code == 2 and "seed" in err, code, err)
ran = subprocess.run([source / "scripts/replay", "--build", "/nonexistent", "1"], capture_output=True, text=True)
check("nothing built is refused", ran.returncode == 2 and "Build them first" in ran.stderr, ran)

with tempfile.TemporaryDirectory() as folder:
    trace = pathlib.Path(folder) / "run.json"
    stale = trace.with_name("run.2.json")
    stale.write_text("of an earlier run")
    name = "a node boots what it runs at every start, and is found by its name while it is there"  # with a comma
    code, out, err = replay("0x11", name, "--trace", trace)
    check("a test runs by its name", code == 0 and str(trace) in out, code, out, err)
    check("one simulated run, one trace", not stale.exists(), out)
    tracks = {e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "thread_name"}
    check("the trace has the hosts", {"node server", "node client"} <= {t.split(" (")[0] for t in tracks}, tracks)

    name = "planted bugs: a body that waits for what never comes is a deadlock"
    code, out, err = replay("3", name, "--trace", trace)
    check("a test runs by a part of its name, and leaves a trace of a failure", code == 0 and trace.exists(), out, err)
    check("the failing seed prints the command that replays it", "scripts/replay 3 'planted bugs: a body" in out, out)

    code, out, err = replay("1", "a failing seed names the command that replays it", "--trace",
                            pathlib.Path(folder) / "no/such/folder.json")
    check("a trace that can't be written is an error", code == 2 and "can't be written" in err, code, out, err)

print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
