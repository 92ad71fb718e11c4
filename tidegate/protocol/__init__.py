"""The messages between the JobManager and the slots. Imports only `common` and `storage` handles; does no I/O."""
