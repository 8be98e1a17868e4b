/* The log of the library and its callback. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>

enum { LINES = 8192 };

struct line {
    int32_t level;
    int64_t time_ns;
    char target[32], message[64], text[512], path[96], session[32];
};

/* The received log lines. Setting another callback waits for the last call. */
static struct heard {
    pthread_mutex_t lock;
    struct line lines[LINES];
    int count, drops, wait_ms;
    int64_t missing;
    zkl_lock *call;
    zkl_status waits, looks;
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

static void on_log_line(void *user, const zkl_log *log)
{
    struct heard *to = user;
    CHECK(log->size == sizeof *log);
    if (to->wait_ms > 0) sleep_ms(to->wait_ms);
    pthread_mutex_lock(&to->lock);
    CHECK(to->count < LINES);
    struct line *line = &to->lines[to->count++];
    memset(line, 0, sizeof *line);
    line->level = log->level;
    line->time_ns = log->time_ns;
    keep(line->target, sizeof line->target, log->target);
    keep(line->message, sizeof line->message, log->message);
    keep(line->text, sizeof line->text, log->line);
    for (size_t i = 0; i < log->field_count; i++) {
        const zkl_log_field *field = &log->fields[i];
        if (strcmp(field->name, "path") == 0) keep(line->path, sizeof line->path, field->value);
        if (strcmp(field->name, "session") == 0) keep(line->session, sizeof line->session, field->value);
        if (strcmp(log->target, "zklock::log") == 0 && strcmp(field->name, "count") == 0) to->missing += atoll(field->value);
    }
    pthread_mutex_unlock(&to->lock);
}

static void drop(void *user)
{
    ++((struct heard *)user)->drops;
}

static void listen_to(int32_t level)
{
    OK(zkl_set_log_callback(level, on_log_line, &heard, drop));
}

static void forget(void)
{
    pthread_mutex_lock(&heard.lock);
    heard.count = 0;
    heard.missing = 0;
    pthread_mutex_unlock(&heard.lock);
}

/* Returns a copy of the newest line with this message and path. NULL stands for any path. */
static struct line find(const char *message, const char *path)
{
    struct line found;
    memset(&found, 0, sizeof found);
    pthread_mutex_lock(&heard.lock);
    for (int i = heard.count; i-- > 0;) {
        struct line *line = &heard.lines[i];
        if (strcmp(line->message, message) == 0 && (path == NULL || strcmp(line->path, path) == 0)) found = *line;
    }
    pthread_mutex_unlock(&heard.lock);
    return found;
}

/* A log line has a level, a target, a message, fields and a time. */
static void log_line_has_level_message_and_fields(void)
{
    char text[160], session[32];
    struct timespec day;
    clock_gettime(CLOCK_REALTIME, &day);
    listen_to(ZKL_LOG_DEBUG);
    zkl_client *client = new_client();
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    snprintf(session, sizeof session, "0x%" PRIx64, (uint64_t)zkl_client_session_id(client));
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    AWAIT(find("released", path).level == ZKL_LOG_DEBUG);
    struct line acquired = find("acquired", path), begun = find("session established", NULL);
    CHECK(acquired.level == ZKL_LOG_DEBUG && strcmp(acquired.target, "zklock::lock") == 0);
    snprintf(text, sizeof text, "acquired path=%s owner=", path);
    CHECK(strncmp(acquired.text, text, strlen(text)) == 0 && strstr(acquired.text, " token=") != NULL);
    CHECK(acquired.time_ns / 1000000000 - day.tv_sec < 100 && acquired.time_ns / 1000000000 >= day.tv_sec);
    CHECK(begun.level == ZKL_LOG_INFO && strcmp(begun.target, "zklock::session") == 0);
    CHECK(strcmp(begun.session, session) == 0);
    for (int i = 0; i < heard.count; i++) CHECK(heard.lines[i].level <= ZKL_LOG_DEBUG);
    zkl_lock_free(lock);
    zkl_client_free(client);
    AWAIT(find("session closed", NULL).level == ZKL_LOG_INFO);
}

/* The callback receives only lines up to its level. */
static void levels(void)
{
    zkl_lock *lock;
    for (int32_t level = ZKL_LOG_ERROR; level <= ZKL_LOG_TRACE; level++) {
        OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
        forget();
        listen_to(level);
        zkl_client *client = new_client();
        lock = new_mutex(client, fresh_path());
        OK(zkl_acquire(lock));
        OK(zkl_release(lock));
        zkl_lock_free(lock);
        zkl_client_free(client);
        OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
        /* By now, all lines have been delivered. */
        int most = 0;
        for (int i = 0; i < heard.count; i++) most = heard.lines[i].level > most ? heard.lines[i].level : most;
        CHECK(level < ZKL_LOG_INFO ? heard.count == 0 : most == level);
    }
    CHECK(strcmp(find("request", NULL).target, "zklock::request") == 0);
    forget();
    zkl_client_free(new_client());
    CHECK(heard.count == 0);
}

/* A new log callback replaces the previous one, whose user is dropped after its last call. */
static void new_log_callback_replaces_the_old_one(void)
{
    static struct heard other = {.lock = PTHREAD_MUTEX_INITIALIZER};
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    heard.drops = 0;
    heard.wait_ms = 100;
    listen_to(ZKL_LOG_INFO);
    zkl_client *client = new_client();
    OK(zkl_set_log_callback(ZKL_LOG_INFO, on_log_line, &other, drop));
    int count = heard.count;
    CHECK(heard.drops == 1 && other.drops == 0);
    zkl_client_free(client);
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    CHECK(heard.drops == 1 && other.drops == 1 && other.count >= 1 && heard.count == count);
    heard.wait_ms = 0;
    /* The library drops a user immediately if it does not need it. A call that fails does not take the user. */
    OK(zkl_set_log_callback(ZKL_LOG_INFO, NULL, &heard, drop));
    CHECK(heard.drops == 2);
    OK(zkl_set_log_callback(ZKL_LOG_OFF, on_log_line, &heard, drop));
    CHECK(heard.drops == 3);
    EXPECT(ZKL_E_INVALID, zkl_set_log_callback(6, on_log_line, &heard, drop));
    EXPECT_MESSAGE("level is 6");
    EXPECT(ZKL_E_INVALID, zkl_set_log_callback(-1, on_log_line, &heard, drop));
    CHECK(heard.drops == 3);
}

static int is_done;

static void call(void *user, const zkl_log *log)
{
    struct heard *to = user;
    if (strcmp(log->message, "acquired") != 0) return;
    to->waits = zkl_acquire_timeout(to->call, 1000);
    to->looks = zkl_acquire_timeout(to->call, 0);
    CHECK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL) == ZKL_OK);
    CHECK(to->drops == 0);
}

static void done(void *user)
{
    (void)user;
    __atomic_store_n(&is_done, 1, __ATOMIC_SEQ_CST);
}

/* The event thread calls the callback and holds no lock of the library. */
static void log_callback_may_call_but_not_wait(void)
{
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    heard.call = lock;
    heard.drops = 0;
    OK(zkl_set_log_callback(ZKL_LOG_DEBUG, call, &heard, done));
    OK(zkl_acquire(lock));
    AWAIT(__atomic_load_n(&is_done, __ATOMIC_SEQ_CST));
    CHECK(heard.waits == ZKL_E_DEADLOCK && heard.looks == ZKL_E_TIMEOUT);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
}

/* Each of 1,000 cycles logs two requests, two replies, the grant and the release. */
static bool all_lines_are_counted(void)
{
    pthread_mutex_lock(&heard.lock);
    bool all = heard.count >= 4096 && heard.missing > 0 && heard.count + heard.missing >= 6000;
    pthread_mutex_unlock(&heard.lock);
    return all;
}

/* If the callback is too slow, the library drops lines and reports their number. */
static void dropped_lines_are_counted(void)
{
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    forget();
    listen_to(ZKL_LOG_TRACE);
    pthread_mutex_lock(&heard.lock);
    for (int i = 0; i < 1000; i++) {
        OK(zkl_acquire(lock));
        OK(zkl_release(lock));
    }
    pthread_mutex_unlock(&heard.lock);
    /* Turning the log off waits only two seconds for the queued lines, which is too short under valgrind. */
    AWAIT(all_lines_are_counted());
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    zkl_lock_free(lock);
    zkl_client_free(client);
}

static pthread_t dispatcher;

static void on_polled_line(void *user, const zkl_log *log)
{
    CHECK(pthread_equal(dispatcher, pthread_self()));
    on_log_line(user, log);
    /* The callback does not deliver the next line. */
    int32_t count = -7;
    CHECK(zkl_log_dispatch(&count) == ZKL_OK && count == 0);
}

static void drop_on_dispatcher(void *user)
{
    CHECK(pthread_equal(dispatcher, pthread_self()));
    drop(user);
}

static bool is_readable(int fd)
{
    struct pollfd poller = {fd, POLLIN, 0};
    CHECK(poll(&poller, 1, 0) >= 0);
    return (poller.revents & POLLIN) != 0;
}

static int32_t deliver(void)
{
    int32_t count = -7;
    OK(zkl_log_dispatch(&count));
    return count;
}

/* With zkl_set_log_polling, the callback and user_drop run only on a program thread. */
static void polled_lines_wait_for_the_program(void)
{
    int32_t count = -7;
    dispatcher = pthread_self();
    EXPECT(ZKL_E_INVALID, zkl_log_event_fd());
    EXPECT_MESSAGE("zkl_set_log_polling");
    EXPECT(ZKL_E_INVALID, zkl_log_dispatch(&count));
    forget();
    heard.drops = 0;
    OK(zkl_set_log_polling(ZKL_LOG_DEBUG, on_polled_line, &heard, drop_on_dispatcher));
    int fd = zkl_log_event_fd();
    CHECK(fd >= 0 && zkl_log_event_fd() == fd && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    EXPECT(ZKL_E_INVALID, zkl_log_dispatch(NULL));
    EXPECT_MESSAGE("count_out is NULL");
    CHECK(!is_readable(fd) && deliver() == 0);
    zkl_client *client = new_client();
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    OK(zkl_acquire(lock));
    CHECK(is_readable(fd) && heard.count == 0);
    count = deliver();
    CHECK(count > 0 && count == heard.count);
    /* The library may log the grant a moment after the acquire has returned. */
    while (find("acquired", path).level == 0) deliver();
    CHECK(find("acquired", path).level == ZKL_LOG_DEBUG);
    OK(zkl_release(lock));
    AWAIT(is_readable(fd));
    while (find("released", path).level == 0) deliver();
    /* The end of the client logs lines. Turning the log off delivers them at once. */
    zkl_lock_free(lock);
    zkl_client_free(client);
    while (is_readable(fd)) deliver();
    forget();
    zkl_client_free(new_client());
    int64_t began = now_ms();
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    CHECK(now_ms() - began < slack_ms() && heard.drops == 1);
    CHECK(find("session established", NULL).level == ZKL_LOG_INFO && find("session closed", NULL).level == ZKL_LOG_INFO);
    CHECK(fcntl(fd, F_GETFD) == -1);
    EXPECT(ZKL_E_INVALID, zkl_log_event_fd());

    /* Each function replaces the callback of the other function. */
    OK(zkl_set_log_polling(ZKL_LOG_INFO, on_polled_line, &heard, drop_on_dispatcher));
    forget();
    zkl_client_free(new_client());
    CHECK(heard.count == 0);
    OK(zkl_set_log_callback(ZKL_LOG_INFO, on_log_line, &heard, drop));
    CHECK(heard.drops == 2);
    EXPECT(ZKL_E_INVALID, zkl_log_dispatch(&count));
    AWAIT(find("session closed", NULL).level == ZKL_LOG_INFO);
    OK(zkl_set_log_polling(ZKL_LOG_OFF, NULL, NULL, NULL));
    CHECK(heard.drops == 3);
    EXPECT(ZKL_E_INVALID, zkl_set_log_polling(6, on_polled_line, &heard, drop));
    EXPECT_MESSAGE("level is 6");
    CHECK(heard.drops == 3);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(log_line_has_level_message_and_fields);
    RUN(levels);
    RUN(new_log_callback_replaces_the_old_one);
    RUN(log_callback_may_call_but_not_wait);
    RUN(dropped_lines_are_counted);
    RUN(polled_lines_wait_for_the_program);
    CHECK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL) == ZKL_OK);
    return 0;
}
