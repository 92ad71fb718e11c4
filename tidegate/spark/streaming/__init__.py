"""STREAMING: a job as one gang of barrier tasks; the real hosts of the JobMaster and of the slots."""
