/* A store in SQLite that keeps the largest fencing token of each resource, and refuses smaller tokens in the transaction that
 * writes: link with -lsqlite3 (3.24 or later). */
#include "fenced_store.h"

#include <stdio.h>
#include <stdlib.h>

#include <sqlite3.h>

struct store {
    sqlite3 *db;
};

/* Ends the program if a call has not returned the expected code. */
static void check(struct store *store, int expected, int result)
{
    if (result != expected) {
        fprintf(stderr, "sqlite: %s\n", sqlite3_errmsg(store->db));
        exit(1);
    }
}

static void run(struct store *store, const char *sql)
{
    check(store, SQLITE_OK, sqlite3_exec(store->db, sql, NULL, NULL, NULL));
}

struct store *store_open(const char *where)
{
    struct store *store = malloc(sizeof *store);
    if (store == NULL) exit(1);
    check(store, SQLITE_OK, sqlite3_open(where, &store->db));
    check(store, SQLITE_OK, sqlite3_busy_timeout(store->db, 10000));
    run(store, "CREATE TABLE IF NOT EXISTS fence (resource TEXT PRIMARY KEY, token INTEGER NOT NULL);"
               "CREATE TABLE IF NOT EXISTS item (resource TEXT PRIMARY KEY, value TEXT NOT NULL)");
    return store;
}

/* Begins a transaction for the holder with this token. If the store has seen a larger token, returns 0 and begins no transaction. */
static int begin(struct store *store, const char *resource, int64_t token)
{
    sqlite3_stmt *statement;
    run(store, "BEGIN IMMEDIATE");
    check(store, SQLITE_OK,
          sqlite3_prepare_v2(store->db,
                             "INSERT INTO fence (resource, token) VALUES (?1, ?2) ON CONFLICT (resource) "
                             "DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token",
                             -1, &statement, NULL));
    check(store, SQLITE_OK, sqlite3_bind_text(statement, 1, resource, -1, SQLITE_STATIC));
    check(store, SQLITE_OK, sqlite3_bind_int64(statement, 2, token));
    check(store, SQLITE_DONE, sqlite3_step(statement));
    check(store, SQLITE_OK, sqlite3_finalize(statement));
    if (sqlite3_changes(store->db) == 1) return 1;
    run(store, "ROLLBACK");
    return 0;
}

int store_put(struct store *store, const char *resource, const char *value, struct proof proof)
{
    sqlite3_stmt *statement;
    if (!begin(store, resource, proof.token)) return 0;
    /* The holder may write any data in this transaction. */
    check(store, SQLITE_OK,
          sqlite3_prepare_v2(store->db, "INSERT OR REPLACE INTO item (resource, value) VALUES (?1, ?2)", -1, &statement,
                             NULL));
    check(store, SQLITE_OK, sqlite3_bind_text(statement, 1, resource, -1, SQLITE_STATIC));
    check(store, SQLITE_OK, sqlite3_bind_text(statement, 2, value, -1, SQLITE_STATIC));
    check(store, SQLITE_DONE, sqlite3_step(statement));
    check(store, SQLITE_OK, sqlite3_finalize(statement));
    run(store, "COMMIT");
    return 1;
}

void store_close(struct store *store)
{
    check(store, SQLITE_OK, sqlite3_close(store->db));
    free(store);
}
