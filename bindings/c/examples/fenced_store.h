/* A store that does not rely on the lock: it refuses who writes late. See docs/fencing.md. Two of them stand beside this file,
 * fenced_sqlite.c and fenced_zookeeper.c, for the program fenced.c. */
#ifndef FENCED_STORE_H
#define FENCED_STORE_H

#include <stdint.h>

struct store;

/* What a holder shows with each write. */
struct proof {
    int64_t token;         /* zkl_fencing_token() */
    const char *node_path; /* zkl_lock_node_path() */
};

/* Opens the store: a file, or the servers of an ensemble. Ends the program if it can't be opened. */
struct store *store_open(const char *where);

/* Writes, unless a later holder was here before: then nothing is written. Returns 1 if it was written, 0 if it was refused, and ends
 * the program where neither is known. */
int store_put(struct store *store, const char *resource, const char *value, struct proof proof);

void store_close(struct store *store);

#endif
