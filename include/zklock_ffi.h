/* The declarations of zklock.h for foreign function interfaces without a preprocessor, for example cffi, PHP's FFI, Fiddle and
 * koffi. Programs in C and C++ include zklock.h instead, which also contains the documentation. Each function is on one line.
 *
 * The types int32_t, int64_t, uint8_t, uint32_t, uint64_t and size_t must exist. A C compiler finds them in <stdint.h> and
 * <stddef.h>. An enum cannot contain two constants of zklock.h: ZKL_VERSION is "0.1.0", and the owner number
 * ZKL_OWNER_THREAD is 18446744073709551615, which is the largest number of the type uint64_t.
 */

/* Generated from zklock.h. To generate it again: ZKL_BLESS=1 cargo test -p zklock-c --test header */

enum {
    ZKL_VERSION_MAJOR = 0,
    ZKL_VERSION_MINOR = 1,
    ZKL_VERSION_PATCH = 0,
    ZKL_VERSION_NUMBER = 100,
    ZKL_OK = 0,
    ZKL_E_INVALID = -1,
    ZKL_E_HANDLE = -2,
    ZKL_E_TIMEOUT = -3,
    ZKL_E_CANCELED = -4,
    ZKL_E_NOT_OWNER = -5,
    ZKL_E_LOST = -6,
    ZKL_E_DEADLOCK = -7,
    ZKL_E_CLOSED = -8,
    ZKL_E_CONNECTION = -9,
    ZKL_E_AUTH = -10,
    ZKL_E_DENIED = -11,
    ZKL_E_FORKED = -12,
    ZKL_E_BUFFER = -13,
    ZKL_E_EXHAUSTED = -14,
    ZKL_E_FOREIGN = -15,
    ZKL_E_SERVER = -16,
    ZKL_E_INTERNAL = -17,
    ZKL_E_UNSUPPORTED = -18,
    ZKL_E_PENDING = -19,
    ZKL_STATE_CONNECTING = 0,
    ZKL_STATE_CONNECTED = 1,
    ZKL_STATE_SUSPENDED = 2,
    ZKL_STATE_LOST = 3,
    ZKL_STATE_CLOSED = 4,
    ZKL_LOCK_FREE = 10,
    ZKL_LOCK_HELD = 11,
    ZKL_LOCK_SUSPENDED = 12,
    ZKL_LOCK_UNCERTAIN = 13,
    ZKL_LOCK_LOST = 14,
    ZKL_OWNER_NEW = 0,
    ZKL_ONCE_RETRY_FAILED = 1,
    ZKL_RUN_RUNNING = 0,
    ZKL_RUN_SUCCEEDED = 1,
    ZKL_RUN_FAILED = 2,
    ZKL_WAITS_FOR_CONNECTION = 0,
    ZKL_WAITS_FOR_SERVER = 1,
    ZKL_WAITS_FOR_NODE = 2,
    ZKL_WAITS_FOR_LEASES = 3,
    ZKL_WAITS_FOR_COUNT = 4,
    ZKL_WAITS_FOR_OWN_HOLD = 5,
    ZKL_EVENT_CLIENT = 0,
    ZKL_EVENT_LOCK = 1,
    ZKL_LISTEN_ALL = 0,
    ZKL_LISTEN_LOSS = 1,
    ZKL_HISTOGRAM_BUCKETS = 24,
    ZKL_HISTOGRAM_FIRST_NS = 50000,
    ZKL_LOG_OFF = 0,
    ZKL_LOG_ERROR = 1,
    ZKL_LOG_WARN = 2,
    ZKL_LOG_INFO = 3,
    ZKL_LOG_DEBUG = 4,
    ZKL_LOG_TRACE = 5
};

typedef int32_t zkl_status;
const char *zkl_version(void);
int32_t zkl_version_number(void);
const char *zkl_strerror(int32_t status);
const char *zkl_last_error_message(void);
int32_t zkl_status_errno(int32_t status);
typedef struct zkl_config zkl_config;
typedef int64_t (*zkl_auth_cb)(void *user, char *buf, size_t size);
typedef void (*zkl_user_drop)(void *user);
zkl_config *zkl_config_new(void);
void zkl_config_free(zkl_config *config);
zkl_status zkl_config_set_session_timeout_ms(zkl_config *config, int32_t ms);
zkl_status zkl_config_set_connect_timeout_ms(zkl_config *config, int32_t ms);
zkl_status zkl_config_set_lease_margin_ms(zkl_config *config, int32_t ms);
zkl_status zkl_config_set(zkl_config *config, const char *name, const char *value);
zkl_status zkl_config_load(zkl_config *config, const char *file);
zkl_status zkl_config_add_auth(zkl_config *config, const char *scheme, const void *auth, size_t len);
zkl_status zkl_config_set_auth_callback(zkl_config *config, const char *scheme, zkl_auth_cb cb, void *user, zkl_user_drop user_drop);
zkl_status zkl_config_set_wait_for_kazoo(zkl_config *config, int32_t wait);
typedef struct zkl_client zkl_client;
zkl_status zkl_client_new(const char *servers, const zkl_config *config, zkl_client **client_out);
void zkl_client_free(zkl_client *client);
void zkl_client_free_nowait(zkl_client *client);
zkl_status zkl_client_set_servers(zkl_client *client, const char *servers);
int32_t zkl_client_state(const zkl_client *client);
int64_t zkl_client_session_id(const zkl_client *client);
typedef struct zkl_lock zkl_lock;
zkl_status zkl_mutex_new(zkl_client *client, const char *path, zkl_lock **lock_out);
zkl_status zkl_mutex_set_local_handover(zkl_lock *lock, int32_t max_passes);
zkl_status zkl_semaphore_mutex_new(zkl_client *client, const char *path, zkl_lock **lock_out);
zkl_status zkl_rwlock_new(zkl_client *client, const char *path, zkl_lock **read_out, zkl_lock **write_out);
zkl_status zkl_multi_new(zkl_lock *const *locks, size_t count, zkl_lock **lock_out);
zkl_status zkl_multi_new_in_order(zkl_lock *const *locks, size_t count, zkl_lock **lock_out);
void zkl_lock_free(zkl_lock *lock);
zkl_status zkl_acquire(zkl_lock *lock);
zkl_status zkl_acquire_timeout(zkl_lock *lock, int64_t timeout_ms);
zkl_status zkl_release(zkl_lock *lock);
zkl_status zkl_release_nowait(zkl_lock *lock);
zkl_status zkl_cancel(zkl_lock *lock);
int32_t zkl_is_held(const zkl_lock *lock);
int32_t zkl_is_held_in_process(const zkl_lock *lock);
int32_t zkl_lock_state(const zkl_lock *lock);
int32_t zkl_lock_state_in_process(const zkl_lock *lock);
zkl_status zkl_remaining_ms(const zkl_lock *lock, int64_t *remaining_ms_out);
zkl_status zkl_wait_lost(zkl_lock *lock, int64_t timeout_ms);
zkl_status zkl_lock_set_data(zkl_lock *lock, const void *data, size_t len);
zkl_status zkl_lock_node_path(const zkl_lock *lock, char *buf, size_t size, size_t *needed_out);
typedef struct zkl_hold zkl_hold;
typedef struct zkl_hold_info {
    uint32_t size;
    int32_t state;
    int64_t token;
    int64_t fencing_pass;
    int64_t remaining_ms;
} zkl_hold_info;
zkl_status zkl_hold_acquire(zkl_lock *lock, uint64_t owner, int64_t timeout_ms, zkl_hold **hold_out);
zkl_status zkl_hold_view(const zkl_hold *hold, zkl_hold_info *info_out);
int32_t zkl_hold_is_held(const zkl_hold *hold);
zkl_status zkl_hold_wait_lost(zkl_hold *hold, int64_t timeout_ms);
zkl_status zkl_hold_release(zkl_hold *hold);
zkl_status zkl_hold_release_nowait(zkl_hold *hold);
zkl_status zkl_hold_node_path(const zkl_hold *hold, size_t index, char *buf, size_t size, size_t *needed_out);
zkl_status zkl_fencing_token(const zkl_lock *lock, int64_t *token_out);
zkl_status zkl_fencing_pass(const zkl_lock *lock, int64_t *fencing_pass_out);
zkl_status zkl_fence_check(zkl_client *client, const char *path, int64_t token, int32_t *valid_out);
typedef struct zkl_semaphore zkl_semaphore;
zkl_status zkl_semaphore_new(zkl_client *client, const char *path, int32_t max_leases, zkl_semaphore **semaphore_out);
zkl_status zkl_semaphore_new_counted(zkl_client *client, const char *path, const char *count_path, int32_t initial, zkl_semaphore **semaphore_out);
void zkl_semaphore_free(zkl_semaphore *semaphore);
zkl_status zkl_semaphore_acquire_timeout(zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms, zkl_hold **hold_out);
zkl_status zkl_semaphore_cancel(zkl_semaphore *semaphore);
zkl_status zkl_semaphore_set_data(zkl_semaphore *semaphore, const void *data, size_t len);
zkl_status zkl_shared_count_get(zkl_client *client, const char *count_path, int32_t *value_out);
zkl_status zkl_shared_count_set(zkl_client *client, const char *count_path, int32_t value);
typedef struct zkl_run zkl_run;
typedef struct zkl_past_run {
    uint32_t size;
    int32_t result;
    int64_t period_ms;
    int64_t started_ms;
    int64_t ended_ms;
    int64_t token;
    const char *owner;
    const char *failure;
    const char *node_path;
} zkl_past_run;
typedef void (*zkl_past_runs_cb)(void *user, const zkl_past_run *run);
zkl_status zkl_hold_begin_run(zkl_hold *hold, const char *period, const char *zone, uint32_t flags, zkl_run **run_out);
zkl_status zkl_run_finish(zkl_run *run, const char *failure);
zkl_status zkl_run_take_back(zkl_run *run);
void zkl_run_free(zkl_run *run);
zkl_status zkl_past_runs(zkl_client *client, const char *path, zkl_past_runs_cb cb, void *user);
typedef struct zkl_participant {
    uint32_t size;
    int32_t holds;
    int64_t session_id;
    int64_t czxid;
    const char *node_path;
    const uint8_t *data;
    size_t data_len;
} zkl_participant;
typedef void (*zkl_participants_cb)(void *user, const zkl_participant *participant);
typedef struct zkl_wait {
    uint32_t size;
    int32_t waits_for;
    const char *node_path;
    const char *ahead;
    int64_t session_id;
    uint64_t count;
    int64_t waited_ms;
    int64_t left_ms;
} zkl_wait;
typedef void (*zkl_waiting_cb)(void *user, const zkl_wait *wait);
zkl_status zkl_participants(zkl_lock *lock, zkl_participants_cb cb, void *user);
zkl_status zkl_queue(zkl_lock *lock, zkl_participants_cb cb, void *user);
zkl_status zkl_semaphore_participants(zkl_semaphore *semaphore, zkl_participants_cb cb, void *user);
zkl_status zkl_waiting(const zkl_lock *lock, zkl_waiting_cb cb, void *user);
zkl_status zkl_semaphore_waiting(const zkl_semaphore *semaphore, zkl_waiting_cb cb, void *user);
typedef struct zkl_completion_queue zkl_completion_queue;
typedef struct zkl_op zkl_op;
zkl_status zkl_acquire_start(zkl_lock *lock, uint64_t owner, int64_t timeout_ms, zkl_op **op_out);
zkl_status zkl_semaphore_acquire_start(zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms, zkl_op **op_out);
int zkl_op_fd(const zkl_op *op);
zkl_status zkl_op_result(zkl_op *op);
const char *zkl_op_message(const zkl_op *op);
zkl_status zkl_op_wait(zkl_op *op, int64_t timeout_ms);
zkl_status zkl_check_may_wait(void);
zkl_status zkl_op_cancel(zkl_op *op);
zkl_status zkl_op_hold(zkl_op *op, zkl_hold **hold_out);
zkl_status zkl_op_value(const zkl_op *op, int64_t *value_out);
zkl_status zkl_op_participant(const zkl_op *op, size_t index, const zkl_participant **participant_out);
zkl_status zkl_op_past_run(const zkl_op *op, size_t index, const zkl_past_run **run_out);
zkl_status zkl_op_run(zkl_op *op, zkl_run **run_out);
zkl_status zkl_op_client(zkl_op *op, zkl_client **client_out);
zkl_status zkl_op_semaphore(zkl_op *op, zkl_semaphore **semaphore_out);
void zkl_op_free(zkl_op *op);
zkl_status zkl_completion_queue_new(zkl_completion_queue **queue_out);
int zkl_completion_queue_fd(const zkl_completion_queue *queue);
zkl_status zkl_op_notify(zkl_op *op, zkl_completion_queue *queue, uint64_t key);
zkl_status zkl_completion_queue_take(zkl_completion_queue *queue, uint64_t *keys, size_t count, size_t *taken_out);
void zkl_completion_queue_free(zkl_completion_queue *queue);
zkl_status zkl_client_start(const char *servers, const zkl_config *config, zkl_op **op_out);
zkl_status zkl_client_close_start(zkl_client *client, zkl_op **op_out);
zkl_status zkl_hold_release_start(zkl_hold *hold, zkl_op **op_out);
zkl_status zkl_participants_start(zkl_lock *lock, zkl_op **op_out);
zkl_status zkl_queue_start(zkl_lock *lock, zkl_op **op_out);
zkl_status zkl_semaphore_participants_start(zkl_semaphore *semaphore, zkl_op **op_out);
zkl_status zkl_revoke_start(zkl_client *client, const char *node_path, zkl_op **op_out);
zkl_status zkl_fence_check_start(zkl_client *client, const char *path, int64_t token, zkl_op **op_out);
zkl_status zkl_shared_count_get_start(zkl_client *client, const char *count_path, zkl_op **op_out);
zkl_status zkl_shared_count_set_start(zkl_client *client, const char *count_path, int32_t value, zkl_op **op_out);
zkl_status zkl_semaphore_new_counted_start(zkl_client *client, const char *path, const char *count_path, int32_t initial, zkl_op **op_out);
zkl_status zkl_hold_wait_lost_start(zkl_hold *hold, zkl_op **op_out);
zkl_status zkl_hold_begin_run_start(zkl_hold *hold, const char *period, const char *zone, uint32_t flags, zkl_op **op_out);
zkl_status zkl_run_finish_start(zkl_run *run, const char *failure, zkl_op **op_out);
zkl_status zkl_run_take_back_start(zkl_run *run, zkl_op **op_out);
zkl_status zkl_past_runs_start(zkl_client *client, const char *path, zkl_op **op_out);
typedef struct zkl_listener zkl_listener;
typedef struct zkl_event {
    uint32_t size;
    int32_t kind;
    int32_t state;
    int32_t previous;
    zkl_lock *lock;
    const char *path;
    int64_t token;
    int64_t fencing_pass;
} zkl_event;
typedef void (*zkl_event_cb)(void *user, const zkl_event *event);
zkl_status zkl_config_set_event_callback(zkl_config *config, zkl_event_cb cb, void *user, zkl_user_drop user_drop);
zkl_status zkl_client_set_event_callback(zkl_client *client, zkl_event_cb cb, void *user, zkl_user_drop user_drop);
zkl_status zkl_client_listen(zkl_client *client, zkl_event_cb cb, void *user, zkl_user_drop user_drop, zkl_listener **listener_out);
zkl_status zkl_lock_listen(zkl_lock *lock, int32_t events, zkl_event_cb cb, void *user, zkl_user_drop user_drop, zkl_listener **listener_out);
zkl_status zkl_hold_listen(zkl_hold *hold, int32_t events, zkl_event_cb cb, void *user, zkl_user_drop user_drop, zkl_listener **listener_out);
void zkl_listener_free(zkl_listener *listener);
zkl_status zkl_lock_set_event_callback(zkl_lock *lock, zkl_event_cb cb, void *user, zkl_user_drop user_drop);
zkl_status zkl_config_set_poll_events(zkl_config *config, int32_t poll);
int zkl_client_event_fd(const zkl_client *client);
zkl_status zkl_client_dispatch_events(zkl_client *client, int32_t *count_out);
typedef void (*zkl_revocable_cb)(void *user, zkl_lock *lock);
typedef void (*zkl_semaphore_revocable_cb)(void *user, zkl_semaphore *semaphore);
zkl_status zkl_set_revocable(zkl_lock *lock, zkl_revocable_cb cb, void *user, zkl_user_drop user_drop);
zkl_status zkl_semaphore_set_revocable(zkl_semaphore *semaphore, zkl_semaphore_revocable_cb cb, void *user, zkl_user_drop user_drop);
zkl_status zkl_revoke(zkl_client *client, const char *node_path);
typedef struct zkl_histogram {
    uint64_t count;
    uint64_t sum_ns;
    uint64_t buckets[24];
} zkl_histogram;
typedef struct zkl_metrics {
    uint32_t size;
    int32_t state;
    int64_t session_timeout_ms;
    uint64_t held;
    uint64_t waiting;
    uint64_t leaving;
    uint64_t watches;
    uint64_t acquires_ok;
    uint64_t acquires_timeout;
    uint64_t acquires_canceled;
    uint64_t acquires_connection;
    uint64_t acquires_failed;
    uint64_t reentries;
    uint64_t handovers;
    uint64_t local_passes;
    uint64_t releases;
    uint64_t losses_session;
    uint64_t losses_deleted;
    uint64_t suspensions;
    uint64_t uncertainties;
    uint64_t deletes_refused;
    uint64_t connection_attempts;
    uint64_t connections;
    uint64_t reconnects;
    uint64_t connections_lost;
    uint64_t sessions;
    uint64_t sessions_lost;
    uint64_t requests;
    uint64_t answers;
    uint64_t pings;
    uint64_t watch_events;
    uint64_t bytes_sent;
    uint64_t bytes_received;
    zkl_histogram waits;
    zkl_histogram holds;
    zkl_histogram round_trips;
} zkl_metrics;
typedef struct zkl_log_field {
    const char *name;
    const char *value;
} zkl_log_field;
typedef struct zkl_log {
    uint32_t size;
    int32_t level;
    int64_t time_ns;
    const char *target;
    const char *line;
    const char *message;
    const zkl_log_field *fields;
    size_t field_count;
} zkl_log;
typedef void (*zkl_log_cb)(void *user, const zkl_log *log);
zkl_status zkl_client_metrics(const zkl_client *client, size_t size, zkl_metrics *metrics_out);
zkl_status zkl_client_prometheus(const zkl_client *client, const char *labels, char *buf, size_t size, size_t *needed_out);
zkl_status zkl_set_log_callback(int32_t level, zkl_log_cb cb, void *user, zkl_user_drop user_drop);
zkl_status zkl_set_log_polling(int32_t level, zkl_log_cb cb, void *user, zkl_user_drop user_drop);
int zkl_log_event_fd(void);
zkl_status zkl_log_dispatch(int32_t *count_out);
