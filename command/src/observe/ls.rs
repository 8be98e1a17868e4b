//! `zklock ls`: the locks below a path, as a tree.

use super::connect;
use super::table::{Table, answer, width};
use super::walk::{Found, Scope, Walk, why_unreadable};
use crate::cli::LsArguments;
use crate::duration::age;
use crate::exit::{Exit, Failure};
use crate::owner::escaped;
use crate::survey::{Entry, Kind};

/// Lists the locks.
pub(crate) fn run(arguments: &LsArguments) -> Result<Exit, Failure> {
    let scope = Scope { root: arguments.path.clone(), limit: arguments.limit, has_directories: arguments.all };
    let mut walk = Walk::read(&connect(&arguments.connection)?, &scope)?;
    if let Some(limit) = arguments.longer_than {
        walk.keep_longer_than(limit);
    }
    answer(&if arguments.json { format!("{}\n", walk.to_json(walk.found.keys())) } else { show(&walk) })?;
    Ok(if arguments.longer_than.is_some() && walk.locks().next().is_some() { Exit::Busy } else { Exit::Command(0) })
}

fn show(walk: &Walk) -> String {
    if let Some(text) = walk.emptiness() {
        return text + &walk.missing();
    }
    let multi_locks = walk.multi_locks();
    let mut table = Table::new(["PATH", "KIND", "WAITING", "AGE", "HOLDER"]);
    let mut shown: Vec<&str> = Vec::new();
    for (path, found) in &walk.found {
        // The tree also contains the ancestors of a lock, even if they are no locks.
        for ancestor in ancestors(path, &walk.root).filter(|&ancestor| !walk.found.contains_key(ancestor)) {
            if !shown.contains(&ancestor) {
                table.add([label(ancestor, &walk.root), String::new(), String::new(), String::new(), String::new()]);
            }
        }
        shown = ancestors(path, &walk.root).collect();
        let label = label(path, &walk.root);
        table.add(match found {
            Found::Directory => [label, String::new(), String::new(), String::new(), String::new()],
            Found::Unreadable(error) => [label, String::new(), String::new(), String::new(), why_unreadable(error)],
            Found::Lock(survey) => {
                let is_member = |entry: &Entry| {
                    entry.content.as_ref().is_some_and(|content| multi_locks.contains_key(&content.token))
                };
                let kind = survey.kind.map_or("", Kind::name).to_owned();
                let since = survey.holders().next().and_then(Entry::since);
                let is_multi = survey.holders().any(is_member);
                let kind = if is_multi { format!("{kind}, multi") } else { kind };
                [label, kind, survey.waiting().to_string(), age(since, walk.time), survey.describe_holders()]
            }
        });
    }
    let locks = if walk.found.is_empty() { String::new() } else { table.show(width(), &[32, 17, 7, 8]) };
    locks + &walk.missing()
}

/// Returns the paths between the root of the tree and a node, beginning with the root.
fn ancestors<'p>(path: &'p str, root: &str) -> impl Iterator<Item = &'p str> {
    let start = root.trim_end_matches('/').len();
    let inner = path.match_indices('/').map(|(at, _)| at).filter(move |&at| at > start);
    let top = if path == root { None } else { path.get(..start.max(1)) };
    top.into_iter().chain(inner.filter_map(|at| path.get(..at)))
}

/// Writes the name of a node, indented by its depth.
fn label(path: &str, root: &str) -> String {
    let depth = ancestors(path, root).count();
    let name = if depth == 0 { path } else { path.rsplit('/').next().unwrap_or(path) };
    format!("{}{}", "  ".repeat(depth), escaped(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_indented_below_their_ancestors() {
        let all = |path, root| ancestors(path, root).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(all("/a/b/c", "/a"), ["/a", "/a/b"]);
        assert_eq!(all("/a/b", "/"), ["/", "/a"]);
        assert_eq!(all("/a", "/a"), [""; 0]);
        assert_eq!(
            (label("/a/b/c", "/a"), label("/a", "/a"), label("/a", "/")),
            ("    c".into(), "/a".into(), "  a".into())
        );
    }
}
