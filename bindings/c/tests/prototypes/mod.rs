//! The functions of a header, by its text: what they take and what they return. So a test can call each of them in every wrong way,
//! and one that is added is called as well.

use std::collections::{BTreeMap, BTreeSet};

/// A function.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) returns: Returns,
    pub(crate) parameters: Vec<Parameter>,
    /// The statuses its comment names, by what is after `ZKL_E_`; those of a function that it points to as well.
    pub(crate) statuses: BTreeSet<String>,
}

/// What a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    Nothing,
    Status,
    /// A number, or a negative status.
    Answer,
    /// A number, 0 on failure.
    Id,
    Text,
    /// A handle, NULL on failure.
    Handle,
    /// The errno value of a status, which is no answer of the library.
    Number,
}

/// A parameter.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// As the header has it.
    pub(crate) text: String,
    pub(crate) kind: Kind,
}

/// What a parameter is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of this kind, which is the name of its type.
    Handle(String),
    /// Where one is written to.
    HandleOut(String),
    /// Several, as many as the next parameter says.
    Handles(String),
    Text,
    /// So many as the next parameter says.
    Bytes,
    /// Room for a text, as much as the next parameter says.
    Buffer,
    /// Where a struct is written to, as much of it as the next parameter says.
    StructOut,
    /// How many of what the parameter before points to.
    Count,
    /// A `size_t` that counts nothing.
    Index,
    Int32,
    Int64,
    /// Where a number is written to, of this type.
    NumberOut,
    Callback(String),
    /// What a callback is given.
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
            comments.insert(function.name.clone(), comment.clone());
            functions.push(function);
        }
    }
    for function in &mut functions {
        statuses(&function.name, &comments, &mut function.statuses, &mut BTreeSet::new());
    }
    functions
}

/// The function that a line declares. Each stands on a line of its own.
fn function(line: &str) -> Option<Function> {
    if line.starts_with([' ', '/', '#', '}']) || line.starts_with("typedef") {
        return None;
    }
    let (head, rest) = line.split_once('(')?;
    let list = rest.strip_suffix(");").unwrap_or_else(|| panic!("a declaration goes over several lines: {line}"));
    let (result, name) = declarator(head);
    let returns = match &*result {
        "void" => Returns::Nothing,
        "zkl_status" => Returns::Status,
        "int32_t" if name == "zkl_status_errno" => Returns::Number,
        "int32_t" | "int" => Returns::Answer,
        "int64_t" => Returns::Id,
        "const char *" => Returns::Text,
        other if other.starts_with("zkl_") && other.ends_with('*') => Returns::Handle,
        other => panic!("{name} returns {other}: tell tests/prototypes what that is"),
    };
    let mut parameters: Vec<Parameter> = Vec::new();
    for text in list.split(", ").filter(|text| *text != "void") {
        let (text, parameter) = declarator(text);
        let before = parameters.last().map(|parameter| &parameter.kind);
        let kind = kind(&text, &parameter, before)
            .unwrap_or_else(|| panic!("{name} takes {text} {parameter}: tell tests/prototypes what that is"));
        parameters.push(Parameter { name: parameter, text, kind });
    }
    Some(Function { name, returns, parameters, statuses: BTreeSet::new() })
}

/// The type and the name in `type *name`.
fn declarator(text: &str) -> (String, String) {
    let at = text.rfind([' ', '*']).unwrap_or_else(|| panic!("no declarator: {text}"));
    (text[..=at].trim_end().to_owned(), text[at + 1..].to_owned())
}

fn kind(text: &str, name: &str, before: Option<&Kind>) -> Option<Kind> {
    let is_out = name.ends_with("_out");
    let counted = matches!(before, Some(Kind::Bytes | Kind::Buffer | Kind::StructOut | Kind::Handles(_)));
    Some(match text {
        "const char *" => Kind::Text,
        "char *" => Kind::Buffer,
        "const uint8_t *" => Kind::Bytes,
        "size_t" if counted => Kind::Count,
        "size_t" => Kind::Index,
        "int32_t" => Kind::Int32,
        "int64_t" | "uint64_t" => Kind::Int64,
        "void *" => Kind::User,
        "int32_t *" | "int64_t *" | "size_t *" | "int *" if is_out => Kind::NumberOut,
        "zkl_metrics *" if is_out => Kind::StructOut,
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

/// "Returns: as zkl_other" stands for what is said there.
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
    for other in said.split("as zkl_").skip(1) {
        let other = other.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        statuses(&format!("zkl_{other}"), comments, found, seen);
    }
}

/// The kinds of handles that functions make or take.
pub(crate) fn handles(functions: &[Function]) -> BTreeSet<String> {
    let kinds = functions.iter().flat_map(|function| &function.parameters).map(|parameter| &parameter.kind);
    let handle = |kind: &Kind| match kind {
        Kind::Handle(handle) | Kind::HandleOut(handle) | Kind::Handles(handle) => Some(handle.clone()),
        _ => None,
    };
    kinds.filter_map(handle).collect()
}
