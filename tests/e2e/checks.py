"""What the end-to-end tests share: named checks, a closing count, and the servers."""
import os
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
MODEL = os.path.join(ROOT, "models/tiny-kjv")


def run(*checks):
    """Runs each check(binary, folder) on its own; prints the counts that scripts/test reads; exits 1 on a failure."""
    binary = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2:]
    passed = failed = 0
    for check in checks:
        if wanted and check.__name__ not in wanted:
            continue
        name = check.__name__.replace("_", " ")
        try:
            with tempfile.TemporaryDirectory(prefix="cokv-") as folder:
                check(binary, folder)
            print(f"ok    {name}", flush=True)
            passed += 1
        except (Exception, SystemExit):
            print(f"FAIL  {name}", flush=True)
            traceback.print_exc(file=sys.stdout)
            failed += 1
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not passed else 0)


def same(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def at_least(what, got, wanted):
    if got < wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted at least {wanted!r}")


def until(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"did not come about: {what}")
        time.sleep(0.01)
