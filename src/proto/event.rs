//! What the server sends unasked: a watch fired.

use super::codec::{Reader, frame, wire_enum};
use super::{Code, ProtoError, ReplyHeader, XID_NOTIFICATION};

/// A watch notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// The state of the session as the server sees it; [`WatchEvent::SYNC_CONNECTED`] for all that matters.
    pub state: i32,
    /// The node it happened to.
    pub path: String,
}

wire_enum! {
    /// What happened to a watched node.
    "event type" EventKind {
        /// Nothing: the event is about the session's state.
        None = -1,
        /// The node was created.
        Created = 1,
        /// The node was deleted.
        Deleted = 2,
        /// The node's data was set.
        DataChanged = 3,
        /// A child of the node was created or deleted.
        ChildrenChanged = 4,
        /// A data watch was removed on request.
        DataWatchRemoved = 5,
        /// A child watch was removed on request.
        ChildWatchRemoved = 6,
        /// A persistent watch was removed on request.
        PersistentWatchRemoved = 7,
    }
}

impl WatchEvent {
    /// The `state` of an event sent over a connection in good order.
    pub const SYNC_CONNECTED: i32 = 3;

    /// Appends a whole frame. `zxid` is the transaction that fired the watch, or -1 as older servers have it.
    pub fn encode(&self, zxid: i64, out: &mut Vec<u8>) {
        frame(out, |w| {
            ReplyHeader { xid: XID_NOTIFICATION, zxid, err: Code::OK }.write(w);
            w.i32(self.kind.to_wire());
            w.i32(self.state);
            w.string(&self.path);
        });
    }

    /// Reads what follows the [`ReplyHeader`] of a notification.
    pub fn decode(body: &[u8]) -> Result<Self, ProtoError> {
        let mut r = Reader::new(body);
        let event = Self { kind: r.choice("event type")?, state: r.i32("event state")?, path: r.string("event path")? };
        r.finish("event")?;
        Ok(event)
    }
}
