"""A report that keeps what it is told."""


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

    def is_alive(self, blocked_at): ...

    def result(self, check):
        return next(each.result for each in self.findings if each.check == check)

    def found(self, check):
        return next(each.found for each in self.findings if each.check == check)
