/* A library whose constructor creates a client (compiled with -DPLUGIN), and a program that opens this library with dlopen:
 * constructor SERVERS PLUGIN HOW. While the constructor runs, the thread holds the lock of the dynamic loader, and no other thread
 * can start. */
#include "check.h"

#include <dlfcn.h>

struct result {
    zkl_status status;
    int64_t took_ms;
    char message[1024];
};

enum { CONNECT_MS = 1500 };

#ifdef PLUGIN

struct result constructed;

__attribute__((constructor)) static void construct(void)
{
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_connect_timeout_ms(config, CONNECT_MS));
    zkl_client *client = NULL;
    int64_t began = now_ms();
    constructed.status = zkl_client_new(getenv("PLUGIN_SERVERS"), config, &client);
    snprintf(constructed.message, sizeof constructed.message, "%s", zkl_last_error_message());
    zkl_client_free(client);
    zkl_config_free(config);
    constructed.took_ms = now_ms() - began;
}

#else

int main(int argc, char **argv)
{
    begin(argc, argv, 3);
    const char *how = argv[3];
    char named[64];
    snprintf(named, sizeof named, "localhost:%s", strrchr(servers, ':') + 1);
    CHECK(setenv("PLUGIN_SERVERS", strcmp(how, "name") == 0 ? named : servers, 1) == 0);
    zkl_client *client = strcmp(how, "alone") == 0 ? NULL : new_client();
    void *plugin = dlopen(argv[2], RTLD_NOW);
    if (plugin == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(plugin != NULL);
    const struct result *constructed = dlsym(plugin, "constructed");
    fprintf(stderr, "%s: %d after %d ms: %s\n", how, constructed->status, (int)constructed->took_ms, constructed->message);
    if (strcmp(how, "literal") == 0) {
        /* The I/O thread runs already, and no name has to be resolved. */
        CHECK(constructed->status == ZKL_OK);
    } else {
        CHECK(constructed->status == ZKL_E_CONNECTION);
        CHECK(strstr(constructed->message, "dlopen") != NULL);
    }
    CHECK(constructed->took_ms < CONNECT_MS + 1000 + slack_ms());
    zkl_client_free(client);
    /* After the constructor, everything works. */
    client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
    return 0;
}

#endif
