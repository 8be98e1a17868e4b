//! The error codes of the protocol.

use std::fmt;

/// A ZooKeeper error code as the server sends it. 0 is success.
///
/// A number rather than an enum: servers gain codes over time, and one unknown here is still worth reporting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub i32);

/// The table of known codes: a constant for each, and [`Code::name`].
macro_rules! codes {
    ($($(#[$doc:meta])* $constant:ident = $value:literal, $name:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $constant: Self = Self($value);)*

            /// What the code is called, such as `NoNode`; `Unknown` for one that is not in the table.
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
    /// It worked.
    OK = 0, "Ok";
    /// Something failed in the server; none of the codes below says what.
    SYSTEM_ERROR = -1, "SystemError";
    /// The server found itself inconsistent. In a multi: not tried, since an earlier operation failed.
    RUNTIME_INCONSISTENCY = -2, "RuntimeInconsistency";
    /// The server found its data inconsistent.
    DATA_INCONSISTENCY = -3, "DataInconsistency";
    /// The connection was lost.
    CONNECTION_LOSS = -4, "ConnectionLoss";
    /// A record could not be encoded or decoded.
    MARSHALLING_ERROR = -5, "MarshallingError";
    /// The server does not have this operation.
    UNIMPLEMENTED = -6, "Unimplemented";
    /// The operation took too long.
    OPERATION_TIMEOUT = -7, "OperationTimeout";
    /// An argument is invalid, such as a malformed path.
    BAD_ARGUMENTS = -8, "BadArguments";
    /// No quorum of the new configuration is connected to the leader.
    NEW_CONFIG_NO_QUORUM = -13, "NewConfigNoQuorum";
    /// Another reconfiguration is under way.
    RECONFIG_IN_PROGRESS = -14, "ReconfigInProgress";
    /// Where the codes about the use of the API begin; not sent itself.
    API_ERROR = -100, "ApiError";
    /// The node does not exist.
    NO_NODE = -101, "NoNode";
    /// The session may not do this.
    NO_AUTH = -102, "NoAuth";
    /// The node's version is not the one asked for.
    BAD_VERSION = -103, "BadVersion";
    /// The parent is ephemeral and so cannot have children.
    NO_CHILDREN_FOR_EPHEMERALS = -108, "NoChildrenForEphemerals";
    /// The node exists already.
    NODE_EXISTS = -110, "NodeExists";
    /// The node has children.
    NOT_EMPTY = -111, "NotEmpty";
    /// The session is over.
    SESSION_EXPIRED = -112, "SessionExpired";
    /// A callback is invalid.
    INVALID_CALLBACK = -113, "InvalidCallback";
    /// The access control list is invalid.
    INVALID_ACL = -114, "InvalidAcl";
    /// The credentials were refused.
    AUTH_FAILED = -115, "AuthFailed";
    /// The session has moved to another server.
    SESSION_MOVED = -118, "SessionMoved";
    /// The server is read-only and the operation is not.
    NOT_READONLY = -119, "NotReadOnly";
    /// A local session cannot create an ephemeral node.
    EPHEMERAL_ON_LOCAL_SESSION = -120, "EphemeralOnLocalSession";
    /// There is no such watch to remove.
    NO_WATCHER = -121, "NoWatcher";
    /// The request took too long.
    REQUEST_TIMEOUT = -122, "RequestTimeout";
    /// Reconfiguration is switched off.
    RECONFIG_DISABLED = -123, "ReconfigDisabled";
    /// The server asks for SASL and closed a session that had not authenticated.
    SESSION_CLOSED_REQUIRE_SASL_AUTH = -124, "SessionClosedRequireSaslAuth";
    /// A quota is used up.
    QUOTA_EXCEEDED = -125, "QuotaExceeded";
    /// The server is overloaded and dropped the operation without doing it.
    THROTTLED_OP = -127, "ThrottledOp";
}

const UNKNOWN: &str = "Unknown";

impl Code {
    /// Whether this is success.
    pub const fn is_ok(self) -> bool {
        self.0 == Self::OK.0
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
