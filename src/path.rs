//! Paths of znodes: what is a valid one, and where a chroot puts it.

#![forbid(unsafe_code)]

use crate::error::{Error, Result};

/// Longer paths are refused: a request that carries one must fit into a server's frame with room to spare.
pub const MAX_PATH: usize = 64 * 1024;
/// Deeper paths are refused: where the directories of a lock are missing, all of them are made at once.
pub const MAX_DEPTH: usize = 255;

/// Checks a path by ZooKeeper's own rules (`PathUtils.validatePath`), so that a bad one is named here and not answered
/// by a closed connection.
pub(crate) fn validate(path: &str) -> Result<()> {
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
            "" => return refuse("has an empty part: no '//' and no '/' at the end"),
            "." | ".." => return refuse("is relative: no part may be '.' or '..'"),
            _ => {}
        }
    }
    if path == "/zookeeper" || path.starts_with("/zookeeper/") {
        return refuse("is below /zookeeper, which belongs to the server");
    }
    Ok(())
}

/// The path's ancestors and the path itself, from the top: `/a/b` gives `/a`, `/a/b`.
pub(crate) fn from_the_top(path: &str) -> impl Iterator<Item = &str> {
    path.char_indices()
        .skip(1)
        .filter(|&(_, c)| c == '/')
        .map(|(at, _)| at)
        .chain([path.len()])
        .filter_map(|at| path.get(..at))
}

/// A value for a message: quoted, and cut where it is absurdly long.
pub(crate) fn quote(value: &str) -> String {
    const SHOWN: usize = 120;
    if value.chars().count() <= SHOWN {
        return format!("{value:?}");
    }
    format!("{:?}...", value.chars().take(SHOWN).collect::<String>())
}

/// The server looks at UTF-16 units and refuses surrogates, hence everything beyond the basic plane.
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
