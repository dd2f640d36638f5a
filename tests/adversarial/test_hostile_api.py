"""A trajectory API that answers anything at all is away for a while: nothing is lost or sent twice."""

import asyncio
import gzip
import resource

import pytest

from environments.serve import trajectory_api
from environments.serve.outbox import Outbox
from environments.serve.trajectory_api import (
    MAX_ANSWER_BYTES,
    ApiUnavailableError,
    PostRefusedError,
    TrajectoryApi,
)
from tests.adversarial.hostile_server import OK, answer, drip, endless, gzip_bomb, hostile, zlib_bomb
from tests.environments.serve.delivered import credited, delivering, put, registration_at, until
from tests.tables import cases
from tools.errors import ConfigError

INFO = {"batch_size": 4, "max_token_len": 1000}
STATUS = {"current_step": 3, "queue_size": 1}
OURS = {"queue_size": 1, "self_queue_size": 1, "max_group_size": 4, "unallocated_fraction": 1.0}
REGISTERED = {"status": "success", "env_id": 2, "wandb_name": "env_1", "num_steps": 10}
GOOD = {
    "/info": answer(INFO),
    "/status": answer(STATUS),
    "/status-env": answer({**OURS, "current_step": 3, "env_weight": 1.0}),
    "/register-env": answer(REGISTERED),
    "/scored_data": answer({"status": "received"}),
    "/disconnect-env": answer({"status": "success"}),
}
NO_INTEGER = ["4", 4.0, 4.5, None, True, [4], {}, 10**30, -(10**30), float("nan"), float("inf")]
JUNK = {
    "empty": b"",
    "html": b"<html>",
    "list": b"[1,2]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "cut": b'{"batch_size": 4, "max_tok',
    "no utf-8": b'{"batch_size": 4, "\xff\xfe": 1}',
    "long number": b'{"batch_size": ' + b"9" * 100_000 + b"}",
    "too long": b" " * MAX_ANSWER_BYTES + b" {}",
}
HTTP = {
    "elsewhere": answer(b"", status=307, headers=["Location: http://127.0.0.1:1/info"]),
    "gzip bomb": answer(gzip_bomb(), headers=["Content-Encoding: gzip"]),
    "bomb of an error": answer(gzip_bomb(), status=503, headers=["Content-Encoding: gzip"]),
    "no gzip": answer(INFO, headers=["Content-Encoding: gzip"]),
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}{}",
    "no length": OK + b"Content-Length: x\r\n\r\n{}",
    "no http": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "long header": OK + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n",
    "endless": endless,
}


async def hang_up(writer):
    """Before a word."""


async def cut_short(writer):
    writer.write(OK + b"Content-Length: 100\r\n\r\n{")


async def cut_chunks(writer):
    writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{")


HTTP |= {"hang up": hang_up, "cut short": cut_short, "cut chunks": cut_chunks}
ANSWERS = {name: answer(body) for name, body in JUNK.items()} | HTTP


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(trajectory_api, "GET_RETRY_WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(trajectory_api, "_CALL_TIMEOUT_S", 30.0)


def malformed(good):
    """Yield an answer with each of its fields missing, and of a wrong kind or size."""
    for name in good:
        yield f"without {name}", {key: value for key, value in good.items() if key != name}
        wrong = [None, [], {}, 7, -5] if isinstance(good[name], str) else NO_INTEGER
        for value in wrong:
            if not (name == "unallocated_fraction" and value in (-(10**30), 4, 4.0)):
                yield f"{name} {value!r}"[:40], {**good, name: value}


async def fails(api, *, ask=None):
    """The one error that a call may raise."""
    with pytest.raises((ApiUnavailableError, ConfigError)) as caught:
        await (ask or api.state)()
    await api.close()
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
    return caught.value


CALLS = {
    "/info": lambda api: api.state(),
    "/status": lambda api: api.state(),
    "/status-env": lambda api: api.state(2),
    "/register-env": lambda api: api.register({"desired_name": "env"}),
    "/scored_data": lambda api: api.post_rows(gzip.compress(b"{}")),
}
NAMES = ("env_x", "env_-1", "env_1e9", "_" * 10**5)
BAD = [
    *((path, name, made) for path in CALLS if path != "/status-env" for name, made in ANSWERS.items()),
    *(
        (path, name, answer(body))
        for path, good in {
            "/info": INFO,
            "/status": STATUS,
            "/status-env": OURS,
            "/register-env": REGISTERED,
        }.items()
        for name, body in malformed(good)
    ),
    *(("/register-env", name[:9], answer({**REGISTERED, "wandb_name": name})) for name in NAMES),
]


@cases(
    ("path", "made"), [(path, made) for path, _, made in BAD], ids=[f"{path} {name}" for path, name, _ in BAD]
)
async def test_an_answer_that_cannot_be_read_is_a_wrong_address_at_first_and_an_api_that_is_away_later(
    path, made
):
    async with hostile(GOOD | {path: made}) as server:
        if path in ("/info", "/status"):
            await fails(TrajectoryApi(server.url))
        api = TrajectoryApi(server.url)
        server.answers[path] = GOOD[path]
        await api.state()
        server.answers[path] = made
        error = await fails(api, ask=lambda: CALLS[path](api))
        assert isinstance(error, ApiUnavailableError)
        if path == "/scored_data":  # else it may have arrived
            assert error.not_taken == (made == HTTP["bomb of an error"])


async def test_the_reason_of_a_refused_post_is_short():
    async with hostile(GOOD | {"/scored_data": answer(b"no! " * 10**6, status=422)}) as server:
        api = TrajectoryApi(server.url)
        await api.state()
        with pytest.raises(PostRefusedError) as caught:
            await api.post_rows(gzip.compress(b"{}"))
        await api.close()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_bomb_is_never_unpacked(encoding):
    bomb = {"gzip": gzip_bomb, "deflate": zlib_bomb}[encoding](300)
    async with hostile({"*": answer(bomb, headers=[f"Content-Encoding: {encoding}"])}) as server:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "longer than 1048576 bytes" in str(await fails(TrajectoryApi(server.url)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


async def test_an_answer_that_drips_ends_with_the_time_of_a_call(monkeypatch):
    monkeypatch.setattr(trajectory_api, "_CALL_TIMEOUT_S", 0.3)
    async with hostile({"*": drip}) as server:
        assert isinstance(await fails(TrajectoryApi(server.url)), ApiUnavailableError)


@pytest.mark.parametrize(
    "made", [(404, ()), (429, ["Retry-After: 0"]), (503, ["Retry-After: 99999999999"]), (500, ())]
)
async def test_one_bad_answer_to_a_question_is_asked_again_and_costs_nothing(made, outbox):
    status, headers = made
    async with hostile(GOOD) as server, registration_at(server.url, outbox) as registration:
        await registration.register()
        for path in ("/info", "/status-env", "/status"):
            good, server.answers[path] = server.answers[path], answer(b"", status=status, headers=headers)
            looking = asyncio.create_task(registration.look())
            asked = len(server.asked)
            while len(server.asked) == asked:  # noqa: ASYNC110
                await asyncio.sleep(0)
            server.answers[path] = good
            assert await looking
        assert [path for _, path, *_ in server.asked].count("/register-env") == 1


async def test_questions_that_stay_without_an_answer_drop_the_registration_after_a_few(outbox):
    async with hostile(GOOD) as server, delivering(server.url, outbox) as delivery:
        await until(delivery, lambda: delivery.online)
        server.answers["/status"] = answer(b"slow down", status=429)
        await until(delivery, lambda: not delivery.online)
        server.answers["/status"] = GOOD["/status"]
        await until(delivery, lambda: delivery.tally.registrations == 2)
        assert delivery.tally.repeated == 0


@pytest.mark.parametrize("status", [404, 503])
async def test_a_registration_that_was_not_taken_leaves_what_is_known_as_it_was(status, outbox):
    async with hostile(GOOD) as server, registration_at(server.url, outbox) as registration:
        await registration.register()
        outbox.put("a", [])
        registration.drop()
        server.answers["/register-env"] = answer(b"", status=status)
        with pytest.raises(ApiUnavailableError):
            await registration.register()
        assert outbox.fact("settled") == "yes"


async def test_a_registration_that_may_have_arrived_proves_nothing(outbox):
    async with hostile(GOOD) as server, registration_at(server.url, outbox) as registration:
        await registration.register()
        registration.drop()
        server.answers["/register-env"] = cut_short
        with pytest.raises(ApiUnavailableError):
            await registration.register()
        assert outbox.fact("settled") == "no"


async def test_whatever_answers_for_a_while_nothing_is_lost_and_the_loop_goes_on(outbox):
    attacks = [
        HTTP["gzip bomb"],
        HTTP["two lengths"],
        answer(JUNK["deep"]),
        answer({**STATUS, "current_step": -1}),
    ]
    async with (
        hostile(GOOD) as server,
        delivering(server.url, outbox, max_batches_waiting=99) as delivery,
    ):
        for number, attack in enumerate(attacks):
            await until(delivery, lambda: delivery.online)
            server.answers["/status"] = attack
            await until(delivery, lambda: not delivery.online)
            await put(delivery, credited(f"g{number}"))
            server.answers["/status"] = GOOD["/status"]
            await until(delivery, lambda number=number: delivery.tally.posts == number + 1)
        assert delivery.tally.rejected == 0


@pytest.fixture
def outbox(tmp_path):
    with Outbox(tmp_path / "o.sqlite") as made:
        yield made
