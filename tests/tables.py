"""Tables of attacks and checks: each as one test, or those that stand for the others without `--soak`."""

import functools
import inspect
import itertools
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

MARKS = {"docker": [pytest.mark.docker]}


def across(table, everywhere, fixture, kinds, *, slow=()):
    """Parameters `fixture` and `case`: all cases in the first kind, one per mechanism in every other.

    Args:
        table: the cases by their names.
        everywhere: names of those that run in each of the kinds; with `--soak` all do.
        fixture: gets the kind.
        kinds: of sandboxes.
        slow: names of those that run with `--soak` alone.
    """
    return pytest.mark.parametrize(
        (fixture, "case"),
        [
            pytest.param(
                kind, *param.values, id=f"{kind}-{param.id}", marks=[*MARKS.get(kind, []), *param.marks]
            )
            for kind in kinds
            for param in seldom(table, {*table} - {*slow} if kind == kinds[0] else everywhere)
        ],
        indirect=[fixture],
    )


def seldom(table, kept):
    """Parameters of a test for the cases, of which only those that are `kept` run without `--soak`."""
    assert set(kept) <= set(table)
    return [
        pytest.param(case, id=name, marks=[] if name in kept else [pytest.mark.soak])
        for name, case in table.items()
    ]


def cases(names, table, ids=None):
    """Runs a test over a table as one test, which names every case that fails.

    For cases that are cheap and hold one fact, in the place of `pytest.mark.parametrize`. Each case has a
    `tmp_path` and patches of its own, and reads only its own output.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    titles = itertools.repeat(None) if ids is None or callable(ids) else ids
    titled = []
    for case, title in zip(table, titles, strict=False):
        if isinstance(case, type(pytest.param())):
            titled.append((case.id, case.values))
        else:
            titled.append((title or f"{case}"[:80], case if len(names) > 1 else (case,)))

    def decorate(test):
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in names]

        def tried(fixtures, failed):
            for number, (title, row) in enumerate(titled):
                yield _tried(f"case {number}: {title}", fixtures, dict(zip(names, row, strict=True)), failed)

        @functools.wraps(test)
        def run(**fixtures):
            failed = []
            for case in tried(fixtures, failed):
                with case as arguments:
                    test(**arguments)
            _report(failed, len(titled))

        @functools.wraps(test)
        async def run_async(**fixtures):
            failed = []
            for case in tried(fixtures, failed):
                with case as arguments:
                    await test(**arguments)
            _report(failed, len(titled))

        made = run_async if inspect.iscoroutinefunction(test) else run
        made.__signature__ = signature.replace(parameters=left)
        return made

    return decorate


@contextmanager
def _tried(title, fixtures, values, failed):
    """The arguments of a case, whose error is kept with its title."""
    arguments = fixtures | values
    with pytest.MonkeyPatch.context() as patches:
        if "monkeypatch" in fixtures:
            arguments["monkeypatch"] = patches
        if "tmp_path" in fixtures:
            arguments["tmp_path"] = Path(tempfile.mkdtemp(dir=fixtures["tmp_path"]))
        for name in {"capsys", "capfd"} & {*fixtures}:
            fixtures[name].readouterr()
        if "caplog" in fixtures:
            fixtures["caplog"].clear()
        try:
            yield arguments
        except Exception as error:  # noqa: BLE001  # whatever a test raises
            error.add_note(title)
            failed.append(error)
        except BaseException as error:
            error.add_note(title)
            raise


def _report(failed, number):
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {number} cases", failed)
