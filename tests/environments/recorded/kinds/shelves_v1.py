"""A multi-turn environment of verifiers with a tool server and a state: take what is wanted."""

import verifiers.v1 as vf

__all__ = ["ShelvesTaskset"]
STOCK = ("tea", "salt", "rice", "oil")


class Taken(vf.State):
    things: tuple[str, ...] = ()


class Shelves(vf.Toolset[vf.ToolsetConfig, Taken]):
    @vf.tool
    def look(self) -> str:
        """What stands on the shelves."""
        return ", ".join(STOCK)

    @vf.tool
    def take(self, what: str) -> str:
        """Take one thing."""
        if what not in STOCK:
            raise ValueError(f"no {what} here")
        self.state.things = (*self.state.things, what)
        return f"{len(self.state.things)} taken"


class ErrandData(vf.TaskData):
    wanted: list[str]


class Errand(vf.Task[ErrandData, Taken]):
    @classmethod
    def toolsets(cls, config):
        return [Shelves(vf.ToolsetConfig())]

    @vf.reward
    async def got(self, trace):
        return len(set(trace.state.things) & set(self.data.wanted)) / len(self.data.wanted)

    @vf.reward(weight=-0.25)
    async def too_much(self, trace):
        return len(set(trace.state.things) - set(self.data.wanted))


class ShelvesTaskset(vf.Taskset[Errand, vf.TasksetConfig]):
    def load(self):
        for wanted in (["tea", "oil"], ["salt", "rice"]):
            yield Errand(ErrandData(prompt=f"Bring {' and '.join(wanted)}.", wanted=wanted))


if __name__ == "__main__":
    Shelves.run()
