//! What `hold --sh` and `release --sh` print: commands for the shell that evaluates the output.

use crate::run::{Variables, nesting};
use crate::variables::{HELD, HOLD_PID, OF_HOLD};

/// Writes the output of `hold --sh`: the variables of a hold, whose holder process is `pid`.
///
/// If the lock is bound to `caller`, this process must be the shell that evaluates the text. It is not if another
/// program calls `zklock`, for example timeout(1), or if the shell is a copy of the script. The lock would then end too
/// early or too late, so the text releases it.
pub(crate) fn assignments(variables: &Variables, pid: i32, caller: Option<i32>) -> String {
    let pid = pid.to_string();
    let all = variables.iter().chain([(HOLD_PID, &*pid)]);
    let assignments: String = all.map(|(name, value)| format!("{name}={}; export {name};\n", quote(value))).collect();
    // The shell refuses a text that is cut off, because it lacks the end of the group.
    let Some(caller) = caller else { return format!("{{\n{assignments}}}\n") };
    // A built-in command of the shell opens the file, so the kernel names the process that evaluates the text, even in
    // a subshell.
    format!(
        "read -r ZKLOCK_SHELL ZKLOCK_REST </proc/self/stat || :;\n\
         if [ \"$ZKLOCK_SHELL\" = {caller} ]; then unset ZKLOCK_SHELL ZKLOCK_REST;\n\
         {assignments}\
         else unset ZKLOCK_SHELL ZKLOCK_REST; kill {pid} 2>/dev/null || :;\n\
         echo {} >&2; (exit 64); fi;\n",
        quote(
            "zklock: another process than this shell called zklock hold, so the lock was released; \
             choose the process with --pid, for example --pid $$, or --pid $BASHPID in a subshell"
        )
    )
}

/// Writes the output of `release --sh`: commands that remove the variables of the hold whose holder process is `pid`.
/// `variable` reads a variable of this process.
pub(crate) fn removal(pid: i32, variable: impl Fn(&str) -> Option<String>) -> String {
    // A later hold of the same script has replaced the variables of an earlier one.
    let is_latest = variable(HOLD_PID) == Some(pid.to_string());
    let names = OF_HOLD.into_iter().filter(|name| *name != HELD).chain([HOLD_PID]);
    let removed: String = names.filter(|_| is_latest).map(|name| format!("unset {name};\n")).collect();
    match nesting::without(&variable(HELD).unwrap_or_default(), pid) {
        held if held.is_empty() => format!("{removed}unset {HELD};\n"),
        held => format!("{removed}{HELD}={};\n", quote(&held)),
    }
}

/// Writes a command that fails with a code. A script that evaluates the output must notice the failure.
pub(crate) fn failure(code: u8) -> String {
    format!("(exit {code})\n")
}

/// Quotes a text for a shell.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_has_no_meaning_for_the_shell() {
        assert_eq!(quote("/a $(b)"), "'/a $(b)'");
        assert_eq!(quote("it's"), "'it'\\''s'");
    }
}
