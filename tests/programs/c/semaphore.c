/* Semaphores, leases and counts, used from C. */
#include "check.h"

static zkl_client *client, *other;

static zkl_hold *acquire(zkl_semaphore *semaphore, int32_t quantity)
{
    zkl_hold *leases = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, quantity, 60000, &leases));
    CHECK(leases != NULL);
    return leases;
}

/* An acquire on another thread. */
struct wait {
    pthread_t thread;
    zkl_semaphore *semaphore;
    int32_t quantity;
    int64_t timeout_ms;
    zkl_status status;
    zkl_hold *leases;
};

static void *run_wait(void *argument)
{
    struct wait *wait = argument;
    wait->status = zkl_semaphore_acquire_timeout(wait->semaphore, wait->quantity, wait->timeout_ms, &wait->leases);
    return NULL;
}

static void start_wait(struct wait *wait, zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms)
{
    *wait = (struct wait){.semaphore = semaphore, .quantity = quantity, .timeout_ms = timeout_ms};
    CHECK(pthread_create(&wait->thread, NULL, run_wait, wait) == 0);
}

static zkl_status end_wait(struct wait *wait)
{
    CHECK(pthread_join(wait->thread, NULL) == 0);
    CHECK((wait->leases != NULL) == (wait->status == ZKL_OK));
    return wait->status;
}

static void *release_here(void *leases)
{
    OK(zkl_hold_release(leases));
    return NULL;
}

/* Leases are granted up to the maximum, and further acquires time out. */
static void leases_are_shared_out(void)
{
    const char *path = fresh_path();
    zkl_semaphore *ours = new_semaphore(client, path, 3), *theirs = new_semaphore(other, path, 3);
    zkl_hold *two = acquire(ours, 2), *one = acquire(theirs, 1), *none = (zkl_hold *)&none;
    int64_t first = 0, second = 0, remaining = -7;
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(ours, 1, 0, &none));
    EXPECT_MESSAGE(path);
    int64_t start = now_ms();
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(theirs, 2, LIMIT_MS, &none));
    CHECK(now_ms() - start >= LIMIT_MS - 1);
    CHECK(none == (zkl_hold *)&none);
    /* The library deletes the nodes of the call that timed out after the call has returned. */
    AWAIT(semaphore_participants(ours) == 3);

    CHECK(zkl_hold_is_held(two) == 1 && hold_state(two) == ZKL_LOCK_HELD);
    OK(hold_token(two, &first));
    OK(hold_token(one, &second));
    CHECK(first > 0 && second > first);
    OK(hold_remaining(two, &remaining));
    CHECK(remaining > 0 && remaining < 10000);

    /* Any thread that has the handle may release the leases. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, release_here, two) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    EXPECT(ZKL_E_HANDLE, zkl_hold_release(two));
    EXPECT_MESSAGE("was freed");
    EXPECT_NOT_SAFE(zkl_hold_is_held(two), "was freed");
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(ours, 3, 0, &none));
    two = acquire(theirs, 2);
    OK(zkl_hold_release(two));
    OK(zkl_hold_release(one));
    one = acquire(ours, 3);
    OK(zkl_hold_release(one));
    CHECK(semaphore_participants(ours) == 0);
    zkl_semaphore_free(ours);
    zkl_semaphore_free(theirs);
}

/* An invalid quantity or maximum fails with INVALID, and the message contains it. */
static void wrong_quantities_are_refused(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 2), *none = (zkl_semaphore *)&none;
    zkl_hold *leases = (zkl_hold *)&leases;
    static const int32_t wrong[] = {0, -1, INT32_MIN, 3, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char value[32];
        snprintf(value, sizeof value, "%" PRId32, wrong[i]);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_timeout(semaphore, wrong[i], -1, &leases));
        EXPECT_MESSAGE(value);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_timeout(semaphore, wrong[i], 0, &leases));
    }
    zkl_semaphore_free(semaphore);
    static const int32_t no_maximum[] = {0, -1, INT32_MIN};
    for (size_t i = 0; i < sizeof no_maximum / sizeof *no_maximum; i++) {
        char value[32];
        snprintf(value, sizeof value, "%" PRId32, no_maximum[i]);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new(client, "/a", no_maximum[i], &none));
        EXPECT_MESSAGE(value);
    }
    CHECK(none == (zkl_semaphore *)&none);
    /* The library rejects a quantity that does not fit into one transaction. Other calls do not wait for it. */
    semaphore = new_semaphore(client, fresh_path(), INT32_MAX);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_timeout(semaphore, INT32_MAX, -1, &leases));
    EXPECT_MESSAGE("transaction");
    CHECK(leases == (zkl_hold *)&leases);
    leases = acquire(semaphore, 1);
    OK(zkl_hold_release(leases));
    zkl_semaphore_free(semaphore);
}

/* Acquires are served in queue order, whatever their quantities. */
static void requests_are_served_in_their_order(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 2);
    zkl_hold *one = acquire(semaphore, 1);
    struct wait large, small;
    start_wait(&large, semaphore, 2, 60000);
    AWAIT(semaphore_participants(semaphore) >= 2);
    start_wait(&small, semaphore, 1, -1);
    AWAIT(semaphore_participants(semaphore) >= 3);
    OK(zkl_hold_release(one));
    CHECK(end_wait(&large) == ZKL_OK);
    OK(zkl_hold_release(large.leases));
    CHECK(end_wait(&small) == ZKL_OK);
    OK(zkl_hold_release(small.leases));
    zkl_semaphore_free(semaphore);
}

/* zkl_semaphore_cancel ends waiting acquires with CANCELED. */
static void cancel_wakes_those_that_wait(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 1);
    zkl_hold *one = acquire(semaphore, 1);
    struct wait waits[2];
    OK(zkl_semaphore_cancel(semaphore));
    for (int i = 0; i < 2; i++) {
        start_wait(&waits[i], semaphore, 1, -1);
        AWAIT(semaphore_participants(semaphore) >= 2 + i);
    }
    OK(zkl_semaphore_cancel(semaphore));
    for (int i = 0; i < 2; i++) CHECK(end_wait(&waits[i]) == ZKL_E_CANCELED);
    CHECK(zkl_hold_is_held(one) == 1);
    OK(zkl_hold_release(one));
    one = acquire(semaphore, 1);
    OK(zkl_hold_release(one));
    zkl_semaphore_free(semaphore);
}

/* Leases remain held after their semaphore is freed. */
static void leases_outlive_their_semaphore(void)
{
    const char *path = fresh_path();
    zkl_semaphore *semaphore = new_semaphore(client, path, 2), *same = new_semaphore(client, path, 2);
    zkl_hold *two = acquire(semaphore, 2), *none = NULL;
    struct wait wait;
    int64_t token = 0;
    char node[256];
    size_t needed = 0;
    start_wait(&wait, semaphore, 1, -1);
    AWAIT(semaphore_participants(same) >= 3);
    zkl_semaphore_free(semaphore);
    CHECK(end_wait(&wait) == ZKL_E_CLOSED);
    EXPECT(ZKL_E_HANDLE, zkl_semaphore_acquire_timeout(semaphore, 1, 0, &none));
    CHECK(zkl_hold_is_held(two) == 1 && hold_state(two) == ZKL_LOCK_HELD);
    OK(hold_token(two, &token));
    OK(zkl_hold_node_path(two, 1, node, sizeof node, &needed));
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(same, 1, 0, &none));
    OK(zkl_hold_release(two));
    two = acquire(same, 2);
    OK(zkl_hold_release(two));
    zkl_semaphore_free(same);
}

/* Freeing a client returns its leases, and later calls on them fail with CLOSED. */
static void client_close_returns_its_leases(void)
{
    char path[64];
    strcpy(path, fresh_path());
    zkl_client *closing = new_client();
    zkl_semaphore *semaphore = new_semaphore(closing, path, 1), *witness = new_semaphore(client, path, 1), *none = NULL;
    zkl_hold *one = acquire(semaphore, 1), *out = NULL;
    struct wait wait;
    int64_t number = -7;
    int32_t value = -7;
    char node[256];
    size_t needed = 7;
    start_wait(&wait, semaphore, 1, -1);
    AWAIT(semaphore_participants(witness) >= 2);
    zkl_client_free(closing);
    CHECK(end_wait(&wait) == ZKL_E_CLOSED);
    EXPECT(ZKL_E_CLOSED, zkl_semaphore_acquire_timeout(semaphore, 1, 0, &out));
    EXPECT(ZKL_E_CLOSED, zkl_semaphore_cancel(semaphore));
    EXPECT(ZKL_E_CLOSED, zkl_semaphore_set_data(semaphore, NULL, 0));
    EXPECT(ZKL_E_CLOSED, zkl_semaphore_participants(semaphore, count_participant, &value));
    EXPECT_NOT_SAFE(zkl_hold_is_held(one), zkl_strerror(ZKL_E_CLOSED));
    EXPECT(ZKL_E_CLOSED, hold_state(one));
    EXPECT(ZKL_E_CLOSED, hold_token(one, &number));
    EXPECT(ZKL_E_CLOSED, hold_remaining(one, &number));
    EXPECT(ZKL_E_CLOSED, zkl_hold_node_path(one, 0, node, sizeof node, &needed));
    EXPECT(ZKL_E_HANDLE, zkl_semaphore_new(closing, path, 1, &none));
    EXPECT(ZKL_E_HANDLE, zkl_shared_count_get(closing, path, &value));
    CHECK(number == -7 && value == -7 && needed == 7 && out == NULL && none == NULL);
    zkl_hold *free_again = acquire(witness, 1);
    zkl_semaphore_free(semaphore);
    EXPECT(ZKL_E_CLOSED, zkl_hold_release(one));
    EXPECT(ZKL_E_HANDLE, zkl_hold_release(one));
    OK(zkl_hold_release(free_again));
    zkl_semaphore_free(witness);
}

struct seen {
    int holders, others;
    size_t data_len;
};

static void see(void *user, const zkl_participant *participant)
{
    struct seen *seen = user;
    CHECK(participant->size >= sizeof *participant);
    if (participant->holds) {
        CHECK(seen->others == 0);
        CHECK(participant->data_len == 5 && memcmp(participant->data, "ours", 5) == 0);
        seen->holders++;
    } else {
        seen->others++;
    }
}

/* Each lease has its own node, which contains the data of the semaphore. */
static void each_lease_has_a_node_with_data(void)
{
    const char *path = fresh_path();
    zkl_semaphore *semaphore = new_semaphore(client, path, 3);
    OK(zkl_semaphore_set_data(semaphore, "ours", 5));
    zkl_hold *two = acquire(semaphore, 2);
    struct wait wait;
    start_wait(&wait, semaphore, 2, -1);
    struct seen seen = {0, 0, 0};
    AWAIT(semaphore_participants(semaphore) >= 3);
    OK(zkl_semaphore_cancel(semaphore));
    CHECK(end_wait(&wait) == ZKL_E_CANCELED);
    AWAIT(semaphore_participants(semaphore) == 2);
    OK(zkl_semaphore_participants(semaphore, see, &seen));
    CHECK(seen.holders == 2 && seen.others == 0);

    char nodes[2][256], small[256];
    size_t needed[2] = {0, 0}, unset = 7;
    for (size_t i = 0; i < 2; i++) {
        OK(zkl_hold_node_path(two, i, nodes[i], sizeof nodes[i], &needed[i]));
        CHECK(needed[i] == strlen(nodes[i]) + 1);
        CHECK(strncmp(nodes[i], path, strlen(path)) == 0 && strstr(nodes[i], "/leases/") != NULL);
    }
    CHECK(strcmp(nodes[0], nodes[1]) != 0);
    memset(small, 'x', sizeof small);
    EXPECT(ZKL_E_BUFFER, zkl_hold_node_path(two, 0, small, needed[0] - 1, &unset));
    CHECK(unset == needed[0] && small[0] == 'x');
    EXPECT(ZKL_E_BUFFER, zkl_hold_node_path(two, 0, NULL, 0, &unset));
    CHECK(unset == needed[0]);
    OK(zkl_hold_node_path(two, 0, small, needed[0], &unset));
    CHECK(strcmp(small, nodes[0]) == 0 && small[needed[0]] == 'x');
    unset = 7;
    static const size_t absent[] = {2, 3, SIZE_MAX};
    for (size_t i = 0; i < 3; i++) {
        EXPECT(ZKL_E_INVALID, zkl_hold_node_path(two, absent[i], small, sizeof small, &unset));
        EXPECT_MESSAGE("expected less than 2");
    }
    CHECK(unset == 7);
    OK(zkl_hold_release(two));
    zkl_semaphore_free(semaphore);
}

/* The maximum of a counted semaphore is the value of its count. */
static void shared_count_limits_the_leases(void)
{
    char path[64], count_path[64];
    strcpy(path, fresh_path());
    strcpy(count_path, fresh_path());
    zkl_semaphore *semaphore = NULL;
    int32_t value = -7;
    EXPECT(ZKL_E_SERVER, zkl_shared_count_get(client, count_path, &value));
    EXPECT_MESSAGE(count_path);
    CHECK(value == -7);
    OK(zkl_semaphore_new_counted(client, path, count_path, 1, &semaphore));
    OK(zkl_shared_count_get(other, count_path, &value));
    CHECK(value == 1);
    zkl_hold *one = acquire(semaphore, 1), *none = NULL;
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(semaphore, 1, 0, &none));
    /* An acquire may wait for more leases than the count allows now. */
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(semaphore, 2, 0, &none));
    struct wait wait;
    start_wait(&wait, semaphore, 2, -1);
    OK(zkl_shared_count_set(other, count_path, 2));
    AWAIT(semaphore_participants(semaphore) >= 2);
    OK(zkl_shared_count_set(other, count_path, 3));
    CHECK(end_wait(&wait) == ZKL_OK);
    /* The count exists already, so the initial value of the second semaphore has no effect. */
    zkl_semaphore *same = NULL;
    OK(zkl_semaphore_new_counted(other, path, count_path, 100, &same));
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(same, 1, 0, &none));
    OK(zkl_shared_count_set(client, count_path, 0));
    CHECK(zkl_hold_is_held(one) == 1 && zkl_hold_is_held(wait.leases) == 1);
    OK(zkl_hold_release(one));
    OK(zkl_hold_release(wait.leases));
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(same, 1, 0, &none));
    zkl_semaphore_free(semaphore);
    zkl_semaphore_free(same);
}

/* A count can be set by one client and read by another. */
static void counts_are_read_and_set(void)
{
    char path[64];
    strcpy(path, fresh_path());
    static const int32_t values[] = {7, 0, -1, INT32_MAX, INT32_MIN};
    int32_t value = -7;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        OK(zkl_shared_count_set(client, path, values[i]));
        OK(zkl_shared_count_get(other, path, &value));
        CHECK(value == values[i]);
    }
    /* A lock node is not a count. */
    zkl_lock *lock = new_mutex(client, fresh_path());
    char node[256];
    size_t needed;
    OK(zkl_lock_set_data(lock, "12345", 5));
    OK(zkl_acquire(lock));
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    value = -7;
    EXPECT(ZKL_E_INVALID, zkl_shared_count_get(client, node, &value));
    EXPECT_MESSAGE(node);
    CHECK(value == -7);
    zkl_lock_free(lock);
}

struct pool {
    zkl_semaphore *semaphore;
    int out;
};

static void *use_pool(void *argument)
{
    struct pool *pool = argument;
    for (int32_t round = 0; round < 8; round++) {
        int quantity = 1 + round % 2;
        zkl_hold *leases = acquire(pool->semaphore, quantity);
        CHECK(__atomic_add_fetch(&pool->out, quantity, __ATOMIC_SEQ_CST) <= 3);
        __atomic_sub_fetch(&pool->out, quantity, __ATOMIC_SEQ_CST);
        OK(zkl_hold_release(leases));
    }
    return NULL;
}

/* Threads never hold more leases than the maximum. */
static void threads_never_hold_more_leases_than_the_maximum(void)
{
    struct pool pool = {new_semaphore(client, fresh_path(), 3), 0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, use_pool, &pool) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    AWAIT(semaphore_participants(pool.semaphore) == 0);
    zkl_semaphore_free(pool.semaphore);
}

static void *release_once(void *leases)
{
    zkl_status status = zkl_hold_release(leases);
    CHECK(status == ZKL_OK || status == ZKL_E_HANDLE);
    return status == ZKL_OK ? leases : NULL;
}

/* If several threads release the same leases, exactly one release succeeds. */
static void concurrent_release_succeeds_once(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 1);
    for (int round = 0; round < 5; round++) {
        zkl_hold *one = acquire(semaphore, 1);
        pthread_t threads[3];
        int succeeded = 0;
        for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, release_once, one) == 0);
        for (int i = 0; i < 3; i++) {
            void *result;
            CHECK(pthread_join(threads[i], &result) == 0);
            succeeded += result != NULL;
        }
        CHECK(succeeded == 1);
    }
    zkl_semaphore_free(semaphore);
}

struct recorder {
    pthread_mutex_t mutex;
    int count;
    int32_t state[8];
    int64_t token[8];
    char path[64];
};

static void record(void *user, const zkl_event *event)
{
    struct recorder *recorder = user;
    if (event->kind != ZKL_EVENT_LOCK) return;
    pthread_mutex_lock(&recorder->mutex);
    CHECK(recorder->count < 8);
    CHECK(event->lock == NULL);
    CHECK(strcmp(event->path, recorder->path) == 0);
    recorder->state[recorder->count] = event->state;
    recorder->token[recorder->count++] = event->token;
    pthread_mutex_unlock(&recorder->mutex);
}

/* Events report the acquisition and the release of leases. */
static void lease_events_are_delivered(void)
{
    struct recorder recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    zkl_config *config = zkl_config_new();
    zkl_client *watched = NULL;
    int64_t token = 0;
    strcpy(recorder.path, fresh_path());
    OK(zkl_config_set_event_callback(config, record, &recorder, NULL));
    OK(zkl_client_new(servers, config, &watched));
    zkl_config_free(config);
    zkl_semaphore *semaphore = new_semaphore(watched, recorder.path, 2);
    zkl_hold *two = acquire(semaphore, 2);
    OK(hold_token(two, &token));
    OK(zkl_hold_release(two));
    zkl_semaphore_free(semaphore);
    zkl_client_free(watched);
    CHECK(recorder.count == 2);
    CHECK(recorder.state[0] == ZKL_LOCK_HELD && recorder.state[1] == ZKL_LOCK_FREE);
    CHECK(recorder.token[0] == token && recorder.token[1] == token);
}

/* A client, a semaphore and its leases can be freed in any order. */
static void everything_is_freed_in_any_order(void)
{
    static const char *const orders[] = {"csl", "cls", "scl", "slc", "lcs", "lsc"};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        zkl_client *own = new_client();
        zkl_semaphore *semaphore = new_semaphore(own, fresh_path(), 2);
        zkl_hold *leases = acquire(semaphore, 2);
        for (const char *next = orders[i]; *next != '\0'; next++) {
            if (*next == 'c') zkl_client_free(own);
            if (*next == 's') zkl_semaphore_free(semaphore);
            if (*next == 'l') CHECK(zkl_hold_release(leases) == (zkl_client_state(own) < 0 ? ZKL_E_CLOSED : ZKL_OK));
        }
        EXPECT(ZKL_E_HANDLE, zkl_hold_release(leases));
        EXPECT(ZKL_E_HANDLE, zkl_semaphore_cancel(semaphore));
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(leases_are_shared_out);
    RUN(wrong_quantities_are_refused);
    RUN(requests_are_served_in_their_order);
    RUN(cancel_wakes_those_that_wait);
    RUN(leases_outlive_their_semaphore);
    RUN(client_close_returns_its_leases);
    RUN(each_lease_has_a_node_with_data);
    RUN(shared_count_limits_the_leases);
    RUN(counts_are_read_and_set);
    RUN(threads_never_hold_more_leases_than_the_maximum);
    RUN(concurrent_release_succeeds_once);
    RUN(lease_events_are_delivered);
    RUN(everything_is_freed_in_any_order);
    zkl_client_free(other);
    zkl_client_free(client);
    return 0;
}
