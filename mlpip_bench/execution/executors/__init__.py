"""Where the jobs of a run are done: in this process, in local processes, or on a Ray cluster.

All do a job by the same function, which writes its records itself; so the results folder must be one that all see.
"""
