//! Makes include/zklock_ffi.h from include/zklock.h: the same declarations without preprocessor directives, attributes and
//! comments. Foreign function interfaces that have no preprocessor can read this form.

use std::fmt::Write;

const HEAD: &str = "/* The declarations of zklock.h for foreign function interfaces without a preprocessor, for example cffi, PHP's FFI, Fiddle and
 * koffi. Programs in C and C++ include zklock.h instead, which also contains the documentation. Each function is on one line.
 *
 * The types int32_t, int64_t, uint8_t, uint32_t, uint64_t and size_t must exist. A C compiler finds them in <stdint.h> and
 * <stddef.h>. An enum cannot contain two constants of zklock.h: ZKL_VERSION is \"VERSION\", and the owner number
 * ZKL_OWNER_THREAD is 18446744073709551615, which is the largest number of the type uint64_t.
 */

/* Generated from zklock.h. To generate it again: ZKL_BLESS=1 cargo test -p zklock-c --test header */

";

/// The flat form of `header`.
pub(crate) fn make(header: &str) -> String {
    let constants = constants(header);
    let mut flat = HEAD.replace("\"VERSION\"", &format!("\"{}\"", env!("CARGO_PKG_VERSION")));
    flat.push_str("enum {\n");
    let enumerators: Vec<String> = constants.iter().map(|(name, value)| format!("    {name} = {value}")).collect();
    flat.push_str(&enumerators.join(",\n"));
    flat.push_str("\n};\n\n");
    for line in code(header) {
        let line = line.strip_prefix("ZKL_NODISCARD ").unwrap_or(line);
        writeln!(flat, "{}", constants.iter().fold(line.to_owned(), with_number)).unwrap();
    }
    flat
}

/// The names and values of the constants.
fn constants(header: &str) -> Vec<(&str, i32)> {
    let defines = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let constants = defines.filter(|(name, _)| !["ZKL_NODISCARD", "ZKL_VERSION", "ZKL_OWNER_THREAD"].contains(name));
    let number = |value: &str| value.trim_matches(['(', ')']).parse().expect("an enum can contain the constant");
    constants.map(|(name, value)| (name, number(value))).collect()
}

/// Replaces the length of an array by its number, because not every reader knows names there.
fn with_number(line: String, &(name, value): &(&str, i32)) -> String {
    line.replace(&format!("[{name}]"), &format!("[{value}]"))
}

/// The lines of a header outside of comments and directives.
fn code(header: &str) -> impl Iterator<Item = &str> {
    let mut is_in_comment = false;
    let mut is_for_cpp = false;
    header.lines().filter(move |line| {
        let text = line.trim();
        let starts_comment = text.starts_with("/*");
        let is_comment = is_in_comment || starts_comment;
        is_in_comment = is_comment && !text.ends_with("*/");
        if text.starts_with('#') {
            is_for_cpp = text.starts_with("#ifdef __cplusplus") || is_for_cpp && !text.starts_with("#endif");
        }
        !(is_comment || is_for_cpp || text.is_empty() || text.starts_with('#'))
    })
}
