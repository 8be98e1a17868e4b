// The classes of zklock.hpp on a server without faults: with the guards of the standard library, alone, and used
// incorrectly.
#include "check.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <vector>

#include <poll.h>

using namespace std::chrono_literals;
using check::on_new_thread;
using check::fresh_path;

namespace {

// Each object owns one handle. It can be moved but not copied.
template <class T>
constexpr bool moves = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> && std::is_nothrow_move_constructible_v<T> &&
                       std::is_nothrow_move_assignable_v<T>;
static_assert(moves<zkl::client> && moves<zkl::hold> && moves<zkl::run> && moves<zkl::operation> && moves<zkl::config>);
static_assert(moves<zkl::mutex> && moves<zkl::semaphore_mutex> && moves<zkl::shared_mutex> && moves<zkl::multi> && moves<zkl::semaphore>);
static_assert(!std::is_constructible_v<zkl::multi, zkl::multi &> && !std::is_default_constructible_v<zkl::mutex>);
static_assert(static_cast<std::uint64_t>(zkl::owner::this_thread) == ZKL_OWNER_THREAD);

static_assert(noexcept(std::declval<zkl::mutex &>().unlock()) && noexcept(std::declval<zkl::shared_mutex &>().unlock_shared()));
static_assert(noexcept(std::declval<zkl::mutex &>().unlock()) && noexcept(std::declval<zkl::mutex &>().release()));
static_assert(!noexcept(std::declval<zkl::mutex &>().lock()) && !noexcept(std::declval<zkl::mutex &>().try_lock()));
static_assert(std::is_base_of_v<std::system_error, zkl::error> && std::is_nothrow_copy_constructible_v<zkl::error>);
static_assert(std::is_error_code_enum_v<zkl::status> && std::is_convertible_v<zkl::status, std::error_code>);
// A lock cannot be created from a temporary client, and cannot be deleted through its base class.
static_assert(!std::is_constructible_v<zkl::mutex, zkl::client, std::string> && !std::is_destructible_v<zkl::lockable>);
static_assert(std::is_same_v<zkl::mutex::native_handle_type, zkl_lock *>);

// The guards of the standard library lock and unlock a mutex.
void standard_guards_lock_and_unlock()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    CHECK(!mutex.is_held() && mutex.state() == zkl::lock_state::free);
    {
        const std::lock_guard guard(mutex);
        CHECK(mutex.is_held() && mutex.is_held_in_process() && mutex.state() == zkl::lock_state::held);
        CHECK(mutex.fencing_token() > 0 && mutex.fencing_pass() == 0 && mutex.remaining() > 1s);
        CHECK(!on_new_thread([&] { return mutex.is_held(); }) && !on_new_thread([&] { return mutex.try_lock(); }));
        const std::lock_guard again(mutex);
    }
    CHECK(!mutex.is_held_in_process());
    {
        std::unique_lock guard(mutex, std::defer_lock);
        CHECK(guard.try_lock() && guard.owns_lock());
        guard.unlock();
        CHECK(!mutex.is_held() && guard.try_lock_for(5s));
        guard.unlock();
        CHECK(guard.try_lock_until(std::chrono::system_clock::now() + 5s));
    }
    CHECK(!mutex.is_held());
    {
        const std::unique_lock guard(mutex, std::try_to_lock);
        CHECK(guard && mutex.is_held());
        CHECK(!on_new_thread([&] { return std::unique_lock(mutex, std::try_to_lock).owns_lock(); }));
        CHECK(!on_new_thread([&] { return std::unique_lock(mutex, 20ms).owns_lock(); }));
    }
    {
        const std::unique_lock guard(mutex, 5s);
        CHECK(guard);
    }
    try {
        const std::scoped_lock guard(mutex);
        throw std::runtime_error("on the way");
    } catch (const std::runtime_error &) {
        CHECK(!mutex.is_held());
    }
    mutex.lock();
    {
        const std::lock_guard guard(mutex, std::adopt_lock);
    }
    CHECK(!mutex.is_held());
}

// std::condition_variable_any releases the mutex during its wait and acquires it again.
void condition_variable_releases_and_reacquires()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    std::condition_variable_any changed;
    bool ready = false;
    std::thread other([&] {
        const std::lock_guard guard(mutex);
        ready = true;
        changed.notify_all();
    });
    std::unique_lock guard(mutex);
    changed.wait(guard, [&] { return ready; });
    CHECK(mutex.is_held());
    guard.unlock();
    other.join();
}

// std::scoped_lock and std::try_lock work with several mutexes.
void std_lock_locks_several()
{
    zkl::client client(check::servers);
    zkl::mutex one(client, fresh_path()), two(client, fresh_path()), three(client, fresh_path());
    {
        const std::scoped_lock guard(one, two, three);
        CHECK(one.is_held() && two.is_held() && three.is_held());
    }
    CHECK(!one.is_held() && !two.is_held() && !three.is_held());
    {
        check::holder holder(two);
        CHECK(std::try_lock(one, two, three) == 1 && !one.is_held() && !three.is_held());
        holder.release();
    }
    // Two threads acquire the locks in different orders, many times.
    int inside = 0, rounds = 0;
    const auto work = [&](zkl::mutex &first, zkl::mutex &second) {
        for (int i = 0; i < 10; i++) {
            const std::scoped_lock guard(first, second);
            CHECK(inside++ == 0);
            rounds++;
            CHECK(inside-- == 1);
        }
    };
    std::thread forth([&] { work(one, two); }), back([&] { work(two, one); });
    forth.join();
    back.join();
    CHECK(rounds == 20);
}

// A multi-lock acquires all its member locks, of several kinds and clients.
void multi_lock_locks_several()
{
    zkl::client client(check::servers), another(check::servers);
    zkl::mutex one(client, fresh_path());
    zkl::semaphore_mutex two(client, fresh_path());
    zkl::shared_mutex three(another, fresh_path());
    zkl::multi all(one, two, three.reader());
    {
        const std::lock_guard guard(all);
        CHECK(all.is_held() && one.is_held() && two.is_held() && three.reader().is_held() && !three.is_held());
        CHECK(all.fencing_token() > 0 && all.participants().size() == 3);
        THROWS(invalid, "", all.node_path());
        CHECK(!on_new_thread([&] { return three.try_lock(); }) && on_new_thread([&] {
            const std::shared_lock reader(three, std::try_to_lock);
            return reader.owns_lock();
        }));
        CHECK(!on_new_thread([&] { return all.try_lock_for(1s); }));
    }
    CHECK(!one.is_held() && !two.is_held() && !three.reader().is_held());
    // A multi-lock of a multi-lock, and multi-locks of vectors.
    zkl::mutex four(client, fresh_path());
    zkl::multi more(all, four), ordered(zkl::in_order, one, four), vector(std::vector<zkl::lockable *>{&one, &four});
    zkl::multi vector_in_order(zkl::in_order, std::vector<zkl::lockable *>{&four, &one});
    for (zkl::multi *lock : {&more, &ordered, &vector, &vector_in_order}) {
        const std::unique_lock guard(*lock, 5s);
        CHECK(guard && one.is_held() && four.is_held() && two.is_held() == (lock == &more));
        // In one transaction, or one after the other.
        if (lock == &vector) CHECK(one.fencing_token() == four.fencing_token());
        if (lock == &ordered) CHECK(one.fencing_token() < four.fencing_token());
        if (lock == &vector_in_order) CHECK(one.fencing_token() > four.fencing_token());
    }
    THROWS(invalid, "", zkl::multi(one, one));
    THROWS(invalid, "", zkl::multi(std::vector<zkl::lockable *>()));
    std::optional<zkl::mutex> gone(std::in_place, client, fresh_path());
    zkl::multi broken(one, *gone);
    gone.reset();
    THROWS(closed, "", broken.lock());
}

// Readers of a shared_mutex share it, and a writer excludes all others.
void threads_share_or_exclude()
{
    zkl::client client(check::servers);
    zkl::shared_mutex mutex(client, fresh_path());
    const auto reads = [&] { return on_new_thread([&] { return std::shared_lock(mutex, std::try_to_lock).owns_lock(); }); };
    const auto writes = [&] { return on_new_thread([&] { return std::unique_lock(mutex, std::try_to_lock).owns_lock(); }); };
    CHECK(reads() && writes());
    {
        const std::shared_lock guard(mutex);
        CHECK(mutex.reader().is_held() && !mutex.is_held() && reads() && !writes());
        CHECK(mutex.participants().empty() && mutex.reader().participants().size() == 1 && mutex.queue().size() == 1);
        THROWS(deadlock, "", mutex.lock());
        CHECK(!on_new_thread([&] { return mutex.try_lock_for(1s); }));
    }
    {
        const std::unique_lock guard(mutex);
        CHECK(!reads() && !writes() && mutex.is_held());
        CHECK(!on_new_thread([&] { return mutex.try_lock_shared_for(10ms); }));
        CHECK(!on_new_thread([&] { return mutex.try_lock_shared_until(std::chrono::steady_clock::now() + 10ms); }));
        // The writer downgrades to a reader.
        mutex.lock_shared();
    }
    CHECK(mutex.reader().is_held() && !mutex.is_held() && reads() && !writes());
    CHECK(mutex.release_shared() == zkl::status::ok && mutex.release_shared() == zkl::status::not_owner && writes());
    CHECK(mutex.try_lock_shared() && mutex.try_lock_shared_for(5s) && mutex.try_lock_shared_until(std::chrono::steady_clock::now() + 5s));
    for (int i = 0; i < 3; i++) mutex.unlock_shared();
    CHECK(writes());
}

// Any thread can unlock a semaphore_mutex.
void any_thread_releases_a_semaphore_mutex()
{
    zkl::client client(check::servers);
    zkl::semaphore_mutex mutex(client, fresh_path());
    std::unique_lock guard(mutex);
    CHECK(mutex.is_held() && !mutex.try_lock());
    CHECK(on_new_thread([guard = std::move(guard)]() mutable {
        guard.unlock();
        return 1;
    }) == 1);
    CHECK(!mutex.is_held_in_process() && mutex.try_lock());
    CHECK(mutex.release() == zkl::status::ok && mutex.release() == zkl::status::not_owner);
}

// A guard that another thread destroys does not release the hold of the first thread.
void a_guard_belongs_to_its_thread()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    std::unique_lock guard(mutex);
    std::thread([guard = std::move(guard)]() mutable { guard.unlock(); }).join();
    CHECK(mutex.is_held() && on_new_thread([&] { return mutex.release(); }) == zkl::status::not_owner);
    mutex.unlock();
    mutex.unlock();
    CHECK(!mutex.is_held());

    // The owner is a number instead of a thread. The owner re-enters the lock, and any thread releases its holds.
    zkl::hold held = mutex.acquire(zkl::owner{7});
    zkl::hold again = mutex.acquire(zkl::owner{7});
    CHECK(held.is_held() && again.fencing_token() == held.fencing_token() && !mutex.is_held() && mutex.is_held_in_process());
    CHECK(!mutex.try_acquire_for(10ms, zkl::owner{8}) && mutex.try_acquire_for(0ms, zkl::owner{7}));
    std::thread([held = std::move(held)] {}).join();
    CHECK(again.is_held() && !mutex.try_acquire_for(0ms, zkl::owner{8}) && again.release() == zkl::status::ok);
    CHECK(mutex.try_acquire_for(5s, zkl::owner{8}));
}

// A clock whose time does not advance for the first calls.
struct stubborn_clock {
    using duration = std::chrono::milliseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<stubborn_clock>;
    [[maybe_unused]] static constexpr bool is_steady = false;
    static inline int looks = 0;

    static time_point now() { return time_point(looks++ < 6 ? 0ms : 100ms); }
};

// Functions with a time limit return at their limit.
void limits_are_kept()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    const zkl::hold lease = semaphore.acquire();
    check::holder holder(mutex);

    // A call never returns early, even if its limit is not a whole number of milliseconds, and not much later than its
    // limit.
    const auto waits = [](auto attempt, std::chrono::nanoseconds limit) {
        const auto start = std::chrono::steady_clock::now();
        CHECK(!attempt());
        const auto waited = std::chrono::steady_clock::now() - start;
        CHECK(waited >= limit && waited <= limit + check::slack());
    };
    waits([&] { return mutex.try_lock_for(50ms); }, 50ms);
    waits([&] { return mutex.try_lock_for(30'300'700ns); }, 30'300'700ns);
    waits([&] { return mutex.try_lock_for(std::chrono::duration<double>(0.0301)); }, 30'100us);
    waits([&] { return mutex.try_lock_for(std::chrono::duration<int, std::ratio<1, 3>>(1)); }, 333ms);
    waits([&] { return mutex.try_lock_for(1ns); }, 1ns);
    waits([&] { return semaphore.try_acquire_for(30'300us).has_value(); }, 30'300us);
    const auto until = [&](auto deadline) {
        const auto start = std::chrono::steady_clock::now();
        CHECK(!mutex.try_lock_until(deadline) && decltype(deadline)::clock::now() >= deadline && check::since(start) < 200ms + check::slack());
        CHECK(!semaphore.try_acquire_until(deadline));
    };
    until(std::chrono::steady_clock::now() + 50ms);
    until(std::chrono::system_clock::now() + 50ms);
    until(std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::high_resolution_clock::now()) + 50ms);
    stubborn_clock::looks = 0;
    CHECK(!mutex.try_lock_until(stubborn_clock::time_point(40ms)) && stubborn_clock::looks == 8);

    // With a limit in the past, the call makes one attempt.
    const auto start = std::chrono::steady_clock::now();
    CHECK(!mutex.try_lock_for(0s) && !mutex.try_lock_for(-1s) && !mutex.try_lock_for(std::chrono::nanoseconds::min()));
    CHECK(!mutex.try_lock_for(std::chrono::hours::min()) && !mutex.try_lock_for(std::chrono::duration<double>(-INFINITY)));
    CHECK(!mutex.try_lock_for(std::chrono::duration<float>(std::numeric_limits<float>::quiet_NaN())));
    CHECK(!mutex.try_lock_until(std::chrono::system_clock::time_point()) && !mutex.try_lock_until(std::chrono::steady_clock::time_point::min()));
    CHECK(!mutex.try_lock_until(std::chrono::time_point<std::chrono::system_clock, std::chrono::hours>::min()));
    CHECK(!semaphore.try_acquire() && !semaphore.try_acquire_for(-1h) && check::since(start) < check::slack());

    // A limit in the far future is no limit, and no arithmetic overflows.
    const auto far = [&](auto attempt) {
        std::thread waiter([&] {
            CHECK(attempt());
            mutex.unlock();
        });
        AWAIT(mutex.waiting().size() == 1);
        CHECK(!mutex.waiting().front().left);
        mutex.cancel();
        waiter.join();
    };
    const auto canceled = [](auto attempt) {
        return [attempt] {
            THROWS(canceled, "", attempt());
            return true;
        };
    };
    far(canceled([&] { return mutex.try_lock_for(std::chrono::hours::max()); }));
    far(canceled([&] { return mutex.try_lock_for(std::chrono::nanoseconds::max()); }));
    far(canceled([&] { return mutex.try_lock_for(std::chrono::duration<double>(INFINITY)); }));
    far(canceled([&] { return mutex.try_lock_until(std::chrono::steady_clock::time_point::max()); }));
    far(canceled([&] { return mutex.try_lock_until(std::chrono::time_point<std::chrono::system_clock, std::chrono::hours>::max()); }));
    far(canceled([&] { return mutex.try_lock_until(std::chrono::time_point<std::chrono::system_clock, std::chrono::duration<double>>::max()); }));
    holder.release();
    CHECK(mutex.try_lock_for(std::chrono::hours::max()) && mutex.try_lock_until(std::chrono::system_clock::time_point::max()));
    // With a deadline in the past, the call makes one attempt, which may succeed.
    CHECK(mutex.try_lock_until(std::chrono::steady_clock::time_point()));
    for (int i = 0; i < 3; i++) mutex.unlock();
}

// waiting() and participants() describe the waiters and the holder.
void waiters_are_listed()
{
    zkl::client client(check::servers);
    const std::string path = fresh_path();
    zkl::mutex mutex(client, path);
    mutex.set_data(std::string_view("from \0 here", 11));
    check::holder holder(mutex);
    std::thread waiter([&] { THROWS(canceled, "", mutex.lock()); });
    // A waiter reads the data of the node ahead after a while.
    AWAIT(mutex.waiting().size() == 1 && mutex.waiting().front().session_id != 0);
    const zkl::waiting waits = mutex.waiting().front();
    const std::vector<zkl::participant> all = mutex.participants();
    CHECK(all.size() == 2 && all[0].holds && !all[1].holds && all[0].session_id == client.session_id());
    CHECK(all[0].data == std::string("from \0 here", 11) && all[0].czxid < all[1].czxid);
    CHECK(waits.ahead == all[0].node_path && waits.node_path == all[1].node_path && waits.count == 1 && !waits.left);
    CHECK(waits.what == zkl::waits_for::node && waits.session_id == client.session_id() && all[0].node_path.find(path) == 0);
    CHECK(client.fence_check(path, all[0].czxid) && !client.fence_check(path, all[1].czxid));
    mutex.cancel();
    waiter.join();
    holder.release();
    CHECK(mutex.participants().empty() && mutex.waiting().empty() && !client.fence_check(path, all[0].czxid));
}

// Leases are released by their object, which can be moved.
void leases_are_given_back()
{
    zkl::client client(check::servers);
    const std::string path = fresh_path();
    zkl::semaphore semaphore(client, path, 3);
    semaphore.set_data("a worker");
    {
        zkl::hold two = semaphore.acquire(2);
        CHECK(two && two.quantity() == 2 && two.is_held() && two.state() == zkl::lock_state::held && two.remaining() > 1s);
        CHECK(two.fencing_token() > 0 && two.node_path().find(path) == 0 && two.node_path(1) != two.node_path(0));
        THROWS(invalid, "", two.node_path(2));
        CHECK(!semaphore.try_acquire(2) && semaphore.participants().size() == 2 && semaphore.participants()[0].data == "a worker");
        std::optional<zkl::hold> one = semaphore.try_acquire();
        CHECK(one && one->is_held() && one->fencing_token() > two.fencing_token() && !semaphore.try_acquire_for(10ms));
        // The leases belong to the object that has them.
        zkl::hold moved(std::move(*one)), assigned;
        CHECK(moved && !*one && one->quantity() == 0);
        assigned = std::move(moved);
        CHECK(on_new_thread([&] { return assigned.is_held(); }));
        CHECK(assigned.release() == zkl::status::ok);
        assigned = semaphore.acquire();
        CHECK(assigned.is_held());
        CHECK(!one->is_held());
        THROWS(handle, "", one->fencing_token());
        THROWS(handle, "", one->on_lost([] {}));
        CHECK(one->release() == zkl::status::ok && two.release() == zkl::status::ok && two.release() == zkl::status::ok && !two);
        THROWS(handle, "", two.state());
    }
    CHECK(semaphore.participants().empty());
    THROWS(invalid, "", semaphore.acquire(0));
    THROWS(invalid, "", semaphore.acquire(4));
    THROWS(invalid, "", zkl::semaphore(client, fresh_path(), 0));

    // An acquire that waits.
    const zkl::hold all = semaphore.acquire(3);
    std::thread waiter([&] { THROWS(canceled, "", semaphore.acquire()); });
    AWAIT(semaphore.waiting().size() == 1);
    semaphore.cancel();
    waiter.join();
}

// In each recipe, the hold belongs to an object and not to a thread.
void any_object_holds_a_lock()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path()), other(client, fresh_path());
    zkl::semaphore_mutex semaphore_mutex(client, fresh_path());
    zkl::shared_mutex shared(client, fresh_path());
    zkl::multi both(mutex, other);
    for (zkl::lockable *lock : std::initializer_list<zkl::lockable *>{&mutex, &semaphore_mutex, &shared, &both}) {
        zkl::hold hold = lock->acquire();
        const zkl_hold_info info = hold.view();
        CHECK(hold && hold.quantity() == 1 && hold.is_held() && hold.fencing_token() > 0 && hold.fencing_pass() == 0);
        CHECK(info.state == ZKL_LOCK_HELD && info.token == hold.fencing_token() && hold.remaining() > 1s && !hold.node_path().empty());
        CHECK(!lock->is_held() && lock->is_held_in_process() && !lock->try_lock() && !lock->try_acquire());
        CHECK(!lock->try_acquire_for(10ms) && !lock->try_acquire_until(std::chrono::steady_clock::now() + 10ms));
        CHECK(!hold.wait_lost(1ms));
        std::thread([moved = std::move(hold)]() mutable { CHECK(moved.release() == zkl::status::ok && !moved); }).join();
        CHECK(!lock->is_held_in_process());
        zkl::operation acquiring = lock->start();
        CHECK(acquiring.wait() == zkl::status::ok);
        hold = acquiring.take_hold();
        CHECK(hold.is_held() && lock->is_held());
        CHECK(hold.release_nowait() == zkl::status::ok && hold.release_nowait() == zkl::status::ok && !lock->is_held());
        // The destructor releases the hold, and waits for the server.
        {
            const std::optional<zkl::hold> again = lock->try_acquire_for(20s);
            CHECK(again->is_held());
        }
        CHECK(lock->participants().empty());
    }
}

// The maximum of a semaphore with a count is the value of the count.
void a_count_says_how_many_leases_there_are()
{
    zkl::client client(check::servers);
    const std::string count = fresh_path();
    THROWS(server, "", client.shared_count_get(count));
    zkl::semaphore semaphore(client, fresh_path(), count, 1);
    CHECK(client.shared_count_get(count) == 1);
    const zkl::hold one = semaphore.acquire();
    CHECK(!semaphore.try_acquire());
    client.shared_count_set(count, 2);
    const std::optional<zkl::hold> two = semaphore.try_acquire_for(20s);
    CHECK(two && client.shared_count_get(count) == 2);
}

// Operations finish without a waiting thread.
void operations_complete_unattended()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::operation first = mutex.start(zkl::owner{1}), second = mutex.start_for(20s, zkl::owner{2});
    // If the server did not answer within this time, the status would be `connection`.
    zkl::operation third = mutex.start_for(1s);
    CHECK(first.wait() == zkl::status::ok && !second.result());
    zkl::hold of_first = first.take_hold();
    CHECK(of_first.is_held() && !mutex.is_held());
    CHECK(!second.wait_for(1ms) && third.wait() == zkl::status::timeout && third.wait_for(0s) == zkl::status::timeout);
    THROWS(timeout, "", third.get());
    pollfd readable{second.fd(), POLLIN, 0};
    CHECK(poll(&readable, 1, 0) == 0 && of_first.release() == zkl::status::ok);
    CHECK(poll(&readable, 1, 20000) == 1 && second.result() == zkl::status::ok);
    second.get();
    // A hold that was taken remains when the operation is destroyed.
    zkl::hold of_second = second.take_hold();
    second = mutex.start(zkl::owner{3});
    second.cancel();
    CHECK(second.wait() == zkl::status::canceled && of_second.is_held());
    THROWS(canceled, "", second.get());
    CHECK(of_second.release() == zkl::status::ok);
    // A hold that was not taken is released, whether or not its success was reported.
    for (const bool is_heard : {false, true}) {
        zkl::operation unheard = mutex.start(zkl::owner{4});
        pollfd over{unheard.fd(), POLLIN, 0};
        CHECK(poll(&over, 1, 20000) == 1 && (!is_heard || unheard.result() == zkl::status::ok));
    }
    AWAIT(mutex.try_lock());
    CHECK(mutex.release_nowait() == zkl::status::ok && mutex.release_nowait() == zkl::status::not_owner);

    zkl::operation none, moved = mutex.start();
    none = std::move(moved);
    CHECK(none.wait() == zkl::status::ok && mutex.release() == zkl::status::ok);
    THROWS(handle, "", moved.wait());
    THROWS(handle, "", moved.wait_for(1ms));
    THROWS(handle, "", moved.result());
    THROWS(handle, "", moved.fd());
    THROWS(handle, "", moved.get());
    THROWS(handle, "", moved.cancel());
    THROWS(handle, "", moved.take_hold());
    CHECK(none.take_hold().state() == zkl::lock_state::free);
    THROWS(invalid, "", none.take_hold());

    zkl::semaphore semaphore(client, fresh_path(), 2);
    zkl::operation leases = semaphore.start(2), more = semaphore.start_for(10s);
    CHECK(leases.wait_for(20s) == zkl::status::ok);
    zkl::hold two = leases.take_hold();
    THROWS(invalid, "", leases.take_hold());
    THROWS(pending, "is still running", more.take_hold());
    CHECK(two.quantity() == 2 && !more.result() && two.release() == zkl::status::ok && more.wait() == zkl::status::ok);
    CHECK(more.take_hold().is_held());
}

// One descriptor reports the ends of all operations, and a wait for a loss is an operation.
void completion_queues_report_operations()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::completion_queue queue;
    CHECK(queue.fd() >= 0 && queue.take().empty());
    zkl::hold held = mutex.acquire();
    zkl::semaphore semaphore(client, fresh_path(), 1);
    zkl::hold one = semaphore.acquire();
    zkl::operation lock_lost = held.start_wait_lost(), leases_lost = one.start_wait_lost();
    zkl::operation waits = mutex.start(zkl::owner{7});
    lock_lost.notify(queue, 1);
    leases_lost.notify(queue, 2);
    waits.notify(queue, 3);
    CHECK(queue.take().empty());
    CHECK(held.release() == zkl::status::ok);
    CHECK(lock_lost.wait() == zkl::status::not_owner && waits.wait() == zkl::status::ok);
    CHECK(one.release() == zkl::status::ok);
    CHECK(leases_lost.wait() == zkl::status::not_owner);
    std::vector<std::uint64_t> keys;
    const auto all_taken = [&] {
        for (const std::uint64_t key : queue.take(2)) keys.push_back(key);
        return keys.size() == 3;
    };
    AWAIT(all_taken());
    CHECK(std::is_permutation(keys.begin(), keys.end(), std::vector<std::uint64_t>{1, 2, 3}.begin()));
    THROWS(invalid, "count is 0", queue.take(0));
}

// A release and a query do not block a thread.
void releases_and_queries_are_operations()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::hold held = mutex.acquire();
    zkl::operation query = mutex.start_participants();
    CHECK(query.wait() == zkl::status::ok);
    zkl::operation release = held.start_release();
    CHECK(!held && !mutex.is_held_in_process() && release.wait() == zkl::status::ok);
    CHECK(query.participants().size() == 1 && query.participants().front().holds);
    THROWS(invalid, "the operation has no participants", release.participants());
    THROWS(invalid, "", query.take_hold());
    // The destructor of an operation does not stop a release.
    held = mutex.acquire();
    static_cast<void>(held.start_release());
    AWAIT(mutex.participants().empty());

    zkl::shared_mutex shared(client, fresh_path());
    shared.lock_shared();
    zkl::operation writers = shared.start_participants(), all = shared.start_queue();
    CHECK(writers.wait() == zkl::status::ok && writers.participants().empty());
    CHECK(all.wait() == zkl::status::ok && all.participants().size() == 1);
    shared.unlock_shared();

    zkl::semaphore semaphore(client, fresh_path(), 2);
    zkl::hold two = semaphore.acquire(2);
    zkl::operation leases = semaphore.start_participants();
    CHECK(leases.wait() == zkl::status::ok && leases.participants().size() == 2);
    zkl::operation pending = mutex.start_participants();
    pending.cancel();
    CHECK(pending.wait() == zkl::status::ok);
    CHECK(two.start_release().wait() == zkl::status::ok && !two && semaphore.participants().empty());
    THROWS(handle, "is NULL; expected a hold", two.start_release());
}

// Clients and counts as operations.
void clients_and_counts_are_operations()
{
    zkl::operation connecting = zkl::client::start(check::servers);
    CHECK(connecting.wait() == zkl::status::ok);
    zkl::client client = connecting.take_client();
    THROWS(invalid, "already taken", connecting.take_client());
    CHECK(client.state() == zkl::state::connected);
    zkl::operation refused = zkl::client::start("127.0.0.1:1", zkl::config().connect_timeout(1s));
    CHECK(refused.wait() == zkl::status::connection);
    THROWS(connection, "127.0.0.1:1", refused.take_client());
    THROWS(invalid, "NUL", zkl::client::start(std::string_view("a\0b", 3)));
    zkl::config settings, moved = std::move(settings);
    THROWS(handle, "moved from", zkl::client::start(check::servers, settings));

    const std::string count = fresh_path();
    CHECK(client.start_shared_count_set(count, 2).wait() == zkl::status::ok);
    zkl::operation read = client.start_shared_count_get(count);
    CHECK(read.wait() == zkl::status::ok && read.value() == 2);
    zkl::operation made = zkl::semaphore::start_counted(client, fresh_path(), count, 1);
    CHECK(made.wait() == zkl::status::ok);
    zkl::semaphore semaphore = made.take_semaphore();
    CHECK(semaphore.acquire(2).is_held());
    THROWS(invalid, "already taken", made.take_semaphore());

    const std::string path = fresh_path();
    zkl::mutex mutex(client, path);
    int requests = 0;
    std::mutex guard;
    mutex.set_revocable([&] { const std::lock_guard held(guard); requests++; });
    mutex.lock();
    zkl::operation valid = client.start_fence_check(path, mutex.fencing_token());
    CHECK(valid.wait() == zkl::status::ok && valid.value() == 1);
    THROWS(invalid, "the operation has no client", valid.take_client());
    zkl::operation not_valid = client.start_fence_check(path, 1);
    CHECK(not_valid.wait() == zkl::status::ok && not_valid.value() == 0);
    THROWS(invalid, "", valid.participants());
    THROWS(invalid, "", not_valid.participants());
    zkl::operation queue = mutex.start_queue();
    CHECK(queue.wait() == zkl::status::ok && queue.value() == 1 && queue.participants().size() == 1);
    CHECK(client.start_revoke(mutex.node_path()).wait() == zkl::status::ok);
    AWAIT((std::lock_guard(guard), requests == 1));
    mutex.unlock();

    zkl::operation closing = client.start_close();
    CHECK(closing.wait() == zkl::status::ok);
    THROWS(closed, "", mutex.lock());
    client.close();
    zkl::client other(check::servers);
    other.close_nowait();
    THROWS(handle, "", other.state());
}

// Every error is a std::system_error whose code compares equal to std::errc values.
void errors_are_system_errors()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    check::holder holder(mutex);
    try {
        mutex.start_for(500ms).get();
        CHECK(false);
    } catch (const std::system_error &caught) {
        const zkl::error copy = dynamic_cast<const zkl::error &>(caught);
        CHECK(copy.code() == std::errc::timed_out && copy.code() == zkl::status::timeout && copy.status() == zkl::status::timeout);
        CHECK(copy.code() != std::errc::operation_canceled && copy.code() != zkl::status::canceled);
        CHECK(copy.code().category() == zkl::category() && std::strcmp(zkl::category().name(), "zklock") == 0);
        CHECK(std::string(copy.what()).find("timed out before the lock was acquired") != std::string::npos);
        // The message names the holder.
        CHECK(std::string(copy.what()).find(mutex.participants()[0].node_path) != std::string::npos);
    }
    holder.release();
    for (std::int32_t number = 0; number >= -19; number--) {
        const std::error_code code = static_cast<zkl::status>(number);
        CHECK(code.value() == number && code.message() == zkl_strerror(number));
        CHECK(code.default_error_condition() == std::error_condition(zkl_status_errno(number), std::generic_category()));
        CHECK(!code == (number == 0));
    }
    CHECK(make_error_code(zkl::status::deadlock) == std::errc::resource_deadlock_would_occur);
    CHECK(make_error_code(zkl::status::not_owner) == std::errc::operation_not_permitted);
    CHECK(make_error_code(zkl::status::canceled) == std::errc::operation_canceled);
    CHECK(make_error_code(zkl::status::connection) == std::errc::not_connected);
    CHECK(zkl::check(7) == 7 && std::strcmp(zkl::version(), zkl_version()) == 0 && zkl::version_number() == ZKL_VERSION_NUMBER);

    // The message names the wrong argument.
    THROWS(invalid, "no/slash", zkl::mutex(client, "no/slash"));
    THROWS(invalid, "\"/a\": expected no NUL", zkl::mutex(client, std::string("/a\0b", 4)));
    THROWS(invalid, "", zkl::client(""));
    THROWS(invalid, "session timeout is -1000 ms", zkl::config().session_timeout(-1s));
    THROWS(invalid, "session timeout 0 ms", zkl::config().session_timeout(0ms));
    THROWS(invalid, "connect.timeout", zkl::config().connect_timeout(std::chrono::hours::max()));
    THROWS(invalid, "lease.margin", zkl::config().lease_margin(std::chrono::duration<double>(NAN)));
    THROWS(invalid, "", zkl::config().add_auth("", ""));
    THROWS(invalid, "option auth.digest is not valid; expected user:password", zkl::config().set("auth.digest", "secret"));
    THROWS(invalid, "value: expected no NUL in it", zkl::config().set("auth.digest", std::string("a:b\0", 4)));
    THROWS(invalid, "auth scheme \"\"", zkl::config().auth_callback("", [] { return std::string("a:b"); }));
    THROWS(invalid, "option \"tls\" is unknown", zkl::config().set("lease.margin", "100").set("tls", "x"));
    THROWS(invalid, "NUL", zkl::config().set(std::string("lease.margin\0", 13), "1"));
    THROWS(invalid, "options file \"/\": is a directory", zkl::config().load("/"));
    THROWS(connection, "", zkl::client("127.0.0.1:1", zkl::config().set("connect.timeout", "50")));
    THROWS(invalid, "", mutex.set_local_handover(-1));
    THROWS(invalid, "", mutex.set_data(std::string(1 << 20, 'x')));
    THROWS(invalid, "", client.fence_check("/a", 0));
    THROWS(invalid, "", client.revoke("a"));
    THROWS(invalid, "has the chroot \"/a\", but the client has no chroot", client.set_servers("h/a"));
    client.set_servers(check::servers);
    THROWS(invalid, "", client.dispatch_events());
    THROWS(invalid, "", client.event_fd());
    THROWS(connection, "", zkl::client("127.0.0.1:1", zkl::config().connect_timeout(50ms)));
    THROWS(not_owner, "", mutex.fencing_token());
    THROWS(not_owner, "", mutex.remaining());
    THROWS(not_owner, "", mutex.node_path());

    // Two objects on one path.
    const std::string path = fresh_path();
    zkl::mutex one(client, path), two(client, path);
    const std::lock_guard guard(one);
    CHECK(one.node_path().find(path) == 0);
    THROWS(deadlock, path, two.lock());
    CHECK(!on_new_thread([&] { return two.try_lock(); }));
}

// The metrics of a client count its acquires and releases.
void a_client_counts_what_it_does()
{
    zkl::client client(check::servers);
    zkl::mutex lock(client, fresh_path());
    for (int i = 0; i < 3; i++) const std::lock_guard guard(lock);
    const zkl_metrics counted = client.metrics();
    CHECK(counted.size == sizeof counted && counted.acquires_ok == 3 && counted.releases == 3 && counted.held == 0);
    CHECK(counted.waits.count == 3 && counted.waits.buckets[ZKL_HISTOGRAM_BUCKETS - 1] <= 3);
    CHECK(client.prometheus().find("zklock_acquires_total{outcome=\"ok\"} 3\n") != std::string::npos);
    const std::string labeled = client.prometheus("app=\"reports\"");
    CHECK(labeled.find("zklock_acquires_total{app=\"reports\",outcome=\"ok\"} 3\n") != std::string::npos);
    THROWS(invalid, "app", client.prometheus("app=reports"));
    THROWS(invalid, "NUL", client.prometheus(std::string("a=\"\0\"", 5)));
    static_assert(zkl::histogram_bound(0) == 50us && zkl::histogram_bound(1) == 100us);
    static_assert(zkl::histogram_bound(ZKL_HISTOGRAM_BUCKETS - 2) == 209'715'200us);
    static_assert(zkl::histogram_bound(ZKL_HISTOGRAM_BUCKETS - 1) == std::chrono::nanoseconds::max());
}

// A multi-lock with a null pointer throws.
void empty_lock_throws_invalid()
{
    zkl::client client(check::servers);
    zkl::mutex lock(client, fresh_path());
    THROWS(handle, "", zkl::multi(std::vector<zkl::lockable *>{&lock, nullptr}));
}

// A deadline that is not a number counts as passed, so the call does not wait.
void nan_deadline_counts_as_passed()
{
    using point = std::chrono::time_point<std::chrono::system_clock, std::chrono::duration<double>>;
    zkl::client client(check::servers);
    zkl::mutex lock(client, fresh_path());
    const std::lock_guard guard(lock);
    const point never(std::chrono::duration<double>(std::nan("")));
    CHECK(!on_new_thread([&] { return lock.try_lock_until(never); }));
}

// The log callback receives the lines of a lock, and its exceptions reach its handler.
void log_callback_receives_lines()
{
    std::mutex heard_by;
    std::vector<std::string> lines;
    int failures = 0;
    const std::string path = fresh_path();
    const auto hear = [&](const zkl::log_line &line) {
        if (line.field("path") != path) return;
        CHECK(line.level() == zkl::log_level::debug && line.target() == "zklock::lock" && !line.field("nobody"));
        CHECK(line.text().find(line.message()) == 0 && line.native_handle()->size >= sizeof(zkl_log));
        CHECK(std::chrono::system_clock::now() - line.time() < 1h);
        const std::lock_guard guard(heard_by);
        lines.emplace_back(line.message());
        throw std::runtime_error("ends here");
    };
    zkl::set_log_callback(zkl::log_level::debug, hear, [&](const std::exception_ptr &) { failures++; });
    {
        zkl::client client(check::servers);
        zkl::mutex lock(client, path);
        const std::lock_guard guard(lock);
    }
    // Setting another callback first delivers all earlier lines.
    zkl::set_log_callback(zkl::log_level::off, nullptr);
    CHECK(lines == std::vector<std::string>({"acquired", "released"}) && failures == 2);
    THROWS(invalid, "9", zkl::set_log_callback(static_cast<zkl::log_level>(9), hear));
    zkl::set_log_callback(zkl::log_level::off, std::function<void(const zkl::log_line &)>());

    // With polling, the program itself calls the callback.
    THROWS(invalid, "zkl_set_log_polling", zkl::log_event_fd());
    THROWS(invalid, "zkl_set_log_polling", zkl::dispatch_log());
    lines.clear();
    const std::thread::id self = std::this_thread::get_id();
    zkl::set_log_polling(zkl::log_level::info, [&](const zkl::log_line &line) {
        CHECK(std::this_thread::get_id() == self);
        lines.emplace_back(line.message());
    });
    {
        const zkl::client client(check::servers);
    }
    pollfd readable{zkl::log_event_fd(), POLLIN, 0};
    CHECK(poll(&readable, 1, 0) == 1 && lines.empty());
    CHECK(zkl::dispatch_log() == static_cast<std::int32_t>(lines.size()) && lines.size() > 1);
    zkl::set_log_polling(zkl::log_level::off, nullptr);
}

// Functions of a moved-from object throw.
void what_was_moved_from_has_no_handle()
{
    zkl::client from(check::servers), to = std::move(from);
    CHECK(from.native_handle() == nullptr && to.state() == zkl::state::connected && to.session_id() != 0);
    THROWS(handle, "", from.state());
    THROWS(handle, "", from.session_id());
    THROWS(handle, "", from.on_event([] {}));
    THROWS(handle, "", from.dispatch_events());
    THROWS(handle, "", from.metrics());
    THROWS(handle, "", from.prometheus());
    THROWS(handle, "", from.event_fd());
    THROWS(handle, "", from.revoke("/a"));
    THROWS(handle, "", from.set_servers("h"));
    THROWS(handle, "", from.fence_check("/a", 1));
    THROWS(handle, "", from.shared_count_get("/a"));
    THROWS(handle, "", from.shared_count_set("/a", 1));
    THROWS(handle, "", from.start_close());
    THROWS(handle, "", from.start_revoke("/a"));
    THROWS(handle, "", from.start_fence_check("/a", 1));
    THROWS(handle, "", from.start_shared_count_get("/a"));
    THROWS(handle, "", from.start_shared_count_set("/a", 1));
    THROWS(handle, "", zkl::semaphore::start_counted(from, "/a", "/b", 1));
    from.close_nowait();
    THROWS(handle, "", zkl::mutex(from, "/a"));
    THROWS(handle, "", zkl::semaphore_mutex(from, "/a"));
    THROWS(handle, "", zkl::shared_mutex(from, "/a"));
    THROWS(handle, "", zkl::semaphore(from, "/a", 1));
    THROWS(handle, "", zkl::semaphore(from, "/a", "/b", 1));
    from.close();

    zkl::config config, taken = std::move(config);
    THROWS(handle, "", config.session_timeout(1s));
    THROWS(handle, "", config.on_event([] {}));
    THROWS(handle, "", config.auth_callback("digest", [] { return std::string(); }));
    // The removal of a callback succeeds.
    config.on_event(nullptr).auth_callback("digest", nullptr);
    from.on_event(nullptr);
    zkl::mutex empty(to, fresh_path());
    const zkl::mutex next = std::move(empty);
    THROWS(handle, "", empty.set_revocable([] {}));
    empty.set_revocable(nullptr);
    empty.on_lost(nullptr);
    zkl::semaphore empty_semaphore(to, fresh_path(), 1);
    const zkl::semaphore next_semaphore = std::move(empty_semaphore);
    THROWS(handle, "", empty_semaphore.set_revocable([] {}));
    empty_semaphore.set_revocable(nullptr);
    THROWS(handle, "", zkl::client(check::servers, config));
    static_cast<void>(zkl::client(check::servers, taken.session_timeout(5s).connect_timeout(5s).lease_margin(1s).wait_for_kazoo()));

    // The assigned client replaces the first one and closes it.
    zkl::mutex mutex(to, fresh_path());
    mutex.lock();
    to = zkl::client(check::servers);
    CHECK(to.state() == zkl::state::connected);
    THROWS(closed, "", mutex.try_lock());
    CHECK(!mutex.is_held() && !mutex.is_held_in_process());
    CHECK(mutex.release() != zkl::status::ok);
    mutex.unlock();
    to = std::move(*&to);
    CHECK(to.state() == zkl::state::connected);
    to.close();
    to.close();
    THROWS(handle, "", to.state());
}

// Destroys an object on another thread while its revocation callback is running. The destructor waits for the callback.
template <class Object>
void destroy_during_revocation(std::optional<Object> &object, zkl::client &other, const std::string &node, const std::function<void()> &end)
{
    std::atomic<bool> has_begun{false}, may_return{false}, is_destroyed{false};
    object->set_revocable([&] {
        has_begun = true;
        AWAIT(may_return);
        CHECK(!is_destroyed);
    });
    other.revoke(node);
    AWAIT(has_begun);
    end();
    std::thread destroyer([&] {
        object.reset();
        is_destroyed = true;
    });
    std::this_thread::sleep_for(100ms);
    CHECK(!is_destroyed);
    may_return = true;
    destroyer.join();
}

// The destructor of a lock also waits for a revocation callback if the client is closing or a member lock was destroyed.
void destructors_wait_for_revocation_callbacks()
{
    zkl::client other(check::servers);
    {
        zkl::client client(check::servers);
        std::optional<zkl::mutex> mutex(std::in_place, client, fresh_path());
        mutex->lock();
        destroy_during_revocation(mutex, other, mutex->node_path(), [&] { client.close_nowait(); });
    }
    {
        zkl::client client(check::servers);
        std::optional<zkl::semaphore> semaphore(std::in_place, client, fresh_path(), 1);
        const zkl::hold leases = semaphore->acquire();
        destroy_during_revocation(semaphore, other, leases.node_path(0), [&] { client.close_nowait(); });
    }
    zkl::client client(check::servers);
    std::optional<zkl::mutex> one(std::in_place, client, fresh_path());
    zkl::mutex two(client, fresh_path());
    std::optional<zkl::multi> both(std::in_place, *one, two);
    both->lock();
    destroy_during_revocation(both, other, one->node_path(), [&] { one.reset(); });
}

// A callback can remove itself although the call that registers the callback has not returned.
void a_callback_may_remove_itself_at_once()
{
    zkl::detail::listening registration;
    const auto used = std::make_shared<int>();
    zkl::detail::target *const target = zkl::detail::make_event_callback([used] {}, zkl::detail::ignore());
    const bool is_added = registration.add(target, {}, [&] {
        // The callback calls on_event(nullptr). The library then drops its reference to the callback.
        registration.reset();
        target->release();
        return ZKL_OK;
    });
    CHECK(is_added && registration.get() == nullptr && used.use_count() == 1);
}

// Holds, callbacks and settings move with the object.
void locks_move()
{
    zkl::client client(check::servers), another(check::servers);
    const std::string path = fresh_path();
    std::atomic<int> events{0};
    zkl::mutex first(client, path);
    first.on_event([&] { events++; });
    first.set_revocable([&] { events += 100; });
    first.lock();
    zkl::mutex mutex(std::move(first));
    CHECK(first.native_handle() == nullptr && !first.is_held() && mutex.is_held());
    THROWS(handle, "", first.lock());
    THROWS(handle, "", first.fencing_token());
    THROWS(handle, "", first.on_event([] {}));
    CHECK(first.release() == zkl::status::handle);
    another.revoke(mutex.node_path());
    AWAIT(events == 101);
    zkl::mutex member(client, fresh_path());
    zkl::multi both(mutex, member);
    // The multi-lock refers to the lock, wherever its object is.
    zkl::mutex last(client, fresh_path());
    last.lock();
    zkl::mutex rival(another, path);
    const auto before = last.native_handle();
    last = std::move(mutex);
    CHECK(last.is_held() && last.native_handle() != before && !rival.try_lock());
    last.unlock();
    {
        const std::lock_guard guard(both);
        CHECK(last.is_held() && member.is_held());
    }
    AWAIT(events == 101 + 3);
    last = zkl::mutex(client, fresh_path());
    THROWS(closed, "", both.lock());
    // An assignment releases the lock that the object held before.
    zkl::mutex held(client, path);
    held.lock();
    CHECK(!rival.try_lock());
    held = zkl::mutex(client, fresh_path());
    CHECK(rival.try_lock_for(20s));
    rival.unlock();
    held = std::move(*&held);
    CHECK(held.try_lock() && held.release() == zkl::status::ok);

    zkl::shared_mutex shared(client, fresh_path());
    shared.lock_shared();
    zkl::shared_mutex moved(std::move(shared));
    CHECK(moved.reader().is_held() && moved.release_shared() == zkl::status::ok && shared.release_shared() == zkl::status::handle);
    zkl::semaphore semaphore(client, fresh_path(), 2), pool(std::move(semaphore));
    THROWS(handle, "", semaphore.acquire());
    const zkl::hold lease = pool.acquire();
    semaphore = std::move(pool);
    CHECK(semaphore.try_acquire() && !semaphore.try_acquire(2));
}

// Locks may be destroyed after their client, and closing the client ends their waits.
void locks_outlive_their_client_and_wake()
{
    std::optional<zkl::client> client(std::in_place, check::servers);
    zkl::mutex mutex(*client, fresh_path());
    zkl::semaphore semaphore(*client, fresh_path(), 1);
    zkl::hold lease = semaphore.acquire();
    check::holder holder(mutex);
    std::thread waiter([&] { THROWS(closed, "", mutex.lock()); });
    AWAIT(mutex.waiting().size() == 1);
    client.reset();
    waiter.join();
    holder.release();
    CHECK(lease.release() == zkl::status::closed);
}

// With local hand-over, threads pass the mutex to each other within the process.
void local_handover_passes_the_lock_between_threads()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    mutex.set_local_handover(10);
    std::atomic<int> passed{0}, inside{0};
    check::holder holder(mutex);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++) {
        threads.emplace_back([&] {
            const std::lock_guard guard(mutex);
            CHECK(inside++ == 0);
            if (mutex.fencing_pass() > 0) passed++;
            inside--;
        });
    }
    AWAIT(mutex.waiting().size() == 3);
    holder.release();
    for (std::thread &thread : threads) thread.join();
    CHECK(passed == 3);
}

} // namespace

/* The library calls the callback for each connection, and destroys the callback with the last user. */
static void auth_callback_returns_credentials()
{
    auto calls = std::make_shared<std::atomic<int>>(0);
    {
        zkl::config config;
        config.auth_callback("digest", [calls] { return "alice:password-" + std::to_string((*calls)++); });
        zkl::client client(check::servers, config);
        CHECK(*calls == 1);
        zkl::mutex mutex(client, fresh_path());
        mutex.lock();
        mutex.unlock();
        config.auth_callback("digest", nullptr);
        const zkl::client other(check::servers, config);
        CHECK(*calls == 1);
    }
    CHECK(calls.use_count() == 1);

    /* An exception of the callback goes to the handler of exceptions, and the attempt to connect fails. */
    std::atomic<int> failures{0};
    zkl::config config;
    config.auth_callback(
        "digest", []() -> std::string { throw std::runtime_error("sealed"); }, [&](const std::exception_ptr &) { failures++; });
    THROWS(auth, "failed: it returned -1", zkl::client(check::servers, config));
    CHECK(failures == 1);
}

// A job runs once in each period. The destructor of a run leaves it interrupted.
void a_job_runs_once_in_a_period()
{
    zkl::client client(check::servers);
    const std::string path = fresh_path();
    zkl::mutex mutex(client, path);
    CHECK(client.past_runs(path).empty());
    {
        zkl::hold hold = mutex.acquire();
        std::optional<zkl::run> run = hold.begin_run("day", "UTC");
        CHECK(run && *run && client.past_runs(path).at(0).result == zkl::run_result::running);
        run->fail("exit code 3");
        CHECK(!*run && !hold.begin_run("day", "UTC"));
        CHECK(hold.begin_run("day", "UTC", true));
    }
    zkl::hold hold = mutex.acquire();
    std::vector<zkl::past_run> past = client.past_runs(path);
    CHECK(past.size() == 2 && past[0].result == zkl::run_result::running && !past[0].ended);
    CHECK(past[1].result == zkl::run_result::failed && past[1].failure == "exit code 3" && past[1].ended >= past[1].started);
    CHECK(past[1].token > 0 && past[1].token < hold.fencing_token() && past[1].node_path.find(path) == 0);
    CHECK(past[1].started - past[1].period < 24h && past[1].owner.find('@') != std::string::npos);
    hold.begin_run("day", "UTC", true)->take_back();
    CHECK(client.past_runs(path).size() == 2);

    zkl::operation beginning = hold.start_begin_run("day", "UTC", true);
    beginning.get();
    std::optional<zkl::run> run = beginning.take_run();
    CHECK(run && client.past_runs(path).size() == 3);
    run->start_take_back().get();
    beginning = hold.start_begin_run("day", "UTC", true);
    beginning.get();
    beginning.take_run()->start_fail("again").get();
    beginning = hold.start_begin_run("day", "UTC", true);
    beginning.get();
    beginning.take_run()->start_succeed().get();
    beginning = hold.start_begin_run("day", "UTC", true);
    beginning.get();
    CHECK(!beginning.take_run());
    zkl::operation reading = client.start_past_runs(path);
    reading.get();
    CHECK(reading.past_runs().at(0).result == zkl::run_result::succeeded && reading.past_runs().size() == 4);

    THROWS(invalid, "period is \"noon\"; expected minute", hold.begin_run("noon"));
    THROWS(invalid, "zone is \"Mars/Base\"; expected the name", hold.begin_run("day", "Mars/Base"));
    THROWS(invalid, "expected no NUL", hold.begin_run("day", std::string_view("U\0C", 3)));
    THROWS(invalid, "expected no NUL", hold.begin_run("1s", "UTC")->fail(std::string_view("a\0b", 3)));
    THROWS(handle, "expected a run", zkl::run().succeed());
    zkl::shared_mutex shared(client, fresh_path());
    THROWS(invalid, "only one participant can hold", shared.reader().acquire().begin_run("day"));
}

int main(int argc, char **argv)
{
    check::begin(argc, argv);
    RUN(standard_guards_lock_and_unlock);
    RUN(condition_variable_releases_and_reacquires);
    RUN(std_lock_locks_several);
    RUN(multi_lock_locks_several);
    RUN(threads_share_or_exclude);
    RUN(any_thread_releases_a_semaphore_mutex);
    RUN(a_guard_belongs_to_its_thread);
    RUN(limits_are_kept);
    RUN(waiters_are_listed);
    RUN(leases_are_given_back);
    RUN(any_object_holds_a_lock);
    RUN(a_count_says_how_many_leases_there_are);
    RUN(operations_complete_unattended);
    RUN(completion_queues_report_operations);
    RUN(releases_and_queries_are_operations);
    RUN(clients_and_counts_are_operations);
    RUN(errors_are_system_errors);
    RUN(a_client_counts_what_it_does);
    RUN(empty_lock_throws_invalid);
    RUN(nan_deadline_counts_as_passed);
    RUN(auth_callback_returns_credentials);
    RUN(a_job_runs_once_in_a_period);
    RUN(log_callback_receives_lines);
    RUN(what_was_moved_from_has_no_handle);
    RUN(destructors_wait_for_revocation_callbacks);
    RUN(a_callback_may_remove_itself_at_once);
    RUN(locks_move);
    RUN(locks_outlive_their_client_and_wake);
    RUN(local_handover_passes_the_lock_between_threads);
    return 0;
}
