//! Text in columns, for terminals of at least 80 columns.

use std::io::{self, Write as _};

use rustix::termios::{isatty, tcgetwinsize};

use crate::exit::Failure;
use crate::owner::printable_line;
use crate::text::{length, shorten};

/// The width of a line if standard output is no terminal.
const WIDTH: usize = 80;

/// A table. Its last column takes the rest of the line.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned)] }
    }

    pub(crate) fn add(&mut self, row: [String; N]) {
        self.rows.push(row.map(|cell| printable_line(&cell)));
    }

    /// Writes the table in lines of at most `width` columns. `limits` are the largest widths of all columns but the
    /// last.
    pub(crate) fn show(&self, width: usize, limits: &[usize]) -> String {
        let widest = |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(|cell| length(cell)).max();
        let widths: Vec<usize> =
            limits.iter().enumerate().map(|(at, limit)| widest(at).unwrap_or_default().min(*limit)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate() {
                match widths.get(at) {
                    Some(&width) => {
                        let cell = shorten(cell, width);
                        line.push_str(&cell);
                        line.extend(std::iter::repeat_n(' ', width.saturating_sub(length(&cell)) + 2));
                    }
                    None => line.push_str(cell),
                }
            }
            text.push_str(shorten(&line, width).trim_end());
            text.push('\n');
        }
        text
    }
}

/// Returns the width of the terminal, or of a usual terminal.
pub(crate) fn width() -> usize {
    let output = io::stdout();
    let columns = || tcgetwinsize(&output).map(|size| usize::from(size.ws_col));
    if isatty(&output) { columns().map_or(WIDTH, |columns| columns.max(WIDTH)) } else { WIDTH }
}

/// Writes the answer of a verb to standard output. The other end may be closed, for example by `head`. Other errors are
/// failures.
pub(crate) fn answer(text: &str) -> Result<(), Failure> {
    answer_in_part(text).map(drop)
}

/// Writes a part of an answer, like [`answer`]. Returns false if the other end is closed.
pub(crate) fn answer_in_part(text: &str) -> Result<bool, Failure> {
    let mut output = io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("writing to standard output", error)),
    }
}

/// Writes to standard output. The other end may be closed, for example by `head`.
pub(crate) fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_the_width() {
        let mut table = Table::new(["A", "B", "C"]);
        table.add(["x".repeat(50), "y".to_owned(), "z".repeat(50)]);
        let text = table.show(40, &[20, 10]);
        assert_eq!(text, format!("A                     B  C\n{}...  y  {}...\n", "x".repeat(17), "z".repeat(12)));
    }
}
