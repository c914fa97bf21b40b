#!/usr/bin/env python3
"""Does a bench still run, and write what bench/plot.py reads? For ctest -L bench: tiny sizes, no figure is looked at.

usage: bench/smoke.py KEY,KEY,... COMMAND ...

Runs the command with --json FILE added, and looks for rows that have the keys, each a finite number or a name.
"""
import json
import math
import os
import subprocess
import sys
import tempfile


def main():
    keys, command = sys.argv[1].split(","), sys.argv[2:]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "figures.json")
        subprocess.run([*command, "--json", path], check=True)
        figures = json.load(open(path))
    rows = figures["rows"] if isinstance(figures, dict) else figures
    if not rows:
        sys.exit("no rows")
    for row in rows:
        for key in keys:
            value = row[key]
            if not (isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))):
                sys.exit(f"{key} is {value!r} in {row}")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
