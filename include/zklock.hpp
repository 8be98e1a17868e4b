/* Distributed locks on Apache ZooKeeper, on the znodes of Apache Curator: zklock.h for C++17 and later. Header only; link with
 * -lzklock.
 *
 *     #include <mutex>
 *     #include <zklock.hpp>
 *
 *     zkl::client client("localhost:2181");
 *     zkl::mutex report(client, "/locks/nightly-report");
 *     {
 *         std::lock_guard guard(report);                       // throws zkl::error, and then nothing is locked
 *         work(report.fencing_token());
 *     }
 *     if (std::unique_lock guard(report, 5s); guard) work(report.fencing_token());
 *
 * | class                | what it is                                               | works with                             |
 * |----------------------|----------------------------------------------------------|----------------------------------------|
 * | zkl::client          | one session, shared by locks and threads                 |                                        |
 * | zkl::mutex           | one at a time; its thread may enter again                | lock_guard, unique_lock, scoped_lock   |
 * | zkl::semaphore_mutex | one at a time; any thread may unlock, none enters twice  | the same                               |
 * | zkl::shared_mutex    | many readers or one writer                               | the same, and shared_lock              |
 * | zkl::multi_mutex     | several of the above as one, without deadlocks           | lock_guard, unique_lock                |
 * | zkl::semaphore       | so many leases, which are zkl::leases                    |                                        |
 * | zkl::operation       | an acquire that goes on by itself, for event loops       |                                        |
 * | zkl::owned           | a lock as one owner sees it who is no thread             | lock_guard, unique_lock, scoped_lock   |
 *
 * What zklock.h says about locks, leases, threads, forks and the end of programs holds here as well. What C++ adds:
 *
 * Errors     What fails throws zkl::error, a std::system_error with the code of a zkl::status: it compares with zkl::status::timeout and, as far
 *            as errno has a word for it, with std::errc::timed_out. Functions that are noexcept say what they do instead. Wrong
 *            arguments throw as well: status::invalid. An object that was moved from has no handle: status::handle.
 * Unlocking  unlock() can't throw, and tells nobody that the lock had been lost, nor that the thread does not hold it. Who wants to know
 *            calls release() in its place, which returns a status.
 * Owners     A hold belongs to the thread that locked. A guard that is moved to another thread unlocks on that one, which holds nothing: the
 *            lock stays locked. Either destroy it where it was made, or take zkl::semaphore_mutex, which any thread unlocks, or zkl::owned.
 * Several    std::lock and std::scoped_lock take several locks by trying, and what they got is given back while another is taken: each attempt
 *            is a round trip, and the place in the queue is lost. They do not deadlock; zkl::multi_mutex does not either, waits in
 *            line, and takes them in one step.
 * Time       Durations are rounded up to milliseconds; those of a century and more, as duration::max(), are no limit. Deadlines may be of
 *            any clock. try_lock_for() and try_lock_until() return false only when the time is over, never before; where no server
 *            answered in that time they throw status::connection. What is not positive looks once, like try_lock(), which asks the server and
 *            waits for nobody.
 * Loss       on_lost() calls back, and in C++20 lost_token() is a std::stop_token that is asked to stop, when a hold is no longer surely held:
 *            it became UNCERTAIN or LOST. Both use the client's event thread, which starts with the first of them: a callback that does not
 *            return delays them, of all clients, while is_held() and remaining() stay right.
 * Callbacks  come one after the other on a thread of the library, or from client::dispatch_events(), and may do what callbacks of zklock.h may:
 *            everything but wait for other contenders, which throws status::deadlock. An exception that leaves a callback ends there: it is
 *            handed to the function that was given beside the callback, or dropped. An object's callbacks are not called any more when its
 *            destructor, or what sets another, has returned: what runs on another thread is waited for. Do not hold a mutex that it needs.
 *            What they have captured may be destroyed a little later, by that thread.
 * Threads    Every member function may be called by any thread at any time, but for those that move or destroy the object.
 * Objects    Locks and semaphores stay where they are, as in std. A client may be destroyed before its locks, which are of no use then.
 *            Copies of one lock are several objects on one path.
 */

#ifndef ZKLOCK_HPP
#define ZKLOCK_HPP

#include <zklock.h>

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "zklock.hpp needs C++17 or later"
#endif
#if !defined(__cpp_exceptions)
#error "zklock.hpp reports errors by exceptions: without them (-fno-exceptions), use zklock.h"
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#if __cplusplus >= 202002L
#if __has_include(<stop_token>)
#include <stop_token>
#endif
#endif

namespace zkl {

/** How a call ended: the ZKL_E_* of zklock.h. It makes a std::error_code of zkl::category(). */
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
};

/** How a client's session stands. */
enum class state : std::int32_t {
    connecting = ZKL_STATE_CONNECTING,
    connected = ZKL_STATE_CONNECTED,
    suspended = ZKL_STATE_SUSPENDED,
    lost = ZKL_STATE_LOST,
    closed = ZKL_STATE_CLOSED,
};

/** How a hold stands. Safe are held and suspended. */
enum class lock_state : std::int32_t {
    free = ZKL_LOCK_FREE,
    held = ZKL_LOCK_HELD,
    suspended = ZKL_LOCK_SUSPENDED,
    uncertain = ZKL_LOCK_UNCERTAIN,
    lost = ZKL_LOCK_LOST,
};

/** What an acquire waits for. */
enum class waits_for : std::int32_t {
    connection = ZKL_WAITS_FOR_CONNECTION,
    server = ZKL_WAITS_FOR_SERVER,
    node = ZKL_WAITS_FOR_NODE,
    leases = ZKL_WAITS_FOR_LEASES,
    count = ZKL_WAITS_FOR_COUNT,
    own_hold = ZKL_WAITS_FOR_OWN_HOLD,
};

/** What an event is about. */
enum class event_kind : std::int32_t {
    client = ZKL_EVENT_CLIENT,
    lock = ZKL_EVENT_LOCK,
};

/** How much is logged: each has those before it. What they are about stands in zklock.h. */
enum class log_level : std::int32_t {
    off = ZKL_LOG_OFF,
    error = ZKL_LOG_ERROR,
    warn = ZKL_LOG_WARN,
    info = ZKL_LOG_INFO,
    debug = ZKL_LOG_DEBUG,
    trace = ZKL_LOG_TRACE,
};

/** Whom a hold belongs to: the calling thread, or one of your own numbers, like that of a task or a request: zkl::owner{42}. */
enum class owner : std::uint64_t {
    this_thread = 0,
};

} // namespace zkl

template <>
struct std::is_error_code_enum<zkl::status> : std::true_type {
};

namespace zkl {

namespace detail {

class status_category final : public std::error_category {
public:
    const char *name() const noexcept override { return "zklock"; }

    std::string message(int value) const override { return zkl_strerror(value); }

    std::error_condition default_error_condition(int value) const noexcept override
    {
        return {zkl_status_errno(value), std::generic_category()};
    }
};

} // namespace detail

/** The category of zkl::status. Its conditions are those of errno: status::timeout is std::errc::timed_out, for instance. */
[[gnu::visibility("default")]] inline const std::error_category &category() noexcept
{
    static const detail::status_category instance;
    return instance;
}

inline std::error_code make_error_code(status value) noexcept
{
    return {static_cast<int>(value), category()};
}

/** What failed calls throw. what() names the value, the server or the holder concerned: for people and logs; programs go by status(). */
class [[gnu::visibility("default")]] error : public std::system_error {
public:
    error(zkl::status value, const std::string &message)
        : std::system_error(make_error_code(value)), what_(with_text(message, code().message()))
    {
    }

    zkl::status status() const noexcept { return static_cast<zkl::status>(code().value()); }

    const char *what() const noexcept override { return what_.what(); }

private:
    /** Most messages end with it. */
    static std::string with_text(const std::string &message, const std::string &text)
    {
        return message.find(text) == std::string::npos ? message + ": " + text : message;
    }

    /** A string that is copied without an exception. */
    std::runtime_error what_;
};

/**
 * The result of a function of zklock.h, if it is not negative: for what is called in C, by a native_handle().
 *
 * Throws: zkl::error with zkl_last_error_message(), otherwise.
 */
inline std::int32_t check(std::int32_t result)
{
    if (result < 0) throw error(static_cast<status>(result), zkl_last_error_message());
    return result;
}

/** The version of the library that runs, like "0.1.0". */
inline const char *version() noexcept
{
    return zkl_version();
}

/** The bound of a bucket of a zkl_histogram (client::metrics), the first of which has index 0; of the last and beyond: the largest there is. */
constexpr std::chrono::nanoseconds histogram_bound(std::size_t index) noexcept
{
    if (index >= ZKL_HISTOGRAM_BUCKETS - 1) return (std::chrono::nanoseconds::max)();
    return std::chrono::nanoseconds(std::int64_t{ZKL_HISTOGRAM_FIRST_NS} << index);
}

/**
 * An event, as a callback is given it; its memory is the library's, and valid until the callback returns.
 */
class event {
public:
    explicit event(const zkl_event &raw) noexcept : raw_(&raw) {}

    zkl::event_kind kind() const noexcept { return static_cast<zkl::event_kind>(raw_->kind); }

    /** How the session stands now, and how it stood before: of an event of a client's. */
    zkl::state client_state() const noexcept { return static_cast<zkl::state>(raw_->state); }
    zkl::state previous_client_state() const noexcept { return static_cast<zkl::state>(raw_->previous); }

    /** How the hold stands now, and how it stood before: of an event of a lock's or of leases'. */
    zkl::lock_state lock_state() const noexcept { return static_cast<zkl::lock_state>(raw_->state); }
    zkl::lock_state previous_lock_state() const noexcept { return static_cast<zkl::lock_state>(raw_->previous); }

    /** The handle of the lock; null of leases, of a client, and where the lock was destroyed meanwhile. */
    zkl_lock *lock() const noexcept { return raw_->lock; }

    /** The path of the lock or the semaphore; empty of a client. */
    std::string_view path() const noexcept { return raw_->path == nullptr ? std::string_view() : raw_->path; }

    /** The hold's fencing token, or 0, and its pass (lockable::fencing_pass). */
    std::int64_t token() const noexcept { return raw_->token; }
    std::int64_t pass() const noexcept { return raw_->pass; }

    const zkl_event *native_handle() const noexcept { return raw_; }

private:
    const zkl_event *raw_;
};

/** A line of the log, as a callback is given it; its memory is the library's, and valid until the callback returns. */
class log_line {
public:
    explicit log_line(const zkl_log &raw) noexcept : raw_(&raw) {}

    zkl::log_level level() const noexcept { return static_cast<zkl::log_level>(raw_->level); }

    std::chrono::system_clock::time_point time() const noexcept
    {
        const std::chrono::nanoseconds since_1970(raw_->time_ns);
        return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(since_1970));
    }

    /** What it is about, like "zklock::session" and "zklock::lock". */
    std::string_view target() const noexcept { return raw_->target; }

    /** The message and the fields, ready to be printed. */
    std::string_view text() const noexcept { return raw_->line; }

    /** The message alone, which is the same for all that is of one kind. */
    std::string_view message() const noexcept { return raw_->message; }

    /** The value of a field, like "path" or "token"; nothing where the line has none of this name. */
    std::optional<std::string_view> field(std::string_view name) const noexcept
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

/** One that holds a lock or leases, or waits for them. */
struct participant {
    bool holds;
    /** The session that owns the node; 0 if the node is not ephemeral. */
    std::int64_t session_id;
    /** The zxid of the node's creation; for a holder, its fencing token. */
    std::int64_t czxid;
    /** Without the client's chroot: what client::revoke() takes. */
    std::string node_path;
    std::string data;
};

/** An acquire that waits, in this process. What is not known is empty, or 0. */
struct waiter {
    zkl::waits_for what;
    std::string node_path;
    /** The node nearest ahead, the leases' directory, or the count. */
    std::string ahead;
    /** The session that owns the node ahead. */
    std::int64_t session_id;
    /** How many there are to go before. */
    std::uint64_t count;
    std::chrono::milliseconds waited;
    /** How long it will wait at most; nothing without a limit. */
    std::optional<std::chrono::milliseconds> left;
};

/** What is given the exceptions that leave a callback. It is called where the callback was; what it throws is dropped. */
using exception_handler = std::function<void(std::exception_ptr)>;

namespace detail {

/** Deletes by a function of zklock.h. */
template <auto Free>
struct deleter {
    template <class T>
    void operator()(T *handle) const noexcept
    {
        Free(handle);
    }
};

/** The same for what one thread gives up while others ask it something: they have a handle that is over, and are told so. */
template <class T, auto Free>
class shared_handle {
public:
    shared_handle() noexcept = default;
    explicit shared_handle(T *handle) noexcept : handle_(handle) {}
    shared_handle(shared_handle &&other) noexcept : handle_(other.release()) {}

    shared_handle &operator=(shared_handle &&other) noexcept
    {
        reset(other.release());
        return *this;
    }

    ~shared_handle() { reset(); }

    T *get() const noexcept { return handle_.load(); }
    T *release() noexcept { return handle_.exchange(nullptr); }

    void reset(T *handle = nullptr) noexcept
    {
        if (T *const before = handle_.exchange(handle); before != nullptr) Free(before);
    }

private:
    std::atomic<T *> handle_{nullptr};
};

using config_handle = std::unique_ptr<zkl_config, deleter<zkl_config_free>>;
using client_handle = shared_handle<zkl_client, zkl_client_free>;
using lock_handle = std::unique_ptr<zkl_lock, deleter<zkl_lock_free>>;
using semaphore_handle = std::unique_ptr<zkl_semaphore, deleter<zkl_semaphore_free>>;
using leases_handle = shared_handle<zkl_leases, zkl_leases_release>;
using operation_handle = std::unique_ptr<zkl_op, deleter<zkl_op_free>>;

/** What C is to read until a NUL. */
inline const char *text(const char *what, const std::string &value)
{
    if (value.find('\0') == std::string::npos) return value.c_str();
    throw error(status::invalid, std::string(what) + " \"" + value.c_str() + "\": expected no NUL in it");
}

inline const std::uint8_t *bytes(std::string_view value) noexcept
{
    return reinterpret_cast<const std::uint8_t *>(value.data());
}

inline std::string string(const char *value)
{
    return value == nullptr ? std::string() : std::string(value);
}

/** What a function writes into a buffer, which it is given with its size. It may be longer each time. */
template <class Write>
std::string written(Write write)
{
    std::string buffer(256, '\0');
    std::size_t needed = 0;
    zkl_status result = write(buffer.data(), buffer.size(), &needed);
    while (result == ZKL_E_BUFFER) {
        buffer.resize(needed + needed / 8);
        result = write(buffer.data(), buffer.size(), &needed);
    }
    check(result);
    return buffer.c_str();
}

/* Limits in milliseconds, as zklock.h has them: 0 looks once, -1 is none. */

using exact_ms = std::chrono::duration<long double, std::milli>;

/** Longer than anybody waits, and in every unit of time far from the largest number. */
inline constexpr exact_ms century{100.0L * 365 * 24 * 3600 * 1000};

template <class Rep, class Period>
std::int64_t limit(const std::chrono::duration<Rep, Period> &duration)
{
    const exact_ms exact(duration);
    // Nor what is no number.
    if (!(exact > exact_ms::zero())) return 0;
    if (exact >= century) return -1;
    return std::chrono::ceil<std::chrono::milliseconds>(duration).count();
}

/** Attempts, with a limit, until it succeeds or the deadline is over by its own clock, which may be set while we wait. */
template <class Clock, class Duration, class Attempt>
auto until(const std::chrono::time_point<Clock, Duration> &deadline, Attempt attempt)
{
    for (;;) {
        const auto now = Clock::now();
        const exact_ms left = exact_ms(deadline.time_since_epoch()) - exact_ms(now.time_since_epoch());
        auto result = attempt(limit(left));
        // Far ones can't be compared without an overflow, and what is no number can't be at all.
        if (result || !(left >= -century) || Clock::now() >= deadline) return result;
    }
}

/** A setting in milliseconds. */
template <class Rep, class Period>
std::int32_t setting(const char *what, const std::chrono::duration<Rep, Period> &duration)
{
    const long double ms = exact_ms(duration).count();
    if (ms >= 0 && ms <= INT32_MAX) {
        return static_cast<std::int32_t>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
    }
    const std::string most = std::to_string(INT32_MAX);
    throw error(status::invalid, std::string(what) + " " + std::to_string(ms) + " ms: expected 0 to " + most + " ms");
}

/* What C calls back with during a call, on the thread that called. An exception waits until C has returned. */

template <class T>
struct collection {
    std::vector<T> items;
    std::exception_ptr failure;

    template <class Make>
    void add(Make make) noexcept
    {
        if (failure != nullptr) return;
        try {
            items.push_back(make());
        } catch (...) {
            failure = std::current_exception();
        }
    }

    std::vector<T> take(zkl_status result)
    {
        if (failure != nullptr) std::rethrow_exception(failure);
        check(result);
        return std::move(items);
    }
};

inline void add_participant(void *user, const zkl_participant *raw) noexcept
{
    static_cast<collection<participant> *>(user)->add([raw] {
        std::string data(raw->data_len, '\0');
        for (std::size_t i = 0; i < raw->data_len; i++) data[i] = static_cast<char>(raw->data[i]);
        return participant{raw->holds == 1, raw->session_id, raw->czxid, string(raw->node_path), std::move(data)};
    });
}

inline void add_waiter(void *user, const zkl_wait *raw) noexcept
{
    static_cast<collection<waiter> *>(user)->add([raw] {
        std::optional<std::chrono::milliseconds> left;
        if (raw->left_ms >= 0) left = std::chrono::milliseconds(raw->left_ms);
        return waiter{static_cast<waits_for>(raw->waits_for), string(raw->node_path), string(raw->ahead), raw->session_id,
                      raw->count, std::chrono::milliseconds(raw->waited_ms), left};
    });
}

/** A callback of the program's, which it can take back. */
class slot {
public:
    using function = std::function<void(const zkl_event *)>;

    slot(function callback, exception_handler handler) : callback_(std::move(callback)), handler_(std::move(handler)) {}

    /** Calls it, unless it was taken back. (In a child that another callback has forked, nothing is called any more.) */
    void run(const zkl_event *told) noexcept
    {
        if (home_ != ::getpid()) return;
        try {
            const running here(*this);
            if (here.is_allowed()) callback_(told);
        } catch (...) {
            report(std::current_exception());
        }
    }

    /** Takes it back, and waits while another thread is in it. (In a forked child, hub leaves all as it is.) */
    void close() noexcept
    {
        std::unique_lock guard(mutex_);
        is_closed_ = true;
        ended_.wait(guard, [this] { return others() == 0; });
    }

private:
    /** One call, from its beginning to its end. */
    class running {
    public:
        explicit running(slot &of) : of_(of)
        {
            const std::lock_guard guard(of_.mutex_);
            if (!of_.is_closed_) of_.threads_.push_back(std::this_thread::get_id());
            is_allowed_ = !of_.is_closed_;
        }

        running(const running &) = delete;
        running &operator=(const running &) = delete;

        ~running()
        {
            // In a child that the callback has forked, another thread of the parent's may have it.
            if (!is_allowed_ || of_.home_ != ::getpid()) return;
            const std::lock_guard guard(of_.mutex_);
            of_.threads_.erase(std::find_if(of_.threads_.begin(), of_.threads_.end(), is_this_thread));
            of_.ended_.notify_all();
        }

        bool is_allowed() const noexcept { return is_allowed_; }

    private:
        slot &of_;
        bool is_allowed_;
    };

    static bool is_this_thread(std::thread::id id) noexcept { return id == std::this_thread::get_id(); }

    std::ptrdiff_t others() const
    {
        return std::count_if(threads_.begin(), threads_.end(), [](std::thread::id id) { return !is_this_thread(id); });
    }

    void report(std::exception_ptr exception) const noexcept
    {
        try {
            if (handler_) handler_(std::move(exception));
        } catch (...) {
        }
    }

    const function callback_;
    const exception_handler handler_;
    const pid_t home_ = ::getpid();
    std::mutex mutex_;
    std::condition_variable ended_;
    /** Those that are in it: one, but for a callback of several clients. */
    std::vector<std::thread::id> threads_;
    bool is_closed_ = false;
};

/** The slot of a callback that takes an event, or nothing; null for an empty function. */
template <class Callback>
std::shared_ptr<slot> make_slot(Callback callback, exception_handler handler)
{
    if constexpr (std::is_null_pointer_v<Callback>) {
        return nullptr;
    } else if constexpr (std::is_invocable_v<Callback &, const event &>) {
        std::function<void(const event &)> function(std::move(callback));
        if (!function) return nullptr;
        auto call = [function = std::move(function)](const zkl_event *told) { function(event(*told)); };
        return std::make_shared<slot>(std::move(call), std::move(handler));
    } else {
        std::function<void()> function(std::move(callback));
        if (!function) return nullptr;
        auto call = [function = std::move(function)](const zkl_event *) { function(); };
        return std::make_shared<slot>(std::move(call), std::move(handler));
    }
}

/* Callbacks as C has them: the user is a pointer of its own to what they need. */

template <class T>
void drop(void *user) noexcept
{
    delete static_cast<std::shared_ptr<T> *>(user);
}

inline void run_slot(void *user, const zkl_event *told) noexcept
{
    (*static_cast<std::shared_ptr<slot> *>(user))->run(told);
}

template <class Handle>
void run_revocation(void *user, Handle *) noexcept
{
    (*static_cast<std::shared_ptr<slot> *>(user))->run(nullptr);
}

/** Gives C a callback with what it belongs to, by a function that takes both; C takes nothing where that fails. */
template <class T, class Callback, class Give>
void give(const std::shared_ptr<T> &user, Callback callback, Give set)
{
    if (user == nullptr) {
        check(set(nullptr, nullptr, nullptr));
        return;
    }
    auto owned = std::make_unique<std::shared_ptr<T>>(user);
    check(set(callback, owned.get(), drop<T>));
    static_cast<void>(owned.release());
}

/** Who is told the lines of the log. C waits for the last call itself. */
struct log_listener {
    std::function<void(const log_line &)> callback;
    exception_handler failed;

    void run(const zkl_log &told) const noexcept
    {
        try {
            callback(log_line(told));
        } catch (...) {
            report(std::current_exception());
        }
    }

    void report(std::exception_ptr exception) const noexcept
    {
        try {
            if (failed) failed(std::move(exception));
        } catch (...) {
        }
    }
};

inline void run_log(void *user, const zkl_log *told) noexcept
{
    (*static_cast<std::shared_ptr<log_listener> *>(user))->run(*told);
}

/** What a callback wants to hear of. */
enum class hears {
    /** Every event. */
    everything,
    /** That a hold is no longer safe, each time. */
    lapses,
    /** The same of one hold, until that is over, and that the client is closed. */
    end,
    /** No event. */
    revocation,
};

/** Of which events: those of one hold, of one lock (no token), or of all (no lock). Those of leases have a token and no lock. */
struct hold {
    zkl_lock *lock = nullptr;
    std::int64_t token = 0;
    std::int64_t pass = 0;

    friend bool operator<(const hold &one, const hold &other) noexcept
    {
        const std::less<zkl_lock *> less;
        if (one.lock != other.lock) return less(one.lock, other.lock);
        return std::tie(one.token, one.pass) < std::tie(other.token, other.pass);
    }
};

/** Who wants to hear: of one object there is one for each purpose, and each owner. */
struct listener {
    const void *object = nullptr;
    hears what = hears::everything;
    owner who = owner::this_thread;
    std::thread::id thread = {};

    friend bool operator==(const listener &one, const listener &other) noexcept
    {
        return std::tie(one.object, one.what, one.who, one.thread) == std::tie(other.object, other.what, other.who, other.thread);
    }
};

/**
 * A client's callbacks. C has one for all events of a client, which is set when the first is wanted. The client and its locks share it.
 *
 * Nothing of the program's is called, or destroyed, under its mutex. In a forked child it does nothing.
 */
class hub : public std::enable_shared_from_this<hub> {
public:
    using callbacks = std::vector<std::shared_ptr<slot>>;

    explicit hub(zkl_client *of) noexcept : client_(of) {}

    /** Has C tell of events from now on. */
    void listen()
    {
        check_home();
        const std::lock_guard guard(listening_);
        if (is_listening_) return;
        give(shared_from_this(), deliver, [this](zkl_event_cb cb, void *user, zkl_user_drop user_drop) {
            return zkl_client_set_event_callback(client_, cb, user, user_drop);
        });
        is_listening_ = true;
    }

    /** Puts a callback, or none, in the place of what the same listener had for the same lock, which is given back. */
    callbacks put(const hold &of, const listener &who, std::shared_ptr<slot> callback, std::shared_ptr<void> source = nullptr)
    {
        callbacks before;
        if (home_ != ::getpid()) return before;
        const std::lock_guard guard(mutex_);
        before = take(of, [&who](const listener &other) { return other == who; });
        if (callback != nullptr) entries_.emplace(of, entry{who, std::move(callback), std::move(source)});
        return before;
    }

    /** Takes out all that an object has for a lock, or for leases. */
    callbacks remove(const hold &of, const void *object)
    {
        if (home_ != ::getpid()) return {};
        const std::lock_guard guard(mutex_);
        return take(of, [object](const listener &other) { return other.object == object; });
    }

    /** What was put beside the callback of a listener. */
    std::shared_ptr<void> source(const hold &of, const listener &who)
    {
        const std::lock_guard guard(mutex_);
        const auto [begin, end] = entries_.equal_range(of);
        for (auto at = begin; at != end; ++at) {
            if (at->second.who == who) return at->second.source;
        }
        return nullptr;
    }

    /** The client is about to be closed: nothing is surely held any more. */
    void end() noexcept
    {
        if (home_ != ::getpid()) return;
        callbacks ended;
        {
            const std::lock_guard guard(mutex_);
            for (const auto &[of, listening] : entries_) {
                if (ends(listening.who)) ended.push_back(listening.callback);
            }
        }
        for (const auto &callback : ended) callback->run(nullptr);
    }

    /** Of two that ask for a token, one goes first. */
    std::mutex &watching()
    {
        check_home();
        return watching_;
    }

    /** Of two that set a revocable callback, one goes first. */
    std::mutex &revocable()
    {
        check_home();
        return revocable_;
    }

private:
    struct entry {
        listener who;
        std::shared_ptr<slot> callback;
        /** What else goes with it; for what this C++ may not have. */
        std::shared_ptr<void> source;
    };

    void check_home() const
    {
        if (home_ != ::getpid()) throw error(status::forked, "the client belongs to the parent of this forked process");
    }

    static void deliver(void *user, const zkl_event *told) noexcept
    {
        try {
            // It may be dropped meanwhile.
            const std::shared_ptr<hub> self = *static_cast<std::shared_ptr<hub> *>(user);
            callbacks over;
            for (const auto &callback : self->concerned(*told, over)) callback->run(told);
        } catch (const std::bad_alloc &) {
            // There is nobody left to tell.
        }
    }

    /** Who is to hear, and who has heard the last of his hold. */
    callbacks concerned(const zkl_event &told, callbacks &over)
    {
        const bool is_hold = told.kind == ZKL_EVENT_LOCK;
        const bool lapses = is_hold && !is_safe(told.state) && is_safe(told.previous);
        const bool is_over = told.state == ZKL_LOCK_FREE || told.state == ZKL_LOCK_LOST;
        const hold of{told.lock, told.token, told.pass};
        callbacks found;
        const std::lock_guard guard(mutex_);
        if (of.token != 0) find(of, lapses, found);
        if (of.lock != nullptr) find({of.lock, 0, 0}, lapses, found);
        find({}, lapses, found);
        if (is_hold && is_over && of.token != 0) over = take(entries_.equal_range(of), ends);
        return found;
    }

    void find(const hold &of, bool lapses, callbacks &found)
    {
        const auto [begin, end] = entries_.equal_range(of);
        for (auto at = begin; at != end; ++at) {
            const hears what = at->second.who.what;
            const bool is_concerned = what == hears::everything || (lapses && what != hears::revocation);
            if (is_concerned) found.push_back(at->second.callback);
        }
    }

    static bool ends(const listener &who) noexcept { return who.what == hears::end; }

    static bool is_safe(std::int32_t lock_state) noexcept
    {
        return lock_state != ZKL_LOCK_UNCERTAIN && lock_state != ZKL_LOCK_LOST;
    }

    using entries = std::multimap<hold, entry>;
    using range = std::pair<entries::iterator, entries::iterator>;

    /** Of a lock, those of all its holds. */
    template <class Matches>
    callbacks take(const hold &of, Matches matches)
    {
        if (of.lock == nullptr) return take(entries_.equal_range(of), matches);
        const hold first{of.lock, INT64_MIN, INT64_MIN}, last{of.lock, INT64_MAX, INT64_MAX};
        return take(range(entries_.lower_bound(first), entries_.upper_bound(last)), matches);
    }

    template <class Matches>
    callbacks take(range among, Matches matches)
    {
        callbacks taken;
        for (auto at = among.first; at != among.second;) {
            if (matches(at->second.who)) {
                taken.push_back(at->second.callback);
                at = entries_.erase(at);
            } else {
                ++at;
            }
        }
        return taken;
    }

    zkl_client *const client_;
    const pid_t home_ = ::getpid();
    std::mutex listening_;
    bool is_listening_ = false;
    std::mutex revocable_;
    std::mutex watching_;
    std::mutex mutex_;
    entries entries_;
};

inline void close(const hub::callbacks &callbacks) noexcept
{
    for (const auto &callback : callbacks) callback->close();
}

#ifdef __cpp_lib_jthread
inline std::stop_token stopped()
{
    std::stop_source source;
    source.request_stop();
    return source.get_token();
}

/** A hold, with who hears of it. */
struct watched {
    std::shared_ptr<hub> by;
    hold of;
};

/** What is asked to stop when one of these holds lapses: the same for who asks again. */
inline std::shared_ptr<std::stop_source> watch(const std::vector<watched> &holds, const listener &who)
{
    // Of two threads that ask at once the second is to find what the first has made.
    const std::lock_guard guard(holds.front().by->watching());
    std::shared_ptr<void> known = holds.front().by->source(holds.front().of, who);
    for (const auto &[by, of] : holds) {
        if (by->source(of, who) != known) known = nullptr;
    }
    auto source = std::static_pointer_cast<std::stop_source>(known);
    if (source != nullptr && !source->stop_requested()) return source;

    source = std::make_shared<std::stop_source>();
    auto callback = std::make_shared<slot>([source](const zkl_event *) { source->request_stop(); }, nullptr);
    for (const auto &[by, of] : holds) {
        by->listen();
        by->put(of, who, callback, source);
    }
    return source;
}
#endif

} // namespace detail

/**
 * Has the callback called, as void(const zkl::log_line &), with each line up to this level that the library logs in this process, whichever
 * client it is of. It takes the place of the one before, whose last call is over when this returns; nullptr or log_level::off for none.
 * While it does not return, 4096 lines wait, and what is dropped on top of that is counted, and told (zkl_set_log_callback).
 *
 * Throws: zkl::error, std::bad_alloc, and nothing has changed. Any thread, also in the callback.
 */
template <class Callback>
void set_log_callback(log_level level, Callback callback, exception_handler failed = {})
{
    std::shared_ptr<detail::log_listener> listener;
    if constexpr (!std::is_null_pointer_v<Callback>) {
        std::function<void(const log_line &)> function(std::move(callback));
        if (function) listener = std::make_shared<detail::log_listener>(detail::log_listener{std::move(function), std::move(failed)});
    }
    detail::give(listener, detail::run_log, [level](zkl_log_cb cb, void *user, zkl_user_drop user_drop) {
        return zkl_set_log_callback(static_cast<std::int32_t>(level), cb, user, user_drop);
    });
}

/**
 * A client's settings. A config may serve for many clients, and be changed in between; they copy it.
 *
 * Setters give the config back, so that they can be strung together. They throw zkl::error: status::invalid for a wrong value. None blocks.
 */
class config {
public:
    /** With the defaults. Throws: zkl::error. */
    config() : handle_(zkl_config_new())
    {
        if (handle_ == nullptr) throw error(status::internal, zkl_last_error_message());
    }

    /** How long the servers keep a session they do not hear of: 10 s by default. They may negotiate another value. */
    template <class Rep, class Period>
    config &session_timeout(const std::chrono::duration<Rep, Period> &timeout)
    {
        check(zkl_config_set_session_timeout_ms(native_handle(), detail::setting("session timeout", timeout)));
        return *this;
    }

    /** How long the client's constructor may take: 10 s by default. */
    template <class Rep, class Period>
    config &connect_timeout(const std::chrono::duration<Rep, Period> &timeout)
    {
        check(zkl_config_set_connect_timeout_ms(native_handle(), detail::setting("connect timeout", timeout)));
        return *this;
    }

    /** How long before its session can end a lock ceases to count as held: a third of the session timeout by default. */
    template <class Rep, class Period>
    config &lease_margin(const std::chrono::duration<Rep, Period> &margin)
    {
        check(zkl_config_set_lease_margin_ms(native_handle(), detail::setting("lease margin", margin)));
        return *this;
    }

    /** Sets an option by its name, for instance "session.timeout" to "5000". The page on options (docs/options.md) has all of them. */
    config &set(const std::string &name, const std::string &value)
    {
        check(zkl_config_set(native_handle(), detail::text("name", name), detail::text("value", value)));
        return *this;
    }

    /** Sets the options in a file, one "name = value" a line (zkl_config_load). If the file has an error, no option is set. */
    config &load(const std::string &file)
    {
        check(zkl_config_load(native_handle(), detail::text("file", file)));
        return *this;
    }

    /** Adds credentials, for instance "digest" and "user:password". */
    config &add_auth(const std::string &scheme, std::string_view auth)
    {
        check(zkl_config_add_auth(native_handle(), detail::text("scheme", scheme), detail::bytes(auth), auth.size()));
        return *this;
    }

    /** Whether locks queue with kazoo's on the same path, instead of throwing status::foreign (zkl_config_set_wait_for_kazoo). */
    config &wait_for_kazoo(bool wait = true)
    {
        check(zkl_config_set_wait_for_kazoo(native_handle(), wait ? 1 : 0));
        return *this;
    }

    /** Whether the program calls the callbacks itself, by client::dispatch_events(), instead of a thread of the library. */
    config &poll_events(bool poll = true)
    {
        check(zkl_config_set_poll_events(native_handle(), poll ? 1 : 0));
        return *this;
    }

    /**
     * Has the callback called, as void() or void(const zkl::event &), with every event of every client made with this config, the first included:
     * connecting becomes connected. It is destroyed with the last of them. One at a time; nullptr for none.
     */
    template <class Callback>
    config &on_event(Callback callback, exception_handler failed = {})
    {
        detail::give(detail::make_slot(std::move(callback), std::move(failed)), detail::run_slot,
                     [this](zkl_event_cb cb, void *user, zkl_user_drop user_drop) {
                         return zkl_config_set_event_callback(native_handle(), cb, user, user_drop);
                     });
        return *this;
    }

    using native_handle_type = zkl_config *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    detail::config_handle handle_;
};

/** A client: one ZooKeeper session, shared by any number of locks and threads. When a session ends, it seeks the next one by itself. */
class client {
public:
    /**
     * Connects, and waits for the session. The servers are like "host:2181,host:2181/chroot"; all paths are below the chroot, if
     * there is one.
     *
     * Throws: zkl::error with status::connection, auth, invalid, exhausted, internal.
     * Blocks until there is a session, but no longer than the connect timeout.
     */
    explicit client(const std::string &servers) : client(servers, nullptr) {}
    client(const std::string &servers, const config &settings) : client(servers, given(settings)) {}

    client(client &&) noexcept = default;

    client &operator=(client &&other) noexcept
    {
        if (this != &other) {
            close();
            handle_ = std::move(other.handle_);
            hub_ = std::move(other.hub_);
        }
        return *this;
    }

    /** As close(). */
    ~client() { close(); }

    /**
     * Ends the session. Those that wait for its locks throw status::closed, what is held is given up, and lost tokens are asked to stop
     * before. Once more it does nothing; other calls throw then: status::handle.
     *
     * Blocks until the server has confirmed and the last callback has returned, but for callbacks that take longer no more than two
     * seconds. (In a callback of the client's it does not wait for that one.)
     */
    void close() noexcept
    {
        if (native_handle() == nullptr) return;
        hub_->end();
        handle_.reset();
    }

    /** How the session stands. Throws: zkl::error. Does not block. */
    zkl::state state() const { return static_cast<zkl::state>(check(zkl_client_state(native_handle()))); }

    /** The session's id, as the servers' logs have it; 0 while there is none. Throws: zkl::error. Does not block. */
    std::int64_t session_id() const
    {
        check(zkl_client_state(native_handle()));
        return zkl_client_session_id(native_handle());
    }

    /**
     * Has the callback called, as void() or void(const zkl::event &), with every event of the session and of all holds: those from now on, and those
     * that still wait to be told. It takes the place of the one before; nullptr for none. That of the config is called as well.
     *
     * Throws: zkl::error, std::bad_alloc, and nothing has changed. Waits for the callback before, where it is being called.
     */
    template <class Callback>
    void on_event(Callback callback, exception_handler failed = {})
    {
        auto made = detail::make_slot(std::move(callback), std::move(failed));
        if (made != nullptr) hub()->listen();
        detail::close(hub()->put({}, {this_client(), detail::hears::everything}, std::move(made)));
    }

    /**
     * Calls the callbacks that wait, on this thread, and gives how many were called: for a config with poll_events().
     *
     * Throws: zkl::error with status::invalid without poll_events(). Blocks as long as the callbacks do.
     */
    int dispatch_events() { return check(zkl_client_dispatch_events(native_handle())); }

    /**
     * A descriptor that is readable while callbacks wait, for poll and its likes; it is the library's.
     *
     * Throws: as dispatch_events(). Does not block.
     */
    int event_fd() const { return check(zkl_client_event_fd(native_handle())); }

    /**
     * Asks the owner of a node to give up what he holds or waits for by it: a path that participants() shows.
     *
     * Throws: zkl::error. Blocks for the session timeout at most.
     */
    void revoke(const std::string &node_path) { check(zkl_revoke(native_handle(), detail::text("node path", node_path))); }

    /**
     * Asks the ensemble whether the hold with this fencing token is still the holder's on a path (zkl_fence_check).
     *
     * Throws: zkl::error. Blocks for the session timeout at most.
     */
    bool fence_check(const std::string &path, std::int64_t token)
    {
        return check(zkl_fence_check(native_handle(), detail::text("path", path), token)) == 1;
    }

    /**
     * Reads a count (Curator's SharedCount).
     *
     * Throws: zkl::error with status::server where it has no node, invalid where its node holds something else. Blocks for the
     * session timeout at most.
     */
    std::int32_t shared_count(const std::string &path)
    {
        std::int32_t value = 0;
        check(zkl_shared_count_get(native_handle(), detail::text("count path", path), &value));
        return value;
    }

    /** Sets a count, and makes its node where there is none. Throws: zkl::error. Blocks for the session timeout at most. */
    void set_shared_count(const std::string &path, std::int32_t value)
    {
        check(zkl_shared_count_set(native_handle(), detail::text("count path", path), value));
    }

    /**
     * What it has done so far, and how it stands, at one moment: counters, histograms and gauges, each with its meaning in zklock.h.
     *
     * Throws: zkl::error with status::handle, forked. Does not block.
     */
    zkl_metrics metrics() const
    {
        zkl_metrics made{};
        check(zkl_client_metrics(native_handle(), &made, sizeof made));
        return made;
    }

    /**
     * The same in the text form of Prometheus, with labels like service="reports" put to each (zkl_client_prometheus).
     *
     * Throws: as metrics(); status::invalid for labels that Prometheus would not take. Does not block.
     */
    std::string prometheus(const std::string &labels = {}) const
    {
        const char *const given = labels.empty() ? nullptr : detail::text("labels", labels);
        return detail::written([this, given](char *buffer, std::size_t size, std::size_t *needed) {
            return zkl_client_prometheus(native_handle(), given, buffer, size, needed);
        });
    }

    using native_handle_type = zkl_client *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class lockable;
    friend class semaphore;

    client(const std::string &servers, const zkl_config *settings)
    {
        zkl_client *made = nullptr;
        check(zkl_client_new(detail::text("servers", servers), settings, &made));
        handle_.reset(made);
        hub_ = std::make_shared<detail::hub>(made);
    }

    /** To C, none would be the defaults. */
    static const zkl_config *given(const config &settings)
    {
        if (settings.native_handle() == nullptr) throw error(status::handle, "the config was moved from");
        return settings.native_handle();
    }

    const void *this_client() const noexcept { return handle_.get(); }

    const std::shared_ptr<detail::hub> &hub() const
    {
        check(zkl_client_state(native_handle()));
        return hub_;
    }

    detail::client_handle handle_;
    std::shared_ptr<detail::hub> hub_;
};

/** Leases of a semaphore, which are given back when they are destroyed. They belong to whoever has the object, whichever thread that is. */
class leases {
public:
    /** None. */
    leases() noexcept = default;
    leases(leases &&) noexcept = default;

    leases &operator=(leases &&other) noexcept
    {
        if (this != &other) {
            release();
            handle_ = std::move(other.handle_);
            hub_ = std::move(other.hub_);
            hold_ = other.hold_;
            count_ = other.count_;
        }
        return *this;
    }

    /** As release(), whose status is dropped. */
    ~leases() { release(); }

    /** Whether there are any: not after release(), nor after a move. */
    explicit operator bool() const noexcept { return native_handle() != nullptr; }

    /** How many. */
    int count() const noexcept { return native_handle() == nullptr ? 0 : count_; }

    /**
     * Gives all of them back, whatever is returned: status::ok when the server has confirmed, or there are none; lost where one of them had
     * been lost; connection where no server confirmed within the session timeout, and the library goes on trying; closed where the client is.
     *
     * Blocks for the session timeout at most.
     */
    zkl::status release() noexcept
    {
        zkl_leases *const given = handle_.release();
        if (given == nullptr) return status::ok;
        detail::close(hub_->remove(hold_, given));
        return static_cast<zkl::status>(zkl_leases_release(given));
    }

    /** Whether they are held, and safely so at this moment. Throws: zkl::error. Does not block. */
    bool is_held() const { return check(zkl_leases_is_held(native_handle())) == 1; }

    /** How they stand: as badly as the worst of them. Throws: zkl::error. Does not block. */
    zkl::lock_state state() const { return static_cast<zkl::lock_state>(check(zkl_leases_state(native_handle()))); }

    /** Their fencing token, which grows with every acquire. Throws: zkl::error with status::lost. Does not block. */
    std::int64_t fencing_token() const
    {
        std::int64_t token = 0;
        check(zkl_leases_fencing_token(native_handle(), &token));
        return token;
    }

    /** How long they are safe without hearing from a server. Throws: zkl::error with status::lost. Does not block. */
    std::chrono::milliseconds remaining() const
    {
        std::int64_t ms = 0;
        check(zkl_leases_remaining_ms(native_handle(), &ms));
        return std::chrono::milliseconds(ms);
    }

    /** The path of the node of one of them, from 0. Throws: zkl::error with status::lost, invalid. Does not block. */
    std::string node_path(std::size_t index = 0) const
    {
        return detail::written([this, index](char *buffer, std::size_t size, std::size_t *needed) {
            return zkl_leases_node_path(native_handle(), index, buffer, size, needed);
        });
    }

    /**
     * Has the callback called, as void() or void(const zkl::event &), when they are no longer surely held: one became UNCERTAIN or LOST. It
     * takes the place of the one before; nullptr for none. Where they are not safe now, it is also called at once, on this
     * thread, and so perhaps twice.
     *
     * Throws: zkl::error, std::bad_alloc, and nothing has changed. Waits for the callback before, where it is being called.
     */
    template <class Callback>
    void on_lost(Callback callback, exception_handler failed = {})
    {
        zkl_event now{};
        now.size = sizeof now;
        now.kind = ZKL_EVENT_LOCK;
        now.previous = ZKL_LOCK_HELD;
        now.token = hold_.token;
        const auto made = detail::make_slot(std::move(callback), std::move(failed));
        if (made != nullptr) hub()->listen();
        detail::close(hub()->put(hold_, {native_handle(), detail::hears::lapses}, made));
        now.state = check(zkl_leases_state(native_handle()));
        if (made != nullptr && !is_safe(now.state)) made->run(&now);
    }

#ifdef __cpp_lib_jthread
    /**
     * A token that is asked to stop as soon as they are no longer surely held: one became UNCERTAIN or LOST, or the client is closed. Where that is
     * so already, it is so at once.
     *
     * Throws: zkl::error, std::bad_alloc. Does not block.
     */
    std::stop_token lost_token() const
    {
        const std::int32_t before = zkl_leases_state(native_handle());
        if (before == ZKL_E_CLOSED) return detail::stopped();
        check(before);
        const auto source = detail::watch({{hub_, hold_}}, {native_handle(), detail::hears::end});
        const std::int32_t held = zkl_leases_is_held(native_handle());
        if (held != ZKL_E_CLOSED) check(held);
        if (held != 1) source->request_stop();
        return source->get_token();
    }
#endif

    using native_handle_type = zkl_leases *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class semaphore;
    friend class operation;

    leases(zkl_leases *handle, std::shared_ptr<detail::hub> hub, int count) noexcept
        : handle_(handle), hub_(std::move(hub)), count_(count)
    {
        // Of those that are lost by now there is nothing to be heard.
        if (zkl_leases_fencing_token(handle, &hold_.token) != ZKL_OK) hold_.token = -1;
    }

    static bool is_safe(std::int32_t state) noexcept { return state == ZKL_LOCK_HELD || state == ZKL_LOCK_SUSPENDED; }

    const std::shared_ptr<detail::hub> &hub() const
    {
        check(zkl_leases_state(native_handle()));
        return hub_;
    }

    detail::leases_handle handle_;
    std::shared_ptr<detail::hub> hub_;
    detail::hold hold_;
    int count_ = 0;
};

/**
 * An acquire under way, of a lock or of leases. It goes on by itself, whether anybody waits for it or not, and ends within its limit.
 *
 * Destroyed, it is cancelled if it still runs, and what it got is given back if nobody has heard of it yet: by result(), wait(), wait_for()
 * or get(), and for leases by take_leases(). What was heard of stays, and is released by its owner.
 */
class operation {
public:
    /** None. */
    operation() noexcept = default;
    operation(operation &&) noexcept = default;
    operation &operator=(operation &&) noexcept = default;
    ~operation() = default;

    /**
     * A descriptor that becomes readable when it is over, and stays so: for poll, epoll and event loops. It is the library's: not to be
     * read, written or closed. Take it out of a loop before the operation is destroyed.
     *
     * Throws: zkl::error with status::exhausted where there is no descriptor left, and the operation goes on. Does not block.
     */
    int fd() const { return check(zkl_op_fd(native_handle())); }

    /** How it ended; nothing while it still runs. Throws: zkl::error with status::handle, forked. Does not block. */
    std::optional<zkl::status> result() const
    {
        const zkl_status ended = zkl_op_result(native_handle());
        if (ended == ZKL_E_INVALID) return std::nullopt;
        return told(ended);
    }

    /**
     * Waits until it is over, and tells how it ended.
     *
     * Throws: zkl::error with status::deadlock in a callback, where it would have to wait; handle, forked.
     */
    zkl::status wait() const { return *wait_ms(-1); }

    /** The same with a limit, after which it still runs: nothing. The operation is not concerned by this limit. */
    template <class Rep, class Period>
    std::optional<zkl::status> wait_for(const std::chrono::duration<Rep, Period> &limit) const
    {
        return wait_ms(detail::limit(limit));
    }

    /** Waits until it is over. Throws: zkl::error where it failed, and as wait(). */
    void get() const { check(zkl_op_wait(native_handle(), -1)); }

    /** Cancels it: it ends with status::canceled, unless it is over, or just succeeding. Throws: zkl::error. Does not block. */
    void cancel() { check(zkl_op_cancel(native_handle())); }

    /**
     * The leases of an operation of a semaphore's that has ended with status::ok; once.
     *
     * Throws: zkl::error with how it failed; status::invalid while it runs, the second time, and for a lock. Does not block.
     */
    [[nodiscard]] leases take_leases()
    {
        zkl_leases *taken = nullptr;
        check(zkl_op_leases(native_handle(), &taken));
        return leases(taken, hub_, quantity_);
    }

    using native_handle_type = zkl_op *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    friend class lockable;
    friend class semaphore;

    operation(zkl_op *handle, std::shared_ptr<detail::hub> hub, int quantity) noexcept
        : handle_(handle), hub_(std::move(hub)), quantity_(quantity)
    {
    }

    static zkl::status told(zkl_status ended)
    {
        if (ended == ZKL_E_HANDLE || ended == ZKL_E_FORKED) check(ended);
        return static_cast<zkl::status>(ended);
    }

    std::optional<zkl::status> wait_ms(std::int64_t limit) const
    {
        const zkl_status ended = zkl_op_wait(native_handle(), limit);
        // These may be the wait's own, or the operation's.
        if (ended != ZKL_E_TIMEOUT && ended != ZKL_E_DEADLOCK) return told(ended);
        const error own(static_cast<zkl::status>(ended), zkl_last_error_message());
        if (const auto over = result()) return over;
        if (ended == ZKL_E_TIMEOUT) return std::nullopt;
        throw own;
    }

#ifdef __cpp_lib_jthread
    /** Waits, and cancels it when it is to stop. */
    zkl_status wait_or(const std::stop_token &stop) const
    {
        const std::stop_callback cancel_it(stop, [this] { zkl_op_cancel(native_handle()); });
        return zkl_op_wait(native_handle(), -1);
    }
#endif

    detail::operation_handle handle_;
    std::shared_ptr<detail::hub> hub_;
    int quantity_ = 0;
};

/**
 * What all locks can do. Lockable and TimedLockable, so it works with the standard's guards.
 *
 * Where a function takes an owner, it is about his hold and nobody else's; without, about the calling thread's, and where that has none,
 * some have another thread's of this process, as they say.
 */
class lockable {
public:
    lockable(const lockable &) = delete;
    lockable &operator=(const lockable &) = delete;

    /**
     * Acquires the lock for the calling thread, or enters it once more; each entry takes an unlock(). Waits without limit, also through
     * losses of the connection and of the session.
     *
     * Throws: zkl::error, and nothing is acquired: status::canceled by cancel(), closed, deadlock where the thread would wait for itself, lost
     * where its hold was lost and is not released yet, and others (zkl_acquire). Blocks until it has the lock.
     */
    void lock() { check(zkl_acquire(native_handle())); }

    /**
     * Looks once, without waiting for anybody: false where another holds the lock.
     *
     * Throws: as lock(); status::connection where no server answered. Blocks for one answer of the server, and a second at most.
     */
    [[nodiscard]] bool try_lock() { return acquired(zkl_acquire_timeout(native_handle(), 0)); }

    /**
     * Acquires it within so much time: false where it was not got by then, never early. Not positive: as try_lock().
     *
     * Throws: as lock(); status::connection where no server had answered by then. Blocks until it has the lock, but no longer than the limit.
     */
    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period> &limit)
    {
        return acquired(zkl_acquire_timeout(native_handle(), detail::limit(limit)));
    }

    /** The same until a point in time, by its own clock. */
    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration> &deadline)
    {
        return detail::until(deadline, [this](std::int64_t limit) { return acquired(zkl_acquire_timeout(native_handle(), limit)); });
    }

#ifdef __cpp_lib_jthread
    /**
     * The same as above, but that they end when the token is asked to stop, with status::canceled: for this call, and no other that waits for the
     * lock. One that is just succeeding may still succeed.
     */
    void lock(const std::stop_token &stop) { static_cast<void>(acquire(-1, stop)); }

    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period> &limit, const std::stop_token &stop)
    {
        return acquire(detail::limit(limit), stop);
    }

    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration> &deadline, const std::stop_token &stop)
    {
        return detail::until(deadline, [this, &stop](std::int64_t limit) { return acquire(limit, stop); });
    }
#endif

    /** As lock(), for an owner that is no thread: a task, a fiber. */
    void lock(owner who) { check(zkl_acquire_as(native_handle(), number(who), -1)); }

    /** As try_lock(), for an owner. */
    [[nodiscard]] bool try_lock(owner who) { return acquired(zkl_acquire_as(native_handle(), number(who), 0)); }

    /** As try_lock_for(), for an owner. */
    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period> &limit, owner who)
    {
        return acquired(zkl_acquire_as(native_handle(), number(who), detail::limit(limit)));
    }

    /**
     * Releases one entry of the calling thread; the last one gives the lock up, and waits for the server's confirmation. Whatever goes wrong
     * is dropped: also that the lock had been lost, and that the thread does not hold it. See release().
     *
     * Blocks for the session timeout at most.
     */
    void unlock() noexcept { static_cast<void>(zkl_release(native_handle())); }

    /**
     * The same, and tells how it went: status::ok; not_owner where the thread, or the owner, does not hold it, and nothing changes; lost where
     * it had been lost, so that others may have held it; connection where no server confirmed within the session timeout, and the
     * library goes on trying; and others (zkl_release). After lost and connection the entry is released, too.
     *
     * Blocks for the session timeout at most.
     */
    zkl::status release() noexcept { return static_cast<zkl::status>(zkl_release(native_handle())); }
    zkl::status release(owner who) noexcept { return static_cast<zkl::status>(zkl_release_as(native_handle(), number(who))); }

    /** The same without waiting for the server: the library sees to it that the lock's node is removed. */
    zkl::status release_nowait() noexcept { return static_cast<zkl::status>(zkl_release_nowait(native_handle())); }
    zkl::status release_nowait(owner who) noexcept
    {
        return static_cast<zkl::status>(zkl_release_nowait_as(native_handle(), number(who)));
    }

    /**
     * Starts to acquire it for an owner, and does not wait. An owner of your own may act on any thread: release(owner).
     *
     * Throws: zkl::error; how the acquire ends is told by the operation. Does not block.
     */
    [[nodiscard]] operation start(owner who = owner::this_thread) { return start_ms(who, -1); }

    /** The same with a limit; not positive looks once. */
    template <class Rep, class Period>
    [[nodiscard]] operation start_for(const std::chrono::duration<Rep, Period> &limit, owner who = owner::this_thread)
    {
        return start_ms(who, detail::limit(limit));
    }

    /** Has those that wait by this object now throw status::canceled, in any thread. Throws: zkl::error. Does not block. */
    void cancel() { check(zkl_cancel(native_handle())); }

    /** Whether the calling thread, or the owner, holds it, and safely so at this moment. Throws: zkl::error. Does not block. */
    bool is_held() const { return check(zkl_is_held(native_handle())) == 1; }
    bool is_held(owner who) const { return check(zkl_is_held_as(native_handle(), number(who))) == 1; }

    /** Whether any thread of this process does, by this object. Throws: zkl::error. Does not block. */
    bool is_held_in_process() const { return check(zkl_is_held_in_process(native_handle())) == 1; }

    /** How the hold stands; without an owner: that of another thread, where the calling one has none. Throws: zkl::error. Does not block. */
    zkl::lock_state state() const { return static_cast<zkl::lock_state>(check(zkl_lock_state(native_handle()))); }
    zkl::lock_state state(owner who) const
    {
        return static_cast<zkl::lock_state>(check(zkl_lock_state_as(native_handle(), number(who))));
    }

    /**
     * The fencing token of that hold: a number that grows with every hold of the path, for a store to refuse a smaller one.
     *
     * Throws: zkl::error with status::not_owner, lost. Does not block.
     */
    std::int64_t fencing_token() const
    {
        std::int64_t token = 0;
        check(zkl_fencing_token(native_handle(), &token));
        return token;
    }

    std::int64_t fencing_token(owner who) const
    {
        std::int64_t token = 0;
        check(zkl_fencing_token_as(native_handle(), number(who), &token));
        return token;
    }

    /** How often it had been passed on in this process, with the same token, when that hold began (mutex::local_handover). */
    std::int64_t fencing_pass() const
    {
        std::int64_t pass = 0;
        check(zkl_fencing_pass(native_handle(), &pass));
        return pass;
    }

    std::int64_t fencing_pass(owner who) const
    {
        std::int64_t pass = 0;
        check(zkl_fencing_pass_as(native_handle(), number(who), &pass));
        return pass;
    }

    /** How long that hold is safe without hearing from a server; 0 where it is not safe now. Throws: as fencing_token(). */
    std::chrono::milliseconds remaining() const
    {
        std::int64_t ms = 0;
        check(zkl_remaining_ms(native_handle(), &ms));
        return std::chrono::milliseconds(ms);
    }

    std::chrono::milliseconds remaining(owner who) const
    {
        std::int64_t ms = 0;
        check(zkl_remaining_ms_as(native_handle(), number(who), &ms));
        return std::chrono::milliseconds(ms);
    }

    /**
     * The path of the calling thread's, or the owner's, node, without the client's chroot.
     *
     * Throws: zkl::error with status::not_owner, lost; invalid of a multi_mutex. Does not block.
     */
    std::string node_path() const
    {
        return detail::written([this](char *buffer, std::size_t size, std::size_t *needed) {
            return zkl_lock_node_path(native_handle(), buffer, size, needed);
        });
    }

    std::string node_path(owner who) const
    {
        return detail::written([this, who](char *buffer, std::size_t size, std::size_t *needed) {
            return zkl_lock_node_path_as(native_handle(), number(who), buffer, size, needed);
        });
    }

    /** The data of the nodes that later acquires create, 512 KiB at most. Throws: zkl::error with status::invalid. Does not block. */
    void set_data(std::string_view data) { check(zkl_lock_set_data(native_handle(), detail::bytes(data), data.size())); }

    /**
     * Asks the server who holds it and who waits for it, in this process and all others, in the order of the queue. Of a shared_mutex: the
     * writers; see queue().
     *
     * Throws: zkl::error, std::bad_alloc. Blocks for the session timeout at most.
     */
    std::vector<participant> participants()
    {
        detail::collection<participant> found;
        return found.take(zkl_participants(native_handle(), detail::add_participant, &found));
    }

    /** The same, but of a shared_mutex readers and writers together, whichever half is asked. */
    std::vector<participant> queue()
    {
        detail::collection<participant> found;
        return found.take(zkl_queue(native_handle(), detail::add_participant, &found));
    }

    /** Who waits by this object in this process, and what for. No server is asked. Throws: zkl::error, std::bad_alloc. Does not block. */
    std::vector<waiter> waiting() const
    {
        detail::collection<waiter> found;
        return found.take(zkl_waiting(native_handle(), detail::add_waiter, &found));
    }

    /**
     * Has the callback called, as void() or void(const zkl::event &), with every change of a hold of this lock: of a multi_mutex, of any
     * hold of one of its locks. It takes the place of the one before; nullptr for none.
     *
     * Throws: zkl::error, std::bad_alloc. Waits for the callback before, where it is being called.
     */
    template <class Callback>
    void on_event(Callback callback, exception_handler failed = {})
    {
        listen(detail::hears::everything, detail::make_slot(std::move(callback), std::move(failed)));
    }

    /**
     * The same, but only when a hold is no longer surely held: it became UNCERTAIN, or LOST without having been UNCERTAIN. What happened
     * before this call is not told: set it before the lock is acquired.
     */
    template <class Callback>
    void on_lost(Callback callback, exception_handler failed = {})
    {
        listen(detail::hears::lapses, detail::make_slot(std::move(callback), std::move(failed)));
    }

#ifdef __cpp_lib_jthread
    /**
     * A token that is asked to stop as soon as the hold of the calling thread, or the owner, is no longer surely held: it became UNCERTAIN or LOST,
     * or the client is closed. Where that is so already, it is so at once. When the hold is released it stays as it is, and is done with: the next
     * hold has another.
     *
     * Throws: zkl::error with status::not_owner, std::bad_alloc. Does not block.
     */
    std::stop_token lost_token(owner who = owner::this_thread) const
    {
        std::vector<detail::watched> holds;
        for (const auto &[hub, lock] : parts_) {
            detail::hold of{lock, 0, 0};
            zkl_status known = zkl_fencing_token_as(lock, number(who), &of.token);
            if (known == ZKL_OK) known = zkl_fencing_pass_as(lock, number(who), &of.pass);
            if (known == ZKL_E_LOST || known == ZKL_E_CLOSED) return detail::stopped();
            check(known);
            holds.push_back({hub, of});
        }
        const auto thread = who == owner::this_thread ? std::this_thread::get_id() : std::thread::id();
        const auto source = detail::watch(holds, {native_handle(), detail::hears::end, who, thread});
        // It may have happened before it was watched.
        for (const auto &[hub, lock] : parts_) {
            const std::int32_t now = zkl_lock_state_as(lock, number(who));
            if (now != ZKL_E_CLOSED) check(now);
            if (now == ZKL_E_CLOSED || now == ZKL_LOCK_UNCERTAIN || now == ZKL_LOCK_LOST) source->request_stop();
        }
        return source->get_token();
    }
#endif

    /**
     * Has the callback called, as void(), whenever somebody asks for what is held or waited for by this lock to be given up (client::revoke). It is a
     * request. The callback is not on the thread that holds: tell that one to release. Of a multi_mutex: in the place of its locks' own. It
     * takes the place of the one before; nullptr for none.
     *
     * Throws: zkl::error, std::bad_alloc. Waits for the callback before, where it is being called.
     */
    template <class Callback>
    void set_revocable(Callback callback, exception_handler failed = {})
    {
        const auto made = detail::make_slot(std::function<void()>(std::move(callback)), std::move(failed));
        detail::close(revocable(made));
    }

    using native_handle_type = zkl_lock *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

protected:
    /** A lock that events name, with who hears them. */
    struct part {
        std::shared_ptr<detail::hub> hub;
        zkl_lock *lock;
    };

    lockable(const client &of, detail::lock_handle made) : handle_(std::move(made)), parts_{{of.hub(), handle_.get()}} {}
    lockable(std::vector<part> parts, detail::lock_handle made) : handle_(std::move(made)), parts_(std::move(parts)) {}

    /** Those that wait throw status::closed; what is held is released, without waiting for the server. Waits for callbacks of its own. */
    ~lockable()
    {
        for (const auto &[hub, lock] : parts_) detail::close(hub->remove({lock, 0, 0}, native_handle()));
        detail::close(parts_.front().hub->remove({native_handle(), 0, 0}, native_handle()));
    }

    static const std::vector<part> &parts_of(const lockable &lock) noexcept { return lock.parts_; }

private:
    friend class owned;

    static std::uint64_t number(owner who) noexcept { return static_cast<std::uint64_t>(who); }

    static bool acquired(zkl_status result)
    {
        if (result == ZKL_E_TIMEOUT) return false;
        check(result);
        return true;
    }

    operation start_ms(owner who, std::int64_t limit)
    {
        zkl_op *started = nullptr;
        check(zkl_acquire_start(native_handle(), number(who), limit, &started));
        return operation(started, parts_.front().hub, 0);
    }

#ifdef __cpp_lib_jthread
    bool acquire(std::int64_t limit, const std::stop_token &stop)
    {
        if (stop.stop_requested()) throw error(status::canceled, "the stop token was asked to stop before the wait began");
        const operation started = start_ms(owner::this_thread, limit);
        return acquired(started.wait_or(stop));
    }

#endif

    void listen(detail::hears what, const std::shared_ptr<detail::slot> &callback)
    {
        for (const auto &[hub, lock] : parts_) {
            if (callback != nullptr) hub->listen();
            detail::close(hub->put({lock, 0, 0}, {native_handle(), what}, callback));
        }
    }

    detail::hub::callbacks revocable(const std::shared_ptr<detail::slot> &callback)
    {
        detail::hub &hub = *parts_.front().hub;
        const std::lock_guard guard(hub.revocable());
        // It stays until C has let go of it, and is destroyed by who calls.
        auto before = hub.put({native_handle(), 0, 0}, {native_handle(), detail::hears::revocation}, callback);
        detail::give(callback, detail::run_revocation<zkl_lock>, [this](zkl_revocable_cb cb, void *user, zkl_user_drop user_drop) {
            return zkl_set_revocable(native_handle(), cb, user, user_drop);
        });
        return before;
    }

    detail::lock_handle handle_;
    const std::vector<part> parts_;
};

/** A mutex on a path: re-entrant, each thread owning its own hold; on the znodes of Curator's InterProcessMutex. */
class mutex : public lockable {
public:
    /** Nothing is sent yet. Throws: zkl::error with status::invalid for a wrong path. Does not block. */
    mutex(client &of, const std::string &path) : lockable(of, make(of, path)) {}

    /**
     * Lets threads of this process that queue for it pass it on among themselves, up to so many times in a row, before its node is given up; 0,
     * as at first: never (zkl_mutex_set_local_handover). Throws: zkl::error with status::invalid. Does not block.
     */
    void set_local_handover(std::int32_t max_passes) { check(zkl_mutex_set_local_handover(native_handle(), max_passes)); }

private:
    static detail::lock_handle make(const client &of, const std::string &path)
    {
        zkl_lock *made = nullptr;
        check(zkl_mutex_new(of.native_handle(), detail::text("path", path), &made));
        return detail::lock_handle(made);
    }
};

/**
 * A lock on a path that any thread may unlock, and none enters twice: a thread that locks it again waits for an unlock. On the znodes
 * of Curator's InterProcessSemaphoreMutex.
 */
class semaphore_mutex : public lockable {
public:
    /** Nothing is sent yet. Throws: zkl::error with status::invalid for a wrong path. Does not block. */
    semaphore_mutex(client &of, const std::string &path) : lockable(of, make(of, path)) {}

private:
    static detail::lock_handle make(const client &of, const std::string &path)
    {
        zkl_lock *made = nullptr;
        check(zkl_semaphore_mutex_new(of.native_handle(), detail::text("path", path), &made));
        return detail::lock_handle(made);
    }
};

/**
 * A read/write lock on a path: SharedTimedLockable; on the znodes of Curator's InterProcessReadWriteLock, as of 5.5. It is its own writer's
 * half; what readers can do beyond the standard's functions is at reader(). Each half is re-entrant. A thread that has it exclusively may
 * also take it shared, and goes on reading when it unlocks the other; one that has it shared may not take it exclusively: status::deadlock.
 */
class shared_mutex : public lockable {
public:
    /** Nothing is sent yet. Throws: zkl::error with status::invalid for a wrong path. Does not block. */
    shared_mutex(client &of, const std::string &path) : shared_mutex(of, make(of, path)) {}

    /** The half that is shared, as a lock of its own: its token, its loss, its participants; also for a multi_mutex. */
    lockable &reader() noexcept { return reader_; }
    const lockable &reader() const noexcept { return reader_; }

    /** As those without "shared", for a reader. */
    void lock_shared() { reader_.lock(); }
    [[nodiscard]] bool try_lock_shared() { return reader_.try_lock(); }
    void unlock_shared() noexcept { reader_.unlock(); }
    zkl::status release_shared() noexcept { return reader_.release(); }

    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_shared_for(const std::chrono::duration<Rep, Period> &limit)
    {
        return reader_.try_lock_for(limit);
    }

    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration> &deadline)
    {
        return reader_.try_lock_until(deadline);
    }

#ifdef __cpp_lib_jthread
    void lock_shared(const std::stop_token &stop) { reader_.lock(stop); }

    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_shared_for(const std::chrono::duration<Rep, Period> &limit, const std::stop_token &stop)
    {
        return reader_.try_lock_for(limit, stop);
    }

    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration> &deadline, const std::stop_token &stop)
    {
        return reader_.try_lock_until(deadline, stop);
    }
#endif

private:
    class half : public lockable {
    public:
        half(const client &of, detail::lock_handle made) : lockable(of, std::move(made)) {}
    };

    struct halves {
        detail::lock_handle read, write;
    };

    shared_mutex(const client &of, halves made) : lockable(of, std::move(made.write)), reader_(of, std::move(made.read)) {}

    static halves make(const client &of, const std::string &path)
    {
        zkl_lock *read = nullptr, *write = nullptr;
        check(zkl_rwlock_new(of.native_handle(), detail::text("path", path), &read, &write));
        return {detail::lock_handle(read), detail::lock_handle(write)};
    }

    half reader_;
};

/** Says that the locks of a multi_mutex are taken one after the other, in the order given, as Curator's: zkl::in_order. */
struct in_order_t {
    explicit in_order_t() = default;
};
inline constexpr in_order_t in_order{};

/**
 * Several locks, each of a path of its own, as one: all or none, within one limit, and without deadlocks between those who name them in another
 * order (but for zkl::in_order). Those of one client are taken in one step. While it is held, each of them is. They may be of
 * different kinds and of different clients, and stay what they are; once one of them is destroyed, the multi_mutex is of no use: status::closed.
 */
class multi_mutex : public lockable {
public:
    /** Of two or more. Throws: zkl::error with status::invalid for two on one path. Does not block. */
    template <class... Locks>
    multi_mutex(lockable &first, lockable &second, Locks &...more)
        : multi_mutex(std::vector<lockable *>{&first, &second, &more...})
    {
    }

    template <class... Locks>
    multi_mutex(in_order_t order, lockable &first, lockable &second, Locks &...more)
        : multi_mutex(order, std::vector<lockable *>{&first, &second, &more...})
    {
    }

    /** Of any number but none. */
    explicit multi_mutex(const std::vector<lockable *> &locks) : multi_mutex(locks, zkl_multi_new) {}
    multi_mutex(in_order_t, const std::vector<lockable *> &locks) : multi_mutex(locks, zkl_multi_new_in_order) {}

private:
    using maker = zkl_status (*)(zkl_lock *const *, std::size_t, zkl_lock **);

    multi_mutex(const std::vector<lockable *> &locks, maker of) : lockable(parts(locks), make(locks, of)) {}

    static const lockable &there(const lockable *lock)
    {
        if (lock == nullptr) throw error(status::invalid, "locks: a null pointer; expected pointers to locks");
        return *lock;
    }

    static std::vector<part> parts(const std::vector<lockable *> &locks)
    {
        std::vector<part> all;
        for (const lockable *lock : locks) {
            const std::vector<part> &of = parts_of(there(lock));
            all.insert(all.end(), of.begin(), of.end());
        }
        return all;
    }

    static detail::lock_handle make(const std::vector<lockable *> &locks, maker of)
    {
        std::vector<zkl_lock *> handles;
        for (const lockable *lock : locks) handles.push_back(there(lock).native_handle());
        zkl_lock *made = nullptr;
        check(of(handles.data(), handles.size(), &made));
        return detail::lock_handle(made);
    }
};

/**
 * A lock as one owner sees it, who is no thread: Lockable and TimedLockable. A guard of it may be moved to another thread, and unlock there.
 * The lock is to live longer.
 */
class owned {
public:
    owned(lockable &of, owner who) noexcept : lock_(of), who_(who) {}

    /** As lockable's, for the owner. */
    void lock() { lock_.lock(who_); }
    [[nodiscard]] bool try_lock() { return acquire(0); }
    void unlock() noexcept { static_cast<void>(lock_.release(who_)); }

    template <class Rep, class Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period> &limit)
    {
        return acquire(detail::limit(limit));
    }

    template <class Clock, class Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration> &deadline)
    {
        return detail::until(deadline, [this](std::int64_t limit) { return acquire(limit); });
    }

private:
    bool acquire(std::int64_t limit)
    {
        return lockable::acquired(zkl_acquire_as(lock_.native_handle(), lockable::number(who_), limit));
    }

    lockable &lock_;
    const owner who_;
};

/** A semaphore on a path: so many leases, which threads and processes take and give back; on the znodes of Curator's InterProcessSemaphoreV2. */
class semaphore {
public:
    /** All its users have to agree on the number. Nothing is sent yet. Throws: zkl::error with status::invalid. Does not block. */
    semaphore(client &of, const std::string &path, std::int32_t max_leases) : semaphore(of, make(of, path, max_leases)) {}

    /**
     * With as many leases as the count at count_path says, now and whenever it changes (client::set_shared_count). Where it has no node yet, it
     * is made with the initial number.
     *
     * Throws: zkl::error. Blocks for the session timeout at most.
     */
    semaphore(client &of, const std::string &path, const std::string &count_path, std::int32_t initial)
        : semaphore(of, make(of, path, count_path, initial))
    {
    }

    semaphore(const semaphore &) = delete;
    semaphore &operator=(const semaphore &) = delete;

    /** Those that wait throw status::closed; leases that are out stay out. Waits for its callback. */
    ~semaphore() { detail::close(hub_->remove({}, native_handle())); }

    /**
     * Acquires so many leases, all or none. Requests are served in their order, whole. Waits without limit.
     *
     * Throws: zkl::error, and nothing is acquired: status::canceled, closed, invalid for a quantity below 1 or above the maximum, and others
     * (zkl_semaphore_acquire_timeout). Blocks until it has them.
     */
    [[nodiscard]] leases acquire(std::int32_t quantity = 1) { return *acquire_ms(quantity, -1); }

    /** Looks once, without waiting for anybody: nothing where there are not enough. Throws: as acquire(); status::connection. */
    [[nodiscard]] std::optional<leases> try_acquire(std::int32_t quantity = 1) { return acquire_ms(quantity, 0); }

    /** Acquires them within so much time: nothing where they were not got by then, never early. Throws: as try_acquire(). */
    template <class Rep, class Period>
    [[nodiscard]] std::optional<leases> try_acquire_for(const std::chrono::duration<Rep, Period> &limit, std::int32_t quantity = 1)
    {
        return acquire_ms(quantity, detail::limit(limit));
    }

    template <class Clock, class Duration>
    [[nodiscard]] std::optional<leases> try_acquire_until(const std::chrono::time_point<Clock, Duration> &deadline,
                                                          std::int32_t quantity = 1)
    {
        return detail::until(deadline, [this, quantity](std::int64_t limit) { return acquire_ms(quantity, limit); });
    }

#ifdef __cpp_lib_jthread
    /** The same, but that they end when the token is asked to stop, with status::canceled: this call, and no other. */
    [[nodiscard]] leases acquire(const std::stop_token &stop, std::int32_t quantity = 1) { return *acquire_ms(quantity, -1, stop); }

    template <class Rep, class Period>
    [[nodiscard]] std::optional<leases> try_acquire_for(const std::chrono::duration<Rep, Period> &limit, const std::stop_token &stop,
                                                        std::int32_t quantity = 1)
    {
        return acquire_ms(quantity, detail::limit(limit), stop);
    }
#endif

    /** Starts to acquire them, and does not wait: operation::take_leases(). Throws: zkl::error. Does not block. */
    [[nodiscard]] operation start(std::int32_t quantity = 1) { return start_ms(quantity, -1); }

    /** The same with a limit; not positive looks once. */
    template <class Rep, class Period>
    [[nodiscard]] operation start_for(const std::chrono::duration<Rep, Period> &limit, std::int32_t quantity = 1)
    {
        return start_ms(quantity, detail::limit(limit));
    }

    /** Has those that wait by this object now throw status::canceled, in any thread. Throws: zkl::error. Does not block. */
    void cancel() { check(zkl_semaphore_cancel(native_handle())); }

    /** The data of the nodes of leases that are acquired later, 512 KiB at most. Throws: zkl::error. Does not block. */
    void set_data(std::string_view data) { check(zkl_semaphore_set_data(native_handle(), detail::bytes(data), data.size())); }

    /** The leases that are out, the oldest first, and then those who wait. Throws: zkl::error. Blocks for the session timeout at most. */
    std::vector<participant> participants()
    {
        detail::collection<participant> found;
        return found.take(zkl_semaphore_participants(native_handle(), detail::add_participant, &found));
    }

    /** Who waits by this object in this process, and what for. Throws: zkl::error. Does not block. */
    std::vector<waiter> waiting() const
    {
        detail::collection<waiter> found;
        return found.take(zkl_semaphore_waiting(native_handle(), detail::add_waiter, &found));
    }

    /** Has the callback called, as void(), whenever somebody asks for a lease to be given back, as lockable::set_revocable(). */
    template <class Callback>
    void set_revocable(Callback callback, exception_handler failed = {})
    {
        const auto made = detail::make_slot(std::function<void()>(std::move(callback)), std::move(failed));
        detail::close(revocable(made));
    }

    using native_handle_type = zkl_semaphore *;
    native_handle_type native_handle() const noexcept { return handle_.get(); }

private:
    semaphore(const client &of, zkl_semaphore *made) : handle_(made), hub_(of.hub()) {}

    static zkl_semaphore *make(const client &of, const std::string &path, std::int32_t max_leases)
    {
        zkl_semaphore *made = nullptr;
        check(zkl_semaphore_new(of.native_handle(), detail::text("path", path), max_leases, &made));
        return made;
    }

    static zkl_semaphore *make(const client &of, const std::string &path, const std::string &count_path, std::int32_t initial)
    {
        zkl_semaphore *made = nullptr;
        check(zkl_semaphore_new_counted(of.native_handle(), detail::text("path", path), detail::text("count path", count_path), initial,
                                        &made));
        return made;
    }

    std::optional<leases> acquire_ms(std::int32_t quantity, std::int64_t limit)
    {
        zkl_leases *got = nullptr;
        const zkl_status result = zkl_semaphore_acquire_timeout(native_handle(), quantity, limit, &got);
        if (result == ZKL_E_TIMEOUT) return std::nullopt;
        check(result);
        return leases(got, hub_, quantity);
    }

    operation start_ms(std::int32_t quantity, std::int64_t limit)
    {
        zkl_op *started = nullptr;
        check(zkl_semaphore_acquire_start(native_handle(), quantity, limit, &started));
        return operation(started, hub_, quantity);
    }

#ifdef __cpp_lib_jthread
    std::optional<leases> acquire_ms(std::int32_t quantity, std::int64_t limit, const std::stop_token &stop)
    {
        if (stop.stop_requested()) throw error(status::canceled, "the stop token was asked to stop before the wait began");
        operation started = start_ms(quantity, limit);
        const zkl_status result = started.wait_or(stop);
        if (result == ZKL_E_TIMEOUT) return std::nullopt;
        check(result);
        return started.take_leases();
    }
#endif

    detail::hub::callbacks revocable(const std::shared_ptr<detail::slot> &callback)
    {
        const std::lock_guard guard(hub_->revocable());
        auto before = hub_->put({}, {native_handle(), detail::hears::revocation}, callback);
        detail::give(callback, detail::run_revocation<zkl_semaphore>,
                     [this](zkl_semaphore_revocable_cb cb, void *user, zkl_user_drop user_drop) {
                         return zkl_semaphore_set_revocable(native_handle(), cb, user, user_drop);
                     });
        return before;
    }

    detail::semaphore_handle handle_;
    std::shared_ptr<detail::hub> hub_;
};

} // namespace zkl

#endif
