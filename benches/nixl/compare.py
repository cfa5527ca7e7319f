"""Compares NIXL backends: runs speed.py on each in turn, and prints the medians as a table.

    compare.py CONFIGURATIONS [polls|thread] [--turns N] [--only NAME,NAME]

CONFIGURATIONS is a file of lines `name BACKEND VARIABLE=VALUE ...`: a name for the table, NIXL's name of the backend,
and its environment. Figures are in GB/s, WRITE and READ of each shape.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys

SHAPES = [(65536, 16, 200), (1 << 20, 16, 40), (16 << 20, 4, 10)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("configurations")
    parser.add_argument("driven", nargs="?", default="polls", choices=["polls", "thread"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    found, rows = {}, []
    for line in pathlib.Path(options.configurations).read_text().splitlines():
        name, backend, *variables = line.split()
        if not options.only or name in options.only.split(","):
            rows.append((name, backend, dict(pair.split("=", 1) for pair in variables)))
    script = str(pathlib.Path(__file__).with_name("speed.py"))
    for _ in range(options.turns):
        for name, backend, variables in rows:
            for size, count, rounds in SHAPES:
                command = [sys.executable, script, backend, options.driven, size, count, rounds]
                try:
                    run = subprocess.run(
                        [str(word) for word in command],
                        env={**os.environ, **variables},
                        capture_output=True,
                        text=True,
                        timeout=20,
                    )
                    lines = run.stdout.splitlines()
                    for line in lines:
                        way, median = line.split()[0], float(line.split("median ")[1].split()[0])
                        found.setdefault((name, way, size), []).append(median)
                        print(name, way, size, median, file=sys.stderr, flush=True)
                    if run.returncode != 0:
                        print(name, size, "failed:", run.stderr.strip().splitlines()[-1:], file=sys.stderr)
                except subprocess.TimeoutExpired:
                    print(name, size, "hangs", file=sys.stderr)
    columns = [(way, size) for way in ("WRITE", "READ") for size, _, _ in SHAPES]
    print("|", options.driven, "|", " | ".join(f"{way} {size >> 10} KiB" for way, size in columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name, *_ in rows:
        cells = []
        for way, size in columns:
            figures = found.get((name, way, size), [])
            middle = statistics.median(figures) if figures else 0
            cells.append(f"{middle:.1f} ({min(figures):.1f} to {max(figures):.1f})" if figures else "-")
        print("|", name, "|", " | ".join(cells), "|", flush=True)


main()
