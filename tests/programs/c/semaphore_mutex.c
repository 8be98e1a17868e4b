/* The semaphore mutex, which any thread may release, used from C. */
#include "check.h"

static zkl_client *client;

/* The holder cannot acquire the lock again before a release. */
static void it_is_not_reentrant(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_semaphore_mutex(client, path);
    struct call released;
    int64_t first = 0, second = 0;
    OK(zkl_acquire(lock));
    OK(zkl_fencing_token(lock, &first));
    EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(lock, 0));
    EXPECT_MESSAGE(path);
    CHECK(zkl_is_held(lock) == 1);
    /* An acquire by the holder waits until any thread releases the lock. */
    start_call(&released, zkl_release, lock);
    OK(acquire_in_time(lock));
    CHECK(end_call(&released) == ZKL_OK);
    OK(zkl_fencing_token(lock, &second));
    CHECK(second > first);
    OK(zkl_release(lock));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(lock));
    CHECK(zkl_lock_state(lock) == ZKL_LOCK_FREE);
    zkl_lock_free(lock);
}

/* Only the acquiring thread counts as the holder, but any thread can release the lock through the same handle. */
static void any_thread_releases_it_and_one_holds_it(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_semaphore_mutex(client, path), *same = new_semaphore_mutex(client, path);
    char node[128];
    size_t needed = 0;
    OK(zkl_acquire(lock));
    CHECK(zkl_is_held(lock) == 1);
    CHECK(on_new_thread(held_by_thread, lock) == 0);
    CHECK(zkl_is_held_in_process(lock) == 1);
    CHECK(zkl_lock_state(lock) == ZKL_LOCK_HELD);
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    CHECK(strncmp(node, path, strlen(path)) == 0 && strstr(node, "/leases/") != NULL);
    /* The hold belongs to the lock handle. */
    CHECK(on_new_thread(zkl_release, same) == ZKL_E_NOT_OWNER);
    CHECK(on_new_thread(zkl_release, lock) == ZKL_OK);
    CHECK(zkl_is_held(lock) == 0 && zkl_is_held_in_process(lock) == 0);
    EXPECT(ZKL_E_NOT_OWNER, zkl_lock_node_path(lock, node, sizeof node, &needed));

    CHECK(on_new_thread(acquire_in_time, lock) == ZKL_OK);
    CHECK(zkl_is_held(lock) == 0 && zkl_is_held_in_process(lock) == 1);
    EXPECT(ZKL_E_TIMEOUT, try_acquire(same));
    OK(zkl_release_nowait(lock));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release_nowait(lock));
    OK(acquire_and_release(same));
    zkl_lock_free(lock);
    zkl_lock_free(same);
}

/* zkl_participants lists the holder and the waiters, and cancelling or freeing the lock ends the waits. */
static void holder_and_waiters_are_shown(void)
{
    zkl_lock *lock = new_semaphore_mutex(client, fresh_path());
    struct call waiting;
    OK(zkl_acquire(lock));
    start_call(&waiting, zkl_acquire, lock);
    await_participants(lock, 2);
    CHECK(queue_length(lock) == 2);
    OK(zkl_cancel(lock));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    await_participants(lock, 1);
    start_call(&waiting, zkl_acquire, lock);
    await_participants(lock, 2);
    zkl_lock_free(lock);
    CHECK(end_call(&waiting) == ZKL_E_CLOSED);
}

struct counter {
    zkl_lock *lock;
    int inside, total;
};

static void *count_up(void *argument)
{
    struct counter *counter = argument;
    for (int round = 0; round < 10; round++) {
        OK(acquire_in_time(counter->lock));
        CHECK(__atomic_fetch_add(&counter->inside, 1, __ATOMIC_SEQ_CST) == 0);
        counter->total++;
        CHECK(__atomic_fetch_sub(&counter->inside, 1, __ATOMIC_SEQ_CST) == 1);
        OK(round % 2 == 0 ? zkl_release(counter->lock) : zkl_release_nowait(counter->lock));
    }
    return NULL;
}

/* Threads that increment a number under the lock lose no increment. */
static void threads_exclude_each_other(void)
{
    struct counter counter = {new_semaphore_mutex(client, fresh_path()), 0, 0};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, count_up, &counter) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(counter.total == 30);
    zkl_lock_free(counter.lock);
}

/* Freeing the handle releases the hold of any thread. */
static void freeing_releases_what_any_thread_holds(void)
{
    const char *path = fresh_path();
    zkl_client *other = new_client();
    zkl_lock *lock = new_semaphore_mutex(client, path), *theirs = new_semaphore_mutex(other, path);
    CHECK(on_new_thread(acquire_in_time, lock) == ZKL_OK);
    EXPECT(ZKL_E_TIMEOUT, try_acquire(theirs));
    zkl_lock_free(lock);
    OK(acquire_in_time(theirs));
    zkl_client_free(other);
    EXPECT(ZKL_E_CLOSED, zkl_release(theirs));
    zkl_lock_free(theirs);
    lock = new_semaphore_mutex(client, path);
    OK(acquire_and_release(lock));
    zkl_lock_free(lock);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    RUN(it_is_not_reentrant);
    RUN(any_thread_releases_it_and_one_holds_it);
    RUN(holder_and_waiters_are_shown);
    RUN(threads_exclude_each_other);
    RUN(freeing_releases_what_any_thread_holds);
    zkl_client_free(client);
    return 0;
}
