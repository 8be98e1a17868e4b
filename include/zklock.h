/* Distributed locks on Apache ZooKeeper. The locks use the same znodes as the locks of Apache Curator.
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
 * Besides mutexes, the library has read/write locks (zkl_rwlock_new) and semaphores (zkl_semaphore_new). A semaphore mutex is
 * a lock that any thread may release (zkl_semaphore_mutex_new). A multi-lock acquires several locks together (zkl_multi_new).
 * An event loop can acquire locks without blocking a thread (zkl_acquire_start, zkl_op_fd). The owner of a hold is either a
 * thread or an owner number. A program can choose an owner number for each task or request.
 *
 * Every function has existed since version 0.1.0, unless its comment gives a later version after "Since:". The header
 * zklock_ffi.h contains the same declarations without preprocessor directives, for foreign function interfaces. The page
 * docs/bindings.md explains how to write a binding for another language.
 *
 * A hold is safe only while its ZooKeeper session is known to be alive. The library uses the clock of this machine to decide
 * whether a hold is safe (zkl_is_held, zkl_remaining_ms). A lock cannot stop a program that keeps working after the program
 * loses the lock. A store that compares fencing tokens can refuse writes from such a program (zkl_fencing_token).
 *
 * Threads    Any thread may call any function at any time. Several threads may use the same handle at once. One thread may
 *            free a handle while another thread waits on it.
 *
 *            | what                 | shared by threads | belongs to                                 |
 *            |----------------------|-------------------|--------------------------------------------|
 *            | zkl_config           | yes               | -                                          |
 *            | zkl_client           | yes               | -                                          |
 *            | zkl_lock             | yes               | -                                          |
 *            | zkl_semaphore        | yes               | -                                          |
 *            | zkl_hold             | yes               | every thread that has the handle           |
 *            | zkl_op               | yes               | every thread that has the handle           |
 *            | zkl_listener         | yes               | every thread that has the handle           |
 *            | zkl_completion_queue | yes               | every thread that has the handle           |
 *            | zkl_run              | yes               | every thread that has the handle           |
 *            | the hold of a thread | no                | the thread that acquired it (zkl_acquire)  |
 *            | the last error       | no                | the thread that made the call              |
 *            | zkl_participant      | no                | the callback, until it returns; or the     |
 *            |                      |                   | operation (zkl_op_participant)             |
 *            | zkl_past_run         | no                | the callback, until it returns; or the     |
 *            |                      |                   | operation (zkl_op_past_run)                |
 *            | zkl_wait             | no                | the callback, until it returns             |
 *
 *            When a thread ends, the library does not release its holds. A thread must therefore release its locks before it
 *            ends. Any thread may release a semaphore mutex, even if the thread that acquired it has ended. A zkl_hold
 *            (zkl_hold_acquire, zkl_op_hold) belongs to no thread: any thread that has the handle may use and release it.
 *
 *            In this header, a thread is a thread of the operating system. The green threads (goroutines, greenlets, fibers and
 *            coroutines) that run on one thread therefore share the holds of this thread. If one green thread holds a mutex
 *            and another green thread of the same thread calls zkl_acquire, the call re-enters the mutex without an error.
 *            Give each green thread its own zkl_hold (zkl_hold_acquire).
 *
 *            If pthread_cancel() cancels a thread during a library call, the cancellation takes effect after the call returns.
 *            A thread with the cancellation type PTHREAD_CANCEL_ASYNCHRONOUS must not call the library.
 *
 *            A thread that calls the library needs a stack of at least 128 KiB, in addition to the stack that the program's
 *            callbacks use.
 * Handles    Handles are pointers to the opaque zkl_* types. The value of a handle is a number, not an address. A program may
 *            compare two handles with ==, but must not dereference a handle. If a handle was freed, is of another kind, or is
 *            not a handle at all, the call fails with ZKL_E_HANDLE and does not crash. Freeing NULL does nothing.
 * Results    Most functions return a zkl_status and write their results to parameters that are named *_out. The *_out
 *            parameters come last and must not be NULL. A function writes to its *_out parameters only on success. There is one
 *            exception: a call that fails with ZKL_E_BUFFER still writes *needed_out. The following functions return their
 *            results directly:
 *
 *            | function                               | returns                                                         |
 *            |----------------------------------------|-----------------------------------------------------------------|
 *            | zkl_is_held*, zkl_hold_is_held         | 1 if the hold is certainly safe; 0 if it may be unsafe, and on  |
 *            |                                        | every error. A condition can use the result directly.           |
 *            | zkl_client_state                       | a ZKL_STATE_*, 0 or more; or a negative ZKL_E_*                 |
 *            | zkl_lock_state*                        | a ZKL_LOCK_*, 10 or more; or a negative ZKL_E_*                 |
 *            | zkl_*_fd                               | a descriptor, 0 or more; or a negative ZKL_E_*                  |
 *            | zkl_client_session_id                  | a session id; 0 if there is no session, and on failure          |
 *            | zkl_config_new                         | a handle; NULL on failure                                       |
 *            | zkl_version, zkl_strerror              | a string, never NULL                                            |
 *            | zkl_last_error_message, zkl_op_message | a string, never NULL                                            |
 *            | zkl_status_errno                       | an errno value                                                  |
 *            | zkl_version_number                     | the version as a number                                         |
 *
 *            The compiler warns if a program ignores the result of one of these functions: zkl_op_hold, zkl_op_client,
 *            zkl_op_semaphore, zkl_op_run, zkl_hold_begin_run, an acquire function, or a *_new, *_start or *_listen function
 *            (ZKL_NODISCARD). To turn off these warnings, define ZKL_NODISCARD as an empty macro before including this header.
 * Errors     The function zkl_last_error_message() explains the last failed call on the calling thread. A thread's error
 *            message stays the same until another call on that thread fails. Successful calls and *_free functions do not
 *            change the message. After a call to the library, the value of errno is unspecified.
 *
 *            If the process cannot make a connection because it has no file descriptors, threads or memory left, a call fails
 *            with ZKL_E_EXHAUSTED instead of ZKL_E_CONNECTION.
 * Memory     The library copies a call's input data before the call returns. Input data does not need to be aligned. Strings
 *            and structs that a program gets from the library belong to the library. Each function's comment says how long a
 *            returned string or struct is valid. A program must not pass memory that belongs to the library to free(). All
 *            strings are encoded in UTF-8 and end with a NUL.
 *
 *            Pointers other than handles must be valid. Each string must end with a NUL, and each buffer must have at least as
 *            many bytes as its length parameter says.
 * Callbacks  The library holds no internal lock while it calls a callback. A callback for events, revocation requests, log
 *            lines or credentials may call every function, but must not wait for other participants. If the library calls a
 *            user_drop function on a thread that runs callbacks, the user_drop function must not wait for other participants
 *            either. A callback that waits can cause a deadlock: the library delivers the next event only after the callback
 *            returns, but the callback may be waiting for that event. The following table shows which functions fail at once
 *            with ZKL_E_DEADLOCK in a callback:
 *
 *            | function                          | in a callback                                               |
 *            |-----------------------------------|-------------------------------------------------------------|
 *            | zkl_acquire                       | fails                                                       |
 *            | zkl_acquire_timeout               | fails, unless the timeout is 0                              |
 *            | zkl_hold_acquire                  | fails, unless the timeout is 0                              |
 *            | zkl_semaphore_acquire_timeout     | fails, unless the timeout is 0                              |
 *            | zkl_op_wait                       | fails, unless the timeout is 0 or the operation has ended   |
 *            | zkl_wait_lost, zkl_hold_wait_lost | fails, unless the timeout is 0                              |
 *            | all others                        | allowed; each function blocks at most as long as documented |
 *
 *            If a callback needs a lock, another thread must acquire it, and the callback must not wait for that thread.
 *
 *            Each of the following functions removes a callback, and waits until any call of this callback on another thread
 *            has returned: zkl_listener_free, zkl_set_revocable, zkl_semaphore_set_revocable, zkl_lock_set_event_callback,
 *            zkl_client_set_event_callback, zkl_set_log_callback and zkl_set_log_polling. The function zkl_client_free waits
 *            for the client's callbacks to return, except for a callback that returns credentials
 *            (zkl_config_set_auth_callback). While a thread removes a callback, the thread must not hold a mutex that the
 *            callback needs. While a thread frees a client, the thread must not hold a mutex that a callback of this client
 *            needs. If the thread cannot release the mutex before it frees the client, the thread can call
 *            zkl_client_close_start or zkl_client_free_nowait instead. These two functions do not wait for callbacks. A
 *            callback may remove itself. If two threads of a program poll events, a callback on either thread must not remove
 *            a callback that is running on the other thread.
 *
 *            A callback must return normally. A callback must not throw an exception, and must not call longjmp or
 *            pthread_exit.
 *
 *            Callbacks for participants, pending acquires and past runs (zkl_participants, zkl_waiting, zkl_past_runs) run on
 *            the calling thread, during the call. Such a callback may call any function, and may wait for other participants.
 * Fork       In a child of fork(), a call with a handle from the parent fails with ZKL_E_FORKED. In the child, freeing one of
 *            the parent's handles does nothing. After a fork, the parent keeps its session and its locks. The child of fork()
 *            may make its own client. On Linux 4.14 and later, calls with the parent's handles also fail in a child that was
 *            made by _Fork() or by a raw clone(). Such a child must not create a client. A child that shares the memory of its
 *            parent (vfork(), CLONE_VM) must not call the library. If a callback on the event thread forks a child, the child
 *            exits with status 0 when the callback returns in the child.
 * Signals    If a signal arrives during a call, the call continues. No call fails with EINTR. The library's threads block all
 *            signals. A signal handler must not call any function of the library.
 * Exit       A program may end in any way while it has open clients. When a program ends with open clients, the library does
 *            not wait for the servers. The servers end the sessions after the session timeout. A call to zkl_client_free ends
 *            a session at once. A program started by exec does not inherit the library's descriptors.
 *
 *            The library's threads end after the program frees the last client and removes the log callback. A thread that
 *            resolves a host name can run longer, because the library cannot interrupt libc's resolver. A thread that loads
 *            credentials can also run longer, because the library cannot interrupt a callback or the file system. If the main
 *            thread calls pthread_exit(), the process continues while library threads run. When a program ends, log lines that
 *            are still queued are lost. To receive the queued log lines, the program must turn logging off before the program
 *            ends (zkl_set_log_callback).
 *
 *            Calling dlclose() neither unloads the library nor closes the clients. If a program can unload a shared object
 *            that contains libzklock.a, the shared object must be linked with -Wl,-z,nodelete.
 * Descriptors  A program must not close the library's descriptors. A daemon that closes all its descriptors must close
 *            them before it makes clients. If a program closes a descriptor that belongs to the library, the descriptor's
 *            number can later refer to another file. The library therefore checks a descriptor before reading, writing or
 *            closing it. If the check finds another file, the client loses its connection. The client connects again within a
 *            sixth of the session timeout. The client keeps its holds if it resumes its session before the session expires.
 *
 *            The descriptor check has two gaps. First, another thread can close and reopen a descriptor in the short time
 *            between the check and the use of the descriptor. This time is less than a microsecond. Second, libc's resolver
 *            does not check its own descriptors.
 * C++        Every function of zklock.h is extern "C" and throws no exception.
 */

#ifndef ZKLOCK_H
#define ZKLOCK_H

/* Generated by cbindgen from bindings/c/src. To generate it again: ZKL_BLESS=1 cargo test -p zklock-c --test header */

#include <stddef.h>
#include <stdint.h>

/* Makes the compiler warn if a program ignores a result. A program may define this macro as empty. */
#ifndef ZKL_NODISCARD
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define ZKL_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define ZKL_NODISCARD __attribute__((__warn_unused_result__))
#else
#define ZKL_NODISCARD
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif  /* __cplusplus */

/* ==== Statuses ====
 *
 * Every call that can fail returns a status, and stores a message that describes the failure.
 */

/** The version of this header. zkl_version() reports the version of the library that the program uses at run time. */
#define ZKL_VERSION "0.1.0"
#define ZKL_VERSION_MAJOR 0
#define ZKL_VERSION_MINOR 1
#define ZKL_VERSION_PATCH 0
/** The version of this header as a number: 10000 * major + 100 * minor + patch. zkl_version_number() reports the library's version number. */
#define ZKL_VERSION_NUMBER 100

/** Success. */
#define ZKL_OK 0

/** Invalid argument. */
#define ZKL_E_INVALID (-1)

/** The handle was freed, is of another kind, or never existed. */
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

/** An access control list denies the operation. */
#define ZKL_E_DENIED (-11)

/** The handle belongs to the parent of this forked process. */
#define ZKL_E_FORKED (-12)

/** The buffer is too small. */
#define ZKL_E_BUFFER (-13)

/** A limit was reached, for example on the number of descriptors, threads or sequence numbers. */
#define ZKL_E_EXHAUSTED (-14)

/** Another lock recipe uses this path. */
#define ZKL_E_FOREIGN (-15)

/** The ZooKeeper server reported an error. */
#define ZKL_E_SERVER (-16)

/** Internal error in zklock. */
#define ZKL_E_INTERNAL (-17)

/** Not supported by this lock or server. */
#define ZKL_E_UNSUPPORTED (-18)

/** The operation is still running. */
#define ZKL_E_PENDING (-19)

/** The result of a call: ZKL_OK, or a negative ZKL_E_*. A status number never changes and is never reused. */
typedef int32_t zkl_status;

/**
 * Reports the version of the library that the program uses at run time, for example "0.1.0".
 *
 * Returns: a static string, never NULL.
 * Does not block. Any thread may call this function. The call does not change the last error message.
 */
const char *zkl_version(void);

/**
 * Reports the version of the library that the program runs with. The version is a number: 10000 * major + 100 * minor +
 * patch. Two versions can be compared as numbers. The macro ZKL_VERSION_NUMBER is the version number of the header that the
 * program was compiled with.
 *
 * Returns: the number, for example 100 for version 0.1.0.
 * Does not block. Any thread may call this function. The call does not change the last error message.
 */
int32_t zkl_version_number(void);

/**
 * Returns a short text that describes a status. The text does not end with a full stop.
 *
 * Returns: a static string, never NULL; "unknown status" if `status` is not a known number.
 * Does not block. Any thread may call this function. The call does not change the last error message.
 */
const char *zkl_strerror(int32_t status);

/**
 * Describes the last failed call on the calling thread. The message names the values and servers that were involved. The
 * message is for people and logs. A program should test the status, not the message. Successful calls and *_free functions do
 * not change the message.
 *
 * Returns: a string, never NULL. The string is empty if no call on this thread has failed yet. The string is in UTF-8 and has
 * at most 1023 bytes. The string stays valid until the thread calls another function of zklock, except zkl_version,
 * zkl_strerror, zkl_status_errno and zkl_last_error_message. Does not block. Each thread has its own message.
 */
const char *zkl_last_error_message(void);

/**
 * Converts a status into the closest errno value, for example ETIMEDOUT, ECANCELED, EPERM or EDEADLK. The function returns the
 * errno value, and does not set errno.
 *
 * Returns: the errno value; 0 for ZKL_OK; EINVAL if `status` is not a known number.
 * Does not block. Any thread may call this function. The call does not change the last error message.
 */
int32_t zkl_status_errno(int32_t status);

/* ==== Configuration ====
 *
 * A program makes a config, sets its options, and can use it for any number of clients.
 */

/**
 * The settings of a client. Each call of zkl_client_new copies the settings. A program can therefore use one config for many
 * clients, change the config after making a client, and free the config at any time.
 */
typedef struct zkl_config zkl_config;

/**
 * A callback that returns credentials. The callback must write the credentials to `buf`, which has `size` bytes, and must
 * return the length of the credentials. If the callback fails, it must return a negative number. The callback must return
 * normally. A callback must not throw an exception or call longjmp.
 */
typedef int64_t (*zkl_auth_cb)(void *user, char *buf, size_t size);

/** The library calls this function when it no longer needs the pointer user. */
typedef void (*zkl_user_drop)(void *user);

/**
 * Makes a config with the default settings. A program that needs only the default settings can pass NULL to zkl_client_new
 * instead.
 *
 * Returns: the config, which the caller must free with zkl_config_free. On failure, the function returns NULL, and
 * zkl_last_error_message explains the failure.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_config *zkl_config_new(void);

/**
 * Frees a config. The parameter `config` may be NULL. Clients that already exist keep their settings.
 *
 * Returns nothing. If `config` is not a live handle, the call has no effect. The last error message does not change.
 * Does not block. Any thread may call this function.
 */
void zkl_config_free(zkl_config *config);

/**
 * Sets the session timeout in milliseconds. If the servers receive nothing from a client during the session timeout, they end
 * the client's session. The parameter `ms` must be 1 or more. The default is 10000. A server may choose a different session
 * timeout when the client connects.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set_session_timeout_ms(zkl_config *config, int32_t ms);

/**
 * Sets the connect timeout in milliseconds. The connect timeout limits the time that zkl_client_new takes. The parameter `ms`
 * must be 1 or more. The default is 10000.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set_connect_timeout_ms(zkl_config *config, int32_t ms);

/**
 * Sets the lease margin in milliseconds. The session lease is shorter than the session timeout by at least the lease margin.
 * The client counts both times from the moment at which it sent the last transaction that the servers confirmed. A hold is
 * safe only until the session lease ends. The parameter `ms` must be 0 or more. The default is a third of the negotiated
 * session timeout. A larger lease margin makes holds safer. With a smaller lease margin, holds survive longer interruptions of
 * the connection.
 *
 * If the lease margin is larger than two thirds of the session timeout, the library reduces the lease margin to two thirds of
 * the session timeout. After a period without traffic, the session lease is even shorter, because the servers may not have
 * received the client's last requests.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set_lease_margin_ms(zkl_config *config, int32_t ms);

/**
 * Sets an option by its name, for example "session.timeout" to "5000". The page docs/options.md lists all options and their
 * values. The functions above set some of these options with typed parameters. The config copies both strings.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_INVALID if the name is unknown or the value is not allowed.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set(zkl_config *config, const char *name, const char *value);

/**
 * Reads options from a file, and sets them in the config. The options file must be UTF-8 text of at most 64 KiB, with one
 * "name = value" on each line. The function ignores empty lines and lines that begin with #. If a # follows a value, the # is
 * part of the value. If the file contains an error, the function sets no option.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_INVALID if the file cannot be read or contains an error. The error message names the file and the line.
 * - ZKL_E_EXHAUSTED if the process or the machine has no file descriptors left.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Blocks while it reads the file. Any thread may call this function.
 */
zkl_status zkl_config_load(zkl_config *config, const char *file);

/**
 * Adds credentials to a config, for example the "digest" scheme with "user:password". On every connection, the client sends
 * all credentials in the order in which the program added them. Credentials for the "sasl" scheme are the password of the
 * option sasl.user. The parameter `scheme` is a string. The parameter `auth` must point to `len` bytes. The maximum `len` is
 * 64 KiB. The parameter `auth` may be NULL if `len` is 0. The config copies scheme and auth.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_add_auth(zkl_config *config, const char *scheme, const void *auth, size_t len);

/**
 * Sets a callback in a config. The callback returns the credentials for one scheme. For example, the "digest" scheme uses
 * credentials of the form "user:password", and the "sasl" scheme uses the password of the option sasl.user. Each client made
 * with this config calls `cb` before each attempt to connect, and passes `user` to `cb`. The callback can therefore return new
 * credentials after a credential rotation. On each connection, the client first sends the credentials from earlier calls of
 * zkl_config_add_auth, and then the result of `cb`. The buffer that the library passes to `cb` is 64 KiB long. The library
 * erases the buffer. After the library sends the credentials, it also erases its copy of the credentials.
 *
 * The library calls `cb` on a thread that it starts for this purpose. Different clients can call `cb` at the same time. For
 * one client, the library makes one call at a time. The callback may block. A slow callback delays only the attempt to
 * connect. Other calls still end at their deadlines. The Callbacks section above describes which functions `cb` may call. If
 * `cb` forks a child, the child exits with status 0 as soon as `cb` returns in it.
 *
 * If `cb` fails before the first connection, zkl_client_new fails at once with ZKL_E_AUTH. If `cb` fails later, the client
 * writes a warning to the log, and calls `cb` again after a pause of at most half a second. The session can expire in the
 * meantime.
 *
 * A later call of zkl_config_set_auth_callback replaces the callback for the same scheme, but existing clients keep their
 * callback. If `cb` is NULL, the call removes the callback for the scheme and calls `user_drop` at once. If `user_drop` is
 * not NULL, the library calls `user_drop` once, when neither the config nor an open client uses the callback any more.
 *
 * The function zkl_client_free does not wait for calls of `cb` to return. When zkl_client_free returns, one call of `cb` can
 * still be running or be about to begin. In this case, the library calls `user_drop` after `cb` has returned. A program must
 * therefore keep everything that the callback uses until the library calls `user_drop`.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL. On failure, the library does not use the pointer
 * `user` and does not call `user_drop`.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set_auth_callback(zkl_config *config, const char *scheme, zkl_auth_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Controls whether mutexes and read/write locks share one queue with kazoo locks on the same path. If `wait` is 1, zklock
 * locks and kazoo locks share one queue. If `wait` is 0 and a kazoo lock uses the path, an acquire fails with ZKL_E_FOREIGN.
 * The default is 0. Programs that migrate from kazoo to zklock need this setting. During a migration, kazoo locks must also
 * wait for zklock locks. To make a kazoo lock wait for a zklock mutex, construct the kazoo lock with
 * extra_lock_patterns=["-lock-"]. To make a kazoo lock wait for a zklock read/write lock, construct the kazoo lock with
 * extra_lock_patterns=["__READ__", "__WRIT__"].
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set_wait_for_kazoo(zkl_config *config, int32_t wait);

/* ==== Clients ====
 *
 * A client is one ZooKeeper session. All locks and threads of a program can share it.
 */

/** The client is connecting to a server and has not had a session yet. */
#define ZKL_STATE_CONNECTING 0

/** The client has a session and a connection. */
#define ZKL_STATE_CONNECTED 1

/**
 * The client has lost its connection and is trying to connect again. Despite the lost connection, the session may still be
 * alive.
 */
#define ZKL_STATE_SUSPENDED 2

/** The session of the client has ended, and the client does not have a new session yet. */
#define ZKL_STATE_LOST 3

/** The client is closed. */
#define ZKL_STATE_CLOSED 4

/**
 * A client has one ZooKeeper session, which any number of locks and threads can share. If the session ends, all holds of the
 * client are lost, and the client begins a new session.
 */
typedef struct zkl_client zkl_client;

/**
 * Makes a client, connects to a ZooKeeper server, and waits until the client has a session. The parameter `servers` is a list
 * of addresses with an optional chroot, for example "host:2181,host:2181/chroot". All paths that the client uses are relative
 * to the chroot. If `config` is NULL, the client uses the default settings. If `config` is not NULL, the client copies the
 * settings of config. The caller must free the new client, `*client_out`, with zkl_client_free.
 *
 * Returns: ZKL_OK if the client has a session. On failure:
 * - ZKL_E_INVALID if an argument is not valid, or a file with credentials or certificates is not usable.
 * - ZKL_E_CONNECTION if no server accepted the client within the connect timeout.
 * - ZKL_E_AUTH if a server refused the credentials, a callback for credentials failed, or the client or a server refused a
 *   certificate.
 * - ZKL_E_SERVER if the chroot does not exist and the option chroot.create is off.
 * - ZKL_E_DENIED if an access control list does not allow the client to create the chroot.
 * - ZKL_E_HANDLE or ZKL_E_FORKED if `config` is not a live config of this process.
 * - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Blocks until the client has a session, but no longer than the connect timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_client_new(const char *servers, const zkl_config *config, zkl_client **client_out);

/**
 * Ends the session of a client, closes the client, and frees its handle. All holds of the client end when the session ends.
 * Calls that wait for a lock of this client fail with ZKL_E_CLOSED. Later calls with the client's locks also fail with
 * ZKL_E_CLOSED. The caller must still free the lock handles, either before or after it frees the client. The parameter
 * `client` may be NULL. In a forked child, the call does not change the session of the parent.
 *
 * Before the client closes, it delivers its queued events, but only for a limited time. After this time, the client drops the
 * events that are still queued. If the program polls this client for events, zkl_client_free delivers the queued events on the
 * calling thread. After zkl_client_free has returned, the library does not call the client's callbacks any more.
 *
 * If a client callback is running on another thread, the call waits without a time limit until the callback returns. The
 * caller of zkl_client_free must not hold a mutex that such a callback needs. Callbacks of other clients delay the call by at
 * most two seconds.
 *
 * A callback may free its own client. If a callback frees its own client, zkl_client_free does not wait for this callback.
 * From then on, the library does not call the client's callbacks. If a callback on a library thread frees another client, the
 * library drops the queued events of the freed client. However, for each hold that ends, the library still calls the freed
 * client's ZKL_LISTEN_LOSS listeners. If two callbacks that run at the same time free each other's clients, one of the calls
 * does not wait for the other callback.
 *
 * Returns nothing. If `client` is not a live handle, the call has no effect. The last error message does not change.
 * Blocks until the server has confirmed the end of the session and the last callback has returned. The call blocks for at most
 * two seconds, plus the running time of callbacks. Any thread may call this function.
 */
void zkl_client_free(zkl_client *client);

/**
 * Frees the handle of a client, and lets the library close the client in the background. The function waits neither for
 * callbacks nor for the server. Use this function in destructors and finalizers, which may run on a thread that a callback
 * needs.
 *
 * The library drops the queued events, and no longer calls the client's callbacks. The library does not call the
 * ZKL_LISTEN_LOSS listeners either. A callback that is running on another thread at this moment continues. After this callback
 * has returned, the library calls the callback's user_drop function on the same thread. Before zkl_client_free_nowait returns,
 * the library calls all the client's other user_drop functions on the calling thread. The only exception is the callback that
 * returns credentials (zkl_config_set_auth_callback): the library calls its user_drop function on any thread, after the client
 * is closed. Apart from these differences, this function follows the rules of zkl_client_free. The parameter `client` may be
 * NULL. In a forked child, the call does nothing.
 *
 * Returns nothing. If `client` is not a live handle, the call has no effect. The last error message does not change.
 * Does not block. Any thread may call this function.
 */
void zkl_client_free_nowait(zkl_client *client);

/**
 * Replaces the server list of a client. The parameter `servers` has the same form as in zkl_client_new. The list must have
 * the same chroot as the client, or no chroot. The chroot of the client does not change.
 *
 * The client keeps its session, its holds and the positions of its waiters. The client stays connected to its server, except
 * in two cases. If the new list does not contain the server, the client moves to a server in that list. If the list has
 * grown, some clients move to an added server, so that each server has about the same number of clients. Before a client
 * moves, it waits for the answers to its requests, for at most a sixth of the session timeout. While the client moves, its
 * holds are ZKL_LOCK_SUSPENDED. A hold is lost only if the client reaches no server of the new list before the session ends.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_INVALID if the list is not valid or has a different chroot. The client then keeps its server list.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_client_set_servers(zkl_client *client, const char *servers);

/**
 * Reports the session state of a client.
 *
 * Returns: a ZKL_STATE_*, which is 0 or more; a negative status on failure (ZKL_E_HANDLE, ZKL_E_FORKED or ZKL_E_INTERNAL).
 * Does not block. Any thread may call this function.
 */
int32_t zkl_client_state(const zkl_client *client);

/**
 * Reports the session id of a client. The logs of the servers show the same id. A session id may be negative.
 *
 * Returns: the session id. The function returns 0 if the client has no session, or if the call failed. To distinguish these
 * two cases, call zkl_client_state. If zkl_client_session_id failed, zkl_client_state also fails and returns a negative
 * status.
 * Does not block. Any thread may call this function.
 */
int64_t zkl_client_session_id(const zkl_client *client);

/* ==== Locks ====
 *
 * All kinds of locks have the same handle type. The page docs/choosing.md compares them.
 */

/** The owner does not hold the lock. No ZKL_LOCK_* has the same value as a ZKL_STATE_*. */
#define ZKL_LOCK_FREE 10

/** The owner holds the lock, and the hold is safe. */
#define ZKL_LOCK_HELD 11

/**
 * The hold is safe until the session lease ends, but the client cannot confirm the hold at this moment. The client has either
 * lost its connection, or has connected again and has not confirmed the hold yet.
 */
#define ZKL_LOCK_SUSPENDED 12

/** The session lease has ended, and the hold may be lost. An uncertain hold later becomes ZKL_LOCK_HELD or ZKL_LOCK_LOST. */
#define ZKL_LOCK_UNCERTAIN 13

/**
 * The hold is lost and cannot become safe again, because its session ended or its node was deleted. Releasing a lost hold
 * fails with ZKL_E_LOST, but still ends the state ZKL_LOCK_LOST.
 */
#define ZKL_LOCK_LOST 14

/**
 * A lock: a mutex, the read lock or the write lock of a read/write lock, a semaphore mutex, or a multi-lock. Threads that
 * share one handle exclude each other, and acquire the lock in the order of their calls.
 */
typedef struct zkl_lock zkl_lock;

/**
 * Makes a mutex on a path, for example "/locks/nightly-report". The mutex is re-entrant, and each thread has its own hold. The
 * mutex uses the same znodes as Curator's InterProcessMutex. The function does not send a request to a server. The caller must
 * free the new lock, `*lock_out`, with zkl_lock_free.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_mutex_new(zkl_client *client, const char *path, zkl_lock **lock_out);

/**
 * Sets the maximum number of local hand-overs in a row. In a local hand-over, a release passes the mutex to the next waiter of
 * this process without a request to a server. After `max_passes` local hand-overs in a row, the next release deletes the node
 * of the mutex. The default is 0. With a limit of 0, every release deletes the node.
 *
 * The setting applies to later acquires through this handle. Local hand-over works among all handles of one client that have
 * the same path and a limit above 0. One node in the queue, the common node, represents all waiters of these handles. The
 * waiters acquire the mutex in the order in which they began to wait. Local hand-over helps if many threads of one process
 * acquire the same lock.
 *
 * Local hand-over can delay other processes. If a waiter of another process is in the queue behind the common node, this
 * waiter waits for at most `max_passes` additional holds. If the acquires had different limits, the smallest limit of the
 * holds under this node applies. After the common node is deleted, the next waiter of this
 * process joins the end of the queue. Waiters of this process do not overtake each other. If a waiter stops waiting, the next
 * waiter of this process takes its place in the queue.
 *
 * Local hand-over takes place only if the state of the hold is ZKL_LOCK_HELD and the node has received no revocation request
 * (zkl_set_revocable). The common node keeps the data from the acquire that created it. All holds under one node have the
 * same fencing token. To distinguish holds with the same token, a store must also compare the fencing pass
 * (zkl_fencing_pass).
 *
 * A multi-lock joins the queue with its own node, and never takes part in local hand-over. If another owner of this process
 * holds the mutex or waits for it, an acquire with timeout 0 fails without a request to a server. The
 * function zkl_participants shows only the common node, and zkl_waiting shows all waiters of the handle.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_UNSUPPORTED if the lock is not a mutex.
 * - ZKL_E_INVALID if `max_passes` is negative.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_mutex_set_local_handover(zkl_lock *lock, int32_t max_passes);

/**
 * Makes a semaphore mutex on a path. A semaphore mutex is not re-entrant, and any thread may release it. The semaphore mutex
 * uses the same znodes as Curator's InterProcessSemaphoreMutex. If a thread acquires a semaphore mutex that the thread already
 * holds, the call waits until another thread releases the lock. The function does not send a request to a server. The caller
 * must free the new lock, `*lock_out`, with zkl_lock_free.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_semaphore_mutex_new(zkl_client *client, const char *path, zkl_lock **lock_out);

/**
 * Makes the read lock and the write lock of a read/write lock on a path. Any number of readers can hold the read lock at the
 * same time. While a writer holds the write lock, no other owner can hold the read lock or the write lock. Both locks use the
 * same znodes as Curator's InterProcessReadWriteLock in version 5.5 and later. The function does not send a request to a
 * server.
 *
 * Both locks are re-entrant, and each thread has its own holds. A thread that holds the write lock may also acquire the read
 * lock. If the thread then releases the write lock, the thread keeps the read lock. During this downgrade from the write lock
 * to the read lock, no other writer can acquire the write lock. If a thread that holds only the read lock tries to acquire the
 * write lock, the acquire fails with ZKL_E_DEADLOCK.
 *
 * The caller must free the new locks, `*read_out` and `*write_out`, with zkl_lock_free. The caller may free the two locks in
 * any order. On failure, the function writes neither `*read_out` nor `*write_out`.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_rwlock_new(zkl_client *client, const char *path, zkl_lock **read_out, zkl_lock **write_out);

/**
 * Makes a multi-lock: a lock that consists of up to 4096 member locks, each on its own path. Each acquire and each release of
 * the multi-lock applies to all member locks. An acquire has one timeout for all member locks. While an owner holds the
 * multi-lock, the owner holds each member lock. If the owner already holds a member lock, the acquire of the multi-lock
 * re-enters this lock. The member locks may have different kinds and belong to different clients. If the locks array contains
 * a multi-lock, the new multi-lock contains the member locks of that multi-lock.
 *
 * Mutexes and read/write locks of one client join their queues in one transaction. Two multi-locks that list the same locks in
 * different orders therefore do not deadlock. The multi-lock acquires all remaining member locks one by one. The order of
 * these acquires is the same in all programs that write their server lists in the same way. If a member lock cannot be
 * acquired, the library releases the member locks that it has already acquired.
 *
 * The caller still owns the handles of the member locks. If the program frees a member lock or its client, the multi-lock
 * becomes unusable. Current waits and later calls then fail with ZKL_E_CLOSED. The caller must free the new lock, `*lock_out`,
 * with zkl_lock_free. When the multi-lock is freed, calls that wait for the multi-lock fail with ZKL_E_CLOSED. Freeing the
 * multi-lock does not change the member locks. A multi-lock must not contain two locks that have the same path and belong to
 * different clients of one ensemble. Such a multi-lock would wait for itself.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_INVALID if `count` is 0, if there are more than 4096 member locks, or if two locks of one client have the same path.
 * - ZKL_E_HANDLE or ZKL_E_FORKED if an element of the array `locks` is not a live lock of this process. The error message
 *   contains the index of the element.
 * - Other failures: ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_multi_new(zkl_lock *const *locks, size_t count, zkl_lock **lock_out);

/**
 * Makes a multi-lock that acquires its member locks one after the other, in the given order. Curator's InterProcessMultiLock
 * acquires its locks in the same way. Use this function if other programs use Curator multi-locks on the same paths. All
 * programs must list the locks in the same order. All other rules of zkl_multi_new also apply to this function.
 *
 * A multi-lock made with zkl_multi_new can deadlock with a Curator multi-lock. The zklock multi-lock detects the deadlock,
 * leaves its queues, and joins the queues again after about a third of a second. Multi-locks made with zkl_multi_new_in_order
 * can deadlock if programs list the same locks in different orders.
 *
 * Returns: the same statuses as zkl_multi_new.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_multi_new_in_order(zkl_lock *const *locks, size_t count, zkl_lock **lock_out);

/**
 * Frees a lock. Calls that wait for the lock through this handle fail with ZKL_E_CLOSED. The library releases all holds that
 * were acquired through this handle, without waiting for the server. The parameter `lock` may be NULL. In a forked child, the
 * call does not change the holds of the parent.
 *
 * Freeing a member lock of a multi-lock also closes the multi-lock. Freeing a multi-lock does not change its member locks: an
 * owner that holds the member locks continues to hold them. Release a multi-lock before you free it.
 *
 * Returns nothing. If `lock` is not a live handle, the call has no effect. The last error message does not change.
 * Does not block. Any thread may call this function.
 */
void zkl_lock_free(zkl_lock *lock);

/**
 * Acquires the lock for the calling thread. If the thread already holds the lock, the call re-enters the lock and increments
 * the hold count. The thread must release the lock once for each acquire. A semaphore mutex is not re-entrant. An acquire of
 * a multi-lock acquires either all member locks or none of them.
 *
 * The call waits without a time limit, and continues to wait if the connection or the session is lost. To wait with a time
 * limit, use zkl_acquire_timeout. Green threads of one thread (goroutines, greenlets, fibers) share that thread's holds and
 * do not exclude each other. Give each green thread its own hold (zkl_hold_acquire).
 *
 * Returns: ZKL_OK if the calling thread holds the lock now. A call that fails has acquired nothing. On failure:
 * - ZKL_E_CANCELED if zkl_cancel ended the wait.
 * - ZKL_E_CLOSED if zkl_lock_free or zkl_client_free closed the lock.
 * - ZKL_E_DEADLOCK if the thread already holds a lock on the path through another handle of the client, and would therefore
 *   wait for itself. For a semaphore mutex, the call does not check for this deadlock.
 * - ZKL_E_DEADLOCK if the thread holds only the read lock of a read/write lock and acquires the write lock. When the call
 *   starts, it checks the thread's holds, but not the thread's pending acquires (zkl_acquire_start).
 * - ZKL_E_DEADLOCK if a callback makes the call (section Callbacks above).
 * - ZKL_E_LOST if the thread has lost an earlier hold of this lock, and has not released the lost hold yet.
 * - ZKL_E_FOREIGN if another lock recipe uses the path.
 * - ZKL_E_EXHAUSTED if the path has no sequence numbers left, or if the node paths of the client would exceed
 *   session.max_path_bytes (docs/sizing.md).
 * - ZKL_E_INVALID if the nodes of a multi-lock are too large for one server transaction.
 * - ZKL_E_INVALID if the servers do not accept the client's access control lists (docs/acl.md).
 * - Other failures: ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_CONNECTION, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED,
 *   ZKL_E_INTERNAL.
 *
 * Blocks until the thread holds the lock. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_acquire(zkl_lock *lock);

/**
 * Acquires the lock for the calling thread within a timeout. All other rules of zkl_acquire also apply to this function. The
 * parameter `timeout_ms` is the time limit for the whole call in milliseconds, or -1 for no limit. With timeout 0, the call
 * makes one attempt and does not wait for other participants.
 *
 * Returns: the same statuses as zkl_acquire, and also:
 * - ZKL_E_TIMEOUT if the lock was not acquired within the timeout. The call never returns this status early.
 * - ZKL_E_CONNECTION if, at the end of the timeout, the client has no connection or its server does not answer.
 * - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
 *
 * Blocks until the thread holds the lock or the timeout passes. A call with timeout 0 waits at most one second for the
 * server. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_acquire_timeout(zkl_lock *lock, int64_t timeout_ms);

/**
 * Releases the lock once for the calling thread. The call decrements the hold count. When the hold count is 0, the thread no
 * longer holds the lock. Any thread may release a semaphore mutex that was acquired through this handle. For a multi-lock, the
 * call releases every member lock that the thread holds, even if the release of another member lock fails. In this
 * case, the call returns the first error. If all member locks are semaphore mutexes, any thread may release the multi-lock.
 *
 * Returns: ZKL_OK if the hold count is still above 0. If the hold count is 0, the call returns ZKL_OK after the server has
 * confirmed that the node of the lock is deleted. After a local hand-over to another thread of this process
 * (zkl_mutex_set_local_handover), the call returns ZKL_OK without a request to a server. On failure:
 * - ZKL_E_NOT_OWNER if the thread does not hold the lock, or does not hold every member lock of a multi-lock. The call does
 *   not change locks that the thread does not hold. For a semaphore mutex, this status means that no thread holds the lock
 *   through this handle.
 * - ZKL_E_LOST if the hold was lost before the release. After the loss, another owner may have held the lock.
 * - ZKL_E_CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete the
 *   node.
 * - ZKL_E_CLOSED if the lock, a member lock or the client was freed. The call still releases the other member locks of a
 *   multi-lock.
 * - ZKL_E_DENIED if an access control list does not allow the client to delete its node. The node remains until
 *   zkl_client_free closes the client, or until an operator grants the permission (docs/acl.md).
 * - Other failures: ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_SERVER, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * The call decrements the hold count even if it fails with ZKL_E_LOST, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH,
 * ZKL_E_DENIED or ZKL_E_SERVER.
 *
 * Blocks for at most the session timeout. Any thread may call this function.
 */
zkl_status zkl_release(zkl_lock *lock);

/**
 * Releases the lock once for the calling thread, without waiting for the server. The library deletes the node of the lock in
 * the background.
 *
 * Returns: ZKL_OK, ZKL_E_NOT_OWNER, ZKL_E_LOST, ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL. The statuses have
 * the same meanings as for zkl_release.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_release_nowait(zkl_lock *lock);

/**
 * Cancels every call that is waiting for the lock through this handle, in all threads. The waiting calls fail with
 * ZKL_E_CANCELED. The call does not affect later waits or existing holds. A call that is about to acquire the lock may still
 * return ZKL_OK despite the cancellation. To end waits for a multi-lock, pass the handle of the multi-lock, not the handle of
 * a member lock.
 *
 * Returns: ZKL_OK, even if no thread waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function, but a signal handler must not.
 */
zkl_status zkl_cancel(zkl_lock *lock);

/**
 * Reports whether the calling thread holds the lock, and whether the hold is safe at this moment. A hold is safe if, according
 * to the clock of this machine, its session cannot have expired yet. The function ignores the holds of other threads. A thread
 * that acquires a semaphore mutex holds the semaphore mutex until this thread or another thread releases it. For a multi-lock,
 * the result is 1 only if the thread holds all member locks.
 *
 * Returns: 1 or 0. If an error occurs, the function returns 0, and zkl_last_error_message explains the error. An unsafe hold
 * is not an error, and does not change the last error message. To get an error status instead of 0, call zkl_lock_state.
 * Does not block. Any thread may call this function.
 */
int32_t zkl_is_held(const zkl_lock *lock);

/**
 * Reports whether any owner in this process holds the lock through this handle, and whether the hold is safe at this moment.
 * This function is for monitoring. A result of 1 does not mean that the caller holds the lock.
 *
 * Returns: 1 or 0, with the same meaning as the result of zkl_is_held. To get an error status instead of 0, call
 * zkl_lock_state_in_process.
 * Does not block. Any thread may call this function.
 */
int32_t zkl_is_held_in_process(const zkl_lock *lock);

/**
 * Reports the state of the calling thread's hold. The state is ZKL_LOCK_FREE if the calling thread has no hold, even if
 * another owner holds the lock. The state of a multi-lock is the worst state of its member locks. If the thread does not hold
 * every member lock, the state of the multi-lock is ZKL_LOCK_FREE.
 *
 * Returns: one of the ZKL_LOCK_* values, which are all 10 or more. On failure: a negative status (ZKL_E_HANDLE, ZKL_E_FORKED,
 * ZKL_E_CLOSED or ZKL_E_INTERNAL). Does not block. Any thread may call this function.
 */
int32_t zkl_lock_state(const zkl_lock *lock);

/**
 * Reports the state of a hold that was acquired through this handle. The hold can belong to any owner in this process. If
 * several owners hold a read lock, the function reports the state of one of their holds. The function reports a lost hold only
 * if no other hold exists.
 *
 * Returns: a ZKL_LOCK_*, which is 10 or more. On failure, the function returns the same statuses as zkl_lock_state.
 * Does not block. Any thread may call this function.
 */
int32_t zkl_lock_state_in_process(const zkl_lock *lock);

/**
 * Gets the time for which the calling thread's hold remains safe even if no server answers. The time is in milliseconds,
 * rounded down. If the hold is not safe now, the time is 0. For a multi-lock, the function gets the shortest time of all
 * member locks.
 *
 * Returns: the same statuses as zkl_fencing_token. On success, `*remaining_ms_out` contains the time.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_remaining_ms(const zkl_lock *lock, int64_t *remaining_ms_out);

/**
 * Waits until the calling thread's hold is no longer safe. The wait ends even if the hold can become safe again. A hold that
 * is not safe has the state ZKL_LOCK_UNCERTAIN or ZKL_LOCK_LOST. The parameter `timeout_ms` is the time limit in milliseconds.
 * With -1, the call waits without a limit. With 0, the call checks the hold once. The waiting thread checks the session lease
 * itself. The call therefore detects the end of the session lease even if the process was stopped during the wait. Calling
 * zkl_cancel does not end this wait.
 *
 * To watch the hold of another thread, register a listener for losses (zkl_lock_listen). Any thread can wait for the loss of a
 * zkl_hold (zkl_hold_wait_lost).
 *
 * Returns: never ZKL_OK. The status reports how the wait ended:
 * - ZKL_E_LOST if the hold is no longer safe. To find out whether the hold is lost or uncertain, call zkl_lock_state.
 * - ZKL_E_TIMEOUT if the hold is still safe at the end of the timeout. The call never returns this status early.
 * - ZKL_E_NOT_OWNER if the thread has no hold, or if the hold is released during the wait.
 * - ZKL_E_CLOSED if the lock or its client is freed.
 * - ZKL_E_DEADLOCK if a callback makes the call and `timeout_ms` is not 0.
 * - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Blocks until the wait ends, for at most the timeout. Any thread may call this function.
 */
zkl_status zkl_wait_lost(zkl_lock *lock, int64_t timeout_ms);

/**
 * Sets the data of each node that a later acquire call creates. The data shows which program holds the lock, and which
 * programs wait for the lock. By default, the data is the address of the host, as in Curator. The library copies len bytes
 * from data. `len` must not exceed 512 KiB. If `len` is 0, the nodes have no data, and the parameter `data` may be NULL. For
 * a multi-lock, the call sets the data of all member locks, and replaces their previous data.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_lock_set_data(zkl_lock *lock, const void *data, size_t len);

/**
 * Gets the path of the node that represents the calling thread's hold. The path does not contain the client's chroot. In a
 * ZooKeeper transaction, a program can check that this node exists. If the lock was lost, the transaction then fails.
 *
 * The function writes the path, with a terminating NUL, to the buffer `buf`. This buffer has `size` bytes. The function
 * stores the required buffer size, in bytes, in `*needed_out`. If `size` is 0, `buf` may be NULL.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_BUFFER if the path does not fit. A call that fails with ZKL_E_BUFFER writes only `*needed_out`.
 * - ZKL_E_NOT_OWNER if the calling thread does not hold the lock.
 * - ZKL_E_LOST if the hold of the thread was lost.
 * - ZKL_E_INVALID if an argument is not valid, or if the lock is a multi-lock. A program can call the function for each member
 *   lock instead.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_lock_node_path(const zkl_lock *lock, char *buf, size_t size, size_t *needed_out);

/* ==== Holds ====
 *
 * An acquire of a lock or of leases gives a hold. Any thread may use and release it.
 */

/** The calling thread as an owner. A program can choose every other number, except ZKL_OWNER_NEW, for a task or a request. */
#define ZKL_OWNER_THREAD UINT64_MAX

/** A new owner, which exists only for one hold. No other acquire re-enters this hold. */
#define ZKL_OWNER_NEW 0

/**
 * A hold of a lock, or of leases of a semaphore. Any thread that has the handle may use and release the hold. A hold refers only
 * to the acquire from which it comes, and never to a later hold of its owner.
 */
typedef struct zkl_hold zkl_hold;

/** The state of a hold at one moment (zkl_hold_view). */
typedef struct zkl_hold_info {
    /**
     * The size of this struct in the program, which the program sets before the call. Later versions only add fields at the end,
     * and the library writes only the fields that the size includes.
     */
    uint32_t size;
    /** The state of the hold: a ZKL_LOCK_*. ZKL_LOCK_FREE means that the program has released the hold through the lock. */
    int32_t state;
    /** The fencing token. The token is known from the acquire on, also after a loss (docs/fencing.md). */
    int64_t token;
    /** The fencing pass: the number of local hand-overs under this token before the hold began. */
    int64_t fencing_pass;
    /**
     * The time for which the hold remains safe even if no server answers, in milliseconds, rounded down. 0 if the hold is not
     * safe.
     */
    int64_t remaining_ms;
} zkl_hold_info;

/**
 * Acquires the lock for an owner within a timeout, and gets the hold. All other rules of zkl_acquire_timeout also apply to this
 * function. The parameter `owner` is ZKL_OWNER_NEW (0) for an owner that exists only for this hold, ZKL_OWNER_THREAD for the
 * calling thread, or any other number for an owner that the program chooses. If the owner already holds the lock, the call
 * re-enters the lock: the program then has two holds, and releases each of them. The caller must release the hold, `*hold_out`,
 * with zkl_hold_release. Any thread may release the hold. The call blocks the whole thread, with all its green threads.
 *
 * Returns: the same statuses as zkl_acquire_timeout. If `owner` is ZKL_OWNER_NEW, the call cannot detect that the calling
 * thread itself has another hold of the lock, and then waits for this hold.
 * Blocks until the owner holds the lock or the timeout passes. A call with timeout 0 waits at most one second for the server.
 * Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_hold_acquire(zkl_lock *lock, uint64_t owner, int64_t timeout_ms, zkl_hold **hold_out);

/**
 * Gets the state of a hold, its fencing token and its remaining time, all of one moment. The program sets `info_out->size` to
 * sizeof(zkl_hold_info) before the call. All leases of one hold have one common state: the loss of one lease is the loss of all.
 * The hold of a multi-lock has the worst state, the smallest token and the shortest remaining time of its member locks.
 *
 * Returns: ZKL_OK, with the answer in `*info_out`, also if the hold was lost. On failure:
 * - ZKL_E_CLOSED if the lock or the client was freed, which also ended the hold.
 * - ZKL_E_HANDLE if `hold` is not a live handle, for example the handle of a hold that was released.
 * - ZKL_E_INVALID if `info_out` is NULL, or if its size is too small.
 * - Other failures: ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_hold_view(const zkl_hold *hold, zkl_hold_info *info_out);

/**
 * Reports whether a hold is safe at this moment. A hold is safe if, according to the clock of this machine, its session cannot
 * have expired yet.
 *
 * Returns: 1 or 0. If an error occurs, the function returns 0, and zkl_last_error_message explains the error. An unsafe hold is
 * not an error, and does not change the last error message. To get an error status instead of 0, call zkl_hold_view.
 * Does not block. Any thread may call this function.
 */
int32_t zkl_hold_is_held(const zkl_hold *hold);

/**
 * Waits until a hold is no longer safe. The rules of zkl_wait_lost also apply to this function.
 *
 * Returns: the same statuses as zkl_wait_lost. If the hold is released during the wait, the call fails with ZKL_E_HANDLE instead
 * of ZKL_E_NOT_OWNER.
 * Blocks until the wait ends, for at most the timeout. Any thread may call this function.
 */
zkl_status zkl_hold_wait_lost(zkl_hold *hold, int64_t timeout_ms);

/**
 * Releases a hold, and frees the handle. The call ends the hold and frees a live handle of this process, whatever it returns.
 *
 * Returns: ZKL_OK if the server has confirmed that the nodes of the hold are deleted, or if the owner has another hold of the
 * lock. On failure:
 * - ZKL_E_LOST if the hold was lost before the release. After the loss, another owner may have held the lock.
 * - ZKL_E_NOT_OWNER if the program has already released the hold through the lock (zkl_release).
 * - ZKL_E_CONNECTION if no server confirmed the release within the session timeout. The library keeps trying to delete the
 *   nodes.
 * - ZKL_E_CLOSED if the lock or the client was freed, which also ended the hold.
 * - ZKL_E_HANDLE if `hold` is not a live handle, for example NULL or the handle of a hold that was already released.
 * - ZKL_E_DENIED if an access control list does not allow the client to delete the nodes (as for zkl_release).
 * - Other failures: ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_SERVER, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Blocks for at most the session timeout. Any thread may call this function.
 */
zkl_status zkl_hold_release(zkl_hold *hold);

/**
 * Releases a hold without waiting for the server, and frees the handle. The library deletes the nodes of the hold in the
 * background. All other rules of zkl_hold_release also apply to this function.
 *
 * Returns: ZKL_OK, ZKL_E_LOST, ZKL_E_NOT_OWNER, ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_hold_release_nowait(zkl_hold *hold);

/**
 * Gets the path of a node of a hold. The rules of zkl_lock_node_path also apply to this function. The parameter `index` selects
 * the node of a lease, or of a member lock of a multi-lock. The index of the first node is 0.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_BUFFER if the path does not fit. A call that fails with ZKL_E_BUFFER writes only `*needed_out`.
 * - ZKL_E_LOST if the hold was lost.
 * - ZKL_E_NOT_OWNER if the program has already released the hold through the lock (zkl_release).
 * - ZKL_E_INVALID if an argument is not valid, for example if `index` is too large.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_hold_node_path(const zkl_hold *hold, size_t index, char *buf, size_t size, size_t *needed_out);

/* ==== Fencing ====
 *
 * Numbers with which a store can reject late writes. See docs/fencing.md.
 */

/**
 * Gets the fencing token of the calling thread's hold. A fencing token is a number that grows with every hold of the path. A
 * store can remember the largest token that it has seen, and refuse requests with a smaller token. A store that refuses
 * smaller tokens is safe from writers that have lost their lock but have not detected the loss. If the owner of the write lock
 * also acquires the read lock, send the token of the write lock: the token of the read lock can be larger than the token of
 * the next writer.
 *
 * If the member locks of a multi-lock joined their queues in one transaction, all member locks have the same token. If the
 * member locks of a multi-lock have different tokens, the function gets the smallest token. In this case, give each store the
 * token of the member lock that protects the store.
 *
 * Returns: ZKL_OK, with the token in `*token_out`. On failure:
 * - ZKL_E_NOT_OWNER if the calling thread has no hold, even if another owner holds the lock.
 * - ZKL_E_LOST if the hold of the thread was lost.
 * - Other failures: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_fencing_token(const zkl_lock *lock, int64_t *token_out);

/**
 * Gets the fencing pass of the calling thread's hold. Several holds can have the same token because of local hand-overs
 * (zkl_mutex_set_local_handover). The fencing pass is the number of local hand-overs that occurred under this token before the
 * hold began. If the hold was acquired through the queue, the fencing pass is 0. For a multi-lock, the token and the fencing
 * pass come from the same member lock. If a store must distinguish the threads of one process, it must compare the token and
 * the fencing pass. The store must refuse a write whose token is smaller than the token of an earlier write. Among writes
 * with the same token, the store must refuse a write whose fencing pass is smaller than that of an earlier write.
 *
 * Returns: the same statuses as zkl_fencing_token. On success, `*fencing_pass_out` contains the fencing pass.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_fencing_pass(const zkl_lock *lock, int64_t *fencing_pass_out);

/**
 * Asks the ensemble whether the hold with this fencing token still exists on a path. The hold can belong to any zklock or
 * Curator client. The function supports mutexes, read/write locks, semaphores, semaphore mutexes and member locks of
 * multi-locks. A read lock may have several holders. The token of a waiter is not valid. A token for semaphore leases becomes
 * valid once the owner of the leases has left the semaphore's inner mutex.
 *
 * The result was correct at some moment after the call began, even if the client's server lags behind the other servers. The
 * result may be outdated by the time the program reads it. A store must therefore compare tokens, even if the program calls
 * zkl_fence_check (docs/fencing.md). To check its own hold, a program should call zkl_is_held instead. The function
 * zkl_is_held sends no request, and takes the session lease into account. For zkl_fence_check, a hold exists as long as the
 * hold's node exists.
 *
 * Returns: ZKL_OK, with 1 in `*valid_out` if the hold still exists, and 0 if the hold or the path does not exist. A call that
 * fails does not write `*valid_out`, so the caller must not read it. On failure:
 * - ZKL_E_INVALID if an argument is not valid, for example a token below 1.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED,
 *   ZKL_E_SERVER, ZKL_E_INTERNAL.
 *
 * Blocks for at most the session timeout. Any thread may call this function.
 */
zkl_status zkl_fence_check(zkl_client *client, const char *path, int64_t token, int32_t *valid_out);

/* ==== Semaphores ====
 *
 * A limited number of leases. One call can acquire one or more of them.
 */

/** A semaphore on a path. A semaphore has a number of leases, which threads and processes acquire and release. */
typedef struct zkl_semaphore zkl_semaphore;

/**
 * Makes a semaphore with `max_leases` leases on a path. The semaphore uses the same znodes as Curator's
 * InterProcessSemaphoreV2. All programs that use the semaphore must set the same value of `max_leases`. The function sends no
 * request to a server. The caller must free the new semaphore, `*semaphore_out`, with zkl_semaphore_free.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_INVALID if an argument is not valid, for example if `max_leases` is below 1.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_semaphore_new(zkl_client *client, const char *path, int32_t max_leases, zkl_semaphore **semaphore_out);

/**
 * Makes a semaphore that takes its number of leases from a shared count at `count_path`. If a program changes the count
 * (zkl_shared_count_set, Curator's SharedCount), the number of leases changes too. If the count has no node yet, the call
 * creates the node with the value `initial`. If a program lowers the count, owners keep the leases that they already hold.
 *
 * Returns: the same statuses as zkl_semaphore_new, and also ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER.
 * Blocks for at most the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_semaphore_new_counted(zkl_client *client, const char *path, const char *count_path, int32_t initial, zkl_semaphore **semaphore_out);

/**
 * Frees a semaphore. Calls that wait for leases through this handle fail with ZKL_E_CLOSED. After this call, the leases that
 * were acquired through the handle remain held. The caller must still release these leases with zkl_hold_release. The
 * parameter `semaphore` may be NULL.
 *
 * Returns nothing. If `semaphore` is not a live handle, the call has no effect. The last error message does not change.
 * Does not block. Any thread may call this function.
 */
void zkl_semaphore_free(zkl_semaphore *semaphore);

/**
 * Acquires `quantity` leases within a timeout. The call acquires either all of these leases or no lease. The parameter
 * `timeout_ms` is the time limit for the whole call in milliseconds, or -1 for no limit. With timeout 0, the call makes one
 * attempt and does not wait for other participants. The semaphore serves requests in the order of their arrival. A request for
 * few leases does not overtake an earlier request for many leases. The caller must release the leases, `*hold_out`, with
 * zkl_hold_release. Any thread may release the leases.
 *
 * If the number of leases is a shared count, `quantity` may be larger than the count. The call then waits until the count is
 * raised. During this wait, the call has no place in the queue. Other requests can therefore overtake the call, and
 * zkl_semaphore_participants does not show the call.
 *
 * Returns: ZKL_OK if the leases are held. A call that fails has acquired nothing. On failure:
 * - ZKL_E_TIMEOUT if the leases were not acquired within the timeout. The call never returns this status early.
 * - ZKL_E_CONNECTION if, at the end of the timeout, the client has no connection or its server does not answer.
 * - ZKL_E_CANCELED if zkl_semaphore_cancel ended the wait.
 * - ZKL_E_CLOSED if zkl_semaphore_free or zkl_client_free closed the semaphore.
 * - ZKL_E_INVALID if `quantity` is below 1, above max_leases, or too large for one server transaction.
 * - ZKL_E_INVALID if the servers do not accept the client's access control lists (docs/acl.md).
 * - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
 * - ZKL_E_DEADLOCK if a callback makes the call and `timeout_ms` is not 0.
 * - Other failures: ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED,
 *   ZKL_E_INTERNAL.
 *
 * Blocks until the leases are held or the timeout passes. A call with timeout 0 waits at most one second for the server. Any
 * thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_semaphore_acquire_timeout(zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms, zkl_hold **hold_out);

/**
 * Cancels all waits for leases through this handle, in all threads. The waiting calls fail with ZKL_E_CANCELED. The call
 * affects neither later waits nor leases that are already held. A call that is about to acquire its leases may still return
 * ZKL_OK despite the cancellation.
 *
 * Returns: ZKL_OK, even if no thread waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function, but a signal handler must not.
 */
zkl_status zkl_semaphore_cancel(zkl_semaphore *semaphore);

/**
 * Sets the data of each node that a later acquire call creates. The rules of zkl_lock_set_data also apply to a semaphore.
 * Each lease has its own node with this data.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_semaphore_set_data(zkl_semaphore *semaphore, const void *data, size_t len);

/**
 * Reads the value of a shared count (Curator's SharedCount). The node of a shared count contains four bytes in big-endian
 * order.
 *
 * Returns: ZKL_OK, with the count in `*value_out`. On failure:
 * - ZKL_E_SERVER if the count has no node. The function zkl_shared_count_set creates the node.
 * - ZKL_E_INVALID if an argument is not valid, or if the node does not contain a count.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED,
 *   ZKL_E_INTERNAL.
 *
 * Blocks for at most the session timeout. Any thread may call this function.
 */
zkl_status zkl_shared_count_get(zkl_client *client, const char *count_path, int32_t *value_out);

/**
 * Sets a shared count to a new value. The call creates the node of the count if the node does not exist. The new value becomes
 * the number of leases of every semaphore that uses the count.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH,
 * ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
 * Blocks for at most the session timeout. Any thread may call this function.
 */
zkl_status zkl_shared_count_set(zkl_client *client, const char *count_path, int32_t value);

/* ==== Runs ====
 *
 * A job that many programs start, and that one of them runs in each period.
 */

/** A flag of zkl_hold_begin_run: the call also begins the run if the last run in this period failed or was interrupted. */
#define ZKL_ONCE_RETRY_FAILED 1

/** The run has not ended, or it was interrupted: its process died, lost the lock, or freed the run. */
#define ZKL_RUN_RUNNING 0

/** The job succeeded. */
#define ZKL_RUN_SUCCEEDED 1

/** The job failed. */
#define ZKL_RUN_FAILED 2

/**
 * A run of a job that has begun (zkl_hold_begin_run). Any thread that has the handle may use the run. While the handle exists, a
 * hold that the program has not released does not end.
 */
typedef struct zkl_run zkl_run;

/**
 * One run of a job, as the record of runs contains it. The struct and the memory that it points to belong to the library. A
 * struct that a callback receives is valid until the callback returns. A struct that the program gets from zkl_op_past_run is
 * valid until the program frees the operation. Times are milliseconds since 1970-01-01 00:00 UTC.
 */
typedef struct zkl_past_run {
    /**
     * The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
     * field, the program must check that size includes the field.
     */
    uint32_t size;
    /** How the run ended: a ZKL_RUN_*. */
    int32_t result;
    /** The beginning of the period. */
    int64_t period_ms;
    /** The beginning of the run, according to the clock of the host that ran it. */
    int64_t started_ms;
    /** The end of the run; -1 if no end is recorded. */
    int64_t ended_ms;
    /** The fencing token of the hold. */
    int64_t token;
    /** The process that ran the job, in the form user@host:pid. */
    const char *owner;
    /** How the job failed; NULL unless the result is ZKL_RUN_FAILED. */
    const char *failure;
    /**
     * The first node of the hold, without the client's chroot; NULL if it is not known. The node exists only while the run holds
     * its lock.
     */
    const char *node_path;
} zkl_past_run;

/**
 * A callback that receives each past run. The callback must return normally. A callback must not throw an exception or call
 * longjmp.
 */
typedef void (*zkl_past_runs_cb)(void *user, const zkl_past_run *run);

/**
 * Begins a run of the job of this lock, unless the job has already run in this period. Many programs can start a job, and one of
 * them then runs it in each period. The record of runs is the data of the node PATH-runs, which the command
 * `zklock run --once-per` also uses. For a multi-lock, PATH is the path of its first member lock. The servers write the record
 * only while the hold exists.
 *
 * The parameter `period` is minute, hour, day, week, month, @hourly, @daily, @midnight, @weekly, @monthly, or a time in whole
 * seconds such as 30m or 2h. The parameter `zone` is the time zone of hours, days, weeks and months, for example Europe/Berlin.
 * NULL means the zone of this host. The parameter `flags` is 0 or ZKL_ONCE_RETRY_FAILED. All programs that start the job must use
 * the same period, the same zone and the same kind of lock.
 *
 * If `*run_out` is not NULL, the program runs its job, and then ends the run with zkl_run_finish, before it releases the hold. If
 * `*run_out` is NULL, the job has already run in this period, or in a later period according to the clock of another host. The
 * first run that zkl_past_runs shows is then this run. A run that began under this hold counts as running until it ends.
 *
 * Returns: ZKL_OK, even if the job has already run. On failure:
 * - ZKL_E_INVALID if several participants can hold the lock at the same time, for example a read lock or a semaphore with
 *   several leases. Also ZKL_E_INVALID if an argument is not valid, if the node of the record contains other data, or if the
 *   variable TZ contains an unknown time zone.
 * - ZKL_E_LOST if the hold was lost.
 * - ZKL_E_NOT_OWNER if the program has already released the hold through the lock (zkl_release).
 * - ZKL_E_FOREIGN if the last run still holds its lock. It then used another kind of lock on this path.
 * - ZKL_E_CONNECTION if no server answered. If the message says so, the run may be in the record and count as interrupted.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER,
 *   ZKL_E_INTERNAL.
 *
 * Blocks for at most three times the session timeout, or longer if other programs change the record at the same time. Any thread
 * may call this function.
 */
ZKL_NODISCARD zkl_status zkl_hold_begin_run(zkl_hold *hold, const char *period, const char *zone, uint32_t flags, zkl_run **run_out);

/**
 * Ends a run, and frees the handle. The parameter `failure` is NULL if the job succeeded. Otherwise, it is a text for people that
 * says how the job failed, of which the record contains at most the first 1,000 characters. If the call fails, the run may count
 * as interrupted. The call frees a live handle of this process, whatever it returns, unless `failure` is not valid.
 *
 * Returns: ZKL_OK if a server has confirmed the record. On failure:
 * - ZKL_E_LOST if the hold was lost before. The run then counts as interrupted, because another program may have run the job since.
 * - ZKL_E_NOT_OWNER if the program has already released the hold.
 * - ZKL_E_FOREIGN if another program has changed the record.
 * - ZKL_E_CONNECTION if no server confirmed the record within three times the session timeout.
 * - ZKL_E_HANDLE if `run` is not a live handle, for example NULL or the handle of a run that has ended.
 * - ZKL_E_INVALID if `failure` is not valid.
 * - Other failures: ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
 *
 * Blocks for at most three times the session timeout. Any thread may call this function.
 */
zkl_status zkl_run_finish(zkl_run *run, const char *failure);

/**
 * Removes a run from the record, because the job never started, and frees the handle. The job can then still run in this period. If
 * the call fails, the run may count as interrupted. The call frees a live handle of this process, whatever it returns.
 *
 * Returns: the same statuses as zkl_run_finish.
 * Blocks for at most twice the session timeout. Any thread may call this function.
 */
zkl_status zkl_run_take_back(zkl_run *run);

/**
 * Frees a run that the program does not end. The run then counts as interrupted, as after the death of the process. The parameter
 * `run` may be NULL. In a forked child, the call does nothing.
 *
 * Returns nothing. If `run` is not a live handle, the call has no effect. The last error message does not change.
 * Does not block. Any thread may call this function.
 */
void zkl_run_free(zkl_run *run);

/**
 * Reads the last runs of the job of a lock. The function calls `cb` once for each run, from the newest to the oldest, and passes
 * `user` to `cb`. The record contains at most ten runs. The callback may call any function of zklock.
 *
 * Returns: ZKL_OK, even if the job has never run. If the function fails, it does not call `cb`. On failure:
 * - ZKL_E_INVALID if an argument is not valid, or if the node of the record contains other data.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED,
 *   ZKL_E_SERVER, ZKL_E_INTERNAL.
 *
 * Blocks for at most the session timeout plus the time that `cb` takes. Any thread may call this function. The function calls
 * `cb` on the calling thread.
 */
zkl_status zkl_past_runs(zkl_client *client, const char *path, zkl_past_runs_cb cb, void *user);

/* ==== Participants and waits ====
 *
 * Queries for tools and messages: the participants of a lock, and what a call waits for.
 */

/** The acquire waits for a connection to a server. The acquire keeps its place in the queue while the session is alive. */
#define ZKL_WAITS_FOR_CONNECTION 0

/** The acquire waits for an answer from the server. */
#define ZKL_WAITS_FOR_SERVER 1

/** The acquire waits until nodes ahead of it in the queue are deleted. */
#define ZKL_WAITS_FOR_NODE 2

/** The acquire waits until other owners release leases. */
#define ZKL_WAITS_FOR_LEASES 3

/** The acquire waits until the shared count is raised. */
#define ZKL_WAITS_FOR_COUNT 4

/** The acquire re-enters a hold whose session lease has ended. The acquire waits until this hold is safe again or lost. */
#define ZKL_WAITS_FOR_OWN_HOLD 5

/**
 * A participant: a node in the queue of a lock or a semaphore. The owner of the node is either a holder or a waiter. The
 * struct and the memory that it points to belong to the library. A struct that a callback receives is valid until the callback
 * returns. A struct that the program gets from zkl_op_participant is valid until the program frees the operation.
 */
typedef struct zkl_participant {
    /**
     * The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
     * field, the program must check that size includes the field.
     */
    uint32_t size;
    /** 1 if the participant holds the lock or a lease now; 0 if the participant waits. */
    int32_t holds;
    /** The session that owns the node; 0 if the node is not ephemeral. */
    int64_t session_id;
    /** The zxid of the transaction that created the node. For a holder, this zxid is the fencing token. */
    int64_t czxid;
    /** The path of the node, without the client's chroot. */
    const char *node_path;
    /**
     * The data of the node. By default, the data is the address of the host on which the node's owner runs. A NUL follows the
     * data. The field data_len does not count this NUL.
     */
    const uint8_t *data;
    /** The number of bytes of data. */
    size_t data_len;
} zkl_participant;

/**
 * A callback that receives each participant. The callback must return normally. A callback must not throw an exception or call
 * longjmp.
 */
typedef void (*zkl_participants_cb)(void *user, const zkl_participant *participant);

/**
 * A pending acquire. The struct and the memory that it points to belong to the library. Both are valid until the callback
 * returns.
 */
typedef struct zkl_wait {
    /**
     * The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
     * field, the program must check that size includes the field.
     */
    uint32_t size;
    /** The reason for the wait: a ZKL_WAITS_FOR_*. */
    int32_t waits_for;
    /**
     * The path of the node that represents the acquire in the queue. The path has the same form as the paths that
     * zkl_participants shows. The field is NULL if the acquire has no node yet. If the acquire has nodes in several queues,
     * the field names the node in the queue in which the acquire waits.
     */
    const char *node_path;
    /**
     * The path of the node for which the acquire waits. In a queue, this node is the nearest node ahead. If the acquire waits
     * for leases, this node is the directory of the leases. If the acquire waits for a shared count, this node contains the
     * count. Node paths have the same form as the paths that zkl_participants shows. The field is NULL if the path is not
     * known. Without a connection, the field contains the last known path.
     */
    const char *ahead;
    /** The session that owns the nearest node ahead; 0 if this session is not known. */
    int64_t session_id;
    /**
     * The number of nodes ahead, or the number of leases that other owners must release first. For a shared count, this field
     * shows by how many leases the count is too low. The number can be outdated, because it comes from the last answer of the
     * server. The field is 0 if the number is not known.
     */
    uint64_t count;
    /** The time that the acquire has spent waiting, in milliseconds. */
    int64_t waited_ms;
    /** The time until the acquire times out, in milliseconds; -1 if the acquire has no time limit. */
    int64_t left_ms;
} zkl_wait;

/**
 * A callback that receives each pending acquire. The callback must return normally. A callback must not throw an exception or
 * call longjmp.
 */
typedef void (*zkl_waiting_cb)(void *user, const zkl_wait *wait);

/**
 * Asks the server for the participants of a lock. The participants are the holders and the waiters, in this process and in all
 * other processes. The function calls `cb` once for each participant, in the order of the queue, and passes `user` to `cb`.
 * The callback may call any function of zklock.
 *
 * For the read lock of a read/write lock, `cb` receives only readers. For the write lock, `cb` receives only writers. The
 * function zkl_queue shows readers and writers. For a semaphore mutex, `cb` receives the holder before the waiters. For a
 * multi-lock, `cb` receives the participants of the first member lock, then the participants of the second member lock, and so
 * on.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH,
 * ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL. If the function fails, it does not call `cb`. Blocks for at most the session
 * timeout plus the time that `cb` takes. Any thread may call this function. The function calls `cb` on the calling thread.
 */
zkl_status zkl_participants(zkl_lock *lock, zkl_participants_cb cb, void *user);

/**
 * Shows the participants of a lock. For a read/write lock, the function shows readers and writers together. All other rules of
 * zkl_participants also apply to this function. The read lock and the write lock of a read/write lock give the same result.
 *
 * Returns: the same statuses as zkl_participants.
 * Blocks for at most the session timeout plus the time that `cb` takes. Any thread may call this function. The function calls
 * `cb` on the calling thread.
 */
zkl_status zkl_queue(zkl_lock *lock, zkl_participants_cb cb, void *user);

/**
 * Shows the participants of a semaphore. The rules of zkl_participants also apply to a semaphore. The callback first receives
 * the leases, from the oldest to the newest, and then the waiters. Each lease is a separate participant.
 *
 * Returns: the same statuses as zkl_participants.
 * Blocks for at most the session timeout plus the time that `cb` takes. Any thread may call this function. The function calls
 * `cb` on the calling thread.
 */
zkl_status zkl_semaphore_participants(zkl_semaphore *semaphore, zkl_participants_cb cb, void *user);

/**
 * Shows why the pending acquires of a lock are waiting. The function calls `cb` once for each waiting acquire of this handle,
 * and passes `user` to `cb`. The acquires can come from any thread of this process. The function calls `cb` in the order in
 * which the acquires began. The callback may call any function of zklock. To see the pending acquires of a multi-lock, pass
 * the multi-lock's own handle. If the program passes the handle of a member lock, the function does not show these acquires.
 *
 * The function shows information that the client already has, and sends no request. The function therefore works even if no
 * server answers. The function zkl_participants shows the participants of all processes, with the same node paths. An acquire
 * can wait behind other acquires of its process (zkl_mutex_set_local_handover). Such an acquire has no separate node. In this
 * case, the `ahead` field names the node that these acquires share.
 *
 * Returns: ZKL_OK, even if no acquire waits; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. If the
 * function fails, it does not call `cb`. Does not block, except while `cb` runs. Any thread may call this function. The
 * function calls `cb` on the calling thread.
 */
zkl_status zkl_waiting(const zkl_lock *lock, zkl_waiting_cb cb, void *user);

/**
 * Shows why the pending acquires of a semaphore are waiting. The rules of zkl_waiting also apply to a semaphore.
 *
 * Returns: the same statuses as zkl_waiting.
 * Does not block, except while `cb` runs. Any thread may call this function. The function calls `cb` on the calling thread.
 */
zkl_status zkl_semaphore_waiting(const zkl_semaphore *semaphore, zkl_waiting_cb cb, void *user);

/* ==== Operations ====
 *
 * Calls that do not block a thread, for event loops, and holds of owners that are not threads. The page
 * docs/embedding.md shows an event loop.
 */

/**
 * A queue that reports which operations have ended. One thread or event loop can wait for any number of operations by polling
 * the queue's single descriptor. Without a queue, each operation needs its own descriptor (zkl_op_fd).
 */
typedef struct zkl_completion_queue zkl_completion_queue;

/**
 * An operation that a *_start function starts: an acquire or another call. An operation continues even if no thread waits for
 * it. An acquire ends within its timeout. Any other operation takes at most as long as the blocking form of the call. The
 * function zkl_op_result returns the status of every operation. The other results of an operation come from zkl_op_hold,
 * zkl_op_value, zkl_op_participant, zkl_op_client, zkl_op_semaphore, zkl_op_run and zkl_op_past_run.
 */
typedef struct zkl_op zkl_op;

/**
 * Starts acquiring the lock for an owner, without waiting for the result. All other rules of zkl_acquire_timeout also apply to
 * this function. The parameter `owner` has the same meaning as for zkl_hold_acquire. After the operation has ended with ZKL_OK,
 * zkl_op_hold gets the hold. A hold of ZKL_OWNER_THREAD, the thread that starts the operation, needs no zkl_op_hold: after
 * zkl_op_result has returned ZKL_OK, this thread can release the lock with zkl_release. The caller must free the new operation,
 * `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result reports how the acquire ends. On failure:
 * - ZKL_E_INVALID in the same cases as zkl_acquire_timeout.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_acquire_start(zkl_lock *lock, uint64_t owner, int64_t timeout_ms, zkl_op **op_out);

/**
 * Starts acquiring `quantity` leases without waiting for the result. The operation acquires either all of these leases or
 * none. All other rules of zkl_semaphore_acquire_timeout also apply to this function. When the operation has ended with
 * ZKL_OK, zkl_op_hold gets the hold of the leases. The caller must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: the same statuses as zkl_acquire_start. The call also fails with ZKL_E_INVALID if `quantity` is below 1 or above
 * max_leases.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_semaphore_acquire_start(zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms, zkl_op **op_out);

/**
 * Gets a descriptor that becomes readable when the operation ends, with or without success, and then stays readable. The
 * program can pass the descriptor to poll, select, epoll and event loops. The descriptor belongs to the library, and the
 * program must not read, write or close it. Calling zkl_op_free closes the descriptor. The program must remove the descriptor
 * from its event loop before it calls zkl_op_free. The first call of zkl_op_fd creates the descriptor of an operation. A
 * forked child should not use the descriptor.
 *
 * Returns: the descriptor, which is 0 or more. Every call returns the same descriptor, unless the program has closed the
 * descriptor. On failure:
 * - ZKL_E_EXHAUSTED if the process has no descriptors left. Despite this failure, the operation continues, and the program may
 *   call zkl_op_fd again.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED or ZKL_E_INTERNAL. All statuses are negative.
 *
 * Does not block. Any thread may call this function.
 */
int zkl_op_fd(const zkl_op *op);

/**
 * Reports how an operation ended. If zkl_op_result or zkl_op_wait returns ZKL_OK for an operation that acquires, the owner has
 * the hold, and zkl_op_hold gets it.
 *
 * Returns: ZKL_E_PENDING while the operation is still running. After the operation has ended, every call returns the same
 * status:
 * - ZKL_OK if the operation succeeded. An acquire operation succeeds if it acquires the lock or the leases.
 * - ZKL_E_TIMEOUT if the operation's timeout passed first.
 * - ZKL_E_CANCELED if the operation was canceled, for example by zkl_op_cancel.
 * - ZKL_E_CLOSED if the lock, the semaphore or the client was closed, or if another thread freed the operation.
 * - Other failures: the same statuses as zkl_acquire_timeout or the same statuses as zkl_semaphore_acquire_timeout. For any
 *   other operation: the same statuses as its blocking form, for example the same statuses as zkl_release.
 *
 * The call itself can fail with ZKL_E_HANDLE, ZKL_E_FORKED or ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_op_result(zkl_op *op);

/**
 * Describes why an operation failed. The text is for people and logs. Any thread can read the text, even if another thread
 * called zkl_op_result.
 *
 * Returns: a string, never NULL. The string is valid until the operation is freed. The string is empty while the operation is
 * running, and after the operation has ended with ZKL_OK. If `op` is not an operation of this process, the string is "not an
 * operation of this process". In this case, zkl_last_error_message returns the details (ZKL_E_HANDLE, ZKL_E_FORKED,
 * ZKL_E_INTERNAL).
 * Does not block. Any thread may call this function.
 */
const char *zkl_op_message(const zkl_op *op);

/**
 * Waits until an operation ends. The parameter `timeout_ms` is the time limit of this wait in milliseconds. With -1, the call
 * waits without a limit. With 0, the call checks the operation once. If the wait reaches its time limit, the operation itself
 * continues. Several threads may wait for one operation.
 *
 * Returns: the same statuses as zkl_op_result, and also:
 * - ZKL_E_PENDING if the operation is still running at the end of the time limit.
 * - ZKL_E_INVALID if `timeout_ms` is negative and not -1.
 * - ZKL_E_DEADLOCK if a callback makes the call and the call would have to wait.
 *
 * Blocks until the operation ends or the time limit has passed. Any thread may call this function.
 */
zkl_status zkl_op_wait(zkl_op *op, int64_t timeout_ms);

/**
 * Checks whether the calling thread may wait for other participants. A program that starts an operation and then waits for the
 * operation can call this function first. Without this check, a wait in a callback fails only after the operation has joined
 * its queue.
 *
 * Returns: ZKL_OK if the thread may wait, ZKL_E_DEADLOCK if a callback makes the call, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_check_may_wait(void);

/**
 * Cancels an operation that acquires, connects, waits for a loss, or begins a run. A canceled operation ends with
 * ZKL_E_CANCELED. The library deletes the node of a canceled acquire, and removes a canceled run from the record. The message of
 * a canceled connect says why the client is not connected yet (zkl_op_message). An operation that is about to succeed may still
 * end with ZKL_OK. If the operation has already ended, its result does not change. The call has no effect on any other
 * operation, for example releasing a lock, querying a lock, or closing a client.
 *
 * Returns: ZKL_OK, even if the call has no effect; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function, but a signal handler must not.
 */
zkl_status zkl_op_cancel(zkl_op *op);

/**
 * Takes the hold of an acquire operation that has ended with ZKL_OK. The caller must release the hold, `*hold_out`, with
 * zkl_hold_release. The program can take the hold once.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_PENDING while the operation is still running.
 * - ZKL_E_INVALID if the hold was already taken, or if the operation does not acquire.
 * - The same statuses as zkl_op_result, if the operation has failed.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_op_hold(zkl_op *op, zkl_hold **hold_out);

/**
 * Gets the number that an operation found. For zkl_shared_count_get_start, the number is the value of the shared count. For
 * zkl_fence_check_start, the number is 1 if the hold still exists, and 0 otherwise. For zkl_participants_start,
 * zkl_queue_start and zkl_semaphore_participants_start, the number is the number of participants. For zkl_past_runs_start, the
 * number is the number of past runs. The program may call the function any number of times.
 *
 * Returns: ZKL_OK, with the number in `*value_out`. On failure:
 * - ZKL_E_PENDING while the operation is still running.
 * - ZKL_E_INVALID if an argument is not valid, or if the operation was not started by one of the functions listed above.
 * - The same statuses as zkl_op_result, if the operation has failed.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_op_value(const zkl_op *op, int64_t *value_out);

/**
 * Gets a participant that an operation has found (zkl_participants_start, zkl_queue_start, zkl_semaphore_participants_start).
 * The parameter `index` selects the participant. The first participant in the queue has the index 0. The function
 * zkl_op_value gets the number of participants. The struct belongs to the library, and is valid until the operation is freed.
 *
 * Returns: ZKL_OK, with the participant in `*participant_out`. On failure:
 * - ZKL_E_PENDING while the operation is still running.
 * - ZKL_E_INVALID if an argument is not valid, for example if `index` is too large, or if the operation was not started by one
 *   of the functions listed above.
 * - The same statuses as zkl_op_result, if the operation has failed.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_op_participant(const zkl_op *op, size_t index, const zkl_participant **participant_out);

/**
 * Gets a past run that an operation has read (zkl_past_runs_start). The parameter `index` selects the run. The newest run has the
 * index 0. The function zkl_op_value gets the number of runs. The struct belongs to the library, and is valid until the operation
 * is freed.
 *
 * Returns: ZKL_OK, with the run in `*run_out`. On failure: the same statuses as zkl_op_participant.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_op_past_run(const zkl_op *op, size_t index, const zkl_past_run **run_out);

/**
 * Takes the run from a zkl_hold_begin_run_start operation that has ended with ZKL_OK. If `*run_out` is not NULL, the caller must end
 * the run with zkl_run_finish. If `*run_out` is NULL, the job has already run in this period. The program can take the run once.
 *
 * Returns: the same statuses as zkl_op_client.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_op_run(zkl_op *op, zkl_run **run_out);

/**
 * Takes the client from a zkl_client_start operation that has ended with ZKL_OK. The caller must free the client,
 * `*client_out`, with zkl_client_free.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_PENDING while the operation is still running.
 * - ZKL_E_INVALID if an argument is not valid, if the client was already taken, or if another function has started the
 *   operation.
 * - The same statuses as zkl_op_result, if the operation has failed.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_op_client(zkl_op *op, zkl_client **client_out);

/**
 * Takes the semaphore from a zkl_semaphore_new_counted_start operation that has ended with ZKL_OK. The caller must free the
 * semaphore, `*semaphore_out`, with zkl_semaphore_free.
 *
 * Returns: the same statuses as zkl_op_client.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_op_semaphore(zkl_op *op, zkl_semaphore **semaphore_out);

/**
 * Frees an operation. If an acquire, a connect, a wait for a loss or the beginning of a run is still running, the call cancels
 * it. Any other operation, for example a release, runs to completion. Calls of zkl_op_wait that wait for the operation fail with
 * ZKL_E_CLOSED. The parameter `op` may be NULL. In a forked child, the call does nothing.
 *
 * If the program frees the operation before it has taken the operation's client (zkl_op_client), the library closes the
 * client in the background. The library then calls no further callbacks of this client. If the program has not taken a run that
 * has begun (zkl_op_run), the library removes the run from the record in the background.
 *
 * A successful acquire operation owns its hold until the program takes the hold with zkl_op_hold. If the program frees the
 * operation before, the library releases the hold without waiting for the server. There is one exception: if the owner is
 * ZKL_OWNER_THREAD, and zkl_op_result or zkl_op_wait has already returned ZKL_OK for an acquire of a lock, the thread still holds
 * the lock after this call, and must release it. If the program has already released the hold that the operation acquired,
 * zkl_op_free does not release a later hold of the same owner. If the operation acquires a multi-lock in several steps, a query
 * can still show holds of member locks for a short time after this call.
 *
 * Returns nothing. If `op` is not a live handle, the call has no effect. The last error message does not change.
 * Does not block. Any thread may call this function.
 */
void zkl_op_free(zkl_op *op);

/**
 * Makes an empty completion queue. A program usually needs one queue for each event loop. The queue can contain operations of
 * any number of clients. The caller must free the new queue, `*queue_out`, with zkl_completion_queue_free.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_EXHAUSTED if the process has no descriptors left.
 * - Other failures: ZKL_E_INVALID, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_completion_queue_new(zkl_completion_queue **queue_out);

/**
 * Gets the descriptor of a completion queue, for poll, select, epoll and event loops. The descriptor is readable while the
 * queue contains keys (level-triggered). The descriptor belongs to the library, and the program must not read, write or close
 * it. The function zkl_completion_queue_free closes the descriptor. The program must remove the descriptor from its event
 * loop before it frees the queue.
 *
 * Returns: the descriptor, which is 0 or more. Every call returns the same descriptor. On failure: ZKL_E_HANDLE,
 * ZKL_E_FORKED, ZKL_E_CLOSED or ZKL_E_INTERNAL. All statuses are negative.
 * Does not block. Any thread may call this function.
 */
int zkl_completion_queue_fd(const zkl_completion_queue *queue);

/**
 * Registers an operation with a completion queue. When the operation ends, with or without success, the library puts `key`
 * into the queue. If the operation has already ended, the call puts the key into the queue at once. The program chooses a key
 * by which it can find the operation again, for example an index or an address. Each call of this function makes the queue
 * report the key once. If the program frees an operation that is still running, the queue still reports the operation's key:
 * at once for an acquire, and no later than the end of the operation for any other kind. A queue does not keep an operation
 * alive, and freeing the queue does not affect its operations.
 *
 * Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_op_notify(zkl_op *op, zkl_completion_queue *queue, uint64_t key);

/**
 * Takes the oldest keys from a completion queue, in the order in which the operations ended. The call writes at most `count`
 * keys to the array `keys`, and the number of keys to `*taken_out`. The number is 0 if the queue is empty. If further keys
 * remain, the descriptor stays readable. After the program has taken a key, zkl_op_result returns the result of the operation.
 * Several threads may take keys from one queue; each key goes to one thread.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_INVALID if `keys` or `taken_out` is NULL, or if `count` is 0.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_completion_queue_take(zkl_completion_queue *queue, uint64_t *keys, size_t count, size_t *taken_out);

/**
 * Frees a completion queue and closes its descriptor. Operations that are still running continue, but do not report their
 * keys. The parameter `queue` may be NULL. In a forked child, the call does nothing.
 *
 * Returns nothing. If `queue` is not a live handle, the call has no effect. The last error message does not change.
 * Does not block. Any thread may call this function.
 */
void zkl_completion_queue_free(zkl_completion_queue *queue);

/**
 * Starts making a client, and does not wait until the client is connected. All other rules of zkl_client_new also apply to
 * this function. The operation ends when the client has a session, or at the latest after the connect timeout. The program
 * then takes the client from the operation (zkl_op_client). Until then, the client has no handle, so no other function can use
 * a client that has no session. The caller must free the new operation, `*op_out`, with zkl_op_free. If the operation fails,
 * the program does not need to free anything else.
 *
 * The library may call the callbacks of `config` as soon as the client starts to connect. If the program polls for events
 * (zkl_config_set_poll_events), the events stay queued until the program has taken the client.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_client_new. On failure:
 * - ZKL_E_INVALID if an argument is not valid.
 * - ZKL_E_HANDLE or ZKL_E_FORKED if `config` is not a live config of this process.
 * - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_client_start(const char *servers, const zkl_config *config, zkl_op **op_out);

/**
 * Starts closing a client, without waiting for callbacks or for the server. Calls that wait for a lock of this client fail
 * with ZKL_E_CLOSED, and so do later calls on its locks. The handle `client` stays valid until the program frees it with
 * zkl_client_free. After the operation has ended, zkl_client_free does not block. The caller must also free the new
 * operation, `*op_out`, with zkl_op_free. If the program frees the operation early, the client still closes.
 *
 * Use this function on a thread that the client's callbacks depend on. Such a thread must not call zkl_client_free, because
 * zkl_client_free waits for running callbacks. Examples are a thread that runs an event loop, and a thread that holds the
 * lock of an interpreter.
 *
 * As in zkl_client_free, the client delivers its queued events before it closes, but only for a limited time. The client calls
 * its ZKL_LISTEN_LOSS listeners before it ends the session. If the program polls for events, no library thread calls a
 * callback. In this case, until the operation ends, the program must watch a duplicate of the event descriptor and call
 * zkl_client_dispatch_events. The library closes the event descriptor at the end of the operation. When the operation has
 * ended, all callbacks have returned, and the library no longer calls the client's callbacks. If the program polls for events,
 * the library calls each user_drop function on the calling thread, during zkl_client_free or zkl_client_free_nowait. If the
 * program does not poll for events, the library calls each user_drop function before the operation ends. This call can occur
 * on any thread.
 *
 * Returns: ZKL_OK if the client is closing. The operation ends with ZKL_OK when the server has confirmed the end of the session,
 * or when the time for the confirmation has passed. In the second case, the nodes of the client can exist until the session
 * expires. On failure:
 * - ZKL_E_EXHAUSTED if the process cannot start a thread. The client then stays open.
 * - Other failures: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Does not block. The operation ends within two seconds, plus the running time of callbacks. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_client_close_start(zkl_client *client, zkl_op **op_out);

/**
 * Starts releasing a hold, and frees the handle immediately. The operation ends when the server has confirmed that the nodes of
 * the hold are deleted. All other rules of zkl_hold_release also apply to this function. The caller must free the new operation,
 * `*op_out`, with zkl_op_free. If the program frees the operation early, the library still releases the hold.
 *
 * Returns: ZKL_OK if the release has started. Later, zkl_op_result returns the same statuses as zkl_hold_release. On failure:
 * ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. A call that fails
 * with ZKL_E_INVALID does not free the handle.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_hold_release_start(zkl_hold *hold, zkl_op **op_out);

/**
 * Starts an operation that asks the server for the participants of a lock. The rules of zkl_participants apply, except that
 * no callback receives the participants. After the operation has ended with ZKL_OK, zkl_op_value gets the number of
 * participants, and zkl_op_participant gets each participant. The caller must free the new operation, `*op_out`, with
 * zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_participants. On
 * failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. Does not block. The
 * operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_participants_start(zkl_lock *lock, zkl_op **op_out);

/**
 * Starts an operation that asks the server for the participants of a lock. For a read/write lock, the operation lists both
 * readers and writers, as zkl_queue does. All other rules of zkl_participants_start also apply to this function.
 *
 * Returns: the same statuses as zkl_participants_start.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_queue_start(zkl_lock *lock, zkl_op **op_out);

/**
 * Starts an operation that asks the server for the participants of a semaphore. The operation lists the participants in the
 * same order as zkl_semaphore_participants. All other rules of zkl_participants_start also apply to this function.
 *
 * Returns: the same statuses as zkl_participants_start.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_semaphore_participants_start(zkl_semaphore *semaphore, zkl_op **op_out);

/**
 * Starts a revocation request for a node without waiting for the server. All other rules of zkl_revoke also apply to this
 * function. The caller must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_revoke. On failure:
 * ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_revoke_start(zkl_client *client, const char *node_path, zkl_op **op_out);

/**
 * Starts an operation that asks the ensemble whether the hold with this fencing token still exists. All other rules of
 * zkl_fence_check also apply to this function. After the operation has ended with ZKL_OK, zkl_op_value gets 1 if the hold
 * still exists, and 0 otherwise. The caller must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_fence_check. On failure:
 * ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_fence_check_start(zkl_client *client, const char *path, int64_t token, zkl_op **op_out);

/**
 * Starts reading the value of a shared count. All other rules of zkl_shared_count_get also apply to this function. After the
 * operation has ended with ZKL_OK, zkl_op_value gets the count. The caller must free the new operation, `*op_out`, with
 * zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_shared_count_get. On
 * failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_shared_count_get_start(zkl_client *client, const char *count_path, zkl_op **op_out);

/**
 * Starts an operation that sets a shared count to a new value. All other rules of zkl_shared_count_set also apply to this
 * function. The caller must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_shared_count_set. On
 * failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_shared_count_set_start(zkl_client *client, const char *count_path, int32_t value, zkl_op **op_out);

/**
 * Starts making a semaphore that takes its number of leases from a shared count. All other rules of zkl_semaphore_new_counted
 * also apply to this function. After the operation has ended with ZKL_OK, the program takes the semaphore from the operation
 * (zkl_op_semaphore). The caller must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_semaphore_new_counted.
 * On failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_semaphore_new_counted_start(zkl_client *client, const char *path, const char *count_path, int32_t initial, zkl_op **op_out);

/**
 * Starts an operation that waits until a hold is no longer safe. If the hold is released, the operation ends with
 * ZKL_E_NOT_OWNER. To end the wait earlier, cancel or free the operation. All other rules of zkl_hold_wait_lost also apply to
 * this function. The caller must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the wait has started. Later, zkl_op_result never returns ZKL_OK. When the wait has ended, zkl_op_result
 * reports the status that zkl_wait_lost would return, for example ZKL_E_LOST if the hold is no longer safe. On failure:
 * ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_hold_wait_lost_start(zkl_hold *hold, zkl_op **op_out);

/**
 * Starts to begin a run of a job. After the operation has ended with ZKL_OK, zkl_op_run gets the run, or NULL if the job has
 * already run. If the program cancels or frees the operation before it has taken the run, the library removes the run from the
 * record in the background. If the program releases the hold before the removal, the run counts as interrupted. All other rules
 * of zkl_hold_begin_run also apply to this function. The caller must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_hold_begin_run. On
 * failure: ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_LOST, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_hold_begin_run_start(zkl_hold *hold, const char *period, const char *zone, uint32_t flags, zkl_op **op_out);

/**
 * Starts to end a run, and frees the handle immediately. The operation ends when a server has confirmed the record. All other
 * rules of zkl_run_finish also apply to this function. The caller must free the new operation, `*op_out`, with zkl_op_free. If
 * the program frees the operation early, the library still writes the record.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_run_finish. On failure:
 * ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_LOST, ZKL_E_NOT_OWNER, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. A call
 * that fails with ZKL_E_INVALID does not free the handle.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_run_finish_start(zkl_run *run, const char *failure, zkl_op **op_out);

/**
 * Starts to remove a run from the record, and frees the handle immediately. All other rules of zkl_run_take_back also apply to
 * this function. The caller must free the new operation, `*op_out`, with zkl_op_free. If the program frees the operation early,
 * the library still removes the run.
 *
 * Returns: the same statuses as zkl_run_finish_start.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_run_take_back_start(zkl_run *run, zkl_op **op_out);

/**
 * Starts to read the last runs of the job of a lock. The rules of zkl_past_runs apply, except that no callback receives the runs.
 * After the operation has ended with ZKL_OK, zkl_op_value gets the number of runs, and zkl_op_past_run gets each run. The caller
 * must free the new operation, `*op_out`, with zkl_op_free.
 *
 * Returns: ZKL_OK if the operation has started. Later, zkl_op_result returns the same statuses as zkl_past_runs. On failure:
 * ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 * Does not block. The operation ends within the session timeout. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_past_runs_start(zkl_client *client, const char *path, zkl_op **op_out);

/* ==== Events ====
 *
 * Changes of sessions and holds are reported on the event thread, or when the program polls for them.
 */

/** The session state of the client changed. The state and previous fields contain ZKL_STATE_* values. */
#define ZKL_EVENT_CLIENT 0

/** The state of a lock hold, or of leases, changed. The state and previous fields contain ZKL_LOCK_* values. */
#define ZKL_EVENT_LOCK 1

/** The listener is notified of every change to every hold. */
#define ZKL_LISTEN_ALL 0

/**
 * The listener receives only losses. A loss occurs when a hold changes from ZKL_LOCK_HELD or ZKL_LOCK_SUSPENDED to
 * ZKL_LOCK_UNCERTAIN or ZKL_LOCK_LOST, or when the program frees the hold's client. If the program frees the client, the new
 * state in the event is ZKL_LOCK_FREE. The function zkl_client_free waits up to one second for the listener's callback before
 * it ends the session. While zkl_client_free waits for the callback, no other client can acquire the lock.
 */
#define ZKL_LISTEN_LOSS 1

/**
 * The registration of a callback for events. The registration ends when the listener is freed. A client, a lock or leases can
 * have any number of listeners.
 */
typedef struct zkl_listener zkl_listener;

/**
 * A state change. The struct and the memory that it points to belong to the library. Both are valid until the callback
 * returns.
 */
typedef struct zkl_event {
    /**
     * The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
     * field, the program must check that size includes the field.
     */
    uint32_t size;
    /** The kind of the event: a ZKL_EVENT_*. */
    int32_t kind;
    /** The new state. */
    int32_t state;
    /** The previous state. */
    int32_t previous;
    /**
     * The lock of the hold. This field is NULL if the event is about a session or leases, or if the lock was freed. For a
     * multi-lock, the library reports a separate event for each member lock.
     */
    zkl_lock *lock;
    /** The path of the lock or semaphore; NULL if the event is about a session. */
    const char *path;
    /** The fencing token of the hold or leases; 0 if the event is about a session. */
    int64_t token;
    /**
     * The number of local hand-overs under this token before the hold began (zkl_fencing_pass). The number is 0 if the event
     * is about a session or leases.
     */
    int64_t fencing_pass;
} zkl_event;

/**
 * A callback that receives each event. The callback must return normally. A callback must not throw an exception or call
 * longjmp.
 */
typedef void (*zkl_event_cb)(void *user, const zkl_event *event);

/**
 * Sets a config's callback for state changes. Each client made with this config calls `cb` for every change of its session
 * and of its holds, and passes `user` to `cb`. For each client, the library makes one call at a time, in the order of the
 * changes.
 *
 * By default, the library calls `cb` on its event thread. If a client has a loss in its queue while the event thread runs
 * another callback, a second thread calls the callbacks of this client. The callbacks of two clients can therefore run at the
 * same time. A program can also call the callbacks on its own threads (zkl_config_set_poll_events). The Callbacks section
 * above describes which functions `cb` may call.
 *
 * If a hold and the session change at the same moment, the client reports the hold's event first. For example, the client
 * reports ZKL_LOCK_SUSPENDED for a hold before it reports ZKL_STATE_SUSPENDED for the session. Each client queues up to 1024
 * separate events. If the queue is full, the client merges the events of each hold into one event, and the events of the
 * session into another. Merging drops intermediate states. Even after a merge, the previous state in an event equals the new
 * state in the event before it. The last event contains the current state. The client always reports the loss of a hold. If
 * the client loses several sessions one after the other while it merges events, the client sometimes reports only one of these
 * losses.
 *
 * If `user_drop` is not NULL, the library calls `user_drop` once. This call occurs when neither the config nor an open client
 * uses the callback any more, and the last call of `cb` has returned. If `cb` is NULL, the config has no callback, and the
 * library calls `user_drop` at once.
 *
 * Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL. On failure, the library does not use the pointer `user` and
 * does not call `user_drop`.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set_event_callback(zkl_config *config, zkl_event_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Sets a callback for the events of one client. The callback receives changes that are still queued, and all later changes.
 * The rules of zkl_config_set_event_callback apply to this callback. The library also calls the callback of the config. This
 * function is useful for code that receives a client from another part of the program. A later call of
 * zkl_client_set_event_callback replaces the callback. If `cb` is NULL, the call removes the callback and calls `user_drop` at
 * once.
 *
 * After the function has returned, the previous callback is not running on another thread, and the library does not call this
 * callback again. If the previous callback itself calls zkl_client_set_event_callback, the function does not wait. If
 * `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced or the client is freed. The library
 * calls `user_drop` only once, after the last call of `cb` has returned.
 *
 * Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the library does not
 * use the pointer `user` and does not call `user_drop`.
 * Blocks while the previous callback is running. Any thread may call this function.
 */
zkl_status zkl_client_set_event_callback(zkl_client *client, zkl_event_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Registers a callback for the events of a client. The callback receives the queued changes and all later changes of the
 * session and of the holds. Until the listener is freed, the client calls `cb` and passes `user` to it. The rules of
 * zkl_config_set_event_callback apply to these calls. Other callbacks and listeners also receive these events. The client may
 * call `cb` before zkl_client_listen returns. The caller must free the new listener, `*listener_out`, with zkl_listener_free.
 *
 * If `user_drop` is not NULL, the library calls `user_drop` after the listener or the client is freed. The library calls
 * `user_drop` only once, after the last call of `cb` has returned.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the
 * library does not use the pointer `user` and does not call `user_drop`.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_client_listen(zkl_client *client, zkl_event_cb cb, void *user, zkl_user_drop user_drop, zkl_listener **listener_out);

/**
 * Registers a callback for changes of all holds that are acquired through this lock handle. The holds can belong to any owner
 * in this process. With ZKL_LISTEN_ALL, `cb` receives every change. With ZKL_LISTEN_LOSS, `cb` receives only losses. For a
 * multi-lock, `cb` receives the changes of each member lock. All other rules of zkl_client_listen also apply to this function.
 *
 * The listener receives changes that are still queued, and all later changes. Register the listener before the program
 * acquires the lock, or query the state of the lock after the registration. The token and the fencing_pass in an event
 * identify the hold. A listener remains registered when its lock is freed. After the lock is freed, the listener still
 * receives an event when a hold ends. In such an event, the lock field is NULL.
 *
 * Returns: the same statuses as zkl_client_listen. The call also fails with ZKL_E_INVALID if the parameter `events` is not a
 * ZKL_LISTEN_*.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_lock_listen(zkl_lock *lock, int32_t events, zkl_event_cb cb, void *user, zkl_user_drop user_drop, zkl_listener **listener_out);

/**
 * Registers a callback for changes of one hold. The rules of zkl_lock_listen also apply to a hold. The state of the hold can
 * change before the registration. The program should therefore query the state after it registers the callback. The events
 * contain no lock handle.
 *
 * Returns: the same statuses as zkl_lock_listen, and also ZKL_E_NOT_OWNER if the program has already released the hold through
 * the lock.
 * Does not block. Any thread may call this function.
 */
ZKL_NODISCARD zkl_status zkl_hold_listen(zkl_hold *hold, int32_t events, zkl_event_cb cb, void *user, zkl_user_drop user_drop, zkl_listener **listener_out);

/**
 * Frees a listener, and ends its registration. After the function has returned, the callback of the listener is not running on
 * another thread, and the library does not call this callback again. If the callback is running on another thread, the call
 * waits without a time limit until the callback returns. The caller must therefore not hold a mutex that the callback needs.
 * If a callback frees its own listener, zkl_listener_free does not wait, and the library does not call the callback again. The
 * parameter `listener` may be NULL. The program may free the lock, the leases or the client before it frees the listener. In
 * a forked child, the call does nothing.
 *
 * Returns nothing. If `listener` is not a live handle, the call has no effect. The last error message does not change.
 * Blocks while the callback is running on another thread. Any thread may call this function.
 */
void zkl_listener_free(zkl_listener *listener);

/**
 * Sets a callback for changes of all holds that are acquired through this lock handle. The holds can belong to any owner in
 * this process. The callback receives the same events as a listener with ZKL_LISTEN_ALL (zkl_lock_listen). A later call of
 * zkl_lock_set_event_callback replaces the callback. If `cb` is NULL, the call removes the callback and calls `user_drop` at
 * once.
 *
 * After the function has returned, the previous callback is not running on another thread, and the library does not call this
 * callback again. If the previous callback itself calls zkl_lock_set_event_callback, the function does not wait. If
 * `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced, or after the lock or its client is
 * freed. The library calls `user_drop` only once, after the last call of `cb` has returned. If the program frees the lock when
 * the library is about to call `cb`, the library can still make that call.
 *
 * Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the library does not
 * use the pointer `user` and does not call `user_drop`.
 * Blocks while the previous callback is running. Any thread may call this function.
 */
zkl_status zkl_lock_set_event_callback(zkl_lock *lock, zkl_event_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Selects the thread that calls the callbacks for events and revocation requests. If `poll` is 0, the library calls the
 * callbacks on its event thread. The default is 0. If `poll` is 1, the program must call zkl_client_dispatch_events whenever
 * the descriptor that zkl_client_event_fd returns is readable.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_config_set_poll_events(zkl_config *config, int32_t poll);

/**
 * Gets the event descriptor of a client, for poll, select, epoll and event loops. The descriptor is readable while callbacks
 * are pending (level-triggered), and becomes readable when the client is freed. The descriptor belongs to the library, and the
 * program must not read, write or close it. The library closes the descriptor when it closes the client. The kernel then
 * removes the closed descriptor from every epoll set. If one thread can free the client while another thread polls, the
 * polling thread must poll a duplicate of the descriptor. dup() creates such a duplicate.
 *
 * Returns: the descriptor, which is 0 or more.
 * On failure, the function returns the same statuses as zkl_client_dispatch_events.
 * Does not block. Any thread may call this function.
 */
int zkl_client_event_fd(const zkl_client *client);

/**
 * Delivers the queued events and revocation requests of a client. The function calls the callbacks on the calling thread, in
 * the order in which the events and requests occurred. Events that the client queues during the call stay queued for the next
 * call. Only one thread at a time delivers a client's events. The call delivers nothing if another thread is delivering events
 * of this client, or if a client callback makes the call.
 *
 * Returns: ZKL_OK, with the number of delivered events and revocation requests in `*count_out`. On failure:
 * - ZKL_E_INVALID if the client does not poll its events (zkl_config_set_poll_events), or if `count_out` is NULL.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 *
 * Blocks while the callbacks run. Any thread may call this function.
 */
zkl_status zkl_client_dispatch_events(zkl_client *client, int32_t *count_out);

/* ==== Revocation ====
 *
 * Requesting that a holder releases its lock, and reacting to such a request.
 */

/**
 * A callback that receives revocation requests for a lock. The callback must return normally. A callback must not throw an
 * exception or call longjmp.
 */
typedef void (*zkl_revocable_cb)(void *user, zkl_lock *lock);

/**
 * A callback that receives revocation requests for leases of a semaphore. The callback must return normally. A callback must
 * not throw an exception or call longjmp.
 */
typedef void (*zkl_semaphore_revocable_cb)(void *user, zkl_semaphore *semaphore);

/**
 * Sets the callback that receives revocation requests for a lock. With a revocation request, a program asks the owner of a
 * node to release the lock, or to stop waiting for the lock (zkl_revoke, Curator's Revoker). A revocation request does not
 * release the lock by itself. For each node that receives a request, the library calls `cb` once. The arguments of `cb` are
 * the pointer `user` and the handle of this lock. The library may deliver several queued requests for one node as one request.
 * If more than 1024 requests are queued, the library may drop the oldest requests.
 *
 * The library delivers revocation requests and events on the same thread, in the order in which they occurred. The rules for
 * event callbacks also apply to `cb` (section Callbacks above). A hold of a mutex or a read/write lock belongs to an owner,
 * for example a thread. Only this owner can release the hold, so `cb` should notify the owner.
 *
 * A later call of zkl_set_revocable replaces the callback. If `cb` is NULL, the call removes the callback and calls
 * `user_drop` at once. After the function has returned, the previous callback is not running on another thread, and the
 * library does not call this callback again. If the previous callback itself calls zkl_set_revocable, the function does not
 * wait. A call with a NULL `cb` also waits for the previous callback if it fails with ZKL_E_CLOSED, because the callback of a
 * closed lock can still be running.
 *
 * If `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced, or after the lock or its client is
 * freed. The library calls `user_drop` only once, after the last call of `cb` has returned. If the program frees the lock when
 * the library is about to call `cb`, the library can still make that call.
 *
 * The callback of a multi-lock replaces the callbacks of all its member locks. The callback of a multi-lock stays in use until
 * the multi-lock or all of its member locks are freed.
 *
 * Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_INTERNAL. On failure, the library does not
 * use the pointer `user` and does not call `user_drop`.
 * Blocks while the previous callback is running. Any thread may call this function.
 */
zkl_status zkl_set_revocable(zkl_lock *lock, zkl_revocable_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Sets the callback that receives revocation requests for a semaphore's leases. The rules of zkl_set_revocable also apply to
 * the leases of a semaphore. After the program frees the semaphore, the library no longer delivers requests for leases that
 * are still held.
 *
 * Returns: the same statuses as zkl_set_revocable.
 * Blocks while the previous callback is running. Any thread may call this function.
 */
zkl_status zkl_semaphore_set_revocable(zkl_semaphore *semaphore, zkl_semaphore_revocable_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Requests the revocation of a node. The request asks the owner of the node to release the lock or the lease, or to stop
 * waiting. The parameter `node_path` is a path that zkl_participants reports. The owner receives the request only if its
 * program has set a callback (zkl_set_revocable, Curator's makeRevocable). The owner may ignore the request.
 *
 * Returns: ZKL_OK, even if the node does not exist any more; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED,
 * ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
 * Blocks for at most the session timeout. Any thread may call this function.
 */
zkl_status zkl_revoke(zkl_client *client, const char *node_path);

/* ==== Metrics and logs ====
 *
 * The metrics of a client and the log of the library. The page docs/observability.md explains both.
 */

/** The number of buckets in a zkl_histogram. */
#define ZKL_HISTOGRAM_BUCKETS 24

/**
 * The upper bound of the first bucket of a histogram, in nanoseconds. Bucket i has the upper bound ZKL_HISTOGRAM_FIRST_NS <<
 * i.
 */
#define ZKL_HISTOGRAM_FIRST_NS 50000

/** The library logs nothing. This level is the default. */
#define ZKL_LOG_OFF 0

/** Log lines about problems that need action, for example refused credentials. */
#define ZKL_LOG_ERROR 1

/** Log lines about locks, leases, sessions and connections that were lost, or that may be lost soon. */
#define ZKL_LOG_WARN 2

/** Log lines about changes of sessions and connections. */
#define ZKL_LOG_INFO 3

/** Log lines about changes of acquires and holds. */
#define ZKL_LOG_DEBUG 4

/** A log line for each request and for each answer. */
#define ZKL_LOG_TRACE 5

/** A histogram of durations. Later versions do not change this struct. */
typedef struct zkl_histogram {
    /** The number of measured durations. */
    uint64_t count;
    /** The sum of all durations, in nanoseconds. */
    uint64_t sum_ns;
    /**
     * The cumulative buckets. Bucket i counts the durations of at most ZKL_HISTOGRAM_FIRST_NS << i nanoseconds. The upper
     * bounds are 50 us, 100 us and so on, up to 209.7152 s. The last bucket has no upper bound and equals count.
     */
    uint64_t buckets[ZKL_HISTOGRAM_BUCKETS];
} zkl_histogram;

/**
 * A client's metrics at the time of the call. The gauges show the current state of the client. The counters and the histograms
 * show the activity since the client was made. The value of a counter never decreases.
 *
 * If a multi-lock joins its queues in one transaction, the metrics count one acquire, and one hold for each member lock. If a
 * multi-lock is acquired in several steps, each step counts as one acquire for the client that performs the step. The metrics
 * do not count calls with invalid arguments.
 */
typedef struct zkl_metrics {
    /**
     * The number of bytes that zkl_client_metrics wrote. Later versions only add fields at the end. The function
     * zkl_client_metrics did not write any field beyond this number of bytes.
     */
    uint32_t size;
    /** The state of the session: a ZKL_STATE_*. */
    int32_t state;
    /** The negotiated session timeout in milliseconds. */
    int64_t session_timeout_ms;
    /** The current number of holds. The number includes uncertain holds, but not lost holds. */
    uint64_t held;
    /** The current number of waiting acquires. */
    uint64_t waiting;
    /**
     * The current number of nodes that the client is removing from queues. The number includes a node until a server confirms
     * its removal.
     */
    uint64_t leaving;
    /** The number of watches that a server keeps for the session, as far as the client knows. */
    uint64_t watches;
    /** The number of acquires that succeeded with a new hold. */
    uint64_t acquires_ok;
    /** The number of acquires that ended with ZKL_E_TIMEOUT because other participants were ahead. */
    uint64_t acquires_timeout;
    /**
     * The number of acquires that ended with ZKL_E_CANCELED because the program canceled them, or with ZKL_E_CLOSED because
     * the program freed the handle or the client.
     */
    uint64_t acquires_canceled;
    /** The number of acquires that ended with ZKL_E_CONNECTION because no server answered in time. */
    uint64_t acquires_connection;
    /** The number of acquires that failed for any other reason. */
    uint64_t acquires_failed;
    /** The number of acquires that re-entered a hold. */
    uint64_t reentries;
    /**
     * The number of acquires that succeeded after they had waited for another participant. The number includes local
     * hand-overs.
     */
    uint64_t handovers;
    /** The number of local hand-overs. */
    uint64_t local_passes;
    /** The number of holds that the program released, or that ended because the program freed the handle or the client. */
    uint64_t releases;
    /** The number of holds that were lost because their session ended. */
    uint64_t losses_session;
    /** The number of holds that were lost because another client deleted their node. */
    uint64_t losses_deleted;
    /** The number of times that a hold became ZKL_LOCK_SUSPENDED. */
    uint64_t suspensions;
    /** The number of times that a hold became ZKL_LOCK_UNCERTAIN. */
    uint64_t uncertainties;
    /**
     * The number of times that a server refused to delete a node of this client. The client repeats the request until the
     * server deletes the node.
     */
    uint64_t deletes_refused;
    /** The number of attempts to connect to a server. */
    uint64_t connection_attempts;
    /**
     * The number of established connections. A connection is established when the server has accepted the session and the
     * credentials.
     */
    uint64_t connections;
    /** The number of established connections that replaced an earlier connection. */
    uint64_t reconnects;
    /** The number of established connections that were lost. */
    uint64_t connections_lost;
    /** The number of sessions that began. */
    uint64_t sessions;
    /**
     * The number of sessions that ended even though the program did not close the client. All holds of such a session were
     * lost.
     */
    uint64_t sessions_lost;
    /** The number of requests sent to servers, not counting pings and handshakes. */
    uint64_t requests;
    /** The number of requests that servers answered. */
    uint64_t answers;
    /** The number of pings sent to servers. */
    uint64_t pings;
    /** The number of watch events that servers sent. */
    uint64_t watch_events;
    /** The number of bytes sent to servers, including bytes that the client is about to send. */
    uint64_t bytes_sent;
    /** The number of bytes received from servers. */
    uint64_t bytes_received;
    /** The durations of successful acquires, from the call until the owner held the lock or the leases. */
    zkl_histogram waits;
    /** The durations of holds that have ended, from the end of the acquire to the release or the loss. */
    zkl_histogram holds;
    /**
     * The durations of requests, from the moment when the client sent the request to the moment when the client read the
     * answer.
     */
    zkl_histogram round_trips;
} zkl_metrics;

/** A field of a log line. Later versions do not change this struct. */
typedef struct zkl_log_field {
    /** The name of the field, for example path, token, session, server or cause. */
    const char *name;
    /** The value of the field as text. */
    const char *value;
} zkl_log_field;

/** A log line. The struct and the memory that it points to belong to the library. Both are valid until the callback returns. */
typedef struct zkl_log {
    /**
     * The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
     * field, the program must check that size includes the field.
     */
    uint32_t size;
    /** The level of the line: a ZKL_LOG_*. */
    int32_t level;
    /** The wall-clock time at which the line was written, in nanoseconds since 1970. */
    int64_t time_ns;
    /**
     * The subject of the line: "zklock::session", "zklock::lock", "zklock::request", or "zklock::log" for the log itself.
     * Lines with other targets report internal problems that should not occur.
     */
    const char *target;
    /** The message and the fields as printable text, without a newline at the end. */
    const char *line;
    /** The message without the fields. All lines of one kind have the same message. */
    const char *message;
    /** The fields. */
    const zkl_log_field *fields;
    /** The number of fields. */
    size_t field_count;
} zkl_log;

/**
 * A callback that receives each log line. The callback must return normally. A callback must not throw an exception or call
 * longjmp.
 */
typedef void (*zkl_log_cb)(void *user, const zkl_log *log);

/**
 * Gets the current metrics. The metrics are counters, histograms and gauges. The call sends no request, and works even after
 * the session was lost. The page docs/observability.md explains which metrics to watch.
 *
 * The parameter `size` is the program's sizeof(zkl_metrics), and must be at least 4. The function writes size bytes to
 * `metrics_out`, or fewer bytes if the library's struct is smaller. In both cases, the first field contains the number of
 * bytes that the function wrote. If the library is older than the header that the program was compiled with, the function does
 * not write the newer fields. A program that may run with an older library should set the struct to zero before the call.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_client_metrics(const zkl_client *client, size_t size, zkl_metrics *metrics_out);

/**
 * Gets a client's metrics in the Prometheus text format (exposition format, version 0.0.4). An HTTP server should serve the
 * text with the content type "text/plain; version=0.0.4". The text is about 12 KiB long, and it can become longer between two
 * calls. Provide a buffer that is larger than the size that an earlier call reported, or repeat the call if the text does not
 * fit.
 *
 * The function adds the given labels to every metric. Labels distinguish this client from other clients. Labels use the
 * Prometheus format: name="value",other="value". A value can contain the escapes \\, \" and \n. If `labels` is NULL, the
 * function adds no labels. The function writes the text, with a terminating NUL, to the buffer `buf`. This buffer has `size`
 * bytes. The function stores the required buffer size, in bytes, in `*needed_out`. If `size` is 0, `buf` may be NULL.
 *
 * Returns: ZKL_OK. On failure:
 * - ZKL_E_BUFFER if the text does not fit. A call that fails with ZKL_E_BUFFER writes only `*needed_out`.
 * - ZKL_E_INVALID if an argument is not valid, for example if Prometheus would not accept the labels.
 * - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
zkl_status zkl_client_prometheus(const zkl_client *client, const char *labels, char *buf, size_t size, size_t *needed_out);

/**
 * Sets the callback for log lines. The callback receives the log lines of all clients of this process. The parameter `level`
 * (a ZKL_LOG_*) is the most detailed level that the library logs. For each log line, the library calls `cb` and passes `user`
 * to it. A later call of zkl_set_log_callback replaces the callback. When the function returns, the previous callback is not
 * running any more. If `cb` is NULL or `level` is ZKL_LOG_OFF, the call turns logging off. Logging that is turned off costs
 * nothing. Before a call turns logging off, it waits up to two seconds for the delivery of queued lines.
 *
 * The event thread calls `cb` for one line at a time, even if clients poll their events. With zkl_set_log_polling, the
 * callback instead runs on the thread that calls zkl_log_dispatch. The event thread runs as long as a log callback is set. The
 * lines of each client arrive in the order in which the logged events occurred. The Callbacks section above describes which
 * functions `cb` may call. If `cb` itself causes log lines on the event thread, the library delivers only the warnings and
 * errors among these lines.
 *
 * While `cb` runs, the library queues up to 4096 lines. If the queue is full, the library drops further lines. The library
 * later logs the number of dropped lines with the target "zklock::log".
 *
 * If `user_drop` is not NULL, the library calls `user_drop` after the callback is replaced or removed. The library calls
 * `user_drop` only once, after the last call of `cb` has returned. If `cb` is NULL or `level` is ZKL_LOG_OFF, the library
 * calls `user_drop` at once. In a forked child, the library calls neither the callback nor the `user_drop` of the parent.
 *
 * Returns: ZKL_OK. If the call fails, the library does not use the pointer `user` and does not call `user_drop`. On failure:
 * - ZKL_E_INVALID if `level` is not a ZKL_LOG_*.
 * - ZKL_E_UNSUPPORTED if the library is linked into a Rust program that has its own tracing subscriber.
 * - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Blocks while the previous callback is running, unless the previous callback itself makes the call. A call that turns logging
 * off also waits for queued lines, for at most two seconds. Any thread may call this function.
 */
zkl_status zkl_set_log_callback(int32_t level, zkl_log_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Sets the callback for log lines, for programs that dispatch log lines themselves. The program must watch the descriptor that
 * zkl_log_event_fd returns, and must call zkl_log_dispatch when the descriptor is readable. No library thread calls `cb` or
 * `user_drop`. This function is for programs that cannot run a callback on a library thread. All other rules of
 * zkl_set_log_callback also apply to this function. The functions zkl_set_log_polling and zkl_set_log_callback each replace
 * the callback that the other function set. Before a call turns logging off, it delivers the queued lines on the calling
 * thread.
 *
 * Returns: the same statuses as zkl_set_log_callback.
 * Blocks while the previous callback is running, unless the previous callback itself makes the call. Any thread may call this
 * function.
 */
zkl_status zkl_set_log_polling(int32_t level, zkl_log_cb cb, void *user, zkl_user_drop user_drop);

/**
 * Gets the descriptor of the log, for poll, select, epoll and event loops. The descriptor is readable while log lines are queued
 * (level-triggered). The descriptor belongs to the library, and the program must not read, write or close it. The library
 * closes the descriptor when zkl_set_log_polling or zkl_set_log_callback replaces or removes the callback.
 *
 * Returns: the descriptor, which is 0 or more. Every call returns the same descriptor until the callback is replaced, unless the
 * program has closed the descriptor. On failure:
 * - ZKL_E_INVALID if no callback is set with zkl_set_log_polling.
 * - Other failures: ZKL_E_EXHAUSTED, ZKL_E_INTERNAL.
 *
 * Does not block. Any thread may call this function.
 */
int zkl_log_event_fd(void);

/**
 * Delivers the queued log lines. The function calls the zkl_set_log_polling callback on the calling thread, once per line,
 * for at most 4096 lines. Only one thread at a time delivers log lines. The call delivers nothing if another thread is
 * delivering log lines, or if the callback itself makes the call.
 *
 * Returns: ZKL_OK, with the number of delivered lines in `*count_out`. On failure:
 * - ZKL_E_INVALID if no callback is set with zkl_set_log_polling, or if `count_out` is NULL.
 * - ZKL_E_INTERNAL.
 *
 * Blocks while the callback runs. Any thread may call this function.
 */
zkl_status zkl_log_dispatch(int32_t *count_out);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* ZKLOCK_H */
