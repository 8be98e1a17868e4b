/* The mutex, as a C program sees it. */
#include "check.h"

#include <signal.h>

static zkl_client *client;

static zkl_status acquire_and_release(zkl_lock *lock)
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

static void versions_and_texts(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", ZKL_VERSION_MAJOR, ZKL_VERSION_MINOR, ZKL_VERSION_PATCH);
    CHECK(strcmp(zkl_version(), ZKL_VERSION) == 0 && strncmp(ZKL_VERSION, version, strlen(version)) == 0);
    CHECK(strcmp(zkl_strerror(ZKL_OK), "success") == 0);
    CHECK(strcmp(zkl_strerror(1), "unknown status") == 0);
    CHECK(strcmp(zkl_strerror(INT32_MIN), "unknown status") == 0);
    CHECK(strcmp(zkl_strerror(ZKL_E_CANCELED), "the wait was canceled") == 0);
    for (int32_t status = -1; status >= ZKL_E_UNSUPPORTED; status--) {
        CHECK(strcmp(zkl_strerror(status), "unknown status") != 0);
        CHECK(*zkl_strerror(status) != '\0');
        CHECK(zkl_status_errno(status) > 0);
    }
    CHECK(zkl_status_errno(ZKL_OK) == 0);
    CHECK(zkl_status_errno(ZKL_E_TIMEOUT) == 110 /* Linux's ETIMEDOUT */);
}

static void the_client_has_a_session(void)
{
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    CHECK(zkl_client_session_id(client) != 0);
}

static void it_is_reentrant(void)
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
        CHECK(elsewhere(look, lock) == ZKL_E_TIMEOUT);
        OK(zkl_release(lock));
    }
    CHECK(zkl_is_held(lock) == 0);
    CHECK(zkl_lock_state(lock) == ZKL_LOCK_FREE);
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(lock));
    CHECK(elsewhere(acquire_and_release, lock) == ZKL_OK);
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

static void threads_exclude_each_other(void)
{
    struct counter counter = {new_mutex(client, fresh_path()), 0, 0};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, count_up, &counter) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(counter.total == 40);
    zkl_lock_free(counter.lock);
}

static void only_the_owner_releases(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    CHECK(elsewhere(zkl_release, lock) == ZKL_E_NOT_OWNER);
    CHECK(elsewhere(zkl_release_nowait, lock) == ZKL_E_NOT_OWNER);
    CHECK(elsewhere(is_held, lock) == 0);
    CHECK(zkl_is_held(lock) == 1);
    CHECK(zkl_is_held_in_process(lock) == 1);
    CHECK(participants(lock) == 1);
    OK(zkl_release(lock));
    CHECK(zkl_is_held_in_process(lock) == 0);
    zkl_lock_free(lock);
}

static void timeouts_are_neither_early_nor_late(void)
{
    zkl_client *other = new_client();
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path);
    zkl_lock *wanted = new_mutex(other, path);
    OK(zkl_acquire_timeout(held, 0));

    int64_t start = now_ms();
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(wanted, 0));
    SAYS(path);
    CHECK(now_ms() - start <= slack_ms());
    for (int64_t timeout = 300; timeout <= 700; timeout += 200) {
        start = now_ms();
        EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(wanted, timeout));
        SAYS(path);
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
    SAYS("-2");
    EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(wanted, INT64_MIN));
    zkl_lock_free(held);
    zkl_lock_free(wanted);
    zkl_client_free(other);
}

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

    start_call(&waiting, acquire_and_release, lock);
    await_participants(lock, 2);
    OK(zkl_release(lock));
    CHECK(end_call(&waiting) == ZKL_OK);
    OK(zkl_cancel(lock));
    zkl_lock_free(lock);
}

static void a_second_handle_in_one_thread_is_a_deadlock(void)
{
    const char *path = fresh_path();
    zkl_lock *one = new_mutex(client, path);
    zkl_lock *two = new_mutex(client, path);
    OK(zkl_acquire(one));
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire(two));
    SAYS(path);
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire_timeout(two, 0));
    CHECK(zkl_lock_state(two) == ZKL_LOCK_FREE);
    OK(zkl_release(one));
    OK(zkl_acquire(two));
    OK(zkl_release(two));
    zkl_lock_free(one);
    zkl_lock_free(two);
}

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

static void remaining_time_is_below_the_session_timeout(void)
{
    zkl_config *config = zkl_config_new();
    zkl_client *short_lived;
    int64_t remaining = -7;
    CHECK(config != NULL);
    OK(zkl_config_set_session_timeout_ms(config, 6000));
    OK(zkl_config_set_connect_timeout_ms(config, 20000));
    OK(zkl_config_set_lease_margin_ms(config, 3000));
    OK(zkl_config_add_auth(config, "digest", (const uint8_t *)"user:password", 13));
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
    /* A callback may call anything. */
    CHECK(zkl_is_held(seen->lock) == 1);
    EXPECT(ZKL_E_HANDLE, zkl_release(NULL));
}

static void participants_stand_in_order_and_show_their_data(void)
{
    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *lock = new_mutex(client, path);
    struct call waiting;
    OK(zkl_lock_set_data(lock, (const uint8_t *)"the holder", 10));
    OK(zkl_acquire(lock));
    OK(zkl_lock_set_data(lock, NULL, 0));
    start_call(&waiting, zkl_acquire, lock);
    await_participants(lock, 2);

    struct seen seen = {.path = path, .lock = lock, .data = {"the holder", ""}, .session_id = zkl_client_session_id(client)};
    int64_t token;
    OK(zkl_fencing_token(lock, &token));
    /* Calls in the callback have failed. */
    CHECK(zkl_participants(lock, see, &seen) == ZKL_OK);
    CHECK(seen.count == 2);
    CHECK(seen.czxid[0] == token && seen.czxid[1] > token);

    OK(zkl_cancel(lock));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    OK(zkl_release(lock));
    CHECK(participants(lock) == 0);
    zkl_lock_free(lock);
}

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

static void freeing_a_client_wakes_all_waiters(void)
{
    zkl_client *doomed = new_client();
    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *held = new_mutex(client, path);
    zkl_lock *lock = new_mutex(doomed, path);
    zkl_lock *other = new_mutex(doomed, fresh_path());
    int64_t out = -7;
    struct call waiting[3];
    OK(zkl_acquire(held));
    OK(zkl_acquire(other));
    start_call(&waiting[0], zkl_acquire, lock);
    start_call(&waiting[1], zkl_acquire, held);
    start_call(&waiting[2], zkl_acquire, lock);
    await_participants(held, 4);
    zkl_client_free(doomed);
    CHECK(end_call(&waiting[0]) == ZKL_E_CLOSED);
    CHECK(end_call(&waiting[2]) == ZKL_E_CLOSED);
    /* Other clients are not concerned. */
    await_participants(held, 2);
    OK(zkl_cancel(held));
    CHECK(end_call(&waiting[1]) == ZKL_E_CANCELED);

    /* Its locks are there, but closed. */
    zkl_lock *locks[2] = {lock, other};
    for (int i = 0; i < 2; i++) {
        EXPECT(ZKL_E_CLOSED, zkl_acquire(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_acquire_timeout(locks[i], 0));
        EXPECT(ZKL_E_CLOSED, zkl_release(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_release_nowait(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_cancel(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_is_held(locks[i]));
        EXPECT(ZKL_E_CLOSED, zkl_is_held_in_process(locks[i]));
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

static void a_chroot_is_put_before_every_path(void)
{
    char below[128], path[64];
    zkl_client *inside;
    strcpy(path, fresh_path());
    snprintf(below, sizeof below, "%s%s", servers, path);
    zkl_config *config = zkl_config_new();
    EXPECT(ZKL_E_SERVER, zkl_client_new(below, config, &inside));
    SAYS("the chroot /c/");
    SAYS(" does not exist; create it, or set the option chroot.create to true");
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

static zkl_status wait_for_500_ms(zkl_lock *lock)
{
    int64_t start = now_ms();
    zkl_status status = zkl_acquire_timeout(lock, 500);
    CHECK(now_ms() - start >= 499);
    return status;
}

static void signals_interrupt_nothing(void)
{
    struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART */
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct call waiting;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    OK(zkl_acquire(lock));
    start_call(&waiting, wait_for_500_ms, lock);
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
static void *wait_and_idle(void *argument)
{
    zkl_status status = zkl_acquire_timeout(argument, 300);
    /* The call was not torn apart. What ends the thread is its own sleep. */
    if (status == ZKL_E_TIMEOUT)
        for (;;) sleep_ms(1000);
    return NULL;
}

static void a_canceled_thread_ends_after_its_call(void)
{
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(client, path);
    OK(zkl_acquire(held));
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, wait_and_idle, wanted) == 0);
    sleep_ms(50);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    OK(zkl_release(held));
    OK(zkl_acquire_timeout(wanted, 10000));
    zkl_lock_free(wanted);
    zkl_lock_free(held);
}
#endif

static void no_server_is_a_connection_error_in_time(void)
{
    zkl_config *config = zkl_config_new();
    zkl_client *nobody = NULL;
    OK(zkl_config_set_connect_timeout_ms(config, 300));
    int64_t start = now_ms();
    EXPECT(ZKL_E_CONNECTION, zkl_client_new("127.0.0.1:1", config, &nobody));
    SAYS("127.0.0.1:1");
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
    RUN(it_is_reentrant);
    RUN(threads_exclude_each_other);
    RUN(only_the_owner_releases);
    RUN(timeouts_are_neither_early_nor_late);
    RUN(cancel_wakes_those_that_wait);
    RUN(a_second_handle_in_one_thread_is_a_deadlock);
    RUN(tokens_grow);
    RUN(remaining_time_is_below_the_session_timeout);
    RUN(participants_stand_in_order_and_show_their_data);
    RUN(freeing_a_lock_wakes_and_releases);
    RUN(freeing_a_client_wakes_all_waiters);
    RUN(release_nowait_lets_the_next_one_in);
    RUN(signals_interrupt_nothing);
#ifndef __SANITIZE_ADDRESS__ /* It takes the unwinding of a canceled thread itself for an error. */
    RUN(a_canceled_thread_ends_after_its_call);
#endif
    RUN(a_chroot_is_put_before_every_path);
    RUN(no_server_is_a_connection_error_in_time);
    zkl_client_free(client);
    return 0;
}
