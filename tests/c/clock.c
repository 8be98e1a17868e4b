/* Time that passes without us: a suspended machine, and a wall clock that is set. The clocks are this program's: what the library asks
 * for the time is below. */
#include "check.h"

#include <sys/syscall.h>

static int64_t boot_offset_s, wall_offset_s;

/* In the place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_BOOTTIME) time->tv_sec += __atomic_load_n(&boot_offset_s, __ATOMIC_SEQ_CST);
    if (clock == CLOCK_REALTIME) time->tv_sec += __atomic_load_n(&wall_offset_s, __ATOMIC_SEQ_CST);
    return result;
}

/* The machine was suspended for so long. */
static void suspend_s(int64_t seconds)
{
    __atomic_add_fetch(&boot_offset_s, seconds, __ATOMIC_SEQ_CST);
}

static void set_the_wall_clock_s(int64_t offset)
{
    __atomic_store_n(&wall_offset_s, offset, __ATOMIC_SEQ_CST);
}

/* What was told of the one lock. */
struct heard {
    int states[16], count;
};

static void hear(void *user, const zkl_event *event)
{
    struct heard *heard = user;
    if (event->kind != ZKL_EVENT_LOCK) return;
    int at = __atomic_load_n(&heard->count, __ATOMIC_SEQ_CST);
    CHECK(at < 16);
    heard->states[at] = event->state;
    __atomic_store_n(&heard->count, at + 1, __ATOMIC_SEQ_CST);
}

static zkl_client *client_of_3_s(struct heard *heard)
{
    zkl_client *client = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_session_timeout_ms(config, 3000));
    if (heard != NULL) OK(zkl_config_set_event_callback(config, hear, heard, NULL));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    return client;
}

static void a_hold_is_not_safe_after_a_suspend_until_it_was_seen_again(void)
{
    struct heard heard = {0};
    zkl_client *client = client_of_3_s(&heard);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    int64_t token, same, remaining = -1;
    OK(zkl_fencing_token(lock, &token));
    OK(zkl_remaining_ms(lock, &remaining));
    CHECK(remaining > 0);
    suspend_s(60);
    CHECK(zkl_is_held(lock) == 0);
    /* The server, which was not suspended, confirms the session sooner or later. */
    AWAIT(zkl_is_held(lock) == 1);
    OK(zkl_fencing_token(lock, &same));
    CHECK(same == token);
    OK(zkl_release(lock));
    zkl_client_free(client);
    const int states[] = {ZKL_LOCK_HELD, ZKL_LOCK_UNCERTAIN, ZKL_LOCK_HELD, ZKL_LOCK_FREE};
    /* It may have been suspended in between, where the server was slow. */
    int at = 0;
    for (int i = 0; i < heard.count && at < 4; i++) at += heard.states[i] == states[at];
    CHECK(at == 4);
    zkl_lock_free(lock);
}

static void nothing_remains_after_a_suspend(void)
{
    zkl_client *client = client_of_3_s(NULL);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    for (int i = 0; i < 20; i++) {
        int64_t remaining = -1;
        AWAIT(zkl_is_held(lock) == 1);
        suspend_s(60);
        OK(zkl_remaining_ms(lock, &remaining));
        /* Or it was confirmed in between, which takes an answer to what was sent since. */
        CHECK(remaining == 0 || zkl_is_held(lock) == 1);
        int32_t state = zkl_lock_state(lock);
        CHECK(state == ZKL_LOCK_UNCERTAIN || zkl_is_held(lock) == 1);
    }
    OK(zkl_release(lock));
    zkl_client_free(client);
    zkl_lock_free(lock);
}

static zkl_status acquire_for_a_minute(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 60000);
}

static zkl_status acquire_for_half_a_second(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 500);
}

static void a_suspend_counts_for_a_deadline(void)
{
    zkl_client *client = client_of_3_s(NULL), *other = client_of_3_s(NULL);
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

static void the_wall_clock_means_nothing(void)
{
    const int64_t day = 24 * 60 * 60;
    struct heard heard = {0};
    zkl_client *client = client_of_3_s(&heard), *other = client_of_3_s(NULL);
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    OK(zkl_acquire(held));
    const int64_t offsets[] = {day, -day, 365 * day, 0};
    for (int i = 0; i < 4; i++) {
        struct call call = {.function = acquire_for_half_a_second, .lock = wanted};
        int64_t start = now_ms(), remaining = -1;
        CHECK(pthread_create(&call.thread, NULL, run_call, &call) == 0);
        await_participants(held, 2);
        set_the_wall_clock_s(offsets[i]);
        CHECK(zkl_is_held(held) == 1);
        OK(zkl_remaining_ms(held, &remaining));
        CHECK(remaining > 0 && remaining < 3000);
        CHECK(pthread_join(call.thread, NULL) == 0);
        CHECK(call.status == ZKL_E_TIMEOUT);
        CHECK(now_ms() - start >= 500 && now_ms() - start < 500 + slack_ms());
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
    RUN(a_hold_is_not_safe_after_a_suspend_until_it_was_seen_again);
    RUN(nothing_remains_after_a_suspend);
    RUN(a_suspend_counts_for_a_deadline);
    RUN(the_wall_clock_means_nothing);
    return 0;
}
