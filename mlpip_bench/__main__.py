"""``python -m mlpip_bench``."""

import io
import os
import sys


def main() -> None:
    """Run the command line; an interrupt while it is still being imported is as quiet as a later one."""
    # A Windows code page may lack ± or ², and then no table could be sent to a file.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Torch's profiler would write its own messages past ours; read when torch is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        from mlpip_bench.cli.app import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
