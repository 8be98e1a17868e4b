//! Deliberate bugs, to see whether the simulation finds them: a test that finds nothing proves nothing until it has found
//! something. Without the feature `mutants`, which no release has, every question here is answered with no at compile time.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "public only with the feature")]

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Grants without asking whether the lease runs.
    GrantOnDeadLease,
    /// Goes on with the node of a session that has ended (CURATOR-604).
    AdoptDeadNode,
    /// Grants when the node ahead goes, though changes may have been missed.
    GrantAcrossGap,
    /// Grants when the node ahead goes, whoever else is ahead.
    GrantOutOfTurn,
    /// Does not set watches again after a reconnect.
    ForgetWatches,
    /// Takes a delete whose answer was lost for done.
    DeleteOnce,
    /// Does not look for the node of a create whose answer was lost.
    ForgetLostCreate,
    /// Leaves the node of a call that gave up.
    LeaveNode,
    /// Counts the lease from the answer and not from the request.
    LeaseFromReply,
    /// Takes the resumption of a session for a proof of its lease.
    ResumeProves,
    /// Takes what was sent for heard by the leader.
    SentIsHeard,
    /// Does not notice that a lease was over before it was proven again.
    ForgetLapse,
    /// Does not tell that a hold is lost.
    HideLoss,
    /// Waits for a node that is not there.
    WaitForNobody,
    /// Does not watch the own node.
    IgnoreOwnNode,
    /// Lets deadlines pass while there is no connection.
    OversleepDeadline,
    /// Takes a close whose answer was lost for done.
    CloseOnce,
    /// Deletes the node of a hold whose session was replaced at once, though the program was told that it is safe for a while.
    SpareNothing,
    /// Gives followers less than half a tick to tell of a packet.
    HearTooSoon,
    /// Takes packets for arrived when they are written.
    HearOnWrite,
    /// Forgets those who were held back while others were on their way out.
    HoldBackForever,
    /// Does not tell how the session stands.
    HideSession,
    /// Takes the sequence number of a node for its fencing token.
    TokenIsSequence,
    /// Lets a writer in when the writer ahead has gone, though it may have kept a read lock.
    OverlookDowngrade,
    /// Lets a reader in whoever is ahead.
    ReadAlways,
    /// Nests a read without looking whether its writer is still there.
    NestBlindly,
    /// Waits where it would wait for itself.
    UpgradeForever,
    /// Takes the locks of a multi-lock one after the other.
    JoinOneByOne,
    /// Goes on with a multi-lock one of whose nodes is lost.
    OverlookLostMember,
    /// Does not hand over what a multi-lock watches to the locks that it becomes.
    SplitWithoutWatches,
    /// Does not count its own leases.
    CountOthersOnly,
    /// Does not ask again for watches on children after a reconnect.
    ForgetChildWatches,
    /// Does not ask for the list again when it hears of a change while it joins.
    HearNothingWhileJoining,
    /// Keeps the inner mutex of a semaphore once it has its leases.
    StayInside,
    /// Does not notice that the inner mutex of a semaphore is lost.
    ForgetInside,
    /// Goes by the count as it was first read.
    KeepOldCount,
    /// Releases the hold of another, though its owner has one that is lost.
    ReleaseAnothers,
    /// Lets one in who is on his way out.
    LetInLeaver,
    /// Tells of every look at a node that it is asked back.
    RevokeOnEveryLook,
    /// Asks one server whose a token is, and no quorum.
    AskOneServer,
    /// Takes everybody who is there for a holder.
    TakeWaiterForHolder,
    /// Goes by a mirror whose connection was lost.
    TrustOldMirror,
    /// Does not tell those behind a node that is gone from a mirror.
    ForgetFollower,
    /// Takes a mirror down without a word to those who rely on it.
    LeaveUsersBlind,
    /// Takes itself for the only one whatever number it got.
    SkipNumbers,
    /// Does not notice that a directory was removed, and may count anew.
    ForgetDirectory,
    /// Passes a lock on in its process for as long as anybody there waits.
    PassForever,
    /// Passes on a hold that is not surely safe.
    PassBlindly,
    /// Takes the place of a cohort along when the call gives up that stands for it.
    ForgetCohort,
    /// Counts the events of watches as delivered before all watches are restored.
    AdvanceWhileRestoring,
    /// Reports a multi-lock that was taken step by step without looking at its parts again.
    OverlookLostPart,
    /// Takes any number of nodes into a session.
    OverfillSession,
    /// Takes the nodes of contenders on their way out for gone.
    OverlookLeaving,
    /// Looks before it joins without having its server catch up.
    LookWithoutSync,
    /// Leaves no time in the lease for a leader whose pings are late.
    ExpectPromptPings,
    /// Creates lock nodes outside of the chroot.
    ForgetChroot,
    /// Passes by the nodes of other recipes.
    PassByForeign,
    /// Takes a delete that a server refused for done.
    GiveUpRefused,
    /// Forgets a contender that is held back when the next call of its cohort takes it over.
    ForgetHandedDown,
    /// Sends a request again, however many connections it costs.
    RetryTooLarge,
    /// Relies for the own node on a mirror that ended before its contender looked into it.
    TrustEndedMirror,
    /// Lists before it looks for own nodes that are not watched any more.
    ListFirst,
}

impl Mutant {
    /// All of them.
    #[cfg(feature = "mutants")]
    pub const ALL: [Self; 62] = [
        Self::GrantOnDeadLease,
        Self::AdoptDeadNode,
        Self::GrantAcrossGap,
        Self::GrantOutOfTurn,
        Self::ForgetWatches,
        Self::DeleteOnce,
        Self::ForgetLostCreate,
        Self::LeaveNode,
        Self::LeaseFromReply,
        Self::ResumeProves,
        Self::SentIsHeard,
        Self::ForgetLapse,
        Self::HideLoss,
        Self::WaitForNobody,
        Self::IgnoreOwnNode,
        Self::OversleepDeadline,
        Self::CloseOnce,
        Self::SpareNothing,
        Self::HearTooSoon,
        Self::HearOnWrite,
        Self::HoldBackForever,
        Self::HideSession,
        Self::TokenIsSequence,
        Self::OverlookDowngrade,
        Self::ReadAlways,
        Self::NestBlindly,
        Self::UpgradeForever,
        Self::JoinOneByOne,
        Self::OverlookLostMember,
        Self::SplitWithoutWatches,
        Self::CountOthersOnly,
        Self::ForgetChildWatches,
        Self::HearNothingWhileJoining,
        Self::StayInside,
        Self::ForgetInside,
        Self::KeepOldCount,
        Self::ReleaseAnothers,
        Self::LetInLeaver,
        Self::RevokeOnEveryLook,
        Self::AskOneServer,
        Self::TakeWaiterForHolder,
        Self::TrustOldMirror,
        Self::ForgetFollower,
        Self::LeaveUsersBlind,
        Self::SkipNumbers,
        Self::ForgetDirectory,
        Self::PassForever,
        Self::PassBlindly,
        Self::ForgetCohort,
        Self::AdvanceWhileRestoring,
        Self::OverlookLostPart,
        Self::OverfillSession,
        Self::OverlookLeaving,
        Self::LookWithoutSync,
        Self::ExpectPromptPings,
        Self::ForgetChroot,
        Self::PassByForeign,
        Self::GiveUpRefused,
        Self::ForgetHandedDown,
        Self::RetryTooLarge,
        Self::TrustEndedMirror,
        Self::ListFirst,
    ];

    /// Whether this one is alive on this thread.
    #[cfg(feature = "mutants")]
    pub(crate) fn lives(self) -> bool {
        ALIVE.get() == Some(self)
    }

    /// Whether this one is alive on this thread: there are none.
    #[cfg(not(feature = "mutants"))]
    pub(crate) const fn lives(self) -> bool {
        false
    }

    /// Lets one live on this thread, or none.
    #[cfg(feature = "mutants")]
    pub fn release(mutant: Option<Self>) {
        ALIVE.set(mutant);
    }
}

#[cfg(feature = "mutants")]
thread_local! {
    static ALIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}
