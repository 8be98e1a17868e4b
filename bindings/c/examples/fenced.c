/* Writes to a store during a hold, and proves the hold to the store: fenced SERVERS LOCK STORE RESOURCE SESSION_MS
 *
 *     make build && cd bindings/c/examples
 *     cc fenced.c fenced_sqlite.c -o fenced -I../../../include -L../../../target/release -lzklock -lsqlite3 \
 *         -Wl,-rpath,$PWD/../../../target/release
 *     ./fenced localhost:2181 /locks/report report.db report 2000
 *
 * The program writes each line of its input. Stop it (kill -STOP), start a second program that acquires and writes, and continue the
 * first one (kill -CONT): the store refuses its next write, although the program had acquired the lock. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zklock.h>

#include "fenced_store.h"

/* Ends the program if a call has failed. */
static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void say(const char *what)
{
    printf("%s\n", what);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: fenced SERVERS LOCK STORE RESOURCE SESSION_MS\n");
        return 1;
    }
    zkl_config *config = zkl_config_new();
    zkl_client *client;
    zkl_lock *lock;
    check("zkl_config_set_session_timeout_ms", zkl_config_set_session_timeout_ms(config, atoi(argv[5])));
    check("zkl_client_new", zkl_client_new(argv[1], config, &client));
    zkl_config_free(config);
    check("zkl_mutex_new", zkl_mutex_new(client, argv[2], &lock));
    struct store *store = store_open(argv[3]);

    check("zkl_acquire_timeout", zkl_acquire_timeout(lock, 30000));
    char node_path[1024], value[1024];
    size_t needed;
    struct proof proof = {0, node_path};
    check("zkl_fencing_token", zkl_fencing_token(lock, &proof.token));
    check("zkl_lock_node_path", zkl_lock_node_path(lock, node_path, sizeof node_path, &needed));
    printf("acquired TOKEN %" PRId64 "\n", proof.token);
    fflush(stdout);
    /* The work takes a while: here, until a line is typed. Therefore, the hold may have ended since the last check. */
    while (fgets(value, sizeof value, stdin) != NULL) {
        value[strcspn(value, "\n")] = '\0';
        say(store_put(store, argv[4], value, proof) ? "written" : "refused");
    }
    zkl_status status = zkl_release(lock);
    say(status == ZKL_OK ? "released" : zkl_strerror(status));

    store_close(store);
    zkl_lock_free(lock);
    zkl_client_free(client);
    return 0;
}
