"""One plugin of each kind for mlpip_bench."""
