/* A store in the ensemble of the lock, with ZooKeeper's C client. Each write is a transaction that checks the node of the lock. The
 * store keeps no token: while the node exists, there is no other holder. Link with -lzookeeper_mt. */
#define THREADED

#include "fenced_store.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zookeeper/zookeeper.h>

struct store {
    zhandle_t *zookeeper;
};

static void fail(const char *what, int code)
{
    fprintf(stderr, "zookeeper: %s: %s\n", what, zerror(code));
    exit(1);
}

struct store *store_open(const char *where)
{
    struct store *store = malloc(sizeof *store);
    if (store == NULL) exit(1);
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    store->zookeeper = zookeeper_init(where, NULL, 30000, NULL, NULL, 0);
    if (store->zookeeper == NULL) fail(where, ZSYSTEMERROR);
    for (int tries = 0; zoo_state(store->zookeeper) != ZOO_CONNECTED_STATE; tries++) {
        if (tries == 1000) fail(where, ZCONNECTIONLOSS);
        poll(NULL, 0, 10);
    }
    return store;
}

int store_put(struct store *store, const char *resource, const char *value, struct proof proof)
{
    zoo_op_t ops[2];
    zoo_op_result_t results[2] = {{0, NULL, 0, NULL}, {0, NULL, 0, NULL}};
    int code = zoo_create(store->zookeeper, resource, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
    if (code != ZOK && code != ZNODEEXISTS) fail(resource, code);
    /* Version -1 only checks that the node exists. A revocation request changes the data and the version of the node. */
    zoo_check_op_init(&ops[0], proof.node_path, -1);
    zoo_set_op_init(&ops[1], resource, value, (int)strlen(value), -1, NULL);
    code = zoo_multi(store->zookeeper, 2, ops, results);
    /* If the connection was lost, the result of the write is unknown. */
    if (code != ZOK && results[0].err != ZNONODE) fail(resource, code);
    return code == ZOK;
}

void store_close(struct store *store)
{
    zookeeper_close(store->zookeeper);
    free(store);
}
