"""First on `PYTHONPATH`, it makes an interpreter that starts a fork server of its own program."""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_TOOLS = _HERE.parents[2]
# Stubs, because importing the real packages is slow and the program may have a module `tools`.
for _name, _path in ("tools", _TOOLS), ("tools.sandbox", _TOOLS / "sandbox"):
    sys.modules[_name] = type(sys)(_name)
    sys.modules[_name].__path__ = [str(_path)]
try:
    from tools.sandbox.host.warm.loop import serve

    for _name in [_each for _each in sys.modules if _each.split(".")[0] == "tools"]:
        del sys.modules[_name]
    serve(str(_HERE))
except BaseException as _error:  # noqa: BLE001  # the interpreter would go on with the program, without its endpoint
    sys.excepthook(type(_error), _error, _error.__traceback__)
    os._exit(1)
