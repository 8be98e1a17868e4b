//! Checks whether the paths of znodes are valid, and lists the ancestors of a path.

use crate::error::{Error, Result};

/// The largest length of a path in bytes. A request with a path of this length fits into the frame limit of a server.
pub const MAX_PATH: usize = 64 * 1024;
/// The largest depth of a path. If the directories of a lock are missing, the client creates all missing directories in
/// one step, so their number must be limited.
pub const MAX_DEPTH: usize = 255;

/// Checks that a path follows the rules of ZooKeeper (`PathUtils.validatePath`). This check returns an error with a
/// clear message. A server would only close the connection.
pub fn validate(path: &str) -> Result<()> {
    let refuse = |why: &str| Err(Error::invalid(format!("path {}: {why}", quote(path))));
    if path.is_empty() {
        return refuse("is empty; expected an absolute path like /locks/a");
    }
    if path.len() > MAX_PATH {
        return refuse(&format!("is {} bytes long; at most {MAX_PATH} are allowed", path.len()));
    }
    let Some(rest) = path.strip_prefix('/') else {
        return refuse("must start with '/'");
    };
    if rest.is_empty() {
        return refuse("is the root; expected the path of a lock below it");
    }
    let depth = rest.split('/').count();
    if depth > MAX_DEPTH {
        return refuse(&format!("has {depth} parts; at most {MAX_DEPTH} are allowed"));
    }
    if let Some(bad) = path.chars().find(|&c| is_forbidden(c)) {
        return refuse(&format!("has the character U+{:04X}, which ZooKeeper does not allow", u32::from(bad)));
    }
    for part in rest.split('/') {
        match part {
            "" => return refuse("has an empty part; expected no '//' and no '/' at the end"),
            "." | ".." => return refuse("has a part '.' or '..'; expected a path without them"),
            _ => {}
        }
    }
    if path == "/zookeeper" || path.starts_with("/zookeeper/") {
        return refuse("is below /zookeeper, which belongs to the server");
    }
    Ok(())
}

/// Checks a path like [`validate`], but also allows the root.
pub fn validate_directory(path: &str) -> Result<()> {
    if path == "/" { Ok(()) } else { validate(path) }
}

/// Returns the ancestors of a path, beginning at the top, and then the path itself: `/a/b` gives `/a`, `/a/b`.
pub(crate) fn from_the_top(path: &str) -> impl Iterator<Item = &str> {
    path.char_indices()
        .skip(1)
        .filter(|&(_, c)| c == '/')
        .map(|(at, _)| at)
        .chain([path.len()])
        .filter_map(|at| path.get(..at))
}

/// Returns the path of the parent of a node.
pub(crate) fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

/// Formats a value for a message, in quotes. The function truncates very long values.
pub fn quote(value: &str) -> String {
    const SHOWN: usize = 120;
    if value.chars().count() <= SHOWN {
        return format!("{value:?}");
    }
    format!("{:?}...", value.chars().take(SHOWN).collect::<String>())
}

/// A server checks the UTF-16 units of a path, and refuses surrogates. The server therefore refuses every character
/// outside the basic multilingual plane.
const fn is_forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_paths() {
        for path in ["/a", "/locks/nightly-report", "/a/.b/..c", "/ä/日本", "/zookeepers", &"/a".repeat(MAX_DEPTH)] {
            validate(path).unwrap();
        }
    }

    #[test]
    fn bad_paths_are_named() {
        let long = format!("/{}", "x".repeat(MAX_PATH));
        for path in [
            "",
            "a",
            "/",
            "//",
            "/a/",
            "/a//b",
            "/a/./b",
            "/..",
            "/a\0",
            "/a\u{7}",
            "/\u{e000}",
            "/\u{1f512}",
            "/zookeeper/quota",
            &"/a".repeat(MAX_DEPTH + 1),
            &long,
        ] {
            let error = validate(path).unwrap_err();
            assert!(error.message().starts_with("path \""), "{error}");
            assert!(error.message().len() < 300, "{error}");
        }
    }

    #[test]
    fn ancestors() {
        assert_eq!(from_the_top("/a").collect::<Vec<_>>(), ["/a"]);
        assert_eq!(from_the_top("/a/bc/d").collect::<Vec<_>>(), ["/a", "/a/bc", "/a/bc/d"]);
    }
}
