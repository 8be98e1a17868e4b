//! Shortens texts to the width of a column.

/// Returns the number of characters.
pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}

/// Shortens a text to a number of characters, and keeps its beginning.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    let start: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{start}...")
}

/// Shortens a text to a number of characters, and keeps its end. The end of a path says more than its beginning.
pub(crate) fn shorten_start(text: &str, width: usize) -> String {
    let length = length(text);
    if length <= width {
        return text.to_owned();
    }
    let end: String = text.chars().skip(length - width.saturating_sub(3)).collect();
    format!("...{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_shown_by_its_end() {
        assert_eq!(shorten_start("/locks/nightly/reprt", 20), "/locks/nightly/reprt");
        assert_eq!(shorten_start("/locks/nightly/report", 20), "...ks/nightly/report");
        assert_eq!(shorten_start(&"\u{fc}".repeat(30), 20).chars().count(), 20);
    }
}
