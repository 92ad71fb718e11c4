"""High availability: who leads a job, and what its next leader has to know. `docs/architecture.md` has the design (*A
driver that dies*), `record_claim` is the pure core beside that of the lease."""
