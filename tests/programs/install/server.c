/* A test as a user would write it: it starts its own server and ends the session. */
#include <stdio.h>
#include <string.h>

#include <zklock.h>
#include <zklock_standalone.h>

int main(void)
{
    zkl_standalone *server;
    zkl_client *client;
    zkl_lock *lock;
    if (zkl_standalone_start(NULL, &server) != ZKL_OK) {
        fprintf(stderr, "%s\n", zkl_standalone_last_error_message());
        return 1;
    }
    if (zkl_client_new(zkl_standalone_address(server), NULL, &client) != ZKL_OK ||
        zkl_mutex_new(client, "/locks/a", &lock) != ZKL_OK || zkl_acquire_timeout(lock, 5000) != ZKL_OK) {
        fprintf(stderr, "%s\n", zkl_last_error_message());
        return 1;
    }
    zkl_standalone_expire(server, zkl_client_session_id(client));
    while (zkl_is_held(lock) == 1) {
        /* The client reports LOST when the server answers its next request. */
    }
    zkl_lock_free(lock);
    zkl_client_free(client);
    zkl_standalone_stop(server);
    return strcmp(zkl_version(), ZKL_VERSION) == 0 ? 0 : 1;
}
