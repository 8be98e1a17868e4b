//! The findings of the checks, and how they are printed.

use std::time::Duration;

use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::owner::printable_line;

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Ok,
    /// Locks work, but not as they should.
    Warn,
    /// Locks do not work. The exit code says why.
    Fail(Exit),
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What was checked: one word.
    pub(crate) check: &'static str,
    /// The server or the path.
    target: String,
    detail: String,
    advice: Option<String>,
}

/// All findings, in the order of the checks.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Finding>);

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail(_) => "fail",
        }
    }
}

impl Finding {
    pub(crate) fn ok(check: &'static str, target: impl ToString, detail: impl AsRef<str>) -> Self {
        Self::new(Level::Ok, check, target, detail)
    }

    pub(crate) fn warn(check: &'static str, target: impl ToString, detail: impl AsRef<str>) -> Self {
        Self::new(Level::Warn, check, target, detail)
    }

    pub(crate) fn fail(check: &'static str, target: impl ToString, failure: Failure) -> Self {
        Self::new(Level::Fail(failure.exit), check, target, failure.message)
    }

    fn new(level: Level, check: &'static str, target: impl ToString, detail: impl AsRef<str>) -> Self {
        let (target, detail) = (printable_line(&target.to_string()), printable_line(detail.as_ref()));
        Self { level, check, target, detail, advice: None }
    }

    /// Adds what to do.
    pub(crate) fn advise(self, advice: impl AsRef<str>) -> Self {
        Self { advice: Some(printable_line(advice.as_ref())), ..self }
    }

    pub(crate) const fn is_failure(&self) -> bool {
        matches!(self.level, Level::Fail(_))
    }

    /// Makes a failure a warning.
    pub(crate) fn tolerated(self) -> Self {
        Self { level: if self.level == Level::Ok { Level::Ok } else { Level::Warn }, ..self }
    }
}

impl Report {
    pub(crate) fn of(finding: Finding) -> Self {
        Self(vec![finding])
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    pub(crate) fn add_all(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.0.extend(findings);
    }

    /// The exit code: that of the first failure.
    pub(crate) fn exit(&self) -> Exit {
        let failure = self.0.iter().find_map(|finding| match finding.level {
            Level::Fail(exit) => Some(exit),
            Level::Ok | Level::Warn => None,
        });
        failure.unwrap_or(Exit::Command(0))
    }

    /// Writes one line for each finding, and below it what to do. Lines that are longer than `width` continue on the
    /// next line.
    pub(crate) fn show(&self, width: usize) -> String {
        let mut text = String::new();
        for Finding { level, check, target, detail, advice } in &self.0 {
            wrap(&format!("{:<5} {check:<11} {target}: {detail}", level.name()), 18, width, &mut text);
            if let Some(advice) = advice {
                wrap(&format!("      do          {advice}"), 18, width, &mut text);
            }
        }
        let count = |name: &str| self.0.iter().filter(|finding| finding.level.name() == name).count();
        text.push_str(&format!("{} ok, {} warn, {} fail\n", count("ok"), count("warn"), count("fail")));
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        let findings = self.0.iter().map(|Finding { level, check, target, detail, advice }| {
            json!({"level": level.name(), "check": check, "target": target, "detail": detail, "advice": advice})
        });
        json!({"findings": findings.collect::<Vec<_>>(), "exit_code": self.exit().code()})
    }
}

/// Writes a short time.
pub(super) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// Adds a text in lines of at most `width` columns. All lines but the first begin with `indent` blanks. A longer word
/// has its own line.
fn wrap(text: &str, indent: usize, width: usize, out: &mut String) {
    let head: String = text.chars().take(indent).collect();
    let rest: String = text.chars().skip(indent).collect();
    let mut column = indent;
    out.push_str(&head);
    for (at, word) in rest.split(' ').enumerate() {
        let length = word.chars().count();
        if at > 0 && column + 1 + length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if at > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_gives_the_exit_code_and_long_lines_are_wrapped() {
        let mut report = Report::default();
        report.add(Finding::ok("port", "h:1", "open"));
        assert_eq!(report.exit(), Exit::Command(0));
        report.add(Finding::warn("clock", "h:1", "late ".repeat(20)).advise("wait"));
        report.add(Finding::fail("rights", "/a", Failure::new(Exit::Denied, "no")));
        report.add(Finding::fail("lock", "/a", Failure::new(Exit::Foreign, "no")));
        assert_eq!(report.exit(), Exit::Denied);
        let text = report.show(80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.starts_with("ok    port        h:1: open\nwarn  clock       h:1: late"), "{text}");
        assert!(text.ends_with("1 ok, 1 warn, 2 fail\n"), "{text}");
    }
}
