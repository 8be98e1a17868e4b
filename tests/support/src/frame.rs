//! Reads the first fields of the frames that a hook of the proxy receives.

/// Returns whether a frame from a client is the connect request, the first frame of each connection. It begins with the
/// protocol version 0. All other requests begin with their xid, which is never 0.
pub fn is_connect_request(frame: &[u8]) -> bool {
    xid(frame) == 0
}

/// Returns the type of a request. A connect request has no type.
pub fn request_type(frame: &[u8]) -> Option<i32> {
    if is_connect_request(frame) { None } else { Some(number(frame, 4)) }
}

/// Returns the xid of a request or of a reply.
pub fn xid(frame: &[u8]) -> i32 {
    number(frame, 0)
}

/// Panics if the frame is too short, because ZooKeeper's frames contain these fields.
fn number(frame: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}
