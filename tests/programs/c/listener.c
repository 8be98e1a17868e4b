/* Listeners and callbacks of locks. After the call that removes one has returned, the library does not call it again, and no
 * call is running on another thread. Its user is dropped once. */
#include "check.h"

#include <poll.h>
#include <stdatomic.h>
#include <zklock_standalone.h>

/* Long enough for a program under valgrind. */
enum { SHORT_MS = 6000 };

static zkl_client *client;
static zkl_standalone *server;
static const char *faulty;

/* The events that a listener has received. */
struct listener_record {
    pthread_mutex_t mutex;
    int count, drops, late;
    zkl_event events[64];
    pthread_t thread;
    /* If set, a call does not return before this flag is true. */
    atomic_bool *gate;
    atomic_int inside;
    void (*also)(struct listener_record *, const zkl_event *);
    zkl_listener *listener;
    zkl_lock *lock;
};

static struct listener_record listener_record(void)
{
    return (struct listener_record){.mutex = PTHREAD_MUTEX_INITIALIZER};
}

static void on_event(void *user, const zkl_event *event)
{
    struct listener_record *record = user;
    atomic_fetch_add(&record->inside, 1);
    pthread_mutex_lock(&record->mutex);
    CHECK(event->size == sizeof *event && record->count < 64);
    record->late += record->drops;
    record->thread = pthread_self();
    record->events[record->count++] = *event;
    pthread_mutex_unlock(&record->mutex);
    if (record->gate != NULL) AWAIT(atomic_load(record->gate));
    if (record->also != NULL) record->also(record, event);
    atomic_fetch_sub(&record->inside, 1);
}

static void dropped(void *user)
{
    struct listener_record *record = user;
    pthread_mutex_lock(&record->mutex);
    record->drops++;
    pthread_mutex_unlock(&record->mutex);
}

static void must_not_drop(void *user)
{
    (void)user;
    CHECK(0);
}

static int events_received(struct listener_record *record)
{
    pthread_mutex_lock(&record->mutex);
    int count = record->count;
    CHECK(record->late == 0);
    pthread_mutex_unlock(&record->mutex);
    return count;
}

static int32_t last_state(struct listener_record *record)
{
    pthread_mutex_lock(&record->mutex);
    int32_t state = record->count == 0 ? -1 : record->events[record->count - 1].state;
    pthread_mutex_unlock(&record->mutex);
    return state;
}

static int drops(struct listener_record *record)
{
    pthread_mutex_lock(&record->mutex);
    int count = record->drops;
    pthread_mutex_unlock(&record->mutex);
    return count;
}

static zkl_listener *listen_to(zkl_lock *lock, int32_t events, struct listener_record *record)
{
    zkl_listener *listener = NULL;
    OK(zkl_lock_listen(lock, events, on_event, record, dropped, &listener));
    CHECK(listener != NULL);
    return listener;
}

/* Waits until all earlier events have been delivered. */
static void wait_for_pending_events(zkl_client *of)
{
    struct listener_record last = listener_record();
    zkl_lock *lock = new_mutex(of, fresh_path());
    zkl_listener *listener = listen_to(lock, ZKL_LISTEN_ALL, &last);
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    AWAIT(events_received(&last) == 2);
    zkl_listener_free(listener);
    zkl_lock_free(lock);
}

static zkl_client *client_of(const char *address, int32_t session_timeout_ms)
{
    zkl_config *config = zkl_config_new();
    zkl_client *made = NULL;
    OK(zkl_config_set_session_timeout_ms(config, session_timeout_ms));
    OK(zkl_client_new(address, config, &made));
    zkl_config_free(config);
    return made;
}

static void expect_step(const struct listener_record *record, int at, int32_t previous, int32_t state)
{
    const zkl_event *event = &record->events[at];
    if (event->kind != ZKL_EVENT_LOCK || event->previous != previous || event->state != state) {
        fprintf(stderr, "event %d is %d -> %d\n", at, (int)event->previous, (int)event->state);
    }
    CHECK(event->kind == ZKL_EVENT_LOCK && event->previous == previous && event->state == state);
}

/* A listener of a lock receives only the events of this lock, and a listener of a client only those of this client. */
static void each_listener_receives_only_its_lock(void)
{
    struct listener_record one = listener_record(), two = listener_record(), losses = listener_record(),
                           elsewhere_record = listener_record(), all = listener_record();
    zkl_lock *lock = new_mutex(client, fresh_path()), *other = new_mutex(client, fresh_path());
    zkl_listener *of_client = NULL;
    zkl_listener *listeners[] = {listen_to(lock, ZKL_LISTEN_ALL, &one), listen_to(lock, ZKL_LISTEN_ALL, &two),
                                 listen_to(lock, ZKL_LISTEN_LOSS, &losses),
                                 listen_to(other, ZKL_LISTEN_ALL, &elsewhere_record)};
    OK(zkl_client_listen(client, on_event, &all, dropped, &of_client));
    int64_t token = 0;
    for (int round = 0; round < 2; round++) {
        OK(zkl_acquire(lock));
        OK(zkl_fencing_token(lock, &token));
        OK(zkl_release(lock));
    }
    OK(zkl_acquire(other));
    AWAIT(events_received(&elsewhere_record) == 1 && events_received(&all) == 5);
    CHECK(events_received(&one) == 4 && events_received(&two) == 4 && events_received(&losses) == 0);
    for (int i = 0; i < 4; i += 2) {
        expect_step(&one, i, ZKL_LOCK_FREE, ZKL_LOCK_HELD);
        expect_step(&two, i + 1, ZKL_LOCK_HELD, ZKL_LOCK_FREE);
    }
    CHECK(one.events[3].token == token && one.events[0].token < token && one.events[3].lock == lock);
    CHECK(elsewhere_record.events[0].lock == other && all.events[4].lock == other);
    /* One listener is freed, and the others remain. */
    zkl_listener_free(listeners[0]);
    CHECK(drops(&one) == 1 && drops(&two) == 0);
    OK(zkl_acquire(lock));
    AWAIT(events_received(&two) == 5);
    CHECK(events_received(&one) == 4);
    for (int i = 1; i < 4; i++) zkl_listener_free(listeners[i]);
    zkl_listener_free(of_client);
    CHECK(drops(&two) == 1 && drops(&losses) == 1 && drops(&elsewhere_record) == 1 && drops(&all) == 1);
    zkl_listener_free(listeners[0]);
    zkl_listener_free(NULL);
    OK(zkl_release(lock));
    OK(zkl_release(other));
    wait_for_pending_events(client);
    CHECK(events_received(&two) == 5 && drops(&two) == 1);
    zkl_lock_free(lock);
    zkl_lock_free(other);
}

/* A call on another thread that removes a callback. */
struct removal {
    pthread_t thread;
    void (*remove)(struct removal *);
    zkl_listener *listener;
    zkl_lock *lock;
    zkl_client *client;
    zkl_semaphore *semaphore;
    atomic_bool begun, done;
};

static void *run_removal(void *user)
{
    struct removal *removal = user;
    atomic_store(&removal->begun, true);
    removal->remove(removal);
    atomic_store(&removal->done, true);
    return NULL;
}

static void free_listener(struct removal *removal)
{
    zkl_listener_free(removal->listener);
}

static void unset_of_lock(struct removal *removal)
{
    OK(zkl_lock_set_event_callback(removal->lock, NULL, NULL, NULL));
}

static void replace_of_lock(struct removal *removal)
{
    static struct listener_record next = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    OK(zkl_lock_set_event_callback(removal->lock, on_event, &next, NULL));
}

static void unset_of_client(struct removal *removal)
{
    OK(zkl_client_set_event_callback(removal->client, NULL, NULL, NULL));
}

/* The call that removes a callback waits until the running call has returned. The callback is not called again. */
static void waits_for_a_call_on_another_thread(struct removal *removal, struct listener_record *record, atomic_bool *gate)
{
    AWAIT(atomic_load(&record->inside) == 1);
    atomic_store(&removal->done, false);
    atomic_store(&removal->begun, false);
    CHECK(pthread_create(&removal->thread, NULL, run_removal, removal) == 0);
    AWAIT(atomic_load(&removal->begun));
    sleep_ms(50);
    CHECK(!atomic_load(&removal->done) && atomic_load(&record->inside) == 1 && drops(record) == 0);
    atomic_store(gate, true);
    AWAIT(atomic_load(&removal->done));
    CHECK(atomic_load(&record->inside) == 0);
    int count = events_received(record);
    CHECK(pthread_join(removal->thread, NULL) == 0);
    CHECK(drops(record) == 1);
    /* Other callbacks receive the events that were queued behind this one. */
    wait_for_pending_events(client);
    CHECK(events_received(record) == count && drops(record) == 1);
}

/* If a callback is removed while it runs on another thread, the removal waits until it has returned. */
static void removal_waits_for_a_running_call(void)
{
    void (*const removes[])(struct removal *) = {free_listener, unset_of_lock, replace_of_lock, unset_of_client, free_listener};
    for (int i = 0; i < 5; i++) {
        atomic_bool gate = false;
        struct listener_record slow = listener_record();
        slow.gate = &gate;
        zkl_lock *lock = new_mutex(client, fresh_path());
        struct removal removal = {.remove = removes[i], .lock = lock, .client = client};
        if (i == 0) removal.listener = listen_to(lock, ZKL_LISTEN_ALL, &slow);
        if (i == 1 || i == 2) OK(zkl_lock_set_event_callback(lock, on_event, &slow, dropped));
        if (i == 3) OK(zkl_client_set_event_callback(client, on_event, &slow, dropped));
        if (i == 4) OK(zkl_client_listen(client, on_event, &slow, dropped, &removal.listener));
        OK(zkl_acquire(lock));
        OK(zkl_release(lock));
        waits_for_a_call_on_another_thread(&removal, &slow, &gate);
        CHECK(events_received(&slow) == 1);
        OK(zkl_lock_set_event_callback(lock, NULL, NULL, NULL));
        zkl_lock_free(lock);
    }
}

static void on_revocation(void *user, zkl_lock *lock)
{
    struct listener_record *record = user;
    atomic_fetch_add(&record->inside, 1);
    pthread_mutex_lock(&record->mutex);
    record->late += record->drops;
    record->count++;
    pthread_mutex_unlock(&record->mutex);
    AWAIT(atomic_load(record->gate));
    CHECK(lock == record->lock);
    atomic_fetch_sub(&record->inside, 1);
}

static void on_semaphore_revocation(void *user, zkl_semaphore *semaphore)
{
    CHECK(semaphore != NULL);
    on_revocation(user, ((struct listener_record *)user)->lock);
}

static void unset_revocable(struct removal *removal)
{
    if (removal->lock != NULL) OK(zkl_set_revocable(removal->lock, NULL, NULL, NULL));
    if (removal->semaphore != NULL) OK(zkl_semaphore_set_revocable(removal->semaphore, NULL, NULL, NULL));
}

/* If a revocation callback is removed while it runs on another thread, the removal waits until it has returned. */
static void removal_waits_for_a_running_revocation_callback(void)
{
    char node[256];
    size_t needed;
    atomic_bool gate = false;
    struct listener_record slow = listener_record();
    struct removal removal = {.remove = unset_revocable, .lock = new_mutex(client, fresh_path())};
    slow.gate = &gate;
    slow.lock = removal.lock;
    OK(zkl_set_revocable(removal.lock, on_revocation, &slow, dropped));
    OK(zkl_acquire(removal.lock));
    OK(zkl_lock_node_path(removal.lock, node, sizeof node, &needed));
    OK(zkl_revoke(client, node));
    waits_for_a_call_on_another_thread(&removal, &slow, &gate);
    OK(zkl_release(removal.lock));
    zkl_lock_free(removal.lock);

    atomic_store(&gate, false);
    struct listener_record slow_too = listener_record();
    slow_too.gate = &gate;
    removal = (struct removal){.remove = unset_revocable, .semaphore = new_semaphore(client, fresh_path(), 1)};
    zkl_hold *leases = NULL;
    OK(zkl_semaphore_set_revocable(removal.semaphore, on_semaphore_revocation, &slow_too, dropped));
    OK(zkl_semaphore_acquire_timeout(removal.semaphore, 1, 60000, &leases));
    OK(zkl_hold_node_path(leases, 0, node, sizeof node, &needed));
    OK(zkl_revoke(client, node));
    waits_for_a_call_on_another_thread(&removal, &slow_too, &gate);
    OK(zkl_hold_release(leases));
    zkl_semaphore_free(removal.semaphore);
}

static void remove_itself(struct listener_record *record, const zkl_event *event)
{
    (void)event;
    /* The callback may run before the test has stored the handle. */
    AWAIT(__atomic_load_n(&record->listener, __ATOMIC_SEQ_CST) != NULL);
    zkl_listener_free(record->listener);
    /* The callback is running, so its user still exists. */
    CHECK(drops(record) == 0);
}

static void replace_itself(struct listener_record *record, const zkl_event *event)
{
    (void)event;
    OK(zkl_lock_set_event_callback(record->lock, NULL, NULL, NULL));
    CHECK(drops(record) == 0);
}

/* A callback that removes itself does not wait for its own return. */
static void callback_that_removes_itself_does_not_deadlock(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct listener_record once = listener_record(), replaced = listener_record();
    once.also = remove_itself;
    replaced.also = replace_itself;
    replaced.lock = lock;
    __atomic_store_n(&once.listener, listen_to(lock, ZKL_LISTEN_ALL, &once), __ATOMIC_SEQ_CST);
    OK(zkl_lock_set_event_callback(lock, on_event, &replaced, dropped));
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    AWAIT(drops(&once) == 1 && drops(&replaced) == 1);
    CHECK(events_received(&once) == 1 && events_received(&replaced) == 1);
    wait_for_pending_events(client);
    CHECK(events_received(&once) == 1 && events_received(&replaced) == 1);
    zkl_listener_free(once.listener);
    zkl_lock_free(lock);
}

/* A change to UNCERTAIN is a loss, and a later change to LOST is not a second loss. If the hold becomes safe again, the next
 * change to UNCERTAIN is a new loss. */
static void loss_listener_receives_only_losses(void)
{
    zkl_client *own = client_of(faulty, SHORT_MS);
    zkl_lock *lock = new_mutex(own, "/losses");
    struct listener_record losses = listener_record(), all = listener_record();
    zkl_listener *listeners[] = {listen_to(lock, ZKL_LISTEN_LOSS, &losses), listen_to(lock, ZKL_LISTEN_ALL, &all)};
    int64_t token = 0, id = zkl_client_session_id(own);
    OK(zkl_acquire(lock));
    OK(zkl_fencing_token(lock, &token));
    CHECK(zkl_standalone_expire(server, id) == ZKL_OK);
    AWAIT(events_received(&losses) == 1);
    CHECK(losses.events[0].token == token && losses.events[0].lock == lock);
    CHECK(losses.events[0].state == ZKL_LOCK_LOST || losses.events[0].state == ZKL_LOCK_UNCERTAIN);
    CHECK(losses.events[0].previous == ZKL_LOCK_HELD || losses.events[0].previous == ZKL_LOCK_SUSPENDED);
    AWAIT(zkl_lock_state(lock) == ZKL_LOCK_LOST);
    EXPECT(ZKL_E_LOST, zkl_release(lock));

    AWAIT(zkl_client_state(own) == ZKL_STATE_CONNECTED);
    OK(zkl_acquire_timeout(lock, 60000));
    CHECK(events_received(&losses) == 1);
    id = zkl_client_session_id(own);
    CHECK(zkl_standalone_freeze(server, id) == ZKL_OK);
    AWAIT(events_received(&losses) == 2);
    CHECK(losses.events[1].state == ZKL_LOCK_UNCERTAIN && zkl_is_held(lock) == 0);
    CHECK(zkl_standalone_thaw(server, id) == ZKL_OK);
    /* The hold is now safe again or LOST. Neither is a second loss. */
    AWAIT(zkl_lock_state(lock) == ZKL_LOCK_HELD || zkl_lock_state(lock) == ZKL_LOCK_LOST);
    zkl_status released = zkl_release(lock);
    CHECK(released == ZKL_OK || released == ZKL_E_LOST);
    AWAIT(last_state(&all) == ZKL_LOCK_FREE);
    CHECK(events_received(&losses) == 2);
    for (int i = 0; i < 2; i++) zkl_listener_free(listeners[i]);
    zkl_lock_free(lock);
    zkl_client_free(own);
}

static zkl_lock *witness;
static int holders;

/* No other client can get the lock before this callback returns. */
static void look_at_the_queue(struct listener_record *record, const zkl_event *event)
{
    CHECK(event->state == ZKL_LOCK_FREE && event->previous == ZKL_LOCK_HELD && event->lock == record->lock);
    holders = participants(witness);
}

/* If a client is freed, a loss listener is called for each held lock, before the session ends. */
static void freed_client_reports_its_losses(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s", fresh_path());
    zkl_client *own = new_client();
    zkl_lock *lock = new_mutex(own, path), *idle = new_mutex(own, fresh_path()), *released = new_mutex(own, fresh_path());
    struct listener_record losses = listener_record(), of_idle = listener_record(), of_released = listener_record();
    losses.also = look_at_the_queue;
    losses.lock = lock;
    witness = new_mutex(client, path);
    zkl_listener *listeners[] = {listen_to(lock, ZKL_LISTEN_LOSS, &losses), listen_to(idle, ZKL_LISTEN_LOSS, &of_idle),
                                 listen_to(released, ZKL_LISTEN_LOSS, &of_released)};
    OK(zkl_acquire(lock));
    OK(zkl_acquire(released));
    OK(zkl_release(released));
    zkl_client_free(own);
    CHECK(events_received(&losses) == 1 && holders == 1 && drops(&losses) == 1);
    CHECK(events_received(&of_idle) == 0 && events_received(&of_released) == 0);
    AWAIT(participants(witness) == 0);
    /* Listeners may be freed after their locks. */
    zkl_lock_free(lock);
    for (int i = 0; i < 3; i++) zkl_listener_free(listeners[i]);
    CHECK(drops(&losses) == 1 && drops(&of_idle) == 1);
    zkl_lock_free(idle);
    zkl_lock_free(released);
    zkl_lock_free(witness);
}

/* If a held lock is freed, its listeners receive the change to FREE, which is not a loss. */
static void freed_lock_reports_free_to_its_listener(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct listener_record all = listener_record(), losses = listener_record(), set = listener_record();
    zkl_listener *listeners[] = {listen_to(lock, ZKL_LISTEN_ALL, &all), listen_to(lock, ZKL_LISTEN_LOSS, &losses)};
    OK(zkl_lock_set_event_callback(lock, on_event, &set, dropped));
    OK(zkl_acquire(lock));
    AWAIT(events_received(&all) == 1 && events_received(&set) == 1);
    zkl_lock_free(lock);
    /* Freeing the lock removes its callback. Listeners remain until they are freed. */
    AWAIT(events_received(&all) == 2 && drops(&set) == 1);
    expect_step(&all, 1, ZKL_LOCK_HELD, ZKL_LOCK_FREE);
    CHECK(events_received(&losses) == 0 && drops(&all) == 0);
    for (int i = 0; i < 2; i++) zkl_listener_free(listeners[i]);
    CHECK(drops(&all) == 1 && drops(&losses) == 1);
    EXPECT(ZKL_E_HANDLE, zkl_lock_set_event_callback(lock, on_event, &set, must_not_drop));
    EXPECT(ZKL_E_HANDLE, zkl_lock_listen(lock, ZKL_LISTEN_ALL, on_event, &set, must_not_drop, &listeners[0]));
}

/* Events of a multi-lock name the member lock, even if locks of two clients have the same internal number or the same
 * path. */
static void multi_lock_events_name_member_locks(void)
{
    zkl_client *clients[] = {new_client(), client_of(faulty, 10000)};
    zkl_lock *one = new_mutex(clients[0], "/c-multi-listener"), *two = new_mutex(clients[1], "/c-multi-listener");
    zkl_lock *inner = new_multi(one, two), *third = new_mutex(clients[0], fresh_path()), *both = new_multi(inner, third);
    struct listener_record all = listener_record(), set = listener_record(), of_one = listener_record();
    zkl_listener *listeners[] = {listen_to(both, ZKL_LISTEN_ALL, &all), listen_to(one, ZKL_LISTEN_ALL, &of_one)};
    OK(zkl_lock_set_event_callback(both, on_event, &set, dropped));
    OK(zkl_acquire_timeout(both, 60000));
    AWAIT(events_received(&all) == 3 && events_received(&set) == 3 && events_received(&of_one) == 1);
    int seen[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++) {
        expect_step(&all, i, ZKL_LOCK_FREE, ZKL_LOCK_HELD);
        seen[0] += all.events[i].lock == one;
        seen[1] += all.events[i].lock == two;
        seen[2] += all.events[i].lock == third;
    }
    CHECK(seen[0] == 1 && seen[1] == 1 && seen[2] == 1);
    zkl_listener_free(listeners[0]);
    CHECK(drops(&all) == 1);
    OK(zkl_release(both));
    AWAIT(events_received(&set) == 6);
    CHECK(events_received(&all) == 3);
    OK(zkl_lock_set_event_callback(both, NULL, NULL, NULL));
    CHECK(drops(&set) == 1);
    zkl_lock_free(both);
    zkl_lock_free(inner);
    zkl_client_free(clients[1]);
    zkl_lock_free(two);
    zkl_lock_free(one);
    zkl_lock_free(third);
    zkl_listener_free(listeners[1]);
    zkl_client_free(clients[0]);
}

/* A listener of leases receives only the events of these leases. */
static void leases_have_listeners_of_their_own(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 3);
    zkl_hold *one = NULL, *two = NULL;
    zkl_listener *listeners[2] = {NULL, NULL};
    struct listener_record of_one = listener_record(), losses = listener_record();
    int64_t token = 0;
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 60000, &one));
    OK(zkl_hold_listen(one, ZKL_LISTEN_ALL, on_event, &of_one, dropped, &listeners[0]));
    OK(zkl_hold_listen(one, ZKL_LISTEN_LOSS, on_event, &losses, dropped, &listeners[1]));
    OK(hold_token(one, &token));
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &two));
    OK(zkl_hold_release(two));
    OK(zkl_hold_release(one));
    AWAIT(last_state(&of_one) == ZKL_LOCK_FREE);
    for (int i = 0; i < events_received(&of_one); i++) CHECK(of_one.events[i].token == token && of_one.events[i].lock == NULL);
    CHECK(events_received(&losses) == 0);
    EXPECT(ZKL_E_HANDLE, zkl_hold_listen(one, ZKL_LISTEN_ALL, on_event, &of_one, must_not_drop, &listeners[0]));
    for (int i = 0; i < 2; i++) zkl_listener_free(listeners[i]);
    CHECK(drops(&of_one) == 1 && drops(&losses) == 1);
    zkl_semaphore_free(semaphore);
}

/* If a session expires, the loss listeners of its leases are called. */
static void leases_that_are_lost_are_told(void)
{
    zkl_client *own = client_of(faulty, SHORT_MS);
    zkl_semaphore *semaphore = new_semaphore(own, "/leases-lost", 1);
    zkl_hold *leases = NULL;
    zkl_listener *listener = NULL;
    struct listener_record losses = listener_record();
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &leases));
    OK(zkl_hold_listen(leases, ZKL_LISTEN_LOSS, on_event, &losses, dropped, &listener));
    CHECK(zkl_standalone_expire(server, zkl_client_session_id(own)) == ZKL_OK);
    AWAIT(events_received(&losses) == 1);
    EXPECT(ZKL_E_LOST, zkl_hold_release(leases));
    zkl_client_free(own);
    CHECK(drops(&losses) == 1);
    zkl_listener_free(listener);
    zkl_semaphore_free(semaphore);
}

/* If a program polls for events, its listeners run on the thread that dispatches. */
static void a_program_that_polls_calls_them_itself(void)
{
    zkl_config *config = zkl_config_new();
    zkl_client *own = NULL;
    OK(zkl_config_set_poll_events(config, 1));
    OK(zkl_client_new(servers, config, &own));
    zkl_config_free(config);
    zkl_lock *lock = new_mutex(own, fresh_path());
    struct listener_record all = listener_record(), losses = listener_record();
    zkl_listener *listeners[] = {listen_to(lock, ZKL_LISTEN_ALL, &all), listen_to(lock, ZKL_LISTEN_LOSS, &losses)};
    OK(zkl_acquire(lock));
    struct pollfd poller = {.fd = zkl_client_event_fd(own), .events = POLLIN};
    CHECK(poll(&poller, 1, 60000) == 1 && events_received(&all) == 0);
    CHECK(dispatch(own) >= 1);
    CHECK(events_received(&all) == 1 && pthread_equal(all.thread, pthread_self()));
    zkl_listener_free(listeners[0]);
    OK(zkl_release(lock));
    dispatch(own);
    CHECK(events_received(&all) == 1 && drops(&all) == 1);
    /* The thread that frees the client reports the loss. */
    OK(zkl_acquire(lock));
    zkl_client_free(own);
    CHECK(events_received(&losses) == 1 && pthread_equal(losses.thread, pthread_self()));
    zkl_listener_free(listeners[1]);
    zkl_lock_free(lock);
}

/* A new event callback of a lock replaces the previous one, whose user is dropped. */
static void newly_set_callback_replaces_the_old_one(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct listener_record one = listener_record(), two = listener_record(), three = listener_record();
    OK(zkl_lock_set_event_callback(lock, on_event, &one, dropped));
    OK(zkl_lock_set_event_callback(lock, on_event, &two, dropped));
    CHECK(drops(&one) == 1 && drops(&two) == 0);
    OK(zkl_acquire(lock));
    AWAIT(events_received(&two) == 1);
    OK(zkl_lock_set_event_callback(lock, NULL, &three, dropped));
    CHECK(drops(&two) == 1 && drops(&three) == 1);
    OK(zkl_release(lock));
    wait_for_pending_events(client);
    CHECK(events_received(&one) == 0 && events_received(&two) == 1 && events_received(&three) == 0);
    /* A user without a user_drop, and no callback at all. */
    OK(zkl_lock_set_event_callback(lock, on_event, &three, NULL));
    OK(zkl_lock_set_event_callback(lock, NULL, NULL, NULL));
    OK(zkl_lock_set_event_callback(lock, NULL, NULL, NULL));
    CHECK(drops(&three) == 1);
    zkl_lock_free(lock);
}

/* If a call fails, the library does not take the user. */
static void failed_call_does_not_take_the_user_pointer(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_listener *out = (zkl_listener *)&lock;
    struct listener_record record_of_none = listener_record();
    EXPECT(ZKL_E_INVALID, zkl_lock_listen(lock, ZKL_LISTEN_ALL, NULL, &record_of_none, must_not_drop, &out));
    EXPECT_MESSAGE("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_client_listen(client, NULL, &record_of_none, must_not_drop, &out));
    EXPECT_MESSAGE("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_lock_listen(lock, ZKL_LISTEN_ALL, on_event, &record_of_none, must_not_drop, NULL));
    EXPECT_MESSAGE("listener_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_client_listen(client, on_event, &record_of_none, must_not_drop, NULL));
    EXPECT_MESSAGE("listener_out is NULL");
    const int32_t wrong[] = {2, -1, INT32_MAX, INT32_MIN, ZKL_LOCK_LOST};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char says[64];
        snprintf(says, sizeof says, "events is %d; expected ZKL_LISTEN_ALL", (int)wrong[i]);
        EXPECT(ZKL_E_INVALID, zkl_lock_listen(lock, wrong[i], on_event, &record_of_none, must_not_drop, &out));
        EXPECT_MESSAGE(says);
    }
    zkl_client *closed = new_client();
    zkl_lock *of_closed = new_mutex(closed, fresh_path());
    zkl_client_free(closed);
    EXPECT(ZKL_E_CLOSED, zkl_lock_listen(of_closed, ZKL_LISTEN_ALL, on_event, &record_of_none, must_not_drop, &out));
    EXPECT(ZKL_E_CLOSED, zkl_lock_set_event_callback(of_closed, on_event, &record_of_none, must_not_drop));
    EXPECT(ZKL_E_HANDLE, zkl_client_listen(closed, on_event, &record_of_none, must_not_drop, &out));
    /* If a member lock has been freed, the multi-lock accepts no listener and no callback. */
    zkl_lock *gone = new_mutex(client, fresh_path()), *both = new_multi(lock, gone);
    zkl_lock_free(gone);
    EXPECT(ZKL_E_CLOSED, zkl_lock_listen(both, ZKL_LISTEN_ALL, on_event, &record_of_none, must_not_drop, &out));
    EXPECT(ZKL_E_CLOSED, zkl_lock_set_event_callback(both, on_event, &record_of_none, must_not_drop));
    CHECK(out == (zkl_listener *)&lock && events_received(&record_of_none) == 0);
    zkl_lock_free(both);
    zkl_lock_free(of_closed);
    zkl_lock_free(lock);
}

/* Many threads add, replace and free listeners while events arrive. */
struct crowd {
    zkl_lock *lock;
    atomic_bool stops;
    atomic_int calls, made, gone;
};

static void count_call(void *user, const zkl_event *event)
{
    struct crowd *crowd = user;
    CHECK(event->size == sizeof *event);
    atomic_fetch_add(&crowd->calls, 1);
}

static void count_drop(void *user)
{
    struct crowd *crowd = user;
    atomic_fetch_add(&crowd->gone, 1);
}

static void *come_and_go(void *user)
{
    struct crowd *crowd = user;
    for (unsigned round = 0; !atomic_load(&crowd->stops); round++) {
        zkl_listener *listener = NULL;
        atomic_fetch_add(&crowd->made, 2);
        OK(zkl_lock_listen(crowd->lock, (int32_t)(round % 2), count_call, crowd, count_drop, &listener));
        OK(zkl_lock_set_event_callback(crowd->lock, count_call, crowd, count_drop));
        zkl_listener_free(listener);
        zkl_listener_free(listener);
    }
    return NULL;
}

/* Threads can add and free listeners while events are delivered. */
static void listeners_are_added_and_removed_during_events(void)
{
    pthread_t threads[4];
    zkl_client *own = new_client();
    struct crowd crowd = {.lock = new_mutex(own, fresh_path())};
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, come_and_go, &crowd) == 0);
    /* An event that arrives while no listener exists calls nothing. */
    int64_t deadline = now_ms() + 60000;
    for (int i = 0; i < 100 || atomic_load(&crowd.calls) == 0; i++) {
        CHECK(i < 100 || now_ms() < deadline);
        OK(zkl_acquire_timeout(crowd.lock, 60000));
        OK(zkl_release(crowd.lock));
    }
    atomic_store(&crowd.stops, true);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    OK(zkl_lock_set_event_callback(crowd.lock, NULL, NULL, NULL));
    CHECK(atomic_load(&crowd.made) == atomic_load(&crowd.gone));
    zkl_client_free(own);
    zkl_lock_free(crowd.lock);
    CHECK(atomic_load(&crowd.made) == atomic_load(&crowd.gone));
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    faulty = zkl_standalone_address(server);
    RUN(each_listener_receives_only_its_lock);
    RUN(removal_waits_for_a_running_call);
    RUN(removal_waits_for_a_running_revocation_callback);
    RUN(callback_that_removes_itself_does_not_deadlock);
    RUN(loss_listener_receives_only_losses);
    RUN(freed_client_reports_its_losses);
    RUN(freed_lock_reports_free_to_its_listener);
    RUN(multi_lock_events_name_member_locks);
    RUN(leases_have_listeners_of_their_own);
    RUN(leases_that_are_lost_are_told);
    RUN(a_program_that_polls_calls_them_itself);
    RUN(newly_set_callback_replaces_the_old_one);
    RUN(failed_call_does_not_take_the_user_pointer);
    RUN(listeners_are_added_and_removed_during_events);
    zkl_client_free(client);
    zkl_standalone_stop(server);
    return 0;
}
