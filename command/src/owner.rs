//! The participants of a lock, as the data of their nodes describes them. `zklock` writes one line of JSON, and shows
//! the data of other programs as text.

use jiff::Timestamp;
use rustix::process::getpid;
use rustix::system::uname;
use serde_json::{Value, json};
use zklock::internal::user_name;

/// The largest number of characters that `zklock` shows of a text from another participant.
pub(crate) const MAX_LENGTH: usize = 60;
/// The data of a node whose participant was asked to release the lock. The data that `zklock` has written before can follow.
pub(crate) const REVOKE: &str = "__REVOKE__";

/// A participant: this process, or another `zklock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) host: String,
    pub(crate) pid: i32,
    pub(crate) user: String,
    /// The name of the program, without its arguments, because arguments can contain passwords.
    pub(crate) command: String,
    /// The number of leases of the semaphore that the participant uses. Participants with different numbers do not exclude
    /// each other.
    pub(crate) max_leases: Option<i32>,
}

impl Owner {
    /// Returns the owner that this process is while it runs `command`.
    pub(crate) fn current(command: &str, max_leases: Option<i32>) -> Self {
        Self {
            host: uname().nodename().to_string_lossy().into_owned(),
            pid: getpid().as_raw_nonzero().get(),
            user: user_name(),
            command: command.to_owned(),
            max_leases,
        }
    }

    /// The value of `ZKLOCK_OWNER`.
    pub(crate) fn name(&self) -> String {
        format!("{}@{}:{}", self.user, self.host, self.pid)
    }

    /// The data of the lock nodes. `held` is the time of the acquire, or `None` while the participant waits.
    pub(crate) fn data(&self, queued: Timestamp, held: Option<Timestamp>) -> Vec<u8> {
        let Self { host, pid, user, command, max_leases } = self;
        let (queued, held) = (format!("{queued:.0}"), held.map(|held| format!("{held:.0}")));
        let mut data =
            json!({"host": host, "pid": pid, "user": user, "command": command, "queued": queued, "held": held});
        if let (Some(data), Some(max_leases)) = (data.as_object_mut(), max_leases) {
            data.insert("leases".to_owned(), (*max_leases).into());
        }
        data.to_string().into_bytes()
    }
}

/// A description of another participant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) text: String,
    /// What the participant has written about itself, if it is a `zklock`.
    pub(crate) owner: Option<Owner>,
    /// When the participant acquired the lock, if it is known.
    pub(crate) held: Option<Timestamp>,
}

/// Describes a participant from the data of its node. `session` is the id of its session.
pub(crate) fn describe(data: &[u8], session: i64) -> Described {
    if let Some(before) = data.strip_prefix(REVOKE.as_bytes()).filter(|before| !before.is_empty()) {
        let before = describe(before, session);
        return Described { text: format!("{}, asked to release", before.text), ..before };
    }
    let fields = serde_json::from_slice::<Value>(data).ok();
    if let Some((owner, held)) = fields.as_ref().and_then(parse) {
        let command = if owner.command.is_empty() { String::new() } else { format!(" ({})", owner.command) };
        return Described { text: format!("{}:{}{command}", owner.host, owner.pid), owner: Some(owner), held };
    }
    let text = match std::str::from_utf8(data) {
        Ok(REVOKE) => format!("session 0x{session:x}, asked to release"),
        Ok(text) if !text.is_empty() => printable(text),
        _ => format!("session 0x{session:x}"),
    };
    Described { text, owner: None, held: None }
}

/// Parses the data that [`Owner::data`] has written.
fn parse(fields: &Value) -> Option<(Owner, Option<Timestamp>)> {
    let text = |name: &str| Some(printable(fields.get(name)?.as_str()?));
    let owner = Owner {
        host: text("host")?,
        pid: fields.get("pid")?.as_i64()?.try_into().ok()?,
        user: text("user").unwrap_or_default(),
        command: text("command").unwrap_or_default(),
        max_leases: fields.get("leases").and_then(Value::as_i64).and_then(|leases| leases.try_into().ok()),
    };
    Some((owner, text("held").and_then(|held| held.parse().ok())))
}

/// Removes characters that could change the terminal or begin a new line.
pub(crate) fn printable_line(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { ' ' } else { c }).filter(|&c| is_printable(c)).collect()
}

/// Removes characters that could change the terminal, and shortens long texts.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|&c| is_printable(c)).take(MAX_LENGTH).collect()
}

/// Writes the name of a node with escapes in place of the characters that could change the terminal.
pub(crate) fn escaped(name: &str) -> String {
    name.chars().map(|c| if is_printable(c) { c.to_string() } else { c.escape_unicode().to_string() }).collect()
}

/// Returns whether a character neither controls the terminal, nor changes the direction or the order of the text, nor
/// is invisible.
fn is_printable(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_data_is_described_and_other_data_is_shown_as_text() {
        let (host, user, command) = ("db1".to_owned(), "root".to_owned(), "make".to_owned());
        let owner = Owner { host, pid: 7, user, command, max_leases: Some(3) };
        let held: Option<Timestamp> = "2026-01-02T03:04:05Z".parse().ok();
        for held in [None, held] {
            let described = describe(&owner.data(Timestamp::UNIX_EPOCH, held), 1);
            let owner = Some(owner.clone());
            assert_eq!(described, Described { text: "db1:7 (make)".to_owned(), owner, held });
        }
        assert_eq!(describe(b"10.0.0.7", 1).text, "10.0.0.7");
        assert_eq!(describe(b"\x1b[2Jx\n", 1).text, "[2Jx");
        assert_eq!(describe("a\u{202e}b\u{9b}c".as_bytes(), 1).text, "abc");
        assert_eq!(describe(b"\xff", 0xab).text, "session 0xab");
        assert_eq!(describe(b"__REVOKE__", 0xab).text, "session 0xab, asked to release");
        assert_eq!(describe(b"", 0xab).text, "session 0xab");
        let asked = [REVOKE.as_bytes(), &owner.data(Timestamp::UNIX_EPOCH, held)].concat();
        let text = "db1:7 (make), asked to release".to_owned();
        assert_eq!(describe(&asked, 1), Described { text, owner: Some(owner), held });
    }
}
