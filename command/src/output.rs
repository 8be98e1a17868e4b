//! Writes lines to a descriptor without blocking the caller. A reader that is slow or stopped must not delay the
//! renewal of the lease, the reaction to a loss, or the release.
//!
//! A thread makes the writes, because no other way works for each kind of file: `O_NONBLOCK` would change the
//! descriptor for all programs that share it, and after a poll another program can fill the pipe before the write.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// The number of lines that wait for the reader. Later lines are dropped.
const LONGEST_QUEUE: usize = 1000;

/// How long a caller waits until its line is written, so that the lines of `zklock` and of the command keep their
/// order. The caller does not wait if earlier lines are still in the queue.
const ORDER_LIMIT: Duration = Duration::from_millis(20);

/// A file and the thread that writes to it.
#[derive(Debug)]
pub(crate) struct Output {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Describes a number of dropped lines.
    describe_dropped: fn(u64) -> String,
}

#[derive(Debug, Default)]
struct Queue {
    /// The first line stays in the queue until it is written.
    lines: VecDeque<String>,
    dropped: u64,
    is_closed: bool,
}

impl Output {
    /// Starts the thread. The thread ends after the output is dropped. Returns `None` if the machine has no more
    /// threads.
    pub(crate) fn start(file: File, describe_dropped: fn(u64) -> String) -> Option<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), describe_dropped });
        let of_thread = Arc::clone(&shared);
        Builder::new().name("zklock-output".to_owned()).spawn(move || of_thread.write_lines(file)).ok()?;
        Some(Self { shared })
    }

    /// Adds a line to the queue. If the queue is full, the line is dropped.
    pub(crate) fn push(&self, line: String) {
        let mut queue = self.shared.lock();
        if queue.lines.len() >= LONGEST_QUEUE {
            queue.dropped += 1;
            return;
        }
        let was_empty = queue.lines.is_empty();
        self.shared.add_notice(&mut queue);
        queue.lines.push_back(line);
        drop(queue);
        self.shared.changed.notify_all();
        if was_empty {
            self.wait_until_written(ORDER_LIMIT);
        }
    }

    /// Waits until all lines are written, for at most `limit`. Returns whether they are written.
    pub(crate) fn wait_until_written(&self, limit: Duration) -> bool {
        let queue = self.shared.lock();
        let is_waiting = |queue: &mut Queue| !queue.lines.is_empty() || queue.dropped > 0;
        let waited = self.shared.changed.wait_timeout_while(queue, limit, is_waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line with the number of lines that were dropped.
    fn add_notice(&self, queue: &mut Queue) {
        if queue.dropped > 0 {
            let notice = (self.describe_dropped)(std::mem::take(&mut queue.dropped));
            queue.lines.push_back(notice);
        }
    }

    fn write_lines(&self, mut file: File) {
        let mut queue = self.lock();
        loop {
            if queue.lines.is_empty() {
                self.add_notice(&mut queue);
            }
            if let Some(line) = queue.lines.front().cloned() {
                drop(queue);
                // One write for each line, so the lines of several processes do not mix. The other end of the output
                // may be closed.
                let _ = file.write_all(line.as_bytes());
                queue = self.lock();
                queue.lines.pop_front();
                self.changed.notify_all();
            } else if queue.is_closed {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::time::Instant;

    #[test]
    fn a_reader_that_does_not_read_blocks_no_caller_and_learns_how_many_lines_it_missed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let output = Output::start(File::from(writer), |count| format!("{count} dropped\n")).unwrap();
        let (line, since) = (format!("{}\n", "x".repeat(999)), Instant::now());
        for _ in 0..2000 {
            output.push(line.clone());
        }
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        output.wait_until_written(Duration::from_millis(1));
        let mut lines = BufReader::new(File::from(reader)).lines().map(Result::unwrap);
        for _ in 0..LONGEST_QUEUE {
            lines.next().unwrap();
        }
        output.wait_until_written(Duration::from_secs(10));
        output.push("last\n".to_owned());
        drop(output);
        let left: Vec<String> = lines.filter(|line| !line.starts_with('x')).collect();
        assert!(left.len() == 2 && left[0].ends_with(" dropped") && left[1] == "last", "{left:?}");
    }
}
