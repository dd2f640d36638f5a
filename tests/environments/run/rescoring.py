"""A record of three groups of chats, and the same rescored."""

from dataclasses import replace

from environments.record.recorder import read_contents, read_groups
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet


async def recorded(path, cls=Chat, **fields):
    """A record of three groups."""
    await process(chat(cls, data_path_to_save_groups=str(path), **fields), quiet())
    return by_item(path)


def by_item(path):
    return sorted(read_groups(path), key=lambda credited: credited.group.item_id)


async def rescored(path, cls=Chat, **fields):
    """The groups of its rescored record, and what was shown."""
    out, console = path.with_suffix(".new"), quiet()
    await rescore(chat(cls, **fields), path, read_contents(path), out, console)
    return by_item(out), console.file.getvalue()


def without_fingerprint(credited):
    return replace(credited, group=replace(credited.group, fingerprint=None))
