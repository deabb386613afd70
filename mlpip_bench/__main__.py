"""``python -m mlpip_bench``."""

import os
import sys

from mlpip_bench.utils import interrupts, streams


def main() -> None:
    """Run the command line; an interrupt while it is still being imported is as quiet as a later one."""
    out, err = streams.forgive()
    interrupts.install()
    # Torch's profiler would write its own messages past ours; read when torch is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ["MPLBACKEND"] = "agg"  # a notebook's is not there for a command, and nothing here needs a screen
    status = 0
    try:
        from mlpip_bench.cli.app import main

        main()
    except KeyboardInterrupt as error:
        status = interrupts.status(error)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    out.flush()
    if out.error is not None and sys.argv[1:2] != ["run"]:  # a run has its records
        err.write(f"error: what was asked for cannot be written to standard output: {out.error.strerror}.\n")
        status = status or 1
    sys.exit(status)


if __name__ == "__main__":
    main()
