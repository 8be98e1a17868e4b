//! The options of a client by name: the one table for every face, and the files that set them.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result, Status};
use crate::path::quote;
use crate::runtime::refused;

/// Larger files are refused.
const FILE_LIMIT: u64 = 64 * 1024;

/// An option of [`Config::set`].
#[derive(Debug)]
pub struct ConfigOption {
    /// Its name, for instance `session.timeout`.
    pub name: &'static str,
    /// The values that it takes, in words.
    pub expected: &'static str,
    /// The value without it, in words.
    pub default: &'static str,
    /// What it sets, in one sentence.
    pub help: &'static str,
    /// Gives `None` for a value that it does not take.
    set: fn(&mut Config, &str) -> Option<()>,
}

impl ConfigOption {
    /// Every option, by name.
    pub const ALL: &'static [Self] = &[
        Self {
            name: "chroot.create",
            expected: "true or false",
            default: "false",
            help: "Whether the client creates the chroot of its connect string if it is missing. Without, a missing chroot is an error.",
            set: |config, value| switch(value).map(|create| config.set_create_chroot(create)),
        },
        Self {
            name: "connect.timeout",
            expected: "1 to 2147483647 milliseconds",
            default: "10000",
            help: "How long connecting may take.",
            set: |config, value| config.set_connect_timeout(milliseconds(value)?).ok(),
        },
        Self {
            name: "lease.margin",
            expected: "0 to 2147483647 milliseconds",
            default: "a third of the session timeout",
            help: "How long before its session can end a lock ceases to count as held.",
            set: |config, value| config.set_lease_margin(milliseconds(value)?).ok(),
        },
        Self {
            name: "session.max_path_bytes",
            expected: "1024 to 1073741824 bytes",
            default: "786432",
            help: "Limit on the bytes of the paths of all nodes of a session. It must not exceed the `jute.maxbuffer` of any server.",
            set: |config, value| config.set_max_path_bytes(bytes(value)?).ok(),
        },
        Self {
            name: "session.timeout",
            expected: "1 to 2147483647 milliseconds",
            default: "10000",
            help: "How long the servers keep a session without a sign of life. The servers may negotiate another value.",
            set: |config, value| config.set_session_timeout(milliseconds(value)?).ok(),
        },
    ];

    fn find(name: &str) -> Result<&'static Self> {
        Self::ALL.iter().find(|option| option.name == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|option| option.name).collect();
            Error::invalid(format!("option {} is unknown; expected one of {}", quote(name), names.join(", ")))
        })
    }

    fn apply(&self, config: &mut Config, value: &str) -> Result<()> {
        (self.set)(config, value).ok_or_else(|| {
            Error::invalid(format!("option {} is {}; expected {}", self.name, quote(value), self.expected))
        })
    }
}

impl Config {
    /// Sets an option by its name, for instance `session.timeout` to `5000`. [`ConfigOption::ALL`] has all of them. The typed setters are
    /// shorthands for the same options.
    ///
    /// Errors: INVALID for an unknown name and for a bad value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        ConfigOption::find(name)?.apply(self, value)
    }

    /// Sets the options in a file; see [`read_options`]. If the file has an error, no option is set.
    ///
    /// Blocks while it reads the file. Errors: as [`read_options`].
    pub fn load(&mut self, file: impl AsRef<Path>) -> Result<()> {
        read_options(file)?.iter().try_for_each(|(name, value)| self.set(name, value))
    }
}

/// Reads the options in a file, and checks them: names with their values, in the order of the file.
///
/// The file is UTF-8 text of 64 KiB at most, with one `name = value` a line. Empty lines, and lines that begin with `#`, are skipped; a `#`
/// behind a value belongs to the value.
///
/// Blocks while it reads the file. Errors: INVALID names the file, and the line if one is wrong.
pub fn read_options(file: impl AsRef<Path>) -> Result<Vec<(String, String)>> {
    let file = file.as_ref();
    let bytes = contents(file)?;
    parse(&bytes).map_err(|why| Error::invalid(format!("options file {}{why}", shown(file))))
}

/// All that is in a regular file. A pipe could keep the caller waiting, a device has no end.
fn contents(file: &Path) -> Result<Vec<u8>> {
    let refuse = |why: &str| Error::invalid(format!("options file {}: {why}", shown(file)));
    let failed = |error: std::io::Error| match refused(&format!("options file {}", shown(file)), &error) {
        shortage if shortage.status() == Status::Exhausted => shortage,
        _ => refuse(&error.to_string()),
    };
    // Opening a pipe would wait for a writer.
    let opened: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file).map_err(failed)?;
    let kind = opened.metadata().map_err(failed)?.file_type();
    if !kind.is_file() {
        return Err(refuse(if kind.is_dir() { "is a directory; expected a file" } else { "is not a regular file" }));
    }
    let mut bytes = Vec::new();
    opened.take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(refuse(&format!("is longer than {FILE_LIMIT} bytes")));
    }
    Ok(bytes)
}

fn shown(file: &Path) -> String {
    quote(&file.to_string_lossy())
}

/// The options in a file's bytes; or which line is wrong, and why.
fn parse(bytes: &[u8]) -> std::result::Result<Vec<(String, String)>, String> {
    let mut scratch = Config::new();
    let mut options: Vec<(String, String)> = Vec::new();
    let mut first_lines = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let refuse = |why: &str| format!(", line {number}: {why}");
        let line = std::str::from_utf8(line).map_err(|error| {
            let at = error.valid_up_to();
            let byte = line.get(at).copied().unwrap_or_default();
            refuse(&format!("is not UTF-8: byte {byte:#04x} at position {at}"))
        })?;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            return Err(refuse(&format!("{} is not an option; expected name = value", quote(line))));
        };
        let (name, value) = (name.trim(), value.trim());
        if let Some(at) = options.iter().position(|(known, _)| known == name) {
            let first = first_lines.get(at).copied().unwrap_or_default();
            return Err(refuse(&format!("option {name} is set twice; line {first} sets it as well")));
        }
        scratch.set(name, value).map_err(|error| {
            let hint = if value.contains(" #") { "; a comment needs a line of its own" } else { "" };
            refuse(&format!("{}{hint}", error.message()))
        })?;
        options.push((name.to_owned(), value.to_owned()));
        first_lines.push(number);
    }
    Ok(options)
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// A whole number of milliseconds, in digits.
fn milliseconds(value: &str) -> Option<Duration> {
    number(value).map(Duration::from_millis)
}

/// A whole number of bytes, in digits.
fn bytes(value: &str) -> Option<usize> {
    usize::try_from(number(value)?).ok()
}

fn number(value: &str) -> Option<u64> {
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<()>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        error.message().to_owned()
    }

    #[test]
    fn every_option_takes_its_values_and_refuses_others_by_name() {
        let mut names: Vec<&str> = ConfigOption::ALL.iter().map(|option| option.name).collect();
        for &name in &names {
            for value in ["", "x", " 1", "+1", "-1", "1.5", "99999999999", "18446744073709551616", "\u{662}"] {
                let said = message(Config::new().set(name, value));
                assert!(said.starts_with(&format!("option {name} is {value:?}; expected ")), "{said}");
            }
        }
        names.sort_unstable();
        assert!(names.is_sorted_by(|one, other| one < other), "a name is there twice");
        for value in ["True", "yes", "1", "false "] {
            assert!(message(Config::new().set("chroot.create", value)).ends_with("expected true or false"));
        }
        let mut config = Config::new();
        config.set("chroot.create", "true").unwrap();
        assert!(config.creates_chroot());
        config.set("chroot.create", "false").unwrap();
        assert!(!config.creates_chroot());
        for (name, value) in [("session.timeout", "5000"), ("connect.timeout", "2147483647"), ("lease.margin", "0")] {
            config.set(name, value).unwrap();
        }
        assert_eq!(config.connect_timeout(), Duration::from_millis(2_147_483_647));
        assert_eq!(config.session().timeout, Duration::from_secs(5));
        assert_eq!(config.session().lease_margin, Some(Duration::ZERO));
        config.set("session.max_path_bytes", "1024").unwrap();
        assert_eq!(config.max_path_bytes(), 1024);
        let said = message(config.set("session.max_path_bytes", "1023"));
        assert_eq!(said, "option session.max_path_bytes is \"1023\"; expected 1024 to 1073741824 bytes");
    }

    #[test]
    fn unknown_names_are_told_from_the_known_ones() {
        for name in ["", "session_timeout", "SESSION.TIMEOUT", "session.timeout ", "tls.ca", "a\0b"] {
            let said = message(Config::new().set(name, "1"));
            assert!(said.starts_with(&format!("option {name:?} is unknown; expected one of ")), "{said}");
            assert!(said.contains("connect.timeout, lease.margin") && said.contains("session.timeout"), "{said}");
        }
    }

    #[test]
    fn files_have_comments_and_blank_lines() {
        let text = "# servers: h:2181\r\n\r\n  session.timeout=6000  \r\n\tlease.margin = 1000\n#\n";
        let options = parse(text.as_bytes()).unwrap();
        let expected = [("session.timeout", "6000"), ("lease.margin", "1000")];
        assert_eq!(options, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, said) in [
            ("\n[zklock]\n", ", line 2: \"[zklock]\" is not an option; expected name = value"),
            ("= 3", ", line 1: option \"\" is unknown"),
            ("lease.margin =", ", line 1: option lease.margin is \"\"; expected 0 to "),
            ("lease.margin = 1 # ms", "milliseconds; a comment needs a line of its own"),
            (
                "lease.margin = 1\n\nlease.margin = 1",
                ", line 3: option lease.margin is set twice; line 1 sets it as well",
            ),
            ("tls.ca = x", ", line 1: option \"tls.ca\" is unknown"),
        ] {
            let why = parse(text.as_bytes()).unwrap_err();
            assert!(why.contains(said), "{text:?}: {why}");
        }
        assert!(parse(b"#\n#ab\xff").unwrap_err().contains(", line 2: is not UTF-8: byte 0xff at position 3"));
    }

    #[test]
    fn what_is_no_file_of_options_is_refused_by_name() {
        let folder = std::env::temp_dir().join(format!("zklock-options-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("options");
        let mut config = Config::new();
        config.set_lease_margin(Duration::from_millis(7)).unwrap();
        let mut said = |path: &Path| message(config.load(path));
        assert!(said(&file).contains("options\": No such file"), "{}", said(&file));
        assert!(said(&folder).contains("is a directory"), "{}", said(&folder));
        assert!(said(Path::new("/dev/zero")).contains("\"/dev/zero\": is not a regular file"));
        assert!(said(Path::new("")).contains("No such file"));
        let pipe = folder.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(said(&pipe).contains("is not a regular file"));
        std::fs::write(&file, vec![b'#'; 64 * 1024 + 1]).unwrap();
        assert!(said(&file).contains("is longer than 65536 bytes"));
        std::fs::write(&file, "lease.margin = 9\nx").unwrap();
        assert!(said(&file).contains("options\", line 2: "));
        assert_eq!(config.session().lease_margin, Some(Duration::from_millis(7)), "half of a bad file counts");
        std::fs::write(&file, vec![b'#'; 64 * 1024]).unwrap();
        config.load(&file).unwrap();
        std::fs::write(&file, "lease.margin = 9").unwrap();
        config.load(&file).unwrap();
        assert_eq!(config.session().lease_margin, Some(Duration::from_millis(9)));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
