/* ZooKeeper's own C client, which observes and changes nodes without the library. */
#ifndef ADMIN_H
#define ADMIN_H

#define THREADED
#include "check.h"

#include <zookeeper/zookeeper.h>

static zhandle_t *admin;

static inline void connect_admin(void)
{
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    admin = zookeeper_init(servers, NULL, 60000, NULL, NULL, 0);
    CHECK(admin != NULL);
    AWAIT(zoo_state(admin) == ZOO_CONNECTED_STATE);
}

#endif
