//! Loom models of a chain. Threads answer the requests of the chain while other threads wait for the chain, cancel it or
//! register a hook.

#![allow(clippy::unwrap_used, reason = "tests")]

use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

type Answered = Arc<Completion<Option<Result<u8>>>>;

/// A request that another thread answers.
struct Request(Answered);

impl InProgress<u8> for Request {
    fn wait_for(&self, slice: Duration) -> Option<Result<u8>> {
        self.0.wait_for(slice)
    }

    fn is_over(&self) -> bool {
        self.0.has_ended()
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        self.0.on_done(hook);
        Ok(())
    }

    fn cancel(&self) -> Result<()> {
        Ok(())
    }

    fn abandon(&self) {}
}

/// The result of the chain is the answer to the second request. A chain whose second request has started ignores a
/// cancellation.
struct TwoRequests {
    second: Option<Operation<u8>>,
}

impl Links for TwoRequests {
    type Answer = u8;
    type Output = u8;

    fn next(&mut self, answer: Result<u8>) -> Result<Next<u8, u8>> {
        let answer = answer?;
        Ok(self.second.take().map_or(Next::End(answer), Next::Request))
    }

    fn cancel(&self) -> Option<Error> {
        self.second.is_some().then(|| Status::Canceled.into())
    }
}

fn start_two() -> (Arc<Operation<u8>>, [Answered; 2]) {
    let answers = [Answered::default(), Answered::default()];
    let [first, second] = answers.each_ref().map(|answer| Operation::new(Request(Arc::clone(answer))));
    (Arc::new(start(TwoRequests { second: Some(second) }, first)), answers)
}

fn wait(chain: &Operation<u8>) -> std::result::Result<u8, Status> {
    loop {
        if let Some(result) = chain.wait_for(Duration::MAX) {
            return result.map_err(|error| error.status());
        }
    }
}

#[test]
fn every_waiter_receives_the_last_answer() {
    loom::model(|| {
        let (chain, [first, second]) = start_two();
        let answering = thread::spawn(move || first.complete(Ok(1)));
        let waiting = thread::spawn({
            let chain = Arc::clone(&chain);
            move || wait(&chain)
        });
        assert!(second.complete(Ok(2)));
        assert_eq!(wait(&chain), Ok(2));
        assert_eq!(waiting.join().unwrap(), Ok(2));
        assert!(answering.join().unwrap());
    });
}

#[test]
fn chain_without_a_waiter_runs_its_hook_once() {
    loom::model(|| {
        let (chain, [first, second]) = start_two();
        let calls = Arc::new(AtomicUsize::new(0));
        let answering = thread::spawn(move || first.complete(Ok(1)));
        let hook = {
            let calls = Arc::clone(&calls);
            move || _ = calls.fetch_add(1, Ordering::Relaxed)
        };
        let listening = thread::spawn({
            let chain = Arc::clone(&chain);
            move || chain.on_done(hook).unwrap()
        });
        assert!(second.complete(Ok(2)));
        assert!(answering.join().unwrap());
        listening.join().unwrap();
        assert_eq!((calls.load(Ordering::Relaxed), chain.is_over()), (1, true));
    });
}

#[test]
fn canceled_chain_ends_before_its_second_request_or_with_the_last_answer() {
    loom::model(|| {
        let (chain, [first, second]) = start_two();
        let answering = thread::spawn(move || first.complete(Ok(1)) && second.complete(Ok(2)));
        chain.cancel().unwrap();
        let result = wait(&chain);
        assert!(matches!(result, Ok(2) | Err(Status::Canceled)), "{result:?}");
        assert!(answering.join().unwrap());
        assert_eq!(wait(&chain), result);
    });
}
