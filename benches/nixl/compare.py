"""Compares NIXL backends: runs speed.py on each in turn, and prints the medians as a table.

    compare.py CONFIGURATIONS [polls|thread] [--turns N] [--only NAME,NAME]

CONFIGURATIONS is a file of lines `name BACKEND VARIABLE=VALUE ...`: a name for the table, NIXL's name of the backend,
and its environment. Figures are in GB/s, WRITE and READ of each shape: the median of the turns, and their range.
`cargo xtask nixl --speed` writes the configurations and runs this.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys

# Bytes of a block, blocks, rounds.
SHAPES = [
    (4 << 10, 1, 300),
    (4 << 10, 64, 200),
    (4 << 10, 1024, 50),
    (64 << 10, 1, 200),
    (64 << 10, 64, 50),
    (64 << 10, 1024, 5),
    (1 << 20, 1, 100),
    (1 << 20, 64, 5),
    (16 << 20, 1, 12),
    (16 << 20, 8, 3),
]
LIMIT_S = 40


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("configurations")
    parser.add_argument("driven", nargs="?", default="polls", choices=["polls", "thread"])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    found, rows = {}, []
    for line in pathlib.Path(options.configurations).read_text().splitlines():
        name, backend, *variables = line.split()
        if not options.only or name in options.only.split(","):
            rows.append((name, backend, dict(pair.split("=", 1) for pair in variables)))
    script = str(pathlib.Path(__file__).with_name("speed.py"))
    shapes = [f"{size}x{count}x{rounds}" for size, count, rounds in SHAPES]
    for turn in range(options.turns):
        for name, backend, variables in rows:
            command = [sys.executable, script, backend, options.driven, *shapes]
            # A group of its own: the peer that the program starts must not poll on beside the turns that follow.
            run = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                output, errors = run.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                run.communicate()
                print(f"turn {turn}: {name} hangs", file=sys.stderr, flush=True)
                continue
            if run.returncode != 0:
                print(f"turn {turn}: {name} failed:", errors.strip().splitlines()[-1:], file=sys.stderr, flush=True)
            for line in output.splitlines():
                if not line.startswith(("WRITE ", "READ ")):
                    continue  # UCX logs there
                words = line.replace(":", "").split()
                found.setdefault((name, *words[:4:3], int(words[1])), []).append(float(words[5]))
    for way in ("WRITE", "READ"):
        print(f"\n| {way}, GB/s, by {options.driven} |", " | ".join(name for name, *_ in rows), "|")
        print("|---" * (len(rows) + 1) + "|")
        for size, count, _ in SHAPES:
            cells = []
            for name, *_ in rows:
                figures = found.get((name, way, str(count), size), [])
                middle = statistics.median(figures) if figures else 0
                cells.append(f"{middle:.2f} ({min(figures):.2f} to {max(figures):.2f})" if figures else "-")
            print(f"| {size >> 10} KiB x {count} |", " | ".join(cells), "|", flush=True)


main()
