"""`turnwise import`: makes a record of logged conversations with votes and outcomes."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.origin import RunOrigin
from environments.record.recorder import new_record
from environments.record.sessions.logged_session import Scale
from environments.record.sessions.session_file import SessionFile, open_sessions, record_sessions
from environments.record.summary import print_summary
from environments.record.totals import Summary
from environments.rollout.items.item_json import check_id
from environments.run.console_streams import robust_console
from environments.run.experiment import turnwise_version
from environments.run.process_run import FAILED
from environments.trajectory import LARGEST_REWARD
from tools.errors import ConfigError, DatasetError
from turnwise.cli.credit_options import CreditOptions, credit_options
from turnwise.cli.main import interrupt_on_sigterm


@click.command(name="import")
@click.argument("sessions", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The new record.")
@click.option("--name", help="What the record calls the environment; unset: the name of SESSIONS.")
@click.option("--vote-field", metavar="NAME", help="Where a message has its vote; unset: vote or reward.")
@click.option("--outcome-field", metavar="NAME", help="Where a session has its outcome; unset: outcome.")
@click.option("--upvote", type=float, default=1.0, show_default=True, help='What true and "up" are worth.')
@click.option("--downvote", type=float, default=-1.0, show_default=True, help='What false and "down" are.')
@click.option("--tokenizer", default="embedded", show_default=True, help="Whose ids the rows are made of.")
@credit_options(default="turn_return")
def command(
    sessions: Path, out: Path, name: str | None, tokenizer: str, credit: CreditOptions, **votes: Any
) -> int:
    """Make a record of SESSIONS: logged conversations, one JSON object a line.

    A line is a chat, a call of OpenAI's or Anthropic's API with its reply, or a trace of verifiers.
    Assistant messages have votes, sessions have outcomes; a missing one is not 0. Sessions with equal
    openings are a group. A session without siblings has no advantage, unless with --baseline none.
    """
    started = monotonic()
    env = sessions.stem if name is None else name
    is_name = False
    with suppress(DatasetError):
        is_name = bool(check_id(env))
    if not is_name:
        raise ConfigError(f"--name is {env!r:.100}; give UTF-8 text")
    scale = _make_scale(**votes)
    renderer = ChatMLRenderer.load(tokenizer)
    with (
        interrupt_on_sigterm(),
        Console(stderr=True).status(f"importing {sessions}"),
        new_record(out, doing="import") as recorder,
        open_sessions(sessions, scale) as logged,
    ):
        vote, outcome = votes["vote_field"], votes["outcome_field"]
        if vote is not None and not logged.votes:
            raise DatasetError(f"{sessions}: no assistant message has a vote in {vote!r} (--vote-field)")
        if outcome is not None and not logged.outcomes:
            raise DatasetError(f"{sessions}: no session has an outcome in {outcome!r} (--outcome-field)")
        origin = RunOrigin(
            env=env,
            policy="logged",
            estimator=credit.estimator,
            estimator_params=credit.all_params,
            experiment={
                "turnwise": turnwise_version(),
                "sessions": f"sha256:{logged.digest[:16]}",
                "votes": f"{' or '.join(scale.vote_fields)}, {scale.upvote:g} and {scale.downvote:g}",
                "outcome": scale.outcome_field,
                "tokenizer": tokenizer,
            },
        )
        advantages = partial(credit.credit_group, min_trajectories=1)
        summary = record_sessions(logged, recorder, origin, renderer, advantages)
    with robust_console():
        _report(Console(), summary, logged, out, monotonic() - started)
    return FAILED if summary.groups["failed"] == summary.done else 0


def _make_scale(
    *, vote_field: str | None, outcome_field: str | None, upvote: float, downvote: float
) -> Scale:
    for name, worth in (("upvote", upvote), ("downvote", downvote)):
        if not abs(worth) <= LARGEST_REWARD:
            raise ConfigError(f"--{name} is {worth}; numbers up to {LARGEST_REWARD:g} are possible")
    scale = Scale(upvote=upvote, downvote=downvote)
    if vote_field is not None:
        scale = replace(scale, vote_fields=(vote_field,))
    return scale if outcome_field is None else replace(scale, outcome_field=outcome_field)


def _report(console: Console, summary: Summary, logged: SessionFile, out: Path, seconds: float) -> None:
    print_summary(console, summary, path=None, wall_s=seconds)
    votes = f"{logged.votes:,} of {logged.turns:,} turns have a vote"
    outcomes = f"{logged.outcomes:,} of {logged.sessions:,} sessions an outcome"
    console.print(Text(f"{votes}, {outcomes}"), soft_wrap=True)
    console.print(Text(str(out), style="bold"), soft_wrap=True)
    if failed := summary.groups["failed"]:
        console.print(
            f"{failed} of {summary.done} groups failed; `turnwise credit --missing-outcome` settles a "
            f"missing outcome",
            soft_wrap=True,
        )
