//! Formats the results of the checks as a table.

use std::any::Any;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fixture::{CheckContext, OtherLibrary};

/// The result of a check.
pub(crate) enum CheckResult {
    /// Both sides behave alike, as expected.
    Same,
    /// The sides still differ in a known way. The text describes the difference.
    KnownDifference(String),
}

impl CheckResult {
    pub(crate) fn known_difference(how: &str) -> Self {
        Self::KnownDifference(how.to_owned())
    }
}

/// A row: the expectation and its check. A check panics if it observes something else.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&CheckContext<'_>) -> CheckResult,
}

pub(crate) struct Table<'a> {
    pub(crate) title: &'static str,
    /// The other side of each column and its name.
    pub(crate) columns: Vec<(String, OtherLibrary<'a>)>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) enum Cell {
    Seen(CheckResult),
    Failed(String),
}

impl Cell {
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    pub(crate) fn differs(&self) -> bool {
        matches!(self, Self::Seen(CheckResult::KnownDifference(_)))
    }

    fn text(&self) -> String {
        match self {
            Self::Seen(CheckResult::Same) => "ok".to_owned(),
            Self::Seen(CheckResult::KnownDifference(how)) => format!("differs: {how}"),
            Self::Failed(why) => format!("FAILED: {why}"),
        }
    }
}

/// Runs a check on the calling thread.
pub(crate) fn run_check(check: impl FnOnce() -> CheckResult) -> Cell {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(seen) => Cell::Seen(seen),
        Err(panic) => Cell::Failed(message(&*panic)),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").split_whitespace().collect::<Vec<_>>().join(" ")
}

const NAME_WIDTH: usize = 62;
const CELL_WIDTH: usize = 40;

impl Table<'_> {
    /// Formats the table, or only the rows that failed. `cells` contains the results row by row.
    pub(crate) fn print(&self, cells: &[Cell], only_failed: bool) -> String {
        let mut text = format!("{}\n", self.title);
        let ruler = || {
            let columns = self.columns.iter().map(|_| "-".repeat(CELL_WIDTH));
            std::iter::once("-".repeat(NAME_WIDTH)).chain(columns).collect::<Vec<_>>().join("-+-")
        };
        let head =
            std::iter::once(String::new()).chain(self.columns.iter().map(|(name, _)| name.clone())).collect::<Vec<_>>();
        text += &line(&head);
        writeln!(text, "{}", ruler()).unwrap();
        for (row, cells) in self.rows.iter().zip(cells.chunks(self.columns.len())) {
            if !only_failed || cells.iter().any(Cell::has_failed) {
                let texts = std::iter::once(row.name.to_owned()).chain(cells.iter().map(Cell::text));
                text += &line(&texts.collect::<Vec<_>>());
            }
        }
        text
    }
}

/// Formats one row of cells. It has several lines if a cell is long.
fn line(cells: &[String]) -> String {
    let width = |column| if column == 0 { NAME_WIDTH } else { CELL_WIDTH };
    let wrapped: Vec<Vec<String>> = cells.iter().enumerate().map(|(column, cell)| wrap(cell, width(column))).collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or_default();
    let mut text = String::new();
    for at in 0..height {
        let parts = wrapped.iter().enumerate().map(|(column, lines)| {
            let part = lines.get(at).map_or("", String::as_str);
            format!("{part:<width$}", width = width(column))
        });
        text += parts.collect::<Vec<_>>().join(" | ").trim_end();
        text += "\n";
    }
    text
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().unwrap();
        if last.is_empty() {
            *last = word.to_owned();
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            *last += " ";
            *last += word;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
