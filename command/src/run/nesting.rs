//! Refuses a lock that a `zklock` above this process holds. This process could wait for the process above, which waits
//! for this one.

use std::ffi::OsStr;

use crate::exit::Failure;
use crate::variables::HELD;

/// The locks that are held above this process, and those of this call. The variable has one lock on each line. After the
/// lock of a `zklock hold`, a tab and the id of its holder process follow.
#[derive(Debug)]
pub(crate) struct Held {
    above: String,
    own: Vec<String>,
}

impl Held {
    /// Fails if one of the paths is given twice, or is held above this process.
    pub(crate) fn check(variable: Option<&OsStr>, servers: &str, paths: &[String]) -> Result<Self, Failure> {
        let above = variable.map(OsStr::to_string_lossy).unwrap_or_default().into_owned();
        let own: Vec<String> = paths.iter().map(|path| identity(servers, path)).collect();
        for (at, path) in paths.iter().enumerate() {
            if paths.iter().take(at).any(|earlier| earlier == path) {
                return Err(Failure::usage(format!("the path {path} is given twice; expected different paths")));
            }
            if above.lines().any(|line| line.split('\t').next() == own.get(at).map(String::as_str)) {
                return Err(Failure::usage(format!(
                    "{path} is already held by a zklock above this command ({HELD}); a second wait for it might never end"
                )));
            }
        }
        Ok(Self { above, own })
    }

    /// Returns the value of the variable for the command or, with the id of the holder process, for a script.
    pub(crate) fn value(&self, holder: Option<i32>) -> String {
        let suffix = holder.map(|pid| format!("\t{pid}")).unwrap_or_default();
        let own = self.own.iter().map(|lock| format!("{lock}{suffix}"));
        self.above.lines().map(str::to_owned).chain(own).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the value of the variable without the locks of a holder process.
pub(crate) fn without(held: &str, holder: i32) -> String {
    let suffix = format!("\t{holder}");
    held.lines().filter(|line| !line.ends_with(&suffix)).collect::<Vec<_>>().join("\n")
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

    fn check(held: &str, servers: &str, paths: &[&str]) -> Result<Held, Failure> {
        let paths: Vec<String> = paths.iter().map(|&path| path.to_owned()).collect();
        Held::check(Some(OsStr::new(held)), servers, &paths)
    }

    #[test]
    fn a_path_of_the_same_servers_is_refused_however_the_servers_are_written() {
        let held = check("", "b:1,a:1/app", &["/x", "/y"]).unwrap().value(None);
        assert_eq!(held, "a:1,b:1/app/x\na:1,b:1/app/y");
        let refused = |servers, path| check(&held, servers, &[path]).is_err();
        assert!(refused("a:1, b:1/app/", "/y"));
        assert!(refused("a:1,b:1", "/app/y"));
        assert!(!refused("a:1,b:1", "/y"));
        assert!(!refused("c:1/app", "/y"));
        let twice = check("", "a:1", &["/x", "/x"]).unwrap_err();
        assert_eq!(twice.message, "the path /x is given twice; expected different paths");
    }

    #[test]
    fn the_locks_of_a_holder_process_leave_together() {
        let held = check("h/run", "h", &["/a", "/b"]).unwrap().value(Some(1));
        let both = check(&held, "h", &["/c"]).unwrap().value(Some(12));
        assert_eq!(both, "h/run\nh/a\t1\nh/b\t1\nh/c\t12");
        assert!(check(&both, "h", &["/a"]).is_err());
        assert_eq!(without(&both, 1), "h/run\nh/c\t12");
        assert_eq!(without(&held, 1), "h/run");
    }
}
