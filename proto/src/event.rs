//! The notification that a server sends when a watch fires.

use super::codec::{Reader, frame, wire_enum};
use super::{Code, ProtoError, ReplyHeader, XID_NOTIFICATION};

/// A watch event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// The type of the event.
    pub kind: EventKind,
    /// The state of the session from the server's point of view. For all events about nodes, the state is
    /// [`WatchEvent::SYNC_CONNECTED`].
    pub state: i32,
    /// The path of the node.
    pub path: String,
}

wire_enum! {
    /// The type of a watch event.
    "event type" EventKind {
        /// The event reports the state of the session, not a change of a node.
        None = -1,
        /// The node was created.
        Created = 1,
        /// The node was deleted.
        Deleted = 2,
        /// A client has set the node's data.
        DataChanged = 3,
        /// A child of the node was created or deleted.
        ChildrenChanged = 4,
        /// The server removed a data watch at the request of the client.
        DataWatchRemoved = 5,
        /// The server removed a child watch at the request of the client.
        ChildWatchRemoved = 6,
        /// The server removed a persistent watch at the request of the client.
        PersistentWatchRemoved = 7,
    }
}

impl WatchEvent {
    /// The `state` of an event from a connected server.
    pub const SYNC_CONNECTED: i32 = 3;

    /// Appends a complete frame that contains the event. `zxid` is the zxid of the transaction that fired the watch.
    /// Older servers send the zxid -1.
    pub fn encode(&self, zxid: i64, out: &mut Vec<u8>) {
        frame(out, |w| {
            ReplyHeader { xid: XID_NOTIFICATION, zxid, err: Code::OK }.write(w);
            w.i32(self.kind.to_wire());
            w.i32(self.state);
            w.string(&self.path);
        });
    }

    /// Decodes the part of a notification that follows the [`ReplyHeader`].
    pub fn decode(body: &[u8]) -> Result<Self, ProtoError> {
        let mut r = Reader::new(body);
        let event =
            Self { kind: r.enum_value("event type")?, state: r.i32("event state")?, path: r.string("event path")? };
        r.finish("event")?;
        Ok(event)
    }
}
