/* The multi-lock, used from C. */
#include "check.h"

static zkl_client *client, *other;

/* A multi-lock acquires and releases all its member locks together. */
static void multi_lock_acquires_and_releases_all_members(void)
{
    char one_path[64], two_path[64];
    strcpy(one_path, fresh_path());
    strcpy(two_path, fresh_path());
    zkl_lock *one = new_mutex(client, one_path), *two = new_mutex(client, two_path), *both = new_multi(one, two);
    zkl_lock *theirs = new_mutex(other, two_path);
    int64_t token = 0, of_one = 0, of_two = 0, remaining = -7;
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(both));
    EXPECT(ZKL_E_NOT_OWNER, zkl_fencing_token(both, &token));
    OK(zkl_acquire(both));
    CHECK(zkl_is_held(both) == 1 && zkl_is_held(one) == 1 && zkl_is_held(two) == 1);
    CHECK(on_new_thread(held_by_thread, both) == 0 && zkl_is_held_in_process(both) == 1);
    CHECK(zkl_lock_state(both) == ZKL_LOCK_HELD);
    OK(zkl_fencing_token(both, &token));
    OK(zkl_fencing_token(one, &of_one));
    OK(zkl_fencing_token(two, &of_two));
    CHECK(token == of_one && token == of_two);
    OK(zkl_remaining_ms(both, &remaining));
    CHECK(remaining > 0);
    CHECK(participants(both) == 2 && queue_length(both) == 2 && participants(one) == 1);
    EXPECT(ZKL_E_TIMEOUT, try_acquire(theirs));
    CHECK(on_new_thread(try_acquire_and_release, one) == ZKL_E_TIMEOUT);
    OK(zkl_acquire(both));
    OK(zkl_release(both));
    CHECK(zkl_is_held(both) == 1);

    /* After one member lock is released, the multi-lock is no longer held. */
    OK(zkl_release(two));
    CHECK(zkl_is_held(both) == 0 && zkl_lock_state(both) == ZKL_LOCK_FREE);
    EXPECT(ZKL_E_NOT_OWNER, zkl_fencing_token(both, &token));
    OK(try_acquire_and_release(theirs));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(both));
    CHECK(zkl_is_held(one) == 0);

    /* The multi-lock re-enters a member lock that is already held. */
    OK(zkl_acquire(one));
    OK(zkl_acquire(both));
    OK(zkl_release(both));
    CHECK(zkl_is_held(one) == 1 && zkl_is_held(two) == 0);
    OK(zkl_release(one));

    OK(zkl_acquire(theirs));
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(both, 0));
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(both, LIMIT_MS));
    CHECK(on_new_thread(acquire_and_release, one) == ZKL_OK);
    OK(zkl_release(theirs));
    OK(zkl_acquire(both));
    OK(zkl_release_nowait(both));
    OK(acquire_and_release(theirs));
    zkl_lock_free(both);
    zkl_lock_free(theirs);
    zkl_lock_free(two);
    zkl_lock_free(one);
}

/* A list of member locks that is empty, too long or contains an invalid handle is rejected. */
static void wrong_lists_are_refused(void)
{
    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_mutex(client, fresh_path());
    zkl_lock *freed = new_mutex(client, fresh_path()), *out = (zkl_lock *)&out;
    zkl_lock_free(freed);
    zkl_lock *list[] = {one, two, NULL};
    EXPECT(ZKL_E_INVALID, zkl_multi_new(NULL, 2, &out));
    EXPECT_MESSAGE("locks is NULL");
    EXPECT(ZKL_E_INVALID, zkl_multi_new(list, 0, &out));
    EXPECT_MESSAGE("no member locks");
    EXPECT(ZKL_E_INVALID, zkl_multi_new(NULL, 0, &out));
    EXPECT_MESSAGE("no member locks");
    EXPECT(ZKL_E_INVALID, zkl_multi_new(list, 2, NULL));
    EXPECT_MESSAGE("lock_out is NULL");
    static const size_t absurd[] = {4097, (size_t)1 << 40, SIZE_MAX / sizeof one, SIZE_MAX / sizeof one + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        char value[32];
        snprintf(value, sizeof value, "%zu", absurd[i]);
        EXPECT(ZKL_E_INVALID, zkl_multi_new(list, absurd[i], &out));
        EXPECT_MESSAGE(value);
        EXPECT(ZKL_E_INVALID, zkl_multi_new(NULL, absurd[i], &out));
    }
    /* The limit also applies to the member locks of multi-locks in the list. */
    static zkl_lock *many[2048];
    zkl_lock *large = NULL;
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) many[i] = new_mutex(client, fresh_path());
    OK(zkl_multi_new(many, sizeof many / sizeof *many, &large));
    zkl_lock *too_many[3] = {large, large, one};
    EXPECT(ZKL_E_INVALID, zkl_multi_new(too_many, 3, &out));
    EXPECT_MESSAGE("4097 member locks; expected at most 4096");
    zkl_lock_free(large);
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) zkl_lock_free(many[i]);
    EXPECT(ZKL_E_HANDLE, zkl_multi_new(list, 3, &out));
    EXPECT_MESSAGE("locks[2]: handle is NULL");
    list[1] = freed;
    EXPECT(ZKL_E_HANDLE, zkl_multi_new(list, 3, &out));
    EXPECT_MESSAGE("locks[1]: ");
    EXPECT_MESSAGE("was freed");
    list[1] = (zkl_lock *)(void *)client;
    EXPECT(ZKL_E_HANDLE, zkl_multi_new(list, 2, &out));
    EXPECT_MESSAGE("locks[1]: ");
    EXPECT_MESSAGE(" is a client; expected a lock");
    list[1] = one;
    EXPECT(ZKL_E_INVALID, zkl_multi_new(list, 2, &out));
    EXPECT_MESSAGE("the same path");
    EXPECT_MESSAGE("locks[0] and locks[1]");

    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *read = NULL, *write = NULL, *both = new_multi(one, two);
    OK(zkl_rwlock_new(client, path, &read, &write));
    zkl_lock *halves[] = {one, read, write}, *nested[] = {read, both, two};
    EXPECT(ZKL_E_INVALID, zkl_multi_new(halves, 3, &out));
    EXPECT_MESSAGE(path);
    EXPECT_MESSAGE("locks[1] and locks[2]");
    EXPECT(ZKL_E_INVALID, zkl_multi_new(nested, 3, &out));
    EXPECT_MESSAGE("locks[1] and locks[2]");
    CHECK(out == (zkl_lock *)&out);

    /* The array needs no alignment, and the library copies it. */
    char bytes[sizeof one * 2 + 1];
    memcpy(bytes + 1, nested, sizeof one * 2);
    OK(zkl_multi_new((zkl_lock *const *)(void *)(bytes + 1), 2, &out));
    memset(bytes, 0xff, sizeof bytes);
    OK(zkl_acquire(out));
    CHECK(zkl_is_held(one) == 1 && zkl_is_held(two) == 1 && zkl_is_held(read) == 1);
    char node[256];
    size_t needed = 7;
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(out, node, sizeof node, &needed));
    EXPECT_MESSAGE("call the function for a member lock");
    CHECK(needed == 7);
    OK(zkl_lock_node_path(one, node, sizeof node, &needed));
    OK(zkl_release(out));
    zkl_lock *of_one = NULL;
    OK(zkl_multi_new(&one, 1, &of_one));
    OK(zkl_acquire(of_one));
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(of_one, node, sizeof node, &needed));
    OK(zkl_release(of_one));
    zkl_lock *all[] = {one, two, read, write, both, out, of_one};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) zkl_lock_free(all[i]);
}

struct crossing {
    zkl_lock *multi;
    int *inside;
};

static void *cross(void *argument)
{
    struct crossing *crossing = argument;
    for (int round = 0; round < 8; round++) {
        OK(acquire_in_time(crossing->multi));
        CHECK(__atomic_fetch_add(crossing->inside, 1, __ATOMIC_SEQ_CST) == 0);
        CHECK(__atomic_fetch_sub(crossing->inside, 1, __ATOMIC_SEQ_CST) == 1);
        OK(zkl_release(crossing->multi));
    }
    return NULL;
}

/* Multi-locks with the same member locks in opposite orders do not deadlock. */
static void opposite_orders_do_not_deadlock(void)
{
    char one_path[64], two_path[64];
    strcpy(one_path, fresh_path());
    strcpy(two_path, fresh_path());
    zkl_lock *locks[] = {new_mutex(client, one_path), new_mutex(client, two_path), new_mutex(other, one_path), new_mutex(other, two_path)};
    int inside = 0;
    struct crossing crossings[] = {{new_multi(locks[0], locks[1]), &inside}, {new_multi(locks[3], locks[2]), &inside}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, cross, &crossings[i % 2]) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 4; i++) zkl_lock_free(locks[i]);
    for (int i = 0; i < 2; i++) zkl_lock_free(crossings[i].multi);
}

/* The member locks may be of different kinds and belong to different clients. */
static void kinds_and_clients_may_be_mixed(void)
{
    char paths[4][64];
    for (int i = 0; i < 4; i++) strcpy(paths[i], fresh_path());
    zkl_lock *mutex = new_mutex(client, paths[0]), *any = new_semaphore_mutex(client, paths[1]);
    zkl_lock *theirs = new_mutex(other, paths[2]), *read = NULL, *write = NULL;
    OK(zkl_rwlock_new(client, paths[3], &read, &write));
    zkl_lock *list[] = {any, theirs, mutex, read}, *all = NULL;
    OK(zkl_multi_new(list, 4, &all));
    OK(acquire_in_time(all));
    for (int i = 0; i < 4; i++) CHECK(zkl_is_held(list[i]) == 1);
    int64_t least = 0, token = 0;
    OK(zkl_fencing_token(all, &least));
    for (int i = 0; i < 4; i++) {
        OK(zkl_fencing_token(list[i], &token));
        CHECK(token >= least);
    }
    CHECK(participants(all) == 4);
    OK(zkl_release(all));
    for (int i = 0; i < 4; i++) CHECK(zkl_is_held_in_process(list[i]) == 0 && participants(list[i]) == 0);

    /* If one member lock cannot be acquired, none is held. */
    for (int i = 0; i < 4; i++) {
        struct holder holder;
        start_holder(&holder, i == 3 ? write : list[i]);
        EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(all, 0));
        EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(all, LIMIT_MS));
        for (int j = 0; j < 4; j++) {
            CHECK(zkl_is_held(list[j]) == 0);
            if (j != i) AWAIT(participants(list[j]) == 0);
        }
        end_holder(&holder);
        OK(acquire_in_time(all));
        OK(zkl_release(all));
    }
    zkl_lock_free(all);
    for (int i = 0; i < 4; i++) zkl_lock_free(list[i]);
    zkl_lock_free(write);
}

static void expect_closed(zkl_lock *multi)
{
    int64_t number = -7;
    int count = 0;
    EXPECT(ZKL_E_CLOSED, zkl_acquire(multi));
    EXPECT(ZKL_E_CLOSED, zkl_acquire_timeout(multi, 0));
    EXPECT(ZKL_E_CLOSED, zkl_cancel(multi));
    EXPECT_NOT_SAFE(zkl_is_held(multi), zkl_strerror(ZKL_E_CLOSED));
    EXPECT_NOT_SAFE(zkl_is_held_in_process(multi), zkl_strerror(ZKL_E_CLOSED));
    EXPECT(ZKL_E_CLOSED, zkl_lock_state(multi));
    EXPECT(ZKL_E_CLOSED, zkl_fencing_token(multi, &number));
    EXPECT(ZKL_E_CLOSED, zkl_remaining_ms(multi, &number));
    EXPECT(ZKL_E_CLOSED, zkl_lock_set_data(multi, NULL, 0));
    EXPECT(ZKL_E_CLOSED, zkl_participants(multi, count_participant, &count));
    EXPECT(ZKL_E_CLOSED, zkl_queue(multi, count_participant, &count));
    EXPECT(ZKL_E_CLOSED, zkl_set_revocable(multi, NULL, NULL, NULL));
    CHECK(number == -7 && count == 0);
}

/* Creates the second member lock. For steps 0 the multi-lock is acquired in one step, otherwise in several. */
static zkl_lock *second_lock(int steps, const char *path)
{
    if (steps == 0) return new_mutex(client, path);
    return steps == 1 ? new_semaphore_mutex(client, path) : new_mutex(other, path);
}

/* If a member lock is freed, the multi-lock is closed, and its waiters fail with CLOSED. */
static void freeing_a_member_closes_its_multi_locks(void)
{
    for (int steps = 0; steps < 3; steps++) {
        for (int which = 0; which < 2; which++) {
            char paths[2][64];
            for (int i = 0; i < 2; i++) strcpy(paths[i], fresh_path());
            zkl_lock *locks[] = {new_mutex(client, paths[0]), second_lock(steps, paths[1])};
            zkl_lock *both = new_multi(locks[0], locks[1]), *blocker = second_lock(steps, paths[1]);
            zkl_lock *witness = new_mutex(client, paths[0]);
            struct holder holder;
            struct call waiting;
            start_holder(&holder, blocker);
            start_call(&waiting, zkl_acquire, both);
            AWAIT(participants(locks[0]) == 1 && participants(blocker) == 2);
            zkl_lock_free(locks[which]);
            CHECK(end_call(&waiting) == ZKL_E_CLOSED);
            /* The member lock that was already acquired is free again. */
            OK(acquire_and_release(witness));
            expect_closed(both);
            EXPECT(ZKL_E_CLOSED, zkl_release(both));
            end_holder(&holder);
            zkl_lock_free(both);
            zkl_lock_free(locks[1 - which]);
            zkl_lock_free(blocker);
            zkl_lock_free(witness);
        }
    }
}

/* If a held member lock is freed, the other member locks are still held until the multi-lock is released. */
static void a_lock_that_is_freed_while_held_leaves_the_others_to_be_released(void)
{
    for (int steps = 0; steps < 3; steps++) {
        char paths[2][64];
        for (int i = 0; i < 2; i++) strcpy(paths[i], fresh_path());
        zkl_lock *one = new_mutex(client, paths[0]), *two = second_lock(steps, paths[1]), *both = new_multi(two, one);
        zkl_lock *witness_one = new_mutex(client, paths[0]), *witness_two = second_lock(steps, paths[1]);
        OK(zkl_acquire(both));
        zkl_lock_free(two);
        CHECK(on_new_thread(acquire_and_release, witness_two) == ZKL_OK);
        expect_closed(both);
        CHECK(zkl_is_held(one) == 1);
        CHECK(on_new_thread(try_acquire_and_release, witness_one) == ZKL_E_TIMEOUT);
        EXPECT(ZKL_E_CLOSED, zkl_release(both));
        CHECK(zkl_is_held(one) == 0);
        CHECK(on_new_thread(acquire_and_release, witness_one) == ZKL_OK);
        zkl_lock_free(one);
        zkl_lock_free(witness_one);
        zkl_lock_free(witness_two);
        zkl_lock_free(both);
    }
}

/* If a held multi-lock is freed, its member locks are still held and can be released. */
static void a_freed_multi_lock_leaves_its_locks_alone(void)
{
    for (int steps = 0; steps < 3; steps++) {
        char paths[2][64];
        for (int i = 0; i < 2; i++) strcpy(paths[i], fresh_path());
        zkl_lock *one = new_mutex(client, paths[0]), *two = second_lock(steps, paths[1]), *both = new_multi(one, two);
        zkl_lock *witness = new_mutex(other, paths[0]);
        OK(zkl_acquire(both));
        zkl_lock_free(both);
        EXPECT(ZKL_E_HANDLE, zkl_release(both));
        CHECK(zkl_is_held(one) == 1 && zkl_is_held(two) == 1);
        OK(zkl_release(one));
        CHECK(on_new_thread(acquire_and_release, one) == ZKL_OK);

        /* A freed multi-lock wakes its waiters and releases the locks that they already hold. */
        both = new_multi(one, two);
        struct call waiting;
        start_call(&waiting, zkl_acquire, both);
        AWAIT(participants(two) == 2);
        zkl_lock_free(both);
        CHECK(end_call(&waiting) == ZKL_E_CLOSED);
        OK(acquire_and_release(witness));
        CHECK(on_new_thread(acquire_and_release, one) == ZKL_OK);
        OK(zkl_release(two));
        CHECK(on_new_thread(acquire_and_release, two) == ZKL_OK);
        zkl_lock_free(one);
        zkl_lock_free(two);
        zkl_lock_free(witness);
    }
}

/* If one of several clients is freed, a waiting multi-lock acquire fails with CLOSED. */
static void freed_client_ends_multi_lock_waits_on_another_client(void)
{
    char paths[2][64];
    for (int i = 0; i < 2; i++) strcpy(paths[i], fresh_path());
    for (int which = 0; which < 2; which++) {
        zkl_client *own = new_client();
        /* Clients of the same servers. The locks of the first client are acquired before or after those of the second. */
        zkl_lock *one = new_mutex(which == 0 ? own : other, paths[0]), *two = new_mutex(which == 0 ? other : own, paths[1]);
        zkl_lock *both = new_multi(one, two), *blockers[2] = {new_mutex(client, paths[0]), new_mutex(client, paths[1])};
        struct call waiting;
        OK(zkl_acquire(blockers[0]));
        OK(zkl_acquire(blockers[1]));
        start_call(&waiting, zkl_acquire, both);
        AWAIT(participants(blockers[0]) + participants(blockers[1]) == 3);
        zkl_client_free(own);
        CHECK(end_call(&waiting) == ZKL_E_CLOSED);
        for (int i = 0; i < 2; i++) {
            OK(zkl_release(blockers[i]));
            OK(acquire_and_release(blockers[i]));
            zkl_lock_free(blockers[i]);
        }
        EXPECT(ZKL_E_CLOSED, zkl_acquire(both));
        zkl_lock_free(one);
        zkl_lock_free(both);
        zkl_lock_free(two);
    }
}

static void has_the_data_of_both(void *user, const zkl_participant *participant)
{
    CHECK(participant->data_len == 7 && memcmp(participant->data, "of both", 7) == 0);
    ++*(int *)user;
}

/* A cancel of a member lock does not affect the multi-lock, and a cancel of the multi-lock ends its acquire. */
static void cancel_and_data_of_the_multi_lock_apply_to_all_members(void)
{
    char paths[2][64];
    for (int i = 0; i < 2; i++) strcpy(paths[i], fresh_path());
    zkl_lock *one = new_mutex(client, paths[0]), *two = new_mutex(client, paths[1]), *both = new_multi(one, two);
    zkl_lock *blocker = new_mutex(other, paths[1]);
    struct call waiting;
    OK(zkl_acquire(blocker));
    start_call(&waiting, zkl_acquire, both);
    AWAIT(participants(blocker) == 2);
    OK(zkl_cancel(one));
    OK(zkl_cancel(two));
    sleep_ms(20);
    CHECK(participants(blocker) == 2);
    OK(zkl_cancel(both));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    OK(zkl_release(blocker));
    OK(zkl_lock_set_data(both, "of both", 7));
    OK(zkl_acquire(both));
    int count = 0;
    OK(zkl_participants(both, has_the_data_of_both, &count));
    CHECK(count == 2);
    OK(zkl_release(both));
    zkl_lock_free(one);
    zkl_lock_free(two);
    zkl_lock_free(both);
    zkl_lock_free(blocker);
}

struct recorder {
    pthread_mutex_t mutex;
    int count;
    zkl_lock *lock[8];
    int32_t state[8];
};

static void record(void *user, const zkl_event *event)
{
    struct recorder *recorder = user;
    if (event->kind != ZKL_EVENT_LOCK) return;
    pthread_mutex_lock(&recorder->mutex);
    CHECK(recorder->count < 8);
    recorder->lock[recorder->count] = event->lock;
    recorder->state[recorder->count++] = event->state;
    pthread_mutex_unlock(&recorder->mutex);
}

/* The events of a multi-lock name its member locks. */
static void multi_lock_events_name_member_locks(void)
{
    struct recorder recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    zkl_config *config = zkl_config_new();
    zkl_client *watched = NULL;
    OK(zkl_config_set_event_callback(config, record, &recorder, NULL));
    OK(zkl_client_new(servers, config, &watched));
    zkl_config_free(config);
    zkl_lock *one = new_mutex(watched, fresh_path()), *two = new_mutex(watched, fresh_path()), *both = new_multi(one, two);
    OK(zkl_acquire(both));
    OK(zkl_release(both));
    zkl_client_free(watched);
    CHECK(recorder.count == 4);
    for (int i = 0; i < 4; i++) {
        CHECK(recorder.state[i] == (i < 2 ? ZKL_LOCK_HELD : ZKL_LOCK_FREE));
        CHECK(recorder.lock[i] == one || recorder.lock[i] == two);
        CHECK(i % 2 == 0 || recorder.lock[i] != recorder.lock[i - 1]);
    }
    zkl_lock_free(both);
    zkl_lock_free(one);
    zkl_lock_free(two);
}

/* A client, a held multi-lock and its member locks can be freed in any order. */
static void everything_is_freed_in_any_order(void)
{
    static const char *const orders[] = {"c12m", "1m2c", "m12c", "12mc", "2cm1", "cm12"};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        for (int steps = 0; steps < 3; steps++) {
            zkl_client *own = new_client();
            char path[64];
            strcpy(path, fresh_path());
            zkl_lock *one = new_mutex(own, fresh_path());
            zkl_lock *two = steps == 1 ? new_semaphore_mutex(own, path) : new_mutex(steps == 0 ? own : other, path);
            zkl_lock *both = new_multi(one, two);
            OK(zkl_acquire(both));
            for (const char *next = orders[i]; *next != '\0'; next++) {
                if (*next == 'c') zkl_client_free(own);
                if (*next == '1') zkl_lock_free(one);
                if (*next == '2') zkl_lock_free(two);
                if (*next == 'm') zkl_lock_free(both);
            }
        }
    }
}

/* An ordered multi-lock acquires its member locks one after the other in the given order. */
static void ordered_multi_lock_acquires_in_the_given_order(void)
{
    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_mutex(client, fresh_path()), *both = NULL;
    zkl_lock *list[] = {one, two, one};
    EXPECT(ZKL_E_INVALID, zkl_multi_new_in_order(list, 3, &both));
    EXPECT(ZKL_E_INVALID, zkl_multi_new_in_order(list, 0, &both));
    EXPECT(ZKL_E_INVALID, zkl_multi_new_in_order(NULL, 2, &both));
    EXPECT(ZKL_E_INVALID, zkl_multi_new_in_order(list, 2, NULL));
    OK(zkl_multi_new_in_order(list, 2, &both));
    int64_t first = 0, second = 0, token = 0;
    OK(zkl_acquire(both));
    OK(zkl_fencing_token(one, &first));
    OK(zkl_fencing_token(two, &second));
    OK(zkl_fencing_token(both, &token));
    CHECK(first < second && token == first);
    OK(zkl_release(both));
    zkl_lock_free(both);
    zkl_lock_free(one);
    zkl_lock_free(two);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(multi_lock_acquires_and_releases_all_members);
    RUN(wrong_lists_are_refused);
    RUN(opposite_orders_do_not_deadlock);
    RUN(ordered_multi_lock_acquires_in_the_given_order);
    RUN(kinds_and_clients_may_be_mixed);
    RUN(freeing_a_member_closes_its_multi_locks);
    RUN(a_lock_that_is_freed_while_held_leaves_the_others_to_be_released);
    RUN(a_freed_multi_lock_leaves_its_locks_alone);
    RUN(freed_client_ends_multi_lock_waits_on_another_client);
    RUN(cancel_and_data_of_the_multi_lock_apply_to_all_members);
    RUN(multi_lock_events_name_member_locks);
    RUN(everything_is_freed_in_any_order);
    zkl_client_free(other);
    zkl_client_free(client);
    return 0;
}
