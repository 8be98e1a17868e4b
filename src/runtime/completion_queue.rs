//! Completion queues. A thread polls the descriptor of a completion queue, and other threads put items into the queue.
//! One descriptor is enough for any number of operations. The code in this file does not interpret the items.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use zklock_core::error::{Result, Status};

use super::sync::{Mutex, MutexGuard, lock};
use super::wake_socket::WakeSocket;

/// A queue whose descriptor is readable while the queue contains items.
#[derive(Debug)]
pub struct CompletionQueue<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    /// The descriptor. The value is `None` after the queue was closed.
    fd: Option<WakeSocket>,
    items: VecDeque<T>,
    is_readable: bool,
}

impl<T> CompletionQueue<T> {
    /// Creates an empty queue. Errors: EXHAUSTED if the process or the machine has no descriptors left.
    pub fn new() -> Result<Self> {
        Ok(Self(Mutex::new(State { fd: Some(WakeSocket::new()?), items: VecDeque::new(), is_readable: false })))
    }

    /// Returns the descriptor. Errors: CLOSED if the queue is closed.
    pub fn descriptor(&self) -> Result<RawFd> {
        Ok(self.state().fd.as_ref().ok_or(Status::Closed)?.as_raw_fd())
    }

    /// Adds an item to the queue. If the queue is closed, this method drops the item.
    pub fn push(&self, item: T) {
        let mut state = self.state();
        if state.fd.is_none() {
            return;
        }
        state.items.push_back(item);
        if let (Some(fd), false) = (&state.fd, state.is_readable) {
            fd.signal();
            state.is_readable = true;
        }
    }

    /// Removes the oldest items, at most `limit`. The descriptor stays readable if other items remain.
    pub fn take(&self, limit: usize) -> Vec<T> {
        let mut state = self.state();
        let count = limit.min(state.items.len());
        let taken = state.items.drain(..count).collect();
        if let (Some(fd), true, true) = (&state.fd, state.items.is_empty(), state.is_readable) {
            fd.clear();
            state.is_readable = false;
        }
        taken
    }

    /// Closes the descriptor, and drops the items.
    pub fn close(&self) {
        let mut state = self.state();
        state.fd = None;
        let items = std::mem::take(&mut state.items);
        drop(state);
        drop(items);
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.0)
    }
}

#[cfg(all(test, not(zklock_loom)))]
mod tests {
    use super::*;

    fn is_readable(fd: RawFd) -> bool {
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one element.
        unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
    }

    #[test]
    fn queue_is_readable_while_it_contains_items() {
        let queue = CompletionQueue::new().unwrap();
        let fd = queue.descriptor().unwrap();
        assert!(!is_readable(fd));
        (0..5).for_each(|item| queue.push(item));
        assert!(is_readable(fd));
        assert_eq!(queue.take(3), [0, 1, 2]);
        assert!(is_readable(fd));
        assert_eq!(queue.take(3), [3, 4]);
        assert!(!is_readable(fd));
        assert!(queue.take(3).is_empty());
        queue.push(5);
        assert!(is_readable(fd));
    }

    #[test]
    fn closed_queue_drops_items() {
        let queue = CompletionQueue::new().unwrap();
        queue.push(1);
        queue.close();
        queue.push(2);
        assert!(queue.take(3).is_empty());
        assert_eq!(queue.descriptor().unwrap_err().status(), Status::Closed);
    }
}
