/* Distributed locks on Apache ZooKeeper, for C++17 and later. The locks use the same znodes as the recipes of Apache Curator. This header calls the
 * functions of zklock.h. A program that includes this header links with -lzklock; there is no separate C++ library.
 *
 *     #include <mutex>
 *     #include <zklock.hpp>
 *
 *     zkl::client client("localhost:2181");
 *     zkl::mutex report(client, "/locks/nightly-report");
 *     {
 *         std::lock_guard guard(report);                       // throws zkl::error if it cannot acquire the lock
 *         work(report.fencing_token());
 *     }
 *     if (std::unique_lock guard(report, 5s); guard) work(report.fencing_token());
 *
 * | class                | what it is                                               | works with                             |
 * |----------------------|----------------------------------------------------------|----------------------------------------|
 * | zkl::client          | one session, shared by locks and threads                 |                                        |
 * | zkl::mutex           | exclusive; the thread that holds it may re-enter it      | lock_guard, unique_lock, scoped_lock   |
 * | zkl::semaphore_mutex | exclusive; not re-entrant; any thread may unlock it      | the same                               |
 * | zkl::shared_mutex    | many readers or one writer                               | the same, and shared_lock              |
 * | zkl::multi           | several locks as one, without deadlocks                  | lock_guard, unique_lock                |
 * | zkl::semaphore       | a limited number of leases                               |                                        |
 * | zkl::hold            | what acquire() returns; belongs to no thread             |                                        |
 * | zkl::operation       | an acquire that runs in the background, for event loops  |                                        |
 *
 * The rules of zklock.h about locks, leases, threads, forks and program exit also apply to this header. The C++ interface adds the following rules.
 *
 * Errors     A function that fails throws zkl::error, a std::system_error whose code is a zkl::status. The error code compares equal to the status,
 *            for example to zkl::status::timeout. If an exception comes from a plugin that the program has opened with dlopen, this comparison can be
 *            false, because the plugin has its own error category. Such a program must link with -rdynamic, or compare error::status(). The error
 *            code also compares equal to the errno value of the status (zkl_status_errno). For example, a timeout compares equal to
 *            std::errc::timed_out. If the last parameter of a function is an error_out, the caller may pass a std::error_code, as in
 *            lock.try_lock(ec). With a std::error_code, the function does not throw zkl::error. Instead, the function sets the code on failure, and
 *            clears the code on success. A moved-from object has no handle. Calls on a moved-from object fail with status::handle. However, the
 *            removal of a callback, for example on_lost(nullptr), and hold::release() succeed.
 * Noexcept   With -fno-exceptions, a program must pass a std::error_code to every function that can fail. A call without a std::error_code does not
 *            compile. With -fno-exceptions, a program makes a multi-lock from a vector: multi(std::vector<zkl::lockable *>{&a, &b}, ec). The guards
 *            of the standard library call lock() without an error code. With -fno-exceptions, a program must therefore call lock(ec) first, and then
 *            pass the lock to a guard with std::adopt_lock. With -fno-exceptions, the program terminates if a callback throws an exception.
 * Unlocking  The function unlock() never throws. For example, unlock() returns normally even if the lock was lost, or if the thread does not hold the
 *            lock. To find out whether the unlock succeeded, call release(), which returns a status, or unlock(ec).
 * Owners     A hold belongs to the thread that acquired the lock. If a program moves a guard to another thread, unlock() does nothing on the other
 *            thread, and the lock stays locked. A program must destroy a guard on the thread that created the guard. Alternatively, the program can
 *            use zkl::semaphore_mutex, or the zkl::hold that acquire() returns.
 * Multiple   The functions std::lock and std::scoped_lock wait for one lock and call try_lock() for the other locks. If try_lock() fails for one
 *            lock, std::lock and std::scoped_lock release all locks and start again. Each call of try_lock() sends a request to the server, and each
 *            release gives up a place in a queue. An object of zkl::multi keeps its places in the queues, and acquires the mutexes and read/write
 *            locks of one client in one step.
 * Time       The library rounds durations up to milliseconds. In the functions that acquire or wait, a limit of a century or more, such as
 *            duration::max(), means no time limit. With a limit of zero or less, a call makes one attempt to acquire the lock. A deadline may use any
 *            clock. The functions try_lock_for() and try_lock_until() never time out early. If no server answers within the time limit, these
 *            functions fail with status::connection.
 * Loss       A loss occurs if a safe hold becomes UNCERTAIN or LOST, or if its client is closed. The function on_lost() registers a callback for
 *            losses, and wait_lost() waits for a loss. In C++20, hold::lost_token() returns a std::stop_token. After a loss, stop_requested() of this
 *            token returns true. The library calls callbacks on its threads, and on_lost() and lost_token() depend on these threads. While the event
 *            thread runs one callback, a second thread reports losses of other clients. All other callbacks wait. The functions is_held(),
 *            remaining() and wait_lost() do not depend on these threads.
 * Callbacks  The library calls the callbacks of a client one after the other, either on its threads or in client::dispatch_events(). Callbacks of
 *            two clients can run at the same time if one of the clients has a loss in its queue. A callback may call any function, but must not wait
 *            for other participants. In a callback, functions that would wait for other participants fail with status::deadlock. If a callback throws
 *            an exception, the library passes the exception to the exception handler of the callback. If the callback has no exception handler, the
 *            library ignores the exception. If a callback is running on another thread, a call that removes or replaces this callback waits until the
 *            callback returns. The destructor of an object with a callback waits in the same way. The library does not call a removed callback again.
 *            A thread that removes a callback must not hold a mutex that the callback locks.
 * Threads    Any thread may call any member function at any time, except functions that move or destroy the object.
 * Objects    Clients, locks, semaphores, holds and operations can be moved. A program must not move a lock while a guard refers to the lock. A
 *            client may be destroyed before its locks. Calls on the locks of a destroyed client fail with status::closed. Two mutex objects on the
 *            same path have separate holds. If two mutex objects on one path belong to one client, a thread that holds the first mutex cannot lock
 *            the second mutex. A call to lock() on the second mutex then fails with status::deadlock.
 * Versions   One process may contain code that was compiled with different versions of this header. All names except status, category(),
 *            make_error_code() and error are in an inline namespace that names the version. The definitions of these four never change, because
 *            one library can throw an exception that another library catches.
 */

#ifndef ZKLOCK_HPP
#define ZKLOCK_HPP

#include <zklock.h>

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "zklock.hpp needs C++17 or later"
#endif

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L
#if __has_include(<stop_token>)
#include <stop_token>
#endif
#endif

/* The part that all versions of this header share. This part must never change, because code built with one version of the header can throw
 * exceptions into code built with another. */
namespace zkl {

/** The result of a call. Each value equals the ZKL_E_* code with the same name in zklock.h, and converts to a std::error_code of zkl::category(). */
enum class status : zkl_status {
    ok = ZKL_OK,
    invalid = ZKL_E_INVALID,
    handle = ZKL_E_HANDLE,
    timeout = ZKL_E_TIMEOUT,
    canceled = ZKL_E_CANCELED,
    not_owner = ZKL_E_NOT_OWNER,
    lost = ZKL_E_LOST,
    deadlock = ZKL_E_DEADLOCK,
    closed = ZKL_E_CLOSED,
    connection = ZKL_E_CONNECTION,
    auth = ZKL_E_AUTH,
    denied = ZKL_E_DENIED,
    forked = ZKL_E_FORKED,
    buffer = ZKL_E_BUFFER,
    exhausted = ZKL_E_EXHAUSTED,
    foreign = ZKL_E_FOREIGN,
    server = ZKL_E_SERVER,
    internal = ZKL_E_INTERNAL,
    unsupported = ZKL_E_UNSUPPORTED,
    pending = ZKL_E_PENDING,
};

/**
 * Returns the error category of zkl::status. A status compares equal to the errno value that zkl_status_errno returns for it. For example,
 * status::timeout is equivalent to std::errc::timed_out.
 */
[[gnu::visibility("default")]] inline const std::error_category &category() noexcept
{
    class status_category final : public std::error_category {
    public:
        const char *name() const noexcept override { return "zklock"; }

        std::string message(int value) const override { return zkl_strerror(value); }

        std::error_condition default_error_condition(int value) const noexcept override
        {
            return {zkl_status_errno(value), std::generic_category()};
        }
    };
    static const status_category instance;
    return instance;
}

inline std::error_code make_error_code(status value) noexcept
{
    return {static_cast<int>(value), category()};
}

/**
 * The exception that a failed call throws. The text of what() describes the failure for people and logs. The text names the value, the server or the
 * holder that the failure concerns. Programs should test status() instead of the text.
 */
class [[gnu::visibility("default")]] error : public std::system_error {
public:
    error(zkl::status value, const std::string &message)
        : std::system_error(make_error_code(value)), what_(with_text(message, code().message()))
    {
    }

    zkl::status status() const noexcept { return static_cast<zkl::status>(code().value()); }

    const char *what() const noexcept override { return what_.what(); }

private:
    /** Appends the text of the status to the message, unless the message already contains this text. */
    static std::string with_text(const std::string &message, const std::string &text)
    {
        return message.find(text) == std::string::npos ? message + ": " + text : message;
    }

    /**
     * The message is in a std::runtime_error because the copy constructor of std::runtime_error does not throw. The copy constructor of std::string
     * can throw.
     */
    std::runtime_error what_;
};

} // namespace zkl

template <>
struct std::is_error_code_enum<zkl::status> : std::true_type {
};

namespace zkl {

/* Names that differ between versions are in a namespace with a version number. Rename this namespace when the layout of a class or the behavior of an
 * inline function changes. Without exceptions, the functions have other signatures, so they are in a separate namespace. */
#if defined(__cpp_exceptions)
inline namespace v0_1 {
#else
inline namespace v0_1_without_exceptions {
#endif

/* Functions that return a std::optional or a std::vector are templates over the element type. The compiler therefore compiles these functions only
 * for programs that call them. */

/** The session state of a client. */
enum class state : std::int32_t {
    connecting = ZKL_STATE_CONNECTING,
    connected = ZKL_STATE_CONNECTED,
    suspended = ZKL_STATE_SUSPENDED,
    lost = ZKL_STATE_LOST,
    closed = ZKL_STATE_CLOSED,
};

/** The state of a hold. A hold is safe while its state is held or suspended. */
enum class lock_state : std::int32_t {
    free = ZKL_LOCK_FREE,
    held = ZKL_LOCK_HELD,
    suspended = ZKL_LOCK_SUSPENDED,
    uncertain = ZKL_LOCK_UNCERTAIN,
    lost = ZKL_LOCK_LOST,
};

/** The reason why a pending acquire waits. */
enum class waits_for : std::int32_t {
    connection = ZKL_WAITS_FOR_CONNECTION,
    server = ZKL_WAITS_FOR_SERVER,
    node = ZKL_WAITS_FOR_NODE,
    leases = ZKL_WAITS_FOR_LEASES,
    count = ZKL_WAITS_FOR_COUNT,
    own_hold = ZKL_WAITS_FOR_OWN_HOLD,
};

/** How a run ended. A run that was interrupted stays in the state running. */
enum class run_result : std::int32_t {
    running = ZKL_RUN_RUNNING,
    succeeded = ZKL_RUN_SUCCEEDED,
    failed = ZKL_RUN_FAILED,
};

/** The subject of an event. An event is about the session of a client, or about a hold of a lock or of leases. */
enum class event_kind : std::int32_t {
    client = ZKL_EVENT_CLIENT,
    lock = ZKL_EVENT_LOCK,
};

/** The log level. Each level includes the levels before it. The levels are described in zklock.h. */
enum class log_level : std::int32_t {
    off = ZKL_LOG_OFF,
    error = ZKL_LOG_ERROR,
    warn = ZKL_LOG_WARN,
    info = ZKL_LOG_INFO,
    debug = ZKL_LOG_DEBUG,
    trace = ZKL_LOG_TRACE,
};

/**
 * The owner of a hold. An owner is the calling thread, or a number that the program chooses. For example, a program can number its tasks or requests,
 * as in zkl::owner{42}.
 */
enum class owner : std::uint64_t {
    this_thread = ZKL_OWNER_THREAD,
};

/**
 * The last parameter of the functions that can fail. The parameter selects how a function reports a failure. If the caller omits the argument, the
 * function throws zkl::error. If the caller passes a std::error_code, the function sets the code on failure and clears the code on success. On
 * failure, a function with a return value returns an empty value, 0 or false, unless its description names another value.
 */
class error_out {
public:
#if defined(__cpp_exceptions)
    error_out() noexcept = default;
#else
    [[gnu::error("a program compiled without exceptions must pass a std::error_code as the last argument of this function")]] error_out() noexcept;
#endif
    error_out(std::error_code &code) noexcept : code_(&code) {}

    /** Reports a failure: sets the std::error_code, or throws a zkl::error with the message. */
    void fail(status value, [[maybe_unused]] const char *message) const
    {
        if (code_ != nullptr) {
            *code_ = value;
            return;
        }
#if defined(__cpp_exceptions)
        throw error(value, message);
#endif
    }

    /** Returns whether the caller passed a std::error_code that contains a failure. */
    bool has_failed() const noexcept { return code_ != nullptr && *code_; }

    /** Reports success. */
    void succeed() const noexcept
    {
        if (code_ != nullptr) code_->clear();
    }

private:
    std::error_code *code_ = nullptr;
};

/**
 * Reports the result of a zklock.h function that the program called with a native_handle(). A negative result is a failure, and
 * zkl_last_error_message() describes the failure. Returns the result.
 */
inline std::int32_t check(std::int32_t result, error_out ec = {})
{
    if (result < 0) {
        ec.fail(static_cast<status>(result), zkl_last_error_message());
    } else {
        ec.succeed();
    }
    return result;
}

/** Returns the version of the library that the program uses at run time, for example "0.1.0". */
inline const char *version() noexcept
{
    return zkl_version();
}

/**
 * Returns the version of the library as a number: 10000 * major + 100 * minor + patch. ZKL_VERSION_NUMBER is the version number of the header that
 * the program was compiled with.
 */
inline std::int32_t version_number() noexcept
{
    return zkl_version_number();
}

/**
 * Returns the upper bound of a zkl_histogram bucket (client::metrics()). The first bucket has index 0. The bound of the last bucket is the largest
 * possible duration.
 */
constexpr std::chrono::nanoseconds histogram_bound(std::size_t index) noexcept
{
    if (index >= ZKL_HISTOGRAM_BUCKETS - 1) return (std::chrono::nanoseconds::max)();
    return std::chrono::nanoseconds(std::int64_t{ZKL_HISTOGRAM_FIRST_NS} << index);
}

/** The argument of an event callback. The memory of the argument belongs to the library and is valid until the callback returns. */
class event {
public:
    explicit event(const zkl_event &raw) noexcept : raw_(&raw) {}

    zkl::event_kind kind() const noexcept { return static_cast<zkl::event_kind>(raw_->kind); }

    /** Returns the new state of the session. Returns an empty value for an event of a lock or of leases. */
    template <class State = zkl::state>
    std::optional<State> client_state() const noexcept
    {
        return state_of<State>(event_kind::client, raw_->state);
    }

    /** Returns the previous state of the session. Returns an empty value for an event of a lock or of leases. */
    template <class State = zkl::state>
    std::optional<State> previous_client_state() const noexcept
    {
        return state_of<State>(event_kind::client, raw_->previous);
    }

    /** Returns the new state of the hold. Returns an empty value for a client event. */
    template <class State = zkl::lock_state>
    std::optional<State> lock_state() const noexcept
    {
        return state_of<State>(event_kind::lock, raw_->state);
    }

    /** Returns the previous state of the hold. Returns an empty value for an event of a client. */
    template <class State = zkl::lock_state>
    std::optional<State> previous_lock_state() const noexcept
    {
        return state_of<State>(event_kind::lock, raw_->previous);
    }

    /** Returns the handle of the lock. Returns null if the event is about leases or a client, or if the lock has been destroyed. */
    zkl_lock *lock() const noexcept { return raw_->lock; }

    /** Returns the path of the lock or semaphore. Returns an empty string for a client event. */
    std::string_view path() const noexcept { return raw_->path == nullptr ? std::string_view() : raw_->path; }

    /** These functions return the fencing token and the fencing pass of the hold. For a client event, both functions return 0. */
    std::int64_t token() const noexcept { return raw_->token; }
    std::int64_t fencing_pass() const noexcept { return raw_->fencing_pass; }

    const zkl_event *native_handle() const noexcept { return raw_; }

private:
    template <class State>
    std::optional<State> state_of(event_kind expected, std::int32_t value) const noexcept
    {
        return kind() == expected ? std::optional<State>(static_cast<State>(value)) : std::nullopt;
    }

    const zkl_event *raw_;
};

/** The argument of a log callback. The memory of the argument belongs to the library and is valid until the callback returns. */
class log_line {
public:
    explicit log_line(const zkl_log &raw) noexcept : raw_(&raw) {}

    zkl::log_level level() const noexcept { return static_cast<zkl::log_level>(raw_->level); }

    template <class = void>
    std::chrono::system_clock::time_point time() const noexcept
    {
        const std::chrono::nanoseconds since_1970(raw_->time_ns);
        return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(since_1970));
    }

    /** Returns the part of the library that logged the line, for example "zklock::session" or "zklock::lock". */
    std::string_view target() const noexcept { return raw_->target; }

    /** Returns the message and the fields as one printable text, without a newline. */
    std::string_view text() const noexcept { return raw_->line; }

    /** Returns the message without the fields. All lines of one kind have the same message. */
    std::string_view message() const noexcept { return raw_->message; }

    /** Returns the value of a field, such as "path" or "token". Returns an empty value if the line has no field with this name. */
    template <class Text = std::string_view>
    std::optional<Text> field(std::string_view name) const noexcept
    {
        for (std::size_t i = 0; i < raw_->field_count; i++) {
            if (raw_->fields[i].name == name) return raw_->fields[i].value;
        }
        return std::nullopt;
    }

    const zkl_log *native_handle() const noexcept { return raw_; }

private:
    const zkl_log *raw_;
};

/** A node in the queue of a lock or of a semaphore. The node belongs to a holder or to a waiter, in any process. */
struct participant {
    /** True if the participant holds the lock or a lease now, and false if the participant waits. */
    bool holds;
    /** The id of the session that owns the node. The id is 0 if the node is not ephemeral. */
    std::int64_t session_id;
    /** The zxid of the transaction that created the node. For a holder, the zxid is the fencing token. */
    std::int64_t czxid;
    /** The path of the node without the client's chroot. The function client::revoke() accepts this path. */
    std::string node_path;
    /** The data of the node. By default, the data is the network address of the host. */
    std::string data;
};

/** A pending acquire of this process. Unknown values are empty or 0. */
struct waiting {
    zkl::waits_for what;
    std::string node_path;
    /**
     * The path of the node for which the acquire waits. In a queue, this node is the nearest node ahead. If the acquire waits for leases, this node
     * is the directory of the leases. If the acquire waits for a shared count, this node contains the count.
     */
    std::string ahead;
    /** The id of the session that owns the nearest node ahead. */
    std::int64_t session_id;
    /**
     * The number of nodes ahead, or the number of leases that other owners must release first. For a shared count, the value is the number of leases
     * by which the count is too low.
     */
    std::uint64_t count;
    /** The time since the acquire began to wait. */
    std::chrono::milliseconds waited;
    /** The time until the acquire times out. The value is empty if the acquire has no time limit. */
    std::optional<std::chrono::milliseconds> left;
};

/** One run of a job, as the record of runs contains it. */
struct past_run {
    /** The beginning of the period. */
    std::chrono::system_clock::time_point period;
    /** The beginning of the run, according to the clock of the host that ran it. */
    std::chrono::system_clock::time_point started;
    /** The end of the run. The value is empty if no end is recorded. */
    std::optional<std::chrono::system_clock::time_point> ended;
    run_result result;
    /** How the job failed. The text is empty unless the result is run_result::failed. */
    std::string failure;
    /** The process that ran the job, in the form user@host:pid. */
    std::string owner;
    /** The fencing token of the hold. */
    std::int64_t token;
    /** The first node of the hold. The text is empty if the node is not known. */
    std::string node_path;
};

namespace detail {

/**
 * Owns a handle of zklock.h. If one thread releases the handle while other threads use the handle, the calls of the other threads fail with
 * status::handle.
 */
template <class T, auto Free>
class handle {
public:
    explicit handle(T *raw = nullptr) noexcept : raw_(raw) {}
    handle(handle &&other) noexcept : raw_(other.raw_.exchange(nullptr)) {}

    handle &operator=(handle &&other) noexcept
    {
        if (this != &other) reset(other.release());
        return *this;
    }

    ~handle() { reset(); }

    T *get() const noexcept { return static_cast<T *>(raw_.load()); }
    T *release() noexcept { return static_cast<T *>(raw_.exchange(nullptr)); }

    void reset(T *raw = nullptr) noexcept
    {
        if (void *const before = raw_.exchange(raw); before != nullptr) static_cast<void>(Free(static_cast<T *>(before)));
    }

private:
    /** The data member has the same type in all handle classes, which makes compilation faster. */
    std::atomic<void *> raw_;
};

using config_handle = handle<zkl_config, zkl_config_free>;
using completion_queue_handle = handle<zkl_completion_queue, zkl_completion_queue_free>;
using client_handle = handle<zkl_client, zkl_client_free>;
using lock_handle = handle<zkl_lock, zkl_lock_free>;
using semaphore_handle = handle<zkl_semaphore, zkl_semaphore_free>;
using hold_handle = handle<zkl_hold, zkl_hold_release>;
using operation_handle = handle<zkl_op, zkl_op_free>;
using run_handle = handle<zkl_run, zkl_run_free>;

/** Overwrites a text that may be a secret. A compiler could remove a plain loop, because nothing reads the text afterwards. */
inline void erase(std::string &text) noexcept
{
    volatile char *const bytes = text.data();
    for (std::size_t i = 0; i < text.size(); i++) bytes[i] = 0;
}

/**
 * A NUL-terminated copy of a text, for C functions. If the text contains a NUL, the constructor reports a failure, and get() returns null. The C
 * functions refuse a null text.
 */
class c_string {
public:
    /** If is_secret is true, the failure message does not contain the text. */
    c_string(const char *what, std::string_view text, error_out ec, bool is_secret = false)
        : text_(text), has_nul_(text.find('\0') != std::string_view::npos)
    {
        if (!has_nul_) return;
        const std::string shown = is_secret ? "" : std::string(" \"") + text_.c_str() + "\"";
        const std::string message = what + shown + ": expected no NUL in it";
        ec.fail(status::invalid, message.c_str());
    }

    c_string(const c_string &) = delete;
    c_string &operator=(const c_string &) = delete;
    ~c_string() { erase(text_); }

    const char *get() const noexcept { return has_nul_ ? nullptr : text_.c_str(); }

private:
    std::string text_;
    const bool has_nul_;
};

inline std::string string(const char *value)
{
    return value == nullptr ? std::string() : std::string(value);
}

/** A buffer for the zklock.h functions that write text. The length of a text may change between two calls. */
class text_buffer {
public:
    char *data() noexcept { return text_.data(); }
    std::size_t size() const noexcept { return text_.size(); }
    std::size_t *needed() noexcept { return &needed_; }

    /**
     * Returns whether the buffer was too small. If the buffer was too small, the function enlarges the buffer, and the caller must repeat the call.
     */
    bool is_too_small(zkl_status result)
    {
        result_ = result;
        if (result == ZKL_E_BUFFER) text_.resize(needed_ + needed_ / 8);
        return result == ZKL_E_BUFFER;
    }

    std::string take(error_out ec)
    {
        if (check(result_, ec) < 0) return std::string();
        text_.resize(needed_ - 1);
        return std::move(text_);
    }

private:
    std::string text_ = std::string(256, '\0');
    std::size_t needed_ = 0;
    zkl_status result_ = ZKL_OK;
};

/* Time limits are in milliseconds. The limit 0 means one attempt, and the limit -1 means no time limit. */

using exact_ms = std::chrono::duration<long double, std::milli>;

/** The shortest duration that the library treats as no limit. Every duration type of the standard library can represent a century. */
inline constexpr exact_ms century{100.0L * 365 * 24 * 3600 * 1000};

template <class Rep, class Period>
std::int64_t limit(const std::chrono::duration<Rep, Period> &duration)
{
    const exact_ms exact(duration);
    // This condition is also true for NaN.
    if (!(exact > exact_ms::zero())) return 0;
    if (exact >= century) return -1;
    return std::chrono::ceil<std::chrono::milliseconds>(duration).count();
}

/**
 * Repeats an attempt until it succeeds, until it fails with an error, or until the deadline has passed. Each attempt is limited to the remaining
 * time. One attempt is not enough, because a program can adjust the clock of the deadline during the attempt.
 */
template <class Clock, class Duration, class Attempt>
auto until(const std::chrono::time_point<Clock, Duration> &deadline, Attempt attempt, error_out ec)
{
    for (;;) {
        const auto now = Clock::now();
        const exact_ms left = exact_ms(deadline.time_since_epoch()) - exact_ms(now.time_since_epoch());
        auto result = attempt(limit(left));
        // A comparison with a deadline in the far past would overflow, and NaN cannot be compared.
        if (result || ec.has_failed() || !(left >= -century) || Clock::now() >= deadline) return result;
    }
}

/**
 * Calls set(config, ms) with the duration in milliseconds. If the duration is outside the range of int32_t, the function passes the duration as text
 * to zkl_config_set, which then fails.
 */
template <class Rep, class Period>
zkl_status setting(zkl_config *config, zkl_status (*set)(zkl_config *, std::int32_t), const char *name,
                   const std::chrono::duration<Rep, Period> &duration)
{
    const long double ms = exact_ms(duration).count();
    if (ms >= INT32_MIN && ms <= INT32_MAX) {
        return set(config, static_cast<std::int32_t>(std::chrono::ceil<std::chrono::milliseconds>(duration).count()));
    }
    return zkl_config_set(config, name, std::to_string(ms).c_str());
}

/** Calls a function. If the function throws an exception, contain() passes the exception to the handler. */
template <class Function, class Handler>
void contain(Function function, Handler handler) noexcept
{
#if defined(__cpp_exceptions)
    try {
        function();
    } catch (...) {
        handler(std::current_exception());
    }
#else
    static_cast<void>(handler);
    function();
#endif
}

/**
 * Collects the arguments that a C function passes in each call of its callback. If an exception occurs in the callback, take() rethrows the exception
 * after the C function has returned.
 */
template <class T>
struct collection {
    std::vector<T> items;
    std::exception_ptr failure;

    template <class Raw>
    static void add(void *user, const Raw *raw) noexcept
    {
        auto *self = static_cast<collection *>(user);
        if (self->failure != nullptr) return;
        contain([&] { self->items.push_back(made(*raw)); }, [&](std::exception_ptr exception) { self->failure = std::move(exception); });
    }

    std::vector<T> take(zkl_status result, error_out ec)
    {
#if defined(__cpp_exceptions)
        if (failure != nullptr) std::rethrow_exception(failure);
#endif
        check(result, ec);
        return std::move(items);
    }

private:
    static participant made(const zkl_participant &raw)
    {
        std::string data(raw.data_len, '\0');
        for (std::size_t i = 0; i < raw.data_len; i++) data[i] = static_cast<char>(raw.data[i]);
        return {raw.holds == 1, raw.session_id, raw.czxid, string(raw.node_path), std::move(data)};
    }

    static waiting made(const zkl_wait &raw)
    {
        std::optional<std::chrono::milliseconds> left;
        if (raw.left_ms >= 0) left = std::chrono::milliseconds(raw.left_ms);
        return {static_cast<waits_for>(raw.waits_for), string(raw.node_path), string(raw.ahead), raw.session_id, raw.count,
                std::chrono::milliseconds(raw.waited_ms), left};
    }

    static past_run made(const zkl_past_run &raw)
    {
        const auto time = [](std::int64_t ms) { return std::chrono::system_clock::time_point(std::chrono::milliseconds(ms)); };
        std::optional<std::chrono::system_clock::time_point> ended;
        if (raw.ended_ms >= 0) ended = time(raw.ended_ms);
        return {time(raw.period_ms), time(raw.started_ms), ended, static_cast<run_result>(raw.result), string(raw.failure), string(raw.owner),
                raw.token, string(raw.node_path)};
    }
};

/** The `user` argument of a C callback. The library owns one reference to the target, and an object of a class in this header may own another. */
class target {
public:
    target(const target &) = delete;
    target &operator=(const target &) = delete;

    void acquire() noexcept { references_++; }

    void release() noexcept
    {
        if (--references_ == 0) destroy_(this);
    }

    /** The zkl_user_drop function of every target. */
    static void drop(void *user) noexcept { static_cast<target *>(user)->release(); }

    /** The zkl_event_cb function of this target. */
    const zkl_event_cb on_event;
    zkl_listener *listener = nullptr;

protected:
    target(zkl_event_cb on_event_, void (*destroy)(target *) noexcept) noexcept : on_event(on_event_), destroy_(destroy) {}
    ~target() = default;

private:
    void (*const destroy_)(target *) noexcept;
    std::atomic<int> references_{1};
};

/** Owns one reference to a target. */
class target_reference {
public:
    explicit target_reference(target *to) noexcept : to_(to) { to->acquire(); }
    target_reference(const target_reference &) = delete;
    target_reference &operator=(const target_reference &) = delete;
    ~target_reference() { to_->release(); }

private:
    target *const to_;
};

/** Does nothing. This type replaces a callback or an exception handler that the program did not pass. */
struct ignore {
    template <class... Arguments>
    void operator()(const Arguments &...) const noexcept
    {
    }
};

/** A program's callback, and the function that handles the exceptions that this callback throws. */
template <class Callback, class Failed>
class callback final : public target {
public:
    callback(Callback called, Failed failed) : target(run, destroy), called_(std::move(called)), failed_(std::move(failed)) {}

    template <class... Arguments>
    void call(const Arguments &...arguments) noexcept
    {
        contain([&] { called_(arguments...); },
                [&](std::exception_ptr exception) { contain([&] { failed_(std::move(exception)); }, ignore()); });
    }

    template <class Raw, class Argument>
    static void run_with(void *user, const Raw *raw) noexcept
    {
        self(user)->call(Argument(*raw));
    }

    /** Copies the credentials that the callback returns. Returns a negative number if the callback throws an exception. */
    static std::int64_t run_auth(void *user, char *buf, std::size_t size) noexcept
    {
        std::int64_t length = -1;
        callback *const own = self(user);
        contain(
            [&] {
                std::string credentials = own->called_();
                if (credentials.size() <= size) credentials.copy(buf, size);
                length = static_cast<std::int64_t>(credentials.size());
                erase(credentials);
            },
            [&](std::exception_ptr exception) { contain([&] { own->failed_(std::move(exception)); }, ignore()); });
        return length;
    }

    template <class Handle>
    static void run_revocation(void *user, Handle *) noexcept
    {
        self(user)->call();
    }

private:
    static callback *self(void *user) noexcept { return static_cast<callback *>(static_cast<target *>(user)); }
    static void destroy(target *of) noexcept { delete static_cast<callback *>(of); }

    static void run(void *user, const zkl_event *c_event) noexcept
    {
        if constexpr (std::is_invocable_v<Callback &, const event &>) {
            self(user)->call(event(*c_event));
        } else if constexpr (std::is_invocable_v<Callback &>) {
            self(user)->call();
        }
    }

    Callback called_;
    Failed failed_;
};

/** Creates a callback. Returns null if the program passes nullptr or an empty std::function. */
template <class Callback, class Failed>
callback<Callback, Failed> *make_callback(Callback called, Failed failed)
{
    // Only function pointers and types like std::function can be empty. Types like std::function convert to bool only explicitly, but a lambda
    // converts implicitly.
    if constexpr (std::is_pointer_v<Callback> || (std::is_constructible_v<bool, Callback &> && !std::is_convertible_v<Callback &, bool>)) {
        if (!static_cast<bool>(called)) return nullptr;
    }
    return new callback<Callback, Failed>(std::move(called), std::move(failed));
}

template <class Failed>
callback<ignore, Failed> *make_callback(std::nullptr_t, Failed)
{
    return nullptr;
}

/** Creates a callback for events. The callback must take either an event or no arguments. */
template <class Callback, class Failed>
auto *make_event_callback(Callback called, Failed failed)
{
    static_assert(std::is_null_pointer_v<Callback> || std::is_invocable_v<Callback &, const event &> || std::is_invocable_v<Callback &>,
                  "an event callback must take a const zkl::event & or no argument");
    return make_callback(std::move(called), std::move(failed));
}

/** Reports the result of a zkl_*_wait_lost function, and returns whether the hold was lost. */
inline bool was_lost(zkl_status result, error_out ec)
{
    check(result == ZKL_E_LOST || result == ZKL_E_TIMEOUT ? ZKL_OK : result, ec);
    return result == ZKL_E_LOST;
}

/**
 * Returns the result of a C function that received a callback. If the C function failed, the library owns no reference to the callback. In this case,
 * taken() releases the reference intended for the library.
 */
template <class Callback>
zkl_status taken(zkl_status result, Callback *handed) noexcept
{
    if (result != ZKL_OK && handed != nullptr) handed->release();
    return result;
}

/**
 * Enables an overload only if its second argument is a function that handles exceptions. A std::error_code as the second argument selects another
 * overload.
 */
template <class Failed>
using if_handler = std::enable_if_t<std::is_invocable_v<Failed &, std::exception_ptr>, int>;

/** The registration of one listener on an object. Any thread may replace the registration. */
class listening {
public:
    listening() noexcept = default;
    listening(listening &&other) noexcept : target_(other.change(nullptr)) {}

    listening &operator=(listening &&other) noexcept
    {
        if (this != &other) reset(other.change(nullptr));
        return *this;
    }

    ~listening() { reset(); }

    /**
     * Replaces the current target with null, or with a target that a C function has accepted. The call waits until the callback of the previous
     * target has returned.
     */
    void reset(target *to = nullptr) noexcept { end(change(to)); }

    /** Takes the target of another registration, unless this registration already has a target. Returns the target that is registered now. */
    target *adopt(listening &other) noexcept
    {
        const std::lock_guard guard(mutex_);
        if (target_ == nullptr) target_ = other.change(nullptr);
        return target_;
    }

    target *get() const noexcept
    {
        const std::lock_guard guard(mutex_);
        return target_;
    }

    /**
     * Calls a zkl_*_listen function with the target `to`. If that function succeeds, `to` replaces the current target of this object. Otherwise, add()
     * releases `to` and reports the error. The library can call the callback of `to` before the zkl_*_listen function returns. If this callback
     * removes or replaces itself, or if another thread changes the registration meanwhile, add() ends the registration of `to`.
     */
    template <class Listen>
    bool add(target *to, error_out ec, Listen listen)
    {
        const std::uint64_t changes_before = changes();
        to->acquire();
        const zkl_status result = listen();
        if (result != ZKL_OK) {
            // Release our reference and the library's reference, because the library did not accept the target.
            to->release();
            to->release();
        } else {
            end(change(to, changes_before));
        }
        return check(result, ec) == ZKL_OK;
    }

private:
    std::uint64_t changes() const noexcept
    {
        const std::lock_guard guard(mutex_);
        return changes_;
    }

    /** Replaces the target, and returns the previous target. */
    target *change(target *to) noexcept
    {
        const std::lock_guard guard(mutex_);
        changes_++;
        return std::exchange(target_, to);
    }

    /** Replaces the target if the target has not changed since changes() returned `changes_before`. Returns the target that is not in use. */
    target *change(target *to, std::uint64_t changes_before) noexcept
    {
        const std::lock_guard guard(mutex_);
        if (changes_ != changes_before) return to;
        changes_++;
        return std::exchange(target_, to);
    }

    static void end(target *over) noexcept
    {
        if (over == nullptr) return;
        zkl_listener_free(over->listener);
        over->release();
    }

    mutable std::mutex mutex_;
    target *target_ = nullptr;
    /** The number of changes of target_. */
    std::uint64_t changes_ = 0;
};

#ifdef __cpp_lib_jthread
/** The stop source of one hold. */
class lost_source final : public target {
public:
    lost_source() : target(stop, destroy) {}

    std::stop_source source;

private:
    static void stop(void *user, const zkl_event *) noexcept
    {
        // The program's callbacks may destroy this object during the call.
        std::stop_source kept = static_cast<lost_source *>(static_cast<target *>(user))->source;
        kept.request_stop();
    }

    static void destroy(target *of) noexcept { delete static_cast<lost_source *>(of); }
};

inline std::stop_token stopped()
{
    std::stop_source source;
    source.request_stop();
    return source.get_token();
}
#endif

template <class Callback, class Failed>
void set_log(decltype(zkl_set_log_callback) *set, log_level level, Callback callback, Failed failed, error_out ec)
{
    auto *const made = make_callback(std::move(callback), std::move(failed));
    zkl_log_cb run = nullptr;
    if constexpr (!std::is_null_pointer_v<Callback>) {
        if (made != nullptr) run = made->template run_with<zkl_log, log_line>;
    }
    check(taken(set(static_cast<std::int32_t>(level), run, made, made == nullptr ? nullptr : made->drop), made), ec);
}

} // namespace detail

/**
 * Sets the log callback of this process. The library calls the callback with the signature void(const zkl::log_line &). The callback receives the log
 * lines of all clients, up to the given level. The new callback replaces the previous log callback. After this function has returned, the previous
 * callback is not running, and the library does not call it again. If the callback is nullptr or the level is log_level::off, the call turns logging
 * off. While the callback runs, the library queues up to 4096 lines. The library drops any further lines and counts them (zkl_set_log_callback).
 *
 * Fails with status::invalid if the level is unknown. Fails with status::unsupported if the library is part of a Rust program that has its own
 * tracing subscriber. The callback itself may call this function.
 */
template <class Callback, class Failed, detail::if_handler<Failed> = 0>
void set_log_callback(log_level level, Callback callback, Failed failed, error_out ec = {})
{
    detail::set_log(zkl_set_log_callback, level, std::move(callback), std::move(failed), ec);
}

template <class Callback>
void set_log_callback(log_level level, Callback callback, error_out ec = {})
{
    set_log_callback(level, std::move(callback), detail::ignore(), ec);
}

/**
 * Sets this process's log callback, for a program that dispatches log lines itself. Such a program watches log_event_fd(), and calls dispatch_log().
 * All other rules of set_log_callback() also apply. Each of the two functions replaces the callback that the other function set.
 */
template <class Callback, class Failed, detail::if_handler<Failed> = 0>
void set_log_polling(log_level level, Callback callback, Failed failed, error_out ec = {})
{
    detail::set_log(zkl_set_log_polling, level, std::move(callback), std::move(failed), ec);
}

template <class Callback>
void set_log_polling(log_level level, Callback callback, error_out ec = {})
{
    set_log_polling(level, std::move(callback), detail::ignore(), ec);
}

/**
 * Returns a descriptor that is readable while log lines are queued, for poll() and similar functions. Returns a negative number on failure. The
 * descriptor belongs to the library. Fails with status::invalid if no callback is set with set_log_polling(). Does not block.
 */
[[nodiscard]] inline int log_event_fd(error_out ec = {})
{
    return check(zkl_log_event_fd(), ec);
}

/**
 * Calls the callback of set_log_polling() on the calling thread, once for each queued log line. Returns the number of lines, or 0 on failure. Fails
 * with status::invalid if no callback is set with set_log_polling().
 */
inline std::int32_t dispatch_log(error_out ec = {})
{
    std::int32_t count = 0;
    check(zkl_log_dispatch(&count), ec);
    return count;
}

/**
 * The settings of a client. When a program creates a client, the client copies the settings of the config. A program can therefore use one config for
 * many clients, and can change the config after it has created a client.
 *
 * Each setter returns the config, so that a program can chain the calls. A setter fails with status::invalid if the value is not allowed. The setters
 * do not block, except load(), which reads a file.
 */
class config {
public:
    /** Creates a config with the default settings. */
    explicit config(error_out ec = {}) : handle_(zkl_config_new())
    {
        if (native_handle() == nullptr) {
            ec.fail(status::internal, zkl_last_error_message());
        } else {
            ec.succeed();
        }
    }

    /**
     * Sets the session timeout. The servers end a session if they receive nothing from its client for the whole session timeout. The default is 10 s.
     * The servers may negotiate another session timeout with the client.
     */
    template <class Rep, class Period>
    config &session_timeout(const std::chrono::duration<Rep, Period> &timeout, error_out ec = {})
    {
        return checked(detail::setting(native_handle(), zkl_config_set_session_timeout_ms, "session.timeout", timeout), ec);
    }

    /** Sets the time limit for the constructor of a client, from 1 ms to 2147483647 ms. The default is 10 s. */
    template <class Rep, class Period>
    config &connect_timeout(const std::chrono::duration<Rep, Period> &timeout, error_out ec = {})
    {
        return checked(detail::setting(native_handle(), zkl_config_set_connect_timeout_ms, "connect.timeout", timeout), ec);
    }

    /**
     * Sets the lease margin. The session lease is shorter than the session timeout by at least the lease margin. The default is a third of the
     * negotiated session timeout.
     */
    template <class Rep, class Period>
    config &lease_margin(const std::chrono::duration<Rep, Period> &margin, error_out ec = {})
    {
        return checked(detail::setting(native_handle(), zkl_config_set_lease_margin_ms, "lease.margin", margin), ec);
    }

    /**
     * Sets the option with a given name, for example "session.timeout", to a value, for example "5000". The page docs/options.md lists all options.
     */
    config &set(std::string_view name, std::string_view value, error_out ec = {})
    {
        const detail::c_string name_text("option", name, ec), value_text("value", value, ec, true);
        return checked(zkl_config_set(native_handle(), name_text.get(), value_text.get()), ec);
    }

    /**
     * Sets the options that a file contains. Each line of the file has the form "name = value" (zkl_config_load). If the file contains an error, the
     * function sets no option.
     */
    config &load(std::string_view file, error_out ec = {})
    {
        const detail::c_string text("options file", file, ec);
        return checked(zkl_config_load(native_handle(), text.get()), ec);
    }

    /** Adds credentials to the config, for example "digest" and "user:password". */
    config &add_auth(std::string_view scheme, std::string_view auth, error_out ec = {})
    {
        const detail::c_string text("scheme", scheme, ec);
        return checked(zkl_config_add_auth(native_handle(), text.get(), auth.data(), auth.size()), ec);
    }

    /**
     * Sets a callback that returns credentials for a scheme, for example "user:password" for the "digest" scheme
     * (zkl_config_set_auth_callback). The callback must take no argument and return a std::string. Before each attempt to connect, a library thread
     * calls the callback. The callback may block. If the callback throws an exception, the attempt fails, and the library calls the function `failed`
     * with this exception. The new callback replaces the previous callback for the same scheme. Passing nullptr removes the previous callback. The
     * library destroys the callback when the config and all open clients no longer use the callback.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    config &auth_callback(std::string_view scheme, Callback callback, Failed failed, error_out ec = {})
    {
        const detail::c_string text("scheme", scheme, ec);
        auto *const made = detail::make_callback(std::move(callback), std::move(failed));
        zkl_auth_cb run = nullptr;
        if constexpr (!std::is_null_pointer_v<Callback>) {
            static_assert(std::is_invocable_r_v<std::string, Callback &>, "an auth callback must take no argument and return a std::string");
            if (made != nullptr) run = made->run_auth;
        }
        void (*const drop)(void *) = made == nullptr ? nullptr : made->drop;
        if (made == nullptr && native_handle() == nullptr) return checked(ZKL_OK, ec);
        return checked(detail::taken(zkl_config_set_auth_callback(native_handle(), text.get(), run, made, drop), made), ec);
    }

    template <class Callback>
    config &auth_callback(std::string_view scheme, Callback callback, error_out ec = {})
    {
        return auth_callback(scheme, std::move(callback), detail::ignore(), ec);
    }

    /**
     * Sets whether mutexes and read/write locks wait for kazoo's locks on the same path (zkl_config_set_wait_for_kazoo). By default, an acquire
     * fails with status::foreign if it finds a kazoo lock. The kazoo programs must also wait for zklock: construct their locks with
     * extra_lock_patterns=["-lock-"] for a mutex, and with ["__READ__", "__WRIT__"] for a read/write lock. Otherwise both programs can hold the
     * lock at the same time.
     */
    config &wait_for_kazoo(bool wait = true, error_out ec = {})
    {
        return checked(zkl_config_set_wait_for_kazoo(native_handle(), wait ? 1 : 0), ec);
    }

    /** Sets whether the program itself calls the callbacks, with client::dispatch_events(). By default, the event thread calls the callbacks. */
    config &poll_events(bool poll = true, error_out ec = {})
    {
        return checked(zkl_config_set_poll_events(native_handle(), poll ? 1 : 0), ec);
    }

    /**
     * Sets a callback for every event of every client made with this config. The callback must be callable as void() or void(const zkl::event &). The
     * first event of a client is the change from connecting to connected. The new callback replaces the previous callback. Passing nullptr removes
     * the previous callback. The library destroys the callback when the config and all open clients no longer use the callback.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    config &on_event(Callback callback, Failed failed, error_out ec = {})
    {
        auto *const made = detail::make_event_callback(std::move(callback), std::move(failed));
        if (made == nullptr && native_handle() == nullptr) return checked(ZKL_OK, ec);
        return checked(detail::taken(zkl_config_set_event_callback(native_handle(), made == nullptr ? nullptr : made->on_event, made,
                                                                   made == nullptr ? nullptr : made->drop),
                                     made),
                       ec);
    }

    template <class Callback>
    config &on_event(Callback callback, error_out ec = {})
    {
        return on_event(std::move(callback), detail::ignore(), ec);
    }

    using native_handle_type = zkl_config *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    config &checked(zkl_status result, error_out ec)
    {
        check(result, ec);
        return *this;
    }

    detail::config_handle handle_;
};

class operation;
class semaphore;

/**
 * A client has one ZooKeeper session, which any number of locks and threads share. If the session ends, all holds of the session are lost, and the
 * client begins a new session.
 */
class client {
public:
    /**
     * Connects to a server, and waits until the session exists. The servers parameter has the form "host:2181,host:2181/chroot". If servers contains
     * a chroot, all paths of the client are relative to the chroot.
     *
     * Can fail with status::connection, auth, invalid, exhausted and other statuses (zkl_client_new). Blocks for at most the connect timeout.
     */
    explicit client(std::string_view servers, error_out ec = {}) { connect(servers, nullptr, ec); }

    client(std::string_view servers, const config &settings, error_out ec = {})
    {
        // The C function would treat a null config as the default settings.
        if (settings.native_handle() == nullptr) {
            ec.fail(status::handle, "the config was moved from");
        } else {
            connect(servers, settings.native_handle(), ec);
        }
    }

    /**
     * Starts connecting to a server, without waiting for the session to exist. After the operation has ended with status::ok,
     * operation::take_client() returns the client. All other rules of the constructor also apply. Does not block.
     */
    [[nodiscard]] static operation start(std::string_view servers, error_out ec = {});
    [[nodiscard]] static operation start(std::string_view servers, const config &settings, error_out ec = {});

    client(client &&) noexcept = default;
    client &operator=(client &&) noexcept = default;

    /** Calls close(). */
    ~client() { close(); }

    /**
     * Ends the session of the client. Calls that wait for locks of this client fail with status::closed. All holds of the client end, and the end of
     * each hold counts as a loss. The library therefore calls the on_lost() callbacks of these holds. In C++20, the stop token of each hold, from
     * lost_token(), then receives a stop request. A second call of close() does nothing. All other later calls fail with status::handle.
     *
     * Blocks until the server has confirmed the end of the session and the last callback has returned. A call of close() takes at most two seconds,
     * unless a callback takes longer. If a callback of this client calls close(), close() does not wait for this callback.
     */
    void close() noexcept
    {
        handle_.reset();
        // The callback received the last events during handle_.reset().
        event_.reset();
    }

    /**
     * Starts closing the client, without waiting for callbacks or for the server (zkl_client_close_start). After the operation has ended, close()
     * and the destructor do not block. If the program polls for events, it must call dispatch_events() until the operation has ended. Does not block.
     */
    [[nodiscard]] operation start_close(error_out ec = {});

    /**
     * Closes the client in the background, and drops its queued events. The library no longer calls the client's callbacks
     * (zkl_client_free_nowait). The call waits only for a running callback of on_event().
     */
    void close_nowait() noexcept
    {
        zkl_client_free_nowait(handle_.release());
        event_.reset();
    }

    /**
     * Replaces the server list of the client (zkl_client_set_servers). The servers parameter has the same form as in the constructor, with or without
     * the client's chroot. The client keeps its session and its holds. If the client must move to another server, its holds are suspended for a
     * moment.
     *
     * Fails with status::invalid if the list is not valid or has another chroot. Does not block. Any thread may call this function.
     */
    void set_servers(std::string_view servers, error_out ec = {})
    {
        const detail::c_string text("servers", servers, ec);
        check(zkl_client_set_servers(native_handle(), text.get()), ec);
    }

    /** Returns the state of the session. Returns state::closed on failure. Does not block. */
    zkl::state state(error_out ec = {}) const
    {
        const std::int32_t result = check(zkl_client_state(native_handle()), ec);
        return result < 0 ? zkl::state::closed : static_cast<zkl::state>(result);
    }

    /** Returns the id of the session, which the servers also use in their logs. Returns 0 while the client has no session. Does not block. */
    std::int64_t session_id(error_out ec = {}) const
    {
        return check(zkl_client_state(native_handle()), ec) < 0 ? 0 : zkl_client_session_id(native_handle());
    }

    /**
     * Sets a callback for every event of the session and of all holds. The callback must be callable as void() or void(const zkl::event &). The
     * callback also receives earlier events that are still queued. The new callback replaces the previous callback. Passing nullptr removes the
     * previous callback. The config's callback remains set, and also receives the events.
     *
     * If the call fails, the previous callback remains set. If the previous callback is running on another thread, the call waits until the callback
     * returns.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    void on_event(Callback callback, Failed failed, error_out ec = {})
    {
        listen(detail::make_event_callback(std::move(callback), std::move(failed)), ec);
    }

    template <class Callback>
    void on_event(Callback callback, error_out ec = {})
    {
        listen(detail::make_event_callback(std::move(callback), detail::ignore()), ec);
    }

    /**
     * Calls the pending callbacks on the calling thread, and returns the number of calls. The client's config must enable poll_events().
     *
     * Fails with status::invalid if the config does not enable poll_events(). Blocks until the callbacks have returned.
     */
    std::int32_t dispatch_events(error_out ec = {})
    {
        std::int32_t count = 0;
        check(zkl_client_dispatch_events(native_handle(), &count), ec);
        return count;
    }

    /**
     * Returns a descriptor that is readable while callbacks are pending, for poll() and similar functions. Returns a negative number on failure. The
     * descriptor belongs to the library, and the program must not read, write or close it.
     *
     * Can fail with the same statuses as dispatch_events(). Does not block.
     */
    [[nodiscard]] int event_fd(error_out ec = {}) const { return check(zkl_client_event_fd(native_handle()), ec); }

    /**
     * Asks the owner of a node to release its hold, or to stop waiting. To get the path of a node, call participants() of the lock or the semaphore.
     * Blocks for at most the session timeout.
     */
    void revoke(std::string_view node_path, error_out ec = {})
    {
        const detail::c_string text("node path", node_path, ec);
        check(zkl_revoke(native_handle(), text.get()), ec);
    }

    /**
     * Asks the ensemble whether the hold with this fencing token still exists on a path (zkl_fence_check). Returns false on failure.
     *
     * Blocks for at most the session timeout.
     */
    [[nodiscard]] bool fence_check(std::string_view path, std::int64_t token, error_out ec = {})
    {
        const detail::c_string text("path", path, ec);
        std::int32_t valid = 0;
        return check(zkl_fence_check(native_handle(), text.get(), token, &valid), ec) == ZKL_OK && valid == 1;
    }

    /**
     * Reads a shared count (Curator's SharedCount).
     *
     * Fails with status::server if the count has no node. Fails with status::invalid if the node does not contain a count. Blocks for at most the
     * session timeout.
     */
    std::int32_t shared_count_get(std::string_view path, error_out ec = {})
    {
        const detail::c_string text("count path", path, ec);
        std::int32_t value = 0;
        check(zkl_shared_count_get(native_handle(), text.get(), &value), ec);
        return value;
    }

    /** Sets a shared count. The call creates the node of the count if the node does not exist. Blocks for at most the session timeout. */
    void shared_count_set(std::string_view path, std::int32_t value, error_out ec = {})
    {
        const detail::c_string text("count path", path, ec);
        check(zkl_shared_count_set(native_handle(), text.get(), value), ec);
    }

    /**
     * These functions start revoke(), fence_check(), shared_count_get() and shared_count_set() without waiting for the server. After a fence_check()
     * operation has ended, operation::value() returns 1 or 0. After a shared_count_get() operation has ended, operation::value() returns the count.
     * These functions do not block.
     */
    [[nodiscard]] operation start_revoke(std::string_view node_path, error_out ec = {});
    [[nodiscard]] operation start_fence_check(std::string_view path, std::int64_t token, error_out ec = {});
    [[nodiscard]] operation start_shared_count_get(std::string_view path, error_out ec = {});
    [[nodiscard]] operation start_shared_count_set(std::string_view path, std::int32_t value, error_out ec = {});

    /**
     * Returns the last runs of the job of a lock, from the newest to the oldest. The record contains at most ten runs.
     *
     * Fails with status::invalid if the node of the record contains other data. Blocks for at most the session timeout.
     */
    template <class Run = past_run>
    std::vector<Run> past_runs(std::string_view path, error_out ec = {})
    {
        const detail::c_string text("path", path, ec);
        detail::collection<Run> found;
        return found.take(zkl_past_runs(native_handle(), text.get(), found.template add<zkl_past_run>, &found), ec);
    }

    /** Starts past_runs() without waiting for the server. After the operation has ended, operation::past_runs() returns the runs. */
    [[nodiscard]] operation start_past_runs(std::string_view path, error_out ec = {});

    /** Returns the current counters, histograms and gauges of this client. The header zklock.h describes the struct. Does not block. */
    zkl_metrics metrics(error_out ec = {}) const
    {
        zkl_metrics made{};
        check(zkl_client_metrics(native_handle(), sizeof made, &made), ec);
        return made;
    }

    /**
     * Returns this client's metrics in the Prometheus text format (zkl_client_prometheus). The function adds the labels, for example
     * service="reports", to each metric.
     *
     * Fails with status::invalid if Prometheus does not accept the labels. Does not block.
     */
    std::string prometheus(std::string_view labels = {}, error_out ec = {}) const
    {
        const detail::c_string text("labels", labels, ec);
        if (text.get() == nullptr) return std::string();
        const char *const given = labels.empty() ? nullptr : text.get();
        detail::text_buffer buffer;
        while (buffer.is_too_small(zkl_client_prometheus(native_handle(), given, buffer.data(), buffer.size(), buffer.needed()))) {}
        return buffer.take(ec);
    }

    using native_handle_type = zkl_client *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class operation;

    explicit client(zkl_client *made) noexcept : handle_(made) {}

    static operation start_with(std::string_view servers, const zkl_config *settings, error_out ec);

    void connect(std::string_view servers, const zkl_config *settings, error_out ec)
    {
        const detail::c_string text("servers", servers, ec);
        zkl_client *made = nullptr;
        if (check(zkl_client_new(text.get(), settings, &made), ec) == ZKL_OK) handle_.reset(made);
    }

    void listen(detail::target *to, error_out ec)
    {
        if (to == nullptr) {
            event_.reset();
            ec.succeed();
            return;
        }
        event_.add(to, ec, [&] { return zkl_client_listen(native_handle(), to->on_event, to, to->drop, &to->listener); });
    }

    detail::client_handle handle_;
    detail::listening event_;
};

/**
 * A run of a job that has begun (hold::begin_run()). The program ends the run with succeed(), fail() or take_back(), before it releases the hold. The
 * destructor of a run that has not ended leaves it in the record, where it counts as interrupted. Any thread may use the object.
 */
class [[nodiscard]] run {
public:
    /** Creates an object without a run. */
    run() noexcept = default;

    /** Returns whether the object has a run. After the end of the run or a move, the object has no run. */
    explicit operator bool() const noexcept { return native_handle() != nullptr; }

    /**
     * Records that the job succeeded. The object has no run after this call, even if the call fails. Fails with status::lost if the hold was lost:
     * the run then counts as interrupted. The comment of zkl_run_finish lists further statuses. Blocks for at most three times the session timeout.
     */
    void succeed(error_out ec = {}) { check(zkl_run_finish(handle_.release(), nullptr), ec); }

    /** Records that the job failed. The text says how, for people. All other rules of succeed() also apply. */
    void fail(std::string_view how, error_out ec = {})
    {
        const detail::c_string text("failure", how, ec);
        if (text.get() != nullptr) check(zkl_run_finish(handle_.release(), text.get()), ec);
    }

    /** Removes the run from the record, because the job never started. All other rules of succeed() also apply. */
    void take_back(error_out ec = {}) { check(zkl_run_take_back(handle_.release()), ec); }

    /** These functions start succeed(), fail() and take_back() without waiting for the server. */
    [[nodiscard]] operation start_succeed(error_out ec = {});
    [[nodiscard]] operation start_fail(std::string_view how, error_out ec = {});
    [[nodiscard]] operation start_take_back(error_out ec = {});

    using native_handle_type = zkl_run *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class hold;
    friend class operation;

    explicit run(zkl_run *handle) noexcept : handle_(handle) {}

    template <class Run>
    static std::optional<Run> if_any(Run got)
    {
        return got ? std::optional<Run>(std::move(got)) : std::nullopt;
    }

    detail::run_handle handle_;
};

/**
 * A hold of a lock, or of leases of a semaphore. The destructor releases the hold. The hold belongs to this object and not to a thread: any thread may
 * use the object. A hold refers only to the acquire from which it comes, and never to a later hold of the lock.
 */
class [[nodiscard]] hold {
public:
    /** Creates an object without a hold. */
    hold() noexcept = default;
    hold(hold &&) noexcept = default;

    hold &operator=(hold &&other) noexcept
    {
        if (this != &other) {
            static_cast<void>(release());
            handle_ = std::move(other.handle_);
            lost_ = std::move(other.lost_);
            lost_source_ = std::move(other.lost_source_);
            quantity_ = other.quantity_;
        }
        return *this;
    }

    /** Calls release(), and ignores the status. */
    ~hold() { static_cast<void>(release()); }

    /** Returns whether the object has a hold. After release() or a move, the object has no hold. */
    explicit operator bool() const noexcept { return native_handle() != nullptr; }

    /** Returns the number of leases; 1 for a hold of a lock, and 0 if the object has no hold. */
    std::int32_t quantity() const noexcept { return native_handle() == nullptr ? 0 : quantity_; }

    /**
     * Releases the hold. The object has no hold after this call, even if the call fails. Returns status::ok if the server has
     * confirmed the release, or if the object had no hold. Returns status::lost if the hold was already lost. Returns status::closed if
     * the client was closed. Returns status::connection if no server confirmed the release within the session timeout. If the call returns
     * status::connection, the library still tries to release the hold in the background. The comment of zkl_hold_release lists further statuses.
     *
     * Blocks for at most the session timeout. If a callback of this hold is running on another thread, the call also waits until the callback
     * returns.
     */
    [[nodiscard]] zkl::status release() noexcept
    {
        zkl_hold *const given = handle_.release();
        lost_.reset();
        lost_source_.reset();
        return given == nullptr ? status::ok : static_cast<zkl::status>(zkl_hold_release(given));
    }

    /**
     * Releases the hold like release(), but does not wait for the server. The library deletes the nodes in the background. The statuses have the same
     * meanings as for release(). Does not block, unless a callback of this hold is running on another thread.
     */
    [[nodiscard]] zkl::status release_nowait() noexcept
    {
        zkl_hold *const given = handle_.release();
        lost_.reset();
        lost_source_.reset();
        return given == nullptr ? status::ok : static_cast<zkl::status>(zkl_hold_release_nowait(given));
    }

    /**
     * Starts to release the hold, without waiting for the server. The object has no hold after this call. The returned operation
     * reports the same result as release(). Fails with status::handle if the object has no hold. If a callback of this hold is running on
     * another thread, the call waits until the callback returns.
     */
    [[nodiscard]] operation start_release(error_out ec = {});

    /** Returns whether the hold is safe at this moment. The function returns false on every error. Does not block. */
    bool is_held() const noexcept { return zkl_hold_is_held(native_handle()) == 1; }

    /** Returns the state of the hold. Returns lock_state::free on failure. Does not block. */
    zkl::lock_state state(error_out ec = {}) const { return static_cast<zkl::lock_state>(view(ec).state); }

    /**
     * Returns the fencing token of the hold (lockable::fencing_token()). The token is known from the acquire on, also after a loss. Does not block.
     */
    std::int64_t fencing_token(error_out ec = {}) const { return view(ec).token; }

    /** Returns the fencing pass of the hold (lockable::fencing_pass()). Does not block. */
    std::int64_t fencing_pass(error_out ec = {}) const { return view(ec).fencing_pass; }

    /** Returns how long the hold remains safe if no server answers from now on. Returns 0 if the hold is not safe now. Does not block. */
    std::chrono::milliseconds remaining(error_out ec = {}) const { return std::chrono::milliseconds(view(ec).remaining_ms); }

    /**
     * Returns the state, the fencing token, the fencing pass and the remaining time of the hold, all of one moment (zkl_hold_view). On failure, the
     * state is ZKL_LOCK_FREE, and the numbers are 0. Does not block.
     */
    zkl_hold_info view(error_out ec = {}) const
    {
        zkl_hold_info info{};
        info.size = sizeof info;
        info.state = ZKL_LOCK_FREE;
        check(zkl_hold_view(native_handle(), &info), ec);
        return info;
    }

    /**
     * Returns the path of one node: of a lease, or of a member of a multi-lock. The first node has index 0. Fails with status::lost if the hold was
     * lost. Fails with status::invalid if the index is too large. Does not block.
     */
    std::string node_path(std::size_t index = 0, error_out ec = {}) const
    {
        detail::text_buffer buffer;
        while (buffer.is_too_small(zkl_hold_node_path(native_handle(), index, buffer.data(), buffer.size(), buffer.needed()))) {}
        return buffer.take(ec);
    }

    /**
     * Sets a callback that reports the loss of this hold. The callback must be callable as void() or void(const zkl::event &). A loss occurs if
     * the hold becomes UNCERTAIN or LOST, or if the client is closed. The new callback replaces the previous callback. Passing nullptr removes the
     * previous callback. If the hold is already UNCERTAIN or LOST, on_lost() calls the callback at once, on the calling thread. The event that the
     * library passes to this call contains only the states: its path is empty, and its token is 0. In this case, the event thread may also call the
     * callback for the same loss, even at the same moment.
     *
     * If the call fails, the previous callback remains set. If the previous callback is running on another thread, the call waits until the callback
     * returns.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    void on_lost(Callback callback, Failed failed, error_out ec = {})
    {
        listen(detail::make_event_callback(std::move(callback), std::move(failed)), ec);
    }

    template <class Callback>
    void on_lost(Callback callback, error_out ec = {})
    {
        listen(detail::make_event_callback(std::move(callback), detail::ignore()), ec);
    }

    /**
     * Waits until the hold is no longer safe. Returns true if it became UNCERTAIN or LOST. Returns false if the hold is still
     * safe at the end of the time limit, and on failure.
     *
     * Fails with status::handle if the hold is released during the wait. Fails with status::closed if the client is closed. Fails with
     * status::deadlock in a callback. Blocks for at most the time limit.
     */
    template <class Rep, class Period>
    [[nodiscard]] bool wait_lost(const std::chrono::duration<Rep, Period> &limit, error_out ec = {}) const
    {
        return detail::was_lost(zkl_hold_wait_lost(native_handle(), detail::limit(limit)), ec);
    }

    /**
     * Starts an operation that waits until the hold is no longer safe. The returned operation then ends with status::lost. If the hold is
     * released, the operation ends with status::not_owner. Does not block.
     */
    [[nodiscard]] operation start_wait_lost(error_out ec = {});

#ifdef __cpp_lib_jthread
    /**
     * Returns a stop token for the loss of this hold. When the hold becomes UNCERTAIN or LOST, or when client::close() closes the client,
     * stop_requested() of the token becomes true. client::close_nowait() does not change stop_requested(). If the hold is already unsafe,
     * stop_requested() is true from the beginning. Does not block.
     */
    template <class = void>
    [[nodiscard]] std::stop_token lost_token(error_out ec = {}) const
    {
        zkl_hold_info now{};
        now.size = sizeof now;
        const zkl_status known = zkl_hold_view(native_handle(), &now);
        if (known == ZKL_E_CLOSED) {
            ec.succeed();
            return detail::stopped();
        }
        if (check(known, ec) != ZKL_OK) return {};
        detail::lost_source *source = static_cast<detail::lost_source *>(lost_source_.get());
        if (source == nullptr) {
            detail::listening next;
            source = new detail::lost_source();
            if (!next.add(source, ec, [&] {
                    return zkl_hold_listen(native_handle(), ZKL_LISTEN_LOSS, source->on_event, source, source->drop, &source->listener);
                })) {
                return {};
            }
            source = static_cast<detail::lost_source *>(lost_source_.adopt(next));
        }
        // The hold may have been lost before the listener was registered.
        if (!is_held()) source->source.request_stop();
        return source->source.get_token();
    }
#endif

    /**
     * Begins a run of the job of this lock, unless the job has already run in this period (zkl_hold_begin_run). Returns an empty value if the job has
     * already run, and on failure. Without a zone, the periods are those of the time zone of this host. If retry_failed is true, a run that failed or
     * was interrupted does not count.
     *
     * Fails with status::invalid if several participants can hold the lock at the same time, for example a read lock, or if an argument is not valid.
     * Fails with status::lost if the hold was lost. The comment of zkl_hold_begin_run lists further statuses. Blocks for at most three times the
     * session timeout.
     */
    template <class Run = run>
    [[nodiscard]] std::optional<Run> begin_run(std::string_view period, std::string_view zone = {}, bool retry_failed = false, error_out ec = {})
    {
        zkl_run *begun = nullptr;
        const auto begin = [&](const char *length, const char *name, std::uint32_t flags) {
            return zkl_hold_begin_run(native_handle(), length, name, flags, &begun);
        };
        with_job(period, zone, retry_failed, ec, begin);
        return run::if_any<Run>(Run(begun));
    }

    /**
     * Starts begin_run() without waiting for the server. After the operation has ended, operation::take_run() returns the run. If the program cancels
     * or destroys the operation before, the library removes the run from the record. Does not block.
     */
    [[nodiscard]] operation start_begin_run(std::string_view period, std::string_view zone = {}, bool retry_failed = false, error_out ec = {});

    using native_handle_type = zkl_hold *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class lockable;
    friend class semaphore;
    friend class operation;

    template <class Hold>
    static std::optional<Hold> if_any(Hold got)
    {
        return got ? std::optional<Hold>(std::move(got)) : std::nullopt;
    }

    hold(zkl_hold *handle, std::int32_t quantity) noexcept : handle_(handle), quantity_(quantity) {}

    /** Calls a function that begins a run with the arguments of zkl_hold_begin_run. */
    template <class Begin>
    static void with_job(std::string_view period, std::string_view zone, bool retry_failed, error_out ec, Begin begin)
    {
        const detail::c_string length("period", period, ec), name("zone", zone, ec);
        if (length.get() == nullptr || name.get() == nullptr) return;
        check(begin(length.get(), zone.empty() ? nullptr : name.get(), retry_failed ? ZKL_ONCE_RETRY_FAILED : 0), ec);
    }

    void listen(detail::target *to, error_out ec)
    {
        if (to == nullptr) {
            lost_.reset();
            ec.succeed();
            return;
        }
        // The callback may remove itself or destroy this hold. The function therefore keeps the target, and does not use the hold after the call.
        const detail::target_reference kept(to);
        if (!lost_.add(to, ec, [&] { return zkl_hold_listen(native_handle(), ZKL_LISTEN_LOSS, to->on_event, to, to->drop, &to->listener); })) return;
        if (lost_.get() != to) return;
        zkl_event now{};
        now.size = sizeof now;
        now.kind = ZKL_EVENT_LOCK;
        now.previous = ZKL_LOCK_HELD;
        std::error_code ignored;
        now.state = static_cast<std::int32_t>(state(ignored));
        if (now.state == ZKL_LOCK_UNCERTAIN || now.state == ZKL_LOCK_LOST) to->on_event(to, &now);
    }

    detail::hold_handle handle_;
    detail::listening lost_;
    /** The detail::lost_source of this hold. Only C++20 code uses this member. */
    mutable detail::listening lost_source_;
    std::int32_t quantity_ = 0;
};

/**
 * A queue of the operations that have ended (operation::notify()). A program polls one descriptor for any number of operations. The destructor does not
 * affect the operations.
 */
class completion_queue {
public:
    /** Creates an empty queue. Fails with status::exhausted if the process has no free descriptor. Does not block. */
    explicit completion_queue(error_out ec = {})
    {
        zkl_completion_queue *made = nullptr;
        check(zkl_completion_queue_new(&made), ec);
        handle_.reset(made);
    }

    /**
     * Returns a descriptor that is readable while the queue contains keys, for poll, epoll and event loops. Returns a negative number on failure. The
     * descriptor belongs to the library. Does not block.
     */
    [[nodiscard]] int fd(error_out ec = {}) const { return check(zkl_completion_queue_fd(native_handle()), ec); }

    /**
     * Removes the oldest keys from the queue, up to the given number of keys, and returns these keys. Returns no keys if the queue is empty. Fails
     * with status::invalid if the number is 0. Does not block.
     */
    template <class Key = std::uint64_t>
    [[nodiscard]] std::vector<Key> take(std::size_t most = 256, error_out ec = {})
    {
        std::vector<Key> keys(most);
        std::size_t count = 0;
        check(zkl_completion_queue_take(native_handle(), keys.data(), keys.size(), &count), ec);
        keys.resize(count);
        return keys;
    }

    using native_handle_type = zkl_completion_queue *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    detail::completion_queue_handle handle_;
};

/**
 * A pending call: an acquire of a lock or of leases, a release, a query, a wait for a loss, or the start or the end of a client. The operation
 * continues in the background, even if no thread waits for it. An acquire ends within its time limit, and the start of a client ends within the
 * connect timeout. A wait for a loss ends when the hold ends. The beginning and the end of a run end within three times the session timeout. All other
 * operations end within the session timeout, and continue after the destructor.
 *
 * If an acquire, a wait for a loss, the start of a client or the beginning of a run is still pending, the destructor cancels it. If the acquire has
 * succeeded, but the program has not received the hold yet, the destructor releases the hold. The program receives the hold from take_hold(). A
 * thread that acquires a lock for itself (owner::this_thread) receives its hold also from result(), wait(), wait_for() or get(), and can then release
 * the lock. If the program has not received a run that has begun, the destructor removes the run from the record (take_run()).
 */
class [[nodiscard]] operation {
public:
    /** Creates an object without an operation. */
    operation() noexcept = default;
    operation(operation &&) noexcept = default;
    operation &operator=(operation &&) noexcept = default;
    ~operation() = default;

    /**
     * Returns a descriptor that becomes readable when the operation ends, and then stays readable. Returns a negative number on failure. The program
     * can pass the descriptor to poll, epoll and event loops. The descriptor belongs to the library, and the program must not read, write or close
     * it. The program must remove the descriptor from its event loop before the operation is destroyed.
     *
     * Fails with status::exhausted if the process has no free descriptor. The operation continues even if it has no descriptor. Does not block.
     */
    [[nodiscard]] int fd(error_out ec = {}) const { return check(zkl_op_fd(native_handle()), ec); }

    /**
     * Puts a key into a completion queue when the operation ends, or at once if it has already ended. The program chooses the key. Does not block.
     */
    void notify(completion_queue &queue, std::uint64_t key, error_out ec = {})
    {
        check(zkl_op_notify(native_handle(), queue.native_handle(), key), ec);
    }

    /**
     * Returns the result of the operation, or an empty value while the operation is pending. Can fail with status::handle or forked. Does not block.
     */
    template <class Status = zkl::status>
    [[nodiscard]] std::optional<Status> result(error_out ec = {}) const
    {
        return ended<Status>(zkl_op_result(native_handle()), ec);
    }

    /**
     * Waits until the operation ends, and returns its result.
     *
     * Can fail with status::handle or forked. In a callback, the call fails with status::deadlock if the operation is still pending. If the wait
     * itself fails, the function returns the status of this failure.
     */
    [[nodiscard]] zkl::status wait(error_out ec = {}) const
    {
        const zkl_status result = zkl_op_wait(native_handle(), -1);
        check(is_end(result) ? ZKL_OK : result, ec);
        return static_cast<zkl::status>(result);
    }

    /**
     * Waits until the operation ends or the time limit has passed. Returns the result, or an empty value if the operation is still pending. The time
     * limit of the wait does not affect the operation. Can fail with the same statuses as wait().
     */
    template <class Rep, class Period, class Status = zkl::status>
    [[nodiscard]] std::optional<Status> wait_for(const std::chrono::duration<Rep, Period> &limit, error_out ec = {}) const
    {
        return ended<Status>(zkl_op_wait(native_handle(), detail::limit(limit)), ec);
    }

    /**
     * Returns a message that describes why the operation failed. The text is for people and logs. The text is empty while the operation is pending
     * and after a success. The memory of the text belongs to the operation.
     */
    const char *message() const noexcept { return zkl_op_message(native_handle()); }

    /** Waits until the operation ends. Fails with the status of the operation if the operation failed. Can also fail with the same statuses as wait(). */
    void get(error_out ec = {}) const { check(zkl_op_wait(native_handle(), -1), ec); }

    /**
     * Cancels an acquire, a wait for a loss, the start of a client, or the beginning of a run. The operation then ends with status::canceled. If the
     * operation has already ended, the call has no effect. If the operation is about to succeed at the same moment, it may still succeed. The call
     * has no effect on other operations. Does not block.
     */
    void cancel(error_out ec = {}) { check(zkl_op_cancel(native_handle()), ec); }

    /**
     * Returns the hold of this operation. The operation must be an acquire that has ended with status::ok. The program releases the
     * hold with the returned object.
     *
     * Fails with the status of the acquire if the acquire failed. Fails with status::pending while the operation is pending. Fails with
     * status::invalid if the operation is not an acquire, or if the program has already taken the hold. Does not block.
     */
    [[nodiscard]] hold take_hold(error_out ec = {})
    {
        zkl_hold *taken = nullptr;
        check(zkl_op_hold(native_handle(), &taken), ec);
        return hold(taken, quantity_);
    }

    /**
     * Returns the number that the operation found. This number is the value of a shared count, 1 or 0 for a check of a fencing token, or the number of
     * participants. Returns 0 on failure.
     *
     * Fails with the status of the operation if the operation failed. Fails with status::pending while the operation is pending. Fails with
     * status::invalid if this kind of operation does not return a number. Does not block.
     */
    [[nodiscard]] std::int64_t value(error_out ec = {}) const
    {
        std::int64_t found = 0;
        check(zkl_op_value(native_handle(), &found), ec);
        return found;
    }

    /**
     * Returns the client from an operation that client::start() started. The program can take the client only once. Fails with the same statuses as
     * value(). Does not block.
     */
    [[nodiscard]] client take_client(error_out ec = {})
    {
        zkl_client *taken = nullptr;
        check(zkl_op_client(native_handle(), &taken), ec);
        return client(taken);
    }

    /**
     * Returns the semaphore from an operation that semaphore::start_counted() started. The program can take the semaphore only once. Fails with the
     * same statuses as value(). Does not block.
     */
    [[nodiscard]] semaphore take_semaphore(error_out ec = {});

    /**
     * Returns the run from an operation that hold::start_begin_run() started. Returns an empty value if the job has already run, and on failure. The
     * program can take the run only once. Fails with the same statuses as value(). Does not block.
     */
    template <class Run = run>
    [[nodiscard]] std::optional<Run> take_run(error_out ec = {})
    {
        zkl_run *taken = nullptr;
        check(zkl_op_run(native_handle(), &taken), ec);
        return run::if_any<Run>(Run(taken));
    }

    /** Returns the runs that client::start_past_runs() has read. Fails with the same statuses as participants(). Does not block. */
    template <class Run = past_run>
    [[nodiscard]] std::vector<Run> past_runs(error_out ec = {}) const
    {
        return list<Run, zkl_past_run>(zkl_op_past_run, ec);
    }

    /**
     * Returns the participants that the operation has found (lockable::start_participants(), lockable::start_queue(),
     * semaphore::start_participants()).
     *
     * Fails with the status of the operation if the operation failed. Fails with status::pending while the operation is pending. Fails with
     * status::invalid if this kind of operation does not return participants. Does not block.
     */
    template <class Participant = participant>
    [[nodiscard]] std::vector<Participant> participants(error_out ec = {}) const
    {
        return list<Participant, zkl_participant>(zkl_op_participant, ec);
    }

    using native_handle_type = zkl_op *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class client;
    friend class hold;
    friend class lockable;
    friend class run;
    friend class semaphore;

    template <class Start>
    static operation started(error_out ec, Start start, bool is_list = false)
    {
        zkl_op *op = nullptr;
        check(start(&op), ec);
        operation made(op);
        made.lists_ = is_list;
        return made;
    }

    /** Returns the list that an operation has found. The C function gets one element of the list. */
    template <class Element, class Raw>
    std::vector<Element> list(zkl_status (*read)(const zkl_op *, std::size_t, const Raw **), error_out ec) const
    {
        detail::collection<Element> found;
        std::int64_t count = 0;
        const Raw *first = nullptr;
        // For an operation without a list, the C function fails, but zkl_op_value() may return an unrelated number.
        zkl_status result = lists_ ? zkl_op_value(native_handle(), &count) : read(native_handle(), 0, &first);
        for (std::int64_t index = 0; result == ZKL_OK && index < count; index++) {
            const Raw *each = nullptr;
            result = read(native_handle(), static_cast<std::size_t>(index), &each);
            if (result == ZKL_OK) found.template add<Raw>(&found, each);
        }
        return found.take(result, ec);
    }

    explicit operation(zkl_op *handle, std::int32_t quantity = 1) noexcept : handle_(handle), quantity_(quantity) {}

    /**
     * Returns whether the value is the result of the operation. If the value is not the result, the query failed or the operation is still pending.
     */
    bool is_end(zkl_status result) const noexcept
    {
        // The value DEADLOCK has two meanings: the operation ended with DEADLOCK, or a callback made this call and must not wait.
        if (result == ZKL_E_DEADLOCK) return zkl_op_result(native_handle()) != ZKL_E_PENDING;
        return result != ZKL_E_PENDING && result != ZKL_E_HANDLE && result != ZKL_E_FORKED;
    }

    template <class Status>
    std::optional<Status> ended(zkl_status result, error_out ec) const
    {
        const bool is_over = is_end(result);
        check(is_over || result == ZKL_E_PENDING ? ZKL_OK : result, ec);
        return is_over ? std::optional<Status>(static_cast<Status>(result)) : std::nullopt;
    }

#ifdef __cpp_lib_jthread
    /** Waits until the operation ends. If the token receives a stop request, the function cancels the operation. */
    zkl_status wait_or(const std::stop_token &stop) const
    {
        const std::stop_callback cancel_it(stop, [this] { zkl_op_cancel(native_handle()); });
        return zkl_op_wait(native_handle(), -1);
    }
#endif

    detail::operation_handle handle_;
    std::int32_t quantity_ = 0;
    bool lists_ = false;
};

inline operation client::start(std::string_view servers, error_out ec)
{
    return start_with(servers, nullptr, ec);
}

inline operation client::start(std::string_view servers, const config &settings, error_out ec)
{
    // The C function would treat a null config as the default settings.
    if (settings.native_handle() != nullptr) return start_with(servers, settings.native_handle(), ec);
    ec.fail(status::handle, "the config was moved from");
    return operation();
}

inline operation client::start_with(std::string_view servers, const zkl_config *settings, error_out ec)
{
    const detail::c_string text("servers", servers, ec);
    return operation::started(ec, [&](zkl_op **op) { return zkl_client_start(text.get(), settings, op); });
}

inline operation client::start_close(error_out ec)
{
    return operation::started(ec, [&](zkl_op **op) { return zkl_client_close_start(native_handle(), op); });
}

inline operation client::start_revoke(std::string_view node_path, error_out ec)
{
    const detail::c_string text("node path", node_path, ec);
    return operation::started(ec, [&](zkl_op **op) { return zkl_revoke_start(native_handle(), text.get(), op); });
}

inline operation client::start_fence_check(std::string_view path, std::int64_t token, error_out ec)
{
    const detail::c_string text("path", path, ec);
    return operation::started(ec, [&](zkl_op **op) { return zkl_fence_check_start(native_handle(), text.get(), token, op); });
}

inline operation client::start_shared_count_get(std::string_view path, error_out ec)
{
    const detail::c_string text("count path", path, ec);
    return operation::started(ec, [&](zkl_op **op) { return zkl_shared_count_get_start(native_handle(), text.get(), op); });
}

inline operation client::start_shared_count_set(std::string_view path, std::int32_t value, error_out ec)
{
    const detail::c_string text("count path", path, ec);
    return operation::started(ec, [&](zkl_op **op) { return zkl_shared_count_set_start(native_handle(), text.get(), value, op); });
}

inline operation client::start_past_runs(std::string_view path, error_out ec)
{
    const detail::c_string text("path", path, ec);
    return operation::started(ec, [&](zkl_op **op) { return zkl_past_runs_start(native_handle(), text.get(), op); }, true);
}

inline operation run::start_succeed(error_out ec)
{
    return operation::started(ec, [&](zkl_op **op) { return zkl_run_finish_start(handle_.release(), nullptr, op); });
}

inline operation run::start_fail(std::string_view how, error_out ec)
{
    const detail::c_string text("failure", how, ec);
    if (text.get() == nullptr) return operation();
    return operation::started(ec, [&](zkl_op **op) { return zkl_run_finish_start(handle_.release(), text.get(), op); });
}

inline operation run::start_take_back(error_out ec)
{
    return operation::started(ec, [&](zkl_op **op) { return zkl_run_take_back_start(handle_.release(), op); });
}

inline operation hold::start_begin_run(std::string_view period, std::string_view zone, bool retry_failed, error_out ec)
{
    zkl_op *op = nullptr;
    with_job(period, zone, retry_failed, ec, [&](const char *length, const char *name, std::uint32_t flags) {
        return zkl_hold_begin_run_start(native_handle(), length, name, flags, &op);
    });
    return operation(op);
}

inline operation hold::start_wait_lost(error_out ec)
{
    return operation::started(ec, [&](zkl_op **op) { return zkl_hold_wait_lost_start(native_handle(), op); });
}

inline operation hold::start_release(error_out ec)
{
    zkl_hold *const given = handle_.release();
    lost_.reset();
    lost_source_.reset();
    return operation::started(ec, [&](zkl_op **op) { return zkl_hold_release_start(given, op); });
}

/**
 * The functions that all locks have. Locks satisfy the requirements Lockable and TimedLockable, and therefore work with the guards of the standard
 * library.
 *
 * The functions acquire() and try_acquire() return a hold, which any thread may use and release. The function start() starts an acquire whose operation
 * gives a hold. All other functions act on the hold of the calling thread. A function whose name ends in _in_process acts on the hold of any owner in
 * this process.
 */
class lockable {
public:
    /**
     * Acquires the lock for the calling thread. If the thread already holds a re-entrant lock, the call increments the hold count. The thread must
     * call unlock() once for each call to lock(). The call waits without a time limit, even if the connection or the session is lost.
     *
     * Fails with status::canceled after cancel(). Fails with status::closed if the lock or its client is closed. Fails with status::deadlock if the
     * thread would wait for itself. Fails with status::lost if an earlier hold of the thread was lost, and the thread has not released this hold yet.
     * The comment on zkl_acquire lists further statuses. A call that fails acquires nothing. Blocks until the thread holds the lock.
     */
    void lock(error_out ec = {}) { check(zkl_acquire(native_handle()), ec); }

    /**
     * Makes one attempt to acquire the lock. Returns false if the lock is not free or the call fails.
     *
     * Can fail with the same statuses as lock(). If no server answered, the call fails with status::connection. Waits at most one second for the
     * answer of the server.
     */
    [[nodiscard]] bool try_lock(error_out ec = {}) { return acquired(zkl_acquire_timeout(native_handle(), 0), ec); }

    /**
     * Acquires the lock within a time limit. Returns false when the time limit has passed, and on failure. The function never times out early. With a
     * limit of zero or less, the acquire makes one attempt.
     *
     * Can fail with the same statuses as lock(). If no server answered within the time limit, the call fails with status::connection. Blocks until
     * the thread holds the lock, or until the time limit has passed.
     */
    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period> &limit, error_out ec = {})
    {
        return acquired(zkl_acquire_timeout(native_handle(), detail::limit(limit)), ec);
    }

    /** Acquires the lock before a deadline. The deadline may use any clock. All other rules of try_lock_for() also apply. */
    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration> &deadline, error_out ec = {})
    {
        return detail::until(deadline, [&](std::int64_t limit) { return acquired(zkl_acquire_timeout(native_handle(), limit), ec); }, ec);
    }

#ifdef __cpp_lib_jthread
    /**
     * The following functions fail with status::canceled if the token receives a stop request before or during the call. All other rules of lock(),
     * try_lock_for() and try_lock_until() also apply. The stop request does not affect other calls that wait for the lock. If the lock is granted at
     * the same moment, the call may still succeed.
     */
    void lock(const std::stop_token &stop, error_out ec = {}) { static_cast<void>(lock_ms(-1, stop, ec)); }

    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period> &limit, const std::stop_token &stop, error_out ec = {})
    {
        return lock_ms(detail::limit(limit), stop, ec);
    }

    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration> &deadline, const std::stop_token &stop, error_out ec = {})
    {
        return detail::until(deadline, [&](std::int64_t limit) { return lock_ms(limit, stop, ec); }, ec);
    }
#endif

    /**
     * Acquires the lock, and returns the hold. The hold belongs to the returned object and not to a thread: any thread may use and release it, and the
     * calling thread does not own the lock. Returns an empty hold on failure. All other rules of lock() also apply, except that the call cannot detect
     * that the calling thread itself has another hold of the lock.
     */
    [[nodiscard]] hold acquire(error_out ec = {}) { return acquire_ms(-1, ec); }

    /** Makes one attempt to acquire the lock. Returns an empty value if the lock is not free or the call fails. See acquire() and try_lock(). */
    template <class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire(error_out ec = {})
    {
        return hold::if_any<Hold>(acquire_ms(0, ec));
    }

    /**
     * Acquires the lock within a time limit. Returns an empty value when the time limit has passed, and on failure. All other rules of acquire() and
     * try_lock_for() also apply.
     */
    template <class Rep, class Period, class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire_for(const std::chrono::duration<Rep, Period> &limit, error_out ec = {})
    {
        return hold::if_any<Hold>(acquire_ms(detail::limit(limit), ec));
    }

    /** Acquires the lock before a deadline. The deadline may use any clock. All other rules of try_acquire_for() also apply. */
    template <class Clock, class Duration, class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire_until(const std::chrono::time_point<Clock, Duration> &deadline, error_out ec = {})
    {
        return detail::until(deadline, [&](std::int64_t limit) { return hold::if_any<Hold>(acquire_ms(limit, ec)); }, ec);
    }

    /**
     * Acquires the lock for an owner, for example a task or a fiber, and returns the hold. If the owner already holds the lock, the call re-enters the
     * lock: the program then has two holds. All other rules of acquire() also apply.
     */
    [[nodiscard]] hold acquire(owner who, error_out ec = {}) { return acquire_ms(-1, ec, who); }

    /** Acquires the lock for an owner within a time limit. All other rules of acquire(owner) and try_acquire_for() also apply. */
    template <class Rep, class Period, class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire_for(const std::chrono::duration<Rep, Period> &limit, owner who, error_out ec = {})
    {
        return hold::if_any<Hold>(acquire_ms(detail::limit(limit), ec, who));
    }

    /**
     * Decrements the hold count of the calling thread. If the hold count becomes 0, the call releases the lock, and waits until the server has
     * confirmed the release. The function unlock() does not report failures, for example that the lock was lost. To get the status, call release().
     *
     * Blocks for at most the session timeout.
     */
    void unlock() noexcept { static_cast<void>(zkl_release(native_handle())); }

    /** Calls release(), and sets the code to the returned status. */
    void unlock(std::error_code &ec) noexcept { ec = release(); }

    /**
     * Decrements the hold count of the calling thread. If the hold count becomes 0, the call releases the lock. Returns status::ok on success. Returns
     * status::not_owner, and changes nothing, if the thread does not hold the lock. However, a multi-lock releases the member locks that the thread
     * still holds, whatever status it returns. Returns status::lost if the hold was already lost. In this case, another owner may have held the lock
     * since the loss. Returns status::connection if no server confirmed the release within the session timeout. After status::connection, the library
     * still tries to release the lock in the background. The comment of zkl_release lists further statuses. The call decrements the hold count even if
     * it returns status::lost or status::connection.
     *
     * Blocks for at most the session timeout.
     */
    [[nodiscard]] zkl::status release() noexcept { return static_cast<zkl::status>(zkl_release(native_handle())); }

    /**
     * Releases the lock like release(), but does not wait for the server. The library deletes the node of the lock in the background. The statuses
     * have the same meanings as for release().
     */
    [[nodiscard]] zkl::status release_nowait() noexcept { return static_cast<zkl::status>(zkl_release_nowait(native_handle())); }

    /**
     * Starts acquiring the lock for the calling thread or for an owner, without waiting for the result. The returned operation reports the result, and
     * gives the hold (operation::take_hold()).
     *
     * Does not block.
     */
    [[nodiscard]] operation start(error_out ec = {}) { return start_ms(owner::this_thread, -1, ec); }
    [[nodiscard]] operation start(owner who, error_out ec = {}) { return start_ms(who, -1, ec); }

    /** Starts an acquire with a time limit. All other rules of start() also apply. With a limit of zero or less, the acquire makes one attempt. */
    template <class Rep, class Period>
    [[nodiscard]] operation start_for(const std::chrono::duration<Rep, Period> &limit, error_out ec = {})
    {
        return start_ms(owner::this_thread, detail::limit(limit), ec);
    }

    template <class Rep, class Period>
    [[nodiscard]] operation start_for(const std::chrono::duration<Rep, Period> &limit, owner who, error_out ec = {})
    {
        return start_ms(who, detail::limit(limit), ec);
    }

    /**
     * Cancels all acquires that are pending on this object at this moment, in all threads. The canceled acquires fail with status::canceled. Does not
     * block.
     */
    void cancel(error_out ec = {}) { check(zkl_cancel(native_handle()), ec); }

    /**
     * Returns true if the calling thread holds the lock, and the hold is safe at this moment. In all other cases, including errors, returns false. Does
     * not block.
     */
    bool is_held() const noexcept { return zkl_is_held(native_handle()) == 1; }

    /** Returns true if any owner in this process holds the lock through this object, and the hold is safe at this moment. Does not block. */
    bool is_held_in_process() const noexcept { return zkl_is_held_in_process(native_handle()) == 1; }

    /** Returns the state of the hold. Returns lock_state::free if there is no hold, and on failure. Does not block. */
    zkl::lock_state state(error_out ec = {}) const { return state_of(zkl_lock_state(native_handle()), ec); }

    /** Returns the state of a hold that was acquired through this object. The hold may belong to any owner in this process. */
    zkl::lock_state state_in_process(error_out ec = {}) const { return state_of(zkl_lock_state_in_process(native_handle()), ec); }

    /**
     * Returns the fencing token of the hold. Each hold of the path has a larger token than all earlier holds, except after a local hand-over. A store
     * can therefore refuse writes from earlier holders. If the owner of the write lock also acquires the read lock, send the token of the write lock:
     * the token of the read lock can be larger than the token of the next writer.
     *
     * Fails with status::not_owner if there is no hold. Fails with status::lost if the hold was lost. Does not block.
     */
    std::int64_t fencing_token(error_out ec = {}) const
    {
        std::int64_t token = 0;
        check(zkl_fencing_token(native_handle(), &token), ec);
        return token;
    }

    /**
     * Returns the fencing pass of the hold. The fencing pass is the number of local hand-overs that occurred under the same token before the hold
     * began (mutex::set_local_handover()). Can fail with the same statuses as fencing_token().
     */
    std::int64_t fencing_pass(error_out ec = {}) const
    {
        std::int64_t pass = 0;
        check(zkl_fencing_pass(native_handle(), &pass), ec);
        return pass;
    }

    /**
     * Returns how long the hold remains safe if no server answers from now on. Returns 0 if the hold is not safe now. Can fail with the same statuses
     * as fencing_token().
     */
    std::chrono::milliseconds remaining(error_out ec = {}) const
    {
        std::int64_t ms = 0;
        check(zkl_remaining_ms(native_handle(), &ms), ec);
        return std::chrono::milliseconds(ms);
    }

    /**
     * Returns the node path, without the client's chroot.
     *
     * Fails with status::not_owner if there is no hold. Fails with status::lost if the hold was lost. Fails with status::invalid for a multi-lock.
     * For a multi-lock, call node_path() of each member lock instead. Does not block.
     */
    std::string node_path(error_out ec = {}) const
    {
        detail::text_buffer buffer;
        while (buffer.is_too_small(zkl_lock_node_path(native_handle(), buffer.data(), buffer.size(), buffer.needed()))) {}
        return buffer.take(ec);
    }

    /**
     * Sets the data of each node that a later acquire call creates. Fails with status::invalid if the data is longer than 512 KiB. Does not block.
     */
    void set_data(std::string_view data, error_out ec = {}) { check(zkl_lock_set_data(native_handle(), data.data(), data.size()), ec); }

    /**
     * Asks the server for the participants of this lock, in the order of the queue. The participants are the holders and the waiters of all
     * processes. For a shared_mutex, the result contains only writers. For the reader() of a shared_mutex, the result contains only readers. The
     * function queue() returns both.
     *
     * Blocks for at most the session timeout.
     */
    template <class Participant = participant>
    std::vector<Participant> participants(error_out ec = {})
    {
        detail::collection<Participant> found;
        return found.take(zkl_participants(native_handle(), found.template add<zkl_participant>, &found), ec);
    }

    /**
     * Asks the server for the participants of this lock. For a shared_mutex or its reader(), the result contains both the readers and the writers.
     */
    template <class Participant = participant>
    std::vector<Participant> queue(error_out ec = {})
    {
        detail::collection<Participant> found;
        return found.take(zkl_queue(native_handle(), found.template add<zkl_participant>, &found), ec);
    }

    /**
     * Starts the same query as participants() without waiting for the server. After the operation has ended, operation::participants() returns the
     * result.
     */
    [[nodiscard]] operation start_participants(error_out ec = {})
    {
        return operation::started(ec, [&](zkl_op **op) { return zkl_participants_start(native_handle(), op); }, true);
    }

    /**
     * Starts the query that queue() makes, without waiting for the server. After the operation has ended, operation::participants() returns the
     * result.
     */
    [[nodiscard]] operation start_queue(error_out ec = {})
    {
        return operation::started(ec, [&](zkl_op **op) { return zkl_queue_start(native_handle(), op); }, true);
    }

    /** Returns the acquires of this process that are pending on this object. The call sends no request to the server. Does not block. */
    template <class Waiting = zkl::waiting>
    std::vector<Waiting> waiting(error_out ec = {}) const
    {
        detail::collection<Waiting> found;
        return found.take(zkl_waiting(native_handle(), found.template add<zkl_wait>, &found), ec);
    }

    /**
     * Sets a callback that the library calls whenever a hold of this lock changes. The callback must be callable as void() or void(const zkl::event
     * &). For a multi-lock, the callback receives the changes of all member locks. The new callback replaces the previous callback. Passing nullptr
     * removes the previous callback.
     *
     * If the call fails, the previous callback remains set. If the previous callback is running on another thread, the call waits until the callback
     * returns.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    void on_event(Callback callback, Failed failed, error_out ec = {})
    {
        listen(event_, ZKL_LISTEN_ALL, detail::make_event_callback(std::move(callback), std::move(failed)), ec);
    }

    template <class Callback>
    void on_event(Callback callback, error_out ec = {})
    {
        listen(event_, ZKL_LISTEN_ALL, detail::make_event_callback(std::move(callback), detail::ignore()), ec);
    }

    /**
     * Sets a callback for losses. A loss occurs if a hold becomes UNCERTAIN or LOST, or if the client is closed. All other rules of on_event() also
     * apply. The callback may not receive losses that occurred before this call. A program should therefore set the callback before it acquires the
     * lock.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    void on_lost(Callback callback, Failed failed, error_out ec = {})
    {
        listen(lost_, ZKL_LISTEN_LOSS, detail::make_event_callback(std::move(callback), std::move(failed)), ec);
    }

    template <class Callback>
    void on_lost(Callback callback, error_out ec = {})
    {
        listen(lost_, ZKL_LISTEN_LOSS, detail::make_event_callback(std::move(callback), detail::ignore()), ec);
    }

    /**
     * Waits until the hold of the calling thread is no longer safe. Returns true if the hold became UNCERTAIN or LOST. Returns false if the hold is
     * still safe at the end of the time limit, and on failure.
     *
     * Fails with status::not_owner if there is no hold, or if the hold is released during the wait. Fails with status::closed if the lock or the
     * client is closed. Fails with status::deadlock in a callback. Blocks for at most the time limit.
     */
    template <class Rep, class Period>
    [[nodiscard]] bool wait_lost(const std::chrono::duration<Rep, Period> &limit, error_out ec = {}) const
    {
        return detail::was_lost(zkl_wait_lost(native_handle(), detail::limit(limit)), ec);
    }

    /**
     * Sets a callback for revocation requests (client::revoke()). The library calls the callback as void(). A revocation request asks the holder to
     * release this lock, or asks a waiter to stop waiting for it. A revocation request does not release the lock by itself. The callback does not run
     * on the thread that holds the lock, and should therefore ask that thread to release the lock. The callback of a multi-lock replaces the
     * callbacks of its member locks. A new callback replaces the previous callback. Passing nullptr removes the previous callback.
     *
     * If the call fails, the previous callback remains set. If the previous callback is running on another thread, the call waits until the callback
     * returns.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    void set_revocable(Callback callback, Failed failed, error_out ec = {})
    {
        auto *const made = detail::make_callback(std::move(callback), std::move(failed));
        zkl_revocable_cb run = nullptr;
        if (made != nullptr) run = made->template run_revocation<zkl_lock>;
        revocable(run, made, ec);
    }

    template <class Callback>
    void set_revocable(Callback callback, error_out ec = {})
    {
        set_revocable(std::move(callback), detail::ignore(), ec);
    }

    using native_handle_type = zkl_lock *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

protected:
    explicit lockable(zkl_lock *made) noexcept : handle_(made) {}

    lockable(lockable &&other) noexcept
        : handle_(std::move(other.handle_)), event_(std::move(other.event_)), lost_(std::move(other.lost_)),
          is_revocable_(other.is_revocable_.exchange(false))
    {
    }

    lockable &operator=(lockable &&other) noexcept
    {
        if (this != &other) {
            close();
            handle_ = std::move(other.handle_);
            event_ = std::move(other.event_);
            lost_ = std::move(other.lost_);
            is_revocable_ = other.is_revocable_.exchange(false);
        }
        return *this;
    }

    /**
     * Destroys the lock. Calls that wait for the lock fail with status::closed. The destructor releases all holds of this lock without waiting for
     * the server. If a callback of this lock is running on another thread, the destructor waits until the callback returns.
     */
    ~lockable() { close(); }

private:
    friend class semaphore;

    static std::uint64_t number(owner who) noexcept { return static_cast<std::uint64_t>(who); }

    static bool acquired(zkl_status result, error_out ec)
    {
        if (result != ZKL_E_TIMEOUT) return check(result, ec) == ZKL_OK;
        ec.succeed();
        return false;
    }

    static zkl::lock_state state_of(std::int32_t result, error_out ec)
    {
        return check(result, ec) < 0 ? zkl::lock_state::free : static_cast<zkl::lock_state>(result);
    }

    hold acquire_ms(std::int64_t limit, error_out ec, owner who = owner{ZKL_OWNER_NEW})
    {
        zkl_hold *got = nullptr;
        acquired(zkl_hold_acquire(native_handle(), number(who), limit, &got), ec);
        return hold(got, 1);
    }

    operation start_ms(owner who, std::int64_t limit, error_out ec)
    {
        return operation::started(ec, [&](zkl_op **op) { return zkl_acquire_start(native_handle(), number(who), limit, op); });
    }

#ifdef __cpp_lib_jthread
    bool lock_ms(std::int64_t limit, const std::stop_token &stop, error_out ec)
    {
        if (stop.stop_requested()) {
            ec.fail(status::canceled, "the stop token received a stop request before the wait began");
            return false;
        }
        // In a callback, this overload must fail before it joins the queue.
        if (zkl_check_may_wait() != ZKL_OK) return acquired(zkl_acquire_timeout(native_handle(), limit), ec);
        const operation started = start_ms(owner::this_thread, limit, ec);
        return started.native_handle() != nullptr && acquired(started.wait_or(stop), ec);
    }
#endif

    bool listen(detail::listening &by, std::int32_t events, detail::target *to, error_out ec) const
    {
        if (to == nullptr) {
            by.reset();
            ec.succeed();
            return true;
        }
        return by.add(to, ec, [&] { return zkl_lock_listen(native_handle(), events, to->on_event, to, to->drop, &to->listener); });
    }

    void revocable(zkl_revocable_cb run, detail::target *with, error_out ec)
    {
        if (with == nullptr && native_handle() == nullptr) return ec.succeed();
        // Set the flag before the call, so that close() also removes a callback that another thread is setting at the same moment.
        is_revocable_ = true;
        check(detail::taken(zkl_set_revocable(native_handle(), run, with, with == nullptr ? nullptr : with->drop), with), ec);
    }

    void close() noexcept
    {
        if (is_revocable_.exchange(false)) static_cast<void>(zkl_set_revocable(native_handle(), nullptr, nullptr, nullptr));
        event_.reset();
        lost_.reset();
        handle_.reset();
    }

    detail::lock_handle handle_;
    detail::listening event_;
    detail::listening lost_;
    std::atomic<bool> is_revocable_{false};
};

/** A mutex on a path. The thread that holds the mutex may re-enter the mutex. The mutex uses the same znodes as Curator's InterProcessMutex. */
class mutex : public lockable {
public:
    /** Creates the lock object without a request to the server. Fails with status::invalid if the path is not valid. Does not block. */
    mutex(client &of, std::string_view path, error_out ec = {}) : lockable(make(of, path, ec)) {}

    /**
     * Allows local hand-overs. In a local hand-over, a release passes the lock to the same client's next waiter, without sending a request to the
     * server. After max_passes local hand-overs in a row, the next release deletes the node. The next waiter of the client then joins the end of the
     * queue. The default of max_passes is 0, which disables local hand-overs (zkl_mutex_set_local_handover). Fails with status::invalid if the number
     * is negative. Does not block.
     */
    void set_local_handover(std::int32_t max_passes, error_out ec = {}) { check(zkl_mutex_set_local_handover(native_handle(), max_passes), ec); }

private:
    static zkl_lock *make(const client &of, std::string_view path, error_out ec)
    {
        const detail::c_string text("path", path, ec);
        zkl_lock *made = nullptr;
        check(zkl_mutex_new(of.native_handle(), text.get(), &made), ec);
        return made;
    }
};

/**
 * A lock on a path. Any thread may unlock the lock. The lock is not re-entrant: if the thread that holds the lock calls lock() again, the call waits
 * until another thread unlocks the lock. The lock uses the same znodes as Curator's InterProcessSemaphoreMutex.
 */
class semaphore_mutex : public lockable {
public:
    /** Creates the lock object without a request to the server. Fails with status::invalid if the path is not valid. Does not block. */
    semaphore_mutex(client &of, std::string_view path, error_out ec = {}) : lockable(make(of, path, ec)) {}

private:
    static zkl_lock *make(const client &of, std::string_view path, error_out ec)
    {
        const detail::c_string text("path", path, ec);
        zkl_lock *made = nullptr;
        check(zkl_semaphore_mutex_new(of.native_handle(), text.get(), &made), ec);
        return made;
    }
};

/**
 * A read/write lock on a path (SharedTimedLockable). The object itself is the write lock. The function reader() returns the read lock, which has all
 * functions of a lock. Both locks are re-entrant. A thread that holds the write lock may also acquire the read lock. A thread that holds both locks
 * keeps the read lock when it releases the write lock. If a thread that holds only the read lock tries to acquire the write lock, the call fails with
 * status::deadlock. The lock uses the same znodes as Curator's InterProcessReadWriteLock, version 5.5 or later.
 */
class shared_mutex : public lockable {
public:
    /** Creates the lock object without a request to the server. Fails with status::invalid if the path is not valid. Does not block. */
    shared_mutex(client &of, std::string_view path, error_out ec = {}) : shared_mutex(make(of, path, ec)) {}

    /**
     * Returns the read lock. The read lock has its own fencing token, losses and participants, and can be a member lock of a multi-lock.
     */
    lockable &reader() noexcept { return reader_; }
    const lockable &reader() const noexcept { return reader_; }

    /** The following functions act on the read lock. The functions without "shared" in their names act on the write lock. */
    void lock_shared(error_out ec = {}) { reader_.lock(ec); }
    [[nodiscard]] bool try_lock_shared(error_out ec = {}) { return reader_.try_lock(ec); }
    void unlock_shared() noexcept { reader_.unlock(); }
    void unlock_shared(std::error_code &ec) noexcept { reader_.unlock(ec); }
    [[nodiscard]] zkl::status release_shared() noexcept { return reader_.release(); }

    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_shared_for(const std::chrono::duration<Rep, Period> &limit, error_out ec = {})
    {
        return reader_.try_lock_for(limit, ec);
    }

    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration> &deadline, error_out ec = {})
    {
        return reader_.try_lock_until(deadline, ec);
    }

#ifdef __cpp_lib_jthread
    void lock_shared(const std::stop_token &stop, error_out ec = {}) { reader_.lock(stop, ec); }

    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_shared_for(const std::chrono::duration<Rep, Period> &limit, const std::stop_token &stop, error_out ec = {})
    {
        return reader_.try_lock_for(limit, stop, ec);
    }

    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration> &deadline, const std::stop_token &stop,
                                             error_out ec = {})
    {
        return reader_.try_lock_until(deadline, stop, ec);
    }
#endif

private:
    class half : public lockable {
    public:
        explicit half(zkl_lock *made) : lockable(made) {}
    };

    struct halves {
        zkl_lock *read = nullptr, *write = nullptr;
    };

    explicit shared_mutex(halves made) : lockable(made.write), reader_(made.read) {}

    static halves make(const client &of, std::string_view path, error_out ec)
    {
        const detail::c_string text("path", path, ec);
        halves made;
        check(zkl_rwlock_new(of.native_handle(), text.get(), &made.read, &made.write), ec);
        return made;
    }

    half reader_;
};

/**
 * The type of zkl::in_order, an argument that the constructors of zkl::multi accept. With this argument, the multi-lock acquires its member locks one
 * after the other, in the given order. Curator's multi-locks acquire their locks in the same way.
 */
struct in_order_t {
    explicit in_order_t() = default;
};
inline constexpr in_order_t in_order{};

/**
 * A multi-lock consists of several locks that act as one lock. Each member lock has a different path. Acquiring the multi-lock acquires either all of
 * its member locks or none, within one time limit. Programs that name the same locks in different orders do not deadlock, except with zkl::in_order.
 * The multi-lock acquires the mutexes and read/write locks of one client in one step. The multi-lock acquires semaphore mutexes, and locks of
 * different clients, one after the other. The order of these steps is the same in all programs with the same connect strings. While an owner holds
 * the multi-lock, the owner holds each member lock. Member locks may have different kinds and belong to different clients. A program can still use
 * each member lock separately. If a member lock is destroyed, calls on the multi-lock fail with status::closed. The destructor of a multi-lock does
 * not release its member locks. Unlock the multi-lock before its destruction, for example with std::lock_guard.
 */
class multi : public lockable {
public:
    /** Creates a multi-lock of two or more locks. Fails with status::invalid if two locks have the same path. Does not block. */
    template <class... Locks>
    multi(lockable &first, lockable &second, Locks &...more) : multi(std::vector<lockable *>{&first, &second, &more...})
    {
    }

    template <class... Locks>
    multi(in_order_t order, lockable &first, lockable &second, Locks &...more)
        : multi(order, std::vector<lockable *>{&first, &second, &more...})
    {
    }

    /** Creates a multi-lock of one or more locks. */
    template <class Lock = lockable>
    explicit multi(const std::vector<Lock *> &locks, error_out ec = {}) : multi(zkl_multi_new, locks, ec) {}
    template <class Lock = lockable>
    multi(in_order_t, const std::vector<Lock *> &locks, error_out ec = {}) : multi(zkl_multi_new_in_order, locks, ec) {}

private:
    using maker = zkl_status (*)(zkl_lock *const *, std::size_t, zkl_lock **);

    template <class Lock>
    multi(maker of, const std::vector<Lock *> &locks, error_out ec) : lockable(make(of, locks, ec)) {}

    template <class Lock>
    static zkl_lock *make(maker of, const std::vector<Lock *> &locks, error_out ec)
    {
        std::vector<zkl_lock *> handles;
        for (const Lock *lock : locks) handles.push_back(lock == nullptr ? nullptr : lock->native_handle());
        zkl_lock *made = nullptr;
        check(of(handles.data(), handles.size(), &made), ec);
        return made;
    }
};

/**
 * A semaphore on a path. A semaphore has a limited number of leases, which threads and processes share. The semaphore uses the same znodes as
 * Curator's InterProcessSemaphoreV2.
 */
class semaphore {
public:
    /**
     * Creates a semaphore with a fixed number of leases, without sending a request to the server. All programs that use the semaphore must set the
     * same number of leases. Fails with status::invalid if max_leases is below 1. Does not block.
     */
    semaphore(client &of, std::string_view path, std::int32_t max_leases, error_out ec = {})
    {
        const detail::c_string text("path", path, ec);
        take(zkl_semaphore_new, ec, of.native_handle(), text.get(), max_leases);
    }

    /**
     * Creates a semaphore that takes its number of leases from the shared count at count_path. If the count changes later, the number of leases
     * changes too (client::shared_count_set()). If the count has no node yet, the constructor creates the node with the initial value.
     *
     * Blocks for at most the session timeout.
     */
    semaphore(client &of, std::string_view path, std::string_view count_path, std::int32_t initial, error_out ec = {})
    {
        const detail::c_string text("path", path, ec), count_text("count path", count_path, ec);
        take(zkl_semaphore_new_counted, ec, of.native_handle(), text.get(), count_text.get(), initial);
    }

    /**
     * Starts creating a semaphore whose number of leases comes from a shared count. The call does not wait for the server. After the operation has
     * ended with status::ok, operation::take_semaphore() returns the semaphore. Does not block.
     */
    [[nodiscard]] static operation start_counted(client &of, std::string_view path, std::string_view count_path, std::int32_t initial,
                                                 error_out ec = {})
    {
        const detail::c_string text("path", path, ec), count_text("count path", count_path, ec);
        return operation::started(ec, [&](zkl_op **op) {
            return zkl_semaphore_new_counted_start(of.native_handle(), text.get(), count_text.get(), initial, op);
        });
    }

    semaphore(semaphore &&other) noexcept : handle_(std::move(other.handle_)), is_revocable_(other.is_revocable_.exchange(false)) {}

    semaphore &operator=(semaphore &&other) noexcept
    {
        if (this != &other) {
            close();
            handle_ = std::move(other.handle_);
            is_revocable_ = other.is_revocable_.exchange(false);
        }
        return *this;
    }

    /**
     * Destroys the semaphore. Calls that wait for leases fail with status::closed. Leases that the program has already acquired remain valid. If the
     * callback of the semaphore is running on another thread, the destructor waits until the callback returns.
     */
    ~semaphore() { close(); }

    /**
     * Acquires the given number of leases. The semaphore serves requests in the order of their arrival. Requests for few leases do not overtake a
     * request for many leases. The call waits without a time limit.
     *
     * Fails with status::invalid if the quantity is below 1 or above the fixed number of leases. Fails with status::closed if the semaphore or its
     * client is closed. Fails with status::canceled after cancel(). The comment of zkl_semaphore_acquire_timeout lists further statuses. A call that
     * fails acquires nothing. Blocks until the leases are acquired.
     */
    [[nodiscard]] hold acquire(std::int32_t quantity = 1, error_out ec = {}) { return acquire_ms(quantity, -1, ec); }

    /**
     * Makes one attempt to acquire leases. Returns an empty value if not enough leases are free or the call fails. Can fail with the same statuses as
     * acquire(). If no server answered, the call fails with status::connection.
     */
    template <class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire(std::int32_t quantity = 1, error_out ec = {})
    {
        return hold::if_any<Hold>(acquire_ms(quantity, 0, ec));
    }

    /**
     * Acquires leases within a time limit. Returns an empty value when the time limit has passed, and on failure. The function never times out early.
     * Can fail with the same statuses as try_acquire().
     */
    template <class Rep, class Period, class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire_for(const std::chrono::duration<Rep, Period> &limit, std::int32_t quantity = 1,
                                                        error_out ec = {})
    {
        return hold::if_any<Hold>(acquire_ms(quantity, detail::limit(limit), ec));
    }

    template <class Clock, class Duration, class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire_until(const std::chrono::time_point<Clock, Duration> &deadline,
                                                          std::int32_t quantity = 1, error_out ec = {})
    {
        return detail::until(deadline, [&](std::int64_t limit) { return hold::if_any<Hold>(acquire_ms(quantity, limit, ec)); }, ec);
    }

#ifdef __cpp_lib_jthread
    /**
     * The following functions fail with status::canceled if the token receives a stop request before or during the call. All other rules of
     * acquire() and try_acquire_for() also apply. The stop request does not affect other calls.
     */
    [[nodiscard]] hold acquire(const std::stop_token &stop, std::int32_t quantity = 1, error_out ec = {})
    {
        return acquire_ms(quantity, -1, stop, ec);
    }

    template <class Rep, class Period, class Hold = hold>
    [[nodiscard]] std::optional<Hold> try_acquire_for(const std::chrono::duration<Rep, Period> &limit, const std::stop_token &stop,
                                                        std::int32_t quantity = 1, error_out ec = {})
    {
        return hold::if_any<Hold>(acquire_ms(quantity, detail::limit(limit), stop, ec));
    }
#endif

    /**
     * Starts an acquire of leases without waiting for the result. If the acquire succeeds, operation::take_hold() returns the hold. Does not
     * block.
     */
    [[nodiscard]] operation start(std::int32_t quantity = 1, error_out ec = {}) { return start_ms(quantity, -1, ec); }

    /** Starts an acquire with a time limit. All other rules of start() also apply. With a limit of zero or less, the acquire makes one attempt. */
    template <class Rep, class Period>
    [[nodiscard]] operation start_for(const std::chrono::duration<Rep, Period> &limit, std::int32_t quantity = 1, error_out ec = {})
    {
        return start_ms(quantity, detail::limit(limit), ec);
    }

    /**
     * Cancels all acquires that are pending on this object at this moment, in all threads. The canceled acquires fail with status::canceled. Does not
     * block.
     */
    void cancel(error_out ec = {}) { check(zkl_semaphore_cancel(native_handle()), ec); }

    /**
     * Sets the node data for all leases that are acquired after this call. Fails with status::invalid if the data is longer than 512 KiB. Does not
     * block.
     */
    void set_data(std::string_view data, error_out ec = {}) { check(zkl_semaphore_set_data(native_handle(), data.data(), data.size()), ec); }

    /**
     * Asks the server for the participants. The result first contains the acquired leases, from the oldest to the newest, and then the waiters.
     * Blocks for at most the session timeout.
     */
    template <class Participant = participant>
    std::vector<Participant> participants(error_out ec = {})
    {
        detail::collection<Participant> found;
        return found.take(zkl_semaphore_participants(native_handle(), found.template add<zkl_participant>, &found), ec);
    }

    /**
     * Starts the same query as participants() without waiting for the server. After the operation has ended, operation::participants() returns the
     * result.
     */
    [[nodiscard]] operation start_participants(error_out ec = {})
    {
        return operation::started(ec, [&](zkl_op **op) { return zkl_semaphore_participants_start(native_handle(), op); }, true);
    }

    /** Returns the acquires of this process that are pending on this object. The call sends no request to the server. Does not block. */
    template <class Waiting = zkl::waiting>
    std::vector<Waiting> waiting(error_out ec = {}) const
    {
        detail::collection<Waiting> found;
        return found.take(zkl_semaphore_waiting(native_handle(), found.template add<zkl_wait>, &found), ec);
    }

    /**
     * Sets a callback that the library calls when a request to release leases arrives. The library calls the callback as void(). All other rules of
     * lockable::set_revocable() also apply.
     */
    template <class Callback, class Failed, detail::if_handler<Failed> = 0>
    void set_revocable(Callback callback, Failed failed, error_out ec = {})
    {
        auto *const made = detail::make_callback(std::move(callback), std::move(failed));
        zkl_semaphore_revocable_cb run = nullptr;
        if (made != nullptr) run = made->template run_revocation<zkl_semaphore>;
        revocable(run, made, ec);
    }

    template <class Callback>
    void set_revocable(Callback callback, error_out ec = {})
    {
        set_revocable(std::move(callback), detail::ignore(), ec);
    }

    using native_handle_type = zkl_semaphore *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class operation;

    explicit semaphore(zkl_semaphore *made) noexcept : handle_(made) {}

    template <class... Parameters, class... Arguments>
    void take(zkl_status (*make)(Parameters...), error_out ec, Arguments... arguments)
    {
        zkl_semaphore *made = nullptr;
        check(make(arguments..., &made), ec);
        handle_.reset(made);
    }

    hold acquire_ms(std::int32_t quantity, std::int64_t limit, error_out ec)
    {
        zkl_hold *got = nullptr;
        lockable::acquired(zkl_semaphore_acquire_timeout(native_handle(), quantity, limit, &got), ec);
        return hold(got, quantity);
    }

    operation start_ms(std::int32_t quantity, std::int64_t limit, error_out ec)
    {
        zkl_op *started = nullptr;
        check(zkl_semaphore_acquire_start(native_handle(), quantity, limit, &started), ec);
        return operation(started, quantity);
    }

#ifdef __cpp_lib_jthread
    hold acquire_ms(std::int32_t quantity, std::int64_t limit, const std::stop_token &stop, error_out ec)
    {
        if (stop.stop_requested()) {
            ec.fail(status::canceled, "the stop token received a stop request before the wait began");
            return hold();
        }
        // In a callback, this overload must fail before it joins the queue.
        if (zkl_check_may_wait() != ZKL_OK) return acquire_ms(quantity, limit, ec);
        operation started = start_ms(quantity, limit, ec);
        if (started.native_handle() == nullptr || !lockable::acquired(started.wait_or(stop), ec)) return hold();
        return started.take_hold(ec);
    }
#endif

    void revocable(zkl_semaphore_revocable_cb run, detail::target *with, error_out ec)
    {
        if (with == nullptr && native_handle() == nullptr) return ec.succeed();
        is_revocable_ = true;
        check(detail::taken(zkl_semaphore_set_revocable(native_handle(), run, with, with == nullptr ? nullptr : with->drop), with), ec);
    }

    void close() noexcept
    {
        if (is_revocable_.exchange(false)) static_cast<void>(zkl_semaphore_set_revocable(native_handle(), nullptr, nullptr, nullptr));
        handle_.reset();
    }

    detail::semaphore_handle handle_;
    std::atomic<bool> is_revocable_{false};
};

inline semaphore operation::take_semaphore(error_out ec)
{
    zkl_semaphore *taken = nullptr;
    check(zkl_op_semaphore(native_handle(), &taken), ec);
    return semaphore(taken);
}

} // namespace v0_1
} // namespace zkl

#endif
