"""`turnwise doctor`: whether what a run stands on does what it must: a model server, a trainer, sandboxes."""

from turnwise.cli.main import LazyCommand, LazyGroup

command = LazyGroup(
    {
        "model": LazyCommand(
            module="turnwise.cli.doctor_model",
            help="Find out what a model server gives: token ids, logprobs, tool calls, and what to set.",
        ),
        "trainer": LazyCommand(
            module="turnwise.cli.doctor_trainer",
            help="Find out whether your trainer takes the gradient of per-turn credit.",
        ),
        "sandbox": LazyCommand(
            module="turnwise.cli.doctor_sandbox",
            help="Prove a sandbox backend, list sandboxes, remove orphans.",
        ),
    },
    name="doctor",
    help="Examine a model server, a trainer or the sandboxes of this machine.",
    no_args_is_help=True,
)
