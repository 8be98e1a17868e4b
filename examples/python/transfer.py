#!/usr/bin/env python3
"""Move an amount between two accounts while holding the locks of both: transfer.py SERVERS FROM TO AMOUNT SECONDS

An account is a file in the current directory.
"""

import sys
from pathlib import Path

import zklock


def transfer(source: Path, target: Path, amount: int) -> str:
    available = int(source.read_text())
    if available < amount:
        return "not enough"
    source.write_text(f"{available - amount}\n")
    target.write_text(f"{int(target.read_text()) + amount}\n")
    return "transferred"


def main(servers: str, source: str, target: str, amount: str, seconds: str) -> None:
    with zklock.Client(servers) as client:
        both = client.multi([f"/accounts/{source}", f"/accounts/{target}"])
        try:
            with both.hold(timeout=float(seconds)):  # acquires both locks within the deadline, or none
                print(transfer(Path(source), Path(target), int(amount)))
        except zklock.LockTimeout:
            print("not in time")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: transfer.py SERVERS FROM TO AMOUNT SECONDS")
    try:
        main(*sys.argv[1:])
    except (zklock.Error, OSError, ValueError) as error:
        sys.exit(f"transfer.py: {error}")
