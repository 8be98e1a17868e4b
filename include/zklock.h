/* Distributed locks on Apache ZooKeeper, on the znodes of Apache Curator.
 *
 *     zkl_client *client;
 *     zkl_lock *lock;
 *     if (zkl_client_new("localhost:2181", NULL, &client) != ZKL_OK ||
 *         zkl_mutex_new(client, "/locks/nightly-report", &lock) != ZKL_OK ||
 *         zkl_acquire_timeout(lock, 5000) != ZKL_OK) {
 *         fprintf(stderr, "%s\n", zkl_last_error_message());
 *         exit(1);
 *     }
 *     work();
 *     zkl_release(lock);
 *     zkl_lock_free(lock);
 *     zkl_client_free(client);
 *
 * Beside the mutex there are read/write locks (zkl_rwlock_new), locks that any thread may release (zkl_semaphore_mutex_new),
 * several locks as one (zkl_multi_new), and semaphores, whose leases are handles of their own (zkl_semaphore_new). An event loop
 * acquires without blocking a thread (zkl_acquire_start, zkl_op_fd), for owners of its own: tasks, requests.
 *
 * A lock is a lease. It is held as long as the ZooKeeper session that made its node is surely alive, by a clock of this
 * process (zkl_is_held, zkl_remaining_ms). No lock can stop a program that goes on after it lost the lock; a store that is
 * given the fencing token (zkl_fencing_token) can.
 *
 * Threads    Every function may be called from any thread at any time, also on one handle at once, and also while another
 *            thread waits on it or frees it.
 *
 *            | what            | shared by threads | belongs to                              |
 *            |-----------------|-------------------|-----------------------------------------|
 *            | zkl_config      | yes               | -                                       |
 *            | zkl_client      | yes               | -                                       |
 *            | zkl_lock        | yes               | -                                       |
 *            | zkl_semaphore   | yes               | -                                       |
 *            | zkl_leases      | yes               | whoever has the handle                  |
 *            | zkl_op          | yes               | whoever has the handle                  |
 *            | a hold          | no                | the thread or owner it was acquired for |
 *            | the last error  | no                | the thread that called                  |
 *            | zkl_participant | no                | the callback, until it returns          |
 *            | zkl_wait        | no                | the callback, until it returns          |
 *
 *            A hold is not given up when its thread ends: release before. That of a semaphore mutex may be released by any.
 *            For an owner that is no thread (zkl_acquire_start, zkl_acquire_as) any thread may act.
 * Green threads
 *            Ownership goes by the thread of the operating system. Goroutines, greenlets, fibers and coroutines that share one thread also
 *            share its holds: zkl_acquire lets the second of them into a mutex that the first one holds, as a re-entry, without an
 *            error. Give each of them an owner number of its own, and use zkl_acquire_as and zkl_release_as.
 *            pthread_cancel() acts when the call that it meets has returned.
 * Handles    Pointers to zkl_* types are tickets: they point nowhere, and are compared with == at most. A handle that was
 *            freed, is of another kind, or never was one gives ZKL_E_HANDLE, and no crash. Freeing NULL does nothing.
 * Results    Functions return a zkl_status, or a number that is a ZKL_E_* if it is negative. *_out parameters come last,
 *            must not be NULL, and are written to only on success (*needed_out also with ZKL_E_BUFFER).
 * Errors     zkl_last_error_message() explains the last failure of the calling thread, until its next failure: a call that succeeds, and
 *            every *_free, leaves it alone. errno means nothing after a call.
 * Memory     What goes in is copied before the call returns, and needs no alignment. What comes out belongs to the library;
 *            each function says how long it stays. Strings are UTF-8 and end with NUL. Nothing is to be passed to free().
 *            Pointers other than handles must be what they say: strings that end, and as many bytes as the length says.
 * Callbacks  No lock of the library is held while it calls the program. A callback of events, revocations or the log, and a user_drop
 *            that is called with it, may call every function, except that it must not wait for other contenders, since what would end the
 *            wait may have to be told first, by the thread that waits. So in a callback these return ZKL_E_DEADLOCK at once:
 *
 *            | function                      | in a callback                                  |
 *            |-------------------------------|------------------------------------------------|
 *            | zkl_acquire                   | refused                                        |
 *            | zkl_acquire_timeout           | refused, but for a limit of 0                  |
 *            | zkl_semaphore_acquire_timeout | refused, but for a limit of 0                  |
 *            | zkl_op_wait                   | refused, but for a limit of 0, or once it is   |
 *            |                               | over                                           |
 *            | all others                    | allowed; they block for no longer than they    |
 *            |                               | say, the session timeout for instance          |
 *
 *            To wait, use another thread. Do not have the callback wait for that. A callback must return: no exception, no longjmp,
 *            no pthread_exit. Callbacks of participants are the caller's: they come on his thread, during his call, and may do
 *            everything.
 * Fork       In a child of fork() the parent's handles give ZKL_E_FORKED, and freeing them does nothing: the parent keeps its
 *            session and its locks. The child may make a client of its own. On Linux 4.14 and later this also applies to a child
 *            of _Fork() or of a raw clone(), except that such a child must not make a client. A child that shares its parent's
 *            memory (vfork(), CLONE_VM) must not call zklock.
 *            A child that is forked in a callback on the library's thread ends, as by exit(0), when the callback returns.
 * Signals    Calls go on when a signal is handled, and never fail with EINTR. The library's threads block all signals. No
 *            function may be called from a signal handler.
 * Ends       A program may end in any way while clients live. Nothing waits for the servers then, which end the sessions after
 *            their time-out; zkl_client_free ends one at once. Programs that are started by exec inherit no descriptor.
 *            The library's threads end with the last client and the callback of the log, but for one that waits for a host name's
 *            resolver and nobody can end. A process whose main thread leaves by pthread_exit() goes on as long as they do. Lines of
 *            the log that still wait are lost: who wants the last ones turns it off first.
 *            dlclose() leaves the library where it is, with its clients. What links libzklock.a and may be unloaded itself is
 *            to be linked with -Wl,-z,nodelete.
 * Descriptors  The library's descriptors must not be closed by the program: make clients after code that closes all descriptors, as
 *            daemons do. If the program closes them all the same, the library notices it before it reads, writes or closes a number
 *            that names another file by then. The connection is lost, the client makes another one within T/6, and a hold
 *            stays as it is if the session is resumed in time (T is the session timeout). Two gaps remain: another thread that closes and reopens a number
 *            between the library's check and its call, which takes less than a microsecond; and the host name's resolver of libc.
 * C++        Every function is extern "C" and throws nothing.
 */

#ifndef ZKLOCK_H
#define ZKLOCK_H

/* Made by cbindgen from bindings/c/src. To change it: ZKL_BLESS=1 cargo test -p zklock-c --test header */

#include <stddef.h>
#include <stdint.h>

/** The version of this header. That of the library that runs is zkl_version(). */
#define ZKL_VERSION "0.1.0"
#define ZKL_VERSION_MAJOR 0
#define ZKL_VERSION_MINOR 1
#define ZKL_VERSION_PATCH 0

/** Success. */
#define ZKL_OK 0

/** Invalid argument. */
#define ZKL_E_INVALID (-1)

/** Not a live handle of this kind. */
#define ZKL_E_HANDLE (-2)

/** Timed out before the lock was acquired. */
#define ZKL_E_TIMEOUT (-3)

/** The wait was canceled. */
#define ZKL_E_CANCELED (-4)

/** The caller does not hold the lock. */
#define ZKL_E_NOT_OWNER (-5)

/** The lock was lost while it was held. */
#define ZKL_E_LOST (-6)

/** The caller would wait for itself. */
#define ZKL_E_DEADLOCK (-7)

/** The client or the handle was closed. */
#define ZKL_E_CLOSED (-8)

/** No ZooKeeper server answered in time. */
#define ZKL_E_CONNECTION (-9)

/** Authentication failed. */
#define ZKL_E_AUTH (-10)

/** An access control list forbids it. */
#define ZKL_E_DENIED (-11)

/** The handle belongs to the parent of this forked process. */
#define ZKL_E_FORKED (-12)

/** The buffer is too small. */
#define ZKL_E_BUFFER (-13)

/** A limit was reached: descriptors, threads, handles, or sequence numbers. */
#define ZKL_E_EXHAUSTED (-14)

/** A contender of another lock family is on this path. */
#define ZKL_E_FOREIGN (-15)

/** The ZooKeeper server reported an error. */
#define ZKL_E_SERVER (-16)

/** Internal error in zklock. */
#define ZKL_E_INTERNAL (-17)

/** Not supported by this lock or server. */
#define ZKL_E_UNSUPPORTED (-18)

/** A client looks for its first session. */
#define ZKL_STATE_CONNECTING 0

/** Its session has a connection. */
#define ZKL_STATE_CONNECTED 1

/** The connection is gone; the session may still live, and another connection is being sought. */
#define ZKL_STATE_SUSPENDED 2

/** The session ended, and the next one has not begun. */
#define ZKL_STATE_LOST 3

/** The client was closed. */
#define ZKL_STATE_CLOSED 4

/** Nobody in this process holds the lock by this handle. */
#define ZKL_LOCK_FREE 0

/** Held, and safe. */
#define ZKL_LOCK_HELD 1

/** Safe as long as the lease runs, but the connection is gone, or the hold is not confirmed since it came back. */
#define ZKL_LOCK_SUSPENDED 2

/** The lease is over: it may be lost. It becomes ZKL_LOCK_HELD again, or ZKL_LOCK_LOST. */
#define ZKL_LOCK_UNCERTAIN 3

/** Lost for good: its session ended, or its node was removed. Releasing it reports that, and clears it. */
#define ZKL_LOCK_LOST 4

/** It waits for a connection to a server. Its place in the queue is kept as long as the session lives. */
#define ZKL_WAITS_FOR_CONNECTION 0

/** It waits for an answer of the server. */
#define ZKL_WAITS_FOR_SERVER 1

/** It waits for the node ahead, and those before that one. */
#define ZKL_WAITS_FOR_NODE 2

/** It waits for leases that are out. */
#define ZKL_WAITS_FOR_LEASES 3

/** It waits for the count to say that there are enough leases at all. */
#define ZKL_WAITS_FOR_COUNT 4

/** It wants to enter a hold of its own thread once more, whose lease is over, and waits until that is safe again, or lost. */
#define ZKL_WAITS_FOR_OWN_HOLD 5

/** The client's session stands differently: state and previous are ZKL_STATE_*. */
#define ZKL_EVENT_CLIENT 0

/** A hold of a lock, or of leases, stands differently: state and previous are ZKL_LOCK_*. */
#define ZKL_EVENT_LOCK 1

/** How many buckets a zkl_histogram has. */
#define ZKL_HISTOGRAM_BUCKETS 24

/** The bound of the first of them, in nanoseconds; that of bucket i is ZKL_HISTOGRAM_FIRST_NS << i. */
#define ZKL_HISTOGRAM_FIRST_NS 50000

/** Nothing is logged, as at first. */
#define ZKL_LOG_OFF 0

/** Somebody has to do something: credentials were refused. */
#define ZKL_LOG_ERROR 1

/** Something was lost, or may soon be: a lock, a lease, a session, a connection. */
#define ZKL_LOG_WARN 2

/** What becomes of sessions and connections. */
#define ZKL_LOG_INFO 3

/** What becomes of each acquire and each hold. */
#define ZKL_LOG_DEBUG 4

/** Each request, each answer. */
#define ZKL_LOG_TRACE 5

/**
 * A client: one ZooKeeper session, shared by any number of locks and threads. When a session ends, the client seeks the
 * next one by itself; what was held is lost.
 */
typedef struct zkl_client zkl_client;

/**
 * A client's settings. zkl_client_new copies them, so a config may serve for many clients, be changed in between, and be
 * freed at any time.
 */
typedef struct zkl_config zkl_config;

/** Leases of a semaphore. They belong to whoever has the handle, whichever thread that is. */
typedef struct zkl_leases zkl_leases;

/**
 * What can be acquired and released: a mutex, one half of a read/write lock, a semaphore mutex, or several of them as one.
 * Threads that share it exclude each other, like those of other processes, and queue fairly.
 */
typedef struct zkl_lock zkl_lock;

/** An acquire under way. It goes on by itself, whether anybody waits for it or not, and ends within its limit. */
typedef struct zkl_op zkl_op;

/** A semaphore on a path: so many leases, which threads and processes take and give back. */
typedef struct zkl_semaphore zkl_semaphore;

/** How a call ended: ZKL_OK, or a negative ZKL_E_*. Numbers are never reused. */
typedef int32_t zkl_status;

/** Is called when somebody asks for the lock to be given up. It must return: no exception, no longjmp. */
typedef void (*zkl_revocable_cb)(void *user, zkl_lock *lock);

/** Is called with user when the library will not use it any more. */
typedef void (*zkl_user_drop)(void *user);

/** Is called when somebody asks for leases of the semaphore to be given back. It must return: no exception, no longjmp. */
typedef void (*zkl_semaphore_revocable_cb)(void *user, zkl_semaphore *semaphore);

/** One that holds a lock or leases of a semaphore, or waits for them. All memory is the library's, and valid during the callback. */
typedef struct zkl_participant {
    /** The library's own size of this struct. New fields are only ever appended: look at them where size covers them. */
    uint32_t size;
    /** 1: holds the lock, or a lease, now; 0: waits. */
    int32_t holds;
    /** The session that owns the node; 0 if the node is not ephemeral. */
    int64_t session_id;
    /** The zxid of the node's creation; for a holder, its fencing token. */
    int64_t czxid;
    /** The node's path, without the client's chroot. */
    const char *node_path;
    /** The node's data: by default the host's address. A NUL that does not count follows it. */
    const uint8_t *data;
    /** How many bytes of data there are. */
    size_t data_len;
} zkl_participant;

/** Is called with each participant. It must return: no exception, no longjmp. */
typedef void (*zkl_participants_cb)(void *user, const zkl_participant *participant);

/** An acquire that waits. All memory is the library's, and valid during the callback. */
typedef struct zkl_wait {
    /** The library's own size of this struct. New fields are only ever appended: look at them where size covers them. */
    uint32_t size;
    /** A ZKL_WAITS_FOR_*. */
    int32_t waits_for;
    /** The path of its own node, as zkl_participants shows it, or NULL while it has none. Of several: where it has to wait. */
    const char *node_path;
    /**
     * What is in its way: the path of the nearest node ahead, as zkl_participants shows it, of the leases' directory, or of the
     * count; NULL where that is not known. Without a connection: what was, when there was one.
     */
    const char *ahead;
    /** The session that owns that node; 0 where that is not known. */
    int64_t session_id;
    /**
     * How many there are to go before, when they were last counted: nodes ahead, leases that have to come back, or that the count is
     * too low by; 0 where that is not known.
     */
    uint64_t count;
    /** How long it has waited, in milliseconds. */
    int64_t waited_ms;
    /** How long it will wait at most, in milliseconds; -1 without a limit. */
    int64_t left_ms;
} zkl_wait;

/** Is called with each acquire that waits. It must return: no exception, no longjmp. */
typedef void (*zkl_waiting_cb)(void *user, const zkl_wait *wait);

/** Something that happened. All memory is the library's, and valid during the callback. */
typedef struct zkl_event {
    /** The library's own size of this struct. New fields are only ever appended: look at them where size covers them. */
    uint32_t size;
    /** A ZKL_EVENT_*. */
    int32_t kind;
    /** How it stands now. */
    int32_t state;
    /** How it stood before. */
    int32_t previous;
    /**
     * The lock, or NULL: of a client's event, of leases, and where the lock was freed meanwhile. What is held by a multi-lock
     * is told of each of its locks.
     */
    zkl_lock *lock;
    /** The path of the lock or of the leases' semaphore, or NULL. */
    const char *path;
    /** The fencing token of the hold or of the leases, or 0. */
    int64_t token;
    /** How often the lock had been passed on in this process when the hold began (zkl_fencing_pass), or 0. */
    int64_t pass;
} zkl_event;

/** Is called with each event. It must return: no exception, no longjmp. */
typedef void (*zkl_event_cb)(void *user, const zkl_event *event);

/** How long things took. This struct will stay as it is. */
typedef struct zkl_histogram {
    /** How often something was measured. */
    uint64_t count;
    /** How long it took in all, in nanoseconds. */
    uint64_t sum_ns;
    /**
     * How often it took at most so long: ZKL_HISTOGRAM_FIRST_NS << i, which is 50 us, 100 us and so on up to 209.7152 s. Each
     * includes those before it. The last has no bound: it is count.
     */
    uint64_t buckets[ZKL_HISTOGRAM_BUCKETS];
} zkl_histogram;

/**
 * What a client has done since it was made, and how it stands, at one moment. Counters only grow.
 *
 * A multi-lock that is joined in one transaction is one acquire, and a hold for each of its locks; one that is taken step by step
 * is an acquire for each step, in the client of that step. Calls that are refused for their arguments are not counted.
 */
typedef struct zkl_metrics {
    /**
     * How many bytes were written by zkl_client_metrics. New fields are only ever appended: those that this does not cover are not
     * known to the library.
     */
    uint32_t size;
    /** How the session stands: a ZKL_STATE_*. */
    int32_t state;
    /** The session timeout in force, in milliseconds. */
    int64_t session_timeout_ms;
    /** Holds that there are now, safe or not; those that were lost are not among them. */
    uint64_t held;
    /** Acquires that wait now. */
    uint64_t waiting;
    /** Contenders whose nodes are to go, and no server has confirmed it yet. */
    uint64_t leaving;
    /** Watches that a server is believed to keep for the session. */
    uint64_t watches;
    /** Acquires that got their lock or leases, by a hold of their own. */
    uint64_t acquires_ok;
    /** Acquires that ended with ZKL_E_TIMEOUT: others were ahead until their time was over, or at their one look. */
    uint64_t acquires_timeout;
    /** Acquires that the program itself ended: ZKL_E_CANCELED, or ZKL_E_CLOSED where the handle or the client was. */
    uint64_t acquires_canceled;
    /** Acquires that ended with ZKL_E_CONNECTION: no server answered in time. */
    uint64_t acquires_connection;
    /** Acquires that failed in another way. */
    uint64_t acquires_failed;
    /** Times that a hold was entered once more by its owner. */
    uint64_t reentries;
    /**
     * Acquires that got their lock after they had waited for another contender, those that it was passed on to in this process
     * among them.
     */
    uint64_t handovers;
    /** Times that a lock was passed on to another thread of this process, without a server. */
    uint64_t local_passes;
    /** Holds that the program gave back, or that ended with their handle or client. */
    uint64_t releases;
    /** Holds that were lost since their session ended. */
    uint64_t losses_session;
    /** Holds that were lost since somebody else deleted their node. */
    uint64_t losses_deleted;
    /** Times that a hold became ZKL_LOCK_SUSPENDED. */
    uint64_t suspensions;
    /** Times that a hold became ZKL_LOCK_UNCERTAIN. */
    uint64_t uncertainties;
    /** Times that a server refused to delete a node of ours. It is asked again until it does. */
    uint64_t deletes_refused;
    /** Attempts to connect to a server. */
    uint64_t connection_attempts;
    /** Connections that came to stand: the server took the session and the credentials. */
    uint64_t connections;
    /** Those of them that took the place of one before. */
    uint64_t reconnects;
    /** Connections that stood and were lost. */
    uint64_t connections_lost;
    /** Sessions that were begun. */
    uint64_t sessions;
    /** Sessions that ended, and were not closed: what was held was lost with them. */
    uint64_t sessions_lost;
    /** Requests that were sent to servers; neither pings nor handshakes. */
    uint64_t requests;
    /** Requests that were answered. */
    uint64_t answers;
    /** Pings that were sent to servers. */
    uint64_t pings;
    /** Changes of watched nodes that servers told of. */
    uint64_t watch_events;
    /** Bytes that were sent to servers, or are about to be. */
    uint64_t bytes_sent;
    /** Bytes that came from servers. */
    uint64_t bytes_received;
    /** How long acquires that got what they wanted took, from the call to the grant. */
    zkl_histogram waits;
    /** How long holds lasted that are over, from the grant to the release or the loss. */
    zkl_histogram holds;
    /** How long servers took to answer requests, from the sending to the moment at which the answer was read. */
    zkl_histogram round_trips;
} zkl_metrics;

/** A field of a line. This struct will stay as it is. */
typedef struct zkl_log_field {
    /** What it is called: path, token, session, server, cause and others. */
    const char *name;
    /** Its value as text. */
    const char *value;
} zkl_log_field;

/** A line of the log. All memory is the library's, and valid during the callback. */
typedef struct zkl_log {
    /** The library's own size of this struct. New fields are only ever appended: look at them where size covers them. */
    uint32_t size;
    /** A ZKL_LOG_*. */
    int32_t level;
    /** When it was written: nanoseconds since 1970, by the clock of the day. */
    int64_t time_ns;
    /**
     * What it is about: "zklock::session", "zklock::lock", "zklock::request", or "zklock::log" for the log itself. Others are for
     * what should not happen.
     */
    const char *target;
    /** The message and the fields, ready to be printed. No newline is at its end. */
    const char *line;
    /** The message alone, which is the same for all that is of one kind. */
    const char *message;
    /** The fields. */
    const zkl_log_field *fields;
    /** How many there are. */
    size_t field_count;
} zkl_log;

/** Is called with each line of the log. It must return: no exception, no longjmp. */
typedef void (*zkl_log_cb)(void *user, const zkl_log *log);

#ifdef __cplusplus
extern "C" {
#endif  /* __cplusplus */

/**
 * The version of the library that runs, like "0.1.0".
 *
 * Returns: a static text, never NULL.
 * Does not block; any thread; leaves the last error message alone.
 */
const char *zkl_version(void);

/**
 * What a status means, in one sentence without a full stop.
 *
 * Returns: a static text, never NULL; "unknown status" for a number that is none.
 * Does not block; any thread; leaves the last error message alone.
 */
const char *zkl_strerror(int32_t status);

/**
 * What went wrong in this thread's last call of zklock, with the values and the servers concerned: for people and logs.
 * Programs go by the status.
 *
 * Returns: a text, never NULL; empty if the last call succeeded. It is UTF-8, cut after 1023 bytes, and stays valid until
 * the thread's next call of zklock, except zkl_version, zkl_strerror, zkl_status_errno and this one.
 * Does not block; each thread has its own.
 */
const char *zkl_last_error_message(void);

/**
 * The errno value that comes nearest to a status: ETIMEDOUT, ECANCELED, EPERM, EDEADLK and so on. It is returned, and not
 * written to errno.
 *
 * Returns: 0 for ZKL_OK, EINVAL for a number that is no status.
 * Does not block; any thread; leaves the last error message alone.
 */
int32_t zkl_status_errno(int32_t status);

/**
 * Makes a config with the defaults. Where they will do, zkl_client_new takes NULL in its place.
 *
 * Returns: the config, to be freed with zkl_config_free; NULL on failure, which zkl_last_error_message explains.
 * Does not block; any thread.
 */
zkl_config *zkl_config_new(void);

/**
 * Frees a config. NULL is allowed. Clients made with it are not concerned.
 *
 * Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
 * Does not block; any thread.
 */
void zkl_config_free(zkl_config *config);

/**
 * How long the servers keep a session they do not hear of, in milliseconds: 1 or more, 10000 by default. The servers may
 * negotiate another value.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_set_session_timeout_ms(zkl_config *config, int32_t ms);

/**
 * How long zkl_client_new may take, in milliseconds: 1 or more, 10000 by default.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_set_connect_timeout_ms(zkl_config *config, int32_t ms);

/**
 * How long before its session can end a lock ceases to count as held, in milliseconds: 0 or more, a third of the
 * negotiated session timeout by default. More is safer; less rides out longer interruptions. The margin always
 * leaves at least a third of the session timeout; after a silence a lease may be shorter, for the servers may not have heard.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_set_lease_margin_ms(zkl_config *config, int32_t ms);

/**
 * Sets an option by its name, for instance "session.timeout" to "5000". The page on options (docs/options.md) has all of them. The functions
 * above are shorthands for the same options. Both strings are copied.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID for an unknown name and for a bad value, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_set(zkl_config *config, const char *name, const char *value);

/**
 * Sets the options in a file. The file is UTF-8 text of 64 KiB at most, with one "name = value" a line. Empty lines, and lines that begin
 * with #, are skipped; a # behind a value belongs to the value. If the file has an error, no option is set.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID if the file cannot be read or a line is wrong; the message names the file and the line.
 * ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Blocks while it reads the file; any thread.
 */
zkl_status zkl_config_load(zkl_config *config, const char *file);

/**
 * Adds credentials, for instance "digest" and "user:password". They are sent on every connection, in the order in which
 * they were added. The scheme is a string; auth is len bytes, and may be NULL if len is 0. Both are copied.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_add_auth(zkl_config *config, const char *scheme, const uint8_t *auth, size_t len);

/**
 * Has mutexes and read/write locks queue with the locks of kazoo that stand on the same path, instead of returning
 * ZKL_E_FOREIGN: 1, or 0, which is the default. For programs that move from kazoo, which has to wait for zklock's in turn: its locks
 * need extra_lock_patterns=["-lock-"] beside a mutex, and ["__READ__", "__WRIT__"] beside a read/write lock.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_set_wait_for_kazoo(zkl_config *config, int32_t wait);

/**
 * Has the callbacks of clients, those of events and of revocations, called by the program, with zkl_client_dispatch_events when the
 * descriptor of zkl_client_event_fd is readable: 1; or on a thread of the library's: 0, which is the default.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_set_poll_events(zkl_config *config, int32_t poll);

/**
 * Connects, and waits for the session. The servers are a string like "host:2181,host:2181/chroot"; all paths are below the
 * chroot, if there is one. The config may be NULL for the defaults, and is copied. The client written to *client_out is to
 * be freed with zkl_client_free.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_SERVER if the chroot does not exist (the option chroot.create),
 * ZKL_E_DENIED if it may not be created, ZKL_E_HANDLE and ZKL_E_FORKED (of the config),
 * ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Blocks until there is a session, but no longer than the connect timeout; any thread.
 */
zkl_status zkl_client_new(const char *servers, const zkl_config *config, zkl_client **client_out);

/**
 * Ends the session and frees the client. Those that wait for its locks wake with ZKL_E_CLOSED, what is held by them is
 * given up, and later calls on them return ZKL_E_CLOSED; their handles are still to be freed, before or after. NULL is
 * allowed. In a forked child the parent's session is left alone.
 *
 * The client's last events are delivered before, as far as there is time, and the rest is dropped; afterwards its callbacks are
 * not called any more. If one is being called now, that is waited for, however long it takes: do not hold a lock that it needs.
 * (A callback that frees its own client is not waited for, and is the last to be called; nor are events delivered of another client
 * that it frees on the library's thread.) Other clients' callbacks can delay it by the two seconds below, and no longer. Of a
 * client that polls its events, the last are delivered by the thread that frees it.
 *
 * Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
 * Blocks until the server has confirmed and the last callback has returned, but for callbacks that take longer no more than
 * two seconds; any thread.
 */
void zkl_client_free(zkl_client *client);

/**
 * How the client's session stands.
 *
 * Returns: a ZKL_STATE_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
int32_t zkl_client_state(const zkl_client *client);

/**
 * The id of the client's session, as the servers' logs have it. It may be negative.
 *
 * Returns: the id; 0 while there is none, and on failure, in which case zkl_client_state returns a negative status.
 * Does not block; any thread.
 */
int64_t zkl_client_session_id(const zkl_client *client);

/**
 * Calls the callbacks that wait, those of events and of revocations, one after the other, in the order in which things happened,
 * on the calling thread. Those that come to wait meanwhile are left for the next time. At any time one thread calls; where another
 * one does, or the calling one, in a callback, it goes on, and this returns 0.
 *
 * Returns: how many were called; or the negative ZKL_E_INVALID where the client's config did not say zkl_config_set_poll_events;
 * ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Blocks as long as the callbacks do; any thread.
 */
int32_t zkl_client_dispatch_events(zkl_client *client);

/**
 * A descriptor for poll, select, epoll and event loops: readable while callbacks wait to be called (level-triggered), and when the client
 * is freed. It is the library's: not to be read, written to or closed; it is closed with the client, and epoll forgets what is closed.
 * Where another thread than the one that frees the client is to hear of it, have that one wait for a duplicate (dup) of its own.
 *
 * Returns: the descriptor; or a negative status, as zkl_client_dispatch_events.
 * Does not block; any thread.
 */
int zkl_client_event_fd(const zkl_client *client);

/**
 * Makes a mutex on a path like "/locks/nightly-report": re-entrant, each thread owning its own hold; on the same znodes as
 * Curator's InterProcessMutex. Nothing is sent yet. The lock written to *lock_out is to be freed with zkl_lock_free.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_mutex_new(zkl_client *client, const char *path, zkl_lock **lock_out);

/**
 * Lets the threads of this process that queue for this mutex pass it on among themselves, up to max_passes times in a row, before
 * its node is given up; 0 as at first: never. It concerns acquires by this handle that begin later, and goes for all handles of one
 * client on one path that are set so: one node stands for all who wait by them, in the order in which they began, and a release gives it to the
 * next of them without asking a server. It pays where many threads of one process want one lock.
 *
 * Fairness: who waits in another process, behind that node, waits for at most max_passes holds more than without (the largest of the
 * handles' numbers). Then the node is removed, and the next thread here joins the queue at its end. Nobody here overtakes
 * another: who gives up leaves the place to the next.
 *
 * Only a hold that is ZKL_LOCK_HELD is passed on, and none whose node somebody has asked for (zkl_set_revocable). The node keeps the
 * data of the acquire that made it. All holds that were passed on have the fencing token of the first: a store that is to tell them apart
 * compares zkl_fencing_pass, too. A multi-lock joins with nodes of its own, and what it has got is not passed on. With a
 * limit of 0, an acquire that finds others of this process there fails without asking a server. zkl_participants shows the one node,
 * and zkl_waiting all who wait by the handle.
 *
 * Returns: ZKL_OK; ZKL_E_UNSUPPORTED for all but mutexes; ZKL_E_INVALID for a negative number; ZKL_E_HANDLE, ZKL_E_FORKED,
 * ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_mutex_set_local_handover(zkl_lock *lock, int32_t max_passes);

/**
 * Makes a lock on a path that is not re-entrant, and that any thread may release; on the same znodes as Curator's
 * InterProcessSemaphoreMutex. A thread that acquires it again waits for a release. Nothing is sent yet. The lock
 * written to *lock_out is to be freed with zkl_lock_free.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_semaphore_mutex_new(zkl_client *client, const char *path, zkl_lock **lock_out);

/**
 * Makes the two halves of a read/write lock on a path: readers share it, a writer has it alone; on the same znodes as
 * Curator's InterProcessReadWriteLock, as of 5.5. Each half is re-entrant, each thread owning its own holds. A thread that writes may
 * also acquire the read lock, and goes on reading when it releases the write lock: no other writer gets in between. A thread
 * that reads may not acquire the write lock: ZKL_E_DEADLOCK. Nothing is sent yet. The locks written to *read_out and *write_out
 * are to be freed with zkl_lock_free, in any order; on failure neither is written.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_rwlock_new(zkl_client *client, const char *path, zkl_lock **read_out, zkl_lock **write_out);

/**
 * Makes one lock of several, 4096 at most, each of a path of its own: like Curator's InterProcessMultiLock, it is acquired and
 * released as a whole, within one time limit. While it is held, each of them is; what the thread held of them before is entered
 * once more. They may be of different kinds and of different clients; where one is a multi-lock, its locks are taken.
 *
 * Mutexes and read/write locks of one client are joined in one transaction, so that two multi-locks of the same locks
 * in another order do not deadlock. Others are acquired one after the other, in an order that is the same for all programs that name
 * their servers alike, and given back if one can't be got.
 *
 * The handles stay the caller's. Once one of the locks is freed, or its client, the multi-lock is of no use: those that
 * wait for it wake with ZKL_E_CLOSED, and later calls return that. The lock written to *lock_out is to be freed with zkl_lock_free, which
 * wakes those that wait for the multi-lock, and changes nothing for its locks, held or not.
 *
 * Returns: ZKL_OK; ZKL_E_INVALID for no locks, too many, or two on one path; ZKL_E_HANDLE and ZKL_E_FORKED, with the index in the
 * message; ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_multi_new(zkl_lock *const *locks, size_t count, zkl_lock **lock_out);

/**
 * The same, but that the locks are acquired one after the other, in the order given, as Curator's InterProcessMultiLock does: for
 * programs that share their paths with Curator's and name them in the same order. Beside Curator's, zkl_multi_new may find that
 * each waits for the other, and takes a third of a second to give way. Programs that name the same locks in different orders
 * deadlock with this one.
 *
 * Returns: as zkl_multi_new.
 * Does not block; any thread.
 */
zkl_status zkl_multi_new_in_order(zkl_lock *const *locks, size_t count, zkl_lock **lock_out);

/**
 * Frees a lock. Those that wait on it wake with ZKL_E_CLOSED; what is held by it, by whatever thread, is released without
 * waiting for the server. NULL is allowed. In a forked child the parent's hold is left alone. A lock that is part of a
 * multi-lock is closed all the same, and the multi-lock with it; a multi-lock's own locks stay as they are, held or not.
 *
 * Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
 * Does not block; any thread.
 */
void zkl_lock_free(zkl_lock *lock);

/**
 * Acquires the lock for the calling thread, or enters it once more; each entry takes a release. (A semaphore mutex can't be
 * entered twice.) A multi-lock is acquired as a whole, or not at all. Waits without limit, also through losses of the connection
 * and of the session. To have an end, use zkl_acquire_timeout. Goroutines, greenlets and fibers of one thread share its holds, and
 * do not exclude each other: use zkl_acquire_as.
 *
 * Returns: ZKL_OK, and the thread holds the lock; on every failure this call has entered nothing:
 * ZKL_E_CANCELED by zkl_cancel; ZKL_E_CLOSED by zkl_lock_free or zkl_client_free; ZKL_E_DEADLOCK where this thread would
 * wait for itself, since it holds the path by another handle of the client, or reads where it wants to write (a semaphore mutex
 * knows no owner, and waits), and in a callback (Callbacks, above); ZKL_E_LOST where this thread's hold was lost and is not released yet;
 * ZKL_E_FOREIGN where another family of locks uses the path; ZKL_E_EXHAUSTED at the end of the path's sequence numbers,
 * and where the paths of all nodes of the client would take more than session.max_path_bytes (docs/sizing.md);
 * ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_CONNECTION, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Blocks until it has the lock; any thread.
 */
zkl_status zkl_acquire(zkl_lock *lock);

/**
 * The same with a limit in milliseconds over all that it takes: -1 for none, 0 to look once without waiting for anybody.
 *
 * Returns: as zkl_acquire; ZKL_E_TIMEOUT where the lock was not got in time, never early; ZKL_E_CONNECTION where no server
 * had answered by then; ZKL_E_INVALID for another negative limit.
 * Blocks until it has the lock, but no longer than the limit; with 0, for one answer of the server, and a second at most.
 * Any thread.
 */
zkl_status zkl_acquire_timeout(zkl_lock *lock, int64_t timeout_ms);

/**
 * Releases one entry of the calling thread; the last one gives the lock up. A semaphore mutex may be released by any thread,
 * whichever acquired it by this handle. Of a multi-lock, all that the thread holds of its locks is released by one entry each,
 * whatever becomes of the others, and the first failure is returned.
 *
 * Returns: ZKL_OK, and the server has confirmed that the lock's node is gone, or the lock was passed on to another thread of this
 * process (zkl_mutex_set_local_handover); ZKL_E_NOT_OWNER where this thread does not hold the lock (a semaphore mutex: nobody does
 * by this handle), and nothing changes; ZKL_E_LOST where the hold had been lost, so that others may have held it in the meantime;
 * ZKL_E_CONNECTION where no server confirmed within the session timeout, and the library goes on trying;
 * ZKL_E_CLOSED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * With ZKL_E_LOST and ZKL_E_CONNECTION the entry is released, too; as is, with ZKL_E_CLOSED for a multi-lock one of whose locks was
 * freed, what is left of it.
 * Blocks for the session timeout at most; any thread.
 */
zkl_status zkl_release(zkl_lock *lock);

/**
 * The same without waiting for the server: the library sees to it that the lock's node is removed.
 *
 * Returns: ZKL_OK, ZKL_E_NOT_OWNER, ZKL_E_LOST, ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL, as zkl_release.
 * Does not block; any thread.
 */
zkl_status zkl_release_nowait(zkl_lock *lock);

/**
 * Wakes those that wait on this handle now, in any thread, with ZKL_E_CANCELED. Who waits later is not concerned, nor is
 * what is held. A wait that is just succeeding may still return ZKL_OK. Those who wait for a multi-lock do so on its handle,
 * and not on those of its locks.
 *
 * Returns: ZKL_OK, also where nobody waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread, but not from a signal handler.
 */
zkl_status zkl_cancel(zkl_lock *lock);

/**
 * Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive, by the clock of
 * this machine. A semaphore mutex is held by the thread that acquired it, until any thread releases it. A multi-lock is held
 * while all of its locks are.
 *
 * Returns: 1, 0, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. A negative number is true in
 * C: compare with 1.
 * Does not block; any thread.
 */
int32_t zkl_is_held(const zkl_lock *lock);

/**
 * The same for any thread of this process that holds by this handle.
 *
 * Returns: as zkl_is_held.
 * Does not block; any thread.
 */
int32_t zkl_is_held_in_process(const zkl_lock *lock);

/**
 * How the calling thread's hold stands; where it has none, that of the thread of this process that holds by this handle (of a
 * read lock, of any of them). A multi-lock stands as badly as the worst of its locks, and is free if one of them is.
 *
 * Returns: a ZKL_LOCK_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
int32_t zkl_lock_state(const zkl_lock *lock);

/**
 * The fencing token of that hold: a number that grows with every hold of the path. A store that refuses a smaller token
 * than the largest it has seen is safe from writers that lost their lock and have not noticed. A multi-lock that was joined in one
 * transaction has one token for all its locks; otherwise, or where some were held before, this is the smallest of them, and a
 * store is better given the token of the lock that guards it.
 *
 * Returns: ZKL_OK with *token_out set; ZKL_E_NOT_OWNER where nobody in this process holds by this handle; ZKL_E_LOST where
 * the hold was lost; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_fencing_token(const zkl_lock *lock, int64_t *token_out);

/**
 * How often the lock had been passed on in this process, with the same token, when that hold began (zkl_mutex_set_local_handover);
 * 0 for a hold that came through the queue. Of a multi-lock: that which belongs to the token. A store that is to tell the
 * threads of one process apart refuses a smaller token, and with an equal token a smaller pass.
 *
 * Returns: as zkl_fencing_token, with *pass_out set.
 * Does not block; any thread.
 */
zkl_status zkl_fencing_pass(const zkl_lock *lock, int64_t *pass_out);

/**
 * Asks the ensemble whether the hold with this fencing token is still the holder's on a path, whoever holds it and whichever recipe it
 * is: a mutex, a read/write lock (then also that of one of several readers), a semaphore, a semaphore mutex, or one path of a
 * multi-lock; made by zklock or by Curator. What the answer says was true at a moment since the call began, also where the client's
 * server lags behind the others. A waiter's token is not a holder's. The leases of a semaphore count once whoever got them has left
 * its inner mutex.
 *
 * For a hold of one's own zkl_is_held is the answer that costs nothing, and knows of its lease: here a hold counts for as
 * long as its node is there. Neither takes the place of the store's own comparison of tokens, for the answer may be old when it is
 * read; docs/fencing.md has that.
 *
 * Returns: 1; 0, also where there is no such path; or the negative ZKL_E_INVALID, also for a token below 1; ZKL_E_HANDLE,
 * ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL. A negative number is
 * true in C: compare with 1.
 * Blocks for the session timeout at most; any thread.
 */
int32_t zkl_fence_check(zkl_client *client, const char *path, int64_t token);

/**
 * How long that hold is safe without hearing from a server, in milliseconds, rounded down; 0 where it is not safe now. Of a
 * multi-lock: the shortest time of its locks.
 *
 * Returns: as zkl_fencing_token, with *remaining_ms_out set.
 * Does not block; any thread.
 */
zkl_status zkl_remaining_ms(const zkl_lock *lock, int64_t *remaining_ms_out);

/**
 * The data of the nodes that later acquires create, for people and tools to see who holds and who waits; by default the
 * host's address, as Curator has it. The len bytes are copied, 512 KiB at most. With len 0 the nodes are empty, and data may
 * be NULL. Of a multi-lock: of all its locks, in the place of their own.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_lock_set_data(zkl_lock *lock, const uint8_t *data, size_t len);

/**
 * The path of the calling thread's node, without the client's chroot, for a transaction of the program's own that is to fail
 * once the lock is lost, by a check of that node. It is written to the size bytes at buf, with a NUL; how many bytes it takes,
 * to *needed_out. With size 0, buf may be NULL.
 *
 * Returns: ZKL_OK; ZKL_E_BUFFER where it does not fit: nothing is written but *needed_out; ZKL_E_NOT_OWNER where this thread
 * does not hold the lock; ZKL_E_LOST where the hold was lost; ZKL_E_INVALID, also for a multi-lock: ask its locks; ZKL_E_HANDLE,
 * ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_lock_node_path(const zkl_lock *lock, char *buf, size_t size, size_t *needed_out);

/**
 * Makes a semaphore of max_leases leases on a path; on the same znodes as Curator's InterProcessSemaphoreV2. All its
 * users have to agree on the number. Nothing is sent yet. The semaphore written to *semaphore_out is to be freed with
 * zkl_semaphore_free.
 *
 * Returns: ZKL_OK; ZKL_E_INVALID, also for less than one lease; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED,
 * ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_semaphore_new(zkl_client *client, const char *path, int32_t max_leases, zkl_semaphore **semaphore_out);

/**
 * Makes a semaphore with as many leases as the count at count_path says, now and whenever it changes (zkl_shared_count_set,
 * Curator's SharedCount). Where the count has no node yet, it is made with the initial number. Where the count is lowered, leases that
 * are out stay out.
 *
 * Returns: as zkl_semaphore_new; ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER.
 * Blocks for the session timeout at most; any thread.
 */
zkl_status zkl_semaphore_new_counted(zkl_client *client, const char *path, const char *count_path, int32_t initial, zkl_semaphore **semaphore_out);

/**
 * Frees a semaphore. Those that wait for its leases wake with ZKL_E_CLOSED. Leases that are out stay out, and are to be given
 * back with zkl_leases_release as before. NULL is allowed.
 *
 * Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
 * Does not block; any thread.
 */
void zkl_semaphore_free(zkl_semaphore *semaphore);

/**
 * Acquires so many leases, all or none, with a limit in milliseconds over all that it takes: -1 for none, 0 to look once
 * without waiting for anybody. Requests are served in their order, whole: a large one is not overtaken by small ones. The
 * leases written to *leases_out are to be given back with zkl_leases_release, by any thread.
 *
 * Returns: ZKL_OK; on every failure nothing is acquired: ZKL_E_TIMEOUT where they were not got in time, never early;
 * ZKL_E_CONNECTION where no server had answered by then; ZKL_E_CANCELED by zkl_semaphore_cancel; ZKL_E_CLOSED by
 * zkl_semaphore_free or zkl_client_free; ZKL_E_INVALID for a quantity below 1, one above max_leases (one above a count is
 * waited for, for the count may be raised), one of more nodes than a server takes in one transaction, or a negative limit other
 * than -1; ZKL_E_DEADLOCK in a callback, but for a limit of 0; ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED,
 * ZKL_E_INTERNAL.
 * Blocks until it has the leases, but no longer than the limit; with 0, for the server's answers, and a second at most.
 * Any thread.
 */
zkl_status zkl_semaphore_acquire_timeout(zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms, zkl_leases **leases_out);

/**
 * Wakes those that wait for leases by this handle now, in any thread, with ZKL_E_CANCELED. Who waits later is not concerned, nor
 * are leases that are out. A wait that is just succeeding may still return ZKL_OK.
 *
 * Returns: ZKL_OK, also where nobody waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread, but not from a signal handler.
 */
zkl_status zkl_semaphore_cancel(zkl_semaphore *semaphore);

/**
 * The data of the nodes of leases that are acquired later, as zkl_lock_set_data for a lock. Each lease has a node.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_semaphore_set_data(zkl_semaphore *semaphore, const uint8_t *data, size_t len);

/**
 * Gives all of the leases back, and frees their handle, whatever is returned. NULL is no leases.
 *
 * Returns: ZKL_OK, and the server has confirmed that the leases' nodes are gone; ZKL_E_LOST where one of them had been lost, so that
 * others may have had it in the meantime; ZKL_E_CONNECTION where no server confirmed within the session timeout, and the library
 * goes on trying; ZKL_E_CLOSED where the client is, and the leases were given up with it; ZKL_E_HANDLE, also from the second call
 * on; ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Blocks for the session timeout at most; any thread.
 */
zkl_status zkl_leases_release(zkl_leases *leases);

/**
 * Whether the leases are held, and safely so at this moment: their session is surely alive, by the clock of this machine.
 *
 * Returns: 1, 0, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. A negative number is true in C:
 * compare with 1.
 * Does not block; any thread.
 */
int32_t zkl_leases_is_held(const zkl_leases *leases);

/**
 * How the leases stand, all of them together: if one is lost, they are.
 *
 * Returns: a ZKL_LOCK_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
int32_t zkl_leases_state(const zkl_leases *leases);

/**
 * The fencing token of the leases: it grows with every acquire of the semaphore. Where several may have leases at a time it says
 * who came later, and not who is the only one.
 *
 * Returns: ZKL_OK with *token_out set; ZKL_E_LOST where one of them was lost; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED,
 * ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_leases_fencing_token(const zkl_leases *leases, int64_t *token_out);

/**
 * How long the leases are safe without hearing from a server, in milliseconds, rounded down; 0 where they are not safe now.
 *
 * Returns: as zkl_leases_fencing_token, with *remaining_ms_out set.
 * Does not block; any thread.
 */
zkl_status zkl_leases_remaining_ms(const zkl_leases *leases, int64_t *remaining_ms_out);

/**
 * The path of the node of one of the leases, whose indices begin with 0, as zkl_lock_node_path for a lock.
 *
 * Returns: ZKL_OK; ZKL_E_BUFFER where it does not fit: nothing is written but *needed_out; ZKL_E_LOST where one of them was
 * lost; ZKL_E_INVALID, also for an index that is too large; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_leases_node_path(const zkl_leases *leases, size_t index, char *buf, size_t size, size_t *needed_out);

/**
 * Reads a count (Curator's SharedCount): four bytes, the highest first.
 *
 * Returns: ZKL_OK with *value_out set; ZKL_E_SERVER where it has no node: setting it makes one; ZKL_E_INVALID, also where its
 * node holds something else; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED,
 * ZKL_E_INTERNAL.
 * Blocks for the session timeout at most; any thread.
 */
zkl_status zkl_shared_count_get(zkl_client *client, const char *count_path, int32_t *value_out);

/**
 * Sets a count, whatever it was, and makes its node where there is none. Semaphores that go by it follow.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED,
 * ZKL_E_SERVER, ZKL_E_INTERNAL.
 * Blocks for the session timeout at most; any thread.
 */
zkl_status zkl_shared_count_set(zkl_client *client, const char *count_path, int32_t value);

/**
 * Starts to acquire the lock for an owner, as zkl_acquire_timeout does for a thread, and does not wait for it. Owner 0 is the calling
 * thread; any other number is an owner of your own, like a task or a request: holds belong to it, re-entrancy goes by it, and any
 * thread may act for it. The operation written to *op_out is to be freed with zkl_op_free.
 *
 * Returns: ZKL_OK, and how the acquire ends is said by zkl_op_result, also where that is known at once; ZKL_E_INVALID as
 * zkl_acquire_timeout; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_acquire_start(zkl_lock *lock, uint64_t owner, int64_t timeout_ms, zkl_op **op_out);

/**
 * Starts to acquire so many leases, all or none, as zkl_semaphore_acquire_timeout does, and does not wait for them. Once the operation has
 * ended with ZKL_OK they are to be taken with zkl_op_leases. The operation written to *op_out is to be freed with zkl_op_free.
 *
 * Returns: as zkl_acquire_start; ZKL_E_INVALID also for a quantity below 1, and one above max_leases.
 * Does not block; any thread.
 */
zkl_status zkl_semaphore_acquire_start(zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms, zkl_op **op_out);

/**
 * A descriptor that becomes readable when the operation is over, however it ended, and stays so: for poll, select, epoll and event loops.
 * It is the library's: not to be read, written or closed. It is made by the first call, and closed by zkl_op_free; take it out of a
 * loop before that. Operations whose descriptor nobody asks for have none. A forked child should not use it.
 *
 * Returns: the descriptor, the same each time, unless the program has closed it: then another one; or the negative ZKL_E_EXHAUSTED where the process has no descriptor left: the operation goes on,
 * and this may be tried again; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
int zkl_op_fd(const zkl_op *op);

/**
 * How the operation ended. Once this, or zkl_op_wait, has returned ZKL_OK for a lock, the owner holds it, and freeing the
 * operation changes nothing about that.
 *
 * Returns: ZKL_E_INVALID while it still runs, and only then; ZKL_OK; failures as zkl_acquire_timeout or as
 * zkl_semaphore_acquire_timeout, with ZKL_E_UNSUPPORTED in the place of an ZKL_E_INVALID that is found later than at the start;
 * ZKL_E_CANCELED also by zkl_op_cancel; ZKL_E_CLOSED also where another thread frees the operation; ZKL_E_HANDLE, ZKL_E_FORKED,
 * ZKL_E_INTERNAL. It may be asked as often as one likes, and gives the same each time.
 * Does not block; any thread.
 */
zkl_status zkl_op_result(zkl_op *op);

/**
 * Waits until the operation is over, with a limit of its own in milliseconds: -1 for none, 0 to look. The operation is not
 * concerned by this limit, and goes on. Several threads may wait.
 *
 * Returns: as zkl_op_result; ZKL_E_TIMEOUT also where the operation still runs at the end of this limit: zkl_op_result tells the two
 * apart, for it is ZKL_E_INVALID then. ZKL_E_INVALID for a negative limit other than -1. ZKL_E_DEADLOCK in a callback, where it would
 * have to wait.
 * Blocks until the operation is over, but no longer than the limit; any thread.
 */
zkl_status zkl_op_wait(zkl_op *op, int64_t timeout_ms);

/**
 * Cancels the operation: it ends with ZKL_E_CANCELED, and leaves nothing. One that is just succeeding may still end with ZKL_OK; one that is
 * over stays as it is.
 *
 * Returns: ZKL_OK, also where it is over; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread, but not from a signal handler.
 */
zkl_status zkl_op_cancel(zkl_op *op);

/**
 * Takes the leases of an operation that has ended with ZKL_OK. Those written to *leases_out are to be given back with
 * zkl_leases_release.
 *
 * Returns: ZKL_OK; ZKL_E_INVALID while the operation still runs, where they were taken before, and for an operation on a lock; where
 * it ended with a failure, that one, as zkl_op_result; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_op_leases(zkl_op *op, zkl_leases **leases_out);

/**
 * Frees an operation. What nobody has heard of does not stay: one that still runs is cancelled, and if it had got the lock, but
 * neither zkl_op_result nor zkl_op_wait had returned ZKL_OK yet, the lock is released again, without waiting for the server. So are leases
 * that were not taken. A hold that was told of stays, and is released by its owner. Those that wait in zkl_op_wait wake with
 * ZKL_E_CLOSED. NULL is allowed. In a forked child nothing is touched.
 *
 * Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
 * Does not block; any thread.
 */
void zkl_op_free(zkl_op *op);

/**
 * Acquires the lock for an owner, as zkl_acquire_timeout does for the calling thread, which owner 0 stands for, and waits. For green threads
 * (goroutines, greenlets, fibers), which share a thread: give each a number of its own. The call blocks the whole thread.
 *
 * Returns: as zkl_acquire_timeout.
 * Blocks until the owner has the lock, but no longer than the limit, as zkl_acquire_timeout; any thread.
 */
zkl_status zkl_acquire_as(zkl_lock *lock, uint64_t owner, int64_t timeout_ms);

/**
 * Releases one entry of an owner, as zkl_release does for the calling thread, which owner 0 stands for.
 *
 * Returns: as zkl_release.
 * Blocks for the session timeout at most; any thread, whichever acquired.
 */
zkl_status zkl_release_as(zkl_lock *lock, uint64_t owner);

/**
 * The same without waiting for the server: the library sees to it that the lock's node is removed.
 *
 * Returns: as zkl_release_nowait.
 * Does not block; any thread.
 */
zkl_status zkl_release_nowait_as(zkl_lock *lock, uint64_t owner);

/**
 * Whether an owner holds the lock, and safely so at this moment, as zkl_is_held does for the calling thread, which owner 0 stands for.
 *
 * Returns: as zkl_is_held: compare with 1.
 * Does not block; any thread.
 */
int32_t zkl_is_held_as(const zkl_lock *lock, uint64_t owner);

/**
 * How the hold of an owner stands; unlike with zkl_lock_state, nobody else's is looked at where it has none.
 *
 * Returns: as zkl_lock_state.
 * Does not block; any thread.
 */
int32_t zkl_lock_state_as(const zkl_lock *lock, uint64_t owner);

/**
 * The fencing token of the hold of an owner, and of nobody else.
 *
 * Returns: as zkl_fencing_token; ZKL_E_NOT_OWNER where that owner does not hold the lock.
 * Does not block; any thread.
 */
zkl_status zkl_fencing_token_as(const zkl_lock *lock, uint64_t owner, int64_t *token_out);

/**
 * How often the lock had been passed on in this process when the hold of an owner, and of nobody else, began, as zkl_fencing_pass.
 *
 * Returns: as zkl_fencing_token_as, with *pass_out set.
 * Does not block; any thread.
 */
zkl_status zkl_fencing_pass_as(const zkl_lock *lock, uint64_t owner, int64_t *pass_out);

/**
 * How long the hold of an owner, and of nobody else, is safe without hearing from a server, in milliseconds, as zkl_remaining_ms.
 *
 * Returns: as zkl_fencing_token_as, with *remaining_ms_out set.
 * Does not block; any thread.
 */
zkl_status zkl_remaining_ms_as(const zkl_lock *lock, uint64_t owner, int64_t *remaining_ms_out);

/**
 * The path of the node of an owner, as zkl_lock_node_path for that of the calling thread, which owner 0 stands for.
 *
 * Returns: as zkl_lock_node_path.
 * Does not block; any thread.
 */
zkl_status zkl_lock_node_path_as(const zkl_lock *lock, uint64_t owner, char *buf, size_t size, size_t *needed_out);

/**
 * Has cb called, with user and the lock as they were given, whenever somebody asks for what is held or waited for by this lock
 * to be given up (zkl_revoke, Curator's Revoker): once for each node that is asked for. It is a request: nothing is taken away.
 * The calls come on the thread of the event callbacks, one after the other with those, in the order in which things happened, and cb
 * may do what these may (Callbacks, above). While nobody is called, a node that is asked for again and again may be told once. Since holds belong to threads, that of a mutex or a read/write lock is to be released by its own.
 *
 * Another callback takes the place of the one before; with cb NULL there is none any more, and user_drop is called at once.
 * user_drop, which may be NULL, is called once: when another callback has taken its place, the lock or its client was freed, and
 * cb has returned for the last time. A call that is just beginning when the lock is freed may still come. The callback of a multi-lock is
 * that of each of its locks, in the place of their own, and serves until the multi-lock is freed, or all of them are.
 *
 * Returns: ZKL_OK; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL, and user is not taken: user_drop is not called.
 * Does not block; any thread.
 */
zkl_status zkl_set_revocable(zkl_lock *lock, zkl_revocable_cb cb, void *user, zkl_user_drop user_drop);

/**
 * The same for a semaphore, of which leases are asked back. Those that are out when it is freed can't be asked back any more.
 *
 * Returns: as zkl_set_revocable.
 * Does not block; any thread.
 */
zkl_status zkl_semaphore_set_revocable(zkl_semaphore *semaphore, zkl_semaphore_revocable_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Asks the owner of a node to give up what he holds or waits for by it. The node's path is that which zkl_participants shows. It is a
 * request, which he hears of if he wants to (zkl_set_revocable, Curator's makeRevocable).
 *
 * Returns: ZKL_OK, also where there is no such node: it was given up; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED,
 * ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
 * Blocks for the session timeout at most; any thread.
 */
zkl_status zkl_revoke(zkl_client *client, const char *node_path);

/**
 * Asks the server who holds the lock and who waits for it, in this process and all others, then calls cb once for each, in
 * the order of the queue, with user as it was given. The callback may call any function of zklock. Of a read/write lock, the
 * read lock tells of readers and the write lock of writers; see zkl_queue for both. Of a semaphore mutex, who holds comes first, then
 * those who wait. Of a multi-lock, those of one of its locks come after those of another.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED,
 * ZKL_E_SERVER, ZKL_E_INTERNAL. Where it fails, cb was not called.
 * Blocks for the session timeout at most; any thread, and cb is called on that thread.
 */
zkl_status zkl_participants(zkl_lock *lock, zkl_participants_cb cb, void *user);

/**
 * The same, but for a read/write lock it tells of readers and writers together, whichever half is asked.
 *
 * Returns: as zkl_participants.
 * Blocks for the session timeout at most; any thread, and cb is called on that thread.
 */
zkl_status zkl_queue(zkl_lock *lock, zkl_participants_cb cb, void *user);

/**
 * The same for a semaphore: the leases that are out, the oldest first, each a participant that holds, then those who wait for some.
 *
 * Returns: as zkl_participants.
 * Blocks for the session timeout at most; any thread, and cb is called on that thread.
 */
zkl_status zkl_semaphore_participants(zkl_semaphore *semaphore, zkl_participants_cb cb, void *user);

/**
 * Calls cb once for each acquire by this handle that waits, in any thread of this process, with what it waits for, in the order in
 * which they began, and with user as it was given. Those who wait for a multi-lock do so on its handle, and not on those of its locks.
 * The callback may call any function of zklock. It is what the client knows: no server is asked, so it answers where none does.
 * Who stands ahead in other processes, zkl_participants tells, by the same paths. Who waits behind others of his process
 * (zkl_mutex_set_local_handover) has no node of his own: that which stands for all of them is ahead.
 *
 * Returns: ZKL_OK, also where nobody waits; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. Where it
 * fails, cb was not called.
 * Does not block; any thread, and cb is called on that thread.
 */
zkl_status zkl_waiting(const zkl_lock *lock, zkl_waiting_cb cb, void *user);

/**
 * The same for those who wait for leases of a semaphore by this handle.
 *
 * Returns: as zkl_waiting.
 * Does not block; any thread, and cb is called on that thread.
 */
zkl_status zkl_semaphore_waiting(const zkl_semaphore *semaphore, zkl_waiting_cb cb, void *user);

/**
 * Has cb called, with user as it was given, for every change in how a client's session or one of its holds stands. The calls
 * come one after the other, in the order in which things happened, on a thread of the library that does nothing else, or where the
 * program wants them (zkl_config_set_poll_events). What cb may call stands under Callbacks, above. While cb does not return on the
 * library's thread, no other callback is called in this process.
 *
 * Of what happens at one moment, holds come before the session: HELD becomes SUSPENDED, then CONNECTED becomes SUSPENDED. While nobody
 * is called, about a thousand events of a client wait as they came. Those on top of that are joined: each hold and the session are
 * told fewer steps, each of which begins where the one before ended, but not another end; and that they were lost is always told.
 *
 * user_drop, which may be NULL, is called once: when the config and all clients made with it are freed, or the config was
 * given another callback and those clients are freed, and cb has returned for the last time. With cb NULL there are no
 * events, and user_drop is called at once.
 *
 * Returns: ZKL_OK; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL, and user is not taken.
 * Does not block; any thread.
 */
zkl_status zkl_config_set_event_callback(zkl_config *config, zkl_event_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Has cb called, with user as it was given, for every change from now on, and for what still waits to be told, as
 * zkl_config_set_event_callback has it, and beside the callback of the config: for a part of a program that is given a client. Another
 * callback takes the place of the one that was set by this function before; with cb NULL there is none any more, and user_drop is
 * called at once.
 *
 * user_drop, which may be NULL, is called once: when another callback has taken its place, or the client was freed, and cb has
 * returned for the last time. A call that is just beginning when another takes its place may still come.
 *
 * Returns: ZKL_OK; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL, and user is not taken.
 * Does not block; any thread.
 */
zkl_status zkl_client_set_event_callback(zkl_client *client, zkl_event_cb cb, void *user, zkl_user_drop user_drop);

/**
 * What a client has done so far, and how it stands: counters, histograms and gauges, of one moment. No server is asked, and it goes on
 * to work when the session was lost. docs/observability.md says what to watch.
 *
 * size is sizeof(zkl_metrics) as the program was compiled, at least 4 bytes. As many bytes are written to metrics_out, and no more
 * than the library's own struct has; which of the two it was, is in its first field. So the fields that are newer than the library have
 * what they had before: a program that may meet an older one sets the struct to zero first.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_client_metrics(const zkl_client *client, zkl_metrics *metrics_out, size_t size);

/**
 * The same in the text form that Prometheus reads (its exposition format, version 0.0.4), to be served as "text/plain; version=0.0.4".
 * labels are put to each of them, to tell this client from others: name="value",other="value" as Prometheus has them, with \\, \" and
 * \n for what can't stand in a value; or NULL for none. The text is written to the size bytes at buf, with a NUL; how many bytes
 * it takes, to *needed_out. With size 0, buf may be NULL. It takes about 12 KiB, and can be longer from one call to the next: give
 * it some room, or try again.
 *
 * Returns: ZKL_OK; ZKL_E_BUFFER where it does not fit: nothing is written but *needed_out; ZKL_E_INVALID, also for labels that
 * Prometheus would not take; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_client_prometheus(const zkl_client *client, const char *labels, char *buf, size_t size, size_t *needed_out);

/**
 * Has cb called, with user as it was given, for each line up to this level (a ZKL_LOG_*) that the library logs in this process,
 * whichever client it is of. It takes the place of the one before, whose last call is over when this returns. With cb NULL or
 * ZKL_LOG_OFF nothing is logged any more, which costs nothing; what was logged by then is told before, as far as two seconds allow.
 *
 * The calls come one after the other, in the order in which things happened with each client, on the thread of the library that calls the
 * callbacks of events, also where clients poll theirs; that thread goes on as long as there is a cb. What cb may call stands under
 * Callbacks, above; of what is logged meanwhile on the thread that calls it, warnings and errors alone are told. While it does not return, 4096 lines wait. What comes
 * on top of that is dropped, and a line of the target "zklock::log" says how many those were.
 *
 * user_drop, which may be NULL, is called once: when another cb has taken the place of this one, or none, and cb has returned for the
 * last time. With cb NULL or ZKL_LOG_OFF it is called at once. In a forked child nobody is called by what the parent has set, nor is user_drop.
 *
 * Returns: ZKL_OK; ZKL_E_INVALID for another level, ZKL_E_INTERNAL, ZKL_E_UNSUPPORTED where a program in Rust has the library linked
 * into it and listens to tracing by itself, and user is not taken.
 * Blocks until the call of the one before that is under way has returned, unless it is that which asks; any thread.
 */
zkl_status zkl_set_log_callback(int32_t level, zkl_log_cb cb, void *user, zkl_user_drop user_drop);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* ZKLOCK_H */
