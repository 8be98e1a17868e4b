//! The floors: the least that a client of ZooKeeper has to do for a lock. Blocking sockets, one thread, no error handling, and nothing of
//! zklock's: they are a witness.

mod queue;
mod recipe;
mod wire;

use crate::driver::{Driver, Order, Stamp};
use crate::machine::Nanos;
use queue::Queue;
use recipe::Recipe;

/// A floor, as a driver.
pub(crate) struct Floor {
    recipe: Recipe,
    prepared: Option<Queue>,
}

impl Floor {
    /// The floor of that name; `None` where that is none.
    pub(crate) fn new(name: &str) -> Option<Self> {
        Recipe::of(name).map(|recipe| Self { recipe, prepared: None })
    }
}

impl Driver for Floor {
    fn prepare(&mut self, order: &Order) -> Result<(), String> {
        self.prepared = Some(Queue::prepare(self.recipe, order));
        Ok(())
    }

    fn go(&mut self, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String> {
        let queue = self.prepared.take().ok_or("go before prepare")?;
        Ok(queue.run(start, end))
    }
}
