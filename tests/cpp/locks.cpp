// What zklock.hpp has, on a server that works: with the standard's guards, by itself, and used wrongly.
#include "check.hpp"

#include <condition_variable>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <vector>

#include <poll.h>

using namespace std::chrono_literals;
using check::elsewhere;
using check::fresh_path;

namespace {

// Like those of std: neither copied nor moved.
template <class T>
constexpr bool stays = !std::is_copy_constructible_v<T> && !std::is_move_constructible_v<T> && !std::is_copy_assignable_v<T> &&
                       !std::is_move_assignable_v<T> && !std::is_default_constructible_v<T>;
static_assert(stays<zkl::mutex> && stays<zkl::semaphore_mutex> && stays<zkl::shared_mutex> && stays<zkl::multi_mutex>);
static_assert(stays<zkl::semaphore> && !std::is_constructible_v<zkl::multi_mutex, zkl::multi_mutex &>);

// Owners of one thing: moved, not copied.
template <class T>
constexpr bool moves = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> && std::is_nothrow_move_constructible_v<T> &&
                       std::is_nothrow_move_assignable_v<T>;
static_assert(moves<zkl::client> && moves<zkl::leases> && moves<zkl::operation> && moves<zkl::config>);

static_assert(noexcept(std::declval<zkl::mutex &>().unlock()) && noexcept(std::declval<zkl::shared_mutex &>().unlock_shared()));
static_assert(noexcept(std::declval<zkl::owned &>().unlock()) && noexcept(std::declval<zkl::mutex &>().release()));
static_assert(!noexcept(std::declval<zkl::mutex &>().lock()) && !noexcept(std::declval<zkl::mutex &>().try_lock()));
static_assert(std::is_base_of_v<std::system_error, zkl::error> && std::is_nothrow_copy_constructible_v<zkl::error>);
static_assert(std::is_error_code_enum_v<zkl::status> && std::is_convertible_v<zkl::status, std::error_code>);
// A lock does not come from a client that is gone at the end of the line, and a lock is not deleted as what it is not.
static_assert(!std::is_constructible_v<zkl::mutex, zkl::client, std::string> && !std::is_destructible_v<zkl::lockable>);
static_assert(std::is_same_v<zkl::mutex::native_handle_type, zkl_lock *>);

void standard_guards_lock_and_unlock()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    CHECK(!mutex.is_held() && mutex.state() == zkl::lock_state::free);
    {
        const std::lock_guard guard(mutex);
        CHECK(mutex.is_held() && mutex.is_held_in_process() && mutex.state() == zkl::lock_state::held);
        CHECK(mutex.fencing_token() > 0 && mutex.fencing_pass() == 0 && mutex.remaining() > 1s);
        CHECK(!elsewhere([&] { return mutex.is_held(); }) && !elsewhere([&] { return mutex.try_lock(); }));
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
        CHECK(!elsewhere([&] { return std::unique_lock(mutex, std::try_to_lock).owns_lock(); }));
        CHECK(!elsewhere([&] { return std::unique_lock(mutex, 20ms).owns_lock(); }));
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

void a_condition_variable_lets_go_and_takes_it_again()
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

void several_at_once()
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
    // In different orders, again and again.
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

void several_as_one()
{
    zkl::client client(check::servers), another(check::servers);
    zkl::mutex one(client, fresh_path());
    zkl::semaphore_mutex two(client, fresh_path());
    zkl::shared_mutex three(another, fresh_path());
    zkl::multi_mutex all(one, two, three.reader());
    {
        const std::lock_guard guard(all);
        CHECK(all.is_held() && one.is_held() && two.is_held() && three.reader().is_held() && !three.is_held());
        CHECK(all.fencing_token() > 0 && all.participants().size() == 3);
        THROWS(invalid, "", all.node_path());
        CHECK(!elsewhere([&] { return three.try_lock(); }) && elsewhere([&] {
            const std::shared_lock reader(three, std::try_to_lock);
            return reader.owns_lock();
        }));
        CHECK(!elsewhere([&] { return all.try_lock_for(10ms); }));
    }
    CHECK(!one.is_held() && !two.is_held() && !three.reader().is_held());
    // One of several, and those of a vector.
    zkl::mutex four(client, fresh_path());
    zkl::multi_mutex more(all, four), ordered(zkl::in_order, one, four), vector(std::vector<zkl::lockable *>{&one, &four});
    zkl::multi_mutex vector_in_order(zkl::in_order, std::vector<zkl::lockable *>{&four, &one});
    for (zkl::multi_mutex *lock : {&more, &ordered, &vector, &vector_in_order}) {
        const std::unique_lock guard(*lock, 5s);
        CHECK(guard && one.is_held() && four.is_held() && two.is_held() == (lock == &more));
        // In one transaction, or one after the other.
        if (lock == &vector) CHECK(one.fencing_token() == four.fencing_token());
        if (lock == &ordered) CHECK(one.fencing_token() < four.fencing_token());
        if (lock == &vector_in_order) CHECK(one.fencing_token() > four.fencing_token());
    }
    THROWS(invalid, "", zkl::multi_mutex(one, one));
    THROWS(invalid, "", zkl::multi_mutex(std::vector<zkl::lockable *>()));
    std::optional<zkl::mutex> gone(std::in_place, client, fresh_path());
    zkl::multi_mutex broken(one, *gone);
    gone.reset();
    THROWS(closed, "", broken.lock());
}

void threads_share_or_exclude()
{
    zkl::client client(check::servers);
    zkl::shared_mutex mutex(client, fresh_path());
    const auto reads = [&] { return elsewhere([&] { return std::shared_lock(mutex, std::try_to_lock).owns_lock(); }); };
    const auto writes = [&] { return elsewhere([&] { return std::unique_lock(mutex, std::try_to_lock).owns_lock(); }); };
    CHECK(reads() && writes());
    {
        const std::shared_lock guard(mutex);
        CHECK(mutex.reader().is_held() && !mutex.is_held() && reads() && !writes());
        CHECK(mutex.participants().empty() && mutex.reader().participants().size() == 1 && mutex.queue().size() == 1);
        THROWS(deadlock, "", mutex.lock());
        CHECK(!elsewhere([&] { return mutex.try_lock_for(10ms); }));
    }
    {
        const std::unique_lock guard(mutex);
        CHECK(!reads() && !writes() && mutex.is_held());
        CHECK(!elsewhere([&] { return mutex.try_lock_shared_for(10ms); }));
        CHECK(!elsewhere([&] { return mutex.try_lock_shared_until(std::chrono::steady_clock::now() + 10ms); }));
        // A writer goes on as a reader.
        mutex.lock_shared();
    }
    CHECK(mutex.reader().is_held() && !mutex.is_held() && reads() && !writes());
    CHECK(mutex.release_shared() == zkl::status::ok && mutex.release_shared() == zkl::status::not_owner && writes());
    CHECK(mutex.try_lock_shared() && mutex.try_lock_shared_for(5s) && mutex.try_lock_shared_until(std::chrono::steady_clock::now() + 5s));
    for (int i = 0; i < 3; i++) mutex.unlock_shared();
    CHECK(writes());
}

void a_semaphore_mutex_is_anybodys()
{
    zkl::client client(check::servers);
    zkl::semaphore_mutex mutex(client, fresh_path());
    std::unique_lock guard(mutex);
    CHECK(mutex.is_held() && !mutex.try_lock());
    CHECK(elsewhere([guard = std::move(guard)]() mutable {
        guard.unlock();
        return 1;
    }) == 1);
    CHECK(!mutex.is_held_in_process() && mutex.try_lock());
    CHECK(mutex.release() == zkl::status::ok && mutex.release() == zkl::status::not_owner);
}

void a_guard_belongs_to_its_thread()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    std::unique_lock guard(mutex);
    std::thread([guard = std::move(guard)]() mutable { guard.unlock(); }).join();
    CHECK(mutex.is_held() && elsewhere([&] { return mutex.release(); }) == zkl::status::not_owner);
    mutex.unlock();
    mutex.unlock();
    CHECK(!mutex.is_held());

    // But for an owner that is no thread.
    zkl::owned owned(mutex, zkl::owner{7}), other(mutex, zkl::owner{8});
    std::unique_lock movable(owned);
    CHECK(mutex.is_held(zkl::owner{7}) && !mutex.is_held() && !mutex.is_held(zkl::owner{8}));
    CHECK(mutex.state(zkl::owner{7}) == zkl::lock_state::held && mutex.state(zkl::owner{8}) == zkl::lock_state::free);
    CHECK(mutex.fencing_token(zkl::owner{7}) == mutex.fencing_token() && mutex.fencing_pass(zkl::owner{7}) == 0);
    CHECK(mutex.remaining(zkl::owner{7}) > 1s && mutex.node_path(zkl::owner{7}).find("/cpp/") == 0);
    THROWS(not_owner, "", mutex.fencing_token(zkl::owner{8}));
    CHECK(!other.try_lock() && !other.try_lock_for(10ms) && !other.try_lock_until(std::chrono::steady_clock::now() + 10ms));
    std::thread([movable = std::move(movable)] {}).join();
    CHECK(!mutex.is_held(zkl::owner{7}) && other.try_lock_for(5s) && other.try_lock_until(std::chrono::steady_clock::now() + 5s));
    CHECK(mutex.release(zkl::owner{8}) == zkl::status::ok && mutex.release_nowait(zkl::owner{8}) == zkl::status::ok);
    CHECK(mutex.release(zkl::owner{8}) == zkl::status::not_owner);
    CHECK(mutex.release_nowait(zkl::owner{8}) == zkl::status::not_owner);
}

// A clock of its own, which is set while somebody waits: it stands still for its first looks.
struct stubborn_clock {
    using duration = std::chrono::milliseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<stubborn_clock>;
    [[maybe_unused]] static constexpr bool is_steady = false;
    static inline int looks = 0;

    static time_point now() { return time_point(looks++ < 6 ? 0ms : 100ms); }
};

void limits_are_kept()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    const zkl::leases lease = semaphore.acquire();
    check::holder holder(mutex);

    // Never early, also for what is no whole number of milliseconds, and not much later.
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

    // What is over looks once.
    const auto start = std::chrono::steady_clock::now();
    CHECK(!mutex.try_lock_for(0s) && !mutex.try_lock_for(-1s) && !mutex.try_lock_for(std::chrono::nanoseconds::min()));
    CHECK(!mutex.try_lock_for(std::chrono::hours::min()) && !mutex.try_lock_for(std::chrono::duration<double>(-INFINITY)));
    CHECK(!mutex.try_lock_for(std::chrono::duration<float>(std::numeric_limits<float>::quiet_NaN())));
    CHECK(!mutex.try_lock_until(std::chrono::system_clock::time_point()) && !mutex.try_lock_until(std::chrono::steady_clock::time_point::min()));
    CHECK(!mutex.try_lock_until(std::chrono::time_point<std::chrono::system_clock, std::chrono::hours>::min()));
    CHECK(!semaphore.try_acquire() && !semaphore.try_acquire_for(-1h) && check::since(start) < check::slack());

    // What is far is no limit: it waits, and nothing runs over.
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
    // A deadline that is over looks, and may find it free.
    CHECK(mutex.try_lock_until(std::chrono::steady_clock::time_point()));
    for (int i = 0; i < 3; i++) mutex.unlock();
}

void who_waits_is_told_of()
{
    zkl::client client(check::servers);
    const std::string path = fresh_path();
    zkl::mutex mutex(client, path);
    mutex.set_data(std::string_view("from \0 here", 11));
    check::holder holder(mutex);
    std::thread waiter([&] { THROWS(canceled, "", mutex.lock()); });
    // Whose the node ahead is, a waiter reads after a while.
    AWAIT(mutex.waiting().size() == 1 && mutex.waiting().front().session_id != 0);
    const zkl::waiter waits = mutex.waiting().front();
    const std::vector<zkl::participant> all = mutex.participants();
    CHECK(all.size() == 2 && all[0].holds && !all[1].holds && all[0].session_id == client.session_id());
    CHECK(all[0].data == std::string("from \0 here", 11) && all[0].czxid == mutex.fencing_token() && all[0].czxid < all[1].czxid);
    CHECK(waits.ahead == all[0].node_path && waits.node_path == all[1].node_path && waits.count == 1 && !waits.left);
    CHECK(waits.what == zkl::waits_for::node && waits.session_id == client.session_id() && all[0].node_path.find(path) == 0);
    CHECK(client.fence_check(path, all[0].czxid) && !client.fence_check(path, all[1].czxid));
    mutex.cancel();
    waiter.join();
    holder.release();
    CHECK(mutex.participants().empty() && mutex.waiting().empty() && !client.fence_check(path, all[0].czxid));
}

void leases_are_given_back()
{
    zkl::client client(check::servers);
    const std::string path = fresh_path();
    zkl::semaphore semaphore(client, path, 3);
    semaphore.set_data("a worker");
    {
        zkl::leases two = semaphore.acquire(2);
        CHECK(two && two.count() == 2 && two.is_held() && two.state() == zkl::lock_state::held && two.remaining() > 1s);
        CHECK(two.fencing_token() > 0 && two.node_path().find(path) == 0 && two.node_path(1) != two.node_path(0));
        THROWS(invalid, "", two.node_path(2));
        CHECK(!semaphore.try_acquire(2) && semaphore.participants().size() == 2 && semaphore.participants()[0].data == "a worker");
        std::optional<zkl::leases> one = semaphore.try_acquire();
        CHECK(one && one->is_held() && one->fencing_token() > two.fencing_token() && !semaphore.try_acquire_for(10ms));
        // They are whoever's has them.
        zkl::leases moved(std::move(*one)), assigned;
        CHECK(moved && !*one && one->count() == 0);
        assigned = std::move(moved);
        CHECK(elsewhere([&] { return assigned.is_held(); }));
        CHECK(assigned.release() == zkl::status::ok);
        assigned = semaphore.acquire();
        CHECK(assigned.is_held());
        THROWS(handle, "", one->is_held());
        THROWS(handle, "", one->fencing_token());
        THROWS(handle, "", one->on_lost([] {}));
        CHECK(one->release() == zkl::status::ok && two.release() == zkl::status::ok && two.release() == zkl::status::ok && !two);
        THROWS(handle, "", two.state());
    }
    CHECK(semaphore.participants().empty());
    THROWS(invalid, "", semaphore.acquire(0));
    THROWS(invalid, "", semaphore.acquire(4));
    THROWS(invalid, "", zkl::semaphore(client, fresh_path(), 0));

    // One that waits.
    const zkl::leases all = semaphore.acquire(3);
    std::thread waiter([&] { THROWS(canceled, "", semaphore.acquire()); });
    AWAIT(semaphore.waiting().size() == 1);
    semaphore.cancel();
    waiter.join();
}

void a_count_says_how_many_leases_there_are()
{
    zkl::client client(check::servers);
    const std::string count = fresh_path();
    THROWS(server, "", client.shared_count(count));
    zkl::semaphore semaphore(client, fresh_path(), count, 1);
    CHECK(client.shared_count(count) == 1);
    const zkl::leases one = semaphore.acquire();
    CHECK(!semaphore.try_acquire());
    client.set_shared_count(count, 2);
    const std::optional<zkl::leases> two = semaphore.try_acquire_for(20s);
    CHECK(two && client.shared_count(count) == 2);
}

void operations_go_on_by_themselves()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::operation first = mutex.start(zkl::owner{1}), second = mutex.start_for(20s, zkl::owner{2}), third = mutex.start_for(20ms);
    CHECK(first.wait() == zkl::status::ok && mutex.is_held(zkl::owner{1}) && !second.result());
    CHECK(!second.wait_for(1ms) && third.wait() == zkl::status::timeout && third.wait_for(0s) == zkl::status::timeout);
    THROWS(timeout, "", third.get());
    pollfd readable{second.fd(), POLLIN, 0};
    CHECK(poll(&readable, 1, 0) == 0 && mutex.release(zkl::owner{1}) == zkl::status::ok);
    CHECK(poll(&readable, 1, 20000) == 1 && second.result() == zkl::status::ok && mutex.is_held(zkl::owner{2}));
    second.get();
    // What was told of stays when the operation goes.
    second = mutex.start(zkl::owner{3});
    second.cancel();
    CHECK(second.wait() == zkl::status::canceled && mutex.is_held(zkl::owner{2}));
    THROWS(canceled, "", second.get());
    CHECK(mutex.release(zkl::owner{2}) == zkl::status::ok);
    // And what was not told of does not.
    {
        zkl::operation unheard = mutex.start(zkl::owner{4});
        pollfd over{unheard.fd(), POLLIN, 0};
        CHECK(poll(&over, 1, 20000) == 1);
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
    THROWS(handle, "", moved.take_leases());
    THROWS(invalid, "", none.take_leases());

    zkl::semaphore semaphore(client, fresh_path(), 2);
    zkl::operation leases = semaphore.start(2), more = semaphore.start_for(10s);
    CHECK(leases.wait_for(20s) == zkl::status::ok);
    zkl::leases two = leases.take_leases();
    THROWS(invalid, "", leases.take_leases());
    THROWS(invalid, "", more.take_leases());
    CHECK(two.count() == 2 && !more.result() && two.release() == zkl::status::ok && more.wait() == zkl::status::ok);
    CHECK(more.take_leases().is_held());
}

void errors_are_system_errors()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    check::holder holder(mutex);
    try {
        mutex.start_for(10ms).get();
        CHECK(false);
    } catch (const std::system_error &caught) {
        const zkl::error copy = dynamic_cast<const zkl::error &>(caught);
        CHECK(copy.code() == std::errc::timed_out && copy.code() == zkl::status::timeout && copy.status() == zkl::status::timeout);
        CHECK(copy.code() != std::errc::operation_canceled && copy.code() != zkl::status::canceled);
        CHECK(copy.code().category() == zkl::category() && std::strcmp(zkl::category().name(), "zklock") == 0);
        CHECK(std::string(copy.what()).find("timed out before the lock was acquired") != std::string::npos);
        // Who holds is in it.
        CHECK(std::string(copy.what()).find(mutex.participants()[0].node_path) != std::string::npos);
    }
    holder.release();
    for (std::int32_t number = 0; number >= -18; number--) {
        const std::error_code code = static_cast<zkl::status>(number);
        CHECK(code.value() == number && code.message() == zkl_strerror(number));
        CHECK(code.default_error_condition() == std::error_condition(zkl_status_errno(number), std::generic_category()));
        CHECK(!code == (number == 0));
    }
    CHECK(make_error_code(zkl::status::deadlock) == std::errc::resource_deadlock_would_occur);
    CHECK(make_error_code(zkl::status::not_owner) == std::errc::operation_not_permitted);
    CHECK(make_error_code(zkl::status::canceled) == std::errc::operation_canceled);
    CHECK(make_error_code(zkl::status::connection) == std::errc::not_connected);
    CHECK(zkl::check(7) == 7 && std::strcmp(zkl::version(), zkl_version()) == 0);

    // Wrong arguments name themselves.
    THROWS(invalid, "no/slash", zkl::mutex(client, "no/slash"));
    THROWS(invalid, "\"/a\": expected no NUL", zkl::mutex(client, std::string("/a\0b", 4)));
    THROWS(invalid, "", zkl::client(""));
    THROWS(invalid, "session timeout -1000", zkl::config().session_timeout(-1s));
    THROWS(invalid, "session timeout 0", zkl::config().session_timeout(0ms));
    THROWS(invalid, "connect timeout", zkl::config().connect_timeout(std::chrono::hours::max()));
    THROWS(invalid, "lease margin", zkl::config().lease_margin(std::chrono::duration<double>(NAN)));
    THROWS(invalid, "", zkl::config().add_auth("", ""));
    THROWS(invalid, "option \"tls\" is unknown", zkl::config().set("lease.margin", "100").set("tls", "x"));
    THROWS(invalid, "NUL", zkl::config().set(std::string("lease.margin\0", 13), "1"));
    THROWS(invalid, "options file \"/\": is a directory", zkl::config().load("/"));
    THROWS(connection, "", zkl::client("127.0.0.1:1", zkl::config().set("connect.timeout", "50")));
    THROWS(invalid, "", mutex.set_local_handover(-1));
    THROWS(invalid, "", mutex.set_data(std::string(1 << 20, 'x')));
    THROWS(invalid, "", client.fence_check("/a", 0));
    THROWS(invalid, "", client.revoke("a"));
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
    CHECK(one.node_path().find(path) == 0 && one.node_path(zkl::owner::this_thread) == one.node_path());
    THROWS(deadlock, path, two.lock());
    CHECK(!elsewhere([&] { return two.try_lock(); }));
}

void a_client_counts_what_it_does()
{
    zkl::client client(check::servers);
    zkl::mutex lock(client, fresh_path());
    for (int i = 0; i < 3; i++) const std::lock_guard guard(lock);
    const zkl_metrics counted = client.metrics();
    CHECK(counted.size == sizeof counted && counted.acquires_ok == 3 && counted.releases == 3 && counted.held == 0);
    CHECK(counted.waits.count == 3 && counted.waits.buckets[ZKL_HISTOGRAM_BUCKETS - 1] <= 3);
    CHECK(client.prometheus().find("zklock_acquires_total{outcome=\"ok\"} 3\n") != std::string::npos);
    const std::string labelled = client.prometheus("app=\"reports\"");
    CHECK(labelled.find("zklock_acquires_total{app=\"reports\",outcome=\"ok\"} 3\n") != std::string::npos);
    THROWS(invalid, "app", client.prometheus("app=reports"));
    THROWS(invalid, "NUL", client.prometheus(std::string("a=\"\0\"", 5)));
    static_assert(zkl::histogram_bound(0) == 50us && zkl::histogram_bound(1) == 100us);
    static_assert(zkl::histogram_bound(ZKL_HISTOGRAM_BUCKETS - 2) == 209'715'200us);
    static_assert(zkl::histogram_bound(ZKL_HISTOGRAM_BUCKETS - 1) == std::chrono::nanoseconds::max());
}

void nothing_is_no_lock()
{
    zkl::client client(check::servers);
    zkl::mutex lock(client, fresh_path());
    THROWS(invalid, "null", zkl::multi_mutex(std::vector<zkl::lockable *>{&lock, nullptr}));
}

/* Not a number is no deadline to wait for. */
void what_is_no_time_is_over()
{
    using point = std::chrono::time_point<std::chrono::system_clock, std::chrono::duration<double>>;
    zkl::client client(check::servers);
    zkl::mutex lock(client, fresh_path());
    const std::lock_guard guard(lock);
    const point never(std::chrono::duration<double>(std::nan("")));
    CHECK(!elsewhere([&] { return lock.try_lock_until(never); }));
}

void the_log_is_told()
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
    // What was logged by then is told before.
    zkl::set_log_callback(zkl::log_level::off, nullptr);
    CHECK(lines == std::vector<std::string>({"acquired", "released"}) && failures == 2);
    THROWS(invalid, "9", zkl::set_log_callback(static_cast<zkl::log_level>(9), hear));
    zkl::set_log_callback(zkl::log_level::off, std::function<void(const zkl::log_line &)>());
}

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
    THROWS(handle, "", from.fence_check("/a", 1));
    THROWS(handle, "", from.shared_count("/a"));
    THROWS(handle, "", from.set_shared_count("/a", 1));
    THROWS(handle, "", zkl::mutex(from, "/a"));
    THROWS(handle, "", zkl::semaphore_mutex(from, "/a"));
    THROWS(handle, "", zkl::shared_mutex(from, "/a"));
    THROWS(handle, "", zkl::semaphore(from, "/a", 1));
    THROWS(handle, "", zkl::semaphore(from, "/a", "/b", 1));
    from.close();

    zkl::config config, taken = std::move(config);
    THROWS(handle, "", config.session_timeout(1s));
    THROWS(handle, "", zkl::client(check::servers, config));
    static_cast<void>(zkl::client(check::servers, taken.session_timeout(5s).connect_timeout(5s).lease_margin(1s).wait_for_kazoo()));

    // Another takes its place, and ends the first.
    zkl::mutex mutex(to, fresh_path());
    mutex.lock();
    to = zkl::client(check::servers);
    CHECK(to.state() == zkl::state::connected);
    THROWS(closed, "", mutex.try_lock());
    THROWS(closed, "", mutex.is_held());
    CHECK(mutex.release() != zkl::status::ok);
    mutex.unlock();
    to = std::move(*&to);
    CHECK(to.state() == zkl::state::connected);
    to.close();
    to.close();
    THROWS(handle, "", to.state());
}

void locks_outlive_their_client_and_wake()
{
    std::optional<zkl::client> client(std::in_place, check::servers);
    zkl::mutex mutex(*client, fresh_path());
    zkl::semaphore semaphore(*client, fresh_path(), 1);
    zkl::leases lease = semaphore.acquire();
    check::holder holder(mutex);
    std::thread waiter([&] { THROWS(closed, "", mutex.lock()); });
    AWAIT(mutex.waiting().size() == 1);
    client.reset();
    waiter.join();
    holder.release();
    CHECK(lease.release() == zkl::status::closed);
}

void a_lock_is_passed_on_in_the_process()
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

int main(int argc, char **argv)
{
    check::begin(argc, argv);
    RUN(standard_guards_lock_and_unlock);
    RUN(a_condition_variable_lets_go_and_takes_it_again);
    RUN(several_at_once);
    RUN(several_as_one);
    RUN(threads_share_or_exclude);
    RUN(a_semaphore_mutex_is_anybodys);
    RUN(a_guard_belongs_to_its_thread);
    RUN(limits_are_kept);
    RUN(who_waits_is_told_of);
    RUN(leases_are_given_back);
    RUN(a_count_says_how_many_leases_there_are);
    RUN(operations_go_on_by_themselves);
    RUN(errors_are_system_errors);
    RUN(a_client_counts_what_it_does);
    RUN(nothing_is_no_lock);
    RUN(what_is_no_time_is_over);
    RUN(the_log_is_told);
    RUN(what_was_moved_from_has_no_handle);
    RUN(locks_outlive_their_client_and_wake);
    RUN(a_lock_is_passed_on_in_the_process);
    return 0;
}
