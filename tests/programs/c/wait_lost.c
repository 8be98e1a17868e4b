/* Waiting until a hold is no longer safe: the wait ends at a loss, at the end of the lease, at a release, and when the lock
 * or the client is freed. */
#include "check.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <zklock_standalone.h>

/* Session timeouts in milliseconds: a short one for sessions that expire, and a long one for sessions that the server ends.
 * Both are longer than the pauses of a program under valgrind. */
enum { SHORT_MS = 6000, LONG_MS = 20000, SOON = 60000 };

static zkl_client *client;
static zkl_standalone *server;
static const char *faulty;

static zkl_client *client_of(const char *address, int32_t session_timeout_ms)
{
    zkl_config *config = zkl_config_new();
    zkl_client *made = NULL;
    OK(zkl_config_set_session_timeout_ms(config, session_timeout_ms));
    OK(zkl_client_new(address, config, &made));
    zkl_config_free(config);
    return made;
}

/* A thread that waits for the loss of a hold. */
struct wait {
    pthread_t thread;
    zkl_hold *hold;
    int64_t limit_ms;
    atomic_bool begun, done;
    zkl_status status;
    char message[256];
};

static void *run_wait(void *user)
{
    struct wait *wait = user;
    atomic_store(&wait->begun, true);
    wait->status = zkl_hold_wait_lost(wait->hold, wait->limit_ms);
    snprintf(wait->message, sizeof wait->message, "%s", zkl_last_error_message());
    atomic_store(&wait->done, true);
    return NULL;
}

static void start_wait(struct wait *wait)
{
    CHECK(pthread_create(&wait->thread, NULL, run_wait, wait) == 0);
    AWAIT(atomic_load(&wait->begun));
    /* The wait does not end without a cause. */
    sleep_ms(50);
    CHECK(!atomic_load(&wait->done));
}

static zkl_status end_wait(struct wait *wait)
{
    AWAIT(atomic_load(&wait->done));
    CHECK(pthread_join(wait->thread, NULL) == 0);
    return wait->status;
}

/* The wait ends with LOST when the session expires. */
static void wait_lost_ends_with_the_session(void)
{
    zkl_client *own = client_of(faulty, LONG_MS);
    zkl_lock *lock = new_mutex(own, fresh_path());
    zkl_hold *hold = acquire_hold(lock, 7);
    struct wait waits[2] = {{.hold = hold, .limit_ms = -1}, {.hold = hold, .limit_ms = SOON}};
    for (int i = 0; i < 2; i++) start_wait(&waits[i]);
    CHECK(zkl_standalone_expire(server, zkl_client_session_id(own)) == ZKL_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(end_wait(&waits[i]) == ZKL_E_LOST);
        CHECK(strstr(waits[i].message, "no longer safe") != NULL);
    }
    CHECK(zkl_hold_is_held(hold) == 0);
    AWAIT(hold_state(hold) == ZKL_LOCK_LOST);
    /* The same result is returned until the program releases the hold. */
    EXPECT(ZKL_E_LOST, zkl_hold_wait_lost(hold, -1));
    EXPECT(ZKL_E_LOST, zkl_hold_wait_lost(hold, 0));
    EXPECT(ZKL_E_LOST, zkl_hold_release(hold));
    EXPECT(ZKL_E_HANDLE, zkl_hold_wait_lost(hold, -1));
    zkl_lock_free(lock);
    zkl_client_free(own);
}

/* If the server does not answer, the lease ends before the session can expire. */
static void wait_lost_ends_with_the_lease(void)
{
    zkl_client *own = client_of(faulty, SHORT_MS);
    zkl_lock *lock = new_mutex(own, fresh_path());
    int64_t id = zkl_client_session_id(own);
    OK(zkl_acquire(lock));
    CHECK(zkl_standalone_freeze(server, id) == ZKL_OK);
    int64_t frozen = now_ms();
    EXPECT(ZKL_E_LOST, zkl_wait_lost(lock, SOON));
    CHECK(zkl_is_held(lock) == 0 && now_ms() - frozen < SHORT_MS + slack_ms());
    int32_t state = zkl_lock_state(lock);
    CHECK(state == ZKL_LOCK_UNCERTAIN || state == ZKL_LOCK_LOST);
    CHECK(zkl_standalone_thaw(server, id) == ZKL_OK);
    zkl_status released = zkl_release(lock);
    CHECK(released == ZKL_OK || released == ZKL_E_LOST);
    zkl_lock_free(lock);
    zkl_client_free(own);
}

static zkl_status wait_here(zkl_lock *lock)
{
    return zkl_wait_lost(lock, -1);
}

/* The wait ends with TIMEOUT at its time limit if the hold is still safe. */
static void wait_lost_times_out_while_the_hold_is_safe(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    EXPECT(ZKL_E_NOT_OWNER, zkl_wait_lost(lock, -1));
    EXPECT(ZKL_E_NOT_OWNER, zkl_wait_lost(lock, 0));
    OK(zkl_acquire(lock));
    int64_t began = now_ms();
    EXPECT(ZKL_E_TIMEOUT, zkl_wait_lost(lock, 200));
    EXPECT_MESSAGE("still safe after 200 ms");
    /* now_ms() rounds down. */
    CHECK(now_ms() - began >= 199 && now_ms() - began <= 200 + slack_ms());
    EXPECT(ZKL_E_TIMEOUT, zkl_wait_lost(lock, 0));
    /* Only the owner of the hold may wait. */
    CHECK(on_new_thread(wait_here, lock) == ZKL_E_NOT_OWNER);
    CHECK(zkl_is_held(lock) == 1);
    OK(zkl_release(lock));
    EXPECT(ZKL_E_NOT_OWNER, zkl_wait_lost(lock, -1));
    zkl_lock_free(lock);
    EXPECT(ZKL_E_HANDLE, zkl_wait_lost(lock, -1));
}

/* The wait ends when the program releases this hold, and not when it releases another hold of the same owner. */
static void wait_lost_ends_with_the_release_of_its_hold(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_hold *outer = acquire_hold(lock, 7), *inner = acquire_hold(lock, 7);
    struct wait wait = {.hold = outer, .limit_ms = -1};
    start_wait(&wait);
    OK(zkl_hold_release(inner));
    OK(zkl_cancel(lock));
    sleep_ms(50);
    CHECK(!atomic_load(&wait.done));
    OK(zkl_hold_release(outer));
    CHECK(end_wait(&wait) == ZKL_E_HANDLE);
    zkl_lock_free(lock);
}

/* The wait ends with CLOSED when the lock or the client is freed. */
static void wait_lost_ends_when_the_lock_or_client_is_freed(void)
{
    zkl_client *own = new_client();
    zkl_lock *one = new_mutex(own, fresh_path()), *two = new_mutex(own, fresh_path());
    struct wait first = {.hold = acquire_hold(one, 7), .limit_ms = -1}, second = {.hold = acquire_hold(two, 7), .limit_ms = -1};
    start_wait(&first);
    start_wait(&second);
    zkl_lock_free(one);
    CHECK(end_wait(&first) == ZKL_E_CLOSED);
    CHECK(!atomic_load(&second.done));
    zkl_client_free(own);
    CHECK(end_wait(&second) == ZKL_E_CLOSED);
    EXPECT(ZKL_E_CLOSED, zkl_hold_wait_lost(second.hold, -1));
    EXPECT(ZKL_E_CLOSED, zkl_hold_release(first.hold));
    EXPECT(ZKL_E_CLOSED, zkl_hold_release(second.hold));
    zkl_lock_free(two);
}

/* The wait for a multi-lock ends when one member lock is lost. */
static void wait_lost_of_a_multi_lock_ends_with_one_member(void)
{
    zkl_client *own = client_of(faulty, LONG_MS);
    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_mutex(own, fresh_path()), *both = new_multi(one, two);
    struct wait wait = {.hold = acquire_hold(both, 7), .limit_ms = -1};
    start_wait(&wait);
    CHECK(zkl_standalone_expire(server, zkl_client_session_id(own)) == ZKL_OK);
    CHECK(end_wait(&wait) == ZKL_E_LOST);
    CHECK(zkl_is_held_in_process(one) == 1 && zkl_hold_is_held(wait.hold) == 0);
    EXPECT(ZKL_E_LOST, zkl_hold_release(wait.hold));
    zkl_lock_free(both);
    zkl_lock_free(one);
    zkl_lock_free(two);
    zkl_client_free(own);
}

static zkl_hold *acquire_leases(zkl_client *of, int32_t quantity)
{
    zkl_hold *leases = NULL;
    zkl_semaphore *semaphore = new_semaphore(of, fresh_path(), 3);
    OK(zkl_semaphore_acquire_timeout(semaphore, quantity, SOON, &leases));
    zkl_semaphore_free(semaphore);
    return leases;
}

/* The wait for leases ends in the same cases. */
static void wait_lost_works_for_leases(void)
{
    zkl_hold *leases = acquire_leases(client, 2);
    EXPECT(ZKL_E_TIMEOUT, zkl_hold_wait_lost(leases, 50));
    EXPECT_MESSAGE("still safe after 50 ms");
    EXPECT(ZKL_E_TIMEOUT, zkl_hold_wait_lost(leases, 0));
    struct wait given_back = {.hold = leases, .limit_ms = -1};
    start_wait(&given_back);
    OK(zkl_hold_release(leases));
    CHECK(end_wait(&given_back) == ZKL_E_HANDLE);
    EXPECT(ZKL_E_HANDLE, zkl_hold_wait_lost(leases, -1));

    zkl_client *own = client_of(faulty, LONG_MS);
    leases = acquire_leases(own, 2);
    struct wait lost = {.hold = leases, .limit_ms = -1};
    start_wait(&lost);
    CHECK(zkl_standalone_expire(server, zkl_client_session_id(own)) == ZKL_OK);
    CHECK(end_wait(&lost) == ZKL_E_LOST);
    EXPECT(ZKL_E_LOST, zkl_hold_release(leases));
    AWAIT(zkl_client_state(own) == ZKL_STATE_CONNECTED);
    leases = acquire_leases(own, 1);
    struct wait closed = {.hold = leases, .limit_ms = -1};
    start_wait(&closed);
    zkl_client_free(own);
    CHECK(end_wait(&closed) == ZKL_E_CLOSED);
    EXPECT(ZKL_E_CLOSED, zkl_hold_wait_lost(leases, -1));
    EXPECT(ZKL_E_CLOSED, zkl_hold_release(leases));
}

/* The waits that a callback attempts. */
struct trial {
    zkl_lock *lock;
    zkl_hold *leases;
    atomic_int calls;
};

static void try_to_wait(void *user, const zkl_event *event)
{
    struct trial *trial = user;
    if (event->state != ZKL_LOCK_HELD) return;
    EXPECT(ZKL_E_DEADLOCK, zkl_wait_lost(trial->lock, -1));
    EXPECT(ZKL_E_DEADLOCK, zkl_hold_wait_lost(trial->leases, 1000));
    EXPECT(ZKL_E_NOT_OWNER, zkl_wait_lost(trial->lock, 0));
    EXPECT(ZKL_E_TIMEOUT, zkl_hold_wait_lost(trial->leases, 0));
    atomic_fetch_add(&trial->calls, 1);
}

/* In a callback, a wait with a time limit fails. */
static void a_callback_does_not_wait(void)
{
    struct trial trial = {.lock = new_mutex(client, fresh_path()), .leases = acquire_leases(client, 1)};
    OK(zkl_lock_set_event_callback(trial.lock, try_to_wait, &trial, NULL));
    zkl_hold *hold = acquire_hold(trial.lock, 7);
    AWAIT(atomic_load(&trial.calls) == 1);
    OK(zkl_hold_release(trial.leases));
    OK(zkl_hold_release(hold));
    zkl_lock_free(trial.lock);
}

/* A process that is stopped for longer than its session timeout. */

static const char *program;

static int hold(const char *path)
{
    zkl_client *own = client_of(servers, SHORT_MS);
    zkl_lock *lock = new_mutex(own, path);
    OK(zkl_acquire(lock));
    printf("holding\n");
    fflush(stdout);
    EXPECT(ZKL_E_LOST, zkl_wait_lost(lock, -1));
    printf("lost\n");
    fflush(stdout);
    zkl_client_free(own);
    zkl_lock_free(lock);
    return 0;
}

/* A wait for a loss can be an operation. It ends with LOST at a loss, and with NOT_OWNER at a release. */
static void a_wait_for_a_loss_is_an_operation(void)
{
    zkl_client *own = client_of(faulty, LONG_MS);
    zkl_lock *lock = new_mutex(own, fresh_path());
    zkl_semaphore *semaphore = NULL;
    zkl_hold *leases = NULL;
    zkl_op *of_lock = NULL, *of_leases = NULL, *released = NULL, *canceled = NULL;
    OK(zkl_semaphore_new(own, fresh_path(), 1, &semaphore));
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, SOON, &leases));
    zkl_hold *hold = acquire_hold(lock, 7);
    OK(zkl_hold_wait_lost_start(hold, &released));
    OK(zkl_hold_wait_lost_start(hold, &canceled));
    EXPECT(ZKL_E_PENDING, zkl_op_wait(released, 50));
    OK(zkl_op_cancel(canceled));
    EXPECT(ZKL_E_CANCELED, zkl_op_wait(canceled, SOON));
    EXPECT(ZKL_E_PENDING, zkl_op_result(released));
    OK(zkl_hold_release(hold));
    EXPECT(ZKL_E_NOT_OWNER, zkl_op_wait(released, SOON));
    zkl_op_free(released);
    zkl_op_free(canceled);

    EXPECT(ZKL_E_HANDLE, zkl_hold_wait_lost_start(hold, &of_lock));

    hold = acquire_hold(lock, 7);
    OK(zkl_hold_wait_lost_start(hold, &of_lock));
    OK(zkl_hold_wait_lost_start(leases, &of_leases));
    CHECK(zkl_standalone_expire(server, zkl_client_session_id(own)) == ZKL_OK);
    EXPECT(ZKL_E_LOST, zkl_op_wait(of_lock, SOON));
    CHECK(strstr(zkl_op_message(of_lock), "no longer safe") != NULL);
    EXPECT(ZKL_E_LOST, zkl_op_wait(of_leases, SOON));
    zkl_op_free(of_lock);
    zkl_op_free(of_leases);
    (void)zkl_hold_release(leases);
    EXPECT(ZKL_E_LOST, zkl_hold_release(hold));
    zkl_semaphore_free(semaphore);
    zkl_lock_free(lock);
    zkl_client_free(own);
}

/* If the process was stopped for longer than its session timeout, the wait ends immediately after the pause. */
static void wait_lost_ends_at_once_after_a_pause(void)
{
    int pipes[2], status;
    char line[64];
    zkl_standalone *own = NULL;
    CHECK(zkl_standalone_start(NULL, &own) == ZKL_OK);
    char address[64];
    snprintf(address, sizeof address, "%s", zkl_standalone_address(own));
    CHECK(pipe(pipes) == 0);
    pid_t holder = fork();
    CHECK(holder >= 0);
    if (holder == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        execl(program, program, address, "/stopped", (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    FILE *output = fdopen(pipes[0], "r");
    CHECK(output != NULL && fgets(line, sizeof line, output) != NULL && strcmp(line, "holding\n") == 0);
    CHECK(kill(holder, SIGSTOP) == 0);
    CHECK(waitpid(holder, &status, WUNTRACED) == holder && WIFSTOPPED(status));
    /* No server reports the loss. */
    CHECK(zkl_standalone_halt(own) == ZKL_OK);
    sleep_ms(SHORT_MS);
    int64_t woken = now_ms();
    CHECK(kill(holder, SIGCONT) == 0);
    CHECK(fgets(line, sizeof line, output) != NULL && strcmp(line, "lost\n") == 0);
    CHECK(now_ms() - woken < slack_ms());
    CHECK(zkl_standalone_restart(own) == ZKL_OK);
    CHECK(waitpid(holder, &status, 0) == holder && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fclose(output);
    zkl_standalone_stop(own);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3) {
        begin(argc, argv, 2);
        return hold(argv[2]);
    }
    begin(argc, argv, 1);
    RUN(wait_lost_ends_at_once_after_a_pause);
    client = new_client();
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    faulty = zkl_standalone_address(server);
    RUN(a_wait_for_a_loss_is_an_operation);
    RUN(wait_lost_ends_with_the_session);
    RUN(wait_lost_ends_with_the_lease);
    RUN(wait_lost_times_out_while_the_hold_is_safe);
    RUN(wait_lost_ends_with_the_release_of_its_hold);
    RUN(wait_lost_ends_when_the_lock_or_client_is_freed);
    RUN(wait_lost_of_a_multi_lock_ends_with_one_member);
    RUN(wait_lost_works_for_leases);
    RUN(a_callback_does_not_wait);
    zkl_client_free(client);
    zkl_standalone_stop(server);
    return 0;
}
