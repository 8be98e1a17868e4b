/* Works with a lock, and serves its metrics to Prometheus: metrics SERVERS PATH [PORT]
 *
 *     make build && cd bindings/c/examples
 *     cc metrics.c -o metrics -I../../../include -L../../../target/release -lzklock -lpthread -Wl,-rpath,$PWD/../../../target/release
 *     ./metrics localhost:2181 /locks/demo 9100 & curl http://127.0.0.1:9100/metrics
 *
 * The program prints the address of its metrics, and runs until it is killed. Without PORT, it uses a free port.
 */
#define _POSIX_C_SOURCE 200809L

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <zklock.h>

static zkl_client *client;

static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void check_system(const char *call, int result)
{
    if (result < 0) {
        perror(call);
        exit(1);
    }
}

static void *work(void *path)
{
    zkl_lock *lock;
    struct timespec pause = {0, 50 * 1000 * 1000};
    check("zkl_mutex_new", zkl_mutex_new(client, path, &lock));
    for (;;) {
        zkl_status status = zkl_acquire_timeout(lock, 5000);
        if (status == ZKL_E_TIMEOUT) continue;
        check("zkl_acquire_timeout", status);
        nanosleep(&pause, NULL); /* the work that requires the lock */
        check("zkl_release", zkl_release(lock));
    }
    return NULL;
}

/* Returns the current metrics as text. The caller must free the text. */
static char *metrics(void)
{
    char *text = NULL;
    size_t size = 0, needed = 0;
    zkl_status status;
    while ((status = zkl_client_prometheus(client, "app=\"example\"", text, size, &needed)) == ZKL_E_BUFFER) {
        size = needed + 256; /* the next text may be longer */
        text = realloc(text, size);
        if (text == NULL) abort();
    }
    check("zkl_client_prometheus", status);
    return text;
}

static void answer(FILE *connection)
{
    char line[1024];
    /* The answer is the same for every request. An empty line ends the request. */
    while (fgets(line, sizeof line, connection) != NULL && strcmp(line, "\r\n") != 0) continue;
    char *text = metrics();
    fprintf(connection, "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %zu\r\n\r\n%s",
            strlen(text), text);
    free(text);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: %s SERVERS PATH [PORT]\n", argv[0]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN); /* if a client closes its connection early */
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));

    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)(argc == 4 ? atoi(argv[3]) : 0));
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check_system("socket", listener);
    check_system("bind", bind(listener, (struct sockaddr *)&address, length));
    check_system("listen", listen(listener, 16));
    check_system("getsockname", getsockname(listener, (struct sockaddr *)&address, &length));
    printf("http://127.0.0.1:%d/metrics\n", ntohs(address.sin_port));
    fflush(stdout);

    pthread_t worker;
    if (pthread_create(&worker, NULL, work, argv[2]) != 0) return 1;
    for (;;) {
        int descriptor = accept(listener, NULL, NULL);
        if (descriptor < 0) continue;
        FILE *connection = fdopen(descriptor, "r+");
        if (connection == NULL) abort();
        answer(connection);
        fclose(connection);
    }
}
