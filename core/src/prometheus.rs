//! Metrics in the text format of Prometheus (exposition format, version 0.0.4).

use std::fmt::{self, Display, Write};
use std::time::Duration;

use crate::engine::{Metric, Metrics, Value};
use crate::error::{Error, Result};
use crate::histogram::Histogram;
use crate::path::quote;
use crate::session::ClientState;

/// Labels that distinguish one client from other clients. Every metric of the client receives these labels.
/// [`add`](Self::add) and [`parse`](Self::parse) check that the labels are valid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Vec<(String, String)>);

impl Labels {
    /// Makes an empty list of labels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a label. The value of a label may be any text.
    ///
    /// Errors: INVALID if the name is not allowed. Prometheus allows names of the form `[a-zA-Z_][a-zA-Z0-9_]*` and
    /// reserves names that begin with two underscores. Each name may be used only once. The names `le`, `outcome`,
    /// `cause` and `state` are reserved for the metrics of zklock.
    pub fn add(&mut self, name: &str, value: &str) -> Result<()> {
        let refused = |why: &str| Err(Error::invalid(format!("labels: name {}: {why}", quote(name))));
        let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        if !name.bytes().next().is_some_and(is_first)
            || !name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
        {
            return refused("expected letters, digits and underscores, without a digit at the beginning");
        }
        if name.starts_with("__") {
            return refused("names that begin with two underscores are reserved for Prometheus");
        }
        let own = Metrics::ALL.iter().filter_map(|metric| metric.label).map(|(label, _)| label);
        if own.chain(["le", STATE]).any(|own| own == name) {
            return refused("the metrics of zklock already have a label with this name");
        }
        if self.0.iter().any(|(other, _)| other == name) {
            return refused("this name occurs twice");
        }
        self.0.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Parses labels in the form of Prometheus: `name="value",other="value"`, with `\\`, `\"` and `\n` as escapes in
    /// values. An empty text contains no labels.
    ///
    /// Errors: INVALID if the text does not have this form, or if [`add`](Self::add) does not allow a name.
    pub fn parse(text: &str) -> Result<Self> {
        let mut labels = Self::new();
        let mut left = text.trim();
        while !left.is_empty() {
            let (name, value, rest) = label(left)?;
            labels.add(name, &value)?;
            left = rest;
        }
        Ok(labels)
    }
}

/// Parses the first label of a text. Returns the name and the value of the label, and the rest of the text.
fn label(text: &str) -> Result<(&str, String, &str)> {
    let wrong = || Error::invalid(format!("labels: expected name=\"value\" at {}", quote(text)));
    let (name, rest) = text.split_once("=\"").ok_or_else(wrong)?;
    let mut value = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next().ok_or_else(wrong)? {
            '"' => break,
            '\\' => value.push(match chars.next() {
                Some('n') => '\n',
                Some(char @ ('\\' | '"')) => char,
                _ => return Err(Error::invalid(format!("labels: expected \\\\, \\\" or \\n in {}", quote(text)))),
            }),
            char => value.push(char),
        }
    }
    let rest = chars.as_str().trim_start();
    match rest.strip_prefix(',') {
        Some(rest) => Ok((name.trim_end(), value, rest.trim_start())),
        None if rest.is_empty() => Ok((name.trim_end(), value, rest)),
        None => Err(Error::invalid(format!("labels: expected a comma at {}", quote(rest)))),
    }
}

impl Metrics {
    /// Returns the metrics in the text format of Prometheus (exposition format, version 0.0.4). Serve the text with the
    /// content type `text/plain; version=0.0.4`. The method adds `labels` to every metric.
    ///
    /// If a program has several clients, the labels of each client must be different. In a Prometheus text, all samples
    /// of one metric must be in one place. Therefore serve the text of each client separately, or use a client library
    /// of Prometheus.
    pub fn prometheus(&self, labels: &Labels) -> String {
        let mut text = String::new();
        let mut before = "";
        for metric in Self::ALL {
            let value = metric.value(self);
            if metric.name != before {
                before = metric.name;
                line(&mut text, format_args!("# HELP {} {}", metric.name, metric.family));
                line(&mut text, format_args!("# TYPE {} {}", metric.name, kind(metric, value)));
            }
            match value {
                Value::Number(number) => sample(&mut text, metric.name, labels, metric.label, &number),
                Value::Span(span) => sample(&mut text, metric.name, labels, metric.label, &seconds(span)),
                Value::Histogram(histogram) => add_histogram(&mut text, metric.name, labels, histogram),
                Value::State(state) => {
                    for (each, word) in STATES {
                        sample(&mut text, metric.name, labels, Some((STATE, word)), &u64::from(each == state));
                    }
                }
            }
        }
        text
    }
}

/// Converts a duration to seconds with one division, so that the result has no rounding artifacts. In contrast,
/// `as_secs_f64` converts 1.6384 s to 1.6383999999999999.
fn seconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
}

/// The name of the label that contains a state. A metric for a state has one series for each possible state. The series
/// of the current state has the value 1.
const STATE: &str = "state";
const STATES: [(ClientState, &str); 5] = [
    (ClientState::Connecting, "connecting"),
    (ClientState::Connected, "connected"),
    (ClientState::Suspended, "suspended"),
    (ClientState::Lost, "lost"),
    (ClientState::Closed, "closed"),
];

fn kind(metric: &Metric, value: Value<'_>) -> &'static str {
    match value {
        Value::Histogram(_) => "histogram",
        // Prometheus requires that the names of counters end in `_total`.
        _ if metric.name.ends_with("_total") => "counter",
        _ => "gauge",
    }
}

fn add_histogram(text: &mut String, name: &str, labels: &Labels, histogram: &Histogram) {
    let bucket = format!("{name}_bucket");
    for (bound, count) in histogram.buckets() {
        let bound = bound.map(seconds).map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
        sample(text, &bucket, labels, Some(("le", &bound)), &count);
    }
    sample(text, &format!("{name}_sum"), labels, None, &seconds(histogram.sum()));
    sample(text, &format!("{name}_count"), labels, None, &histogram.count());
}

fn sample(text: &mut String, name: &str, labels: &Labels, own: Option<(&str, &str)>, value: &dyn Display) {
    let given = labels.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all: Vec<String> = given.chain(own).map(|(name, value)| format!("{name}=\"{}\"", Escaped(value))).collect();
    match &*all {
        [] => line(text, format_args!("{name} {value}")),
        all => line(text, format_args!("{name}{{{}}} {value}", all.join(","))),
    }
}

fn line(text: &mut String, content: fmt::Arguments<'_>) {
    // Writing to a string never fails.
    let _ = writeln!(text, "{content}");
}

struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            char => f.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        Labels::parse(text).unwrap().0
    }

    #[test]
    fn labels_are_parsed_and_escaped() {
        assert_eq!(pairs(""), []);
        assert_eq!(pairs("  "), []);
        assert_eq!(pairs(r#"a="1""#), [("a".into(), "1".into())]);
        assert_eq!(pairs(r#" a = "x" "#.replace(" = ", "=").as_str()), [("a".into(), "x".into())]);
        let both = pairs(r#"app="a,b=\"c\"\\\n", _zone9="", "#);
        assert_eq!(both, [("app".into(), "a,b=\"c\"\\\n".into()), ("_zone9".into(), String::new())]);
        let text = Metrics::default().prometheus(&Labels::parse(r#"app="a\"\\\n日本""#).unwrap());
        assert!(text.contains("\nzklock_held{app=\"a\\\"\\\\\\n日本\"} 0\n"), "{text}");
    }

    #[test]
    fn invalid_labels_are_refused_with_the_reason() {
        for (text, says) in [
            ("a", "name=\"value\""),
            ("a=1", "name=\"value\""),
            ("a=\"1", "name=\"value\""),
            ("a=\"1\\t\"", "expected \\\\"),
            ("a=\"1\\", "expected \\\\"),
            ("a=\"1\"b=\"2\"", "comma"),
            ("a=\"1\",a=\"2\"", "\"a\": this name occurs twice"),
            ("1a=\"1\"", "without a digit at the beginning"),
            ("=\"1\"", "letters"),
            ("ä=\"1\"", "letters"),
            ("a{=\"1\"", "letters"),
            ("__name__=\"1\"", "reserved for Prometheus"),
            ("le=\"1\"", "label with this name"),
            ("outcome=\"1\"", "label with this name"),
            ("cause=\"1\"", "label with this name"),
            ("state=\"1\"", "label with this name"),
            ("/abuse/a", "name=\"value\""),
        ] {
            let error = Labels::parse(text).unwrap_err();
            assert_eq!(error.status(), crate::error::Status::Invalid);
            assert!(error.message().starts_with("labels: ") && error.message().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn each_metric_is_described_once_before_its_samples() {
        let text = Metrics::default().prometheus(&Labels::new());
        let mut described = Vec::new();
        let mut current = "";
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                current = help.split(' ').next().unwrap();
                assert!(!described.contains(&current) && help.ends_with('.'), "{line}");
                described.push(current);
            } else {
                assert!(line.trim_start_matches("# TYPE ").starts_with(current), "{line} below {current}");
            }
        }
        let names: Vec<&str> = Metrics::ALL.iter().map(|metric| metric.name).collect();
        assert!(names.iter().all(|name| described.contains(name) && name.starts_with("zklock_")));
        assert_eq!(text.matches(" counter\n").count() + text.matches(" gauge\n").count() + 3, described.len());
        assert!(text.contains("zklock_wait_seconds_bucket{le=\"0.00005\"} 0\n") && text.contains("le=\"209.7152\""));
        assert!(text.contains("zklock_client_state{state=\"connecting\"} 1\n"), "{text}");
    }
}
