/* Several processes share one mutex: mutex SERVERS PATH NAME ROUNDS
 *
 *     make build && cd bindings/c/examples
 *     cc mutex.c -o mutex -I../../../include -L../../../target/release -lzklock -Wl,-rpath,$PWD/../../../target/release
 *     ./mutex localhost:2181 /locks/demo alice 3 & ./mutex localhost:2181 /locks/demo bob 3
 */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <zklock.h>

/* Ends the program if a call has failed. */
static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void say(const char *name, const char *what, int64_t token)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%s %s TOKEN %" PRId64 " %" PRId64 "\n", name, what, token, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
    fflush(stdout);
}

/* The work that requires the lock. A real program passes its token to a store, which refuses late writes. */
static void work(void)
{
    struct timespec pause = {0, 100 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s SERVERS PATH NAME ROUNDS\n", argv[0]);
        return 2;
    }
    const char *servers = argv[1], *path = argv[2], *name = argv[3];
    int rounds = atoi(argv[4]);

    zkl_client *client;
    zkl_lock *lock;
    check("zkl_client_new", zkl_client_new(servers, NULL, &client));
    check("zkl_mutex_new", zkl_mutex_new(client, path, &lock));

    for (int round = 0; round < rounds; round++) {
        int64_t token;
        check("zkl_acquire_timeout", zkl_acquire_timeout(lock, 30000));
        check("zkl_fencing_token", zkl_fencing_token(lock, &token));
        say(name, "acquired", token);
        work();
        say(name, "released", token);
        check("zkl_release", zkl_release(lock));
    }

    zkl_lock_free(lock);
    zkl_client_free(client);
    return 0;
}
