/* The options of access control lists. ZooKeeper's own C client reads the lists of the nodes. */
#include "admin.h"

static zkl_client *client_with(const char *credentials, const char *acl, const char *lock_directory)
{
    zkl_client *client = NULL;
    zkl_config *config = zkl_config_new();
    if (credentials != NULL) OK(zkl_config_add_auth(config, "digest", credentials, strlen(credentials)));
    OK(zkl_config_set(config, "acl", acl));
    OK(zkl_config_set(config, "acl.lock_directory", lock_directory));
    OK(zkl_config_set(config, "acl.parents", "open"));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    return client;
}

/* Checks that the list of a node has one entry, for the identity of `team`. */
static void check_list(const char *node, int permissions)
{
    struct ACL_vector list;
    struct Stat stat;
    CHECK(zoo_get_acl(admin, node, &list, &stat) == ZOK);
    CHECK(list.count == 1 && list.data[0].perms == permissions);
    CHECK(strcmp(list.data[0].id.scheme, "digest") == 0 && strncmp(list.data[0].id.id, "team:", 5) == 0);
    deallocate_ACL_vector(&list);
}

static void nodes_have_their_lists(void)
{
    const char *path = fresh_path();
    zkl_client *client = client_with("team:secret", "auth::rw", "creator_all"), *stranger = new_client();
    zkl_lock *lock = new_mutex(client, path), *closed = new_mutex(stranger, path);
    char node[256];
    size_t needed;
    OK(acquire_in_time(lock));
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    check_list(node, ZOO_PERM_READ | ZOO_PERM_WRITE);
    check_list(path, ZOO_PERM_ALL);
    EXPECT(ZKL_E_DENIED, acquire_in_time(closed));
    EXPECT_MESSAGE("this requires the permission c (create) on ");
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_lock_free(closed);
    zkl_client_free(client);
    zkl_client_free(stranger);
}

static void wrong_lists_are_refused(void)
{
    zkl_config *config = zkl_config_new();
    EXPECT(ZKL_E_INVALID, zkl_config_set(config, "acl", "digest:team:secret:r"));
    EXPECT_MESSAGE("option acl: entry 1: the id of the scheme digest is wrong");
    CHECK(strstr(zkl_last_error_message(), "secret") == NULL);
    EXPECT(ZKL_E_INVALID, zkl_config_set(config, "acl.parents", "auth::r,ip:10.0.0.0/8:x"));
    EXPECT_MESSAGE("option acl.parents: entry 2: the permissions contain a wrong or repeated letter 'x'");
    zkl_config_free(config);
    zkl_client *client = client_with(NULL, "creator_all", "open");
    zkl_lock *lock = new_mutex(client, fresh_path());
    EXPECT(ZKL_E_INVALID, acquire_in_time(lock));
    EXPECT_MESSAGE("creator_all and auth require credentials: set the option auth.digest");
    zkl_lock_free(lock);
    zkl_client_free(client);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    connect_admin();
    CHECK(zoo_add_auth(admin, "digest", "team:secret", strlen("team:secret"), NULL, NULL) == ZOK);
    RUN(nodes_have_their_lists);
    RUN(wrong_lists_are_refused);
    CHECK(zookeeper_close(admin) == ZOK);
    return 0;
}
