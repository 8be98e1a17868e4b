//! The verbs with which an operator changes the locks of others.

pub(crate) mod break_lock;
pub(crate) mod revoke;
