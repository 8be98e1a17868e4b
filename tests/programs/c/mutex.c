/* The mutex, used from C. */
#include "check.h"

#include <signal.h>

static zkl_client *client;

static zkl_status mutex_acquire_and_release(zkl_lock *lock)
{
    zkl_status status = zkl_acquire(lock);
    return status == ZKL_OK ? zkl_release(lock) : status;
}

static zkl_status look(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 0);
}

static zkl_status is_held(zkl_lock *lock)
{
    return zkl_is_held(lock);
}

/* The version, the texts of the statuses and their errno values are available. */
static void versions_and_texts(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", ZKL_VERSION_MAJOR, ZKL_VERSION_MINOR, ZKL_VERSION_PATCH);
    CHECK(strcmp(zkl_version(), ZKL_VERSION) == 0 && strncmp(ZKL_VERSION, version, strlen(version)) == 0);
    CHECK(strcmp(zkl_strerror(ZKL_OK), "success") == 0);
    CHECK(strcmp(zkl_strerror(1), "unknown status") == 0);
    CHECK(strcmp(zkl_strerror(INT32_MIN), "unknown status") == 0);
    CHECK(strcmp(zkl_strerror(ZKL_E_CANCELED), "the wait was canceled") == 0);
    for (int32_t status = -1; status >= ZKL_E_PENDING; status--) {
        CHECK(strcmp(zkl_strerror(status), "unknown status") != 0);
        CHECK(*zkl_strerror(status) != '\0');
        CHECK(zkl_status_errno(status) > 0);
    }
    CHECK(zkl_status_errno(ZKL_OK) == 0);
    CHECK(zkl_status_errno(ZKL_E_TIMEOUT) == 110 /* Linux's ETIMEDOUT */);
    CHECK(ZKL_E_PENDING == -19 && zkl_status_errno(ZKL_E_PENDING) == 115 /* EINPROGRESS */);
}

/* A new client is connected and has a session id. */
static void the_client_has_a_session(void)
{
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    CHECK(zkl_client_session_id(client) != 0);
}

/* A new server list keeps the session and the hold. */
static void the_server_list_is_replaced(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    const int64_t session_id = zkl_client_session_id(client);
    char list[256];
    snprintf(list, sizeof list, "%s,%s", servers, servers);
    OK(zkl_acquire(lock));
    OK(zkl_client_set_servers(client, servers));
    OK(zkl_client_set_servers(client, list));
    CHECK(zkl_is_held(lock) == 1 && zkl_client_session_id(client) == session_id);
    EXPECT(ZKL_E_INVALID, zkl_client_set_servers(client, "host:2181/other"));
    EXPECT_MESSAGE("/other");
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

/* The holder can acquire the mutex again and must release it as often. */
static void mutex_is_reentrant(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    CHECK(zkl_lock_state(lock) == ZKL_LOCK_FREE);
    for (int entry = 0; entry < 3; entry++) {
        OK(zkl_acquire(lock));
        CHECK(participants(lock) == 1);
    }
    CHECK(zkl_lock_state(lock) == ZKL_LOCK_HELD);
    for (int entry = 0; entry < 3; entry++) {
        CHECK(zkl_is_held(lock) == 1);
        CHECK(on_new_thread(look, lock) == ZKL_E_TIMEOUT);
        OK(zkl_release(lock));
    }
    CHECK(zkl_is_held(lock) == 0);
    CHECK(zkl_lock_state(lock) == ZKL_LOCK_FREE);
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(lock));
    CHECK(on_new_thread(mutex_acquire_and_release, lock) == ZKL_OK);
    zkl_lock_free(lock);
}

struct counter {
    zkl_lock *lock;
    int inside;
    int total;
};

static void *count_up(void *argument)
{
    struct counter *counter = argument;
    for (int round = 0; round < 20; round++) {
        OK(zkl_acquire(counter->lock));
        CHECK(__atomic_fetch_add(&counter->inside, 1, __ATOMIC_SEQ_CST) == 0);
        counter->total++;
        CHECK(__atomic_fetch_sub(&counter->inside, 1, __ATOMIC_SEQ_CST) == 1);
        OK(round % 2 == 0 ? zkl_release(counter->lock) : zkl_release_nowait(counter->lock));
    }
    return NULL;
}

/* Two threads that increment a number under the mutex lose no increment. */
static void threads_exclude_each_other(void)
{
    struct counter counter = {new_mutex(client, fresh_path()), 0, 0};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, count_up, &counter) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(counter.total == 40);
    zkl_lock_free(counter.lock);
}

/* A release by another thread fails with NOT_OWNER. */
static void only_the_owner_releases(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    CHECK(on_new_thread(zkl_release, lock) == ZKL_E_NOT_OWNER);
    CHECK(on_new_thread(zkl_release_nowait, lock) == ZKL_E_NOT_OWNER);
    CHECK(on_new_thread(is_held, lock) == 0);
    CHECK(zkl_is_held(lock) == 1);
    CHECK(zkl_is_held_in_process(lock) == 1);
    CHECK(participants(lock) == 1);
    OK(zkl_release(lock));
    CHECK(zkl_is_held_in_process(lock) == 0);
    zkl_lock_free(lock);
}

/* An acquire of a held mutex fails with TIMEOUT at its time limit. */
static void timeouts_are_neither_early_nor_late(void)
{
    zkl_client *other = new_client();
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path);
    zkl_lock *wanted = new_mutex(other, path);
    OK(zkl_acquire_timeout(held, 0));

    int64_t start = now_ms();
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(wanted, 0));
    EXPECT_MESSAGE(path);
    CHECK(now_ms() - start <= slack_ms());
    for (int64_t timeout = LIMIT_MS; timeout <= LIMIT_MS + 400; timeout += 200) {
        start = now_ms();
        EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(wanted, timeout));
        EXPECT_MESSAGE(path);
        int64_t took = now_ms() - start;
        /* now_ms() rounds both times down. */
        CHECK(took >= timeout - 1 && took <= timeout + slack_ms());
    }
    await_participants(held, 1);
    CHECK(zkl_is_held(wanted) == 0);

    OK(zkl_release(held));
    OK(zkl_acquire_timeout(wanted, 0));
    OK(zkl_release(wanted));
    OK(zkl_acquire_timeout(wanted, INT64_MAX));
    OK(zkl_release(wanted));
    OK(zkl_acquire_timeout(wanted, -1));
    OK(zkl_release(wanted));
    EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(wanted, -2));
    EXPECT_MESSAGE("-2");
    EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(wanted, INT64_MIN));
    zkl_lock_free(held);
    zkl_lock_free(wanted);
    zkl_client_free(other);
}

/* zkl_cancel ends waiting acquires with CANCELED and does not affect the holder. */
static void cancel_wakes_those_that_wait(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct call waiting;
    OK(zkl_acquire(lock));
    start_call(&waiting, zkl_acquire, lock);
    await_participants(lock, 2);
    OK(zkl_cancel(lock));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    CHECK(*waiting.message != '\0');
    await_participants(lock, 1);
    CHECK(zkl_is_held(lock) == 1);

    start_call(&waiting, mutex_acquire_and_release, lock);
    await_participants(lock, 2);
    OK(zkl_release(lock));
    CHECK(end_call(&waiting) == ZKL_OK);
    OK(zkl_cancel(lock));
    zkl_lock_free(lock);
}

/* If a thread holds the mutex, its acquire through another handle fails with DEADLOCK. */
static void a_second_handle_in_one_thread_is_a_deadlock(void)
{
    const char *path = fresh_path();
    zkl_lock *one = new_mutex(client, path);
    zkl_lock *two = new_mutex(client, path);
    OK(zkl_acquire(one));
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire(two));
    EXPECT_MESSAGE(path);
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire_timeout(two, 0));
    CHECK(zkl_lock_state(two) == ZKL_LOCK_FREE);
    OK(zkl_release(one));
    OK(zkl_acquire(two));
    OK(zkl_release(two));
    zkl_lock_free(one);
    zkl_lock_free(two);
}

/* Each hold has a larger fencing token than the holds before, and a re-entry keeps the token. */
static void tokens_grow(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    int64_t last = 0, token = -7;
    EXPECT(ZKL_E_NOT_OWNER, zkl_fencing_token(lock, &token));
    CHECK(token == -7);
    for (int round = 0; round < 3; round++) {
        OK(zkl_acquire(lock));
        OK(zkl_fencing_token(lock, &token));
        CHECK(token > last);
        last = token;
        OK(zkl_acquire(lock));
        OK(zkl_fencing_token(lock, &token));
        CHECK(token == last);
        OK(zkl_release(lock));
        OK(zkl_release(lock));
    }
    zkl_lock_free(lock);
}

/* A thread whose acquire failed has no hold and cannot query the hold of another thread. */
static zkl_status is_told_nothing(zkl_lock *lock)
{
    int64_t token = -7, pass = -7, remaining = -7;
    char node[128] = "-";
    size_t needed = 7;
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(lock, 0));
    CHECK(zkl_is_held(lock) == 0 && zkl_lock_state(lock) == ZKL_LOCK_FREE);
    EXPECT(ZKL_E_NOT_OWNER, zkl_fencing_token(lock, &token));
    EXPECT(ZKL_E_NOT_OWNER, zkl_fencing_pass(lock, &pass));
    EXPECT(ZKL_E_NOT_OWNER, zkl_remaining_ms(lock, &remaining));
    /* A multi-lock has a node for each of its member locks. */
    zkl_status of_node = zkl_lock_node_path(lock, node, sizeof node, &needed);
    CHECK(of_node == ZKL_E_NOT_OWNER || of_node == ZKL_E_INVALID);
    CHECK(token == -7 && pass == -7 && remaining == -7 && node[0] == '-' && needed == 7);
    /* A watcher can query the hold of the process. */
    CHECK(zkl_is_held_in_process(lock) == 1 && zkl_lock_state_in_process(lock) == ZKL_LOCK_HELD);
    return ZKL_OK;
}

/* Only the holder can query its token; other threads need the functions that ask for the whole process. */
static void token_is_reported_only_to_the_holder(void)
{
    zkl_lock *read, *write, *one = new_mutex(client, fresh_path()), *two = new_mutex(client, fresh_path());
    OK(zkl_rwlock_new(client, fresh_path(), &read, &write));
    zkl_lock *const locks[] = {one, new_semaphore_mutex(client, fresh_path()), write, new_multi(one, two)};
    for (int i = 0; i < 4; i++) {
        int64_t token = 0;
        CHECK(zkl_lock_state_in_process(locks[i]) == ZKL_LOCK_FREE);
        OK(zkl_acquire(locks[i]));
        OK(zkl_fencing_token(locks[i], &token));
        CHECK(token > 0 && zkl_lock_state(locks[i]) == ZKL_LOCK_HELD);
        CHECK(on_new_thread(is_told_nothing, locks[i]) == ZKL_OK);
        OK(zkl_release(locks[i]));
    }
    for (int i = 3; i >= 0; i--) zkl_lock_free(locks[i]);
    zkl_lock_free(two);
    zkl_lock_free(read);
}

/* The remaining time of a hold is limited by the session timeout and the lease margin. */
static void remaining_time_is_below_the_session_timeout(void)
{
    zkl_config *config = zkl_config_new();
    zkl_client *short_lived;
    int64_t remaining = -7;
    CHECK(config != NULL);
    OK(zkl_config_set_session_timeout_ms(config, 6000));
    OK(zkl_config_set_connect_timeout_ms(config, 60000));
    OK(zkl_config_set_lease_margin_ms(config, 3000));
    OK(zkl_config_add_auth(config, "digest", "user:password", 13));
    OK(zkl_client_new(servers, config, &short_lived));
    zkl_config_free(config);

    zkl_lock *lock = new_mutex(short_lived, fresh_path());
    EXPECT(ZKL_E_NOT_OWNER, zkl_remaining_ms(lock, &remaining));
    CHECK(remaining == -7);
    OK(zkl_acquire(lock));
    OK(zkl_remaining_ms(lock, &remaining));
    CHECK(remaining > 0 && remaining <= 3000);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(short_lived);
}

struct seen {
    int count;
    const char *path;
    zkl_lock *lock;
    const char *data[2];
    int64_t czxid[2];
    int64_t session_id;
};

static void see(void *user, const zkl_participant *participant)
{
    struct seen *seen = user;
    CHECK(participant->size >= sizeof *participant);
    CHECK(seen->count < 2);
    CHECK(participant->holds == (seen->count == 0));
    CHECK(strncmp(participant->node_path, seen->path, strlen(seen->path)) == 0);
    CHECK(participant->data_len == strlen(seen->data[seen->count]));
    CHECK(memcmp(participant->data, seen->data[seen->count], participant->data_len + 1) == 0);
    CHECK(participant->session_id == seen->session_id);
    seen->czxid[seen->count++] = participant->czxid;
    /* A callback may call other functions. */
    CHECK(zkl_is_held(seen->lock) == 1);
    EXPECT(ZKL_E_HANDLE, zkl_release(NULL));
}

/* zkl_participants lists the holder and the waiters in queue order, with their data. */
static void participants_stand_in_order_and_show_their_data(void)
{
    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *lock = new_mutex(client, path);
    struct call waiting;
    OK(zkl_lock_set_data(lock, "the holder", 10));
    OK(zkl_acquire(lock));
    OK(zkl_lock_set_data(lock, NULL, 0));
    start_call(&waiting, zkl_acquire, lock);
    await_participants(lock, 2);

    struct seen seen = {.path = path, .lock = lock, .data = {"the holder", ""}, .session_id = zkl_client_session_id(client)};
    int64_t token;
    OK(zkl_fencing_token(lock, &token));
    /* Failed calls inside the callback do not affect the result. */
    CHECK(zkl_participants(lock, see, &seen) == ZKL_OK);
    CHECK(seen.count == 2);
    CHECK(seen.czxid[0] == token && seen.czxid[1] > token);

    OK(zkl_cancel(lock));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    OK(zkl_release(lock));
    CHECK(participants(lock) == 0);
    zkl_lock_free(lock);
}

/* Freeing a lock releases its hold and ends its waits with CLOSED. */
static void freeing_a_lock_wakes_and_releases(void)
{
    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *lock = new_mutex(client, path);
    zkl_lock *witness = new_mutex(client, path);
    struct call waiting[2];
    OK(zkl_acquire(lock));
    for (int i = 0; i < 2; i++) start_call(&waiting[i], zkl_acquire, lock);
    await_participants(witness, 3);
    zkl_lock_free(lock);
    for (int i = 0; i < 2; i++) CHECK(end_call(&waiting[i]) == ZKL_E_CLOSED);
    EXPECT(ZKL_E_HANDLE, zkl_release(lock));
    OK(zkl_acquire_timeout(witness, 5000));
    OK(zkl_release(witness));
    zkl_lock_free(witness);
}

/* Freeing a client ends the waits for all its locks with CLOSED. */
static void freeing_a_client_wakes_all_waiters(void)
{
    zkl_client *closing = new_client();
    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *held = new_mutex(client, path);
    zkl_lock *lock = new_mutex(closing, path);
    zkl_lock *other = new_mutex(closing, fresh_path());
    int64_t out = -7;
    struct call waiting[3];
    OK(zkl_acquire(held));
    OK(zkl_acquire(other));
    start_call(&waiting[0], zkl_acquire, lock);
    start_call(&waiting[1], zkl_acquire, held);
    start_call(&waiting[2], zkl_acquire, lock);
    await_participants(held, 4);
    zkl_client_free(closing);
    CHECK(end_call(&waiting[0]) == ZKL_E_CLOSED);
    CHECK(end_call(&waiting[2]) == ZKL_E_CLOSED);
    /* Other clients are not affected. */
    await_participants(held, 2);
    OK(zkl_cancel(held));
    CHECK(end_call(&waiting[1]) == ZKL_E_CANCELED);

    /* The handles of its locks still exist, but they are closed. */
    zkl_lock *locks[2] = {lock, other};
    for (int i = 0; i < 2; i++) {
        EXPECT(ZKL_E_CLOSED, zkl_acquire(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_acquire_timeout(locks[i], 0));
        EXPECT(ZKL_E_CLOSED, zkl_release(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_release_nowait(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_cancel(locks[i]));
        EXPECT_NOT_SAFE(zkl_is_held(locks[i]), zkl_strerror(ZKL_E_CLOSED));
        EXPECT_NOT_SAFE(zkl_is_held_in_process(locks[i]), zkl_strerror(ZKL_E_CLOSED));
        EXPECT(ZKL_E_CLOSED, zkl_lock_state(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_fencing_token(locks[i], &out));
        EXPECT(ZKL_E_CLOSED, zkl_remaining_ms(locks[i], &out));
        EXPECT(ZKL_E_CLOSED, zkl_lock_set_data(locks[i], NULL, 0));
        EXPECT(ZKL_E_CLOSED, zkl_participants(locks[i], count_participant, &out));
        CHECK(out == -7);
        zkl_lock_free(locks[i]);
    }
    OK(zkl_release(held));
    zkl_lock_free(held);
}

/* After zkl_release_nowait, the next waiter is granted the mutex. */
static void release_nowait_lets_the_next_one_in(void)
{
    zkl_client *other = new_client();
    const char *path = fresh_path();
    zkl_lock *ours = new_mutex(client, path);
    zkl_lock *theirs = new_mutex(other, path);
    for (int round = 0; round < 3; round++) {
        OK(zkl_acquire(ours));
        OK(zkl_release_nowait(ours));
        CHECK(zkl_is_held(ours) == 0);
        OK(zkl_acquire_timeout(theirs, 5000));
        OK(zkl_release_nowait(theirs));
    }
    EXPECT(ZKL_E_NOT_OWNER, zkl_release_nowait(ours));
    zkl_lock_free(ours);
    zkl_lock_free(theirs);
    zkl_client_free(other);
}

/* A chroot in the connect string is the prefix of every path. */
static void a_chroot_is_put_before_every_path(void)
{
    char below[128], path[64];
    zkl_client *inside;
    strcpy(path, fresh_path());
    snprintf(below, sizeof below, "%s%s", servers, path);
    zkl_config *config = zkl_config_new();
    EXPECT(ZKL_E_SERVER, zkl_client_new(below, config, &inside));
    EXPECT_MESSAGE("the chroot /c/");
    EXPECT_MESSAGE(" does not exist; create it, or set the option chroot.create to true");
    OK(zkl_config_set(config, "chroot.create", "true"));
    OK(zkl_client_new(below, config, &inside));
    zkl_config_free(config);
    zkl_lock *lock = new_mutex(inside, "/a");
    snprintf(below, sizeof below, "%s/a", path);
    zkl_lock *same = new_mutex(client, below);
    OK(zkl_acquire(lock));
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(same, 0));
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_lock_free(same);
    zkl_client_free(inside);
}

static void on_signal(int number)
{
    (void)number;
}

static zkl_status wait_for_the_limit(zkl_lock *lock)
{
    int64_t start = now_ms();
    zkl_status status = zkl_acquire_timeout(lock, LIMIT_MS);
    CHECK(now_ms() - start >= LIMIT_MS - 1);
    return status;
}

/* Signals do not interrupt a waiting acquire. */
static void signals_do_not_interrupt_waits(void)
{
    struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART */
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct call waiting;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    OK(zkl_acquire(lock));
    start_call(&waiting, wait_for_the_limit, lock);
    for (int i = 0; i < 20; i++) {
        CHECK(pthread_kill(waiting.thread, SIGUSR1) == 0);
        CHECK(kill(getpid(), SIGUSR1) == 0);
        sleep_ms(10);
    }
    CHECK(end_call(&waiting) == ZKL_E_TIMEOUT);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

#ifndef __SANITIZE_ADDRESS__
static zkl_status status_of_cancelled_thread;

static void *acquire_and_idle(void *argument)
{
    zkl_status status = acquire_in_time(argument);
    __atomic_store_n(&status_of_cancelled_thread, status, __ATOMIC_SEQ_CST);
    /* The cancellation did not interrupt the call. The sleep of the thread ends it. */
    for (;;) sleep_ms(1000);
    return NULL;
}

/* pthread_cancel takes effect only after the call of the library. */
static void cancelled_thread_ends_after_its_call(void)
{
    const char *path = fresh_path();
    /* If the thread is the only one that waits for the servers, it reads the socket. These system calls can be cancelled. */
    zkl_client *other = new_client();
    zkl_lock *held = new_mutex(other, path), *wanted = new_mutex(client, path);
    OK(zkl_acquire(held));
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, acquire_and_idle, wanted) == 0);
    await_participants(held, 2);
    CHECK(pthread_cancel(thread) == 0);
    sleep_ms(50);
    OK(zkl_cancel(wanted));
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(__atomic_load_n(&status_of_cancelled_thread, __ATOMIC_SEQ_CST) == ZKL_E_CANCELED);
    OK(zkl_release(held));
    OK(zkl_acquire_timeout(wanted, 10000));
    zkl_lock_free(wanted);
    zkl_lock_free(held);
    zkl_client_free(other);
}
#endif

/* If no server is reachable, zkl_client_new fails with CONNECTION at its time limit. */
static void no_server_is_a_connection_error_in_time(void)
{
    zkl_config *config = zkl_config_new();
    zkl_client *nobody = NULL;
    OK(zkl_config_set_connect_timeout_ms(config, 300));
    int64_t start = now_ms();
    EXPECT(ZKL_E_CONNECTION, zkl_client_new("127.0.0.1:1", config, &nobody));
    EXPECT_MESSAGE("127.0.0.1:1");
    CHECK(now_ms() - start >= 299 && now_ms() - start <= 300 + slack_ms());
    CHECK(nobody == NULL);
    zkl_config_free(config);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(versions_and_texts);
    client = new_client();
    RUN(the_client_has_a_session);
    RUN(the_server_list_is_replaced);
    RUN(mutex_is_reentrant);
    RUN(threads_exclude_each_other);
    RUN(only_the_owner_releases);
    RUN(timeouts_are_neither_early_nor_late);
    RUN(cancel_wakes_those_that_wait);
    RUN(a_second_handle_in_one_thread_is_a_deadlock);
    RUN(tokens_grow);
    RUN(token_is_reported_only_to_the_holder);
    RUN(remaining_time_is_below_the_session_timeout);
    RUN(participants_stand_in_order_and_show_their_data);
    RUN(freeing_a_lock_wakes_and_releases);
    RUN(freeing_a_client_wakes_all_waiters);
    RUN(release_nowait_lets_the_next_one_in);
    RUN(signals_do_not_interrupt_waits);
#ifndef __SANITIZE_ADDRESS__ /* AddressSanitizer reports the unwinding of a canceled thread as an error. */
    RUN(cancelled_thread_ends_after_its_call);
#endif
    RUN(a_chroot_is_put_before_every_path);
    RUN(no_server_is_a_connection_error_in_time);
    zkl_client_free(client);
    return 0;
}
