/* What the library logs, and how a program hears it. */
#include "check.h"

enum { LINES = 8192 };

struct line {
    int32_t level;
    int64_t time_ns;
    char target[32], message[64], text[512], path[96], session[32];
};

/* What was told. The last call is over when another callback takes the place of this one. */
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

static void hear(void *user, const zkl_log *log)
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
    OK(zkl_set_log_callback(level, hear, &heard, drop));
}

static void forget(void)
{
    pthread_mutex_lock(&heard.lock);
    heard.count = 0;
    heard.missing = 0;
    pthread_mutex_unlock(&heard.lock);
}

/* A copy of the first line with this message and path; any path where it is NULL. */
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

static void a_line_says_what_happened_to_what(void)
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
    struct line acquired = find("acquired", path), begun = find("session begun", NULL);
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
        /* All of it was told by then. */
        int most = 0;
        for (int i = 0; i < heard.count; i++) most = heard.lines[i].level > most ? heard.lines[i].level : most;
        CHECK(level < ZKL_LOG_INFO ? heard.count == 0 : most == level);
    }
    CHECK(strcmp(find("request", NULL).target, "zklock::request") == 0);
    forget();
    zkl_client_free(new_client());
    CHECK(heard.count == 0);
}

static void one_takes_the_place_of_another(void)
{
    static struct heard other = {.lock = PTHREAD_MUTEX_INITIALIZER};
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    heard.drops = 0;
    heard.wait_ms = 100;
    listen_to(ZKL_LOG_INFO);
    zkl_client *client = new_client();
    OK(zkl_set_log_callback(ZKL_LOG_INFO, hear, &other, drop));
    int count = heard.count;
    CHECK(heard.drops == 1 && other.drops == 0);
    zkl_client_free(client);
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    CHECK(heard.drops == 1 && other.drops == 1 && other.count >= 1 && heard.count == count);
    heard.wait_ms = 0;
    /* What is not used is given back at once; what is refused is not taken. */
    OK(zkl_set_log_callback(ZKL_LOG_INFO, NULL, &heard, drop));
    CHECK(heard.drops == 2);
    OK(zkl_set_log_callback(ZKL_LOG_OFF, hear, &heard, drop));
    CHECK(heard.drops == 3);
    EXPECT(ZKL_E_INVALID, zkl_set_log_callback(6, hear, &heard, drop));
    SAYS("level is 6");
    EXPECT(ZKL_E_INVALID, zkl_set_log_callback(-1, hear, &heard, drop));
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

/* On the thread of events, with no lock of the library held. */
static void it_may_call_but_not_wait(void)
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

static void what_is_too_much_is_counted(void)
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
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    /* For each cycle: two requests, two answers, the grant and the release. */
    CHECK(heard.count >= 4096 && heard.missing > 0 && heard.count + heard.missing >= 6000);
    zkl_lock_free(lock);
    zkl_client_free(client);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(a_line_says_what_happened_to_what);
    RUN(levels);
    RUN(one_takes_the_place_of_another);
    RUN(it_may_call_but_not_wait);
    RUN(what_is_too_much_is_counted);
    CHECK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL) == ZKL_OK);
    return 0;
}
