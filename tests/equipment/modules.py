"""Modules that a test imported from files of its own."""

import sys


def forget_modules_of(folder):
    """Let the next test import such modules anew; what else was imported meanwhile stays as it is."""
    for name, module in tuple(sys.modules.items()):
        places = [getattr(module, "__file__", None) or "", *map(str, getattr(module, "__path__", ()))]
        if any(each.startswith(f"{folder}/") for each in places):
            del sys.modules[name]
