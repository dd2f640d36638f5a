"""The credit ledger of a turn in words: reward, what follows, what that was compared with, advantage."""

from collections.abc import Iterator

from environments.credit.ledger import LedgerPeer, LedgerTerm, TurnLedger
from environments.viewer.page_values import PageTurn
from environments.viewer.terminal_text import in_line, number, precise, signed

_MOST_PEERS = 8


def credit_lines(turn: PageTurn) -> Iterator[tuple[str, str]]:
    """Names and texts: the sum, whom it was compared with, and what is to be said of it."""
    ledger = turn["ledger"]
    yield "credit", _sum(ledger)
    for term in ledger.terms:
        if term.peers:
            several = f"{in_line(term.name)}: " if len(ledger.terms) > 1 else ""
            yield "compared", several + _peers(term)
    for note in ledger.notes:
        yield "note", in_line(note)


def _sum(ledger: TurnLedger) -> str:
    reward = "not scored" if ledger.reward is None else f"reward {precise(ledger.reward)}"
    follows = "" if ledger.follows is None else f" {_added(ledger.follows)} what follows"
    terms = [_term(each) for each in ledger.terms]
    compared = f" → {' + '.join(terms)}" if terms else ""
    tokens = f"{ledger.tokens:,} trained token{'s' * (ledger.tokens != 1)}"
    return f"{reward}{follows}{compared} → advantage {signed(ledger.advantage)} → {tokens}"


def _added(value: float) -> str:
    return f"- {precise(-value)}" if value < 0 else f"+ {precise(value)}"


def _subtracted(value: float) -> str:
    return f"+ {precise(-value)}" if value < 0 else f"- {precise(value)}"


def _term(term: LedgerTerm) -> str:
    text = f"{in_line(term.name)} {precise(term.value)}"
    if term.baseline is not None:
        text += f" {_subtracted(term.baseline)} baseline"
    if term.divisor is not None or term.weight != 1:
        text = f"({text})"
    if term.divisor is not None:
        text += f" / {precise(term.divisor)}"
    return text if term.weight == 1 else f"{precise(term.weight)} * {text}"


def _peers(term: LedgerTerm) -> str:
    peers = [_peer(each) for each in term.peers[:_MOST_PEERS]]
    more = term.peer_count - len(peers)
    whole = "; its own is in the baseline" if term.whole_group else ""
    spread = "" if term.spread is None else f"; spread {number(term.spread)}"
    return ", ".join(peers) + (f" and {more} more" if more > 0 else "") + spread + whole


def _peer(peer: LedgerPeer) -> str:
    turn = "" if peer.turn is None else f" turn {peer.turn + 1}"
    return f"sibling {peer.sibling}{turn}: {precise(peer.value)}"
