"""The `turnwise` command, also as `python -m turnwise`."""

import signal
import sys

from turnwise.own_packages import find_own_packages


def main() -> None:
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to clean up yet: ^C ends the process
    try:
        find_own_packages()
    except ImportError as error:
        sys.stderr.write(f"turnwise: error: {error}\n")
        sys.exit(2)
    # Only now: an import at the top would already have run the wrong package.
    from turnwise.cli.main import leave  # noqa: PLC0415
    from turnwise.cli.main import main as cli_main  # noqa: PLC0415

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    leave(cli_main())


if __name__ == "__main__":
    main()
