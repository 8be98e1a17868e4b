/* Local hand-over: threads of one process pass a mutex to each other, while another process does the same. */
#include "check.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PROCESSES = 2, THREADS = 8, ROUNDS = 25, PASSES = 4 };

static zkl_client *client;

static zkl_lock *new_cohort(zkl_client *of, const char *path, int32_t max_passes)
{
    zkl_lock *lock = new_mutex(of, path);
    OK(zkl_mutex_set_local_handover(lock, max_passes));
    return lock;
}

/* Local hand-over is refused for locks that are not mutexes, and for negative limits. */
static void only_mutexes_and_no_negative_numbers(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path()), *read = NULL, *write = NULL;
    zkl_lock *single = new_semaphore_mutex(client, fresh_path()), *both = new_multi(lock, single);
    OK(zkl_rwlock_new(client, fresh_path(), &read, &write));
    zkl_lock *const others[] = {single, both, read, write};
    for (int i = 0; i < 4; i++) {
        EXPECT(ZKL_E_UNSUPPORTED, zkl_mutex_set_local_handover(others[i], 1));
        zkl_lock_free(others[i]);
    }
    EXPECT(ZKL_E_INVALID, zkl_mutex_set_local_handover(lock, -1));
    EXPECT_MESSAGE("max_passes is -1");
    EXPECT(ZKL_E_INVALID, zkl_mutex_set_local_handover(lock, INT32_MIN));
    OK(zkl_mutex_set_local_handover(lock, INT32_MAX));
    OK(zkl_mutex_set_local_handover(lock, 0));
    zkl_lock_free(lock);
}

/* The fencing pass counts the local hand-overs under one token, up to the limit. */
static void fencing_pass_counts_local_handovers(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_cohort(client, path, 1);
    int64_t pass = -7;
    EXPECT(ZKL_E_NOT_OWNER, zkl_fencing_pass(lock, &pass));
    CHECK(pass == -7);
    zkl_op *ops[3];
    for (uint64_t task = 0; task < 3; task++) OK(zkl_acquire_start(lock, task + 1, -1, &ops[task]));
    zkl_hold *holds[3];
    zkl_hold_info infos[3];
    for (int i = 0; i < 3; i++) {
        OK(zkl_op_wait(ops[i], -1));
        holds[i] = take_hold(ops[i]);
        infos[i] = (zkl_hold_info){.size = sizeof infos[i]};
        OK(zkl_hold_view(holds[i], &infos[i]));
        CHECK(is_valid(client, path, infos[0].token) == (i < 2) && participants(lock) == 1);
        OK(zkl_hold_release(holds[i]));
    }
    CHECK(infos[0].fencing_pass == 0 && infos[1].fencing_pass == 1 && infos[2].fencing_pass == 0);
    CHECK(infos[1].token == infos[0].token && infos[2].token > infos[0].token);
    zkl_lock_free(lock);
}

/* The memory that the processes share: a store, and the number of current holders. */
struct store {
    atomic_int inside;
    int64_t token, pass, holds, passed;
};

static struct store *store;
static const char *store_path;

static void *use_store(void *lock)
{
    for (int round = 0; round < ROUNDS; round++) {
        int64_t token = 0, pass = 0;
        OK(zkl_acquire_timeout(lock, 60000));
        CHECK(atomic_fetch_add(&store->inside, 1) == 0);
        OK(zkl_fencing_token(lock, &token));
        OK(zkl_fencing_pass(lock, &pass));
        CHECK(token > store->token || (token == store->token && pass == store->pass + 1));
        CHECK(pass <= PASSES);
        store->passed += token == store->token;
        store->token = token;
        store->pass = pass;
        store->holds++;
        CHECK(atomic_fetch_sub(&store->inside, 1) == 1);
        OK(zkl_release(lock));
    }
    return NULL;
}

static int run_process(void)
{
    zkl_client *own = new_client();
    zkl_lock *lock = new_cohort(own, store_path, PASSES);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, use_store, lock) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    zkl_client_free(own);
    return 0;
}

/* If several processes use local hand-over on one path, there is at most one holder at any time. */
static void processes_exclude_each_other(void)
{
    store = mmap(NULL, sizeof *store, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(store != MAP_FAILED);
    store_path = fresh_path();
    pid_t processes[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        processes[i] = fork();
        CHECK(processes[i] >= 0);
        if (processes[i] == 0) exit(run_process());
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        CHECK(waitpid(processes[i], &status, 0) == processes[i] && status == 0);
    }
    CHECK(store->holds == PROCESSES * THREADS * ROUNDS && store->inside == 0);
    CHECK(store->passed > store->holds / 2);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    /* This test runs before the client is created, because a forked child cannot use an inherited client. */
    RUN(processes_exclude_each_other);
    client = new_client();
    RUN(only_mutexes_and_no_negative_numbers);
    RUN(fencing_pass_counts_local_handovers);
    zkl_client_free(client);
    return 0;
}
