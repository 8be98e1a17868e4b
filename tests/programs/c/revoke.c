/* Revocation: the holder receives the request, and the user of a callback is dropped once, after the last call. */
#include "check.h"

static zkl_client *client, *other;

/* The user of a callback. */
struct asked {
    pthread_mutex_t mutex;
    int calls, drops, late;
    void *handle;
    void (*also)(struct asked *);
};

static struct asked new_asked(void)
{
    return (struct asked){.mutex = PTHREAD_MUTEX_INITIALIZER};
}

static void on_revocation_with_handle(struct asked *asked, void *handle)
{
    pthread_mutex_lock(&asked->mutex);
    asked->calls++;
    asked->late += asked->drops;
    asked->handle = handle;
    pthread_mutex_unlock(&asked->mutex);
    if (asked->also != NULL) asked->also(asked);
}

static void on_revocation(void *user, zkl_lock *lock)
{
    on_revocation_with_handle(user, lock);
}

static void on_semaphore_revocation(void *user, zkl_semaphore *semaphore)
{
    on_revocation_with_handle(user, semaphore);
}

static void dropped(void *user)
{
    struct asked *asked = user;
    pthread_mutex_lock(&asked->mutex);
    asked->drops++;
    pthread_mutex_unlock(&asked->mutex);
}

static int calls(struct asked *asked)
{
    pthread_mutex_lock(&asked->mutex);
    int count = asked->calls;
    pthread_mutex_unlock(&asked->mutex);
    return count;
}

static int drops(struct asked *asked)
{
    pthread_mutex_lock(&asked->mutex);
    int count = asked->drops;
    CHECK(count <= 1 && asked->late == 0);
    pthread_mutex_unlock(&asked->mutex);
    return count;
}

static void revoke_by(zkl_lock *lock)
{
    char node[256];
    size_t needed;
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    OK(zkl_revoke(other, node));
}

/* Copies the path of the last node in a queue. */
static void keep_last(void *user, const zkl_participant *participant)
{
    snprintf(user, 256, "%s", participant->node_path);
}

/* A revocation request calls the callback of the holder. */
static void revoke_calls_the_holders_callback(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path), *wanted = new_mutex(other, path);
    struct asked asked = new_asked();
    OK(zkl_set_revocable(lock, on_revocation, &asked, dropped));
    OK(zkl_acquire(lock));
    char holder[256] = "";
    OK(zkl_participants(wanted, keep_last, holder));
    OK(zkl_revoke(other, holder));
    AWAIT(calls(&asked) == 1);
    CHECK(asked.handle == lock);
    /* A revocation request does not end the hold. */
    CHECK(zkl_is_held(lock) == 1);
    EXPECT(ZKL_E_TIMEOUT, try_acquire(wanted));
    OK(zkl_release(lock));
    OK(acquire_and_release(wanted));

    /* The next hold receives requests too. A request for a node that no longer exists succeeds. */
    OK(zkl_acquire(lock));
    revoke_by(lock);
    AWAIT(calls(&asked) == 2);
    OK(zkl_release(lock));
    OK(zkl_revoke(other, holder));
    CHECK(drops(&asked) == 0);
    zkl_lock_free(lock);
    AWAIT(drops(&asked) == 1);
    zkl_lock_free(wanted);
}

/* A callback that is set later also receives requests for existing holds and for waiters. */
static void revoke_reaches_existing_holders_and_waiters(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path), *blocker = new_mutex(other, path);
    struct asked asked = new_asked();
    struct call waiting;
    char last[256] = "";
    OK(zkl_acquire(lock));
    OK(zkl_set_revocable(lock, on_revocation, &asked, dropped));
    revoke_by(lock);
    AWAIT(calls(&asked) == 1);
    OK(zkl_release(lock));

    OK(zkl_acquire(blocker));
    start_call(&waiting, zkl_acquire, lock);
    await_participants(blocker, 2);
    OK(zkl_participants(blocker, keep_last, last));
    OK(zkl_revoke(other, last));
    AWAIT(calls(&asked) == 2);
    OK(zkl_cancel(lock));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    OK(zkl_release(blocker));
    zkl_lock_free(lock);
    AWAIT(drops(&asked) == 1);
    zkl_lock_free(blocker);
}

/* A new revocation callback replaces the previous one, whose user is dropped. */
static void new_callback_replaces_the_old_one(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct asked one = new_asked(), two = new_asked(), none = new_asked(), three = new_asked();
    OK(zkl_acquire(lock));
    OK(zkl_set_revocable(lock, on_revocation, &one, dropped));
    OK(zkl_set_revocable(lock, on_revocation, &two, dropped));
    CHECK(drops(&one) == 1 && drops(&two) == 0);
    revoke_by(lock);
    AWAIT(calls(&two) == 1);
    CHECK(calls(&one) == 0);
    /* Without a callback, the library drops the new user and the previous one. */
    OK(zkl_set_revocable(lock, NULL, &none, dropped));
    CHECK(drops(&none) == 1);
    AWAIT(drops(&two) == 1);
    OK(zkl_set_revocable(lock, NULL, NULL, NULL));
    revoke_by(lock);
    OK(zkl_set_revocable(lock, on_revocation, &three, dropped));
    revoke_by(lock);
    AWAIT(calls(&three) >= 1);
    CHECK(calls(&two) == 1 && calls(&none) == 0);
    OK(zkl_set_revocable(lock, NULL, NULL, NULL));
    AWAIT(drops(&three) == 1);
    zkl_lock_free(lock);
    CHECK(drops(&one) == 1 && drops(&two) == 1 && drops(&none) == 1);
}

/* If the call fails, the user remains with the program, as with zkl_config_set_event_callback. */
static void failed_call_does_not_take_the_user_pointer(void)
{
    zkl_client *closing = new_client();
    zkl_lock *freed = new_mutex(client, fresh_path()), *closed = new_mutex(closing, fresh_path());
    zkl_lock *live = new_mutex(client, fresh_path()), *member = new_mutex(client, fresh_path()), *both = new_multi(live, member);
    zkl_semaphore *semaphore = new_semaphore(closing, fresh_path(), 1);
    struct asked kept = new_asked(), of_live = new_asked();
    zkl_lock_free(freed);
    zkl_client_free(closing);
    OK(zkl_set_revocable(live, on_revocation, &of_live, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable(NULL, on_revocation, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable(NULL, NULL, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable(freed, on_revocation, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable((zkl_lock *)(void *)client, on_revocation, &kept, dropped));
    EXPECT(ZKL_E_CLOSED, zkl_set_revocable(closed, on_revocation, &kept, dropped));
    EXPECT(ZKL_E_CLOSED, zkl_set_revocable(closed, NULL, &kept, dropped));
    EXPECT(ZKL_E_CLOSED, zkl_semaphore_set_revocable(semaphore, on_semaphore_revocation, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_semaphore_set_revocable(NULL, on_semaphore_revocation, &kept, dropped));
    /* For a multi-lock, either all member locks get the callback or none. */
    zkl_lock_free(member);
    EXPECT(ZKL_E_CLOSED, zkl_set_revocable(both, on_revocation, &kept, dropped));
    CHECK(drops(&kept) == 0 && drops(&of_live) == 0);
    OK(zkl_acquire(live));
    revoke_by(live);
    AWAIT(calls(&of_live) == 1);
    OK(zkl_set_revocable(live, on_revocation, &kept, dropped));
    AWAIT(drops(&of_live) == 1);
    CHECK(drops(&kept) == 0);
    zkl_lock_free(live);
    zkl_lock_free(both);
    zkl_lock_free(closed);
    zkl_semaphore_free(semaphore);
    AWAIT(drops(&kept) == 1);
    CHECK(calls(&kept) == 0);
}

/* Freeing a client drops the users of the revocation callbacks of its locks. */
static void freed_client_drops_its_locks_callback_data(void)
{
    zkl_client *closing = new_client();
    zkl_lock *one = new_mutex(closing, fresh_path()), *two = new_semaphore_mutex(closing, fresh_path());
    zkl_semaphore *semaphore = new_semaphore(closing, fresh_path(), 1);
    struct asked all[3] = {new_asked(), new_asked(), new_asked()};
    OK(zkl_set_revocable(one, on_revocation, &all[0], dropped));
    OK(zkl_set_revocable(two, on_revocation, &all[1], dropped));
    OK(zkl_semaphore_set_revocable(semaphore, on_semaphore_revocation, &all[2], dropped));
    OK(zkl_acquire(one));
    revoke_by(one);
    zkl_client_free(closing);
    /* zkl_client_free returns after the last call. */
    for (int i = 0; i < 3; i++) CHECK(drops(&all[i]) == 1);
    zkl_lock_free(one);
    zkl_lock_free(two);
    zkl_semaphore_free(semaphore);
    for (int i = 0; i < 3; i++) CHECK(drops(&all[i]) == 1);
}

/* The callback of a multi-lock receives the handle of the multi-lock. */
static void multi_locks_callback_receives_the_multi_lock_handle(void)
{
    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_semaphore_mutex(client, fresh_path()), *both = new_multi(one, two);
    struct asked of_one = new_asked(), of_both = new_asked(), again = new_asked();
    OK(zkl_set_revocable(one, on_revocation, &of_one, dropped));
    OK(zkl_set_revocable(both, on_revocation, &of_both, dropped));
    /* The callback of the multi-lock replaces the one of the member lock. */
    AWAIT(drops(&of_one) == 1);
    OK(zkl_acquire(both));
    revoke_by(one);
    AWAIT(calls(&of_both) == 1);
    revoke_by(two);
    AWAIT(calls(&of_both) == 2);
    CHECK(of_both.handle == both && calls(&of_one) == 0);

    OK(zkl_set_revocable(one, on_revocation, &again, dropped));
    revoke_by(one);
    AWAIT(calls(&again) == 1);
    CHECK(again.handle == one && calls(&of_both) == 2 && drops(&of_both) == 0);
    zkl_lock_free(both);
    AWAIT(drops(&of_both) == 1);
    revoke_by(two);
    revoke_by(one);
    AWAIT(calls(&again) == 2);
    CHECK(calls(&of_both) == 2);
    zkl_lock_free(one);
    zkl_lock_free(two);
    AWAIT(drops(&again) == 1);

    /* The member locks are freed before the multi-lock. */
    one = new_mutex(client, fresh_path());
    two = new_mutex(other, fresh_path());
    both = new_multi(one, two);
    of_both = new_asked();
    OK(zkl_set_revocable(both, on_revocation, &of_both, dropped));
    zkl_lock_free(one);
    CHECK(drops(&of_both) == 0);
    zkl_lock_free(two);
    AWAIT(drops(&of_both) == 1);
    zkl_lock_free(both);
}

/* A revocation request for a lease calls the callback of its semaphore. */
static void revoke_of_a_lease_calls_the_semaphores_callback(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 2);
    zkl_hold *two = NULL;
    struct asked asked = new_asked(), next = new_asked();
    char node[256];
    size_t needed;
    OK(zkl_semaphore_set_revocable(semaphore, on_semaphore_revocation, &asked, dropped));
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 60000, &two));
    for (size_t i = 0; i < 2; i++) {
        OK(zkl_hold_node_path(two, i, node, sizeof node, &needed));
        OK(zkl_revoke(other, node));
        AWAIT(calls(&asked) == 1 + (int)i);
    }
    CHECK(asked.handle == semaphore);
    CHECK(zkl_hold_is_held(two) == 1);
    OK(zkl_semaphore_set_revocable(semaphore, on_semaphore_revocation, &next, dropped));
    AWAIT(drops(&asked) == 1);
    zkl_semaphore_free(semaphore);
    AWAIT(drops(&next) == 1);
    OK(zkl_revoke(other, node));
    OK(zkl_hold_release(two));
    CHECK(calls(&next) == 0);
}

static void release_and_free(struct asked *asked)
{
    zkl_lock *lock = asked->handle;
    struct asked *same = asked;
    /* Any thread may release a semaphore mutex. A callback may also call everything else. */
    OK(zkl_release(lock));
    OK(zkl_set_revocable(lock, on_revocation, same, NULL));
    zkl_lock_free(lock);
    CHECK(drops(asked) == 0);
}

/* A revocation callback may release and free its own lock. */
static void a_callback_may_free_its_lock(void)
{
    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *lock = new_semaphore_mutex(client, path), *wanted = new_semaphore_mutex(other, path);
    struct asked asked = new_asked();
    asked.also = release_and_free;
    OK(zkl_set_revocable(lock, on_revocation, &asked, dropped));
    OK(zkl_acquire(lock));
    revoke_by(lock);
    OK(acquire_in_time(wanted));
    AWAIT(drops(&asked) == 1);
    EXPECT(ZKL_E_HANDLE, zkl_acquire(lock));
    OK(zkl_release(wanted));
    zkl_lock_free(wanted);
}

static zkl_lock *dropping;
static int dropped_inside;

static void drop_and_call(void *user)
{
    (void)user;
    /* The library holds no internal lock while it drops a user. */
    CHECK(zkl_lock_state(dropping) >= ZKL_LOCK_FREE);
    OK(zkl_set_revocable(dropping, NULL, NULL, NULL));
    CHECK(participants(dropping) == 0);
    dropped_inside++;
}

/* The function that drops a user may call the library. */
static void user_drop_may_call_the_library(void)
{
    dropping = new_mutex(client, fresh_path());
    for (int i = 1; i < 4; i++) {
        OK(zkl_set_revocable(dropping, on_revocation, &dropped_inside, drop_and_call));
        OK(zkl_set_revocable(dropping, on_revocation, NULL, NULL));
        CHECK(dropped_inside == 2 * i - 1);
        OK(zkl_set_revocable(dropping, NULL, &dropped_inside, drop_and_call));
        CHECK(dropped_inside == 2 * i);
    }
    zkl_lock_free(dropping);
}

static int living;

static void on_revocation_with_heap_data(void *user, zkl_lock *lock)
{
    CHECK(*(int *)user == 42);
    CHECK(lock != NULL);
}

static void free_on_the_heap(void *user)
{
    CHECK(*(int *)user == 42);
    free(user);
    __atomic_sub_fetch(&living, 1, __ATOMIC_SEQ_CST);
}

struct shared {
    zkl_lock *locks[3];
    int stop;
};

static void *keep_setting(void *argument)
{
    struct shared *shared = argument;
    for (int round = 0; !__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST); round++) {
        int *user = malloc(sizeof *user);
        *user = 42;
        __atomic_add_fetch(&living, 1, __ATOMIC_SEQ_CST);
        zkl_lock *lock = __atomic_load_n(&shared->locks[round % 3], __ATOMIC_SEQ_CST);
        zkl_status status =
            zkl_set_revocable(lock, round % 7 == 0 ? NULL : on_revocation_with_heap_data, user, free_on_the_heap);
        CHECK(status == ZKL_OK || status == ZKL_E_HANDLE || status == ZKL_E_CLOSED);
        if (status != ZKL_OK) free_on_the_heap(user);
        /* Each call sends a request to the server. */
        sleep_ms(1);
    }
    return NULL;
}

/* Threads can set callbacks and free locks at the same time. */
static void threads_set_and_free_at_once(void)
{
    struct shared shared = {{NULL}, 0};
    pthread_t threads[2];
    zkl_client *own = new_client();
    char path[64], two_path[64];
    strcpy(path, fresh_path());
    strcpy(two_path, fresh_path());
    for (int round = 0; round < 12; round++) {
        zkl_lock *one = new_mutex(own, path), *two = new_semaphore_mutex(own, two_path), *both = new_multi(one, two);
        zkl_lock *before[3];
        zkl_lock *now[3] = {one, two, both};
        for (int i = 0; i < 3; i++) {
            before[i] = shared.locks[i];
            __atomic_store_n(&shared.locks[i], now[i], __ATOMIC_SEQ_CST);
        }
        if (round == 0) {
            for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, keep_setting, &shared) == 0);
        }
        for (int i = 0; i < 3; i++) zkl_lock_free(before[(i + round) % 3]);
        OK(acquire_in_time(both));
        revoke_by(one);
        revoke_by(two);
        OK(zkl_release(both));
    }
    zkl_client_free(own);
    __atomic_store_n(&shared.stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 3; i++) zkl_lock_free(shared.locks[i]);
    AWAIT(__atomic_load_n(&living, __ATOMIC_SEQ_CST) == 0);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(revoke_calls_the_holders_callback);
    RUN(revoke_reaches_existing_holders_and_waiters);
    RUN(new_callback_replaces_the_old_one);
    RUN(failed_call_does_not_take_the_user_pointer);
    RUN(freed_client_drops_its_locks_callback_data);
    RUN(multi_locks_callback_receives_the_multi_lock_handle);
    RUN(revoke_of_a_lease_calls_the_semaphores_callback);
    RUN(a_callback_may_free_its_lock);
    RUN(user_drop_may_call_the_library);
    RUN(threads_set_and_free_at_once);
    zkl_client_free(other);
    zkl_client_free(client);
    return 0;
}
