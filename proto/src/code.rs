//! Error codes of the protocol.

use std::fmt;

/// A ZooKeeper error code. 0 means success.
///
/// The type is not an enum, because newer servers can send codes that this library does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub i32);

/// Defines a constant for each known code, and [`Code::name`].
macro_rules! codes {
    ($($(#[$doc:meta])* $constant:ident = $value:literal, $name:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $constant: Self = Self($value);)*

            /// Returns the name of the code, such as `NoNode`, or `Unknown` if the code is not in the table.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $name,)*
                    _ => UNKNOWN,
                }
            }
        }
    };
}

codes! {
    /// The operation succeeded.
    OK = 0, "Ok";
    /// The server failed for a reason that no other code describes.
    SYSTEM_ERROR = -1, "SystemError";
    /// The server detected an inconsistency in its own state. In the reply to a multi request, this code means that an
    /// earlier operation failed, so the server did not try this operation.
    RUNTIME_INCONSISTENCY = -2, "RuntimeInconsistency";
    /// The server detected that its data is inconsistent.
    DATA_INCONSISTENCY = -3, "DataInconsistency";
    /// The connection was lost.
    CONNECTION_LOSS = -4, "ConnectionLoss";
    /// A record could not be encoded or decoded.
    MARSHALLING_ERROR = -5, "MarshallingError";
    /// The server does not implement this operation.
    UNIMPLEMENTED = -6, "Unimplemented";
    /// The operation took too long.
    OPERATION_TIMEOUT = -7, "OperationTimeout";
    /// An argument is invalid, such as a malformed path.
    BAD_ARGUMENTS = -8, "BadArguments";
    /// The leader is not connected to a quorum of the new configuration.
    NEW_CONFIG_NO_QUORUM = -13, "NewConfigNoQuorum";
    /// Another reconfiguration is in progress.
    RECONFIG_IN_PROGRESS = -14, "ReconfigInProgress";
    /// The code at which the range of API errors starts. Servers do not send this code.
    API_ERROR = -100, "ApiError";
    /// The node does not exist.
    NO_NODE = -101, "NoNode";
    /// The session lacks a permission for the operation.
    NO_AUTH = -102, "NoAuth";
    /// The node does not have the required version.
    BAD_VERSION = -103, "BadVersion";
    /// The parent is an ephemeral node, which cannot have children.
    NO_CHILDREN_FOR_EPHEMERALS = -108, "NoChildrenForEphemerals";
    /// The node already exists.
    NODE_EXISTS = -110, "NodeExists";
    /// The node has children.
    NOT_EMPTY = -111, "NotEmpty";
    /// The session has expired.
    SESSION_EXPIRED = -112, "SessionExpired";
    /// A callback is invalid.
    INVALID_CALLBACK = -113, "InvalidCallback";
    /// The access control list is invalid.
    INVALID_ACL = -114, "InvalidAcl";
    /// The server refused the credentials.
    AUTH_FAILED = -115, "AuthFailed";
    /// The session has moved to another server.
    SESSION_MOVED = -118, "SessionMoved";
    /// The server is read-only, and the operation would change data.
    NOT_READONLY = -119, "NotReadOnly";
    /// A local session cannot create an ephemeral node.
    EPHEMERAL_ON_LOCAL_SESSION = -120, "EphemeralOnLocalSession";
    /// The watch that should be removed does not exist.
    NO_WATCHER = -121, "NoWatcher";
    /// The server needed too much time for the request.
    REQUEST_TIMEOUT = -122, "RequestTimeout";
    /// Reconfiguration is disabled.
    RECONFIG_DISABLED = -123, "ReconfigDisabled";
    /// The server requires SASL and closed the session, because the client had not authenticated.
    SESSION_CLOSED_REQUIRE_SASL_AUTH = -124, "SessionClosedRequireSaslAuth";
    /// A quota is exceeded.
    QUOTA_EXCEEDED = -125, "QuotaExceeded";
    /// The server is overloaded and dropped the operation without performing it.
    THROTTLED_OP = -127, "ThrottledOp";
}

const UNKNOWN: &str = "Unknown";

impl Code {
    /// Returns whether the code means success.
    pub const fn is_ok(self) -> bool {
        self.0 == Self::OK.0
    }
}

/// What an error code says about the request that the server answered with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The answer would be the same if the client repeated the request now.
    Final,
    /// The server has not performed the request, and can perform it a moment later.
    Transient,
    /// The server may have performed the request, or can no longer serve the session. The next handshake, perhaps with
    /// another server, shows the state of the session.
    Reconnect,
}

impl Code {
    /// Classifies an error code. This table is the only place that decides which requests the client repeats.
    pub const fn refusal(self) -> Refusal {
        match self {
            Self::THROTTLED_OP | Self::NEW_CONFIG_NO_QUORUM | Self::RECONFIG_IN_PROGRESS => Refusal::Transient,
            Self::SESSION_EXPIRED
            | Self::SESSION_MOVED
            | Self::CONNECTION_LOSS
            | Self::OPERATION_TIMEOUT
            | Self::REQUEST_TIMEOUT
            | Self::NOT_READONLY => Refusal::Reconnect,
            _ => Refusal::Final,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            UNKNOWN => write!(f, "code {}", self.0),
            name => write!(f, "{name} ({})", self.0),
        }
    }
}
