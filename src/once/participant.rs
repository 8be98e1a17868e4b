//! The name of this process in the record of runs.

use std::fs;

/// Returns the name of this process: its user, its host and its process id.
pub(super) fn name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}@{}:{}", user_name(), host.trim_end(), std::process::id())
}

/// Returns the name of the user. Cron and containers often do not set `USER`.
pub fn user_name() -> String {
    let variable = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    variable.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        // The owner of /proc/self would be root if the process is not dumpable.
        let process = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let id = process.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().next());
        let id = id.unwrap_or_default();
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let of_user = |line: &&str| line.split(':').nth(2) == Some(id);
        users.lines().find(of_user).and_then(|line| line.split(':').next()).unwrap_or(id).to_owned()
    })
}
