/* Events: every change is reported in order and on one thread. The tests also check what a callback may do, and that user is
 * dropped once, after the last call. */
#include "check.h"

struct recorder {
    pthread_mutex_t mutex;
    zkl_event events[64];
    char paths[64][64];
    int count;
    int drops;
    int late; /* calls after the drop */
    pthread_t thread;
    int threads; /* calls on another thread than the call before */
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
    /* A callback may query the lock. The query succeeds as long as the client exists. */
    if (event->lock != NULL) {
        int32_t state = zkl_lock_state_in_process(event->lock);
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

/* The events of a session and of its hold are delivered in order. */
static void events_are_delivered_in_order(void)
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

/* If another callback replaces the callback of a config, the library drops its user. */
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

/* If the callback is NULL, the library drops the user immediately. */
static void without_a_callback_user_is_dropped_at_once(void)
{
    struct recorder recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, NULL, &recorder, dropped));
    CHECK(recorder.drops == 1);
    zkl_config_free(config);
    CHECK(recorder.drops == 1);
}

/* A callback that is set on an existing client is called in addition to the callback of its config. */
static void callback_can_be_set_after_connect(void)
{
    struct recorder first = {.mutex = PTHREAD_MUTEX_INITIALIZER}, one = first, two = first;
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL, *plain = new_client();
    OK(zkl_config_set_event_callback(config, record, &first, dropped));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    zkl_lock *lock = new_mutex(client, fresh_path()), *other = new_mutex(plain, fresh_path());
    OK(zkl_acquire(lock));
    AWAIT(__atomic_load_n(&first.count, __ATOMIC_SEQ_CST) == 2);
    OK(zkl_client_set_event_callback(client, record, &one, dropped));
    OK(zkl_client_set_event_callback(plain, record, &two, dropped));
    OK(zkl_release(lock));
    OK(zkl_acquire(other));
    /* Both callbacks receive the event. */
    AWAIT(__atomic_load_n(&first.count, __ATOMIC_SEQ_CST) == 3 && __atomic_load_n(&one.count, __ATOMIC_SEQ_CST) == 1);
    CHECK(one.events[0].previous == ZKL_LOCK_HELD && one.events[0].state == ZKL_LOCK_FREE && one.events[0].lock == lock);
    AWAIT(__atomic_load_n(&two.count, __ATOMIC_SEQ_CST) == 1);
    CHECK(two.events[0].previous == ZKL_LOCK_FREE && two.events[0].state == ZKL_LOCK_HELD && two.events[0].lock == other);
    /* The library drops the previous user, and calls no callback any more. */
    OK(zkl_client_set_event_callback(client, NULL, &one, dropped));
    AWAIT(__atomic_load_n(&one.drops, __ATOMIC_SEQ_CST) == 2);
    zkl_client_free(client);
    CHECK(first.drops == 1 && first.count == 4 && one.count == 1 && one.drops == 2);
    EXPECT(ZKL_E_HANDLE, zkl_client_set_event_callback(client, record, &one, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_client_set_event_callback(NULL, record, &one, dropped));
    CHECK(one.drops == 2);
    zkl_client_free(plain);
    CHECK(two.drops == 1);
    expect_client(&two, two.count - 1, ZKL_STATE_CONNECTED, ZKL_STATE_CLOSED);
    zkl_lock_free(lock);
    zkl_lock_free(other);
}

/* If a held lock or its client is freed, an event reports FREE for the lock. */
static void freeing_a_held_lock_reports_free(void)
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

/* The time at which each call of a callback ends, and the number of calls that have begun. */
struct pause {
    int64_t end_ms;
    int begun;
};

/* A callback that returns at its end time, and detects concurrent calls. */
static void linger(void *user, const zkl_event *event)
{
    struct pause *pause = user;
    (void)event;
    if (__atomic_add_fetch(&callbacks, 1, __ATOMIC_SEQ_CST) != 1) __atomic_store_n(&together, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&pause->begun, 1, __ATOMIC_SEQ_CST);
    do sleep_ms(1);
    while (now_ms() < __atomic_load_n(&pause->end_ms, __ATOMIC_SEQ_CST));
    __atomic_sub_fetch(&callbacks, 1, __ATOMIC_SEQ_CST);
}

/* A slow callback delays the end of another client only a little, and no two callbacks run at the same time. */
static void callbacks_never_run_concurrently(void)
{
    struct pause slow = {now_ms() + 120000, 0}, fast = {0, 0};
    zkl_client *one = NULL, *two = NULL, *three = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, linger, &fast, NULL));
    OK(zkl_client_new(servers, config, &two));
    OK(zkl_config_set_event_callback(config, linger, &slow, NULL));
    OK(zkl_client_new(servers, config, &one));
    AWAIT(__atomic_load_n(&slow.begun, __ATOMIC_SEQ_CST) == 1);
    int64_t start = now_ms();
    zkl_client_free(two);
    CHECK(now_ms() - start < 2000 + slack_ms());
    /* The last client is freed while the event thread is busy, and a new client is created. There must still be only one
     * event thread. */
    OK(zkl_config_set_event_callback(config, linger, &fast, NULL));
    OK(zkl_client_new(servers, config, &three));
    zkl_config_free(config);
    __atomic_store_n(&slow.end_ms, now_ms() + 300, __ATOMIC_SEQ_CST);
    zkl_client_free(one);
    zkl_client_free(three);
    CHECK(together == 0);
}

static void count_event(void *user, const zkl_event *event)
{
    (void)event;
    __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

/* A loss does not wait for the callback of another client. */
static void a_slow_callback_does_not_delay_a_loss(void)
{
    struct pause slow = {now_ms() + 120000, 0};
    int losses = 0;
    zkl_client *one = NULL, *two = NULL;
    zkl_lock *lock = NULL;
    zkl_listener *listener = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, linger, &slow, NULL));
    OK(zkl_client_new(servers, config, &one));
    zkl_config_free(config);
    AWAIT(__atomic_load_n(&slow.begun, __ATOMIC_SEQ_CST) == 1);
    OK(zkl_client_new(servers, NULL, &two));
    OK(zkl_mutex_new(two, "/c-tests/slow-callback", &lock));
    OK(zkl_lock_listen(lock, ZKL_LISTEN_LOSS, count_event, &losses, NULL, &listener));
    OK(zkl_acquire(lock));
    /* The end of the client is a loss. */
    zkl_client_free(two);
    CHECK(__atomic_load_n(&losses, __ATOMIC_SEQ_CST) == 1);
    __atomic_store_n(&slow.end_ms, 0, __ATOMIC_SEQ_CST);
    zkl_listener_free(listener);
    zkl_lock_free(lock);
    zkl_client_free(one);
}

static zkl_client *freed_by_callback;
static pthread_mutex_t freeing = PTHREAD_MUTEX_INITIALIZER;

static void free_client(void *user, const zkl_event *event)
{
    pthread_mutex_lock(&freeing);
    if (event->kind == ZKL_EVENT_LOCK && event->state == ZKL_LOCK_HELD) zkl_client_free(freed_by_callback);
    __atomic_fetch_add((int *)user, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&freeing);
}

/* If a callback frees its client, the library calls it no more. */
static void a_callback_may_free_its_client(void)
{
    int told = 0;
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    OK(zkl_config_set_event_callback(config, free_client, &told, NULL));
    pthread_mutex_lock(&freeing);
    OK(zkl_client_new(servers, config, &client));
    freed_by_callback = client;
    pthread_mutex_unlock(&freeing);
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_status acquired = zkl_acquire(lock);
    CHECK(acquired == ZKL_OK || acquired == ZKL_E_CLOSED);
    int64_t deadline = now_ms() + 60000;
    while (zkl_client_state(client) != ZKL_E_HANDLE) {
        CHECK(now_ms() < deadline);
        sleep_ms(5);
    }
    pthread_mutex_lock(&freeing);
    CHECK(told == 2);
    pthread_mutex_unlock(&freeing);
    EXPECT(ZKL_E_CLOSED, zkl_acquire(lock));
    zkl_lock_free(lock);
    zkl_config_free(config);
}

/* If the first of two callbacks frees the client, the second is not called. */
static void a_callback_may_free_its_client_before_another_is_called(void)
{
    int told = 0;
    struct recorder second = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    OK(zkl_config_set_event_callback(config, free_client, &told, NULL));
    OK(zkl_client_new(servers, config, &client));
    /* The first callback has received the connected event, so the second one does not receive it. */
    AWAIT(__atomic_load_n(&told, __ATOMIC_SEQ_CST) == 1);
    pthread_mutex_lock(&freeing);
    OK(zkl_client_set_event_callback(client, record, &second, dropped));
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_op *op = NULL;
    OK(zkl_acquire_start(lock, 1, -1, &op));
    freed_by_callback = client;
    pthread_mutex_unlock(&freeing);
    AWAIT(__atomic_load_n(&second.drops, __ATOMIC_SEQ_CST) == 1);
    CHECK(second.count == 0);
    zkl_op_free(op);
    zkl_lock_free(lock);
    zkl_config_free(config);
}

/* The objects that a callback uses, and its progress. */
struct work {
    zkl_client *client;
    zkl_lock *mutex;
    zkl_semaphore *semaphore;
    int begun, done;
};

/* Calls every function that a callback may call, and checks the results. */
static void *call_everything(void *user)
{
    struct work *work = user;
    zkl_client *client = work->client, *other = NULL;
    zkl_lock *lock = NULL, *read = NULL, *write = NULL, *multi = NULL;
    zkl_semaphore *semaphore = NULL;
    zkl_hold *leases = NULL;
    int64_t number;
    int32_t count;
    char node[256];
    size_t needed;
    char path[64];
    snprintf(path, sizeof path, "/c/%ld-all-%lx", (long)getpid(), (unsigned long)pthread_self());
    OK(zkl_mutex_new(client, path, &lock));
    OK(zkl_set_revocable(lock, NULL, NULL, NULL));
    OK(zkl_lock_set_data(lock, NULL, 0));
    OK(zkl_acquire_timeout(lock, 0));
    OK(zkl_acquire_timeout(lock, 0));
    CHECK(zkl_is_held(lock) == 1 && zkl_is_held_in_process(lock) == 1 && zkl_lock_state(lock) == ZKL_LOCK_HELD);
    OK(zkl_fencing_token(lock, &number));
    OK(zkl_remaining_ms(lock, &number));
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    CHECK(participants(lock) == 1 && queue_length(lock) == 1);
    OK(zkl_revoke(client, node));
    OK(zkl_cancel(lock));
    OK(zkl_release(lock));
    OK(zkl_release_nowait(lock));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(lock));
    zkl_lock_free(lock);
    OK(zkl_rwlock_new(client, path, &read, &write));
    OK(zkl_multi_new(&read, 1, &multi));
    OK(zkl_acquire_timeout(multi, 0));
    OK(zkl_release(multi));
    zkl_lock_free(multi);
    zkl_lock_free(read);
    zkl_lock_free(write);
    strcat(path, "-semaphore");
    OK(zkl_semaphore_new(client, path, 2, &semaphore));
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 0, &leases));
    CHECK(semaphore_participants(semaphore) == 2);
    OK(zkl_semaphore_cancel(semaphore));
    OK(zkl_hold_release(leases));
    zkl_semaphore_free(semaphore);
    strcat(path, "-count");
    OK(zkl_shared_count_set(client, path, 3));
    OK(zkl_shared_count_get(client, path, &count));
    CHECK(count == 3);
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED && zkl_client_session_id(client) != 0);
    OK(zkl_client_new(servers, NULL, &other));
    zkl_client_free(other);
    return NULL;
}

/* Calls the functions that wait, which must fail as the table in the header says. */
static void call_what_waits(struct work *work)
{
    zkl_hold *leases = NULL;
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire(work->mutex));
    EXPECT_MESSAGE("another thread");
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire_timeout(work->mutex, 1));
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire_timeout(work->mutex, -1));
    EXPECT(ZKL_E_DEADLOCK, zkl_semaphore_acquire_timeout(work->semaphore, 1, 1, &leases));
    EXPECT(ZKL_E_DEADLOCK, zkl_semaphore_acquire_timeout(work->semaphore, 1, -1, &leases));
    /* The failed calls have left no node behind. */
    CHECK(leases == NULL && participants(work->mutex) == 0 && semaphore_participants(work->semaphore) == 0);
}

static void work_once(struct work *work)
{
    if (__atomic_exchange_n(&work->begun, 1, __ATOMIC_SEQ_CST) != 0) return;
    call_what_waits(work);
    call_everything(work);
    /* The library holds no internal lock during a callback, so another thread can call it. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_everything, work) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    __atomic_store_n(&work->done, 1, __ATOMIC_SEQ_CST);
}

static void work_on_event(void *user, const zkl_event *event)
{
    if (event->kind == ZKL_EVENT_LOCK) work_once(user);
}

static void work_on_request(void *user, zkl_lock *lock)
{
    (void)lock;
    work_once(user);
}

static void work_on_drop(void *user)
{
    work_once(user);
}

enum occasion { AN_EVENT, A_REQUEST, A_DROP };

/* A callback that removes itself. The library drops its user after it has returned. */
static void replace(void *user, zkl_lock *lock)
{
    (void)user;
    OK(zkl_set_revocable(lock, NULL, NULL, NULL));
}

static void a_callback_may_do_all_but_wait(enum occasion occasion, int polls)
{
    struct work work = {0}, *user = &work;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_poll_events(config, polls));
    if (occasion == AN_EVENT) OK(zkl_config_set_event_callback(config, work_on_event, user, NULL));
    OK(zkl_client_new(servers, config, &work.client));
    zkl_config_free(config);
    zkl_lock *asked = new_mutex(work.client, fresh_path());
    work.mutex = new_mutex(work.client, fresh_path());
    work.semaphore = new_semaphore(work.client, fresh_path(), 1);
    if (occasion == A_REQUEST) OK(zkl_set_revocable(asked, work_on_request, user, NULL));
    if (occasion == A_DROP) OK(zkl_set_revocable(asked, replace, user, work_on_drop));
    OK(zkl_acquire(asked));
    char node[256];
    size_t needed;
    OK(zkl_lock_node_path(asked, node, sizeof node, &needed));
    if (occasion != AN_EVENT) OK(zkl_revoke(work.client, node));
    int64_t deadline = now_ms() + 60000;
    while (!__atomic_load_n(&work.done, __ATOMIC_SEQ_CST)) {
        CHECK(now_ms() < deadline);
        if (polls) CHECK(dispatch(work.client) >= 0);
        sleep_ms(2);
    }
    /* After the callback, the thread may wait again. */
    OK(zkl_acquire(work.mutex));
    zkl_client_free(work.client);
    zkl_lock_free(asked);
    zkl_lock_free(work.mutex);
    zkl_semaphore_free(work.semaphore);
}

/* In a callback, functions that wait for others fail with DEADLOCK, and all other functions work. */
static void waiting_calls_in_a_callback_return_deadlock(void)
{
    for (int polls = 0; polls <= 1; polls++) {
        a_callback_may_do_all_but_wait(AN_EVENT, polls);
        a_callback_may_do_all_but_wait(A_REQUEST, polls);
        a_callback_may_do_all_but_wait(A_DROP, polls);
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(events_are_delivered_in_order);
    RUN(a_replaced_callback_is_dropped);
    RUN(a_callback_may_free_its_client);
    RUN(a_callback_may_free_its_client_before_another_is_called);
    RUN(without_a_callback_user_is_dropped_at_once);
    RUN(callback_can_be_set_after_connect);
    RUN(freeing_a_held_lock_reports_free);
    RUN(waiting_calls_in_a_callback_return_deadlock);
    RUN(callbacks_never_run_concurrently);
    RUN(a_slow_callback_does_not_delay_a_loss);
    return 0;
}
