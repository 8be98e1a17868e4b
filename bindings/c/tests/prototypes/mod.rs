//! Reads the functions of a header with their parameters and results. A test can then call every function with wrong
//! arguments, including functions that are added later.

#![allow(dead_code, reason = "for tests, each of which uses a part")]

use std::collections::{BTreeMap, BTreeSet};

/// A function of the header.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) returns: Returns,
    /// The compiler warns if a program ignores the result.
    pub(crate) is_checked: bool,
    pub(crate) parameters: Vec<Parameter>,
    /// The statuses that the comment names, without `ZKL_E_`, including those of a function that the comment refers to.
    pub(crate) statuses: BTreeSet<String>,
    /// The version that the comment names after "Since:".
    pub(crate) since: Option<String>,
}

/// The result of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    Nothing,
    Status,
    /// 1 or 0; 0 also stands for a failure.
    Predicate,
    /// A number, or a negative status.
    Answer,
    /// A number, or 0 after a failure.
    Id,
    Text,
    /// A handle, or NULL after a failure.
    Handle,
    /// The errno value of a status, or the version. It is not the result of an operation.
    Number,
}

/// A parameter of a function.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// The text in the header.
    pub(crate) text: String,
    pub(crate) kind: Kind,
}

/// The type of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A handle of this kind, which is the name of its type.
    Handle(String),
    /// A pointer to which the function writes a handle.
    HandleOut(String),
    /// An array of handles. The next parameter is their number.
    Handles(String),
    Text,
    /// Bytes. The next parameter is their number.
    Bytes,
    /// A buffer for a text. The next parameter is its size.
    Buffer,
    /// An array to which the function writes numbers. The next parameter is its number of elements.
    Array,
    /// A pointer to which the function writes a struct. The parameter before is its size.
    StructOut,
    /// A pointer to which the function writes a struct. The struct begins with its size, which the program sets.
    SizedStructOut,
    /// The number of elements of the parameter before, or the size of the struct that the next parameter points to.
    Count,
    /// A `size_t` that is neither a number of elements nor a size.
    Index,
    Int32,
    Int64,
    /// A pointer to which the function writes a number of this type, or a pointer to memory of the library.
    NumberOut,
    Callback(String),
    /// The pointer that the library passes to a callback.
    User,
}

/// All functions that the header declares.
pub(crate) fn read(header: &str) -> Vec<Function> {
    let mut comments = BTreeMap::new();
    let mut functions = Vec::new();
    let mut comment = String::new();
    for line in header.lines() {
        if line.starts_with("/**") {
            comment.clear();
        }
        if line.starts_with("/**") || line.starts_with(" *") {
            comment += line.trim_start_matches([' ', '/', '*']);
            comment.push(' ');
        } else if let Some(function) = function(line) {
            let since = comment.split("Since: ").nth(1).and_then(|text| text.split_whitespace().next());
            let since = since.map(|version| version.trim_end_matches('.').to_owned());
            comments.insert(function.name.clone(), comment.clone());
            functions.push(Function { since, ..function });
        }
    }
    for function in &mut functions {
        statuses(&function.name, &comments, &mut function.statuses, &mut BTreeSet::new());
    }
    functions
}

/// Parses a line that declares a function. Each declaration is on its own line.
fn function(line: &str) -> Option<Function> {
    if line.starts_with([' ', '/', '#', '}']) || line.starts_with("typedef") {
        return None;
    }
    let (is_checked, line) = line.strip_prefix("ZKL_NODISCARD ").map_or((false, line), |line| (true, line));
    let (head, rest) = line.split_once('(')?;
    let list = rest.strip_suffix(");").unwrap_or_else(|| panic!("a declaration goes over several lines: {line}"));
    let (result, name) = declarator(head);
    let returns = match &*result {
        "void" => Returns::Nothing,
        "zkl_status" => Returns::Status,
        "int32_t" if ["zkl_status_errno", "zkl_version_number"].contains(&name.as_str()) => Returns::Number,
        "int32_t" if name.contains("_is_") => Returns::Predicate,
        "int32_t" | "int" => Returns::Answer,
        "int64_t" => Returns::Id,
        "const char *" => Returns::Text,
        other if other.starts_with("zkl_") && other.ends_with('*') => Returns::Handle,
        other => panic!("{name} returns {other}; add this type to tests/prototypes"),
    };
    let mut parameters: Vec<Parameter> = Vec::new();
    for text in list.split(", ").filter(|text| *text != "void") {
        let (text, parameter) = declarator(text);
        let kind = kind(&text, &parameter).unwrap_or_else(|| {
            panic!("{name} has the parameter {text} {parameter}; add this type to tests/prototypes")
        });
        parameters.push(Parameter { name: parameter, text, kind });
    }
    Some(Function { name, returns, is_checked, parameters, statuses: BTreeSet::new(), since: None })
}

/// Splits `type *name` into the type and the name.
fn declarator(text: &str) -> (String, String) {
    let at = text.rfind([' ', '*']).unwrap_or_else(|| panic!("no declarator: {text}"));
    (text[..=at].trim_end().to_owned(), text[at + 1..].to_owned())
}

fn kind(text: &str, name: &str) -> Option<Kind> {
    let is_out = name.ends_with("_out");
    Some(match text {
        "const char *" => Kind::Text,
        "char *" => Kind::Buffer,
        "const void *" => Kind::Bytes,
        "uint64_t *" if !is_out => Kind::Array,
        "size_t" if name == "index" => Kind::Index,
        "size_t" => Kind::Count,
        "int32_t" | "uint32_t" => Kind::Int32,
        "int64_t" | "uint64_t" => Kind::Int64,
        "void *" => Kind::User,
        "int32_t *" | "int64_t *" | "size_t *" | "int *" if is_out => Kind::NumberOut,
        "const zkl_participant **" | "const zkl_past_run **" if is_out => Kind::NumberOut,
        "zkl_metrics *" if is_out => Kind::StructOut,
        "zkl_hold_info *" if is_out => Kind::SizedStructOut,
        _ if text.ends_with("_cb") || text == "zkl_user_drop" => Kind::Callback(text.to_owned()),
        _ => {
            let handle = text.strip_prefix("const ").unwrap_or(text);
            let (handle, stars) = handle.split_once(' ')?;
            match stars {
                "*" => Kind::Handle(handle.to_owned()),
                "**" if is_out => Kind::HandleOut(handle.to_owned()),
                "*const *" => Kind::Handles(handle.to_owned()),
                _ => return None,
            }
        }
    })
}

/// Adds the statuses of a function. "Returns: the same statuses as zkl_other" refers to another function.
fn statuses(
    name: &str,
    comments: &BTreeMap<String, String>,
    found: &mut BTreeSet<String>,
    seen: &mut BTreeSet<String>,
) {
    let Some(comment) = comments.get(name).filter(|_| seen.insert(name.to_owned())) else { return };
    let said = comment.split("Returns:").nth(1).unwrap_or(comment);
    for word in said.split(|c: char| !c.is_alphanumeric() && c != '_') {
        found.extend(word.strip_prefix("ZKL_E_").map(str::to_owned));
    }
    for other in said.split("same statuses as zkl_").skip(1) {
        let other = other.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        statuses(&format!("zkl_{other}"), comments, found, seen);
    }
}

/// The kinds of handles that functions create or take.
pub(crate) fn handles(functions: &[Function]) -> BTreeSet<String> {
    let kinds = functions.iter().flat_map(|function| &function.parameters).map(|parameter| &parameter.kind);
    let handle = |kind: &Kind| match kind {
        Kind::Handle(handle) | Kind::HandleOut(handle) | Kind::Handles(handle) => Some(handle.clone()),
        _ => None,
    };
    kinds.filter_map(handle).collect()
}
