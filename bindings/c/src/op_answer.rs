//! The answers of operations, in the form in which a `zkl_op` handle keeps them. This module must not use operations.

use std::sync::{Mutex, PoisonError};

use zklock::{Client, Error, Hold, Participant, PastRun, Result, RunStart, Semaphore, Status};

use crate::client::ClientObject;
use crate::lock_object::LockHandles;
use crate::participant::ParticipantRecord;
use crate::run::PastRunRecord;
use crate::semaphore::{self, SemaphoreObject};

/// The answer of an operation that has succeeded.
pub(crate) enum OpAnswer {
    Done,
    Number(i64),
    Participants(Vec<ParticipantRecord>),
    PastRuns(Vec<PastRunRecord>),
    Hold(Once<Hold>),
    Run(Once<RunStart>),
    Client(Once<ClientObject>),
    Semaphore(Once<SemaphoreObject>),
}

/// An object that the program can take once. Until then, the operation owns the object.
pub(crate) struct Once<T>(Mutex<Option<T>>);

impl OpAnswer {
    #[expect(clippy::unnecessary_wraps, reason = "the type of a conversion that can fail")]
    pub(crate) const fn done((): ()) -> Result<Self> {
        Ok(Self::Done)
    }

    pub(crate) fn number(value: impl Into<i64>) -> Result<Self> {
        Ok(Self::Number(value.into()))
    }

    pub(crate) fn participants(found: Vec<Participant>) -> Result<Self> {
        Ok(Self::Participants(found.into_iter().map(ParticipantRecord::new).collect()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "the type of a conversion that can fail")]
    pub(crate) fn past_runs(runs: Vec<PastRun>) -> Result<Self> {
        Ok(Self::PastRuns(runs.into_iter().map(PastRunRecord::new).collect()))
    }

    pub(crate) fn run(start: RunStart) -> Result<Self> {
        Ok(Self::Run(Once::new(start)))
    }

    pub(crate) fn hold(hold: Hold) -> Result<Self> {
        Ok(Self::Hold(Once::new(hold)))
    }

    pub(crate) fn client(client: Client, handles: &LockHandles) -> Result<Self> {
        Ok(Self::Client(Once::new(ClientObject { client, handles: handles.clone() })))
    }

    pub(crate) fn semaphore(semaphore: Semaphore) -> Result<Self> {
        Ok(Self::Semaphore(Once::new(semaphore::object(semaphore))))
    }
}

impl<T> Once<T> {
    const fn new(object: T) -> Self {
        Self(Mutex::new(Some(object)))
    }

    /// Takes the object. `what` names the object for the error message.
    pub(crate) fn take(&self, what: &str) -> Result<T> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| Error::new(Status::Invalid, format!("the {what} of this operation was already taken")))
    }
}

impl Once<Hold> {
    /// Leaves the hold to its owner, if the program has not taken it.
    pub(crate) fn leave_to_owner(&self) {
        let hold = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hold.map(Hold::leave_to_owner);
    }
}
