//! What `hold --sh` and `release --sh` print: commands for the shell that evaluates the output.
//!
//! A script can hold several locks, and can run below another one. `hold --sh` therefore saves the variables that it
//! replaces in `ZKLOCK_OUTER`, as JSON, and `release --sh` restores them. The variables of all holds of a script form a
//! stack.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::run::Variables;
use crate::run::nesting::HELD;

/// The variable with the process id of the holder process.
pub(super) const HOLD_PID: &str = "ZKLOCK_HOLD_PID";
/// The variable with the variables of the outer hold.
const OUTER: &str = "ZKLOCK_OUTER";

/// The variables of a hold, and those that it has replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The values by name. A variable that is not set is missing.
    variables: BTreeMap<&'static str, String>,
    outer: Option<Box<Self>>,
}

impl Frame {
    fn names() -> impl Iterator<Item = &'static str> {
        [HOLD_PID].into_iter().chain(Variables::NAMES)
    }

    /// Returns the variables of this process.
    pub(crate) fn current() -> Self {
        let variable = |name| Some((name, std::env::var(name).ok()?));
        let outer = std::env::var(OUTER).ok().and_then(|outer| serde_json::from_str(&outer).ok());
        Self {
            variables: Self::names().filter_map(variable).collect(),
            outer: outer.and_then(|outer| Self::parse(&outer)).map(Box::new),
        }
    }

    fn parse(fields: &Value) -> Option<Self> {
        let fields = fields.as_object()?;
        let variable = |name| Some((name, fields.get(name)?.as_str()?.to_owned()));
        Some(Self {
            variables: Self::names().filter_map(variable).collect(),
            outer: fields.get(OUTER).and_then(Self::parse).map(Box::new),
        })
    }

    fn to_json(&self) -> Value {
        let variables = self.variables.iter().map(|(&name, value)| (name.to_owned(), Value::from(value.as_str())));
        variables.chain(self.outer.iter().map(|outer| (OUTER.to_owned(), outer.to_json()))).collect()
    }

    fn get(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// Returns the variables without those of one hold, or `None` if this hold is not among them.
    fn without(mut self, pid: &str) -> Option<Self> {
        let outer = self.outer.take();
        if self.get(HOLD_PID) == pid {
            return Some(outer.map(|outer| *outer).unwrap_or_default());
        }
        let outer = *outer?;
        // The locks of this hold are those that the outer hold does not have.
        let own = self.get(HELD).strip_prefix(outer.get(HELD)).unwrap_or_default().trim_start().to_owned();
        let rest = outer.without(pid)?;
        let held = format!("{}\n{own}", rest.get(HELD)).trim().to_owned();
        self.variables.insert(HELD, held);
        self.outer = Some(Box::new(rest));
        Some(self)
    }

    /// Writes assignments of all variables. The shell removes the variables that are not set.
    fn assignments(&self) -> String {
        let assign = |name, value: Option<&str>| match value {
            Some(value) => format!("{name}={}; export {name};\n", quote(value)),
            None => format!("unset {name};\n"),
        };
        let variables = Self::names().map(|name| assign(name, self.variables.get(name).map(String::as_str)));
        let outer = self.outer.as_ref().map(|outer| outer.to_json().to_string());
        variables.chain([assign(OUTER, outer.as_deref())]).collect()
    }
}

/// Writes the output of `hold --sh`: the variables of a hold, whose holder process is `pid`. `outer` are the variables
/// that they replace.
///
/// If the lock is bound to `caller`, this process must be the shell that evaluates the text. It is not if another
/// program calls `zklock`, for example timeout(1), or if the shell is a copy of the script. The lock would then end too
/// early or too late, so the text releases it.
pub(crate) fn assignments(variables: &Variables, pid: i32, caller: Option<i32>, outer: Frame) -> String {
    let own = variables.iter().map(|(name, value)| (name, value.to_owned()));
    let variables = own.chain([(HOLD_PID, pid.to_string())]).collect();
    let assignments = Frame { variables, outer: Some(Box::new(outer)) }.assignments();
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

/// Writes the output of `release --sh`: the variables without those of the hold whose holder process is `pid`.
pub(crate) fn restoration(current: Frame, pid: i32) -> String {
    current.without(&pid.to_string()).map(|rest| rest.assignments()).unwrap_or_default()
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

    fn frame(pid: &str, held: &str, outer: Option<&Frame>) -> Frame {
        let variables = BTreeMap::from([(HOLD_PID, pid.to_owned()), (HELD, held.to_owned())]);
        Frame { variables, outer: outer.cloned().map(Box::new) }
    }

    #[test]
    fn a_quoted_text_has_no_meaning_for_the_shell() {
        assert_eq!(quote("/a $(b)"), "'/a $(b)'");
        assert_eq!(quote("it's"), "'it'\\''s'");
    }

    #[test]
    fn any_hold_can_leave_the_stack() {
        let run = Frame { variables: BTreeMap::from([(HELD, "h/run".to_owned())]), outer: None };
        let a = frame("1", "h/run\nh/a", Some(&run));
        let b = frame("2", "h/run\nh/a\nh/b", Some(&a));
        assert_eq!(Frame::parse(&b.to_json()), Some(b.clone()));
        assert_eq!(b.clone().without("2"), Some(a.clone()));
        assert_eq!(a.without("1"), Some(run.clone()));
        assert_eq!(b.clone().without("1"), Some(frame("2", "h/run\nh/b", Some(&run))));
        assert_eq!(b.without("3"), None);
        let b = frame("2", "h/a\nh/b", Some(&frame("1", "h/a", Some(&Frame::default()))));
        assert_eq!(b.without("1"), Some(frame("2", "h/b", Some(&Frame::default()))));
    }
}
