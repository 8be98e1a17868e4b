// The options of access control lists. ZooKeeper's own C client reads the lists of the nodes.
#include "check.hpp"

#include <mutex>

#define THREADED
#include <zookeeper/zookeeper.h>

namespace {

zhandle_t *admin = nullptr;

// Returns the permissions in the list of a node, which must have one entry, for the identity of `team`.
int permissions(const std::string &node)
{
    ACL_vector list;
    Stat stat;
    CHECK(zoo_get_acl(admin, node.c_str(), &list, &stat) == ZOK);
    CHECK(list.count == 1 && std::string(list.data[0].id.scheme) == "digest");
    CHECK(std::string(list.data[0].id.id).find("team:") == 0);
    const int found = list.data[0].perms;
    deallocate_ACL_vector(&list);
    return found;
}

void nodes_have_their_lists()
{
    zkl::config config;
    config.add_auth("digest", "team:secret").set("acl", "auth::rw");
    config.set("acl.lock_directory", "creator_all").set("acl.parents", "open");
    zkl::client client(check::servers, config), stranger(check::servers);
    const std::string path = check::fresh_path();
    zkl::mutex mutex(client, path), closed(stranger, path);
    const std::lock_guard guard(mutex);
    CHECK(permissions(mutex.node_path()) == (ZOO_PERM_READ | ZOO_PERM_WRITE));
    CHECK(permissions(path) == ZOO_PERM_ALL);
    THROWS(denied, "this requires the permission c (create) on " + path, closed.lock());
}

void wrong_lists_throw_invalid()
{
    THROWS(invalid, "option acl: entry 1: \"x\" has no colon", zkl::config().set("acl", "x"));
    zkl::client client(check::servers, zkl::config().set("acl", "creator_all"));
    zkl::mutex mutex(client, check::fresh_path());
    THROWS(invalid, "set the option auth.digest", mutex.lock());
}

} // namespace

int main(int argc, char **argv)
{
    check::begin(argc, argv);
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    admin = zookeeper_init(check::servers.c_str(), nullptr, 60000, nullptr, nullptr, 0);
    CHECK(admin != nullptr);
    AWAIT(zoo_state(admin) == ZOO_CONNECTED_STATE);
    CHECK(zoo_add_auth(admin, "digest", "team:secret", 11, nullptr, nullptr) == ZOK);
    RUN(nodes_have_their_lists);
    RUN(wrong_lists_throw_invalid);
    CHECK(zookeeper_close(admin) == ZOK);
    return 0;
}
