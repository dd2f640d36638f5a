import ast
from pathlib import Path

import environments


def test_one_module_knows_the_openai_package():
    root = Path(environments.__file__).parent
    importing = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "openai")
        or (isinstance(node, ast.Import) and any(each.name.split(".")[0] == "openai" for each in node.names))
    }
    assert importing == {"inference/http_client.py"}
