/* A store that does not rely on the lock alone: it refuses late writes (docs/fencing.md). The files fenced_sqlite.c and
 * fenced_zookeeper.c implement such stores for the program fenced.c. */
#ifndef FENCED_STORE_H
#define FENCED_STORE_H

#include <stdint.h>

struct store;

/* The proof that a holder passes with each write. */
struct proof {
    int64_t token;         /* zkl_fencing_token() */
    const char *node_path; /* zkl_lock_node_path() */
};

/* Opens the store: a file, or the servers of an ensemble. Ends the program if the store cannot be opened. */
struct store *store_open(const char *where);

/* Writes the value, unless a later holder has already written. Returns 1 if the store wrote the value, and 0 if it refused the write.
 * Ends the program if the result is unknown. */
int store_put(struct store *store, const char *resource, const char *value, struct proof proof);

void store_close(struct store *store);

#endif
