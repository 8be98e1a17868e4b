#ifndef ZKLOCK_GO_CALLBACKS_H
#define ZKLOCK_GO_CALLBACKS_H

#include <stdint.h>
#include <zklock.h>

/* A handle of 0 removes the callback. */
zkl_status zklock_go_listen_config(zkl_config *config, uintptr_t handle);
zkl_status zklock_go_set_revocable(zkl_lock *lock, uintptr_t handle);
zkl_status zklock_go_semaphore_set_revocable(zkl_semaphore *semaphore, uintptr_t handle);
zkl_status zklock_go_set_log(int32_t level, uintptr_t handle);
zkl_status zklock_go_waiting(const zkl_lock *lock, uintptr_t handle);
zkl_status zklock_go_semaphore_waiting(const zkl_semaphore *semaphore, uintptr_t handle);

#endif
