//! Credentials, which the session sends to a server. This file does not know where credentials come from.

use std::fmt;

use zeroize::Zeroizing;
use zklock_proto::{Request, XID_AUTH};

/// The bytes of an auth packet besides the scheme and the data: the length of the frame, the xid, the type of the
/// request, the type of the packet, and the lengths of both fields.
const PACKET_OVERHEAD: usize = 24;

/// Credentials for one scheme. The memory of the data is erased when the value is dropped.
#[derive(Clone)]
pub struct Credentials {
    /// The authentication scheme that defines the format of `data`, such as `digest`.
    pub scheme: String,
    /// The data that proves an identity, for example `user:password`.
    pub data: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The output does not contain the data.
        f.debug_struct("Credentials").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// Appends an auth packet for each of the credentials, and erases the credentials. Returns the number of packets. The
/// only copy of the credentials that remains in memory is in `output`.
pub(super) fn encode_credentials(all: Vec<Credentials>, output: &mut Vec<u8>) -> usize {
    // A buffer that grows moves its content, and does not erase the first copy.
    output.reserve(all.iter().map(|one| PACKET_OVERHEAD + one.scheme.len() + one.data.len()).sum());
    let mut packets = 0;
    for Credentials { scheme, mut data } in all {
        let request = Request::Auth { scheme, auth: std::mem::take(&mut *data) };
        packets += usize::from(request.encode(XID_AUTH, output).is_ok());
        if let Request::Auth { auth, .. } = request {
            *data = auth;
        }
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_does_not_move_the_output() {
        let one = |length| Credentials { scheme: "digest".into(), data: Zeroizing::new(vec![b'x'; length]) };
        for lengths in [&[1_usize][..], &[100, 5000], &[0, 0, 1 << 16]] {
            let mut output = Vec::new();
            let capacity = PACKET_OVERHEAD * lengths.len() + lengths.iter().map(|length| length + 6).sum::<usize>();
            assert_eq!(
                encode_credentials(lengths.iter().map(|&length| one(length)).collect(), &mut output),
                lengths.len()
            );
            assert_eq!((output.len(), output.capacity()), (capacity, capacity));
        }
        assert_eq!(format!("{:?}", one(3)), "Credentials { scheme: \"digest\", .. }");
    }
}
