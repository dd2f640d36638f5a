"""The checks of an environment, run in this process, and a report that keeps what they tell."""

from environments.config import AgentEnvConfig
from environments.env_checks.check_run import CheckRun
from environments.env_checks.checked_env import CallTrace, CheckedEnv


class ListedReport:
    def __init__(self):
        self.findings, self.parts = [], {}

    def finding(self, finding):
        self.findings.append(finding)

    def shown(self, name, value):
        self.parts[name] = value

    def begins(self, check): ...

    def doing(self, what): ...

    def says(self, line): ...

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
    run = CheckedEnv(
        env_cls=env_cls,
        config=AgentEnvConfig(),
        servers=servers,
        items=items,
        trace=CallTrace(doing=report.doing),
    )
    await CheckRun(run, report).run()
    return report
