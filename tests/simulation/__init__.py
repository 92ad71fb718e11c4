"""A whole job, its slots and its JobManager, in one thread on a simulated network, clock, storage and Spark.

Read `README.md` beside this file first.
"""
