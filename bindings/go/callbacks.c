/* Functions that give Go functions to the library as callbacks. The pointer user of each callback is a number (cgo.Handle). */

#include "callbacks.h"
#include "_cgo_export.h"

static void *user_of(uintptr_t handle)
{
    return (void *)handle;
}

static void on_event(void *user, const zkl_event *event)
{
    zklockOnEvent((uintptr_t)user, (zkl_event *)event);
}

static void on_revocation(void *user, zkl_lock *lock)
{
    (void)lock;
    zklockOnRevocation((uintptr_t)user);
}

static void on_semaphore_revocation(void *user, zkl_semaphore *semaphore)
{
    (void)semaphore;
    zklockOnRevocation((uintptr_t)user);
}

static void on_log(void *user, const zkl_log *line)
{
    zklockOnLog((uintptr_t)user, (zkl_log *)line);
}

static void on_waiting(void *user, const zkl_wait *wait)
{
    zklockOnWaiting((uintptr_t)user, (zkl_wait *)wait);
}

static void drop_handle(void *user)
{
    zklockDrop((uintptr_t)user);
}

zkl_status zklock_go_listen_config(zkl_config *config, uintptr_t handle)
{
    return zkl_config_set_event_callback(config, on_event, user_of(handle), drop_handle);
}

zkl_status zklock_go_set_revocable(zkl_lock *lock, uintptr_t handle)
{
    if (handle == 0) return zkl_set_revocable(lock, NULL, NULL, NULL);
    return zkl_set_revocable(lock, on_revocation, user_of(handle), drop_handle);
}

zkl_status zklock_go_semaphore_set_revocable(zkl_semaphore *semaphore, uintptr_t handle)
{
    if (handle == 0) return zkl_semaphore_set_revocable(semaphore, NULL, NULL, NULL);
    return zkl_semaphore_set_revocable(semaphore, on_semaphore_revocation, user_of(handle), drop_handle);
}

zkl_status zklock_go_set_log(int32_t level, uintptr_t handle)
{
    if (handle == 0) return zkl_set_log_callback(ZKL_LOG_OFF, NULL, NULL, NULL);
    return zkl_set_log_callback(level, on_log, user_of(handle), drop_handle);
}

zkl_status zklock_go_waiting(const zkl_lock *lock, uintptr_t handle)
{
    return zkl_waiting(lock, on_waiting, user_of(handle));
}

zkl_status zklock_go_semaphore_waiting(const zkl_semaphore *semaphore, uintptr_t handle)
{
    return zkl_semaphore_waiting(semaphore, on_waiting, user_of(handle));
}
