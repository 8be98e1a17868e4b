//! Deliberate bugs. Tests with these bugs show that the simulation finds bugs of the same kind. The bugs exist only in
//! builds with the cfg `zklock_mutants`, which `make mutants` sets. In all other builds, `Mutant::is_active` is always
//! false, and the compiler removes the bugs.

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The client grants a lock without checking the session lease.
    GrantOnDeadLease,
    /// The client continues to use a node whose session has ended (CURATOR-604).
    AdoptDeadNode,
    /// The client grants a lock when the node ahead is deleted, although the client may have missed changes.
    GrantAfterMissedEvents,
    /// The client grants a lock when the node ahead is deleted, even if other nodes are ahead.
    GrantOutOfTurn,
    /// The client does not set watches again after a reconnect.
    ForgetWatches,
    /// If the answer to a delete request was lost, the client treats the request as successful.
    DeleteOnce,
    /// If the answer to a create request was lost, the client does not search for the node.
    ForgetLostCreate,
    /// The client does not delete the node of an acquire that ended without success.
    LeaveNode,
    /// The client starts the session lease at the time of the answer instead of the time of the request.
    LeaseFromReply,
    /// The client treats the resumption of its session as a proof that extends the session lease.
    ResumeProves,
    /// The client assumes that the leader has received every packet from the client.
    SentCountsAsTouch,
    /// If the session lease ends before a server confirms the session again, the client does not detect the end of the
    /// lease.
    IgnoreLeaseEnd,
    /// The client does not report the loss of a hold.
    HideLoss,
    /// A contender waits for a node that does not exist.
    WaitForNobody,
    /// The client does not watch the contender's own node.
    IgnoreOwnNode,
    /// The client does not check deadlines while it has no connection.
    OversleepDeadline,
    /// If the answer to a close request was lost, the client treats the request as successful.
    CloseOnce,
    /// When a new session replaces the old session, the client deletes the node of a hold at once. However, the program
    /// may rely on the hold until the session lease ends.
    DeleteReplacedHoldAtOnce,
    /// The client assumes that a follower forwards the arrival of a packet to the leader in less than half a tick.
    TouchTooEarly,
    /// The client assumes that a packet has arrived at the server as soon as the client has written it.
    TouchOnWrite,
    /// The client forgets contenders that were held back while other contenders left the queue.
    HoldBackForever,
    /// The client does not report changes of the session.
    HideSession,
    /// The client uses the sequence number of a node as the fencing token.
    TokenIsSequence,
    /// The client grants a write lock when the writer ahead has released its write lock, even if the same owner still
    /// holds a read lock.
    OverlookDowngrade,
    /// The client grants a read lock even if a writer is ahead.
    ReadAlways,
    /// The client grants a nested read lock without checking that the write lock still exists.
    NestBlindly,
    /// An owner that must wait for itself waits forever instead of failing with DEADLOCK.
    UpgradeForever,
    /// A multi-lock joins its queues one after the other instead of in one transaction.
    JoinOneByOne,
    /// The client acquires a multi-lock although one of its nodes is lost.
    OverlookLostMember,
    /// When a multi-lock is acquired, the client does not transfer the watches to the holds of the member locks.
    SplitWithoutWatches,
    /// The client counts only the leases of other clients, and ignores its own leases.
    CountOthersOnly,
    /// The client does not set watches on children again after a reconnect.
    ForgetChildWatches,
    /// If the children of a directory change during a join, the client does not list the directory again.
    IgnoreEventsWhileJoining,
    /// After an acquire has received its leases, the client keeps the inner mutex of the semaphore.
    KeepInnerMutex,
    /// The client does not notice the loss of the inner mutex of a semaphore.
    NeverWatchInnerMutex,
    /// The client uses the first value of a shared count, and ignores later changes of the count.
    KeepOldCount,
    /// A release ends the hold of another owner although the calling owner has a lost hold.
    ReleaseOtherOwnersHold,
    /// A release of one hold ends a later hold of the same owner.
    ReleaseLaterHold,
    /// The client grants a lock to a contender that is about to leave the queue.
    GrantWhileLeaving,
    /// The client reports a revocation request again whenever it reads the node.
    RepeatRevocationReports,
    /// A fence check asks only one server instead of a quorum.
    AskOneServer,
    /// A fence check treats every participant as a holder.
    TakeWaiterForHolder,
    /// The client relies on a directory cache whose connection was lost.
    KeepCacheAfterDisconnect,
    /// If a node in a directory cache is deleted, the client does not notify the contenders behind the node.
    SkipCacheSubscribers,
    /// The client ends a directory cache without notifying the contenders that rely on it.
    EndCacheSilently,
    /// The client assumes that it is alone in a directory, without a check of the sequence numbers.
    IgnoreSequenceGap,
    /// The client does not detect the deletion of a directory. After the deletion, the sequence numbers start again.
    ForgetDirectory,
    /// The client does not limit the number of local hand-overs.
    HandOverWithoutLimit,
    /// The client hands over a hold locally even if the hold may be unsafe.
    HandOverUnsafeHold,
    /// The client deletes the node of a cohort although operations still wait behind the contender of the cohort.
    ForgetCohort,
    /// The client treats watch events as delivered before it has restored all watches.
    AdvanceWhileRestoring,
    /// The client reports the success of a multi-lock without a second check of the locks from earlier steps.
    SkipFinalSafetyCheck,
    /// The client does not limit the total length of the node paths in a session.
    OverfillSession,
    /// The client refuses an acquire although it will soon have deleted enough nodes.
    RefuseBeforeDeletion,
    /// The client treats the nodes of contenders that leave the queue as deleted.
    OverlookLeaving,
    /// An acquire that makes only one attempt sends no `sync`, although the server may lag behind.
    CheckWithoutSync,
    /// An acquire of leases that makes only one attempt sends no `sync` before it counts the leases.
    CountWithoutSync,
    /// The client computes the session lease without an allowance for delayed pings from the leader.
    ExpectPromptPings,
    /// The client creates lock nodes outside of the chroot.
    ForgetChroot,
    /// The client ignores the nodes of other recipes.
    IgnoreForeignNodes,
    /// If a server refuses a delete request, the client treats the request as successful.
    GiveUpRefused,
    /// When an operation takes over a held-back contender of its cohort, the engine forgets the contender.
    ForgetReassignedHeldBack,
    /// The client repeats a request that is too large, although the server closes each connection on which the client
    /// sends it.
    RetryTooLarge,
    /// If a request is too large for a server, the client also refuses the requests behind it.
    RefuseBesideTooLarge,
    /// If a directory cache has just ended, a contender does not watch its own node, which the cache contained.
    TrustEndedCache,
    /// A contender requests the lists of children before it sets the missing watches on its own nodes.
    ListFirst,
    /// The client sends requests before the server has accepted its identity.
    RequestBeforeSasl,
    /// The client accepts a server that has not proved its identity.
    IgnoreSaslProof,
    /// The client does not prove its identity again when it resumes its session.
    SaslOnlyOnce,
}

impl Mutant {
    /// Whether this build contains the deliberate bugs.
    pub const IS_ENABLED: bool = cfg!(zklock_mutants);

    /// All deliberate bugs.
    pub const ALL: [Self; 69] = [
        Self::GrantOnDeadLease,
        Self::AdoptDeadNode,
        Self::GrantAfterMissedEvents,
        Self::GrantOutOfTurn,
        Self::ForgetWatches,
        Self::DeleteOnce,
        Self::ForgetLostCreate,
        Self::LeaveNode,
        Self::LeaseFromReply,
        Self::ResumeProves,
        Self::SentCountsAsTouch,
        Self::IgnoreLeaseEnd,
        Self::HideLoss,
        Self::WaitForNobody,
        Self::IgnoreOwnNode,
        Self::OversleepDeadline,
        Self::CloseOnce,
        Self::DeleteReplacedHoldAtOnce,
        Self::TouchTooEarly,
        Self::TouchOnWrite,
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
        Self::IgnoreEventsWhileJoining,
        Self::KeepInnerMutex,
        Self::NeverWatchInnerMutex,
        Self::KeepOldCount,
        Self::ReleaseOtherOwnersHold,
        Self::ReleaseLaterHold,
        Self::GrantWhileLeaving,
        Self::RepeatRevocationReports,
        Self::AskOneServer,
        Self::TakeWaiterForHolder,
        Self::KeepCacheAfterDisconnect,
        Self::SkipCacheSubscribers,
        Self::EndCacheSilently,
        Self::IgnoreSequenceGap,
        Self::ForgetDirectory,
        Self::HandOverWithoutLimit,
        Self::HandOverUnsafeHold,
        Self::ForgetCohort,
        Self::AdvanceWhileRestoring,
        Self::SkipFinalSafetyCheck,
        Self::OverfillSession,
        Self::RefuseBeforeDeletion,
        Self::OverlookLeaving,
        Self::CheckWithoutSync,
        Self::CountWithoutSync,
        Self::ExpectPromptPings,
        Self::ForgetChroot,
        Self::IgnoreForeignNodes,
        Self::GiveUpRefused,
        Self::ForgetReassignedHeldBack,
        Self::RetryTooLarge,
        Self::RefuseBesideTooLarge,
        Self::TrustEndedCache,
        Self::ListFirst,
        Self::RequestBeforeSasl,
        Self::IgnoreSaslProof,
        Self::SaslOnlyOnce,
    ];

    /// Returns whether this bug is turned on for the current thread.
    #[cfg(zklock_mutants)]
    pub(crate) fn is_active(self) -> bool {
        ACTIVE.get() == Some(self)
    }

    /// Returns whether this bug is turned on for the current thread. In this build, the result is always false.
    #[cfg(not(zklock_mutants))]
    pub(crate) const fn is_active(self) -> bool {
        false
    }

    /// Turns on one bug for the current thread, or turns off all bugs.
    #[cfg(zklock_mutants)]
    pub fn activate(mutant: Option<Self>) {
        ACTIVE.set(mutant);
    }

    /// Asserts that a unit test succeeds, and that it fails with this bug. Bugs that the simulation finds only after
    /// many seeds have such a test. In a build without deliberate bugs, the function only runs the test.
    #[cfg(test)]
    pub(crate) fn assert_found_by(self, test: fn()) {
        test();
        if Self::IS_ENABLED {
            Self::activate(Some(self));
            let outcome = std::panic::catch_unwind(test);
            Self::activate(None);
            assert!(outcome.is_err(), "{self:?} stays hidden");
        }
    }

    /// Has no effect, because this build contains no deliberate bugs.
    #[cfg(not(zklock_mutants))]
    pub const fn activate(_: Option<Self>) {}
}

#[cfg(zklock_mutants)]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}
