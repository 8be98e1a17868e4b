//! Reads small files, such as option files or credential files. The code in this file does not interpret the bytes that
//! it reads.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;
use zklock_core::error::{Error, Result, Status};
use zklock_process::{PerProcess, resource_error};

use super::report;
use super::sync::{Mutex, lock};

/// Formats the path of a file for a message, in quotes. The function truncates the beginning of a very long path, and
/// never the name of the file.
pub(crate) fn quote_file(file: &Path) -> String {
    const SHOWN: usize = 255;
    let path = file.to_string_lossy();
    let omitted = path.chars().count().saturating_sub(SHOWN);
    let shown: String = path.chars().skip(omitted).collect();
    format!("{}{shown:?}", if omitted > 0 { "..." } else { "" })
}

/// Reads a regular file of at most `limit` bytes. The function refuses other files, because a pipe can block the caller
/// and a device has no end. The file may contain a secret, so the function leaves no other copy of its content in
/// memory.
///
/// `what` names the kind of the file in the message of an error, for example `options file`.
///
/// Errors: INVALID if the file cannot be read. EXHAUSTED if the process or the machine has no file descriptors left.
/// The call blocks while it reads the file.
pub(crate) fn read_regular_file(what: &str, file: &Path, limit: usize) -> Result<Zeroizing<Vec<u8>>> {
    let name = format!("{what} {}", quote_file(file));
    let refuse = |why: &str| Error::invalid(format!("{name}: {why}"));
    let failed = |error: io::Error| match resource_error(&name, &error) {
        shortage if shortage.status() == Status::Exhausted => shortage,
        _ => refuse(&error.to_string()),
    };
    // Without the flag `O_NONBLOCK`, opening a pipe would wait for a writer.
    let opened: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(refuse(if metadata.is_dir() {
            "is a directory; expected a file"
        } else {
            "is not a regular file"
        }));
    }
    let expected = usize::try_from(metadata.len()).unwrap_or(limit);
    let bytes = read_to_end(opened, expected, limit + 1).map_err(failed)?;
    if bytes.len() > limit {
        return Err(refuse(&format!("is longer than {limit} bytes")));
    }
    Ok(bytes)
}

/// Removes one newline from the end of the data. Editors and `echo` add a newline.
pub(super) fn remove_newline(data: &mut Vec<u8>) {
    if data.last() == Some(&b'\n') {
        data.pop();
        if data.last() == Some(&b'\r') {
            data.pop();
        }
    }
}

/// The files about which this process has written a warning.
static EXPOSED: PerProcess<Mutex<BTreeSet<PathBuf>>> = PerProcess::new(|| Mutex::new(BTreeSet::new()));

/// Logs a warning, once for each file, if users other than the owner and the group may read a file with a secret, or if
/// users other than the owner may replace its content. `what` names the kind of the file.
pub(crate) fn warn_if_exposed(what: &str, file: &Path) {
    let Ok(metadata) = std::fs::metadata(file) else { return };
    let mode = metadata.permissions().mode() & 0o777;
    if is_exposed(mode) && lock(EXPOSED.get()).insert(file.to_owned()) {
        report::exposed_secret(what, file, mode);
    }
}

const fn is_exposed(mode: u32) -> bool {
    mode & 0o026 != 0
}

/// Reads at most `limit` bytes. `Read::read_to_end`, in contrast, would not erase the old buffer when it moves the
/// bytes to a larger buffer.
fn read_to_end(mut from: impl Read, expected: usize, limit: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; expected.saturating_add(1).min(limit)]);
    let mut length = 0;
    while length < limit {
        if length == bytes.len() {
            let capacity = (2 * length).min(limit);
            let mut larger = Zeroizing::new(Vec::with_capacity(capacity));
            larger.extend_from_slice(&bytes);
            larger.resize(capacity, 0);
            bytes = larger;
        }
        match from.read(bytes.get_mut(length..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_secrets_are_for_the_owner_and_the_readers_of_the_group() {
        for mode in [0o400, 0o600, 0o640, 0o440, 0o700, 0o750] {
            assert!(!is_exposed(mode), "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o602, 0o660, 0o620, 0o666] {
            assert!(is_exposed(mode), "{mode:o}");
        }
    }

    #[test]
    fn the_name_of_a_file_with_a_long_path_is_shown() {
        let long = format!("{}/{}", "/a b".repeat(1000), "x".repeat(250));
        assert_eq!(quote_file(Path::new(&long)), format!("...\"/a b/{}\"", "x".repeat(250)));
        assert_eq!(quote_file(Path::new("/a b")), "\"/a b\"");
    }

    #[test]
    fn file_that_grows_while_it_is_read_is_read_to_its_end_or_limit() {
        let content: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for (expected, limit) in [(0, 5000), (1, 1000), (999, 1001), (1000, 1001), (5000, 5001), (3, 7)] {
            let bytes = read_to_end(content.as_slice(), expected, limit).unwrap();
            assert_eq!(*bytes, content[..limit.min(1000)], "{expected} {limit}");
        }
    }
}
