/* Limits a pool to three users at a time, and waits for its turn: pool SERVERS PATH SECONDS
 *
 * A use ends when a line of input arrives. ../README.md explains how to build and run this program. */
#include <stdio.h>
#include <stdlib.h>

#include <zklock.h>

/* Ends the program if a call failed. */
static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void use(void)
{
    printf("using\n");
    fflush(stdout);
    getchar();
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: pool SERVERS PATH SECONDS\n");
        return 2;
    }
    zkl_client *client;
    zkl_semaphore *pool;
    zkl_hold *lease;
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));
    check("zkl_semaphore_new", zkl_semaphore_new(client, argv[2], 3, &pool));

    zkl_status status = zkl_semaphore_acquire_timeout(pool, 1, 1000 * atol(argv[3]), &lease);
    if (status == ZKL_E_TIMEOUT) {
        printf("full\n");
    } else {
        check("zkl_semaphore_acquire_timeout", status);
        use();
        check("zkl_hold_release", zkl_hold_release(lease));
        printf("returned\n");
    }

    zkl_semaphore_free(pool);
    zkl_client_free(client);
    return 0;
}
