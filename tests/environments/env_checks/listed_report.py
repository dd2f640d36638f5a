"""The checks of an environment, run in this process, and a report that keeps what they tell."""

from environments.config import AgentEnvConfig
from environments.env_checks.check_run import run_checks
from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.report import Finding


class ListedReport:
    def __init__(self):
        self.findings, self.parts = [], {}

    def add(self, *, shown=None, value=None, **message):
        if shown is not None:
            self.parts[shown] = value

    def add_finding(self, check, answer):
        result, found = answer
        self.findings.append(Finding(check=check, result=result, found=found))

    def result(self, check):
        return next(each.result for each in self.findings if each.check == check)

    def found(self, check):
        return next(each.found for each in self.findings if each.check == check)


async def checked(env_cls, monkeypatch, tmp_path, servers=(), items=2):
    """The report on an environment, with folders that no other process writes into, as the command has."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    report = ListedReport()
    await run_checks(
        CheckedEnv(env_cls=env_cls, config=AgentEnvConfig(), servers=servers, items=items, report=report)
    )
    return report
