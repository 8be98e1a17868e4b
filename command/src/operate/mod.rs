//! The verbs with which an operator changes or checks the locks of others.

pub(crate) mod break_lock;
pub(crate) mod fence_check;
pub(crate) mod revoke;
