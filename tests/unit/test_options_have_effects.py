"""Every configuration option has a test that shows its effect, or is in the list of those accepted without one.

Add a line to `SHOWN_BY` with each new option. The tests are named by file and function; a function may be
parametrised."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tidegate.common import options

TESTS = Path(__file__).parent.parent

JOB = "unit/taskmanager/test_job_options.py"
SLOT = "unit/taskmanager/test_slot_options.py"
CONTROL = "unit/spark/test_control_link.py"
ENVIRONMENT = "unit/datastream/test_environment.py"
SPARK = "spark/test_options_on_spark.py"
SAVEPOINTS = "spark/test_savepoints.py"
LOGS = "unit/spark/test_worker_logs.py"
OTEL = "unit/web/test_otel.py"
TLS = "unit/web/test_tls.py"
MICRO_BATCH = "unit/micro_batch/test_jobs.py"
ROCKSDB = "unit/state/test_rocksdb.py"
ROCKSDB_SLOT = "unit/taskmanager/test_rocksdb_slot.py"


def at(file: str, *names: str) -> tuple[str, ...]:
    """Node ids."""
    return tuple(f"{file}::{name}" for name in names)


_FIXED_DELAY = at(JOB, "test_each_key_of_the_restart_strategies", "test_a_job_is_restarted_as_the_configuration_says")
_RESTARTS = at(JOB, "test_each_key_of_the_restart_strategies")
_JITTER_AND_RESET = at(JOB, "test_jitter_and_reset_threshold_of_the_exponential_delay")
_INCREMENTS = at(SLOT, "test_incremental_and_max_increments_decide_what_a_checkpoint_stores")
_COMMITS = at(SLOT, "test_a_failed_commit_is_retried_with_growing_pauses")
_ROCKSDB_SETTINGS = at(ROCKSDB, "test_each_setting_reaches_rocksdb")
_BUFFER_TIMEOUT = at(SLOT, "test_buffer_timeout_says_how_long_a_record_waits_for_a_full_batch")

LEADERS = "unit/jobmanager/test_leadership.py"
ZOOKEEPER = "connectors/test_zookeeper.py"

SHOWN_BY: dict[str, tuple[str, ...]] = {  # key -> node ids
    "high-availability.type": at(LEADERS, "test_it_is_off_by_default", "test_settings_that_cannot_be"),
    "high-availability.storageDir": at(LEADERS, "test_a_folder_that_is_missing_or_cannot_be_written"),
    "high-availability.cluster-id": at(LEADERS, "test_two_jobs_under_one_cluster_id"),
    "high-availability.zookeeper.quorum": at(ZOOKEEPER, "test_the_settings_lead_to_the_servers"),
    "high-availability.zookeeper.path.root": at(ZOOKEEPER, "test_the_settings_lead_to_the_servers"),
    "high-availability.zookeeper.client.acl": at(ZOOKEEPER, "test_nodes_of_their_creator_are_for_nobody_else"),
    "tidegate.high-availability.zookeeper.username": at(LEADERS, "test_the_password_of_zookeeper_is_a_secret"),
    "tidegate.high-availability.zookeeper.password": at(LEADERS, "test_the_password_of_zookeeper_is_a_secret"),
    "tidegate.high-availability.lease-duration": at(
        LEADERS, "test_a_leader_whose_store_does_not_answer_leads_while_its_lease_is_valid"
    ),
    "tidegate.high-availability.standby": at(
        "spark/test_high_availability.py", "test_a_leader_that_was_frozen_leaves_and_a_killed_one_is_followed"
    ),
    "tidegate.history.dir": at("unit/web/test_history.py", "test_the_folder_and_the_size_come_from_the_configuration"),
    "tidegate.history.size": at("unit/web/test_history.py", "test_the_folder_and_the_size_come_from_the_configuration"),
    "queryable-state.enable": at("unit/taskmanager/test_live_state.py", "test_looking_can_be_switched_off"),
    "tidegate.queryable-state.committed.max-read": at(
        "unit/taskmanager/test_live_state.py", "test_a_look_at_a_checkpoint_reads_only_so_much_of_it"
    ),
    "tidegate.queryable-state.hidden": at("unit/taskmanager/test_live_state.py", "test_a_state_can_be_hidden"),
    "parallelism.default": at(JOB, "test_default_parallelism"),
    "pipeline.max-parallelism": at(JOB, "test_max_parallelism"),
    "pipeline.name": at(ENVIRONMENT, "test_the_job_name_comes_from_the_call_or_the_configuration"),
    "pipeline.job-id": at(JOB, "test_a_fixed_job_id_names_the_directory_and_ids_go_on_from_the_run_before"),
    "pipeline.operator-chaining.enabled": at(JOB, "test_operator_chaining"),
    "pipeline.auto-generate-uids": at(JOB, "test_generated_uids_can_be_forbidden"),
    "pipeline.object-reuse": at(
        "unit/taskmanager/test_several_readers.py", "test_with_object_reuse_all_readers_get_the_same_objects"
    ),
    "tidegate.debug.check-mutations": at(
        "unit/taskmanager/test_mutation_checks.py", "test_off_it_is_silent_and_nothing_is_wrapped"
    ),
    "pipeline.auto-watermark-interval": at(
        "unit/taskmanager/test_watermarks_in_jobs.py", "test_the_interval_decides_how_often_time_is_told"
    ),
    "pipeline.global-job-parameters": at(SLOT, "test_global_job_parameters_are_seen_by_functions"),
    "execution.runtime-mode": at(
        ENVIRONMENT, "test_the_runtime_mode_picks_who_runs_the_job", "test_micro_batches_have_a_runtime_of_their_own"
    ),
    "execution.batch.savepoint-path": at(
        "spark/batch/test_bootstrap.py", "test_streaming_goes_on_where_the_batch_run_ended"
    ),
    "tidegate.micro-batch.checkpoint-location": at(MICRO_BATCH, "test_the_location_of_another_job"),
    "tidegate.micro-batch.checkpoint-location-must-exist": at(
        MICRO_BATCH, "test_a_location_that_was_deleted_between_two_runs"
    ),
    "tidegate.micro-batch.trigger": at(
        MICRO_BATCH, "test_available_now_ends_when_nothing_is_left", "test_triggers_without_python_are_refused"
    ),
    "tidegate.micro-batch.interval": at(MICRO_BATCH, "test_the_interval_is_the_trigger_of_the_query"),
    "tidegate.micro-batch.max-bytes": at(MICRO_BATCH, "test_max_bytes_decides_how_large_batches_are"),
    "tidegate.micro-batch.max-records": at(MICRO_BATCH, "test_max_records_decides_how_large_batches_are"),
    "tidegate.micro-batch.buckets": at(
        "unit/micro_batch/test_buckets.py", "test_more_buckets_mean_less_state_for_a_small_batch"
    ),
    "execution.batch.buffer-size": at("unit/batch/test_tasks.py", "test_the_buffer_size_decides_how_blocks_are_cut"),
    "execution.buffer-timeout.interval": _BUFFER_TIMEOUT,
    "execution.buffer-timeout.enabled": _BUFFER_TIMEOUT,
    "execution.checkpointing.interval": at(
        JOB,
        "test_interval",
        "test_without_an_interval_there_are_no_checkpoints",
    ),
    "execution.checkpointing.mode": at(
        JOB,
        "test_exactly_once_blocks_the_channel_whose_barrier_has_come_and_at_least_once_does_not",
    ),
    "execution.checkpointing.timeout": at(JOB, "test_timeout"),
    "execution.checkpointing.min-pause": at(JOB, "test_min_pause"),
    "execution.checkpointing.max-concurrent-checkpoints": at(JOB, "test_max_concurrent"),
    "execution.checkpointing.tolerable-failed-checkpoints": at(JOB, "test_tolerable_failures"),
    "execution.checkpointing.unaligned.enabled": at(
        JOB,
        "test_unaligned_checkpoints_do_not_wait_for_the_other_channels",
    ),
    "execution.checkpointing.aligned-checkpoint-timeout": at(
        JOB,
        "test_an_aligned_checkpoint_turns_unaligned_after_its_timeout",
    ),
    "execution.checkpointing.dir": at(
        JOB,
        "test_a_directory_makes_checkpoints_in_files",
        "test_the_api_chooses_storage_and_directory",
    ),
    "execution.checkpointing.num-retained": at(JOB, "test_num_retained"),
    "execution.checkpointing.externalized-checkpoint-retention": at(JOB, "test_externalized_retention"),
    "execution.checkpointing.incremental": _INCREMENTS,
    "execution.checkpointing.storage": at(
        JOB,
        "test_jobmanager_storage_keeps_state_in_memory_and_in_the_metadata_when_there_is_a_directory",
        "test_filesystem_storage_without_a_directory_is_refused",
    ),
    "execution.checkpointing.snapshot-compression": at(
        SLOT,
        "test_compressed_snapshots_are_smaller_and_are_read_whatever_the_setting",
        "test_large_compressed_state_goes_to_files_and_comes_back",
    ),
    "execution.checkpointing.checkpoints-after-tasks-finish": at(
        JOB,
        "test_checkpoints_go_on_after_some_tasks_have_finished_unless_told_otherwise",
    ),
    "state.backend.type": at(ENVIRONMENT, "test_state_backends")
    + at(ROCKSDB_SLOT, "test_checkpoints_hold_database_files_and_only_new_ones_when_incremental"),
    "state.backend.rocksdb.localdir": at(ROCKSDB, "test_one_of_several_folders_is_taken"),
    "state.backend.rocksdb.memory.fixed-per-slot": _ROCKSDB_SETTINGS,
    "state.backend.rocksdb.memory.write-buffer-ratio": _ROCKSDB_SETTINGS,
    "state.backend.rocksdb.block.cache-size": at(ROCKSDB, "test_the_block_cache_is_as_large_as_told"),
    "state.backend.rocksdb.writebuffer.size": _ROCKSDB_SETTINGS,
    "state.backend.rocksdb.block.blocksize": _ROCKSDB_SETTINGS,
    "state.backend.rocksdb.compression.per.level": _ROCKSDB_SETTINGS,
    "state.backend.rocksdb.compaction.style": _ROCKSDB_SETTINGS,
    "state.backend.rocksdb.thread.num": _ROCKSDB_SETTINGS,
    "state.backend.rocksdb.predefined-options": _ROCKSDB_SETTINGS,
    "state.storage.jobmanager.max-state-size": at(JOB, "test_max_state_size_of_the_jobmanagers_memory"),
    "execution.state-recovery.path": at(JOB, "test_recovery_path"),
    "execution.state-recovery.ignore-unclaimed-state": at(JOB, "test_ignore_unclaimed_state"),
    "execution.state-recovery.claim-mode": at(JOB, "test_claim_mode"),
    "tidegate.restart.stop-on-repeated-failure": at(
        "unit/taskmanager/test_repeated_failures.py", "test_it_goes_on_when_it_is_told_to"
    ),
    "tidegate.print.on-driver": at("spark/test_printing.py", "test_what_is_printed_comes_out_of_the_program"),
    "restart-strategy.type": _FIXED_DELAY,
    "restart-strategy.fixed-delay.attempts": _FIXED_DELAY,
    "restart-strategy.fixed-delay.delay": _FIXED_DELAY,
    "restart-strategy.failure-rate.max-failures-per-interval": _RESTARTS,
    "restart-strategy.failure-rate.failure-rate-interval": _RESTARTS,
    "restart-strategy.failure-rate.delay": _RESTARTS,
    "restart-strategy.exponential-delay.initial-backoff": _RESTARTS,
    "restart-strategy.exponential-delay.max-backoff": _RESTARTS,
    "restart-strategy.exponential-delay.backoff-multiplier": _RESTARTS,
    "restart-strategy.exponential-delay.reset-backoff-threshold": _JITTER_AND_RESET,
    "restart-strategy.exponential-delay.jitter-factor": _JITTER_AND_RESET,
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": _RESTARTS,
    "heartbeat.interval": at(JOB, "test_heartbeat_interval", "test_heartbeats_and_the_time_to_leave_reach_the_workers")
    + at(CONTROL, "test_heartbeats_go_out_at_their_interval"),
    "heartbeat.timeout": at(JOB, "test_heartbeat_timeout", "test_heartbeats_and_the_time_to_leave_reach_the_workers")
    + at(CONTROL, "test_a_silent_driver_is_taken_for_dead"),
    "task.cancellation.timeout": at(
        JOB,
        "test_a_task_that_does_not_leave_is_killed_after_the_cancellation_timeout",
        "test_heartbeats_and_the_time_to_leave_reach_the_workers",
    )
    + at(
        CONTROL,
        "test_a_task_that_does_not_leave_in_time_is_ended_with_its_process",
        "test_a_task_that_leaves_or_may_take_its_time_is_not",
    ),
    "execution.checkpointing.savepoint-dir": at(
        SAVEPOINTS, "test_a_savepoint_is_resumed_exactly_at_another_parallelism"
    ),
    "state.class-mapping": at(
        "unit/taskmanager/test_savepoints.py", "test_the_class_mapping_reaches_what_reads_the_state"
    ),
    "rest.enabled": at(SAVEPOINTS, "test_the_rest_port_can_be_placed_and_switched_off"),
    "rest.bind-address": at(SAVEPOINTS, "test_the_rest_port_can_be_placed_and_switched_off"),
    "tidegate.otel.endpoint": at(OTEL, "test_metrics_have_their_kinds_and_their_places"),
    "tidegate.otel.headers": at(OTEL, "test_it_goes_on_while_the_job_runs_and_tells_of_nothing_twice"),
    "tidegate.otel.interval": at(OTEL, "test_settings_and_what_is_missing"),
    "tidegate.progress.enabled": at("unit/datastream/test_progress.py", "test_it_is_shown_only_where_it_is_wanted"),
    "tidegate.logging.level": at(LOGS, "test_levels_hold_while_the_job_runs_and_are_given_back"),
    "tidegate.logging.format": at(LOGS, "test_without_a_driver_that_takes_them_lines_go_to_the_standard_error"),
    "tidegate.logging.on-driver": at("spark/test_logging.py", "test_lines_of_functions_arrive_at_the_program"),
    "rest.address": at(TLS, "test_the_port_is_named_as_its_certificate_has_it"),
    "rest.ssl.enabled": at(TLS, "test_the_settings_come_from_the_configuration"),
    "rest.ssl.certificate": at(TLS, "test_the_settings_come_from_the_configuration"),
    "rest.ssl.key": at(TLS, "test_the_settings_come_from_the_configuration"),
    "rest.ssl.key-password": at(TLS, "test_a_key_with_a_password"),
    "rest.ssl.ca": at(TLS, "test_a_command_speaks_https_and_checks_the_certificate"),
    "rest.port": at(SAVEPOINTS, "test_the_rest_port_can_be_placed_and_switched_off"),
    "tidegate.network.batch-size": at(SLOT, "test_a_batch_is_sent_when_it_has_as_many_records_as_set"),
    "tidegate.network.credits-per-channel": at(SLOT, "test_credits_bound_what_is_under_way_to_a_slow_task"),
    "tidegate.network.max-batch-bytes": at(SLOT, "test_max_batch_bytes_makes_the_batches_of_large_records_smaller"),
    "tidegate.slot.start-timeout": at(JOB, "test_slot_start_timeout"),
    "tidegate.slot.restore-timeout": at(JOB, "test_slot_restore_timeout"),
    "tidegate.checkpoint.trace": at(SLOT, "test_trace_prints_every_barrier_and_snapshot"),
    "tidegate.checkpoint.max-increments": _INCREMENTS,
    "tidegate.checkpoint.history-size": at(JOB, "test_history_size"),
    "tidegate.sink.commit-retries": _COMMITS,
    "tidegate.sink.commit-backoff": _COMMITS,
    "tidegate.storage.permissions": at(
        "unit/storage/test_permissions.py", "test_the_option_reaches_every_place_that_holds_user_data"
    ),
    "tidegate.cache.dir": at("unit/datastream/test_cached_streams.py", "test_the_folder_can_be_chosen"),
    "tidegate.python.files": at(SPARK, "test_python_files_are_shipped_to_the_workers"),
}

ACCEPTED_WITHOUT_EFFECT = {  # key -> why; the page says so too
    "state.changelog.enabled": "checkpoints are incremental in both backends",
    "pipeline.jars": "connectors are Python",
    "pipeline.closure-cleaner-level": "functions are pickled with what they refer to, and nothing else",
    "pipeline.classpaths": "connectors are Python",
    "execution.checkpointing.unaligned.forced": "no edge is left out of unaligned checkpoints",
    "task.cancellation.interval": "a task is told to leave once, and killed when it does not",
    "metrics.latency.interval": "there are no latency markers yet",
}

PASSED_ON_BY = at(SPARK, "test_keys_of_spark_reach_the_session")  # every key that starts with "spark."


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("option", options.ALL_OPTIONS, ids=lambda option: option.key)
def test_every_option_has_an_effect_that_is_shown_or_says_that_it_has_none(option: options.ConfigOption) -> None:
    shown, accepted = option.key in SHOWN_BY, option.key in ACCEPTED_WITHOUT_EFFECT
    assert shown != accepted, f"put {option.key} into SHOWN_BY or ACCEPTED_WITHOUT_EFFECT, and not into both"
    assert ("Accepted without effect" in option.description) == accepted


@pytest.mark.parametrize("node_id", sorted({*PASSED_ON_BY, *(n for shown in SHOWN_BY.values() for n in shown)}))
def test_the_tests_that_show_it_exist(node_id: str) -> None:
    file, _, name = node_id.partition("::")
    assert name in functions_of(file)


def test_no_other_keys_are_listed() -> None:
    known = {option.key for option in options.ALL_OPTIONS}
    assert SHOWN_BY.keys() | ACCEPTED_WITHOUT_EFFECT.keys() == known
