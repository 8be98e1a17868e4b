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
 *            | a hold          | no                | the thread that acquired; it releases   |
 *            | the last error  | no                | the thread that called                  |
 *            | zkl_participant | no                | the callback, until it returns          |
 *
 *            A hold is not given up when its thread ends: release before.
 * Handles    Pointers to zkl_* types are tickets: they point nowhere, and are compared with == at most. A handle that was
 *            freed, is of another kind, or never was one gives ZKL_E_HANDLE, and no crash. Freeing NULL does nothing.
 * Results    Functions return a zkl_status, or a number that is a ZKL_E_* if it is negative. *_out parameters come last,
 *            must not be NULL, and are written to only on success.
 * Errors     zkl_last_error_message() explains the last failure of the calling thread. errno means nothing after a call.
 * Memory     What goes in is copied before the call returns, and needs no alignment. What comes out belongs to the library;
 *            each function says how long it stays. Strings are UTF-8 and end with NUL. Nothing is to be passed to free().
 *            Pointers other than handles must be what they say: strings that end, and as many bytes as the length says.
 * Fork       In a child of fork() the parent's handles give ZKL_E_FORKED, and freeing them does nothing: the parent keeps its
 *            session and its locks. The child may make a client of its own. (A child made by a raw clone() or vfork() must
 *            not call zklock.)
 * Signals    Calls go on when a signal is handled, and never fail with EINTR. The library's threads block all signals. No
 *            function may be called from a signal handler.
 * C++        Every function is extern "C" and throws nothing.
 */

#ifndef ZKLOCK_H
#define ZKLOCK_H

/* Made by cbindgen from bindings/c/src. To change it: ZKL_BLESS=1 cargo test -p zklock-c --test header */

#include <stddef.h>
#include <stdint.h>

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

/** The sequence numbers of this path are used up. */
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

/** The client's session stands differently: state and previous are ZKL_STATE_*. */
#define ZKL_EVENT_CLIENT 0

/** A hold stands differently: state and previous are ZKL_LOCK_*. */
#define ZKL_EVENT_LOCK 1

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

/** A lock on a path. Threads that share it exclude each other, like those of other processes, and queue fairly. */
typedef struct zkl_lock zkl_lock;

/** How a call ended: ZKL_OK, or a negative ZKL_E_*. Numbers are never reused. */
typedef int32_t zkl_status;

/** One that holds a lock or waits for it. All memory is the library's, and valid during the callback. */
typedef struct zkl_participant {
    /** The library's own size of this struct. New fields are only ever appended: look at them where size covers them. */
    uint32_t size;
    /** 1: holds the lock now; 0: waits. */
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
    /** The lock, or NULL: of a client's event, and where the lock was freed meanwhile. */
    zkl_lock *lock;
    /** The lock's path, or NULL. */
    const char *path;
    /** The fencing token of the hold, or 0. */
    int64_t token;
} zkl_event;

/** Is called with each event. It must return: no exception, no longjmp. */
typedef void (*zkl_event_cb)(void *user, const zkl_event *event);

/** Is called with user when the library will not use it any more. */
typedef void (*zkl_user_drop)(void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

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
 * Returns nothing; a handle that is not live changes nothing but the last error message.
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
 * Adds credentials, for instance "digest" and "user:password". They are sent on every connection, in the order in which
 * they were added. The scheme is a string; auth is len bytes, and may be NULL if len is 0. Both are copied.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_config_add_auth(zkl_config *config, const char *scheme, const uint8_t *auth, size_t len);

/**
 * Connects, and waits for the session. The servers are a string like "host:2181,host:2181/chroot"; all paths are below the
 * chroot, if there is one. The config may be NULL for the defaults, and is copied. The client written to *client_out is to
 * be freed with zkl_client_free.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_HANDLE and ZKL_E_FORKED (of the config),
 * ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Blocks until there is a session, but no longer than the connect timeout; any thread.
 */
zkl_status zkl_client_new(const char *servers, const zkl_config *config, zkl_client **client_out);

/**
 * Ends the session and frees the client. Those that wait for its locks wake with ZKL_E_CLOSED, what is held by them is
 * given up, and later calls on them return ZKL_E_CLOSED; their handles are still to be freed, before or after. NULL is
 * allowed. In a forked child the parent's session is left alone.
 *
 * The client's last events are delivered before, as far as there is time; afterwards its callback is not called any more. If it
 * is being called now, that is waited for, however long it takes: do not hold a lock that it needs. (A callback that frees
 * its own client is not waited for.) Other clients' callbacks can delay it by the two seconds below, and no longer.
 *
 * Returns nothing; a handle that is not live changes nothing but the last error message.
 * Blocks until the server has confirmed, but no longer than two seconds; any thread.
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
 * Returns: the id; 0 while there is none, and on failure, when zkl_last_error_message is not empty.
 * Does not block; any thread.
 */
int64_t zkl_client_session_id(const zkl_client *client);

/**
 * Makes a mutex on a path like "/locks/nightly-report": re-entrant, each thread owning its own hold; on the same znodes as
 * Curator's InterProcessMutex. Nothing is sent yet. The lock written to *lock_out is to be freed with zkl_lock_free.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_mutex_new(zkl_client *client, const char *path, zkl_lock **lock_out);

/**
 * Frees a lock. Those that wait on it wake with ZKL_E_CLOSED; what is held by it, by whatever thread, is released without
 * waiting for the server. NULL is allowed. In a forked child the parent's hold is left alone.
 *
 * Returns nothing; a handle that is not live changes nothing but the last error message.
 * Does not block; any thread.
 */
void zkl_lock_free(zkl_lock *lock);

/**
 * Acquires the lock for the calling thread, or enters it once more; each entry takes a release. Waits without limit, also
 * through losses of the connection and of the session. To have an end, use zkl_acquire_timeout.
 *
 * Returns: ZKL_OK, and the thread holds the lock; on every failure this call has entered nothing:
 * ZKL_E_CANCELED by zkl_cancel; ZKL_E_CLOSED by zkl_lock_free or zkl_client_free; ZKL_E_DEADLOCK where this thread holds
 * the path by another handle of the client; ZKL_E_LOST where this thread's hold was lost and is not released yet;
 * ZKL_E_FOREIGN where another family of locks uses the path; ZKL_E_EXHAUSTED at the end of the path's sequence numbers;
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
 * Releases one entry of the calling thread; the last one gives the lock up.
 *
 * Returns: ZKL_OK, and the server has confirmed that the lock's node is gone; ZKL_E_NOT_OWNER where this thread does not
 * hold the lock, and nothing changes; ZKL_E_LOST where the hold had been lost, so that others may have held it in the
 * meantime; ZKL_E_CONNECTION where no server confirmed within the session timeout, and the library goes on trying;
 * ZKL_E_CLOSED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * With ZKL_E_LOST and ZKL_E_CONNECTION the entry is released, too.
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
 * what is held. A wait that is just succeeding may still return ZKL_OK.
 *
 * Returns: ZKL_OK, also where nobody waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block; any thread, but not from a signal handler.
 */
zkl_status zkl_cancel(zkl_lock *lock);

/**
 * Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive, by the clock of
 * this machine.
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
 * How the calling thread's hold stands; where it has none, that of the thread of this process that holds by this handle.
 *
 * Returns: a ZKL_LOCK_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
int32_t zkl_lock_state(const zkl_lock *lock);

/**
 * The fencing token of that hold: a number that grows with every hold of the path. A store that refuses a smaller token
 * than the largest it has seen is safe from writers that lost their lock and have not noticed.
 *
 * Returns: ZKL_OK with *token_out set; ZKL_E_NOT_OWNER where nobody in this process holds by this handle; ZKL_E_LOST where
 * the hold was lost; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_fencing_token(const zkl_lock *lock, int64_t *token_out);

/**
 * How long that hold is safe without hearing from a server, in milliseconds, rounded down; 0 where it is not safe now.
 *
 * Returns: as zkl_fencing_token, with *remaining_ms_out set.
 * Does not block; any thread.
 */
zkl_status zkl_remaining_ms(const zkl_lock *lock, int64_t *remaining_ms_out);

/**
 * The data of the nodes that later acquires create, for people and tools to see who holds and who waits; by default the
 * host's address, as Curator has it. The len bytes are copied, 512 KiB at most. With len 0 the nodes are empty, and data may
 * be NULL.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_lock_set_data(zkl_lock *lock, const uint8_t *data, size_t len);

/**
 * Asks the server who holds the lock and who waits for it, in this process and all others, then calls cb once for each, in
 * the order of the queue, with user as it was given. The callback may call any function of zklock.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED,
 * ZKL_E_SERVER, ZKL_E_INTERNAL. Where it fails, cb was not called.
 * Blocks for the session timeout at most; any thread, and cb is called on that thread.
 */
zkl_status zkl_participants(zkl_lock *lock, zkl_participants_cb cb, void *user);

/**
 * Has cb called, with user as it was given, for every change in how a client's session or one of its holds stands. The calls
 * come one after the other, in the order in which things happened, on a thread of the library that does nothing else and
 * holds no lock, so cb may call any function of zklock; while it waits, no other event is delivered in this process.
 * user_drop, which may be NULL, is called once: when the config and all clients made with it are freed, or the config was
 * given another callback and those clients are freed, and cb has returned for the last time. With cb NULL there are no
 * events, and user_drop is called at once.
 *
 * Returns: ZKL_OK; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL, and user is not taken.
 * Does not block; any thread.
 */
zkl_status zkl_config_set_event_callback(zkl_config *config, zkl_event_cb cb, void *user, zkl_user_drop user_drop);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* ZKLOCK_H */
