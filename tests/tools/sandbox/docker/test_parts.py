"""The parts of the container backend that need no engine."""

import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.sandbox.base import SandboxLimits
from tools.sandbox.docker.container import ContainerFacts
from tools.sandbox.docker.engine import Engine, EngineError, Image, Ramp, Splitter
from tools.sandbox.docker.manager import ContainerManager, Pool
from tools.sandbox.inside.messages import Facts

LIMITS = SandboxLimits(memory_mb=100, pids=10, cpus=1.5)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))), st.integers(1, 13))
def test_streams_are_the_same_however_the_bytes_arrive(sent, step):
    wire = b"".join(struct.pack(">BxxxL", stream, len(data)) + data for stream, data in sent)
    splitter = Splitter()
    got = {1: b"", 2: b""}
    for at in range(0, len(wire), step):
        for stream, piece in splitter.feed(wire[at : at + step]):
            got[stream] += bytes(piece)
    assert got == {n: b"".join(data for stream, data in sent if stream == n) for n in (1, 2)}


class AwayEngine:
    """An engine that removes nothing until it is back."""

    def __init__(self):
        self.away, self.removed = True, []

    def remove(self, container):
        if self.away:
            raise EngineError("away", None)
        if container in self.removed:
            raise EngineError("no such container", 404)
        self.removed.append(container)


def test_containers_that_cannot_be_removed_are_one_line_and_removed_later(caplog):
    engine = AwayEngine()
    managed = ContainerManager(engine)
    for name in ("a", "b", "c"):
        managed.discard(name)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the Docker engine removes no containers")
    engine.away = False
    managed.discard("d")
    assert set(engine.removed) == {"a", "b", "c", "d"}


class PullingEngine:
    """An engine that pulls for as long as nobody else asks for the image, or a moment."""

    def __init__(self):
        self.pulls, self._there, self._asked = 0, False, threading.Semaphore(0)

    def image(self, name):
        self._asked.release()
        return Image(id="i", digest="d", env=()) if self._there else None

    def pull(self, name):
        self.pulls += 1
        self._asked.acquire()
        self._asked.acquire(timeout=0.3)
        self._there = True
        return iter(())


def test_processes_that_want_the_same_image_have_it_pulled_once():
    engine = PullingEngine()
    processes = [ContainerManager(engine) for _ in range(3)]  # each with locks of its own
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda each: each.image("a", lambda _: None), processes))
    assert ([each.id for each in found], engine.pulls) == (["i"] * 3, 1)


class VolumeApi:
    """The client of an engine with one image, whose Dockerfile names its volume with a slash at the end."""

    def info(self):
        return {}

    def inspect_image(self, name):
        return {"Id": name, "Config": {"Volumes": {"/data/": {}}}}


def test_a_volume_is_named_as_its_files_are():
    assert getattr(Engine(VolumeApi()).image("a"), "volumes", ()) == ("/data",)


def facts(memory="104857600\n", pids="26\n", cpu="150000\n100000\n", status="CapEff:\t0\nNoNewPrivs:\t1\n"):
    devices = "h1\n h2\n lo: 0 0\n"
    found = Facts(memory, pids, cpu, status, devices, "workdir tmp bash")
    return ContainerFacts.of(found)


def test_limits_that_hold_are_named_for_both_versions_of_control_groups():
    always = {"disk_mb", "file_mb", "network", "output_mb"}
    assert set(facts().list_enforced(LIMITS)) == always | {"memory_mb", "pids", "cpus"}
    assert set(facts(cpu="150000 100000\n").list_enforced(LIMITS)) == always | {"memory_mb", "pids", "cpus"}
    assert set(facts("max\n", "max\n", "max 100000\n").list_enforced(LIMITS)) == always
    assert set(facts("", "", "").list_enforced(LIMITS)) == always
    assert set(facts("9223372036854771712\n", "27\n", "-1\n100000\n").list_enforced(LIMITS)) == always


def test_capabilities_and_a_way_to_gain_privileges_are_problems():
    assert facts().problems(LIMITS) == []
    assert facts(status="CapEff:\t00000000a80425fb\nNoNewPrivs:\t0\n").problems(LIMITS) == [
        "capabilities (00000000a80425fb)",
        "privileges to gain",
    ]


class Stock:
    """Counts what is made and dropped; numbers stand for containers."""

    def __init__(self):
        self.made = 0
        self.dropped = []
        self.dead = set()
        self.creators = ThreadPoolExecutor(2)
        self.pool = Pool(
            self.make,
            drop=self.dropped.append,
            alive=lambda one: one not in self.dead,
            creators=self.creators,
        )

    def make(self):
        self.made += 1
        return self.made

    def open(self):
        self.pool.enter()
        return self.pool.pop()

    def settle(self):
        """Wait until nothing is being made."""
        while not all(each.done() for each in self.pool._ahead):
            time.sleep(0.001)


@pytest.fixture
def stock():
    made = Stock()
    yield made
    made.creators.shutdown()


def test_one_alone_keeps_no_stock(stock):
    assert stock.open() is None
    stock.settle()
    assert stock.made == 0


def test_one_is_ready_for_every_two_that_are_open(stock):
    stock.open()
    stock.open()
    stock.settle()
    assert stock.made == 1
    assert stock.open() == 1
    stock.settle()
    assert stock.open() == 2
    stock.settle()
    assert len(stock.pool._ahead) == 2


def test_nothing_is_given_out_twice_and_the_last_one_empties_the_stock(stock):
    given_out = [one for one in (stock.open() for _ in range(20)) if one is not None]
    assert len(given_out) == len(set(given_out))
    for _ in range(20):
        stock.pool.leave()
    assert not stock.pool._ahead
    assert len(given_out) + len(stock.dropped) == stock.made
    assert not set(given_out) & set(stock.dropped)


def test_a_dead_one_is_dropped_and_the_next_one_taken(stock):
    stock.open()
    stock.open()
    stock.settle()
    stock.dead = {1}
    assert stock.open() is None
    assert stock.dropped == [1]


def test_creates_start_few_grow_with_success_and_halve_after_a_failure():
    ramp = Ramp(most=6)
    for _ in range(3):
        with ramp.slot():
            pass
    assert ramp._allowed == 5
    with pytest.raises(OSError, match="engine"), ramp.slot():
        raise OSError("engine")
    assert ramp._allowed == 2


def test_no_more_creates_run_at_once_than_the_ramp_allows():
    ramp, running, most = Ramp(most=3, slow_s=300), [], []
    changed = threading.Condition()

    def create(number):
        with ramp.slot():
            with changed:
                running.append(number)
                most.append(len(running))
                changed.notify_all()
                # By then the ramp allows three: each waits until so many have run at once.
                assert number < 8 or changed.wait_for(lambda: max(most) >= 3, 60)
            time.sleep(0.002)
            with changed:
                running.remove(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(24)))
    assert max(most) == 3
