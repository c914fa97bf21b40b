#!/usr/bin/env python3
"""Counts what each suite of a ctest log ran.

suite_counts.py PRESET LOG SUMMARY   prints a line a suite, appends to SUMMARY; exits 1 if a suite ran nothing
suite_counts.py --total SUMMARY      prints the sums as `N passed, N failed, N skipped`
"""
import re
import sys

DOCTEST = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped")
FAILED = re.compile(r"(?:FAIL  |\S+:\d+: (?:FATAL )?ERROR|==\d+==\s*ERROR|WARNING: ThreadSanitizer)")
MOST_FAILURES, LINES_OF_ONE = 8, 12
PLAIN = re.compile(r"^(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?(?::.*)?$", re.M)


def counts(text):
    passed = failed = skipped = 0
    for found in DOCTEST.finditer(text):
        passed, failed = passed + int(found[2]), failed + int(found[3])  # "skipped" are those of other suites
    for found in PLAIN.finditer(text):
        passed, failed, skipped = passed + int(found[1]), failed + int(found[2]), skipped + int(found[3] or 0)
    return passed, failed, skipped


def failures(text):
    """What a suite said of its first failures: a log of all suites is long, and these are what it is read for."""
    lines, case = text.splitlines(), ""
    for at, line in enumerate(lines):
        if line.startswith("TEST CASE:"):
            case = line
        elif FAILED.match(line):
            yield "\n".join([case] * bool(case) + lines[at:at + LINES_OF_ONE])


def main():
    if sys.argv[1] == "--total":
        rows = [tuple(map(int, line.split())) for line in open(sys.argv[2])]
        print("{} passed, {} failed, {} skipped".format(*(sum(column) for column in zip(*rows))))
        return 0
    preset, log, summary = sys.argv[1:]
    # Where a suite believes that it writes to a terminal there are colours, and returns at the ends of lines.
    text = re.sub(r"\x1b\[[0-9;]*m|\r", "", open(log, errors="replace").read())
    parts = re.split(r"^\d+/\d+ Testing: (.+)$", text, flags=re.M)
    empty, failed_ones = [], []
    with open(summary, "a") as out:
        for name, text in zip(parts[1::2], parts[2::2]):
            passed, failed, skipped = counts(text)
            seconds = re.search(r"Test time =\s*([\d.]+) sec", text)
            print(f"   {preset:8} {name:24} {passed:6} passed {failed:4} failed {skipped:4} skipped"
                  f" {float(seconds[1]) if seconds else 0:8.1f} s")
            print(passed, failed, skipped, file=out)
            failed_ones += [(name, one) for one in list(failures(text))[:MOST_FAILURES]] if failed else []
            if passed + failed + skipped == 0:
                empty.append(name)
    if len(parts) < 3:
        empty.append("(no suite at all)")
    for name, one in failed_ones:
        print(f"\n   {preset}: {name} failed\n{one}")
    for name in empty:
        print(f"   {preset}: suite {name} ran nothing")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
