//! The text of one refresh: a heading, and a table of locks.

use jiff::tz::TimeZone;

use crate::cli::Order;
use crate::clock::show_time;
use crate::duration::age;
use crate::observe::table::Table;
use crate::observe::walk::{Found, Walk, why_unreadable};
use crate::owner::printable_line;
use crate::survey::{Entry, Kind, Survey};
use crate::text::{shorten, shorten_start};

/// The width of all columns but the path and the holder, if each is as wide as possible.
const OTHER_COLUMNS: usize = 40;

/// The result of a refresh, and what its text needs.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    pub(crate) walk: &'a Walk,
    /// The refresh before.
    pub(crate) before: Option<&'a Walk>,
    pub(crate) servers: &'a str,
    pub(crate) order: Order,
}

impl Page<'_> {
    /// Writes the heading and the table in lines of at most `width` columns. `status` describes the connection.
    pub(crate) fn show(&self, status: &str, width: usize) -> String {
        let Walk { root, time, .. } = self.walk;
        let place = format!("{}: {root} on {}", show_time(*time, &TimeZone::system()), self.servers);
        let count = |count: fn(&Survey) -> usize| self.walk.locks().map(count).sum::<usize>();
        let totals = format!(
            "{}, {}, {}; {}",
            plural(count(|_| 1), "lock"),
            plural(count(|lock| lock.holders().count()), "holder"),
            plural(count(Survey::waiting), "waiter"),
            self.order.name(),
        );
        let mut text = String::new();
        for line in [&*place, status, &*totals].into_iter().chain(self.walk.missing().lines()) {
            text.push_str(&shorten(&printable_line(line), width));
            text.push('\n');
        }
        text.push('\n');
        text + &self.walk.emptiness().unwrap_or_else(|| self.table(width))
    }

    /// Says what the refresh has cost.
    pub(crate) fn cost(&self) -> String {
        let (round_trip, (requests, took)) = (self.walk.round_trip, self.walk.cost);
        let milliseconds = |time: std::time::Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
        format!(
            "connected, round trip {}; this refresh took {} and {}",
            milliseconds(round_trip),
            milliseconds(took),
            plural(usize::try_from(requests).unwrap_or(usize::MAX), "request")
        )
    }

    fn table(&self, width: usize) -> String {
        let path_width = (width.saturating_sub(OTHER_COLUMNS) / 2).max(12);
        let mut table = Table::new([" ", "PATH", "KIND", "HELD", "QUEUE", "WAIT", "HOLDER"]);
        for path in sort(self.walk, self.order) {
            let shown = shorten_start(path, path_width);
            match self.walk.found.get(path) {
                Some(Found::Lock(lock)) => {
                    let kind = lock.kind.map_or("", Kind::name).to_owned();
                    let mark = if self.has_new_holder(lock) { "*" } else { " " };
                    let held = age(lock.holders().next().and_then(Entry::since), self.walk.time);
                    let wait = age(lock.longest_waiting().and_then(Entry::since), self.walk.time);
                    let queue = lock.waiting().to_string();
                    table.add([mark.to_owned(), shown, kind, held, queue, wait, lock.describe_holders()]);
                }
                Some(Found::Unreadable(error)) => {
                    let [mark, kind, held, queue, wait] = [" ", "", "", "", ""].map(str::to_owned);
                    table.add([mark, shown, kind, held, queue, wait, why_unreadable(error)]);
                }
                Some(Found::Directory) | None => {}
            }
        }
        table.show(width, &[1, path_width, 10, 6, 5, 6])
    }

    /// Returns whether the lock has other holders than before.
    fn has_new_holder(&self, lock: &Survey) -> bool {
        let nodes = |lock: &Survey| lock.holders().map(|holder| holder.node.clone()).collect::<Vec<_>>();
        match self.before.map(|before| before.found.get(&lock.path)) {
            None => false,
            Some(Some(Found::Lock(before))) => nodes(before) != nodes(lock),
            Some(_) => lock.holders().next().is_some(),
        }
    }
}

impl Order {
    const fn name(self) -> &'static str {
        match self {
            Self::Wait => "longest wait first",
            Self::Queue => "longest queue first",
            Self::Held => "longest hold first",
            Self::Path => "in the order of the paths",
        }
    }

    /// Returns the order that follows when the user presses the key.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Wait => Self::Queue,
            Self::Queue => Self::Held,
            Self::Held => Self::Path,
            Self::Path => Self::Wait,
        }
    }
}

/// Returns the paths in the order that the user wants. Locks that are equal in this order are in the order of their
/// paths.
pub(crate) fn sort(walk: &Walk, order: Order) -> impl Iterator<Item = &String> {
    let key = |found: &Found| {
        let Found::Lock(lock) = found else { return [i64::MAX; 2] };
        let since =
            |entry: Option<&Entry>| entry.and_then(Entry::since).map_or(i64::MAX, jiff::Timestamp::as_millisecond);
        let (wait, held) = (since(lock.longest_waiting()), since(lock.holders().next()));
        let queue = -i64::try_from(lock.waiting()).unwrap_or(i64::MAX);
        match order {
            Order::Wait => [wait, queue],
            Order::Queue => [queue, wait],
            Order::Held => [held, queue],
            Order::Path => [0, 0],
        }
    };
    let mut nodes: Vec<(&String, &Found)> = walk.found.iter().collect();
    nodes.sort_by_cached_key(|(_, found)| key(found));
    nodes.into_iter().map(|(path, _)| path)
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
