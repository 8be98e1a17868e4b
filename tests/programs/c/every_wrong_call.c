/* Calls every function of the header with one wrong argument at a time. With a number of milliseconds as argument, the
 * program instead calls all functions at once from many threads, while other threads create and free the handles. The table
 * of functions is generated from the header (bindings/c/tests/every_wrong_call.rs), so it always includes new functions. A
 * new kind of handle must be added to make() and destroy(), and a new type of callback needs a function on_*(). */
#include "check.h"

#include <dirent.h>

#define BIT(status) (UINT64_C(1) << -(status))
enum { PARAMETERS = 6, CELL = 32 };

enum returns {
    RETURNS_NOTHING,
    RETURNS_STATUS,
    RETURNS_PREDICATE,
    RETURNS_ANSWER,
    RETURNS_ID,
    RETURNS_TEXT,
    RETURNS_HANDLE,
    RETURNS_NUMBER,
};

enum type {
    HANDLE,
    HANDLE_OUT,
    HANDLES,
    TEXT,
    BYTES,
    BUFFER,
    ARRAY,
    STRUCTOUT,
    SIZEDSTRUCTOUT,
    COUNT,
    INDEX,
    INT32,
    INT64,
    NUMBEROUT,
    CALLBACK,
    USER,
};

struct parameter {
    const char *name;
    enum type type;
    int kind;
    void (*callback)(void);
};

struct function {
    const char *name;
    enum returns returns;
    int64_t (*call)(const uint64_t *arguments);
    int count;
    struct parameter parameters[PARAMETERS];
    /* The statuses that the comment of the function names. */
    uint64_t statuses;
};

static void on_zkl_revocable_cb(void *user, zkl_lock *lock)
{
    (void)user;
    (void)lock;
}

static void on_zkl_semaphore_revocable_cb(void *user, zkl_semaphore *semaphore)
{
    (void)user;
    (void)semaphore;
}

static void on_zkl_participants_cb(void *user, const zkl_participant *participant)
{
    (void)user;
    CHECK(participant->size == sizeof *participant && *participant->node_path == '/');
}

static void on_zkl_past_runs_cb(void *user, const zkl_past_run *run)
{
    (void)user;
    CHECK(run->size == sizeof *run && run->result >= ZKL_RUN_RUNNING && run->result <= ZKL_RUN_FAILED && *run->owner != '\0');
}

static void on_zkl_waiting_cb(void *user, const zkl_wait *wait)
{
    (void)user;
    CHECK(wait->size == sizeof *wait && wait->waited_ms >= 0 && wait->left_ms >= -1);
}

static void on_zkl_event_cb(void *user, const zkl_event *event)
{
    (void)user;
    CHECK(event->size == sizeof *event && event->state != event->previous);
}

static int64_t on_zkl_auth_cb(void *user, char *buf, size_t size)
{
    (void)user;
    CHECK(size == 65536);
    return snprintf(buf, size, "user:password");
}

static void on_zkl_log_cb(void *user, const zkl_log *log)
{
    (void)user;
    CHECK(log->size == sizeof *log && log->level >= ZKL_LOG_ERROR && log->level <= ZKL_LOG_TRACE);
    CHECK(strstr(log->line, log->message) == log->line && strncmp(log->target, "zklock", 6) == 0);
    for (size_t i = 0; i < log->field_count; i++) CHECK(strstr(log->line, log->fields[i].name) != NULL);
}

static void on_zkl_user_drop(void *user)
{
    (void)user;
}

#include "functions.h"

enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* The memory that the arguments point to. */
struct cells {
    /* Misaligned on purpose. The test checks that the library writes nothing beyond it. */
    unsigned char outputs[PARAMETERS][CELL + 1];
    char buffer[256];
    /* Misaligned too. */
    unsigned char structure[1 + sizeof(zkl_metrics)];
    uint64_t handles[2];
    uint8_t bytes[3];
};

static zkl_client *client;
static zkl_client *closed_client;

static const char *const GOOD_PATHS[] = {"/abuse/a", "/abuse/b", "/abuse/c", "/abuse/d"};

/* Creates a handle of this kind. */
static uint64_t make(int kind, zkl_client *of, const char *path)
{
    zkl_client *new_client = NULL;
    zkl_lock *lock = NULL;
    zkl_semaphore *semaphore = NULL;
    zkl_hold *leases = NULL;
    zkl_op *op = NULL;
    zkl_listener *listener = NULL;
    zkl_completion_queue *queue = NULL;
    zkl_run *run = NULL;
    zkl_config *config;
    switch (kind) {
    case KIND_zkl_config:
        config = zkl_config_new();
        CHECK(config != NULL);
        OK(zkl_config_set_connect_timeout_ms(config, 100));
        return (uintptr_t)config;
    case KIND_zkl_client:
        OK(zkl_client_new(servers, NULL, &new_client));
        return (uintptr_t)new_client;
    case KIND_zkl_lock:
        OK(zkl_mutex_new(of, path, &lock));
        return (uintptr_t)lock;
    case KIND_zkl_semaphore:
        OK(zkl_semaphore_new(of, path, 2, &semaphore));
        return (uintptr_t)semaphore;
    case KIND_zkl_hold:
        OK(zkl_semaphore_new(of, "/abuse/leases", 1000, &semaphore));
        OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &leases));
        zkl_semaphore_free(semaphore);
        return (uintptr_t)leases;
    case KIND_zkl_op:
        OK(zkl_semaphore_new(of, "/abuse/leases", 1000, &semaphore));
        OK(zkl_semaphore_acquire_start(semaphore, 1, 60000, &op));
        OK(zkl_op_wait(op, -1));
        zkl_semaphore_free(semaphore);
        return (uintptr_t)op;
    case KIND_zkl_listener:
        OK(zkl_client_listen(of, on_zkl_event_cb, NULL, NULL, &listener));
        return (uintptr_t)listener;
    case KIND_zkl_completion_queue:
        OK(zkl_completion_queue_new(&queue));
        return (uintptr_t)queue;
    case KIND_zkl_run:
        OK(zkl_mutex_new(of, "/abuse/job", &lock));
        OK(zkl_hold_acquire(lock, ZKL_OWNER_NEW, 60000, &leases));
        OK(zkl_hold_begin_run(leases, "day", "UTC", ZKL_ONCE_RETRY_FAILED, &run));
        OK(zkl_hold_release(leases));
        zkl_lock_free(lock);
        CHECK(run != NULL);
        return (uintptr_t)run;
    default:
        CHECK(0);
        return 0;
    }
}

static void destroy(int kind, uint64_t handle)
{
    switch (kind) {
    case KIND_zkl_config: zkl_config_free((zkl_config *)(uintptr_t)handle); break;
    case KIND_zkl_client: zkl_client_free((zkl_client *)(uintptr_t)handle); break;
    case KIND_zkl_lock: zkl_lock_free((zkl_lock *)(uintptr_t)handle); break;
    case KIND_zkl_semaphore: zkl_semaphore_free((zkl_semaphore *)(uintptr_t)handle); break;
    case KIND_zkl_hold: zkl_hold_release((zkl_hold *)(uintptr_t)handle); break;
    case KIND_zkl_op: zkl_op_free((zkl_op *)(uintptr_t)handle); break;
    case KIND_zkl_listener: zkl_listener_free((zkl_listener *)(uintptr_t)handle); break;
    case KIND_zkl_completion_queue: zkl_completion_queue_free((zkl_completion_queue *)(uintptr_t)handle); break;
    case KIND_zkl_run: zkl_run_free((zkl_run *)(uintptr_t)handle); break;
    default: CHECK(0);
    }
}

/* The calls from one thread. */

static uint64_t live[KINDS], freed[KINDS], closed[KINDS];

/* The kind of a wrong argument, which determines the expected result. */
enum expected {
    /* A status that the comment of the function names. */
    DOCUMENTED,
    /* ZKL_E_HANDLE, and the message contains the value. */
    NO_HANDLE,
    /* ZKL_E_INVALID, and the message contains the name of the parameter. */
    REFUSED,
    /* ZKL_E_INVALID with any message. */
    INVALID,
    /* ZKL_E_CLOSED. */
    CLOSED,
};

/* The type of the parameter that a COUNT belongs to: the parameter before it, or a struct after it. */
static enum type counted_by(const struct function *of, int at)
{
    int is_of_struct = at + 1 < of->count && of->parameters[at + 1].type == STRUCTOUT;
    return of->parameters[is_of_struct ? at + 1 : at - 1].type;
}

static const struct function *function;
static const struct parameter *parameter;
static uint64_t arguments[PARAMETERS];
static struct cells cells;
static int calls;

/* Sets the size of a struct that begins with its size. */
static void set_size(unsigned char *structure)
{
    uint32_t size = sizeof(zkl_hold_info);
    memcpy(structure, &size, sizeof size);
}

static void sound_arguments(void)
{
    static const char *const SCHEME = "digest", *const LABELS = "app=\"abuse\"", *const OPTION = "lease.margin", *const MARGIN = "1000";
    static const char *const PERIOD = "day", *const ZONE = "UTC";
    for (int i = 0; i < function->count; i++) {
        const struct parameter *each = &function->parameters[i];
        unsigned char *output = cells.outputs[i] + 1;
        memset(output, 0xa5, CELL);
        switch (each->type) {
        case HANDLE: arguments[i] = live[each->kind]; break;
        case HANDLE_OUT:
        case NUMBEROUT: arguments[i] = (uintptr_t)output; break;
        case HANDLES:
            cells.handles[0] = live[each->kind];
            cells.handles[1] = make(each->kind, client, GOOD_PATHS[1]);
            arguments[i] = (uintptr_t)cells.handles;
            break;
        case TEXT:
            arguments[i] = (uintptr_t)(strcmp(each->name, "servers") == 0  ? servers
                                       : strcmp(each->name, "scheme") == 0 ? SCHEME
                                       : strcmp(each->name, "labels") == 0 ? LABELS
                                       : strcmp(each->name, "name") == 0   ? OPTION
                                       : strcmp(each->name, "value") == 0  ? MARGIN
                                       : strcmp(each->name, "period") == 0 ? PERIOD
                                       : strcmp(each->name, "zone") == 0   ? ZONE
                                                                          : GOOD_PATHS[0]);
            break;
        case BYTES:
            memcpy(cells.bytes, "a:b", 3);
            arguments[i] = (uintptr_t)cells.bytes;
            break;
        case BUFFER:
        case ARRAY:
            memset(cells.buffer, 0xa5, sizeof cells.buffer);
            arguments[i] = (uintptr_t)cells.buffer;
            break;
        case STRUCTOUT:
            memset(cells.structure, 0xa5, sizeof cells.structure);
            arguments[i] = (uintptr_t)(cells.structure + 1);
            break;
        case SIZEDSTRUCTOUT:
            memset(cells.structure, 0xa5, sizeof cells.structure);
            set_size(cells.structure + 1);
            arguments[i] = (uintptr_t)(cells.structure + 1);
            break;
        case COUNT:
            arguments[i] = counted_by(function, i) == HANDLES     ? 2
                           : counted_by(function, i) == BYTES     ? 3
                           : counted_by(function, i) == STRUCTOUT ? sizeof cells.structure - 1
                           : counted_by(function, i) == ARRAY     ? sizeof cells.buffer / sizeof(uint64_t)
                                                                  : sizeof cells.buffer;
            break;
        case INDEX: arguments[i] = 0; break;
        case INT32:
        case INT64: arguments[i] = 1; break;
        case CALLBACK: arguments[i] = (uintptr_t)each->callback; break;
        case USER: arguments[i] = 0; break;
        }
    }
}

static void fail_function(const char *what, int64_t result)
{
    fprintf(stderr, "%s with a wrong %s:", function->name, parameter == NULL ? "nothing" : parameter->name);
    for (int i = 0; i < function->count; i++) fprintf(stderr, " %s=%#" PRIx64, function->parameters[i].name, arguments[i]);
    fprintf(stderr, ": %" PRId64 ": %s; last error: \"%s\"\n", result, what, zkl_last_error_message());
    _exit(1);
}

#define EXPECTED(condition, what)                                                                                              \
    do {                                                                                                                       \
        if (!(condition)) fail_function(what, result);                                                                         \
    } while (0)

static int is_failure(int64_t result, int spoke)
{
    switch (function->returns) {
    case RETURNS_STATUS:
    case RETURNS_ANSWER: return result < 0;
    case RETURNS_PREDICATE:
    case RETURNS_TEXT:
    case RETURNS_ID: return spoke;
    case RETURNS_NOTHING:
    case RETURNS_HANDLE: return result == 0;
    case RETURNS_NUMBER: return 0;
    }
    return 0;
}

/* Frees what a call has created although an argument was unusual. */
static void clean_up(int failed)
{
    for (int i = 0; i < function->count; i++) {
        const struct parameter *each = &function->parameters[i];
        if (each->type == HANDLES) destroy(each->kind, cells.handles[1]);
        if (each->type == HANDLE_OUT && !failed && arguments[i] != 0) {
            uint64_t made;
            memcpy(&made, (void *)(uintptr_t)arguments[i], sizeof made);
            destroy(each->kind, made);
        }
    }
}

static void check_outputs(int64_t result)
{
    static unsigned char untouched[CELL];
    memset(untouched, 0xa5, CELL);
    for (int i = 0; i < function->count; i++) {
        const struct parameter *each = &function->parameters[i];
        int is_output = each->type == HANDLE_OUT || each->type == NUMBEROUT;
        int may_be_written = result == ZKL_E_BUFFER && strcmp(each->name, "needed_out") == 0;
        if (is_output && !may_be_written)
            EXPECTED(memcmp(cells.outputs[i] + 1, untouched, CELL) == 0, "it failed, and has written to an output");
        if (each->type == STRUCTOUT) EXPECTED(cells.structure[1] == 0xa5, "it failed, and has written to the struct");
        if (each->type == SIZEDSTRUCTOUT)
            EXPECTED(cells.structure[1 + sizeof(uint32_t)] == 0xa5, "it failed, and has written to the struct");
        if (each->type == BUFFER || each->type == ARRAY) EXPECTED((unsigned char)cells.buffer[0] == 0xa5, "it failed, and has written to the buffer");
    }
}

static void call_with(int at, uint64_t value, enum expected expected)
{
    sound_arguments();
    parameter = at < 0 ? NULL : &function->parameters[at];
    if (at >= 0 && parameter->type == HANDLES && expected == NO_HANDLE) {
        destroy(parameter->kind, cells.handles[1]);
        cells.handles[1] = value;
    } else if (at >= 0) {
        arguments[at] = value;
    }
    int64_t began = now_ms();
    /* Set an error message that this function never sets. A successful call must not change the message. */
    (void)(strncmp(function->name, "zkl_op_", 7) == 0 ? (int64_t)zkl_client_state(NULL) : (int64_t)zkl_op_cancel(NULL));
    char before[1024], message[1024];
    snprintf(before, sizeof before, "%s", zkl_last_error_message());
    int64_t result = function->call(arguments);
    snprintf(message, sizeof message, "%s", zkl_last_error_message());
    int spoke = strcmp(before, message) != 0;
    calls++;
    EXPECTED(now_ms() - began < 5000 + slack_ms(), "it took too long");
    int failed = is_failure(result, spoke);
    if (function->returns == RETURNS_TEXT) EXPECTED(result != 0, "it gave no text");
    if (function->returns == RETURNS_STATUS) EXPECTED(result <= 0, "that is no status");
    if (function->returns == RETURNS_STATUS || function->returns == RETURNS_ANSWER) {
        EXPECTED(failed == spoke, "a new message exactly where it failed");
        if (failed) {
            EXPECTED(result > -64 && (function->statuses & BIT(result)) != 0, "its comment does not name this status");
            EXPECTED(result != ZKL_E_INTERNAL, "that is no internal error");
        }
    }
    if (function->returns == RETURNS_PREDICATE) EXPECTED(result == 0 || (result == 1 && !spoke), "it is true, or no truth value, and failed");
    if (function->returns == RETURNS_NOTHING) EXPECTED(!spoke, "it changed the last message");
    if (failed) check_outputs(result);
    int has_status = function->returns == RETURNS_STATUS || function->returns == RETURNS_ANSWER;
    if (expected != DOCUMENTED) EXPECTED(failed || function->returns == RETURNS_NOTHING, "it succeeded");
    if (expected == NO_HANDLE && value != 0 && function->returns != RETURNS_NOTHING) {
        char text[32];
        snprintf(text, sizeof text, "%#" PRIx64, value);
        EXPECTED(strstr(message, text) != NULL, "the message does not have the handle");
    }
    if (has_status && expected == NO_HANDLE) EXPECTED(result == ZKL_E_HANDLE, "not ZKL_E_HANDLE");
    if (has_status && (expected == REFUSED || expected == INVALID)) EXPECTED(result == ZKL_E_INVALID, "not ZKL_E_INVALID");
    if (expected == REFUSED) EXPECTED(strstr(message, parameter->name) != NULL, "the message does not name the parameter");
    if (has_status && expected == CLOSED) EXPECTED(result == ZKL_E_CLOSED, "not ZKL_E_CLOSED");
    clean_up(failed);
    /* Free everything that was acquired, and create the changed objects again. */
    const int changed[] = {KIND_zkl_lock, KIND_zkl_config};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        destroy(changed[i], live[changed[i]]);
        live[changed[i]] = make(changed[i], client, GOOD_PATHS[0]);
    }
    /* The functions of a run free it. */
    if (strncmp(function->name, "zkl_run_", 8) == 0) {
        destroy(KIND_zkl_run, live[KIND_zkl_run]);
        live[KIND_zkl_run] = make(KIND_zkl_run, client, GOOD_PATHS[0]);
    }
}

static void wrong_handles(int at)
{
    static const uint64_t GARBAGE[] = {1, UINT64_MAX, 0xdeadbeef, 0x1234567812345678, 3, INT64_MAX};
    int kind = function->parameters[at].kind, is_list = function->parameters[at].type == HANDLES;
    int takes_no_config = strcmp(function->name, "zkl_client_new") == 0 || strcmp(function->name, "zkl_client_start") == 0;
    /* NULL stands for the default config, and freeing NULL is not an error. */
    if (!takes_no_config && function->returns != RETURNS_NOTHING && strcmp(function->name, "zkl_hold_release") != 0)
        call_with(at, 0, is_list ? REFUSED : NO_HANDLE);
    for (size_t i = 0; i < sizeof GARBAGE / sizeof *GARBAGE; i++) call_with(at, GARBAGE[i], NO_HANDLE);
    call_with(at, (uintptr_t)&client, NO_HANDLE);
    call_with(at, (uintptr_t)&cells + 1, NO_HANDLE);
    call_with(at, freed[kind], NO_HANDLE);
    /* A slot that was never used, and a generation that does not exist yet. */
    call_with(at, live[kind] + 100000, NO_HANDLE);
    call_with(at, live[kind] + (1 << 24), NO_HANDLE);
    for (int other = 0; other < KINDS; other++)
        if (other != kind) call_with(at, live[other], NO_HANDLE);
    int frees = strstr(function->name, "_release") != NULL || strncmp(function->name, "zkl_run_", 8) == 0;
    if (closed[kind] != 0 && function->returns != RETURNS_NOTHING && !is_list && !frees)
        call_with(at, closed[kind], CLOSED);
}

static void wrong_texts(int at)
{
    static const char *const BROKEN[] = {"\xff", "/a\xff", "/\xc3(", "/\xe6\x97", "\x80", "/\xed\xa0\x80", "/\xf8\x88\x80\x80\x80"};
    static const char *const PATHS[] = {
        "",        "/",         "a",        "a/b",        "//",    "/a/",    "/a//b",      "/.",           "/..", "/a/../b", "/a/.",
        "/a\x01", "/\x7f", "/a\n", "/\xc2\x80", "/zookeeper", "/zookeeper/quota", "\xef\xbb\xbf/a", "/\xf0\x9f\x94\x92", " /a",
    };
    static char *huge, *deep;
    if (huge == NULL) {
        huge = malloc(1 << 20);
        deep = malloc(1 << 20);
        CHECK(huge != NULL && deep != NULL);
        memset(huge, 'x', (1 << 20) - 1);
        huge[(1 << 20) - 1] = '\0';
        for (int i = 0; i < (1 << 20) - 1; i++) deep[i] = i % 2 == 0 ? '/' : 'a';
        deep[(1 << 20) - 1] = '\0';
    }
    int is_path = strstr(function->parameters[at].name, "path") != NULL;
    int is_servers = strcmp(function->parameters[at].name, "servers") == 0;
    const char *name = function->parameters[at].name;
    int is_optional = strcmp(name, "labels") == 0 || strcmp(name, "zone") == 0 || strcmp(name, "failure") == 0;
    if (!is_optional) call_with(at, 0, REFUSED);
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) call_with(at, (uintptr_t)BROKEN[i], REFUSED);
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        /* Skip texts that look like a server name, because name resolution takes time. */
        if (is_servers && PATHS[i][0] != '\0' && PATHS[i][0] != '/') continue;
        call_with(at, (uintptr_t)PATHS[i], is_path || is_servers ? INVALID : DOCUMENTED);
    }
    call_with(at, (uintptr_t)huge, is_path || is_servers ? INVALID : DOCUMENTED);
    huge[0] = '/';
    call_with(at, (uintptr_t)huge, is_path || is_servers ? INVALID : DOCUMENTED);
    huge[0] = 'x';
    call_with(at, (uintptr_t)deep, is_path || is_servers ? INVALID : DOCUMENTED);
}

static void wrong_counts(int at)
{
    static const uint64_t HUGE[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, UINT64_C(1) << 40, UINT64_C(1) << 31};
    enum type counted = counted_by(function, at);
    if (counted == STRUCTOUT) {
        /* Sizes below the real size, the real size, and sizes that are larger than any buffer of the library. */
        for (uint64_t size = 0; size < 4; size++) call_with(at, size, INVALID);
        call_with(at, 4, DOCUMENTED);
        for (size_t i = 0; i < sizeof HUGE / sizeof *HUGE; i++) call_with(at, HUGE[i], DOCUMENTED);
        return;
    }
    if (counted == BUFFER) {
        call_with(at, 0, DOCUMENTED);
        call_with(at, 1, DOCUMENTED);
        return;
    }
    if (counted == ARRAY) {
        call_with(at, 0, REFUSED);
        call_with(at, 1, DOCUMENTED);
        return;
    }
    for (size_t i = 0; i < sizeof HUGE / sizeof *HUGE; i++) call_with(at, HUGE[i], INVALID);
    call_with(at, 0, counted == HANDLES ? INVALID : DOCUMENTED);
}

static void wrong_numbers(int at)
{
    static const int64_t NUMBERS[] = {
        0, -1, -2, 2, 4096, INT32_MAX, INT32_MIN, INT32_MIN + 1, -INT64_C(1000000007), INT64_MAX, INT64_MIN, INT64_MAX - 1,
    };
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        int64_t number = NUMBERS[i];
        if (function->parameters[at].type == INT32 && (number > INT32_MAX || number < INT32_MIN)) continue;
        /* Held leases stay safe, so this wait would not end. */
        if (strcmp(function->name, "zkl_hold_wait_lost") == 0 && (number == -1 || number > 1000)) continue;
        call_with(at, (uint64_t)number, DOCUMENTED);
    }
}

static void wrong_arguments(int at)
{
    switch (function->parameters[at].type) {
    case HANDLE:
    case HANDLES: wrong_handles(at); break;
    case HANDLE_OUT:
    case NUMBEROUT: call_with(at, 0, REFUSED); break;
    case TEXT: wrong_texts(at); break;
    case STRUCTOUT:
    case BYTES:
    case BUFFER:
    case ARRAY: call_with(at, 0, REFUSED); break;
    case SIZEDSTRUCTOUT:
        call_with(at, 0, REFUSED);
        /* A struct of size 0. */
        call_with(at, (uintptr_t)&(zkl_hold_info){0}, REFUSED);
        break;
    case COUNT: wrong_counts(at); break;
    case INDEX:
        call_with(at, SIZE_MAX, INVALID);
        call_with(at, 1, INVALID);
        break;
    case INT32:
    case INT64: wrong_numbers(at); break;
    case CALLBACK: call_with(at, 0, DOCUMENTED); break;
    case USER: call_with(at, 1, DOCUMENTED); break;
    }
}

static void every_wrong_call(void)
{
    client = new_client();
    closed_client = new_client();
    for (int kind = 0; kind < KINDS; kind++) {
        live[kind] = kind == KIND_zkl_client ? (uintptr_t)client : make(kind, client, GOOD_PATHS[0]);
        freed[kind] = make(kind, client, GOOD_PATHS[0]);
        destroy(kind, freed[kind]);
        /* A finished operation does not become closed. A config and a completion queue belong to no client. */
        if (kind != KIND_zkl_config && kind != KIND_zkl_client && kind != KIND_zkl_op && kind != KIND_zkl_completion_queue)
            closed[kind] = make(kind, closed_client, GOOD_PATHS[0]);
    }
    zkl_client_free(closed_client);
    for (function = functions; function < functions + FUNCTIONS; function++) {
        int before = calls;
        for (int at = 0; at < function->count; at++) wrong_arguments(at);
        fprintf(stderr, "%s: %d calls\n", function->name, calls - before);
    }
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    for (int kind = 0; kind < KINDS; kind++) {
        if (kind == KIND_zkl_client) continue;
        destroy(kind, live[kind]);
        if (closed[kind] != 0) destroy(kind, closed[kind]);
    }
    zkl_client_free(client);
}

/* The calls from many threads. */

enum { THREADS = 16, SLOTS = 8 };

static uint64_t slots[KINDS][SLOTS];
static int over;
static uint64_t seed;
static int64_t stormed;

static uint64_t roll(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t *slot(int kind, uint64_t *state)
{
    return &slots[kind][roll(state) % SLOTS];
}

static uint64_t any_handle(int kind, uint64_t *state)
{
    uint64_t wild = roll(state) % 64;
    if (wild == 0) return 0;
    if (wild == 1) return roll(state);
    if (wild == 2) kind = (int)(roll(state) % KINDS);
    return __atomic_load_n(slot(kind, state), __ATOMIC_SEQ_CST);
}

static const char *any_text(const char *name, uint64_t *state)
{
    if (strcmp(name, "servers") == 0) return servers;
    if (strcmp(name, "scheme") == 0) return "digest";
    if (strcmp(name, "labels") == 0) return roll(state) % 2 == 0 ? "app=\"abuse\"" : "app";
    if (strcmp(name, "name") == 0) return "lease.margin";
    if (strcmp(name, "value") == 0) return roll(state) % 2 == 0 ? "1000" : "x";
    if (strcmp(name, "period") == 0) return roll(state) % 2 == 0 ? "1s" : "noon";
    if (strcmp(name, "zone") == 0) return roll(state) % 2 == 0 ? "UTC" : NULL;
    if (roll(state) % 32 == 0) return "/a//b";
    /* Counts have their own paths. */
    return strcmp(name, "count_path") == 0 ? "/abuse/count" : GOOD_PATHS[roll(state) % 4];
}

/* Stores the handle in a slot and frees the previous one, which other threads may still use. */
static void keep(int kind, uint64_t handle, uint64_t *state)
{
    destroy(kind, __atomic_exchange_n(slot(kind, state), handle, __ATOMIC_SEQ_CST));
}

static void one_call(uint64_t *state)
{
    const struct function *any = &functions[roll(state) % FUNCTIONS];
    /* Create sessions rarely, because they cost the server more than anything else. */
    static const char *const OF_SESSIONS[] = {
        "zkl_client_new", "zkl_client_start", "zkl_client_close_start", "zkl_client_free", "zkl_client_free_nowait",
    };
    int is_of_client = 0;
    for (size_t i = 0; i < sizeof OF_SESSIONS / sizeof *OF_SESSIONS; i++) is_of_client |= strcmp(any->name, OF_SESSIONS[i]) == 0;
    if (is_of_client && roll(state) % 16 != 0) return;
    uint64_t values[PARAMETERS] = {0};
    struct cells own;
    memset(&own, 0, sizeof own);
    memcpy(own.bytes, "a:b", 3);
    for (int i = 0; i < any->count; i++) {
        const struct parameter *each = &any->parameters[i];
        switch (each->type) {
        case HANDLE: values[i] = any_handle(each->kind, state); break;
        case HANDLE_OUT:
        case NUMBEROUT: values[i] = roll(state) % 64 == 0 ? 0 : (uintptr_t)own.outputs[i] + 1; break;
        case HANDLES:
            own.handles[0] = any_handle(each->kind, state);
            own.handles[1] = any_handle(each->kind, state);
            values[i] = (uintptr_t)own.handles;
            break;
        case TEXT: values[i] = (uintptr_t)any_text(each->name, state); break;
        case BYTES: values[i] = (uintptr_t)own.bytes; break;
        case BUFFER:
        case ARRAY: values[i] = (uintptr_t)own.buffer; break;
        case STRUCTOUT: values[i] = (uintptr_t)own.structure; break;
        case SIZEDSTRUCTOUT:
            set_size(own.structure);
            values[i] = (uintptr_t)own.structure;
            break;
        case COUNT:
            values[i] = counted_by(any, i) == BUFFER      ? sizeof own.buffer
                        : counted_by(any, i) == STRUCTOUT ? sizeof own.structure
                        : counted_by(any, i) == ARRAY     ? sizeof own.buffer / sizeof(uint64_t)
                                                          : roll(state) % 3;
            break;
        case INDEX: values[i] = roll(state) % 3; break;
        case INT32:
        case INT64:
            values[i] = strstr(each->name, "timeout") != NULL && each->type == INT64 ? roll(state) % 20 : roll(state) % 4;
            /* Very short session timeouts would cause too many new sessions. */
            if (strstr(any->name, "session_timeout") != NULL) values[i] = 10000;
            if (strstr(any->name, "connect_timeout") != NULL) values[i] = 5000;
            break;
        case CALLBACK: values[i] = roll(state) % 4 == 0 ? 0 : (uintptr_t)each->callback; break;
        case USER: break;
        }
    }
    int64_t result = any->call(values);
    const char *message = zkl_last_error_message();
    int has_status = any->returns == RETURNS_STATUS || any->returns == RETURNS_ANSWER;
    if (has_status && result < 0 && (result == ZKL_E_INTERNAL || *message == '\0' || (any->statuses & BIT(result)) == 0)) {
        fprintf(stderr, "%s returned %" PRId64 " (%s)\n", any->name, result, message);
        _exit(1);
    }
    if (any->returns == RETURNS_PREDICATE && result != 0 && result != 1) {
        fprintf(stderr, "%s returned %" PRId64 "\n", any->name, result);
        _exit(1);
    }
    if (any->returns == RETURNS_HANDLE && result != 0) keep(KIND_zkl_config, (uint64_t)result, state);
    for (int i = 0; i < any->count; i++) {
        uint64_t made = 0;
        if (any->parameters[i].type != HANDLE_OUT || values[i] == 0) continue;
        memcpy(&made, own.outputs[i] + 1, sizeof made);
        if (made != 0) keep(any->parameters[i].kind, made, state);
    }
}

static void *run_random_calls(void *number)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15 + (uintptr_t)number + 1;
    int64_t count = 0;
    for (; !__atomic_load_n(&over, __ATOMIC_SEQ_CST); count++) one_call(&state);
    __atomic_add_fetch(&stormed, count, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Wakes calls that wait without a limit. */
static void *wake(void *unused)
{
    (void)unused;
    while (__atomic_load_n(&over, __ATOMIC_SEQ_CST) < 2) {
        for (int i = 0; i < SLOTS; i++) {
            zkl_cancel((zkl_lock *)(uintptr_t)__atomic_load_n(&slots[KIND_zkl_lock][i], __ATOMIC_SEQ_CST));
            zkl_semaphore_cancel((zkl_semaphore *)(uintptr_t)__atomic_load_n(&slots[KIND_zkl_semaphore][i], __ATOMIC_SEQ_CST));
        }
        sleep_ms(5);
    }
    return NULL;
}

static int thread_count(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* The resident memory of the process, without the pages of files, which grow when code runs for the first time. */
static long anonymous_kb(void)
{
    long pages = 0, of_files = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%*d %ld %ld", &pages, &of_files) == 2);
    fclose(file);
    return (pages - of_files) * (sysconf(_SC_PAGESIZE) / 1024);
}


static void run_all_threads(int ms)
{
    pthread_t threads[THREADS], waker;
    /* Create the clients first, because locks need a client. */
    for (int i = 0; i < SLOTS; i++) slots[KIND_zkl_client][i] = make(KIND_zkl_client, NULL, NULL);
    for (int i = 0; i < SLOTS; i++)
        for (int kind = 0; kind < KINDS; kind++)
            if (kind != KIND_zkl_client)
                slots[kind][i] = make(kind, (zkl_client *)(uintptr_t)slots[KIND_zkl_client][i], GOOD_PATHS[i % 4]);
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run_random_calls, (void *)i) == 0);
    CHECK(pthread_create(&waker, NULL, wake, NULL) == 0);
    sleep_ms(ms / 2);
    long before = anonymous_kb();
    sleep_ms(ms / 2);
    long after = anonymous_kb();
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    __atomic_store_n(&over, 2, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(waker, NULL) == 0);
    fprintf(stderr, "%" PRId64 " calls; %ld kB, then %ld kB\n", stormed, before, after);
    /* The limit is set only if the tool that the program runs under frees memory immediately. */
    const char *limit = getenv("GROWTH_KB");
    CHECK(limit == NULL || after - before < atol(limit));
    for (int kind = KINDS; kind-- > 0;)
        for (int i = 0; i < SLOTS; i++) destroy(kind, slots[kind][i]);
}

/* Checks that nothing is left: no thread, no handle and no node. */
static void expect_library_intact(void)
{
    OK(zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL));
    AWAIT(thread_count() == 1);
    /* Slots are reused, so the number of the newest handle shows how many handles existed at the same time. */
    zkl_config *config = zkl_config_new();
    CHECK(config != NULL && ((uintptr_t)config & 0xffffff) < 4 * (SLOTS + THREADS));
    zkl_config_free(config);
    client = new_client();
    for (int i = 0; i < 4; i++) {
        zkl_lock *lock = new_mutex(client, GOOD_PATHS[i]);
        zkl_semaphore *semaphore = new_semaphore(client, GOOD_PATHS[i], 2);
        zkl_lock *read = NULL, *write = NULL;
        OK(zkl_rwlock_new(client, GOOD_PATHS[i], &read, &write));
        AWAIT(queue_length(lock) == 0 && queue_length(read) == 0 && semaphore_participants(semaphore) == 0);
        zkl_lock_free(read);
        zkl_lock_free(write);
        OK(zkl_acquire_timeout(lock, 60000));
        OK(zkl_release(lock));
        zkl_semaphore_free(semaphore);
        zkl_lock_free(lock);
    }
    zkl_client_free(client);
    AWAIT(thread_count() == 1);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 3);
    /* Each run uses the same paths below its own chroot. */
    static char chroot[128];
    snprintf(chroot, sizeof chroot, "%s/abuse-%ld", argv[1], (long)getpid());
    servers = chroot;
    zkl_config *config = zkl_config_new();
    zkl_client *creator = NULL;
    OK(zkl_config_set(config, "chroot.create", "true"));
    OK(zkl_client_new(servers, config, &creator));
    zkl_client_free(creator);
    zkl_config_free(config);
    int ms = atoi(argv[2]);
    seed = (uint64_t)atoll(argv[3]);
    if (ms == 0) {
        every_wrong_call();
    } else {
        run_all_threads(ms);
    }
    expect_library_intact();
    return 0;
}
