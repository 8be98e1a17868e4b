/* Loads the library at run time, for programs that also work without zklock: dlopen SERVERS PATH NAME ROUNDS
 *
 *     make build && cd bindings/c/examples
 *     cc dlopen.c -o dlopen -I../../../include -ldl
 *     ZKLOCK_LIBRARY=../../../target/release/libzklock.so ./dlopen localhost:2181 /locks/demo alice 3
 *
 * The program uses only the types and constants of the header, and does not link the library. dlclose() is allowed, but does not unload it.
 */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <zklock.h>

/* The functions that this program uses, with their names in zklock.h. */
static struct {
    const char *(*zkl_strerror)(int32_t);
    const char *(*zkl_last_error_message)(void);
    zkl_status (*zkl_client_new)(const char *, const zkl_config *, zkl_client **);
    void (*zkl_client_free)(zkl_client *);
    zkl_status (*zkl_mutex_new)(zkl_client *, const char *, zkl_lock **);
    void (*zkl_lock_free)(zkl_lock *);
    zkl_status (*zkl_acquire_timeout)(zkl_lock *, int64_t);
    zkl_status (*zkl_release)(zkl_lock *);
    zkl_status (*zkl_fencing_token)(const zkl_lock *, int64_t *);
} library;

static void find(void *loaded, const char *name, void *function)
{
    void *symbol = dlsym(loaded, name);
    if (symbol == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    /* ISO C has no other conversion from a data pointer to a function pointer. */
    memcpy(function, &symbol, sizeof symbol);
}

#define FIND(name) find(loaded, #name, &library.name)

static void *load(void)
{
    const char *file = getenv("ZKLOCK_LIBRARY");
    void *loaded = dlopen(file == NULL ? "libzklock.so" : file, RTLD_NOW | RTLD_LOCAL);
    if (loaded == NULL) {
        fprintf(stderr, "zklock is not available: %s\n", dlerror());
        exit(1);
    }
    FIND(zkl_strerror);
    FIND(zkl_last_error_message);
    FIND(zkl_client_new);
    FIND(zkl_client_free);
    FIND(zkl_mutex_new);
    FIND(zkl_lock_free);
    FIND(zkl_acquire_timeout);
    FIND(zkl_release);
    FIND(zkl_fencing_token);
    return loaded;
}

static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, library.zkl_strerror(status), library.zkl_last_error_message());
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

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s SERVERS PATH NAME ROUNDS\n", argv[0]);
        return 2;
    }
    const char *servers = argv[1], *path = argv[2], *name = argv[3];
    int rounds = atoi(argv[4]);
    void *loaded = load();
    zkl_client *client;
    zkl_lock *lock;
    check("zkl_client_new", library.zkl_client_new(servers, NULL, &client));
    check("zkl_mutex_new", library.zkl_mutex_new(client, path, &lock));

    for (int round = 0; round < rounds; round++) {
        struct timespec pause = {0, 50 * 1000 * 1000};
        int64_t token;
        check("zkl_acquire_timeout", library.zkl_acquire_timeout(lock, 30000));
        check("zkl_fencing_token", library.zkl_fencing_token(lock, &token));
        say(name, "acquired", token);
        nanosleep(&pause, NULL);
        say(name, "released", token);
        check("zkl_release", library.zkl_release(lock));
    }

    library.zkl_lock_free(lock);
    library.zkl_client_free(client);
    dlclose(loaded);
    return 0;
}
