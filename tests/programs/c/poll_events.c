/* Callbacks that the program dispatches itself when a descriptor is readable: their thread, their order, and their end. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include <zklock_standalone.h>

struct recorder {
    zkl_client *client;
    pthread_t thread; /* the thread that dispatches */
    int events, revocations, drops;
    zkl_event last;
    int last_state, breaks; /* the last state of the lock, and the number of gaps between its events */
    void (*also)(struct recorder *, const zkl_event *);
};

static void record(void *user, const zkl_event *event)
{
    struct recorder *recorder = user;
    CHECK(pthread_equal(recorder->thread, pthread_self()));
    CHECK(recorder->drops == 0);
    recorder->events++;
    recorder->last = *event;
    if (event->kind == ZKL_EVENT_LOCK) {
        recorder->breaks += event->previous != recorder->last_state;
        recorder->last_state = event->state;
    }
    if (recorder->also != NULL) recorder->also(recorder, event);
}

static void record_revocation(void *user, zkl_lock *lock)
{
    struct recorder *recorder = user;
    CHECK(lock != NULL && pthread_equal(recorder->thread, pthread_self()));
    recorder->revocations++;
}

static void dropped(void *user)
{
    ((struct recorder *)user)->drops++;
}

static zkl_client *polling_client(const char *address, struct recorder *recorder)
{
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, record, recorder, dropped));
    OK(zkl_config_set_poll_events(config, 1));
    OK(zkl_client_new(address, config, &recorder->client));
    zkl_config_free(config);
    recorder->thread = pthread_self();
    return recorder->client;
}

static int is_readable(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int ready = poll(&poll_fd, 1, 0);
    CHECK(ready >= 0 && (poll_fd.revents & ~POLLIN) == 0);
    return ready;
}

static int event_fd(zkl_client *client)
{
    int fd = zkl_client_event_fd(client);
    CHECK(fd >= 0 && zkl_client_event_fd(client) == fd);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    return fd;
}

static int threads(void)
{
    int count = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL);
    for (char line[256]; fgets(line, sizeof line, status) != NULL;) {
        if (sscanf(line, "Threads: %d", &count) == 1) break;
    }
    fclose(status);
    return count;
}

/* With poll_events, callbacks run only while the program dispatches. */
static void callbacks_wait_for_the_program(void)
{
    int before = threads();
    struct recorder recorder = {0};
    zkl_client *client = polling_client(servers, &recorder);
    int fd = event_fd(client);
    /* The first event. */
    AWAIT(is_readable(fd));
    CHECK(is_readable(fd) && recorder.events == 0);
    CHECK(dispatch(client) == 1);
    CHECK(recorder.events == 1 && recorder.last.state == ZKL_STATE_CONNECTED);
    CHECK(!is_readable(fd));
    CHECK(dispatch(client) == 0);

    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_set_revocable(lock, record_revocation, &recorder, NULL));
    OK(zkl_acquire(lock));
    char node[256];
    size_t needed;
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    OK(zkl_revoke(client, node));
    AWAIT(is_readable(fd));
    while (recorder.revocations == 0) CHECK(dispatch(client) >= 0);
    CHECK(recorder.events == 2 && recorder.last.lock == lock && recorder.last.state == ZKL_LOCK_HELD);
    /* Only the I/O thread exists. */
    CHECK(threads() == before + 1);

    OK(zkl_release(lock));
    CHECK(is_readable(fd) && recorder.events == 2);
    zkl_lock_free(lock);
    /* The thread that frees the client dispatches the remaining events. */
    zkl_client_free(client);
    CHECK(recorder.events == 4 && recorder.last.state == ZKL_STATE_CLOSED && recorder.drops == 1);
    CHECK(fcntl(fd, F_GETFD) == -1);
    EXPECT(ZKL_E_HANDLE, zkl_client_dispatch_events(client, &(int32_t){0}));
    CHECK(zkl_client_event_fd(client) == ZKL_E_HANDLE);
}

/* Revocation callbacks can be dispatched without an event callback. */
static void revocations_alone_can_be_polled(void)
{
    struct recorder recorder = {.thread = pthread_self()};
    zkl_client *client = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_poll_events(config, 1));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    int fd = event_fd(client);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_set_revocable(lock, record_revocation, &recorder, NULL));
    OK(zkl_acquire(lock));
    CHECK(!is_readable(fd));
    char node[256];
    size_t needed;
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    OK(zkl_revoke(client, node));
    AWAIT(is_readable(fd));
    CHECK(dispatch(client) == 1 && recorder.revocations == 1);
    zkl_client_free(client);
    zkl_lock_free(lock);
}

/* Without poll_events, zkl_client_event_fd and zkl_client_dispatch_events fail with INVALID. */
static void event_fd_without_poll_events_returns_invalid(void)
{
    zkl_client *client = new_client();
    EXPECT(ZKL_E_INVALID, zkl_client_dispatch_events(client, &(int32_t){0}));
    EXPECT_MESSAGE("poll_events");
    CHECK(zkl_client_event_fd(client) == ZKL_E_INVALID);
    EXPECT_MESSAGE("poll_events");
    zkl_client_free(client);
    EXPECT(ZKL_E_HANDLE, zkl_client_dispatch_events(NULL, &(int32_t){0}));
    CHECK(zkl_client_event_fd(NULL) == ZKL_E_HANDLE);
    zkl_config *config = zkl_config_new();
    EXPECT(ZKL_E_INVALID, zkl_config_set_poll_events(config, 2));
    EXPECT(ZKL_E_HANDLE, zkl_config_set_poll_events(NULL, 1));
    /* The option can be switched off again. */
    OK(zkl_config_set_poll_events(config, 1));
    OK(zkl_config_set_poll_events(config, 0));
    OK(zkl_client_new(servers, config, &client));
    CHECK(zkl_client_event_fd(client) == ZKL_E_INVALID);
    zkl_client_free(client);
    zkl_config_free(config);
}

static void dispatch_again(struct recorder *recorder, const zkl_event *event)
{
    (void)event;
    CHECK(dispatch(recorder->client) == 0);
    CHECK(!is_readable(zkl_client_event_fd(recorder->client)));
}

/* A dispatch inside a callback runs no further callback. */
static void a_callback_does_not_call_the_next(void)
{
    struct recorder recorder = {.also = dispatch_again};
    zkl_client *client = polling_client(servers, &recorder);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    CHECK(dispatch(client) == 3);
    recorder.also = NULL;
    zkl_lock_free(lock);
    zkl_client_free(client);
}

static void free_client(struct recorder *recorder, const zkl_event *event)
{
    if (event->kind != ZKL_EVENT_LOCK) return;
    zkl_client_free(recorder->client);
    CHECK(recorder->drops == 0);
}

/* If a callback frees its client, no further callback runs. */
static void a_callback_may_free_its_client(void)
{
    struct recorder recorder = {.also = free_client};
    zkl_client *client = polling_client(servers, &recorder);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    /* The event during the call is the last one. */
    CHECK(dispatch(client) == 2);
    CHECK(recorder.events == 2 && recorder.drops == 1);
    EXPECT(ZKL_E_HANDLE, zkl_client_dispatch_events(client, &(int32_t){0}));
    EXPECT(ZKL_E_CLOSED, zkl_acquire(lock));
    zkl_lock_free(lock);
}

struct shared {
    zkl_client *client;
    pthread_mutex_t running;
    int count, state, breaks, beside, stop, slow, entered;
};

static void count_one(void *user, const zkl_event *event)
{
    struct shared *shared = user;
    if (pthread_mutex_trylock(&shared->running) != 0) {
        __atomic_add_fetch(&shared->beside, 1, __ATOMIC_SEQ_CST);
        return;
    }
    __atomic_add_fetch(&shared->entered, 1, __ATOMIC_SEQ_CST);
    if (event->kind == ZKL_EVENT_LOCK) {
        shared->breaks += event->previous != shared->state;
        shared->state = event->state;
    }
    shared->count++;
    if (shared->slow > 0) sleep_ms(shared->slow);
    pthread_mutex_unlock(&shared->running);
}

static void *serve(void *user)
{
    struct shared *shared = user;
    while (!__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST)) {
        int fd = zkl_client_event_fd(shared->client);
        if (fd < 0) break;
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        poll(&poll_fd, 1, 20);
        int32_t called = -7;
        zkl_status status = zkl_client_dispatch_events(shared->client, &called);
        CHECK(status == ZKL_OK ? called >= 0 : called == -7);
        CHECK(status == ZKL_OK || status == ZKL_E_HANDLE || status == ZKL_E_CLOSED);
    }
    return NULL;
}

static zkl_client *shared_client(struct shared *shared)
{
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, count_one, shared, NULL));
    OK(zkl_config_set_poll_events(config, 1));
    OK(zkl_client_new(servers, config, &shared->client));
    zkl_config_free(config);
    return shared->client;
}

/* If several threads dispatch, events keep their order and no two callbacks run at the same time. */
static void several_threads_keep_the_order(void)
{
    struct shared shared = {.running = PTHREAD_MUTEX_INITIALIZER, .state = ZKL_LOCK_FREE};
    zkl_client *client = shared_client(&shared);
    pthread_t all[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&all[i], NULL, serve, &shared) == 0);
    zkl_lock *lock = new_mutex(client, fresh_path());
    for (int i = 0; i < 100; i++) {
        OK(zkl_acquire(lock));
        OK(zkl_release_nowait(lock));
    }
    AWAIT(__atomic_load_n(&shared.entered, __ATOMIC_SEQ_CST) == 201);
    __atomic_store_n(&shared.stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(all[i], NULL) == 0);
    CHECK(shared.count == 201 && shared.breaks == 0 && shared.beside == 0);
    zkl_client_free(client);
    zkl_lock_free(lock);
}

/* If a client is freed while another thread dispatches, every event is still delivered once. */
static void a_client_that_is_freed_while_another_thread_dispatches(void)
{
    /* The callbacks must end within the time limit of zkl_client_free(), also on a busy machine. */
    struct shared shared = {.running = PTHREAD_MUTEX_INITIALIZER, .state = ZKL_LOCK_FREE, .slow = 20};
    zkl_client *client = shared_client(&shared);
    zkl_lock *lock = new_mutex(client, fresh_path());
    for (int i = 0; i < 5; i++) {
        OK(zkl_acquire(lock));
        OK(zkl_release(lock));
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve, &shared) == 0);
    AWAIT(__atomic_load_n(&shared.entered, __ATOMIC_SEQ_CST) >= 2);
    zkl_client_free(client);
    /* Each event was dispatched by one of the two threads, and no call is running. */
    CHECK(shared.count == 12 && shared.breaks == 0 && shared.beside == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    zkl_lock_free(lock);
}

/* The server does not answer the end of the session, so closing takes the maximum time. The last events are still
 * delivered. */
static void silent_server_loses_no_event(void)
{
    zkl_standalone *server = NULL;
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    struct recorder recorder = {0};
    zkl_client *client = polling_client(zkl_standalone_address(server), &recorder);
    zkl_lock *lock = new_mutex(client, "/silent");
    OK(zkl_acquire(lock));
    CHECK(dispatch(client) == 2);
    CHECK(zkl_standalone_freeze(server, 0) == ZKL_OK);
    zkl_client_free(client);
    CHECK(recorder.events == 4 && recorder.last_state == ZKL_LOCK_FREE && recorder.drops == 1);
    CHECK(recorder.last.kind == ZKL_EVENT_CLIENT && recorder.last.state == ZKL_STATE_CLOSED);
    zkl_lock_free(lock);
    zkl_standalone_stop(server);
}

struct loop {
    int epoll, ended;
};

static void *wait_for_the_end(void *user)
{
    struct loop *loop = user;
    struct epoll_event event;
    __atomic_store_n(&loop->ended, epoll_wait(loop->epoll, &event, 1, -1) == 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* epoll removes a closed descriptor only if it has no duplicate. */
static void a_duplicate_is_readable_after_the_end(void)
{
    const uint32_t triggers[] = {EPOLLIN, EPOLLIN | EPOLLET};
    for (int i = 0; i < 2; i++) {
        zkl_client *client = NULL;
        zkl_config *config = zkl_config_new();
        OK(zkl_config_set_poll_events(config, 1));
        OK(zkl_client_new(servers, config, &client));
        zkl_config_free(config);
        struct loop loop = {.epoll = epoll_create1(EPOLL_CLOEXEC)};
        int fd = fcntl(event_fd(client), F_DUPFD_CLOEXEC, 0);
        struct epoll_event event = {.events = triggers[i]};
        CHECK(loop.epoll >= 0 && fd >= 0 && epoll_ctl(loop.epoll, EPOLL_CTL_ADD, fd, &event) == 0);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, wait_for_the_end, &loop) == 0);
        zkl_client_free(client);
        CHECK(pthread_join(thread, NULL) == 0 && loop.ended && is_readable(fd));
        close(fd);
        close(loop.epoll);
    }
}

/* A program that does not dispatch for a long time receives merged events, but it receives the end of every hold. */
static void undispatched_events_are_bounded_and_keep_losses(void)
{
    zkl_standalone *server = NULL;
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    struct recorder recorder = {.last_state = ZKL_LOCK_FREE};
    zkl_client *client = polling_client(zkl_standalone_address(server), &recorder);
    zkl_lock *lock = new_mutex(client, "/long");
    for (int i = 0; i < 2000; i++) {
        OK(zkl_acquire_timeout(lock, 10000));
        OK(zkl_release_nowait(lock));
    }
    OK(zkl_acquire_timeout(lock, 10000));
    CHECK(zkl_standalone_expire(server, 0) == ZKL_OK);
    AWAIT(zkl_lock_state(lock) == ZKL_LOCK_LOST);
    int32_t waiting = dispatch(client);
    CHECK(waiting > 1024 && waiting < 1100);
    /* An event that arrives during the dispatch could be merged with a later one. */
    AWAIT(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    while (dispatch(client) > 0) continue;
    CHECK(recorder.last_state == ZKL_LOCK_LOST && recorder.breaks == 0);
    EXPECT(ZKL_E_LOST, zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
    CHECK(recorder.last_state == ZKL_LOCK_FREE && recorder.breaks == 0);
    CHECK(recorder.last.kind == ZKL_EVENT_CLIENT && recorder.last.state == ZKL_STATE_CLOSED);
    zkl_standalone_stop(server);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(callbacks_wait_for_the_program);
    RUN(revocations_alone_can_be_polled);
    RUN(event_fd_without_poll_events_returns_invalid);
    RUN(a_callback_does_not_call_the_next);
    RUN(a_callback_may_free_its_client);
    RUN(several_threads_keep_the_order);
    RUN(a_client_that_is_freed_while_another_thread_dispatches);
    RUN(silent_server_loses_no_event);
    RUN(a_duplicate_is_readable_after_the_end);
    RUN(undispatched_events_are_bounded_and_keep_losses);
    return 0;
}
