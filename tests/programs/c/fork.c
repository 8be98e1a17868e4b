/* A forked child cannot affect the session of its parent, and it can create its own session. */
#include "check.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static zkl_config *config;
static zkl_client *client;
static zkl_lock *lock;
static zkl_lock *idle;
static zkl_lock *both;
static zkl_semaphore *semaphore;
static zkl_hold *leases;
static zkl_lock *tasks;
static zkl_op *over;
static zkl_op *waits;
static zkl_op *query;
static zkl_listener *listener;
static zkl_completion_queue *queue;
static zkl_run *run;
static char path[64];
static atomic_int lines;

static void must_not_drop(void *user)
{
    (void)user;
    CHECK(0);
}

static void must_not_receive_revocation(void *user, zkl_lock *unused)
{
    (void)unused;
    must_not_drop(user);
}

static void must_not_receive_semaphore_revocation(void *user, zkl_semaphore *unused)
{
    (void)unused;
    must_not_drop(user);
}

static void must_not_receive_run(void *user, const zkl_past_run *unused)
{
    (void)unused;
    must_not_drop(user);
}

static void must_not_receive_event(void *user, const zkl_event *unused)
{
    (void)unused;
    must_not_drop(user);
}

/* In a forked child, functions for recipes, events and metrics fail with FORKED on the handles of the parent. */
static void the_parents_recipes_are_refused(void)
{
    int64_t out = -7;
    int32_t value = -7;
    size_t needed = 7;
    char buf[8] = "-";
    zkl_lock *lock_out = NULL, *write_out = NULL;
    zkl_semaphore *semaphore_out = NULL;
    zkl_hold *leases_out = NULL;
    EXPECT(ZKL_E_FORKED, zkl_client_dispatch_events(client, &value));
    EXPECT(ZKL_E_FORKED, zkl_client_event_fd(client));
    EXPECT(ZKL_E_FORKED, zkl_client_set_event_callback(client, must_not_receive_event, &out, must_not_drop));
    zkl_metrics metrics;
    EXPECT(ZKL_E_FORKED, zkl_client_metrics(client, sizeof metrics, &metrics));
    EXPECT(ZKL_E_FORKED, zkl_client_prometheus(client, NULL, buf, sizeof buf, &needed));
    EXPECT(ZKL_E_FORKED, zkl_config_set_poll_events(config, 1));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_mutex_new(client, "/a", &lock_out));
    EXPECT(ZKL_E_FORKED, zkl_rwlock_new(client, "/a", &lock_out, &write_out));
    EXPECT(ZKL_E_FORKED, zkl_multi_new(&lock, 1, &lock_out));
    EXPECT_MESSAGE("locks[0]");
    EXPECT(ZKL_E_FORKED, zkl_multi_new_in_order(&lock, 1, &lock_out));
    EXPECT(ZKL_E_FORKED, zkl_acquire_timeout(both, 0));
    EXPECT(ZKL_E_FORKED, zkl_release(both));
    EXPECT(ZKL_E_FORKED, zkl_lock_node_path(lock, buf, sizeof buf, &needed));
    EXPECT(ZKL_E_FORKED, zkl_queue(lock, count_participant, &out));
    EXPECT(ZKL_E_FORKED, zkl_waiting(lock, count_wait, &out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_waiting(semaphore, count_wait, &out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_new(client, "/a", 1, &semaphore_out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_new_counted(client, "/a", "/b", 1, &semaphore_out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_acquire_timeout(semaphore, 1, 0, &leases_out));
    EXPECT(ZKL_E_FORKED, zkl_hold_acquire(lock, ZKL_OWNER_NEW, 0, &leases_out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_cancel(semaphore));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_set_data(semaphore, NULL, 0));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_participants(semaphore, count_participant, &out));
    EXPECT_NOT_SAFE(zkl_hold_is_held(leases), zkl_strerror(ZKL_E_FORKED));
    zkl_hold_info info = {.size = sizeof info};
    EXPECT(ZKL_E_FORKED, zkl_hold_view(leases, &info));
    EXPECT(ZKL_E_FORKED, zkl_hold_wait_lost(leases, -1));
    EXPECT(ZKL_E_FORKED, zkl_hold_node_path(leases, 0, buf, sizeof buf, &needed));
    EXPECT(ZKL_E_FORKED, zkl_hold_release_nowait(leases));
    EXPECT(ZKL_E_FORKED, zkl_hold_release(leases));
    EXPECT(ZKL_E_FORKED, zkl_hold_release(leases));
    EXPECT(ZKL_E_FORKED, zkl_shared_count_get(client, "/a", &value));
    EXPECT(ZKL_E_FORKED, zkl_shared_count_set(client, "/a", 1));
    EXPECT(ZKL_E_FORKED, zkl_revoke(client, "/a"));
    EXPECT(ZKL_E_FORKED, zkl_fence_check(client, "/a", 1, &value));
    zkl_run *run_out = NULL;
    EXPECT(ZKL_E_FORKED, zkl_hold_begin_run(leases, "day", NULL, 0, &run_out));
    EXPECT(ZKL_E_FORKED, zkl_run_finish(run, NULL));
    EXPECT(ZKL_E_FORKED, zkl_run_take_back(run));
    EXPECT(ZKL_E_FORKED, zkl_past_runs(client, "/a", must_not_receive_run, &out));
    CHECK(run_out == NULL);
    zkl_listener *listener_out = NULL;
    EXPECT(ZKL_E_FORKED, zkl_client_listen(client, must_not_receive_event, &out, must_not_drop, &listener_out));
    EXPECT(ZKL_E_FORKED, zkl_lock_listen(lock, ZKL_LISTEN_ALL, must_not_receive_event, &out, must_not_drop, &listener_out));
    EXPECT(ZKL_E_FORKED,
           zkl_hold_listen(leases, ZKL_LISTEN_LOSS, must_not_receive_event, &out, must_not_drop, &listener_out));
    EXPECT(ZKL_E_FORKED, zkl_lock_set_event_callback(lock, must_not_receive_event, &out, must_not_drop));
    EXPECT(ZKL_E_FORKED, zkl_lock_set_event_callback(lock, NULL, &out, must_not_drop));
    CHECK(listener_out == NULL);
    EXPECT(ZKL_E_FORKED, zkl_set_revocable(lock, must_not_receive_revocation, &out, must_not_drop));
    EXPECT(ZKL_E_FORKED, zkl_set_revocable(both, NULL, &out, must_not_drop));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_set_revocable(semaphore, must_not_receive_semaphore_revocation, &out, must_not_drop));
    CHECK(out == -7 && value == -7 && needed == 7 && buf[0] == '-');
    CHECK(lock_out == NULL && write_out == NULL && semaphore_out == NULL && leases_out == NULL);
}

/* In a forked child, calls on the operations of the parent fail with FORKED. */
static void the_parents_operations_are_refused(void)
{
    int64_t out = -7;
    size_t needed = 7;
    char buf[8] = "-";
    zkl_op *op_out = NULL;
    zkl_hold *leases_out = NULL;
    EXPECT(ZKL_E_FORKED, zkl_acquire_start(tasks, 7, -1, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_acquire_start(semaphore, 1, -1, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_client_start(servers, config, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_client_close_start(client, &op_out));
    uint64_t key = 0;
    size_t taken = 0;
    EXPECT(ZKL_E_FORKED, zkl_op_notify(waits, queue, 1));
    EXPECT(ZKL_E_FORKED, zkl_completion_queue_fd(queue));
    EXPECT(ZKL_E_FORKED, zkl_completion_queue_take(queue, &key, 1, &taken));
    EXPECT(ZKL_E_FORKED, zkl_hold_release_start(leases, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_hold_wait_lost_start(leases, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_participants_start(lock, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_queue_start(lock, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_participants_start(semaphore, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_revoke_start(client, "/a", &op_out));
    EXPECT(ZKL_E_FORKED, zkl_fence_check_start(client, "/a", 1, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_shared_count_get_start(client, "/a", &op_out));
    EXPECT(ZKL_E_FORKED, zkl_shared_count_set_start(client, "/a", 1, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_semaphore_new_counted_start(client, "/a", "/b", 1, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_hold_begin_run_start(leases, "day", NULL, 0, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_run_finish_start(run, NULL, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_run_take_back_start(run, &op_out));
    EXPECT(ZKL_E_FORKED, zkl_past_runs_start(client, "/a", &op_out));
    zkl_op *const ops[] = {over, waits, query};
    const zkl_participant *participant_out = NULL;
    zkl_client *client_out = NULL;
    zkl_semaphore *semaphore_out = NULL;
    zkl_run *run_out = NULL;
    const zkl_past_run *past_run_out = NULL;
    for (int i = 0; i < 3; i++) {
        EXPECT(ZKL_E_FORKED, zkl_op_fd(ops[i]));
        EXPECT(ZKL_E_FORKED, zkl_op_result(ops[i]));
        CHECK(*zkl_op_message(ops[i]) != '\0');
        EXPECT(ZKL_E_FORKED, zkl_op_wait(ops[i], -1));
        EXPECT(ZKL_E_FORKED, zkl_op_cancel(ops[i]));
        EXPECT(ZKL_E_FORKED, zkl_op_hold(ops[i], &leases_out));
        EXPECT(ZKL_E_FORKED, zkl_op_value(ops[i], &out));
        EXPECT(ZKL_E_FORKED, zkl_op_participant(ops[i], 0, &participant_out));
        EXPECT(ZKL_E_FORKED, zkl_op_client(ops[i], &client_out));
        EXPECT(ZKL_E_FORKED, zkl_op_semaphore(ops[i], &semaphore_out));
        EXPECT(ZKL_E_FORKED, zkl_op_run(ops[i], &run_out));
        EXPECT(ZKL_E_FORKED, zkl_op_past_run(ops[i], 0, &past_run_out));
    }
    CHECK(participant_out == NULL && client_out == NULL && semaphore_out == NULL && run_out == NULL && past_run_out == NULL);
    CHECK(out == -7 && needed == 7 && buf[0] == '-' && op_out == NULL && leases_out == NULL);
}

/* In a forked child, every function that returns a status fails with FORKED on the handles of the parent. */
static void the_parents_handles_are_refused(void)
{
    int64_t out = -7;
    zkl_lock *lock_out = NULL;
    zkl_client *client_out = NULL;
    EXPECT(ZKL_E_FORKED, zkl_acquire(lock));
    EXPECT(ZKL_E_FORKED, zkl_acquire_timeout(idle, 0));
    EXPECT(ZKL_E_FORKED, zkl_release(lock));
    EXPECT(ZKL_E_FORKED, zkl_release_nowait(lock));
    EXPECT(ZKL_E_FORKED, zkl_cancel(lock));
    EXPECT_NOT_SAFE(zkl_is_held(lock), zkl_strerror(ZKL_E_FORKED));
    EXPECT_NOT_SAFE(zkl_is_held_in_process(lock), zkl_strerror(ZKL_E_FORKED));
    EXPECT(ZKL_E_FORKED, zkl_lock_state(lock));
    EXPECT(ZKL_E_FORKED, zkl_lock_state_in_process(lock));
    EXPECT(ZKL_E_FORKED, zkl_wait_lost(lock, -1));
    EXPECT(ZKL_E_FORKED, zkl_fencing_token(lock, &out));
    EXPECT(ZKL_E_FORKED, zkl_fencing_pass(lock, &out));
    EXPECT(ZKL_E_FORKED, zkl_mutex_set_local_handover(lock, 1));
    EXPECT(ZKL_E_FORKED, zkl_remaining_ms(lock, &out));
    EXPECT(ZKL_E_FORKED, zkl_lock_set_data(lock, NULL, 0));
    EXPECT(ZKL_E_FORKED, zkl_participants(lock, count_participant, &out));
    EXPECT(ZKL_E_FORKED, zkl_mutex_new(client, "/a", &lock_out));
    EXPECT(ZKL_E_FORKED, zkl_client_state(client));
    EXPECT(ZKL_E_FORKED, zkl_client_set_servers(client, servers));
    EXPECT(ZKL_E_FORKED, zkl_client_new(servers, config, &client_out));
    EXPECT(ZKL_E_FORKED, zkl_config_set_session_timeout_ms(config, 1000));
    EXPECT(ZKL_E_FORKED, zkl_config_set_connect_timeout_ms(config, 1000));
    EXPECT(ZKL_E_FORKED, zkl_config_set_lease_margin_ms(config, 0));
    EXPECT(ZKL_E_FORKED, zkl_config_set(config, "session.timeout", "1000"));
    EXPECT(ZKL_E_FORKED, zkl_config_load(config, "/etc/hostname"));
    EXPECT(ZKL_E_FORKED, zkl_config_add_auth(config, "digest", "a:b", 3));
    EXPECT(ZKL_E_FORKED, zkl_config_set_auth_callback(config, "digest", NULL, &out, must_not_drop));
    EXPECT(ZKL_E_FORKED, zkl_config_set_event_callback(config, must_not_receive_event, &out, must_not_drop));
    EXPECT(ZKL_E_FORKED, zkl_config_set_wait_for_kazoo(config, 1));
    the_parents_recipes_are_refused();
    the_parents_operations_are_refused();
    CHECK(zkl_client_session_id(client) == 0);
    EXPECT_MESSAGE("parent");
    CHECK(out == -7 && lock_out == NULL && client_out == NULL);
}

/* If a forked child frees the handles of its parent, the parent is not affected. */
static void freeing_parent_handles_in_a_child_does_nothing(void)
{
    for (int i = 0; i < 2; i++) {
        zkl_completion_queue_free(queue);
        zkl_run_free(run);
        zkl_op_free(over);
        zkl_op_free(waits);
        zkl_op_free(query);
        zkl_lock_free(tasks);
        zkl_lock_free(lock);
        zkl_lock_free(idle);
        zkl_lock_free(both);
        zkl_semaphore_free(semaphore);
        zkl_client_free(client);
        zkl_client_free_nowait(client);
        zkl_config_free(config);
        zkl_listener_free(listener);
    }
}

/* A forked child can create and use its own client. */
static void child_can_use_its_own_client(void)
{
    zkl_client *own = new_client();
    zkl_lock *same = new_mutex(own, path);
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(same, 0));
    CHECK(participants(same) == 2); /* The parent holds the lock, and another thread of the parent waits. */
    zkl_lock *free_lock = new_mutex(own, fresh_path());
    OK(zkl_acquire(free_lock));
    CHECK(zkl_is_held(free_lock) == 1);
    OK(zkl_release(free_lock));
    zkl_lock_free(free_lock);
    zkl_lock_free(same);
    zkl_client_free(own);
}

static void child_that_leaves(void)
{
    the_parents_handles_are_refused();
    freeing_parent_handles_in_a_child_does_nothing();
}

static void child_with_a_client(void)
{
    child_can_use_its_own_client();
    the_parents_handles_are_refused();
    freeing_parent_handles_in_a_child_does_nothing();
    the_parents_handles_are_refused();
}

static void do_nothing(void)
{
}

static void in_a_child(void (*body)(void), void (*leave)(int));

/* Begins a run that the parent does not end. */
static void begin_run(zkl_client *of)
{
    zkl_lock *job = new_mutex(of, fresh_path());
    zkl_hold *hold = acquire_hold(job, ZKL_OWNER_NEW);
    OK(zkl_hold_begin_run(hold, "day", NULL, 0, &run));
    OK(zkl_hold_release(hold));
    zkl_lock_free(job);
}

/* Starts one operation that is finished and one that waits for the same lock. */
static void start_operations(zkl_client *of)
{
    begin_run(of);
    tasks = new_mutex(of, fresh_path());
    OK(zkl_acquire_start(tasks, 7, 60000, &over));
    OK(zkl_op_wait(over, -1));
    OK(zkl_acquire_start(tasks, 8, -1, &waits));
    OK(zkl_participants_start(tasks, &query));
    CHECK(zkl_op_fd(over) >= 0 && zkl_op_fd(waits) >= 0 && zkl_op_fd(query) >= 0);
    await_participants(tasks, 2);
}

static void end_operations(void)
{
    zkl_run_free(run);
    OK(zkl_op_wait(query, 60000));
    zkl_op_free(query);
    OK(zkl_hold_release(take_hold(over)));
    OK(zkl_op_wait(waits, 60000));
    OK(zkl_hold_release(take_hold(waits)));
    zkl_lock_free(tasks);
}

static void child_with_a_child(void)
{
    in_a_child(the_parents_handles_are_refused, exit);
    zkl_client *own = new_client();
    zkl_lock *same = new_mutex(own, path);
    client = own;
    lock = idle = same;
    OK(zkl_multi_new(&same, 1, &both));
    semaphore = new_semaphore(own, fresh_path(), 2);
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &leases));
    start_operations(own);
    config = zkl_config_new();
    in_a_child(the_parents_handles_are_refused, _exit);
    in_a_child(freeing_parent_handles_in_a_child_does_nothing, exit);
    CHECK(zkl_client_state(own) == ZKL_STATE_CONNECTED);
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(same, 0));
    end_operations();
    OK(zkl_hold_release(leases));
    zkl_semaphore_free(semaphore);
    zkl_lock_free(both);
    zkl_lock_free(same);
    zkl_client_free(own);
    zkl_config_free(config);
}

static void in_a_child_of(pid_t (*make)(void), void (*body)(void), void (*leave)(int))
{
    int status;
    fflush(NULL);
    pid_t child = make();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        body();
        leave(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void in_a_child(void (*body)(void), void (*leave)(int))
{
    in_a_child_of(fork, body, leave);
}

/* Functions that create a child without running fork handlers. The first one exists since glibc 2.34. */
extern pid_t _Fork(void) __attribute__((weak));

static pid_t by_system_call(void)
{
    return (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
}

static void the_parent_still_holds(int64_t token)
{
    int64_t still = 0;
    CHECK(zkl_is_held(lock) == 1);
    CHECK(zkl_lock_state(lock) == ZKL_LOCK_HELD);
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    OK(zkl_fencing_token(lock, &still));
    CHECK(still == token);
    /* The server confirms that the parent's nodes still exist. */
    CHECK(participants(lock) == 2);
    CHECK(zkl_is_held(both) == 1);
    CHECK(zkl_hold_is_held(leases) == 1);
    CHECK(semaphore_participants(semaphore) == 1);
    CHECK(zkl_is_held_in_process(tasks) == 1 && participants(tasks) == 2);
    OK(zkl_op_result(over));
    EXPECT(ZKL_E_PENDING, zkl_op_result(waits));
}

/* A client whose events are pending in the parent. */

static zkl_client *polling;

static void count_event(void *user, const zkl_event *event)
{
    (void)event;
    ++*(int *)user;
}

static void child_that_polls(void)
{
    EXPECT(ZKL_E_FORKED, zkl_client_dispatch_events(polling, &(int32_t){0}));
    CHECK(zkl_client_event_fd(polling) == ZKL_E_FORKED);
    zkl_client_free(polling);
}

/* A forked child receives none of the events of its parent. */
static void child_receives_no_events_of_its_parent(void)
{
    int events = 0;
    zkl_config *polled = zkl_config_new();
    OK(zkl_config_set_event_callback(polled, count_event, &events, NULL));
    OK(zkl_config_set_poll_events(polled, 1));
    OK(zkl_client_new(servers, polled, &polling));
    zkl_config_free(polled);
    struct pollfd readable = {.fd = zkl_client_event_fd(polling), .events = POLLIN};
    CHECK(poll(&readable, 1, 60000) == 1);
    in_a_child(child_that_polls, _exit);
    in_a_child(child_that_polls, exit);
    CHECK(poll(&readable, 1, 0) == 1);
    CHECK(dispatch(polling) == 1 && events == 1);
    zkl_client_free(polling);
    CHECK(events == 2);
}

/* A callback that forks during a dispatch and returns in both processes. */
static int forked_at;

static void fork_and_count(void *user, const zkl_event *event)
{
    (void)event;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) alarm(60);
    int status;
    CHECK(child == 0 || (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3));
    ++*(int *)user;
    if (child == 0) forked_at = *(int *)user;
}

/* In a child that is forked during a dispatch, the remaining events are not delivered. */
static void child_of_a_polling_parent_continues(void)
{
    int events = 0;
    zkl_config *polled = zkl_config_new();
    OK(zkl_config_set_event_callback(polled, fork_and_count, &events, NULL));
    OK(zkl_config_set_poll_events(polled, 1));
    OK(zkl_client_new(servers, polled, &polling));
    zkl_config_free(polled);
    zkl_lock *taken = new_mutex(polling, fresh_path());
    OK(zkl_acquire(taken));
    int32_t called = 0;
    OK(zkl_client_dispatch_events(polling, &called));
    if (forked_at != 0) {
        CHECK(called == forked_at && events == forked_at);
        child_that_polls();
        _exit(3);
    }
    CHECK(called == 2 && events == 2);
    OK(zkl_release(taken));
    zkl_lock_free(taken);
    /* In the child, the hold does not exist and the client is closed. */
    zkl_client_free(polling);
    if (forked_at != 0) {
        CHECK(events == forked_at);
        _exit(3);
    }
    CHECK(events == 4);
}

/* AddressSanitizer's allocator (in gcc before 14) has locks that fork does not handle. If another thread allocates during the
 * fork, the child can block forever. Without sanitizers and under valgrind, the tests fork in all cases. */
#ifdef __SANITIZE_ADDRESS__
#define BUSY_PARENTS_CAN_FORK 0
#else
#define BUSY_PARENTS_CAN_FORK 1
#endif

/* A thread that is often inside the library when the process forks. */
static void *be_busy(void *stop)
{
    zkl_lock *busy = new_mutex(client, "/c/busy");
    while (!*(atomic_bool *)stop) {
        OK(zkl_acquire(busy));
        OK(zkl_release(busy));
        zkl_config_free(zkl_config_new());
    }
    zkl_lock_free(busy);
    return NULL;
}

/* Children of a parent whose other threads use the library can use a client and exit. */
static void children_of_a_busy_parent_are_not_stuck(void)
{
    if (!BUSY_PARENTS_CAN_FORK) return;
    atomic_bool stop = false;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, be_busy, &stop) == 0);
    for (int i = 0; i < 10; i++) in_a_child(child_with_a_client, _exit);
    stop = true;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The action of a child that is forked in a callback, on the library's own thread. */
static enum in_callback { NOTHING, RETURN, USE_ANOTHER_CLIENT, LEAVE } in_callback;
static pid_t forked_in_callback;
static int given_back;

static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void give_back(void *user)
{
    ++*(int *)user;
}

static void count_events(void *user, const zkl_event *event)
{
    CHECK(event->size == sizeof *event);
    sleep_ms(20);
    ++*(int *)user;
}

/* Creates another client in the child. It must work as usual: no callback after it is freed, and no thread left. */
static void use_another_client(void)
{
    int events = 0;
    zkl_config *own_config = zkl_config_new();
    zkl_client *own = NULL;
    OK(zkl_config_set_event_callback(own_config, count_events, &events, give_back));
    OK(zkl_client_new(servers, own_config, &own));
    OK(zkl_config_set_event_callback(own_config, count_events, &given_back, NULL));
    zkl_client_free(own);
    CHECK(events == 3);
    AWAIT(threads() == 1);
    zkl_config_free(own_config);
}

static void fork_in_callback(void *user, const zkl_event *event)
{
    if (event->kind == ZKL_EVENT_CLIENT) ++*(int *)user;
    if (event->kind != ZKL_EVENT_LOCK || event->state != ZKL_LOCK_HELD || in_callback == NOTHING) return;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        __atomic_store_n(&forked_in_callback, child, __ATOMIC_SEQ_CST);
        return;
    }
    alarm(60);
    EXPECT(ZKL_E_FORKED, zkl_lock_state(event->lock));
    if (in_callback == LEAVE) _exit(0);
    if (in_callback == USE_ANOTHER_CLIENT) {
        use_another_client();
        _exit(0);
    }
    /* This thread is the only one in the child, and it returns, so the child ends. */
}

static void expect_own_log_line(void *user, const zkl_log *log)
{
    (void)log;
    CHECK(getpid() == *(pid_t *)user);
    atomic_fetch_add(&lines, 1);
}

/* The user of the callback must not be dropped in a child, because the child has only a copy. */
static void on_log_callback_dropped(void *user)
{
    CHECK(getpid() == *(pid_t *)user);
    *(pid_t *)user = 0;
}

/* The child does not call the log callback of its parent, and it can set its own. */
static void log_callback_of_a_child_is_its_own(void)
{
    pid_t self = getpid();
    int before = atomic_load(&lines);
    zkl_client_free(new_client());
    CHECK(atomic_load(&lines) == before);
    OK(zkl_set_log_callback(ZKL_LOG_INFO, expect_own_log_line, &self, NULL));
    zkl_client_free(new_client());
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    CHECK(atomic_load(&lines) >= before + 2);
}

/* The event thread still reports the end of the client. */
static void children_of_a_logging_parent_have_their_own_log(void)
{
    if (!BUSY_PARENTS_CAN_FORK) return;
    pid_t self = getpid();
    OK(zkl_set_log_callback(ZKL_LOG_TRACE, expect_own_log_line, &self, on_log_callback_dropped));
    zkl_client_free(new_client());
    in_a_child(log_callback_of_a_child_is_its_own, _exit);
    in_a_child(log_callback_of_a_child_is_its_own, exit);
    zkl_client_free(new_client());
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    CHECK(self == 0);
}

static void *set_again(void *user)
{
    atomic_bool *is_over = user;
    pid_t self = getpid();
    while (!atomic_load(is_over)) OK(zkl_set_log_callback(ZKL_LOG_INFO, expect_own_log_line, &self, NULL));
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    return NULL;
}

static void a_log_and_a_client(void)
{
    pid_t self = getpid();
    OK(zkl_set_log_callback(ZKL_LOG_INFO, expect_own_log_line, &self, NULL));
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    zkl_client_free(new_client());
}

/* A lock that another thread holds during the fork must not block the child. */
static void children_while_another_thread_sets_the_log(void)
{
    if (!BUSY_PARENTS_CAN_FORK) return;
    atomic_bool is_over = false;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, set_again, &is_over) == 0);
    for (int i = 0; i < 30; i++) in_a_child(a_log_and_a_client, _exit);
    atomic_store(&is_over, true);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A child that is forked inside a callback can use its own client and exit. */
static void children_of_callbacks(void)
{
    int changes = 0, status;
    zkl_config *with_events = zkl_config_new();
    zkl_client *other = NULL;
    OK(zkl_config_set_event_callback(with_events, fork_in_callback, &changes, NULL));
    OK(zkl_client_new(servers, with_events, &other));
    zkl_config_free(with_events);
    zkl_lock *taken = new_mutex(other, fresh_path());
    for (enum in_callback todo = RETURN; todo <= LEAVE; todo++) {
        in_callback = todo;
        OK(zkl_acquire(taken));
        AWAIT(__atomic_load_n(&forked_in_callback, __ATOMIC_SEQ_CST) != 0);
        CHECK(waitpid(forked_in_callback, &status, 0) == forked_in_callback);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        forked_in_callback = 0;
        CHECK(zkl_is_held(taken) == 1);
        OK(zkl_release(taken));
    }
    in_callback = NOTHING;
    zkl_lock_free(taken);
    zkl_client_free(other);
    /* The client was connected and then closed. No child has used its connection. */
    CHECK(changes == 2);
}

static void fork_for_each(void *user, const zkl_participant *participant)
{
    count_participant(user, participant);
    in_a_child(the_parents_handles_are_refused, _exit);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) return;
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

/* A function that forks inside its callback, and returns in both processes. */
static void child_forked_in_a_callback_returns_from_it(void)
{
    pid_t parent = getpid();
    int count = 0;
    OK(zkl_participants(lock, fork_for_each, &count));
    CHECK(count == 2);
    if (getpid() != parent) _exit(3);
}

static void count_up(void *user, zkl_lock *unused)
{
    (void)unused;
    ++*(int *)user;
}

static void decrement(void *user)
{
    --*(int *)user;
}

static void take_ten(void *user)
{
    *(int *)user -= 10;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    strcpy(path, fresh_path());
    config = zkl_config_new();
    client = new_client();
    lock = new_mutex(client, path);
    idle = new_mutex(client, "/c/idle");
    int64_t token, session_id = zkl_client_session_id(client);
    struct call waiting;
    OK(zkl_acquire(lock));
    OK(zkl_fencing_token(lock, &token));
    zkl_lock *second = new_mutex(client, fresh_path());
    both = new_multi(lock, second);
    OK(zkl_acquire(both));
    semaphore = new_semaphore(client, fresh_path(), 2);
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &leases));
    start_operations(client);
    int owned = 0;
    OK(zkl_set_revocable(lock, count_up, &owned, decrement));
    int heard = 0;
    OK(zkl_lock_listen(idle, ZKL_LISTEN_ALL, count_event, &heard, take_ten, &listener));
    OK(zkl_completion_queue_new(&queue));
    OK(zkl_op_notify(waits, queue, 1));
    start_call(&waiting, zkl_acquire, lock);
    await_participants(lock, 2);

    static void (*const bodies[])(void) = {do_nothing, child_that_leaves, child_with_a_client, child_with_a_child};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        in_a_child(bodies[i], _exit);
        the_parent_still_holds(token);
        in_a_child(bodies[i], exit);
        the_parent_still_holds(token);
    }

    if (_Fork != NULL) in_a_child_of(_Fork, child_that_leaves, _exit);
    the_parent_still_holds(token);
    in_a_child_of(by_system_call, child_that_leaves, _exit);
    the_parent_still_holds(token);

    child_receives_no_events_of_its_parent();
    children_of_a_busy_parent_are_not_stuck();
    children_of_callbacks();
    children_of_a_logging_parent_have_their_own_log();
    children_while_another_thread_sets_the_log();
    child_of_a_polling_parent_continues();
    child_forked_in_a_callback_returns_from_it();
    the_parent_still_holds(token);

    OK(zkl_cancel(lock));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    OK(zkl_release(both));
    OK(zkl_release(lock));
    /* The children have freed their copies of the listener. */
    OK(zkl_acquire(idle));
    OK(zkl_release(idle));
    AWAIT(__atomic_load_n(&heard, __ATOMIC_SEQ_CST) == 2);
    zkl_listener_free(listener);
    CHECK(heard == -8);
    end_operations();
    uint64_t key = 0;
    size_t taken = 0;
    OK(zkl_completion_queue_take(queue, &key, 1, &taken));
    CHECK(taken == 1 && key == 1);
    zkl_completion_queue_free(queue);
    OK(zkl_hold_release(leases));
    zkl_semaphore_free(semaphore);
    zkl_lock_free(both);
    zkl_lock_free(second);
    CHECK(owned == 0);
    OK(zkl_set_revocable(lock, NULL, NULL, NULL));
    CHECK(owned == -1);
    CHECK(zkl_client_session_id(client) == session_id);
    zkl_lock_free(lock);
    zkl_lock_free(idle);
    zkl_client_free(client);
    zkl_config_free(config);
    return 0;
}
