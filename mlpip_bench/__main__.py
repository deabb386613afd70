"""``python -m mlpip_bench``."""

import sys


def main() -> None:
    """Run the command line; an interrupt while it is still being imported is as quiet as a later one."""
    try:
        from mlpip_bench import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
