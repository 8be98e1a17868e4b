/* Events: every change, in order, on one thread; what a callback may do; and that user is dropped once, after the last call. */
#include "check.h"

struct recorder {
    pthread_mutex_t mutex;
    zkl_event events[64];
    char paths[64][64];
    int count;
    int drops;
    int late; /* calls after the drop */
    pthread_t thread;
    int threads; /* how often it was another thread */
};

static void record(void *user, const zkl_event *event)
{
    struct recorder *recorder = user;
    pthread_mutex_lock(&recorder->mutex);
    CHECK(event->size == sizeof *event);
    CHECK(recorder->count < 64);
    if (recorder->count > 0 && !pthread_equal(recorder->thread, pthread_self())) recorder->threads++;
    recorder->thread = pthread_self();
    recorder->late += recorder->drops;
    snprintf(recorder->paths[recorder->count], 64, "%s", event->path == NULL ? "" : event->path);
    recorder->events[recorder->count++] = *event;
    pthread_mutex_unlock(&recorder->mutex);
    /* Asking is allowed, and answered while there is a client. */
    if (event->lock != NULL) {
        int32_t state = zkl_lock_state(event->lock);
        CHECK(state >= ZKL_LOCK_FREE || state == ZKL_E_CLOSED);
    }
}

static void dropped(void *user)
{
    struct recorder *recorder = user;
    pthread_mutex_lock(&recorder->mutex);
    recorder->drops++;
    pthread_mutex_unlock(&recorder->mutex);
}

static void expect_client(const struct recorder *recorder, int at, int32_t previous, int32_t state)
{
    const zkl_event *event = &recorder->events[at];
    CHECK(at < recorder->count);
    CHECK(event->kind == ZKL_EVENT_CLIENT && event->previous == previous && event->state == state);
    CHECK(event->lock == NULL && event->path == NULL && event->token == 0);
}

static void changes_are_told_in_order(void)
{
    struct recorder recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    OK(zkl_config_set_event_callback(config, record, &recorder, dropped));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    CHECK(recorder.drops == 0);

    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    int64_t token = 0;
    OK(zkl_acquire(lock));
    OK(zkl_fencing_token(lock, &token));
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    OK(zkl_release(lock));
    zkl_client_free(client);
    /* zkl_client_free returns after the last call. */
    CHECK(recorder.drops == 1);
    CHECK(recorder.late == 0 && recorder.threads == 0);

    CHECK(recorder.count == 4);
    expect_client(&recorder, 0, ZKL_STATE_CONNECTING, ZKL_STATE_CONNECTED);
    const int32_t states[] = {ZKL_LOCK_FREE, ZKL_LOCK_HELD, ZKL_LOCK_FREE};
    for (int i = 0; i < 2; i++) {
        const zkl_event *event = &recorder.events[1 + i];
        CHECK(event->kind == ZKL_EVENT_LOCK && event->previous == states[i] && event->state == states[i + 1]);
        CHECK(event->lock == lock && event->token == token);
        CHECK(strcmp(recorder.paths[1 + i], path) == 0);
    }
    expect_client(&recorder, 3, ZKL_STATE_CONNECTED, ZKL_STATE_CLOSED);
    zkl_lock_free(lock);
}

static void a_replaced_callback_is_dropped(void)
{
    struct recorder one = {.mutex = PTHREAD_MUTEX_INITIALIZER}, two = one;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, record, &one, dropped));
    OK(zkl_config_set_event_callback(config, record, &two, dropped));
    CHECK(one.drops == 1 && two.drops == 0);
    OK(zkl_config_set_event_callback(config, NULL, NULL, NULL));
    CHECK(two.drops == 1);
    zkl_config_free(config);
    CHECK(one.drops == 1 && two.drops == 1);
    EXPECT(ZKL_E_HANDLE, zkl_config_set_event_callback(config, record, &one, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_config_set_event_callback(NULL, record, &one, dropped));
    CHECK(one.drops == 1);
}

static void without_a_callback_user_is_dropped_at_once(void)
{
    struct recorder recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, NULL, &recorder, dropped));
    CHECK(recorder.drops == 1);
    zkl_config_free(config);
    CHECK(recorder.drops == 1);
}

static void what_is_freed_while_held_is_told_to_be_free(void)
{
    struct recorder recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    OK(zkl_config_set_event_callback(config, record, &recorder, NULL));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    zkl_lock *first = new_mutex(client, fresh_path()), *second = new_mutex(client, fresh_path());
    OK(zkl_acquire(first));
    OK(zkl_acquire(second));
    zkl_lock_free(first);
    zkl_client_free(client);
    int free_events = 0;
    for (int i = 0; i < recorder.count; i++) {
        const zkl_event *event = &recorder.events[i];
        free_events += event->kind == ZKL_EVENT_LOCK && event->previous == ZKL_LOCK_HELD && event->state == ZKL_LOCK_FREE;
    }
    CHECK(free_events == 2);
    expect_client(&recorder, recorder.count - 1, ZKL_STATE_CONNECTED, ZKL_STATE_CLOSED);
    zkl_lock_free(second);
}

static int callbacks, together;

/* Takes its time. */
static void linger(void *user, const zkl_event *event)
{
    (void)event;
    if (__atomic_add_fetch(&callbacks, 1, __ATOMIC_SEQ_CST) != 1) __atomic_store_n(&together, 1, __ATOMIC_SEQ_CST);
    sleep_ms(*(int *)user);
    __atomic_sub_fetch(&callbacks, 1, __ATOMIC_SEQ_CST);
}

static void a_slow_callback_delays_others_a_little_and_never_runs_beside_them(void)
{
    int slow = 3500, fast = 1;
    zkl_client *one = NULL, *two = NULL, *three = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, linger, &fast, NULL));
    OK(zkl_client_new(servers, config, &two));
    OK(zkl_config_set_event_callback(config, linger, &slow, NULL));
    OK(zkl_client_new(servers, config, &one));
    sleep_ms(100); /* It has begun to linger. */
    int64_t start = now_ms();
    zkl_client_free(two);
    CHECK(now_ms() - start < 2000 + slack_ms());
    /* The last client goes while the thread is busy, and a new one comes: still there is only one thread. */
    OK(zkl_config_set_event_callback(config, linger, &fast, NULL));
    OK(zkl_client_new(servers, config, &three));
    zkl_config_free(config);
    zkl_client_free(one);
    zkl_client_free(three);
    CHECK(together == 0);
}

static zkl_client *freed_by_callback;
static pthread_mutex_t freeing = PTHREAD_MUTEX_INITIALIZER;

static void free_client(void *user, const zkl_event *event)
{
    pthread_mutex_lock(&freeing);
    if (event->kind == ZKL_EVENT_LOCK && event->state == ZKL_LOCK_HELD) {
        zkl_client_free(freed_by_callback);
        *(int *)user = 1;
    }
    pthread_mutex_unlock(&freeing);
}

static void a_callback_may_free_its_client(void)
{
    int done = 0;
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    OK(zkl_config_set_event_callback(config, free_client, &done, NULL));
    pthread_mutex_lock(&freeing);
    OK(zkl_client_new(servers, config, &client));
    freed_by_callback = client;
    pthread_mutex_unlock(&freeing);
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_acquire(lock);
    int64_t deadline = now_ms() + 10000;
    while (zkl_client_state(client) != ZKL_E_HANDLE) {
        CHECK(now_ms() < deadline);
        sleep_ms(5);
    }
    pthread_mutex_lock(&freeing);
    CHECK(done == 1);
    pthread_mutex_unlock(&freeing);
    EXPECT(ZKL_E_CLOSED, zkl_acquire(lock));
    zkl_lock_free(lock);
    zkl_config_free(config);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(changes_are_told_in_order);
    RUN(a_replaced_callback_is_dropped);
    RUN(a_callback_may_free_its_client);
    RUN(without_a_callback_user_is_dropped_at_once);
    RUN(what_is_freed_while_held_is_told_to_be_free);
    RUN(a_slow_callback_delays_others_a_little_and_never_runs_beside_them);
    return 0;
}
