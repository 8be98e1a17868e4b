"""Tests of the metrics of a client, and of their text for Prometheus."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import zklock
from conftest import Inspector, Waiter, wait_until
from server import ZooKeeper
from zklock.testing import StandaloneServer

ROOT = Path(__file__).parents[2]


def test_cycles(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    started = time.monotonic()
    for _ in range(3):
        with lock, lock:
            assert client.metrics().held == 1
    took = time.monotonic() - started
    now = client.metrics()
    assert (now.acquires_ok, now.reentries, now.releases, now.held, now.handovers) == (3, 3, 3, 0, 0)
    assert (now.waits.count, now.holds.count) == (3, 3)
    assert 0 < now.waits.sum < took
    assert (now.state, now.session_timeout, now.sessions, now.connections) == (zklock.ClientState.CONNECTED, 10.0, 1, 1)


def test_timeouts_and_handovers(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    held, wanted = client.mutex(path), other_client.mutex(path)
    with held:
        assert not wanted.acquire(timeout=0)
        assert not wanted.acquire(timeout=1)
        waiter = Waiter(lambda: wanted.acquire(timeout=60))
        wait_until(lambda: any(one.count == 1 for one in wanted.waiting()))
        assert other_client.metrics().waiting == 1
        wanted.cancel()
        with pytest.raises(zklock.Canceled):
            waiter.result()
        waiter = Waiter(lambda: wanted.acquire(timeout=60))
        wait_until(lambda: any(one.count == 1 for one in wanted.waiting()))
    assert waiter.result()
    now = other_client.metrics()
    assert (now.acquires_ok, now.acquires_timeout, now.acquires_canceled, now.handovers) == (1, 2, 1, 1)


def test_losses(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    with zklock.Client(server.address, session_timeout=3) as client:
        lock = client.mutex(path)
        with pytest.raises(zklock.LockLost), lock:
            inspector.kazoo.delete(lock.node_path)
            wait_until(lambda: client.metrics().losses_deleted == 1)
        now = client.metrics()
        assert (now.releases, now.held, now.holds.count) == (0, 0, 1)


def test_a_cut_and_an_expiry(zklock_server: StandaloneServer) -> None:
    with zklock.Client(zklock_server.address) as client:
        lock = client.mutex("/metrics")
        lock.acquire()
        zklock_server.cut(client)
        wait_until(lambda: client.metrics().reconnects == 1 and lock.state is zklock.LockState.HELD)
        cut = client.metrics()
        assert (cut.sessions, cut.connections_lost, cut.suspensions, cut.held) == (1, 1, 1, 1)
        zklock_server.expire(client)
        wait_until(lambda: client.metrics().sessions == 2)
        lost = client.metrics()
        assert (lost.sessions_lost, lost.held, lost.losses_session + lost.losses_deleted) == (1, 0, 1)
        with pytest.raises(zklock.LockLost):
            lock.release()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return each sample by its name and labels, as Prometheus's own client reads it."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def expected(metrics: zklock.Metrics, labels: dict[str, str]) -> dict[Any, float]:
    """Return the same samples, made from the object with the table in the documentation."""
    page = (ROOT / "docs/observability.md").read_text()
    rows = re.findall(r"^\| `(zklock_\w+)(?:\{(\w+)=\"(\w+)\"\})?` \| `(\w+)` \|", page, re.MULTILINE)
    assert {field for *_, field in rows} == {field.name for field in dataclasses.fields(metrics)}
    made: dict[Any, float] = {}

    def add(name: str, value: float, **own: str) -> None:
        made[name, tuple(sorted({**labels, **own}.items()))] = value

    for name, label, value, field in rows:
        number = getattr(metrics, field)
        if isinstance(number, zklock.Histogram):
            for bound, count in number.buckets:
                add(f"{name}_bucket", count, le="+Inf" if math.isinf(bound) else f"{bound:.8f}".rstrip("0"))
            add(f"{name}_sum", number.sum)
            add(f"{name}_count", number.count)
        elif isinstance(number, zklock.ClientState):
            for state in zklock.ClientState:
                add(name, float(state is number), state=state.name.lower())
        else:
            add(name, number, **({label: value} if label else {}))
    return made


@pytest.mark.parametrize("labels", [{}, {"app": 'a "b"\\c\nd', "zone": "日本", "_x9": ""}])
def test_prometheus_reads_the_same_numbers(client: zklock.Client, path: str, labels: dict[str, str]) -> None:
    with client.mutex(path):
        pass
    # A heartbeat may come between these calls.
    for _ in range(10):
        before, text, after = client.metrics(), client.prometheus(labels), client.metrics()
        if before == after:
            break
    assert before == after
    assert samples(text) == expected(after, labels)
    assert client.prometheus(None).startswith("# HELP zklock_acquires_total ")


@pytest.mark.parametrize(
    ("labels", "error", "says"),
    [
        ([("a", "b")], TypeError, "labels: expected a mapping of names to values, or None, not list"),
        ("a", TypeError, "not str"),
        ({"a": 1}, TypeError, "labels: expected names and values that are str, not int"),
        ({1: "a"}, TypeError, "not int"),
        ({"": "a"}, ValueError, 'labels: name ""'),
        ({"a-b": "a"}, ValueError, "expected letters, digits and underscores"),
        ({"le": "a"}, ValueError, "have a label with this name"),
        ({"__name__": "a"}, ValueError, "reserved for Prometheus"),
    ],
)
def test_wrong_labels(client: zklock.Client, labels: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        client.prometheus(labels)


def test_metrics_object_is_immutable_and_comparable(client: zklock.Client) -> None:
    now = client.metrics()
    with pytest.raises(dataclasses.FrozenInstanceError):
        now.held = 7  # type: ignore[misc]
    assert repr(now).startswith("Metrics(acquires_ok=0, ")
    assert now == dataclasses.replace(now)
    assert hash(now) == hash(dataclasses.replace(now))
    bounds = [bound for bound, _ in now.waits.buckets]
    assert bounds == [50e-6 * 2**power for power in range(23)] + [math.inf]
    assert now.round_trips.buckets[-1][1] == now.round_trips.count == now.answers


def test_closed_client_keeps_its_last_metrics(server: ZooKeeper, path: str) -> None:
    with zklock.Client(server.address) as client:
        client.mutex(path).acquire()
    last = client.metrics()
    assert (last.acquires_ok, last.releases, last.held, last.state) == (1, 1, 0, zklock.ClientState.CLOSED)
    assert samples(client.prometheus())["zklock_client_state", (("state", "closed"),)] == 1


def test_the_example(server: ZooKeeper, path: str) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "python/examples/metrics.py"), server.address, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            address = program.stdout.readline().strip()

            def page() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
                with urllib.request.urlopen(address, timeout=60) as answer:
                    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    return samples(answer.read().decode())

            wait_until(lambda: page()["zklock_hold_seconds_count", (("app", "example"),)] >= 3)
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 0
        finally:
            program.kill()


def test_a_forked_child_has_none(client: zklock.Client) -> None:
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (client.metrics, client.prometheus):
            try:
                call()
            except zklock.Forked:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
