/* A ZooKeeper server in memory, for tests of programs that use zklock: -lzklock_standalone. It does not replicate, and writes
 * nothing to disk; when it is stopped, everything is gone.
 *
 *     zkl_standalone *server;
 *     zkl_client *client;
 *     if (zkl_standalone_start(NULL, &server) != ZKL_OK) {
 *         fprintf(stderr, "%s\n", zkl_standalone_last_error_message());
 *         exit(1);
 *     }
 *     zkl_client_new(zkl_standalone_address(server), NULL, &client);
 *     // ...
 *     zkl_standalone_expire(server, zkl_client_session_id(client));    // and the client's locks are lost
 *     // ...
 *     zkl_client_free(client);
 *     zkl_standalone_stop(server);
 *
 * The conventions are those of zklock.h, but for one: what went wrong is told by zkl_standalone_last_error_message, since the
 * libraries are two.
 *
 * Sessions   A fault is for the client of one session, as zkl_client_session_id has it, also on the connections that it makes
 *            later; session_id 0 stands for all clients, also those that come later. It is in force when the call returns.
 *            Sessions may be as short as 100 ms (zkl_config_set_session_timeout_ms).
 * Linking    Of libzklock and libzklock_standalone one may be static, not both: each has Rust's library in it.
 * Fork       The server is its parent's: in a child of fork() its handle gives ZKL_E_FORKED.
 */

#ifndef ZKLOCK_STANDALONE_H
#define ZKLOCK_STANDALONE_H

/* Made by cbindgen from bindings/standalone/src. To change it: ZKL_BLESS=1 cargo test -p zklock-standalone-c --test header */

#include "zklock.h"

/** Creates a node; older clients do. */
#define ZKL_OP_CREATE 1

/** Deletes a node: how a lock leaves the queue. */
#define ZKL_OP_DELETE 2

/** Reads a node, and watches it: how a lock waits. */
#define ZKL_OP_GET_DATA 4

/** Keeps an idle session alive. */
#define ZKL_OP_PING 11

/** Lists the nodes of a directory: how a lock finds its place. */
#define ZKL_OP_GET_CHILDREN2 12

/** Does several things at once: how a hold is kept alive. */
#define ZKL_OP_MULTI 14

/** Creates a node: how a lock joins the queue. */
#define ZKL_OP_CREATE2 15

/** Creates a directory that goes when it is empty. */
#define ZKL_OP_CREATE_CONTAINER 19

/** A ZooKeeper server in this process, on a thread of its own. */
typedef struct zkl_standalone zkl_standalone;

#ifdef __cplusplus
extern "C" {
#endif  /* __cplusplus */

/**
 * Starts a server. The address is a string like "127.0.0.1:2181", where port 0 stands for a free one; NULL stands for a free
 * port on the loopback interface. The server written to *server_out is to be stopped with zkl_standalone_stop.
 *
 * Returns: ZKL_OK; ZKL_E_INVALID where the address is none; ZKL_E_SERVER where nobody can listen there; ZKL_E_EXHAUSTED,
 * ZKL_E_INTERNAL.
 * Blocks no longer than it takes to resolve a host name; any thread.
 */
zkl_status zkl_standalone_start(const char *address, zkl_standalone **server_out);

/**
 * Where the server listens, as zkl_client_new wants it: like "127.0.0.1:2181".
 *
 * Returns: a text that stays until the server is stopped; NULL on failure, which zkl_standalone_last_error_message explains.
 * Does not block; any thread.
 */
const char *zkl_standalone_address(const zkl_standalone *server);

/**
 * Stops a server and frees it: its connections and its port are closed, its data is forgotten. NULL is allowed. In a forked
 * child the parent's server is left alone.
 *
 * Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
 * Blocks for a moment, until the server's thread has ended; any thread.
 */
void zkl_standalone_stop(zkl_standalone *server);

/**
 * What went wrong in this thread's last call of this library. (Calls of libzklock have zkl_last_error_message.)
 *
 * Returns: a text, never NULL; empty if the last call succeeded. It is UTF-8, cut after 1023 bytes, and stays valid until
 * the thread's next call of this library, except this one.
 * Does not block; each thread has its own.
 */
const char *zkl_standalone_last_error_message(void);

/**
 * Ends a session at once, as if it had been silent for too long: its locks are lost.
 *
 * Returns: ZKL_OK, ZKL_E_INVALID where there is no such session, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_expire(zkl_standalone *server, int64_t session_id);

/**
 * Resets a client's connection. The client may come back, and its session lives on.
 *
 * Returns: as zkl_standalone_expire.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_cut(zkl_standalone *server, int64_t session_id);

/**
 * Lets a client's connection stand still, and those that it makes later: what is sent, either way, arrives when it is thawed.
 * The server hears nothing of the client, so the session expires in time.
 *
 * Returns: as zkl_standalone_expire.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_freeze(zkl_standalone *server, int64_t session_id);

/**
 * Ends zkl_standalone_freeze, also of a session that has expired meanwhile: its client can now be told.
 *
 * Returns: as zkl_standalone_expire.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_thaw(zkl_standalone *server, int64_t session_id);

/**
 * Delays everything that a client is sent from now on, by this many milliseconds; 0 ends it.
 *
 * Returns: as zkl_standalone_expire; ZKL_E_INVALID for a negative delay.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_delay_ms(zkl_standalone *server, int64_t session_id, int32_t ms);

/**
 * Lets the reply to a client's next request of this kind be lost, and its connection with it, though the request is carried
 * out. The kind is a ZKL_OP_*, or any other of ZooKeeper's numbers for a request.
 *
 * Returns: as zkl_standalone_expire; ZKL_E_INVALID for a number that is no request.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_lose_reply(zkl_standalone *server, int64_t session_id, int32_t op);

/**
 * Closes all connections, and takes none until zkl_standalone_restart. Meanwhile no session expires.
 *
 * Returns: ZKL_OK, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_halt(zkl_standalone *server);

/**
 * Closes all connections and goes on, with the same data at the same address. All sessions have their whole time once more.
 *
 * Returns: as zkl_standalone_halt; ZKL_E_SERVER where somebody else listens there now.
 * Does not block; any thread.
 */
zkl_status zkl_standalone_restart(zkl_standalone *server);

#ifdef __cplusplus
}  /* extern "C" */
#endif  /* __cplusplus */

#endif  /* ZKLOCK_STANDALONE_H */
