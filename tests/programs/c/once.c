/* Runs: a job runs once in each period, and the record of runs is written only while the hold exists. */
#include "check.h"

#include <zklock_standalone.h>

static zkl_client *client;

/* The newest run of a record, and the number of its runs. */
struct newest {
    int count;
    zkl_past_run run;
    char owner[256], failure[2048], node_path[256];
};

static void keep_newest(void *user, const zkl_past_run *run)
{
    struct newest *newest = user;
    CHECK(run->size == sizeof *run);
    if (newest->count++ > 0) return;
    newest->run = *run;
    snprintf(newest->owner, sizeof newest->owner, "%s", run->owner);
    snprintf(newest->failure, sizeof newest->failure, "%s", run->failure == NULL ? "" : run->failure);
    snprintf(newest->node_path, sizeof newest->node_path, "%s", run->node_path);
}

static struct newest newest_of(zkl_client *of, const char *path)
{
    struct newest newest = {0};
    OK(zkl_past_runs(of, path, keep_newest, &newest));
    return newest;
}

/* Begins a run of each day. Returns NULL if the job has already run. */
static zkl_run *begin_run(zkl_hold *hold, uint32_t flags)
{
    zkl_run *run = NULL;
    OK(zkl_hold_begin_run(hold, "day", "UTC", flags, &run));
    return run;
}

static void a_job_runs_once_in_a_period(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s", fresh_path());
    zkl_lock *lock = new_mutex(client, path);
    CHECK(newest_of(client, path).count == 0);
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_NEW);
    zkl_run *run = begin_run(hold, 0);
    CHECK(run != NULL);
    struct newest begun = newest_of(client, path);
    CHECK(begun.count == 1 && begun.run.result == ZKL_RUN_RUNNING && begun.run.ended_ms == -1 && begun.run.failure == NULL);
    int64_t token = 0;
    OK(hold_token(hold, &token));
    CHECK(begun.run.token == token && strncmp(begun.node_path, path, strlen(path)) == 0 && strchr(begun.owner, '@') != NULL);
    CHECK(begun.run.period_ms % 86400000 == 0 && begun.run.started_ms - begun.run.period_ms < 86400000);
    /* The run counts as running until it ends. */
    CHECK(begin_run(hold, ZKL_ONCE_RETRY_FAILED) == NULL);
    OK(zkl_run_finish(run, NULL));
    EXPECT(ZKL_E_HANDLE, zkl_run_finish(run, NULL));
    struct newest ended = newest_of(client, path);
    CHECK(ended.count == 1 && ended.run.result == ZKL_RUN_SUCCEEDED && ended.run.ended_ms >= begun.run.started_ms);
    OK(zkl_hold_release(hold));
    hold = acquire_hold(lock, ZKL_OWNER_NEW);
    CHECK(begin_run(hold, ZKL_ONCE_RETRY_FAILED) == NULL);
    OK(zkl_hold_release(hold));
    zkl_lock_free(lock);
}

static void failed_and_interrupted_runs_are_repeated_if_the_program_asks(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s", fresh_path());
    zkl_lock *lock = new_mutex(client, path);
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_NEW);
    OK(zkl_run_finish(begin_run(hold, 0), "exit code 3"));
    struct newest failed = newest_of(client, path);
    CHECK(failed.run.result == ZKL_RUN_FAILED && strcmp(failed.failure, "exit code 3") == 0);
    CHECK(begin_run(hold, 0) == NULL);
    zkl_run_free(begin_run(hold, ZKL_ONCE_RETRY_FAILED));
    CHECK(newest_of(client, path).run.result == ZKL_RUN_RUNNING);
    OK(zkl_hold_release(hold));
    hold = acquire_hold(lock, ZKL_OWNER_NEW);
    CHECK(begin_run(hold, 0) == NULL);
    zkl_run *run = begin_run(hold, ZKL_ONCE_RETRY_FAILED);
    CHECK(run != NULL && newest_of(client, path).count == 3);
    /* A run that is taken back does not count. */
    OK(zkl_run_take_back(run));
    EXPECT(ZKL_E_HANDLE, zkl_run_take_back(run));
    CHECK(newest_of(client, path).count == 2);
    OK(zkl_run_finish(begin_run(hold, ZKL_ONCE_RETRY_FAILED), NULL));
    OK(zkl_hold_release(hold));
    zkl_lock_free(lock);
}

/* A run cannot be recorded after the end of its hold. */
static void a_run_of_a_lost_hold_is_no_success(void)
{
    zkl_standalone *server = NULL;
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    zkl_client *other = NULL;
    OK(zkl_client_new(zkl_standalone_address(server), NULL, &other));
    zkl_lock *lock = new_mutex(other, "/lost");
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_NEW);
    zkl_run *run = begin_run(hold, 0);
    CHECK(zkl_standalone_expire(server, zkl_client_session_id(other)) == ZKL_OK);
    AWAIT(hold_state(hold) == ZKL_LOCK_LOST);
    zkl_run *none = NULL;
    EXPECT(ZKL_E_LOST, zkl_hold_begin_run(hold, "day", NULL, 0, &none));
    EXPECT(ZKL_E_LOST, zkl_run_finish(run, NULL));
    CHECK(none == NULL && newest_of(other, "/lost").run.result == ZKL_RUN_RUNNING);
    EXPECT(ZKL_E_LOST, zkl_hold_release(hold));
    /* A hold that was released protects no run either. */
    hold = acquire_hold(lock, ZKL_OWNER_NEW);
    run = begin_run(hold, ZKL_ONCE_RETRY_FAILED);
    OK(zkl_hold_release(hold));
    EXPECT(ZKL_E_NOT_OWNER, zkl_run_finish(run, NULL));
    zkl_lock_free(lock);
    zkl_client_free(other);
    zkl_standalone_stop(server);
}

static void wrong_arguments_are_refused(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s", fresh_path());
    zkl_lock *lock = new_mutex(client, path), *read = NULL, *write = NULL;
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_NEW);
    zkl_run *run = NULL;
    zkl_op *op = NULL;
    EXPECT(ZKL_E_INVALID, zkl_hold_begin_run(hold, "noon", NULL, 0, &run));
    EXPECT_MESSAGE("period is \"noon\"; expected minute, hour, day");
    EXPECT(ZKL_E_INVALID, zkl_hold_begin_run(hold, NULL, NULL, 0, &run));
    EXPECT(ZKL_E_INVALID, zkl_hold_begin_run(hold, "d\xff", NULL, 0, &run));
    EXPECT_MESSAGE("period is not UTF-8: byte 0xff at position 1");
    EXPECT(ZKL_E_INVALID, zkl_hold_begin_run(hold, "day", "Mars/Base", 0, &run));
    EXPECT_MESSAGE("zone is \"Mars/Base\"; expected the name of a time zone");
    EXPECT(ZKL_E_INVALID, zkl_hold_begin_run(hold, "day", "\xff", 0, &run));
    EXPECT(ZKL_E_INVALID, zkl_hold_begin_run(hold, "day", NULL, 6, &run));
    EXPECT_MESSAGE("flags is 0x6; expected 0 or ZKL_ONCE_RETRY_FAILED (1)");
    EXPECT(ZKL_E_INVALID, zkl_hold_begin_run_start(hold, "noon", NULL, 0, &op));
    EXPECT(ZKL_E_INVALID, zkl_past_runs(client, "no/path", keep_newest, NULL));
    OK(zkl_hold_begin_run(hold, "day", NULL, 0, &run));
    EXPECT(ZKL_E_INVALID, zkl_run_finish(run, "\xff"));
    OK(zkl_run_finish(run, ""));
    zkl_run_free(run);
    OK(zkl_hold_release(hold));
    EXPECT(ZKL_E_HANDLE, zkl_hold_begin_run(hold, "day", NULL, 0, &run));
    zkl_lock_free(lock);
    /* Several participants can hold these locks. */
    OK(zkl_rwlock_new(client, path, &read, &write));
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 2);
    zkl_hold *leases = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 60000, &leases));
    zkl_hold *const shared[] = {acquire_hold(read, ZKL_OWNER_NEW), leases};
    for (int i = 0; i < 2; i++) {
        EXPECT(ZKL_E_INVALID, zkl_hold_begin_run(shared[i], "day", NULL, 0, &run));
        EXPECT_MESSAGE("a run needs a lock that only one participant can hold");
        OK(zkl_hold_release(shared[i]));
    }
    zkl_semaphore_free(semaphore);
    zkl_lock_free(read);
    zkl_lock_free(write);
}

static zkl_op *start_run(zkl_hold *hold)
{
    zkl_op *op = NULL;
    OK(zkl_hold_begin_run_start(hold, "day", "UTC", 0, &op));
    return op;
}

static void operations_begin_and_end_runs(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s", fresh_path());
    zkl_lock *lock = new_mutex(client, path);
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_NEW);
    zkl_run *run = NULL, *again = NULL;
    /* A run that the program does not take does not count, whether it is canceled or not. */
    zkl_op *op = start_run(hold);
    OK(zkl_op_cancel(op));
    zkl_status canceled = zkl_op_wait(op, -1);
    CHECK(canceled == ZKL_OK || canceled == ZKL_E_CANCELED);
    zkl_op_free(op);
    AWAIT(newest_of(client, path).count == 0);
    op = start_run(hold);
    OK(zkl_op_wait(op, -1));
    CHECK(newest_of(client, path).count == 1);
    zkl_op_free(op);
    AWAIT(newest_of(client, path).count == 0);
    op = start_run(hold);
    OK(zkl_op_wait(op, -1));
    OK(zkl_op_run(op, &run));
    EXPECT(ZKL_E_INVALID, zkl_op_run(op, &again));
    EXPECT_MESSAGE("already taken");
    zkl_op_free(op);
    OK(zkl_run_finish_start(run, NULL, &op));
    EXPECT(ZKL_E_HANDLE, zkl_run_finish(run, NULL));
    OK(zkl_op_wait(op, -1));
    EXPECT(ZKL_E_INVALID, zkl_op_run(op, &again));
    EXPECT_MESSAGE("expected an operation that begins a run");
    zkl_op_free(op);
    op = start_run(hold);
    OK(zkl_op_wait(op, -1));
    OK(zkl_op_run(op, &again));
    CHECK(again == NULL);
    zkl_op_free(op);
    int64_t count = 0;
    const zkl_past_run *past = NULL;
    OK(zkl_past_runs_start(client, path, &op));
    OK(zkl_op_wait(op, -1));
    OK(zkl_op_value(op, &count));
    OK(zkl_op_past_run(op, 0, &past));
    CHECK(count == 1 && past->size == sizeof *past && past->result == ZKL_RUN_SUCCEEDED);
    EXPECT(ZKL_E_INVALID, zkl_op_past_run(op, 1, &past));
    zkl_op_free(op);
    OK(zkl_hold_release(hold));
    zkl_lock_free(lock);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    RUN(a_job_runs_once_in_a_period);
    RUN(failed_and_interrupted_runs_are_repeated_if_the_program_asks);
    RUN(a_run_of_a_lost_hold_is_no_success);
    RUN(wrong_arguments_are_refused);
    RUN(operations_begin_and_end_runs);
    zkl_client_free(client);
    return 0;
}
