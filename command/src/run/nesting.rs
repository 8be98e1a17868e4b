//! Refuses a lock that a `zklock run` above this process holds. This process could wait for the process above, which
//! waits for this one.

use std::ffi::OsStr;

use crate::exit::Failure;

/// The variable with the locks that are held above this process, one on each line.
pub(crate) const HELD: &str = "ZKLOCK_HELD";

/// Returns the value of `ZKLOCK_HELD` for the command, or fails if one of the paths is already held.
pub(crate) fn check(held: Option<&OsStr>, servers: &str, paths: &[String]) -> Result<String, Failure> {
    let held = held.map(OsStr::to_string_lossy).unwrap_or_default();
    let mut all: Vec<String> = held.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    for (at, path) in paths.iter().enumerate() {
        if paths.iter().take(at).any(|earlier| earlier == path) {
            return Err(Failure::usage(format!("the path {path} is given twice; expected different paths")));
        }
        let lock = identity(servers, path);
        if all.contains(&lock) {
            let message = format!(
                "{path} is already held by a zklock above this command ({HELD}); a second wait for it might never end"
            );
            return Err(Failure::usage(message));
        }
        all.push(lock);
    }
    Ok(all.join("\n"))
}

/// Names a lock: the sorted servers, the chroot and the path.
fn identity(servers: &str, path: &str) -> String {
    let (hosts, chroot) = servers.find('/').map_or((servers, ""), |slash| servers.split_at(slash));
    let mut hosts: Vec<&str> = hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    hosts.sort_unstable();
    format!("{}{}{path}", hosts.join(","), chroot.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|&path| path.to_owned()).collect()
    }

    #[test]
    fn a_path_of_the_same_servers_is_refused_however_the_servers_are_written() {
        let held = check(None, "b:1,a:1/app", &paths(&["/x", "/y"])).unwrap();
        assert_eq!(held, "a:1,b:1/app/x\na:1,b:1/app/y");
        let refused = |servers, path| check(Some(OsStr::new(&held)), servers, &paths(&[path])).is_err();
        assert!(refused("a:1, b:1/app/", "/y"));
        assert!(refused("a:1,b:1", "/app/y"));
        assert!(!refused("a:1,b:1", "/y"));
        assert!(!refused("c:1/app", "/y"));
        let twice = check(None, "a:1", &paths(&["/x", "/x"])).unwrap_err();
        assert_eq!(twice.message, "the path /x is given twice; expected different paths");
    }
}
