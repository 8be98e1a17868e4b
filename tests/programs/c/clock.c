/* Time that passes without the program: a suspended machine and a changed wall clock. This program replaces the function that
 * the library calls to read the clocks. */
#include "check.h"

#include <sys/syscall.h>

static int64_t boot_offset_s, wall_offset_s;

/* Replaces the function of the C library. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_BOOTTIME) time->tv_sec += __atomic_load_n(&boot_offset_s, __ATOMIC_SEQ_CST);
    if (clock == CLOCK_REALTIME) time->tv_sec += __atomic_load_n(&wall_offset_s, __ATOMIC_SEQ_CST);
    return result;
}

/* Simulates a suspension of the machine for this time. */
static void suspend_s(int64_t seconds)
{
    __atomic_add_fetch(&boot_offset_s, seconds, __ATOMIC_SEQ_CST);
}

static void set_the_wall_clock_s(int64_t offset)
{
    __atomic_store_n(&wall_offset_s, offset, __ATOMIC_SEQ_CST);
}

/* The states that the events of the lock reported. */
struct heard {
    int states[16], count;
};

static void on_event(void *user, const zkl_event *event)
{
    struct heard *heard = user;
    if (event->kind != ZKL_EVENT_LOCK) return;
    int at = __atomic_load_n(&heard->count, __ATOMIC_SEQ_CST);
    CHECK(at < 16);
    heard->states[at] = event->state;
    __atomic_store_n(&heard->count, at + 1, __ATOMIC_SEQ_CST);
}

static zkl_client *client_with_session(int timeout_ms, struct heard *heard)
{
    zkl_client *client = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_session_timeout_ms(config, timeout_ms));
    if (heard != NULL) OK(zkl_config_set_event_callback(config, on_event, heard, NULL));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    return client;
}

/* After the machine was suspended, a hold is not safe until a server has confirmed the session. */
static void hold_after_suspend_is_unsafe_until_verified(void)
{
    struct heard heard = {0};
    zkl_client *client = client_with_session(3000, &heard);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    int64_t token, same, remaining = -1;
    OK(zkl_fencing_token(lock, &token));
    OK(zkl_remaining_ms(lock, &remaining));
    CHECK(remaining > 0);
    suspend_s(60);
    CHECK(zkl_is_held(lock) == 0);
    /* The server was not suspended and confirms the session after a while. */
    AWAIT(zkl_is_held(lock) == 1);
    OK(zkl_fencing_token(lock, &same));
    CHECK(same == token);
    OK(zkl_release(lock));
    zkl_client_free(client);
    const int states[] = {ZKL_LOCK_HELD, ZKL_LOCK_UNCERTAIN, ZKL_LOCK_HELD, ZKL_LOCK_FREE};
    /* If the server was slow, the hold may have been SUSPENDED in between. */
    int at = 0;
    for (int i = 0; i < heard.count && at < 4; i++) at += heard.states[i] == states[at];
    CHECK(at == 4);
    zkl_lock_free(lock);
}

/* After the machine was suspended, the remaining time of a hold is zero until a server has confirmed the session. Each client
 * sends its heartbeats at other moments. */
static void remaining_time_is_zero_after_suspend(void)
{
    enum { CLIENTS = 5, ROUNDS = 4 };
    zkl_client *clients[CLIENTS];
    zkl_lock *locks[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = client_with_session(3000, NULL);
        locks[i] = new_mutex(clients[i], fresh_path());
        OK(zkl_acquire(locks[i]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CLIENTS; i++) AWAIT(zkl_is_held(locks[i]) == 1);
        suspend_s(60);
        for (int i = 0; i < CLIENTS; i++) {
            int64_t remaining = -1;
            OK(zkl_remaining_ms(locks[i], &remaining));
            /* The session may also have been confirmed in between, by the reply to a request that was sent after the
             * suspension. */
            CHECK(remaining == 0 || zkl_is_held(locks[i]) == 1);
            int32_t state = zkl_lock_state(locks[i]);
            CHECK(state == ZKL_LOCK_UNCERTAIN || zkl_is_held(locks[i]) == 1);
        }
    }
    for (int i = 0; i < CLIENTS; i++) {
        OK(zkl_release(locks[i]));
        zkl_client_free(clients[i]);
        zkl_lock_free(locks[i]);
    }
}

static zkl_status acquire_for_a_minute(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 60000);
}

static zkl_status acquire_for_a_second(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, LIMIT_MS);
}

/* The time of a suspension counts against the deadline of an acquire. */
static void a_suspend_counts_for_a_deadline(void)
{
    zkl_client *client = client_with_session(3000, NULL), *other = client_with_session(3000, NULL);
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(other, path), *wanted = new_mutex(client, path);
    OK(zkl_acquire(held));
    struct call call = {.function = acquire_for_a_minute, .lock = wanted};
    CHECK(pthread_create(&call.thread, NULL, run_call, &call) == 0);
    await_participants(held, 2);
    int64_t start = now_ms();
    suspend_s(120);
    CHECK(pthread_join(call.thread, NULL) == 0);
    CHECK(call.status == ZKL_E_TIMEOUT || call.status == ZKL_E_CONNECTION);
    CHECK(now_ms() - start < 3000 + slack_ms());
    zkl_client_free(client);
    zkl_client_free(other);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

/* Changes of the wall clock affect neither holds nor deadlines. */
static void wall_clock_changes_affect_nothing(void)
{
    const int64_t day = 24 * 60 * 60;
    struct heard heard = {0};
    zkl_client *client = client_with_session(12000, &heard), *other = client_with_session(12000, NULL);
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    OK(zkl_acquire(held));
    const int64_t offsets[] = {day, -day, 365 * day, 0};
    for (int i = 0; i < 4; i++) {
        struct call call;
        int64_t start, remaining = -1;
        /* On a busy machine, the call may end before its node is seen. */
        for (;;) {
            start = now_ms();
            start_call(&call, acquire_for_a_second, wanted);
            AWAIT(participants(held) == 2 || __atomic_load_n(&call.has_ended, __ATOMIC_SEQ_CST));
            if (!__atomic_load_n(&call.has_ended, __ATOMIC_SEQ_CST)) break;
            CHECK(end_call(&call) == ZKL_E_TIMEOUT);
        }
        set_the_wall_clock_s(offsets[i]);
        CHECK(zkl_is_held(held) == 1);
        OK(zkl_remaining_ms(held, &remaining));
        CHECK(remaining > 0 && remaining < 12000);
        CHECK(end_call(&call) == ZKL_E_TIMEOUT);
        CHECK(now_ms() - start >= LIMIT_MS && now_ms() - start < LIMIT_MS + slack_ms());
        CHECK(zkl_is_held(held) == 1);
    }
    OK(zkl_release(held));
    zkl_client_free(client);
    zkl_client_free(other);
    CHECK(heard.count == 2 && heard.states[0] == ZKL_LOCK_HELD && heard.states[1] == ZKL_LOCK_FREE);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(hold_after_suspend_is_unsafe_until_verified);
    RUN(remaining_time_is_zero_after_suspend);
    RUN(a_suspend_counts_for_a_deadline);
    RUN(wall_clock_changes_affect_nothing);
    return 0;
}
