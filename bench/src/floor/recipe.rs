//! The floors: which requests each sends, and what it waits for.

/// How a floor finds out that it is its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It creates a node, and when that is answered, lists the directory, and watches the node ahead; woken, it lists again.
    ListAfterwards,
    /// It creates and lists in one write; woken, it lists again only if the node ahead was not the head of the queue.
    ListAtOnce,
    /// It is told of every change of the directory by one persistent watch, and knows the queue without a list.
    Mirror,
    /// There is no queue: it creates a node of a fixed name, which nobody else wants.
    NoQueue,
}

/// How a floor deletes its node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// And waits for the answer.
    Awaited,
    /// At once, without waiting.
    NotAwaited,
    /// In one write with the next create.
    WithNext,
    /// In one transaction with the next create.
    InOneTransaction,
}

/// A floor.
#[derive(Clone, Copy)]
pub(crate) struct Recipe {
    pub(crate) turn: Turn,
    pub(crate) release: Release,
    /// Whether each worker has a session of its own.
    pub(crate) has_sessions: bool,
}

impl Recipe {
    /// The floor of that name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (letter, has_sessions) = match name.strip_prefix("raw-")? {
            "bs" => ("b", true),
            "qs" => ("q", true),
            letter => (letter, false),
        };
        let (turn, release) = match letter {
            "a" => (Turn::ListAfterwards, Release::Awaited),
            "b" => (Turn::ListAtOnce, Release::Awaited),
            "c" => (Turn::ListAtOnce, Release::WithNext),
            "e" => (Turn::ListAtOnce, Release::NotAwaited),
            "m" => (Turn::ListAtOnce, Release::InOneTransaction),
            "n" => (Turn::NoQueue, Release::Awaited),
            "p" => (Turn::Mirror, Release::WithNext),
            "q" => (Turn::Mirror, Release::Awaited),
            _ => return None,
        };
        Some(Self { turn, release, has_sessions })
    }
}
