"""``python -m mlpip_bench``."""

from mlpip_bench.cli import main

if __name__ == "__main__":
    main()
